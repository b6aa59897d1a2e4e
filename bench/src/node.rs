//! An executor in this process, with the real engine and its runner processes, and the least there can be of a gateway:
//! [`Link`] writes down when each answer came; what the executor gives no credit for waits in [`crate::sender`].
//!
//! A program that uses it is its own runner, so it calls [`runner_if_asked`] before anything else.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use bytes::Bytes as Buffer;
use modelless_drive::Clock;
use modelless_engine::{Engine, ProcessConfig, ProcessEngine};
use modelless_executor::node::{device_class, hardware};
use modelless_executor::{Config, Deps, Handle, Service, build};
use modelless_profiler::{Package, Profiler, Registrar, TaskManifest};
use modelless_store::{Artefacts, MemStore, Store};
use modelless_types::{
    Bytes, DeviceIx, Micros, NodeId, PlanId, Profile, ReplicaState, Task, TenantId, Variant,
};
use modelless_wire::{Body, FromNode, GatewayLink, NodeLink, ToNode};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Being a runner, where the executor started this program as one.
pub fn runner_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let asked = args.next().is_some_and(|arg| arg == "runner");
    let engine = args.next().filter(|_| asked)?;
    Some(modelless_engine::builtin_runner_main(&engine.to_string_lossy(), args))
}

/// How a query ended.
#[derive(Clone, Debug)]
pub enum How {
    /// With an answer, out of a batch of so many.
    Answered {
        /// Queries in the batch.
        batch: u32,
        /// Time on the device.
        run: Micros,
        /// The JSON.
        body: Buffer,
    },
    /// With a named "no".
    Not(&'static str, String),
}

/// The end of a query.
#[derive(Clone, Debug)]
pub struct End {
    /// Its number.
    pub key: u64,
    /// When the executor said so.
    pub at: Instant,
    /// What it said.
    pub how: How,
}

/// Where the executor's frames go.
#[derive(Debug, Default)]
pub struct Link {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    limit: Limit,
    ends: Vec<End>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limit {
    queries: usize,
    bytes: usize,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the executor gives credit for: queries, and bytes of them.
    pub(crate) fn credit(&self) -> (usize, usize) {
        let Limit { queries, bytes } = self.lock().limit;
        (queries, bytes)
    }

    /// What ended since the last call; waits for something, but not past `until`.
    pub fn ends(&self, into: &mut Vec<End>, until: Instant) {
        let mut state = self.lock();
        while state.ends.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        into.append(&mut state.ends);
    }
}

impl GatewayLink for Link {
    fn receive(&self, _: NodeId, frame: FromNode) {
        let at = Instant::now();
        let bytes = usize::try_from(frame.report.limit.bytes.0).unwrap_or(usize::MAX);
        let limit = Limit { queries: frame.report.limit.queries as usize, bytes };
        let end = match frame.body {
            Body::Answer { key, answer } => {
                Some((key, How::Answered { batch: answer.batch, run: answer.run, body: answer.body }))
            }
            Body::Refused { key, refusal } => Some((key, How::Not(refusal.name(), refusal.to_string()))),
            Body::BadInput { key, why, .. } => Some((key, How::Not("bad_input", why))),
            Body::HandedBack { key, .. } => Some((key, How::Not("handed_back", String::new()))),
            // Nothing is announced here.
            Body::Declined { .. } | Body::Claim { .. } | Body::Report => None,
        };
        let mut state = self.lock();
        state.limit = limit;
        if let Some((key, how)) = end {
            state.ends.push(End { key: key.0, at, how });
            drop(state);
            self.news.notify_one();
        }
    }
}

/// How much memory a node has, by what each of its models takes.
pub type MemoryFor = Box<dyn Fn(&[Bytes]) -> Bytes>;

/// What a node is made with.
pub struct Spec {
    /// The ONNX Runtime library.
    pub library: PathBuf,
    /// Folders of packages, each with one model. One that is named again is another task with a model of its own.
    pub packages: Vec<PathBuf>,
    /// The largest batch, in place of what the packages say.
    pub max_batch: Option<u32>,
    /// How queries share batches, in place of what the tasks say.
    pub batching: Option<String>,
    /// So long at most for measuring each model before it starts.
    pub budget: Option<Duration>,
    /// Batches side by side.
    pub lanes: u16,
    /// Memory for models.
    pub memory: MemoryFor,
    /// Whether whoever brings a lone query may be kept until its answer is there, as the executor does by default. Not where
    /// one thread stands for all of a gateway's: it would bring nothing else meanwhile.
    pub wait_inline: bool,
}

/// A running node.
pub struct Node {
    /// Where frames are sent.
    pub handle: Handle,
    /// Where they come back.
    pub link: Arc<Link>,
    /// Each task with its one variant, in the order of the packages.
    pub served: Vec<(Task, Variant)>,
    store: Arc<dyn Store>,
    artefacts: Artefacts,
    stop: CancellationToken,
    service: JoinHandle<()>,
    runtime: Runtime,
    _folder: modelless_testkit::TempDir,
}

impl Node {
    /// Registers and measures the models of the packages, and starts.
    pub fn start(spec: &Spec) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(modelless_engine::take_short_turns)
            .enable_all()
            .build()?;
        let folder = modelless_testkit::temp_dir("node")?;
        let Built { service, handle, served, store, artefacts } =
            runtime.block_on(built(spec, folder.path()))?;
        let link = Arc::new(Link::default());
        handle.connect(Arc::<Link>::clone(&link));
        let stop = CancellationToken::new();
        let service = runtime.spawn(service.run(stop.clone()));
        Ok(Self { handle, link, served, store, artefacts, stop, service, runtime, _folder: folder })
    }

