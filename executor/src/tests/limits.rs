//! What a runner may hold, with real runners.

use super::profile;
use super::real::{Node, Served, engine, file};
use crate::residency::{PROCESS, measured_limit};
use modelless_engine::{Engine, LoadSpec, ProcessEngine};
use modelless_types::{
    Bytes, DType, Engine as Kind, ModelId, Profile, Refusal, ReplicaState, VariantId, VariantSettings,
};
use modelless_wire::Body;
use std::fs::File;

/// Keeps as many times four mebibytes as its input says, and gives its input back.
const EATS: &str = "crates/engine/tests/models/eats.onnx";

fn settings() -> VariantSettings {
    VariantSettings::new(Kind::Onnx, "fp32", 8)
}

/// What a process takes that has loaded it.
async fn peak(engine: &ProcessEngine) -> Bytes {
    let (variant, model) = (VariantId(1_000), ModelId(1_000));
    let artefact = File::open(file(EATS)).expect("a model of the engine's tests");
    let settings = settings();
    let spec = LoadSpec {
        variant,
        model,
        artefact,
        settings,
        lanes: 1,
        memory_limit: None,
        expect: None,
        shown: false,
    };
    engine.load(spec).await.expect("it loads");
    let peak = engine.peak(variant).expect("it is there");
    engine.unload(variant).await.expect("it unloads");
    peak
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_outgrows_what_was_measured_is_ended_long_before_the_node_is_full() {
    let peak = peak(&engine()).await;
    let may = measured_limit(peak, 1);
    let served = Served {
        model: file(EATS),
        input: ("rounds", DType::Int64, &[]),
        output: ("done", DType::Int64, &[]),
        variants: vec![(settings(), Profile { peak: Some(peak), ..profile(900_000, 1_000.0) })],
    };
    let mut node = Node::start(1, served).await;
    assert!(may < node.handle.config().memory, "{may} would prove nothing");
    node.ask(1, 8_i64.to_le_bytes().to_vec());
    assert!(matches!(node.hear().await, Body::Answer { .. }), "what it takes besides is allowed");

    node.ask(2, i64::MAX.to_le_bytes().to_vec());
    let heard = node.hear().await;
    let Body::Refused { refusal: Refusal::InputCrashed { why }, .. } = &heard else { panic!("{heard:?}") };
    assert!(why.contains(&format!("of memory, more than the {may} that it may")), "{why}");

    // It is back, and who asks for little is answered.
    let mut status = node.handle.status();
    let back = status.wait_for(|s| s.replicas.iter().any(|replica| replica.state == ReplicaState::Active));
    drop(back.await.expect("open"));
    node.ask(3, 8_i64.to_le_bytes().to_vec());
    assert!(matches!(node.hear().await, Body::Answer { .. }));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_measured_with_small_batches_alone_does_not_bound_large_ones() {
    let peak = peak(&engine()).await;
    let mut hurried = Profile { peak: Some(peak), ..profile(900_000, 1_000.0) };
    hurried.latency.truncate(1);
    hurried.detail.coarse = true;
    let served = Served {
        model: file(EATS),
        input: ("rounds", DType::Int64, &[]),
        output: ("done", DType::Int64, &[]),
        variants: vec![(settings(), hurried)],
    };
    let mut node = Node::start(1, served).await;
    // More than what was measured would allow, and less than the node has.
    let rounds = measured_limit(peak, 1).0 / Bytes::from_mib(4).0 + 8;
    node.ask(1, rounds.to_le_bytes().to_vec());
    let heard = node.hear().await;
    assert!(matches!(heard, Body::Answer { .. }), "{heard:?}");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_takes_counts_for_who_is_left_in_it() {
    let served = Served {
        model: file("crates/engine/tests/models/echo.onnx"),
        input: ("x", DType::Fp32, &[4]),
        output: ("y", DType::Fp32, &[4]),
        variants: vec![(settings(), profile(900_000, 1_000.0)), (settings(), profile(910_000, 1_000.0))],
    };
    let node = Node::start(1, served).await;
    let memory = |at: usize| {
        let replicas = node.handle.core().driver.look(|worker, _| worker.replicas());
        replicas.iter().find(|replica| replica.variant == node.variants[at]).expect("loaded").memory
    };
    // Whichever of the two was loaded first has the process.
    let first = usize::from(memory(1) > memory(0));
    let (before, process) = (memory(1 - first), memory(first));
    node.handle.unload(super::real::DEVICE, node.variants[first]);
    let weighed = async {
        while memory(1 - first) <= before {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(super::LONG, weighed).await.expect("it is weighed again");
    let now = memory(1 - first);
    assert!(now.0 > before.0 + process.0 / 4, "{now} after {before}, with the process it was {process}");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_not_measured_may_hold_what_others_leave() {
    let served = Served {
        model: file("crates/engine/tests/models/echo.onnx"),
        input: ("x", DType::Fp32, &[4]),
        output: ("y", DType::Fp32, &[4]),
        variants: vec![(settings(), profile(900_000, 1_000.0)), (settings(), profile(910_000, 1_000.0))],
    };
    let node = Node::start(1, served).await;
    let known = node.handle.catalogue().variant(node.variants[0]).expect("known");
    let replicas = node.handle.core().driver.look(|worker, _| worker.replicas());
    let other = replicas.iter().find(|r| r.variant == node.variants[1]).expect("loaded").memory;
    let left = Bytes(node.handle.config().memory.0 - other.0) + PROCESS;
    assert_eq!(node.handle.may_hold(node.variants[0], &known, 1), left);
    node.end().await;
}
