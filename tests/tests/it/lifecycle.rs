//! Starting, stopping, starting again; and a recorded life replayed.

use crate::demo::{Demo, ask};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Server, server};
use std::process::Command;
use std::thread;
use std::time::Duration;

#[test]
fn a_second_start_is_quick_and_keeps_what_was_measured() -> Result<()> {
    let demo = Demo::start(&[])?;
    ensure!(demo.server.ready_after() < Duration::from_secs(10), "{:?}", demo.server.timeline());
    let tasks = demo.server.get_json("/v1/tasks")?;
    ensure!(tasks.to_string().contains("fashion"), "{tasks}");
    let shown = demo.server.get_json("/v1/tasks/fashion")?.to_string();
    ensure!(shown.contains("measured") && shown.contains("frontier"), "{shown}");
    demo.server.stop()
}

#[test]
fn two_on_one_data_folder_is_refused_and_harms_nobody() -> Result<()> {
    let demo = Demo::start(&[])?;
    let second = Command::new(server::binary()?)
        .args(["up", "--http", "127.0.0.1:0", "--data"])
        .arg(demo.folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    ensure!(!second.status.success() && said.contains(&demo.server.pid().to_string()), "{said}");
    demo.answer("boot.png", "")?;
    demo.server.stop()
}

#[test]
fn an_interrupt_drains_what_is_open() -> Result<()> {
    let mut demo = Demo::start(&[])?;
    let statuses = thread::scope(|scope| {
        let askers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| -> Result<Vec<u16>> {
                    let mut statuses = Vec::new();
                    let mut connection = demo.server.connect()?;
                    for _ in 0..50 {
                        match connection.exchange(&ask("boot.png", "?model=cnn_l")) {
                            Ok(response) => statuses.push(response.status),
                            Err(_) => break, // the connection was closed between two queries
                        }
                    }
                    Ok(statuses)
                })
            })
            .collect();
        let done = askers.into_iter().map(|asker| asker.join().expect("an asker does not panic"));
        done.collect::<Result<Vec<_>>>()
    })?;
    ensure!(statuses.iter().flatten().all(|status| *status == 200), "{statuses:?}");
    let status = demo.server.interrupt()?;
    ensure!(status.success(), "{status}\n{}", demo.server.output());
    Ok(())
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
