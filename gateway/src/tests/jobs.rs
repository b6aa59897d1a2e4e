//! Offline jobs: made and given their inputs, worked on, ended.

use super::access::{made, made_for};
use super::world::{Does, PNG, Running, Setup, World};
use crate::Config;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use modelless_live::{Member, Role};
use modelless_store::{Access as _, Owner, Policy, PolicyBounds, PolicyOf, Quota, Store as _, UnixMicros};
use modelless_testkit::Request;
use modelless_types::{Accuracy, JobId, Priority, Refusal, Scope, Scopes, TaskId, TenantId};
use modelless_wire::ToNode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

async fn call(run: &Running, method: &str, path: &str, body: Value) -> (u16, Value) {
    call_as(run, "", method, path, body).await
}

async fn call_as(run: &Running, key: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let mut request = Request::new(method, path);
    if !key.is_empty() {
        request = request.header("api-key", key);
    }
    if !body.is_null() {
        request = request.json(&body);
    }
    let got = run.with_connection(move |mut connection| connection.exchange(&request).unwrap()).await;
    (got.status, got.json().unwrap_or_default())
}

fn picture(at: u32) -> Value {
    json!({"at": at, "name": format!("{at}.png"), "type": "image/png", "data": STANDARD.encode([PNG, &at.to_le_bytes()].concat())})
}

/// A job of so many pictures that has all of them, and its path.
async fn given(run: &Running, inputs: u32) -> String {
    let (status, job) = call(run, "POST", "/v1/jobs", json!({"task": "fashion", "inputs": inputs})).await;
    assert_eq!((status, &job["state"]), (201, &json!("receiving")), "{job}");
    let path = format!("/v1/jobs/{}", job["job"]);
    let all: Vec<Value> = (0..inputs).map(picture).collect();
    let (status, job) = call(run, "POST", &format!("{path}/inputs"), json!({"inputs": all})).await;
    assert_eq!((status, &job["received"]), (200, &json!(inputs)), "{job}");
    path
}

async fn started(run: &Running, inputs: u32) -> String {
    let path = given(run, inputs).await;
    let (status, job) = call(run, "POST", &format!("{path}/start"), Value::Null).await;
    assert_eq!((status, &job["state"]), (200, &json!("running")), "{job}");
    path
}

