//! How long a worker takes to choose what runs next while 1,000 queries wait, and how long planning takes for 200 variants on 1,000 nodes.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program};

pub(crate) const MEASURE: Measure = Measure {
    name: "decisions",
    what: "what runs next on a lane while 1,000 queries wait, and a plan for 200 variants on 1,000 nodes: time of a decision",
    run: measure,
};

const SCENARIO: &str = "simulator/speed/ten-nodes.toml";

fn measure(context: &Context) -> Result<Outcome> {
    let built = context.program_of("modelless-simulator", "decisions")?;
    let mut runs = Vec::new();
    for _ in 0..context.choose(5, 1) {
        let short = context.short.then_some("short");
        let text = output(program(&context.root, &built).arg(SCENARIO).args(short))?;
        runs.push(serde_json::from_str::<Value>(&text).context("decisions wrote no JSON")?);
    }
    let of = |what: &str| -> Vec<f64> {
        runs.iter().filter_map(|run| run["dispatch_us"][what].as_f64()).collect()
    };
    let median = |what| stats::median(&of(what)).with_context(|| format!("decisions told no {what}"));
    let (half, most) = (median("p50")?, median("p99")?);
    let planned = |what: &str| {
        let plans = runs.iter().flat_map(|run| run[what].as_array().cloned().unwrap_or_default());
        plans.map(|s| s.as_f64().unwrap_or(f64::NAN)).reduce(f64::max).unwrap_or(f64::NAN)
    };
    let (anew, again) = (planned("planning_anew_s"), planned("planning_s"));
    let planning = anew.max(again);
    // A development build only shows that it runs.
    let (slow, slower) = (context.choose(1.0, 100.0), context.choose(1.0, 60.0));
    Ok(Outcome {
        seeds: (0..context.choose(2_000, 20)).collect(),
        summary: json!({ "dispatch_p50_us": half, "dispatch_p99_us": most, "planning_worst_s": planning, "planning_anew_worst_s": anew }),
        repetitions: Value::Array(runs),
        result: format!(
            "the end of a batch that binds the next, with 1,000 waiting: {half:.1} us, p99 {most:.1} us (medians of runs); planning at worst {anew:.2} s from nothing and {again:.2} s again"
        ),
        checks: vec![
            Check {
                what: "p99 of a dispatch with 1,000 waiting",
                value: most,
                limit: 20.0 * slow,
                unit: "us",
            },
            Check {
                what: "planning 200 variants on 1,000 nodes, at worst",
                value: planning,
                limit: slower,
                unit: "s",
            },
        ],
    })
}
