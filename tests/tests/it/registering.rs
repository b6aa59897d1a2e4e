//! Registering through a gateway of a cluster, whose processes have a folder each, all of them empty.

use crate::database::OwnDatabase;
use crate::demo::{fashion, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::cluster::Cluster;
use modelless_testkit::{Connection, Request, server, wait};
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(1);
const OTHER: &str = "cpu:other:1";

/// A small model of the demo, in two variants, with its task and its labelled set.
pub(crate) fn package(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("models"))?;
    fs::create_dir_all(folder.join("sample"))?;
    for name in [
        "task.toml",
        "measured-10000.json",
        "sample/sample-2000-images-idx3-ubyte.gz",
        "sample/sample-2000-labels-idx1-ubyte.gz",
        "models/cnn_s.toml",
        "models/cnn_s.onnx",
        "models/cnn_s.int8.onnx",
    ] {
        fs::copy(fashion().join(name), folder.join(name)).with_context(|| name.to_owned())?;
    }
    Ok(())
}

fn register(gateway: SocketAddr, package: &Path) -> Result<Output> {
    register_with(gateway, package, &[])
}

fn register_with(gateway: SocketAddr, package: &Path, options: &[&str]) -> Result<Output> {
    let mut command = Command::new(server::binary()?);
    command.args(["model", "register"]).arg(package).args(options);
    Ok(command.args(["--json", "--server", &format!("http://{gateway}")]).output()?)
}

fn variants(gateway: SocketAddr) -> Result<Vec<Value>> {
    let answer = Connection::open(gateway)?.exchange(&Request::get("/v1/models/fashion/cnn_s"))?.json()?;
    Ok(answer["versions"][0]["variants"].as_array().context("a model with variants")?.clone())
}

/// Asks until a node answers, and gives its name.
fn answered_by(gateway: SocketAddr, wanted: &[&str]) -> Result<String> {
    let ask = Request::post("/v1/tasks/fashion?latency_ms=20000").header("content-type", "image/png");
    let ask = ask.body(picture("boot.png"));
    wait::until(PATIENCE, || {
        let answer = Connection::open(gateway)?.exchange(&ask)?;
        let node = answer.header("modelless-node").unwrap_or_default().to_owned();
        if answer.status != 200 || !wanted.contains(&node.as_str()) {
            return Ok(Err(answer.to_string()));
        }
        ensure!(answer.json()?[0]["label"] == "Ankle boot", "{answer}");
        Ok(Ok(node))
    })
}

fn measured(cluster: &mut Cluster, nodes: &[&str]) -> Result<usize> {
    let logs = nodes.iter().map(|node| Ok(cluster.log(node)?.matches("measured a variant").count()));
    logs.sum()
}

#[test]
fn what_a_gateway_takes_in_is_measured_by_one_node_of_each_class_and_served_by_all() -> Result<()> {
    let database = OwnDatabase::create(&format!("registering_{}", std::process::id()), None)?;
    let folder = modelless_testkit::temp_dir("registering")?;
    let package = folder.path().join("package");
    self::package(&package)?;
    let own = |name: &str| format!("artefacts={}", folder.path().join(name).display());
    let mut cluster = Cluster::new(&database.url()?, &folder.path().join("nobody"))?;
    for node in ["one", "two"] {
        cluster.executor(node, &["executor.lanes=1", &own(node)])?;
    }
    let gateway = cluster.gateway("left", &[&own("left")])?;
    for node in ["one", "two"] {
        cluster.wait_for("left", &format!("name=\"{node}\""), PATIENCE)?;
    }
    cluster.scheduler("planner", &[])?;

    let registered = register(gateway, &package)?;
    let said = String::from_utf8_lossy(&registered.stderr).into_owned();
    ensure!(registered.status.success(), "{said}\n{}", cluster.output());
    let answer: Value = serde_json::from_slice(&registered.stdout)?;
    ensure!(answer[0]["variants"][1]["measured"] == true, "{answer}");
    elsewhere(gateway)?;
    answered_by(gateway, &["one", "two"]).with_context(|| cluster.output())?;
    ensure!(measured(&mut cluster, &["one", "two"])? == 2, "each was measured once: {}", cluster.output());

    let before = variants(gateway)?;
    for variant in &before {
        let accuracy = &variant["profiles"][0]["accuracy"];
        ensure!(accuracy["provenance"] == "measured" && accuracy["samples"] == 2_000, "{variant}");
        ensure!(variant["measuring"] == json!([]), "{variant}");
    }

    // One that comes later has everything but the files, and fetches those.
    cluster.executor("late", &["executor.lanes=1", &own("late")])?;
    cluster.wait_for("left", "name=\"late\"", PATIENCE)?;
    for node in ["one", "two"] {
        ensure!(cluster.drain(node)?.success(), "{node} did not end well");
    }
    answered_by(gateway, &["late"]).with_context(|| cluster.output())?;
    cluster.wait_for("late", "fetched an artefact", PATIENCE)?;
    let profiles = |all: &[Value]| all.iter().map(|of| of["profiles"].clone()).collect::<Vec<_>>();
    ensure!(profiles(&variants(gateway)?) == profiles(&before), "it was measured again");
    ensure!(measured(&mut cluster, &["late"])? == 0, "it measured: {}", cluster.output());

    another_class(&mut cluster, gateway, &own("other"))?;
    later(gateway, &package).with_context(|| cluster.output())?;
    mended(gateway).with_context(|| cluster.output())?;

    ensure!(cluster.drain("other")?.success(), "other did not end well");
    let refused = register(gateway, &package)?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("no executor is connected"), "{said}");
    Ok(())
}

