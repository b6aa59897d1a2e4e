//! Jobs from the command line to the files, at a small server.

use super::server::{Played, Server};
use super::*;
use crate::exit::{Partly, Usage};
use clap::Parser;
use modelless_testkit::{TempDir, temp_dir};
use std::fs;
use std::path::PathBuf;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// A folder with inputs, and a server.
struct Tried {
    server: Server,
    temp: TempDir,
}

impl Tried {
    fn new(inputs: &[&str]) -> Self {
        let tried = Self { server: Server::start(), temp: temp_dir("job").unwrap() };
        for name in inputs {
            let path = tried.at("in").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        tried
    }

    fn at(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn job(&self, args: &[&str]) -> anyhow::Result<()> {
        let all = [&["job"], args, &["--server", &self.server.url]].concat();
        run(Line::try_parse_from(all).unwrap().command)
    }

    fn submit(&self, more: &[&str]) -> anyhow::Result<()> {
        let (input, output) = (self.at("in"), self.at("out"));
        let input = if input.exists() { input } else { self.at("in.jsonl") };
        let args = ["submit", "t", "--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        self.job(&[&args, more].concat())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at("out").join(name)).unwrap_or_else(|_| format!("no {name}"))
    }

    /// What lies in the folder of outputs and is no file of ours.
    fn outputs(&self) -> Vec<String> {
        let (found, _) = walk::files(&self.at("out"), None, 1_000).unwrap();
        found
    }
}

#[test]
fn each_input_of_a_folder_gets_its_output_beside_the_bill() {
    let tried = Tried::new(&["a.png", "sub/b.txt", "c"]);
    tried.server.end_at_each_look(2);
    tried.submit(&["--accuracy", "0.8", "--deadline", "2h", "--name", "boots"]).unwrap();
    assert_eq!(tried.outputs(), ["a.png.json", "c.json", "job.json", "sub/b.txt.json"]);
    assert_eq!(tried.read("sub/b.txt.json"), "{\"at\":2,\"of\":\"sub/b.txt\"}\n");
    let bill: Value = serde_json::from_str(&tried.read("job.json")).unwrap();
    assert_eq!((&bill["state"], &bill["done"]), (&Value::from("done"), &Value::from(3)));
    assert_eq!((bill["name"].as_str(), bill["goals"]["accuracy"].as_f64()), (Some("boots"), Some(0.8)));
    assert_eq!(tried.server.asked_for("POST /v1/jobs?dry_run"), 1, "it is told beforehand what it costs");
    // The same again asks nobody.
    let asked = tried.server.asked();
    tried.submit(&["--accuracy", "0.8", "--deadline", "2h"]).unwrap();
    assert_eq!(tried.server.asked(), asked);
    // Another is refused, and is told what to do.
    for other in [&["--accuracy", "0.9", "--deadline", "2h"][..], &["--accuracy", "0.8"]] {
        let error = tried.submit(other).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("--again"), "{error}");
    }
    fs::write(tried.at("in/c"), "another").unwrap();
    let error = tried.submit(&["--accuracy", "0.8", "--deadline", "2h"]).unwrap_err();
    assert!(error.to_string().contains("inputs have changed"), "{error}");
}

#[test]
fn a_job_that_was_interrupted_goes_on_where_it_was() {
    let tried = Tried::new(&["a", "b", "c", "d"]);
    tried.submit(&["--detach"]).unwrap();
    assert_eq!(tried.outputs(), [""; 0]);
    // As if some inputs had not come, and the answer to its start was lost.
    tried.server.lose(0, 1);
    tried.server.lose(0, 3);
    tried.server.receiving(0);
    tried.server.play([Played::Pass, Played::Pass, Played::Pass, Played::BreakOff]);
    // And as if it had ended while outputs were written: one is there, another was begun.
    fs::write(tried.at("out/a.json"), "there").unwrap();
    fs::write(tried.at("out/.modelless-job.part"), "{\"of").unwrap();
    tried.submit(&[]).unwrap();
    assert_eq!(tried.outputs(), ["a.json", "b.json", "c.json", "d.json", "job.json"]);
    assert_eq!((tried.read("a.json").as_str(), tried.read("b.json").contains("\"at\":1")), ("there", true));
    assert_eq!(tried.server.again(0), 0, "only what was missing is sent");
    assert_eq!(tried.server.asked_for("POST /v1/jobs?dry_run"), 1);
    assert_eq!(tried.server.input(0, 3)["data"], "ZA==");
    assert_eq!(fs::read_dir(tried.at("out")).unwrap().count(), 7, "nothing is left that was begun");
}

#[test]
fn lines_come_back_as_lines_in_order_and_what_failed_is_told_apart() {
    let tried = Tried::new(&[]);
    let line = |name: &str| format!("{{\"inputs\": 1, \"name\": \"{name}\"}}\n");
    fs::write(tried.at("in.jsonl"), ["x", "bad", "x", "../y"].map(line).concat()).unwrap();
    let error = tried.submit(&[]).unwrap_err();
    assert!(error.is::<Partly>() && error.to_string().contains("1 of its 4"), "{error}");
    assert_eq!(tried.outputs(), ["failures.jsonl", "job.json", "outputs.jsonl"]);
    let lines: Vec<Value> =
        tried.read("outputs.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> =
        lines.iter().map(|line| (&line["at"], &line["name"], line["answer"].is_object())).collect();
    let [x, bad, y] = ["x", "bad", "../y"].map(Value::from);
    let places: Vec<Value> = (0..4).map(Value::from).collect();
    assert_eq!(
        told,
        [(&places[0], &x, true), (&places[1], &bad, false), (&places[2], &x, true), (&places[3], &y, true)]
    );
    assert_eq!(tried.read("failures.jsonl").lines().count(), 1);
    // Again it ends alike.
    assert!(tried.submit(&[]).unwrap_err().is::<Partly>());
}

#[test]
fn a_new_job_in_the_same_folder_leaves_no_output_of_the_old_one() {
    let tried = Tried::new(&["a", "b"]);
    tried.submit(&[]).unwrap();
    fs::write(tried.at("out/a.json"), "of old").unwrap();
    fs::write(tried.at("in/b"), "changed").unwrap();
    assert!(tried.submit(&[]).unwrap_err().is::<Usage>());
    tried.server.fail("b");
    assert!(tried.submit(&["--again"]).unwrap_err().is::<Partly>());
    assert_eq!(tried.outputs(), ["a.json", "failures.jsonl", "job.json"]);
    assert!(tried.read("a.json").contains("\"of\":\"a\""));
    assert!(tried.read("job.json").contains("\"job\": 1"));
}

#[test]
fn a_cancelled_job_gives_what_it_has_and_says_what_it_has_not() {
    let tried = Tried::new(&["a", "b", "c"]);
    tried.server.end_at_each_look(1);
    tried.submit(&["--detach"]).unwrap();
    tried.job(&["show", "0"]).unwrap();
    let error = tried.job(&["fetch", "0", "--output", tried.at("early").to_str().unwrap()]).unwrap_err();
    assert!(error.to_string().contains("job wait 0"), "{error}");
    tried.job(&["cancel", "0"]).unwrap();
    assert!(tried.job(&["wait", "0"]).unwrap_err().is::<Partly>());
    assert!(tried.submit(&[]).unwrap_err().is::<Partly>());
    assert_eq!(tried.outputs(), ["a.json", "b.json", "failures.jsonl", "job.json"]);
    assert!(tried.read("failures.jsonl").contains("\"reason\":\"job_cancelled\""));
}

#[test]
fn outputs_are_fetched_by_another_and_none_is_lost_or_leaves_the_folder() {
    let tried = Tried::new(&[]);
    let fetch = |folder: &str, more: &[&str]| {
        let folder = tried.at(folder);
        tried.job(&[&["fetch", "0", "--output", folder.to_str().unwrap()], more].concat())
    };
    let line = |name: &str| format!("{{\"inputs\": 1, \"name\": \"{name}\"}}\n");
    for (names, said) in [(["x", "../y"], "outside"), (["x", "./x"], "two inputs")] {
        fs::write(tried.at("in.jsonl"), names.map(line).concat()).unwrap();
        tried.submit(&["--again"]).unwrap();
        let number = tried.server.jobs() - 1;
        let folder = tried.at(said);
        let args = ["fetch", &number.to_string(), "--output", folder.to_str().unwrap()];
        let error = tried.job(&args).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("--lines"), "{error}");
        assert!(!tried.at("y.json").exists());
    }
    fetch("lines", &["--lines"]).unwrap();
    assert_eq!(fs::read_to_string(tried.at("lines/outputs.jsonl")).unwrap().lines().count(), 2);
    fetch("lines", &[]).unwrap();
    fs::create_dir(tried.at("mine")).unwrap();
    fs::write(tried.at("mine/letter"), "dear").unwrap();
    assert!(fetch("mine", &[]).unwrap_err().is::<Usage>());
    tried.job(&["remove", "0"]).unwrap();
    assert!(fetch("gone", &[]).unwrap_err().to_string().contains("unknown_job"));
}

#[test]
fn a_server_that_forgot_the_job_or_has_another_by_its_number_is_told_of() {
    let tried = Tried::new(&["a"]);
    tried.submit(&["--detach"]).unwrap();
    let state = tried.at("out/.modelless-job.json");
    let kept = fs::read_to_string(&state).unwrap();
    fs::write(&state, kept.replace("\"made_unix_us\": 1000", "\"made_unix_us\": 999")).unwrap();
    assert!(tried.submit(&[]).unwrap_err().to_string().contains("--again"));
    fs::write(&state, kept).unwrap();
    tried.server.forget(0);
    let error = tried.submit(&[]).unwrap_err().to_string();
    assert!(error.contains("does not know job 0") && error.contains("--again"), "{error}");
    tried.submit(&["--again"]).unwrap();
    assert_eq!(tried.outputs(), ["a.json", "job.json"]);
}

#[test]
fn nothing_is_sent_to_ask_what_it_would_cost_nor_where_an_input_is_wrong() {
    let tried = Tried::new(&["a"]);
    tried.submit(&["--dry-run"]).unwrap();
    let input = tried.at("in");
    let without_output = ["submit", "t", "--input", input.to_str().unwrap()];
    tried.job(&[&without_output[..], &["--dry-run"]].concat()).unwrap();
    assert!(Line::try_parse_from([&["job"], &without_output[..]].concat()).is_err(), "where to?");
    assert!(!tried.at("out").exists());
    assert_eq!((tried.server.asked(), tried.server.jobs()), (2, 0));
    fs::write(tried.at("in/job"), "its output would be the bill").unwrap();
    assert!(tried.submit(&[]).unwrap_err().is::<Usage>());
    assert!(tried.submit(&["--patience", "soon"]).unwrap_err().is::<Usage>());
    assert_eq!(tried.server.asked(), 2);
}
