//! What tenants may use, and that none of them takes what is there for all.

use super::access::{locked, made, refusal, with_key};
use super::world::{Does, Got, PNG, Setup, World, send};
use crate::Config;
use axum::body::Body;
use futures_util::stream::unfold;
use http::{Request, StatusCode};
use modelless_live::{Member, Role};
use modelless_oip::messages::{InferRequest, StreamResponse};
use modelless_store::{
    Access as _, Artefacts, Owner, Quota, SecretKey, Store as _, UPLOADS_MAX, UnixMicros, Upload, Visibility,
};
use modelless_testkit::wait;
use modelless_types::{Micros, Refusal, Scopes, TenantId};
use modelless_wire::{Body as Said, ToNode};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Streaming};
use tonic_prost::ProstCodec;

const SOON: Duration = Duration::from_secs(10);

/// A world whose first tenant has this quota, and its key.
pub(super) async fn bounded(quota: Quota, setup: Setup) -> (World, SecretKey) {
    let (world, key, _) = locked().await;
    world.store.set_quota(Owner::Tenant(TenantId::DEFAULT), quota).await.unwrap();
    (World::with(Setup { store: Some(world.store), ..setup }).await, key)
}

/// With another tenant beside it, and its key.
async fn two_tenants(setup: Setup, quota: Quota) -> (World, SecretKey, SecretKey) {
    let (world, key, _) = locked().await;
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    let other = made(&world, tenant, Scopes::ALL).await;
    world.store.set_quota(Owner::Tenant(tenant), quota).await.unwrap();
    (World::with(Setup { store: Some(world.store), ..setup }).await, key, other)
}

/// The same, where both may ask for what the first one's model answers.
async fn sharing(config: Config) -> (World, SecretKey, SecretKey) {
    let (world, first, other) = two_tenants(Setup::default(), Quota::default()).await;
    let fashion = world.store.catalog().await.unwrap().tasks[0].id;
    world.store.share_model(fashion, "small", Visibility::Public).await.unwrap();
    (World::with(Setup { store: Some(world.store), config, ..Setup::default() }).await, first, other)
}

fn query(key: &SecretKey) -> Request<Body> {
    let request = Request::post("/v1/tasks/fashion").header("api-key", key.expose());
    request.header("content-type", "image/png").body(Body::from(PNG)).unwrap()
}

/// How many are answered, and what the first one that is not is told.
async fn until_refused(world: &World, key: &SecretKey) -> (usize, Got) {
    for answered in 0..1_000 {
        let got = send(world.router(), query(key)).await;
        if got.status != StatusCode::OK {
            return (answered, got);
        }
    }
    panic!("nothing was refused")
}

