//! Why the platform is as it is: states of replicas, plans, and what happened, as a user asks for them.

use crate::cluster::{Load, loaded};
use crate::database::Database;
use crate::demo::{Demo, Place};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::server::binary;
use modelless_testkit::{Connection, Request, Server, process, wait};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// What a command prints, as JSON.
fn told(server: &Server, args: &[&str]) -> Result<Value> {
    let output = server.command(args)?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).with_context(|| format!("{args:?} prints no JSON"))
}

fn all<'a>(of: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    of[name].as_array().with_context(|| format!("no {name} in {of}"))
}

/// Ends with the test that follows.
struct Following(Child);

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_replica_that_dies_is_told_with_its_cause_to_whoever_follows_and_whoever_asks_later() -> Result<()> {
    let demo = Demo::start(&[])?;
    demo.answer("boot.png", "?variant=cnn_l-fp32")?;
    let args = ["events", "--follow", "--json", "--limit", "500", "--server", &demo.server.url()];
    let mut following = Following(Command::new(binary()?).args(args).stdout(Stdio::piped()).spawn()?);
    let mut lines = BufReader::new(following.0.stdout.take().context("its output is piped")?).lines();
    let mut heard = |what: &str, variant: Option<&str>| -> Result<Value> {
        loop {
            let event: Value = serde_json::from_str(&lines.next().context("it ended")??)?;
            if event["what"] == what && variant.is_none_or(|variant| event["variant"] == variant) {
                return Ok(event);
            }
        }
    };
    let node = heard("up", None)?["node"].as_str().context("a name")?.to_owned();
    let active = heard("active", Some("cnn_l-fp32"))?;
    ensure!(active["node"] == node.as_str() && active["kind"] == "replica", "{active}");
    for (pid, _) in process::children(demo.server.pid())? {
        process::kill(pid);
    }
    let failed = heard("failed", Some("cnn_l-fp32"))?;
    ensure!(failed["cause"].as_str().is_some_and(|cause| cause.contains("was active")), "{failed}");
    // It is pinned by no plan, so it comes back for who asks.
    demo.answer("boot.png", "?variant=cnn_l-fp32&latency_ms=10000")?;
    heard("active", Some("cnn_l-fp32"))?;

    let args = ["replica", "show", &node, "cnn_l-fp32", "--json", "--server", &demo.server.url()];
    // What the machine does is known once it was looked at twice.
    let replica = wait::until(Duration::from_secs(20), || {
        let shown = told(&demo.server, &args)?;
        let replica = all(&shown, "replicas")?[0].clone();
        let because = replica["because"].to_string();
        let whole = because.contains("times its profile") && because.contains("cores busy");
        Ok(if whole && replica["state"] == "active" { Ok(replica) } else { Err(replica.to_string()) })
    })?;
    let steps: Vec<&str> =
        all(&replica, "transitions")?.iter().filter_map(|one| one["to"].as_str()).collect();
    ensure!(steps.contains(&"failed") && steps.last() == Some(&"loading"), "newest first: {steps:?}");
    let listed = demo.server.command(&["replica", "list", "--server", &demo.server.url()])?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.contains("cnn_l-fp32") && listed.contains("active"), "{listed}");
    demo.server.stop()
}

