//! Engines as supervised runner processes: one for each model, shared by its variants.
//!
//! Threads, all named: for each runner a *keeper* that starts it, asks it to load and unload, collects what it
//! prints, and reaps it; for each lane a *reader* that sleeps until a batch is done; and one *watch* that kills
//! runners whose batch runs over its limit. None of them is a task of the async runtime: a completion takes the
//! shortest way, and the death signal of a runner is tied to the thread that started it.

mod access;
mod behind;
mod bound;
mod keeper;
mod lane;
mod served;
mod spare;
mod spawn;
mod watch;

use crate::control::Gently;
use crate::sandbox::{Confinement, Sandbox};
use crate::seam::{Availability, Done, Engine, EngineError, EngineEvent, Freed, LoadSpec, Loaded};
use crate::slot::{BatchSlot, Layout, Vacancy};
use crate::{clock, library, runner};
use crate::{seam::BatchError, shm::Mapping};
pub use access::{ServerFiles, USUAL_AUTHORITIES};
use async_trait::async_trait;
use keeper::{Handle, Job};
use lane::Lane;
use modelless_types::{Bytes, Engine as Kind, Micros, ModelId, VariantId, VariantSettings};
use serde::{Deserialize, Serialize};
pub use spare::SpareInfo;
use spare::{Loading, Spare, again};
use spawn::Process;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Deaths that nobody has read yet; the keepers of further ones wait.
pub(crate) const EVENTS: usize = 64;

/// How runners are run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// What its runners host.
    pub engine: Kind,
    /// The inference library.
    pub library: PathBuf,
    /// The command that starts a runner, before its own arguments. Empty: this program with `runner ENGINE`.
    pub command: Vec<String>,
    /// What a runner finds in its environment, and all of it.
    pub environment: BTreeMap<String, String>,
    /// The most private memory of a runner, whatever its model. One that holds more is killed; a little above it the
    /// kernel gives no more.
    pub memory_limit: Option<Bytes>,
    /// What runners are kept from. For tests and debugging.
    pub sandbox: Sandbox,
    /// The largest batch that a variant may ask for.
    pub max_batch: u32,
    /// The most shared memory of one variant on one lane.
    pub max_arena: Bytes,
    /// How long starting a runner may take, and loading a variant.
    pub load_limit: Micros,
    /// How long a load beside models that are served gives way to them. One that is not done by then, because they or
    /// others take the whole machine, is begun again without.
    pub load_patience: Micros,
    /// Servers that its runners may reach besides this machine itself, by their `HOST:PORT`, and files about them, which are
    /// read with every load.
    pub servers: BTreeMap<String, ServerFiles>,
    /// Keeps a runner started ahead, so that a model's load does not wait for that: of ONNX Runtime since it was found to be there, of
    /// another engine since something was loaded on it.
    pub spare: bool,
    /// How much its runners stand back behind everything else, as `nice` counts.
    pub nice: u8,
    /// Its runners are for models on GPUs: they reach the driver, and are confined less for it. Of a set of engines: models
    /// on GPUs get such runners, beside the usual ones.
    pub gpu: bool,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            engine: Kind::Onnx,
            library: PathBuf::new(),
            command: Vec::new(),
            environment: BTreeMap::new(),
            memory_limit: None,
            sandbox: Sandbox::default(),
            max_batch: 1024,
            max_arena: Bytes::from_mib(1024),
            load_limit: Micros::from_secs(120),
            load_patience: Micros::from_secs(10),
            servers: BTreeMap::new(),
            spare: true,
            nice: 0,
            gpu: false,
        }
    }
}

