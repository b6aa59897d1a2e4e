//! Processes and memory come and go with the variants.

use super::*;
use modelless_engine::{Layer, Sandbox};
use modelless_types::Bytes;
use std::path::Path;

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn variants_of_a_model_share_a_runner_that_ends_with_the_last() {
    let engine = engine();
    let big = load(&engine, 1, "fashion/cnn_l.onnx").await;
    let second = LoadSpec { model: ModelId(1), ..spec(2, "fashion/cnn_l.int8.onnx") };
    let small = engine.load(second).await.unwrap();
    assert!(big.memory > Bytes::from_mib(8), "the process is the first one's: {}", big.memory);
    assert!(small.memory < big.memory, "{} after {}", small.memory, big.memory);
    let runners = engine.runners();
    assert_eq!(runners.len(), 1);
    assert_eq!(runners[0].variants, [VariantId(1), VariantId(2)]);
    assert!(big.memory > Bytes::from_mib(1) && big.memory < Bytes::from_mib(200), "{}", big.memory);
    assert!(big.load_time.0 > 0);
    let pid = runners[0].pid.unwrap();

    let freed = engine.unload(VariantId(1)).await.unwrap();
    assert!(!freed.process_ended && lives(pid));
    let pixels = bytes_f32([0.5; 784]);
    assert!(run(&engine, 2, 1, &[&pixels]).await.is_ok());
    let freed = engine.unload(VariantId(2)).await.unwrap();
    assert!(freed.process_ended && !lives(pid), "the process is reaped before the answer");
    assert!(freed.memory > Bytes::from_mib(10), "{}", freed.memory);
    assert!(engine.runners().is_empty());
}

/// Private memory of a process and what it shares, as the kernel tells it.
fn held(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    kib("RssAnon:") + kib("RssShmem:")
}

#[tokio::test]
async fn what_is_told_as_freed_is_what_came_back_and_loads_together_are_what_a_runner_holds() {
    /// The kernel counts in batches, and a process has more to do than load.
    const GIVE_OR_TAKE: u64 = 2 << 20;
    let near = |a: u64, b: u64| assert!(a.abs_diff(b) < GIVE_OR_TAKE, "{a} and {b} bytes");
    for kind in [Kind::Onnx, Kind::Openvino] {
        let engine = engine_of(kind, |_| {});
        let spec = |n, name| LoadSpec { model: ModelId(1), ..super::conformance::spec_of(kind, n, name) };
        let empty = engine.load(spec(9, "echo")).await.unwrap().memory;
        let pid = engine.runners()[0].pid.unwrap();
        near(empty.0, held(pid));
        assert!(empty > Bytes::from_mib(1), "what its process takes is the first one's: {empty}");
        let large = engine.load(spec(1, "fashion/cnn_m")).await.unwrap().memory;
        near(empty.0 + large.0, held(pid));
        // The first one leaves, and its process stays.
        let before = held(pid);
        let freed = engine.unload(VariantId(9)).await.unwrap();
        near(freed.memory.0, before.saturating_sub(held(pid)));
        near(freed.left.0, held(pid));
        assert!(freed.memory < empty, "{kind}: {} of {empty}: its process is not free", freed.memory);
        let before = held(pid);
        let freed = engine.unload(VariantId(1)).await.unwrap();
        assert!(freed.process_ended && freed.left == Bytes(0) && !lives(pid));
        near(freed.memory.0, before);
    }
}

#[tokio::test]
async fn lanes_share_the_weights_of_a_variant_without_threads_of_its_own() {
    let engine = engine_with(|config| config.spare = false);
    let mut grew = Vec::new();
    for (n, lanes) in [(1, 1), (2, 4)] {
        let spec = LoadSpec { lanes, ..spec(n, "fashion/cnn_l.onnx") };
        grew.push(engine.load(spec).await.unwrap().memory);
    }
    let weights = Bytes(model_file("fashion/cnn_l.onnx").metadata().unwrap().len());
    let more = Bytes(grew[1].0.saturating_sub(grew[0].0));
    assert!(more < weights, "three lanes more took {more}, and the weights are {weights}");
}

