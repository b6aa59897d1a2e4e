//! The same weights on every engine: answers within stated tolerances.

use super::conformance::{batches::pixels, spec_of};
use super::*;

/// Logits of cnn_m are between about -20 and 20.
const TOLERANCE: f32 = 1e-3;

async fn logits(kind: Kind) -> Vec<f32> {
    let engine = engine_of(kind, |_| {});
    engine.load(spec_of(kind, 1, "fashion/cnn_m")).await.unwrap();
    let outputs = run(&engine, 1, 8, &[&bytes_f32((0..8).flat_map(pixels))]).await.unwrap();
    f32s(outputs.output(0))
}

async fn agree(kind: Kind) {
    let (onnx, other) = (logits(Kind::Onnx).await, logits(kind).await);
    assert_eq!(onnx.len(), 80);
    let furthest = onnx.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < TOLERANCE, "{kind} differs by {furthest}");
}

#[tokio::test]
async fn openvino_answers_as_onnx_runtime_does() {
    agree(Kind::Openvino).await;
}

#[cfg(feature = "conformance-torch")]
#[tokio::test]
async fn libtorch_answers_as_onnx_runtime_does() {
    agree(Kind::Torch).await;
}

#[cfg(feature = "conformance-remote")]
#[tokio::test]
async fn a_remote_server_answers_as_onnx_runtime_does() {
    agree(Kind::Remote).await;
}

/// Fails on processors without VNNI where the library is not told to be exact; others never saturate.
#[tokio::test]
async fn sums_of_integers_do_not_saturate_on_any_processor() {
    let engine = engine();
    engine.load(spec_of(Kind::Onnx, 1, "integers")).await.unwrap();
    let outputs = run(&engine, 1, 2, &[&bytes_f32([255.0; 8])]).await.unwrap();
    assert_eq!(f32s(outputs.output(0)), [129_540.0; 4]);
}
