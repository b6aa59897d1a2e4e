//! What was measured in a hurry: served with what is known of it, measured again once nothing is asked, and making way for whatever
//! somebody registers meanwhile.

use crate::database::Database;
use crate::demo::{Place, ask, fashion};
use anyhow::{Context, Result, ensure};
use modelless_testkit::{Server, wait};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(2);

/// Registers the demo's largest model under another name, measured for no longer than a second. Gives back what was said.
fn register(server: &Server, folder: &Path, name: &str) -> Result<String> {
    fs::create_dir_all(folder.join("models"))?;
    let manifest = fs::read_to_string(fashion().join("models/cnn_l.toml"))?;
    let (head, _) = manifest.split_once("[[variants]]").context("a manifest with variants")?;
    let head = head.replacen("name = \"cnn_l\"", &format!("name = \"{name}\""), 1);
    // With a setting of its own, for what the demo has measured whole would be found again.
    let most = if name == "one" { 30 } else { 31 };
    let variant = format!("[[variants]]\nprecision = \"fp32\"\nfile = \"cnn_l.onnx\"\nmax_batch = {most}\n");
    fs::write(folder.join(format!("models/{name}.toml")), head + &variant)?;
    for file in [
        "task.toml",
        "measured-10000.json",
        "models/cnn_l.onnx",
        "sample/sample-2000-images-idx3-ubyte.gz",
        "sample/sample-2000-labels-idx1-ubyte.gz",
    ] {
        let to = folder.join(file);
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(fashion().join(file), to).context(file)?;
    }
    let path = folder.to_str().context("a path")?;
    let url = server.url();
    let registered = server.command(&["model", "register", path, "--budget", "1s", "--server", &url])?;
    let said = String::from_utf8_lossy(&registered.stderr).into_owned();
    ensure!(registered.status.success(), "{said}");
    Ok(said)
}

fn variant(server: &Server, model: &str) -> Result<Value> {
    let page = server.get_json(&format!("/v1/models/fashion/{model}"))?;
    Ok(page["versions"][0]["variants"][0].clone())
}

#[test]
fn what_was_measured_in_a_hurry_is_measured_again_and_makes_way_for_a_registration() -> Result<()> {
    let place = Place::new(Database::Sqlite)?;
    let server = place.start(&[])?;
    let folder = modelless_testkit::temp_dir("hurried")?;
    let said = register(&server, &folder.path().join("one"), "one")?;
    ensure!(
        said.contains("-fp32 (1 of 1, about") && said.contains(" left)"),
        "it says how long is left: {said}"
    );
    let first = variant(&server, "one")?;
    ensure!(first["profiles"][0]["coarse"] == true, "a second is too short: {first}");
    wait::until(PATIENCE, || {
        let now = variant(&server, "one")?;
        let progress = now["measuring"][0]["progress"].as_str().unwrap_or_default();
        let at_it = ["loading", "timing", "labelled"].iter().any(|word| progress.contains(word));
        Ok(if at_it { Ok(()) } else { Err(now.to_string()) })
    })?;
    // It takes several seconds, which nobody who registers waits for.
    register(&server, &folder.path().join("two"), "two")?;
    let after = variant(&server, "one")?;
    ensure!(after["profiles"][0]["coarse"] == true, "it went on to its end first: {after}");

    for model in ["one", "two"] {
        wait::until(PATIENCE, || {
            let now = variant(&server, model)?;
            let profile = &now["profiles"][0];
            let well = profile["coarse"] == false && profile["part_of_set"] == false;
            Ok(if well && profile["accuracy"]["samples"] == 2_000 { Ok(()) } else { Err(now.to_string()) })
        })?;
    }
    server.stop()
}

#[test]
fn up_is_ready_within_its_budget_and_what_it_knows_coarsely_then_is_refined_while_nothing_is_asked()
-> Result<()> {
    let server = Server::builder().arg("--demo").arg("--budget").arg("4s").start()?;
    let said = server.output();
    for words in [
        "measuring 13 variants, at most 4.0 s",
        "(1 of 13, about",
        "only coarsely",
        "measured again when nothing",
    ] {
        ensure!(said.contains(words), "{words}: {said}");
    }
    let coarse = |server: &Server| -> Result<Vec<String>> {
        let page = server.get_json("/v1/variants?task=fashion")?;
        let all = page["variants"].as_array().context("variants")?;
        ensure!(all.len() == 12, "{page}");
        let coarse = all.iter().filter(|variant| variant["profiles"][0]["coarse"] == true);
        Ok(coarse.filter_map(|variant| variant["name"].as_str().map(str::to_owned)).collect())
    };
    let before = coarse(&server)?;
    ensure!(before.len() > 6, "a third of a second each is too short: {before:?}");
    // There is a usable frontier meanwhile.
    let answer = server.connect()?.exchange(&ask("boot.png", "?accuracy=0.8"))?;
    ensure!(answer.status == 200, "{}", answer.text());
    wait::until(PATIENCE, || {
        let now = coarse(&server)?;
        Ok(if now.len() + 2 <= before.len() { Ok(()) } else { Err(format!("{now:?} of {before:?}")) })
    })?;
    server.stop()
}
