//! A new version answers a share of the queries: taken back by itself where it fails or is slow, promoted where it does as well, and never
//! asked below a query's floor.

use crate::database::{Database, on_both_databases};
use crate::demo::Demo;
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Connection, Request, Response, Server, onnx, wait};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

on_both_databases! {
    a_version_that_fails_or_is_slow_is_taken_back_by_itself_and_a_good_one_is_promoted,
}

const PATIENCE: Duration = Duration::from_mins(2);
/// Numbers of one item.
pub(crate) const WIDTH: usize = 256;
/// What the default version is said to keep, and what others do: a floor between the two is kept by the default alone.
pub(crate) const HIGH: f64 = 0.8;
const FLOOR: f64 = 0.75;
pub(crate) const LOW: f64 = 0.7;

pub(crate) fn make_task(server: &mut Connection) -> Result<()> {
    let tensor = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [WIDTH]}]);
    let task = json!({"name": "numbers", "kind": "tensor", "metric": "agreement", "inputs": tensor("x"), "outputs": tensor("y")});
    let made = server.exchange(&Request::post("/v1/tasks").json(&task))?;
    ensure!(made.status == 201, "{made}");
    Ok(())
}

pub(crate) fn register(server: &mut Connection, version: u32, file: &[u8], accuracy: f64) -> Result<()> {
    let put = Request::new("PUT", "/v1/artefacts").header("content-type", "application/octet-stream");
    let sent = server.exchange(&put.body(file.to_vec()))?;
    ensure!(sent.status == 201, "{sent}");
    let body = json!({
        "task": "numbers", "name": "n", "version": version, "adapter": {"kind": "tensor"}, "declared_accuracy": accuracy,
        "budget_ms": 3_000, "variants": [{"precision": "fp32", "max_batch": 4, "artefact_sha256": sent.json()?["sha256"]}],
    });
    let made = server.exchange(&Request::post("/v1/models").json(&body))?;
    // In a cluster its nodes measure it afterwards.
    ensure!(matches!(made.status, 201 | 202), "{made}");
    Ok(())
}

/// What came of what everybody asked while something was done: those who give no floor, and one who gives one.
struct Asked {
    drawn: u64,
    failed: u64,
}

/// Numbers below zero, of which there is no root.
pub(crate) fn question(goals: &str) -> Request {
    let x: Vec<f32> = vec![-1.0; WIDTH];
    Request::post(&format!("/v1/tasks/numbers{goals}")).json(&json!({"inputs": {"x": x}}))
}

pub(crate) fn is_drawn(answer: &Response) -> bool {
    answer.header("modelless-trial").is_some()
}

/// Everybody asks without a pause while something is done.
fn under_load(server: &Server, act: impl FnOnce() -> Result<()>) -> Result<Asked> {
    let (address, stop) = (server.address(), AtomicBool::new(false));
    let (drawn, failed, wrong) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None::<String>));
    let ask = |goals: &'static str, floor: Option<f64>| -> Result<()> {
        let mut connection = Connection::open(address)?;
        let request = question(goals);
        while !stop.load(Ordering::Acquire) {
            let answer = connection.exchange(&request)?;
            let accuracy = answer.header("modelless-accuracy").and_then(|value| value.parse::<f64>().ok());
            drawn.fetch_add(u64::from(is_drawn(&answer)), Ordering::Relaxed);
            failed.fetch_add(u64::from(answer.status != 200), Ordering::Relaxed);
            let kept = floor.is_none_or(|floor| {
                answer.status == 200 && accuracy.is_some_and(|accuracy| accuracy >= floor)
            });
            ensure!(kept, "below its floor of {floor:?}: {answer}");
            ensure!(answer.status == 200 || answer.status == 422, "{answer}");
        }
        Ok(())
    };
    let floor: &'static str = format!("?accuracy={FLOOR}").leak();
    let acted = thread::scope(|scope| {
        let askers = [("", None), ("", None), (floor, Some(FLOOR))];
        for (goals, floor) in askers {
            let (ask, wrong) = (&ask, &wrong);
            scope.spawn(move || {
                if let Err(error) = ask(goals, floor) {
                    *wrong.lock().expect("nobody panics with it") = Some(format!("{error:#}"));
                }
            });
        }
        let acted = act();
        stop.store(true, Ordering::Release);
        acted
    });
    if let Some(wrong) = wrong.into_inner().expect("nobody panics with it") {
        anyhow::bail!("{wrong}\n{}", server.output());
    }
    acted.with_context(|| server.output())?;
    Ok(Asked { drawn: drawn.into_inner(), failed: failed.into_inner() })
}

