//! What is counted against a tenant besides its queries, and that a request of many queries is let in whole or not at all.

use super::access::{made, made_for, refusal, with_key};
use super::world::{Does, Got, PNG, Setup, World, send};
use crate::http::refusals::Slowly;
use axum::body::Body;
use bytes::Bytes as Buffer;
use http::{Method, Request, StatusCode};
use modelless_store::{Access as _, Artefacts, NewJob, Owner, Quota, SecretKey, Store as _, UnixMicros};
use modelless_types::{JobState, Micros, Scope, Scopes, TenantId};
use modelless_wire::{QueryFrame, ToNode};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::ServiceExt as _;

/// A world of all tasks whose first tenant has this quota, and its key.
async fn bounded(quota: Quota, setup: Setup) -> (World, SecretKey) {
    let world = World::with(Setup { texts: true, ..Setup::default() }).await;
    let key = made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    world.store.set_quota(Owner::Tenant(TenantId::DEFAULT), quota).await.unwrap();
    (World::with(Setup { store: Some(world.store), ..setup }).await, key)
}

fn at_once(burst: u32) -> Quota {
    Quota { requests_per_s: Some(1), burst: Some(burst), ..Quota::default() }
}

/// That it was refused for its rate, with a word on when to come again.
fn assert_over(got: &Got) {
    assert_eq!(refusal(got), (429, "over_quota".to_owned()), "{got:?}");
    assert!(got.headers.contains_key("retry-after"), "{got:?}");
}

#[tokio::test]
async fn what_is_no_query_and_as_much_work_counts_as_one() {
    let dry = json!({"task": "fashion", "inputs": 1}).to_string();
    for (method, path, body, status) in [
        ("GET", "/v1/tasks/fashion/explain", "{}", 200),
        ("POST", "/v1/tasks/fashion/explain", "{}", 200),
        ("POST", "/v1/tasks/fashion/explain", "{", 400),
        ("GET", "/v1/plans/next", "", 200),
        ("GET", "/v1/profiles", "", 200),
        ("GET", "/v2/models/stats", "", 200),
        ("POST", "/v1/jobs?dry_run", &dry, 200),
        ("POST", "/v1/tasks/fashion", "{", 400),
        ("POST", "/v1/tasks/words", "{\"inputs\": []}", 400),
        ("POST", "/v1/tasks/words?accuracy=2", "\"a\"", 400),
        ("POST", "/v2/models/arrays/infer", "{", 400),
        ("POST", "/v2/models/arrays/infer", "{\"inputs\": []}", 400),
        ("POST", "/openai/v1/embeddings", "{", 400),
        ("POST", "/v1/queries/x/feedback", "{", 400),
    ] {
        let (world, key) = bounded(at_once(3), Setup::default()).await;
        for _ in 0..3 {
            let got = with_key(&world, method, path, key.expose(), body.as_bytes()).await;
            assert_eq!(got.status, status, "{method} {path} {body}: {got:?}");
        }
        assert_over(&with_key(&world, method, path, key.expose(), body.as_bytes()).await);
        assert_over(&with_key(&world, "POST", "/v1/tasks/words", key.expose(), b"\"a\"").await);
    }
}

#[tokio::test]
async fn who_looks_into_the_store_all_the_time_is_told_to_come_later_and_other_applications_are_not() {
    let world = World::new().await;
    made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    let query: Scopes = [Scope::Query].into_iter().collect();
    let often = made_for(&world, (TenantId::DEFAULT, "often"), query).await;
    let seldom = made_for(&world, (TenantId::DEFAULT, "seldom"), query).await;
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let look = async |path: &str, key: &SecretKey| with_key(&world, "GET", path, key.expose(), b"").await;
    let mut looks = 0;
    for path in ["/v1/jobs", "/v1/tasks/fashion", "/v1/models/fashion/small", "/v1/variants"] {
        let refused = loop {
            let got = look(path, &often).await;
            if got.status != StatusCode::OK {
                break got;
            }
            looks += 1;
            assert!(looks < 5_000, "nothing was refused: {path}");
        };
        assert_over(&refused);
        assert!(looks >= 1_000, "{looks}");
        assert_eq!(look(path, &seldom).await.status, 200, "{path}");
    }
    assert_eq!(with_key(&world, "GET", "/v1/tasks", often.expose(), b"").await.status, 200, "it is at hand");
}

