//! A second version of a model: tried, promoted under load, taken back, removed. On SQLite and on Postgres.

use crate::database::{Database, on_both_databases};
use crate::demo::{Answer, Demo, ask, fashion};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Connection, wait};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

on_both_databases! {
    a_second_version_is_tried_promoted_under_load_taken_back_and_removed,
}

const PATIENCE: Duration = Duration::from_mins(1);
/// Who asks while the version changes.
const ASKERS: usize = 4;

/// What says it is version 2 of `cnn_s` is another network.
fn write_second(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::copy(fashion().join("models/cnn_m.onnx"), folder.join("better.onnx"))?;
    let manifest = "name = \"cnn_s\"\ntask = \"fashion\"\nversion = 2\nowner = \"vision team\"\nlicence = \"Apache-2.0\"\n\
                    artefact = \"better.onnx\"\n[adapter]\nkind = \"image-classification\"\nwidth = 28\nheight = 28\n\
                    channels = \"grey\"\n";
    Ok(fs::write(folder.join("model.toml"), manifest)?)
}

/// A command that must go well, and what it says to programs.
fn told(demo: &Demo, args: &[&str]) -> Result<Value> {
    let url = demo.server.url();
    let all = [args, &["--json", "--server", &url]].concat();
    let output = demo.server.command(&all)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{args:?}: {said}\n{}", demo.server.output());
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A command that must not go well, and why.
fn refused(demo: &Demo, args: &[&str]) -> Result<String> {
    let url = demo.server.url();
    let output = demo.server.command(&[args, &["--server", &url]].concat())?;
    ensure!(!output.status.success(), "{args:?} went well: {}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn register(demo: &Demo, folder: &Path) -> Result<Value> {
    let set = fashion().join("sample/sample-2000-images-idx3-ubyte.gz");
    let (folder, set) = (folder.to_str().context("a plain path")?, set.to_str().context("a plain path")?);
    told(demo, &["model", "register", folder, "--set", set, "--set-name", "sample"])
}

fn default_of(demo: &Demo) -> Result<Vec<u64>> {
    let shown = told(demo, &["model", "show", "cnn_s"])?;
    let versions = shown["versions"].as_array().context("versions")?.iter();
    Ok(versions
        .filter(|model| model["default"] == true)
        .filter_map(|model| model["version"].as_u64())
        .collect())
}

/// Asks for the model by its name, without a pause until told to stop. Which variants answered, how often; any other end than
/// an answer is an error.
fn ask_on(address: SocketAddr, stop: &AtomicBool) -> Result<[u64; 2]> {
    let request = ask("boot.png", "?model=cnn_s");
    let mut connection = Connection::open(address)?;
    let mut answered = [0; 2];
    while !stop.load(Ordering::Acquire) {
        let answer = Answer::of(&connection.exchange(&request)?)?;
        ensure!(answer.model == "cnn_s" && answer.label == "Ankle boot", "{answer:?}");
        answered[usize::from(answer.variant == "cnn_s-v2-fp32")] += 1;
    }
    Ok(answered)
}

/// Asks on while something is done. How often each version answered.
fn under_load(demo: &Demo, act: impl FnOnce() -> Result<()>) -> Result<[u64; 2]> {
    let (address, stop) = (demo.server.address(), AtomicBool::new(false));
    thread::scope(|scope| {
        let askers: Vec<_> = (0..ASKERS).map(|_| scope.spawn(|| ask_on(address, &stop))).collect();
        let acted = act();
        stop.store(true, Ordering::Release);
        let mut all = [0; 2];
        for asker in askers {
            let [one, two] = asker.join().expect("an asker does not panic")?;
            all = [all[0] + one, all[1] + two];
        }
        acted.map(|()| all)
    })
    .with_context(|| demo.server.output())
}

/// Until queries that name the model are answered by a variant of this name.
fn answered_by(demo: &Demo, wanted: &str) -> Result<()> {
    wait::until(PATIENCE, || {
        let answer = demo.answer("boot.png", "?model=cnn_s")?;
        Ok(if answer.variant.starts_with(wanted) { Ok(()) } else { Err(format!("{answer:?}")) })
    })
}

fn a_second_version_is_tried_promoted_under_load_taken_back_and_removed(database: Database) -> Result<()> {
    let demo = Demo::start_on(database, &[])?;
    let folder = demo.place.folder.path().join("second");
    write_second(&folder)?;
    let registered = register(&demo, &folder)?;
    ensure!(registered[0]["default"] == false && registered[0]["owner"] == "vision team", "{registered}");
    // Doing it again changes nothing and measures nothing.
    let again = register(&demo, &folder)?;
    ensure!(again[0]["id"] == registered[0]["id"], "{again}");
    ensure!(default_of(&demo)? == [1]);

    // It is more accurate than what answers, and answers only who asks for it.
    let listed = told(&demo, &["variant", "list", "fashion"])?;
    let of = |name: &str| {
        let all = listed["variants"].as_array().into_iter().flatten();
        all.clone().find(|variant| variant["name"] == name).with_context(|| format!("{name} in {listed}"))
    };
    let (first, second) = (of("cnn_s-fp32")?, of("cnn_s-v2-fp32")?);
    ensure!(
        second["default"] == false && second["profiles"][0]["accuracy"]["provenance"] == "measured",
        "{second}"
    );
    let value = |of: &Value| of["accuracy"].as_f64().unwrap_or(0.0);
    ensure!(value(second) > value(first), "{first} {second}");
    for goals in ["?model=cnn_s", "?model=cnn_s@1"] {
        ensure!(demo.answer("boot.png", goals)?.variant != "cnn_s-v2-fp32", "{goals}");
    }
    for goals in ["?model=cnn_s@2", "?variant=cnn_s-v2-fp32"] {
        let answer = demo.answer("boot.png", goals)?;
        ensure!(answer.variant == "cnn_s-v2-fp32" && answer.model == "cnn_s", "{goals}: {answer:?}");
    }

    let promoted = under_load(&demo, || {
        answered_by(&demo, "cnn_s-")?;
        told(&demo, &["model", "promote", "cnn_s", "--version", "2"])?;
        // The next query after the answer to that.
        ensure!(demo.answer("boot.png", "?model=cnn_s")?.variant == "cnn_s-v2-fp32");
        Ok(())
    })?;
    ensure!(promoted[0] > 0, "they asked before it was promoted: {promoted:?}");
    ensure!(default_of(&demo)? == [2]);
    let taken_back = under_load(&demo, || {
        wait::until(PATIENCE, || {
            let answer = demo.answer("boot.png", "?model=cnn_s")?;
            Ok(if answer.variant == "cnn_s-v2-fp32" { Ok(()) } else { Err(format!("{answer:?}")) })
        })?;
        told(&demo, &["model", "rollback", "cnn_s"])?;
        ensure!(demo.answer("boot.png", "?model=cnn_s")?.variant != "cnn_s-v2-fp32");
        Ok(())
    })?;
    ensure!(taken_back[1] > 0, "they asked before it was taken back: {taken_back:?}");
    ensure!(default_of(&demo)? == [1]);
    let why = refused(&demo, &["model", "rollback", "cnn_s"])?;
    ensure!(why.contains("no earlier one"), "{why}");

    told(&demo, &["model", "promote", "cnn_s", "--version", "2"])?;
    let why = refused(&demo, &["model", "remove", "cnn_s", "--version", "2"])?;
    ensure!(why.contains("default version") && why.contains("version 1"), "{why}");
    told(&demo, &["model", "remove", "cnn_s", "--version", "2", "--force"])?;
    ensure!(default_of(&demo)? == [1]);
    answered_by(&demo, "cnn_s-")?;
    let answer = demo.answer("boot.png", "?model=cnn_s")?;
    ensure!(answer.variant != "cnn_s-v2-fp32", "{answer:?}");
    let history = told(&demo, &["model", "show", "cnn_s"])?["history"].clone();
    let actions: Vec<_> =
        history.as_array().context("a history")?.iter().map(|one| one["action"].clone()).collect();
    ensure!(actions[..5] == ["removed", "promoted", "rolled_back", "promoted", "registered"], "{history}");
    ensure!(history[0]["who"].as_str().is_some_and(|who| !who.is_empty()), "{history}");
    demo.server.stop()
}
