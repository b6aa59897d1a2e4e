use super::world::{NODE, PNG, World};
use crate::Config;
use crate::ids::QueryId;
use crate::openapi::document;
use crate::routes::ROUTES;
use http::Method;
use modelless_store::{Access as _, NewNode, NewTransition, Store, UnixMicros};
use modelless_types::{Bytes, DeviceIx, Micros, PricePerHour, ReplicaState, TenantId, VariantId};
use modelless_wire::{LoadTimes, NodeLoad, ReplicaStatus};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[tokio::test]
async fn every_documented_route_is_served_and_every_served_one_documented() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let documented: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let served: BTreeSet<(String, String)> =
        ROUTES.iter().map(|route| (route.method.to_string(), route.path.to_owned())).collect();
    assert_eq!(documented, served);
    assert_eq!(served.len(), ROUTES.len(), "no route stands there twice");
    for (method, path) in documented {
        let path = path.replace("{task}", "fashion").replace("{model}", "nothing-of-that-name");
        let got = world.ask(Method::from_bytes(method.as_bytes()).unwrap(), &path, "", b"").await;
        let unserved = got.status == 405 || (got.status == 404 && got.json()["reason"] == "unknown_path");
        assert!(!unserved, "{method} {path}: {got:?}");
    }
}

#[tokio::test]
async fn what_is_not_served_is_a_404_or_a_405_that_says_what_is() {
    let world = World::new().await;
    for path in ["/", "/v1", "/v1/tasks/", "/v1/tasks/fashion/x", "/v1/tasks/a/b/c", "/v3"] {
        assert_eq!(world.get(path).await.refusal(), (404, "unknown_path".to_owned()), "{path}");
    }
    let got = world.get("/openai/v1/chat/completions").await;
    let error = got.json()["error"].clone();
    assert_eq!(
        (got.status.as_u16(), error["code"].as_str()),
        (404, Some("unknown_path")),
        "as its clients read it: {error}"
    );
    let got = world.ask(Method::PUT, "/v1/tasks/fashion", "", b"").await;
    assert_eq!(got.refusal(), (405, "method_not_allowed".to_owned()));
    assert_eq!(got.header("allow"), "GET, POST, PATCH, DELETE");
    let brew = Method::from_bytes(b"BREW").unwrap();
    assert_eq!(world.ask(brew, "/v2/health/live", "", b"").await.status, 405);
}