fn told(server: &Server, args: &[&str]) -> Result<Value> {
    let url = server.url();
    let output = server.command(&[args, &["--json", "--server", &url]].concat())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{args:?}: {said}\n{}", server.output());
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Until the trial of the task has ended: how.
fn ended(server: &Server) -> Result<Value> {
    wait::until(PATIENCE, || {
        let trial = told(server, &["model", "trial", "n"])?["trial"].clone();
        Ok(if trial["state"] == "running" { Err(trial.to_string()) } else { Ok(trial) })
    })
}

fn default_of(server: &Server) -> Result<Vec<u64>> {
    let shown = told(server, &["model", "show", "n"])?;
    let versions = shown["versions"].as_array().context("versions")?.iter();
    Ok(versions
        .filter(|model| model["default"] == true)
        .filter_map(|model| model["version"].as_u64())
        .collect())
}

fn try_it<'a>(version: &'a str, share: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["model", "try", "n", "--version", version, "--share", share], more].concat()
}

fn a_version_that_fails_or_is_slow_is_taken_back_by_itself_and_a_good_one_is_promoted(
    database: Database,
) -> Result<()> {
    let demo = Demo::start_on(database, &["--trial-beat-ms", "50"])?;
    let server = &demo.server;
    let door = &mut Connection::open(server.address())?;
    make_task(door)?;
    let (width, nodes) = (u64::try_from(WIDTH)?, 15_000);
    register(door, 1, &onnx::identity(width), HIGH)?;
    // Of numbers below zero it gives what is no number, and JSON has none for that.
    register(door, 2, &onnx::unary("Sqrt", width, 13), LOW)?;
    register(door, 3, &onnx::chain("Sin", width, 13, nodes), LOW)?;
    register(door, 4, &onnx::unary("Abs", width, 13), HIGH)?;

    // Failing.
    let failing = under_load(server, || {
        told(server, &try_it("2", "50%", &["--for", "1h"]))?;
        let trial = ended(server)?;
        ensure!(trial["state"] == "rolled_back" && trial["verdict"]["what"] == "failures", "{trial}");
        ensure!(trial["candidate"]["answered"] == 0 && trial["other"]["failed"] == 0, "{trial}");
        ensure!(trial["ended_by"].as_str().is_some_and(|who| who.starts_with("scheduler")), "{trial}");
        Ok(())
    })?;
    ensure!(failing.failed > 0, "it was asked");
    let events = server.get_json("/v1/events?limit=100")?;
    let of_trials =
        events["events"].as_array().context("events")?.iter().filter(|event| event["kind"] == "trial");
    let whats: Vec<&str> = of_trials.filter_map(|event| event["what"].as_str()).collect();
    ensure!(whats == ["trial-1 began", "trial-1 rolled back"], "{events}");

    // Slow.
    let slow = under_load(server, || {
        told(server, &try_it("3", "20%", &["--for", "1h"]))?;
        let trial = ended(server)?;
        ensure!(trial["state"] == "rolled_back" && trial["verdict"]["what"] == "latency", "{trial}");
        ensure!(trial["candidate"]["failed"] == 0, "{trial}");
        Ok(())
    })?;
    ensure!(slow.drawn > 0, "it was asked");
    ensure!(default_of(server)? == [1], "none that did worse ever was the default");

    // One that would lose floors is not tried with a view to promoting it.
    let url = server.url();
    let refused =
        server.command(&[&try_it("3", "50%", &["--promote-when-good"])[..], &["--server", &url]].concat())?;
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && why.contains("floors up to 0.7"), "{why}");

    // Good.
    under_load(server, || {
        told(server, &try_it("4", "50%", &["--for", "1s", "--promote-when-good"]))?;
        let trial = ended(server)?;
        ensure!(trial["state"] == "promoted" && trial["verdict"]["verdict"] == "not_worse", "{trial}");
        Ok(())
    })?;
    // The gateway sees within a second what the scheduler did.
    wait::until(PATIENCE, || {
        let now = default_of(server)?;
        Ok(if now == [4] { Ok(()) } else { Err(format!("{now:?}")) })
    })?;

    // Stopped by hand, nothing changes.
    told(server, &try_it("1", "50%", &["--for", "1h"]))?;
    let stopped = told(server, &["model", "try", "n", "--stop"])?;
    ensure!(stopped["trial"]["state"] == "stopped", "{stopped}");
    let all = told(server, &["model", "trials", "--task", "numbers"])?;
    let states: Vec<&str> =
        all["trials"].as_array().context("trials")?.iter().filter_map(|one| one["state"].as_str()).collect();
    ensure!(states == ["stopped", "promoted", "rolled_back", "rolled_back"], "{all}");
    ensure!(default_of(server)? == [4]);
    demo.server.stop()
}