/// The body of so many queries.
type Many = fn(usize) -> Vec<u8>;

fn texts(count: usize) -> Vec<u8> {
    json!(vec!["a"; count]).to_string().into_bytes()
}

fn rows(count: usize) -> Vec<u8> {
    let data = vec![0.5; count * 4];
    let input = json!({"name": "x", "shape": [count, 4], "datatype": "FP32", "data": data});
    json!({"inputs": [input]}).to_string().into_bytes()
}

/// Queries that have come to the node since the last look.
fn queries(world: &mut World) -> usize {
    std::iter::from_fn(|| world.seen.try_recv().ok()).filter(|seen| matches!(seen, ToNode::Query(_))).count()
}

#[tokio::test]
async fn a_request_of_many_queries_is_let_in_whole_or_none_of_it_is_run() {
    for (path, body) in [("/v1/tasks/words", texts as Many), ("/v2/models/arrays/infer", rows)] {
        for (quota, fits, then) in [
            (at_once(8), 5, 5),
            // Two of it can never be let in together, however long they wait.
            (at_once(3), 3, 4),
        ] {
            let (mut world, key) = bounded(quota.clone(), Setup::default()).await;
            *world.node.does.lock().unwrap() = Does::Echo;
            let got = with_key(&world, "POST", path, key.expose(), &body(fits)).await;
            assert_eq!(got.status, 200, "{quota:?} {path}: {got:?}");
            assert_eq!(queries(&mut world), fits);
            let got = with_key(&world, "POST", path, key.expose(), &body(then)).await;
            let waits = fits == then;
            let expected = if waits { (429, "over_quota") } else { (413, "too_large") };
            assert_eq!(refusal(&got), (expected.0, expected.1.to_owned()), "{quota:?} {path}: {got:?}");
            assert_eq!(got.headers.contains_key("retry-after"), waits, "{quota:?} {path}: {got:?}");
            assert_eq!(queries(&mut world), 0, "{quota:?} {path}");
        }
    }
}

#[tokio::test]
async fn a_request_of_many_queries_has_no_more_open_than_its_quota_lets_be() {
    let (mut world, key) =
        bounded(Quota { concurrency: Some(4), ..Quota::default() }, Setup::default()).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    *world.node.credit.lock().unwrap() = 64;
    world.node.say(modelless_wire::Body::Report);
    let request = Request::post("/v1/tasks/words").header("api-key", key.expose());
    let request = request.header("content-type", "application/json").body(Body::from(texts(10)));
    let mut answers = tokio::task::JoinSet::new();
    answers.spawn(send(world.router(), request.unwrap()));
    let mut open = Vec::new();
    for answered in 0..10 {
        while open.len() < 4.min(10 - answered) {
            open.push(next_query(&mut world).await);
        }
        assert_eq!(queries(&mut world), 0, "no fifth is open");
        let frame = open.remove(0);
        world.node.answer(&frame);
    }
    assert_eq!(answers.join_next().await.unwrap().unwrap().status, 200);
}

#[tokio::test]
async fn rows_end_where_the_time_of_devices_does() {
    // A minute's worth of one second an hour: what 72 answers take of the device that is played here.
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    for (path, body) in [("/v1/tasks/words", texts as Many), ("/v2/models/arrays/infer", rows)] {
        let (mut world, key) = bounded(quota.clone(), Setup::default()).await;
        *world.node.does.lock().unwrap() = Does::Echo;
        let got = with_key(&world, "POST", path, key.expose(), &body(2_000)).await;
        assert_eq!(refusal(&got), (429, "over_quota".to_owned()), "{got:?}");
        assert!(got.headers.contains_key("retry-after"), "{got:?}");
        assert!(queries(&mut world) < 1_000, "it ends soon after what it may use");
    }
}

