//! `simulate --from-live`: what the traffic of a running server would cost and violate otherwise.

use crate::demo::{Demo, ask};
use anyhow::{Context, Result, ensure};
use modelless_testkit::server::binary;
use modelless_testkit::wait;
use serde_json::Value;
use std::io::Seek;
use std::process::Command;
use std::time::Duration;

/// Asks until a command has ended, and gives its report.
fn simulated(demo: &Demo, args: &[&str]) -> Result<Value> {
    let mut connection = demo.server.connect()?;
    let url = demo.server.url();
    let mut command = Command::new(binary()?);
    command.args(["simulate", "--from-live", &url, "--json", "--seconds", "5"]).args(args);
    // Into a file: nobody reads a pipe meanwhile.
    let mut told = tempfile::tempfile()?;
    let mut running = command.stdout(told.try_clone()?).spawn()?;
    while running.try_wait()?.is_none() {
        for floor in ["0.8", "0.93"] {
            let response = connection.exchange(&ask("boot.png", &format!("?accuracy={floor}")))?;
            ensure!(response.status == 200, "{}", response.text());
        }
    }
    let status = running.wait()?;
    ensure!(status.success(), "{status:?}");
    told.rewind()?;
    Ok(serde_json::from_reader(told)?)
}

#[test]
fn what_is_asked_of_a_server_is_simulated_on_its_machines_or_others() -> Result<()> {
    let demo = Demo::start(&[])?;
    let kept = tempfile::tempdir()?;
    let folder = kept.path().to_str().context("a plain path")?.to_owned();
    let report = simulated(&demo, &["--watch", "2s", "--keep", &folder])?;
    let total = &report["outcome"]["total"];
    let streams = report["outcome"]["streams"].as_array().context("streams")?;
    ensure!(streams.len() == 2 && total["offered"].as_u64() > Some(10), "two floors are asked: {report}");
    // It serves this traffic now, so it is to serve it there.
    ensure!(total["violations"].as_f64() < Some(0.05), "{report}");
    ensure!(
        total["accuracy"].as_f64() > Some(0.8) && report["usd_per_million"].as_f64() > Some(0.0),
        "{report}"
    );
    // What was kept is a scenario that gives the same again.
    let scenario = kept.path().join("live.toml");
    let again = demo.server.command(&["simulate", scenario.to_str().context("a plain path")?, "--json"])?;
    ensure!(serde_json::from_slice::<Value>(&again.stdout)? == report, "another report than before");
    // With a floor above all but the best, no other answers; at another price it costs otherwise.
    let pool = demo.server.get_json("/v1/nodes")?["nodes"][0]["pool"].as_str().context("a pool")?.to_owned();
    let dear = format!("{pool}=1000");
    let sharp = simulated(&demo, &["--watch", "2s", "--floor", "fashion=0.934", "--usd-per-hour", &dear])?;
    ensure!(sharp["outcome"]["total"]["accuracy"].as_f64() > Some(0.933), "{sharp}");
    ensure!(sharp["outcome"]["served_usd"].as_f64() > Some(1_000.0 * 4.0 / 3_600.0), "{sharp}");
    // What was asked a moment ago may be told only now; then it is simulated, for no longer than need be.
    wait::until(Duration::from_secs(30), || {
        let url = demo.server.url();
        let wrong = ["simulate", "--from-live", &url, "--watch", "1s", "--seconds", "1"];
        let wrong = demo.server.command(&wrong)?;
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        let refused = !wrong.status.success() && said.contains("nothing was asked");
        Ok(if refused { Ok(()) } else { Err(said) })
    })?;
    demo.server.stop()
}

#[test]
fn what_was_recorded_is_simulated_with_its_arrivals_and_bounds() -> Result<()> {
    let record = tempfile::tempdir()?;
    let folder = record.path().to_str().context("a plain path")?.to_owned();
    let demo = Demo::start(&["--record", &folder])?;
    for bound in [200, 400, 200] {
        demo.answer("boot.png", &format!("?accuracy=0.9&latency_ms={bound}"))?;
    }
    let Demo { server, place } = demo;
    server.stop()?;
    let server = place.start(&[])?;
    let args = ["simulate", "--from-live", &server.url(), "--recording", &folder, "--json"];
    let output = server.command(&args)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let streams = report["outcome"]["streams"].as_array().context("streams")?;
    let mut offered: Vec<_> = streams.iter().filter_map(|stream| stream["offered"].as_u64()).collect();
    offered.sort_unstable();
    // The last of all comes when the recording ends, and that is not simulated any more.
    ensure!(offered.iter().sum::<u64>() >= 2 && offered.len() == 2, "{report}");
    ensure!(report["outcome"]["total"]["accuracy"].as_f64() >= Some(0.9), "{report}");
    // Things take what they took while it was recorded, here or in another recording.
    let took = "recorded batches and their inputs took them";
    ensure!(
        String::from_utf8_lossy(&output.stderr).contains(took),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let nothing = tempfile::tempdir()?;
    let (other, nothing) = (folder.clone(), nothing.path().to_str().context("a plain path")?.to_owned());
    let times_of = |of: &str| server.command(&[&args[..], &["--times-of", of]].concat());
    ensure!(
        serde_json::from_slice::<Value>(&times_of(&other)?.stdout)? == report,
        "the same times, another report"
    );
    let refused = times_of(&nothing)?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("router.jsonl"), "{said}");
    let refused = server.command(&[&args[..], &["--load", "2"]].concat())?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("a recording has no rates"), "{said}");
    server.stop()
}
