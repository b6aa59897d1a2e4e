//! `modelless executor`: a node as a process of its own.

use super::artefacts::Fetching;
use super::clearing;
use super::habits::Habits;
use super::holding::Holding;
use super::machines::told_to_leave;
use super::measuring::Measurer;
use super::{
    BEAT, Options, database, hear, host_name, identity, key, live, process, random, settings, tell,
    told_within,
};
use crate::engines::{self, LibraryOption};
use crate::exit::usage;
use crate::up::admin::{Going, Places, Registry};
use crate::up::config::default_data;
use crate::up::measure::{Rest, measure};
use crate::up::node::NodeOptions;
use crate::up::remotes;
use crate::way::Budget;
use crate::{demo, out};
use anyhow::Context;
use modelless_decision::plan::Plan;
use modelless_decision::route::Offer;
use modelless_drive::Clock;
use modelless_executor as executor;
use modelless_live::{Corrected, Load, Member, Notice, Resident, Role, keep_announced};
use modelless_store::{Artefacts, Store};
use modelless_types::{Bytes, NodeId};
use modelless_wire::{
    Address, Key, Listener, NodeLink, NodeStatus, PriceOrigin, Received, TlsAccept, TlsFiles, ToNode, limits,
    serve_node,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// As much as a gateway takes in where nothing else is set.
const ARTEFACT_BYTES_MAX: Bytes = Bytes::from_mib(4 << 10);

/// To say goodbye to gateways, whatever time the drain took.
const GOODBYE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Settings {
    /// The database of the cluster.
    database: String,
    /// The Redis of the cluster; without one, gateways must be told of this node.
    redis: Option<String>,
    /// Clusters that share a Redis are told apart by this.
    cluster: String,
    /// Where gateways connect: `host:port` or `unix:/path`.
    listen: String,
    /// What gateways are told instead, where they see this machine under another address.
    advertise: Option<String>,
    /// A file with the key that all processes of the cluster share.
    key_file: Option<PathBuf>,
    /// Files with certificates, where connections between nodes are to be encrypted.
    tls: TlsFiles,
    /// How connections between nodes behave.
    wire: Habits,
    /// Bytes of large inputs that are held, over all gateways, while the rest of them comes.
    received_bytes_max: Bytes,
    /// Listen where others can connect, although nobody there needs a key.
    insecure: bool,
    /// Where artefacts lie; what is not there is fetched from gateways.
    artefacts: PathBuf,
    /// The largest artefact that is fetched.
    artefact_bytes_max: Bytes,
    /// Register and measure the demo first.
    demo: bool,
    /// The inference library, if it is not the installed one.
    onnxruntime: Option<PathBuf>,
    /// The node.
    executor: executor::Config,
}

fn defaults(node: &NodeOptions) -> anyhow::Result<Settings> {
    let mut executor = executor::Config { name: host_name(), ..executor::Config::default() };
    node.fill(&mut executor)?;
    Ok(Settings {
        database: String::new(),
        redis: None,
        cluster: "default".into(),
        listen: "127.0.0.1:7400".into(),
        advertise: None,
        key_file: None,
        tls: TlsFiles::default(),
        wire: Habits::default(),
        received_bytes_max: Bytes(limits::RECEIVED),
        insecure: false,
        artefacts: default_data()?.join("artefacts"),
        artefact_bytes_max: ARTEFACT_BYTES_MAX,
        demo: false,
        onnxruntime: None,
        executor,
    })
}

pub(super) fn variables() -> anyhow::Result<Vec<String>> {
    settings::variables(&defaults(&NodeOptions::default())?)
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let defaults = defaults(&NodeOptions::of_environment())?;
    let Some(mut settings) = options.settings(&defaults)? else { return Ok(()) };
    settings.wire.check()?;
    settings.executor.check().map_err(usage)?;
    check_addresses(&settings)?;
    if settings.executor.price != defaults.executor.price {
        settings.executor.price_origin = PriceOrigin::Declared;
    }
    let remotes = remotes::by_authority(std::mem::take(&mut settings.executor.remotes));
    settings.executor.remotes = remotes.map_err(|why| usage(format!("`executor.remotes`: {why}")))?;
    let key = key(settings.key_file.as_deref())?;
    let accept = settings.tls.accept().map_err(usage)?;
    process(|stop| role(settings, key, accept, stop))
}

async fn role(
    settings: Settings,
    key: Option<Key>,
    accept: Option<TlsAccept>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let within = Duration::from_micros(settings.executor.store_within.0);
    let store: Arc<dyn Store> = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        opened = modelless_store::open(database(&settings.database)?) => Arc::new(opened?),
    };
    let instance = random()? >> 1; // the database's numbers have a sign
    let taken = Holding::take(Arc::clone(&store), &settings.database, &settings.executor.name, instance);
    let holding = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        taken = taken => taken?,
    };
    let ended = CancellationToken::new();
    let name = settings.executor.name.clone();
    let kept = async {
        let lost = holding.keep(&ended).await;
        if let Some(other) = &lost {
            tracing::error!(why = %holding.taken(other), "this process is no longer its node, and ends");
            stop.cancel();
        }
        lost
    };
    let served = async {
        let served =
            Box::pin(serve(settings, (key, accept), Arc::clone(&store), instance, stop.clone())).await;
        ended.cancel();
        served
    };
    let left = async {
        if told_to_leave(&*store, &name, &ended).await {
            stop.cancel();
        }
    };
    let (served, lost, ()) = tokio::join!(served, kept, left);
    holding.release(within).await;
    told_within(within, store.close()).await;
    match lost {
        Some(other) => Err(holding.taken(&other)),
        None => served,
    }
}

