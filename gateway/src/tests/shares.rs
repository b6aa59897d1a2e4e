//! Applications that share a task's devices, where more is asked than can be answered.

use super::access::{locked, made_for, with_key};
use super::world::{Does, Got, Setup, World, send};
use axum::body::Body;
use http::Request;
use modelless_store::{Access as _, SecretKey};
use modelless_types::{AppId, Priority, Scopes, TenantId};
use modelless_wire::{Body as Said, QueryFrame, ToNode};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

const ASK: &[u8] = br#"{"inputs": "iVBORw0KGgo="}"#;

fn ask(key: &SecretKey, goals: &str) -> Request<Body> {
    let request = Request::post(format!("/v1/tasks/fashion?latency_ms=30000{goals}"));
    let request = request.header("api-key", key.expose()).header("content-type", "application/json");
    request.body(Body::from(ASK)).unwrap()
}

async fn set(world: &World, key: &SecretKey, policy: Value) -> (u16, Value) {
    let got = with_key(world, "PUT", "/v1/policies", key.expose(), policy.to_string().as_bytes()).await;
    (got.status.as_u16(), got.json())
}

/// Its node keeps what it gets and takes one at a time; three may wait. Keys of the operator, and of two applications.
async fn world(policies: &[Value]) -> (World, SecretKey, [(SecretKey, AppId); 2]) {
    let (world, all, _) = locked().await;
    let app = async |name: &str| {
        let key = made_for(&world, (TenantId::DEFAULT, name), Scopes::ALL).await;
        (key, world.store.app(TenantId::DEFAULT, name).await.unwrap().id)
    };
    let apps = [app("flood").await, app("shop").await];
    for policy in policies {
        let (status, said) = set(&world, &all, policy.clone()).await;
        assert_eq!(status, 200, "{said}");
    }
    let mut setup = Setup { store: Some(Arc::clone(&world.store)), ..Setup::default() };
    setup.config.waiting.waiting = 3;
    let world = World::with(setup).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    *world.node.credit.lock().unwrap() = 1;
    world.node.say(Said::Report);
    (world, all, apps)
}

async fn next(world: &mut World) -> Box<QueryFrame> {
    loop {
        if let ToNode::Query(frame) = world.seen.recv().await.expect("the node is there") {
            return frame;
        }
    }
}

async fn explained(world: &World, key: &SecretKey, got: &Got) -> Value {
    let path = format!("/v1/queries/{}/explain", got.header("modelless-query"));
    with_key(world, "GET", &path, key.expose(), b"").await.json()
}

