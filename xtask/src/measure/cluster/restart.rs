//! Parts of a cluster ended in an orderly way and started again, its Redis and Postgres killed and started again, all under
//! load: no query fails.
//!
//! What runs, and how much is asked of it, is [`super::replayed`]'s. An executor and a gateway get SIGTERM. Clients come through a
//! balancer, which sends those of a gateway that is not ready or does not listen to the other one, and no query twice.
//!
//! The bound is that no query fails. That it says something is checked by bounds of our own: at each event some queries are
//! under way, the executor that ends had answered some, the gateway that ends had clients that went elsewhere; and hardly any
//! query is late, or the load was more than the cluster can carry.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use modelless_testkit::stats;
use serde_json::{Value, json};

use super::replayed::{Came, Happens, Replayed, Size};
use super::{bare, count};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-restart",
    what: "SIGTERM of an executor and of a gateway, Redis and Postgres killed and started again, all of them at 72 % of the cluster's capacity: failed queries",
    run: measure,
};

/// Queries under way when something happens.
const UNDER_WAY: usize = 2;

/// Of so many lost queries it is told why.
const LOST_TOLD: usize = 5;

/// What is done to the cluster.
const EVENTS: [&str; 4] =
    ["SIGTERM of an executor", "SIGTERM of a gateway", "Redis killed", "Postgres killed"];
const EXECUTOR: usize = 0;
const GATEWAY: usize = 1;
const REDIS: usize = 2;

struct Times {
    /// Before and after.
    calm: Duration,
    /// How long Redis and Postgres stay away.
    away: Duration,
    /// The load around an event.
    load_ms: u64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let ms = Duration::from_millis;
    let rounds: usize = context.choose(6, 1);
    let times = context.choose(
        Times { calm: ms(1_500), away: ms(2_500), load_ms: 8_000 },
        Times { calm: ms(800), away: ms(1_000), load_ms: 4_000 },
    );
    let (executors, lanes) = context.choose((6, 4), (4, 3));
    let bounds = context.choose([ms(500), ms(1_000)], [ms(2_000), ms(2_000)]);
    let leave_ms = context.choose(2_000, 500);
    let mut world = Replayed::start(context, &Size { executors, lanes, leave_ms, bounds })?;
    let (mut rows, mut totals, mut lost) = (Vec::new(), [Total::default(); EVENTS.len()], Vec::new());
    let mut seeds = Vec::new();
    for round in 0..rounds {
        for (number, event) in EVENTS.iter().enumerate() {
            let seed = context.seed + 1 + (round * EVENTS.len() + number) as u64;
            seeds.push(seed);
            let who = match number {
                EXECUTOR => world.executors[round % world.executors.len()].clone(),
                GATEWAY => ["left", "right"][round % 2].to_owned(),
                _ => String::new(),
            };
            let (raw, came, (from, to)) = world.under(seed, times.load_ms, |world| {
                std::thread::sleep(times.calm);
                happen(world, number, &who, times.away)
            })?;
            let touched = match number {
                EXECUTOR => came.share_of(&who, 0, from)? > 0.0,
                GATEWAY => came.moved > 0,
                _ => true,
            };
            let under_way = came.in_flight(from);
            totals[number].add(&came, under_way, touched);
            lost.extend(came.lost(from).into_iter().map(|why| format!("{event}: {why}")));
            let answered: Vec<u64> =
                came.all.iter().filter(|s| s.ended.how.is_ok()).map(|s| s.ended.took_us).collect();
            rows.push(json!({
                "event": event, "who": who, "from_ms": from, "to_ms": to, "under_way": under_way,
                "p99_us": stats::percentile(&answered, 99), "load": bare(raw),
            }));
            world.loaded()?;
        }
    }
    outcome(context, &world, (rounds, seeds), rows, &totals, &lost)
}