async fn serve(
    settings: Settings,
    (key, accept): (Option<Key>, Option<TlsAccept>),
    store: Arc<dyn Store>,
    instance: u64,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let within = Duration::from_micros(settings.executor.store_within.0);
    let address: Address =
        settings.listen.parse().map_err(|why: String| usage(format!("`listen`: {why}")))?;
    let listener = Listener::bind(&address).await.with_context(|| {
        format!("cannot listen on {address}; give another address with --set listen=ADDR")
    })?;
    tracing::info!(address = %listener.address(), "listening for gateways");
    // Whoever must show a certificate is no stranger.
    let known = key.is_some() || settings.tls.ca.is_some();
    reachable(listener.address(), known || settings.insecure)?;

    let library = LibraryOption { path: settings.onnxruntime.clone() };
    let library = tokio::task::spawn_blocking(move || engines::library(&library)).await??;
    let artefacts = Artefacts::new(settings.artefacts.clone())?;
    clearing::begin(&*store, &artefacts).await?;
    let servers = settings.executor.servers();
    let registry = Registry {
        store: Arc::clone(&store),
        artefacts: artefacts.clone(),
        library: library.clone(),
        servers: servers.clone(),
        gpus: settings.executor.hardware.gpus.clone(),
        device_class: settings.executor.device_class.clone(),
        tasks: TaskTracker::new(),
        stop: stop.clone(),
        places: Places::default(),
        going: Going::default(),
        executor: Arc::default(), // nothing is registered through this node
    };
    let packages = if settings.demo { demo::unpack(&settings.artefacts.join("demo"))? } else { Vec::new() };
    // What others registered is measured later, beside serving: it may have to be fetched first.
    let measured = async {
        if packages.is_empty() {
            return Ok(Vec::new());
        }
        measure(&registry, &packages, Rest::Later, Budget(None)).await
    };
    let mut warnings = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        warnings = measured => warnings?,
    };

    let gpus = &settings.executor.hardware.gpus;
    let engine = engines::serving(library.clone(), settings.executor.memory, gpus, &servers)?;
    let quarantine = engines::quarantine(library, settings.executor.memory, gpus, &servers)?;
    warnings.extend(engines::confinement(&engine).await);

    let (fetched, cleared) = (artefacts.clone(), artefacts.clone());
    let clock = Clock::start();
    let deps = executor::Deps {
        store: Arc::clone(&store),
        artefacts: Arc::new(artefacts),
        engine,
        quarantine,
        clock,
        recorder: None,
        warnings,
    };
    let built = async {
        let (service, handle) = executor::build(settings.executor.clone(), deps).await?;
        pin_what_was_planned(&*store, &handle, within).await;
        Ok::<_, anyhow::Error>((service, handle))
    };
    let (service, handle) = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        built = built => built?,
    };
    let link: Arc<dyn NodeLink> = Arc::new(handle.clone());

    let received = Received::new(settings.received_bytes_max);
    let identity = identity(&*store).await?;
    let drain = Duration::from_micros(settings.executor.drain.0);
    let config = modelless_wire::Config {
        key,
        accept,
        received,
        store: Some(identity.clone()),
        last_words: drain,
        ..settings.wire.of(modelless_wire::Config::new(move || clock.now()))
    };
    let server = serve_node(listener, link, handle.status(), config);
    let fetching = Arc::new(Fetching::new(fetched, server.fetcher(), settings.artefact_bytes_max));
    handle.fetch_with(Arc::clone(&fetching) as Arc<dyn executor::Fetch>);
    handle.connect(server.link());
    let told = settings.advertise.clone().unwrap_or_else(|| server.address().to_string());
    let line = format!("ready node {told}");

    let live = live(settings.redis.as_deref(), &settings.cluster, &identity)?;
    let (ended, drained) = (CancellationToken::new(), CancellationToken::new());
    let (mut tasks, mut connections) = (JoinSet::new(), JoinSet::new());
    connections.spawn(server.run(ended.clone()));
    tasks.spawn(clearing::run(Arc::clone(&store), cleared, ended.clone()));
    let status = handle.status();
    let describe = move || describe(&status.borrow(), instance, Some(&told));
    tasks.spawn(keep_announced(Arc::clone(&live), describe, BEAT, drained.clone()));
    let (look, changed_at) = (Arc::new(Notify::new()), handle.clone());
    let measurer = Measurer {
        registry,
        fetching,
        name: settings.executor.name.clone(),
        node: handle.clone(),
        live: Arc::clone(&live),
        command: "modelless executor",
        only_again: false,
        look: Arc::clone(&look),
    };
    tasks.spawn(measurer.run(stop.clone()));
    let pins = Arc::new(Notify::new());
    let (planned, changed) = (Arc::clone(&pins), move || {
        changed_at.catalog_changed();
        look.notify_one();
    });
    hear(&mut tasks, &live, &ended, move |notice| match notice {
        Notice::Plan { .. } => planned.notify_one(),
        Notice::Catalog { .. } => changed(),
        Notice::Missed => {
            planned.notify_one();
            changed();
        }
    });
    let (store_of_plans, pinned, over) = (Arc::clone(&store), handle.clone(), ended.clone());
    tasks.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = over.cancelled() => return,
                () = pins.notified() => {}
            }
            tokio::select! {
                biased;
                () = over.cancelled() => return,
                () = pin_what_was_planned(&*store_of_plans, &pinned, within) => {}
            }
        }
    });
    if settings.demo {
        // What was registered before the others could hear of it.
        if let Ok(Ok(version)) = timeout(within, store.catalog_version()).await {
            tell(&*live, Notice::Catalog { version }).await;
        }
    }
    out::line(line)?;
    let drain_by = async {
        stop.cancelled().await;
        Instant::now() + drain
    };
    let (drain_by, ()) = tokio::join!(drain_by, service.run(stop.clone())); // drains by itself
    drained.cancel();
    ended.cancel();
    // Large answers may still be on their way.
    let left = drain_by.saturating_duration_since(Instant::now()).max(GOODBYE);
    if timeout(left, connections.join_next()).await.is_err() {
        tracing::warn!("not all answers were written before the end: their gateways take them too slowly");
        connections.shutdown().await;
    }
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// What gateways are told must be an address, and one of this machine alone.
fn check_addresses(settings: &Settings) -> anyhow::Result<()> {
    let address = |name: &str, text: &str| {
        text.parse::<Address>().map_err(|why| usage(format!("`{name}`: {why}"))).map(|_| ())
    };
    address("listen", &settings.listen)?;
    if let Some(advertise) = &settings.advertise {
        return address("advertise", advertise);
    }
    let everywhere =
        settings.listen.parse().is_ok_and(|address: std::net::SocketAddr| address.ip().is_unspecified());
    if everywhere && settings.redis.is_some() {
        return Err(usage(format!(
            "`listen` is {}, every address of this machine, and gateways would be told to connect to that, which is \
             themselves; say where they find this machine with --set advertise=HOST:PORT",
            settings.listen
        )));
    }
    Ok(())
}

