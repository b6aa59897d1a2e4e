//! A variant on a server of others beside one that runs here: measured like it, and chosen by what each costs.

use anyhow::{Context, Result, ensure};
use modelless_testkit::{Request, Server};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn peer() -> Result<String> {
    std::env::var("MODELLESS_TEST_PEER_GRPC")
        .context("MODELLESS_TEST_PEER_GRPC names no server; `cargo xtask test --only remote` starts one")
}

/// One network, on ONNX Runtime here and on the server.
fn write_package(folder: &Path, server: &str) -> Result<()> {
    let fashion = examples().join("fashion").canonicalize()?;
    let task = fs::read_to_string(examples().join("fashion-engines/task.toml"))?;
    fs::write(folder.join("task.toml"), task.replace("../fashion/", &format!("{}/", fashion.display())))?;
    fs::create_dir(folder.join("models"))?;
    let artefact = json!({"url": server, "model": "cnn_m"});
    fs::write(folder.join("models/there.json"), artefact.to_string())?;
    let model = format!(
        "name = \"cnn_m\"\narchitecture = \"cnn\"\nlicence = \"Apache-2.0\"\n[adapter]\nkind = \"tensor\"\n\
         [[variants]]\nname = \"here\"\nprecision = \"fp32\"\nfile = \"{}/models/cnn_m.onnx\"\n\
         [[variants]]\nname = \"there\"\nengine = \"remote\"\nprecision = \"fp32\"\nfile = \"there.json\"\nmax_batch = 8\n",
        fashion.display()
    );
    Ok(fs::write(folder.join("models/cnn_m.toml"), model)?)
}

/// A lane costs a dollar an hour, the server what is said.
fn start(data: &Path, server: &str, price: &str) -> Result<Server> {
    let file = data.with_extension("toml");
    fs::write(&file, format!("price = 1.0\n[remotes.\"{server}\"]\nprice = {price}\n"))?;
    Server::builder().data(data).arg("--node-file").arg(file).start()
}

/// Who answers, and what it says it cost.
fn ask(server: &Server, goals: &str) -> Result<(String, f64)> {
    let pixels: Vec<f32> = (0..784_u16).map(|i| f32::from(i % 17) / 16.0).collect();
    let target = format!("/v1/tasks/fashion-engines?latency_ms=20000&{goals}");
    let answer = server.send(&Request::post(&target).json(&json!({"inputs": pixels})))?;
    ensure!(answer.status == 200, "{goals}: {}", answer.text());
    let variant = answer.header("modelless-variant").context("no variant")?.to_owned();
    let cost = answer.header("modelless-cost").context("no cost")?.parse()?;
    Ok((variant, cost))
}

/// Brings both into memory, so that only their prices differ.
fn wake(server: &Server) -> Result<()> {
    for variant in ["here", "there"] {
        ensure!(ask(server, &format!("variant={variant}"))?.0 == variant);
    }
    Ok(())
}

/// Cost of one query, and price of an hour, as explained.
fn explained(server: &Server, variant: &str) -> Result<(f64, f64)> {
    let explained = server.get_json("/v1/tasks/fashion-engines/explain?latency_ms=20000&prefer=cost")?;
    let all = explained["candidates"].as_array().context("no candidates")?;
    let candidate = all.iter().find(|c| c["variant"] == variant).context("not explained")?;
    let number = |name: &str| candidate[name].as_f64().with_context(|| format!("no {name}: {candidate}"));
    Ok((number("cost")?, number("price_usd_per_hour")?))
}

#[test]
fn a_remote_variant_is_measured_like_any_other_and_chosen_by_its_servers_price() -> Result<()> {
    let peer = peer()?;
    let (folder, package) = (tempfile::tempdir()?, tempfile::tempdir()?);
    write_package(package.path(), &peer)?;
    let data = folder.path().join("data");
    let server = start(&data, &peer, "0.001")?;
    let path = package.path().to_str().context("a plain path")?;
    let done = server.command(&["model", "register", path, "--server", &server.url()])?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    // Its own profile: measured here, through the engine, on the same labelled set.
    let task = server.get_json("/v1/tasks/fashion-engines")?;
    let variants = task["variants"].as_array().context("no variants")?;
    let profile = |name: &str| -> Result<Value> {
        let variant = variants.iter().find(|variant| variant["name"] == name).context("not there")?;
        Ok(variant["profiles"][0].clone())
    };
    let (here, there) = (profile("here")?, profile("there")?);
    ensure!(there["latency"]["provenance"] == "measured", "{there}");
    let batches: Vec<_> =
        there["latency"]["by_batch"].as_array().context("no batches")?.iter().map(|b| &b["batch"]).collect();
    // As far as its throughput grew, and no further than it takes.
    ensure!(batches.len() >= 3 && *batches[0] == 1, "{there}");
    ensure!(batches.iter().all(|batch| batch.as_u64().is_some_and(|batch| batch <= 8)), "{there}");
    ensure!(there["latency"] != here["latency"]);
    ensure!(
        there["accuracy"]["provenance"] == "measured" && there["accuracy"]["samples"] == 2_000,
        "{there}"
    );
    // The same weights: the same classes, but for ties.
    let accuracy = |profile: &Value| profile["accuracy"]["value"].as_f64().context("no accuracy");
    ensure!((accuracy(&here)? - accuracy(&there)?).abs() < 0.002, "{here} {there}");

    wake(&server)?;
    let ((dear, lane), (cheap, hour)) = (explained(&server, "here")?, explained(&server, "there")?);
    ensure!((lane - 1.0).abs() < 1e-9 && (hour - 0.001).abs() < 1e-9, "{lane} {hour}");
    ensure!(cheap * 4.0 < dear, "{cheap} there, {dear} here");
    let (chosen, cost) = ask(&server, "prefer=cost")?;
    ensure!(chosen == "there" && cost < dear, "{chosen} at {cost}");
    // A ceiling that only the server's price is below.
    let ceiling = dear / 2.0;
    ensure!(ask(&server, &format!("prefer=latency&max_cost={ceiling:.12}"))?.0 == "there");
    server.stop()?;

    let server = start(&data, &peer, "900")?;
    wake(&server)?;
    ensure!(ask(&server, "prefer=cost")?.0 == "here");
    let shown =
        server.command(&["explain", "fashion-engines", "--prefer", "cost", "--server", &server.url()])?;
    let shown = String::from_utf8(shown.stdout)?;
    ensure!(shown.contains("900"), "{shown}");
    server.stop()
}
