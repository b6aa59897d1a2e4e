//! What the audit log says of what was done: to which key, tenant, model or task, whichever way it was asked.

use super::access::{locked, noted};
use super::world::{Running, Setup, World, replica};
use crate::Config;
use http::uri::PathAndQuery;
use modelless_oip::messages::{Empty, RepositoryChoice, RepositoryParameter, RepositoryRequest};
use modelless_testkit::Request;
use modelless_types::ReplicaState;
use modelless_wire::ToNode;
use serde_json::{Value, json};
use tonic::Code;
use tonic_prost::ProstCodec;

/// Method with target, and status, oldest first.
fn told(entries: &[Value]) -> Vec<(String, u64)> {
    let word = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
    let one = |entry: &Value| {
        let method = word(entry, "action").split(' ').next().unwrap().to_owned();
        (format!("{method} {}", word(entry, "target")), entry["status"].as_u64().unwrap())
    };
    entries.iter().rev().map(one).collect()
}

#[tokio::test]
async fn the_audit_log_says_which_key_tenant_limits_and_model_it_was() {
    let (world, all, _) = locked().await;
    let run = world.run().await;
    run.with_connection(move |mut connection| {
        let mut ask = |method: &str, path: &str, body: Value| {
            let request = Request::new(method, path).header("api-key", all.expose()).json(&body);
            connection.exchange(&request).unwrap()
        };
        assert_eq!(ask("POST", "/v1/tenants", json!({"name": "team-a"})).status, 201);
        let new = json!({"name": "ann", "tenant": "team-a", "app": "shop", "scopes": ["query", "register"]});
        let made = ask("POST", "/v1/keys", new).json().unwrap();
        let nobody = json!({"name": "ann", "tenant": "team b", "scopes": ["admin"]});
        assert_eq!(ask("POST", "/v1/keys", nobody).status, 404);
        let turned = ask("POST", "/v1/keys/5/rotate", json!({"overlap_s": 60})).json().unwrap();
        assert_eq!(ask("DELETE", "/v1/keys/5", json!({})).status, 200);
        let quota = json!({"quota": {"requests_per_s": 100, "concurrency": 20}});
        assert_eq!(ask("PATCH", "/v1/tenants/team-a", quota).status, 200);
        let none = json!({"app": "shop", "quota": {}});
        assert_eq!(ask("PATCH", "/v1/tenants/team-a", none).status, 200);
        let model = "/v1/models/fashion/small";
        for with in [json!({"visibility": "shared", "tenants": ["team-a"]}), json!({"visibility": "public"})]
        {
            assert_eq!(ask("PATCH", model, with).status, 200);
        }
        assert_eq!(ask("PATCH", "/v1/tasks/fashion", json!({"cache": "10m"})).status, 200);
        let new = json!({"name": "tones", "kind": "image-classification", "labels": ["a", "b"]});
        assert_eq!(ask("POST", "/v1/tasks", new).status, 201);
        assert_eq!(ask("POST", &format!("{model}/promote"), json!({"version": 7})).status, 404);

        let entries = noted(&mut connection, &all, |entries| entries.len() == 12);
        let (first, second) = (made["prefix"].as_str().unwrap(), turned["new"]["prefix"].as_str().unwrap());
        let key = format!("key 5, {first} (ann), tenant team-a, application shop, scopes query,register");
        let wanted = [
            ("POST /v1/tenants: tenant team-a".to_owned(), 201),
            (format!("POST /v1/keys: {key}"), 201),
            (
                r#"POST /v1/keys: key (ann), tenant "team b", application default, scopes admin"#.to_owned(),
                404,
            ),
            (format!("POST /v1/keys/5/rotate: {key}; key 6, {second}, in its place, both for 60 s"), 200),
            (format!("DELETE /v1/keys/5: {key}"), 200),
            ("PATCH /v1/tenants/team-a: concurrency 20, requests_per_s 100".to_owned(), 200),
            ("PATCH /v1/tenants/team-a: application shop, no bounds".to_owned(), 200),
            (format!("PATCH {model}: shared with team-a"), 200),
            (format!("PATCH {model}: public"), 200),
            ("PATCH /v1/tasks/fashion: cache 10m".to_owned(), 200),
            ("POST /v1/tasks: task tones, image-classification".to_owned(), 201),
            (format!("POST {model}/promote: version 7"), 404),
        ];
        assert_eq!(told(&entries), wanted);
        let secret =
            |key: &Value| json!(entries).to_string().contains(&key["secret"].as_str().unwrap()[16..]);
        assert!(!secret(&made) && !secret(&turned), "no secret");
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn what_was_unloaded_over_grpc_is_told_with_task_and_version_and_the_status_that_http_has() {
    let (world, all, _) = locked().await;
    let config = Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..Config::default() };
    let world = World::with(Setup { store: Some(world.store), config, ..Setup::default() }).await;
    let run = world.run().await;
    let address = format!("http://{}", run.addresses.grpc.unwrap());
    let channel = tonic::transport::Endpoint::try_from(address).unwrap().connect().await.unwrap();
    let unload = async |task: &str, version: Option<&str>| {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let text = |version: &str| RepositoryChoice::Text(version.to_owned());
        let parameter = |version| RepositoryParameter { choice: Some(text(version)) };
        let parameters = version.map(|version| ("version".to_owned(), parameter(version)));
        let mut request = tonic::Request::new(RepositoryRequest {
            model_name: task.to_owned(),
            parameters: parameters.into_iter().collect(),
            ..RepositoryRequest::default()
        });
        request.metadata_mut().insert("api-key", all.expose().parse().unwrap());
        let path = PathAndQuery::from_static("/inference.GRPCInferenceService/RepositoryModelUnload");
        let answer: Result<tonic::Response<Empty>, _> =
            grpc.unary(request, path, ProstCodec::default()).await;
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(unload("fashion", None).await, Code::Ok);
    assert_eq!(unload("fashion", Some("99")).await, Code::NotFound);
    assert_eq!(unload("no task", None).await, Code::NotFound);
    let http = Request::post("/v2/repository/models/fashion/unload").header("api-key", all.expose());
    let http = http.json(&json!({"parameters": {"version": "99"}}));
    run.with_connection(move |mut connection| {
        assert_eq!(connection.exchange(&http).unwrap().status, 404);
        let entries = noted(&mut connection, &all, |entries| entries.len() == 4);
        let grpc = "gRPC /inference.GRPCInferenceService/RepositoryModelUnload";
        let wanted = [
            (format!("{grpc}: task fashion"), 200),
            (format!("{grpc}: task fashion, version 99"), 404),
            (format!(r#"{grpc}: task "no task""#), 404),
            ("POST /v2/repository/models/fashion/unload: version 99".to_owned(), 404),
        ];
        assert_eq!(told(&entries), wanted);
    })
    .await;
    run.stop().await;
}

/// Until the node was told to unload something.
async fn told_to_unload(run: &mut Running) {
    while !matches!(run.seen.recv().await.expect("a node"), ToNode::Unload { .. }) {}
}

#[tokio::test]
async fn what_was_done_for_a_client_that_went_away_is_told_all_the_same() {
    let (world, all, _) = locked().await;
    let config = Config { grpc: Some(([127, 0, 0, 1], 0).into()), ..Config::default() };
    // It never leaves memory here, so that whoever unloads it waits.
    let replicas = vec![replica(1, ReplicaState::Active, 1_000)];
    let world = World::with(Setup { store: Some(world.store), config, replicas, ..Setup::default() }).await;
    let mut run = world.run().await;

    let body = r#"{"parameters": {"version": "1"}}"#;
    let head = format!(
        "POST /v2/repository/models/fashion/unload HTTP/1.1\r\nhost: x\r\napi-key: {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        all.expose(),
        body.len()
    );
    let asked = move |mut connection: modelless_testkit::Connection| {
        connection.send_raw(head.as_bytes()).unwrap();
        connection
    };
    let gone = run.with_connection(asked).await;
    told_to_unload(&mut run).await;
    drop(gone);

    let channel = tonic::transport::Endpoint::try_from(format!("http://{}", run.addresses.grpc.unwrap()));
    let mut grpc = tonic::client::Grpc::new(channel.unwrap().connect().await.unwrap());
    grpc.ready().await.unwrap();
    let asked = RepositoryRequest { model_name: "fashion".to_owned(), ..RepositoryRequest::default() };
    let mut request = tonic::Request::new(asked);
    request.metadata_mut().insert("api-key", all.expose().parse().unwrap());
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/RepositoryModelUnload");
    tokio::select! {
        got = grpc.unary::<_, Empty, _>(request, path, ProstCodec::default()) => panic!("it is in memory: {got:?}"),
        () = told_to_unload(&mut run) => {}
    }

    run.with_connection(move |mut connection| {
        let entries = noted(&mut connection, &all, |entries| entries.len() == 2);
        let gone = "its client went away before it was answered; it may have been done";
        let mut wanted = [
            (format!("POST /v2/repository/models/fashion/unload: version 1; {gone}"), 499),
            (
                format!("gRPC /inference.GRPCInferenceService/RepositoryModelUnload: task fashion; {gone}"),
                499,
            ),
        ];
        let mut told = told(&entries);
        told.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(told, wanted);
    })
    .await;
    run.stop().await;
}
