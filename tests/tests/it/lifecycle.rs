//! Starting, stopping, starting again; and a recorded life replayed.

use crate::database::{Database, on_both_databases};
use crate::demo::{Demo, ask, reason};
use anyhow::{Context, Result, ensure};
use modelless_testkit::http::Answer;
use modelless_testkit::{Connection, Server, server};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

on_both_databases! {
    a_second_start_is_quick_and_keeps_what_was_measured,
    two_on_one_data_folder_is_refused_and_harms_nobody,
    an_interrupt_drains_what_is_open,
    a_killed_server_hinders_no_later_one,
}

fn a_second_start_is_quick_and_keeps_what_was_measured(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    ensure!(demo.server.ready_after() < Duration::from_secs(10), "{:?}", demo.server.timeline());
    let nodes = demo.server.get_json("/v1/nodes")?.to_string();
    // What this machine's kernel lacks is said in both places, or else that it lacks nothing.
    let said = demo.server.output();
    let whole = said.contains(": landlock on, seccomp on, limits on");
    let holes =
        |text: &str| text.contains("models run without") || text.contains("models are confined with a hole");
    ensure!(
        if whole { !holes(&nodes) && !holes(&said) } else { holes(&nodes) && holes(&said) },
        "{nodes}\n{said}"
    );
    let tasks = demo.server.get_json("/v1/tasks")?;
    ensure!(tasks.to_string().contains("fashion"), "{tasks}");
    let shown = demo.server.get_json("/v1/tasks/fashion")?.to_string();
    ensure!(shown.contains("measured") && shown.contains("frontier"), "{shown}");
    demo.server.stop()
}

fn two_on_one_data_folder_is_refused_and_harms_nobody(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    let second = Command::new(server::binary()?)
        .args(["up", "--http", "127.0.0.1:0", "--data"])
        .arg(demo.place.folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    ensure!(!second.status.success() && said.contains(&demo.server.pid().to_string()), "{said}");
    demo.answer("boot.png", "")?;
    demo.server.stop()
}

fn an_interrupt_drains_what_is_open(database: Database) -> Result<()> {
    let mut demo = Demo::start_on(database, &[])?;
    let address = demo.server.address();
    let outcomes = thread::scope(|scope| {
        let (warm, warmed) = mpsc::sync_channel(16);
        let askers: Vec<_> = (0..8)
            .map(|_| {
                let warm = warm.clone();
                scope.spawn(move || {
                    let result = ask_until_closed(address, &warm);
                    // One that failed is waited for no longer; its result says why.
                    let _ = warm.send(());
                    result
                })
            })
            .collect();
        drop(warm);
        warmed.iter().take(8).for_each(drop);
        let status = demo.server.interrupt();
        let outcomes = askers.into_iter().map(|asker| asker.join().expect("an asker does not panic"));
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        ensure!(status?.success(), "it ended with an error");
        Ok(outcomes)
    })
    .with_context(|| demo.server.output())?;
    ensure!(outcomes.iter().all(|answered| *answered >= WARM), "{outcomes:?}");
    Ok(())
}

const WARM: u32 = 10;

/// Asks without a pause until the server closes the connection, which it may do between two answers and never within
/// one. How many were answered with 200; anything else than that and being told of the end is an error.
fn ask_until_closed(address: SocketAddr, warm: &mpsc::SyncSender<()>) -> Result<u32> {
    let request = ask("boot.png", "?model=cnn_l").to_bytes();
    let mut connection = Connection::open(address)?;
    let mut answered = 0;
    loop {
        connection.send_raw(&request)?;
        // A connection that ends within an answer is an error here.
        match connection.answer()? {
            Answer::Closed => return Ok(answered),
            Answer::Response(response) if response.status == 200 => {
                answered += 1;
                if answered == WARM {
                    let _ = warm.send(());
                }
            }
            Answer::Response(response) => {
                let named = response.status == 503 && reason(&response)? == "draining";
                ensure!(named, "after {answered} answers: {response}");
            }
        }
    }
}

fn a_killed_server_hinders_no_later_one(database: Database) -> Result<()> {
    let Demo { server, place } = Demo::start_on(database, &[])?;
    server.kill()?;
    let demo = Demo::start_at(place, &[])?;
    ensure!(demo.server.ready_after() < Duration::from_secs(10), "{:?}", demo.server.timeline());
    let answer = demo.answer("boot.png", "?accuracy=0.92")?;
    ensure!(answer.model == "cnn_l", "{answer:?}");
    demo.server.stop()
}

#[test]
fn a_recorded_life_is_decided_the_same_again() -> Result<()> {
    let record = tempfile::tempdir()?;
    let folder = record.path().to_str().context("a plain path")?.to_owned();
    let demo = Demo::start(&["--record", &folder])?;
    let mut connection = demo.server.connect()?;
    for goals in ["?accuracy=0.9", "?prefer=cost", "?model=mlp_l", "?latency_ms=0.001", "?accuracy=0.999"] {
        for _ in 0..20 {
            connection.exchange(&ask("shirt.png", goals))?;
        }
    }
    drop(connection);
    demo.server.stop()?;
    for machine in ["router", "worker"] {
        let log = record.path().join(format!("{machine}.jsonl"));
        let replayed =
            Command::new(server::binary()?).arg("replay").arg(&log).args(["--machine", machine]).output()?;
        let said = String::from_utf8_lossy(&replayed.stdout) + String::from_utf8_lossy(&replayed.stderr);
        ensure!(replayed.status.success(), "{machine}: {said}");
    }
    Ok(())
}

#[test]
fn without_models_it_is_ready_and_says_that_it_knows_no_task() -> Result<()> {
    let server = Server::start::<&str>(&[])?;
    ensure!(server.get("/v2/health/live")?.status == 200);
    let missing = server.send(&ask("boot.png", ""))?;
    ensure!(missing.status == 404, "{}", missing.text());
    server.stop()
}
