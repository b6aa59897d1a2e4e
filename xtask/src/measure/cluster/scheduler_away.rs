//! The scheduler of a cluster killed and away for two minutes, under load: nothing that is served changes, and when it is back it
//! moves nothing.
//!
//! What runs, and how much is asked of it, is [`super::replayed`]'s. The load goes on from before the scheduler is killed until after it is
//! back, and what was asked with it, without it and with it again is compared. A move is a replica that comes or goes: all were where they
//! ought to be, so each would be needless.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use modelless_testkit::{Connection, Request, stats};
use serde_json::{Map, Value, json};

use super::replayed::{Came, Replayed, Seen, Size};
use super::{bare, count, ms};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "scheduler-away",
    what: "the scheduler killed and away for two minutes, then back, at 72 % of the cluster's capacity: queries failed or late, p99 over that with it, and what it moves when it is back",
    run: measure,
};

const SCHEDULER: &str = "planner";
/// Replicas in these states come or go.
const MOVING: [&str; 4] = ["inactive", "loading", "draining", "failed"];
const TRANSITIONS: u32 = 200;

fn measure(context: &Context) -> Result<Outcome> {
    let seconds = Duration::from_secs;
    let rounds: u64 = context.choose(3, 1);
    // With it, before and after; and without it.
    let (calm, away) = context.choose((seconds(30), seconds(120)), (seconds(2), seconds(3)));
    let (executors, lanes) = context.choose((6, 4), (4, 3));
    let ms_of = Duration::from_millis;
    let bounds = context.choose([ms_of(500), ms_of(1_000)], [ms_of(2_000), ms_of(2_000)]);
    let mut world = Replayed::start(context, &Size { executors, lanes, leave_ms: 500, bounds })?;
    let seeds: Vec<u64> = (0..rounds).map(|round| context.seed + 1 + round).collect();
    let (mut rows, mut total, mut ratios) = (Vec::new(), Total::default(), Vec::new());
    for seed in &seeds {
        let gateway = world.gateways[0];
        let before = Placed::read(gateway)?;
        // Starting it again takes a moment too.
        let load_ms = ms(calm + away + calm) + context.choose(2_000, 5_000);
        let (raw, came, (from, to)) = world.under(*seed, load_ms, |world| {
            std::thread::sleep(calm);
            world.now()?;
            world.cluster.kill(SCHEDULER)?;
            std::thread::sleep(away);
            world.cluster.start_again(SCHEDULER)
        })?;
        world.loaded()?;
        let after = Placed::read(gateway)?;
        let phases = [(0, from), (from, to), (to, u64::MAX)].map(|(from, to)| Phase::of(&came, from, to));
        let p99s = phases.iter().map(Phase::p99).collect::<Result<Vec<_>>>()?;
        ratios.push([p99s[1] / p99s[0], p99s[2] / p99s[0]]);
        let moves = after.moves_since(&before)?;
        total.add(&came, &phases[1], moves.len(), after.plan != before.plan);
        rows.push(json!({
            "from_ms": from, "to_ms": to, "with": phases[0].json()?, "without": phases[1].json()?,
            "with_again": phases[2].json()?, "moves": moves, "plan_before": before.plan, "plan_after": after.plan,
            "load": bare(raw),
        }));
    }
    outcome(context, &world, (seeds, away), rows, &total, &ratios)
}

fn outcome(
    context: &Context,
    world: &Replayed,
    (seeds, away): (Vec<u64>, Duration),
    rows: Vec<Value>,
    total: &Total,
    ratios: &[[f64; 2]],
) -> Result<Outcome> {
    let of = |phase: usize, percent| {
        let all: Vec<f64> = ratios.iter().map(|ratios| ratios[phase]).collect();
        stats::percentile(&all, percent).context("no rounds")
    };
    let (without, again) = (of(0, 50)?, of(1, 50)?);
    let (worst_without, worst_again) = (of(0, 100)?, of(1, 100)?);
    let late = count(total.late)? / count(total.sent)?;
    let mut summary = Map::new();
    for (name, value) in [
        ("p99_ratio_without_median", without),
        ("p99_ratio_without_worst", worst_without),
        ("p99_ratio_with_again_median", again),
        ("p99_ratio_with_again_worst", worst_again),
    ] {
        summary.insert(name.to_owned(), json!(value));
    }
    summary.insert("failed".to_owned(), json!(total.failed));
    summary.insert("moves".to_owned(), json!(total.moves));
    summary.insert("cluster".to_owned(), world.json());
    Ok(Outcome {
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: format!(
            "{}: the scheduler killed {} times and away for {} s each: {} of {} queries failed, {} late, {} wrong; without it {} of {} \
             failed or late; p99 over that with it: without {without:.2} (worst {worst_without:.2}), back again {again:.2} (worst \
             {worst_again:.2}); {} replicas moved, {} new plans",
            world.described(),
            seeds.len(),
            away.as_secs(),
            total.failed,
            total.sent,
            total.late,
            total.wrong,
            total.missed_without,
            total.sent_without,
            total.moves,
            total.plans
        ),
        seeds,
        checks: vec![
            Check { what: "failed queries", value: count(total.failed)?, limit: 0.0, unit: "" },
            Check { what: "wrong answers", value: count(total.wrong)?, limit: 0.0, unit: "" },
            Check { what: "late", value: late, limit: context.choose(0.01, 0.1), unit: "of what was asked" },
            Check {
                what: "p99 without it, over that with it, median",
                value: without,
                limit: context.choose(1.3, 100.0),
                unit: "times",
            },
            Check { what: "replicas that moved", value: count(total.moves)?, limit: 0.0, unit: "" },
            Check { what: "times away without a query", value: count(total.idle)?, limit: 0.0, unit: "" },
        ],
    })
}

