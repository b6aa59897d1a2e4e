mod asked_again;
mod cancelling;
mod cautious;
mod claiming;
mod cutting;
mod draining;
mod hanging;
mod limits;
mod line;
mod loading;
mod log;
mod marks;
mod narrowing;
mod quarantine;
mod real;
mod recurrent;
mod remotes;
mod returning;
mod slots;
mod stalled;
mod texts;

use crate::{Config, Deps, Handle, Service, build};
use modelless_decision::query::Class;
use modelless_decision::worker::Worker;
use modelless_drive::{Clock, Recorder, replay};
use modelless_engine::FakeEngine;
use modelless_engine::fake::{Computes, FakeModel, Fault};
use modelless_store::{Artefacts, MemStore, NewModel, NewTask, NewVariant, Signed, Store};
use modelless_types::tensor::packed;
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, AppId, BatchPoint, Bytes, DType, DeviceIx, Engine as EngineKind,
    Fallback, Goals, Micros, NodeId, PlanId, Prefer, Priority, Processor, Profile, Provenance, QueryKey,
    QueryNumber, Refusal, ReplicaState, StageTime, TaskId, TaskKind, TenantId, TensorSpec, Variant,
    VariantId, VariantSet, VariantSettings,
};
use modelless_wire::{
    Body, Demand, FromNode, GatewayLink, Input, InputFault, NodeLink, NodeStatus, QueryFrame, ReplicaStatus,
    ToNode,
};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const DEVICE_CLASS: &str = "cpu:test:2";
const LONG: Duration = Duration::from_secs(20);

/// The numbers of each gateway's queries begin elsewhere.
static GATEWAYS: AtomicU64 = AtomicU64::new(0xbeef);

