//! Tasks that nobody asks for leave memory, for real, and come back for the first query; with `up`, and in a cluster whose scheduler is killed.

use crate::cluster::loaded;
use crate::database::Database;
use crate::demo::{Answer, Demo, Place, ask, picture, reason};
use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, Response, process, wait};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);

fn get(server: SocketAddr, path: &str) -> Result<Value> {
    Connection::open(server)?.exchange(&Request::get(path))?.json()
}

/// Until the demo's task sleeps, and nothing of it is in memory.
fn sleeps(server: SocketAddr) -> Result<Value> {
    wait::until(PATIENCE, || {
        let task = get(server, "/v1/tasks/fashion")?;
        let replicas = get(server, "/v1/replicas")?;
        let there = |replica: &&Value| replica["task"] == "fashion" && replica["state"] != "inactive";
        let resident = replicas["replicas"].as_array().into_iter().flatten().filter(there).count();
        let asleep = task["asleep"] == true && resident == 0 && task["wake_ms"].is_number();
        Ok(if asleep { Ok(task) } else { Err(format!("asleep: {}; {replicas}", task["asleep"])) })
    })
    .context("the task never fell asleep")
}

/// What the runners hold together.
fn held(demo: &Demo) -> Result<u64> {
    let runners = demo.server.runners()?;
    // One may end between the two looks.
    Ok(runners.iter().filter_map(|runner| process::resident_bytes(runner.pid()).ok()).sum())
}

fn events(server: SocketAddr) -> Result<Vec<(String, String)>> {
    let all = get(server, "/v1/events?limit=1000")?;
    let of_task = |event: &&Value| event["kind"] == "task" && event["task"] == "fashion";
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let told = |event: &Value| (text(event, "what"), text(event, "cause"));
    Ok(all["events"].as_array().into_iter().flatten().filter(of_task).map(told).collect())
}

/// What a sleeping task says to a bound that leaves time for a run and not for the load. Loads take little longer than runs on a quick machine, and
/// the way to a node is measured anew all the time: whoever is told that nothing is as quick now asks for what is, and for a share of the load more.
fn too_tight_for_a_load(demo: &Demo, task: &Value) -> Result<Response> {
    let estimates = task["variants"].as_array().into_iter().flatten();
    let estimates = estimates.filter_map(|variant| variant["estimate"]["latency_p99_ms"].as_f64());
    let mut run_ms = estimates.fold(f64::INFINITY, f64::min);
    let wake_ms = task["wake_ms"].as_f64().context("known")?;
    for _ in 0..20 {
        ensure!(run_ms < wake_ms, "a run takes {run_ms} ms and a load {wake_ms}: {task}");
        let bound = run_ms + 0.2 * (wake_ms - run_ms);
        let refused = demo.ask("boot.png", &format!("?latency_ms={bound:.3}"))?;
        if (refused.status, reason(&refused)?.as_str()) != (422, "latency_unreachable") {
            return Ok(refused);
        }
        let told: Value = refused.json()?;
        run_ms = told["nearest"]["latency_ms"].as_f64().with_context(|| format!("no bound in {told}"))?;
        ensure!(run_ms > bound, "{bound} ms was asked for, and refused: {refused}");
    }
    anyhow::bail!("nothing was ever as quick as what was told to be")
}

/// Asks the same with the nearest bound that a refusal told, once it was told it. A machine that does other things may be late for that bound; it
/// may not say again that the bound is too tight.
fn asked_within_what_was_told(demo: &Demo, refused: &Response) -> Result<Answer> {
    let told: Value = refused.json()?;
    let nearest = told["nearest"]["latency_ms"].as_f64().with_context(|| format!("no bound in {told}"))?;
    for _ in 0..20 {
        let answer = demo.ask("boot.png", &format!("?latency_ms={nearest}"))?;
        match answer.status {
            200 => return Answer::of(&answer),
            504 => {}
            _ => anyhow::bail!("{nearest} ms was told, and then: {answer}"),
        }
    }
    anyhow::bail!("never answered within {nearest} ms")
}

