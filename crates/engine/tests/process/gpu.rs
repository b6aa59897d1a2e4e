//! What is particular to models on a GPU, on a real one: its memory comes back, a share of it is kept to, and what
//! happens to one model leaves the others alone.

use super::conformance::{Bench, Under, batches::pixels};
use super::*;
use modelless_engine::{BatchError, Layer, LayerState};
use modelless_types::Bytes;
use std::process::Command;

const ENGINES: [Kind; 2] = [Kind::Onnx, Kind::Torch];

fn on_gpu(kind: Kind) -> Bench {
    Bench::new(Under::first_gpu(kind))
}

/// Memory of the first GPU that is taken, as its driver tells.
fn taken() -> u64 {
    let told = Command::new("nvidia-smi")
        .args(["--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"])
        .output()
        .unwrap();
    String::from_utf8(told.stdout).unwrap().trim().parse::<u64>().unwrap() << 20
}

async fn logits(bench: &Bench) -> Vec<f32> {
    bench.load(1, "fashion/cnn_m").await;
    let outputs = bench.run(1, 8, &[&bytes_f32((0..8).flat_map(pixels))]).await.unwrap();
    f32s(outputs.output(0))
}

/// Whatever shortens its numbers is off, so that an accuracy that was measured on one processor holds on the other.
#[tokio::test]
async fn a_model_answers_on_a_gpu_as_it_does_on_the_cpu() {
    let expected = logits(&Bench::new(Kind::Onnx)).await;
    for kind in ENGINES {
        let found = logits(&on_gpu(kind)).await;
        let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3, "{kind} on the GPU differs by {furthest}");
    }
}

#[tokio::test]
async fn unloading_gives_a_gpus_memory_back() {
    let before = taken();
    for kind in ENGINES {
        for _ in 0..3 {
            let bench = on_gpu(kind);
            drop(logits(&bench).await);
            assert!(taken() > before + (64 << 20), "{kind} took nothing");
            assert!(bench.engine.unload(VariantId(1)).await.unwrap().process_ended);
            let left = taken();
            assert!(left <= before + (16 << 20), "{kind}: {} bytes stayed", left.saturating_sub(before));
        }
    }
}

#[tokio::test]
async fn a_model_that_takes_a_gpus_memory_without_end_is_stopped_at_its_share() {
    let bench = on_gpu(Kind::Onnx);
    let mut greedy = bench.spec(1, "greedy");
    greedy.settings.gpu_memory = Some(Bytes::from_mib(512));
    bench.engine.load(greedy).await.unwrap();
    bench.load(2, "echo").await;
    let fine = bench.run(1, 1, &[&bytes_i64([16])]).await.unwrap();
    assert_eq!(i64s(fine.output(0)), [16]);
    drop(fine);
    let refused = bench.run(1, 1, &[&bytes_i64([8_192])]).await.unwrap_err();
    assert!(matches!(refused, BatchError::Model(_) | BatchError::Crashed(_)), "{refused}");
    let rows = bytes_f32([1.0, 2.0, 3.0, 4.0]);
    assert_eq!(bench.run(2, 1, &[&rows]).await.unwrap().output(0), rows);
}

#[tokio::test]
async fn only_the_filter_of_system_calls_is_looser_and_it_says_so() {
    for kind in ENGINES {
        let bench = on_gpu(kind);
        bench.load(1, "echo").await;
        let confinement = bench.engine.confinement().unwrap();
        for layer in Layer::ALL {
            let state = &confinement.layers[&layer];
            if layer == Layer::Seccomp {
                assert!(matches!(state, LayerState::Partly(_)), "{kind}: {state:?}");
            } else {
                assert_eq!(*state, LayerState::On, "{kind}: {}", layer.name());
            }
        }
    }
}

#[tokio::test]
async fn a_gpu_that_is_not_there_is_named() {
    for kind in ENGINES {
        let bench = on_gpu(kind);
        let mut spec = bench.spec(1, "echo");
        spec.settings.processor = modelless_types::Processor::Cuda(99);
        let why = bench.refused(spec).await;
        assert!(why.contains("cuda:99") || why.contains("nvidia99"), "{kind}: {why}");
    }
}
