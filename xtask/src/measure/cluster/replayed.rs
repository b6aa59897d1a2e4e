//! A cluster under a load that it can just carry: real gateways, executors, scheduler, Postgres and Redis, and the real wire; but the
//! executors' engine replays latencies that were measured instead of computing, so that there can be more lanes than cores, all
//! of them busy, and queries in flight whenever something dies.
//!
//! Three tasks: one whose batches take some milliseconds; a slow one of some tens, which has nearly all of the lanes' time; and one as
//! quick as the first whose inputs are so large that they are sent in parts, between which other queries go. Each input has an answer of its
//! own, exactly, so one that was mixed up or put together wrongly is noticed.
//! How much the cluster can carry is computed: its lanes over the time of a single query (batches of these models save no time).
//! Clients come through what behaves as a balancer does (`http-load`, `"balanced"`), which sends no query twice.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, TempDir, wait};
use serde_json::{Value, json};

use super::{Ended, ended_of, ms};
use crate::command::{output, program};
use crate::measure::Context;

/// Of what the cluster can carry. The range is 70 to 80 %; at this, five of six executors are at 86 %.
pub(crate) const LOAD: f64 = 0.72;
/// The tasks' parts of the lanes' time: the quick one's, the slow one's, and that of large inputs.
const SHARES: [f64; 3] = [0.07, 0.9, 0.03];
/// What a task's input must have to count as large: several parts of a frame.
const LARGE: u64 = 150_000;
/// Said by every result.
pub(crate) const REPLAYS: &str = "executors replay measured latencies";
const LOADED_WITHIN: Duration = Duration::from_mins(1);
const CONNECTIONS: u32 = 64;
const LOST: &str = "modelless_queries_lost_with_node_total";
const SENT: &str = "modelless_node_queries_sent";

/// How large.
pub(crate) struct Size {
    pub(crate) executors: usize,
    /// Of each.
    pub(crate) lanes: u16,
    /// Until a gateway that is to end refuses anybody.
    pub(crate) leave_ms: u64,
    /// Latency bounds of the quick tasks and the slow one.
    pub(crate) bounds: [Duration; 2],
}

pub(crate) struct Replayed {
    // In this order they end.
    pub(crate) load: Side,
    pub(crate) cluster: Cluster,
    pub(crate) postgres: Postgres,
    pub(crate) gateways: Vec<SocketAddr>,
    pub(crate) executors: Vec<String>,
    tasks: Vec<Task>,
    _folder: TempDir,
}

/// One of the three.
#[derive(Clone, Debug)]
struct Task {
    name: String,
    input: Value,
    /// Of an input.
    bytes: u64,
    bound: Duration,
    /// Queries a second.
    rate: f64,
    single: Duration,
}

/// A query with its bound.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Seen {
    pub(crate) ended: Ended,
    pub(crate) bound: Duration,
    /// Its input was sent in parts.
    pub(crate) large: bool,
}

impl Seen {
    /// Whether it was answered by its deadline.
    pub(crate) fn good(&self) -> bool {
        self.ended.how.is_ok() && Duration::from_micros(self.ended.took_us) <= self.bound
    }

    /// Whether it was under way at this moment.
    pub(crate) fn in_flight(&self, at_ms: u64) -> bool {
        self.ended.came_ms <= at_ms && at_ms * 1_000 < self.ended.came_ms * 1_000 + self.ended.took_us
    }
}

/// What came of a load on both tasks.
pub(crate) struct Came {
    /// In the order in which they came.
    pub(crate) all: Vec<Seen>,
    pub(crate) wrong: u64,
    /// Asked elsewhere than at the gateway that is the client's own.
    pub(crate) moved: u64,
    /// When it began, in milliseconds since 1970.
    pub(crate) began_unix_ms: u64,
}

impl Came {
    fn read(raw: &Value, tasks: &[Task]) -> Result<Self> {
        let streams = raw["streams"].as_array().context("a list of streams")?;
        ensure!(streams.len() == tasks.len(), "a stream for each task");
        let mut came = Self {
            all: Vec::new(),
            wrong: 0,
            moved: 0,
            began_unix_ms: raw["began_unix_ms"].as_u64().context("when did it begin?")?,
        };
        for (stream, task) in streams.iter().zip(tasks) {
            came.all.extend(ended_of(stream)?.into_iter().map(|ended| Seen {
                ended,
                bound: task.bound,
                large: task.is_large(),
            }));
            came.wrong += stream["wrong"].as_u64().context("how many were wrong?")?;
            came.moved += stream["moved"].as_u64().context("how many were asked elsewhere?")?;
        }
        came.all.sort_by_key(|seen| seen.ended.came_ms);
        Ok(came)
    }

