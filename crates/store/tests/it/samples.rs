//! Things to store.

use modelless_store::{
    NewModel, NewNode, NewTask, NewTransition, NewVariant, Replica, Signed, Store, UnixMicros,
};
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, BatchPoint, Batching, Bytes, DType, Engine, Goals, Micros,
    Prefer, PricePerHour, Profile, Provenance, ReplicaState, StageTime, Task, TaskId, TaskKind, TenantId,
    TensorSpec, VariantSettings,
};

pub(crate) const CPU: &str = "cpu:amd-epyc:2";

pub(crate) fn task(name: &str) -> NewTask {
    NewTask {
        tenant: TenantId::DEFAULT,
        name: name.to_owned(),
        kind: TaskKind::ImageClassification,
        metric: "top-1".to_owned(),
        accuracy_rule: AccuracyRule::LowerBound,
        live_accuracy: modelless_types::LiveRule::Floors,
        declared_accuracy: modelless_types::DeclaredRule::default(),
        labels: vec!["Größe \"42\"".to_owned(), "ブーツ".to_owned(), "bag".to_owned()],
        inputs: Vec::new(),
        outputs: Vec::new(),
        space: None,
        defaults: Goals {
            accuracy: Accuracy::parse_floor("0.9155"),
            latency: Some(Micros(12_500)),
            prefer: Some(Prefer::Cost),
            ..Goals::default()
        },
        batching: Some(Batching::Fixed { size: 16, wait: Micros(2_500) }),
        cache: modelless_types::CacheFor::seconds(90).unwrap(),
        keep: modelless_types::KeepFor::seconds(600).unwrap(),
        ahead: modelless_types::Ahead::default(),
        description: "What is worn\nin the picture.".to_owned(),
    }
}

pub(crate) fn tensor_task(name: &str) -> NewTask {
    let tensor = |name: &str, shape: &[u32]| TensorSpec {
        name: name.to_owned(),
        dtype: DType::Fp32,
        shape: shape.to_vec(),
    };
    NewTask {
        kind: TaskKind::Tensor,
        labels: Vec::new(),
        inputs: vec![tensor("x", &[1, 28, 28])],
        outputs: vec![tensor("y", &[10])],
        batching: None,
        ..task(name)
    }
}

pub(crate) fn model(task: TaskId, name: &str, variants: &[&str]) -> NewModel {
    NewModel {
        task,
        tenant: TenantId::DEFAULT,
        name: name.to_owned(),
        version: 1,
        architecture: "cnn".to_owned(),
        licence: "Apache-2.0".to_owned(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter: r#"{"resize": {"shortest": 28}, "mean": [0.2860]}"#.to_owned(),
        variants: variants.iter().map(|name| variant(name)).collect(),
    }
}

pub(crate) fn variant(name: &str) -> NewVariant {
    NewVariant {
        name: name.to_owned(),
        settings: VariantSettings { threads: 2, ..VariantSettings::new(Engine::Onnx, "int8", 32) },
        artefact: "0123456789abcdef".repeat(4),
        artefact_bytes: Bytes(1_234_567),
        profiles: vec![profile(CPU)],
    }
}

/// With floats whose text is easily read back one step off.
pub(crate) fn profile(device_class: &str) -> Profile {
    let measure = AccuracyMeasure {
        value: Accuracy::measured(1_869, 2_000).unwrap(),
        low: Accuracy::measured(923, 1_000).unwrap(),
        high: Accuracy::measured(944, 1_000).unwrap(),
        samples: 2_000,
        set: "fashion-mnist/sample".to_owned(),
        provenance: Provenance::Measured,
        device_class: device_class.to_owned(),
        command: "cargo xtask measure accuracy".to_owned(),
    };
    let floats =
        [0.1 + 0.2, 1.0 / 3.0, f64::MIN_POSITIVE / 8.0, 9_007_199_254_740_993.0, 31.245_270_191_439_438];
    Profile {
        device_class: device_class.to_owned(),
        latency: (1..)
            .zip(floats)
            .map(|(batch, us)| BatchPoint {
                batch,
                mean_us: us,
                var_us2: us * 0.7,
                p99_us: us * 1.1,
                samples: 50,
            })
            .collect(),
        latency_provenance: Provenance::Measured,
        decode: StageTime { mean_us: 310.1, var_us2: 0.1 + 0.7, samples: 9 },
        prepare: StageTime { mean_us: 1.0 / 7.0, var_us2: 0.0, samples: 0 },
        memory: Bytes::from_mib(37),
        peak: None,
        load_time: Micros(41_000),
        also: vec![AccuracyMeasure { samples: 10_000, ..measure.clone() }],
        detail: modelless_types::Detail::default(),
        accuracy: measure,
    }
}

pub(crate) fn node(name: &str) -> NewNode {
    NewNode {
        name: name.to_owned(),
        pool: "default".to_owned(),
        zone: "local".to_owned(),
        device_class: CPU.to_owned(),
        lanes: 2,
        memory: Bytes::from_mib(2_048),
        price: PricePerHour(40_000),
    }
}

pub(crate) fn change(replica: &Replica, from: ReplicaState, to: ReplicaState, at: u64) -> NewTransition {
    NewTransition {
        replica: replica.id,
        from,
        to,
        cause: "first query of its class".to_owned(),
        who: "worker of node a".to_owned(),
        at: UnixMicros(at),
    }
}

/// Moves a replica along, one microsecond a step from `at`.
pub(crate) async fn walk(store: &dyn Store, replica: &Replica, states: &[ReplicaState], at: u64) {
    for (step, at) in states.windows(2).zip(at..) {
        store.record_transition(change(replica, step[0], step[1], at)).await.expect("a step");
    }
}

pub(crate) async fn a_task(store: &dyn Store) -> Task {
    store.create_task(task("fashion")).await.expect("a task")
}