#[tokio::test]
async fn open_queries_are_bounded_and_one_that_is_answered_makes_room() {
    let (world, key) = bounded(Quota { concurrency: Some(1), ..Quota::default() }, Setup::default()).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut run = world.run().await;
    let ask = {
        let (address, key) = (run.addresses.http, key.expose().to_owned());
        move || {
            let request = modelless_testkit::Request::post("/v1/tasks/fashion").header("api-key", &key);
            let request = request.header("content-type", "image/png").body(PNG);
            modelless_testkit::Connection::open(address).unwrap().exchange(&request).unwrap()
        }
    };
    let first = tokio::task::spawn_blocking(ask.clone());
    let frame = run.next_query().await;
    let refused = tokio::task::spawn_blocking(ask.clone()).await.unwrap();
    assert_eq!((refused.status, refused.json().unwrap()["reason"].as_str()), (429, Some("over_quota")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    *run.node.does.lock().unwrap() = Does::Answer;
    run.node.answer(&frame);
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(tokio::task::spawn_blocking(ask).await.unwrap().status, 200);
    run.stop().await;
}

#[tokio::test]
async fn devices_time_is_bounded_by_what_answers_took_of_it() {
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    let (world, key) = bounded(quota, Setup::default()).await;
    let (answered, refused) = until_refused(&world, &key).await;
    // The node says that batches of three take 700 us: each query takes 233 us of one second an hour, so 0.84 s until that is
    // back, of which a minute may be out.
    assert!((60..=90).contains(&answered), "{answered}");
    assert_no_device_time(&refused);
}

#[tokio::test]
async fn who_goes_away_once_a_node_works_for_it_has_not_worked_for_nothing() {
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    let (mut world, key) = bounded(quota, Setup::default()).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut gone = 0;
    let refused = loop {
        assert!(gone < 500, "nothing was refused");
        let router = world.router();
        let sent = async { while !matches!(world.seen.recv().await.expect("a node"), ToNode::Query(_)) {} };
        tokio::select! {
            got = send(router, query(&key)) => break got,
            () = sent => gone += 1,
        }
    };
    assert_no_device_time(&refused);
    assert!(gone > 1, "one is let through as long as anything is left");
}

/// So many gateways share a second of devices' time an hour that this one has next to nothing of it.
fn grants_little(world: &World) {
    let names = (0..50).map(|number| Member::new(Role::Gateway, &format!("g{number}"), 1));
    world.handle.set_members(names.collect());
}

fn assert_no_device_time(refused: &Got) {
    assert_eq!(refused.refusal(), (429, "over_quota".to_owned()), "{refused:?}");
    assert!(refused.json()["error"].as_str().unwrap().contains("devices' time"), "{refused:?}");
}

#[tokio::test]
async fn what_a_node_ran_in_vain_is_charged_and_what_it_would_not_run_is_not() {
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    let why = || "made to".to_owned();
    let refusing = async |refusal: &Refusal, most: usize| {
        let (world, key) = bounded(quota.clone(), Setup::default()).await;
        grants_little(&world);
        *world.node.does.lock().unwrap() = Does::Refuse(refusal.clone());
        for tried in 1..=most {
            let got = send(world.router(), query(&key)).await;
            if got.refusal().1 != refusal.name() {
                assert_no_device_time(&got);
                return Some(tried);
            }
        }
        None
    };
    let mut most = 0;
    for ran in [
        Refusal::ModelError { why: why() },
        Refusal::InputCrashed { why: why() },
        Refusal::VariantFailed { why: why() },
    ] {
        let tried = refusing(&ran, 5_000).await;
        most = most.max(tried.unwrap_or_else(|| panic!("{ran:?} costs nothing")));
    }
    for was_not_run in [
        Refusal::TooLate { waited: Micros(5) },
        Refusal::QueueFull { limit: 1 },
        Refusal::Loading { ready_in: Micros(5), bound: Micros(9) },
        Refusal::NothingRunnable { why: why() },
    ] {
        assert_eq!(refusing(&was_not_run, most * 3).await, None, "{was_not_run:?} took nothing of a device");
    }
}

/// What becomes of a query whose time is a tenth of a second.
async fn ask_briefly(http: SocketAddr, key: &SecretKey) -> (u16, String) {
    let request = modelless_testkit::Request::post("/v1/tasks/fashion?latency_ms=100");
    let request = request.header("api-key", key.expose()).header("content-type", "image/png").body(PNG);
    let ask = move || modelless_testkit::Connection::open(http).unwrap().exchange(&request).unwrap();
    let got = tokio::task::spawn_blocking(ask).await.unwrap();
    let said = got.json().unwrap();
    (got.status, format!("{} {}", said["reason"].as_str().unwrap_or_default(), said["error"]))
}

#[tokio::test]
async fn what_a_node_gave_back_unrun_is_not_charged_when_it_is_too_late() {
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    let (world, key) = bounded(quota, Setup::default()).await;
    grants_little(&world);
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut run = world.run().await;
    let http = run.addresses.http;
    for first in [true, false] {
        let mut asked = std::pin::pin!(ask_briefly(http, &key));
        let (status, why) = tokio::select! {
            got = &mut asked => {
                assert!(!first, "it never came to the node: {got:?}");
                got
            }
            frame = run.next_query() => {
                *run.node.credit.lock().unwrap() = 0;
                run.node.say(Said::HandedBack { key: frame.key, why: Refusal::Draining });
                asked.await
            }
        };
        assert!(status == 504 && why.starts_with("too_late"), "{why}");
    }
    run.stop().await;
}

#[tokio::test]
async fn what_a_node_keeps_past_its_time_is_charged_though_it_is_given_up() {
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    let (world, key) = bounded(quota, Setup::default()).await;
    grants_little(&world);
    *world.node.does.lock().unwrap() = Does::Keep;
    let run = world.run().await;
    let http = run.addresses.http;
    let (status, why) = ask_briefly(http, &key).await;
    assert!(status == 504 && why.starts_with("too_late"), "{why}");
    let (status, why) = ask_briefly(http, &key).await;
    assert!(status == 429 && why.contains("devices' time"), "{why}");
    run.stop().await;
}

#[tokio::test]
async fn what_a_node_keeps_past_its_time_keeps_its_place_until_the_node_has_done_with_it() {
    let quota = Quota { concurrency: Some(1), ..Quota::default() };
    let (world, key) = bounded(quota, Setup::default()).await;
    let core = world.service.core();
    *world.node.does.lock().unwrap() = Does::Keep;
    let mut run = world.run().await;
    let http = run.addresses.http;
    for says in [true, false] {
        *run.node.does.lock().unwrap() = Does::Keep;
        let (status, why) = ask_briefly(http, &key).await;
        assert!(status == 504 && why.starts_with("too_late"), "{why}");
        let frame = run.next_query().await;
        let (status, why) = ask_briefly(http, &key).await;
        assert!(status == 429 && why.contains("open queries"), "{why}");
        if says {
            run.node.answer(&frame);
        } else {
            run.node.say(Said::Report);
            assert!(core.pending.ended_by(core.driver.clock().now() + Micros::from_secs(60)));
        }
        assert_eq!(core.pending.going_on(), 0);
        *run.node.does.lock().unwrap() = Does::Answer;
        let (status, why) = ask_briefly(http, &key).await;
        assert_eq!(status, 200, "the node says so: {says}; {why}");
        run.next_query().await;
    }
    run.stop().await;
}

#[tokio::test]
async fn one_of_several_tenants_takes_no_more_than_half_of_the_places() {
    let mut config = Config::default();
    config.waiting.waiting = 8;
    let (mut world, first, other) = sharing(config).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    *world.node.credit.lock().unwrap() = 100;
    world.node.say(Said::Report);
    let mut open = tokio::task::JoinSet::new();
    for _ in 0..5 {
        open.spawn(send(world.router(), query(&other)));
    }
    let refused = open.join_next().await.unwrap().unwrap();
    assert_eq!(refused.refusal(), (503, "queue_full".to_owned()));
    assert_eq!(open.len(), 4);
    open.spawn(send(world.router(), query(&first)));
    let mut queries = 0;
    while queries < 5 {
        queries += usize::from(matches!(world.seen.recv().await.expect("a node"), ToNode::Query(_)));
    }
}

#[tokio::test]
async fn a_gateway_grants_its_share_of_what_the_live_state_says_there_are() {
    let quota = Quota { requests_per_s: Some(1), burst: Some(8), ..Quota::default() };
    for (gateways, granted) in [(1, 8), (2, 4), (4, 2)] {
        let (world, key) = bounded(quota.clone(), Setup::default()).await;
        let names: Vec<String> = (0..gateways).map(|number| format!("g{number}")).collect();
        world.handle.set_members(names.iter().map(|name| Member::new(Role::Gateway, name, 1)).collect());
        let (answered, refused) = until_refused(&world, &key).await;
        assert_eq!(answered, granted, "{gateways} gateways");
        let shared = format!("shared by {gateways} gateways");
        assert_eq!(refused.json()["error"].as_str().unwrap().contains(&shared), gateways > 1, "{refused:?}");
    }
}

#[tokio::test]
async fn an_applications_quota_and_its_tenants_both_hold() {
    let (world, key, _) = locked().await;
    let app = world.store.app(TenantId::DEFAULT, "tests").await.unwrap().id;
    let rate = |burst| Quota { requests_per_s: Some(1), burst: Some(burst), ..Quota::default() };
    for (of_app, of_tenant, whose) in [(2, 5, "the application tests"), (5, 3, "the tenant default")] {
        world.store.set_quota(Owner::App(app), rate(of_app)).await.unwrap();
        world.store.set_quota(Owner::Tenant(TenantId::DEFAULT), rate(of_tenant)).await.unwrap();
        let world = World::with(Setup { store: Some(world.store.clone()), ..Setup::default() }).await;
        let (answered, refused) = until_refused(&world, &key).await;
        assert_eq!(answered, usize::try_from(of_app.min(of_tenant)).unwrap());
        assert!(refused.json()["error"].as_str().unwrap().contains(whose), "{refused:?}");
    }
}

#[tokio::test]
async fn nobody_goes_before_others_who_may_not() {
    let most = |level| Quota { highest_priority: Some(level), ..Quota::default() };
    for (of_tenant, asked, gets) in [
        (most(3), "", Some(5)),
        (most(3), "?priority=3", Some(3)),
        (most(3), "?priority=9", Some(9)),
        (most(3), "?priority=2", None),
        (most(7), "", Some(7)),
        (most(7), "?priority=0", Some(7)),
        (most(7), "?priority=6", None),
        (Quota::default(), "?priority=1", Some(1)),
    ] {
        let (mut world, key) = bounded(of_tenant.clone(), Setup::default()).await;
        let asking = Request::post(format!("/v1/tasks/fashion{asked}")).header("api-key", key.expose());
        let asking = asking.header("content-type", "image/png").body(Body::from(PNG)).unwrap();
        let got = send(world.router(), asking).await;
        let Some(level) = gets else {
            assert_eq!(got.refusal(), (403, "priority_too_high".to_owned()), "{of_tenant:?} {asked}");
            continue;
        };
        assert_eq!(got.status, StatusCode::OK, "{got:?}");
        let modelless_wire::ToNode::Query(frame) = world.seen.recv().await.unwrap() else {
            panic!("no query")
        };
        assert_eq!(frame.priority.level(), level, "{of_tenant:?} {asked}");
    }
}

async fn put(world: &World, key: &SecretKey, bytes: usize) -> Got {
    let request = Request::put("/v1/artefacts").header("api-key", key.expose());
    send(world.router(), request.body(Body::from(vec![7; bytes])).unwrap()).await
}

#[tokio::test]
async fn artefacts_are_bounded_together_also_those_that_no_model_is_made_of_yet() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artefacts: Some(Artefacts::new(folder.path()).unwrap()), ..Setup::default() };
    let quota = Quota { artefact_bytes: Some(2_000), ..Quota::default() };
    let (world, first, other) = two_tenants(setup, quota).await;
    assert_eq!(put(&world, &other, 1_500).await.status, 201);
    assert_eq!(put(&world, &other, 1_500).await.status, 413, "the same again is not asked what it is");
    assert_eq!(put(&world, &other, 501).await.status, 413);
    assert_eq!(put(&world, &other, 500).await.status, 201);
    assert_eq!(put(&world, &other, 1).await.refusal(), (429, "over_quota".to_owned()));
    assert_eq!(put(&world, &first, 3_000).await.status, 201, "another tenant's quota is its own");
}

