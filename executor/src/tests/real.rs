//! A node with ONNX Runtime in real runner processes. `cargo xtask test` installs the library.

use super::{Ears, LONG, config};
use crate::{Config, Deps, Handle, build};
use modelless_decision::query::Class;
use modelless_drive::Clock;
use modelless_engine::{Library, ProcessConfig, ProcessEngine, default_engines_dir};
use modelless_store::{Artefacts, MemStore, NewModel, NewTask, NewVariant, Signed, Store};
use modelless_testkit::server::cargo_build;
use modelless_types::{
    AccuracyRule, Bytes, DType, DeclaredRule, DeviceIx, Engine, Goals, LiveRule, PlanId, Profile,
    ReplicaState, TaskId, TaskKind, TenantId, TensorSpec, VariantId, VariantSettings,
};
use modelless_wire::{Body, Input, NodeLink, ToNode};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(super) const DEVICE: DeviceIx = DeviceIx(0);

/// A file of this repository.
pub(super) fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

pub(super) fn engine() -> Arc<ProcessEngine> {
    let library = Library::locate(None, &default_engines_dir()).expect("it is installed").path;
    let command = vec![cargo_build("modelless-test-runner").expect("it builds").display().to_string()];
    let config = ProcessConfig { library, command, ..ProcessConfig::default() };
    Arc::new(ProcessEngine::new(config).expect("an engine"))
}

/// A model of a task with one input and one output.
pub(super) struct Served {
    pub(super) model: PathBuf,
    pub(super) input: (&'static str, DType, &'static [u32]),
    pub(super) output: (&'static str, DType, &'static [u32]),
    /// By rising ordinal.
    pub(super) variants: Vec<(VariantSettings, Profile)>,
}

