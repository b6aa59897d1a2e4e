//! How long a variant takes from the executor's asking for it until it can answer, over creating a session in one process.
//!
//! The executor's side has it all: opening the artefact and checking its digest, a process (a spare one, where there is one),
//! shared memory, the session, a first run. Times are those of the executor's own history. It is compared with two things:
//!
//! * the first session of a process that has mapped the library: what a program does that starts cold, as a spare runner does;
//! * a session that a process makes again and again: the library, the heap and the model's own pages are warm from the time
//!   before, which no runner can have that is confined to one model and ends with it.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Map, Value, json};

use super::load_beside::cycle;
use super::models::{Model, cnn_m, made};
use super::throughput::direct;
use super::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cold-start",
    what: "from asking for a variant until it can answer, over bare session creation (a process's first one, and one made \
           again and again); files in the page cache and not",
    run: measure,
};

/// Between loads, so that a spare process is ready again.
const GAP_MS: u64 = 700;

/// Medians of one round, in microseconds.
struct Round {
    load: f64,
    first: f64,
    again: f64,
}

struct Found {
    /// With the file in the page cache and not.
    rounds: Vec<(&'static str, Vec<Round>)>,
    raw: Vec<Value>,
}

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
        for (file, rounds) in &found.rounds {
            let of = |value: &dyn Fn(&Round) -> f64, percent| {
                let values: Vec<f64> = rounds.iter().map(value).collect();
                stats::percentile(&values, percent).context("no rounds")
            };
            let over_first = |round: &Round| round.load / round.first;
            let over_again = |round: &Round| round.load / round.again;
            let (first, again) = (of(&over_first, 50)?, of(&over_again, 50)?);
            let (first_worst, again_worst) = (of(&over_first, 100)?, of(&over_again, 100)?);
            let (load, bare, warm) = (of(&|r| r.load, 50)?, of(&|r| r.first, 50)?, of(&|r| r.again, 50)?);
            results.push(format!(
                "{} {file}: {:.1} ms, {first:.2} times a first session's {:.1} ms (worst {first_worst:.2}), {again:.2} times \
                 a repeated one's {:.1} ms (worst {again_worst:.2})",
                model.name,
                load / 1e3,
                bare / 1e3,
                warm / 1e3,
            ));
            let value = json!({
                "load_us": load, "first_us": bare, "again_us": warm, "over_first_median": first,
                "over_first_worst": first_worst, "over_again_median": again, "over_again_worst": again_worst,
            });
            told.insert((*file).to_owned(), value);
            let limit = context.choose(1.15, 200.0);
            let [over_first, over_again, over_first_uncached] = what(model);
            if *file == "cached" {
                checks.push(Check { what: over_first, value: first, limit, unit: "" });
                checks.push(Check { what: over_again, value: again, limit, unit: "" });
            } else {
                checks.push(Check { what: over_first_uncached, value: first, limit, unit: "" });
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

fn what(model: &Model) -> [&'static str; 3] {
    match model.name {
        "cnn_m" => [
            "cnn_m over a first session",
            "cnn_m over a repeated session",
            "cnn_m over a first session, from the disk",
        ],
        "efficientnet_lite0" => [
            "efficientnet_lite0 over a first session",
            "efficientnet_lite0 over a repeated session",
            "efficientnet_lite0 over a first session, from the disk",
        ],
        _ => [
            "minilm_l6 over a first session",
            "minilm_l6 over a repeated session",
            "minilm_l6 over a first session, from the disk",
        ],
    }
}

fn compare(context: &Context, model: &Model) -> Result<Found> {
    let (rounds, count) = context.choose((5_usize, 3), (1, 2));
    let mut loads = cycle(context, &cnn_m(&context.root), model)?;
    let mut bare = direct(context, model)?;
    let mut found = Found { rounds: Vec::new(), raw: Vec::new() };
    for (file, cold) in [("cached", false), ("uncached", true)] {
        let load = json!({"do": "loads", "count": count, "gap_ms": GAP_MS, "cold": cold});
        let create = json!({"create": count, "cold": cold});
        // Not counted: the first ones find everything new.
        loads.ask(&json!({"do": "loads", "count": 2, "gap_ms": GAP_MS, "cold": cold}))?;
        bare.ask(&json!({"create": 2, "cold": cold}))?;
        firsts(context, model, 1, cold)?;
        let mut seen = Vec::new();
        for round in 0..rounds {
            // Each of the three comes first, second and last in turn.
            let (mut loaded, mut created, mut first) = (Value::Null, Value::Null, Vec::new());
            for turn in 0..3 {
                match (round + turn) % 3 {
                    0 => loaded = loads.ask(&load)?,
                    1 => created = bare.ask(&create)?,
                    _ => first = firsts(context, model, count, cold)?,
                }
            }
            let median = |of: &Value, which: &str| of[which]["p50_us"].as_f64().context("no time was told");
            seen.push(Round {
                load: median(&loaded, "load")?,
                first: stats::percentile(&first, 50).context("no process was started")?,
                again: median(&created, "create")?,
            });
            found.raw.push(
                json!({"file": file, "loads": loaded, "sessions": created, "first_sessions_us": first}),
            );
        }
        found.rounds.push((file, seen));
    }
    Ok(found)
}

/// Processes that each make one session: how long it took, in microseconds.
pub(super) fn firsts(context: &Context, model: &Model, count: u32, cold: bool) -> Result<Vec<f64>> {
    let program = context.bench_program("ort-batch")?;
    let (onnx, seed) = (model.onnx.to_string_lossy(), context.seed.to_string());
    let mut args = vec![context.onnx_library()?, &onnx, "1", &seed];
    args.extend(cold.then_some("cold"));
    (0..count)
        .map(|_| {
            let told = Side::start(&program, &args)?.ask(&json!({"first": true}))?;
            Ok(told["create_ns"].as_f64().context("no time was told")? / 1e3)
        })
        .collect()
}