impl ProcessConfig {
    /// How to run an engine with what is installed for it, or what is missing.
    pub fn installed(engine: Kind, engines_dir: &Path) -> Result<Self, String> {
        let config = Self { engine, ..Self::default() };
        if engine == Kind::Torch {
            // Its library is linked: where the runner is, the library was found.
            let runner = library::torch_runner(engines_dir);
            if !runner.is_file() {
                return Err("its runner is not built; run `modelless engine install torch`".to_owned());
            }
            return Ok(Self { command: vec![runner.display().to_string()], library: runner, ..config });
        }
        let Some(library) = library::installed_engine(engines_dir, engine) else {
            // One that is started ahead would not know which server it is to reach.
            return Ok(Self { spare: false, ..config });
        };
        if !library.is_file() {
            return Err(format!("it is not installed; run `modelless engine install {engine}`"));
        }
        match engine {
            Kind::Onnx | Kind::Torch | Kind::Remote => Ok(Self { library, ..config }),
            Kind::Openvino => {
                // Virtual machines may advertise AMX without being able to use it, and oneDNN dies of that.
                let environment = [("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")];
                let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
                Ok(Self { library, environment: environment.into(), ..config })
            }
        }
    }

    /// What a variant asks for that nobody here would keep to: to take it as said would promise what does not hold.
    fn not_heeded(&self, settings: &VariantSettings) -> Option<String> {
        let why = match self.engine {
            Kind::Onnx => return None,
            Kind::Openvino => "OpenVINO runs on the CPU here",
            Kind::Torch => "libtorch's binding has no call to bound what a model takes of a GPU",
            Kind::Remote => "what a server's models take of its GPUs is set there",
        };
        settings.gpu_memory.map(|_| format!("`gpu_memory` is ONNX Runtime's alone, and {why}: leave it out"))
    }

    /// Whoever may register a model names its server, so only those may be reached that the node's owner names as well.
    fn may_reach(&self, server: &str) -> Result<(), String> {
        if self.servers.contains_key(server) || is_here(server) {
            return Ok(());
        }
        Err(format!(
            "{server} is no server that this node may reach: besides this machine itself these are the ones that the \
             node's file names under [remotes] (see docs/engines.md)"
        ))
    }

    fn load_limit(&self) -> Duration {
        Duration::from_micros(self.load_limit.0)
    }

    fn load_patience(&self) -> Duration {
        Duration::from_micros(self.load_patience.0).min(self.load_limit())
    }
}

/// Whether a server, as `HOST:PORT`, is on this machine whatever its names resolve to.
fn is_here(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

/// A runner as it is now, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunnerInfo {
    /// The model it is for.
    pub model: ModelId,
    /// Its process, once started.
    pub pid: Option<u32>,
    /// It was started ahead, as a spare.
    pub from_spare: bool,
    /// What is resident in it.
    pub variants: Vec<VariantId>,
    /// Memory it holds now, shared memory that it touched included.
    pub memory: Bytes,
}

/// The real engine. Dropping it kills all runners.
#[derive(Debug)]
pub struct ProcessEngine {
    inner: Arc<Inner>,
    events: Mutex<Option<mpsc::Receiver<EngineEvent>>>,
}

/// What engine, keepers and watch share.
#[derive(Debug)]
struct Inner {
    config: ProcessConfig,
    state: RwLock<State>,
    events: mpsc::Sender<EngineEvent>,
    /// Numbers loads and runners, so that an old one is never taken for a new one.
    numbers: AtomicU64,
    watch: watch::Watch,
    /// Loads that somebody waits for.
    loading: AtomicUsize,
    /// How the last runner that started is confined.
    confinement: Mutex<Option<Confinement>>,
    /// A load that gave way left threads that go on doing so: no further one does.
    left_behind: AtomicBool,
    /// When something was run here last, in microseconds since `began`; 0 for never.
    ran: AtomicU64,
    began: Instant,
    /// The other engines of this node.
    beside: OnceLock<Vec<Weak<Inner>>>,
}

#[derive(Debug, Default)]
struct State {
    runners: BTreeMap<ModelId, Handle>,
    variants: BTreeMap<VariantId, Arc<Seat>>,
    spare: Spare,
    closed: bool,
}

/// A resident variant.
#[derive(Debug)]
struct Seat {
    model: ModelId,
    variant: VariantId,
    load: u64,
    layout: Arc<Layout>,
    fixed_batch: Option<u32>,
    lanes: Vec<(Arc<Lane>, Arc<Mapping>)>,
}

impl ProcessEngine {
    /// An engine without runners; the first load starts one.
    pub fn new(config: ProcessConfig) -> Result<Self, EngineError> {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let engine = Self::telling(config, sender)?;
        *lock(&engine.events) = Some(receiver);
        Ok(engine)
    }

