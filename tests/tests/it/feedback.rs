//! Verdicts on answers: given over HTTP and by the command line, kept over a restart, and counted for floors where the task asks
//! for it.

use crate::database::{Database, on_both_databases};
use crate::demo::{Demo, Place, ask};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Request, Response, Server, wait};
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases! {
    verdicts_are_counted_once_shown_and_kept_over_a_restart,
    what_answers_worse_than_measured_is_flagged_everywhere,
}

fn query_of(server: &Server, goals: &str) -> Result<(String, String)> {
    let response = server.send(&ask("boot.png", goals))?;
    ensure!(response.status == 200, "{}", response.text());
    let header = |name: &str| response.header(name).map(str::to_owned).context("a header of the decision");
    Ok((header("modelless-query-id")?, header("modelless-variant")?))
}

fn say(server: &Server, query: &str, body: &Value) -> Result<Response> {
    server.send(&Request::post(&format!("/v1/queries/{query}/feedback")).json(body))
}

fn told(server: &Server, query: &str, body: &Value) -> Result<Value> {
    let response = say(server, query, body)?;
    ensure!(response.status == 200, "{}", response.text());
    Ok(serde_json::from_str(&response.text())?)
}

fn verdicts_are_counted_once_shown_and_kept_over_a_restart(database: Database) -> Result<()> {
    let place = Place::new(database)?;
    let server = place.start(&[])?;
    let (query, variant) = query_of(&server, "")?;
    let first = told(&server, &query, &json!({"label": "Ankle boot"}))?;
    ensure!(first["stored"] == "new" && first["variant"] == json!(variant), "{first}");
    ensure!(first["verdict"] == "correct", "the demo's boot is recognised: {first}");
    let again = told(&server, &query, &json!({"verdict": "correct"}))?;
    ensure!(again["stored"] == "said before" && again["live_accuracy"]["correct"] == 1, "{again}");
    let changed = told(&server, &query, &json!({"label": "Bag"}))?;
    ensure!(changed["stored"] == "changed" && changed["live_accuracy"]["wrong"] == 1, "{changed}");
    ensure!(changed["live_accuracy"]["correct"] == 0, "{changed}");

    let url = server.url();
    let shown = server.command(&["feedback", &query, "--correct", "--server", &url])?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    ensure!(shown.status.success() && text.starts_with("correct, in place of"), "{shown:?}");
    let unknown = server.command(&["feedback", &query, "--label", "Ankle boots", "--server", &url])?;
    ensure!(unknown.status.code() == Some(64), "{unknown:?}");
    let why = String::from_utf8_lossy(&unknown.stderr).into_owned();
    ensure!(why.contains("Ankle boot") && why.contains("unknown_label"), "{why}");
    for wrong in [vec!["feedback", &query], vec!["feedback", &query, "--correct", "--wrong"]] {
        ensure!(server.command(&wrong)?.status.code() == Some(64), "{wrong:?}");
    }
    let forged = format!("{}A", &query[..query.len() - 1]);
    let other = if forged == query { format!("{}Q", &query[..query.len() - 1]) } else { forged };
    ensure!(say(&server, &other, &json!({"verdict": "correct"}))?.status == 404);
    server.stop()?;

    let server = place.start(&[])?;
    let kept = told(&server, &query, &json!({"verdict": "correct"}))?;
    ensure!(kept["stored"] == "said before" && kept["live_accuracy"]["correct"] == 1, "{kept}");
    server.stop()
}

fn what_answers_worse_than_measured_is_flagged_everywhere(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    let server = &demo.server;
    let mut pinned = None;
    for _ in 0..40 {
        let (query, variant) = query_of(server, "?variant=cnn_m-fp32")?;
        told(server, &query, &json!({"verdict": "wrong"}))?;
        pinned = Some(variant);
    }
    let name = pinned.context("it answered")?;
    let of = |page: &Value| {
        let variants = page["variants"].as_array().cloned().unwrap_or_default();
        variants.into_iter().find(|variant| variant["name"] == json!(name)).unwrap_or_default()
    };
    let flagged = || {
        let shown = of(&server.get_json("/v1/tasks/fashion")?);
        // What batches took is told once a second.
        let told = shown["coverage"]["batches"].as_u64().is_some_and(|batches| batches >= 40);
        Ok(if told && shown["live_accuracy"]["flagged"] == true { Ok(()) } else { Err(shown.to_string()) })
    };
    wait::until(Duration::from_secs(10), flagged)?;
    let shown = of(&server.get_json("/v1/tasks/fashion")?);
    ensure!(shown["live_accuracy"]["interval"][1].as_f64().context("high")? < 0.2, "{shown}");
    ensure!(shown["live_accuracy"]["wrong"] == 40, "{shown}");
    let url = server.url();
    for args in [
        vec!["task", "show", "fashion"],
        vec!["model", "show", "cnn_m", "--task", "fashion"],
        vec!["explain", "fashion"],
    ] {
        let shown = server.command(&[&args[..], &["--server", &url]].concat())?;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        ensure!(text.contains("less accurate than measured"), "{args:?}: {text}");
    }
    // It is only shown: floors are compared with what was measured, as the task does not say otherwise.
    ensure!(query_of(server, "?variant=cnn_m-fp32&accuracy=0.9")?.1 == name);
    // Until the task says otherwise, while it serves on.
    let set = server.command(&["task", "set", "fashion", "--live-accuracy", "floors", "--server", &url])?;
    ensure!(set.status.success(), "{set:?}");
    let floor = ask("boot.png", "?variant=cnn_m-fp32&accuracy=0.9");
    ensure!(server.send(&floor)?.status == 422, "floors count what was found");
    ensure!(query_of(server, "?variant=cnn_m-fp32")?.1 == name, "without a floor it answers");
    // Somebody says that the verdicts were wrong.
    let unflag = ["variant", "unflag", "cnn_m-fp32", "--task", "fashion", "--server", &url, "--reason"];
    let told = server.command(&[&unflag[..], &["a mistake"]].concat())?;
    ensure!(told.status.success(), "{told:?}");
    ensure!(query_of(server, "?variant=cnn_m-fp32&accuracy=0.9")?.1 == name);
    let show = ["variant", "show", "cnn_m-fp32", "--task", "fashion", "--server", &url];
    let shown = String::from_utf8_lossy(&server.command(&show)?.stdout).into_owned();
    ensure!(shown.contains("cleared") && shown.contains("a mistake") && shown.contains("flagged"), "{shown}");
    let metrics = server.get("/metrics")?.text();
    ensure!(metrics.contains(r#"modelless_feedback_total{task="fashion",verdict="wrong"} 40"#), "{metrics}");
    demo.server.stop()
}