/// The job, once it is in this state.
async fn until(run: &Running, path: &str, state: &str) -> Value {
    let look = async {
        loop {
            let (_, job) = call(run, "GET", path, Value::Null).await;
            if job["state"] == state {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, look).await.unwrap_or_else(|_| panic!("the job is never {state}"))
}

#[tokio::test]
async fn policies_hold_for_inputs_of_jobs_and_refuse_what_can_never_be_done_at_once() {
    let world = World::new().await;
    let bounds =
        PolicyBounds { accuracy: Some(Accuracy::from_ppm(920_000).unwrap()), ..PolicyBounds::default() };
    let policy = Policy { bounds, model: Some("large".to_owned()), ..Policy::default() };
    let of = PolicyOf { owner: Owner::Tenant(TenantId::DEFAULT), task: Some(TaskId(1)) };
    world.store.set_policy(of, policy).await.unwrap();
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let mut run = world.run().await;
    let job = json!({"task": "fashion", "inputs": 3, "goals": {"model": "small"}});
    let (status, why) = call(&run, "POST", "/v1/jobs", job).await;
    assert_eq!((status, &why["reason"]), (403, &json!("pinned_otherwise")), "{why}");
    let path = started(&run, 3).await;
    until(&run, &path, "done").await;
    let mut came = 0;
    while let Ok(frame) = run.seen.try_recv() {
        let ToNode::Query(frame) = frame else { continue };
        assert_eq!(frame.class.admits.iter().collect::<Vec<_>>(), [1], "the policy's");
        assert_eq!(frame.priority, Priority::SPARE);
        came += 1;
    }
    assert_eq!(came, 3);
}

#[tokio::test]
async fn every_input_is_asked_once_at_a_level_below_all_others_and_its_end_is_kept_in_order() {
    let mut run = World::new().await.run().await;
    let (status, job) =
        call(&run, "POST", "/v1/jobs", json!({"task": "fashion", "inputs": 60, "goals": {"accuracy": 0.94}}))
            .await;
    assert_eq!((status, &job["goals"]), (201, &json!({"accuracy": 0.94})), "{job}");
    let estimate = job["estimate_usd"].as_f64().unwrap();
    let path = format!("/v1/jobs/{}", job["job"]);
    let mut all: Vec<Value> = (0..60).map(picture).collect();
    all[7]["data"] = json!(STANDARD.encode("no picture"));
    all[9] = json!({"at": 9, "json": {"inputs": "iVBORw0KGgo="}});
    all[11]["type"] = json!("text/html");
    all[12] = json!({"at": 12, "json": {"inputs": "iVBORw0KGgo=", "goals": {"accuracy": 0.1}}});
    all[13]["data"] = json!("");
    all.reverse(); // in any order
    let (early, why) = call(&run, "POST", &format!("{path}/start"), Value::Null).await;
    assert_eq!((early, why["reason"].as_str()), (409, Some("inputs_missing")), "{why}");
    for some in all.chunks(25).chain(all.chunks(60)) {
        let (status, job) = call(&run, "POST", &format!("{path}/inputs"), json!({"inputs": some})).await;
        assert_eq!(status, 200, "twice is as once: {job}");
    }
    assert_eq!(call(&run, "POST", &format!("{path}/start"), Value::Null).await.0, 200);
    let job = until(&run, &path, "done").await;
    assert_eq!(
        (&job["done"], &job["failed"], &job["waiting_bytes"]),
        (&json!(56), &json!(4), &json!(0)),
        "{job}"
    );
    let cost = job["cost_usd"].as_f64().unwrap();
    assert!((cost - 56.0 * 0.0015 / 1_000.0).abs() < 1e-12 && estimate > 0.0, "{job}");
    let mut asked: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    while let Ok(frame) = run.seen.try_recv() {
        let ToNode::Query(frame) = frame else { continue };
        assert_eq!((frame.priority, frame.demand.waiting), (Priority::SPARE, 0));
        assert_eq!(frame.class.admits.iter().collect::<Vec<_>>(), [1], "its floor");
        let modelless_wire::Input::Raw(raw) = frame.input else { continue };
        *asked.entry(raw.to_vec()).or_default() += 1;
    }
    assert_eq!((asked.len(), asked.values().max()), (56, Some(&1)));
    let mut outputs = Vec::new();
    let mut from = Some(0);
    while let Some(place) = from {
        let target = format!("{path}/outputs?from={place}&limit=25");
        let (status, page) = call(&run, "GET", &target, Value::Null).await;
        assert_eq!(status, 200, "{page}");
        outputs.extend(page["outputs"].as_array().unwrap().clone());
        from = page["next"].as_u64();
    }
    let places: Vec<u64> = outputs.iter().map(|output| output["at"].as_u64().unwrap()).collect();
    assert_eq!(places, (0..60).collect::<Vec<_>>());
    assert_eq!((&outputs[7]["reason"], &outputs[7]["name"]), (&json!("malformed"), &json!("7.png")));
    let reasons = [11, 12, 13].map(|at: usize| outputs[at]["reason"].as_str().unwrap().to_owned());
    assert_eq!(reasons, ["unsupported_media", "bad_goal", "malformed"]);
    assert_eq!(outputs[3]["answer"], json!([{"label": "size", "score": PNG.len() + 4}]));
    assert_eq!((&outputs[3]["variant"], &outputs[9]["name"]), (&json!("large-fp32"), &json!("9")));
    let told = run.metrics.encode();
    assert!(told.contains(r#"modelless_job_inputs_total{task="fashion",outcome="answered"} 56"#), "{told}");
    assert!(
        told.contains(r#"modelless_queries_total{task="fashion",outcome="answered"} 0"#),
        "no queries of anybody"
    );
    let (status, removed) = call(&run, "DELETE", &path, Value::Null).await;
    assert_eq!((status, call(&run, "GET", &path, Value::Null).await.0), (200, 404), "{removed}");
    run.stop().await;
}

#[tokio::test]
async fn inputs_that_were_run_in_vain_are_charged() {
    let world = World::new().await;
    let key = made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    let quota = Quota { device_s_per_h: Some(1), ..Quota::default() };
    world.store.set_quota(Owner::Tenant(TenantId::DEFAULT), quota).await.unwrap();
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::ModelError { why: "made to".to_owned() });
    let run = world.run().await;
    let gateways = (0..50).map(|number| Member::new(Role::Gateway, &format!("g{number}"), 1));
    run.handle.set_members(gateways.collect());
    let call =
        async |method: &str, path: &str, body: Value| call_as(&run, key.expose(), method, path, body).await;
    let inputs: Vec<Value> = (0..100).map(picture).collect();
    let (_, job) = call("POST", "/v1/jobs", json!({"task": "fashion", "inputs": inputs.len()})).await;
    let path = format!("/v1/jobs/{}", job["job"]);
    assert_eq!(call("POST", &format!("{path}/inputs"), json!({"inputs": inputs})).await.0, 200);
    assert_eq!(call("POST", &format!("{path}/start"), Value::Null).await.0, 200);
    // Loading needs some of that time as well, and takes none.
    let used_up = async {
        loop {
            let (status, said) = call("POST", "/v2/repository/models/fashion/load", json!({})).await;
            if status != 200 {
                return said["error"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    };
    let why = tokio::time::timeout(SOON, used_up).await.expect("its inputs cost something");
    assert!(why.contains("devices' time"), "{why}");
    run.stop().await;
}

#[tokio::test]
async fn what_is_no_job_or_no_input_is_refused_by_name() {
    let config = Config { max_job_bytes: 2_000, ..Config::default() };
    let run = World::with(Setup { config, ..Setup::default() }).await.run().await;
    for (body, status, reason) in [
        (json!({"task": "fashoin", "inputs": 1}), 404, "unknown_task"),
        (json!({"task": "fashion", "inputs": 0}), 400, "malformed"),
        (json!({"task": "fashion", "inputs": 1_000_001}), 400, "malformed"),
        (json!({"task": "fashion", "inputs": 1, "deadline_s": 0}), 400, "malformed"),
        (json!({"task": "fashion", "inputs": 1, "name": "a\nb"}), 400, "malformed"),
        (json!({"task": "fashion", "inputs": 1, "goals": {"latency_ms": 5}}), 400, "bad_goal"),
        (json!({"task": "fashion", "inputs": 1, "goals": {"priority": 1}}), 400, "bad_goal"),
        (json!({"task": "fashion", "inputs": 1, "goals": {"acuracy": 1}}), 400, "bad_goal"),
        (json!({"task": "fashion", "inputs": 1, "goals": {"accuracy": 0.99}}), 422, "floor_unreachable"),
    ] {
        let (found, why) = call(&run, "POST", "/v1/jobs", body.clone()).await;
        assert_eq!((found, why["reason"].as_str()), (status, Some(reason)), "{body} {why}");
    }
    let (status, job) = call(&run, "POST", "/v1/jobs", json!({"task": "fashion", "inputs": 20})).await;
    assert_eq!(status, 201);
    let path = format!("/v1/jobs/{}", job["job"]);
    let give = format!("{path}/inputs");
    assert_eq!(call(&run, "POST", &give, json!({"inputs": [picture(0)]})).await.0, 200);
    let other = json!({"at": 0, "name": "0.png", "type": "image/png", "data": "aGVsbG8="});
    let large = json!({"at": 1, "type": "image/png", "data": STANDARD.encode([0; 3_000])});
    for (input, status, reason) in [
        (other, 409, "input_differs"),
        (picture(20), 409, "no_such_input"),
        (json!({"at": 1}), 400, "malformed"),
        (json!({"at": 1, "data": "*"}), 400, "malformed"),
        (json!({"at": 1, "data": "aGVsbG8=", "json": {}}), 400, "malformed"),
        (large, 413, "job_too_large"),
    ] {
        let (found, why) = call(&run, "POST", &give, json!({"inputs": [input.clone()]})).await;
        assert_eq!((found, why["reason"].as_str()), (status, Some(reason)), "{input} {why}");
    }
    let (_, missing) = call(&run, "GET", &format!("{path}/missing?limit=3"), Value::Null).await;
    assert_eq!(missing["missing"], json!([1, 2, 3]));
    assert_eq!(call(&run, "DELETE", &path, Value::Null).await.1["reason"], "job_not_ended");
    let (status, estimate) = call(
        &run,
        "POST",
        "/v1/jobs?dry_run=true",
        json!({"task": "fashion", "inputs": 1_000, "goals": {"prefer": "cost"}}),
    )
    .await;
    assert_eq!((status, &estimate["estimate"]["variant"]), (200, &json!("small-fp32")), "{estimate}");
    let jobs = call(&run, "GET", "/v1/jobs", Value::Null).await.1;
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "neither a refusal nor a dry run made one: {jobs}");
    run.stop().await;
}

#[tokio::test]
async fn a_job_is_seen_by_its_application_and_who_administers_its_tenant_and_nobody_else() {
    let world = World::new().await;
    let tenant = world.store.access().create_tenant("other").await.unwrap().id;
    let query: Scopes = [Scope::Query].into_iter().collect();
    let admin = made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    let own = made_for(&world, (TenantId::DEFAULT, "camera"), query).await;
    let neighbour = made_for(&world, (TenantId::DEFAULT, "shop"), query).await;
    let stranger = made(&world, tenant, Scopes::ALL).await;
    let run = World::with(Setup { store: Some(world.store), ..Setup::default() }).await.run().await;
    let body = json!({"task": "fashion", "inputs": 1});
    let (status, job) = call_as(&run, own.expose(), "POST", "/v1/jobs", body).await;
    assert_eq!((status, &job["application"]), (201, &json!("camera")), "{job}");
    let path = format!("/v1/jobs/{}", job["job"]);
    for (key, sees) in [(&own, true), (&neighbour, false), (&admin, true), (&stranger, false)] {
        let (status, _) = call_as(&run, key.expose(), "GET", &path, Value::Null).await;
        let (_, all) = call_as(&run, key.expose(), "GET", "/v1/jobs", Value::Null).await;
        let listed = all["jobs"].as_array().unwrap().len();
        assert_eq!((status, listed), if sees { (200, 1) } else { (404, 0) }, "{sees}");
        for (method, what) in [
            ("POST", "/start"),
            ("POST", "/cancel"),
            ("GET", "/outputs"),
            ("GET", "/missing"),
            ("DELETE", ""),
        ] {
            if !sees {
                let (status, why) =
                    call_as(&run, key.expose(), method, &format!("{path}{what}"), Value::Null).await;
                assert_eq!((status, &why["reason"]), (404, &json!("unknown_job")), "{method} {what}");
            }
        }
    }
    run.stop().await;
}

#[tokio::test]
async fn what_nodes_have_no_room_for_waits_and_what_fails_of_itself_does_not() {
    let mut run = World::new().await.run().await;
    *run.node.does.lock().unwrap() = Does::Refuse(Refusal::QueueFull { limit: 1 });
    let path = started(&run, 30).await;
    for _ in 0..3 {
        run.next_query().await;
    }
    let (_, job) = call(&run, "GET", &path, Value::Null).await;
    assert_eq!((&job["done"], &job["failed"]), (&json!(0), &json!(0)), "{job}");
    *run.node.does.lock().unwrap() = Does::Answer;
    let job = until(&run, &path, "done").await;
    assert_eq!((&job["done"], &job["failed"]), (&json!(30), &json!(0)), "{job}");
    *run.node.does.lock().unwrap() = Does::Refuse(Refusal::ModelError { why: "it says no".into() });
    let path = started(&run, 30).await;
    let job = until(&run, &path, "done").await;
    assert_eq!((&job["done"], &job["failed"]), (&json!(0), &json!(30)), "{job}");
    run.stop().await;
}

#[tokio::test]
async fn one_that_is_cancelled_ends_at_once_and_nodes_forget_what_they_had_of_it() {
    let mut run = World::new().await.run().await;
    *run.node.does.lock().unwrap() = Does::Keep;
    let path = started(&run, 10).await;
    let frame = run.next_query().await;
    let (status, job) = call(&run, "POST", &format!("{path}/cancel"), Value::Null).await;
    assert_eq!((status, &job["state"]), (200, &json!("cancelled")), "{job}");
    let forgotten = tokio::time::timeout(SOON, run.next_cancel()).await.unwrap();
    assert!(forgotten >= frame.key);
    assert_eq!(run.handle.open_queries(), 0);
    assert_eq!(call(&run, "DELETE", &path, Value::Null).await.0, 200);
    run.stop().await;
}

#[tokio::test]
async fn a_gateway_that_ends_leaves_its_inputs_to_others_at_once() {
    let mut run = World::new().await.run().await;
    *run.node.does.lock().unwrap() = Does::Keep;
    let path = started(&run, 10).await;
    run.next_query().await;
    let store = std::sync::Arc::clone(&run.store);
    let id = JobId(path.rsplit('/').next().unwrap().parse().unwrap());
    let now = UnixMicros::of(std::time::SystemTime::now());
    let take = async |now| {
        store.offline().take_job_inputs(id, "other", (now, now), (100, 1 << 20)).await.unwrap().len()
    };
    assert_eq!(take(now).await, 0, "they are its own");
    run.stop().await;
    assert_eq!(take(now).await, 10);
}

#[tokio::test]
async fn two_gateways_share_a_job_and_each_input_counts_once() {
    let one = World::new().await;
    let store = std::sync::Arc::clone(&one.store);
    let two = World::with(Setup { store: Some(store), ..Setup::default() }).await.run().await;
    let one = one.run().await;
    let path = started(&one, 400).await;
    let job = until(&two, &path, "done").await;
    assert_eq!((&job["done"], &job["failed"]), (&json!(400), &json!(0)), "{job}");
    let cost = job["cost_usd"].as_f64().unwrap();
    assert!((cost - 400.0 * 0.0015 / 1_000.0).abs() < 1e-12, "{job}");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_job_whose_task_answers_in_another_output_space_fails_and_says_so() {
    let world = World::new().await;
    let run = world.run().await;
    let path = given(&run, 3).await;
    // What the node answers in from now on.
    let catalog = run.store.catalog().await.unwrap();
    for variant in catalog.variants.iter().filter(|v| v.model.0 <= 2) {
        run.node.knows(modelless_types::TaskId(1), variant, modelless_types::SpaceId(99));
    }
    call(&run, "POST", &format!("{path}/start"), Value::Null).await;
    let job = until(&run, &path, "failed").await;
    assert!(job["why"].as_str().unwrap().contains("another output space"), "{job}");
    run.stop().await;
}