    /// One whose events go where others' go as well. It has no receiver to give out.
    pub(crate) fn telling(
        config: ProcessConfig,
        sender: mpsc::Sender<EngineEvent>,
    ) -> Result<Self, EngineError> {
        let inner = Arc::new_cyclic(|inner| Inner {
            config,
            state: RwLock::default(),
            events: sender,
            numbers: AtomicU64::new(1),
            watch: watch::Watch::new(inner.clone()),
            loading: AtomicUsize::new(0),
            confinement: Mutex::default(),
            left_behind: AtomicBool::new(false),
            ran: AtomicU64::new(0),
            began: clock::now(),
            beside: OnceLock::new(),
        });
        inner.watch.start().map_err(EngineError::system("start the engine's watch"))?;
        Ok(Self { inner, events: Mutex::default() })
    }

    /// Engines that share a machine: what one serves, the others' loads give way to.
    pub(crate) fn share_machine(engines: &[&Self]) {
        for engine in engines {
            let others = engines.iter().filter(|other| !std::ptr::eq(**other, *engine));
            let _ = engine.inner.beside.set(others.map(|other| Arc::downgrade(&other.inner)).collect());
        }
    }

    fn lane(&self, variant: VariantId, lane: u16) -> Option<Arc<Lane>> {
        let state = self.inner.read();
        let (lane, _) = state.variants.get(&variant)?.lanes.get(usize::from(lane))?;
        Some(Arc::clone(lane))
    }

    /// How runners are confined here, as the last one that started found. `None` until one has: [`Engine::check`]
    /// starts one.
    pub fn confinement(&self) -> Option<Confinement> {
        lock(&self.inner.confinement).clone()
    }

    /// The runners there are.
    pub fn runners(&self) -> Vec<RunnerInfo> {
        let state = self.inner.read();
        let info = |(model, handle): (&ModelId, &Handle)| RunnerInfo {
            model: *model,
            pid: handle.runner.pid(),
            from_spare: handle.from_spare,
            variants: state.variants.values().filter(|s| s.model == *model).map(|s| s.variant).collect(),
            memory: handle.runner.memory(),
        };
        state.runners.iter().map(info).collect()
    }

    async fn load_once(&self, spec: LoadSpec, gently: bool, since: Instant) -> Result<Loaded, EngineError> {
        let (reply, answer) = oneshot::channel();
        let model = spec.model;
        self.ask(model, Job::Load { spec: Box::new(spec), gently, since, reply })?;
        answer.await.unwrap_or(Err(EngineError::Busy("it is shutting down")))
    }

    /// The server that a runner started for a job has to reach, where that is what it hosts.
    fn server(&self, job: &Job) -> Option<String> {
        match job {
            Job::Load { spec, .. } if self.inner.config.engine == Kind::Remote => {
                runner::remote_authority(&spec.artefact)
            }
            Job::Load { .. } | Job::Unload { .. } | Job::Adopt { .. } => None,
        }
    }

    /// Hands a job to the runner of a model, started if need be.
    fn ask(&self, model: ModelId, job: Job) -> Result<(), EngineError> {
        let mut state = self.inner.write();
        if state.closed {
            return Err(EngineError::Busy("it is shutting down"));
        }
        if let Some(runner) = state.runners.get(&model) {
            return runner.ask(job);
        }
        state.spare.want();
        let runner = match state.spare.adopt(model) {
            Some(spare) => spare,
            None => keeper::start(&self.inner, model, self.server(&job))?,
        };
        let asked = runner.ask(job);
        state.runners.insert(model, runner);
        self.inner.watch.wake();
        asked
    }
}

