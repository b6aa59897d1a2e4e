//! `modelless scheduler`: who plans, as a process of its own. Two of them are safe; none for a while is, too.

use super::gateway::{addresses, followed_while_it_answers};
use super::habits::Habits;
use super::machines::{self, Cluster};
use super::nodes::{Side, keep_all};
use super::{
    BEAT, Options, STORE_WITHIN, database, hear, host_name, identity, key, live, pass_on, process, random,
    settings, tell, told_within,
};
use crate::exit::usage;
use crate::out;
use clap::Args;
use modelless_drive::Clock;
use modelless_live::{Live, Member, Notice, Role, keep_announced};
use modelless_scheduler as scheduler;
use modelless_store::Store;
use modelless_types::{Bytes, NodeId};
use modelless_wire::{Address, FromNode, GatewayLink, Key, Received, TlsConnect, TlsFiles, limits};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Settings {
    /// The database of the cluster.
    database: String,
    /// The Redis of the cluster, where nodes are found.
    redis: Option<String>,
    /// Clusters that share a Redis are told apart by this.
    cluster: String,
    /// Its name, for people; each scheduler has one of its own.
    name: String,
    /// Nodes that are there in any case: `host:port` or `unix:/path`.
    nodes: Vec<String>,
    /// A file with the key that all processes of the cluster share.
    key_file: Option<PathBuf>,
    /// Files with certificates, where connections between nodes are to be encrypted.
    tls: TlsFiles,
    /// How connections between nodes behave.
    wire: Habits,
    /// A file of pools, whose machines come and go as they are needed.
    pools: Option<PathBuf>,
    /// The scheduler.
    scheduler: scheduler::Config,
}

#[derive(Args, Debug)]
pub(crate) struct WithPools {
    #[command(flatten)]
    common: Options,
    /// Pools of machines that come and go as they are needed (TOML).
    #[arg(long, value_name = "FILE")]
    pools: Option<PathBuf>,
}

fn defaults() -> Settings {
    Settings {
        database: String::new(),
        redis: None,
        cluster: "default".into(),
        name: format!("{}-{}", host_name(), std::process::id()),
        nodes: Vec::new(),
        key_file: None,
        tls: TlsFiles::default(),
        wire: Habits::default(),
        pools: None,
        scheduler: scheduler::Config::default(),
    }
}

/// A scheduler asks nothing of nodes, so it has no use for answers.
struct Deaf;

impl GatewayLink for Deaf {
    fn receive(&self, _: NodeId, _: FromNode) {}
}

pub(super) fn variables() -> anyhow::Result<Vec<String>> {
    settings::variables(&defaults())
}

pub(crate) fn run(options: &WithPools) -> anyhow::Result<()> {
    let own = options.pools.iter().map(|path| format!("pools={}", path.display())).collect();
    let Some(settings) = options.common.settings_with(&defaults(), own)? else { return Ok(()) };
    settings.wire.check()?;
    settings.scheduler.check().map_err(usage)?;
    let (nodes, key) = (addresses(&settings.nodes)?, key(settings.key_file.as_deref())?);
    if nodes.is_empty() && settings.redis.is_none() {
        return Err(usage(
            "no nodes; give --redis redis://HOST to find them, or name them with --set 'nodes=[\"HOST:PORT\"]'",
        ));
    }
    let connect = settings.tls.connect().map_err(usage)?;
    let pools = settings.pools.as_deref().map(machines::read).transpose()?;
    if pools.is_some() && settings.redis.is_none() {
        return Err(usage(
            "machines that come and go are found by Redis; give --redis redis://HOST with --pools",
        ));
    }
    process(|stop| role(settings, nodes, (key, connect), pools, stop))
}

async fn role(
    settings: Settings,
    nodes: Vec<Address>,
    (key, connect): (Option<Key>, Option<TlsConnect>),
    pools: Option<scheduler::machines::Config>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let store: Arc<dyn Store> = Arc::new(modelless_store::open(database(&settings.database)?).await?);
    let (service, handle) = scheduler::build(settings.scheduler, Arc::clone(&store), Vec::new());
    let service = service.named(&settings.name);
    let identity = identity(&*store).await?;
    let live = live(settings.redis.as_deref(), &settings.cluster, &identity)?;
    let mut tasks = JoinSet::new();
    if let Some(pools) = pools {
        let of = Cluster {
            database: &settings.database,
            redis: settings.redis.as_deref().unwrap_or_default(),
            name: &settings.cluster,
            key_file: settings.key_file.as_deref(),
            identity: &identity,
        };
        let keeper =
            machines::keeper(pools, &of, &store, (handle.clone(), &settings.name, settings.scheduler.rules))?;
        tasks.spawn(keeper.run(stop.clone()));
    }
    let (members, answers) = followed_while_it_answers(&mut tasks, &live, &stop);
    handle.set_live(answers);
    let (joining, knowing) = (handle.clone(), handle.clone());
    pass_on(&mut tasks, members.clone(), &stop, move |members| knowing.set_members(members));
    let side = Side {
        name: settings.name.clone(),
        habits: settings.wire.clone(),
        queries: false,
        seed: random()?,
        clock: Clock::start(),
        key,
        connect,
        shelf: None,
        received: Received::new(Bytes(limits::RECEIVED)), // nothing large comes to it
        store: identity,
        gateway: Arc::new(Deaf),
        joined: Arc::new(move |status, link| joining.add_node(scheduler::Node { status, link })),
    };
    tasks.spawn(keep_all(side, nodes, members, stop.clone()));
    let (name, instance) = (settings.name, random()?);
    let describe = move || Member::new(Role::Scheduler, &name, instance);
    tasks.spawn(keep_announced(Arc::clone(&live), describe, BEAT, stop.clone()));
    take_part(&mut tasks, &live, &handle, &stop);
    out::line("ready scheduler")?;
    service.run(stop).await;
    while tasks.join_next().await.is_some() {}
    told_within(STORE_WITHIN, store.close()).await;
    Ok(())
}

/// Tells of the plans that it saves, and looks again when it hears that the catalogue changed.
pub(crate) fn take_part(
    tasks: &mut JoinSet<()>,
    live: &Arc<dyn Live>,
    handle: &scheduler::Handle,
    stop: &CancellationToken,
) {
    let mut saved = handle.saved();
    let (told, ended) = (Arc::clone(live), stop.clone());
    tasks.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = ended.cancelled() => return,
                changed = saved.changed() => if changed.is_err() {
                    return;
                },
            }
            let id = *saved.borrow_and_update();
            if let Some(id) = id {
                tell(&*told, Notice::Plan { id: id.0 }).await;
            }
        }
    });
    let handle = handle.clone();
    hear(tasks, live, stop, move |notice| match notice {
        Notice::Plan { .. } => {} // its own, or another scheduler's, whose plan it finds when it next saves one
        Notice::Catalog { .. } | Notice::Missed => handle.catalog_changed(),
    });
}
