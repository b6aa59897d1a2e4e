//! A gateway in the same process sends its next query while it is told of an answer or a refusal: that must go on for ever.

use super::real::{Node, Served, file, task};
use super::{Ears, LONG, NewTask, TaskKind, bed, distinct, frame_of, profile};
use crate::Handle;
use modelless_decision::query::Class;
use modelless_types::{Bytes, DType, Engine as Kind, TaskId, VariantSettings};
use modelless_wire::{Body, NodeLink as _, ToNode};
use std::sync::Mutex;

/// Far more than would fit onto any thread's stack one within the other.
const QUERIES: u64 = 900;

/// With each end of a query the next one is sent, on the thread that tells it.
fn ask_again(gateway: &Ears, handle: Handle, queries: Vec<ToNode>) {
    let left = Mutex::new(queries);
    let ask = move || {
        let next = left.lock().expect("nobody panicked").pop();
        if let Some(query) = next {
            handle.send(query);
        }
    };
    assert!(gateway.asks.set(Box::new(ask)).is_ok(), "asked twice");
}

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
    let query = |key| node.query(key, vec![0; 16]);
    ask_again(&node.gateway, node.handle.clone(), (1..QUERIES).map(query).collect());
    node.ask(0, vec![0; 16]);
    for _ in 0..QUERIES {
        assert!(matches!(node.hear().await, Body::Answer { .. }));
    }
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_come_of_refusals_are_not_refused_within_these() {
    let mut bed = bed(None).await;
    let unknown = |key| {
        let class = Class { task: TaskId(77), admits: (0..1).collect() };
        ToNode::Query(Box::new(frame_of(class, key, LONG, Bytes(8), distinct(key))))
    };
    ask_again(&bed.gateway, bed.handle.clone(), (1..QUERIES).map(unknown).collect());
    bed.handle.send(unknown(0));
    for _ in 0..QUERIES {
        assert!(matches!(bed.heard.recv().await, Some(Body::Refused { .. })));
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_cannot_be_written_are_not_written_within_each_other() {
    let task = NewTask {
        labels: vec!["blame".into(), "praise".into()],
        ..task("ratings", TaskKind::TextClassification)
    };
    let gru = ("examples/text/gru", "model.onnx");
    let mut node = Node::reading(task, gru, 1, profile(900_000, 50.0), |tokenizer| {
        let tokens = format!(r#"{{"tokenizer":"{tokenizer}","max":4,"truncate":false}}"#);
        format!(r#"{{"kind":"text-classification","tokens":{tokens}}}"#)
    })
    .await;
    let text = || b"more words than this model takes, which shows only when they are written".to_vec();
    let query = |key| node.query(key, text());
    ask_again(&node.gateway, node.handle.clone(), (1..QUERIES).map(query).collect());
    node.ask(0, text());
    for _ in 0..QUERIES {
        assert!(matches!(node.hear().await, Body::BadInput { .. }));
    }
    node.end().await;
}