/// What lies at another gateway, or nowhere, is refused by name.
fn elsewhere(gateway: SocketAddr) -> Result<()> {
    let adapter = json!({"kind": "image-classification", "width": 28, "height": 28, "channels": "grey"});
    let body = json!({"task": "fashion", "name": "nowhere", "adapter": adapter, "declared_accuracy": 0.9,
        "variants": [{"precision": "fp32", "artefact_sha256": "ab".repeat(32)}]});
    let answer = Connection::open(gateway)?.exchange(&Request::post("/v1/models").json(&body))?;
    ensure!(answer.status == 400 && answer.to_string().contains("not at this gateway"), "{answer}");
    // And what no node could ever run is refused here, before anything is stored.
    let put = Request::new("PUT", "/v1/artefacts").header("content-type", "application/octet-stream");
    let sent = Connection::open(gateway)?.exchange(&put.body(b"no model".to_vec()))?.json()?;
    let mut junk = body;
    junk["variants"][0]["artefact_sha256"] = sent["sha256"].clone();
    let answer = Connection::open(gateway)?.exchange(&Request::post("/v1/models").json(&junk))?;
    ensure!(answer.status == 400 && answer.to_string().contains("expected an ONNX model"), "{answer}");
    let found = Connection::open(gateway)?.exchange(&Request::get("/v1/models/fashion/nowhere"))?;
    ensure!(found.status == 404, "{found}");
    Ok(())
}

/// A later version is made the default when it was measured, and not before, whoever asks for it.
fn later(gateway: SocketAddr, package: &Path) -> Result<()> {
    let manifest = package.join("models/cnn_s.toml");
    let as_version = |version: u32| -> Result<()> {
        let text = fs::read_to_string(fashion().join("models/cnn_s.toml"))?;
        ensure!(text.contains("\nversion = 1\n"), "{text}");
        Ok(fs::write(&manifest, text.replace("\nversion = 1\n", &format!("\nversion = {version}\n")))?)
    };
    let default = || -> Result<Value> {
        let model = Connection::open(gateway)?.exchange(&Request::get("/v1/models/fashion/cnn_s"))?.json()?;
        let versions = model["versions"].as_array().context("versions")?;
        Ok(versions.iter().find(|version| version["default"] == true).context("a default")?["version"]
            .clone())
    };
    let read = |output: Output| -> Result<Value> {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}");
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    as_version(2)?;
    let told = read(register_with(gateway, package, &["--promote"])?)?;
    ensure!(told[0]["default"] == true && told[0]["variants"][0]["measured"] == true, "{told}");
    ensure!(default()? == 2, "{}", default()?);
    as_version(3)?;
    let told = read(register_with(gateway, package, &["--promote", "--no-wait"])?)?;
    ensure!(told[0]["default"] == false, "{told}");
    // Nobody waits for it, and it becomes the default all the same.
    wait::until(PATIENCE, || {
        Ok(if default()? == 3 { Ok(()) } else { Err("version 2 still is".to_owned()) })
    })?;
    // What was wished once is not granted again: who takes it back has said so last. Nodes look whenever the catalogue changes.
    let back = Request::post("/v1/models/fashion/cnn_s/rollback").json(&json!({"version": 3}));
    let back = Connection::open(gateway)?.exchange(&back)?;
    ensure!(back.status == 200 && default()? == 2, "{back}");
    as_version(4)?;
    read(register_with(gateway, package, &[])?)?;
    ensure!(default()? == 2, "{}", default()?);
    Ok(())
}

