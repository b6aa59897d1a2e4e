//! From one fp32 model with a labelled set to a frontier: how long it takes, and what eight bits cost by each way of finding
//! ranges.
//!
//! The command a user would type, on models of the demo with nothing but their fp32 file. What is measured of each variant is
//! compared with a count that numpy and ONNX Runtime make alone, on the tensors that the adapter gives to the model.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, stats};
use serde_json::{Map, Value, json};

use super::{Check, Context, Measure, Outcome, demo};
use crate::command::{output, program};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "generate",
    what: "from one fp32 image model with 2,000 labelled pictures to a measured frontier of variants that nobody supplied: \
           wall time, and eight bits by each way of finding ranges",
    run: measure,
};

const FRONTIER: usize = 4;
const LONGEST_S: f64 = 120.0;
const WAYS: [&str; 5] = ["fp32", "int8-dynamic", "int8-minmax", "int8-percentile", "int8-entropy"];
const PLOT: &str = "docs/img/generated.svg";
const EXAMPLE: &str = "examples/fashion";

fn measure(context: &Context) -> Result<Outcome> {
    // Fetched before, so that an index's network is no part of the figure.
    let tools = output(program(&context.root, context.binary()?).args(["variant", "tools", "--json"]))?;
    let tools: Value = serde_json::from_str(&tools)?;
    context.onnx_library()?;
    let models: &[&str] = context.choose(&["cnn_m", "cnn_l", "mlp_l"], &["cnn_s"]);
    let (mut rows, mut results, mut summary) = (Vec::new(), Vec::new(), Map::new());
    let (mut fewest, mut longest, mut differing) = (usize::MAX, 0.0_f64, 0_u64);
    for (number, model) in models.iter().copied().enumerate() {
        let mut walls = Vec::new();
        let mut last = None;
        for repetition in 0..context.choose(3, 1) {
            let folder = modelless_testkit::temp_dir("generate")?;
            package(context, model, folder.path())?;
            let out = folder.path().join("out");
            let begin = Instant::now();
            let report = generate(context, folder.path(), (&out, &[]))?;
            walls.push(begin.elapsed().as_secs_f64());
            rows.push(json!({"model": model, "repetition": repetition, "wall_s": walls.last(), "variants": short(&report)}));
            last = Some((folder, out, report));
        }
        let (folder, out, report) = last.context("nothing was generated")?;
        let wall = stats::median(&walls).context("nothing was timed")?;
        let variants = report["variants"].as_array().context("no variants")?;
        let frontier =
            variants.iter().filter(|one| one["dominated_by"].is_null() && one["left_out"].is_null());
        let frontier: Vec<&str> = frontier.filter_map(|one| one["variant"].as_str()).collect();
        let differ = differing_answers(context, model, (&out, folder.path()), (&tools, variants))?.variants;
        let table = table(model, variants, &WAYS);
        for line in &table {
            say(line);
        }
        results.push(format!(
            "{model}: {} of {} variants on the frontier after {wall:.1} s; {}",
            frontier.len(),
            variants.len(),
            table.join("; ")
        ));
        summary.insert(
            model.to_owned(),
            json!({"wall_s_median": wall, "frontier": frontier, "answers_that_differ": differ, "table": table}),
        );
        (fewest, longest) = (fewest.min(frontier.len()), walls.iter().copied().fold(longest, f64::max));
        differing += differ;
        if number == 0 {
            plot(context, &out)?;
        }
    }
    let short_of = u32::try_from(FRONTIER.saturating_sub(fewest))?;
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join(". "),
        checks: vec![
            Check {
                what: "variants that a frontier lacks of four",
                value: short_of.into(),
                limit: 0.0,
                unit: "",
            },
            Check { what: "longest wall time", value: longest, limit: LONGEST_S, unit: "s" },
            Check {
                what: "right answers that others count differently",
                value: f64::from(u32::try_from(differing)?),
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

/// The model as its author might have it: one file.
fn package(context: &Context, model: &str, folder: &Path) -> Result<()> {
    let example = context.root.join(EXAMPLE);
    for place in ["models", "sample"] {
        fs::create_dir(folder.join(place))?;
    }
    for name in [
        "sample/sample-2000-images-idx3-ubyte.gz".to_owned(),
        "sample/sample-2000-labels-idx1-ubyte.gz".to_owned(),
        format!("models/{model}.onnx"),
    ] {
        fs::copy(example.join(&name), folder.join(&name)).with_context(|| format!("copying {name}"))?;
    }
    let task = fs::read_to_string(example.join("task.toml"))?;
    let task: Vec<&str> = task.lines().filter(|line| !line.starts_with("also")).collect();
    fs::write(folder.join("task.toml"), task.join("\n"))?;
    let manifest = fs::read_to_string(example.join(format!("models/{model}.toml")))?;
    let (head, _) = manifest.split_once("[[variants]]").context("a manifest without variants")?;
    let alone = format!("{head}[[variants]]\nprecision = \"fp32\"\nfile = \"{model}.onnx\"\n");
    Ok(fs::write(folder.join(format!("models/{model}.toml")), alone)?)
}

/// The command that a user would type.
pub(super) fn generate(context: &Context, package: &Path, (out, words): (&Path, &[&str])) -> Result<Value> {
    let mut command = program(&context.root, context.binary()?);
    command.args(["variant", "generate"]).arg(package).arg("--out").arg(out).arg("--json").args(words);
    let done = command.output().context("running modelless")?;
    ensure!(
        done.status.success(),
        "`variant generate` failed: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    serde_json::from_slice(&done.stdout).context("what `variant generate --json` prints")
}

/// Numbers of a report, without what is the same each time.
pub(super) fn short(report: &Value) -> Vec<Value> {
    let all = report["variants"].as_array().into_iter().flatten();
    let one = |one: &Value| {
        let latency = one["profile"]["latency"].as_array().into_iter().flatten();
        let latency: Map<String, Value> =
            latency.map(|point| (point["batch"].to_string(), point["mean_us"].clone())).collect();
        json!({
            "variant": one["variant"], "accuracy": one["profile"]["accuracy"]["value"], "mean_us": latency,
            "memory": one["profile"]["memory"], "bytes": one["bytes"], "check": one["made"]["check"],
            "made_s": one["made"]["seconds"], "dominated_by": one["dominated_by"],
        })
    };
    all.map(one).collect()
}

/// A line for each of these ways.
pub(super) fn table(model: &str, variants: &[Value], ways: &[&str]) -> Vec<String> {
    let line = |way: &&str| {
        let name = format!("{model}-{way}");
        let one = variants.iter().find(|one| one["variant"] == name.as_str())?;
        let profile = &one["profile"];
        let latency = profile["latency"].as_array()?;
        let us = |point: Option<&Value>| point?["mean_us"].as_f64();
        Some(format!(
            "{way} {:.2} %, {:.3} ms at 1, {:.3} ms at 32, {:.1} MiB, {:.0} KiB",
            profile["accuracy"]["value"].as_f64()? / 1e4, // of a million
            us(latency.first())? / 1e3,
            us(latency.last())? / 1e3,
            profile["memory"].as_f64()? / f64::from(1 << 20),
            one["bytes"].as_f64()? / 1024.0
        ))
    };
    ways.iter().filter_map(line).collect()
}

/// What others count differently.
#[derive(Default)]
pub(super) struct Differing {
    /// Variants.
    pub(super) variants: u64,
    /// Right answers of one variant, at most.
    pub(super) most: f64,
}

/// What others count differently, over all variants with the model's own input.
pub(super) fn differing_answers(
    context: &Context,
    model: &str,
    (out, folder): (&Path, &Path),
    (tools, variants): (&Value, &[Value]),
) -> Result<Differing> {
    let dump = folder.join("dump");
    let mut command = program(&context.root, context.binary()?);
    command.args(["variant", "dump"]).arg(out).args(["--model", model, "--out"]).arg(&dump);
    output(&mut command)?;
    let own: Vec<&Value> = variants.iter().filter(|one| one["model"] == model).collect();
    let name = |one: &Value| one["variant"].as_str().map(str::to_owned).context("a variant without a name");
    let files = own.iter().map(|one| Ok(out.join(format!("models/{}.onnx", name(one)?))));
    let files: Vec<PathBuf> = files.collect::<Result<_>>()?;
    let text = |name: &str| tools[name].as_str().with_context(|| format!("`variant tools` names no {name}"));
    let mut python = program(&context.root, text("python")?);
    python.env("PYTHONPATH", text("libraries")?).arg("tests/python/count_right.py").arg(&dump).args(files);
    let counted = output(&mut python)?;
    let mut differing = Differing::default();
    for (one, line) in own.iter().zip(counted.lines()) {
        let about = &one["profile"]["accuracy"];
        let (value, samples) = (about["value"].as_f64(), about["samples"].as_f64());
        let ours =
            value.zip(samples).map(|(ppm, samples)| (ppm * samples / 1e6).round()).context("no accuracy")?;
        let theirs: f64 = line.parse().context("a count")?;
        if (ours - theirs).abs() > 0.0 {
            say(format!("{}: {ours} right answers, others count {theirs}", name(one)?));
            differing.variants += 1;
            differing.most = differing.most.max((ours - theirs).abs());
        }
    }
    Ok(differing)
}

/// The frontier as a server shows it, once the package is registered there.
fn plot(context: &Context, out: &Path) -> Result<()> {
    let server = Server::builder().binary(context.binary()?).start()?;
    demo::register(&server, out)?;
    let drawn = out.join("plot.svg");
    let path = drawn.to_string_lossy();
    let shown =
        server.command(&["task", "show", demo::PICTURE_TASK, "--plot", &path, "--server", &server.url()])?;
    ensure!(
        shown.status.success(),
        "`task show --plot` failed: {}",
        String::from_utf8_lossy(&shown.stderr).trim()
    );
    if !context.short {
        let to = context.root.join(PLOT);
        fs::create_dir_all(to.parent().context("it lies in a folder")?)?;
        fs::copy(&drawn, &to).with_context(|| format!("writing {PLOT}"))?;
    }
    server.stop()
}
