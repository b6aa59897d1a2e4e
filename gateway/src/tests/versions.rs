//! Which version answers: by default, when it is pinned, after it was promoted and taken back.

use super::world::{Got, PNG, Running, Setup, World, new_model, new_task};
use http::Method;
use modelless_decision::route::Offer;
use modelless_store::{NewModel, Store};
use modelless_types::{Provenance, TaskKind};
use serde_json::{Value, json};

/// A second version of `small`, better than the first, in memory at the node or not.
async fn second(run: &Running, resident: bool) {
    let catalog = run.store.catalog().await.unwrap();
    let task = catalog.tasks.iter().find(|task| task.name == "fashion").unwrap();
    let mut new = NewModel { version: 2, ..new_model(task, "small", 900.0, 970) };
    new.variants[0].name = "small-v2-fp32".to_owned();
    let registered = run.store.register_model(new).await.unwrap();
    if resident {
        offer(run, registered.variants[0].ordinal);
    }
    run.handle.catalog_changed();
}

/// The node offers it like what it has already.
fn offer(run: &Running, ordinal: u8) {
    run.status.send_modify(|status| {
        let like = status.info.offers[0].clone();
        status.info.offers.push(Offer { ordinal, ..like });
    });
}

async fn said(run: &Running, method: &'static str, target: &'static str, body: Value) -> (u16, Value) {
    let answer = run.with_connection(move |mut connection| {
        let request = modelless_testkit::Request::new(method, target);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = connection.exchange(&request).unwrap();
        (answer.status, answer.json().unwrap())
    });
    answer.await
}

/// How many variants may answer these goals.
async fn may_answer(run: &Running, query: &str) -> Value {
    let target: &'static str = format!("/v1/tasks/fashion/explain{query}").leak();
    let (_, explained) = said(run, "GET", target, Value::Null).await;
    let chosen = explained["candidates"].as_array().unwrap().iter();
    let of_v2 = chosen.clone().find(|candidate| candidate["variant"] == "small-v2-fp32").unwrap();
    json!([explained["goals"]["variants_that_may_answer"], of_v2["finding"]])
}

/// Until the second version is shown.
async fn shown(run: &Running) {
    loop {
        let (_, models) = said(run, "GET", "/v1/models?task=fashion", Value::Null).await;
        if models["models"].as_array().unwrap().len() == 3 {
            return;
        }
    }
}

#[tokio::test]
async fn a_candidate_answers_who_pins_it_and_everybody_once_it_is_promoted() {
    let run = World::new().await.run().await;
    second(&run, true).await;
    shown(&run).await;
    assert_eq!(may_answer(&run, "").await, json!([2, "candidate"]));
    let chosen = may_answer(&run, "?model=small@2").await;
    assert_eq!(chosen[0], json!(1), "{chosen}");
    assert_ne!(chosen[1], "not_pinned", "{chosen}");
    assert_eq!(may_answer(&run, "?variant=small-v2-fp32").await[0], json!(1));
    assert_eq!(may_answer(&run, "?model=small&variant=small-v2-fp32").await[0], json!(1));
    assert_eq!(may_answer(&run, "?model=small").await, json!([1, "not_pinned"]));
    // A floor that only the candidate keeps is not met by it.
    let (_, refused) = said(&run, "GET", "/v1/tasks/fashion/explain?accuracy=0.96", Value::Null).await;
    assert_eq!(refused["decision"]["reason"], "floor_unreachable", "{refused}");
    assert_eq!(refused["decision"]["nearest"]["accuracy"], json!(0.95));

    let body = json!({"version": 2, "by": "ann@desk"});
    let (status, told) = said(&run, "POST", "/v1/models/fashion/small/promote", body).await;
    assert_eq!((status, &told["default"], &told["before"]), (200, &json!(2), &json!(1)), "{told}");
    // The very next request sees it.
    assert_eq!(may_answer(&run, "?model=small@1").await, json!([1, "not_pinned"]));
    assert_eq!(may_answer(&run, "?accuracy=0.96").await[0], json!(1));
    let (_, model) = said(&run, "GET", "/v1/models/fashion/small", Value::Null).await;
    let defaults: Vec<_> =
        model["versions"].as_array().unwrap().iter().map(|v| v["default"].clone()).collect();
    assert_eq!(defaults, [json!(true), json!(false)], "newest first");
    assert_eq!(
        (&model["history"][0]["action"], &model["history"][0]["who"]),
        (&json!("promoted"), &json!("ann@desk"))
    );

    let wrong = json!({"version": 1});
    let (status, told) = said(&run, "POST", "/v1/models/fashion/small/rollback", wrong).await;
    assert_eq!(status, 409, "{told}");
    let (status, told) = said(&run, "POST", "/v1/models/fashion/small/rollback", json!({})).await;
    assert_eq!((status, &told["default"]), (200, &json!(1)), "{told}");
    assert_eq!(may_answer(&run, "").await, json!([2, "candidate"]));
    let (status, told) = said(&run, "POST", "/v1/models/fashion/small/rollback", json!({})).await;
    assert_eq!((status, &told["reason"]), (409, &json!("conflict")), "{told}");
    run.stop().await;
}

