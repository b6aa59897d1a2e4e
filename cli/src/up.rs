//! `modelless up`: the whole platform in one process. Configured, built, run, drained; every part is somebody else's.

pub(crate) mod admin;
pub(crate) mod config;
mod live;
pub(crate) mod measure;
pub(crate) mod node;
pub(crate) mod remotes;
mod trying;

pub(crate) use config::Options;
pub(crate) use node::{bytes, half_of_memory, left_of_memory};

use crate::demo::Demo;
use crate::progress::{Phase, count, short};
use crate::replay::{RouterSettings, record};
use crate::roles::{Measurer, clearing};
use crate::signals::{Signals, until_second_signal};
use crate::{engines, exposed, out};
use admin::{Going, Places, Registry};
use anyhow::Context;
use async_trait::async_trait;
use config::Config;
use measure::{Rest, measure};
use modelless_drive::{Clock, Recorder};
use modelless_engine::take_short_turns;
use modelless_executor as executor;
use modelless_gateway as gateway;
use modelless_scheduler as scheduler;
use modelless_store::{Artefacts, DataDir, Store};
use modelless_telemetry::{Metrics, log};
use modelless_types::{Bytes, ReplicaState};
use modelless_wire::{Gpu, Hardware, NodeLink, NodeStatus, PriceOrigin};
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long models that the plan pins may take to load before `up` says that it is ready without them.
const PINS_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn run(options: Options) -> anyhow::Result<()> {
    let config = options.config()?;
    log::init_from_environment("warn").map_err(|error| crate::exit::usage(error.to_string()))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().on_thread_start(take_short_turns).enable_all().build()?;
    let result = runtime.block_on(until_second_signal(up(options, config)));
    // What is left are threads that block; nothing is kept waiting for them.
    runtime.shutdown_background();
    result
}

async fn up(options: Options, config: Config) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut signals = Signals::new()?;
    let stop = CancellationToken::new();
    let serving = async {
        let parts = tokio::select! {
            built = build(&options, &config, &stop) => built?,
            () = stop.cancelled() => return Ok(()), // interrupted before it served anything
        };
        parts.run(started, &stop).await
    };
    let interrupted = async {
        signals.next().await;
        eprintln!("stopping: queries at hand are finished first; interrupt again to stop at once");
        stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = serving => result,
        () = interrupted => Ok(()),
    }
}

/// Everything that runs, built and not yet running.
struct Parts {
    store: Arc<dyn Store>,
    artefacts: Artefacts,
    executor: (executor::Service, executor::Handle),
    gateway: (gateway::Service, gateway::Handle),
    scheduler: (scheduler::Service, scheduler::Handle),
    name: String,
    registry: Registry,
    addresses: gateway::Addresses,
    demo: Option<(Demo, PathBuf)>,
    drain_within: Duration,
    /// Held for as long as the process uses the folder.
    _data: DataDir,
}