fn outcome(
    context: &Context,
    world: &Replayed,
    (rounds, seeds): (usize, Vec<u64>),
    rows: Vec<Value>,
    totals: &[Total],
    lost: &[String],
) -> Result<Outcome> {
    let lost = match lost {
        [] => String::new(),
        some => format!("; lost, of the first: {}", some[..some.len().min(LOST_TOLD)].join("; ")),
    };
    let told = EVENTS.iter().zip(totals).map(|(event, total)| {
        format!(
            "{event}: {} of {} failed, {} late, {} asked elsewhere",
            total.failed, total.sent, total.late, total.moved
        )
    });
    let sum = |of: fn(&Total) -> usize| totals.iter().map(of).sum::<usize>();
    let wrong: u64 = totals.iter().map(|total| total.wrong).sum();
    let late = count(sum(|total| total.late))? / count(sum(|total| total.sent))?;
    let mut summary: serde_json::Map<String, Value> =
        EVENTS.iter().zip(totals).map(|(event, total)| ((*event).to_owned(), total.json())).collect();
    summary.insert("cluster".to_owned(), world.json());
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: format!(
            "{}: {} ({rounds} times each); {wrong} wrong{lost}",
            world.described(),
            told.collect::<Vec<_>>().join("; ")
        ),
        checks: vec![
            Check { what: "failed queries", value: count(sum(|total| total.failed))?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(wrong)?, limit: 0.0, unit: "" },
            Check { what: "late", value: late, limit: context.choose(0.01, 0.1), unit: "of what was asked" },
            Check {
                what: "events with fewer than 2 queries under way",
                value: count(sum(|total| total.idle))?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "executors and gateways ended that served nothing",
                value: count(sum(|total| total.untouched))?,
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

fn happen(world: &mut Happens<'_>, event: usize, who: &str, away: Duration) -> Result<()> {
    let began = Instant::now();
    world.now()?;
    match event {
        EXECUTOR | GATEWAY => {
            ensure!(world.cluster.drain(who)?.success(), "{who} did not end well");
            world.cluster.start_again(who)?;
        }
        REDIS => {
            world.cluster.redis.kill();
            std::thread::sleep(away.saturating_sub(began.elapsed()));
            world.cluster.redis.start_again()?;
        }
        _ => {
            world.postgres.kill()?;
            std::thread::sleep(away.saturating_sub(began.elapsed()));
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
    /// Events at which hardly anything was under way.
    idle: usize,
    /// Events that nobody could have felt.
    untouched: usize,
}

impl Total {
    fn add(&mut self, came: &Came, under_way: usize, touched: bool) {
        self.sent += came.all.len();
        self.failed += came.all.iter().filter(|seen| seen.ended.how.is_err()).count();
        self.late += came.all.iter().filter(|seen| seen.ended.how.is_ok() && !seen.good()).count();
        self.wrong += came.wrong;
        self.moved += came.moved;
        self.idle += usize::from(under_way < UNDER_WAY);
        self.untouched += usize::from(!touched);
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
    use crate::measure::cluster::Ended;
    use crate::measure::cluster::replayed::Seen;

    #[test]
    fn late_is_not_failed_and_both_are_counted_as_are_events_that_say_nothing() {
        let of = |took_us, ok: bool| Seen {
            ended: Ended {
                came_ms: 0,
                took_us,
                how: if ok { Ok("one".into()) } else { Err("503 x".into()) },
            },
            bound: Duration::from_secs(1),
            large: false,
        };
        let all = vec![of(10, true), of(1_500_000, true), of(10, false)];
        let came = Came { all, wrong: 1, moved: 2, began_unix_ms: 0 };
        let mut total = Total::default();
        total.add(&came, 5, true);
        total.add(&came, 1, false);
        assert_eq!((total.sent, total.failed, total.late, total.wrong, total.moved), (6, 2, 2, 2, 4));
        assert_eq!((total.idle, total.untouched), (1, 1));
    }
}
