//! A recurrent model reads texts of any length in one batch: what the short ones are filled up with must change nothing.

use super::real::{Node, task};
use super::{Body, NewTask, TaskKind, profile};
use crate::batches::parts::CUT;
use modelless_engine::Engine as _;
use serde::Deserialize;
use std::sync::atomic::Ordering;

/// Rounding may differ with the size of a batch, nothing else may.
const APART: f64 = 1e-6;

#[derive(Deserialize)]
struct Scored {
    label: String,
    score: f64,
}

/// The model of the task `ratings` that is in this repository. Batches gain so little that they are worth cutting.
async fn serving() -> Node {
    let mut profile = profile(800_000, 50.0);
    profile.latency[1].mean_us = 360.0;
    let task = NewTask {
        labels: vec!["blame".into(), "praise".into()],
        ..task("ratings", TaskKind::TextClassification)
    };
    Node::reading(task, ("examples/text/gru", "model.onnx"), 16, profile, |tokenizer| {
        format!(r#"{{"kind":"text-classification","tokens":{{"tokenizer":"{tokenizer}","max":128}}}}"#)
    })
    .await
}

/// From one word to more than the model takes.
fn texts() -> Vec<String> {
    let (good, bad) = ("a wonderful and moving film", "dull, lifeless and far too long");
    let long = |times: usize| format!("{} but {bad}", format!("{good}, ").repeat(times));
    let mut texts = vec!["superb".to_owned(), "awful".to_owned(), good.to_owned(), bad.to_owned()];
    texts.extend([1, 2, 5, 9, 14, 40].map(long));
    texts
}

fn scored(body: Body) -> (u64, Scored, u32) {
    let Body::Answer { key, answer } = body else { panic!("{body:?}") };
    let mut all: Vec<Scored> = serde_json::from_slice(&answer.body).expect("labels");
    (key.0, all.swap_remove(0), answer.batch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_is_read_the_same_alone_and_beside_longer_and_shorter_ones() {
    let (texts, mut node) = (texts(), serving().await);
    let mut alone = Vec::new();
    for (key, text) in (0..).zip(&texts) {
        node.ask(key, text.clone().into_bytes());
        let (told, said, batch) = scored(node.hear().await);
        assert_eq!((told, batch), (key, 1));
        alone.push(said);
    }
    assert_eq!([&alone[0].label, &alone[1].label], ["praise", "blame"], "it reads nothing at all");

    // With both slots of the lane taken, what comes waits together.
    let held = [(); 2].map(|()| node.engine.slot(node.variants[0], 0, 1).expect("a slot"));
    let (rounds, count) = (6_u64, texts.len() as u64);
    let text = |key: u64| usize::try_from(key * 7 % count).expect("small");
    for key in 0..rounds * count {
        node.ask(key, texts[text(key)].clone().into_bytes());
    }
    drop(held);
    let mut largest = 0;
    for _ in 0..rounds * count {
        let (key, said, batch) = scored(node.hear().await);
        let wanted = &alone[text(key)];
        let apart = (said.score - wanted.score).abs();
        assert!(
            said.label == wanted.label && apart < APART,
            "{:?} in a batch of {batch}: {} {}, alone {} {}",
            texts[text(key)],
            said.label,
            said.score,
            wanted.label,
            wanted.score
        );
        largest = batch.max(largest);
    }
    assert!(largest >= 8, "the largest batch had {largest}");
    assert!(CUT.load(Ordering::Relaxed) > 0, "no batch was cut into parts");
    node.end().await;
}
