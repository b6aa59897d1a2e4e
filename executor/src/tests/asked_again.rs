//! A gateway in the same process sends its next query while it is told of an answer: that must go on for ever.

use super::profile;
use super::real::{Node, Served, file};
use modelless_types::{DType, Engine as Kind, VariantSettings};
use modelless_wire::{Body, NodeLink as _};
use std::sync::Mutex;

/// Far more than would fit onto any thread's stack one within the other.
const QUERIES: u64 = 900;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_come_of_answers_are_not_waited_for_within_these() {
    let served = Served {
        model: file("crates/engine/tests/models/echo.onnx"),
        input: ("x", DType::Fp32, &[4]),
        output: ("y", DType::Fp32, &[4]),
        // So short that whoever brings one waits for it.
        variants: vec![(VariantSettings::new(Kind::Onnx, "fp32", 1), profile(900_000, 50.0))],
    };
    let mut node = Node::start(1, served).await;
    let input = || [0_u8; 16].to_vec();
    let left = Mutex::new((1..QUERIES).map(|key| node.query(key, input())).collect::<Vec<_>>());
    let handle = node.handle.clone();
    let ask = move || {
        let next = left.lock().expect("nobody panicked").pop();
        if let Some(query) = next {
            handle.send(query);
        }
    };
    assert!(node.gateway.asks.set(Box::new(ask)).is_ok());
    node.ask(0, input());
    for _ in 0..QUERIES {
        assert!(matches!(node.hear().await, Body::Answer { .. }));
    }
    node.end().await;
}
