//! How many queries come late when they come at random at 70 % of what the executor can take.
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

pub(crate) const MEASURE: Measure = Measure {
    name: "lateness",
    what: "share of queries later than 5x a lone one, at 70 % of the peak, Poisson and bursty (CV 4), by way of batching",
    run: measure,
};

const LOAD: f64 = 0.7;
const TIMES_SINGLE: f64 = 5.0;
const ARRIVALS: [(&str, f64); 2] = [("poisson", 1.0), ("bursty", 4.0)];
/// The first is the one that is bound; the others are there to compare.
const MODES: [&str; 1] = ["deadline"];

fn measure(context: &Context) -> Result<Outcome> {
    let mut models = vec![cnn_m(&context.root)];
    if !context.short {
        models.push(made(&context.root, "efficientnet_lite0")?);
        models.push(made(&context.root, "minilm_l6")?);
    }
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    let mut seeds = Vec::new();
    for model in &models {
        let found = late(context, model)?;
        let mut told = Map::new();
        for (mode, arrivals, shares) in &found.shares {
            let of = |percent| stats::percentile(shares, percent).context("no rounds");
            let (median, worst) = (of(50)?, of(100)?);
            results.push(format!("{} {mode} {arrivals}: {median:.2} % late (worst {worst:.2})", model.name));
            told.insert(
                format!("{mode} {arrivals}"),
                json!({"late_percent_median": median, "late_percent_worst": worst}),
            );
            if (*mode, *arrivals) == (MODES[0], ARRIVALS[0].0) {
                let limit = context.choose(0.5, 100.0);
                checks.push(Check { what: what(model), value: median, limit, unit: "%" });
            }
        }
        told.insert("single_us".into(), json!(found.single_us));
        told.insert("per_second".into(), json!(found.per_second));
        summary.insert(model.name.into(), Value::Object(told));
        seeds.extend(found.seeds);
        rows.push(json!({"model": model.name, "rounds": found.raw}));
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

fn what(model: &Model) -> &'static str {
    match model.name {
        "cnn_m" => "late of cnn_m, Poisson",
        "efficientnet_lite0" => "late of efficientnet_lite0, Poisson",
        _ => "late of minilm_l6, Poisson",
    }
}

struct Found {
    /// For each way of batching and each kind of arrivals, per cent late in each round.
    shares: Vec<(&'static str, &'static str, Vec<f64>)>,
    single_us: f64,
    per_second: f64,
    seeds: Vec<u64>,
    raw: Vec<Value>,
}

fn late(context: &Context, model: &Model) -> Result<Found> {
    let (rounds, ms, count) = context.choose((7_u64, 10_000, 500), (1, 1_000, 50));
    let mut sides: Vec<(&str, Side)> =
        MODES.iter().map(|mode| Ok((*mode, executor(context, model, mode)?))).collect::<Result<_>>()?;
    // Both are properties of the machine and the model: asked of the way of batching that is bound.
    let bound = &mut sides[0].1;
    let single = bound.ask(&json!({"do": "single", "count": count, "gap_us": 1_000}))?;
    let single_us = single["latency"]["p50_us"].as_f64().context("no latency was told")?;
    let peaks = (0..3).map(|_| bound.ask(&json!({"do": "closed", "warm_ms": ms / 10, "ms": ms / 4})));
    let peaks = peaks.collect::<Result<Vec<_>>>()?;
    let peak = stats::median(&peaks.iter().map(rate).collect::<Result<Vec<_>>>()?).context("no rounds")?;
    let per_second = peak * LOAD;
    let mut raw = vec![json!({"single": single, "peaks": peaks})];
    let mut found = Found { shares: Vec::new(), single_us, per_second, seeds: Vec::new(), raw: Vec::new() };
    for round in 0..rounds {
        let seed = context.seed.wrapping_add(round);
        found.seeds.push(seed);
        for (arrivals, cv) in ARRIVALS {
            for (mode, side) in &mut sides {
                let answer = side.ask(&json!({
                    "do": "open", "per_second": per_second, "cv": cv, "ms": ms, "seed": seed,
                    "bound_us": single_us * TIMES_SINGLE,
                }))?;
                note(&mut found.shares, mode, arrivals, percent_late(&answer)?);
                raw.push(json!({"mode": mode, "arrivals": arrivals, "seed": seed, "seen": answer}));
            }
        }
    }
    found.raw = raw;
    Ok(found)
}

fn percent_late(answer: &Value) -> Result<f64> {
    let count = |name: &str| answer[name].as_f64().with_context(|| format!("no {name} was told"));
    Ok(count("late")? * 100.0 / count("sent")?.max(1.0))
}

fn note(
    shares: &mut Vec<(&'static str, &'static str, Vec<f64>)>,
    mode: &'static str,
    arrivals: &'static str,
    late: f64,
) {
    match shares.iter_mut().find(|(m, a, _)| (*m, *a) == (mode, arrivals)) {
        Some((_, _, all)) => all.push(late),
        None => shares.push((mode, arrivals, vec![late])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_whatever_was_not_answered_in_time() {
        assert_eq!(percent_late(&json!({"sent": 200, "late": 1})).unwrap(), 0.5);
        assert!(percent_late(&json!({"sent": 200})).is_err());
    }
}
