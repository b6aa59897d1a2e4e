//! `modelless gateway`: where clients ask, as a process of its own.

use super::artefacts::Given;
use super::clearing;
use super::habits::Habits;
use super::nodes::{Side, keep_all};
use super::register::{Joined, Registering};
use super::{
    BEAT, Options, STORE_WITHIN, database, hear, host_name, identity, key, live, pass_on, process, random,
    settings, tell, told_within,
};
use crate::exit::usage;
use crate::exposed::{self, TlsOptions};
use crate::otel;
use crate::out;
use crate::up::config::default_data;
use clap::Args;
use modelless_drive::Clock;
use modelless_gateway as gateway;
use modelless_live::{Asked, Demand, Live, Load, Member, Notice, Role, follow, keep_announced};
use modelless_store::{Artefacts, Store};
use modelless_telemetry::Metrics;
use modelless_types::Bytes;
use modelless_wire::{Address, Key, Received, TlsConnect, TlsFiles, limits};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A gateway of several has clients that can go to another; most balancers look at least this often.
const LEAVE_MS: u64 = 2_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Settings {
    /// The database of the cluster.
    database: String,
    /// The Redis of the cluster, where nodes are found.
    redis: Option<String>,
    /// Clusters that share a Redis are told apart by this.
    cluster: String,
    /// Its name, for people; each gateway has one of its own.
    name: String,
    /// Nodes that are there in any case: `host:port` or `unix:/path`.
    nodes: Vec<String>,
    /// A file with the key that all processes of the cluster share.
    key_file: Option<PathBuf>,
    /// Files with certificates, where connections between nodes are to be encrypted.
    tls: TlsFiles,
    /// How connections between nodes behave.
    wire: Habits,
    /// Bytes of large answers that are held, over all nodes, while the rest of them comes.
    received_bytes_max: Bytes,
    /// Where uploaded artefacts go; executors fetch them from here.
    artefacts: PathBuf,
    /// Serve where others can connect although there is no key yet.
    insecure: bool,
    /// The gateway.
    gateway: gateway::Config,
}

fn defaults() -> anyhow::Result<Settings> {
    Ok(Settings {
        database: String::new(),
        redis: None,
        cluster: "default".into(),
        name: format!("{}-{}", host_name(), std::process::id()),
        nodes: Vec::new(),
        key_file: None,
        tls: TlsFiles::default(),
        wire: Habits::default(),
        received_bytes_max: Bytes(limits::RECEIVED),
        artefacts: default_data()?.join("artefacts"),
        insecure: false,
        gateway: gateway::Config { leave_ms: LEAVE_MS, ..gateway::Config::default() },
    })
}

pub(super) fn variables() -> anyhow::Result<Vec<String>> {
    settings::variables(&defaults()?)
}

#[derive(Args, Debug)]
pub(crate) struct WithTls {
    #[command(flatten)]
    common: Options,
    #[command(flatten)]
    tls: TlsOptions,
}

pub(crate) fn run(options: &WithTls) -> anyhow::Result<()> {
    let settings = options.common.settings_with(&defaults()?, options.tls.settings())?;
    let Some(mut settings) = settings else { return Ok(()) };
    otel::fill(&mut settings.gateway.traces)?;
    settings.wire.check()?;
    settings.gateway.tls.check().map_err(usage)?;
    let (nodes, key) = (addresses(&settings.nodes)?, key(settings.key_file.as_deref())?);
    if nodes.is_empty() && settings.redis.is_none() {
        return Err(usage(
            "no nodes; give --redis redis://HOST to find them, or name them with --set 'nodes=[\"HOST:PORT\"]'",
        ));
    }
    let connect = settings.tls.connect().map_err(usage)?;
    process(|stop| role(settings, nodes, (key, connect), stop))
}

pub(super) fn addresses(nodes: &[String]) -> anyhow::Result<Vec<Address>> {
    nodes.iter().map(|node| node.parse().map_err(|why: String| usage(format!("`nodes`: {why}")))).collect()
}

