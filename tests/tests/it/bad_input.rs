//! Models that cannot be registered: each "no" says why, and leaves nothing behind.

use crate::demo::{Demo, fashion};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Connection, Request, Server, onnx, server, temp_dir};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A task of four numbers, with a labelled set of which the first half is below zero.
fn numbers(server: &Server) -> Result<()> {
    let tensor = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [4]}]);
    let task = json!({"name": "numbers", "kind": "tensor", "metric": "accuracy", "inputs": tensor("x"), "outputs": tensor("y")});
    let made = server.send(&Request::post("/v1/tasks").json(&task))?;
    ensure!(made.status == 201, "{made}");
    Ok(())
}

fn upload(server: &Server, bytes: &[u8]) -> Result<String> {
    let put = Request::new("PUT", "/v1/artefacts").header("content-type", "application/octet-stream");
    let answer = server.send(&put.body(bytes.to_vec()))?;
    ensure!(answer.status == 201, "{answer}");
    Ok(answer.json()?["sha256"].as_str().context("an address")?.to_owned())
}

/// What is said of a model of one variant with this file.
fn said(
    server: &Server,
    task: &str,
    adapter: &Value,
    file: &[u8],
    set: Option<&str>,
) -> Result<(u16, String)> {
    let sha256 = upload(server, file)?;
    let mut body = json!({"task": task, "name": "bad", "adapter": adapter, "declared_accuracy": 0.5,
        "variants": [{"precision": "fp32", "max_batch": 4, "artefact_sha256": sha256}]});
    if let Some(set) = set {
        body["set"] = json!({"name": "set", "artefact_sha256": set});
    }
    let answer = server.send(&Request::post("/v1/models").json(&body))?;
    Ok((answer.status, answer.text()))
}

/// What it is, the task, the adapter, the file, the labelled set; and what is to be said.
type Case<'a> = (&'a str, &'a str, &'a Value, Vec<u8>, Option<&'a str>, u16, &'a str);

#[test]
fn what_cannot_be_registered_says_why_and_leaves_nothing_behind() -> Result<()> {
    let demo = Demo::start(&[])?;
    let server = &demo.server;
    numbers(server)?;
    let before = server.get_json("/v1/models")?;
    let tensors = json!({"kind": "tensor"});
    let picture = json!({"kind": "image-classification", "width": 28, "height": 28, "channels": "grey"});
    let whole = onnx::identity(4);
    let good = fs::read(fashion().join("models/cnn_s.onnx"))?;
    let line = json!({"label": "umbrella", "input": "AAAA"}).to_string();
    let (mislabelled, empty) = (upload(server, line.as_bytes())?, upload(server, b"\n")?);
    let no_set = upload(server, b"no set at all")?;
    let cases: [Case<'_>; 10] = [
        ("no model", "numbers", &tensors, b"no model".to_vec(), None, 400, "bad-fp32"),
        ("cut off", "numbers", &tensors, whole[..whole.len() / 2].to_vec(), None, 400, "bad-fp32"),
        ("an unknown opset", "numbers", &tensors, onnx::unary("Identity", 4, 999), None, 400, "opset"),
        ("no such operator", "numbers", &tensors, onnx::unary("Telepathy", 4, 13), None, 400, "Telepathy"),
        ("another shape", "numbers", &tensors, onnx::identity(5), None, 400, "`x`"),
        ("no picture", "fashion", &picture, whole.clone(), None, 400, "does not fit"),
        ("a set that is none", "fashion", &picture, good.clone(), Some(&no_set), 400, "labelled set"),
        (
            "a label that is none",
            "fashion",
            &picture,
            good.clone(),
            Some(&mislabelled),
            400,
            "none of the task's",
        ),
        ("a set without items", "fashion", &picture, good, Some(&empty), 400, "it is empty"),
        ("an adapter of no kind", "numbers", &json!({"kind": "fish"}), whole, None, 400, "fish"),
    ];
    for (what, task, adapter, file, set, status, named) in cases {
        let (got, text) = said(server, task, adapter, &file, set)?;
        ensure!(got == status && text.contains(named), "{what}: {got} {text}");
        ensure!(server.get_json("/v1/models")? == before, "{what} left a model behind");
    }
    demo.server.stop()
}

#[test]
fn a_model_that_answers_with_what_is_no_number_is_refused_while_it_is_measured() -> Result<()> {
    let demo = Demo::start(&[])?;
    numbers(&demo.server)?;
    // The root of -1.
    let minus = [-1.0_f32; 4].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let folder = temp_dir("nan")?;
    fs::write(folder.path().join("root.onnx"), onnx::unary("Sqrt", 4, 13))?;
    fs::write(folder.path().join("set.jsonl"), set_of(&minus))?;
    let output = demo.server.command(&[
        "model",
        "register",
        plain(&folder.path().join("root.onnx"))?,
        "--task",
        "numbers",
        "--set",
        plain(&folder.path().join("set.jsonl"))?,
        "--server",
        &demo.server.url(),
    ])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && said.contains("not a finite number"), "{said}");
    ensure!(!demo.server.get_json("/v1/models")?.to_string().contains("root"), "it is not registered");
    demo.server.stop()
}

fn plain(path: &Path) -> Result<&str> {
    path.to_str().context("a plain path")
}

fn set_of(item: &[u8]) -> String {
    let line = json!({"label": 0, "input": base64(item)}).to_string();
    format!("{line}\n{line}\n")
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at)) & 0x3f;
            text.push(if at <= chunk.len() { char::from(LETTERS[index as usize]) } else { '=' });
        }
    }
    text
}

/// As on a disk that is full: no file may grow beyond some megabytes.
#[test]
fn a_disk_that_is_full_is_named_nothing_half_written_is_kept_and_serving_goes_on() -> Result<()> {
    let place = crate::demo::Place::new(crate::database::Database::Sqlite)?;
    let folder = temp_dir("full")?;
    let narrow = folder.path().join("modelless");
    let real = server::binary()?;
    fs::write(
        &narrow,
        format!("#!/bin/bash\ntrap '' XFSZ\nulimit -f 24576\nexec '{}' \"$@\"\n", real.display()),
    )?;
    fs::set_permissions(&narrow, fs::Permissions::from_mode(0o755))?;
    let server = Server::builder().binary(&narrow).data(place.folder.path()).arg("--demo").start()?;
    let large = vec![7_u8; 30 << 20];
    let put = Request::new("PUT", "/v1/artefacts").header("content-type", "application/octet-stream");
    let answer = Connection::open(server.address())?.exchange(&put.body(large))?;
    ensure!(answer.status == 507, "{answer}\n{}", server.output());
    let body = answer.json()?;
    ensure!(body["reason"] == "disk_full" && !body.to_string().contains("incoming"), "{body}");
    let left: Vec<_> = fs::read_dir(place.folder.path().join("artefacts/incoming"))?.collect();
    ensure!(left.is_empty(), "{left:?} was kept");
    let answer = server.send(&crate::demo::ask("boot.png", ""))?;
    ensure!(answer.status == 200, "it does not serve on: {answer}");
    server.stop()
}
