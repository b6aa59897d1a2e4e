//! Parts of a cluster ended in an orderly way and started again, its Redis and Postgres killed and started again, all under
//! load: no query fails.
//!
//! An executor and a gateway get SIGTERM. A client whose gateway goes asks the next one, as any client of several
//! addresses does: an answer that asks for the connection's end is followed, and a connection that ended without a byte is
//! tried elsewhere. How often that was needed is told.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::stats;
use modelless_testkit::turns::Side;
use serde_json::{Value, json};

use super::{Ended, World, all_ended, bare, count, unix_ms, wrong};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-restart",
    what: "SIGTERM of an executor and of a gateway, Redis and Postgres killed and started again, all under load: failed queries",
    run: measure,
};

const LATENCY: Duration = Duration::from_secs(1);
/// How long Redis and Postgres stay away.
const AWAY: Duration = Duration::from_millis(2_500);
/// Before, between and after.
const CALM: Duration = Duration::from_secs(1);

/// What is done to the cluster.
const EVENTS: [&str; 4] =
    ["SIGTERM of an executor", "SIGTERM of a gateway", "Redis killed", "Postgres killed"];

fn measure(context: &Context) -> Result<Outcome> {
    let (rounds, rate) = context.choose((5, 200.0), (1, 30.0));
    let nodes = ["one", "two", "three"];
    let settings: &[&str] = &["executor.lanes=1"];
    let mut world = World::start(context, &nodes.map(|name| (name, settings)))?;
    let mut load = world.load(context, LATENCY)?;
    let (mut rows, mut totals) = (Vec::new(), [Total::default(); EVENTS.len()]);
    let mut seeds = Vec::new();
    for round in 0..rounds {
        for (number, event) in EVENTS.iter().enumerate() {
            let seed = context.seed + (round * EVENTS.len() + number) as u64;
            seeds.push(seed);
            let question = json!({
                "do": "paced", "per_second": [rate], "ms": context.choose(8_000, 12_000), "seed": seed,
                "connections": 64, "patience_ms": 3_000,
            });
            let ended =
                under(&mut load, &question, || happen(&mut world, number, nodes[round % nodes.len()]))?;
            let (raw, from, to) = ended;
            let all = all_ended(&raw)?;
            let total = &mut totals[number];
            total.add(&all, wrong(&raw)?, raw["streams"][0]["moved"].as_u64().unwrap_or(0));
            let latencies: Vec<u64> = all.iter().filter(|e| e.how.is_ok()).map(|e| e.took_us).collect();
            rows.push(json!({
                "event": event, "from_ms": from, "to_ms": to, "p99_us": stats::percentile(&latencies, 99),
                "load": bare(raw),
            }));
            world.loaded()?;
        }
    }
    drop(load);
    let told = EVENTS.iter().zip(&totals).map(|(event, total)| {
        format!(
            "{event}: {} of {} failed, {} late, {} asked elsewhere",
            total.failed, total.sent, total.late, total.moved
        )
    });
    let failed: usize = totals.iter().map(|total| total.failed).sum();
    let wrong: u64 = totals.iter().map(|total| total.wrong).sum();
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: EVENTS
            .iter()
            .zip(&totals)
            .map(|(event, total)| ((*event).to_owned(), total.json()))
            .collect(),
        result: format!("{} ({rounds} times each); {wrong} wrong", told.collect::<Vec<_>>().join("; ")),
        checks: vec![
            Check { what: "failed queries", value: count(failed)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(wrong)?, limit: 0.0, unit: "" },
        ],
    })
}

/// A load with something that happens during it: what came of the load, and from when to when it happened, in
/// milliseconds since the load began.
fn under(
    load: &mut Side,
    question: &Value,
    happens: impl FnOnce() -> Result<()>,
) -> Result<(Value, u64, u64)> {
    let (raw, from, to) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| load.ask(question));
        std::thread::sleep(CALM);
        let from = unix_ms()?;
        happens()?;
        let to = unix_ms()?;
        ensure!(!asked.is_finished(), "the load ended before all had happened");
        let raw = asked.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))??;
        Ok::<_, anyhow::Error>((raw, from, to))
    })?;
    let began = raw["began_unix_ms"].as_u64().context("when did it begin?")?;
    Ok((raw, from.saturating_sub(began), to.saturating_sub(began)))
}

fn happen(world: &mut World, event: usize, executor: &str) -> Result<()> {
    let began = Instant::now();
    match event {
        0 => {
            ensure!(world.cluster.drain(executor)?.success(), "{executor} did not end well");
            world.cluster.start_again(executor)?;
        }
        1 => {
            ensure!(world.cluster.drain("left")?.success(), "the gateway did not end well");
            world.cluster.start_again("left")?;
        }
        2 => {
            world.cluster.redis.kill();
            std::thread::sleep(AWAY.saturating_sub(began.elapsed()));
            world.cluster.redis.start_again()?;
        }
        _ => {
            world.postgres.kill()?;
            std::thread::sleep(AWAY.saturating_sub(began.elapsed()));
            world.postgres.start_again()?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Total {
    sent: usize,
    failed: usize,
    late: usize,
    wrong: u64,
    moved: u64,
}

impl Total {
    fn add(&mut self, all: &[Ended], wrong: u64, moved: u64) {
        self.sent += all.len();
        self.failed += all.iter().filter(|ended| ended.how.is_err()).count();
        let late = |ended: &&Ended| ended.how.is_ok() && Duration::from_micros(ended.took_us) > LATENCY;
        self.late += all.iter().filter(late).count();
        self.wrong += wrong;
        self.moved += moved;
    }

    fn json(self) -> Value {
        json!({
            "sent": self.sent, "failed": self.failed, "late": self.late, "wrong": self.wrong,
            "asked_elsewhere": self.moved,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_not_failed_and_both_are_counted() {
        let of = |took_us, ok: bool| Ended {
            came_ms: 0,
            took_us,
            how: if ok { Ok("one".into()) } else { Err("503 x".into()) },
        };
        let mut total = Total::default();
        total.add(&[of(10, true), of(1_500_000, true), of(10, false)], 1, 2);
        assert_eq!((total.sent, total.failed, total.late, total.wrong, total.moved), (3, 1, 1, 1, 2));
    }
}