#[test]
fn a_task_that_nobody_asks_for_gives_its_memory_back_and_wakes_by_every_door() -> Result<()> {
    let demo = Demo::start(&[])?;
    let (server, url) = (demo.server.address(), demo.server.url());
    let run = |args: &[&str]| -> Result<String> {
        let args = [args, &["--server", &url]].concat();
        let output = demo.server.command(&args)?;
        let said = String::from_utf8(output.stdout).context("text")?;
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(said)
    };
    let awake = |task: &Value| task["asleep"] == false && task["keep"] == "always";
    ensure!(awake(&get(server, "/v1/tasks/fashion")?));
    demo.answer("boot.png", "")?;
    let before = held(&demo)?;
    run(&["task", "set", "fashion-tensor", "--keep", "5s"])?; // the demo's other task
    let said = run(&["task", "set", "fashion", "--keep", "5s"])?;
    ensure!(said.contains("kept in memory for 5s after its last query"), "{said}");

    let task = sleeps(server)?;
    // A spare process is there, which holds nothing.
    wait::until(PATIENCE, || {
        let after = held(&demo)?;
        Ok(if after * 2 < before { Ok(()) } else { Err(format!("{after} of {before} bytes are still held")) })
    })?;
    let told = events(server)?;
    ensure!(told.len() == 1 && told[0].0 == "asleep" && told[0].1.contains("kept for 5 s"), "{told:?}");
    let shown = run(&["task", "show", "fashion"])?;
    ensure!(
        shown.contains("asleep now, until the next query; what is loaded quickest answers in about"),
        "{shown}"
    );
    ensure!(run(&["task", "list"])?.contains("5s, asleep"));
    ensure!(run(&["events"])?.contains("asleep"));
    let plan = get(server, "/v1/plans/current")?.to_string();
    ensure!(plan.contains("not pinned, as nobody asked for its task for"), "{plan}");
    // It would be loaded first. Which one goes by what is preferred, and none is there sooner than is told of the task.
    let explained = get(server, "/v1/tasks/fashion/explain?latency_ms=20000")?;
    ensure!(explained["decision"]["action"] == "load", "{explained}");
    let latencies = explained["candidates"].as_array().into_iter().flatten();
    let latencies = latencies.filter_map(|candidate| candidate["latency_ms"].as_f64());
    let quickest = latencies.fold(f64::INFINITY, f64::min);
    ensure!(task["wake_ms"].as_f64().is_some_and(|wake| wake <= quickest + 1e-6), "{explained} {task}");

    let tight = too_tight_for_a_load(&demo, &task)?;
    ensure!((tight.status, reason(&tight)?.as_str()) == (503, "loading"), "{tight}");
    ensure!(tight.header("retry-after").is_some(), "{tight}");
    ensure!(asked_within_what_was_told(&demo, &tight)?.label == demo.answer("boot.png", "")?.label);

    sleeps(server)?;
    let answer = demo.answer("boot.png", "?latency_ms=20000")?;
    ensure!(answer.accuracy > 0.8, "{answer:?}");
    sleeps(server)?;
    // The Open Inference Protocol, with nothing but the tensor.
    let raw = Request::post("/v2/models/fashion/infer?latency_ms=20000")
        .header("inference-header-content-length", "0");
    let answer = demo.server.send(&raw.body(picture("boot.png")))?;
    ensure!(answer.status == 200, "{answer}");
    sleeps(server)?;
    let folder = modelless_testkit::temp_dir("sleeping")?;
    let (inputs, output) = (folder.path().join("inputs.jsonl"), folder.path().join("answers"));
    fs::write(&inputs, json!({"inputs": STANDARD.encode(picture("boot.png"))}).to_string())?;
    let (inputs, output) = (inputs.to_string_lossy(), output.to_string_lossy());
    run(&["job", "submit", "fashion", "--input", &inputs, "--output", &output])?;
    let job = get(server, "/v1/jobs/1")?;
    ensure!(job["state"] == "done" && job["done"] == 1, "{job}");

    // A server that starts again wakes nothing either: its gateway knows of no query yet.
    sleeps(server)?;
    let Demo { server, place } = demo;
    server.stop()?;
    let demo = Demo::start_at(place, &[])?;
    sleeps(demo.server.address())?;
    ensure!(demo.answer("boot.png", "?latency_ms=20000")?.accuracy > 0.8);
    demo.server.stop()
}

#[test]
fn a_scheduler_that_starts_anew_lets_sleep_what_sleeps_and_wakes_it_once() -> Result<()> {
    let place = Place::new(Database::Postgres)?;
    let database = place.database_url()?.context("it is on Postgres")?;
    let mut cluster = Cluster::new(&database, &place.folder.path().join("artefacts"))?;
    cluster.executor("one", &["executor.lanes=1"])?;
    cluster.scheduler("planner", &[])?;
    let gateway = cluster.gateway("door", &[])?;
    loaded(gateway, &["one"]).with_context(|| cluster.output())?;
    let change = Request::new("PATCH", "/v1/tasks/fashion").json(&json!({"keep": "5s"}));
    let changed = Connection::open(gateway)?.exchange(&change)?;
    ensure!(changed.status == 200 && changed.json()?["keep"] == "5s", "{changed}");
    sleeps(gateway).with_context(|| cluster.output())?;
    let plan = || -> Result<u64> { get(gateway, "/v1/plans/current")?["id"].as_u64().context("a number") };
    let before = plan()?;

    cluster.kill("planner")?;
    cluster.start_again("planner")?;
    wait::until(PATIENCE, || {
        let members = get(gateway, "/v1/members")?;
        let there = |member: &Value| member["role"] == "scheduler";
        let there = members["members"].as_array().into_iter().flatten().any(there);
        Ok(if there { Ok(()) } else { Err(members.to_string()) })
    })?;
    let answer = Connection::open(gateway)?.exchange(&ask("boot.png", "?latency_ms=20000"))?;
    Answer::of(&answer).with_context(|| cluster.output())?;
    wait::until(PATIENCE, || {
        let told = events(gateway)?;
        let whats: Vec<&str> = told.iter().map(|(what, _)| what.as_str()).collect();
        Ok(if whats.starts_with(&["asleep", "awake"]) { Ok(()) } else { Err(format!("{told:?}")) })
    })
    .with_context(|| cluster.output())?;
    ensure!(plan()? == before + 1, "the query's, and none by a scheduler that has just begun");
    Ok(())
}