async fn role(
    settings: Settings,
    nodes: Vec<Address>,
    (key, connect): (Option<Key>, Option<TlsConnect>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let store: Arc<dyn Store> = Arc::new(modelless_store::open(database(&settings.database)?).await?);
    let way_out = (settings.insecure, "--set insecure=true");
    exposed::check(&*store, &settings.gateway, way_out, "--database URL").await?;
    let artefacts = Artefacts::new(settings.artefacts.clone())?;
    clearing::begin(&*store, &artefacts).await?;
    let clock = Clock::start();
    let identity = identity(&*store).await?;
    let live = live(settings.redis.as_deref(), &settings.cluster, &identity)?;
    let joined = Joined::default();
    let deps = gateway::Deps {
        store: Arc::clone(&store),
        artefacts: Some(artefacts.clone()),
        nodes: Vec::new(),
        clock,
        recorder: None,
        metrics: Arc::new(Metrics::new()),
        admin: Some(Arc::new(Registering::new(Arc::clone(&store), artefacts.clone(), joined.clone()))),
        live: settings.redis.is_some().then(|| Arc::clone(&live)),
    };
    let mut service = gateway::Service::build(settings.gateway.clone(), deps).await?;
    let bound = service.bind().await?;
    let handle = service.handle();

    let ended = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let members = followed(&mut tasks, &live, &ended);
    let (joining, knowing) = (handle.clone(), handle.clone());
    pass_on(&mut tasks, members.clone(), &ended, move |members| knowing.set_members(members));
    let side = Side {
        name: settings.name.clone(),
        habits: settings.wire.clone(),
        queries: true,
        seed: random()?,
        clock,
        key,
        connect,
        shelf: Some(Arc::new(Given(artefacts.clone()))),
        received: Received::new(settings.received_bytes_max),
        store: identity,
        gateway: handle.link(),
        joined: Arc::new(move |status, link| {
            joined.add(status.clone());
            joining.add_node(status, link);
        }),
    };
    tasks.spawn(clearing::run(Arc::clone(&store), artefacts, ended.clone()));
    tasks.spawn(keep_all(side, nodes, members, ended.clone()));
    let (described, name) = (handle.clone(), settings.name);
    let http = bound.http;
    let describe = move || describe(&described, &name, http);
    tasks.spawn(keep_announced(Arc::clone(&live), describe, BEAT, stop.clone()));
    follow_catalog(&mut tasks, &live, &handle, &ended);

    let mut ready = handle.ready();
    let (said, url) = (stop.clone(), format!("ready {}", bound.url()));
    tasks.spawn(async move {
        tokio::select! {
            () = said.cancelled() => {}
            ready = ready.wait_for(|ready| *ready) => if ready.is_ok() {
                let _ = out::line(url); // whoever waited for it is gone
            },
        }
    });
    let result = service.run(stop.clone()).await;
    stop.cancel(); // also when it ended by itself
    ended.cancel();
    while tasks.join_next().await.is_some() {}
    told_within(STORE_WITHIN, store.close()).await;
    result.map_err(Into::into)
}

/// What a gateway tells of itself.
pub(crate) fn describe(gateway: &gateway::Handle, name: &str, http: SocketAddr) -> Member {
    let instance = gateway.instance();
    let gateway::DemandTold { classes, left_out, waiting } = gateway.demand();
    let gateway::AskedTold { up, tasks, all } = gateway.asked();
    let queries = u32::try_from(gateway.open_queries()).unwrap_or(u32::MAX);
    Member {
        address: Some(http.to_string()),
        load: Load { queries, waiting, ..Load::default() },
        demand: classes.into_iter().map(demand).collect(),
        up: Some(up),
        asked: tasks.into_iter().map(|(task, at)| Asked { task, at }).collect(),
        tells_all_asked: all,
        trials: gateway.trials().into(),
        left_out,
        ..Member::new(Role::Gateway, name, instance)
    }
}

fn demand(of: gateway::ClassDemand) -> Demand {
    let gateway::ClassDemand { class, arrived, in_time, waiting, within } = of;
    Demand { class, arrived, in_time, waiting, within }
}

/// Looks at the catalogue when somebody says that it changed, and says so itself of changes that nobody has told.
pub(crate) fn follow_catalog(
    tasks: &mut JoinSet<()>,
    live: &Arc<dyn Live>,
    handle: &gateway::Handle,
    stop: &CancellationToken,
) {
    let heard = Arc::new(AtomicU64::new(0));
    let (known, looking) = (Arc::clone(&heard), handle.clone());
    hear(tasks, live, stop, move |notice| match notice {
        Notice::Plan { .. } => {} // what it changes at nodes they tell themselves
        Notice::Catalog { version } => {
            known.fetch_max(version, Ordering::AcqRel);
            looking.catalog_changed();
        }
        Notice::Missed => looking.catalog_changed(),
    });
    let (live, handle, stop) = (Arc::clone(live), handle.clone(), stop.clone());
    tasks.spawn(async move {
        let mut version = handle.next_catalog(u64::MAX).await;
        loop {
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                next = handle.next_catalog(version) => next,
            };
            if next == version {
                return; // the gateway is gone
            }
            version = next;
            if heard.load(Ordering::Acquire) < version {
                tell(&*live, Notice::Catalog { version }).await;
            }
        }
    });
}

/// Who is there, as the live state tells.
pub(crate) fn followed(
    tasks: &mut JoinSet<()>,
    live: &Arc<dyn Live>,
    stop: &CancellationToken,
) -> watch::Receiver<Vec<Member>> {
    followed_while_it_answers(tasks, live, stop).0
}

/// The same, and whether the live state answers.
pub(crate) fn followed_while_it_answers(
    tasks: &mut JoinSet<()>,
    live: &Arc<dyn Live>,
    stop: &CancellationToken,
) -> (watch::Receiver<Vec<Member>>, watch::Receiver<bool>) {
    let (sender, members) = watch::channel(Vec::new());
    let (answering, answers) = watch::channel(false);
    tasks.spawn(follow(Arc::clone(live), BEAT, sender, answering, stop.clone()));
    (members, answers)
}
