//! Answers that are given again, with the real thing: a task that is told so, by the command that people use, and two gateways that
//! share what they keep in a Redis, which falls silent.

use crate::cluster::loaded;
use crate::database::Database;
use crate::demo::{Demo, Place, ask, fashion, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, wait};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_task_that_may_give_answers_again_does_so_from_the_next_query_on() -> Result<()> {
    let demo = Demo::start(&[])?;
    let ask = || -> Result<(String, String)> {
        let request = Request::post("/v1/tasks/fashion").header("content-type", "image/png");
        let answer = demo.server.send(&request.body(picture("boot.png")))?;
        ensure!(answer.status == 200, "{answer}");
        let told = answer.header("modelless-cache").unwrap_or("nothing").to_owned();
        Ok((told, String::from_utf8_lossy(&answer.body).into_owned()))
    };
    ensure!(fashion().exists() && ask()?.0 == "nothing");
    let url = demo.server.url();
    let set = demo.server.command(&["task", "set", "fashion", "--cache", "10m", "--server", &url])?;
    let said = String::from_utf8_lossy(&set.stdout);
    ensure!(set.status.success() && said.contains("given again for 10m"), "{said}");
    let (first, again) = (ask()?, ask()?);
    ensure!((first.0.as_str(), again.0.as_str()) == ("miss", "hit"), "{first:?} {again:?}");
    ensure!(first.1 == again.1, "{first:?} {again:?}");
    let shown = demo.server.command(&["task", "show", "fashion", "--server", &url])?;
    let shown = String::from_utf8(shown.stdout).context("text")?;
    ensure!(shown.contains("given again for 10m"), "{shown}");
    demo.server.stop()
}

/// Asks about a picture; whether that was given before.
fn told(gateway: SocketAddr, picture: &str) -> Result<String> {
    let answer = Connection::open(gateway)?.exchange(&ask(picture, "?latency_ms=20000"))?;
    ensure!(answer.status == 200, "{answer}");
    Ok(answer.header("modelless-cache").unwrap_or("nothing").to_owned())
}

/// Until a gateway's metrics have this line.
fn counted(gateway: SocketAddr, line: &str) -> Result<()> {
    wait::until(PATIENCE, || {
        let metrics = Connection::open(gateway)?.exchange(&Request::get("/metrics"))?;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let there = text.lines().any(|shown| shown == line);
        let shared: Vec<&str> = text.lines().filter(|line| line.contains("cache_shared")).collect();
        Ok(if there { Ok(()) } else { Err(format!("no {line} in\n{}", shared.join("\n"))) })
    })
}

#[test]
fn gateways_find_each_others_answers_in_redis_and_answer_on_when_it_is_silent() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    let (left, right) = (cluster.gateway("left", &[])?, cluster.gateway("right", &[])?);
    for gateway in [left, right] {
        loaded(gateway, &["one"]).with_context(|| cluster.output())?;
    }
    let change = Request::new("PATCH", "/v1/tasks/fashion").json(&json!({"cache": "10m"}));
    let changed = Connection::open(left)?.exchange(&change)?;
    ensure!(changed.status == 200, "{changed}");
    for gateway in [left, right] {
        wait::until(PATIENCE, || {
            let task = Connection::open(gateway)?.exchange(&Request::get("/v1/tasks/fashion"))?.json()?;
            Ok(if task["cache"] == "10m" { Ok(()) } else { Err(task.to_string()) })
        })?;
    }
    ensure!(told(left, "boot.png")? == "miss");
    counted(left, r#"modelless_cache_shared_writes_total{outcome="written"} 1"#)?;
    ensure!(told(right, "boot.png")? == "hit", "{}", cluster.output());
    counted(right, r#"modelless_cache_shared_looks_total{outcome="found"} 1"#)?;

    cluster.redis.freeze()?;
    ensure!(told(right, "shirt.png")? == "miss");
    counted(right, r#"modelless_cache_shared_looks_total{outcome="failed"} 1"#)?;
    ensure!(told(right, "shirt.png")? == "hit", "what it has itself it gives");
    cluster.redis.thaw()
}