/// What was asked in a part of the load.
struct Phase<'a>(Vec<&'a Seen>);

impl<'a> Phase<'a> {
    fn of(came: &'a Came, from_ms: u64, to_ms: u64) -> Self {
        let then = |seen: &&Seen| (from_ms..to_ms).contains(&seen.ended.came_ms);
        Self(came.all.iter().filter(then).collect())
    }

    fn missed(&self) -> usize {
        self.0.iter().filter(|seen| !seen.good()).count()
    }

    fn p99(&self) -> Result<f64> {
        let took = self.0.iter().filter(|seen| seen.ended.how.is_ok()).map(|seen| seen.ended.took_us);
        let p99 = stats::percentile(&took.collect::<Vec<u64>>(), 99).context("nothing was answered")?;
        count(p99)
    }

    fn json(&self) -> Result<Value> {
        Ok(json!({"asked": self.0.len(), "failed_or_late": self.missed(), "p99_us": self.p99()?}))
    }
}

/// What is planned, and how often replicas changed their state until now.
struct Placed {
    plan: u64,
    transitions: Vec<Value>,
}

impl Placed {
    fn read(gateway: SocketAddr) -> Result<Self> {
        let ask = |path: &str| Connection::open(gateway)?.exchange(&Request::get(path))?.json();
        let plan = ask("/v1/plans/current")?;
        let replicas = ask(&format!("/v1/replicas?transitions={TRANSITIONS}"))?;
        Ok(Self {
            plan: plan["id"].as_u64().with_context(|| format!("the number of a plan in {plan}"))?,
            transitions: replicas["transitions"].as_array().context("a list of transitions")?.clone(),
        })
    }

    fn last(&self) -> u64 {
        self.transitions.iter().filter_map(|one| one["seq"].as_u64()).max().unwrap_or_default()
    }

    /// Replicas that came or went since an earlier look.
    fn moves_since(&self, before: &Self) -> Result<Vec<Value>> {
        let last = before.last();
        let since = |one: &&Value| one["seq"].as_u64().is_some_and(|seq| seq > last);
        let all: Vec<&Value> = self.transitions.iter().filter(since).collect();
        anyhow::ensure!(all.len() < TRANSITIONS as usize, "more changed than is shown");
        let moves = |one: &&&Value| {
            let of = |name: &str| one[name].as_str().is_some_and(|state| MOVING.contains(&state));
            of("from") || of("to")
        };
        Ok(all.iter().filter(moves).map(|one| (*one).clone()).collect())
    }
}

#[derive(Default)]
struct Total {
    sent: usize,
    failed: usize,
    late: usize,
    wrong: u64,
    sent_without: usize,
    missed_without: usize,
    moves: usize,
    plans: usize,
    idle: usize,
}

impl Total {
    fn add(&mut self, came: &Came, without: &Phase<'_>, moves: usize, planned: bool) {
        self.sent += came.all.len();
        self.failed += came.all.iter().filter(|seen| seen.ended.how.is_err()).count();
        self.late += came.all.iter().filter(|seen| seen.ended.how.is_ok() && !seen.good()).count();
        self.wrong += came.wrong;
        self.sent_without += without.0.len();
        self.missed_without += without.missed();
        self.moves += moves;
        self.plans += usize::from(planned);
        self.idle += usize::from(without.0.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::cluster::Ended;

    fn seen(came_ms: u64, took_us: u64, ok: bool) -> Seen {
        let how = if ok { Ok("one".to_owned()) } else { Err("503 x".to_owned()) };
        Seen { ended: Ended { came_ms, took_us, how }, bound: Duration::from_millis(10), large: false }
    }

    #[test]
    fn what_is_asked_while_it_is_away_is_counted_by_itself() {
        let all = vec![seen(0, 5, true), seen(10, 50_000, true), seen(19, 7, false), seen(20, 6, true)];
        let came = Came { all, wrong: 0, moved: 0, began_unix_ms: 0 };
        let away = Phase::of(&came, 10, 20);
        assert_eq!((away.0.len(), away.missed(), away.p99().unwrap()), (2, 2, 50_000.0));
        let mut total = Total::default();
        total.add(&came, &away, 3, true);
        assert_eq!((total.sent, total.failed, total.late, total.sent_without), (4, 1, 1, 2));
        assert_eq!((total.moves, total.plans, total.idle), (3, 1, 0));
        assert!(Phase::of(&came, 30, 40).p99().is_err(), "nothing is no figure");
    }

    #[test]
    fn only_what_came_or_went_since_then_is_a_move() {
        let one = |seq: u64, from: &str, to: &str| json!({"seq": seq, "from": from, "to": to});
        let before = Placed { plan: 1, transitions: vec![one(4, "loading", "active")] };
        let after =
            [one(6, "draining", "inactive"), one(5, "active", "overloaded"), one(4, "loading", "active")];
        let after = Placed { plan: 1, transitions: after.to_vec() };
        assert_eq!(after.moves_since(&before).unwrap(), [one(6, "draining", "inactive")]);
    }
}
