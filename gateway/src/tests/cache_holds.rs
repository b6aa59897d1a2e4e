//! What is given again stays within what holds for every query: who asks, versions, flags, quotas, pins.

use super::access::{made, with_key};
use super::feedback::now;
use super::world::{Got, PNG, Running, Setup, World, ask, new_model};
use crate::cache::{AHEAD, Entry, LARGE, Wish};
use crate::ids::QueryId;
use bytes::Bytes as Buffer;
use http::Method;
use modelless_decision::route::Offer;
use modelless_store::{Access as _, NewModel, Owner, Quota, Store as _, TaskChange, Visibility};
use modelless_types::{
    CacheFor, CostPer1k, Goals, LiveRule, Micros, ModelId, Scopes, SpaceId, TenantId, Time, Variant,
    VariantId,
};
use modelless_wire::{Answer, Input, Reason, ToNode};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const TASK: &str = "/v1/tasks/fashion";

async fn world() -> World {
    let cache = CacheFor::seconds(60).unwrap();
    World::with(Setup { cache, ..Setup::default() }).await
}

/// Whether it was given before, and by which variant.
fn told(got: &Got) -> (&str, &str) {
    assert_eq!(got.status, 200, "{got:?}");
    (got.header("modelless-cache"), got.header("modelless-variant"))
}

#[tokio::test]
async fn what_one_tenant_was_told_no_other_is_given_though_they_share_the_model() {
    let before = world().await;
    let other = before.store.create_tenant("other").await.unwrap().id;
    let fashion = before.store.catalog().await.unwrap().tasks[0].id;
    before.store.share_model(fashion, "small", Visibility::Public).await.unwrap();
    let mine = made(&before, TenantId::DEFAULT, Scopes::ALL).await;
    let theirs = made(&before, other, Scopes::ALL).await;
    let mut world = World::with(Setup { store: Some(before.store), ..Setup::default() }).await;
    let body = br#"{"inputs": "iVBORw0KGgo="}"#;
    for (key, wanted) in [(&mine, "miss"), (&theirs, "miss"), (&mine, "hit"), (&theirs, "hit")] {
        let got = with_key(&world, "POST", TASK, key.expose(), body).await;
        assert_eq!(told(&got).0, wanted);
    }
    let mut reached = 0;
    while let Ok(frame) = world.seen.try_recv() {
        reached += usize::from(matches!(frame, ToNode::Query(_)));
    }
    assert_eq!(reached, 2, "one of each tenant's");
}

/// A second version of `large`, which the node answers with, and how accurate it is.
async fn second(run: &Running, right: u64) {
    let catalog = run.store.catalog().await.unwrap();
    let task = catalog.tasks.iter().find(|task| task.name == "fashion").unwrap();
    let mut new = NewModel { version: 2, ..new_model(task, "large", 900.0, right) };
    new.variants[0].name = "large-v2-fp32".to_owned();
    let registered = run.store.register_model(new).await.unwrap();
    let ordinal = registered.variants[0].ordinal;
    run.node.knows(task.id, &registered.variants[0], registered.model.space);
    run.status.send_modify(|status| {
        let like = status.info.offers[0].clone();
        status.info.offers.push(Offer { ordinal, ..like });
    });
    run.handle.catalog_changed();
}

#[tokio::test]
async fn a_promoted_version_answers_anew_and_its_answers_take_the_place_of_the_old_ones() {
    let world = world().await;
    let router = world.router();
    let run = world.run().await;
    let post = async |query: &'static str| ask(router.clone(), Method::POST, query, "image/png", PNG).await;
    let high = "/v1/tasks/fashion?accuracy=0.92";
    assert_eq!(told(&post(high).await), ("miss", "large-fp32"));
    assert_eq!(told(&post(high).await), ("hit", "large-fp32"));
    // Less accurate than the first, so that its answers would not take the place of that one's by being better.
    second(&run, 930).await;
    let promoted = async {
        loop {
            let body = json!({"version": 2, "force": true}).to_string();
            let path = "/v1/models/fashion/large/promote";
            let got = ask(router.clone(), Method::POST, path, "application/json", body.as_bytes()).await;
            if got.status == 200 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), promoted).await.expect("in time");
    assert_eq!(told(&post(high).await), ("miss", "large-v2-fp32"), "what the old one answered is not given");
    assert_eq!(told(&post(high).await), ("hit", "large-v2-fp32"), "and not in the way");
    run.stop().await;
}

