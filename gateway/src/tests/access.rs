//! Keys before every way in: the routes as the OpenAPI document tells them, and gRPC.

use super::world::{Got, PNG, Setup, World, new_task, send};
use crate::Config;
use crate::openapi::document;
use axum::body::Body;
use http::{Method, Request};
use modelless_decision::Coverage;
use modelless_oip::messages::{InferRequest, InferResponse, ModelMetadata, ModelName};
use modelless_store::{Access as _, NewKey, SecretKey, Store, UnixMicros, Visibility};
use modelless_types::{ReplicaState, Scope, Scopes, TaskKind, TenantId};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};
use tonic::Code;
use tonic_prost::ProstCodec;

/// Makes a key at the store, as `modelless key create --database` does.
pub(super) async fn made(world: &World, tenant: TenantId, scopes: Scopes) -> SecretKey {
    made_for(world, (tenant, "tests"), scopes).await
}

/// The same for an application of this name.
pub(super) async fn made_for(world: &World, (tenant, app): (TenantId, &str), scopes: Scopes) -> SecretKey {
    static MADE: AtomicU8 = AtomicU8::new(1);
    let secret = SecretKey::new([MADE.fetch_add(1, Ordering::Relaxed); 32]);
    let app = world.store.app(tenant, app).await.unwrap().id;
    let at = UnixMicros::of(SystemTime::now());
    let name = format!("with {scopes}");
    let key = NewKey { app, name, secret: secret.kept(), scopes, at, expires: None };
    world.store.create_key(key).await.unwrap();
    secret
}

/// A world with a key for everything, and one for each scope without it.
pub(super) async fn locked() -> (World, SecretKey, Vec<(Scope, SecretKey)>) {
    let store = World::new().await.store;
    let world = World::with(Setup { store: Some(store), ..Setup::default() }).await;
    let all = made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    let mut without = Vec::new();
    for scope in Scope::ALL {
        without.push((scope, made(&world, TenantId::DEFAULT, Scopes::ALL.without(scope)).await));
    }
    // A gateway that was started after that.
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    (world, all, without)
}

pub(super) async fn with_key(world: &World, method: &str, path: &str, key: &str, body: &[u8]) -> Got {
    let mut request = Request::builder().method(method).uri(path);
    if !key.is_empty() {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.header("content-type", "application/json").body(Body::from(body.to_vec()));
    send(world.router(), request.unwrap()).await
}

/// Status and reason, in whichever shape the route tells errors.
pub(super) fn refusal(got: &Got) -> (u16, String) {
    let body: Value = serde_json::from_slice(&got.body).unwrap_or_default();
    let reason = body["reason"].as_str().or(body["error"]["code"].as_str()).unwrap_or_default();
    (got.status.as_u16(), reason.to_owned())
}

/// Method, path and the declared scope of each operation of the document; it must declare one.
fn operations() -> Vec<(String, String, Option<Scope>)> {
    let document = document(&Config::default());
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let declared = operation["security"].as_array();
            let declared = declared.unwrap_or_else(|| panic!("{method} {path} declares no scope"));
            let scopes: BTreeSet<Option<Scope>> = declared
                .iter()
                .flat_map(|way| way.as_object().unwrap())
                .map(|(scheme, roles)| {
                    assert!(document["components"]["securitySchemes"][scheme].is_object(), "{scheme}");
                    roles[0].as_str().and_then(Scope::parse)
                })
                .collect();
            assert!(scopes.len() <= 1, "{method} {path}: both ways to present a key need the same");
            let scope = scopes.into_iter().next().flatten();
            assert_eq!(scope.is_none(), declared.is_empty(), "{method} {path}: {declared:?}");
            let path = path
                .replace("{task}", "fashion")
                .replace("{model}", "small")
                .replace("{variant}", "small-fp32")
                .replace("{version}", "2")
                .replace("{region}", "none")
                .replace("{job}", "1")
                .replace("{key}", "1")
                .replace("{tenant}", "default")
                .replace("{plan}", "1")
                .replace("{node}", "local")
                .replace("{sha256}", &"ab".repeat(32))
                .replace("{query}", "x");
            assert!(!path.contains('{'), "{path}");
            all.push((method.to_uppercase(), path, scope));
        }
    }
    all
}

