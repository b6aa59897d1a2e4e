//! The executor's life: built, run, drained.

use crate::catalogue::{Catalogue, Tokenizers};
use crate::config::Config;
use crate::core::{Core, Handle};
use crate::history::{self, Writer};
use crate::node::{Tally, Watch};
use crate::quarantine::Quarantine;
use crate::way_back::WayBack;
use modelless_adapter::AdapterSpec;
use modelless_decision::route::NodeInfo;
use modelless_decision::worker::{BatchId, Event, Outcome, Worker};
use modelless_decision::{Correction, Moments};
use modelless_drive::{Clock, Driver, Recorder};
use modelless_engine::{Availability, EngineEvent};
use modelless_store::{Artefacts, Catalog, NewNode, NodeState, Store, UnixMicros};
use modelless_types::{DeviceIx, Engine, NodeId, PricePerHour, Processor, Refusal, ReplicaState, VariantId};
use modelless_wire::{EngineStatus, NodeLoad, NodeStatus, ReplicaStatus};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// So long after its engines have ended a node waits for loads that have not.
const LOADS_END_WITHIN: Duration = Duration::from_secs(2);
/// How often slow figures (corrections) are made known, and the catalogue's version is asked for.
const TICK: Duration = Duration::from_secs(1);
/// Longer than the store lets any statement take.
const STORE_WITHIN: Duration = Duration::from_secs(40);
/// Batches that crashed or could not start and are not told of yet: more than two for each lane there could be.
const ENDINGS: usize = 4_096;
/// How often history is tidied, and how long it is kept.
const TIDY: Duration = Duration::from_hours(1);
const HISTORY: Duration = Duration::from_hours(30 * 24);

/// What an executor stands on.
pub struct Deps {
    /// What must survive a restart.
    pub store: Arc<dyn Store>,
    /// Where artefacts lie.
    pub artefacts: Arc<Artefacts>,
    /// What runs them.
    pub engine: Arc<dyn modelless_engine::Engine>,
    /// What reruns queries whose batch crashed: the same engine again, so that its runners are its own.
    pub quarantine: Arc<dyn modelless_engine::Engine>,
    /// The process's clock.
    pub clock: Clock,
    /// Keeps what the machine was told.
    pub recorder: Option<Recorder>,
    /// What is missing or weakened here, for people.
    pub warnings: Vec<String>,
}

/// Why an executor could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not answer or refused.
    #[error("the executor cannot register: {0}")]
    Store(#[from] modelless_store::Error),
}

/// The executor. [`Service::run`] until it is told to stop.
pub struct Service {
    handle: Handle,
    store: Arc<dyn Store>,
    /// Taken when it starts to run.
    writer: Option<Writer>,
    started: UnixMicros,
    /// Taken when it starts to run.
    ended: Option<mpsc::Receiver<(BatchId, Outcome)>>,
    warnings: Vec<String>,
    engines: Vec<EngineStatus>,
}

