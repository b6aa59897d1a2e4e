//! What would have come of a measured load: the very arrivals of `executor-load`'s `open`, in virtual time.
//!
//! `sim-lateness`, then questions: `{"model", "arrivals", "latency": POINTS, "max_batch", "bound_us", "handover_us", "per_second", "cv",
//! "ms", "seed", "batching": [WAY]}`. Each is answered with the least that any policy must have missed, and with a row for each way of
//! batching. With `"sent": {"planned_ns", "sent_ns"}` instead of a rate: the least that must have been missed of what was really
//! sent then.

use anyhow::{Context, Result, ensure};
use modelless_bench::open::Gaps;
use modelless_simulator::batching::Given;
use modelless_testkit::turns;
use modelless_types::{Batching, Micros};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Deserialize)]
struct Question {
    model: String,
    arrivals: String,
    latency: Vec<modelless_types::BatchPoint>,
    max_batch: u32,
    bound_us: f64,
    #[serde(default)]
    per_second: f64,
    #[serde(default)]
    cv: f64,
    ms: f64,
    #[serde(default)]
    seed: u64,
    handover_us: f64,
    #[serde(default)]
    batching: Vec<String>,
    sent: Option<Sent>,
}

#[derive(Deserialize)]
struct Sent {
    planned_ns: Vec<u64>,
    sent_ns: Vec<u64>,
}

fn main() -> Result<()> {
    turns::serve(|question| {
        let asked: Question = serde_json::from_value(question.clone())?;
        let micros = |us: f64| -> Result<Micros> {
            Ok(Micros(Duration::try_from_secs_f64(us / 1e6)?.as_micros().try_into()?))
        };
        let at = if asked.sent.is_some() {
            Vec::new()
        } else {
            ensure!(asked.per_second > 0.0, "a rate, or what was sent");
            let gaps = Gaps::new(asked.per_second, asked.cv, asked.seed);
            let at = gaps.until(Duration::from_secs_f64(asked.ms / 1e3));
            at.map(|at| Ok(Micros(u64::try_from(at.as_micros())?))).collect::<Result<Vec<_>>>()?
        };
        let given = Given {
            model: asked.model,
            arrivals: asked.arrivals,
            latency: asked.latency,
            max_batch: asked.max_batch,
            at,
            bound: micros(asked.bound_us)?,
            handover: micros(asked.handover_us)?,
        };
        if let Some(Sent { planned_ns, sent_ns }) = &asked.sent {
            let least = given.least_as_sent(planned_ns, sent_ns)?;
            return Ok(json!({"queries": sent_ns.len(), "least": least}));
        }
        let row = |way: &String| -> Result<Value> {
            let way: Batching = way.parse().ok().with_context(|| format!("{way:?} is no way of batching"))?;
            Ok(serde_json::to_value(given.simulate(way, asked.seed)?)?)
        };
        let rows = asked.batching.iter().map(row).collect::<Result<Vec<_>>>()?;
        Ok(json!({"queries": given.at.len(), "least": given.least()?, "rows": rows}))
    })
}
