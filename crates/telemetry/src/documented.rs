//! What is written about metrics elsewhere names those that there are: `docs/telemetry.md` all of them, the board only such.

use crate::{CoverageGauge, MachineGauge, Metrics, NodeGauges, ReplicaGauge, ShareGauge, Told, TrialGauge};
use modelless_types::Micros;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All there are, without what Prometheus puts behind their names, and those with it.
fn names() -> (BTreeSet<String>, BTreeSet<String>) {
    let metrics = Metrics::new();
    let task = metrics.task("t");
    task.refused("too_late");
    task.feedback(true);
    let _ = (metrics.variant("t", "v"), metrics.application("a", "b"), metrics.node("n"));
    metrics.served("t", 1);
    metrics.handed_back("too_late");
    metrics.node_lost("n", 1);
    metrics.traces().sent(1);
    let _ = metrics.shared_cache();
    let nodes = [NodeGauges {
        node: "n".to_owned(),
        load_time: Micros(1),
        replicas: vec![ReplicaGauge {
            task: "t".to_owned(),
            variant: "v".to_owned(),
            state: "active",
            slowdown: Some(1.0),
        }],
        coverage: vec![CoverageGauge { task: "t".to_owned(), variant: "v".to_owned(), batches: 1, above: 0 }],
        ..NodeGauges::default()
    }];
    let machine = MachineGauge { pool: "p".to_owned(), state: "joined", usd_per_hour: 0.1 };
    let (trial, arm, outcomes) = ("1".to_owned(), "candidate", vec![("late", 1)]);
    let trial = TrialGauge { task: "t".to_owned(), trial, arm, outcomes };
    let [task, tenant, application] = ["t", "a", "b"].map(str::to_owned);
    let share = ShareGauge { task, tenant, application, used: 0.4, share: 0.25 };
    let told = Told { nodes: &nodes, machines: Some(&[machine]), trials: &[trial], shares: &[share] };
    let text = metrics.told(&told);
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let base = kinds.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect();
    (base, series)
}

/// Words that look like a metric of ours.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let ours = words.filter(|word| word.starts_with("modelless_") || word.starts_with("nv_"));
    ours.map(str::to_owned).collect()
}

#[test]
fn every_metric_stands_in_the_documentation_and_nothing_else_does() {
    let (there, _) = names();
    let document = read("docs/telemetry.md");
    // The first cell of a row is what the row is about; counters are written there as they are asked for.
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows = rows.filter(|name| name.starts_with("modelless_") || name.starts_with("nv_"));
    let told: BTreeSet<String> =
        rows.map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned()).collect();
    assert_eq!(told.difference(&there).collect::<Vec<_>>(), Vec::<&String>::new(), "told, and not there");
    assert_eq!(there.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "there, and not told");
}

#[test]
fn every_question_of_the_board_names_series_that_there_are() {
    let (_, series) = names();
    let board: Value = serde_json::from_str(&read("deploy/grafana/modelless.json")).unwrap();
    let mut asked = BTreeSet::new();
    let mut panels = 0;
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let question = target["expr"].as_str().unwrap();
            let found = named(question);
            assert!(!found.is_empty(), "{question} asks for nothing of ours");
            asked.extend(found);
            panels += 1;
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        asked.extend(named(variable["query"].as_str().unwrap_or_default()));
    }
    assert!(panels >= 15, "{panels} questions");
    assert_eq!(
        asked.difference(&series).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "asked for, and not there"
    );
}
