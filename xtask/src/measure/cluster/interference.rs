//! Somebody else's processes on one node of two: how soon that is told, where queries go then, and what is missed meanwhile.
//!
//! The runners of one node are kept on one core, those of the other (and all that else runs) on another. Queries come at a pace
//! that one node can carry. Then processes burn the first node's core. What is asked before, in the three seconds in which it
//! has to be noticed, in the rest of the time that it burns, and after it has ended, is told apart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, TempDir, stats, wait};
use serde_json::{Value, json};

use super::{Ended, PAST, all_ended, bare, count, ms, unix_ms};
use crate::command::{output, program};
use crate::measure::burn::{Burners, Burning, LONG, WIDTH, keep_on, package, some_core};
use crate::measure::models::made;
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "interference",
    what: "processes of others burn the core of one node of two: seconds until it is told, where queries go then, and what is missed before, meanwhile and after",
    run: measure,
};

pub(super) const HOGGED: &str = "hogged";
const FREE: &str = "free";
pub(super) const BURNERS: usize = 3;
/// Of what one node can carry alone, and has to, in time: at 0.45 of it, beside all else on its core, one that nobody burns missed 4.5 %.
const LOAD: f64 = 0.3;
/// Every query's bound, over what one takes alone: less than what the hogged node makes of it.
const BOUND: f64 = 5.0;
/// Within so long it has to be told.
pub(super) const TOLD_WITHIN: Duration = Duration::from_secs(3);
const LOADED_WITHIN: Duration = Duration::from_mins(2);
const CONNECTIONS: u32 = 32;
/// So many rounds more where it was told too early in all of them.
const TRIES: u64 = 3;