    /// Why those that failed did, and when after a moment they came (or before, below zero).
    pub(crate) fn lost(&self, from_ms: u64) -> Vec<String> {
        let told = |seen: &Seen| {
            let why = seen.ended.how.as_ref().err()?;
            let after = i128::from(seen.ended.came_ms) - i128::from(from_ms);
            Some(format!("{why} (came {after:+} ms from it, told after {} ms)", seen.ended.took_us / 1_000))
        };
        self.all.iter().filter_map(told).collect()
    }

    /// How many had large inputs.
    pub(crate) fn large(&self) -> usize {
        self.all.iter().filter(|seen| seen.large).count()
    }

    /// How many were under way at a moment.
    pub(crate) fn in_flight(&self, at_ms: u64) -> usize {
        self.all.iter().filter(|seen| seen.in_flight(at_ms)).count()
    }

    /// The share that was not answered in time, of those that came before a moment and had time to be.
    pub(crate) fn missed_before(&self, at_ms: u64) -> Result<f64> {
        let before = |seen: &&Seen| seen.ended.came_ms + ms(seen.bound).min(at_ms / 2) < at_ms;
        let before: Vec<&Seen> = self.all.iter().filter(before).collect();
        ensure!(!before.is_empty(), "nothing was asked before it happened");
        Ok(super::count(before.iter().filter(|seen| !seen.good()).count())? / super::count(before.len())?)
    }

    /// The share of the answers that a node gave to what came in such a time.
    pub(crate) fn share_of(&self, node: &str, from_ms: u64, to_ms: u64) -> Result<f64> {
        let then = |seen: &&Seen| (from_ms..to_ms).contains(&seen.ended.came_ms) && seen.ended.how.is_ok();
        let answered: Vec<&Seen> = self.all.iter().filter(then).collect();
        ensure!(!answered.is_empty(), "nothing was answered before it happened");
        let own = answered.iter().filter(|seen| seen.ended.how.as_deref() == Ok(node)).count();
        Ok(super::count(own)? / super::count(answered.len())?)
    }
}

impl Replayed {
    /// Two gateways (`left`, `right`), a scheduler and executors that have all models in memory.
    pub(crate) fn start(context: &Context, size: &Size) -> Result<Self> {
        let replay = context.bench_program("replay-node")?;
        let (folder, postgres) = (modelless_testkit::temp_dir("cluster")?, Postgres::start()?);
        let artefacts: PathBuf = folder.path().join("artefacts");
        let mut register = program(&context.root, &replay);
        let told = output(register.arg("register-all").arg(postgres.url()).arg(&artefacts))?;
        let tasks = tasks(&serde_json::from_str(&told).context("replay-node told no JSON")?, size)?;
        let mut cluster = Cluster::of(context.binary()?, postgres.url(), &artefacts)?;
        let lanes = format!("executor.lanes={}", size.lanes);
        let executors: Vec<String> = (1..=size.executors).map(|number| format!("node-{number}")).collect();
        for name in &executors {
            cluster.executor_of(&replay, name, &[&lanes])?;
        }
        cluster.scheduler("planner", &[])?;
        let leave = format!("gateway.leave_ms={}", size.leave_ms);
        let gateways = vec![cluster.gateway("left", &[&leave])?, cluster.gateway("right", &[&leave])?];
        loaded(&gateways, &executors, tasks.len()).with_context(|| cluster.output())?;
        let streams = tasks.iter().map(|task| {
            let target = format!("/v1/tasks/{}?latency_ms={}", task.name, ms(task.bound));
            json!({"target": target, "inputs": [task.input], "exact": true})
        });
        let streams = Value::Array(streams.collect()).to_string();
        let addresses = gateways.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let http_load = context.bench_program("http-load")?;
        let mut load = Side::start(&http_load, &[&addresses, &streams, &context.seed.to_string()])?;
        load.ask(&json!({"do": "learn"}))?;
        let mut world = Self { load, cluster, postgres, gateways, executors, tasks, _folder: folder };
        // Not counted: connections, what gateways and executors learn.
        world.under(context.seed, 1_000, |_| Ok(()))?;
        Ok(world)
    }

