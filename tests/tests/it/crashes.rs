//! Runners are killed under load: every query still ends, the server stays, and answers stay right.

use crate::demo::{Demo, ask};
use anyhow::{Context, Result, ensure};
use modelless_testkit::process;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn killing_runners_under_load_costs_at_most_their_batches_and_never_the_server() -> Result<()> {
    let mut demo = Demo::start(&[])?;
    let expected = demo.answer("boot.png", "?model=cnn_m")?.label;
    let over = AtomicBool::new(false);
    let outcomes = thread::scope(|scope| {
        let asker = || -> Result<BTreeMap<String, u32>> {
            let mut outcomes = BTreeMap::new();
            let mut connection = demo.server.connect()?;
            while !over.load(Ordering::Relaxed) {
                let response = connection.exchange(&ask("boot.png", "?model=cnn_m&latency_ms=5000"))?;
                let outcome = match response.status {
                    200 => response.json()?[0]["label"].as_str().context("no label")?.to_owned(),
                    _ => response.json()?["reason"].as_str().context("no reason")?.to_owned(),
                };
                *outcomes.entry(outcome).or_default() += 1;
            }
            Ok(outcomes)
        };
        let askers: Vec<_> = (0..4).map(|_| scope.spawn(asker)).collect();
        let killed = kill_some(&demo);
        // Also when that failed, or the askers would go on for ever.
        over.store(true, Ordering::Relaxed);
        let killed = killed?;
        ensure!(killed >= 5, "only {killed} runners were there to be killed");
        let mut all: BTreeMap<String, u32> = BTreeMap::new();
        for asker in askers {
            for (outcome, count) in asker.join().expect("an asker does not panic")? {
                *all.entry(outcome).or_default() += count;
            }
        }
        Ok(all)
    })?;
    ensure!(outcomes.get(&expected).copied().unwrap_or(0) > 0, "nothing was answered: {outcomes:?}");
    for outcome in outcomes.keys() {
        let named = ["loading", "variant_failed", "input_crashed", "too_late"].contains(&outcome.as_str());
        ensure!(*outcome == expected || named, "an answer changed or a refusal has no name: {outcomes:?}");
    }
    ensure!(demo.server.is_running()?);
    let history = demo.server.get_json("/v1/replicas")?.to_string();
    ensure!(history.contains("failed"), "the crash is in the record: {history}");
    demo.server.stop()
}

/// Kills every runner, again and again, until there were at least five; how many it was.
fn kill_some(demo: &Demo) -> Result<u32> {
    let mut killed = 0;
    // Bounded, since a server without runners would leave nothing to kill.
    for _ in 0..1_000 {
        if killed >= 5 {
            break;
        }
        for (pid, _) in process::children(demo.server.pid())? {
            // As the kernel's out-of-memory killer would.
            ensure!(Command::new("kill").args(["-KILL", &pid.to_string()]).status()?.success());
            killed += 1;
        }
        // The next kill waits until the server serves again.
        demo.answer("boot.png", "?latency_ms=10000")?;
    }
    Ok(killed)
}

#[test]
fn a_small_memory_budget_makes_models_take_turns() -> Result<()> {
    let demo = Demo::start(&["--memory", "64MiB"])?;
    for round in 0..3 {
        for model in ["linear", "mlp_s", "mlp_l", "cnn_s", "cnn_m", "cnn_l"] {
            let answer = demo.answer("boot.png", &format!("?model={model}&latency_ms=20000"))?;
            ensure!(answer.model == model, "round {round}: {answer:?}");
        }
    }
    let nodes = demo.server.get_json("/v1/nodes")?;
    let node = nodes.as_array().or_else(|| nodes["nodes"].as_array()).context("a list")?[0].clone();
    let memory = &node["memory"];
    let bytes = |name: &str| memory[name].as_u64().with_context(|| format!("no {name} in {node}"));
    ensure!(bytes("used_bytes")? <= bytes("budget_bytes")?, "{node}");
    // Not everything fits, so some of it had to make room.
    let history = demo.server.get_json("/v1/replicas")?.to_string();
    ensure!(history.contains("evicted"), "{history}");
    demo.server.stop()
}