#[tokio::test]
async fn a_key_without_the_scope_that_the_document_declares_gets_403_on_every_route() {
    let (world, _, without) = locked().await;
    let mut open = Vec::new();
    for (method, path, scope) in operations() {
        let Some(scope) = scope else {
            assert_eq!(with_key(&world, &method, &path, "", b"").await.status, 200, "{method} {path}");
            open.push(path);
            continue;
        };
        let nobody = with_key(&world, &method, &path, "", b"").await;
        assert_eq!(refusal(&nobody), (401, "no_key".to_owned()), "{method} {path}");
        assert_eq!(nobody.header("www-authenticate"), "Bearer");
        let stranger = with_key(&world, &method, &path, "mlk_nobody", b"").await;
        assert_eq!(refusal(&stranger), (401, "unknown_key".to_owned()), "{method} {path}");
        for (left_out, key) in &without {
            let got = with_key(&world, &method, &path, key.expose(), b"").await;
            let barred = refusal(&got) == (403, "missing_scope".to_owned());
            assert_eq!(barred, *left_out == scope, "{method} {path} without {left_out}: {got:?}");
        }
    }
    // Whatever tells nothing of anybody, and nothing else.
    open.sort();
    assert_eq!(open, ["/openapi.json", "/v2/health/live", "/v2/health/ready"]);
}

#[tokio::test]
async fn no_refusal_repeats_a_secret() {
    let (world, all, without) = locked().await;
    for (method, path, _) in operations() {
        for key in without.iter().map(|(_, key)| key).chain([&all]) {
            let wrong = key.expose().replace("mlk_", "mlk_00");
            for presented in [key.expose(), &wrong] {
                let got = with_key(&world, &method, &path, presented, b"{").await;
                let said = format!("{:?}", got.headers) + &String::from_utf8_lossy(&got.body);
                assert!(!said.contains(&presented[16..]), "{method} {path}: {said}");
            }
        }
    }
}