fn measure(context: &Context) -> Result<Outcome> {
    let seconds = Duration::from_secs;
    let [calm, burn, after] =
        context.choose([seconds(20), seconds(30), seconds(20)], [seconds(5), seconds(8), seconds(5)]);
    let rounds: u64 = context.choose(5, 1);
    let nodes: [(&str, &[&str]); 2] = [(HOGGED, &["executor.lanes=1"]), (FREE, &["executor.lanes=1"])];
    let mut world = World::start(context, &nodes, LOAD, BOUND)?;
    // What burns is the first one's core, and nothing else.
    world.keep(HOGGED, world.core)?;
    world.keep(FREE, 0)?;
    world.settle(context.seed)?;
    let seeds: Vec<u64> = (0..rounds).map(|round| context.seed + 1 + round).collect();
    let mut all =
        seeds.iter().map(|seed| world.round(*seed, [calm, burn, after])).collect::<Result<Vec<_>>>()?;
    // On a machine that others use as well its only round may have been told too early; then another one shows whether it is told at all.
    for again in 1..=TRIES {
        if all.iter().any(|round| round.told_s.is_some()) {
            break;
        }
        all.push(world.round(context.seed + rounds + again, [calm, burn, after])?);
    }
    let of = |of: &dyn Fn(&Round) -> f64| -> Result<(f64, f64)> {
        let all: Vec<f64> = all.iter().map(of).collect();
        let worst = stats::percentile(&all, 100).context("no rounds")?;
        Ok((stats::median(&all).context("no rounds")?, worst))
    };
    let seen: Vec<f64> = all.iter().filter_map(|round| round.told_s).collect();
    let early = all.len() - seen.len();
    let rounds_made = all.len();
    let told = (
        stats::median(&seen).context("it was told before anything burned in every round")?,
        stats::percentile(&seen, 100).context("no rounds")?,
    );
    let missed: Vec<(f64, f64)> =
        (0..4).map(|phase| of(&|round| round.phases[phase].missed)).collect::<Result<_>>()?;
    let share: Vec<(f64, f64)> =
        (0..4).map(|phase| of(&|round| round.phases[phase].share)).collect::<Result<_>>()?;
    let percent = |value: f64| value * 100.0;
    Ok(Outcome {
        result: format!(
            "2 nodes, {:.0} a second of {} ({:.1} ms alone, bound {} ms; {:.0} % of what one node carries), {BURNERS} processes burn the \
             core of one: told after {:.2} s (worst {:.2}; in {early} of {rounds_made} rounds it was told before that already); its part of the answers {:.0} % before, {:.0} % in the first {} s, {:.0} % \
             after that (worst {:.0}), {:.0} % when it is over; missed {:.2} % (worst {:.2}), {:.2} % ({:.2}), {:.2} % ({:.2}), {:.2} % \
             ({:.2})",
            world.rate,
            world.name,
            world.single_ms,
            world.bound.as_millis(),
            percent(LOAD),
            told.0,
            told.1,
            percent(share[0].0),
            percent(share[1].0),
            TOLD_WITHIN.as_secs(),
            percent(share[2].0),
            percent(share[2].1),
            percent(share[3].0),
            percent(missed[0].0),
            percent(missed[0].1),
            percent(missed[1].0),
            percent(missed[1].1),
            percent(missed[2].0),
            percent(missed[2].1),
            percent(missed[3].0),
            percent(missed[3].1),
        ),
        summary: json!({
            "told_s_median": told.0, "told_s_worst": told.1, "told_before": early,
            "share": share.iter().map(|share| share.0).collect::<Vec<_>>(),
            "missed": missed.iter().map(|missed| missed.0).collect::<Vec<_>>(),
            "missed_worst": missed.iter().map(|missed| missed.1).collect::<Vec<_>>(),
            "single_ms": world.single_ms, "bound_ms": ms(world.bound), "per_second": world.rate, "burners": BURNERS,
            "phases": ["before", "until it has to be told", "the rest of burning", "after"],
        }),
        repetitions: all.iter().map(Round::json).collect(),
        seeds: (0..rounds_made as u64).map(|round| context.seed + 1 + round).collect(),
        checks: vec![
            Check {
                what: "told, at worst",
                value: told.1,
                limit: context.choose(TOLD_WITHIN.as_secs_f64(), 6.0),
                unit: "s",
            },
            Check {
                what: "rounds in which it was told before anything burned",
                value: count(early)?,
                limit: context.choose(1.0, 3.0),
                unit: "",
            },
            Check {
                what: "its part of the answers then, over that of before, median",
                value: share[2].0 / share[0].0.max(0.01),
                limit: context.choose(0.5, 0.9),
                unit: "times",
            },
            Check {
                what: "missed after it has to be told, median",
                value: percent(missed[2].0),
                limit: context.choose(1.0, 50.0),
                unit: "%",
            },
        ],
    })
}

pub(super) struct World {
    // In this order they end.
    load: Side,
    cluster: Cluster,
    _postgres: Postgres,
    gateway: SocketAddr,
    /// That burns.
    core: u32,
    nodes: usize,
    pub(super) name: &'static str,
    pub(super) single_ms: f64,
    pub(super) bound: Duration,
    pub(super) rate: f64,
    _folder: TempDir,
}

/// What is asked: a task, its one variant, how an input looks.
struct Asked {
    task: &'static str,
    variant: &'static str,
    inputs: Value,
    package: PathBuf,
}

impl Asked {
    /// Without a download there is none that takes so long.
    fn of(context: &Context, folder: &Path) -> Result<Self> {
        if context.short {
            package(folder)?;
            let inputs = json!([{"name": "x", "dtype": "FP32", "shape": [WIDTH]}]);
            return Ok(Self { task: LONG, variant: "long-fp32", inputs, package: folder.to_owned() });
        }
        let model = made(&context.root, "efficientnet_lite0")?;
        let inputs = model.inputs();
        Ok(Self { task: model.task, variant: model.variant, inputs, package: model.package })
    }
}