/// A gateway that listens, and may ask again before it has heard the end of an answer.
struct Ears {
    sender: mpsc::Sender<Body>,
    numbers_from: QueryNumber,
    asks: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl GatewayLink for Ears {
    fn receive(&self, _: NodeId, frame: FromNode) {
        let ends = matches!(frame.body, Body::Answer { .. } | Body::Refused { .. } | Body::BadInput { .. });
        if !matches!(frame.body, Body::Report) {
            self.sender.try_send(frame.body).expect("room for every answer of a test");
        }
        if let Some(ask) = self.asks.get().filter(|_| ends) {
            ask();
        }
    }

    fn number_of(&self, key: QueryKey) -> Option<QueryNumber> {
        Some(QueryNumber::of(key, self.numbers_from))
    }
}

/// A node with one echo model in two variants, run by the fake engine.
struct Bed {
    handle: Handle,
    heard: mpsc::Receiver<Body>,
    gateway: Arc<Ears>,
    engine: Arc<FakeEngine>,
    /// The quarantine's.
    ward: Arc<FakeEngine>,
    store: Arc<dyn Store>,
    task: TaskId,
    variants: Vec<Variant>,
    stop: CancellationToken,
    service: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

fn spec(name: &str) -> TensorSpec {
    TensorSpec { name: name.into(), dtype: DType::Fp32, shape: vec![2] }
}

fn profile(ppm: u32, us: f64) -> Profile {
    let value = Accuracy::from_ppm(ppm).expect("accuracy");
    // Batches gain, or there would be none.
    let point =
        |batch: u32, mean_us: f64| BatchPoint { batch, mean_us, var_us2: 1.0, p99_us: mean_us, samples: 10 };
    Profile {
        device_class: DEVICE_CLASS.into(),
        latency: vec![point(1, us), point(8, 2.0 * us)],
        latency_provenance: Provenance::Measured,
        decode: StageTime::default(),
        prepare: StageTime::default(),
        memory: Bytes::from_mib(1),
        peak: None,
        load_time: Micros::from_millis(1),
        accuracy: AccuracyMeasure {
            value,
            low: value,
            high: value,
            samples: 100,
            set: "made up".into(),
            provenance: Provenance::Measured,
            device_class: DEVICE_CLASS.into(),
            command: "none".into(),
        },
        also: Vec::new(),
        detail: modelless_types::Detail::default(),
    }
}

fn echo() -> FakeModel {
    FakeModel {
        inputs: vec![spec("x")],
        computes: Computes::Echo,
        latency: Arc::new(|_| Duration::ZERO),
        load_time: Duration::ZERO,
        ..FakeModel::default()
    }
}

/// What a test wants otherwise.
struct Setup {
    recorder: Option<Recorder>,
    store: Option<Arc<dyn Store>>,
    config: Config,
    /// The artefact is not what its address says.
    damaged: bool,
    /// The second variant is on another server.
    remote: bool,
    /// What the second variant runs on.
    processor: Processor,
    /// The first variant's profile was marked as stale, by these nodes.
    marked_by: &'static [&'static str],
    /// So many times as long as usual both variants' batches were measured to take.
    slow: f64,
    /// How long both were measured to load from the disk.
    load_cold: Option<Micros>,
}

impl Default for Setup {
    fn default() -> Self {
        let (config, processor) = (config(), Processor::Cpu);
        Self {
            recorder: None,
            store: None,
            config,
            damaged: false,
            remote: false,
            processor,
            marked_by: &[],
            slow: 1.0,
            load_cold: None,
        }
    }
}

async fn bed(recorder: Option<Recorder>) -> Bed {
    bed_with(Setup { recorder, ..Setup::default() }).await
}

async fn bed_with(setup: Setup) -> Bed {
    let Setup { recorder, store, config, damaged, remote, processor, marked_by, slow, load_cold } = setup;
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = store.unwrap_or_else(|| Arc::new(MemStore::new()));
    let artefacts = Arc::new(Artefacts::new(folder.path()).expect("an artefact store"));
    let artefact =
        artefacts.put(&b"not a model, but the fake engine does not mind"[..]).expect("an artefact");
    let task = NewTask {
        tenant: TenantId::DEFAULT,
        name: "echo".into(),
        kind: TaskKind::Tensor,
        metric: "none".into(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: modelless_types::LiveRule::default(),
        declared_accuracy: modelless_types::DeclaredRule::default(),
        labels: Vec::new(),
        inputs: vec![spec("x")],
        outputs: vec![spec("x")],
        space: None,
        defaults: Goals::default(),
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    };
    let task = store.create_task(task).await.expect("a task").id;
    let server = artefacts.put(&br#"{"url": "grpc://10.0.0.7:8000", "model": "echo"}"#[..]).expect("a place");
    let variant = |name: &str, ppm, us| {
        let second = name == "fast";
        let elsewhere = remote && second;
        let processor = if second { processor } else { Processor::Cpu };
        let (engine, artefact) =
            if elsewhere { (EngineKind::Remote, &server) } else { (EngineKind::Onnx, &artefact) };
        let mut profile = profile(ppm, us);
        profile.detail.load_cold = load_cold;
        NewVariant {
            name: name.into(),
            settings: VariantSettings { processor, ..VariantSettings::new(engine, "fp32", 8) },
            artefact: artefact.sha256.clone(),
            artefact_bytes: Bytes(artefact.bytes),
            profiles: vec![profile],
        }
    };
    let model = NewModel {
        task,
        tenant: TenantId::DEFAULT,
        name: "echo".into(),
        version: 1,
        architecture: "none".into(),
        licence: "Apache-2.0".into(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter: r#"{"kind": "tensor"}"#.into(),
        variants: vec![variant("good", 900_000, 200.0 * slow), variant("fast", 800_000, 50.0 * slow)],
    };
    if damaged {
        loading::damage(&artefacts.path(&artefact.sha256).expect("an address"));
    }
    let variants = store.register_model(model).await.expect("a model").variants;
    for node in marked_by {
        store.mark_stale(marks::by(node, variants[0].id)).await.expect("a profile");
    }
    let engine = Arc::new(FakeEngine::new());
    let ward = Arc::new(FakeEngine::new());
    for variant in &variants {
        engine.behave(variant.id, echo());
        ward.behave(variant.id, echo());
    }
    let deps = Deps {
        store: Arc::clone(&store),
        artefacts,
        engine: Arc::<FakeEngine>::clone(&engine),
        quarantine: Arc::<FakeEngine>::clone(&ward),
        clock: Clock::start(),
        recorder,
        warnings: Vec::new(),
    };
    let (service, handle): (Service, Handle) = build(config, deps).await.expect("an executor");
    let (sender, heard) = mpsc::channel(100_000);
    let numbers_from = QueryNumber(GATEWAYS.fetch_add(1, Ordering::Relaxed) << 48);
    let gateway = Arc::new(Ears { sender, numbers_from, asks: OnceLock::new() });
    handle.connect(Arc::<Ears>::clone(&gateway));
    let stop = CancellationToken::new();
    let running = stop.clone();
    #[expect(clippy::disallowed_methods, reason = "the test awaits it in `Bed::end`")]
    let service = tokio::spawn(async move { service.run(running).await });
    Bed { handle, heard, gateway, engine, ward, store, task, variants, stop, service, _folder: folder }
}

fn config() -> Config {
    // Tests count batches and say which of them go wrong: those of a warm-up have their own test.
    let (back_off, warm_up) = (Micros::from_millis(1), Micros::ZERO);
    Config { device_class: DEVICE_CLASS.into(), back_off, warm_up, ..Config::default() }
}

impl Bed {
    /// Says how every variant behaves, in quarantine too.
    fn behave(&self, model: &FakeModel) {
        for variant in &self.variants {
            self.engine.behave(variant.id, model.clone());
            self.ward.behave(variant.id, model.clone());
        }
    }

    fn all(&self) -> VariantSet {
        self.variants.iter().map(|v| v.ordinal).collect()
    }

    fn send(&self, key: u64, latency: Duration, admits: VariantSet, input: Input) {
        self.handle.send(self.frame(key, latency, admits, input));
    }

    fn frame(&self, key: u64, latency: Duration, admits: VariantSet, input: Input) -> ToNode {
        let class = Class { task: self.task, admits };
        ToNode::Query(Box::new(frame_of(class, key, latency, Bytes(8), input)))
    }

    /// Every batch from now on never ends by itself.
    fn hang(&self) {
        for variant in &self.variants {
            let forever: Arc<dyn Fn(u32) -> Duration + Send + Sync> = Arc::new(|_| Duration::from_hours(1));
            self.engine.behave(variant.id, FakeModel { latency: forever, ..echo() });
        }
    }

    /// A query whose answer tells which query it was.
    fn ask(&self, key: u64) {
        self.send(key, LONG, self.all(), distinct(key));
    }

    async fn hear(&mut self) -> Body {
        tokio::time::timeout(LONG, self.heard.recv())
            .await
            .expect("something is said in time")
            .expect("still open")
    }

    /// How many of `n` answers are not their own query's.
    async fn wrong_of(&mut self, n: u64) -> u64 {
        let mut wrong = 0;
        for _ in 0..n {
            match self.hear().await {
                Body::Answer { key, answer } => {
                    wrong += u64::from(!is_of(&answer.body, key.0));
                }
                other @ (Body::Refused { .. }
                | Body::BadInput { .. }
                | Body::HandedBack { .. }
                | Body::Declined { .. }
                | Body::Claim { .. }
                | Body::Report) => {
                    panic!("not an answer: {other:?}")
                }
            }
        }
        wrong
    }

    async fn end(self) -> Arc<dyn Store> {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.service).await.expect("it ends in time").expect("it does not panic");
        self.store
    }
}

/// A query without goals of its own but its time.
fn frame_of(class: Class, key: u64, latency: Duration, decoded: Bytes, input: Input) -> QueryFrame {
    let latency = Micros(u64::try_from(latency.as_micros()).expect("short"));
    QueryFrame {
        key: QueryKey(key),
        tenant: TenantId::DEFAULT,
        app: AppId::DEFAULT,
        class,
        deadline_in: latency,
        expires_in: latency,
        spent: Micros::ZERO,
        max_cost: None,
        prefer: Prefer::Accuracy,
        priority: Priority::default(),
        best_effort: Goals::default().fallback == Fallback::BestEffort,
        returnable: false,
        decoded,
        input,
        demand: Demand { class, waiting: 0, first: None, among: 1 },
    }
}

fn distinct(key: u64) -> Input {
    let number = f32::from(u16::try_from(key).expect("few queries"));
    let bytes: Vec<u8> = [number, -number].iter().flat_map(|x| x.to_le_bytes()).collect();
    Input::Raw(bytes.into())
}

/// Whether an answer gives back what [`distinct`] asked.
fn is_of(body: &[u8], key: u64) -> bool {
    let number = f32::from(u16::try_from(key).expect("few queries"));
    let tensors = packed::all(body).expect("tensors");
    tensors[0].data == [number, -number].map(f32::to_le_bytes).concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_its_own_querys() {
    let mut bed = bed(None).await;
    for round in 0..8 {
        for key in 0..500 {
            bed.ask(round * 500 + key);
        }
        assert_eq!(bed.wrong_of(500).await, 0);
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permutation_of_outputs_would_be_noticed() {
    let mut bed = bed(None).await;
    for variant in &bed.variants {
        let swap = |_, items: u32| (items > 1).then(|| Fault::Permute((0..items).rev().collect()));
        bed.engine.behave(variant.id, FakeModel { faults: Arc::new(swap), ..echo() });
    }
    for key in 0..500 {
        bed.ask(key);
    }
    assert!(bed.wrong_of(500).await > 100, "the check of attribution sees wrong attribution");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_error_costs_only_the_input_that_caused_it() {
    let mut bed = bed(None).await;
    for variant in &bed.variants {
        let bad = |_, items: u32| (items > 1).then(|| Fault::Model("one of these is bad".into()));
        bed.engine.behave(variant.id, FakeModel { faults: Arc::new(bad), ..echo() });
    }
    for key in 0..50 {
        bed.ask(key);
    }
    assert_eq!(bed.wrong_of(50).await, 0, "each is fine alone");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_wait_for_a_load_hears_when_it_will_be_ready_and_the_load_goes_on() {
    let mut bed = bed(None).await;
    bed.send(1, Duration::from_micros(300), bed.all(), distinct(1));
    let Body::Refused { refusal: Refusal::Loading { ready_in, .. }, .. } = bed.hear().await else {
        panic!("not told that it is loading")
    };
    assert!(ready_in > Micros::ZERO);
    bed.ask(2);
    assert_eq!(bed.wrong_of(1).await, 0);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_variants_of_its_class_answer_a_query() {
    let mut bed = bed(None).await;
    let fast = bed.variants[1].clone();
    for key in 0..100 {
        bed.send(key, LONG, [fast.ordinal].into_iter().collect(), distinct(key));
    }
    let mut by: BTreeMap<VariantId, u32> = BTreeMap::new();
    for _ in 0..100 {
        let Body::Answer { answer, .. } = bed.hear().await else { panic!("not answered") };
        *by.entry(answer.variant).or_default() += 1;
    }
    assert_eq!(by, BTreeMap::from([(fast.id, 100)]));
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_inputs_are_told_apart_from_bad_luck() {
    let mut bed = bed(None).await;
    bed.send(1, LONG, bed.all(), Input::Raw(vec![0; 7].into()));
    let parameters = Some(r#"{"topk": 3}"#.into());
    bed.send(2, LONG, bed.all(), Input::Json { inputs: "[1, 2]".into(), parameters });
    for _ in 0..2 {
        let said = bed.hear().await;
        assert!(matches!(said, Body::BadInput { fault: InputFault::Malformed, .. }), "{said:?}");
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_is_recorded_from_loading_to_shutdown_and_the_next_one_starts_clean() {
    let mut bed = bed(None).await;
    bed.handle.send(ToNode::Pin { plan: PlanId(1), pins: vec![(DeviceIx(0), bed.variants[0].id)] });
    bed.ask(1);
    bed.hear().await;
    let variant = bed.variants[0].id;
    let store = bed.end().await;
    let mut states: Vec<ReplicaState> = store
        .transitions(None, 100)
        .await
        .expect("a history")
        .into_iter()
        .filter(|t| t.variant == variant)
        .map(|t| t.change.to)
        .collect();
    states.reverse();
    let life = [ReplicaState::Loading, ReplicaState::Active, ReplicaState::Draining, ReplicaState::Inactive];
    assert_eq!(states, life);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_plan_that_comes_late_is_not_followed() {
    let bed = bed(None).await;
    let wanted = || {
        let replicas = bed.handle.core().driver.look(|worker, _| worker.replicas());
        let wanted = replicas.into_iter().filter(|replica| replica.state != ReplicaState::Inactive);
        wanted.map(|replica| replica.variant).collect::<Vec<_>>()
    };
    let [first, second] = [0, 1].map(|at| bed.variants[at].id);
    let tell = |plan, variant| {
        bed.handle.send(ToNode::Pin { plan: PlanId(plan), pins: vec![(DeviceIx(0), variant)] });
    };
    let mut status = bed.handle.status();
    let active = |variant| {
        move |status: &NodeStatus| {
            let is =
                |replica: &ReplicaStatus| replica.variant == variant && replica.state == ReplicaState::Active;
            status.replicas.iter().any(is)
        }
    };
    tell(7, first);
    drop(tokio::time::timeout(LONG, status.wait_for(active(first))).await.expect("in time").expect("open"));
    tell(6, second);
    assert_eq!(wanted(), [first]);
    tell(7, first); // again, by another who read it
    assert_eq!(wanted(), [first]);
    tell(8, second);
    drop(tokio::time::timeout(LONG, status.wait_for(active(second))).await.expect("in time").expect("open"));
    bed.end().await;
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_life_replayed_gives_the_same_actions() {
    let log = Shared::default();
    let mut bed = bed(Some(Recorder::to(log.clone()).expect("a recorder"))).await;
    let sometimes = |number: u64, items: u32| match (number % 7, items) {
        (3, 2..) => Some(Fault::Crash("made to".into())),
        (5, _) => Some(Fault::Model("made to".into())),
        _ => None,
    };
    for variant in &bed.variants {
        bed.engine.behave(variant.id, FakeModel { faults: Arc::new(sometimes), ..echo() });
    }
    bed.handle.send(ToNode::Pin { plan: PlanId(1), pins: vec![(DeviceIx(0), bed.variants[1].id)] });
    for key in 0..300 {
        bed.ask(key);
        if key % 10 == 0 {
            bed.handle.send(ToNode::Cancel { key: QueryKey(key) });
        }
    }
    for _ in 0..200 {
        bed.hear().await;
    }
    bed.end().await;
    let recording = log.0.lock().expect("no panic").clone();
    let replayed =
        replay(&mut Worker::new(config().worker()), recording.as_slice()).expect("the same actions");
    assert!(replayed.inputs > 300 && replayed.actions > 200, "{replayed:?}");
    // A machine that decides otherwise is caught: with one lane more, batches are bound elsewhere.
    let other = Config { lanes: 2, ..config() };
    let difference = replay(&mut Worker::new(other.worker()), recording.as_slice());
    assert!(difference.is_err_and(|why| why.contains("other actions")));
}