async fn build(options: &Options, config: &Config, stop: &CancellationToken) -> anyhow::Result<Parts> {
    port_is_free(config.gateway.http)?;
    let data = DataDir::lock(&config.data)?;
    let artefacts = Artefacts::new(data.artefacts())?;
    let phase = Phase::start("opening the store");
    let address = options.database.clone().unwrap_or_else(|| format!("sqlite:{}", data.database().display()));
    let store: Arc<dyn Store> = Arc::new(modelless_store::open(&address).await?);
    let place = match &options.database {
        Some(_) => "--database URL".to_owned(),
        None => format!("--data {}", data.path().display()),
    };
    exposed::check(&*store, &config.gateway, (options.insecure, "--insecure"), &place).await?;
    clearing::begin(&*store, &artefacts).await?;
    phase.done(&format!("{} opened", store.describe()));

    let library = options.library.clone();
    let library = tokio::task::spawn_blocking(move || engines::library(&library)).await??;

    let executor_handle: Arc<OnceLock<executor::Handle>> = Arc::default();
    let servers = config.executor.servers();
    let registry = Registry {
        store: Arc::clone(&store),
        artefacts: artefacts.clone(),
        library: library.clone(),
        servers: servers.clone(),
        gpus: config.executor.hardware.gpus.clone(),
        device_class: config.executor.device_class.clone(),
        tasks: TaskTracker::new(),
        stop: stop.clone(),
        places: Places::default(),
        going: Going::default(),
        executor: Arc::clone(&executor_handle),
    };
    let folder = data.path().join("demo");
    let packages = match options.demo {
        Some(demo) => demo.packages(&folder).await?,
        None => Vec::new(),
    };
    let mut warnings = measure(&registry, &packages, Rest::Now, options.budget).await?;
    let gpus = &config.executor.hardware.gpus;
    let engine = engines::serving(library.clone(), config.executor.memory, gpus, &servers)?;
    let quarantine = engines::quarantine(library, config.executor.memory, gpus, &servers)?;
    warnings.extend(engines::confinement(&engine).await);

    let clock = Clock::start();
    let (router_log, worker_log) = recorders(options.record.as_deref(), config)?;
    let deps = executor::Deps {
        store: Arc::clone(&store),
        artefacts: Arc::new(artefacts.clone()),
        engine,
        quarantine,
        clock,
        recorder: worker_log,
        warnings,
    };
    let (executor, handle) = executor::build(config.executor.clone(), deps).await?;
    let _ = executor_handle.set(handle.clone()); // only set here
    let link: Arc<dyn NodeLink> = Arc::new(handle.clone());

    let (router_log, settings) = match router_log {
        Some((log, settings)) => (Some(log), Some(settings)),
        None => (None, None),
    };
    let gateway_config =
        gateway::Config { seed: settings.map(|s: RouterSettings| s.seed), ..config.gateway.clone() };
    let deps = gateway::Deps {
        store: Arc::clone(&store),
        artefacts: Some(artefacts.clone()),
        nodes: vec![(handle.status(), Arc::clone(&link))],
        clock,
        recorder: router_log,
        metrics: Arc::new(Metrics::new()),
        admin: Some(Arc::new(registry.clone())),
        live: None,
    };
    let mut gateway = gateway::Service::build(gateway_config, deps).await?;
    let addresses = gateway.bind().await?;
    let gateway_handle = gateway.handle();
    handle.connect(gateway_handle.link());

    let nodes = vec![scheduler::Node { status: handle.status(), link }];
    let (scheduler, planned) = scheduler::build(scheduler::Config::default(), Arc::clone(&store), nodes);
    let scheduler = (scheduler.named(&config.executor.name), planned);
    Ok(Parts {
        store,
        artefacts,
        executor: (executor, handle),
        gateway: (gateway, gateway_handle),
        scheduler,
        name: config.executor.name.clone(),
        registry,
        addresses,
        demo: options.demo.map(|demo| (demo, folder)),
        drain_within: config.drain_within,
        _data: data,
    })
}

/// Everything that is registered lies in the one data folder.
struct AllHere;

#[async_trait]
impl executor::Fetch for AllHere {
    async fn fetch(&self, _: &str, _: Option<Bytes>) -> Result<(), String> {
        Ok(())
    }
}

/// Said now rather than after a minute of measuring. The real bind comes when there is something to serve.
fn port_is_free(address: SocketAddr) -> anyhow::Result<()> {
    TcpListener::bind(address).map(drop).with_context(|| {
        format!("cannot listen on {address}; give another address with --http, or stop what uses it")
    })
}

type Logs = (Option<(Recorder, RouterSettings)>, Option<Recorder>);

fn recorders(folder: Option<&Path>, config: &Config) -> anyhow::Result<Logs> {
    let Some(folder) = folder else { return Ok((None, None)) };
    let seed =
        getrandom::u64().map_err(|error| anyhow::anyhow!("the system gave no random bytes: {error}"))?;
    let router = RouterSettings { limits: config.gateway.waiting, seed };
    let router_log = Recorder::to(record(folder, "router", &router)?)?;
    let worker_log = Recorder::to(record(folder, "worker", &config.executor.worker())?)?;
    Ok((Some((router_log, router)), Some(worker_log)))
}

/// What ends when: the gateway first, so that what it still has can be answered; then the executor.
impl Parts {
    async fn run(self, started: Instant, stop: &CancellationToken) -> anyhow::Result<()> {
        let (executor, handle) = self.executor;
        let (gateway, gateway_handle) = self.gateway;
        let (scheduler, scheduler_handle) = self.scheduler;
        let (end_gateway, end_executor) = (CancellationToken::new(), CancellationToken::new());
        let mut executing = JoinSet::new();
        executing.spawn(executor.run(end_executor.clone()));
        executing.spawn(scheduler.run(end_executor.clone()));
        let mut sharing = JoinSet::new();
        let parts = live::Parts {
            name: self.name,
            executor: handle.clone(),
            gateway: gateway_handle.clone(),
            addresses: self.addresses,
            scheduler: scheduler_handle,
        };
        let name = parts.name.clone();
        let (live, look) = live::join(&mut sharing, parts, &end_executor)?;
        let measurer = Measurer {
            registry: self.registry.clone(),
            fetching: Arc::new(AllHere),
            name,
            node: handle.clone(),
            live,
            look,
            command: "modelless up",
            only_again: true,
        };
        sharing.spawn(measurer.run(stop.clone()));
        sharing.spawn(clearing::run(Arc::clone(&self.store), self.artefacts, end_executor.clone()));
        let mut serving = JoinSet::new();
        serving.spawn(gateway.run(end_gateway.clone()));

        let ready = async {
            let mut ready = gateway_handle.ready();
            ready.wait_for(|ready| *ready).await.context("the gateway ended before it was ready")?;
            let pinned = timeout(PINS_WITHIN, pinned(handle.status(), &*self.store)).await;
            if let Ok(pinned) = pinned {
                pinned?;
            }
            let locked = self.store.access().doors().await?.locked;
            let next = trying::lines(self.addresses, self.demo.as_ref(), locked);
            say_ready(self.addresses, &next, started, &handle.status().borrow())
        };
        let ended = async {
            tokio::select! {
                ended = serving.join_next() => gateway_end(ended),
                _ = executing.join_next() => Err(anyhow::anyhow!("a part of the server ended by itself")),
            }
        };
        let served = async {
            ready.await?;
            std::future::pending().await
        };
        let result = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            result = served => result,
            result = ended => result,
        };