impl World {
    /// These nodes, asked for a share of what one lane carries, with a bound of so many times what one query takes alone.
    pub(super) fn start(
        context: &Context,
        nodes: &[(&str, &[&str])],
        load_of_one: f64,
        bound_over: f64,
    ) -> Result<Self> {
        let (folder, postgres) = (modelless_testkit::temp_dir("interference")?, Postgres::start()?);
        let (artefacts, made) = (folder.path().join("artefacts"), folder.path().join("package"));
        std::fs::create_dir(&made)?;
        let asked = Asked::of(context, &made)?;
        let mut cluster = Cluster::of(context.binary()?, postgres.url(), &artefacts)?;
        for (node, settings) in nodes {
            cluster.executor(node, settings)?;
        }
        cluster.scheduler("planner", &[])?;
        let gateway = cluster.gateway("left", &[])?;
        for (node, _) in nodes {
            cluster.wait_for("left", &format!("name=\"{node}\""), LOADED_WITHIN)?;
        }
        let mut register = program(&context.root, context.binary()?);
        register.args(["model", "register"]).arg(&asked.package);
        output(register.args(["--budget", "none", "--server", &format!("http://{gateway}")]))?;
        loaded(gateway, asked.variant, nodes.len()).with_context(|| cluster.output())?;
        let core = some_core()?;
        ensure!(core != 0, "there is one core only, so there is none to burn beside");
        let single_ms = alone_ms(gateway, &asked)?;
        let bound = Duration::from_secs_f64((single_ms * bound_over / 1e3).max(0.02));
        let target = format!("/v1/tasks/{}?variant={}&latency_ms={}", asked.task, asked.variant, ms(bound));
        let streams = json!([{"target": target, "inputs": asked.inputs}]).to_string();
        let program = context.bench_program("http-load")?;
        let seed = context.seed.to_string();
        let mut load = Side::start(&program, &[&gateway.to_string(), &streams, &seed])?;
        load.ask(&json!({"do": "learn"}))?;
        let (name, rate) = (asked.variant, load_of_one * 1e3 / single_ms);
        Ok(Self {
            load,
            cluster,
            _postgres: postgres,
            gateway,
            core,
            nodes: nodes.len(),
            name,
            single_ms,
            bound,
            rate,
            _folder: folder,
        })
    }

    /// Keeps what runs a node's models on a core.
    pub(super) fn keep(&mut self, node: &str, core: u32) -> Result<()> {
        keep_on(core, self.cluster.pid(node)?)
    }

    /// Asks for a while that does not count: what is learnt first.
    pub(super) fn settle(&mut self, seed: u64) -> Result<()> {
        self.ask(seed, Duration::from_secs(2)).map(drop)
    }

    fn question(&self, seed: u64, time: Duration) -> Value {
        json!({
            "do": "paced", "per_second": [self.rate], "ms": ms(time), "seed": seed, "connections": CONNECTIONS,
            "patience_ms": ms(self.bound + PAST) + 500,
        })
    }

    fn ask(&mut self, seed: u64, time: Duration) -> Result<Value> {
        let question = self.question(seed, time);
        self.load.ask(&question)
    }

    fn get(&self, path: &str) -> Result<Value> {
        Connection::open(self.gateway)?.exchange(&Request::get(path))?.json()
    }

