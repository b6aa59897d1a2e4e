//! The shipped board of Grafana and the shipped configuration of Prometheus, tried by a real Prometheus that scrapes a real server: whatever the
//! board asks for is understood, and shows something once there are queries.

use crate::database::Database;
use crate::demo::{Place, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Prometheus, Request, Server, wait};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Until two scrapes saw the last kind of query, however busy the machine.
const SHOWN_WITHIN: Duration = Duration::from_mins(1);

/// What a server alone does not have: rented machines, and versions on trial. Such questions have to be understood, and may show nothing.
const ELSEWHERE: [&str; 2] = ["modelless_machines", "modelless_trial_queries"];

fn shipped(file: &str) -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    std::fs::read_to_string(&file).with_context(|| file.display().to_string())
}

/// Each panel's questions, as Grafana would send them for all tasks.
fn questions() -> Result<Vec<(String, String)>> {
    let board: Value = serde_json::from_str(&shipped("grafana/modelless.json")?)?;
    let mut all = Vec::new();
    for panel in board["panels"].as_array().context("panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let asked = target["expr"].as_str().context("an expression")?;
            let asked = asked.replace("$__rate_interval", "1m").replace("$task", ".*");
            all.push((panel["title"].as_str().unwrap_or_default().to_owned(), asked));
        }
    }
    Ok(all)
}

fn some_queries(server: &Server) -> Result<()> {
    let query = |goals: &str| {
        let request =
            Request::post(&format!("/v1/tasks/fashion?{goals}")).header("content-type", "image/png");
        anyhow::Ok(server.send(&request.body(picture("shirt.png")))?.status)
    };
    ensure!(query("accuracy=0.8&latency_ms=20000&max_cost=1")? == 200);
    ensure!(query("accuracy=0.99999")? == 422);
    Ok(())
}

#[test]
fn every_panel_of_the_board_shows_something_in_a_real_prometheus() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    let server = place.start(&[])?;
    let configuration = shipped("prometheus.yml")?;
    let ours = configuration
        .replace("127.0.0.1:8080", &server.address().to_string())
        .replace("scrape_interval: 15s", "scrape_interval: 1s");
    ensure!(ours != configuration, "it names another address by now: {configuration}");
    let prometheus = Prometheus::start(&ours)?;
    let questions = questions()?;
    wait::until(SHOWN_WITHIN, || {
        some_queries(&server)?;
        let mut empty = Vec::new();
        for (panel, question) in &questions {
            let elsewhere = ELSEWHERE.iter().any(|series| question.contains(series));
            if prometheus.ask(question)?.is_empty() && !elsewhere {
                empty.push(format!("{panel}: {question}"));
            }
        }
        Ok(if empty.is_empty() { Ok(()) } else { Err(empty.join("\n")) })
    })?;
    let value = |question: &str| {
        let series = prometheus.ask(question)?;
        let value = series.first().and_then(|series| series["value"][1].as_str()).context("a value")?;
        anyhow::Ok(value.parse::<f64>()?)
    };
    // What it shows is what happened: as many refusals as answers, all goals kept by those that were answered.
    for (question, least, most) in [
        (r#"modelless_queries_total{task="fashion",outcome="answered"}"#, 1.0, 1e9),
        (
            r#"histogram_quantile(0.99, sum by (le) (rate(modelless_query_seconds_bucket{task="fashion"}[1m])))"#,
            1e-6,
            20.0,
        ),
        (
            r#"sum(rate(modelless_goals_total{outcome="met"}[1m])) / sum(rate(modelless_goals_total[1m]))"#,
            0.3,
            0.9,
        ),
        ("max(modelless_node_memory_used_bytes)", 1e6, 1e12),
    ] {
        let value = value(question)?;
        ensure!((least..most).contains(&value), "{question} is {value}");
    }
    drop(prometheus);
    server.stop()
}
