//! How many queries come late when they come at random at 70 % of what the executor can take.
//!
//! *Late* is what is answered after its bound; *missed* is that and what was refused because it would have been. The latter is
//! told beside it, for whoever refuses everything is never late.
//!
//! The bound is five times what one query takes that is alone, asked through the same executor just before. Latency counts
//! from when a query should have come, so a generator that falls behind makes the figure worse and not better; how far it
//! fell behind is told beside it. The rates are those of `throughput`, found again here in the same minutes.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m, made};
use super::throughput::{executor, rate};
use super::{Check, Context, Measure, Outcome};
use crate::command::{output, program};
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "lateness",
    what: "share of queries later than 5x a lone one, at 70 % of the peak, Poisson and bursty (CV 4), by way of batching",
    run: measure,
};

const LOAD: f64 = 0.7;
const TIMES_SINGLE: f64 = 5.0;
const ARRIVALS: [(&str, f64); 2] = [("poisson", 1.0), ("bursty", 4.0)];
/// The first is the default, and the one that is bound; the others are there to compare. A fixed batch is half the largest
/// and waits for as long as one query takes, as the simulator's is.
const MODES: [&str; 3] = ["deadline", "aimd", "fixed"];
const FIXED: u32 = 16;

fn measure(context: &Context) -> Result<Outcome> {
    let mut models = vec![cnn_m(&context.root)];
    if !context.short {
        models.push(made(&context.root, "efficientnet_lite0")?);
        models.push(made(&context.root, "minilm_l6")?);
    }
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    let (mut seeds, mut missing) = (Vec::new(), 0);
    for model in &models {
        let found = late(context, model)?;
        let mut told = Map::new();
        for Share { mode, arrivals, late, missed } in &found.shares {
            let of = |values: &[f64], percent| stats::percentile(values, percent).context("no rounds");
            let (median, worst) = (of(late, 50)?, of(late, 100)?);
            let (median_missed, worst_missed) = (of(missed, 50)?, of(missed, 100)?);
            results.push(format!(
                "{} {mode} {arrivals}: {median:.2} % late (worst {worst:.2}), {median_missed:.2} % missed (worst \
                 {worst_missed:.2})",
                model.name
            ));
            told.insert(
                format!("{mode} {arrivals}"),
                json!({
                    "late_percent_median": median, "late_percent_worst": worst,
                    "missed_percent_median": median_missed, "missed_percent_worst": worst_missed,
                }),
            );
            if (*mode, *arrivals) == (MODES[0], ARRIVALS[0].0) {
                let limit = context.choose(0.5, 60.0);
                checks.push(Check { what: what(model), value: median, limit, unit: "%" });
            }
        }
        told.insert("single_us".into(), json!(found.single_us));
        told.insert("per_second".into(), json!(found.per_second));
        summary.insert(model.name.into(), Value::Object(told));
        missing = missing.max(found.missing);
        seeds.extend(found.seeds);
        rows.push(json!({"model": model.name, "rounds": found.raw}));
    }
    let limit = context.choose(0.0, 2.0);
    checks.push(Check { what: "ways of batching missing", value: f64::from(missing), limit, unit: "" });
    if let Some(simulated) = simulated(context)? {
        summary.insert("simulator".into(), simulated.clone());
        rows.push(json!({"simulator": simulated}));
    }
    seeds.sort_unstable();
    seeds.dedup();
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

/// The same comparison in virtual time, where the simulator's program for it is there.
fn simulated(context: &Context) -> Result<Option<Value>> {
    if context.short || !context.root.join("bench/src/bin/sim-batching.rs").is_file() {
        return Ok(None);
    }
    let printed = output(&mut program(&context.root, context.bench_program("sim-batching")?))?;
    Ok(Some(serde_json::from_str(&printed).context("sim-batching wrote no JSON")?))
}

fn what(model: &Model) -> &'static str {
    match model.name {
        "cnn_m" => "late of cnn_m, Poisson",
        "efficientnet_lite0" => "late of efficientnet_lite0, Poisson",
        _ => "late of minilm_l6, Poisson",
    }
}

