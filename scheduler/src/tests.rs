use super::*;
use modelless_decision::Moments;
use modelless_decision::RunModel;
use modelless_decision::route::{NodeInfo, Offer, Ready};
use modelless_store::{MemStore, NewModel, NewTask, NewVariant};
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, BatchPoint, Bytes, Engine, Goals, Micros, PricePerHour, Profile,
    Provenance, StageTime, TaskKind, TenantId, Variant, VariantSettings,
};
use std::sync::Mutex;

#[derive(Default)]
struct Told(Mutex<Vec<Vec<(DeviceIx, VariantId)>>>);

impl NodeLink for Told {
    fn send(&self, frame: ToNode) {
        if let ToNode::Pin(pins) = frame {
            self.0.lock().unwrap().push(pins);
        }
    }
}

fn profile(ppm: u32, us: f64) -> Profile {
    let accuracy = Accuracy::from_ppm(ppm).unwrap();
    Profile {
        device_class: "cpu:test:2".into(),
        latency: vec![BatchPoint { batch: 1, mean_us: us, var_us2: 1.0, p99_us: us, samples: 10 }],
        latency_provenance: Provenance::Measured,
        decode: StageTime::default(),
        prepare: StageTime::default(),
        memory: Bytes::from_mib(10),
        peak: None,
        load_time: Micros::from_millis(5),
        accuracy: AccuracyMeasure {
            value: accuracy,
            low: accuracy,
            high: accuracy,
            samples: 100,
            set: "made up".into(),
            provenance: Provenance::Measured,
            device_class: "cpu:test:2".into(),
            command: "none".into(),
        },
        also: Vec::new(),
    }
}

fn variant(name: &str, ppm: u32, us: f64) -> NewVariant {
    NewVariant {
        name: name.into(),
        settings: VariantSettings::new(Engine::Onnx, "fp32", 8),
        artefact: "0".repeat(64),
        artefact_bytes: Bytes(1),
        profiles: vec![profile(ppm, us)],
    }
}

async fn store_with_ladder() -> (Arc<dyn Store>, Vec<Variant>) {
    let store: Arc<dyn Store> = Arc::new(MemStore::new());
    let task = NewTask {
        tenant: TenantId::DEFAULT,
        name: "t".into(),
        kind: TaskKind::ImageClassification,
        metric: "top-1".into(),
        accuracy_rule: AccuracyRule::default(),
        labels: vec!["a".into(), "b".into()],
        inputs: Vec::new(),
        outputs: Vec::new(),
        space: None,
        defaults: Goals::default(),
        batching: None,
        description: String::new(),
    };
    let task = store.create_task(task).await.unwrap();
    let model = NewModel {
        task: task.id,
        tenant: TenantId::DEFAULT,
        name: "m".into(),
        version: 1,
        architecture: "made up".into(),
        licence: "Apache-2.0".into(),
        space: None,
        adapter: "{}".into(),
        variants: vec![
            variant("fast", 800_000, 10.0),
            variant("good", 900_000, 50.0),
            variant("bad", 700_000, 99.0),
        ],
    };
    let registered = store.register_model(model).await.unwrap();
    (store, registered.variants)
}

fn node(variants: &[Variant]) -> (watch::Sender<NodeStatus>, watch::Receiver<NodeStatus>) {
    let offer = |v: &Variant| Offer {
        task: modelless_types::TaskId(1),
        ordinal: v.ordinal,
        ready: Ready::Cold { load: Micros::from_millis(5) },
        run: RunModel::from_profile(&v.profiles[0]).unwrap(),
        width: 1,
    };
    let id = NodeId(1);
    let info = NodeInfo {
        id,
        rtt: Moments::ZERO,
        price: PricePerHour(50_000),
        offers: variants.iter().map(offer).collect(),
    };
    watch::channel(NodeStatus {
        memory_budget: Bytes::from_mib(100),
        ..NodeStatus::idle(info, "n", "cpu:test:2")
    })
}

#[tokio::test]
async fn pins_the_frontier_once_and_says_it_once() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let told = Arc::new(Told::default());
    let nodes = vec![Node { status, link: told.clone() }];
    let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
    service.round().await.unwrap();
    let first = store.current_plan().await.unwrap().unwrap();
    service.round().await.unwrap();
    assert_eq!(store.current_plan().await.unwrap().unwrap().id, first.id, "planning again saved nothing");
    let expected: Vec<_> = [0, 1].map(|at| (DeviceIx(0), variants[at].id)).into();
    assert_eq!(*told.0.lock().unwrap(), vec![expected]);
}

#[tokio::test]
async fn a_scheduler_that_starts_later_tells_what_is_saved() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    for _ in 0..2 {
        let told = Arc::new(Told::default());
        let nodes = vec![Node { status: status.clone(), link: told.clone() }];
        let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
        service.round().await.unwrap();
        assert_eq!(told.0.lock().unwrap().len(), 1);
    }
    assert_eq!(
        store.current_plan().await.unwrap().unwrap().parent,
        None,
        "the second found nothing to change"
    );
}

#[tokio::test]
async fn a_saved_plan_that_cannot_be_read_is_an_error_and_is_left_alone() {
    let (store, variants) = store_with_ladder().await;
    let (_keep, status) = node(&variants);
    let _ = store.save_plan(None, r#"{"pins": 7}"#.into(), UnixMicros(1)).await.unwrap();
    let nodes = vec![Node { status, link: Arc::new(Told::default()) }];
    let (mut service, _handle) = build(Config::default(), store.clone(), nodes);
    assert!(matches!(service.round().await, Err(Error::Unreadable { .. })));
    assert_eq!(store.current_plan().await.unwrap().unwrap().json, r#"{"pins": 7}"#);
}

#[tokio::test]
async fn a_node_that_is_there_again_is_told_again_and_one_that_is_gone_is_not_planned_for() {
    let (store, variants) = store_with_ladder().await;
    let (mut service, handle) = build(Config::default(), store.clone(), Vec::new());
    service.round().await.unwrap();
    assert!(store.current_plan().await.unwrap().is_none(), "nobody to plan for");
    for _ in 0..2 {
        let (_there, status) = node(&variants);
        let told = Arc::new(Told::default());
        handle.add_node(Node { status, link: told.clone() });
        service.round().await.unwrap();
        service.round().await.unwrap();
        assert_eq!(told.0.lock().unwrap().len(), 1, "each connection is told once");
    }
    let plan = store.current_plan().await.unwrap().unwrap();
    service.round().await.unwrap();
    let after = store.current_plan().await.unwrap().unwrap();
    assert_eq!(after.id, plan.id, "with nobody there the last plan stays");
}
