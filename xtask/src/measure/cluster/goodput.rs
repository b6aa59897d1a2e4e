//! What a second hop loses: the load that one, two and three executors carry that have the same lanes altogether.
//!
//! Live there are two gateways, executors, scheduler, Postgres and Redis as processes, the wire between them, credits and hand-back,
//! and time; replayed is what a batch takes, as it was measured (EfficientNet-Lite0, one thread), since this needs more lanes than most
//! machines have cores. So no model computes, and what cores contend for is only what surrounds it. The same is done in the
//! simulator, there for all clusters in all ways (`cluster-goodput-simulated`). Without credits gateways send everything at once, and it
//! waits at the node that was chosen. Without hand-back it stays there whatever becomes of it.
//!
//! What is carried is where the share that misses its deadline, over the rate, reaches one in a hundred: through windows at set rates
//! goes the line of the median slope of its logarithm, which one window that the machine spoilt does not turn. Every setup is run
//! several times, each time in a new cluster with another seed, the setups in turns, and each cluster goes through the rates twice.
//! The standard error of a median is told with it. That it is small enough is shown by a setup with one lane fewer, a sixth of what is
//! carried: a loss of 15 % must be noticed, so this one must be.
//!
//! Three executors are also given more than the lanes can do, where nodes fall behind and give back; what came back is counted by the
//! gateways. Then executors fall behind one after the other: each takes four times as long for half a second, at two thirds of the
//! capacity and within twice the time.
//!
//! The issue states no bounds. Ours: a tenth lost by three executors, and by credits and hand-back each, of the goodput without them, and
//! as much of what is in time under too much load. Where they gain something is told by the simulator, which scatters less. The
//! short form only shows that one and three executors carry anything like this at all.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, stats, wait};
use serde_json::{Value, json};

use super::carried::{Window, carried, median, scatter};
use super::{Ended, all_ended, bare, count, ms};
use crate::command::{output, program};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "cluster-goodput",
    what: "goodput at 99 % of 1, 2 and 3 executors with the same lanes, with and without credits and hand-back, and what came back: live, with an engine that replays what batches take",
    run: measure,
};

/// How a cluster is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) credits: bool,
    pub(super) hand_back: bool,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match (self.credits, self.hand_back) {
            (true, true) => "with credits and hand-back",
            (true, false) => "with credits",
            (false, true) => "with hand-back",
            (false, false) => "with neither",
        }
    }
}

pub(super) const USUAL: Way = Way { credits: true, hand_back: true };
pub(super) const NO_HAND_BACK: Way = Way { credits: true, hand_back: false };
pub(super) const NO_CREDITS: Way = Way { credits: false, hand_back: true };
pub(super) const NEITHER: Way = Way { credits: false, hand_back: false };
/// Of all executors together.
const LANES: usize = 6;

/// What is run live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Setup {
    executors: usize,
    /// Of all of them.
    lanes: usize,
    way: Way,
}

const ONE: Setup = Setup { executors: 1, lanes: LANES, way: USUAL };
const TWO: Setup = Setup { executors: 2, ..ONE };
const THREE: Setup = Setup { executors: 3, ..ONE };
const THREE_NO_HAND_BACK: Setup = Setup { way: NO_HAND_BACK, ..THREE };
const THREE_NO_CREDITS: Setup = Setup { way: NO_CREDITS, ..THREE };
/// A loss that is known.
const FEWER: Setup = Setup { lanes: LANES - 1, ..THREE };
const LIVE: [Setup; 6] = [ONE, THREE, FEWER, THREE_NO_HAND_BACK, THREE_NO_CREDITS, TWO];

impl Setup {
    /// It is also given too much, and executors that fall behind.
    fn is_pressed(self) -> bool {
        self.executors == THREE.executors && self.lanes == LANES
    }

    fn name(self) -> String {
        let fewer =
            if self.lanes == LANES { String::new() } else { format!(" and {} lanes only", self.lanes) };
        format!("{} {}{fewer}", self.executors, self.way.name())
    }
}

/// Lanes altogether over the time of a single query: queries a second if no lane were ever idle.
const CAPACITY: f64 = 6.0 / 0.007_1;
/// Times the capacity: nodes fall behind.
const OVERLOAD: f64 = 1.5;
/// Three times the time of a single query.
const BOUND: Duration = Duration::from_millis(21);
/// Where executors fall behind. Nobody who waits behind one that does is in time within less, wherever it goes.
const BEHIND_BOUND: Duration = Duration::from_millis(43);
/// Of the capacity.
const BEHIND_LOAD: f64 = 0.65;
/// Between the times at which two executors fall behind; each does once in three of them.
const TURN_MS: usize = 1_500;
const WANTED: f64 = 0.99;
const LOADED_WITHIN: Duration = Duration::from_mins(1);

