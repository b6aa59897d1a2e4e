//! What is upgraded or falls over around a cluster that serves: a gateway that is asked to end and comes back, a database that is
//! killed and comes back. No query fails. (Nodes, Redis and schedulers: `cluster.rs`. For longer: `cargo xtask measure cluster-restart`.)

use crate::cluster::{Load, loaded};
use crate::database::Database;
use crate::demo::Place;
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::postgres::program;
use modelless_testkit::{Connection, Postgres, Request};
use serde_json::json;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// Two gateways in front of a node, on a database in which the demo is registered.
fn started(database: &str, place: &Place) -> Result<(Cluster, [SocketAddr; 2])> {
    let mut cluster = Cluster::new(database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    let gateways = [cluster.gateway("left", &[])?, cluster.gateway("right", &[])?];
    for gateway in gateways {
        loaded(gateway, &["one"]).with_context(|| cluster.output())?;
    }
    Ok((cluster, gateways))
}

/// Does something while clients ask, two at home at each gateway.
fn under_load(
    cluster: &mut Cluster,
    gateways: &[SocketAddr],
    act: impl FnOnce(&mut Cluster, &Load) -> Result<()>,
) -> Result<()> {
    let load = Load::default();
    let result = thread::scope(|scope| {
        for home in 0..4 {
            let load = &load;
            scope.spawn(move || load.follow(gateways, home));
        }
        let result = act(cluster, &load);
        load.end();
        result
    });
    result.with_context(|| cluster.output())
}

#[test]
fn a_gateway_that_is_asked_to_end_under_load_fails_no_query_and_comes_back() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let (mut cluster, gateways) = started(&database, &place)?;
    under_load(&mut cluster, &gateways, |cluster, load| {
        for name in ["left", "right"] {
            load.more(100)?;
            let before = load.answered();
            ensure!(cluster.drain(name)?.success(), "{name} did not end well");
            ensure!(load.answered() > before + 20, "hardly anybody asked while {name} ended");
            load.more(100)?;
            load.none_wrong(&format!("while {name} ended"))?;
            cluster.start_again(name)?;
            load.more(50)?;
            load.none_wrong(&format!("with {name} back"))?;
        }
        Ok(())
    })
}

#[test]
fn a_database_that_is_killed_under_load_fails_no_query_and_is_used_again_when_it_is_back() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let shared = place.database_url()?.context("it is on Postgres")?;
    let mut own = Postgres::start()?;
    copy(&shared, own.url())?;
    let (mut cluster, gateways) = started(own.url(), &place)?;
    under_load(&mut cluster, &gateways, |cluster, load| {
        load.more(100)?;
        own.kill()?;
        for gateway in ["left", "right"] {
            cluster.wait_for(gateway, "the store does not answer", PATIENCE)?;
        }
        load.more(300)?;
        load.none_wrong("without a database")?;
        own.start_again()?;
        for gateway in ["left", "right"] {
            cluster.wait_for(gateway, "the store answers again", PATIENCE)?;
        }
        load.more(100)?;
        load.none_wrong("with the database back")
    })?;
    let task = json!({"name": "another", "kind": "tensor", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}]});
    let made = Connection::open(gateways[0])?.exchange(&Request::post("/v1/tasks").json(&task))?;
    ensure!(made.status == 201, "it is read but not written: {made}");
    Ok(())
}

/// Everything that is in one database, into another.
fn copy(from: &str, to: &str) -> Result<()> {
    let mut dump = Command::new(program("pg_dump"))
        .arg(from)
        .stdout(Stdio::piped())
        .spawn()
        .context("running pg_dump")?;
    let out = dump.stdout.take().context("its output is piped; this is a bug")?;
    let quiet = ["--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1"];
    let read =
        Command::new(program("psql")).arg(to).args(quiet).stdin(out).output().context("running psql")?;
    ensure!(dump.wait()?.success(), "pg_dump failed");
    ensure!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    Ok(())
}