#[tokio::test]
async fn what_no_node_can_run_is_promoted_only_by_force() {
    let run = World::new().await.run().await;
    second(&run, false).await;
    shown(&run).await;
    let promote = "/v1/models/fashion/small/promote";
    let (status, told) = said(&run, "POST", promote, json!({"version": 2})).await;
    assert_eq!((status, &told["reason"]), (409, &json!("cannot_answer")), "{told}");
    assert!(told["error"].as_str().unwrap().contains("no node offers it yet"), "{told}");
    for (body, status) in [
        (json!({"version": 7}), 404),
        (json!({}), 400),
        (json!({"version": 2, "colour": 1}), 400),
        (json!({"version": 2, "force": true, "by": "\u{7}"}), 400),
        (json!({"version": 2, "force": true}), 200),
    ] {
        let (got, told) = said(&run, "POST", promote, body.clone()).await;
        assert_eq!(got, status, "{body}: {told}");
    }
    run.stop().await;
}

/// The default version as one gateway has it.
async fn default_at(run: &Running) -> Value {
    let (_, model) = said(run, "GET", "/v1/models/fashion/small", Value::Null).await;
    let versions = model["versions"].as_array().unwrap();
    versions.iter().find(|version| version["default"] == true).map_or(Value::Null, |v| v["version"].clone())
}

async fn both_have(runs: [&Running; 2], version: u32) {
    for run in runs {
        while default_at(run).await != json!(version) {}
    }
}