/// How long and how often.
#[derive(Clone, Copy)]
struct Form {
    repetitions: u64,
    /// Times that a cluster goes through the rates.
    passes: u64,
    /// Of the capacity.
    rates: &'static [f64],
    window_ms: u64,
    /// How long too much is asked.
    over_ms: u64,
    /// How long executors fall behind in turns.
    behind_ms: u64,
    /// Of the queries, in time.
    share: f64,
}

/// What a cluster did once.
struct Seen {
    /// By each pass.
    goodput: Vec<f64>,
    pressed: Option<Pressed>,
    /// Queries that came back to the gateways, of how many.
    handed_back: f64,
    asked: f64,
    raw: Value,
}

struct Pressed {
    /// In time a second when more was asked than it can do.
    overloaded: f64,
    /// The share in time while executors fell behind in turns.
    behind: f64,
}

/// What a setup did every time.
#[derive(Default)]
struct Found {
    goodput: Vec<f64>,
    overloaded: Vec<f64>,
    behind: Vec<f64>,
    handed_back: f64,
    asked: f64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let form = context.choose(
        Form {
            repetitions: 3,
            passes: 2,
            rates: &[0.55, 0.63, 0.71, 0.79, 0.87],
            window_ms: 1_500,
            over_ms: 1_500,
            behind_ms: 4_500,
            share: WANTED,
        },
        Form {
            repetitions: 1,
            passes: 1,
            rates: &[0.2, 0.35, 0.5],
            window_ms: 800,
            over_ms: 800,
            behind_ms: 1_500,
            share: 0.5,
        },
    );
    let setups = context.choose(&LIVE[..], &LIVE[..2]);
    let mut rows = Vec::new();
    let mut found: Vec<Found> = setups.iter().map(|_| Found::default()).collect();
    for repetition in 0..form.repetitions {
        for (found, &setup) in found.iter_mut().zip(setups) {
            let seen = live(context, setup, form, context.seed + 1_000 * repetition)?;
            // What is asked is whether hand-back does harm, so it must have been off where it is said to have been.
            ensure!(
                setup.way.hand_back || seen.handed_back == 0.0,
                "queries came back without hand-back: {}",
                seen.raw
            );
            found.goodput.extend(seen.goodput);
            if let Some(Pressed { overloaded, behind }) = seen.pressed {
                found.overloaded.push(overloaded);
                found.behind.push(behind);
            }
            found.handed_back += seen.handed_back;
            found.asked += seen.asked;
            rows.push(seen.raw);
        }
    }
    let (mut told, mut summaries) = (Vec::new(), Vec::new());
    for (found, setup) in found.iter().zip(setups) {
        let (line, summary) = tell(found, *setup)?;
        told.push(line);
        summaries.push(summary);
    }
    let at = |setup| {
        let at = setups.iter().position(|known| *known == setup);
        Ok(&found[at.context("a setup that is not run; this is a bug")?])
    };
    let checks = if context.short {
        checks_of_short(median(&at(ONE)?.goodput)?, median(&at(THREE)?.goodput)?)
    } else {
        checks_of_full(&at)?
    };
    let wanted = form.share * 100.0;
    Ok(Outcome {
        seeds: (0..form.repetitions).map(|repetition| context.seed + 1_000 * repetition).collect(),
        repetitions: Value::Array(rows),
        result: format!(
            "queries a second with {wanted:.0} % in {} ms that executors with {LANES} lanes altogether carry, of {CAPACITY:.0} were \
             the lanes never idle. Live are the processes, the wire, credits, hand-back and time; replayed is what a batch takes (as \
             measured of EfficientNet-Lite0), so no model computes. Median with its standard error, and the least and the most of {} \
             passes in {} clusters: {}",
            ms(BOUND),
            form.repetitions * form.passes,
            form.repetitions,
            told.join("; "),
        ),
        summary: json!({
            "setups": summaries, "capacity_per_second": CAPACITY, "bound_ms": ms(BOUND), "share": form.share,
            "live": "gateways, executors, scheduler, Postgres and Redis as processes, the wire, credits, hand-back, time",
            "replayed": "what a batch takes, as measured (EfficientNet-Lite0, 7.1 ms alone); no model computes",
        }),
        checks,
    })
}

