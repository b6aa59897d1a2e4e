//! Measures of a whole cluster: real processes, a real Postgres and Redis; the demo's models, or in [`replayed`] an engine that
//! replays measured latencies.
//!
//! What they share stands here: starting it, waiting until all is loaded, load on all of its gateways, and reading what came
//! of that load.

pub(crate) mod alone;
mod carried;
pub(crate) mod day;
pub(crate) mod goodput;
pub(crate) mod goodput_simulated;
pub(crate) mod interference;
pub(crate) mod jobs;
pub(crate) mod kill;
pub(crate) mod many;
pub(crate) mod pool;
pub(crate) mod replayed;
pub(crate) mod restart;
pub(crate) mod scheduler_away;
pub(crate) mod step;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::turns::Side;
use modelless_testkit::{Connection, Postgres, Request, TempDir, wait};
use serde_json::{Value, json};

use super::{Context, demo};
use crate::command::{output, program};

/// Who answers: every answer can be compared with the one that was learnt.
pub(crate) const VARIANT: &str = "cnn_m-fp32";
/// What an error that has no name counts from: the deadline and this.
pub(crate) const PAST: Duration = Duration::from_secs(1);
const LOADED_WITHIN: Duration = Duration::from_mins(2);

/// A running cluster.
pub(crate) struct World {
    // In this order they end.
    pub(crate) cluster: Cluster,
    _postgres: Postgres,
    pub(crate) gateways: Vec<SocketAddr>,
    pub(crate) executors: Vec<String>,
    _folder: TempDir,
}

/// A node to start: its name and its settings.
pub(crate) type Executor<'a> = (&'a str, &'a [&'a str]);

/// How the members of a cluster talk to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// As it is.
    Plain,
    /// Over TLS, both sides with certificates.
    Encrypted,
}

/// Whom certificates are for.
const NODE: &str = "127.0.0.1";
const PLANNER: &str = "modelless-scheduler";
const LEFT: &str = "modelless-gateway-left";
const RIGHT: &str = "modelless-gateway-right";

fn texts(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

impl World {
    /// A scheduler, two gateways (`left`, `right`) and these executors; the first one registers and measures the demo.
    /// Done when both gateways know of every executor that it has the variant in memory.
    pub(crate) fn start(context: &Context, executors: &[Executor<'_>], way: Way) -> Result<Self> {
        let (folder, postgres) = (modelless_testkit::temp_dir("cluster")?, Postgres::start()?);
        let artefacts: PathBuf = folder.path().join("artefacts");
        if way == Way::Encrypted {
            let mut certificates = program(&context.root, context.bench_program("certificates")?);
            output(certificates.arg(folder.path()).args([NODE, PLANNER, LEFT, RIGHT]))?;
        }
        // What a member shows to others, and by whom it knows them.
        let tls = |name: &str| -> Vec<String> {
            let file =
                |setting: &str, file: String| format!("tls.{setting}={}", folder.path().join(file).display());
            match way {
                Way::Plain => Vec::new(),
                Way::Encrypted => vec![
                    file("ca", "ca.pem".to_owned()),
                    file("cert", format!("{name}.pem")),
                    file("key", format!("{name}.key")),
                ],
            }
        };
        let mut cluster = Cluster::of(context.binary()?, postgres.url(), &artefacts)?;
        let (node, planner, left, right) = (tls(NODE), tls(PLANNER), tls(LEFT), tls(RIGHT));
        for (number, (name, settings)) in executors.iter().enumerate() {
            let demo: &[&str] = if number == 0 { &["demo=true"] } else { &[] };
            cluster.executor(name, &[settings, demo, &texts(&node)].concat())?;
        }
        cluster.scheduler("planner", &texts(&planner))?;
        let gateways =
            vec![cluster.gateway("left", &texts(&left))?, cluster.gateway("right", &texts(&right))?];
        let executors = executors.iter().map(|(name, _)| (*name).to_owned()).collect();
        let world = Self { cluster, _postgres: postgres, gateways, executors, _folder: folder };
        world.loaded()?;
        Ok(world)
    }

    /// Waits until every gateway knows of every executor that it has the variant in memory and loads nothing.
    pub(crate) fn loaded(&self) -> Result<()> {
        for gateway in &self.gateways {
            wait::until(LOADED_WITHIN, || self.loaded_at(*gateway))
                .with_context(|| format!("a node never loaded\n{}", self.cluster.output()))?;
        }
        Ok(())
    }

    fn loaded_at(&self, gateway: SocketAddr) -> Result<Result<(), String>> {
        let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/replicas"))?.json()?;
        let replicas = answer["replicas"].as_array().context("a list of replicas")?;
        let loaded = self.executors.iter().all(|node| {
            let mut here = replicas.iter().filter(|replica| replica["node"] == node.as_str());
            here.clone().all(|replica| replica["state"] != "loading")
                && here.any(|replica| replica["variant"] == VARIANT)
        });
        Ok(if loaded { Ok(()) } else { Err(answer.to_string()) })
    }

    /// The load generator for the pinned variant, at both gateways, with every answer learnt.
    pub(crate) fn load(&self, context: &Context, latency: Duration) -> Result<Side> {
        let target =
            format!("/v1/tasks/{}?variant={VARIANT}&latency_ms={}", demo::TENSOR_TASK, latency.as_millis());
        let stream = json!([{
            "target": target, "inputs": [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}],
        }]);
        let addresses = self.gateways.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let program = context.bench_program("http-load")?;
        let mut load = Side::start(&program, &[&addresses, &stream.to_string(), &context.seed.to_string()])?;
        load.ask(&json!({"do": "learn"}))?;
        Ok(load)
    }
}

/// Whole milliseconds, for JSON.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> Result<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_millis())?)
}