#[tokio::test]
async fn keys_are_made_rotated_and_ended_over_http_and_the_very_next_request_knows() {
    let (world, all, _) = locked().await;
    let run = world.run().await;
    let all = all.expose().to_owned();
    run.with_connection(move |mut connection| {
        let mut ask = |method: &str, path: &str, key: &str, body: Option<Value>| {
            let mut request = modelless_testkit::Request::new(method, path);
            request = request.header("api-key", key);
            if let Some(body) = body {
                request = request.json(&body);
            }
            connection.exchange(&request).unwrap()
        };
        let new = json!({"name": "camera", "scopes": ["query"], "app": "shop"});
        let made = ask("POST", "/v1/keys", &all, Some(new));
        assert_eq!(made.status, 201, "{made}");
        let made = made.json().unwrap();
        let secret = made["secret"].as_str().unwrap();
        assert_eq!((&made["app"], &made["state"]), (&json!("shop"), &json!("valid")));
        assert_eq!(ask("GET", "/v1/tasks", secret, None).status, 200);
        assert_eq!(ask("GET", "/v1/keys", secret, None).status, 403);
        let listed = ask("GET", "/v1/keys", &all, None);
        assert!(!listed.to_string().contains(secret) && !listed.to_string().contains(&all), "{listed}");
        assert_eq!(listed.json().unwrap()["keys"].as_array().unwrap().len(), 5);

        let path = format!("/v1/keys/{}/rotate", made["prefix"].as_str().unwrap());
        let rotated = ask("POST", &path, &all, Some(json!({"overlap_s": 3600})));
        assert_eq!(rotated.status, 200, "{rotated}");
        let rotated = rotated.json().unwrap();
        let second = rotated["secret"].as_str().unwrap();
        assert_eq!(rotated["new"]["app"], "shop");
        for both in [secret, second] {
            assert_eq!(ask("GET", "/v1/tasks", both, None).status, 200);
        }
        let again = ask("POST", &path, &all, Some(json!({})));
        assert_eq!(again.status, 409, "a key has one that takes its place: {again}");
        let why = again.json().unwrap();
        assert_eq!(why["reason"], "already_rotated");
        assert!(why["error"].as_str().unwrap().contains(rotated["new"]["prefix"].as_str().unwrap()), "{why}");
        let at_once = format!("/v1/keys/{}/rotate", rotated["new"]["id"]);
        let third = ask("POST", &at_once, &all, Some(json!({"overlap_s": 0}))).json().unwrap();
        assert_eq!(ask("GET", "/v1/tasks", second, None).status, 401, "no overlap was asked for");
        let third_secret = third["secret"].as_str().unwrap();
        assert_eq!(ask("GET", "/v1/tasks", third_secret, None).status, 200);
        let gone = ask("DELETE", &format!("/v1/keys/{}", third["new"]["id"]), &all, None);
        assert_eq!(gone.json().unwrap()["state"], "revoked");
        let refused = ask("GET", "/v1/tasks", third_secret, None);
        assert_eq!((refused.status, &refused.json().unwrap()["reason"]), (401, &json!("revoked_key")));
        assert_eq!(ask("DELETE", "/v1/keys/999", &all, None).status, 404);
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn the_first_key_is_not_made_by_whoever_comes_first() {
    let world = World::new().await;
    let body = json!({"name": "mine", "scopes": ["admin"]}).to_string();
    let got = world.post("/v1/keys", "application/json", body.as_bytes()).await;
    assert_eq!(got.refusal(), (409, "no_keys_yet".to_owned()));
    assert_eq!(world.get("/v1/keys").await.json(), json!({"keys": [], "needed": false}));
}

#[tokio::test]
async fn a_key_made_elsewhere_shuts_out_whoever_has_none_within_seconds() {
    let world = World::new().await;
    let secret = SecretKey::new([200; 32]);
    let run = world.run().await;
    let key = NewKey {
        app: modelless_types::AppId::DEFAULT,
        name: "first".to_owned(),
        secret: secret.kept(),
        scopes: Scopes::ALL,
        at: UnixMicros::of(SystemTime::now()),
        expires: None,
    };
    run.store.create_key(key).await.unwrap();
    run.with_connection(move |mut connection| {
        let tasks = || modelless_testkit::Request::get("/v1/tasks");
        let shut_out = || {
            let status = connection.exchange(&tasks())?.status;
            Ok(if status == 401 { Ok(()) } else { Err(status.to_string()) })
        };
        modelless_testkit::wait::until(std::time::Duration::from_secs(5), shut_out).unwrap();
        let with = tasks().header("api-key", secret.expose());
        assert_eq!(connection.exchange(&with).unwrap().status, 200);
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn a_tenant_sees_and_changes_its_own_tasks_and_keys_only() {
    let (world, all, _) = locked().await;
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    let key = made(&world, tenant, Scopes::ALL).await;
    let mut own = new_task("fashion", TaskKind::ImageClassification);
    own.tenant = tenant;
    own.description = "theirs".to_owned();
    world.store.create_task(own).await.unwrap();
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let theirs =
        |method: &'static str, path: &'static str| with_key(&world, method, path, key.expose(), b"{}");
    let tasks = theirs("GET", "/v1/tasks").await.json();
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 1, "{tasks}");
    assert_eq!(theirs("GET", "/v1/tasks/fashion").await.json()["description"], "theirs");
    for (method, path) in [
        ("GET", "/v1/tasks/arrays"),
        ("DELETE", "/v1/tasks/arrays"),
        ("POST", "/v1/tasks/arrays"),
        ("GET", "/v1/models/fashion/small"),
        ("DELETE", "/v1/models/fashion/small"),
        ("GET", "/v2/models/arrays"),
        ("POST", "/v2/models/arrays/infer"),
        ("GET", "/v1/variants?task=arrays"),
    ] {
        let got = theirs(method, path).await;
        assert_eq!(got.status, 404, "{method} {path}: {got:?}");
        let text = String::from_utf8_lossy(&got.body);
        assert!(!text.contains("small-fp32") && !text.contains("large"), "{text}");
    }
    for path in ["/v1/models", "/v1/variants", "/v2/models", "/v2/models/stats", "/v1/profiles"] {
        let got = theirs("GET", path).await;
        assert!(!String::from_utf8_lossy(&got.body).contains("small"), "{path}: {got:?}");
    }
    for (method, path) in [("GET", "/v1/nodes"), ("GET", "/metrics"), ("GET", "/v1/tenants")] {
        assert_eq!(theirs(method, path).await.status, 403, "{method} {path}");
    }
    let keys = theirs("GET", "/v1/keys").await.json();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "{keys}");
    assert_eq!(theirs("DELETE", "/v1/keys/1").await.status, 404, "the operator's");
    let named = |name: &str| json!({"name": "x", "scopes": ["admin"], "tenant": name}).to_string();
    let got = with_key(&world, "POST", "/v1/keys", key.expose(), named("default").as_bytes()).await;
    assert_eq!(got.refusal(), (404, "unknown_tenant".to_owned()));
    let got = with_key(&world, "POST", "/v1/keys", all.expose(), named("other").as_bytes()).await;
    assert_eq!((got.status.as_u16(), &got.json()["tenant"]), (201, &json!("other")));
    let got = with_key(&world, "GET", "/v1/tasks/fashion", all.expose(), b"").await.json();
    assert_eq!(got["variants"].as_array().unwrap().len(), 2, "the first tenant's own");
}

#[tokio::test]
async fn a_query_carries_the_tenant_and_application_of_its_key() {
    let (mut world, all, _) = locked().await;
    let request = Request::post("/v1/tasks/fashion")
        .header("authorization", format!("Bearer {}", all.expose()))
        .header("content-type", "image/png")
        .body(Body::from(PNG))
        .unwrap();
    assert_eq!(send(world.router(), request).await.status, 200);
    let app = world.store.app(TenantId::DEFAULT, "tests").await.unwrap().id;
    let frame = loop {
        if let modelless_wire::ToNode::Query(frame) = world.seen.recv().await.unwrap() {
            break frame;
        }
    };
    assert_eq!((frame.tenant, frame.app), (TenantId::DEFAULT, app));
}

#[tokio::test]
async fn grpc_asks_for_the_same_keys() {
    let (world, all, without) = locked().await;
    let world = World::with(Setup {
        store: Some(world.store),
        config: Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..Config::default() },
        ..Setup::default()
    })
    .await;
    let run = world.run().await;
    let address = format!("http://{}", run.addresses.grpc.unwrap());
    let channel = tonic::transport::Endpoint::try_from(address).unwrap().connect().await.unwrap();
    let no_query = &without.iter().find(|(scope, _)| *scope == Scope::Query).unwrap().1;
    let metadata = |key: Option<(&'static str, String)>| {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        async move {
            grpc.ready().await.unwrap();
            let mut request =
                tonic::Request::new(ModelName { name: "fashion".to_owned(), ..Default::default() });
            if let Some((name, value)) = key {
                request.metadata_mut().insert(name, value.parse().unwrap());
            }
            let path = http::uri::PathAndQuery::from_static("/inference.GRPCInferenceService/ModelMetadata");
            let answer: Result<tonic::Response<ModelMetadata>, _> =
                grpc.unary(request, path, ProstCodec::default()).await;
            answer.map(|answer| answer.into_inner().name).map_err(|status| status.code())
        }
    };
    assert_eq!(metadata(None).await, Err(Code::Unauthenticated));
    assert_eq!(metadata(Some(("api-key", "mlk_no".to_owned()))).await, Err(Code::Unauthenticated));
    let barred = format!("Bearer {}", no_query.expose());
    assert_eq!(metadata(Some(("authorization", barred))).await, Err(Code::PermissionDenied));
    for (name, value) in
        [("authorization", format!("Bearer {}", all.expose())), ("api-key", all.expose().to_owned())]
    {
        assert_eq!(metadata(Some((name, value))).await, Ok("fashion".to_owned()));
    }
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    let request =
        tonic::Request::new(InferRequest { model_name: "fashion".to_owned(), ..Default::default() });
    let answer: Result<tonic::Response<InferResponse>, _> =
        grpc.unary(request, path, ProstCodec::default()).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated);
    run.stop().await;
}

#[tokio::test]
async fn openai_clients_read_why_in_their_own_shape() {
    let (world, ..) = locked().await;
    let got = world.ask(Method::POST, "/openai/v1/embeddings", "application/json", b"{}").await;
    let body = got.json();
    assert_eq!((got.status.as_u16(), &body["error"]["code"]), (401, &json!("no_key")));
    assert!(body["error"]["message"].as_str().unwrap().contains("Bearer"));
}

#[tokio::test]
async fn refusals_are_told_slowly_once_there_are_many_and_answers_never() {
    let (world, key, _) = locked().await;
    let run = world.run().await;
    run.with_connection(move |mut connection| {
        let mut ask = |key: &str| {
            let began = tokio::time::Instant::now();
            let request = modelless_testkit::Request::new("GET", "/v1/tasks").header("api-key", key);
            (connection.exchange(&request).unwrap().status, began.elapsed())
        };
        let wrong: Vec<_> = (0..150).map(|_| ask("mlk_nobody's")).collect();
        assert!(wrong.iter().all(|(status, _)| *status == 401));
        let held = wrong.iter().filter(|(_, took)| *took >= Duration::from_millis(500)).count();
        // In the half a second that one is held 25 more come to be told at once.
        assert!((1..=3).contains(&held), "{held}");
        let (first, second) = (ask(key.expose()), ask(key.expose()));
        assert_eq!((first.0, second.0), (200, 200));
        assert!(first.1.min(second.1) < Duration::from_millis(400), "{first:?} {second:?}");
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn a_quota_is_kept_and_whoever_is_over_it_is_told_when_to_come_again() {
    let (world, all, _) = locked().await;
    let key = all.expose().to_owned();
    let quota = |quota: Value| json!({"quota": quota}).to_string();
    let run = world.run().await;
    run.with_connection(move |mut connection| {
        let mut ask = |method: &str, path: &str, body: &str| {
            let request = modelless_testkit::Request::new(method, path).header("api-key", &key);
            let request = request.header("content-type", "application/json").body(body.as_bytes().to_vec());
            connection.exchange(&request).unwrap()
        };
        let query = json!({"inputs": crate::openapi::query::PIXEL_PNG}).to_string();
        let bounded = ask("PATCH", "/v1/tenants/default", &quota(json!({"requests_per_s": 1, "burst": 2})));
        assert_eq!(bounded.status, 200, "{bounded}");
        let statuses: Vec<u16> = (0..3).map(|_| ask("POST", "/v1/tasks/fashion", &query).status).collect();
        assert_eq!(statuses, [200, 200, 429]);
        let refused = ask("POST", "/v1/tasks/fashion", &query);
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        let refused = refused.json().unwrap();
        assert_eq!(refused["reason"], "over_quota");
        assert!(refused["error"].as_str().unwrap().contains("the tenant default"), "{refused}");
        assert_eq!(ask("GET", "/v1/tasks", "").status, 200, "looking is no query");
        // Another quota counts anew.
        assert_eq!(ask("PATCH", "/v1/tenants/default", &quota(json!({"body_bytes": 20}))).status, 200);
        assert_eq!(ask("POST", "/v1/tasks/fashion", &query).status, 413);
        assert_eq!(ask("PATCH", "/v1/tenants/default", &quota(json!({}))).status, 200);
        assert_eq!(ask("POST", "/v1/tasks/fashion", &query).status, 200);
        // None of these is a quota: not a list of its fields, nor what no store can keep.
        for wrong in
            [json!({"concurrency": 0}), json!([null, null]), json!({"body_bytes": 1_u64 << 63}), json!(null)]
        {
            assert_eq!(ask("PATCH", "/v1/tenants/default", &quota(wrong)).status, 400);
        }
        assert_eq!(ask("PATCH", "/v1/tenants/nobody", &quota(json!({}))).status, 404);
        let listed = ask("GET", "/v1/tenants", "").json().unwrap();
        assert_eq!(listed["tenants"][0]["quota"], json!({}));
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn another_tenant_is_answered_by_what_is_shared_and_sees_nothing_else() {
    let (world, all, _) = locked().await;
    let small = world.store.catalog().await.unwrap();
    let small = small.models.iter().find(|model| model.name == "small").unwrap().id;
    let friend = world.store.create_tenant("friend").await.unwrap().id;
    let stranger = world.store.create_tenant("stranger").await.unwrap().id;
    let friend = made(&world, friend, Scopes::ALL).await;
    let stranger = made(&world, stranger, Scopes::ALL).await;
    let share = |body: Value| {
        let (router, key) = (world.router(), all.expose().to_owned());
        let request = Request::patch("/v1/models/fashion/small").header("api-key", key);
        let request = request.header("content-type", "application/json").body(Body::from(body.to_string()));
        send(router, request.unwrap())
    };
    for wrong in [
        json!({"visibility": "shared"}),
        json!({"visibility": "public", "tenants": ["friend"]}),
        json!({"visibility": "everybody"}),
    ] {
        assert_eq!(share(wrong).await.status, 400);
    }
    assert_eq!(share(json!({"visibility": "shared", "tenants": ["nobody"]})).await.status, 404);
    let shared = share(json!({"visibility": "shared", "tenants": ["friend"]})).await;
    assert_eq!((shared.status.as_u16(), &shared.json()["tenants"]), (200, &json!(["friend"])));

    // As a gateway sees it that starts now.
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let ask = |key: &SecretKey, query: &'static str| {
        let request = Request::post(format!("/v1/tasks/fashion{query}")).header("api-key", key.expose());
        send(world.router(), request.header("content-type", "image/png").body(Body::from(PNG)).unwrap())
    };
    assert_eq!(ask(&all, "?accuracy=0.94").await.header("modelless-model"), "large");
    let best = ask(&friend, "").await;
    assert_eq!((best.status.as_u16(), best.header("modelless-model")), (200, "small"));
    let refused = ask(&friend, "?accuracy=0.94").await;
    assert_eq!(refused.refusal(), (422, "floor_unreachable".to_owned()));
    assert_eq!(refused.json()["nearest"]["accuracy"], 0.9, "the best of what is there for it");
    assert_eq!(ask(&friend, "?model=large").await.status, 422);
    assert_eq!(ask(&stranger, "").await.status, 404);
    for path in [
        "/v1/tasks",
        "/v1/models",
        "/v1/variants",
        "/v1/tasks/fashion",
        "/v2/models",
        "/v1/tasks/fashion/explain",
    ] {
        let got = with_key(&world, "GET", path, friend.expose(), b"{}").await;
        let text = String::from_utf8_lossy(&got.body).into_owned();
        assert!(
            got.status == 200
                && !text.contains("large\"")
                && !text.contains("large-")
                && !text.contains("arrays"),
            "{path}: {text}"
        );
    }
    for (method, path) in [
        ("DELETE", "/v1/models/fashion/small"),
        ("DELETE", "/v1/tasks/fashion"),
        ("PATCH", "/v1/models/fashion/small"),
        ("POST", "/v1/models/fashion/small/promote"),
        ("POST", "/v1/models/fashion/small/rollback"),
        ("POST", "/v1/variants/fashion/small-fp32/unflag"),
        ("GET", "/v1/tasks/fashion/trial"),
        ("POST", "/v1/tasks/fashion/trial"),
        ("DELETE", "/v1/tasks/fashion/trial"),
    ] {
        let body = match path.rsplit('/').next() {
            Some("promote") => json!({"version": 1}),
            Some("unflag") => json!({"reason": "x"}),
            Some("trial") => json!({"model": "small", "version": 1, "share": 0.1}),
            _ if method == "PATCH" => json!({"visibility": "public"}),
            _ => json!({}),
        };
        let got = with_key(&world, method, path, friend.expose(), body.to_string().as_bytes()).await;
        assert_eq!(refusal(&got), (403, "not_yours".to_owned()), "{method} {path}: {got:?}");
    }
    assert!(world.store.catalog().await.unwrap().models.iter().any(|model| model.id == small));
    let shown = with_key(&world, "GET", "/v1/models/fashion/small", all.expose(), b"").await.json();
    assert_eq!(shown["sharing"], json!({"visibility": "shared", "tenants": ["friend"]}));
    let shown = with_key(&world, "GET", "/v1/models/fashion/small", friend.expose(), b"").await.json();
    assert_eq!(shown["sharing"], Value::Null, "with whom else is not told");
    assert_eq!(shown["history"], Value::Null, "nor who promoted what");
    let flags = with_key(&world, "GET", "/v1/variants/fashion/small-fp32/flags", friend.expose(), b"").await;
    assert_eq!(refusal(&flags), (403, "not_yours".to_owned()));
    let verdict = format!("/v1/queries/{}/feedback", best.header("modelless-query-id"));
    let got = with_key(&world, "POST", &verdict, friend.expose(), br#"{"verdict":"wrong"}"#).await;
    assert_eq!(
        refusal(&got),
        (403, "not_yours".to_owned()),
        "a verdict may take it out of the owner's floors"
    );
    let got = with_key(&world, "POST", &verdict, stranger.expose(), br#"{"verdict":"wrong"}"#).await;
    assert_eq!(refusal(&got).0, 410, "a stranger does not learn what answered");
    let count = async |key: &SecretKey| {
        let got = with_key(&world, "GET", "/v2/models/fashion/stats", key.expose(), b"").await.json();
        let all = got["model_stats"].as_array().unwrap().iter();
        all.map(|entry| entry["inference_count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((count(&friend).await, count(&all).await), (1, 1), "each sees how much itself asks");
}

#[tokio::test]
async fn how_often_a_shared_model_ran_is_for_its_owner() {
    let (world, all, _) = locked().await;
    let fashion = world.store.catalog().await.unwrap().tasks[0].id;
    world.store.share_model(fashion, "small", Visibility::Public).await.unwrap();
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    let other = made(&world, tenant, Scopes::ALL).await;
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    world.status.send_modify(|status| {
        for offer in &mut status.info.offers {
            offer.run.coverage = Coverage { batches: 7, above: 1 };
        }
        status.replicas = vec![super::world::replica(1, ReplicaState::Active, 7_777)];
    });
    let run = world.run().await;
    run.with_connection(move |mut connection| {
        let mut shown = |key: &SecretKey| {
            let request = modelless_testkit::Request::get("/v1/variants").header("api-key", key.expose());
            connection.exchange(&request).map(|answer| answer.text())
        };
        modelless_testkit::wait::until(std::time::Duration::from_secs(10), || {
            let shown = shown(&all)?;
            Ok(if shown.contains("\"batches\":7") { Ok(()) } else { Err(shown) })
        })
        .unwrap();
        let shown = shown(&other).unwrap();
        assert!(shown.contains("small-fp32") && shown.contains("\"coverage\":null"), "{shown}");
        assert!(!shown.contains("batches\":7"), "{shown}");
        let mut memory = |key: &SecretKey| {
            let request = modelless_testkit::Request::get("/v2/models/fashion/versions/1/stats");
            let answer = connection.exchange(&request.header("api-key", key.expose())).unwrap();
            answer.json().unwrap()["model_stats"][0]["memory_usage"].clone()
        };
        assert_eq!(memory(&all)[0]["byte_size"], 7_777);
        assert_eq!(memory(&other), json!([]), "how much of it is in memory goes by how much is asked");
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn what_changes_something_is_noted_with_who_asked_and_what_came_of_it() {
    let (world, all, _) = locked().await;
    let tenant = world.store.create_tenant("other").await.unwrap().id;
    let other = made(&world, tenant, Scopes::ALL).await;
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let run = world.run().await;
    run.with_connection(move |mut connection| {
        let mut ask = |method: &str, path: &str, key: &SecretKey| {
            let request = modelless_testkit::Request::new(method, path).header("api-key", key.expose());
            connection.exchange(&request).unwrap()
        };
        assert_eq!(ask("GET", "/v1/tasks", &all).status, 200);
        assert_eq!(ask("DELETE", "/v1/models/fashion/small", &all).status, 200);
        assert_eq!(ask("DELETE", "/v1/tasks/arrays", &other).status, 404);
        // A whole key where its name belongs.
        let misplaced = ask("DELETE", &format!("/v1/keys/{}", other.expose()), &all);
        assert!(
            misplaced.status == 404 && !misplaced.to_string().contains(&other.expose()[16..]),
            "{misplaced}"
        );
        let entries = modelless_testkit::wait::until(std::time::Duration::from_secs(10), || {
            let entries = ask("GET", "/v1/audit", &all).json()?["entries"].take();
            let all = entries.as_array().is_some_and(|all| all.len() == 3);
            Ok(if all { Ok(entries) } else { Err(entries.to_string()) })
        })
        .unwrap();
        assert_eq!(
            (&entries[2]["status"], &entries[2]["target"]),
            (&json!(200), &json!("/v1/models/fashion/small: version 1"))
        );
        assert_eq!(entries[2]["action"], "DELETE /v1/models/{task}/{model}");
        assert!(entries[2]["who"].as_str().unwrap().starts_with(&all.expose()[..12]), "{entries}");
        assert_eq!((&entries[1]["tenant"], &entries[1]["status"]), (&json!("other"), &json!(404)));
        let own = ask("GET", "/v1/audit?limit=5", &other).json().unwrap();
        assert_eq!(own["entries"].as_array().unwrap().len(), 1, "a tenant sees its own: {own}");
        assert_eq!(entries[0]["target"], format!("/v1/keys/{}...", &other.expose()[..12]));
        let secret = |key: &SecretKey| entries.to_string().contains(&key.expose()[16..]);
        assert!(!secret(&all) && !secret(&other), "no secret");
    })
    .await;
    run.stop().await;
}

/// The log's entries once they are as wanted, newest first.
pub(super) fn noted(
    connection: &mut modelless_testkit::Connection,
    key: &SecretKey,
    wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    modelless_testkit::wait::until(std::time::Duration::from_secs(10), || {
        let request = modelless_testkit::Request::get("/v1/audit?limit=1000").header("api-key", key.expose());
        let entries = connection.exchange(&request)?.json()?["entries"].take();
        let entries = entries.as_array().cloned().unwrap_or_default();
        Ok(if wanted(&entries) { Ok(entries) } else { Err(format!("{} entries", entries.len())) })
    })
    .unwrap()
}

#[tokio::test]
async fn who_is_refused_for_want_of_a_right_is_noted_and_a_flood_of_it_in_part() {
    let (world, all, without) = locked().await;
    let asks = without.iter().find(|(scope, _)| *scope == Scope::Admin).unwrap().1.clone();
    let config = Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..Config::default() };
    let world = World::with(Setup { store: Some(world.store), config, ..Setup::default() }).await;
    let run = world.run().await;

    let address = format!("http://{}", run.addresses.grpc.unwrap());
    let channel = tonic::transport::Endpoint::try_from(address).unwrap().connect().await.unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(ModelName { name: "fashion".to_owned(), ..Default::default() });
    request.metadata_mut().insert("api-key", asks.expose().parse().unwrap());
    let path = http::uri::PathAndQuery::from_static("/inference.GRPCInferenceService/RepositoryModelUnload");
    let refused: Result<tonic::Response<ModelMetadata>, _> =
        grpc.unary(request, path, ProstCodec::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);

    run.with_connection(move |mut connection| {
        let mut ask = |method: &str, path: &str, key: &str| {
            let request = modelless_testkit::Request::new(method, path).header("api-key", key);
            connection.exchange(&request).unwrap().status
        };
        assert_eq!(ask("DELETE", "/v1/keys/1", asks.expose()), 403);
        assert_eq!(ask("DELETE", "/v1/models/fashion/small", all.expose()), 200);
        assert_eq!(ask("GET", "/v1/tasks", "mlk_nobody"), 401, "what only asks is not noted");
        for _ in 0..300 {
            assert_eq!(ask("GET", "/v1/keys", "mlk_nobody"), 401);
        }
        let entries = noted(&mut connection, &all, |entries| entries.len() == 63);
        let of =
            |status: u16| entries.iter().filter(move |entry| entry["status"] == status).collect::<Vec<_>>();
        let (denied, unknown) = (of(403), of(401));
        assert_eq!((denied.len(), unknown.len(), of(200).len()), (2, 60, 1));
        assert_eq!(denied[0]["action"], "DELETE /v1/keys/{key}");
        assert_eq!((&denied[0]["tenant"], &denied[0]["target"]), (&json!("default"), &json!("/v1/keys/1")));
        assert!(denied[0]["who"].as_str().unwrap().starts_with(&asks.expose()[..12]), "{denied:?}");
        assert_eq!(denied[1]["action"], "gRPC RepositoryModelUnload", "with the status that HTTP has");
        assert_eq!((&unknown[0]["tenant"], &unknown[0]["who"]), (&Value::Null, &json!("unknown_key")));
        assert!(!json!(entries).to_string().contains("mlk_nobody"), "nothing of what was presented");
    })
    .await;
    run.stop().await;
}
