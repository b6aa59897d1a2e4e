//! What Triton's statistics say of requests, of the queries in them and of their batches.

use super::oip::{ARRAYS, asked, binary, echoing, floats};
use super::world::{Does, PNG, Setup, World, replica, send};
use axum::body::Body;
use http::Request;
use modelless_types::{Refusal, ReplicaState};
use serde_json::{Value, json};

/// Of the only variant of `arrays`, and of what failed.
async fn stats(world: &World) -> (Value, Value) {
    let mut all = world.get("/v2/models/arrays/stats").await.json()["model_stats"].take();
    (all[0].take(), all.get_mut(1).map(Value::take).unwrap_or_default())
}

fn counts(stats: &Value, names: &[&str]) -> Vec<u64> {
    names.iter().map(|name| stats["inference_stats"][*name]["count"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_request_of_many_rows_is_one_success_and_as_many_inferences() {
    let world = echoing(Setup::default()).await;
    for rows in [6, 1, 2] {
        assert_eq!(binary(&world, ARRAYS, &asked(rows), &floats(rows)).await.status, 200);
    }
    let (stats, failed) = stats(&world).await;
    let (inferences, executions) = (&stats["inference_count"], &stats["execution_count"]);
    assert_eq!(
        (inferences, executions),
        (&json!(9), &json!(3)),
        "the node says that they were in batches of three"
    );
    assert_eq!(counts(&stats, &["success", "queue", "fail"]), [3, 3, 0]);
    // perf_analyzer goes no further where these differ.
    assert_eq!(counts(&stats, &["compute_input", "compute_infer", "compute_output"]), [3; 3]);
    assert_eq!(stats["inference_stats"]["compute_infer"]["ns"], 3 * 700_000, "each took one run of 0.7 ms");
    let of = |ns: u64| json!({"count": 3, "ns": ns});
    let batches = json!([{"batch_size": 3, "compute_input": of(3 * 45_000), "compute_infer": of(3 * 700_000),
        "compute_output": of(0)}]);
    assert_eq!((&stats["batch_stats"], failed), (&batches, Value::Null));
    world.get("/metrics").await;
    let metrics = world.metrics.encode();
    for line in [
        r#"nv_inference_request_success{model="arrays",version="3"} 3"#,
        r#"nv_inference_count{model="arrays",version="3"} 9"#,
        r#"nv_inference_compute_infer_duration_us{model="arrays",version="3"} 2100"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn a_request_that_fails_is_one_failure_however_many_rows_it_has_and_its_time_is_told() {
    let world = echoing(Setup::default()).await;
    *world.node.does.lock().unwrap() = Does::Refuse(Refusal::OverQuota);
    assert_eq!(binary(&world, ARRAYS, &asked(9), &floats(9)).await.status, 429);
    assert_eq!(world.post(ARRAYS, "", b"no request").await.status, 400);
    let (stats, failed) = stats(&world).await;
    assert_eq!(counts(&stats, &["success", "fail"]), [0, 0]);
    assert_eq!((&failed["version"], counts(&failed, &["success", "fail"])), (&json!("0"), vec![0, 2]));
    assert!(failed["inference_stats"]["fail"]["ns"].as_u64().is_some_and(|ns| ns > 0), "{failed}");
    world.get("/metrics").await;
    let metrics = world.metrics.encode();
    for (reason, count) in [("REJECTED", 1), ("CANCELED", 0), ("OTHER", 1)] {
        let line = format!(
            r#"nv_inference_request_failure{{model="arrays",version="0",reason="{reason}"}} {count}"#
        );
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn whoever_goes_away_has_had_one_request_that_was_cancelled() {
    let mut world = echoing(Setup::default()).await;
    *world.node.does.lock().unwrap() = Does::Keep;
    for target in [ARRAYS, "/v1/tasks/fashion"] {
        let json =
            json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": vec![0.5; 8]}]});
        let body = if target == ARRAYS { json.to_string().into_bytes() } else { PNG.to_vec() };
        let media = if target == ARRAYS { "application/json" } else { "image/png" };
        let request = Request::post(target).header("content-type", media).body(Body::from(body)).unwrap();
        let asking = send(world.router(), request);
        tokio::select! {
            got = asking => panic!("nobody answers: {got:?}"),
            frame = world.seen.recv() => assert!(frame.is_some()),
        }
        while world.seen.try_recv().is_ok() {}
    }
    world.get("/metrics").await;
    let metrics = world.metrics.encode();
    for task in ["arrays", "fashion"] {
        let line =
            format!(r#"nv_inference_request_failure{{model="{task}",version="0",reason="CANCELED"}} 1"#);
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn memory_is_what_replicas_take_that_are_there() {
    let replicas = vec![
        replica(3, ReplicaState::Active, 1_000),
        replica(3, ReplicaState::Overloaded, 500),
        replica(3, ReplicaState::Loading, 20),
        replica(3, ReplicaState::Inactive, 3),
        replica(1, ReplicaState::Active, 4),
    ];
    let world = echoing(Setup { replicas, ..Setup::default() }).await;
    let (stats, _) = stats(&world).await;
    assert_eq!(stats["memory_usage"], json!([{"type": "CPU", "id": 0, "byte_size": 1_500}]));
    let none = world.get("/v2/models/fashion/versions/2/stats").await.json();
    assert_eq!(none["model_stats"][0]["memory_usage"], json!([]));
}
