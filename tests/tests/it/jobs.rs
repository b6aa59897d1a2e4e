//! Offline jobs, by the command line, against a server that is killed while it works.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use modelless_testkit::{Request, Server, process, wait};
use serde_json::{Value, json};

use crate::database::Database;
use crate::demo::{Place, picture};

const SOON: Duration = Duration::from_mins(2);
/// So many that the server is killed long before the end.
const INPUTS: usize = 12_000;
const PICTURES: [&str; 3] = ["bag.png", "boot.png", "shirt.png"];

/// What a query is told of a picture.
fn label(server: &Server, name: &str) -> Result<Value> {
    let request = Request::post("/v1/tasks/fashion?variant=cnn_m-fp32").header("content-type", "image/png");
    let answer = server.send(&request.body(picture(name)))?;
    ensure!(answer.status == 200, "{answer}");
    Ok(answer.json()?[0]["label"].clone())
}

fn ended(server: &Server) -> Result<u64> {
    let job = server.get_json("/v1/jobs/1")?;
    Ok(job["done"].as_u64().unwrap_or(0) + job["failed"].as_u64().unwrap_or(0))
}

#[test]
fn a_job_goes_on_after_its_server_was_killed_and_each_output_is_written_once() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    let server = Server::builder().data(place.folder.path()).arg("--demo").start()?;
    let (address, url) = (server.address().to_string(), server.url());
    let folder = modelless_testkit::temp_dir("jobs")?;
    let (manifest, output) = (folder.path().join("inputs.jsonl"), folder.path().join("answers"));
    let encoded = PICTURES.map(|name| STANDARD.encode(picture(name)));
    let line = |at: usize| json!({"inputs": encoded[at % 3], "name": format!("number-{at}")}).to_string();
    fs::write(&manifest, (0..INPUTS).map(line).collect::<Vec<_>>().join("\n"))?;
    let submit = || {
        let mut command = Command::new(server.binary());
        command.args([
            "job",
            "submit",
            "fashion",
            "--variant",
            "cnn_m-fp32",
            "--server",
            &url,
            "--json",
            "--input",
        ]);
        command.arg(&manifest).arg("--output").arg(&output);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut first = submit();
    let mut client = first.spawn()?;
    wait::until(SOON, || {
        let there = server.get("/v1/jobs/1")?.status == 200 && ended(&server)? >= 500;
        Ok(if there { Ok(()) } else { Err("hardly anything has ended".to_owned()) })
    })?;
    let before = ended(&server)?;
    ensure!(before < INPUTS as u64, "it was over before the server could be killed");
    let again = submit();
    server.kill()?;
    let server = Server::builder().data(place.folder.path()).arg("--demo").http(&address).start()?;
    ensure!(ended(&server)? >= before, "what had ended has ended");
    let status = process::wait(&mut client, SOON)?.context("the command never ended")?;
    let said = client.wait_with_output()?;
    ensure!(status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let job: Value = server.get_json("/v1/jobs/1")?;
    ensure!(job["state"] == "done" && job["done"] == INPUTS && job["failed"] == 0, "{job}");
    ensure!(job["cost_usd"].as_f64() > Some(0.0), "{job}");
    let written = output.join("outputs.jsonl");
    let labels = PICTURES.iter().map(|name| label(&server, name)).collect::<Result<Vec<_>>>()?;
    ensure!(labels.iter().collect::<std::collections::HashSet<_>>().len() == 3, "{labels:?}");
    let mut names = BTreeSet::new();
    for (at, line) in fs::read_to_string(&written)?.lines().enumerate() {
        let line: Value = serde_json::from_str(line)?;
        ensure!(line["at"] == at && line["name"] == format!("number-{at}"), "{line}");
        ensure!(line["answer"][0]["label"] == labels[at % 3], "{line}");
        names.insert(line["name"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(names.len() == INPUTS, "{} outputs", names.len());
    // The same command again has nothing to do.
    let when = fs::metadata(&written)?.modified()?;
    let mut again = again;
    let done = again.output()?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    ensure!(fs::metadata(&written)?.modified()? == when, "it was written again");
    let jobs = server.get_json("/v1/jobs")?;
    ensure!(jobs["jobs"].as_array().map(Vec::len) == Some(1), "{jobs}");
    server.stop()
}
