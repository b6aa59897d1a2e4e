//! Texts through a real model: tokens, batches of any length, vectors, against what Python made of the same texts.

use super::real::{Node, file, task};
use super::{Body, NewTask, QueryKey, TaskKind, profile};
use modelless_engine::Engine as _;
use modelless_store::{NewSpace, SpaceKind};
use serde::Deserialize;

const GOLDEN: &str = "crates/adapter/tests/golden/text";

#[derive(Deserialize)]
struct Golden {
    text: String,
    mean_unit: Vec<f32>,
    cls: Vec<f32>,
}

fn golden() -> Vec<Golden> {
    let text = std::fs::read(file(GOLDEN).join("cases.json")).expect("it is there");
    serde_json::from_slice(&text).expect("it is JSON")
}

async fn serving(pooling: &str, tokens: &str) -> Node {
    let task = NewTask {
        space: Some(NewSpace { name: "tiny".into(), kind: SpaceKind::Embedding { dimension: 8 } }),
        ..task("sentences", TaskKind::FeatureExtraction)
    };
    Node::reading(task, (GOLDEN, "tiny.onnx"), 8, profile(900_000, 50.0), |tokenizer| {
        format!(
            r#"{{"kind":"feature-extraction","dimension":8,"output":"last_hidden_state",{pooling},
                "tokens":{{"tokenizer":"{tokenizer}",{tokens}}}}}"#
        )
    })
    .await
}

fn vector(body: Body) -> (u64, Vec<f32>, u32) {
    let Body::Answer { key, answer } = body else { panic!("{body:?}") };
    (key.0, serde_json::from_slice(&answer.body).expect("a vector"), answer.batch)
}

fn near(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_text_gets_its_own_vector_whatever_else_is_in_its_batch() {
    let golden = golden();
    let mut node = serving(r#""pooling":"mean","normalise":true"#, r#""max":64"#).await;
    // Each alone first, so that there is something to compare the batches with.
    for (key, case) in (0..).zip(&golden) {
        node.ask(key, case.text.clone().into_bytes());
        let (told, found, batch) = vector(node.hear().await);
        assert_eq!((told, batch), (key, 1));
        assert!(near(&found, &case.mean_unit), "{:?}: {found:?}, expected {:?}", case.text, case.mean_unit);
    }
    // With both slots of the lane taken, what comes waits together.
    let held = [(); 2].map(|()| node.engine.slot(node.variants[0], 0, 1).expect("a slot"));
    let rounds = 4_u64;
    let count = golden.len() as u64;
    for key in 0..rounds * count {
        node.ask(100 + key, golden[usize::try_from(key % count).expect("small")].text.clone().into_bytes());
    }
    drop(held);
    let mut largest = 0;
    for _ in 0..rounds * count {
        let (key, found, batch) = vector(node.hear().await);
        let case = &golden[usize::try_from((key - 100) % count).expect("small")];
        assert!(near(&found, &case.mean_unit), "in a batch of {batch}, {:?}: {found:?}", case.text);
        largest = batch.max(largest);
    }
    assert!(largest > 1, "nothing was ever batched");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_as_long_as_its_longest_text_and_no_longer() {
    let node = serving(r#""pooling":"mean""#, r#""max":64"#).await;
    let mut slot = node.engine.slot(node.variants[0], 0, 2).expect("a slot");
    assert_eq!(slot.item_mut(0, 0).len(), 64 * 8);
    slot.stretch(16);
    assert_eq!(slot.item_mut(0, 1).len(), 16 * 8);
    drop(slot);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_too_long_is_cut_or_refused_and_takes_nobody_with_it() {
    let golden = golden();
    let mut node = serving(r#""pooling":"cls""#, r#""max":12,"truncate":false"#).await;
    let (short, long) = (&golden[1], golden.last().expect("some"));
    node.ask(1, long.text.clone().into_bytes());
    node.ask(2, short.text.clone().into_bytes());
    let mut answered = 0;
    for _ in 0..2 {
        let said = node.hear().await;
        if let Body::BadInput { key, fault, why } = &said {
            assert_eq!((*key, *fault), (QueryKey(1), modelless_wire::InputFault::TooLarge));
            assert!(why.contains("tokens") && why.contains("12"), "{why}");
            continue;
        }
        let (key, found, _) = vector(said);
        assert_eq!(key, 2);
        assert!(near(&found, &short.cls), "{found:?}");
        answered += 1;
    }
    assert_eq!(answered, 1);
    node.ask(3, b" \n".to_vec());
    assert!(matches!(node.hear().await, Body::BadInput { why, .. } if why.contains("empty")));
    node.end().await;
    let mut node = serving(r#""pooling":"cls""#, r#""max":12"#).await;
    node.ask(1, long.text.clone().into_bytes());
    assert_eq!(vector(node.hear().await).1.len(), 8);
    node.end().await;
}