#[async_trait]
impl Engine for ProcessEngine {
    async fn check(&self) -> Availability {
        let config = self.inner.config.clone();
        let library = config.library.display().to_string();
        let probe = tokio::task::spawn_blocking(move || {
            let mut process = Process::spawn(&config, Gently::Not)?;
            let hello = process.hello(config.load_limit());
            process.end();
            hello
        });
        match probe.await {
            Ok(Ok((version, confinement))) => {
                *lock(&self.inner.confinement) = Some(confinement);
                // Most models are its. On another engine nothing may ever be loaded, and its spare would take memory all the same:
                // the first load wants one for the next.
                if self.inner.config.engine == Kind::Onnx {
                    self.inner.write().spare.want();
                    self.inner.watch.wake();
                }
                Availability::Ready { version, library }
            }
            Ok(Err(EngineError::Unavailable(reason))) => Availability::Unavailable { reason },
            Ok(Err(error)) => Availability::Unavailable { reason: error.to_string() },
            Err(error) => Availability::Unavailable { reason: format!("the check was cut short: {error}") },
        }
    }

    async fn engines(&self) -> Vec<(Kind, Availability)> {
        vec![(self.inner.config.engine, self.check().await)]
    }

    async fn load(&self, spec: LoadSpec) -> Result<Loaded, EngineError> {
        let limits = &self.inner.config;
        let (lanes, batch, threads) = (spec.lanes, spec.settings.max_batch, spec.settings.threads);
        if lanes == 0 || lanes > crate::control::MAX_LANES {
            let allowed = format!("between 1 and {}", crate::control::MAX_LANES);
            return Err(EngineError::range("the number of lanes", lanes, allowed));
        }
        if batch == 0 || batch > limits.max_batch {
            let allowed = format!("between 1 and {}", limits.max_batch);
            return Err(EngineError::range("the largest batch", batch, allowed));
        }
        if threads == 0 {
            return Err(EngineError::range("the number of threads", threads, "at least 1"));
        }
        if let Some(why) = limits.not_heeded(&spec.settings) {
            return Err(EngineError::Refused { variant: spec.variant, why });
        }
        if limits.engine == Kind::Remote
            && let Some(server) = runner::remote_authority(&spec.artefact)
        {
            let variant = spec.variant;
            limits.may_reach(&server).map_err(|why| EngineError::Refused { variant, why })?;
        }
        let (since, _loading) = (clock::now(), Loading::start(&self.inner));
        let again = again(&spec)?;
        match self.load_once(spec, true, since).await {
            // It gave way for too long. Whatever else a runner does in vain counts against the whole limit.
            Err(EngineError::Stuck { limit, .. }) if limit < self.inner.config.load_limit() => {
                self.load_once(again, false, since).await
            }
            other => other,
        }
    }

