//! A step of the load to twenty times as much and back, on machines that come and go: ours, and INFaaS' rules for machines in the same
//! binary.
//!
//! Machines are processes of a pool that a real scheduler starts, drains and takes away; what they run is an engine that replays measured
//! latencies (see [`super::replayed`]), so that more of them do more, whatever this machine's cores do. The base load is a twentieth
//! of what keeps the most machines there may be at the share that ours aims at. Rules change places round by round, each round
//! with a cluster of its own and the same load to the microsecond. What a round shows is told in [`seen`].
//!
//! A process starts in a second or two, a virtual machine in 20 to 30: rules that add one machine at a time look better here than on a
//! cloud. What of INFaaS is in it and what is not: `docs/adr/0202-rules-of-others-in-the-same-binary.md`.

mod seen;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, TempDir, process, stats, wait};
use serde_json::{Value, json};

use self::seen::{Change, Round, When};
use super::{PAST, count, ended_of, ms};
use crate::command::{output, program};
use crate::measure::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "step",
    what: "a step from 1 to 20 times the base load and back, machines coming and going by our rules and by INFaaS': time until the bound is met again, violations, machines, queries lost",
    run: measure,
};

const TIMES: f64 = 20.0;
/// The share of their time that our rules aim at.
const BUSY: f64 = 0.7;
const BOUND: Duration = Duration::from_millis(500);
/// More than are ever open at once: what is late is refused after the bound.
const CONNECTIONS: u32 = 400;
const SCHEDULER: &str = "planner";
const LOADED_WITHIN: Duration = Duration::from_mins(1);
/// Changes of machines of a round that are read: far more than there are.
const CHANGES: usize = 1_000;

struct Programs {
    modelless: PathBuf,
    replay_node: PathBuf,
    http_load: PathBuf,
}

/// Whose rules, as the scheduler's setting has them.
const RULES: [&str; 2] = ["modelless", "infaas"];

/// How large and how long.
struct Size {
    most: u32,
    lanes: u32,
    /// Before the step, at its height, and after it, in milliseconds: ours and INFaaS'.
    times: [(u64, u64, u64); 2],
    remembered_s: u32,
    /// Two seconds of which more was missed do not meet the bound.
    late: f64,
    /// For so long the bound has to be met.
    holds_ms: u64,
}

fn measure(context: &Context) -> Result<Outcome> {
    // The load's own beginning is a rise, for which our rules have a machine come: it goes after a minute, so that the step meets one.
    let full = (75_000, 40_000, 130_000);
    let size = context.choose(
        Size { most: 5, lanes: 4, times: [full; 2], remembered_s: 60, late: 0.01, holds_ms: 10_000 },
        Size {
            most: 3,
            lanes: 2,
            times: [(2_000, 12_000, 16_000), (2_000, 12_000, 2_000)],
            remembered_s: 10,
            late: 0.05,
            holds_ms: 4_000,
        },
    );
    // Built once, so that nothing is between rounds.
    let programs = Programs {
        modelless: context.binary()?.to_owned(),
        replay_node: context.bench_program("replay-node")?,
        http_load: context.bench_program("http-load")?,
    };
    let seeds: Vec<u64> = (0..context.choose(3, 1)).map(|round| context.seed + 1 + round).collect();
    let mut rounds: [Vec<Round>; 2] = Default::default();
    let (mut rows, mut rate) = (Vec::new(), 0.0);
    for (number, seed) in seeds.iter().enumerate() {
        // In turns, so that what changes on this machine in between is not put down to one of them.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let mut world = World::start(context, &programs, &size, RULES[side])?;
            rate = world.rate;
            let round = world.round(size.times[side], *seed)?;
            rows.push(round.json(RULES[side], *seed, &size_of(&size)));
            rounds[side].push(round);
        }
    }
    let [ours, infaas] = rounds.each_ref().map(|rounds| Found::of(rounds, &size));
    let (ours, infaas) = (ours?, infaas?);
    Ok(Outcome {
        seeds,
        repetitions: Value::Array(rows),
        summary: json!({
            "base_per_second": rate, "times": TIMES, "most_machines": size.most, "lanes_each": size.lanes, "bound_ms": ms(BOUND),
            "engine": super::replayed::REPLAYS, "met": format!("{} s in a row with at most {:.0} % late or refused in each 2 s", size.holds_ms / 1_000, size.late * 100.0),
            "modelless": ours.json(), "infaas": infaas.json(),
        }),
        result: format!(
            "from {rate:.1} to {:.0} queries a second and back, 1 to {} machines of {} lanes, bound {} ms ({}): ours {}; INFaaS' rules {}",
            rate * TIMES,
            size.most,
            size.lanes,
            ms(BOUND),
            super::replayed::REPLAYS,
            ours.told(),
            infaas.told()
        ),
        checks: checks(context, &ours, &infaas)?,
    })
}