#[tokio::test]
async fn one_that_asks_no_more_than_is_reserved_goes_before_a_flood_whatever_that_asks() {
    let reserves = json!({"app": "shop", "task": "fashion", "reserve": 0.3, "weight": 2});
    let (mut world, all, [(flood, flooding), (shop, small)]) = world(&[reserves]).await;
    let mut asked = JoinSet::new();
    // One is at the node, three wait, and one is too many. The highest priority helps nobody there.
    for _ in 0..5 {
        asked.spawn(send(world.router(), ask(&flood, "&priority=1")));
    }
    let refused = asked.join_next().await.unwrap().unwrap();
    assert_eq!(refused.refusal(), (503, "queue_full".to_owned()));
    let first = next(&mut world).await;
    assert_eq!((first.app, first.priority), (flooding, Priority::new(1).unwrap()));
    // A place is given up for it.
    let mut own = JoinSet::new();
    own.spawn(send(world.router(), ask(&shop, "")));
    let gave_way = asked.join_next().await.unwrap().unwrap();
    assert_eq!(gave_way.refusal(), (503, "queue_full".to_owned()));
    world.node.answer(&first);
    let second = next(&mut world).await;
    assert_eq!((second.app, second.priority), (small, Priority::RESERVED), "those before it wait on");
    world.node.answer(&second);
    let own = own.join_next().await.unwrap().unwrap();
    assert_eq!(own.status, 200, "{own:?}");
    let third = next(&mut world).await;
    assert_eq!(third.app, flooding, "what it leaves is theirs");

    let told = explained(&world, &shop, &own).await;
    let share = &told["decisions"][0]["share"];
    assert_eq!(
        (&share["reserve"], &share["weight"], &share["within_reserve"]),
        (&json!(0.3), &json!(2), &json!(true))
    );
    assert!(share["because"].as_str().unwrap().contains("its share is 67 %"), "2 of 3 by weight: {told}");
    let told = explained(&world, &all, &refused).await;
    let because = told["decisions"].as_array().unwrap().last().unwrap()["share"]["because"].as_str().unwrap();
    assert!(because.starts_with("its application used 0 % of the device time, its share is "), "{because}");
    let text = with_key(&world, "GET", "/metrics", all.expose(), b"").await.body;
    let text = String::from_utf8(text.to_vec()).unwrap();
    for app in ["flood", "shop"] {
        for metric in ["modelless_application_share", "modelless_application_share_used"] {
            let line = format!(r#"{metric}{{task="fashion",tenant="default",application="{app}"}} "#);
            assert!(text.lines().any(|shown| shown.starts_with(&line)), "{line}\n{text}");
        }
    }
    asked.shutdown().await;
}

#[tokio::test]
async fn without_a_word_on_shares_the_first_that_is_due_goes_first() {
    let (mut world, all, [(flood, flooding), (shop, _)]) = world(&[]).await;
    let mut asked = JoinSet::new();
    for _ in 0..5 {
        asked.spawn(send(world.router(), ask(&flood, "")));
    }
    let refused = asked.join_next().await.unwrap().unwrap();
    let first = next(&mut world).await;
    let late = send(world.router(), ask(&shop, "")).await;
    assert_eq!(late.refusal(), (503, "queue_full".to_owned()), "all places are taken");
    world.node.answer(&first);
    let second = next(&mut world).await;
    assert_eq!((second.app, second.priority), (flooding, Priority::default()));
    let told = explained(&world, &all, &refused).await;
    assert!(told["decisions"][0].get("share").is_none(), "{told}");
    asked.shutdown().await;
}

#[tokio::test]
async fn the_operator_says_who_gets_how_much_and_no_more_than_there_is() {
    let half = json!({"app": "shop", "reserve": 0.5});
    let (world, all, [(flood, _), _]) = world(std::slice::from_ref(&half)).await;
    let (status, said) =
        set(&world, &all, json!({"app": "flood", "task": "fashion", "reserve": 0.501})).await;
    assert_eq!((status, &said["reason"]), (409, &json!("over_reserved")));
    assert!(said["error"].as_str().unwrap().contains("100.1 %"), "{said}");
    let (status, said) =
        set(&world, &all, json!({"app": "flood", "task": "fashion", "reserve": 0.5, "weight": 3})).await;
    assert_eq!((status, &said["reserve"], &said["weight"]), (200, &json!(0.5), &json!(3)));
    for wrong in [
        json!({"app": "shop", "weight": 0}),
        json!({"app": "shop", "weight": 1_001}),
        json!({"app": "shop", "weight": 1.5}),
        json!({"app": "shop", "reserve": 0}),
        json!({"app": "shop", "reserve": 0.001}),
        json!({"app": "shop", "reserve": 1.01}),
        json!({"weight": 2}),
    ] {
        assert_eq!(set(&world, &all, wrong.clone()).await.0, 400, "{wrong}");
    }
    drop(flood);

    // Another tenant's admin changes the rest of a policy, and leaves that as it is.
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    let theirs = made_for(&world, (tenant, "shop"), Scopes::ALL).await;
    let weighs = json!({"tenant": "other", "app": "shop", "weight": 2});
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    assert_eq!(set(&world, &all, weighs).await.0, 200);
    let (status, said) = set(&world, &theirs, json!({"app": "shop", "weight": 9})).await;
    assert_eq!((status, &said["reason"]), (403, &json!("missing_scope")));
    let goals = json!({"app": "shop", "goals": {"accuracy": 0.5}});
    let (status, said) = set(&world, &theirs, goals).await;
    assert_eq!((status, &said["weight"], &said["goals"]["accuracy"]), (200, &json!(2), &json!(0.5)));
    let (status, said) = set(&world, &theirs, json!({"app": "shop"})).await;
    assert_eq!((status, &said["weight"], said.get("goals")), (200, &json!(2), None), "nor is it taken away");
    assert_eq!(set(&world, &all, half).await.0, 200, "what was said before is no hindrance");
}