#[tokio::test]
async fn an_artefact_that_could_not_be_noted_is_not_written_either() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artefacts: Some(Artefacts::new(folder.path()).unwrap()), ..Setup::default() };
    let (world, first, other) = two_tenants(setup, Quota::default()).await;
    let tenant = world.store.access().doors().await.unwrap().tenants[1].id;
    let at = UnixMicros::of(std::time::SystemTime::now());
    for number in 0..UPLOADS_MAX {
        let upload = Upload { tenant, sha256: format!("{number:064x}"), bytes: 1, at };
        world.store.access().note_upload(upload).await.unwrap();
    }
    let files = || walkdir(folder.path());
    let before = files();
    assert_eq!(put(&world, &other, 10).await.refusal(), (429, "over_quota".to_owned()));
    assert_eq!(files(), before, "what counts for nobody stays on the disk");
    assert_eq!(put(&world, &first, 10).await.status, 201);
    assert!(files() > before);
}

/// Files below a folder.
fn walkdir(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walkdir(&path) } else { 1 }).sum()
}

#[tokio::test]
async fn what_another_tenant_uploaded_is_not_found_and_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artefacts: Some(Artefacts::new(folder.path()).unwrap()), ..Setup::default() };
    let (world, first, other) = two_tenants(setup, Quota::default()).await;
    let task = json!({"name": "theirs", "kind": "image-classification", "labels": ["a", "b"]}).to_string();
    assert_eq!(with_key(&world, "POST", "/v1/tasks", other.expose(), task.as_bytes()).await.status, 201);
    let world = World::with(Setup {
        store: Some(world.store),
        artefacts: Some(Artefacts::new(folder.path()).unwrap()),
        ..Setup::default()
    })
    .await;
    let sha256 = put(&world, &first, 900).await.json()["sha256"].as_str().unwrap().to_owned();
    let there = format!("/v1/artefacts/{sha256}");
    let looked = async |key: &SecretKey| with_key(&world, "GET", &there, key.expose(), b"").await.status;
    assert_eq!((looked(&first).await.as_u16(), looked(&other).await.as_u16()), (200, 404));
    let model = |variant: &str, set: Option<&str>| {
        let mut model = json!({
            "task": "theirs", "name": "taken", "adapter": {},
            "variants": [{"precision": "fp32", "artefact_sha256": variant}],
        });
        if let Some(set) = set {
            model["set"] = json!({"name": "set", "artefact_sha256": set});
        }
        model.to_string()
    };
    let register = async |body: String| {
        refusal(&with_key(&world, "POST", "/v1/models", other.expose(), body.as_bytes()).await)
    };
    let unknown = (404, "unknown_artefact".to_owned());
    assert_eq!(register(model(&sha256, None)).await, unknown);
    let own = put(&world, &other, 800).await.json()["sha256"].as_str().unwrap().to_owned();
    assert_eq!(register(model(&own, Some(&sha256))).await, unknown, "nor as a labelled set");
    // What it has itself, if others do as well. Nobody registers in this world, so that is as far as it gets.
    assert_eq!(put(&world, &other, 900).await.status, 201);
    assert_eq!(looked(&other).await, 200);
    assert_eq!(register(model(&sha256, Some(&own))).await, (501, "not_served_here".to_owned()));
}

