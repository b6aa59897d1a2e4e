//! A cluster whose nodes are processes of a pool, started and ended by its scheduler: real machines, as far as one computer has them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Postgres, Request, TempDir, process, wait};
use serde_json::Value;

use crate::command::{output, program};
use crate::measure::Context;

const SETTLES_WITHIN: Duration = Duration::from_mins(2);

pub(crate) struct Pool {
    // In this order they end; what the pool started ends before them all.
    pub(crate) cluster: Cluster,
    _postgres: Postgres,
    pub(crate) gateway: SocketAddr,
    name: String,
    schedulers: u32,
    folder: TempDir,
}

impl Drop for Pool {
    fn drop(&mut self) {
        for pid in process::machines(&self.name) {
            process::kill(pid);
        }
    }
}

impl Pool {
    /// A gateway, and a scheduler with as many machines as these lines of `pools.toml` say.
    pub(crate) fn start(context: &Context, pool: &str) -> Result<Self> {
        let (folder, postgres) = (modelless_testkit::temp_dir("pool")?, Postgres::start()?);
        let cluster = Cluster::of(context.binary()?, postgres.url(), &folder.path().join("artefacts"))?;
        let name = format!("pool-{}", std::process::id());
        let nobody = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut made = Self { cluster, _postgres: postgres, gateway: nobody, name, schedulers: 0, folder };
        made.scheduler(pool)?;
        made.gateway = made.cluster.gateway("left", &[&format!("cluster={}", made.name)])?;
        Ok(made)
    }

    /// Another scheduler in the place of the one there is, with other lines of `pools.toml`: settings of all pools, then those of the
    /// one, which is called `p`.
    pub(crate) fn scheduler(&mut self, pool: &str) -> Result<()> {
        if self.schedulers > 0 {
            self.cluster.kill(&format!("planner-{}", self.schedulers))?;
        }
        self.schedulers += 1;
        let (folder, name) = (self.folder.path(), format!("planner-{}", self.schedulers));
        let (all, own) = pool.split_once("---\n").unwrap_or(("", pool));
        let text = format!(
            "{all}[pools.p]\n{own}set = [\"executor.lanes=1\", \"artefacts={}\"]\n[pools.p.process]\nlogs = \"{}\"\n",
            folder.join("artefacts").display(),
            folder.join("logs").display()
        );
        let path = folder.join(format!("{name}.toml"));
        fs::write(&path, text)?;
        let (pools, cluster) = (format!("pools={}", path.display()), format!("cluster={}", self.name));
        self.cluster.scheduler(&name, &[&pools, &cluster])
    }

    /// Registers a package as a user would.
    pub(crate) fn register(&self, context: &Context, package: &Path) -> Result<()> {
        let mut register = program(&context.root, context.binary()?);
        register.args(["model", "register"]).arg(package);
        // In a hurry where nothing rests on how exact profiles are.
        let budget = context.choose("none", "10s");
        output(register.args(["--budget", budget, "--server", &format!("http://{}", self.gateway)]))?;
        Ok(())
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        Connection::open(self.gateway)?.exchange(&Request::get(path))?.json()
    }

    /// Waits until so many machines are there, all of which have joined, and none is on its way out.
    pub(crate) fn settles(&self, many: usize) -> Result<()> {
        wait::until(SETTLES_WITHIN, || {
            let answer = self.get("/v1/machines?ended=0")?;
            let open = answer["machines"].as_array().context("machines")?;
            let joined = open.iter().filter(|machine| machine["state"] == "joined").count();
            Ok(if joined == many && open.len() == many { Ok(()) } else { Err(answer.to_string()) })
        })
        .with_context(|| self.cluster.output())
    }

    /// Waits until so many nodes have something in memory and nothing is being loaded.
    pub(crate) fn loaded(&self, nodes: usize) -> Result<()> {
        wait::until(SETTLES_WITHIN, || {
            let answer = self.get("/v1/replicas")?;
            let replicas = answer["replicas"].as_array().context("replicas")?;
            let of = |state: &str| {
                let in_it = replicas.iter().filter(|one| one["state"] == state);
                in_it.filter_map(|one| one["node"].as_str()).collect::<std::collections::BTreeSet<_>>()
            };
            let done = of("active").len() >= nodes && of("loading").is_empty();
            Ok(if done { Ok(()) } else { Err(answer.to_string()) })
        })
        .with_context(|| self.cluster.output())
    }
}

/// What became of machines in a time.
pub(crate) struct Rented {
    /// From when each was asked for until it was gone.
    pub(crate) seconds: f64,
    /// How many were asked for, and how many ended.
    pub(crate) started: usize,
    pub(crate) ended: usize,
    pub(crate) most: usize,
}

/// What `/v1/machines` tells of the time between two moments, in milliseconds since 1970.
pub(crate) fn rented(told: &Value, (from, to): (u64, u64)) -> Result<Rented> {
    let machines = told["machines"].as_array().context("machines")?;
    let ms = |value: &Value| value.as_u64().map(|us| us / 1_000).context("a time");
    let mut spans = Vec::new();
    for machine in machines {
        let over = machine["state"] == "gone" || machine["state"] == "failed";
        spans.push((
            ms(&machine["asked_unix_us"])?,
            if over { ms(&machine["since_unix_us"])? } else { u64::MAX },
        ));
    }
    let within = |at: u64| (from..to).contains(&at);
    let there = |at: u64| spans.iter().filter(|(begin, end)| (*begin..*end).contains(&at)).count();
    let seconds = spans.iter().map(|(begin, end)| (*end).min(to).saturating_sub((*begin).max(from)));
    let begins = spans.iter().map(|(begin, _)| (*begin).max(from)).filter(|at| *at < to);
    let rented = Rented {
        seconds: super::count(seconds.sum::<u64>())? / 1e3,
        started: spans.iter().filter(|(begin, _)| within(*begin)).count(),
        ended: spans.iter().filter(|(_, end)| within(*end)).count(),
        most: begins.map(there).max().unwrap_or(0),
    };
    ensure!(rented.most > 0, "no machine was there from {from} to {to}: {told}");
    Ok(rented)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machine_counts_from_when_it_was_asked_for_until_it_was_gone_and_within_the_time_only() {
        let machine = |asked: u64, state: &str, since: u64| json!({"asked_unix_us": asked * 1_000_000, "state": state, "since_unix_us": since * 1_000_000});
        let told = json!({"machines": [
            machine(10, "joined", 12), machine(120, "gone", 150), machine(190, "starting", 190), machine(1, "gone", 50),
        ]});
        let found = rented(&told, (100_000, 200_000)).unwrap();
        assert!((found.seconds - (100.0 + 30.0 + 10.0)).abs() < 1e-9);
        assert_eq!((found.started, found.ended, found.most), (2, 1, 2));
        assert!(rented(&json!({"machines": []}), (0, 1)).is_err());
    }
}
