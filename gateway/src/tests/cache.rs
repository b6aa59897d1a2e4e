//! Answers that are given again: to whom, and to whom not.

use super::world::{Does, Got, PNG, Setup, World, ask, send};
use crate::decisions::Came;
use axum::body::Body;
use http::{Method, Request};
use modelless_live::{Live, MemLive};
use modelless_types::{CacheFor, Prefer};
use modelless_wire::ToNode;
use std::sync::Arc;
use std::time::Duration;

const TASK: &str = "/v1/tasks/fashion";

async fn world() -> World {
    let cache = CacheFor::seconds(60).unwrap();
    World::with(Setup { cache, ..Setup::default() }).await
}

/// How many queries reached the node since this was asked last.
fn asked(world: &mut World) -> usize {
    let mut count = 0;
    while let Ok(frame) = world.seen.try_recv() {
        count += usize::from(matches!(frame, ToNode::Query(_)));
    }
    count
}

async fn post(world: &World, query: &str) -> Got {
    let got = world.post(&format!("{TASK}{query}"), "image/png", PNG).await;
    assert_eq!(got.status, 200, "{got:?}");
    got
}

#[tokio::test]
async fn who_asks_the_same_again_gets_the_same_answer_without_a_device() {
    let mut world = world().await;
    let first = post(&world, "").await;
    assert_eq!((first.header("modelless-cache"), asked(&mut world)), ("miss", 1));
    assert!(!first.headers.contains_key("age"));
    let mut watching = world.service.core().decisions.listen();
    let again = post(&world, "?latency_ms=5000").await;
    assert_eq!((again.header("modelless-cache"), asked(&mut world)), ("hit", 0));
    assert_eq!(first.body, again.body);
    for same in ["modelless-variant", "modelless-model", "modelless-accuracy", "modelless-space"] {
        assert_eq!(first.headers[same], again.headers[same], "{same}");
    }
    for (name, value) in [
        ("modelless-cost", "0.000000000"),
        ("modelless-run-ms", "0.000"),
        ("modelless-reason", "given before"),
    ] {
        assert_eq!(again.header(name), value, "{name}");
    }
    assert!(again.header("age").parse::<u64>().is_ok_and(|age| age < 60));
    assert!(!again.headers.contains_key("modelless-node"));
    assert_ne!(first.header("modelless-query"), again.header("modelless-query"));
    let decision = watching.hears.recv().await.unwrap();
    assert!(matches!(decision.came, Came::Answered { again: true, node: None, .. }), "{decision:?}");
    // It can be judged like any other.
    let id = again.header("modelless-query-id").to_owned();
    let path = format!("/v1/queries/{id}/feedback");
    let judged = world.post(&path, "application/json", br#"{"verdict": "correct"}"#).await;
    assert_eq!(judged.status, 200, "{judged:?}");

    world.get("/metrics").await;
    let metrics = world.metrics.encode();
    for line in [
        r#"modelless_cache_total{task="fashion",outcome="hit"} 1"#,
        r#"modelless_cache_total{task="fashion",outcome="miss"} 1"#,
        r#"modelless_queries_total{task="fashion",outcome="answered"} 2"#,
        r#"modelless_cache_entries{task="fashion"} 1"#,
        r#"nv_cache_num_hits_per_model{model="fashion",version="1"} 1"#,
        r#"nv_cache_num_misses_per_model{model="fashion",version="1"} 1"#,
        r#"nv_inference_count{model="fashion",version="1"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let stats: serde_json::Value =
        serde_json::from_slice(&world.get("/v2/models/fashion/versions/1/stats").await.body).unwrap();
    let stats = &stats["model_stats"][0]["inference_stats"];
    let count = |of: &str| stats[of]["count"].as_u64().unwrap();
    assert_eq!((count("cache_hit"), count("cache_miss")), (1, 1));
    assert_eq!((count("success"), count("compute_infer")), (2, 1), "what is given again takes no device");
}

#[tokio::test]
async fn a_task_shows_as_a_model_whether_its_answers_are_given_again() {
    let cached = CacheFor::seconds(60).unwrap();
    let none = crate::Config { max_cache_bytes: 0, ..crate::Config::default() };
    for (cache, config, shown) in [
        (cached, crate::Config::default(), true),
        (CacheFor::OFF, crate::Config::default(), false),
        (cached, none, false),
    ] {
        let world = World::with(Setup { config, cache, ..Setup::default() }).await;
        let config = world.get("/v2/models/fashion/config").await.json();
        assert_eq!(config["response_cache"], serde_json::json!({"enable": shown}));
    }
}

#[tokio::test]
async fn a_floor_holds_whatever_was_given_before() {
    let mut world = world().await;
    post(&world, "").await; // by the small one: 90 %
    let better = post(&world, "?accuracy=0.94").await;
    assert_eq!((better.header("modelless-cache"), better.header("modelless-model")), ("miss", "large"));
    // The better answer took the place of the other, and serves both.
    for query in ["?accuracy=0.94", "", "?prefer=accuracy"] {
        let got = post(&world, query).await;
        assert_eq!(
            (got.header("modelless-cache"), got.header("modelless-model")),
            ("hit", "large"),
            "{query}"
        );
    }
    // A pin is one.
    let pinned = post(&world, "?variant=small-fp32").await;
    assert_eq!((pinned.header("modelless-cache"), pinned.header("modelless-model")), ("miss", "small"));
    assert_eq!(asked(&mut world), 3);
    // Nor does who wants a new answer have the better one replaced by less.
    let request = Request::post(TASK).header("content-type", "image/png").header("cache-control", "no-cache");
    let new = send(world.router(), request.body(Body::from(PNG)).unwrap()).await;
    assert_eq!((new.header("modelless-cache"), new.header("modelless-model")), ("miss", "small"));
    assert_eq!(post(&world, "?accuracy=0.94").await.header("modelless-cache"), "hit");
}

#[tokio::test]
async fn who_prefers_accuracy_is_not_given_less_than_there_is() {
    let mut world = world().await;
    post(&world, "").await; // by the small one
    assert_eq!(post(&world, "").await.header("modelless-cache"), "hit");
    assert_eq!(post(&world, "?prefer=accuracy").await.header("modelless-cache"), "miss");
    assert_eq!(asked(&mut world), 2);
}

#[tokio::test]
async fn what_a_task_prefers_counts_as_if_the_query_had_said_it() {
    let (cache, prefer) = (CacheFor::seconds(60).unwrap(), Some(Prefer::Accuracy));
    let mut world = World::with(Setup { cache, prefer, ..Setup::default() }).await;
    for _ in 0..2 {
        // The node of this test answers with the small one.
        assert_eq!(post(&world, "").await.header("modelless-cache"), "miss");
    }
    assert_eq!(asked(&mut world), 2);
    assert_eq!(post(&world, "?prefer=latency").await.header("modelless-cache"), "hit");
}

#[tokio::test]
async fn another_input_another_parameter_and_another_wish_are_asked_anew() {
    let mut world = world().await;
    *world.node.does.lock().unwrap() = Does::Echo;
    let json = |parameters: &str| format!(r#"{{"inputs": "iVBORw0KGgo="{parameters}}}"#);
    for body in [json(""), json(r#", "parameters": {"top_k": 1}"#), json(r#", "parameters": {"top_k": 2}"#)] {
        let got = world.post(TASK, "application/json", body.as_bytes()).await;
        assert_eq!((got.status.as_u16(), got.header("modelless-cache")), (200, "miss"), "{body}");
        let again = world.post(TASK, "application/json", body.as_bytes()).await;
        assert_eq!(again.header("modelless-cache"), "hit", "{body}");
    }
    assert_eq!(asked(&mut world), 3);

    let with = |wish: &'static str| {
        let request = Request::post(TASK).header("content-type", "image/png").header("cache-control", wish);
        send(world.router(), request.body(Body::from(PNG)).unwrap())
    };
    assert_eq!(with("no-store").await.header("modelless-cache"), "miss");
    assert_eq!(post(&world, "").await.header("modelless-cache"), "miss", "that one was not kept");
    assert_eq!(with("no-cache").await.header("modelless-cache"), "miss");
    assert_eq!(post(&world, "").await.header("modelless-cache"), "hit");
    assert_eq!(asked(&mut world), 3);
}

#[tokio::test]
async fn every_door_has_the_same_cache() {
    let mut world = world().await;
    *world.node.does.lock().unwrap() = Does::Echo;
    let body = br#"{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2, 1], "data": ["iVBORw0KGgo=", "iVBORw0KGgp4"]}]}"#;
    for (told, reached) in [("miss", 2), ("hit", 0)] {
        let got = world.post("/v2/models/fashion/infer", "application/json", body).await;
        assert_eq!(got.status, 200, "{got:?}");
        assert_eq!((got.header("modelless-cache"), asked(&mut world)), (told, reached));
    }
    let one = br#"{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2, 1], "data": ["iVBORw0KGgo=", "iVBORw0KGgo5"]}]}"#;
    let got = world.post("/v2/models/fashion/infer", "application/json", one).await;
    assert_eq!((got.header("modelless-cache"), asked(&mut world)), ("some", 1));
}

#[tokio::test]
async fn a_task_that_does_not_ask_for_it_has_none_and_refusals_are_never_kept() {
    let mut plain = World::new().await;
    for _ in 0..2 {
        assert!(!post(&plain, "").await.headers.contains_key("modelless-cache"));
    }
    assert_eq!(asked(&mut plain), 2);

    let mut world = world().await;
    for _ in 0..2 {
        let bad = world.post(TASK, "image/png", b"no picture").await;
        assert_eq!(bad.status, 400, "{bad:?}");
    }
    assert_eq!(asked(&mut world), 2);
    assert_eq!(world.service.core().cache.local.held().1, 0);
}

#[tokio::test]
async fn what_a_variant_answered_that_is_gone_is_not_given() {
    let world = world().await;
    let router = world.router();
    let mut world = world.run().await;
    let post = |query: &'static str| ask(router.clone(), Method::POST, query, "image/png", PNG);
    assert_eq!(post("/v1/tasks/fashion").await.header("modelless-model"), "small");
    assert_eq!(post("/v1/tasks/fashion").await.header("modelless-cache"), "hit");
    world.next_query().await;
    let removed = ask(router.clone(), Method::DELETE, "/v1/models/fashion/small?force=true", "", b"").await;
    assert_eq!(removed.status, 200, "{removed:?}");
    let now = post("/v1/tasks/fashion").await;
    assert_eq!((now.header("modelless-cache"), now.header("modelless-model")), ("miss", "large"));
    world.stop().await;
}

#[tokio::test]
async fn gateways_of_a_cluster_give_each_others_answers() {
    let live: Arc<dyn Live> = Arc::new(MemLive::default());
    let cache = CacheFor::seconds(60).unwrap();
    let one = World::with(Setup { cache, live: Some(Arc::clone(&live)), ..Setup::default() }).await;
    let store = Some(Arc::clone(&one.store));
    let also = || Setup { store: store.clone(), live: Some(Arc::clone(&live)), ..Setup::default() };
    let (mut other, hasty) = (World::with(also()).await, World::with(also()).await);
    let router = one.router();
    let one = one.run().await; // with what writes
    let first = ask(router, Method::POST, TASK, "image/png", PNG).await;
    assert_eq!(first.header("modelless-cache"), "miss");
    let shared = async {
        while one.handle.core().cache.shared.as_ref().unwrap().waiting() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shared).await.expect("in time");
    let got = post(&other, "").await;
    assert_eq!((got.header("modelless-cache"), asked(&mut other)), ("hit", 0));
    assert_eq!(got.body, first.body);
    let in_haste = post(&hasty, "?latency_ms=19").await;
    assert_eq!(in_haste.header("modelless-cache"), "miss", "it has no time to look there");
    one.stop().await;
}