/// Where nobody needs a key, nobody from elsewhere may connect, unless that is wanted.
fn reachable(address: &Address, wanted: bool) -> anyhow::Result<()> {
    let Address::Tcp(text) = address else { return Ok(()) };
    let local = text.parse().is_ok_and(|address: std::net::SocketAddr| address.ip().is_loopback());
    if local || wanted {
        return Ok(());
    }
    Err(usage(format!(
        "{text} can be reached by others, and nobody needs a key there; give all processes of the cluster the same \
         key with --set key_file=FILE or certificates with tls.cert, tls.key and tls.ca, listen on a loopback address, or say --set insecure=true if only the cluster \
         can reach it"
    )))
}

/// What the last plan pins here. A scheduler tells it as well; this is for when there is none just now, or when it does not
/// reach this node.
async fn pin_what_was_planned(store: &dyn Store, handle: &executor::Handle, within: Duration) {
    let node = handle.status().borrow().node;
    let saved = match timeout(within, store.current_plan()).await {
        Ok(Ok(Some(saved))) => saved,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => {
            return tracing::warn!(%error, "the last plan cannot be read; waiting for a scheduler");
        }
        Err(_) => return tracing::warn!("the store does not tell the last plan; waiting for a scheduler"),
    };
    match pins(&saved, node) {
        Ok(pins) => handle.send(pins),
        Err(error) => {
            tracing::warn!(id = %saved.id, %error, "the last plan cannot be read; waiting for a scheduler");
        }
    }
}

