//! Traces, with OpenTelemetry's own SDK as the client and its own messages at the collector; and the log's line for the same queries.

use crate::database::Database;
use crate::demo::{Place, fashion, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Request, Server};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

#[test]
fn a_clients_trace_goes_on_to_the_models_process() -> Result<()> {
    let python = std::env::var("MODELLESS_PYTHON").context("no Python: run this by `cargo xtask test`")?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/traces.py");
    let mut collector = Command::new(python)
        .args(["-B", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the collector")?;
    let mut lines = BufReader::new(collector.stdout.take().context("its output")?).lines();
    let port = lines.next().context("the collector ended")??;
    let endpoint = format!("http://127.0.0.1:{port}");
    let place = Place::new(Database::Sqlite)?;
    let server = Server::builder().data(place.folder.path()).arg("--demo");
    let server = server.arg("--grpc").arg("127.0.0.1:0").arg("--otlp").arg(endpoint);
    let log = "warn,modelless_gateway::queries=debug";
    let server = server.env("MODELLESS_LOG", log).env("MODELLESS_LOG_FORMAT", "json").start()?;
    let (http, grpc) = (server.url(), server.told("grpc ")?);
    let boot = fashion().join("pictures/boot.png");
    let mut words = collector.stdin.take().context("its input")?;
    writeln!(words, "{http} {grpc} {}", boot.display())?;
    let told: Vec<String> = lines.collect::<Result<_, _>>()?;
    let ended = collector.wait()?;
    let good = told.iter().filter(|line| line.ends_with("\tok")).count();
    ensure!(ended.success() && good == 2, "{told:#?}");
    let request = Request::post("/v1/tasks/fashion?accuracy=0.99999").header("content-type", "image/png");
    let refused = server.send(&request.body(picture("boot.png")))?;
    ensure!(refused.status == 422, "{refused}");
    let objects = server.timeline().into_iter().filter_map(|(_, line)| serde_json::from_str(&line).ok());
    let objects: Vec<Value> = objects.collect();
    let no: Vec<&Value> = objects.iter().filter(|line| line["message"] == "refused").collect();
    ensure!(no.len() == 1 && no[0]["reason"] == "floor_unreachable", "{no:#?}");
    ensure!(no[0]["query"].as_str() == refused.header("modelless-query"), "{no:#?} {refused}");
    let logged: Vec<&Value> = objects.iter().filter(|line| line["message"] == "answered").collect();
    ensure!(logged.len() == 2, "{logged:#?}");
    for line in logged {
        let long = |name: &str| line[name].as_str().map_or(0, str::len);
        ensure!(line["task"] == "fashion" && (long("query"), long("trace")) == (16, 32), "{line:#}");
        ensure!(line["node"] == "local" && line["tenant"] == "default", "{line:#}");
        ensure!(line["total_us"].as_u64() > Some(0) && long("variant") > 0, "{line:#}");
    }
    server.stop()
}
