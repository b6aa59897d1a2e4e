//! A task of strings, from its registration to its answers.

use anyhow::{Context, Result, ensure};
use modelless_testkit::{Request, Response, Server};
use serde_json::json;
use std::fs;
use std::path::Path;

const TASK: &str = r#"
name = "echo"
kind = "tensor"
metric = "none"
description = "Gives strings back."

[[inputs]]
name = "x"
dtype = "BYTES"
shape = [2]

[[outputs]]
name = "y"
dtype = "BYTES"
shape = [2]
"#;

const MODEL: &str = r#"
name = "strings"
architecture = "none"
licence = "Apache-2.0"
accuracy = 0.9

[adapter]
kind = "tensor"

[[variants]]
name = "strings"
precision = "none"
file = "strings.onnx"
string_bytes = 40
"#;

fn start(data: &Path, package: &Path) -> Result<Server> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/engine/tests/models/strings.onnx");
    fs::write(package.join("task.toml"), TASK)?;
    fs::create_dir(package.join("models"))?;
    fs::copy(model, package.join("models/strings.onnx"))?;
    fs::write(package.join("models/strings.toml"), MODEL)?;
    let server = Server::builder().data(data).start()?;
    let package = package.to_str().context("a plain path")?;
    let done = server.command(&["model", "register", package, "--server", &server.url()])?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(server)
}

fn packed(texts: &[&[u8]]) -> Vec<u8> {
    let one = |text: &&[u8]| [&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes(), *text].concat();
    texts.iter().flat_map(one).collect()
}

fn raw(server: &Server, texts: &[&[u8]]) -> Result<Response> {
    let request = Request::post("/v1/tasks/echo?latency_ms=20000").body(packed(texts));
    server.send(&request.header("content-type", "application/octet-stream"))
}

#[test]
fn strings_are_answered_whole_or_refused_by_name() -> Result<()> {
    let (data, package) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let server = start(data.path(), package.path())?;
    for texts in [["Grüße", ""], ["", "{\"a\":[1,2]}"], ["x", "y"]] {
        for inputs in
            [json!(texts), json!({"x": [texts]}), json!({"x": {"datatype": "BYTES", "data": texts}})]
        {
            let request = Request::post("/v1/tasks/echo?latency_ms=20000").json(&json!({"inputs": inputs}));
            let answer = server.send(&request)?;
            ensure!(answer.status == 200, "{}", answer.text());
            let expected = json!({"y": {"shape": [2], "datatype": "BYTES", "data": texts}});
            ensure!(answer.json()?["outputs"] == expected, "{}", answer.text());
        }
        let answer = raw(&server, &texts.map(str::as_bytes))?;
        ensure!(answer.json()?["outputs"]["y"]["data"] == json!(texts), "{}", answer.text());
    }

    // What they take with a length of four bytes before each is 40, and then 41.
    let answer = raw(&server, &[&[b'a'; 32], b""])?;
    ensure!(answer.status == 200, "{}", answer.text());
    let answer = raw(&server, &[&[b'a'; 32], b"b"])?;
    ensure!(answer.status == 413 && answer.json()?["reason"] == "too_large", "{}", answer.text());
    ensure!(answer.text().contains("the strings of `x` take 41 bytes") && answer.text().contains("40"));

    let answer = raw(&server, &[b"only one"])?;
    ensure!(answer.status == 400 && answer.text().contains("a length of four bytes"), "{}", answer.text());
    let odd: [&[u8]; 2] = [b"\xff", b""];
    let answer = raw(&server, &odd)?;
    ensure!(answer.status != 200 && answer.text().contains("no UTF-8"), "{}", answer.text());
    // Who asks for bytes gets them.
    let tensor = json!({"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": packed(&odd).len()}});
    let head = json!({"inputs": [tensor], "parameters": {"binary_data_output": true}}).to_string();
    let request = Request::post("/v2/models/echo/infer?latency_ms=20000")
        .header("inference-header-content-length", head.len().to_string());
    let answer = server.send(&request.body([head.as_bytes(), &packed(&odd)].concat()))?;
    ensure!(answer.status == 200 && answer.body.ends_with(&packed(&odd)), "{}", answer.text());
    let request = Request::post("/v1/tasks/echo").json(&json!({"inputs": ["a", 7]}));
    let answer = server.send(&request)?;
    ensure!(answer.status == 400 && answer.text().contains("element 1 is `7`"), "{}", answer.text());
    server.stop()
}
