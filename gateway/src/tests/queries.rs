use super::world::{Does, PNG, Setup, World, send};
use crate::ids::QueryId;
use axum::body::Body;
use http::{Method, Request};
use modelless_decision::route::{Ready, Router};
use modelless_drive::{Recorder, replay};
use modelless_types::{Accuracy, Bytes, CostPer1k, Micros, Prefer, Refusal, VariantId};
use modelless_wire::{Body as Said, Input, ToNode};
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, Mutex};

const FASHION: &str = "/v1/tasks/fashion";

#[tokio::test]
async fn an_answer_carries_the_decision_in_its_headers() {
    let world = World::new().await;
    let got = world.post("/v1/tasks/fashion?accuracy=0.94&latency_ms=800", "image/png", PNG).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(got.json(), json!([{"label": "size", "score": PNG.len()}]));
    for (name, value) in [
        ("modelless-model", "large"),
        ("modelless-variant", "large-fp32"),
        ("modelless-accuracy", "0.95"),
        ("modelless-accuracy-provenance", "measured"),
        ("modelless-node", "node-a"),
        ("modelless-space", "fashion"),
        ("modelless-batch", "3"),
        ("modelless-cost", "0.001500000"),
        ("modelless-predicted-run-ms", "0.900"),
        ("modelless-decode-ms", "0.040"),
        ("modelless-prepare-ms", "0.005"),
        ("modelless-run-ms", "0.700"),
        ("modelless-reason", "only one that meets the goals"),
    ] {
        assert_eq!(got.header(name), value, "{name}");
    }
    let ms = |name| got.header(name).parse::<f64>().unwrap();
    assert!(ms("modelless-queue-ms") >= 0.25);
    assert!(ms("modelless-total-ms") < 800.0);
    assert!((3.9..100.0).contains(&ms("modelless-predicted-ms")), "{}", ms("modelless-predicted-ms"));
    let QueryId { variant, .. } = world.handle.query_ids().verify(got.header("modelless-query-id")).unwrap();
    assert_eq!(variant, VariantId(2));
}