/// A task with nothing in it yet.
pub(super) fn task(name: &str, kind: TaskKind) -> NewTask {
    NewTask {
        tenant: TenantId::DEFAULT,
        name: name.into(),
        kind,
        metric: "none".into(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: LiveRule::default(),
        declared_accuracy: DeclaredRule::default(),
        labels: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        space: None,
        defaults: Goals::default(),
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    }
}

fn model(name: &str, adapter: String, variants: Vec<NewVariant>) -> NewModel {
    NewModel {
        task: TaskId(0),
        tenant: TenantId::DEFAULT,
        name: name.into(),
        version: 1,
        architecture: "any".into(),
        licence: "Apache-2.0".into(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter,
        variants,
    }
}

pub(super) struct Node {
    pub(super) handle: Handle,
    pub(super) gateway: Arc<Ears>,
    pub(super) heard: mpsc::Receiver<Body>,
    pub(super) engine: Arc<ProcessEngine>,
    pub(super) task: TaskId,
    pub(super) variants: Vec<VariantId>,
    stop: CancellationToken,
    service: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Node {
    /// One with the model's variants in memory.
    pub(super) async fn start(lanes: u16, served: Served) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let artefacts = Artefacts::new(folder.path()).expect("an artefact store");
        let artefact = artefacts.put(File::open(served.model).expect("a model")).expect("an artefact");
        let tensor = |(name, dtype, shape): (&str, _, &[u32])| TensorSpec {
            name: name.into(),
            dtype,
            shape: shape.into(),
        };
        let task = NewTask {
            inputs: vec![tensor(served.input)],
            outputs: vec![tensor(served.output)],
            ..task("tensors", TaskKind::Tensor)
        };
        let variants = (0..).zip(served.variants).map(|(number, (settings, profile))| NewVariant {
            name: format!("variant-{number}"),
            settings,
            artefact: artefact.sha256.clone(),
            artefact_bytes: Bytes(artefact.bytes),
            profiles: vec![profile],
        });
        let model = model("model", r#"{"kind": "tensor"}"#.into(), variants.collect());
        Self::serving(lanes, (folder, artefacts), task, model).await
    }

    /// One with the model that reads texts in a folder of this repository. The adapter is made for the tokenizer's address.
    pub(super) async fn reading(
        task: NewTask,
        (folder, artefact): (&str, &str),
        max_batch: u32,
        profile: Profile,
        adapter: impl FnOnce(&str) -> String,
    ) -> Self {
        let place = tempfile::tempdir().expect("a folder");
        let artefacts = Artefacts::new(place.path()).expect("an artefact store");
        let put = |name: &str| {
            let path = file(folder).join(name);
            artefacts.put(File::open(path).expect("it is there")).expect("an artefact")
        };
        let (found, tokenizer) = (put(artefact), put("tokenizer.json"));
        let variant = NewVariant {
            name: "reader".into(),
            settings: VariantSettings::new(Engine::Onnx, "fp32", max_batch),
            artefact: found.sha256,
            artefact_bytes: Bytes(found.bytes),
            profiles: vec![profile],
        };
        let model = model("reader", adapter(&tokenizer.sha256), vec![variant]);
        Self::serving(1, (place, artefacts), task, model).await
    }

    /// One with any model of any task, whatever task the model says.
    async fn serving(
        lanes: u16,
        (folder, artefacts): (tempfile::TempDir, Artefacts),
        task: NewTask,
        model: NewModel,
    ) -> Self {
        let (artefacts, store) = (Arc::new(artefacts), Arc::new(MemStore::new()));
        let task = store.create_task(task).await.expect("a task").id;
        let model = NewModel { task, ..model };
        let variants: Vec<VariantId> =
            store.register_model(model).await.expect("a model").variants.iter().map(|v| v.id).collect();
        let engine = engine();
        let deps = Deps {
            store,
            artefacts,
            engine: Arc::<ProcessEngine>::clone(&engine),
            quarantine: self::engine(),
            clock: Clock::start(),
            recorder: None,
            warnings: Vec::new(),
        };
        let (service, handle) = build(Config { lanes, ..config() }, deps).await.expect("an executor");
        let (sender, heard) = mpsc::channel(1_000);
        let numbers_from = modelless_types::QueryNumber(0);
        let gateway = Arc::new(Ears { sender, numbers_from, asks: OnceLock::new() });
        handle.connect(Arc::clone(&gateway) as _);
        let stop = CancellationToken::new();
        let running = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "the test awaits it in `Node::end`")]
        let service = tokio::spawn(async move { service.run(running).await });
        let pins = variants.iter().map(|variant| (DEVICE, *variant)).collect();
        handle.send(ToNode::Pin { plan: PlanId(1), pins });
        let mut status = handle.status();
        let active = |state| state == ReplicaState::Active;
        let there = status.wait_for(|status| {
            status.replicas.iter().filter(|replica| active(replica.state)).count() == variants.len()
        });
        drop(tokio::time::timeout(LONG, there).await.expect("all load in time").expect("open"));
        Self { handle, gateway, heard, engine, task, variants, stop, service, _folder: folder }
    }

    /// A query that every variant may answer.
    pub(super) fn ask(&self, key: u64, input: Vec<u8>) {
        self.handle.send(self.query(key, input));
    }

    pub(super) fn query(&self, key: u64, input: Vec<u8>) -> ToNode {
        let admits = (0..).take(self.variants.len()).collect();
        let class = Class { task: self.task, admits };
        let decoded = Bytes(input.len() as u64);
        ToNode::Query(Box::new(super::frame_of(class, key, LONG, decoded, Input::Raw(input.into()))))
    }

    pub(super) async fn hear(&mut self) -> Body {
        let heard = tokio::time::timeout(LONG, self.heard.recv());
        heard.await.expect("something is said in time").expect("still open")
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        let within = LONG + Duration::from_secs(10);
        tokio::time::timeout(within, self.service)
            .await
            .expect("it ends in time")
            .expect("it does not panic");
    }
}
