//! Many inputs in one request: over all nodes that may answer, in order, and in one output space.

use super::world::{Does, Setup, World, send};
use axum::body::Body;
use http::Request;
use modelless_types::{SpaceId, TaskId};
use modelless_wire::{Body as Said, ToNode};
use serde_json::json;

const WORDS: &str = "/v1/tasks/words";

fn asked(texts: &[String]) -> Request<Body> {
    let request = Request::post(WORDS).header("content-type", "application/json");
    request.body(Body::from(json!(texts).to_string())).unwrap()
}

#[tokio::test]
async fn tens_of_thousands_of_inputs_go_to_both_nodes_and_are_answered_in_order() {
    let mut world = World::with(Setup { texts: true, second_node: true, ..Setup::default() }).await;
    let mut second = world.second.take().unwrap();
    *world.node.does.lock().unwrap() = Does::Keep;
    *second.node.credit.lock().unwrap() = 4;
    second.node.say(Said::Report);
    let texts: Vec<String> = (0..20_000).map(|at| "x".repeat(at % 97)).collect();
    let asking = send(world.router(), asked(&texts));
    let (mut first_ran, mut second_ran) = (0, 0);
    let answering = async {
        loop {
            let (frame, node, ran) = tokio::select! {
                frame = world.seen.recv() => (frame, &world.node, &mut first_ran),
                frame = second.seen.recv() => (frame, &second.node, &mut second_ran),
            };
            if let ToNode::Query(frame) = frame.expect("both nodes stay") {
                *ran += 1;
                node.answer(&frame);
            }
        }
    };
    let got = tokio::select! {
        got = asking => got,
        () = answering => unreachable!("it has no end"),
    };
    assert_eq!(got.status, 200, "{got:?}");
    let expected: Vec<_> =
        texts.iter().map(|text| json!([{"label": "size", "score": text.len() + 2}])).collect();
    assert_eq!(got.json(), json!(expected));
    assert_eq!(first_ran + second_ran, texts.len(), "each is a query of its own");
    assert!(first_ran.min(second_ran) > texts.len() / 10, "one node had {first_ran}, the other {second_ran}");
}

#[tokio::test]
async fn answers_of_two_output_spaces_are_never_put_into_one() {
    let mut world = World::with(Setup { texts: true, ..Setup::default() }).await;
    let task = TaskId(3);
    *world.node.does.lock().unwrap() = Does::Keep;
    let texts = ["a", "b", "c"].map(str::to_owned);
    let asking = send(world.router(), asked(&texts));
    let answering = async {
        let mut answered = 0;
        while let Some(frame) = world.seen.recv().await {
            if let ToNode::Query(frame) = frame {
                world.node.answer(&frame);
                answered += 1;
                if answered == 1 {
                    world.node.moves_to(task, SpaceId(77));
                }
            }
        }
    };
    let got = tokio::select! {
        got = asking => got,
        () = answering => unreachable!("the node stays"),
    };
    assert_eq!(got.refusal(), (503, "space_changed".to_owned()), "{got:?}");
}