/// What nodes find out is told, and who mends it sends it again under the same name.
fn mended(gateway: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(gateway)?;
    let put = |connection: &mut Connection, file: Vec<u8>| -> Result<Value> {
        let put = Request::new("PUT", "/v1/artefacts").header("content-type", "application/octet-stream");
        Ok(connection.exchange(&put.body(file))?.json()?["sha256"].clone())
    };
    let whole = fs::read(fashion().join("models/cnn_s.onnx"))?;
    // Of a version of the operators that no engine knows; everything else is as it should be.
    let mut strange = whole.clone();
    ensure!(strange.ends_with(&[0x42, 0x02, 0x10, 13]), "its opset does not stand at its end");
    *strange.last_mut().context("an empty file")? = 127;
    let adapter = json!({"kind": "image-classification", "width": 28, "height": 28, "channels": "grey"});
    let mut body = json!({"task": "fashion", "name": "mended", "adapter": adapter, "declared_accuracy": 0.5,
        "variants": [{"precision": "fp32", "artefact_sha256": put(&mut connection, strange)?}]});
    let answer = connection.exchange(&Request::post("/v1/models").json(&body))?;
    ensure!(answer.status == 202, "{answer}");
    let variant = |connection: &mut Connection| -> Result<Value> {
        let model = connection.exchange(&Request::get("/v1/models/fashion/mended"))?.json()?;
        Ok(model["versions"][0]["variants"][0].clone())
    };
    wait::until(PATIENCE, || {
        let found = variant(&mut connection)?;
        let failed = found["measuring"][0]["state"] == "failed";
        Ok(if failed { Ok(()) } else { Err(found.to_string()) })
    })?;
    body["variants"][0]["artefact_sha256"] = put(&mut connection, whole)?;
    let answer = connection.exchange(&Request::post("/v1/models").json(&body))?;
    ensure!(answer.status == 202, "{answer}");
    wait::until(PATIENCE, || {
        let found = variant(&mut connection)?;
        Ok(if found["profiles"][0].is_object() { Ok(()) } else { Err(found.to_string()) })
    })?;
    let again = connection
        .exchange(&Request::post("/v1/models").json(&json!({"version": 1, "declared_accuracy": 0.6,
        "task": "fashion", "name": "mended", "adapter": adapter, "variants": body["variants"]})))?;
    ensure!(again.status == 409, "what was measured is not replaced: {again}");
    Ok(())
}

/// A node of a class that was never seen measures with the set that the model came with.
fn another_class(cluster: &mut Cluster, gateway: SocketAddr, own: &str) -> Result<()> {
    let class = format!("executor.device_class={OTHER}");
    cluster.executor("other", &["executor.lanes=1", &class, own])?;
    wait::until(PATIENCE, || {
        let all = variants(gateway)?;
        let there = all.iter().filter_map(|variant| {
            variant["profiles"].as_array()?.iter().find(|profile| profile["device_class"] == OTHER)
        });
        let there: Vec<&Value> = there.collect();
        // Once one was measured, the others are estimated by it until they are, with the accuracy that they have elsewhere.
        let measured = there.iter().filter(|profile| profile["accuracy"]["device_class"] == OTHER).count();
        if measured < all.len() {
            return Ok(Err(format!("{all:?}")));
        }
        for profile in there {
            ensure!(profile["accuracy"]["samples"] == 2_000, "{profile}");
        }
        Ok(Ok(()))
    })
    .with_context(|| cluster.output())?;
    ensure!(cluster.drain("late")?.success(), "late did not end well");
    answered_by(gateway, &["other"]).with_context(|| cluster.output())?;
    Ok(())
}
