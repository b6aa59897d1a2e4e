//! `modelless gateway|executor|scheduler`: the parts of `up` as processes of their own.
//!
//! They share a database and find each other through Redis; where there is none, a gateway and a scheduler are told their
//! nodes. All that they say to each other goes over `wire`.

mod artefacts;
pub(crate) mod clearing;
pub(crate) mod executor;
pub(crate) mod gateway;
mod habits;
mod holding;
pub(crate) mod machines;
mod measuring;
mod nodes;
mod register;
pub(crate) mod scheduler;
pub(crate) mod settings;

pub(crate) use measuring::Measurer;

use crate::exit::usage;
use crate::out;
use crate::signals::{Signals, until_second_signal};
use clap::Args;
use modelless_engine::take_short_turns;
use modelless_live::{Live, MemLive, Member, Notice, RedisLive};
use modelless_store::Store;
use modelless_telemetry::log;
use modelless_wire::Key;
use serde::Serialize;
use serde::de::DeserializeOwned;
use settings::{Sources, load, print};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Between heartbeats in the live state.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// How long the store may take at the end of a gateway or a scheduler; a node has a setting for it.
const STORE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Settings, in TOML. Every one of them can also be given as MODELLESS_NAME or MODELLESS_SECTION__NAME.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where tasks, models and profiles are kept: postgres://USER@HOST/NAME.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Where processes find each other: redis://HOST:PORT.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Any setting, such as executor.lanes=2. Can be given more than once.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Show all settings with their values, and end.
    #[arg(long)]
    print_config: bool,
}

impl Options {
    /// The settings; `None` if they were only to be shown.
    fn settings<T: Serialize + DeserializeOwned>(&self, defaults: &T) -> anyhow::Result<Option<T>> {
        self.settings_with(defaults, Vec::new())
    }

    /// The same with flags that only one role has.
    fn settings_with<T: Serialize + DeserializeOwned>(
        &self,
        defaults: &T,
        own: Vec<String>,
    ) -> anyhow::Result<Option<T>> {
        let mut flags = own;
        for (name, value) in [("database", &self.database), ("redis", &self.redis)] {
            flags.extend(value.as_ref().map(|value| format!("{name}={value}")));
        }
        flags.extend(self.set.iter().cloned());
        let environment = |name: &str| std::env::var(name).ok();
        let from = Sources { file: self.config.as_deref(), environment: &environment, flags: &flags };
        let settings = load(defaults, &from)?;
        if self.print_config {
            out::line(print(&settings)?.trim_end())?;
            return Ok(None);
        }
        Ok(Some(settings))
    }
}

/// Runs a role until it is asked to end; the second time it ends at once.
fn process<F>(role: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    log::init_from_environment("warn").map_err(|error| usage(error.to_string()))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().on_thread_start(take_short_turns).enable_all().build()?;
    let stop = CancellationToken::new();
    let running = role(stop.clone());
    let result = runtime.block_on(until_second_signal(async {
        let mut signals = Signals::new()?;
        let interrupted = async {
            signals.next().await;
            eprintln!("stopping: what is at hand is finished first; interrupt again to stop at once");
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = running => result,
            () = interrupted => Ok(()),
        }
    }));
    runtime.shutdown_background();
    result
}

/// What all settings of all roles are called in the environment.
pub(crate) fn variables() -> anyhow::Result<Vec<String>> {
    let of = [gateway::variables()?, executor::variables()?, scheduler::variables()?];
    Ok(of.into_iter().flatten().collect())
}

/// The live state of a cluster; without an address one that only this process sees. Whoever serves another store is in another
/// cluster, also where both go by one name.
fn live(redis: Option<&str>, cluster: &str, store: &str) -> anyhow::Result<Arc<dyn Live>> {
    Ok(match redis {
        Some(url) => Arc::new(RedisLive::new(url, &format!("{cluster}:{store}"))?),
        None => Arc::new(MemLive::default()),
    })
}

/// A database that other processes reach as well.
fn database(url: &str) -> anyhow::Result<&str> {
    if url.is_empty() {
        return Err(usage(
            "no database; give --database postgres://USER@HOST/NAME, the same to all of the cluster",
        ));
    }
    Ok(url)
}

/// Hears what changed until `stop`, and keeps notices coming.
pub(crate) fn hear(
    tasks: &mut JoinSet<()>,
    live: &Arc<dyn Live>,
    stop: &CancellationToken,
    mut heard: impl FnMut(Notice) + Send + 'static,
) {
    let mut notices = live.notices();
    let ended = stop.clone();
    tasks.spawn(async move {
        loop {
            let notice = tokio::select! {
                biased;
                () = ended.cancelled() => return,
                notice = notices.recv() => notice,
            };
            match notice {
                Ok(notice) => heard(notice),
                Err(broadcast::error::RecvError::Lagged(_)) => heard(Notice::Missed),
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    });
    let (listening, ended) = (Arc::clone(live), stop.clone());
    tasks.spawn(async move { listening.run(ended).await });
}

/// Passes on who is there, as it changes, until `stop`.
pub(crate) fn pass_on(
    tasks: &mut JoinSet<()>,
    mut members: watch::Receiver<Vec<Member>>,
    stop: &CancellationToken,
    to: impl Fn(Vec<Member>) + Send + 'static,
) {
    let stop = stop.clone();
    tasks.spawn(async move {
        loop {
            let now = members.borrow_and_update().clone();
            to(now);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = members.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    });
}

/// Tells the others. Whoever does not hear of it looks for itself a second later.
async fn tell(live: &dyn Live, notice: Notice) {
    if let Err(error) = live.publish(notice).await {
        tracing::debug!(%error, ?notice, "a notice was not told");
    }
}

/// At the end of a process: the store hears of it, or does not answer in time.
pub(super) async fn told_within(within: Duration, told: impl Future<Output = ()>) {
    if timeout(within, told).await.is_err() {
        tracing::warn!(?within, "the store was not told that this process ends: it does not answer");
    }
}

/// The key that the processes of a cluster share, if they do.
fn key(file: Option<&Path>) -> anyhow::Result<Option<Key>> {
    let Some(file) = file else { return Ok(None) };
    let read = std::fs::read(file);
    let read = read.map_err(|error| usage(format!("`key_file`: cannot read {}: {error}", file.display())))?;
    let key = Key::new(read.trim_ascii()).map_err(|why| usage(format!("`key_file`: {why}")))?;
    Ok(Some(key))
}

/// A name of the store that no other one has.
pub(crate) async fn identity(store: &dyn Store) -> anyhow::Result<String> {
    let mut candidate = [0; 32];
    getrandom::fill(&mut candidate)
        .map_err(|error| anyhow::anyhow!("the system gave no random bytes: {error}"))?;
    let told = timeout(STORE_WITHIN, modelless_store::identity(store, candidate)).await;
    Ok(told.map_err(|_| anyhow::anyhow!("the store fell silent before it told which one it is"))??)
}

pub(crate) fn random() -> anyhow::Result<u64> {
    getrandom::u64().map_err(|error| anyhow::anyhow!("the system gave no random bytes: {error}"))
}

/// This machine's name, for people.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "host".to_owned() } else { name.to_owned() }
}
