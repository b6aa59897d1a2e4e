//! A cluster whose machines EC2 has, as moto answers for it: real processes, real rooms, and a way to EC2 that can be cut.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{
    Connection, Hypervisor, Moto, Postgres, Proxy, Request, TempDir, moto, postgres, wait,
};
use serde_json::{Value, json};

use super::watch::{Look, Watch};
use crate::command::target_dir;
use crate::measure::Context;
use crate::measure::cluster::VARIANT;
use crate::test::moto_python;

/// Who keeps machines.
const SCHEDULER: &str = "planner";
/// A node that is no machine: what is asked can be answered whatever becomes of them.
pub(super) const HOME: &str = "home";
/// What a boot takes here. EC2's takes a minute or more.
pub(super) const BOOT: Duration = Duration::from_secs(1);
/// One that has not joined by then is taken away.
const JOINS_WITHIN_S: u32 = 20;
/// One that ends so soon after it joined counts as a failure.
pub(super) const YOUNG: Duration = Duration::from_secs(5);
const LOADED_WITHIN: Duration = Duration::from_mins(3);
const FORGET: &str = "DELETE FROM machines; DELETE FROM machine_changes; DELETE FROM pools";

pub(super) struct World {
    // In this order they end: nobody looks at what is gone, and machines end before those they talk to.
    pub(super) watch: Watch,
    pub(super) cluster: Cluster,
    pub(super) hosts: Hypervisor,
    pub(super) way: Proxy,
    pub(super) ec2: Arc<Moto>,
    postgres: Postgres,
    pub(super) gateway: SocketAddr,
    pub(super) wanted: usize,
    folder: TempDir,
}

impl World {
    /// A home, a gateway, and a scheduler that keeps so many machines and may have no more.
    pub(super) fn start(context: &Context, wanted: usize) -> Result<Self> {
        let (folder, postgres) = (modelless_testkit::temp_dir("ec2")?, Postgres::start()?);
        let ec2 = Arc::new(Moto::of(&moto_python(&context.root, &target_dir(&context.root)?)?)?);
        fs::write(folder.path().join("keys"), ec2.credentials())?;
        let key = folder.path().join("cluster.key");
        fs::write(&key, "0123456789abcdef0123456789abcdef")?;
        let way = Proxy::start()?;
        way.lead(ec2.address());
        let binary = context.binary()?;
        let hosts = Hypervisor::start(Arc::clone(&ec2), binary, BOOT)?;
        let mut cluster = Cluster::of(binary, postgres.url(), &folder.path().join("artefacts"))?;
        // Members reach both as machines do, which are told what the scheduler is.
        let (database, redis) = (hosts.reach(postgres.url())?, hosts.reach(&cluster.redis.url())?);
        let settings = [
            format!("cluster=ec2-{}", std::process::id()),
            format!("key_file={}", key.display()),
            format!("database={database}"),
            format!("redis={redis}"),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        cluster.executor(HOME, &[&settings[..], &["demo=true", "executor.lanes=1"]].concat())?;
        let pools = format!("pools={}", folder.path().join("pools.toml").display());
        let gateway = cluster.gateway("left", &settings)?;
        let watch = Watch::start(Arc::clone(&ec2), gateway, wanted);
        let mut world = Self { watch, cluster, hosts, way, ec2, postgres, gateway, wanted, folder };
        world.want(wanted)?;
        world.cluster.scheduler(SCHEDULER, &[&settings[..], &[&pools]].concat())?;
        world.until("all machines are there", LOADED_WITHIN, |look| look.are(wanted))?;
        world.loaded()?;
        Ok(world)
    }

    /// So many, no more and no fewer, from when the scheduler is started again.
    pub(super) fn want(&self, machines: usize) -> Result<()> {
        let mut of_ec2 = moto::pool(&self.ec2, self.way.address(), &self.folder.path().join("keys"));
        let more = json!({"spot": "first", "join": self.hosts.join(), "list-every-s": 1.0});
        let all = of_ec2.as_object_mut().context("it is a table")?;
        all.extend(more.as_object().context("it is a table")?.clone());
        let pool = json!({
            "least": machines, "most": machines, "price": 0.096, "set": ["executor.lanes=1"], "ec2": of_ec2,
            "joins-within-s": f64::from(JOINS_WITHIN_S), "young-s": YOUNG.as_secs_f64(), "drains-within-s": 10.0,
            "lost-after-s": 5.0,
        });
        let file = json!({"interval-ms": 100, "remembered-s": 10, "pools": {"cloud": pool}});
        Ok(fs::write(self.folder.path().join("pools.toml"), moto::to_toml(&file))?)
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.cluster.kill(SCHEDULER)
    }

    pub(super) fn start_again(&mut self) -> Result<()> {
        self.cluster.start_again(SCHEDULER)
    }

    /// What was written down of machines is lost, as when a database is put back to what it was.
    pub(super) fn forget(&self) -> Result<()> {
        let psql = Command::new(postgres::program("psql"))
            .args([self.postgres.url(), "--quiet", "--command", FORGET])
            .output();
        let output = psql.context("running psql")?;
        ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    pub(super) fn look(&self) -> Result<Look> {
        Look::now(&self.ec2, self.gateway)
    }

    pub(super) fn until(&self, what: &str, within: Duration, so: impl Fn(&Look) -> bool) -> Result<Look> {
        wait::until(within, || {
            let look = self.look()?;
            Ok(if so(&look) { Ok(look) } else { Err(format!("{look:?}")) })
        })
        .with_context(|| format!("until {what}\n{}\n{}", self.cluster.output(), self.hosts.output()))
    }

    pub(super) fn ask(&self, path: &str) -> Result<Value> {
        Connection::open(self.gateway)?.exchange(&Request::get(path))?.json()
    }

    /// Waits until what is asked is in memory at home.
    fn loaded(&self) -> Result<()> {
        wait::until(LOADED_WITHIN, || {
            let answer = self.ask("/v1/replicas")?;
            let replicas = answer["replicas"].as_array().context("a list of replicas")?;
            let there =
                |of: &Value| of["node"] == HOME && of["variant"] == VARIANT && of["state"] == "active";
            Ok(if replicas.iter().any(there) { Ok(()) } else { Err(answer.to_string()) })
        })
        .with_context(|| format!("it never loaded\n{}", self.cluster.output()))
    }
}