        let draining = Instant::now();
        let drained = timeout(self.drain_within, async {
            end_gateway.cancel();
            while serving.join_next().await.is_some() {}
            self.registry.tasks.close();
            self.registry.tasks.wait().await;
            end_executor.cancel();
            while executing.join_next().await.is_some() {}
            while sharing.join_next().await.is_some() {}
            self.store.close().await;
        });
        if drained.await.is_err() {
            eprintln!("not everything ended within {}; the rest is cut off", short(self.drain_within));
        } else {
            eprintln!("stopped in {}", short(draining.elapsed()));
        }
        result
    }
}

type GatewayEnd = Option<Result<Result<(), gateway::Error>, tokio::task::JoinError>>;

/// Why the gateway ended although nobody asked it to.
fn gateway_end(end: GatewayEnd) -> anyhow::Result<()> {
    match end {
        Some(Ok(Ok(()))) | None => anyhow::bail!("the gateway ended by itself"),
        Some(Ok(Err(error))) => Err(error.into()),
        Some(Err(error)) => anyhow::bail!("the gateway failed: {error}; this is a bug"),
    }
}

/// Waits until something serves and nothing is on its way into memory; at once where nothing is registered.
async fn pinned(mut status: watch::Receiver<NodeStatus>, store: &dyn Store) -> anyhow::Result<()> {
    if store.catalog().await?.variants.is_empty() {
        return Ok(());
    }
    let settled = |status: &NodeStatus| {
        let states = || status.replicas.iter().map(|replica| replica.state);
        (states().any(ReplicaState::serves) && !states().any(|state| state == ReplicaState::Loading))
            || (!status.replicas.is_empty() && states().all(|state| state == ReplicaState::Failed))
    };
    status.wait_for(settled).await.context("the executor ended before anything was loaded")?;
    Ok(())
}

/// Each with its memory. Only variants that ask for one run there.
fn gpus(gpus: &[Gpu]) -> String {
    let shown = gpus.iter().map(|Gpu { name, memory }| match memory {
        Some(memory) => format!("{name} with {memory}"),
        None => name.clone(),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// The one line that programs wait for, and what people may want to do next.
fn say_ready(
    addresses: gateway::Addresses,
    next: &str,
    started: Instant,
    status: &NodeStatus,
) -> anyhow::Result<()> {
    for warning in &status.warnings {
        eprintln!("warning: {warning}");
    }
    let price = status.price.as_usd();
    let lanes = count(usize::from(status.lanes), "lane");
    let origin = match &status.price_origin {
        PriceOrigin::Declared => String::new(),
        PriceOrigin::Listed { source } => format!(" ({source})"),
        PriceOrigin::Assumed => ", assumed: give yours with --price".to_owned(),
    };
    let Hardware { cpu, arch, isa, cores, memory, gpus } = &status.hardware;
    eprintln!(
        "node {} in pool {}, zone {} ({}): {}, {}, {memory} of memory, {}",
        status.name,
        status.pool,
        status.zone,
        status.zone_source,
        if cpu.is_empty() { arch } else { cpu },
        count(usize::from(*cores), "core"),
        if gpus.is_empty() { "no GPU".to_owned() } else { self::gpus(gpus) },
    );
    if !isa.is_empty() {
        eprintln!("  which knows {}", isa.join(" "));
    }
    eprintln!(
        "{} with {lanes}, {} for models, {price} USD an hour and lane{origin}",
        status.device_class, status.memory_budget
    );
    let serving = status.replicas.iter().filter(|replica| replica.state.serves()).count();
    eprintln!("ready after {} with {} in memory", short(started.elapsed()), count(serving, "variant"));
    let mut text = format!("ready {}", addresses.url());
    if let Some(grpc) = addresses.grpc {
        let _ = write!(text, "\ngrpc {grpc}");
    }
    out::line(format!("{text}\n{next}"))
}
