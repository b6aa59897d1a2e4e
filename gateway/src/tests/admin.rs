use super::world::{Setup, World};
use crate::{Admin, AdminError, RegisterRequest};
use async_trait::async_trait;
use http::Method;
use modelless_store::{Artefacts, Measuring, Registered, Store, UnixMicros};
use modelless_types::{Model, ModelId, SpaceId, TaskId, TaskKind, TenantId};
use serde_json::{Value, json};
use std::sync::Arc;

const JSON: &str = "application/json";

#[tokio::test]
async fn a_task_is_made_found_and_removed() {
    let run = World::new().await.run().await;
    let body = json!({"name": "birds", "kind": "image-classification", "labels": ["a", "b"],
        "accuracy_rule": "lower_bound", "defaults": {"accuracy": 0.5, "latency_ms": 40}});
    let shown = run
        .with_connection(move |mut connection| {
            let created =
                connection.exchange(&modelless_testkit::Request::post("/v1/tasks").json(&body)).unwrap();
            assert_eq!(created.status, 201, "{created}");
            let again =
                connection.exchange(&modelless_testkit::Request::post("/v1/tasks").json(&body)).unwrap();
            assert_eq!(again.status, 409, "{again}");
            // The very next request sees it.
            let shown = connection.exchange(&modelless_testkit::Request::get("/v1/tasks/birds")).unwrap();
            assert_eq!(shown.status, 200, "{shown}");
            shown.json().unwrap()
        })
        .await;
    assert_eq!((&shown["metric"], &shown["accuracy_rule"]), (&json!("top-1"), &json!("lower_bound")));
    assert_eq!(
        (&shown["defaults"]["accuracy"], &shown["defaults"]["latency_ms"]),
        (&json!(0.5), &json!(40.0))
    );
    let task = run.store.catalog().await.unwrap().task_named(TenantId::DEFAULT, "birds").unwrap().clone();
    assert_eq!(task.kind, TaskKind::ImageClassification);
    run.with_connection(|mut connection| {
        let delete = |target: &str| modelless_testkit::Request::new("DELETE", target);
        assert_eq!(connection.exchange(&delete("/v1/tasks/birds")).unwrap().status, 200);
        let used = connection.exchange(&delete("/v1/tasks/fashion")).unwrap();
        assert_eq!(used.status, 409, "{used}");
        let gone = connection.exchange(&modelless_testkit::Request::get("/v1/tasks/birds")).unwrap();
        assert_eq!(gone.status, 404, "{gone}");
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn what_is_no_task_is_refused() {
    let world = World::new().await;
    for body in [
        json!({}),
        json!({"name": "x"}),
        json!({"name": "Upper", "kind": "image-classification", "labels": ["a"]}),
        json!({"name": "x", "kind": "telepathy", "labels": ["a"]}),
        json!({"name": "x", "kind": "image-classification", "labels": []}),
        json!({"name": "x", "kind": "tensor"}),
        json!({"name": "x", "kind": "image-classification", "labels": ["a"], "defaults": {"accuracy": 2}}),
        json!({"name": "x", "kind": "image-classification", "labels": ["a"], "defaults": {"model": "m"}}),
        json!({"name": "x", "kind": "image-classification", "labels": ["a"], "defaults": {"priority": 1}}),
        json!({"name": "x", "kind": "image-classification", "labels": ["a"],
            "defaults": {"fallback": "best_effort"}}),
        json!({"name": "x", "kind": "image-classification", "labels": ["a"], "colour": "red"}),
        json!([]),
    ] {
        let got = world.post("/v1/tasks", JSON, body.to_string().as_bytes()).await;
        assert_eq!(got.status, 400, "{body}: {got:?}");
        got.refusal();
    }
    assert_eq!(world.post("/v1/tasks", "", b"{}").await.status, 415);
}

#[tokio::test]
async fn a_model_is_removed_by_name_and_a_wrong_one_named() {
    let world = World::new().await;
    assert_eq!(world.ask(Method::DELETE, "/v1/models/fashion/smal", "", b"").await.status, 404);
    for target in ["/v1/models/fashion/small?force=maybe", "/v1/models/fashion/small?version=-1"] {
        assert_eq!(world.ask(Method::DELETE, target, "", b"").await.status, 400, "{target}");
    }
    assert_eq!(world.ask(Method::DELETE, "/v1/models/fashion/small?version=2", "", b"").await.status, 404);
    assert_eq!(world.store.catalog().await.unwrap().models.len(), 3);
    let got = world.ask(Method::DELETE, "/v1/models/fashion/small?force=true", "", b"").await;
    assert_eq!(got.json()["removed"], json!([{"name": "small", "version": 1}]));
    assert_eq!(world.store.catalog().await.unwrap().models.len(), 2);
}

struct Registrar;

#[async_trait]
impl Admin for Registrar {
    async fn register(&self, tenant: TenantId, request: RegisterRequest) -> Result<Registered, AdminError> {
        if request.variants[0].max_batch != 16 {
            return Err(AdminError::Invalid("this artefact takes batches of 16".to_owned()));
        }
        let model = Model {
            id: ModelId(9),
            task: TaskId(1),
            tenant,
            name: request.name,
            version: request.version,
            architecture: request.architecture,
            licence: request.licence,
            owner: request.owner,
            promoted: 1,
            space: SpaceId(1),
            adapter: request.adapter.to_string(),
        };
        Ok(Registered { model, variants: Vec::new() })
    }
}

#[tokio::test]
async fn registering_is_handed_on_and_says_so_where_it_cannot_be() {
    let request = |task: &str, batch: u32| {
        json!({"task": task, "name": "new", "adapter": {}, "variants": [
            {"precision": "fp32", "max_batch": batch, "artefact_sha256": "ab".repeat(32)}]})
        .to_string()
    };
    let without = World::new().await;
    let got = without.post("/v1/models", JSON, request("fashion", 16).as_bytes()).await;
    assert_eq!(got.refusal(), (501, "not_served_here".to_owned()));
    let world = World::with(Setup { admin: Some(Arc::new(Registrar)), ..Setup::default() }).await;
    for (task, batch, status) in [("fashion", 16, 201), ("fashion", 4, 400), ("fish", 16, 404)] {
        let got = world.post("/v1/models", JSON, request(task, batch).as_bytes()).await;
        assert_eq!(got.status, status, "{got:?}");
    }
    let mut body: Value = serde_json::from_str(&request("fashion", 16)).unwrap();
    for (budget, status) in [
        (json!(null), 201),
        (json!(1), 201),
        (json!(86_400_000), 201),
        (json!(0), 400),
        (json!(86_400_001), 400),
        (json!(u64::MAX), 400),
        (json!(-1), 400),
    ] {
        body["budget_ms"] = budget;
        let got = world.post("/v1/models", JSON, body.to_string().as_bytes()).await;
        assert_eq!(got.status, status, "{}: {got:?}", body["budget_ms"]);
    }
}

#[tokio::test]
async fn a_model_tells_who_measures_it_and_why_that_failed() {
    let world = World::new().await;
    let catalog = world.store.catalog().await.unwrap();
    let (model, variant) = (&catalog.models[0], &catalog.variants[0]);
    let path = format!("/v1/models/fashion/{}", model.name);
    let got = world.get(&path).await.json();
    assert_eq!(got["versions"][0]["variants"][0]["measuring"], json!([]));
    let by = |class: &str, failed: Option<&str>, until| Measuring {
        variant: variant.id,
        device_class: class.to_owned(),
        node: "one".to_owned(),
        until: UnixMicros(until),
        progress: "timing batches of 4".to_owned(),
        failed: failed.map(str::to_owned),
        attempts: 2,
    };
    let far = i64::MAX.unsigned_abs();
    for claim in [by("a", None, far), by("b", Some("broken"), far), by("c", None, 1)] {
        world.store.claim_measuring(claim, UnixMicros(0)).await.unwrap();
    }
    let got = world.get(&path).await.json();
    let told = got["versions"][0]["variants"][0]["measuring"].clone();
    let states: Vec<_> = told.as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["running", "failed", "waiting"]);
    assert_eq!((&told[0]["node"], &told[0]["progress"]), (&json!("one"), &json!("timing batches of 4")));
    assert_eq!((&told[1]["why"], &told[1]["attempts"]), (&json!("broken"), &json!(2)));
}

#[tokio::test]
async fn artefacts_are_kept_under_their_hash_up_to_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let artefacts = Artefacts::new(folder.path()).unwrap();
    let mut setup = Setup { artefacts: Some(artefacts.clone()), ..Setup::default() };
    setup.config.max_artefact_bytes = 100_000;
    let world = World::with(setup).await;
    let bytes = vec![7; 100_000];
    let got = world.ask(Method::PUT, "/v1/artefacts", "application/octet-stream", &bytes).await;
    assert_eq!(got.status, 201, "{got:?}");
    let sha256 = got.json()["sha256"].as_str().unwrap().to_owned();
    assert!(artefacts.open(&sha256).is_ok());
    for (media, body, status) in [
        ("application/octet-stream", vec![7; 100_001], 413),
        ("application/octet-stream", vec![], 400),
        ("image/png", vec![7; 5], 415),
    ] {
        assert_eq!(world.ask(Method::PUT, "/v1/artefacts", media, &body).await.status, status);
    }
    let there = world.get(&format!("/v1/artefacts/{sha256}")).await;
    assert_eq!((there.status.as_u16(), &there.json()["bytes"]), (200, &json!(100_000)));
    let gone = world.get(&format!("/v1/artefacts/{}", "ab".repeat(32))).await;
    assert_eq!(gone.refusal(), (404, "unknown_artefact".to_owned()));
    assert_eq!(world.get("/v1/artefacts/..%2Fdata").await.status, 400);
    let kept: Vec<_> = std::fs::read_dir(folder.path().join("incoming")).unwrap().collect();
    assert!(kept.is_empty(), "nothing half-written is left: {kept:?}");
    let got = World::new().await.ask(Method::PUT, "/v1/artefacts", "", &bytes).await;
    assert_eq!(got.refusal(), (501, "not_served_here".to_owned()));
}

#[tokio::test]
async fn more_uploads_than_there_are_places_are_told_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artefacts: Some(Artefacts::new(folder.path()).unwrap()), ..Setup::default() };
    let run = World::with(setup).await.run().await;
    let started = "PUT /v1/artefacts HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
    let mut open = Vec::new();
    for _ in 0..crate::service::UPLOADS {
        let started = started.as_bytes();
        let connection = run.with_connection(move |mut connection| {
            connection.send_raw(started).unwrap();
            connection
        });
        open.push(connection.await);
    }
    let put = |body: &'static [u8]| {
        run.with_connection(move |mut connection| {
            connection.exchange(&modelless_testkit::Request::new("PUT", "/v1/artefacts").body(body)).unwrap()
        })
    };
    // The last of them may not have been read yet.
    let mut refused = put(b"one more").await;
    while refused.status == 201 {
        refused = put(b"one more").await;
    }
    assert_eq!(refused.status, 503, "{refused}");
    assert_eq!(
        (refused.header("retry-after"), &refused.json().unwrap()["reason"]),
        (Some("1"), &json!("busy"))
    );
    drop(open);
    while put(b"after that").await.status != 201 {}
    run.stop().await;
}
