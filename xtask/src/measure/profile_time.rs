//! How long it takes to measure five variants with one and with two threads, and how much of a grid of all batch sizes that is.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, accuracy_python};
use crate::command::{output, program, target_dir};
use crate::test::recipes;

pub(crate) const MEASURE: Measure = Measure {
    name: "profile-time",
    what: "time to measure five variants with 1 and 2 threads, their accuracy on labelled sets included, and the share of all batch \
           sizes that was measured",
    run: measure,
};

/// Batches of every size up to this are what a grid would measure.
const LARGEST: f64 = 32.0;

fn measure(context: &Context) -> Result<Outcome> {
    let demo = context.root.join("examples/fashion");
    let mut packages: Vec<(PathBuf, Vec<&str>)> = Vec::new();
    let texts = if context.short { None } else { Some(accuracy_python::texts(context)?.0) };
    if let Some(texts) = &texts {
        let target = target_dir(&context.root)?;
        let pictures = accuracy_python::imagenet(context, &recipes(&context.root, &target)?, &target)?;
        packages.push((pictures, vec!["efficientnet-lite0-fp32"]));
        packages.push((texts.path().join("ratings"), vec!["all-minilm-l6-v2-rating-fp32"]));
        packages.push((demo, vec!["cnn_l-fp32", "cnn_m-fp32", "cnn_m-int8"]));
    } else {
        packages.push((demo, vec!["linear-fp32", "cnn_m-int8"]));
    }
    // Built and installed before the clock runs.
    let binary = context.binary()?;
    context.onnx_library()?;
    let rounds = context.choose(3, 1);
    let (mut seconds, mut shares, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    let mut unlabelled = 0_u32;
    for _ in 0..rounds {
        let (mut spent, mut sizes, mut grid) = (0.0, 0.0, 0.0);
        let mut told = Vec::new();
        for (package, variants) in &packages {
            let mut command = program(&context.root, binary);
            command.args(["profile", "run"]).arg(package).args(["--json", "--threads", "1,2"]);
            for variant in variants {
                command.args(["--variant", variant]);
            }
            let since = Instant::now();
            let text = output(&mut command)?;
            spent += since.elapsed().as_secs_f64();
            // The command that measured it names the package, which lies elsewhere on other machines.
            let name = package.file_name().unwrap_or_default().to_string_lossy();
            let text = text.replace(&*package.to_string_lossy(), &name);
            let answer: Value = serde_json::from_str(&text).context("it told no JSON")?;
            let measured = answer.as_array().context("it told no list")?;
            ensure!(measured.len() == variants.len() * 2, "not everything was measured: {}", measured.len());
            for one in measured {
                #[expect(clippy::cast_precision_loss, reason = "counts")]
                let count = one["profile"]["latency"].as_array().map_or(0, Vec::len) as f64;
                (sizes, grid) = (sizes + count, grid + LARGEST);
                unlabelled += u32::from(one["profile"]["accuracy"]["samples"].as_u64().unwrap_or(0) == 0);
            }
            told.push(answer);
        }
        seconds.push(spent);
        shares.push(sizes / grid * 100.0);
        raw.push(json!({"seconds": spent, "sizes": sizes, "grid": grid, "measured": told}));
    }
    let median = |values: &[f64]| modelless_testkit::stats::median(values).context("no rounds");
    let (time, share) = (median(&seconds)?, median(&shares)?);
    let what: usize = packages.iter().map(|(_, variants)| variants.len()).sum();
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(raw),
        summary: json!({"seconds_median": time, "share_of_grid_percent_median": share}),
        result: format!(
            "{what} variants with 1 and 2 threads and their accuracy in {time:.0} s, {share:.0} % of the batch sizes of a grid from 1 to 32 (median \
             of {rounds})"
        ),
        checks: vec![
            Check { what: "time", value: time, limit: context.choose(600.0, 300.0), unit: "s" },
            Check { what: "share of the grid", value: share, limit: 60.0, unit: "%" },
            Check {
                what: "variants whose accuracy was not measured",
                value: unlabelled.into(),
                limit: 0.0,
                unit: "",
            },
        ],
    })
}
