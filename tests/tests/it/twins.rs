//! Two processes that claim one node's name: real ones, with a real database between them.

use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, wait};
use std::net::SocketAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);

/// Whether a query is answered now.
fn answered(gateway: SocketAddr) -> Result<Result<(), String>> {
    let request = Request::post("/v1/tasks/fashion?latency_ms=3000")
        .header("content-type", "image/png")
        .body(picture("boot.png"));
    let answer = Connection::open(gateway)?.exchange(&request)?;
    Ok(if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) })
}

#[test]
fn of_two_processes_with_one_nodes_name_the_one_that_lives_stays() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    let gateway = cluster.gateway("left", &[])?;
    wait::until(PATIENCE, || answered(gateway))?;

    // The newcomer is refused by name, and the node serves on over the connection that it has.
    ensure!(cluster.executor("twin", &["executor.name=one"]).is_err(), "it must not get ready");
    cluster.wait_for("twin", "the node `one` is another process", PATIENCE)?;
    let told = cluster.log("twin")?;
    ensure!(told.contains("executor.name=NAME"), "what to do: {told}");
    ensure!(cluster.end("twin")?.code() == Some(1), "an error's exit code");
    ensure!(answered(gateway)?.is_ok(), "the node serves on");
    ensure!(
        !cluster.log("left")?.contains("is not reached"),
        "its connection stood:\n{}",
        cluster.log("left")?
    );

    // One that is stopped for long is followed; when it goes on it hears so, and ends.
    cluster.freeze("one")?;
    cluster.executor("twin", &["executor.name=one", "executor.lanes=1"])?;
    wait::until(PATIENCE, || answered(gateway))?;
    cluster.thaw("one")?;
    let told = "this process is no longer its node";
    cluster.wait_for("one", told, PATIENCE)?;
    ensure!(cluster.end("one")?.code() == Some(1), "an error's exit code");
    ensure!(answered(gateway)?.is_ok(), "its successor is not disturbed");

    // One that was killed on this machine is followed at once.
    cluster.kill("twin")?;
    cluster.executor("one", &["executor.lanes=1"])?;
    ensure!(!cluster.log("one")?.contains("looking whether it is still there"), "{}", cluster.log("one")?);
    wait::until(PATIENCE, || answered(gateway))?;
    Ok(())
}