#[tokio::test]
async fn whoever_changes_things_all_the_time_is_told_to_come_later_and_others_are_not() {
    let (world, first, other) = two_tenants(Setup::default(), Quota::default()).await;
    let remove =
        async |key: &SecretKey| with_key(&world, "DELETE", "/v1/tasks/none", key.expose(), b"").await;
    let mut tried = 0;
    let refused = loop {
        let got = remove(&other).await;
        if got.status != StatusCode::NOT_FOUND {
            break got;
        }
        tried += 1;
    };
    assert_eq!(refused.refusal(), (429, "over_quota".to_owned()));
    assert!(tried >= 200, "{tried}");
    assert_eq!(remove(&first).await.status, 404);
    assert_eq!(
        with_key(&world, "GET", "/v1/tasks", other.expose(), b"").await.status,
        200,
        "looking is no change"
    );
}

/// A body of which nearly half of all room for bodies comes, and no more.
const HALF: usize = 450_000;

#[tokio::test]
async fn a_tenant_that_holds_bodies_back_leaves_room_for_those_of_others() {
    let config = Config { max_held_bytes: 1_000_000, ..Config::default() };
    let (world, first, other) = sharing(config).await;
    let core = world.service.core();
    let run = world.run().await;
    let key = other.expose().to_owned();
    let open = run
        .with_connection(move |mut connection| {
            let head = format!(
                "POST /v1/tasks/fashion HTTP/1.1\r\nhost: x\r\napi-key: {key}\r\ncontent-type: image/png\r\n\
                 content-length: 900000\r\n\r\n"
            );
            connection.send_raw(&[head.as_bytes(), &vec![0; HALF]].concat()).unwrap();
            connection
        })
        .await;
    let held = Arc::clone(&core);
    let read = tokio::task::spawn_blocking(move || {
        wait::until(SOON, || {
            let held = held.held.load(Ordering::Relaxed);
            Ok(if held >= HALF as u64 { Ok(()) } else { Err(held.to_string()) })
        })
    });
    read.await.unwrap().unwrap();
    let ask = |key: &SecretKey, bytes: usize| {
        let request = modelless_testkit::Request::post("/v1/tasks/fashion").header("api-key", key.expose());
        let body = [PNG, &vec![0; bytes]].concat();
        let request = request.header("content-type", "image/png").body(body);
        run.with_connection(move |mut connection| connection.exchange(&request).unwrap())
    };
    let refused = ask(&other, 100_000).await;
    assert_eq!((refused.status, refused.json().unwrap()["reason"].as_str()), (503, Some("bytes_full")));
    assert_eq!(ask(&first, 100_000).await.status, 200, "there is room for others");
    drop(open);
    run.stop().await;
    assert_eq!(core.held.load(Ordering::Relaxed), 0, "all of it was given back");
}