#[tokio::test]
async fn goals_reach_the_node_from_wherever_they_stand() {
    let mut world = World::new().await;
    let body = json!({"inputs": "iVBORw0KGgo=", "goals": {"accuracy": 0.9, "prefer": "cost"}, "parameters": {"top_k": 1}});
    let request = Request::post("/v1/tasks/fashion?latency_ms=250&priority=1")
        .header("content-type", "application/json; charset=utf-8")
        .header("modelless-max-cost", "5")
        .header("modelless-fallback", "best_effort")
        .body(Body::from(body.to_string()))
        .unwrap();
    let got = send(world.router(), request).await;
    assert_eq!(got.status, 200, "{got:?}");
    let ToNode::Query(frame) = world.seen.recv().await.unwrap() else { panic!("a query was sent") };
    assert_eq!(frame.class.admits.iter().collect::<Vec<_>>(), [0, 1]);
    assert!(frame.deadline_in <= Micros::from_millis(250) && frame.deadline_in > Micros::from_millis(50));
    assert!(frame.expires_in > Micros::from_secs(5), "best effort waits longer");
    assert_eq!((frame.prefer, frame.priority.level(), frame.best_effort), (Prefer::Cost, 1, true));
    assert_eq!(frame.max_cost, Some(CostPer1k(5_000_000_000)));
    let Input::Json { inputs, parameters } = frame.input else { panic!("JSON stays JSON") };
    assert_eq!(inputs, r#""iVBORw0KGgo=""#);
    assert_eq!(parameters.unwrap(), r#"{"top_k":1}"#);
}

#[tokio::test]
async fn the_body_is_what_its_type_or_its_first_byte_says() {
    let world = World::new().await;
    let json = br#"  {"inputs": "iVBORw0KGgo="}"#;
    for (media, body) in [
        ("image/png", PNG),
        ("IMAGE/PNG; x=y", PNG),
        ("application/octet-stream", PNG),
        ("", PNG),
        ("application/x-www-form-urlencoded", PNG),
        ("", &json[..]),
        ("application/json", &json[..]),
    ] {
        let got = world.post(FASHION, media, body).await;
        assert_eq!(got.status, 200, "{media:?} {got:?}");
    }
    // Sixteen bytes are four floats, even when the first is a brace.
    let got = world.post("/v1/tasks/arrays", "", b"{\"inputs\": 12345").await;
    assert_eq!(got.json()["outputs"]["y"]["data"][0], 16.0);
}

#[tokio::test]
async fn texts_come_in_every_form_and_a_list_is_answered_in_its_order() {
    const WORDS: &str = "/v1/tasks/words";
    let world = World::with(Setup { texts: true, ..Setup::default() }).await;
    let one = |size: usize| json!([{"label": "size", "score": size}]);
    // What the node is given: a text as it stands, or a JSON string with its quotes.
    for (media, body, sizes) in [
        ("text/plain", "a ship", vec![6]),
        ("text/plain", "[\"a\"]", vec![5]),
        ("", "a ship", vec![6]),
        ("", "\"unclosed", vec![9]),
        ("application/x-www-form-urlencoded", "[\"a\", \"boat\"]", vec![3, 6]),
        ("application/json", "\"a ship\"", vec![8]),
        ("application/json", " [ \"a\" , \"boat\" ] ", vec![3, 6]),
        ("application/json", "{\"inputs\": \"a ship\"}", vec![8]),
        ("application/json", "{\"inputs\": [\"boat\", \"a\"], \"parameters\": {\"top_k\": 1}}", vec![6, 3]),
    ] {
        let got = world.post(WORDS, media, body.as_bytes()).await;
        assert_eq!(got.status, 200, "{body} {got:?}");
        let expected: Vec<_> = sizes.into_iter().map(one).collect();
        assert_eq!(got.json(), json!(expected), "{body}");
    }
    let got = world.post(WORDS, "application/json", b"[\"a\", \"boat\", \"c\"]").await;
    let ids: Vec<_> = got.header("modelless-query-id").split(", ").collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| world.handle.query_ids().verify(id).is_ok()), "{ids:?}");
    let many = format!("[{}]", vec!["\"a\""; 65_537].join(","));
    for (body, status, said) in [
        ("[]", 400, "empty"),
        ("[\"a\"", 400, "cannot be read"),
        (many.as_str(), 413, "65536"),
        ("{\"text\": \"a\"}", 400, "text"),
        ("{\"inputs\": \"a\", \"normalize\": true}", 400, "feature-extraction only"),
        ("", 400, "empty"),
    ] {
        let got = world.post(WORDS, "application/json", body.as_bytes()).await;
        assert_eq!(got.status, status, "{said} {got:?}");
        assert!(got.json()["error"].as_str().unwrap().contains(said), "{said} {got:?}");
    }
    assert_eq!(world.post(WORDS, "image/png", PNG).await.status, 415);
    // A list for a task that takes none is its input.
    assert_eq!(world.post("/v1/tasks/arrays", "application/json", b"[1, 2]").await.status, 400);
}

#[tokio::test]
async fn a_long_list_is_answered_in_order_with_a_bounded_number_of_its_texts_open() {
    let mut world = World::with(Setup { texts: true, ..Setup::default() }).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    let texts: Vec<String> = (0..3_000).map(|at| "x".repeat(at % 50)).collect();
    let request = Request::post("/v1/tasks/words").header("content-type", "application/json");
    let asking = send(world.router(), request.body(Body::from(json!(texts).to_string())).unwrap());
    let mut most = 0;
    let answering = async {
        while let Some(frame) = world.seen.recv().await {
            if let ToNode::Query(frame) = frame {
                most = most.max(world.handle.open_queries());
                world.node.answer(&frame);
            }
        }
    };
    let got = tokio::select! {
        got = asking => got,
        () = answering => panic!("the node is gone"),
    };
    assert_eq!(got.status, 200, "{got:?}");
    let expected: Vec<_> =
        texts.iter().map(|text| json!([{"label": "size", "score": text.len() + 2}])).collect();
    assert_eq!(got.json(), json!(expected));
    assert!((200..=256).contains(&most), "{most} were open at once");
    assert!(!got.headers.contains_key("modelless-query-id"), "a head that clients would not take");
    let head: usize = got.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    assert!(head < 2_000, "{head} bytes");
}

#[tokio::test]
async fn one_text_that_is_refused_ends_its_list_and_says_which() {
    let world = World::with(Setup { texts: true, ..Setup::default() }).await;
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::OverQuota);
    let got = world.post("/v1/tasks/words", "application/json", b"[\"a\", \"b\"]").await;
    assert_eq!(got.status, 429, "{got:?}");
    assert!(got.json()["error"].as_str().unwrap().starts_with("text 1 of the list: "), "{got:?}");
}

