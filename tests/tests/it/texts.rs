//! Texts on other engines than ONNX Runtime, and in a cluster, where a model's tokenizer has to come along.

use crate::database::OwnDatabase;
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, Response, Server, packages, server, wait};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);
/// OpenVINO rounds to half of the bits where a processor has that; a text read with another's padding is far beyond.
const APART: f64 = 1e-2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A small encoder in a folder, with a variant for each of these engines. What each text is to be was computed in Python.
pub(crate) fn package(engines: &[&str]) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    packages::vectors(&root(), folder.path(), engines)?;
    Ok(folder)
}

pub(crate) fn register(url: &str, package: &Path) -> Result<String> {
    let mut command = Command::new(server::binary()?);
    let done = command.args(["model", "register"]).arg(package).args(["--server", url]).output()?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.success(), "{said}");
    Ok(said)
}

/// A text, and its vector by Python's `tokenizers` and numpy.
fn golden() -> Result<Vec<(String, Vec<f64>)>> {
    let cases = fs::read(root().join("crates/adapter/tests/golden/text/cases.json"))?;
    let cases: Vec<Value> = serde_json::from_slice(&cases)?;
    let case = |case: &Value| {
        let text = case["text"].as_str().context("a text")?.to_owned();
        Ok((text, numbers(&case["mean_unit"])))
    };
    cases.iter().map(case).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn apart(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn ask(engine: &str, text: &str) -> Request {
    let target = format!("/v1/tasks/tiny?variant={engine}&latency_ms=20000");
    Request::post(&target).header("content-type", "text/plain").body(text.as_bytes().to_vec())
}

fn vector(answer: &Response, engine: &str) -> Result<Vec<f64>> {
    ensure!(answer.status == 200, "{engine}: {answer}");
    ensure!(answer.header("modelless-variant") == Some(engine), "{engine}: another one answered");
    Ok(numbers(&answer.json()?))
}

fn same_vectors_on(engines: &[&str]) -> Result<()> {
    let (data, package, golden) = (tempfile::tempdir()?, package(engines)?, golden()?);
    let server = Server::builder().data(data.path()).start()?;
    register(&server.url(), package.path())?;
    for engine in engines {
        for (text, wanted) in &golden {
            let found = vector(&server.send(&ask(engine, text))?, engine)?;
            let apart = apart(&found, wanted);
            ensure!(apart < APART, "{engine}, {text:?}: {found:?}, {apart} from {wanted:?}");
        }
        // All together: batches of different lengths, or filled up to the longest.
        let texts: Vec<&str> = golden.iter().map(|(text, _)| text.as_str()).collect();
        let target = format!("/v1/tasks/tiny?variant={engine}&latency_ms=20000");
        let answer = server.send(&Request::post(&target).json(&serde_json::json!({"inputs": texts})))?;
        ensure!(answer.status == 200, "{engine}: {answer}");
        let all = answer.json()?;
        for ((text, wanted), found) in golden.iter().zip(all.as_array().context("a list")?) {
            let apart = apart(&numbers(found), wanted);
            ensure!(apart < APART, "{engine}, {text:?} among others: {apart} apart");
        }
    }
    server.stop()
}

#[test]
fn texts_get_the_same_vectors_on_openvino() -> Result<()> {
    same_vectors_on(&["onnx", "openvino"])
}

#[cfg(feature = "torch")]
#[test]
fn texts_get_the_same_vectors_on_torch() -> Result<()> {
    same_vectors_on(&["onnx", "torch"])
}

/// Asks until a node answers with the right vector, and gives its name.
fn answered_by(gateway: SocketAddr, wanted: &[&str]) -> Result<String> {
    let (text, vector) = golden()?.swap_remove(0);
    wait::until(PATIENCE, || {
        let answer = Connection::open(gateway)?.exchange(&ask("onnx", &text))?;
        let node = answer.header("modelless-node").unwrap_or_default().to_owned();
        if answer.status != 200 || !wanted.contains(&node.as_str()) {
            return Ok(Err(answer.to_string()));
        }
        let apart = apart(&self::vector(&answer, "onnx")?, &vector);
        ensure!(apart < APART, "{node} gave another vector: {answer}");
        Ok(Ok(node))
    })
}

/// The files in a folder of artefacts.
fn kept(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let count = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => kept(&entry.path()),
        Ok(_) => usize::from(entry.file_name().len() == 64),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(count).sum()
}

#[test]
fn a_tokenizer_comes_to_every_node_that_serves_its_model() -> Result<()> {
    let database = OwnDatabase::create(&format!("texts_{}", std::process::id()), None)?;
    let (folder, package) = (modelless_testkit::temp_dir("texts")?, package(&["onnx"])?);
    let own = |name: &str| format!("artefacts={}", folder.path().join(name).display());
    let mut cluster = Cluster::new(&database.url()?, &folder.path().join("nobody"))?;
    cluster.executor("one", &["executor.lanes=1", &own("one")])?;
    let gateway = cluster.gateway("left", &[&own("left")])?;
    cluster.wait_for("left", "name=\"one\"", PATIENCE)?;
    register(&format!("http://{gateway}"), package.path()).with_context(|| cluster.output())?;
    answered_by(gateway, &["one"]).with_context(|| cluster.output())?;

    // One that comes later has neither the model nor its tokenizer, and fetches both.
    cluster.executor("late", &["executor.lanes=1", &own("late")])?;
    cluster.wait_for("left", "name=\"late\"", PATIENCE)?;
    ensure!(cluster.drain("one")?.success(), "one did not end well");
    answered_by(gateway, &["late"]).with_context(|| cluster.output())?;
    let there = kept(&folder.path().join("late"));
    ensure!(there == 2, "{there} artefacts at the node that came later: {}", cluster.output());
    Ok(())
}