/// The next query that comes to the node.
async fn next_query(world: &mut World) -> Box<QueryFrame> {
    loop {
        if let ToNode::Query(frame) = world.seen.recv().await.expect("a node") {
            return frame;
        }
    }
}

#[tokio::test]
async fn a_query_whose_client_goes_away_keeps_its_place_until_its_node_has_done_with_it() {
    let quota = Quota { concurrency: Some(1), ..Quota::default() };
    let (mut world, key) = bounded(quota, Setup::default()).await;
    let query = || {
        let request = Request::post("/v1/tasks/fashion?latency_ms=500").header("api-key", key.expose());
        request.header("content-type", "image/png").body(Body::from(PNG)).unwrap()
    };
    let core = world.service.core();
    for says in [true, false] {
        *world.node.does.lock().unwrap() = Does::Keep;
        let router = world.router();
        let frame = tokio::select! {
            got = send(router, query()) => panic!("nobody answers: {got:?}"),
            frame = next_query(&mut world) => frame,
        };
        assert_eq!(core.pending.going_on(), 1, "its client is gone, and it is not");
        if says {
            world.node.answer(&frame);
        } else {
            assert!(core.pending.ended_by(core.driver.clock().now() + Micros::from_secs(60)));
        }
        assert_eq!(core.pending.going_on(), 0);
        *world.node.does.lock().unwrap() = Does::Answer;
        assert_eq!(send(world.router(), query()).await.status, 200, "the node says so: {says}");
        queries(&mut world);
    }
}

/// An upload whose bytes come when the test has them come.
fn uploading(key: &SecretKey, length: Option<usize>) -> (mpsc::Sender<Vec<u8>>, Request<Body>) {
    let (bytes, coming) = mpsc::channel::<Vec<u8>>(1);
    let coming = futures_util::stream::unfold(coming, async |mut coming| {
        let bytes = coming.recv().await?;
        Some((Ok::<_, Infallible>(Buffer::from(bytes)), coming))
    });
    let mut request = Request::put("/v1/artefacts").header("api-key", key.expose());
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    (bytes, request.body(Body::from_stream(coming)).unwrap())
}