#[tokio::test]
async fn what_is_no_query_is_refused_by_name() {
    let world = World::new().await;
    let json = "application/json";
    for (target, media, body, expected) in [
        (FASHION, "", &b""[..], (400, "malformed")),
        (FASHION, json, b"", (400, "malformed")),
        (FASHION, json, b"{}", (400, "malformed")),
        (FASHION, json, b"[1]", (400, "malformed")),
        (FASHION, json, br#"{"inputs":1,"inputs":2}"#, (400, "malformed")),
        (FASHION, json, br#"{"inputs":1,"extra":2}"#, (400, "malformed")),
        (FASHION, json, br#"{"inputs":1"#, (400, "malformed")),
        (FASHION, json, br#"{"inputs":1,"parameters":[1]}"#, (400, "malformed")),
        (FASHION, json, br#"{"inputs":1,"goals":{"acuracy":1}}"#, (400, "bad_goal")),
        (FASHION, json, b"{\"inputs\":\"\xff\"}", (400, "malformed")),
        (FASHION, "image/png", b"no picture", (400, "malformed")),
        (FASHION, "video/mp4", PNG, (415, "unsupported_media")),
        ("/v1/tasks/arrays", "image/png", PNG, (415, "unsupported_media")),
        ("/v1/tasks/fashon", "image/png", PNG, (404, "unknown_task")),
        ("/v1/tasks/%ff%fe", "image/png", PNG, (400, "malformed")),
        ("/v1/tasks/fashion?accuracy=NaN", "image/png", PNG, (400, "bad_goal")),
        ("/v1/tasks/fashion?model=huge", "image/png", PNG, (422, "pin_unusable")),
        ("/v1/tasks/fashion?variant=small", "image/png", PNG, (422, "pin_unusable")),
        ("/v1/tasks/fashion?variant=small-fp32&model=large", "image/png", PNG, (422, "pin_unusable")),
    ] {
        let (status, reason) = world.post(target, media, body).await.refusal();
        assert_eq!((status, reason.as_str()), expected, "{target} {media} {}", body.escape_ascii());
    }
    let near = world.post("/v1/tasks/fashon", "image/png", PNG).await.json();
    assert!(near["error"].as_str().unwrap().contains("did you mean \"fashion\"?"), "{near}");
    let nested = [b"{\"inputs\":".to_vec(), b"[".repeat(200_000)].concat();
    assert_eq!(world.post(FASHION, json, &nested).await.status, 400);
    for (encoding, status) in [("br", 415), ("gzip, gzip", 415), ("gzip", 400), ("deflate", 400)] {
        let request = Request::post(FASHION).header("content-encoding", encoding).body(Body::from(PNG));
        assert_eq!(send(world.router(), request.unwrap()).await.status, status, "{encoding}");
    }
}

#[tokio::test]
async fn impossible_goals_are_422_with_the_nearest_that_could_be_met() {
    let world = World::new().await;
    let got = world.post("/v1/tasks/fashion?accuracy=0.99", "image/png", PNG).await;
    assert_eq!(got.refusal(), (422, "floor_unreachable".to_owned()));
    assert_eq!(got.json()["nearest"], json!({"accuracy": 0.95}));
    let got = world.post("/v1/tasks/fashion?accuracy=0.94&latency_ms=2", "image/png", PNG).await;
    assert_eq!(got.refusal(), (422, "latency_unreachable".to_owned()));
    assert_eq!(got.json()["nearest"]["accuracy"], 0.9);
    let latency = got.json()["nearest"]["latency_ms"].as_f64().unwrap();
    assert!((4.0..5.0).contains(&latency), "{latency}");
    // What is said to be the nearest is indeed feasible.
    let near = format!("/v1/tasks/fashion?accuracy=0.94&latency_ms={}&fallback=reject", latency + 100.0);
    assert_eq!(world.post(&near, "image/png", PNG).await.status, 200);
}

#[tokio::test]
async fn what_a_node_refuses_keeps_its_name() {
    let world = World::new().await;
    for (refusal, expected, retry) in [
        (Refusal::TooLate { waited: Micros(5) }, (504, "too_late"), None),
        (Refusal::QueueFull { limit: 3 }, (503, "queue_full"), Some("1")),
        (
            Refusal::Loading { ready_in: Micros(2_100_000), bound: Micros(3_200_000) },
            (503, "loading"),
            Some("3"),
        ),
        (Refusal::OverQuota, (429, "over_quota"), Some("1")),
        (Refusal::ModelError { why: "nan".to_owned() }, (422, "model_error"), None),
        (Refusal::OutOfMemory { needs: Bytes(2), budget: Bytes(1) }, (503, "out_of_memory"), Some("5")),
    ] {
        *world.node.does.lock().unwrap() = Does::Refuse(refusal);
        let got = world.post(FASHION, "image/png", PNG).await;
        let (status, reason) = got.refusal();
        assert_eq!((status, reason.as_str()), expected);
        assert_eq!(got.headers.get("retry-after").map(|value| value.to_str().unwrap()), retry, "{reason}");
    }
    let metrics = world.metrics.encode();
    assert!(metrics.contains(r#"modelless_refusals_total{task="fashion",reason="too_late"} 1"#), "{metrics}");
}

#[tokio::test]
async fn a_query_that_is_handed_back_is_sent_again_with_its_input() {
    let world = World::new().await;
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut run = world.run().await;
    let address = run.addresses.http;
    let asked = std::thread::spawn(move || {
        let request = modelless_testkit::Request::post(FASHION).header("content-type", "image/png").body(PNG);
        modelless_testkit::Connection::open(address).unwrap().exchange(&request).unwrap()
    });
    let first = run.next_query().await;
    *run.node.does.lock().unwrap() = Does::Answer;
    run.node.say(Said::HandedBack { key: first.key, why: Refusal::Draining });
    let second = run.next_query().await;
    assert_eq!((first.key, &first.input), (second.key, &second.input));
    assert!(second.spent > first.spent);
    run.stop().await;
    assert_eq!(asked.join().unwrap().status, 200);
}

#[tokio::test]
async fn a_silent_node_leaves_queries_unanswered_by_name() {
    let world = World::with(Setup { silent_node: true, ..Setup::default() }).await;
    let (status, reason) = world.post(FASHION, "image/png", PNG).await.refusal();
    assert_eq!((status, reason.as_str()), (503, "node_lost"));
    assert_eq!(world.get("/v2/health/ready").await.status, 503);
    world.node.say(Said::Report);
    assert_eq!(world.post(FASHION, "image/png", PNG).await.status, 200);
    assert_eq!(world.get("/v2/health/ready").await.json(), json!({"ready": true, "live": true}));
}

#[tokio::test]
async fn a_variant_that_leaves_memory_is_no_longer_sent_to_and_a_removed_model_is_gone() {
    let world = World::new().await;
    let mut run = world.run().await;
    run.status.send_modify(|status| {
        for offer in &mut status.info.offers {
            offer.ready = Ready::Cold { load: Micros::from_millis(50) };
        }
    });
    let large = "/v1/tasks/fashion?accuracy=0.94&latency_ms=20";
    let post = |target: &'static str| {
        move |mut connection: modelless_testkit::Connection| {
            let request =
                modelless_testkit::Request::post(target).header("content-type", "image/png").body(PNG);
            connection.exchange(&request).unwrap()
        }
    };
    loop {
        // The change goes through another task; until then the old table holds.
        let got = run.with_connection(post(large)).await;
        if got.status == 503 {
            assert_eq!(got.json().unwrap()["reason"], "loading");
            break;
        }
        assert_eq!(got.status, 200, "{got}");
    }
    loop {
        if let ToNode::Wake { ordinal, .. } = run.seen.recv().await.unwrap() {
            assert_eq!(ordinal, 1, "the node is asked to load the one that qualifies");
            break;
        }
    }
    modelless_store::Store::remove_model(
        &*run.store,
        modelless_types::ModelId(2),
        true,
        modelless_store::Signed::default(),
    )
    .await
    .unwrap();
    run.handle.catalog_changed();
    loop {
        let got = run.with_connection(post(large)).await;
        if got.status == 422 {
            assert_eq!(
                got.json().unwrap()["nearest"]["accuracy"],
                Accuracy::from_ppm(900_000).unwrap().as_f64()
            );
            break;
        }
    }
    run.stop().await;
}

#[tokio::test]
async fn a_node_that_goes_takes_its_queries_with_it_by_name_and_may_come_back() {
    let mut run = World::new().await.run().await;
    *run.node.does.lock().unwrap() = Does::Keep;
    let address = run.addresses.http;
    let ask = move || {
        let request = modelless_testkit::Request::post(FASHION).header("content-type", "image/png").body(PNG);
        modelless_testkit::Connection::open(address).unwrap().exchange(&request).unwrap()
    };
    let kept = std::thread::spawn(ask);
    run.next_query().await;
    let before = run.status.borrow().clone();
    let mut ready = run.handle.ready();
    run.status = tokio::sync::watch::Sender::new(before); // the old one is dropped: the node is gone
    let lost = tokio::task::spawn_blocking(|| kept.join().unwrap()).await.unwrap();
    assert_eq!((lost.status, lost.json().unwrap()["reason"].as_str()), (503, Some("node_lost")));
    ready.wait_for(|ready| !ready).await.unwrap();
    run.handle.add_node(run.status.subscribe(), Arc::clone(&run.node) as Arc<dyn modelless_wire::NodeLink>);
    *run.node.does.lock().unwrap() = Does::Answer;
    run.node.say(Said::Report);
    ready.wait_for(|ready| *ready).await.unwrap();
    loop {
        // The table that has it again follows at once, but after.
        let got = tokio::task::spawn_blocking(ask).await.unwrap();
        if got.status == 200 {
            break;
        }
        assert_eq!(got.status, 503, "{got}");
    }
    run.stop().await;
}

/// Bytes that can be read while they are written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_recorded_log_replayed_gives_the_same_actions() {
    let log = Shared::default();
    let recorder = Recorder::to(log.clone()).unwrap();
    let world = World::with(Setup { recorder: Some(recorder), ..Setup::default() }).await;
    for at in 0..40 {
        let does = if at % 5 == 4 { Does::Refuse(Refusal::Draining) } else { Does::Answer };
        *world.node.does.lock().unwrap() = does;
        let target = format!("/v1/tasks/fashion?accuracy=0.{}&latency_ms={}", 90 + at % 6, 20 + at);
        world.post(&target, "image/png", PNG).await;
    }
    let (limits, seed) = (crate::Config::default().waiting, 7);
    // The recorder writes what still waits when the last holder of the gateway goes.
    world.run().await.stop().await;
    let text = log.0.lock().unwrap().clone();
    let done = replay(&mut Router::new(limits, seed), &text[..]).unwrap();
    assert!(done.inputs >= 80 && done.actions >= 40, "{done:?}");
}

#[tokio::test]
async fn waiting_queries_are_bounded_and_the_bound_has_a_name() {
    let mut setup = Setup::default();
    setup.config.waiting.waiting = 2;
    let world = World::with(setup).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    let router = world.router();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..7 {
        let request = Request::builder().method(Method::POST).uri(FASHION);
        let request = request.header("content-type", "image/png").body(Body::from(PNG)).unwrap();
        tasks.spawn(send(router.clone(), request));
    }
    // Four are at the node, two wait, one is too many.
    let got = tasks.join_next().await.unwrap().unwrap();
    assert_eq!(got.refusal(), (503, "queue_full".to_owned()));
    assert_eq!(world.handle.open_queries(), 6);
    tasks.shutdown().await;
    assert_eq!(world.handle.open_queries(), 0, "those whose clients went away are forgotten");
}

#[tokio::test]
async fn metrics_tell_of_each_query_whose_it_was_where_it_was_answered_and_whether_it_got_what_it_wanted() {
    let world = World::new().await;
    let png = "image/png";
    assert_eq!(world.post("/v1/tasks/fashion?accuracy=0.9&max_cost=1", png, PNG).await.status, 200);
    assert_eq!(world.post("/v1/tasks/fashion?accuracy=0.99", png, PNG).await.status, 422);
    let text = String::from_utf8(world.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        r#"modelless_goals_total{task="fashion",goal="latency",outcome="met"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="latency",outcome="missed"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="accuracy",outcome="met"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="accuracy",outcome="missed"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="cost",outcome="met"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="cost",outcome="missed"} 0"#,
        r#"modelless_goal_latency_ratio_count{task="fashion"} 1"#,
        r#"modelless_goal_accuracy_margin_ratio_count{task="fashion"} 1"#,
        r#"modelless_application_queries_total{tenant="default",application="default",outcome="answered"} 1"#,
        r#"modelless_application_queries_total{tenant="default",application="default",outcome="refused"} 1"#,
        r#"modelless_node_answer_seconds_count{node="node-a"} 1"#,
        r#"modelless_input_bytes_count{task="fashion"} 1"#,
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
}