/// A setup for people and as JSON.
fn tell(found: &Found, setup: Setup) -> Result<(String, Value)> {
    let of =
        |values: &[f64], percent| stats::percentile(values, percent).context("no repetitions; this is a bug");
    let (median, error) = (of(&found.goodput, 50)?, scatter(&found.goodput)?);
    let (least, most) = (of(&found.goodput, 0)?, of(&found.goodput, 100)?);
    let mut line = format!("{} {median:.0} ± {:.0} ({least:.0} to {most:.0})", setup.name(), error * median);
    let mut summary = json!({
        "executors": setup.executors, "lanes": setup.lanes, "credits": setup.way.credits, "hand_back": setup.way.hand_back,
        "goodput_median": median, "goodput_standard_error": error * median, "goodput_least": least, "goodput_most": most,
        "goodputs": found.goodput, "handed_back": found.handed_back, "asked": found.asked,
    });
    if setup.is_pressed() {
        let (over, over_worst) = (of(&found.overloaded, 50)?, of(&found.overloaded, 0)?);
        let (behind, behind_worst) = (of(&found.behind, 50)?, of(&found.behind, 0)?);
        let pressed = format!(
            ", {over:.0} (least {over_worst:.0}) when asked {:.0}, {:.1} % (least {:.1} %) in {} ms of {:.0} where executors fall behind, \
             {:.0} of {:.0} queries came back",
            CAPACITY * OVERLOAD,
            behind * 100.0,
            behind_worst * 100.0,
            ms(BEHIND_BOUND),
            CAPACITY * BEHIND_LOAD,
            found.handed_back,
            found.asked,
        );
        line.push_str(&pressed);
        summary["overloaded"] = json!(found.overloaded);
        summary["behind"] = json!(found.behind);
    }
    Ok((line, summary))
}

/// Who carries the least rate that is tried holds both.
fn checks_of_short(one: f64, three: f64) -> Vec<Check> {
    let lost = |what, goodput| Check {
        what,
        value: lost_of(goodput, CAPACITY),
        limit: 0.9,
        unit: "of the time of all lanes",
    };
    vec![lost("lost by one executor, live", one), lost("lost by three executors, live", three)]
}

fn checks_of_full<'a>(live: &impl Fn(Setup) -> Result<&'a Found>) -> Result<Vec<Check>> {
    let lost = |what, value| Check { what, value, limit: 0.1, unit: "of the goodput without" };
    let goodput = |setup| median(&live(setup)?.goodput);
    let overloaded = |setup| median(&live(setup)?.overloaded);
    let behind = |setup| median(&live(setup)?.behind);
    let three = goodput(THREE)?;
    let scatters = LIVE.iter().map(|setup| scatter(&live(*setup)?.goodput)).collect::<Result<Vec<f64>>>()?;
    Ok(vec![
        Check {
            what: "lost by three executors, live",
            value: lost_of(three, goodput(ONE)?),
            limit: 0.1,
            unit: "of one's goodput",
        },
        lost("lost by credits, live", lost_of(three, goodput(THREE_NO_CREDITS)?)),
        lost("lost by hand-back, live", lost_of(three, goodput(THREE_NO_HAND_BACK)?)),
        lost("lost by credits, overloaded", lost_of(overloaded(THREE)?, overloaded(THREE_NO_CREDITS)?)),
        lost("lost by hand-back, overloaded", lost_of(overloaded(THREE)?, overloaded(THREE_NO_HAND_BACK)?)),
        lost(
            "lost by credits, where executors fall behind",
            lost_of(behind(THREE)?, behind(THREE_NO_CREDITS)?),
        ),
        lost(
            "lost by hand-back, where executors fall behind",
            lost_of(behind(THREE)?, behind(THREE_NO_HAND_BACK)?),
        ),
        Check {
            what: "standard error of a goodput, the largest",
            value: scatters.into_iter().fold(0.0, f64::max),
            limit: 0.05,
            unit: "of it",
        },
        Check {
            what: "lost by one lane fewer of six, short of a tenth",
            value: (0.1 - lost_of(goodput(FEWER)?, three)).max(0.0),
            limit: 0.0,
            unit: "of the goodput",
        },
    ])
}