    /// What was measured of a variant.
    pub fn profile(&self, model: usize) -> Result<&Profile> {
        self.served[model].1.profiles.first().context("a registered variant was measured; this is a bug")
    }

    /// Asks for these to be kept in memory, and for no others.
    pub fn ask_for(&self, models: &[usize]) {
        let pins = models.iter().map(|&model| (DeviceIx(0), self.served[model].1.id)).collect();
        self.handle.send(ToNode::Pin { plan: PlanId(0), pins });
    }

    /// Keeps these in memory, and waits until they are there.
    pub fn pin(&self, models: &[usize]) -> Result<()> {
        self.ask_for(models);
        let wanted: Vec<_> = models.iter().map(|&model| self.served[model].1.id).collect();
        let mut status = self.handle.status();
        let there = async move {
            let serve = |id| move |r: &modelless_wire::ReplicaStatus| r.variant == id && r.state.serves();
            status.wait_for(|s| wanted.iter().all(|id| s.replicas.iter().any(serve(*id)))).await.map(drop)
        };
        let within = async { tokio::time::timeout(Duration::from_mins(1), there).await };
        self.runtime.block_on(within).context("a pinned model was not loaded within a minute")??;
        Ok(())
    }

    /// Every load of a model that came to its end, oldest first, as the node's own history has it: when it began, and how
    /// long it took until the model could answer.
    pub fn loads(&self, model: usize) -> Result<Vec<(SystemTime, Duration)>> {
        let variant = self.served[model].1.id;
        let history = self.runtime.block_on(self.store.transitions(None, 100_000))?;
        let mut begun = None;
        let mut loads = Vec::new();
        for change in history.iter().rev().filter(|t| t.variant == variant).map(|t| &t.change) {
            match (change.to, begun) {
                (ReplicaState::Loading, _) => begun = Some(change.at.0),
                (ReplicaState::Active, Some(since)) => {
                    let began = SystemTime::UNIX_EPOCH + Duration::from_micros(since);
                    loads.push((began, Duration::from_micros(change.at.0.saturating_sub(since))));
                    begun = None;
                }
                _ => {}
            }
        }
        Ok(loads)
    }

    /// Where a model's file lies.
    pub fn file(&self, model: usize) -> Result<PathBuf> {
        Ok(self.artefacts.path(&self.served[model].1.artefact)?)
    }

    /// Has the kernel forget a model's file, so that the next load reads it from the disk.
    pub fn forget_file(&self, model: usize) -> Result<()> {
        crate::timing::forget(&self.file(model)?)
    }