/// A query of a paced load: when it came, in milliseconds since the load began; how long until it ended.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ended {
    pub(crate) came_ms: u64,
    pub(crate) took_us: u64,
    /// The node that answered, or how it failed.
    pub(crate) how: Result<String, String>,
}

impl Ended {
    /// Whether it has an answer, or a "no" with a name, by its deadline and a second.
    pub(crate) fn told(&self, latency: Duration) -> bool {
        let in_time = Duration::from_micros(self.took_us) <= latency + PAST;
        let named = self
            .how
            .as_ref()
            .err()
            .is_none_or(|why| !why.starts_with("no answer") && !why.contains("without a reason"));
        in_time && named
    }
}

/// Every query of the first stream of a paced load.
pub(crate) fn all_ended(load: &Value) -> Result<Vec<Ended>> {
    ended_of(&load["streams"][0])
}

/// Every query of a stream of a paced load, in the order in which they came.
pub(crate) fn ended_of(stream: &Value) -> Result<Vec<Ended>> {
    let list = |name: &str| stream[name].as_array().with_context(|| format!("no {name} were told"));
    let nodes = list("nodes")?;
    let number = |value: &Value| value.as_u64().context("a number");
    let mut all = Vec::new();
    for row in list("answers")? {
        let node = &nodes[usize::try_from(number(&row[2])?)?];
        let how = Ok(node.as_str().unwrap_or_default().to_owned());
        all.push(Ended { came_ms: number(&row[0])?, took_us: number(&row[1])?, how });
    }
    for row in list("failures")? {
        let how = Err(row[2].as_str().unwrap_or_default().to_owned());
        all.push(Ended { came_ms: number(&row[0])?, took_us: number(&row[1])?, how });
    }
    all.sort_by_key(|ended| ended.came_ms);
    Ok(all)
}

/// What a paced load lost and got wrong, without every single answer.
pub(crate) fn bare(load: Value) -> Value {
    demo::bare(load)
}

pub(crate) fn count(of: impl TryInto<u32>) -> Result<f64> {
    let of = of.try_into().map_err(|_| anyhow::anyhow!("more than are ever sent"))?;
    Ok(f64::from(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_refusal_in_time_is_told_and_silence_is_not() {
        let of = |took_ms: u64, how: Result<&str, &str>| Ended {
            came_ms: 0,
            took_us: took_ms * 1_000,
            how: how.map(ToOwned::to_owned).map_err(ToOwned::to_owned),
        };
        let told = |ended: Ended| ended.told(Duration::from_secs(1));
        assert!(told(of(1_900, Ok("one"))) && told(of(1_900, Err("503 node_lost"))));
        assert!(!told(of(2_100, Ok("one"))) && !told(of(2_100, Err("503 node_lost"))));
        assert!(!told(of(10, Err("no answer: closed"))) && !told(of(10, Err("500 without a reason"))));
    }

    #[test]
    fn answers_and_failures_are_read_together_by_when_they_came() {
        let load = json!({"streams": [{
            "nodes": ["one", "two"], "answers": [[5, 700, 1], [9, 800, 0]], "failures": [[7, 900, "503 too_late"]],
        }]});
        let all = all_ended(&load).unwrap();
        let came: Vec<u64> = all.iter().map(|ended| ended.came_ms).collect();
        assert_eq!(came, [5, 7, 9]);
        assert_eq!(all[0].how, Ok("two".to_owned()));
        assert_eq!(all[1].how, Err("503 too_late".to_owned()));
        assert!(all_ended(&json!({"streams": [{}]})).is_err());
    }
}