#[tokio::test]
async fn gateways_over_one_store_promote_and_go_back_for_each_other() {
    let one = World::new().await.run().await;
    second(&one, true).await;
    let store = Some(std::sync::Arc::clone(&one.store));
    let other = World::with(Setup { store, ..Setup::default() }).await.run().await;
    shown(&one).await;
    shown(&other).await;
    let (promote, rollback) = ("/v1/models/fashion/small/promote", "/v1/models/fashion/small/rollback");
    // Through the one; the other answers by it as soon as it looks.
    let (status, told) = said(&one, "POST", promote, json!({"version": 2})).await;
    assert_eq!((status, &told["default"]), (200, &json!(2)), "{told}");
    both_have([&one, &other], 2).await;
    assert_eq!(may_answer(&other, "?accuracy=0.96").await[0], json!(1));
    // Through both at once: it is done once, and one of them is told so.
    let back = json!({"version": 2});
    let (a, b) = tokio::join!(
        said(&one, "POST", rollback, back.clone()),
        said(&other, "POST", rollback, back.clone())
    );
    let mut statuses = [a.0, b.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{a:?} {b:?}");
    both_have([&one, &other], 1).await;
    // Different ones through each at once: both are told that it was done, and one of them is what both have then.
    let (a, b) = tokio::join!(
        said(&one, "POST", promote, json!({"version": 2})),
        said(&other, "POST", promote, json!({"version": 1}))
    );
    assert_eq!((a.0, b.0), (200, 200), "{a:?} {b:?}");
    let history = one.store.catalog().await.unwrap();
    let small = history.models.iter().filter(|model| model.name == "small");
    let last = small.max_by_key(|model| model.promoted).unwrap().version;
    both_have([&one, &other], last).await;
    one.stop().await;
    other.stop().await;
}

/// The same variant with times that were worked out from another device class.
fn estimated(new: &mut NewModel) {
    new.variants[0].profiles[0].latency_provenance = Provenance::Estimated;
}

#[tokio::test]
async fn what_was_only_estimated_counts_for_neither_way_and_is_told_by_force() {
    let run = World::new().await.run().await;
    let catalog = run.store.catalog().await.unwrap();
    let task = catalog.tasks.iter().find(|task| task.name == "fashion").unwrap().clone();
    for version in [2, 3] {
        let mut new = NewModel { version, ..new_model(&task, "small", 900.0, 970) };
        new.variants[0].name = format!("small-v{version}-fp32");
        if version == 2 {
            estimated(&mut new);
        }
        let registered = run.store.register_model(new).await.unwrap();
        offer(&run, registered.variants[0].ordinal);
    }
    run.handle.catalog_changed();
    while said(&run, "GET", "/v1/models?task=fashion", Value::Null).await.1["models"]
        .as_array()
        .unwrap()
        .len()
        < 4
    {}
    let promote = "/v1/models/fashion/small/promote";
    let (status, told) = said(&run, "POST", promote, json!({"version": 2})).await;
    let why = told["error"].as_str().unwrap();
    assert_eq!((status, &told["reason"]), (409, &json!("cannot_answer")), "{told}");
    assert!(why.contains("small-v2-fp32 on cpu:test:2: its times are estimated"), "{why}");
    let (status, told) = said(&run, "POST", promote, json!({"version": 2, "force": true})).await;
    assert_eq!((status, told["unknown"].as_array().unwrap().len()), (200, 1), "{told}");
    let (status, told) = said(&run, "POST", promote, json!({"version": 3})).await;
    assert_eq!((status, &told["unknown"]), (200, &json!([])), "{told}");

    // Back to what nobody measured is not gone by accident either.
    let rollback = "/v1/models/fashion/small/rollback";
    let (status, told) = said(&run, "POST", rollback, json!({"version": 3})).await;
    assert_eq!((status, &told["reason"]), (409, &json!("cannot_answer")), "{told}");
    assert!(told["error"].as_str().unwrap().contains("version 2 of small was not gone back to"), "{told}");
    let (status, told) = said(&run, "POST", rollback, json!({"version": 3, "force": true})).await;
    assert_eq!((status, &told["default"]), (200, &json!(2)), "{told}");
    let (status, told) = said(&run, "POST", rollback, json!({"version": 2})).await;
    assert_eq!((status, &told["default"], &told["unknown"]), (200, &json!(1), &json!([])), "{told}");
    run.stop().await;
}

#[tokio::test]
async fn a_pin_that_names_no_version_is_refused_with_those_that_there_are() {
    let world = World::new().await;
    let asked = async |goals: &str| -> Got {
        world.post(&format!("/v1/tasks/fashion?{goals}"), "image/png", PNG).await
    };
    assert_eq!(asked("model=small@1").await.status, 200);
    for (goals, named) in
        [("model=small@2", "it has 1"), ("model=smal@1", "no model"), ("model=small@", "it has 1")]
    {
        let got = asked(goals).await;
        assert_eq!(got.refusal().1, "pin_unusable", "{goals}");
        assert!(got.json()["error"].as_str().unwrap().contains(named), "{goals}: {got:?}");
    }
}

#[tokio::test]
async fn a_name_with_an_at_sign_is_a_name_first() {
    let world = World::new().await;
    let store = &world.store;
    let task = store.create_task(new_task("mails", TaskKind::ImageClassification)).await.unwrap();
    store.register_model(new_model(&task, "a@2", 100.0, 900)).await.unwrap();
    store.register_model(NewModel { version: 2, ..new_model(&task, "a", 100.0, 900) }).await.unwrap();
    let run = world.run().await;
    loop {
        let target = "/v1/tasks/mails/explain?model=a@2";
        let (status, explained) = said(&run, "GET", target, Value::Null).await;
        let pinned = |candidate: &&Value| candidate["finding"] != "not_pinned";
        if status == 200 && explained["candidates"].as_array().unwrap().len() == 2 {
            let left: Vec<_> = explained["candidates"].as_array().unwrap().iter().filter(pinned).collect();
            assert_eq!(left.len(), 1);
            assert_eq!(left[0]["variant"], "a@2-fp32");
            break;
        }
        run.handle.catalog_changed();
    }
    run.stop().await;
}

#[tokio::test]
async fn the_default_of_several_is_removed_only_by_force() {
    let run = World::new().await.run().await;
    second(&run, true).await;
    shown(&run).await;
    let (status, told) = said(&run, "DELETE", "/v1/models/fashion/small?version=1", Value::Null).await;
    assert_eq!((status, &told["reason"]), (409, &json!("conflict")), "{told}");
    let target = "/v1/models/fashion/small?version=1&force=true&by=ann";
    assert_eq!(said(&run, "DELETE", target, Value::Null).await.0, 200);
    // Only a candidate is left, and a pin of the name says how to ask for it.
    let got = run.with_connection(|mut connection| {
        let ask =
            modelless_testkit::Request::new(Method::GET.as_str(), "/v1/tasks/fashion/explain?model=small");
        connection.exchange(&ask).unwrap().json().unwrap()
    });
    let got = got.await;
    assert!(got["error"].as_str().unwrap().contains("small@2"), "{got}");
    run.stop().await;
}