#[tokio::test]
async fn a_variant_can_be_loaded_again_and_again() {
    let engine = engine();
    for round in 0..3_u8 {
        load(&engine, 1, "echo.onnx").await;
        let rows = bytes_f32([f32::from(round); 4]);
        assert_eq!(run(&engine, 1, 1, &[&rows]).await.unwrap().output(0), rows);
        assert!(engine.unload(VariantId(1)).await.unwrap().process_ended);
    }
}

#[tokio::test]
async fn loads_and_unloads_at_once_all_end_as_they_should() {
    let engine = engine();
    let one = |n| engine.load(LoadSpec { model: ModelId(1), ..spec(n, "echo.onnx") });
    let (a, b, c) = tokio::join!(one(1), one(2), one(3));
    for loaded in [a, b, c] {
        loaded.unwrap();
    }
    assert_eq!(engine.runners().len(), 1);
    let (a, b, c) =
        tokio::join!(engine.unload(VariantId(1)), engine.unload(VariantId(2)), engine.unload(VariantId(3)));
    let ended = [a, b, c].into_iter().filter(|freed| freed.as_ref().unwrap().process_ended).count();
    assert_eq!(ended, 1);
    // The last one out and a newcomer meet.
    for _ in 0..5 {
        one(1).await.unwrap();
        let (freed, loaded) = tokio::join!(engine.unload(VariantId(1)), one(2));
        freed.unwrap();
        loaded.unwrap();
        engine.unload(VariantId(2)).await.unwrap();
    }
}

#[tokio::test]
async fn outputs_may_outlive_their_variant() {
    let engine = engine();
    load(&engine, 1, "echo.onnx").await;
    let rows = bytes_f32([1.0, 2.0, 3.0, 4.0]);
    let outputs = run(&engine, 1, 1, &[&rows]).await.unwrap();
    engine.unload(VariantId(1)).await.unwrap();
    assert_eq!(outputs.output(0), rows);
}

#[tokio::test]
async fn a_load_that_nobody_waits_for_is_undone() {
    let engine = engine();
    let load = engine.load(spec(1, "fashion/cnn_l.onnx"));
    // Asked for, then given up.
    tokio::select! { biased; _ = load => {}, () = std::future::ready(()) => {} }
    while !engine.runners().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(engine.slot(VariantId(1), 0, 1).unwrap_err(), EngineError::NotLoaded(VariantId(1)));
}

#[tokio::test]
async fn shutting_down_ends_every_runner_and_takes_nothing_more() {
    let engine = engine();
    load(&engine, 1, "echo.onnx").await;
    load(&engine, 2, "echo.onnx").await;
    let pids: Vec<_> = engine.runners().iter().map(|runner| runner.pid.unwrap()).collect();
    let mut events = engine.events().unwrap();
    engine.shutdown().await;
    assert!(pids.iter().all(|pid| !lives(*pid)));
    assert!(matches!(engine.load(spec(1, "echo.onnx")).await, Err(EngineError::Busy(_))));
    assert!(events.try_recv().is_err(), "a planned end is no death");
}

#[tokio::test]
async fn runners_know_nothing_of_their_parents_environment() {
    // A runner as it is cannot be looked into by its own user.
    let engine = engine_with(|config| config.sandbox = Sandbox::without([Layer::Undumpable]));
    load(&engine, 1, "echo.onnx").await;
    let pid = engine.runners()[0].pid.unwrap();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let pairs = environment.split_terminator('\0');
    // The C library takes its switches apart where they stand, and they look like more of them.
    let pairs = pairs.filter(|pair| !pair.starts_with("glibc.malloc."));
    let mut names: Vec<_> = pairs.map(|pair| pair.split('=').next()).collect();
    names.sort_unstable();
    // How its heap behaves, what keeps ONNX Runtime from reporting to its makers, and nothing else.
    assert_eq!(names, [Some("GLIBC_TUNABLES"), Some("ORT_DISABLE_TELEMETRY")]);
}
