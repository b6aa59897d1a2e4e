use super::*;
use crate::goals::{Got, Wanted};
use modelless_types::Accuracy;

#[test]
fn what_is_beyond_the_bound_of_a_label_is_counted_as_one() {
    let metrics = Metrics::new();
    for number in 0..TASKS_MOST + 3 {
        let task = metrics.task(&format!("t{number}"));
        task.cancelled();
        task.failed("cancelled", Micros(1));
    }
    for number in 0..203 {
        metrics.application("default", &format!("a{number}")).cancelled();
    }
    let text = metrics.encode();
    let shown = |line: &str| assert!(text.lines().any(|shown| shown == line), "{line}");
    shown(r#"modelless_queries_total{task="t499",outcome="cancelled"} 1"#);
    shown(r#"modelless_queries_total{task="(others)",outcome="cancelled"} 3"#);
    shown(
        r#"modelless_application_queries_total{tenant="default",application="a199",outcome="cancelled"} 1"#,
    );
    shown(
        r#"modelless_application_queries_total{tenant="(others)",application="(others)",outcome="cancelled"} 3"#,
    );
    shown(r#"nv_inference_request_failure{model="t499",version="0",reason="CANCELED"} 1"#);
    shown(r#"nv_inference_request_failure{model="(others)",version="0",reason="CANCELED"} 3"#);
    assert!(!text.contains("t500") && !text.contains("a200"));
}

#[test]
fn what_was_counted_is_shown_in_base_units() {
    let metrics = Metrics::new();
    let task = metrics.task("fashion");
    task.answered(Micros(2_000), true);
    task.answered(Micros(3_000_000), false);
    task.refused("too_late");
    task.refused("too_late");
    task.bad_input();
    let ran = Ran {
        queue: Micros(100),
        run: Micros(700),
        predicted: Micros(1_000),
        batch: 4,
        cost: CostPer1k(2_000_000_000),
    };
    metrics.variant("fashion", "cnn_m-fp32").answered(&ran);
    metrics.node("n").answered(Micros(300));
    let app = metrics.application("default", "shop");
    app.answered(Micros(2_000), true, (Micros(500_000), CostPer1k(1_000_000_000)));
    app.refused();
    let wanted =
        Wanted { latency: Some(Micros(4_000)), accuracy: Accuracy::from_ppm(900_000), max_cost: None };
    let got = Got { total: Micros(2_000), accuracy: Accuracy::from_ppm(905_000), cost: CostPer1k(1) };
    task.goals().answered(&wanted, &got);
    task.goals().refused(&wanted);
    task.admitted(Bytes(3_000));
    metrics.set_open(3, 7);
    metrics.node_lost("n", 2);
    metrics.node_lost("n", 3);
    let text = metrics.encode();
    for line in [
        r#"modelless_queries_total{task="fashion",outcome="answered"} 2"#,
        r#"modelless_refusals_total{task="fashion",reason="too_late"} 2"#,
        r#"modelless_answers_in_time_total{task="fashion"} 1"#,
        r#"modelless_query_seconds_bucket{le="0.002",task="fashion"} 1"#,
        r#"modelless_query_seconds_count{task="fashion"} 2"#,
        r#"modelless_run_seconds_sum{task="fashion",variant="cnn_m-fp32"} 0.0007"#,
        r#"modelless_batch_items_bucket{le="4.0",task="fashion",variant="cnn_m-fp32"} 1"#,
        r#"modelless_queries_lost_with_node_total{node="n"} 5"#,
        r#"modelless_run_over_predicted_ratio_bucket{le="0.7",task="fashion",variant="cnn_m-fp32"} 1"#,
        r#"modelless_cost_usd_total{task="fashion",variant="cnn_m-fp32"} 0.002"#,
        r#"modelless_node_answer_seconds_sum{node="n"} 0.0003"#,
        r#"modelless_application_queries_total{tenant="default",application="shop",outcome="answered"} 1"#,
        r#"modelless_application_queries_total{tenant="default",application="shop",outcome="refused"} 1"#,
        r#"modelless_application_device_seconds_total{tenant="default",application="shop"} 0.5"#,
        r#"modelless_application_cost_usd_total{tenant="default",application="shop"} 0.001"#,
        r#"modelless_goals_total{task="fashion",goal="latency",outcome="met"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="accuracy",outcome="missed"} 1"#,
        r#"modelless_goals_total{task="fashion",goal="cost",outcome="missed"} 0"#,
        r#"modelless_goal_latency_ratio_bucket{le="0.5",task="fashion"} 1"#,
        r#"modelless_goal_accuracy_margin_ratio_bucket{le="0.005",task="fashion"} 1"#,
        r#"modelless_goal_accuracy_margin_ratio_bucket{le="0.002",task="fashion"} 0"#,
        r#"modelless_input_bytes_sum{task="fashion"} 3000.0"#,
        "modelless_queries_waiting 3",
        "modelless_queries_open 7",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
}

#[test]
fn a_task_asked_for_twice_counts_on() {
    let metrics = Metrics::new();
    metrics.task("a").cancelled();
    metrics.task("a").cancelled();
    assert!(metrics.encode().contains(r#"modelless_queries_total{task="a",outcome="cancelled"} 2"#));
}

#[test]
fn replicas_that_are_gone_are_no_longer_shown() {
    let metrics = Metrics::new();
    let of = |task: &str| ReplicaGauge {
        task: task.to_owned(),
        variant: "cnn_m-fp32".to_owned(),
        state: "active",
        slowdown: Some(1.5),
    };
    let node = NodeGauges {
        node: "n".to_owned(),
        used: 5,
        queued: 3,
        caution: 1.7,
        crashes: 2,
        loads: 4,
        load_time: Micros(1_500_000),
        evictions: 1,
        replicas: vec![of("t"), of("t"), of("another")],
        coverage: vec![CoverageGauge {
            task: "t".to_owned(),
            variant: "cnn_m-fp32".to_owned(),
            batches: 200,
            above: 2,
        }],
        ..NodeGauges::default()
    };
    metrics.told(&Told { nodes: std::slice::from_ref(&node), ..Told::default() });
    let text = metrics.told(&Told { nodes: &[node], ..Told::default() });
    for line in [
        r#"modelless_node_queries_queued{node="n"} 3"#,
        r#"modelless_node_caution_ratio{node="n"} 1.7"#,
        r#"modelless_node_runner_crashes_total{node="n"} 2"#,
        r#"modelless_node_loads_total{node="n"} 4"#,
        r#"modelless_node_load_seconds_total{node="n"} 1.5"#,
        r#"modelless_node_evictions_total{node="n"} 1"#,
        r#"modelless_replica_slowdown{node="n",task="t",variant="cnn_m-fp32"} 1.5"#,
        r#"modelless_variant_batches_total{node="n",task="t",variant="cnn_m-fp32"} 200"#,
        r#"modelless_variant_batches_above_p99_total{node="n",task="t",variant="cnn_m-fp32"} 2"#,
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    assert!(
        text.contains(r#"modelless_replicas{node="n",task="t",variant="cnn_m-fp32",state="active"} 2"#),
        "{text}"
    );
    assert!(
        text.contains(r#"modelless_replica_slowdown{node="n",task="another",variant="cnn_m-fp32"} 1.5"#),
        "{text}"
    );
    assert!(text.contains(r#"modelless_node_memory_used_bytes{node="n"} 5"#), "{text}");
    let text = metrics.told(&Told::default());
    assert!(!text.contains("cnn_m-fp32") && !text.contains(r#"node="n""#), "{text}");
}

#[test]
fn who_asks_at_the_same_moment_is_told_the_same() {
    let metrics = Metrics::new();
    let batches =
        |task: &str| CoverageGauge { task: task.to_owned(), variant: "v".to_owned(), batches: 7, above: 0 };
    let node = NodeGauges {
        node: "n".to_owned(),
        coverage: (0..200).map(|task| batches(&task.to_string())).collect(),
        ..NodeGauges::default()
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let text = metrics.told(&Told { nodes: std::slice::from_ref(&node), ..Told::default() });
                    let told =
                        text.lines().filter(|line| line.starts_with("modelless_variant_batches_total{"));
                    assert_eq!(told.filter(|line| line.ends_with("} 7")).count(), 200);
                }
            });
        }
    });
}

#[test]
fn variants_of_nodes_have_so_many_series_and_no_more() {
    let metrics = Metrics::new();
    let replica = |number: usize| ReplicaGauge {
        task: "t".to_owned(),
        variant: number.to_string(),
        state: "inactive",
        slowdown: None,
    };
    let replicas = (0..VARIANTS_MOST + 10).map(replica).collect();
    let nodes = [NodeGauges { node: "n".to_owned(), replicas, ..NodeGauges::default() }];
    let text = metrics.told(&Told { nodes: &nodes, ..Told::default() });
    assert_eq!(
        text.lines().filter(|line| line.starts_with("modelless_replicas{")).count(),
        VARIANTS_MOST + 1
    );
    let others = r#"modelless_replicas{node="n",task="(others)",variant="(others)",state="inactive"} 10"#;
    assert!(text.contains(others), "{text}");
}