fn size_of(size: &Size) -> seen::Met {
    seen::Met { late: size.late, holds_ms: size.holds_ms }
}

fn checks(context: &Context, ours: &Found, infaas: &Found) -> Result<Vec<Check>> {
    let none = |what, value: usize| {
        Ok::<_, anyhow::Error>(Check { what, value: count(value)?, limit: 0.0, unit: "" })
    };
    Ok(vec![
        Check {
            what: "until ours meets the bound again, worst",
            value: ours.met.1,
            limit: context.choose(12.0, 11.0),
            unit: "s",
        },
        Check {
            what: "ours later than INFaaS' rules, medians",
            value: ours.met.0 - infaas.met.0,
            limit: context.choose(0.0, 5.0),
            unit: "s",
        },
        none("lost on the way down", ours.lost + infaas.lost)?,
        none("queries without a word", ours.untold + infaas.untold)?,
        none("wrong answers", ours.wrong + infaas.wrong)?,
        none("machines of ours that started within a minute of a stop, under the same load", ours.flaps)?,
        none("machines of ours beyond the least at the end", ours.too_many)?,
    ])
}

/// What all rounds of one kind of rules show. Pairs are the median and the worst.
struct Found {
    met: (f64, f64),
    /// Rounds in which it was not met again at all.
    never: usize,
    missed: (f64, f64),
    starts: usize,
    stops: usize,
    flaps: usize,
    lost: usize,
    untold: usize,
    wrong: usize,
    too_many: usize,
    machine_s: (f64, f64),
    by_name: BTreeMap<String, usize>,
}

impl Found {
    fn of(rounds: &[Round], size: &Size) -> Result<Self> {
        let of = |each: &dyn Fn(&Round) -> f64| {
            let all: Vec<f64> = rounds.iter().map(each).collect();
            Ok::<_, anyhow::Error>((
                stats::median(&all).context("no rounds")?,
                stats::percentile(&all, 100).context("no rounds")?,
            ))
        };
        let sum = |each: &dyn Fn(&Round) -> usize| rounds.iter().map(each).sum();
        let met = size_of(size);
        let mut by_name = BTreeMap::new();
        for (name, many) in rounds.iter().flat_map(|round| round.missed(When::High)) {
            *by_name.entry(name).or_default() += many;
        }
        Ok(Self {
            met: of(&|round| seen::seconds(round.met_again(&met).unwrap_or(round.down_ms - round.up_ms)))?,
            never: sum(&|round| usize::from(round.met_again(&met).is_none())),
            missed: of(&|round| round.missed_share(When::High))?,
            starts: sum(&Round::starts),
            stops: sum(&Round::stops),
            flaps: sum(&Round::flaps),
            lost: sum(&Round::lost_on_the_way_down),
            untold: sum(&Round::untold),
            wrong: sum(&|round| round.wrong),
            too_many: sum(&|round| round.there_at(round.end_ms).saturating_sub(1)),
            machine_s: of(&Round::machine_seconds)?,
            by_name,
        })
    }

    fn json(&self) -> Value {
        json!({
            "met_again_s_median": self.met.0, "met_again_s_worst": self.met.1, "never_met_again": self.never,
            "missed_share_at_the_height_median": self.missed.0, "missed_share_at_the_height_worst": self.missed.1,
            "missed_at_the_height_by_name": self.by_name, "starts": self.starts, "stops": self.stops, "flaps": self.flaps,
            "lost_on_the_way_down": self.lost, "untold": self.untold, "wrong": self.wrong,
            "machine_seconds_median": self.machine_s.0, "machine_seconds_worst": self.machine_s.1,
            "machines_beyond_the_least_at_the_end": self.too_many,
        })
    }

    fn told(&self) -> String {
        let names: Vec<String> = self.by_name.iter().map(|(name, many)| format!("{many} {name}")).collect();
        let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        let never = if self.never > 0 { format!(", {} times not at all", self.never) } else { String::new() };
        format!(
            "met it again {:.1} s after the step (worst {:.1} s{never}), {:.1} % missed at the height (worst {:.1} %{names}), {} machines \
             started and {} stopped after it, {} of them started within a minute of a stop, {} queries lost on the way down, {:.0} machine-seconds",
            self.met.0,
            self.met.1,
            self.missed.0 * 100.0,
            self.missed.1 * 100.0,
            self.starts,
            self.stops,
            self.flaps,
            self.lost,
            self.machine_s.0,
        )
    }
}