    /// The load for so long, with something that happens during it. What came of the load as it was told and read, and from
    /// when to when it happened, in milliseconds since the load began.
    pub(crate) fn under(
        &mut self,
        seed: u64,
        time_ms: u64,
        happens: impl FnOnce(&mut Happens<'_>) -> Result<()>,
    ) -> Result<(Value, Came, (u64, u64))> {
        let rates: Vec<f64> = self.tasks.iter().map(|task| task.rate).collect();
        let longest = self.tasks.iter().map(|task| task.bound).max().unwrap_or_default();
        let question = json!({
            "do": "paced", "per_second": rates, "ms": time_ms, "seed": seed, "connections": CONNECTIONS,
            "patience_ms": ms(longest + super::PAST) + 500, "balanced": true,
        });
        let Self { load, cluster, postgres, .. } = self;
        let (raw, from, to) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| load.ask(&question));
            let mut happens_to = Happens { cluster, postgres, from: None };
            happens(&mut happens_to)?;
            let from = happens_to.from;
            let to = super::unix_ms()?;
            ensure!(from.is_none() || !asked.is_finished(), "the load ended before all had happened");
            let raw = asked.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))??;
            Ok::<_, anyhow::Error>((raw, from.unwrap_or(to), to))
        })?;
        let came = Came::read(&raw, &self.tasks)?;
        let since = |at: u64| at.saturating_sub(came.began_unix_ms);
        let when = (since(from), since(to));
        Ok((raw, came, when))
    }

    /// Waits until every gateway knows that every executor has all models in memory.
    pub(crate) fn loaded(&self) -> Result<()> {
        loaded(&self.gateways, &self.executors, self.tasks.len()).with_context(|| self.cluster.output())
    }

    /// How many queries gateways lost with a node so far: what was at it, each time that it died.
    pub(crate) fn lost_with(&self, node: &str) -> Result<u64> {
        of_node(&self.gateways, LOST, node)
    }

    /// For a result's text: what is asked of what.
    pub(crate) fn described(&self) -> String {
        let tasks = self.tasks.iter().map(|task| {
            let large = if task.is_large() {
                format!(" with inputs of {} kB", task.bytes / 1_000)
            } else {
                String::new()
            };
            format!("{:.0} a second of {:.1} ms{large}", task.rate, task.single.as_secs_f64() * 1e3)
        });
        format!(
            "2 gateways, {} executors, {} ({:.0} % of what they can carry; {REPLAYS})",
            self.executors.len(),
            tasks.collect::<Vec<_>>().join(", "),
            LOAD * 100.0
        )
    }

    pub(crate) fn json(&self) -> Value {
        let task = |task: &Task| {
            json!({
                "task": task.name, "per_second": task.rate, "single_ms": task.single.as_secs_f64() * 1e3,
                "bound_ms": ms(task.bound), "input_bytes": task.bytes,
            })
        };
        json!({
            "executors": self.executors.len(), "of_capacity": LOAD, "engine": REPLAYS,
            "tasks": self.tasks.iter().map(task).collect::<Vec<_>>(),
        })
    }
}

/// What can happen to a cluster under load.
pub(crate) struct Happens<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) postgres: &'a mut Postgres,
    from: Option<u64>,
}

impl Happens<'_> {
    /// It happens now.
    pub(crate) fn now(&mut self) -> Result<()> {
        self.from = Some(super::unix_ms()?);
        Ok(())
    }
}

impl Task {
    fn is_large(&self) -> bool {
        self.bytes > LARGE
    }
}

/// Tasks with rates that take up [`LOAD`] of all lanes, [`SHARES`] of it each.
fn tasks(told: &Value, size: &Size) -> Result<Vec<Task>> {
    let told = told.as_array().filter(|told| told.len() == SHARES.len()).context("three tasks")?;
    let lanes = super::count(size.executors)? * f64::from(size.lanes);
    let [quick, slow] = size.bounds;
    let task = |((told, bound), share): ((&Value, Duration), f64)| {
        let single = told["single_us"].as_f64().context("the time of a single query")? / 1e6;
        let numbers = told["input"]["shape"][0].as_u64().context("the size of an input")?;
        Ok(Task {
            name: told["task"].as_str().context("a task's name")?.to_owned(),
            input: told["input"].clone(),
            bytes: numbers * 4,
            bound,
            rate: LOAD * lanes * share / single,
            single: Duration::from_secs_f64(single),
        })
    };
    let tasks: Vec<Task> =
        told.iter().zip([quick, slow, quick]).zip(SHARES).map(task).collect::<Result<_>>()?;
    ensure!(tasks.iter().any(Task::is_large), "no task has large inputs: {tasks:?}");
    Ok(tasks)
}

