//! Measuring a package from the command line.

use crate::demo::fashion;
use anyhow::{Context, Result, ensure};
use modelless_testkit::server;
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn one_variant_that_cannot_be_measured_takes_nothing_from_the_others() -> Result<()> {
    let package = modelless_testkit::temp_dir("profiling")?;
    for file in [
        "task.toml",
        "measured-10000.json",
        "models/cnn_s.toml",
        "models/cnn_s.onnx",
        "models/linear.toml",
        "models/linear.onnx",
        "models/linear.int8.onnx",
        "sample/sample-2000-images-idx3-ubyte.gz",
        "sample/sample-2000-labels-idx1-ubyte.gz",
    ] {
        let to = package.path().join(file);
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(fashion().join(file), to).context(file)?;
    }
    // The first of them.
    fs::write(package.path().join("models/cnn_s.int8.onnx"), "no model")?;
    let out = package.path().join("profiles.json");
    let ran = Command::new(server::binary()?)
        .args(["profile", "run", "--json", "--budget", "6s", "--out"])
        .args([&out, &package.path().to_path_buf()])
        .args(["--variant", "cnn_s-int8", "--variant", "linear-fp32", "--variant", "linear-int8"])
        .output()?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    ensure!(ran.status.code() == Some(1), "{:?}: {said}", ran.status);
    ensure!(said.contains("1 of 3 variants not measured") && said.contains("cnn_s-int8"), "{said}");
    let names = |all: &Value| -> Vec<Value> {
        all.as_array().into_iter().flatten().map(|one| one["variant"].clone()).collect()
    };
    let printed = names(&serde_json::from_slice(&ran.stdout).context("what it printed")?);
    ensure!(printed == ["linear-fp32", "linear-int8"], "{printed:?}");
    let written: Value = serde_json::from_slice(&fs::read(&out)?)?;
    ensure!(names(&written["profiles"]) == printed, "{written}");
    Ok(())
}