/// Registers the node and reads the catalogue. Nothing is loaded before a plan or a query asks for it.
pub async fn build(config: Config, deps: Deps) -> Result<(Service, Handle), Error> {
    let Deps { store, artefacts, engine, quarantine, clock, recorder, warnings } = deps;
    let engines: Vec<EngineStatus> = engine.engines().await.into_iter().map(engine_status).collect();
    let about = NewNode {
        name: config.name.clone(),
        pool: config.pool.clone(),
        zone: config.zone.clone(),
        device_class: config.device_class.clone(),
        lanes: config.lanes,
        memory: config.memory,
        price: config.price,
    };
    let node = store.register_node(about, UnixMicros::of(SystemTime::now())).await?.id;
    let who = format!("executor {}", config.name);
    let place = (config.name.clone(), config.device_class.clone());
    let within = Duration::from_micros(config.store_within.0);
    let (history, mut writer) = history::channel(Arc::clone(&store), node, who, place, within);
    writer.settle().await?;
    let worker = Worker::new(config.worker());
    let started = UnixMicros::of(SystemTime::now());
    let (status, _) = watch::channel(empty_status(&config, node, started, &warnings, &engines));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (endings, ended) = mpsc::channel(ENDINGS);
    let handle = Handle::new(Core {
        endings,
        node,
        driver: Driver::new(worker, clock, recorder),
        engine,
        quarantine: Quarantine::new(quarantine),
        artefacts,
        fetch: OnceLock::new(),
        catalogue: RwLock::default(),
        gateway: OnceLock::new(),
        queries: Mutex::new(HashMap::new()),
        batches: Mutex::new(HashMap::new()),
        given_up: Mutex::default(),
        width: AtomicU16::new(config.width.max(1)),
        way_back: WayBack::default(),
        history: Mutex::new(Some(history)),
        status,
        pinned: Mutex::default(),
        changed: Notify::new(),
        demanded: Mutex::default(),
        last: Mutex::default(),
        draining: AtomicBool::new(false),
        told: Mutex::default(),
        tally: Mutex::new(Tally::default()),
        catalog: Notify::new(),
        incomplete: AtomicBool::new(false),
        tokenizers: Mutex::default(),
        decoders: Arc::new(Semaphore::new(cores)),
        spare_decoder: Arc::new(Semaphore::new(1)),
        tasks: TaskTracker::new(),
        runtime: tokio::runtime::Handle::current(),
        config,
    });
    let service = Service {
        handle: handle.clone(),
        store,
        writer: Some(writer),
        started,
        ended: Some(ended),
        warnings,
        engines,
    };
    let catalog = service.read_catalogue().await?;
    service.remember_marks(&catalog);
    service.publish();
    Ok((service, handle))
}

fn engine_status((engine, availability): (Engine, Availability)) -> EngineStatus {
    let (version, unavailable) = match availability {
        Availability::Ready { version, .. } => (Some(version), None),
        Availability::Unavailable { reason } => (None, Some(reason)),
    };
    EngineStatus { engine, version, unavailable }
}

fn empty_status(
    config: &Config,
    node: NodeId,
    started: UnixMicros,
    warnings: &[String],
    engines: &[EngineStatus],
) -> NodeStatus {
    let info = NodeInfo { id: node, rtt: Moments::ZERO, price: config.price, offers: Vec::new() };
    NodeStatus {
        pool: config.pool.clone(),
        zone: config.zone.clone(),
        zone_source: config.zone_source.clone(),
        hardware: config.hardware.clone(),
        price_origin: config.price_origin.clone(),
        lanes: config.lanes,
        memory_budget: config.memory,
        started_unix_us: started.0,
        warnings: warnings.to_vec(),
        engines: engines.to_vec(),
        ..NodeStatus::idle(info, &config.name, &config.device_class)
    }
}