fn loaded(gateways: &[SocketAddr], executors: &[String], models: usize) -> Result<()> {
    for gateway in gateways {
        wait::until(LOADED_WITHIN, || {
            let answer = Connection::open(*gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
            let replicas = answer["replicas"].as_array().context("a list of replicas")?;
            let active = |node: &String| {
                let here =
                    |replica: &&Value| replica["node"] == node.as_str() && replica["state"] == "active";
                replicas.iter().filter(here).count()
            };
            let all = executors.iter().all(|node| active(node) == models);
            Ok(if all { Ok(()) } else { Err(answer.to_string()) })
        })
        .context("not all executors loaded")?;
    }
    Ok(())
}

/// How many queries gateways have sent to a node that are not answered.
pub(crate) fn sent_to(gateways: &[SocketAddr], node: &str) -> Result<u64> {
    of_node(gateways, SENT, node)
}

fn of_node(gateways: &[SocketAddr], name: &str, node: &str) -> Result<u64> {
    let mut all = 0;
    for gateway in gateways {
        let metrics = Connection::open(*gateway)?.exchange(&Request::get("/metrics"))?.text();
        all += counter(&metrics, &format!("{name}{{node=\"{node}\"}}"))?;
    }
    Ok(all)
}

/// A counter of a metrics page; nothing of it yet is zero.
fn counter(metrics: &str, name: &str) -> Result<u64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(Ok(0), |value| value.trim().parse().with_context(|| format!("{name} is {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(came_ms: u64, took_ms: u64, how: Result<&str, &str>) -> Seen {
        let how = how.map(ToOwned::to_owned).map_err(ToOwned::to_owned);
        let ended = Ended { came_ms, took_us: took_ms * 1_000, how };
        Seen { ended, bound: Duration::from_millis(100), large: false }
    }

    #[test]
    fn rates_take_up_the_stated_share_of_the_lanes() {
        let of = |name: &str, single_us: f64, numbers: u64| {
            let input = json!({"name": "x", "dtype": "FP32", "shape": [numbers]});
            json!({"task": name, "single_us": single_us, "input": input})
        };
        let told = [of("a", 7_000.0, 4), of("b", 35_000.0, 4), of("c", 7_000.0, 50_000)];
        let size = Size { executors: 5, lanes: 2, leave_ms: 1, bounds: [Duration::from_secs(1); 2] };
        let tasks = tasks(&json!(told), &size).unwrap();
        let busy: f64 = tasks.iter().map(|task| task.rate * task.single.as_secs_f64()).sum();
        assert!((busy / 10.0 - LOAD).abs() < 1e-9, "{tasks:?}");
        assert!((tasks[1].rate * 0.035 / busy - SHARES[1]).abs() < 1e-9, "{tasks:?}");
        assert!(tasks[2].is_large() && !tasks[0].is_large());
        let small = json!([told[0], told[1], of("c", 7_000.0, 4)]);
        assert!(super::tasks(&small, &size).is_err(), "none is large");
        assert!(super::tasks(&json!([]), &size).is_err());
    }

    #[test]
    fn a_query_is_in_flight_from_when_it_came_until_it_ended() {
        let one = seen(10, 5, Ok("a"));
        assert!(!one.in_flight(9) && one.in_flight(10) && one.in_flight(14) && !one.in_flight(15));
        assert!(one.good() && !seen(10, 101, Ok("a")).good() && !seen(10, 5, Err("503 x")).good());
    }

    #[test]
    fn shares_and_misses_are_those_of_before() {
        let all = vec![
            seen(10, 5, Ok("a")),
            seen(20, 5, Ok("b")),
            seen(30, 500, Ok("a")),
            seen(40, 5, Err("503 x")),
            seen(900, 5, Err("503 x")),
        ];
        let came = Came { all, wrong: 0, moved: 0, began_unix_ms: 0 };
        assert!((came.share_of("a", 0, 500).unwrap() - 2.0 / 3.0).abs() < 1e-9);
        assert!((came.missed_before(800).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(came.in_flight(100), 1);
        assert!(came.share_of("a", 2_000, 3_000).is_err());
    }

    #[test]
    fn a_counter_that_does_not_stand_there_is_zero() {
        let page = "a_total{node=\"x\"} 7\nb 2\n";
        assert_eq!(counter(page, "a_total{node=\"x\"}").unwrap(), 7);
        assert_eq!(counter(page, "a_total{node=\"y\"}").unwrap(), 0);
    }
}
