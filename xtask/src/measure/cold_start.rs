//! How long a variant takes from the executor's asking for it until it can answer, over creating a session in one process.
//!
//! The executor's side has it all: opening the artefact and checking its digest, a process (a spare one, where there is one),
//! shared memory, the session, a first run. The other side has a process with the library in it already and creates a session
//! from the file. Times are those of the executor's own history.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use serde_json::{Map, Value, json};

use super::load_beside::cycle;
use super::models::{Model, cnn_m, made};
use super::throughput::direct;
use super::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cold-start",
    what: "from asking for a variant until it can answer, over bare session creation; files in the page cache and not",
    run: measure,
};

/// Between loads, so that a spare process is ready again.
const GAP_MS: u64 = 700;

fn measure(context: &Context) -> Result<Outcome> {
    let mut models = vec![cnn_m(&context.root)];
    if !context.short {
        models.push(made(&context.root, "efficientnet_lite0")?);
        models.push(made(&context.root, "minilm_l6")?);
    }
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    for model in &models {
        let found = compare(context, model)?;
        let mut told = Map::new();
        for (file, pairs) in &found.pairs {
            let ratios: Vec<f64> = pairs.iter().map(|(load, bare)| load / bare).collect();
            let of = |values: &[f64], percent| stats::percentile(values, percent).context("no rounds");
            let (median, worst) = (of(&ratios, 50)?, of(&ratios, 100)?);
            let load = of(&pairs.iter().map(|(load, _)| *load).collect::<Vec<_>>(), 50)?;
            let bare = of(&pairs.iter().map(|(_, bare)| *bare).collect::<Vec<_>>(), 50)?;
            results.push(format!(
                "{} {file}: {:.1} ms over {:.1} ms, {median:.2} times (worst {worst:.2})",
                model.name,
                load / 1e3,
                bare / 1e3
            ));
            told.insert(
                (*file).to_owned(),
                json!({"load_us": load, "create_us": bare, "ratio_median": median, "ratio_worst": worst}),
            );
            if *file == "cached" {
                let limit = context.choose(1.15, 200.0);
                checks.push(Check { what: what(model), value: median, limit, unit: "" });
            }
        }
        summary.insert(model.name.to_owned(), Value::Object(told));
        rows.push(json!({"model": model.name, "rounds": found.raw}));
    }
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

fn what(model: &Model) -> &'static str {
    match model.name {
        "cnn_m" => "cold start of cnn_m over a session",
        "efficientnet_lite0" => "cold start of efficientnet_lite0 over a session",
        _ => "cold start of minilm_l6 over a session",
    }
}

struct Found {
    /// With the file in the page cache and not: medians of a round, both sides, in microseconds.
    pairs: Vec<(&'static str, Vec<(f64, f64)>)>,
    raw: Vec<Value>,
}

fn compare(context: &Context, model: &Model) -> Result<Found> {
    let (rounds, count) = context.choose((5, 3), (1, 2));
    let mut loads = cycle(context, &cnn_m(&context.root), model)?;
    let mut bare = direct(context, model)?;
    let mut found = Found { pairs: Vec::new(), raw: Vec::new() };
    for (file, cold) in [("cached", false), ("uncached", true)] {
        let load = json!({"do": "loads", "count": count, "gap_ms": GAP_MS, "cold": cold});
        let create = json!({"create": count, "cold": cold});
        // Not counted: the first ones find everything new.
        loads.ask(&json!({"do": "loads", "count": 2, "gap_ms": GAP_MS, "cold": cold}))?;
        bare.ask(&json!({"create": 2, "cold": cold}))?;
        let mut pairs = Vec::new();
        for round in 0..rounds {
            let (loaded, created) = if round % 2 == 0 {
                let loaded = loads.ask(&load)?;
                (loaded, bare.ask(&create)?)
            } else {
                let created = bare.ask(&create)?;
                (loads.ask(&load)?, created)
            };
            let median = |of: &Value, which: &str| of[which]["p50_us"].as_f64().context("no time was told");
            pairs.push((median(&loaded, "load")?, median(&created, "create")?));
            found.raw.push(json!({"file": file, "loads": loaded, "sessions": created}));
        }
        found.pairs.push((file, pairs));
    }
    Ok(found)
}