    /// Random inputs of a model, as raw tensors: numbers between 0 and 1, and of tokens and masks what a text has.
    pub fn inputs(&self, model: usize, count: usize, seed: u64) -> Result<Vec<Buffer>> {
        let mut rng = modelless_testkit::Rng::new(seed);
        let task = &self.served[model].0;
        (0..count).map(|_| Ok(crate::random(&task.inputs, &mut rng)?.into())).collect()
    }

    /// Drains and ends.
    pub fn stop(self) -> Result<()> {
        self.stop.cancel();
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(30), self.service).await });
        ended.context("the executor did not end within 30 s")?.context("the executor panicked")
    }
}

struct Built {
    service: Service,
    handle: Handle,
    served: Vec<(Task, Variant)>,
    store: Arc<dyn Store>,
    artefacts: Artefacts,
}

async fn built(spec: &Spec, folder: &Path) -> Result<Built> {
    let store: Arc<dyn Store> = Arc::new(MemStore::new());
    let artefacts = Artefacts::new(folder.join("artefacts"))?;
    let engine = |spare| -> Result<Arc<ProcessEngine>> {
        let config = ProcessConfig { library: spec.library.clone(), spare, ..ProcessConfig::default() };
        Ok(Arc::new(ProcessEngine::new(config)?))
    };
    let measuring = engine(false)?;
    let class = device_class(&hardware());
    let profiler =
        Profiler::new(measuring.clone(), modelless_profiler::Config::default(), class.clone(), "bench")
            .within(spec.budget);
    let registrar = Registrar {
        store: Arc::clone(&store),
        artefacts: artefacts.clone(),
        profiler,
        tenant: TenantId::DEFAULT,
    };
    let mut names = Vec::new();
    for folder in &spec.packages {
        let mut package = Package::read(folder)?;
        package.models.truncate(1);
        if let Some(batching) = &spec.batching {
            package.task = batched(folder, &package.task, batching)?;
        }
        while names.contains(&package.task.name) {
            package.task.name.push_str("-again");
        }
        for variant in package.models.iter_mut().flat_map(|model| &mut model.variants) {
            variant.max_batch = spec.max_batch.unwrap_or(variant.max_batch);
        }
        registrar.package(&package, &mut |_, _| ()).await?;
        names.push(package.task.name);
    }
    measuring.shutdown().await;
    let catalog = store.catalog().await?;
    let of = |name: &String| {
        let task = catalog.task_named(TenantId::DEFAULT, name).context("a task that was just made")?;
        let model = catalog.models_of(task.id).next().context("a model that was just registered")?;
        let variant = catalog.variants_of(model.id).next().context("a model has a variant")?;
        Ok((task.clone(), variant.clone()))
    };
    let served = names.iter().map(of).collect::<Result<Vec<_>>>()?;
    let memory: Vec<Bytes> =
        served.iter().filter_map(|(_, v)| v.profiles.first()).map(|p| p.memory).collect();
    let memory = (spec.memory)(&memory);
    // What is measured says itself what is loaded and when; nothing has to stay for its own sake.
    let min_residence = Micros::ZERO;
    let mut config =
        Config { device_class: class, lanes: spec.lanes, memory, min_residence, ..Config::default() };
    if !spec.wait_inline {
        config.wait_inline = Micros::ZERO;
    }
    let deps = Deps {
        store: Arc::clone(&store),
        artefacts: Arc::new(artefacts.clone()),
        engine: engine(true)?,
        quarantine: engine(false)?,
        clock: Clock::start(),
        recorder: None,
        warnings: Vec::new(),
    };
    let (service, handle) = build(config, deps).await?;
    Ok(Built { service, handle, served, store, artefacts })
}

/// A task as its manifest has it, but for how queries share batches.
fn batched(folder: &Path, task: &TaskManifest, batching: &str) -> Result<TaskManifest> {
    let text = std::fs::read_to_string(folder.join("task.toml"))?;
    // At the top, before the first table.
    let text = format!("batching = \"{batching}\"\n{text}");
    let changed = modelless_testkit::temp_dir("task")?;
    let path = changed.path().join("task.toml");
    std::fs::write(&path, text)?;
    let mut read =
        TaskManifest::read(&path).with_context(|| format!("a task cannot batch by {batching:?}"))?;
    // Its set lies beside the manifest that was.
    read.labelled_set.clone_from(&task.labelled_set);
    Ok(read)
}