/// What a cluster carries, and what comes of too much.
fn live(context: &Context, setup: Setup, form: Form, seed: u64) -> Result<Seen> {
    let Setup { executors, lanes, way } = setup;
    let replay = context.bench_program("replay-node")?;
    let (folder, postgres) = (modelless_testkit::temp_dir("goodput")?, Postgres::start()?);
    let artefacts = folder.path().join("artefacts");
    output(program(&context.root, &replay).arg("register").arg(postgres.url()).arg(&artefacts))?;
    let mut cluster = Cluster::of(context.binary()?, postgres.url(), &artefacts)?;
    let credits = format!("credits={}", way.credits);
    let hand_back = format!("executor.hand_back={}", way.hand_back);
    let slow = folder.path().join("slow");
    for number in 0..executors {
        let own = lanes / executors + usize::from(number < lanes % executors);
        let lanes = format!("executor.lanes={own}");
        let file = format!("slow.file={}", slow.display());
        let offset = format!("slow.offset_ms={}", number * TURN_MS);
        let settings = [&lanes[..], &credits, &hand_back, &file, &offset];
        cluster.executor_of(&replay, &format!("node-{number}"), &settings)?;
    }
    cluster.scheduler("planner", &[])?;
    let gateways = [cluster.gateway("left", &[])?, cluster.gateway("right", &[])?];
    for gateway in gateways {
        loaded(gateway, executors).with_context(|| cluster.output())?;
    }
    let addresses = gateways.map(|gateway| gateway.to_string()).join(",");
    let load = context.bench_program("http-load")?;
    let load_within = |bound: Duration| {
        let stream = json!([{
            "target": format!("/v1/tasks/replay?latency_ms={}", bound.as_millis()),
            "inputs": [{"name": "x", "dtype": "FP32", "shape": [4]}],
        }]);
        Side::start(&load, &[&addresses, &stream.to_string(), &seed.to_string()])
    };
    let mut tried = Vec::new();
    let (mut handed_back, mut asked) = (0.0, 0.0);
    let mut window = |load: &mut Side, bound: Duration, rate: f64, ms: u64, part: u64| -> Result<Window> {
        let before = handed_back_to(&gateways)?;
        let raw = load.ask(&json!({
            "do": "paced", "per_second": [rate], "ms": ms, "seed": seed + part, "connections": 96,
            "patience_ms": 2_000,
        }))?;
        let back = handed_back_to(&gateways)? - before;
        let all = all_ended(&raw)?;
        let share = in_time(&all, bound)?;
        handed_back += back;
        let count = count(all.len())?;
        asked += count;
        let bound_ms = bound.as_millis();
        tried.push(
            json!({"rate": rate, "bound_ms": bound_ms, "in_time": share, "handed_back": back, "load": bare(raw)}),
        );
        Ok(Window { rate, asked: count, missed: count * (1.0 - share) })
    };
    let mut side = load_within(BOUND)?;
    // Its share does not count: connections, what executors learn.
    window(&mut side, BOUND, CAPACITY / 4.0, form.window_ms, 0)?;
    let mut goodput = Vec::new();
    for pass in 0..form.passes {
        let mut rates: Vec<(u64, f64)> = (1_u64..).zip(form.rates.iter().copied()).collect();
        if pass % 2 == 1 {
            rates.reverse(); // what comes after much is asked under other conditions
        }
        let seen: Vec<Window> = rates
            .into_iter()
            .map(|(step, of)| window(&mut side, BOUND, CAPACITY * of, form.window_ms, 10 * pass + step))
            .collect::<Result<_>>()?;
        goodput.push(carried(&seen, form.share)?);
    }
    let mut pressed = None;
    if setup.is_pressed() {
        let rate = CAPACITY * OVERLOAD;
        let overloaded = window(&mut side, BOUND, rate, form.over_ms, 100)?.in_time() * rate;
        let mut side = load_within(BEHIND_BOUND)?;
        fs::write(&slow, "")?;
        let behind = window(&mut side, BEHIND_BOUND, CAPACITY * BEHIND_LOAD, form.behind_ms, 200)?.in_time();
        pressed = Some(Pressed { overloaded, behind });
    }
    let raw = json!({
        "executors": executors, "lanes": lanes, "credits": way.credits, "hand_back": way.hand_back, "seed": seed, "goodput": goodput,
        "overloaded": pressed.as_ref().map(|pressed| pressed.overloaded),
        "behind": pressed.as_ref().map(|pressed| pressed.behind), "handed_back": handed_back, "tried": tried,
    });
    Ok(Seen { goodput, pressed, handed_back, asked, raw })
}

/// Queries that came back to these gateways so far.
fn handed_back_to(gateways: &[SocketAddr]) -> Result<f64> {
    let mut all = 0.0;
    for gateway in gateways {
        all += handed_back_in(&Connection::open(*gateway)?.exchange(&Request::get("/metrics"))?.text())?;
    }
    Ok(all)
}

fn handed_back_in(metrics: &str) -> Result<f64> {
    // A reason for which nothing came back is not listed, nor is the whole metric before anything did.
    const NAME: &str = "modelless_queries_handed_back_total";
    ensure!(metrics.contains("modelless_queries_open"), "these are no figures of a gateway");
    let counts = metrics.lines().filter(|line| line.starts_with(NAME)).map(|line| {
        let (_, value) = line.rsplit_once(' ').context("a metric without a value")?;
        Ok(value.parse::<f64>()?)
    });
    counts.sum()
}