/// Of one way of batching under one kind of arrivals, per cent in each round.
struct Share {
    mode: &'static str,
    arrivals: &'static str,
    late: Vec<f64>,
    missed: Vec<f64>,
}

struct Found {
    shares: Vec<Share>,
    single_us: f64,
    per_second: f64,
    seeds: Vec<u64>,
    /// Ways of batching that could not be asked.
    missing: u32,
    raw: Vec<Value>,
}

fn late(context: &Context, model: &Model) -> Result<Found> {
    let (rounds, ms, count) = context.choose((3_u64, 6_000, 500), (1, 1_000, 50));
    // Both are properties of the machine and the model: asked of the way of batching that is bound.
    let mut bound = executor(context, model, None)?;
    let single = bound.ask(&json!({"do": "single", "count": count, "gap_us": 1_000}))?;
    let single_us = single["latency"]["p50_us"].as_f64().context("no latency was told")?;
    let peaks = (0..3).map(|_| bound.ask(&json!({"do": "closed", "warm_ms": ms / 10, "ms": ms / 4})));
    let peaks = peaks.collect::<Result<Vec<_>>>()?;
    let peak = stats::median(&peaks.iter().map(rate).collect::<Result<Vec<_>>>()?).context("no rounds")?;
    // A development build on a shared machine would be late at any load and bound worth the name.
    let per_second = peak * context.choose(LOAD, 0.1);
    let bound_us = single_us * context.choose(TIMES_SINGLE, 200.0);
    let mut found =
        Found { shares: Vec::new(), single_us, per_second, seeds: Vec::new(), missing: 0, raw: Vec::new() };
    let mut sides: Vec<(&str, Side)> = vec![(MODES[0], bound)];
    for mode in &MODES[1..] {
        let batching = match *mode {
            "fixed" => format!("fixed:{FIXED}:{single_us:.0}us"),
            other => other.to_owned(),
        };
        let mut side = executor(context, model, Some(&batching))?;
        // Not counted, and shows whether this way is known.
        match side.ask(&json!({"do": "single", "count": 20, "gap_us": 1_000})) {
            Ok(_) => sides.push((mode, side)),
            Err(error) => {
                say(format!("{batching}: {error:#}"));
                found.missing += 1;
            }
        }
    }
    let mut raw = vec![json!({"single": single, "peaks": peaks})];
    for round in 0..rounds {
        let seed = context.seed.wrapping_add(round);
        found.seeds.push(seed);
        for (arrivals, cv) in ARRIVALS {
            for (mode, side) in &mut sides {
                let answer = side.ask(&json!({
                    "do": "open", "per_second": per_second, "cv": cv, "ms": ms, "seed": seed,
                    "bound_us": bound_us,
                }))?;
                note(
                    &mut found.shares,
                    mode,
                    arrivals,
                    percent(&answer, "late")?,
                    percent(&answer, "missed")?,
                );
                raw.push(json!({"mode": mode, "arrivals": arrivals, "seed": seed, "seen": answer}));
            }
        }
    }
    found.raw = raw;
    Ok(found)
}

fn percent(answer: &Value, which: &str) -> Result<f64> {
    let count = |name: &str| answer["seen"][name].as_f64().with_context(|| format!("no {name} was told"));
    Ok(count(which)? * 100.0 / count("sent")?.max(1.0))
}

fn note(shares: &mut Vec<Share>, mode: &'static str, arrivals: &'static str, late: f64, missed: f64) {
    match shares.iter_mut().find(|share| (share.mode, share.arrivals) == (mode, arrivals)) {
        Some(share) => {
            share.late.push(late);
            share.missed.push(missed);
        }
        None => shares.push(Share { mode, arrivals, late: vec![late], missed: vec![missed] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_missed_and_not_late() {
        let answer = json!({"seen": {"sent": 200, "late": 1, "missed": 5}});
        assert!((percent(&answer, "late").unwrap() - 0.5).abs() < 1e-9);
        assert!((percent(&answer, "missed").unwrap() - 2.5).abs() < 1e-9);
        assert!(percent(&answer, "lost").is_err());
    }
}