#[tokio::test]
async fn what_who_pins_was_told_is_not_in_the_way_of_others_nor_theirs_in_its() {
    let world = world().await;
    let post = async |query: &str| world.post(&format!("{TASK}{query}"), "image/png", PNG).await;
    assert_eq!(told(&post("?accuracy=0.94").await), ("miss", "large-fp32"));
    for _ in 0..2 {
        let got = post("?variant=small-fp32").await;
        assert_eq!(got.header("modelless-variant"), "small-fp32");
    }
    assert_eq!(told(&post("?variant=small-fp32").await), ("hit", "small-fp32"));
    assert_eq!(told(&post("?accuracy=0.94").await), ("hit", "large-fp32"));
}

#[tokio::test]
async fn a_variant_that_is_flagged_meanwhile_is_not_given_below_the_floor() {
    let before = world().await;
    let fashion = before.store.catalog().await.unwrap().tasks[0].id;
    let change = TaskChange { live_accuracy: Some(LiveRule::Floors), ..TaskChange::default() };
    before.store.change_task(fashion, change).await.unwrap();
    let world = World::with(Setup { store: Some(before.store), ..Setup::default() }).await;
    let router = world.router();
    let run = world.run().await;
    let post = async |path: &'static str| ask(router.clone(), Method::POST, path, "image/png", PNG).await;
    let floor = "/v1/tasks/fashion?accuracy=0.85";
    assert_eq!(told(&post(floor).await), ("miss", "small-fp32"));
    assert_eq!(told(&post(floor).await), ("hit", "small-fp32"));
    // 70 of 100 where 90 % were measured.
    for number in 0..100 {
        let id = QueryId { variant: VariantId(1), at_unix_us: now(), number, arm: None, label: Some(0) };
        let path = format!("/v1/queries/{}/feedback", run.handle.query_ids().issue(id));
        let verdict = if number % 10 < 7 { "correct" } else { "wrong" };
        let body = json!({"verdict": verdict}).to_string();
        let got = ask(router.clone(), Method::POST, &path, "application/json", body.as_bytes()).await;
        assert_eq!(got.status, 200, "{got:?}");
    }
    run.handle.catalog_changed();
    let flagged = async {
        while post(floor).await.header("modelless-variant") == "small-fp32" {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), flagged).await.expect("in time");
    assert_eq!(told(&post(floor).await), ("hit", "large-fp32"));
    run.stop().await;
}