/// What `other` lacks of `base`, as a share of it. Where there is no base, all is lost.
pub(super) fn lost_of(other: f64, base: f64) -> f64 {
    if base > 0.0 { 1.0 - other / base } else { 1.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn in_time(all: &[Ended], bound: Duration) -> Result<f64> {
    ensure!(!all.is_empty(), "nothing was asked");
    let good = |ended: &&Ended| ended.how.is_ok() && Duration::from_micros(ended.took_us) <= bound;
    Ok(all.iter().filter(good).count() as f64 / all.len() as f64)
}

fn loaded(gateway: SocketAddr, executors: usize) -> Result<()> {
    wait::until(LOADED_WITHIN, || {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
        let replicas = answer["replicas"].as_array().context("a list of replicas")?;
        let active = replicas.iter().filter(|replica| replica["state"] == "active").count();
        Ok(if active == executors { Ok(()) } else { Err(answer.to_string()) })
    })
    .context("not all nodes loaded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goodput_of_nothing_has_lost_everything() {
        assert!((lost_of(90.0, 100.0) - 0.1).abs() < 1e-9);
        assert!((lost_of(90.0, 0.0) - 1.0).abs() < 1e-9 && (lost_of(0.0, 0.0) - 1.0).abs() < 1e-9);
        assert!(lost_of(f64::NAN, 1.0).is_nan(), "which no bound holds");
    }

    #[test]
    fn what_came_back_is_counted_over_all_reasons() {
        let none = "modelless_queries_open 3\nmodelless_queries_total{how=\"answered\"} 9\n";
        assert!(handed_back_in(none).unwrap().abs() < 1e-9);
        let some = format!(
            "{none}modelless_queries_handed_back_total{{reason=\"too_late\"}} 3\n\
             modelless_queries_handed_back_total{{reason=\"draining\"}} 4\n"
        );
        assert!((handed_back_in(&some).unwrap() - 7.0).abs() < 1e-9);
        assert!(handed_back_in("<html>").is_err());
    }

    #[test]
    fn clusters_that_carry_nothing_hold_no_bound() {
        let quarter = CAPACITY / 4.0;
        assert!(checks_of_short(quarter, quarter).iter().all(Check::holds));
        assert!(!checks_of_short(quarter, 0.0).iter().all(Check::holds));
        assert!(!checks_of_short(0.0, quarter).iter().all(Check::holds));
        let missed = |worse: Setup, goodput: f64, overloaded: f64| {
            let found = |goodput: f64, overloaded| Found {
                goodput: vec![goodput * 0.98, goodput, goodput * 1.02],
                overloaded: vec![overloaded],
                behind: vec![0.9],
                ..Found::default()
            };
            let (usual, fewer, other) = (found(100.0, 100.0), found(85.0, 100.0), found(goodput, overloaded));
            let live = |setup| {
                Ok(if setup == worse {
                    &other
                } else if setup == FEWER {
                    &fewer
                } else {
                    &usual
                })
            };
            let checks = checks_of_full(&live).unwrap();
            checks.iter().filter(|check| !check.holds()).map(|check| check.what).collect::<Vec<_>>()
        };
        assert_eq!(missed(THREE_NO_CREDITS, 105.0, 105.0), [""; 0]);
        assert_eq!(missed(THREE_NO_CREDITS, 118.0, 100.0), ["lost by credits, live"]);
        assert_eq!(missed(THREE_NO_HAND_BACK, 118.0, 100.0), ["lost by hand-back, live"]);
        assert_eq!(missed(THREE_NO_HAND_BACK, 50.0, 120.0), ["lost by hand-back, overloaded"]);
        assert_eq!(missed(ONE, 118.0, 100.0), ["lost by three executors, live"]);
        assert_eq!(missed(FEWER, 95.0, 100.0), ["lost by one lane fewer of six, short of a tenth"]);
    }

    #[test]
    fn what_is_late_or_refused_is_no_goodput() {
        let of = |took_us, ok: bool| Ended {
            came_ms: 0,
            took_us,
            how: if ok { Ok("a".into()) } else { Err("503 x".into()) },
        };
        let all = [of(10, true), of(22_000, true), of(10, false), of(21_000, true)];
        let share = in_time(&all, BOUND).unwrap();
        assert!((share - 0.5).abs() < 1e-9);
        assert!(in_time(&[], BOUND).is_err());
    }
}