#[tokio::test]
async fn uploads_at_one_time_do_not_each_take_all_that_is_left_of_a_quota() {
    for length in [Some(1_500), None] {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup { artefacts: Some(Artefacts::new(folder.path()).unwrap()), ..Setup::default() };
        // Of which models have 1,000 already.
        let quota = Quota { artefact_bytes: Some(3_000), ..Quota::default() };
        let (world, key) = bounded(quota, setup).await;
        let put = async |bytes: usize| {
            let request = Request::put("/v1/artefacts").header("api-key", key.expose());
            let request = request.header("content-length", bytes);
            send(world.router(), request.body(Body::from(vec![7; bytes])).unwrap()).await
        };
        let (bytes, first) = uploading(&key, length);
        let mut under_way = JoinSet::new();
        under_way.spawn(send(world.router(), first));
        bytes.send(vec![1; 1_000]).await.unwrap();
        bytes.send(vec![2; 500]).await.unwrap(); // the first was taken out, so there is room for it
        assert_over(&put(600).await);
        assert_eq!(put(2_001).await.status, 413, "it would be too large alone");
        if length.is_some() {
            assert_eq!(put(500).await.status, 201, "beside the other there is room for so much");
        }
        drop(bytes);
        assert_eq!(under_way.join_next().await.unwrap().unwrap().status, 201);
        if length.is_some() {
            assert_eq!(refusal(&put(1).await), (429, "over_quota".to_owned()), "all of it is used");
            continue;
        }
        let (bytes, gone) = uploading(&key, None);
        under_way.spawn(send(world.router(), gone));
        bytes.send(vec![3; 1]).await.unwrap();
        bytes.send(vec![3; 1]).await.unwrap();
        assert_over(&put(500).await);
        under_way.shutdown().await;
        let patience = Instant::now();
        while put(500).await.status != 201 {
            assert!(patience.elapsed() < Duration::from_secs(10), "what came to nothing has its room still");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn what_came_whole_counts_though_its_client_went_away_before_it_was_told() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artefacts: Some(Artefacts::new(folder.path()).unwrap()), ..Setup::default() };
    let (world, key) = bounded(Quota::default(), setup).await;
    let (ends, ended) = oneshot::channel();
    let pieces = futures_util::stream::unfold((true, Some(ends)), async |(first, mut ends)| {
        if !first {
            ends.take()?.send(()).unwrap();
            return None;
        }
        Some((Ok::<_, Infallible>(Buffer::from_static(&[5; 700])), (false, ends)))
    });
    let request = Request::put("/v1/artefacts").header("api-key", key.expose());
    let request = request.body(Body::from_stream(pieces)).unwrap();
    tokio::select! {
        got = send(world.router(), request) => assert_eq!(got.status, 201),
        ended = ended => ended.unwrap(),
    }
    let began = Instant::now();
    while world.store.access().uploads(TenantId::DEFAULT, UnixMicros(0)).await.unwrap().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(10), "it lies on the disk and counts for nobody");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_application_sees_its_jobs_however_many_newer_ones_others_have() {
    let world = World::new().await;
    made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    let query: Scopes = [Scope::Query].into_iter().collect();
    let key = made_for(&world, (TenantId::DEFAULT, "camera"), query).await;
    let app = |name| world.store.app(TenantId::DEFAULT, name);
    let (own, other) = (app("camera").await.unwrap().id, app("shop").await.unwrap().id);
    let made = UnixMicros::of(std::time::SystemTime::now());
    let new = |app| NewJob {
        name: "job".to_owned(),
        tenant: TenantId::DEFAULT,
        app,
        task: modelless_types::TaskId(1),
        goals: "{}".to_owned(),
        inputs: 1,
        estimate: None,
        deadline: None,
        made,
    };
    let jobs = world.store.offline();
    let first = jobs.add_job(new(own)).await.unwrap();
    for _ in 0..1_000 {
        let job = jobs.add_job(new(other)).await.unwrap();
        jobs.end_job(job.id, JobState::Cancelled, "enough", made).await.unwrap();
    }
    let world = World::with(Setup { store: Some(world.store.clone()), ..Setup::default() }).await;
    let listed = with_key(&world, "GET", "/v1/jobs", key.expose(), b"").await.json();
    let numbers: Vec<&Value> = listed["jobs"].as_array().unwrap().iter().map(|job| &job["job"]).collect();
    assert_eq!(numbers, [&json!(first.id.0)]);
}

#[tokio::test]
async fn who_looks_for_a_way_in_without_a_key_is_told_slowly() {
    let (world, key) = bounded(Quota::default(), Setup::default()).await;
    for (method, path, status) in [
        (Method::GET, "/admin", StatusCode::NOT_FOUND),
        (Method::GET, "/openai/v2", StatusCode::NOT_FOUND),
        (Method::PUT, "/v1/tasks/fashion", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        for (secret, slowly) in [(None, true), (Some("mlk_of_nobody"), true), (Some(key.expose()), false)] {
            let mut request = Request::builder().method(method.clone()).uri(path);
            if let Some(secret) = secret {
                request = request.header("api-key", secret);
            }
            let got = world.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(got.status(), status, "{path}");
            let told = got.extensions().get::<Slowly>();
            assert_eq!(told, slowly.then_some(&Slowly::DENIED), "{path} with {secret:?}");
        }
    }
}