/// A cluster whose nodes are machines of a pool, which end with it: they outlive whoever started them.
struct World {
    // In this order they end.
    load: Side,
    cluster: Cluster,
    name: String,
    gateway: SocketAddr,
    /// Queries a second before the step.
    rate: f64,
    _postgres: Postgres,
    _folder: TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        // Else it would have others come in their place.
        let _ = self.cluster.kill(SCHEDULER);
        for pid in process::machines(&self.name) {
            process::kill(pid);
        }
    }
}

impl World {
    /// One machine is there and has the model in memory.
    fn start(context: &Context, programs: &Programs, size: &Size, rules: &str) -> Result<Self> {
        let replay = &programs.replay_node;
        let (folder, postgres) = (modelless_testkit::temp_dir("step")?, Postgres::start()?);
        let artefacts = folder.path().join("artefacts");
        let mut register = program(&context.root, replay);
        register.arg("register-slow").arg(postgres.url()).arg(&artefacts).arg(ms(BOUND).to_string());
        let told: Value =
            serde_json::from_str(&output(&mut register)?).context("replay-node told no JSON")?;
        let task = &told[0];
        let single_s = task["single_us"].as_f64().context("the time of a single query")? / 1e6;
        let rate = BUSY * f64::from(size.most * size.lanes) / single_s / TIMES;
        let pools = folder.path().join("pools.toml");
        let text = format!(
            "busy = {BUSY}\nremembered-s = {}\n[pools.p]\nleast = 1\nmost = {}\nprice = 0.1\nset = [\"executor.lanes={}\", \
             \"artefacts={}\"]\n[pools.p.process]\nlogs = \"{}\"\nrun = [\"{}\"]\n",
            size.remembered_s,
            size.most,
            size.lanes,
            artefacts.display(),
            folder.path().join("logs").display(),
            replay.display(),
        );
        fs::write(&pools, text)?;
        let name = format!("step-{}", std::process::id());
        let named = format!("cluster={name}");
        let mut cluster = Cluster::of(&programs.modelless, postgres.url(), &artefacts)?;
        let (pools, rules) = (format!("pools={}", pools.display()), format!("scheduler.rules={rules}"));
        cluster.scheduler(SCHEDULER, &[&named, &pools, &rules])?;
        let gateway = cluster.gateway("left", &[&named])?;
        let loaded = wait::until(LOADED_WITHIN, || {
            let answer = ask(gateway, "/v1/replicas")?;
            let mut all = answer["replicas"].as_array().context("a list of replicas")?.iter();
            Ok(if all.any(|replica| replica["state"] == "active") { Ok(()) } else { Err(answer.to_string()) })
        });
        loaded.with_context(|| cluster.output()).context("the first machine never came")?;
        let target =
            format!("/v1/tasks/{}?latency_ms={}", task["task"].as_str().context("a task")?, ms(BOUND));
        let stream = json!([{"target": target, "inputs": [task["input"]], "exact": true}]).to_string();
        let mut load =
            Side::start(&programs.http_load, &[&gateway.to_string(), &stream, &context.seed.to_string()])?;
        load.ask(&json!({"do": "learn"}))?;
        Ok(Self { load, cluster, name, gateway, rate, _postgres: postgres, _folder: folder })
    }

    fn round(&mut self, (before, high, after): (u64, u64, u64), seed: u64) -> Result<Round> {
        let (up_ms, down_ms) = (before, before + high);
        let raw = self.load.ask(&json!({
            "do": "paced", "per_second": [self.rate], "steps": [[up_ms, TIMES], [down_ms, 1.0]], "ms": down_ms + after,
            "seed": seed, "connections": CONNECTIONS, "patience_ms": ms(BOUND + PAST) + 500,
        }))?;
        let began = raw["began_unix_ms"].as_u64().context("when did it begin?")?;
        let machines = ask(self.gateway, &format!("/v1/machines?changes={CHANGES}&ended=0"))?;
        let changes = machines["changes"].as_array().context("a list of changes")?;
        ensure!(changes.len() < CHANGES, "more changed than is shown");
        let mut changes = changes.iter().map(|one| Change::read(one, began)).collect::<Result<Vec<_>>>()?;
        changes.reverse();
        let stream = &raw["streams"][0];
        Ok(Round {
            all: ended_of(stream)?,
            wrong: usize::try_from(stream["wrong"].as_u64().context("how many were wrong?")?)?,
            sent_after_due: stream["sent_after_due"].clone(),
            changes,
            up_ms,
            down_ms,
            end_ms: down_ms + after,
            bound: BOUND,
        })
    }
}

fn ask(gateway: SocketAddr, path: &str) -> Result<Value> {
    Connection::open(gateway)?.exchange(&Request::get(path))?.json()
}
