//! Whether what is predicted of 99 in 100 batches holds of 99 in 100 batches: each of the demo's variants under Poisson load, and
//! how many of its live batches took longer than their own predicted 99th percentile, by the server's count.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, wait};
use serde_json::{Value, json};
use std::time::Duration;

use super::models::{MANY, many};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "coverage",
    what: "share of live batches above the predicted 99th percentile, for each of the demo's variants under Poisson load",
    run: measure,
};

/// Above this the predictions are too low, below the other they are too high, in percent.
const MOST: f64 = 3.0;
const LEAST: f64 = 0.3;
/// Where single queries come rarely, and where they come so often that batches are made.
const RATES: [f64; 2] = [100.0, 1_000.0];
fn measure(context: &Context) -> Result<Outcome> {
    let ms = context.choose(30_000, 1_500);
    let server = demo::start(context)?;
    let task = context.choose(MANY, demo::TENSOR_TASK);
    if task == MANY {
        demo::register(&server, &many(&context.root))?;
    }
    let mut found = Vec::new();
    for name in variants(&server, task)? {
        for rate in RATES {
            found.push(one(context, &server, (task, &name), rate, ms)?);
        }
    }
    server.stop()?;
    let all = found.iter().fold((0, 0), |sum, one| (sum.0 + one.batches, sum.1 + one.above));
    let worst = |of: fn(f64, f64) -> f64, start| found.iter().map(Found::percent).fold(start, of);
    let (highest, lowest) = (worst(f64::max, 0.0), worst(f64::min, 100.0));
    let percent = percent(all.1, all.0);
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: found.iter().map(Found::json).collect(),
        summary: json!({
            "batches": all.0, "above": all.1, "percent": percent, "highest_percent": highest, "lowest_percent": lowest,
        }),
        result: format!(
            "{percent:.2} % of {} batches above the predicted p99; by variant and rate between {lowest:.2} and {highest:.2} %",
            all.0
        ),
        checks: vec![
            Check {
                what: "share above the predicted p99",
                value: percent,
                limit: context.choose(MOST, 30.0),
                unit: "%",
            },
            Check {
                what: "how many times fewer than the least",
                value: LEAST / percent.max(1e-9),
                limit: context.choose(1.0, f64::INFINITY),
                unit: "times",
            },
        ],
    })
}

struct Found {
    variant: String,
    rate: f64,
    batches: u64,
    above: u64,
    load: Value,
}

impl Found {
    fn percent(&self) -> f64 {
        percent(self.above, self.batches)
    }

    fn json(&self) -> Value {
        json!({
            "variant": self.variant, "per_second": self.rate, "batches": self.batches, "above": self.above,
            "percent": self.percent(), "load": self.load,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of batches")]
fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 }
}

fn variants(server: &Server, task: &str) -> Result<Vec<String>> {
    let page = server.get_json(&format!("/v1/variants?task={task}"))?;
    let names = page["variants"].as_array().context("a list of variants")?;
    Ok(names.iter().filter_map(|variant| variant["name"].as_str().map(str::to_owned)).collect())
}

fn one(context: &Context, server: &Server, (task, name): (&str, &str), rate: f64, ms: u64) -> Result<Found> {
    let stream = json!({
        "target": format!("/v1/tasks/{task}?variant={name}&latency_ms=1000"),
        "inputs": [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}],
    });
    let mut load = demo::load(context, server, &[stream])?;
    // It is in memory, and what was learnt of it is settled.
    let paced = |ms: u64| json!({"do": "paced", "per_second": [rate], "ms": ms, "seed": context.seed});
    load.ask(&json!({"do": "learn"}))?;
    load.ask(&paced(ms / 5))?;
    let (before, queries) = (counted(server, task, name)?, served(server)?);
    let seen = load.ask(&paced(ms))?;
    let answered = seen["streams"][0]["answered"].as_u64().context("how many were answered")?;
    // The figures are told together, about once a second.
    wait::until(Duration::from_secs(10), || {
        let told = served(server)? - queries;
        Ok(if told >= answered { Ok(()) } else { Err(format!("{told} of {answered} queries")) })
    })?;
    let after = counted(server, task, name)?;
    ensure!(after.0 > before.0, "no batch of {name} ran: {seen}");
    Ok(Found {
        variant: name.to_owned(),
        rate,
        batches: after.0 - before.0,
        above: after.1 - before.1,
        load: demo::bare(seen),
    })
}

/// Queries so far, of the node.
fn served(server: &Server) -> Result<u64> {
    let page = server.get_json("/v1/nodes")?;
    page["nodes"][0]["load"]["queries"].as_u64().context("how many queries a node served")
}

/// Batches so far, and those above.
fn counted(server: &Server, task: &str, name: &str) -> Result<(u64, u64)> {
    let page = server.get_json(&format!("/v1/variants?task={task}"))?;
    let all = page["variants"].as_array().context("a list of variants")?;
    let coverage = all.iter().find(|variant| variant["name"] == name).map(|variant| &variant["coverage"]);
    let count = |field: &str| coverage.and_then(|coverage| coverage[field].as_u64()).unwrap_or(0);
    Ok((count("batches"), count("above_p99")))
}