    async fn unload(&self, variant: VariantId) -> Result<Freed, EngineError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.inner.write();
            let seat = state.variants.get(&variant).ok_or(EngineError::NotLoaded(variant))?;
            // Submitting takes this lock for reading, so nothing slips in between looking and removing.
            if seat.lanes.iter().any(|(lane, _)| lane.has_in_flight(variant)) {
                return Err(EngineError::InUse(variant));
            }
            let runner = state.runners.get(&seat.model).ok_or(EngineError::NotLoaded(variant))?;
            runner.ask(Job::Unload { variant, reply })?;
            state.variants.remove(&variant);
        }
        answer.await.unwrap_or(Err(EngineError::Busy("it is shutting down")))
    }

    fn slot(&self, variant: VariantId, lane: u16, batch: u32) -> Result<BatchSlot, EngineError> {
        let state = self.inner.read();
        let seat = state.variants.get(&variant).ok_or(EngineError::NotLoaded(variant))?;
        let (on, arena) = seat
            .lanes
            .get(usize::from(lane))
            .ok_or_else(|| EngineError::range("the lane", lane, format!("below {}", seat.lanes.len())))?;
        BatchSlot::new((variant, seat.load), lane, batch, &seat.layout, arena, &on.gate)
    }

    fn submit(&self, mut slot: BatchSlot, limit: Duration, done: Done) {
        self.inner.runs_now();
        let refused = {
            let state = self.inner.read();
            match state.variants.get(&slot.variant).filter(|seat| seat.load == slot.load) {
                Some(seat) => {
                    let rows = seat.fixed_batch.unwrap_or(slot.batch);
                    if rows > slot.batch {
                        slot.pad();
                    }
                    seat.lanes[usize::from(slot.lane)].0.submit(slot, rows, limit, done)
                }
                None => Err((done, "the variant was unloaded".to_owned())),
            }
        };
        // Outside of the lock, for `done` may call the engine.
        if let Err((done, why)) = refused {
            done(Err(BatchError::NotStarted(why)));
        }
    }

    fn help(&self, variant: VariantId, lane: u16, limit: Duration) {
        if let Some(lane) = self.lane(variant, lane) {
            lane.help(limit);
        }
    }

    fn prime(&self, variant: VariantId, lane: u16) {
        if let Some(lane) = self.lane(variant, lane) {
            lane.prime();
        }
    }

    fn vacancy(&self, variant: VariantId, lane: u16) -> Option<Vacancy> {
        self.lane(variant, lane).map(|lane| Vacancy(Arc::clone(&lane.gate)))
    }

    fn revoke(&self, variant: VariantId, lane: u16, ticket: u64) {
        if let Some(lane) = self.lane(variant, lane) {
            lane.revoke(ticket);
        }
    }

    fn stand_back(&self, variant: VariantId, lane: u16, ticket: u64) {
        if let Some(lane) = self.lane(variant, lane) {
            lane.stand_back(ticket);
        }
    }

    fn peak(&self, variant: VariantId) -> Option<Bytes> {
        let state = self.inner.read();
        let seat = state.variants.get(&variant)?;
        state.runners.get(&seat.model)?.runner.peak()
    }

    fn held(&self) -> Vec<(Vec<VariantId>, Bytes)> {
        let mut inside: BTreeMap<ModelId, Vec<VariantId>> = BTreeMap::new();
        let runners: Vec<_> = {
            let state = self.inner.read();
            for seat in state.variants.values() {
                inside.entry(seat.model).or_default().push(seat.variant);
            }
            state.runners.iter().map(|(model, handle)| (*model, Arc::clone(&handle.runner))).collect()
        };
        let held =
            |(model, runner): (ModelId, Arc<lane::Runner>)| Some((inside.remove(&model)?, runner.held()));
        runners.into_iter().filter_map(held).collect()
    }

    fn processor_time(&self) -> Option<Duration> {
        let runners: Vec<_> =
            self.inner.read().runners.values().map(|handle| Arc::clone(&handle.runner)).collect();
        Some(runners.iter().filter_map(|runner| runner.processor_time()).sum())
    }

    fn events(&self) -> Option<mpsc::Receiver<EngineEvent>> {
        lock(&self.events).take()
    }

    async fn shutdown(&self) {
        let keepers = self.inner.close();
        let joined = tokio::task::spawn_blocking(move || {
            for keeper in keepers {
                if keeper.join().is_err() {
                    tracing::error!("the keeper of a runner panicked; this is a bug");
                }
            }
        });
        if joined.await.is_err() {
            tracing::error!("waiting for the runners to end was cut short");
        }
    }
}

impl Drop for ProcessEngine {
    fn drop(&mut self) {
        // The keepers reap what they started; nobody waits for them.
        drop(self.inner.close());
    }
}

impl Inner {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes no more requests and ends all runners. What is left to join.
    fn close(&self) -> Vec<std::thread::JoinHandle<()>> {
        let mut state = self.write();
        state.closed = true;
        state.variants.clear();
        let handles = std::mem::take(&mut state.runners);
        self.watch.stop();
        let spare = state.spare.end();
        handles.into_values().chain(spare).filter_map(Handle::end).collect()
    }
}

/// Locks what cannot be left half-changed, so a panic elsewhere is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_and_servers_that_are_named_may_be_reached() {
        let named = [("10.0.0.7:8001".to_owned(), ServerFiles::default())].into();
        let config = ProcessConfig { servers: named, ..ProcessConfig::default() };
        for server in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:8000", "localhost:8000", "10.0.0.7:8001"] {
            assert_eq!(config.may_reach(server), Ok(()), "{server}");
        }
        let others =
            ["10.0.0.7:8002", "10.0.0.8:8001", "localhost.example:80", "169.254.169.254:80", "[::2]:80"];
        for server in others {
            let why = config.may_reach(server).expect_err(server);
            assert!(why.starts_with(server) && why.contains("[remotes]"), "{why}");
        }
    }
}
