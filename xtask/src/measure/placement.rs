//! What plans of small random clusters serve, over the most that any placement could, which is found by looking at all of them.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program};

pub(crate) const MEASURE: Measure = Measure {
    name: "placement",
    what: "what plans of small clusters serve over the most that any placement could, and how long they take",
    run: measure,
};

/// Of the best that there is.
const ENOUGH: f64 = 0.95;

fn measure(context: &Context) -> Result<Outcome> {
    let built = context.program_of("modelless-simulator", "placement")?;
    let cases = context.choose(400_u64, 20);
    let text = output(program(&context.root, &built).arg(cases.to_string()))?;
    let rows: Vec<Value> = serde_json::from_str(&text).context("placement wrote no JSON")?;
    let of = |what: &str| -> Vec<f64> { rows.iter().filter_map(|row| row[what].as_f64()).collect() };
    let (shares, times) = (of("share"), of("planning_s"));
    let at = |percent| stats::percentile(&shares, percent).context("no cases");
    let (worst, tenth, half) = (at(0)?, at(10)?, at(50)?);
    let mean = shares.iter().sum::<f64>() / f64::from(u32::try_from(shares.len())?);
    let enough = shares.iter().filter(|share| **share >= ENOUGH).count();
    let longest = times.iter().copied().fold(0.0, f64::max);
    Ok(Outcome {
        seeds: (0..cases).collect(),
        summary: json!({
            "worst": worst, "tenth": tenth, "median": half, "mean": mean, "cases_with_enough": enough, "cases": shares.len(),
            "planning_worst_s": longest,
        }),
        result: format!(
            "{} small clusters of up to three devices and twelve variants: plans serve {half:.3} of the most there could be in the median, \
             {mean:.3} on average, {tenth:.3} in the tenth case of a hundred and {worst:.3} at worst; {ENOUGH} and more in {enough}; \
             planning takes {:.2} ms at worst",
            shares.len(),
            longest * 1e3
        ),
        repetitions: Value::Array(rows),
        checks: vec![
            // A handful of cases says nothing of the worst one.
            Check {
                what: "the best over plans, at worst",
                value: 1.0 / worst,
                limit: context.choose(1.0 / ENOUGH, 100.0),
                unit: "",
            },
            Check { what: "planning, at worst", value: longest, limit: 1.0, unit: "s" },
        ],
    })
}