#[test]
fn all_references_in_the_document_lead_somewhere() {
    fn follow(document: &Value, at: &Value) {
        match at {
            Value::Object(fields) => {
                if let Some(to) = fields.get("$ref") {
                    let to = to.as_str().unwrap().strip_prefix('#').unwrap();
                    assert!(document.pointer(to).is_some(), "{to}");
                }
                fields.values().for_each(|value| follow(document, value));
            }
            Value::Array(items) => items.iter().for_each(|item| follow(document, item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = document(&Config::default());
    follow(&document, &document);
    assert_eq!(document["info"]["x-limits"]["max_body_bytes"], 32 << 20);
}

#[tokio::test]
async fn the_documents_examples_are_valid_requests() {
    let world = World::new().await;
    // Policies are said of applications that are there.
    world.store.app(TenantId::DEFAULT, "shop").await.unwrap();
    let document = document(&Config::default());
    for operation in modelless_testkit::openapi::operations(&document).unwrap() {
        let Some(body) = operation.body("application/json") else { continue };
        let sample = modelless_testkit::openapi::sample(&body.schema);
        let query = QueryId {
            variant: VariantId(1),
            at_unix_us: super::feedback::now(),
            number: 1,
            arm: None,
            label: None,
        };
        let query = world.handle.query_ids().issue(query);
        let path = operation
            .path
            .replace("{task}", "fashion")
            .replace("{query}", &query)
            .replace("{model}", "small")
            .replace("{variant}", "small-fp32")
            .replace("{version}", "2")
            .replace("{region}", "none")
            .replace("{job}", "1")
            .replace("{key}", "1")
            .replace("{tenant}", "default");
        let method = Method::from_bytes(operation.method.as_bytes()).unwrap();
        let got = world.ask(method, &path, "application/json", sample.to_string().as_bytes()).await;
        // Registering fails because the sample names a task that is not there, going back because there is nothing to go
        // back to, and neither for another reason.
        let expected: &[u16] = match path.as_str() {
            "/v1/models" | "/openai/v1/embeddings" | "/v1/tasks/fashion/trial" => &[404],
            // It is not switched on.
            path if path.starts_with("/v2/systemsharedmemory/") => &[501],
            // Where nobody needs a key there is none.
            "/v1/keys" => &[409],
            path if path.starts_with("/v1/keys/") => &[404],
            path if path.ends_with("/rollback") || path.ends_with("/unflag") => &[409],
            _ => &[200, 201],
        };
        assert!(expected.contains(&got.status.as_u16()), "{path} {sample}: {got:?}");
    }
}

#[tokio::test]
async fn a_task_is_shown_with_profiles_their_origin_and_the_frontier() {
    let world = World::new().await;
    let tasks = world.get("/v1/tasks").await.json();
    assert_eq!(tasks["tasks"][1]["name"], "fashion");
    assert_eq!(tasks["tasks"][1]["accuracy_to"], 0.95);
    assert_eq!(tasks["tasks"][1]["defaults"]["latency_ms"], 10_000.0);
    let task = world.get("/v1/tasks/fashion").await.json();
    let variants = task["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    assert!(
        variants.iter().all(|variant| variant["on_frontier"] == true),
        "one is faster, one more accurate"
    );
    let profile = &variants[0]["profiles"][0];
    assert_eq!(profile["latency"]["provenance"], "measured");
    assert_eq!(profile["latency"]["by_batch"][0]["mean_ms"], 1.0);
    assert_eq!(profile["accuracy"]["set"], "test-set");
    assert_eq!(profile["accuracy"]["interval"], json!([0.9, 0.9]));
    assert_eq!(profile["prepare"], Value::Null, "what was not measured is not zero");
    assert_eq!(variants[0]["estimate"]["resident_on"], json!(["node-a"]));
}

#[tokio::test]
async fn explanations_name_what_spoke_against_each_candidate() {
    let world = World::new().await;
    let by_query = world.get("/v1/tasks/fashion/explain?accuracy=0.94").await.json();
    let body = br#"{"goals": {"accuracy": 0.94}}"#;
    let by_body = world.post("/v1/tasks/fashion/explain", "application/json", body).await.json();
    for shown in [by_query, by_body] {
        let findings: Vec<(&str, &str)> = shown["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["variant"].as_str().unwrap(), c["finding"].as_str().unwrap()))
            .collect();
        assert_eq!(findings, [("large-fp32", "chosen"), ("small-fp32", "below_floor")]);
        assert_eq!(shown["decision"]["action"], "send");
        assert_eq!(shown["goals"]["prefer"], "accuracy");
    }
    let refused = world.get("/v1/tasks/fashion/explain?accuracy=0.99").await.json();
    assert_eq!(refused["decision"]["reason"], "floor_unreachable");
    assert_eq!(refused["decision"]["nearest"], json!({"accuracy": 0.95}));
    assert_eq!(refused["candidates"].as_array().unwrap().len(), 2);
    for (media, body, status) in [
        ("application/json", &b""[..], 400),
        ("application/json", b"[]", 400),
        ("application/json", br#"{"goals": {}, "shape": 1}"#, 400),
        ("image/png", PNG, 415),
        ("", b"", 200),
    ] {
        assert_eq!(world.post("/v1/tasks/fashion/explain", media, body).await.status, status, "{media}");
    }
}

#[tokio::test]
async fn models_variants_nodes_and_replicas_are_shown() {
    let mut world = World::new().await;
    assert_eq!(world.get("/v1/models?task=fashion").await.json()["models"].as_array().unwrap().len(), 2);
    assert_eq!(world.get("/v1/variants").await.json()["variants"].as_array().unwrap().len(), 3);
    let model = world.get("/v1/models/fashion/small").await.json();
    assert_eq!(model["versions"][0]["adapter"], json!({"layout": "nchw"}));
    assert_eq!(model["versions"][0]["variants"].as_array().unwrap().len(), 1);
    for target in
        ["/v1/models?tsk=fashion", "/v1/replicas?transitions=x", "/v1/replicas?transitions=1&transitions=2"]
    {
        assert_eq!(world.get(target).await.refusal(), (400, "malformed".to_owned()), "{target}");
    }
    assert_eq!(world.get("/v1/models?task=x").await.status, 404);

    let about = NewNode {
        name: "node-a".to_owned(),
        pool: "default".to_owned(),
        zone: "here".to_owned(),
        device_class: "cpu".to_owned(),
        lanes: 1,
        memory: Bytes(1),
        price: PricePerHour(1),
    };
    let node = world.store.register_node(about, UnixMicros(5)).await.unwrap();
    assert_eq!(node.id, NODE);
    let replica = world.store.add_replica(VariantId(1), NODE, DeviceIx(0)).await.unwrap();
    let change = NewTransition {
        replica: replica.id,
        from: ReplicaState::Inactive,
        to: ReplicaState::Loading,
        cause: "a query could not wait".to_owned(),
        who: "worker".to_owned(),
        at: UnixMicros(9),
    };
    world.store.record_transition(change).await.unwrap();
    world.status.send_modify(|status| {
        status.load = NodeLoad { lanes_busy: 1, queued: 4, crashes: 2, ..NodeLoad::default() };
        status.replicas.push(ReplicaStatus {
            device: DeviceIx(0),
            variant: VariantId(1),
            state: ReplicaState::Loading,
            memory: Bytes(7),
            slowdown: None,
            cause: "a query could not wait".to_owned(),
            loads: LoadTimes { count: 2, cold: Some(Micros(9_000)), warm: None },
            signs: None,
        });
    });
    world = {
        let run = world.run().await;
        let shown = loop {
            let shown = run
                .with_connection(|mut connection| {
                    connection
                        .exchange(&modelless_testkit::Request::get("/v1/replicas"))
                        .unwrap()
                        .json()
                        .unwrap()
                })
                .await;
            if shown["replicas"].as_array().is_some_and(|all| !all.is_empty()) {
                break shown;
            }
        };
        assert_eq!(shown["replicas"][0]["variant"], "small-fp32");
        assert_eq!(shown["replicas"][0]["task"], "fashion", "names of variants are unique in a task only");
        assert_eq!(shown["transitions"][0]["task"], "fashion");
        assert_eq!(shown["replicas"][0]["state"], "loading");
        assert_eq!(shown["replicas"][0]["loads"], json!({"count": 2, "cold_ms": 9.0, "warm_ms": null}));
        let transition = &shown["transitions"][0];
        assert_eq!(transition["who"], "worker");
        assert_eq!((&transition["from"], &transition["to"]), (&json!("inactive"), &json!("loading")));
        run.stop().await;
        World::new().await
    };
    let nodes = world.get("/v1/nodes").await.json();
    let node = &nodes["nodes"][0];
    assert_eq!((&node["price_provenance"], &node["price_source"]), (&json!("default"), &Value::Null));
    assert_eq!((&node["pool"], &node["zone"]), (&json!("default"), &json!("local")));
    for (part, names) in [
        ("load", &["lanes_busy", "queued", "running", "batches", "queries", "runner_crashes"][..]),
        ("hardware", &["cpu", "cores", "memory_bytes", "gpus"][..]),
    ] {
        for name in names {
            assert!(!node[part][name].is_null(), "{part}.{name} in {node}");
        }
    }
}

#[tokio::test]
async fn how_cautious_a_node_is_stands_beside_what_it_would_run() {
    let world = World::new().await;
    world.status.send_modify(|status| {
        status.replicas = vec![super::world::replica(1, ReplicaState::Active, 5)];
        status.caution = Some(1.7);
        status.info.rtt = modelless_decision::Moments::exactly(Micros(2_500));
    });
    let run = world.run().await;
    run.with_connection(|mut connection| {
        let mut shown = |path: &str| connection.exchange(&modelless_testkit::Request::get(path));
        modelless_testkit::wait::until(std::time::Duration::from_secs(10), || {
            let nodes = shown("/v1/nodes")?.json()?;
            let told = &nodes["nodes"][0]["caution"];
            Ok(if told == &json!(1.7) { Ok(()) } else { Err(nodes.to_string()) })
        })
        .unwrap();
        assert_eq!(shown("/v1/nodes").unwrap().json().unwrap()["nodes"][0]["way_ms"], json!(2.5));
        for (path, wanted) in [
            ("/v1/tasks/fashion/explain", "batches are taken to last 1.7 times as long"),
            ("/metrics", r#"modelless_node_caution_ratio{node="node-a"} 1.7"#),
        ] {
            let told = shown(path).unwrap();
            assert!(told.text().contains(wanted), "{told}");
        }
    })
    .await;
    run.status.send_modify(|status| status.caution = None);
    run.with_connection(|mut connection| {
        modelless_testkit::wait::until(std::time::Duration::from_secs(10), || {
            let told = connection.exchange(&modelless_testkit::Request::get("/v1/tasks/fashion/explain"))?;
            Ok(if told.text().contains("as long") { Err(told.to_string()) } else { Ok(()) })
        })
        .unwrap();
    })
    .await;
    run.stop().await;
}

#[tokio::test]
async fn metrics_count_answers_by_task_and_variant() {
    let world = World::new().await;
    for _ in 0..3 {
        world.post("/v1/tasks/fashion?accuracy=0.94", "image/png", PNG).await;
    }
    let got = world.get("/metrics").await;
    let text = String::from_utf8(got.body.to_vec()).unwrap();
    for line in [
        r#"modelless_queries_total{task="fashion",outcome="answered"} 3"#,
        r#"modelless_answers_in_time_total{task="fashion"} 3"#,
        r#"modelless_run_seconds_count{task="fashion",variant="large-fp32"} 3"#,
        r#"modelless_node_memory_used_bytes{node="node-a"} 20971520"#,
        "modelless_queries_open 0",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    assert!(got.header("content-type").starts_with("application/openmetrics-text"));
}