impl Service {
    /// Serves until `stop`, then drains: hands back what is not started, finishes the rest, ends the runners.
    ///
    /// The machine's timer and the engine's events never wait for the store, which has a task of its own.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        if let Some(writer) = self.writer.take() {
            tasks.spawn(writer.run());
        }
        let mut fallen = self.ended.take();
        let ended = CancellationToken::new();
        let me = Arc::new(self);
        tasks.spawn(Arc::clone(&me).keep_store(ended.clone()));
        let quarantine = Arc::clone(me.handle.core().quarantine.engine());
        tasks.spawn(Quarantine::mourn(quarantine, ended.clone()));
        let handle = me.handle.clone();
        let mut events = handle.engine().events();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let timer = handle.core().driver.serve_timer(&handle);
        tokio::pin!(timer);
        let mut drain_by = None;
        let mut machine = Watch::default();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if drain_by.is_none() => {
                    drain_by = Some(Instant::now() + Duration::from_micros(handle.config().drain.0));
                    me.begin_drain();
                }
                () = until(drain_by) => break,
                Some(event) = next(&mut events) => me.engine_event(event),
                // After the events: the death that it comes of is told first.
                Some((batch, outcome)) = next(&mut fallen) => handle.feed(Event::Done { batch, outcome }),
                () = handle.core().changed.notified() => me.publish(),
                _ = tick.tick() => {
                    if let Some(host) = machine.look(Instant::now(), handle.engine().processor_time()) {
                        handle.feed(Event::Host(host));
                    }
                    handle.weigh_what_is_held();
                    me.publish();
                }
                () = &mut timer => {}
            }
            if drain_by.is_some() && me.drained() {
                break;
            }
        }
        me.end().await;
        ended.cancel();
        let told = async { while tasks.join_next().await.is_some() {} };
        let within = Duration::from_micros(handle.config().store_within.0);
        if tokio::time::timeout(within, told).await.is_err() {
            tracing::warn!("the store was not told of everything at the end: it does not answer");
        }
        tasks.shutdown().await;
    }

    /// Reads the catalogue when it changed, says that the node is there, forgets old history; at the end says that
    /// the node is gone. A store that does not answer delays this and nothing else.
    async fn keep_store(self: Arc<Self>, ended: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tidy = tokio::time::interval(TIDY);
        loop {
            let draining = self.handle.core().draining.load(Ordering::SeqCst);
            tokio::select! {
                biased;
                () = ended.cancelled() => break,
                () = self.handle.core().catalog.notified() => unless(&ended, self.refresh()).await,
                _ = tidy.tick() => unless(&ended, self.forget()).await,
                _ = tick.tick() => {
                    let state = if draining { NodeState::Draining } else { NodeState::Up };
                    unless(&ended, async { self.refresh().await; self.seen(state).await; }).await;
                }
            }
        }
        self.seen(NodeState::Gone).await;
    }

    async fn forget(&self) {
        let now = UnixMicros::of(SystemTime::now());
        let before = UnixMicros(now.0.saturating_sub(u64::try_from(HISTORY.as_micros()).unwrap_or(u64::MAX)));
        if let Err(error) = self.store.forget_transitions(before).await {
            tracing::warn!(%error, "old history could not be forgotten");
        }
    }

    fn begin_drain(&self) {
        self.handle.core().draining.store(true, Ordering::SeqCst);
        self.handle.feed(Event::Drain);
        self.handle.hand_back_undecoded();
        self.publish();
    }

    /// The machine has nothing left, and neither has anybody between the gateways and the machine.
    fn drained(&self) -> bool {
        self.handle.core().driver.look(|worker, _| worker.drained()) && self.handle.queries().is_empty()
    }

    /// Whoever still waits hears why nothing comes, or is given back if it never ran; runners end; the record says that
    /// nothing is in memory.
    async fn end(&self) {
        let behind = self.handle.behind();
        let left: Vec<_> = self.handle.queries().iter().map(|(key, query)| (*key, query.ran)).collect();
        for (key, ran) in left {
            if ran && !behind.contains(&key) {
                self.handle.refuse(key, Refusal::Draining);
            } else {
                self.handle.hand_back(key, Refusal::Draining);
            }
        }
        self.handle.engine().shutdown().await;
        let core = self.handle.core();
        core.quarantine.engine().shutdown().await;
        core.tasks.close();
        // Loads end with their engines. What fetches or checks a large artefact does not, and nobody needs that any more.
        if tokio::time::timeout(LOADS_END_WITHIN, core.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = core.tasks.len(), "what was being fetched or loaded is left as it is");
        }
        let history = core.history.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(history) = history else { return };
        for replica in core.driver.look(|worker, _| worker.replicas()) {
            let (device, variant, state) = (replica.device, replica.variant, replica.state);
            let cause = || "its node shut down".to_owned();
            match state {
                ReplicaState::Inactive | ReplicaState::Failed => {}
                ReplicaState::Draining => {
                    history.note(device, variant, state, ReplicaState::Inactive, cause());
                }
                ReplicaState::Loading
                | ReplicaState::Active
                | ReplicaState::Overloaded
                | ReplicaState::Interfered => {
                    history.note(device, variant, state, ReplicaState::Draining, cause());
                    history.note(device, variant, ReplicaState::Draining, ReplicaState::Inactive, cause());
                }
            }
        }
    }

    fn engine_event(&self, event: EngineEvent) {
        match event {
            EngineEvent::RunnerDied { model, variants, cause, hung } => {
                self.handle.tell_died(model, &variants, &cause);
                self.handle.tally().crashed(&variants);
                self.handle.feed(Event::RunnerDied { model, variants: Some(variants), why: cause, hung });
            }
        }
    }

    /// Reads the catalogue again if it changed.
    async fn refresh(&self) {
        let known = self.handle.catalogue().version;
        let changed = match self.store.catalog_version().await {
            Ok(version) => version != known || self.handle.core().incomplete.swap(false, Ordering::Relaxed),
            Err(error) => return tracing::warn!(%error, "the catalogue cannot be read; the last one stands"),
        };
        if changed {
            match self.read_catalogue().await {
                Ok(_) => self.publish(),
                Err(error) => tracing::warn!(%error, "the catalogue cannot be read; the last one stands"),
            }
        }
    }

    /// What an earlier life of this node said of profiles, it goes on saying.
    fn remember_marks(&self, catalog: &Catalog) {
        let config = self.handle.config();
        let own = catalog.stale.iter().filter(|stale| stale.node == config.name);
        let here = own.filter(|stale| stale.device_class == config.device_class);
        let marked: Vec<VariantId> = here.map(|stale| stale.variant).collect();
        if !marked.is_empty() {
            self.handle.feed(Event::Marked(marked));
        }
    }

    async fn read_catalogue(&self) -> Result<Catalog, Error> {
        let catalog = self.store.catalog().await?;
        let before = self.handle.catalogue();
        let prices = self.prices(&catalog).await;
        let class = &self.handle.config().device_class;
        let tokenizers = self.tokenizers(&catalog).await;
        let (now, runnable) = Catalogue::new(&catalog, class, &self.lacking(), &prices, &tokenizers, &before);
        *self.handle.core().catalogue.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        self.handle.feed(Event::Catalog(runnable));
        Ok(catalog)
    }

    /// The tokenizers that models need, those that are here already and the others, fetched where need be. A model whose
    /// tokenizer cannot be had is left out until the catalogue is read again.
    async fn tokenizers(&self, catalog: &Catalog) -> Tokenizers {
        let specs = catalog.models.iter().filter_map(|model| AdapterSpec::parse(&model.adapter).ok());
        let wanted: BTreeSet<String> = specs.filter_map(|spec| Some(spec.tokenizer()?.to_owned())).collect();
        let known = self.handle.core().tokenizers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = Tokenizers::new();
        for digest in wanted {
            let read = match known.get(&digest) {
                Some(tokenizer) => Ok(Arc::clone(tokenizer)),
                None => self.handle.tokenizer(&digest).await,
            };
            match read {
                Ok(tokenizer) => drop(all.insert(digest, tokenizer)),
                Err(why) => {
                    tracing::warn!(
                        sha256 = digest,
                        why,
                        "a tokenizer cannot be had; its models are left out"
                    );
                    self.handle.catalog_incomplete();
                }
            }
        }
        *self.handle.core().tokenizers.lock().unwrap_or_else(PoisonError::into_inner) = all.clone();
        all
    }

    /// What variants cost that compute elsewhere than on a lane.
    async fn prices(&self, catalog: &Catalog) -> BTreeMap<VariantId, PricePerHour> {
        let config = self.handle.config();
        let variants = catalog.models.iter().flat_map(|model| catalog.variants_of(model.id));
        let on_gpus = variants.filter_map(|variant| match variant.settings.processor {
            Processor::Cpu => None,
            Processor::Cuda(number) | Processor::Tensorrt(number) => {
                Some((variant.id, config.gpu_price(number)))
            }
        });
        let mut prices: BTreeMap<_, _> = on_gpus.collect();
        prices.extend(self.prices_of_servers(catalog).await);
        prices
    }

    /// What variants on servers with a price of their own cost: their artefacts say which server that is.
    async fn prices_of_servers(&self, catalog: &Catalog) -> BTreeMap<VariantId, PricePerHour> {
        let servers = &self.handle.config().remotes;
        let priced: BTreeMap<String, PricePerHour> =
            servers.iter().filter_map(|(server, known)| Some((server.clone(), known.price?))).collect();
        let variants = catalog.models.iter().flat_map(|model| catalog.variants_of(model.id));
        let remote: Vec<(VariantId, String)> = variants
            .filter(|variant| variant.settings.engine == Engine::Remote)
            .map(|variant| (variant.id, variant.artefact.clone()))
            .collect();
        if priced.is_empty() || remote.is_empty() {
            return BTreeMap::new();
        }
        let artefacts = self.handle.artefacts();
        let read = move || {
            let price = |(variant, digest): (VariantId, String)| {
                let artefact = artefacts.open(&digest);
                let artefact = artefact.inspect_err(|error| {
                    tracing::warn!(%variant, %error, "its server is not known, and so it costs what a lane costs");
                });
                let server = modelless_engine::remote_authority(&artefact.ok()?)?;
                Some((variant, *priced.get(&server)?))
            };
            remote.into_iter().filter_map(price).collect()
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading artefacts panicked; this is a bug");
            BTreeMap::new()
        })
    }

    /// Engines that nothing can run with here.
    fn lacking(&self) -> Vec<Engine> {
        let lacks = |status: &&EngineStatus| status.unavailable.is_some();
        self.engines.iter().filter(lacks).map(|status| status.engine).collect()
    }

    /// What was said at start, and which variants cannot run for want of an engine.
    fn warnings(&self, catalogue: &Catalogue) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        for status in &self.engines {
            let Some(why) = &status.unavailable else { continue };
            let count = catalogue.left_out(status.engine);
            if count > 0 {
                let what = if count == 1 { "1 variant".to_owned() } else { format!("{count} variants") };
                warnings.push(format!("{what} cannot run: {} is not available: {why}", status.engine));
            }
        }
        warnings
    }

    async fn seen(&self, state: NodeState) {
        let at = UnixMicros::of(SystemTime::now());
        if let Err(error) = self.store.node_seen(self.handle.core().node, state, at).await {
            tracing::warn!(%error, "the node's state could not be stored");
        }
    }

    /// Makes known what changed, to the gateway's routing and to people.
    fn publish(&self) {
        let core = self.handle.core();
        let (offers, replicas, memory_used, load, (lanes, _), narrowed, caution) =
            core.driver.look(|worker, now| {
                let (lanes, narrowed) = (worker.lanes_of(DeviceIx(0)), worker.narrowed());
                let (used, caution) = (worker.memory_used(), worker.caution(now));
                (worker.offers(now), worker.replicas(), used, worker.load(), lanes, narrowed, caution)
            });
        let known = self.handle.catalogue();
        *core.told.lock().unwrap_or_else(PoisonError::into_inner) =
            replicas.iter().map(|replica| (replica.variant, replica.correction)).collect();
        // Those that are still being decoded are known to the machine only afterwards.
        let here = u32::try_from(self.handle.queries().len()).unwrap_or(u32::MAX);
        let load = NodeLoad {
            lanes_busy: load.lanes_busy,
            queued: here.saturating_sub(load.running).max(load.queued),
            running: load.running,
            ..NodeLoad::default()
        };
        let mut tally = self.handle.tally();
        tally.keep(|variant| known.variant(variant).is_some());
        let replica = |view: modelless_decision::worker::ReplicaView| {
            let seen = view.correction != Correction::NONE;
            ReplicaStatus {
                device: view.device,
                variant: view.variant,
                state: view.state,
                memory: view.memory,
                slowdown: seen.then_some(view.correction.ratio),
                cause: view.cause,
                signs: view.signs,
                loads: tally.loads(view.variant),
            }
        };
        let config = self.handle.config();
        let status = NodeStatus {
            lanes,
            narrowed,
            caution: worth_telling(caution),
            memory_used,
            load: tally.with(load),
            draining: core.draining.load(Ordering::SeqCst),
            info: NodeInfo { id: core.node, rtt: Moments::ZERO, price: config.price, offers },
            replicas: replicas
                .into_iter()
                .filter(|r| known.variant(r.variant).is_some())
                .map(replica)
                .collect(),
            ..empty_status(config, core.node, self.started, &self.warnings(&known), &self.engines)
        };
        drop(tally);
        let changed = core.status.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
        if changed {
            self.handle.report();
        }
    }
}

/// How cautious the node is, in tenths: what fades all the time is not to be news all the time.
fn worth_telling(caution: f64) -> Option<f64> {
    let tenths = (caution * 10.0).round();
    (tenths > 10.0).then_some(tenths / 10.0)
}

/// Does something with the store, unless the end comes first. A store that is cut off would never be done.
async fn unless(ended: &CancellationToken, what: impl Future<Output = ()>) {
    tokio::select! {
        () = ended.cancelled() => {}
        done = tokio::time::timeout(STORE_WITHIN, what) => if done.is_err() {
            tracing::warn!("the store did not answer within {STORE_WITHIN:?}; serving on");
        },
    }
}

/// Never, until there is a deadline.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Never, when someone else has what comes.
async fn next<T>(events: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match events {
        Some(events) => events.recv().await,
        None => std::future::pending().await,
    }
}
