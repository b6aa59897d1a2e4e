//! How many queries the simulator plays a second of wall time on one core, ten nodes, through the live decision code.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program};

pub(crate) const MEASURE: Measure = Measure {
    name: "simulator-speed",
    what: "queries that the simulator plays a second of wall time on one core, ten nodes, through the live decision code",
    run: measure,
};

const SCENARIO: &str = "simulator/speed/ten-nodes.toml";
/// What part E asks of the full form; a development build only shows that it runs.
const WANTED: f64 = 250_000.0;
const WANTED_SHORT: f64 = 1_000.0;

fn measure(context: &Context) -> Result<Outcome> {
    let built = context.program_of("modelless-simulator", "speed")?;
    let mut runs = Vec::new();
    for _ in 0..context.choose(5, 1) {
        let seconds = context.choose("30", "1");
        let text = output(program(&context.root, &built).args([SCENARIO, seconds]))?;
        runs.push(serde_json::from_str::<Value>(&text).context("speed wrote no JSON")?);
    }
    let rates: Vec<f64> = runs.iter().filter_map(|run| run["queries_per_second"].as_f64()).collect();
    let rate = stats::median(&rates).context("speed told no rate")?;
    let (queries, events) = (&runs[0]["queries"], &runs[0]["events"]);
    let result =
        format!("{rate:.0} queries a second of wall time ({queries} queries, {events} events a run)");
    let wanted = context.choose(WANTED, WANTED_SHORT);
    let check =
        Check { what: "wall time of a thousand queries", value: 1e6 / rate, limit: 1e6 / wanted, unit: "ms" };
    Ok(Outcome {
        seeds: vec![1],
        summary: json!({ "median_queries_per_second": rate, "wanted": wanted }),
        repetitions: Value::Array(runs),
        result,
        checks: vec![check],
    })
}
