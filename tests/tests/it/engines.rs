//! One trained network on several engines, as variants of one task.

use anyhow::{Context, Result, bail, ensure};
use modelless_testkit::{Request, Server};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// How far the logits of two engines may lie apart.
const TOLERANCE: f64 = 1e-3;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/fashion-engines")
}

/// The example without the variants of some engines, in a folder of its own.
fn package(without: &[&str]) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let fashion = example().join("../fashion").canonicalize()?;
    let here = |text: &str| text.replace("../../fashion/", &format!("{}/", fashion.display()));
    let task = fs::read_to_string(example().join("task.toml"))?;
    fs::write(
        folder.path().join("task.toml"),
        task.replace("../fashion/", &format!("{}/", fashion.display())),
    )?;
    let model = here(&fs::read_to_string(example().join("models/cnn_m.toml"))?);
    let (head, variants) = model.split_once("[[variants]]").context("no variants")?;
    let kept = variants
        .split("[[variants]]")
        .filter(|variant| !without.iter().any(|engine| variant.contains(&format!("engine = \"{engine}\""))));
    let kept: String = kept.flat_map(|variant| ["[[variants]]", variant]).collect();
    fs::create_dir(folder.path().join("models"))?;
    fs::write(folder.path().join("models/cnn_m.toml"), format!("{head}{kept}"))?;
    Ok(folder)
}

fn register(server: &Server, package: &Path) -> Result<()> {
    let package = package.to_str().context("a plain path")?;
    let done = server.command(&["model", "register", package, "--server", &server.url()])?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn logits(server: &Server, variant: &str) -> Result<Vec<f64>> {
    let pixels: Vec<f32> = (0..784_u16).map(|i| f32::from(i % 17) / 16.0).collect();
    let target = format!("/v1/tasks/fashion-engines?variant={variant}&latency_ms=20000");
    let answer = server.send(&Request::post(&target).json(&serde_json::json!({"inputs": pixels})))?;
    ensure!(answer.status == 200, "{variant}: {}", answer.text());
    ensure!(answer.header("modelless-variant") == Some(variant), "{variant}: another one answered");
    let data = &answer.json()?["outputs"]["logits"]["data"];
    Ok(data.as_array().context("no logits")?.iter().filter_map(Value::as_f64).collect())
}

fn shown(server: &Server) -> Result<Vec<Value>> {
    let task = server.get_json("/v1/tasks/fashion-engines")?;
    Ok(task["variants"].as_array().context("no variants")?.clone())
}

/// Two engines take different times for the same network: at some batch size by a fiftieth at least, which is more than
/// what is measured of one thing twice need differ in all of its sizes at once.
const APART: f64 = 0.02;

/// Each variant has one profile of its own, with measured times; and of any two the times differ by
/// [`APART`] at some size.
fn differ(variants: &[&str], profiles: &[Value]) -> Result<()> {
    let mut known: Vec<(&str, Vec<(u64, f64)>)> = Vec::new();
    for (name, profiles) in variants.iter().zip(profiles) {
        let [profile] = profiles.as_array().map(Vec::as_slice).unwrap_or_default() else {
            bail!("{name} has not one profile: {profiles}")
        };
        let latency = &profile["latency"];
        ensure!(latency["provenance"] == "measured", "{name}: {latency}");
        let latency = latency["by_batch"].as_array().context("no times")?;
        let point = |point: &Value| Some((point["batch"].as_u64()?, point["mean_ms"].as_f64()?));
        let times: Vec<_> = latency.iter().filter_map(point).collect();
        ensure!(times.len() == latency.len() && times.len() >= 4, "{name}: {latency:?}");
        ensure!(times.iter().all(|(_, mean)| *mean > 0.0), "{name}: {times:?}");
        for (other, theirs) in &known {
            // Each is measured at the sizes where its own curve bends.
            let both = times.iter().filter_map(|(batch, mine)| {
                let (_, its) = theirs.iter().find(|(other, _)| other == batch)?;
                Some(((mine - its).abs() / its, *batch))
            });
            let both: Vec<_> = both.collect();
            ensure!(
                both.len() >= 2,
                "{name} and {other} were measured at other sizes: {times:?}, {theirs:?}"
            );
            let (furthest, batch) = both.into_iter().fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a });
            ensure!(
                furthest >= APART,
                "the times of {name} and {other} differ by {furthest} at most, at batches of {batch}"
            );
        }
        known.push((name, times));
    }
    Ok(())
}

/// All of them serve one task: each answers when it is pinned, alike, and was measured for itself.
fn serve_one_task(without: &[&str], variants: &[&str]) -> Result<()> {
    let (data, package) = (tempfile::tempdir()?, package(without)?);
    let server = Server::builder().data(data.path()).start()?;
    register(&server, package.path())?;
    let first = logits(&server, variants[0])?;
    for variant in &variants[1..] {
        let other = logits(&server, variant)?;
        ensure!(other.len() == 10, "{other:?}");
        let furthest = first.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        ensure!(furthest < TOLERANCE, "{variant} differs from {} by {furthest}", variants[0]);
    }
    let shown = shown(&server)?;
    let profiles =
        |name: &&str| Some(shown.iter().find(|variant| variant["name"] == **name)?["profiles"].clone());
    let profiles: Vec<Value> = variants.iter().filter_map(profiles).collect();
    ensure!(profiles.len() == variants.len(), "{shown:?}");
    differ(variants, &profiles)?;
    server.stop()
}

#[test]
fn two_engines_serve_one_task_with_profiles_of_their_own() -> Result<()> {
    serve_one_task(&["torch"], &["cnn_m-onnx", "cnn_m-openvino"])
}

#[cfg(feature = "torch")]
#[test]
fn three_engines_with_torch_serve_one_task_with_profiles_of_their_own() -> Result<()> {
    serve_one_task(&[], &["cnn_m-onnx", "cnn_m-openvino", "cnn_m-torch"])
}

#[test]
fn a_variant_whose_engine_is_gone_is_shown_with_the_reason_and_the_rest_serve() -> Result<()> {
    let (data, package, engines) = (tempfile::tempdir()?, package(&["torch"])?, tempfile::tempdir()?);
    let server = Server::builder().data(data.path()).start()?;
    register(&server, package.path())?;
    let onnx = server.command(&["engine", "list", "--json"])?;
    let listed: Value = serde_json::from_slice(&onnx.stdout)?;
    let library = listed[0]["library"].as_str().context("no library")?.to_owned();
    server.stop()?;

    // The same data where only ONNX Runtime is installed.
    let server = Server::builder()
        .data(data.path())
        .env("MODELLESS_ENGINES", engines.path())
        .env("ORT_DYLIB_PATH", library)
        .start()?;
    logits(&server, "cnn_m-onnx")?;
    for variant in shown(&server)? {
        let (engine, why) = (variant["engine"].as_str(), variant["unavailable"].as_str());
        if engine == Some("openvino") {
            ensure!(why.is_some_and(|why| why.contains("modelless engine install openvino")), "{variant}");
        } else {
            ensure!(why.is_none(), "{variant}");
        }
    }
    let warnings = server.get_json("/v1/nodes")?.to_string();
    ensure!(warnings.contains("2 variants cannot run: openvino is not available"), "{warnings}");
    let explained = server.get_json("/v1/tasks/fashion-engines/explain")?.to_string();
    ensure!(explained.contains("the engine openvino is not available: it is not installed"), "{explained}");
    server.stop()
}