#[tokio::test]
async fn what_is_given_again_counts_as_a_request_and_takes_no_devices_time() {
    let before = world().await;
    let key = made(&before, TenantId::DEFAULT, Scopes::ALL).await;
    let body = br#"{"inputs": "iVBORw0KGgo="}"#;
    let owner = Owner::Tenant(TenantId::DEFAULT);
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    before.store.set_quota(owner, quota).await.unwrap();
    let world = World::with(Setup { store: Some(before.store), ..Setup::default() }).await;
    // Some 70 that take a device would be refused.
    for _ in 0..200 {
        assert_eq!(with_key(&world, "POST", TASK, key.expose(), body).await.status, 200);
    }
    let quota = Quota { requests_per_s: Some(1), burst: Some(3), ..Quota::default() };
    world.store.set_quota(owner, quota).await.unwrap();
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(with_key(&world, "POST", TASK, key.expose(), body).await.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
}

fn raw(bytes: Vec<u8>) -> Input {
    Input::Raw(bytes.into())
}

#[tokio::test]
async fn an_answer_that_is_too_old_or_of_a_time_to_come_is_not_found() {
    let world = world().await;
    let (core, view) = (world.service.core(), world.service.core().view());
    let (cache, task) = (&core.cache, view.task("fashion").unwrap());
    let lookup = async |wish| {
        let (input, goals) = (raw(b"a".to_vec()), Goals::default());
        cache.lookup(task, TenantId::DEFAULT, &goals, &input, wish).await.unwrap()
    };
    let any = lookup(Wish::Any).await;
    let given_unix = 5_000_000;
    let (model, variant, space) = (ModelId(1), VariantId(1), SpaceId(1));
    let entry = Entry { body: Buffer::from_static(b"[]"), model, variant, space, given_unix };
    assert!(cache.local.put(any.key, Arc::new(entry), task.metrics.cache(), |_| true));
    let found = async |at| cache.find(&any, task, Time(0), at).await.is_some();
    let minute_later = given_unix + 60_000_000;
    assert!(found(minute_later).await);
    assert!(!found(minute_later + 1).await, "it is over");
    assert!(found(given_unix - AHEAD).await, "clocks are a little apart");
    assert!(!found(given_unix - AHEAD - 1).await, "who wrote that has another idea of the time");
    let new = lookup(Wish::New).await;
    assert!(cache.find(&new, task, Time(0), given_unix).await.is_none(), "a new one is wanted");
}

#[tokio::test]
async fn a_large_input_has_one_key_too_and_who_is_in_haste_looks_here_only() {
    let world = world().await;
    let (core, view) = (world.service.core(), world.service.core().view());
    let task = view.task("fashion").unwrap();
    let look = async |input: &Input, goals: &Goals| {
        core.cache.lookup(task, TenantId::DEFAULT, goals, input, Wish::Any).await.unwrap()
    };
    let large = |last: u8| raw([vec![1; LARGE], vec![last]].concat());
    let key = async |input: &Input| look(input, &Goals::default()).await.key;
    assert_eq!(key(&large(1)).await, key(&large(1)).await);
    assert_ne!(key(&large(1)).await, key(&large(2)).await);
    let input = raw(b"a".to_vec());
    for (ms, far) in [(19, false), (20, true)] {
        let goals = Goals { latency: Some(Micros::from_millis(ms)), ..Goals::default() };
        assert_eq!(look(&input, &goals).await.far, far, "{ms} ms");
    }
    assert!(look(&input, &Goals::default()).await.far);
}

#[tokio::test]
async fn what_is_less_accurate_takes_the_place_of_what_is_past_half_its_time() {
    let world = world().await;
    let (core, view) = (world.service.core(), world.service.core().view());
    let (cache, task) = (&core.cache, view.task("fashion").unwrap());
    let (input, goals) = (raw(b"a".to_vec()), Goals::default());
    let lookup = cache.lookup(task, TenantId::DEFAULT, &goals, &input, Wish::Any).await.unwrap();
    let keep = |name: &str, second: u64| {
        let of = task.variants.iter().find(|view| view.variant.name == name).unwrap();
        cache.keep(&lookup, task, &answer(&of.variant), Time(0), second * 1_000_000);
        cache.local.get(&lookup.key).map(|kept| kept.variant == of.variant.id)
    };
    assert_eq!(keep("large-fp32", 100), Some(true));
    assert_eq!(keep("small-fp32", 130), Some(false));
    assert_eq!(keep("small-fp32", 131), Some(true));
    assert_eq!(keep("large-fp32", 131), Some(true), "what is more accurate at once");
}

/// An answer of a variant.
fn answer(of: &Variant) -> Answer {
    Answer {
        body: Buffer::from_static(b"[]"),
        model: of.model,
        variant: of.id,
        space: SpaceId(1),
        batch: 1,
        predicted_run: Micros(1),
        cost: CostPer1k(1),
        queued: Micros(1),
        decode: Micros(1),
        prepare: Micros(1),
        run: Micros(1),
        at_node: Micros(1),
        why: Reason::Only,
    }
}