    pub(super) fn round(&mut self, seed: u64, [calm, burn, after]: [Duration; 3]) -> Result<Round> {
        // The newest event there is: what comes after it is of this round.
        let before = self.get("/v1/events?limit=1")?["last"].as_u64().context("the last event")?;
        self.well()?;
        let question = self.question(seed, calm + burn + after);
        let burning = Burning { burners: BURNERS, core: self.core };
        let load = &mut self.load;
        let (raw, began, ended) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| load.ask(&question));
            std::thread::sleep(calm);
            let began = unix_ms()?;
            let burners = Burners::start(burning)?;
            std::thread::sleep(burn);
            drop(burners);
            let ended = unix_ms()?;
            let raw = asked.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))??;
            Ok::<_, anyhow::Error>((raw, began, ended))
        })?;
        let wrong = raw["streams"][0]["wrong"].as_u64().context("how many were wrong?")?;
        ensure!(wrong == 0, "{wrong} answers were wrong");
        let since = |at: u64| at.saturating_sub(raw["began_unix_ms"].as_u64().unwrap_or(at));
        let (from, to) = (since(began), since(ended));
        let noticed = from + ms(TOLD_WITHIN);
        let all = all_ended(&raw)?;
        let phases = [(0, from), (from, noticed), (noticed, to), (to, u64::MAX)]
            .map(|(from, to)| Phase::of(&all, (from, to), self.bound));
        let [before_it, until_told, rest, over] = phases;
        let events = self.get(&format!("/v1/events?after={before}&limit=1000"))?;
        let told_s = told_after(&events, began)?;
        Ok(Round {
            told_s,
            phases: [before_it?, until_told?, rest?, over?],
            from,
            to,
            load: bare(raw),
            events,
        })
    }

    /// Waits until both replicas are what they are without any trouble.
    fn well(&self) -> Result<()> {
        loaded(self.gateway, self.name, self.nodes).with_context(|| self.cluster.output())
    }
}

/// Waits until so many nodes have the variant, and none is in trouble.
fn loaded(gateway: SocketAddr, variant: &str, nodes: usize) -> Result<()> {
    wait::until(LOADED_WITHIN, || {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
        let replicas = answer["replicas"].as_array().context("a list of replicas")?;
        let well =
            replicas.iter().filter(|one| one["variant"] == variant && one["state"] == "active").count();
        Ok(if well == nodes { Ok(()) } else { Err(answer.to_string()) })
    })
    .context("not every node has it in memory, undisturbed")
}

/// What its profile says that one alone takes.
fn alone_ms(gateway: SocketAddr, asked: &Asked) -> Result<f64> {
    let path = format!("/v1/profiles?task={}&variant={}", asked.task, asked.variant);
    let file = Connection::open(gateway)?.exchange(&Request::get(&path))?.json()?;
    let first = &file["profiles"][0]["profile"]["latency"][0];
    ensure!(first["batch"] == 1, "a profile without a batch of 1: {file}");
    Ok(first["mean_us"].as_f64().context("what it takes")? / 1e3)
}

/// Seconds from when it began until the hogged node's replica was said to be interfered; infinite if it never was, and nothing if it was
/// already, for whatever else disturbed it.
fn told_after(events: &Value, began_ms: u64) -> Result<Option<f64>> {
    let events = events["events"].as_array().context("events")?;
    let of_it = |event: &&Value| event["kind"] == "replica" && event["node"] == HOGGED;
    let at = |event: &Value| event["at_unix_us"].as_u64().unwrap_or(0);
    let (before, after): (Vec<_>, Vec<_>) =
        events.iter().filter(of_it).partition(|event| at(event) < began_ms * 1_000);
    let interfered = |event: &&&Value| event["what"] == "interfered";
    if before.last().is_some_and(|last| last["what"] == "interfered") {
        return Ok(None);
    }
    let first = after.iter().filter(interfered).map(|event| at(event)).min();
    let Some(first) = first else { return Ok(Some(f64::INFINITY)) };
    Ok(Some(count(first / 1_000 - began_ms)? / 1e3))
}

/// What was asked in a part of a round.
pub(super) struct Phase {
    sent: usize,
    /// The share that was not answered in time.
    pub(super) missed: f64,
    /// The share of the answers that the hogged node gave.
    share: f64,
    pub(super) p99_ms: f64,
    /// Failures, by name.
    why: BTreeMap<String, usize>,
    late: usize,
}