#[tokio::test]
async fn a_stream_ends_with_the_key_that_it_was_begun_with() {
    let (world, key, _) = locked().await;
    let config = Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..Config::default() };
    let world = World::with(Setup { store: Some(world.store), config, ..Setup::default() }).await;
    let run = world.run().await;
    let address = format!("http://{}", run.addresses.grpc.unwrap());
    let channel = tonic::transport::Endpoint::try_from(address).unwrap().connect().await.unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let (questions, coming) = mpsc::channel::<InferRequest>(4);
    let coming = unfold(coming, async |mut coming| Some((coming.recv().await?, coming)));
    let mut request = tonic::Request::new(coming);
    request.metadata_mut().insert("api-key", key.expose().parse().unwrap());
    let path = http::uri::PathAndQuery::from_static("/inference.GRPCInferenceService/ModelStreamInfer");
    // It need not be a query that is answered: that it is not refused for want of a key is what counts.
    let ask = InferRequest { model_name: "fashion".to_owned(), ..Default::default() };
    questions.send(ask.clone()).await.unwrap();
    let answers: tonic::Response<Streaming<StreamResponse>> =
        grpc.streaming(request, path, ProstCodec::default()).await.unwrap();
    let mut answers = answers.into_inner();
    assert!(answers.message().await.unwrap().is_some());
    let id = run.store.access().doors().await.unwrap().keys[0].id;
    let now = UnixMicros::of(std::time::SystemTime::now());
    run.store.revoke_key(id, now).await.unwrap();
    let version = run.store.catalog_version().await.unwrap();
    run.handle.catalog_changed();
    let mut known = 0;
    while known < version {
        known = run.handle.next_catalog(known).await;
    }
    questions.send(ask).await.unwrap();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::Unauthenticated);
    drop(questions);
    run.stop().await;
}