/// Also of a plan that pins nothing on the node: what an older one pinned there is free then.
fn pins(saved: &modelless_store::Plan, node: NodeId) -> serde_json::Result<ToNode> {
    let plan: Plan = serde_json::from_str(&saved.json)?;
    let here = plan.pins.into_iter().filter(|pin| pin.node == node);
    Ok(ToNode::Pin { plan: saved.id, pins: here.map(|pin| (pin.device, pin.variant)).collect() })
}

/// What a node tells of itself; `None` where nobody could connect to it.
pub(crate) fn describe(status: &NodeStatus, instance: u64, address: Option<&str>) -> Member {
    let seen = status.info.offers.iter().filter(|offer| offer.run.correction.samples > 0);
    let corrected = |offer: &Offer| Corrected {
        task: offer.task,
        ordinal: offer.ordinal,
        correction: offer.run.correction,
    };
    Member {
        node: Some(status.node),
        address: address.map(ToOwned::to_owned),
        draining: status.draining,
        load: Load {
            queries: status.load.queued + status.load.running,
            waiting: status.load.queued,
            busy_lanes: status.load.lanes_busy,
            lanes: status.lanes,
            memory_used: status.memory_used,
            memory_budget: status.memory_budget,
        },
        resident: status
            .replicas
            .iter()
            .map(|replica| Resident {
                device: replica.device,
                variant: replica.variant,
                state: replica.state,
            })
            .collect(),
        device_class: status.device_class.clone(),
        corrections: seen.map(corrected).collect(),
        ..Member::new(Role::Node, &status.name, instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::Moments;
    use modelless_decision::plan::Pin;
    use modelless_decision::route::NodeInfo;
    use modelless_store::UnixMicros;
    use modelless_types::{DeviceIx, Micros, PlanId, PricePerHour, ReplicaState, VariantId};
    use modelless_wire::{LoadTimes, ReplicaStatus};

    #[test]
    fn a_plan_that_pins_nothing_here_is_told_too() {
        let pin = Pin { node: NodeId(1), device: DeviceIx(2), variant: VariantId(3) };
        let json = serde_json::to_string(&Plan { pins: vec![pin], ..Plan::default() }).unwrap();
        let saved = modelless_store::Plan { id: PlanId(4), parent: None, json, at: UnixMicros(5) };
        let told = |node| {
            let ToNode::Pin { plan, pins } = pins(&saved, node).unwrap() else { panic!("no pins") };
            (plan, pins)
        };
        assert_eq!(told(NodeId(1)), (PlanId(4), vec![(DeviceIx(2), VariantId(3))]));
        assert_eq!(told(NodeId(9)), (PlanId(4), Vec::new()));
    }

    #[test]
    fn a_node_that_gateways_could_not_find_is_refused() {
        let with = |listen: &str, advertise: Option<&str>, redis: Option<&str>| {
            let mut settings = defaults(&NodeOptions::default()).unwrap();
            listen.clone_into(&mut settings.listen);
            settings.advertise = advertise.map(str::to_owned);
            settings.redis = redis.map(str::to_owned);
            check_addresses(&settings).map_err(|error| error.to_string())
        };
        let redis = Some("redis://r");
        assert_eq!(with("127.0.0.1:7400", None, redis), Ok(()));
        assert_eq!(with("0.0.0.0:7400", Some("node-1:7400"), redis), Ok(()));
        assert_eq!(with("0.0.0.0:7400", None, None), Ok(()), "gateways are told of it");
        for everywhere in ["0.0.0.0:7400", "[::]:7400"] {
            assert!(with(everywhere, None, redis).unwrap_err().contains("advertise=HOST:PORT"));
        }
        assert!(with("127.0.0.1:7400", Some("nonsense"), redis).unwrap_err().contains("`advertise`"));
        assert!(with("nowhere", None, None).unwrap_err().contains("`listen`"));
    }

    #[test]
    fn what_is_resident_is_announced_with_its_device() {
        let info = NodeInfo { id: NodeId(1), rtt: Moments::ZERO, price: PricePerHour(1), offers: Vec::new() };
        let replica = ReplicaStatus {
            device: DeviceIx(2),
            variant: VariantId(3),
            state: ReplicaState::Active,
            memory: Bytes(4),
            slowdown: None,
            cause: String::new(),
            loads: LoadTimes { count: 1, cold: Some(Micros(5)), warm: None },
            signs: None,
        };
        let status = NodeStatus { replicas: vec![replica], ..NodeStatus::idle(info, "n", "gpu:a:1") };
        let resident = &describe(&status, 1, None).resident;
        assert_eq!((resident[0].device, resident[0].variant), (DeviceIx(2), VariantId(3)));
    }
}
