//! A task with two models, a node that plays executor, and a gateway before them.

use crate::{Addresses, Admin, Config, Deps, Handle, Service};
use axum::Router;
use axum::body::Body;
use bytes::Bytes as Buffer;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use modelless_decision::query::Class;
use modelless_decision::route::{Limit, NodeInfo, NodeReport, Offer, Ready};
use modelless_decision::{Moments, RunModel};
use modelless_drive::{Clock, Recorder};
use modelless_store::{Artefacts, MemStore, NewModel, NewTask, NewVariant, Signed, Store};
use modelless_telemetry::Metrics;
use modelless_types::tensor::packed;
use modelless_types::{
    Accuracy, AccuracyMeasure, AccuracyRule, BatchPoint, Bytes, CacheFor, CostPer1k, DType, DeviceIx, Engine,
    Goals, Micros, NodeId, Prefer, PricePerHour, Profile, Provenance, QueryKey, Refusal, ReplicaState,
    StageTime, Task, TaskId, TaskKind, TenantId, TensorSpec, Variant, VariantId, VariantSettings,
};
use modelless_wire::{
    Answer, Body as Said, FromNode, GatewayLink, Input, InputFault, LoadTimes, NodeLink, NodeStatus,
    QueryFrame, Reason, ReplicaStatus, ToNode,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

pub(super) const NODE: NodeId = NodeId(1);
pub(super) const CLASS: &str = "cpu:test:2";
pub(super) const PNG: &[u8] = b"\x89PNG\r\n\x1a\nnot really a picture";

/// What the node does with a query.
#[derive(Clone, Debug)]
pub(super) enum Does {
    /// Answers at once, with the first admitted variant.
    Answer,
    /// The same in the form of the task: `arrays` gives back what it got, others say that it is rather a dog.
    Echo,
    /// Keeps it until told.
    Keep,
    Refuse(Refusal),
}

type Models =
    BTreeMap<(TaskId, u8), (modelless_types::ModelId, modelless_types::VariantId, modelless_types::SpaceId)>;

pub(super) struct FakeNode {
    pub(super) id: NodeId,
    /// How many queries it takes at once.
    pub(super) credit: Mutex<u32>,
    /// How long it says that queries of these classes wait, beside none at all.
    pub(super) waits: Mutex<Vec<(Class, Moments)>>,
    gateway: OnceLock<Arc<dyn GatewayLink>>,
    pub(super) does: Mutex<Does>,
    /// Who answers for an ordinal.
    models: Mutex<Models>,
    seen: mpsc::Sender<ToNode>,
    /// What is to happen first when a query comes.
    pub(super) looks: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl FakeNode {
    pub(super) fn say(&self, body: Said) {
        let limit = Limit { queries: *self.credit.lock().unwrap(), bytes: Bytes::from_mib(64) };
        let waits = self.waits.lock().unwrap().clone();
        let report = NodeReport { limit, wait: Moments::ZERO, waits, ..NodeReport::default() };
        self.gateway.get().unwrap().receive(self.id, FromNode { body, report });
    }

    /// A variant that was registered after it started.
    pub(super) fn knows(&self, task: TaskId, variant: &Variant, space: modelless_types::SpaceId) {
        self.models.lock().unwrap().insert((task, variant.ordinal), (variant.model, variant.id, space));
    }

    /// What it answers for a task from now on lies in another output space.
    pub(super) fn moves_to(&self, task: TaskId, space: modelless_types::SpaceId) {
        let mut models = self.models.lock().unwrap();
        for (_, (_, _, of)) in models.iter_mut().filter(|((of, _), _)| *of == task) {
            *of = space;
        }
    }

    pub(super) fn answer(&self, frame: &QueryFrame) {
        let echoed = match &frame.input {
            Input::Raw(raw) if raw.starts_with(PNG) || frame.class.task.0 != 1 => raw.len(),
            Input::Json { inputs, .. } if inputs.starts_with(b"\"iVBORw0KGgo") || frame.class.task.0 > 2 => {
                inputs.len()
            }
            Input::Raw(_) | Input::Json { .. } => {
                let why = "this is no picture".to_owned();
                return self.say(Said::BadInput { key: frame.key, fault: InputFault::Malformed, why });
            }
        };
        if frame.class.task.0 == 2 {
            return self.answer_with(frame, four(&[f32::from(u16::try_from(echoed).unwrap()); 4]));
        }
        self.answer_with(frame, format!(r#"[{{"label":"size","score":{echoed}}}]"#));
    }

    pub(super) fn answer_with(&self, frame: &QueryFrame, body: impl Into<Buffer>) {
        let ordinal = frame.class.admits.iter().next().unwrap();
        let (model, variant, space) = self.models.lock().unwrap()[&(frame.class.task, ordinal)];
        let answer = Answer {
            body: body.into(),
            model,
            variant,
            space,
            batch: 3,
            predicted_run: Micros(900),
            cost: CostPer1k(1_500_000),
            queued: Micros(250),
            decode: Micros(40),
            prepare: Micros(5),
            run: Micros(700),
            at_node: Micros(900),
            why: Reason::Only,
        };
        self.say(Said::Answer { key: frame.key, answer: Box::new(answer) });
    }
}

/// The output of `arrays`.
pub(super) fn four(values: &[f32; 4]) -> Vec<u8> {
    let mut body = Vec::new();
    packed::push(&[4], &values.map(f32::to_le_bytes).concat(), &mut body);
    body
}

fn echo(frame: &QueryFrame) -> Vec<u8> {
    match &frame.input {
        Input::Raw(raw) if frame.class.task.0 == 2 => {
            let mut body = Vec::new();
            packed::push(&[4], raw, &mut body);
            body
        }
        Input::Raw(_) | Input::Json { .. } => {
            br#"[{"label":"dog","score":0.75},{"label":"cat","score":0.25}]"#.to_vec()
        }
    }
}

impl NodeLink for FakeNode {
    fn send(&self, frame: ToNode) {
        let does = self.does.lock().unwrap().clone();
        let _ = self.seen.try_send(frame.clone());
        if let ToNode::Query(query) = frame {
            if let Some(looks) = self.looks.get() {
                looks();
            }
            match does {
                Does::Answer => self.answer(&query),
                Does::Echo => self.answer_with(&query, echo(&query)),
                Does::Keep => {}
                Does::Refuse(refusal) => self.say(Said::Refused { key: query.key, refusal }),
            }
        }
    }
}

pub(super) struct Second {
    pub(super) node: Arc<FakeNode>,
    pub(super) seen: mpsc::Receiver<ToNode>,
    pub(super) told: watch::Sender<NodeStatus>,
}

impl Second {
    /// How long the way to it is thought to be.
    pub(super) fn is_away(&self, way: Micros) {
        self.told.send_modify(|status| status.info.rtt = Moments::exactly(way));
    }
}

pub(super) struct World {
    pub(super) store: Arc<MemStore>,
    pub(super) node: Arc<FakeNode>,
    /// Frames that reached the node.
    pub(super) seen: mpsc::Receiver<ToNode>,
    pub(super) status: watch::Sender<NodeStatus>,
    /// Another node, which takes nothing until it is given credit and keeps what it gets.
    pub(super) second: Option<Second>,
    pub(super) service: Service,
    pub(super) handle: Handle,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Default)]
pub(super) struct Setup {
    pub(super) config: Config,
    pub(super) artefacts: Option<Artefacts>,
    pub(super) admin: Option<Arc<dyn Admin>>,
    pub(super) live: Option<Arc<dyn modelless_live::Live>>,
    /// Of the pictures' task.
    pub(super) cache: CacheFor,
    /// What the same task prefers.
    pub(super) prefer: Option<Prefer>,
    pub(super) recorder: Option<Recorder>,
    pub(super) silent_node: bool,
    pub(super) second_node: bool,
    /// How long its greeting took.
    pub(super) second_greeting: Micros,
    /// There is a task `words` of texts too.
    pub(super) texts: bool,
    /// Of another world, with all that is in it by then: this one's gateway stands beside the other's.
    pub(super) store: Option<Arc<MemStore>>,
    /// What is in the node's memory.
    pub(super) replicas: Vec<ReplicaStatus>,
}

pub(crate) fn profile(mean_us: f64, right: u64, of: u64) -> Profile {
    let accuracy = Accuracy::measured(right, of).unwrap();
    Profile {
        device_class: CLASS.to_owned(),
        latency: vec![BatchPoint { batch: 1, mean_us, var_us2: 100.0, p99_us: mean_us + 25.0, samples: 50 }],
        latency_provenance: Provenance::Measured,
        decode: StageTime { mean_us: 30.0, var_us2: 4.0, samples: 50 },
        prepare: StageTime::default(),
        memory: Bytes::from_mib(10),
        peak: None,
        load_time: Micros::from_millis(80),
        accuracy: AccuracyMeasure {
            value: accuracy,
            low: accuracy,
            high: accuracy,
            samples: of,
            set: "test-set".to_owned(),
            provenance: Provenance::Measured,
            device_class: CLASS.to_owned(),
            command: "a command".to_owned(),
        },
        also: Vec::new(),
        detail: modelless_types::Detail::default(),
    }
}

pub(crate) fn new_task(name: &str, kind: TaskKind) -> NewTask {
    let tensor = |name: &str| TensorSpec { name: name.to_owned(), dtype: DType::Fp32, shape: vec![4] };
    let (labels, inputs, outputs) = match kind {
        TaskKind::ImageClassification | TaskKind::TextClassification | TaskKind::FeatureExtraction => {
            (vec!["cat".to_owned(), "dog".to_owned()], vec![], vec![])
        }
        TaskKind::Tensor => (vec![], vec![tensor("x")], vec![tensor("y")]),
    };
    NewTask {
        tenant: TenantId::DEFAULT,
        name: name.to_owned(),
        kind,
        metric: "top-1".to_owned(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: modelless_types::LiveRule::default(),
        declared_accuracy: modelless_types::DeclaredRule::default(),
        labels,
        inputs,
        outputs,
        space: None,
        defaults: Goals::default(),
        batching: None,
        cache: CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    }
}

pub(crate) fn new_model(task: &Task, name: &str, mean_us: f64, right: u64) -> NewModel {
    NewModel {
        task: task.id,
        tenant: TenantId::DEFAULT,
        name: name.to_owned(),
        version: 1,
        architecture: "cnn".to_owned(),
        licence: "MIT".to_owned(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter: r#"{"layout":"nchw"}"#.to_owned(),
        variants: vec![NewVariant {
            name: format!("{name}-fp32"),
            settings: VariantSettings::new(Engine::Onnx, "fp32", 8),
            artefact: "ab".repeat(32),
            artefact_bytes: Bytes(1_000),
            profiles: vec![profile(mean_us, right, 1_000)],
        }],
    }
}

/// One in memory.
pub(super) fn replica(variant: u32, state: ReplicaState, bytes: u64) -> ReplicaStatus {
    ReplicaStatus {
        device: DeviceIx(0),
        variant: VariantId(variant),
        state,
        memory: Bytes(bytes),
        slowdown: None,
        cause: String::new(),
        loads: LoadTimes::default(),
        signs: None,
    }
}

fn offered(task: TaskId, variant: &Variant) -> Offer {
    Offer {
        task,
        ordinal: variant.ordinal,
        ready: Ready::Resident,
        run: RunModel::from_profile(&variant.profiles[0]).unwrap(),
        width: 1,
    }
}

async fn filled(texts: bool, cache: CacheFor, prefer: Option<Prefer>) -> Arc<MemStore> {
    let store = Arc::new(MemStore::new());
    let pictures = NewTask {
        cache,
        defaults: Goals { prefer, ..Goals::default() },
        ..new_task("fashion", TaskKind::ImageClassification)
    };
    let fashion = store.create_task(pictures).await.unwrap();
    let arrays = store.create_task(new_task("arrays", TaskKind::Tensor)).await.unwrap();
    let mut known = vec![
        (&fashion, "small", 1_000.0, 900),
        (&fashion, "large", 4_000.0, 950),
        (&arrays, "echo", 500.0, 800),
    ];
    let words = new_task("words", TaskKind::TextClassification);
    let words = if texts { Some(store.create_task(words).await.unwrap()) } else { None };
    known.extend(words.iter().map(|words| (words, "reader", 700.0, 900)));
    for (task, name, mean_us, right) in known {
        store.register_model(new_model(task, name, mean_us, right)).await.unwrap();
    }
    store
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    /// Tasks `fashion` (pictures) and `arrays` (tensors). `fashion` has a small model (90 %, 1 ms) and a large one
    /// (95 %, 4 ms), `arrays` has one.
    pub(super) async fn with(setup: Setup) -> Self {
        let store = match setup.store {
            Some(store) => store,
            None => filled(setup.texts, setup.cache, setup.prefer).await,
        };
        let catalog = store.catalog().await.unwrap();
        let (mut models, mut all) = (BTreeMap::new(), Vec::new());
        for model in &catalog.models {
            for variant in catalog.variants_of(model.id) {
                all.push(offered(model.task, variant));
                models.insert((model.task, variant.ordinal), (model.id, variant.id, model.space));
            }
        }
        let (seen, received) = mpsc::channel(10_000);
        let does = Mutex::new(Does::Answer);
        let credit = Mutex::new(4);
        let (gateway, looks) = (OnceLock::new(), OnceLock::new());
        let models = Mutex::new(models);
        let node = FakeNode { id: NODE, credit, waits: Mutex::default(), gateway, does, models, seen, looks };
        let node = Arc::new(node);
        let price = PricePerHour(100_000);
        let info = NodeInfo { id: NODE, rtt: Moments::ZERO, price, offers: all };
        let second = setup.second_node.then(|| {
            let (seen, received) = mpsc::channel(10_000);
            let (does, credit, models) =
                (Mutex::new(Does::Keep), Mutex::new(0), node.models.lock().unwrap().clone());
            let models = Mutex::new(models);
            let (id, gateway, looks) = (NodeId(2), OnceLock::new(), OnceLock::new());
            let other = FakeNode { id, credit, waits: Mutex::default(), gateway, does, models, seen, looks };
            let rtt = Moments::exactly(setup.second_greeting);
            let status = NodeStatus::idle(NodeInfo { id, rtt, ..info.clone() }, "node-b", CLASS);
            Second { node: Arc::new(other), seen: received, told: watch::Sender::new(status) }
        });
        let status = watch::Sender::new(NodeStatus {
            memory_budget: Bytes::from_mib(100),
            memory_used: Bytes::from_mib(20),
            replicas: setup.replicas,
            ..NodeStatus::idle(info, "node-a", CLASS)
        });
        let metrics = Arc::new(Metrics::new());
        let config = Config { http: ([127, 0, 0, 1], 0).into(), seed: Some(7), ..setup.config };
        let mut nodes = vec![(status.subscribe(), Arc::clone(&node) as Arc<dyn NodeLink>)];
        nodes.extend(
            second
                .iter()
                .map(|second| (second.told.subscribe(), Arc::clone(&second.node) as Arc<dyn NodeLink>)),
        );
        let deps = Deps {
            store: Arc::clone(&store) as Arc<dyn Store>,
            artefacts: setup.artefacts,
            nodes,
            clock: Clock::start(),
            recorder: setup.recorder,
            metrics: Arc::clone(&metrics),
            admin: setup.admin,
            live: setup.live,
        };
        let service = Service::build(config, deps).await.unwrap();
        let handle = service.handle();
        assert!(node.gateway.set(handle.link()).is_ok());
        if let Some(other) = &second {
            assert!(other.node.gateway.set(handle.link()).is_ok());
            other.node.say(Said::Report);
        }
        if !setup.silent_node {
            node.say(Said::Report);
        }
        Self { store, node, seen: received, status, second, service, handle, metrics }
    }

    pub(super) fn router(&self) -> Router {
        self.service.router()
    }

    pub(super) async fn ask(&self, method: Method, target: &str, media: &str, body: &[u8]) -> Got {
        ask(self.router(), method, target, media, body).await
    }

    pub(super) async fn get(&self, target: &str) -> Got {
        self.ask(Method::GET, target, "", b"").await
    }

    pub(super) async fn post(&self, target: &str, media: &str, body: &[u8]) -> Got {
        self.ask(Method::POST, target, media, body).await
    }

    /// Binds and runs it.
    pub(super) async fn run(self) -> Running {
        let Self { store, node, seen, status, second: _, mut service, handle, metrics } = self;
        let addresses = service.bind().await.unwrap();
        let drain = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        let drained = drain.clone();
        tasks.spawn(async move { service.run(drained).await });
        Running { store, node, seen, status, handle, metrics, addresses, drain, tasks }
    }
}

/// A world whose gateway runs.
pub(super) struct Running {
    pub(super) store: Arc<MemStore>,
    pub(super) node: Arc<FakeNode>,
    pub(super) seen: mpsc::Receiver<ToNode>,
    pub(super) status: watch::Sender<NodeStatus>,
    pub(super) handle: Handle,
    pub(super) metrics: Arc<Metrics>,
    pub(super) addresses: Addresses,
    pub(super) drain: CancellationToken,
    tasks: tokio::task::JoinSet<Result<(), crate::Error>>,
}

impl Running {
    pub(super) async fn ended(&mut self) {
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }

    pub(super) async fn stop(mut self) {
        self.drain.cancel();
        self.ended().await;
    }

    /// The next query that reaches the node.
    pub(super) async fn next_query(&mut self) -> Box<QueryFrame> {
        loop {
            if let ToNode::Query(frame) = self.seen.recv().await.unwrap() {
                return frame;
            }
        }
    }

    /// The next query that the node is told to forget.
    pub(super) async fn next_cancel(&mut self) -> QueryKey {
        loop {
            if let ToNode::Cancel { key } = self.seen.recv().await.unwrap() {
                return key;
            }
        }
    }

    /// Exchanges with the real socket, off the runtime's threads.
    pub(super) async fn with_connection<R: Send + 'static>(
        &self,
        exchange: impl FnOnce(modelless_testkit::Connection) -> R + Send + 'static,
    ) -> R {
        let address = self.addresses.http;
        let connect = move || exchange(modelless_testkit::Connection::open(address).unwrap());
        tokio::task::spawn_blocking(connect).await.unwrap()
    }
}

/// What came back.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Buffer,
}

impl Got {
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    /// Status and reason of an error.
    pub(super) fn refusal(&self) -> (u16, String) {
        let body = self.json();
        assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
        (self.status.as_u16(), body["reason"].as_str().unwrap().to_owned())
    }
}

pub(super) async fn ask(router: Router, method: Method, target: &str, media: &str, body: &[u8]) -> Got {
    let mut request = Request::builder().method(method).uri(target);
    if !media.is_empty() {
        request = request.header("content-type", media);
    }
    send(router, request.body(Body::from(body.to_vec())).unwrap()).await
}

pub(super) async fn send(router: Router, request: Request<Body>) -> Got {
    let (head, body) = router.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Got { status: head.status, headers: head.headers, body }
}
