//! A query through the Python package against the same query through httpx alone, in turns, at one server.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, demo};
use crate::command::{output, program, target_dir};
use crate::test::sdk_installed;

pub(crate) const MEASURE: Measure = Measure {
    name: "sdk-overhead",
    what: "a query of the Python package over the same by httpx alone: a picture, a tensor, awaited; one connection",
    run: measure,
};

const CASES: [(&str, &str); 3] = [
    ("picture", "a picture over httpx alone"),
    ("tensor", "a tensor over httpx alone"),
    ("awaited", "an awaited picture over httpx alone"),
];

fn measure(context: &Context) -> Result<Outcome> {
    let (blocks, rounds) = context.choose((20, 300), (6, 60));
    let python = sdk_installed(&context.root, &target_dir(&context.root)?)?;
    let server = demo::start(context)?;
    let picture = context.root.join("examples/fashion/pictures/boot.png");
    let mut script = program(&context.root, python);
    script.args(["-B", "python/bench/overhead.py", &server.url()]).arg(picture);
    script.args([blocks, rounds].map(|count: u32| count.to_string())).env("OMP_NUM_THREADS", "1");
    let seen: Value = serde_json::from_str(&output(&mut script)?).context("what the script wrote")?;
    server.stop()?;

    let (mut summary, mut results, mut checks) = (serde_json::Map::new(), Vec::new(), Vec::new());
    let limit = context.choose(1.3, 1.6);
    for (name, what) in CASES {
        let side = Side::of(&seen[name])?;
        results.push(format!(
            "{name}: {:.2} times (worst block {:.2}; httpx {:.0} us, modelless {:.0} us)",
            side.ratio, side.worst, side.alone, side.ours
        ));
        checks.push(Check { what, value: side.ratio, limit, unit: "times" });
        summary.insert(
            name.to_owned(),
            json!({
                "ratio_median_of_blocks": side.ratio, "ratio_worst_block": side.worst,
                "httpx_median_us": side.alone, "modelless_median_us": side.ours,
            }),
        );
    }
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: seen,
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

/// Of the medians of blocks.
struct Side {
    ratio: f64,
    worst: f64,
    alone: f64,
    ours: f64,
}

impl Side {
    fn of(blocks: &Value) -> Result<Self> {
        let blocks = blocks.as_array().context("no blocks")?;
        let of = |name: &str| blocks.iter().map(|block| median(&block[name])).collect::<Result<Vec<f64>>>();
        let (alone, ours) = (of("httpx")?, of("modelless")?);
        let ratios: Vec<f64> = ours.iter().zip(&alone).map(|(ours, alone)| ours / alone).collect();
        let middle = |values: &[f64]| stats::median(values).context("no blocks");
        Ok(Self {
            ratio: middle(&ratios)?,
            worst: stats::percentile(&ratios, 100).context("no blocks")?,
            alone: middle(&alone)?,
            ours: middle(&ours)?,
        })
    }
}

fn median(rounds: &Value) -> Result<f64> {
    let rounds: Vec<f64> = rounds.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    ensure!(!rounds.is_empty(), "a block without rounds");
    stats::median(&rounds).context("no rounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_medians_of_a_block_and_the_worst_block_is_told() {
        let blocks = json!([
            {"httpx": [100.0, 100.0, 900.0], "modelless": [110.0, 110.0, 110.0]},
            {"httpx": [100.0, 100.0, 100.0], "modelless": [100.0, 200.0, 200.0]},
            {"httpx": [200.0], "modelless": [200.0]},
        ]);
        let side = Side::of(&blocks).unwrap();
        assert!((side.ratio - 1.1).abs() < 1e-9 && (side.worst - 2.0).abs() < 1e-9, "{}", side.ratio);
        assert!(Side::of(&json!([{"httpx": [1.0], "modelless": []}])).is_err());
        assert!(Side::of(&json!(null)).is_err());
    }
}
