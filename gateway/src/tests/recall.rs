//! What became of a query, asked afterwards.

use super::access::{locked, made, with_key};
use super::world::{Does, Got, PNG, World};
use crate::past::KEPT;
use modelless_live::{Member, Role};
use modelless_store::{Access as _, Visibility};
use modelless_types::{Micros, Refusal, Scopes, TaskId};
use serde_json::{Value, json};

async fn asked(world: &World, goals: &str) -> String {
    let got = world.post(&format!("/v1/tasks/fashion{goals}"), "image/png", PNG).await;
    got.header("modelless-query").to_owned()
}

fn path(number: &str) -> String {
    format!("/v1/queries/{number}/explain")
}

async fn told(world: &World, number: &str) -> Value {
    let got = world.get(&path(number)).await;
    assert_eq!(got.status.as_u16(), 200, "{}", got.json());
    got.json()
}

fn reasons(decision: &Value) -> Vec<(&str, &str)> {
    let all = decision["candidates"].as_array().unwrap().iter();
    all.map(|one| (one["variant"].as_str().unwrap(), one["finding"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_query_that_was_answered_is_told_with_its_stages_and_every_candidate_as_it_was_then() {
    let world = World::new().await;
    let number = asked(&world, "?accuracy=0.85&latency_ms=500").await;
    let query = told(&world, &number).await;
    assert_eq!((&query["query"], &query["outcome"]), (&json!(number), &json!("answered")));
    assert_eq!(
        (&query["node"], &query["batch"], &query["in_time"]),
        (&json!("node-a"), &json!(3), &json!(true))
    );
    assert_eq!(query["asked"]["accuracy"], 0.85);
    let stage = |name: &str| {
        let stages = query["stages"].as_array().unwrap().iter();
        stages.clone().find(|stage| stage["stage"] == name).unwrap_or_else(|| panic!("{query}")).clone()
    };
    let run = stage("running the batch");
    assert_eq!((&run["expected_ms"], &run["took_ms"]), (&json!(0.9), &json!(0.7)), "as the node told it");
    assert_eq!(stage("waiting at the node")["took_ms"], 0.25);
    assert_eq!(stage("all of it")["took_ms"], query["total_ms"]);
    let decisions = query["decisions"].as_array().unwrap();
    assert_eq!((decisions.len(), &decisions[0]["did"]["action"]), (1, &json!("sent")));
    assert_eq!(stage("all of it")["expected_ms"], query["predicted_ms"]);
    let found = reasons(&decisions[0]);
    assert_eq!(found, [("large-fp32", "chosen"), ("small-fp32", "less_preferred")]);
    // What would be decided now is another question, which its signed name answers as well.
    let got = world.post("/v1/tasks/fashion", "image/png", PNG).await;
    let by_name = told(&world, got.header("modelless-query-id")).await;
    assert_eq!(by_name["query"], got.header("modelless-query"));
}

#[tokio::test]
async fn one_that_was_drawn_for_a_trial_is_told_as_it_was_decided_for_the_version_alone() {
    let (world, _) = super::trials::world(Some(500_000)).await;
    let mut seen = [false; 2];
    for _ in 0..40 {
        let query = told(&world, &asked(&world, "?latency_ms=500").await).await;
        let drawn = query["trial"].is_string();
        seen[usize::from(drawn)] = true;
        let found = reasons(&query["decisions"][0]);
        let chosen: Vec<&str> =
            found.iter().filter(|(_, finding)| *finding == "chosen").map(|(name, _)| *name).collect();
        assert_eq!(chosen, [if drawn { "large-v2-fp32" } else { "large-fp32" }], "{query}");
    }
    assert_eq!(seen, [true; 2]);
}

#[tokio::test]
async fn one_that_was_refused_is_told_wherever_that_was_decided() {
    let world = World::new().await;
    let unreachable = told(&world, &asked(&world, "?accuracy=0.999").await).await;
    assert_eq!((&unreachable["outcome"], &unreachable["stages"]), (&json!("floor_unreachable"), &json!([])));
    let decision = &unreachable["decisions"][0];
    assert_eq!(decision["did"], json!({"action": "refused", "reason": "floor_unreachable"}));
    assert!(decision["decision"]["nearest"]["accuracy"].is_number(), "{decision}");
    assert!(reasons(decision).iter().all(|(_, finding)| *finding == "below_floor"), "{decision}");

    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::TooLate { waited: Micros(70) });
    let late = told(&world, &asked(&world, "").await).await;
    assert_eq!(
        (&late["outcome"], &late["decisions"][0]["did"]["action"]),
        (&json!("too_late"), &json!("sent"))
    );
}

fn no(got: &Got) -> (u16, String) {
    got.refusal()
}

#[tokio::test]
async fn what_is_not_kept_is_a_no_that_says_why_and_names_who_has_it() {
    let world = World::new().await;
    let first = asked(&world, "").await;
    let base = u64::from_str_radix(&first, 16).unwrap();
    assert_eq!(no(&world.get(&path("nothing")).await), (400, "malformed".to_owned()));
    assert_eq!(no(&world.get(&path(&"A".repeat(52))).await).0, 404, "nobody signed that");
    // It lies so far from here that it was never given out.
    let next = format!("{:016x}", base.wrapping_add(1));
    assert_eq!(no(&world.get(&path(&next)).await), (404, "unknown_query".to_owned()), "nobody has it yet");
    let far = format!("{:016x}", base.wrapping_add(1 << 50));
    assert_eq!(no(&world.get(&path(&far)).await), (404, "unknown_query".to_owned()));
    // Another gateway counts from a little below it.
    let other = Member {
        address: Some("10.0.0.7:8080".to_owned()),
        ..Member::new(Role::Gateway, "gw-2", base.wrapping_add((1 << 50) - 5))
    };
    let node = Member::new(Role::Node, "n", base.wrapping_add((1 << 50) - 1));
    world.handle.set_members(vec![other, node]);
    let got = world.get(&path(&far)).await;
    assert_eq!(no(&got), (404, "kept_elsewhere".to_owned()));
    let said = got.json()["error"].as_str().unwrap().to_owned();
    assert!(said.contains("\"gw-2\" at 10.0.0.7:8080"), "{said}");
    // Others come, and the first is forgotten.
    for _ in 0..KEPT {
        asked(&world, "?accuracy=0.999").await;
    }
    let got = world.get(&path(&first)).await;
    assert_eq!(no(&got), (404, "not_kept".to_owned()));
    let said = got.json()["error"].as_str().unwrap().to_owned();
    assert!(said.contains("the last 1024") && said.contains("those of the last"), "{said}");
}

#[tokio::test]
async fn a_tenant_asks_why_of_its_own_queries_and_of_nobody_elses() {
    let (world, all, _) = locked().await;
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    world.store.share_model(TaskId(1), "small", Visibility::Public).await.unwrap();
    let theirs = made(&world, tenant, Scopes::ALL).await;
    let world = World::with(super::world::Setup { store: Some(world.store), ..Default::default() }).await;
    let pixel = br#"{"inputs": "iVBORw0KGgo="}"#;
    let mut numbers = Vec::new();
    for key in [&all, &theirs] {
        let got = with_key(&world, "POST", "/v1/tasks/fashion", key.expose(), pixel).await;
        numbers.push(got.header("modelless-query").to_owned());
    }
    let status = async |key: &str, number: &str| {
        let got = with_key(&world, "GET", &path(number), key, b"").await;
        (got.status.as_u16(), got.json())
    };
    assert_eq!(status(theirs.expose(), &numbers[1]).await.0, 200);
    assert_eq!(status(all.expose(), &numbers[0]).await.0, 200);
    let (code, every) = status(all.expose(), &numbers[1]).await;
    assert_eq!((code, &every["tenant"]), (200, &json!("other")), "the operator sees all");
    let (code, refused) = status(theirs.expose(), &numbers[0]).await;
    assert_eq!((code, &refused["reason"]), (404, &json!("not_kept")));
    assert!(
        !refused.to_string().contains("those of the last"),
        "how much others ask is not theirs: {refused}"
    );
    assert_eq!(status("", &numbers[0]).await.0, 401);
}