#[test]
fn a_plan_and_what_would_change_are_shown_with_the_figures_that_decide() -> Result<()> {
    let demo = Demo::start(&[])?;
    let url = demo.server.url();
    let plan = |args: &[&str]| {
        let args: Vec<&str> =
            ["plan"].iter().chain(args).chain(&["--json", "--server", &url]).copied().collect();
        told(&demo.server, &args)
    };
    let current = plan(&["show"])?;
    let pinned: Vec<&Value> = all(&current, "steps")?.iter().filter(|step| step["pinned"] == true).collect();
    ensure!(!pinned.is_empty(), "{current}");
    let history = plan(&["history"])?;
    ensure!(all(&history, "plans")?[0]["id"] == current["id"], "{history}");
    let next = plan(&["--dry-run"])?;
    ensure!(all(&next, "changes")?.is_empty() && next["parent"] == current["id"], "{next}");
    let why = |plan: &Value| -> Result<String> {
        let step =
            all(plan, "steps")?.iter().find(|step| step["variant"] == "cnn_l-fp32").context("cnn_l-fp32")?;
        Ok(step["why"].as_str().context("why")?.to_owned())
    };
    let before = why(&next)?;
    ensure!(before.contains(" ms alone") && before.contains("MiB"), "{before}");

    let node = pinned[0]["node"].as_str().context("a node")?;
    let without = plan(&["--dry-run", "--without", node])?;
    let gone = all(&without, "changes")?;
    ensure!(gone.len() == pinned.len() && gone.iter().all(|change| change["change"] == "unpin"), "{without}");

    ensure!(next["machines"].is_null(), "nobody sees to machines here: {next}");
    let folder = tempfile::tempdir()?;
    let pools = folder.path().join("pools.toml");
    std::fs::write(&pools, "[pools.p]\nmost = 900\nprice = 0.1\nlanes = 1\n[pools.p.process]\n")?;
    let pools = pools.to_str().context("a plain path")?;
    let machines = |demand: &str| -> Result<usize> {
        let supposed = plan(&["--dry-run", "--pools", pools, "--demand", demand])?;
        Ok(all(&supposed["machines"], "steps")?.iter().filter(|step| step["step"] == "start").count())
    };
    let (none, some, many) =
        (machines("fashion=0")?, machines("fashion=5000")?, machines("fashion=5000000")?);
    ensure!(none == 0 && some >= 1 && many > some, "{none}, {some} and {many} machines");

    // With another profile the words are others, and so is what would be done.
    let mut profiles = demo.server.get_json("/v1/profiles?variant=cnn_l-fp32")?;
    let entries = profiles["profiles"].as_array_mut().context("profiles")?;
    for entry in entries.iter_mut().filter(|entry| entry["variant"] == "cnn_l-fp32") {
        for point in entry["profile"]["latency"].as_array_mut().context("latency")? {
            for name in ["mean_us", "p99_us"] {
                point[name] = (point[name].as_f64().context("a time")? * 1_000.0).into();
            }
        }
    }
    let body = serde_json::to_vec(&profiles)?;
    let import =
        Request::post("/v1/profiles?replace=true").header("content-type", "application/json").body(body);
    let answer = demo.server.send(&import)?;
    ensure!(answer.status == 200, "{answer}");
    let after = wait::until(Duration::from_secs(20), || {
        let after = why(&plan(&["--dry-run"])?)?;
        Ok(if after == before { Err(after) } else { Ok(after) })
    })?;
    ensure!(after.contains("s alone"), "{after}");
    demo.server.stop()
}

/// The newest plan's number, and how many pins it has.
fn newest(gateway: SocketAddr) -> Result<(u64, u64)> {
    let plan = Connection::open(gateway)?.exchange(&Request::get("/v1/plans/current"))?.json()?;
    Ok((plan["id"].as_u64().context("a plan")?, plan["pins"].as_u64().context("its pins")?))
}

#[test]
fn a_scheduler_that_is_killed_under_load_and_comes_back_moves_nothing_without_need() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    for node in ["one", "two"] {
        cluster.executor(node, &["executor.lanes=1"])?;
    }
    cluster.scheduler("planner", &["scheduler.interval_ms=100"])?;
    let gateway = cluster.gateway("left", &[])?;
    for node in ["name=\"one\"", "name=\"two\""] {
        cluster.wait_for("left", node, Duration::from_secs(30))?;
    }
    loaded(gateway, &["one", "two"])?;
    // Each node is in a plan of its own if they were reached one after the other.
    let planned = wait::until(Duration::from_secs(30), || {
        let (id, pins) = newest(gateway)?;
        let plan = Connection::open(gateway)?.exchange(&Request::get("/v1/plans/next"))?.json()?;
        let rests = plan["changes"].as_array().is_some_and(Vec::is_empty) && plan["parent"] == id;
        Ok(if rests && pins >= 2 { Ok((id, pins)) } else { Err(plan.to_string()) })
    })?;
    let load = Load::default();
    let result = thread::scope(|scope| {
        scope.spawn(|| load.follow(&[gateway], 0));
        let result = killed_and_back(&mut cluster, gateway, &load, planned);
        load.end();
        result
    });
    result.with_context(|| cluster.output())
}

fn killed_and_back(
    cluster: &mut Cluster,
    gateway: SocketAddr,
    load: &Load,
    planned: (u64, u64),
) -> Result<()> {
    load.more(50)?;
    cluster.kill("planner")?;
    load.more(200)?;
    load.none_wrong("without a scheduler")?;
    cluster.start_again("planner")?;
    // It has reached both and has looked many times since.
    for node in ["name=\"one\"", "name=\"two\""] {
        cluster.wait_for("planner", node, Duration::from_secs(30))?;
    }
    load.more(300)?;
    load.none_wrong("with the scheduler back")?;
    let now = newest(gateway)?;
    ensure!(now == planned, "it moved something: plan and pins {planned:?} before, {now:?} after");
    let events = Connection::open(gateway)?.exchange(&Request::get("/v1/events?limit=1000"))?.json()?;
    let events = events["events"].as_array().context("events")?;
    let plans: Vec<&Value> = events.iter().filter(|event| event["kind"] == "plan").collect();
    let last = plans.last().context("plans are told")?;
    ensure!(last["who"] == "scheduler planner" && last["what"] == format!("plan {}", planned.0), "{last}");
    for node in ["one", "two"] {
        let up = |event: &&Value| event["kind"] == "node" && event["node"] == node && event["what"] == "up";
        ensure!(events.iter().any(|event| up(&event)), "{node} never came: {events:?}");
    }
    Ok(())
}