impl Phase {
    fn of(all: &[Ended], (from, to): (u64, u64), bound: Duration) -> Result<Self> {
        let then: Vec<&Ended> = all.iter().filter(|ended| (from..to).contains(&ended.came_ms)).collect();
        ensure!(!then.is_empty(), "nothing was asked from {from} to {to} ms");
        let answered: Vec<&&Ended> = then.iter().filter(|ended| ended.how.is_ok()).collect();
        let mut why = BTreeMap::new();
        for failed in then.iter().filter_map(|ended| ended.how.as_ref().err()) {
            *why.entry(failed.clone()).or_default() += 1;
        }
        let late = answered.iter().filter(|ended| Duration::from_micros(ended.took_us) > bound).count();
        let here = answered.iter().filter(|ended| ended.how.as_deref() == Ok(HOGGED)).count();
        let took: Vec<u64> = answered.iter().map(|ended| ended.took_us).collect();
        Ok(Self {
            sent: then.len(),
            missed: count(then.len() - answered.len() + late)? / count(then.len())?,
            share: count(here)? / count(answered.len().max(1))?,
            p99_ms: count(stats::percentile(&took, 99).unwrap_or_default())? / 1e3,
            why,
            late,
        })
    }

    fn json(&self) -> Value {
        json!({
            "sent": self.sent, "missed": self.missed, "share_of_hogged": self.share, "p99_ms": self.p99_ms,
            "late": self.late, "failed": self.why,
        })
    }
}

pub(super) struct Round {
    told_s: Option<f64>,
    pub(super) phases: [Phase; 4],
    from: u64,
    to: u64,
    load: Value,
    pub(super) events: Value,
}

impl Round {
    pub(super) fn json(&self) -> Value {
        let [before, until_told, rest, after] = self.phases.each_ref().map(Phase::json);
        json!({
            "told": self.told_s.map_or("before", |s| if s.is_finite() { "then" } else { "never" }), "told_s": self.told_s, "from_ms": self.from, "to_ms": self.to, "before": before, "until_it_has_to_be_told": until_told,
            "rest_of_burning": rest, "after": after, "load": self.load, "events": self.events["events"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_when_the_hogged_node_says_so_after_it_began() {
        let event = |node: &str, what: &str, at: u64| json!({"kind": "replica", "node": node, "what": what, "at_unix_us": at});
        let events = |all: &[Value]| json!({"events": all});
        let (before, well) = (event(HOGGED, "interfered", 9_000_000), event(HOGGED, "active", 9_500_000));
        let other = event(FREE, "interfered", 10_200_000);
        let told = event(HOGGED, "interfered", 10_500_000);
        let all =
            [before.clone(), well.clone(), other.clone(), event(HOGGED, "overloaded", 10_300_000), told];
        assert!((told_after(&events(&all), 10_000).unwrap().unwrap() - 0.5).abs() < 1e-9);
        assert!(
            told_after(&events(&[before.clone(), well, other.clone()]), 10_000)
                .unwrap()
                .unwrap()
                .is_infinite()
        );
        assert_eq!(told_after(&events(&[before, other]), 10_000).unwrap(), None);
        assert!(told_after(&json!({}), 10_000).is_err());
    }

    #[test]
    fn what_is_late_or_refused_is_missed_and_only_answers_have_a_node() {
        let of = |came_ms: u64, took_ms: u64, how: Result<&str, &str>| Ended {
            came_ms,
            took_us: took_ms * 1_000,
            how: how.map(ToOwned::to_owned).map_err(ToOwned::to_owned),
        };
        let all = [
            of(1, 5, Ok(HOGGED)),
            of(2, 50, Ok(FREE)),
            of(3, 5, Err("504 too_late")),
            of(4, 5, Ok(FREE)),
            of(99, 5, Err("504 too_late")),
        ];
        let phase = Phase::of(&all, (0, 50), Duration::from_millis(10)).unwrap();
        assert!((phase.missed - 0.5).abs() < 1e-9 && (phase.share - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((phase.sent, phase.late, phase.why["504 too_late"]), (4, 1, 1));
        assert!(Phase::of(&all, (200, 300), Duration::from_millis(10)).is_err());
    }
}
