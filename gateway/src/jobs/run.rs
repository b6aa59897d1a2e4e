//! Which jobs there are, and that somebody works on each.

use super::drive::{drive, unix_now};
use crate::core::Core;
use modelless_store::{Store, UnixMicros};
use modelless_types::JobId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Jobs that a gateway works on at once; others wait for one of them to end.
const AT_ONCE: u32 = 32;
/// Another gateway may have started one, or left one.
const LOOK: Duration = Duration::from_secs(1);
/// Ended jobs are kept so long, and those whose inputs stopped coming.
const KEPT: Duration = Duration::from_hours(7 * 24);
const PRUNE: Duration = Duration::from_mins(10);

/// Works on jobs until told to stop.
pub(crate) async fn run(core: Arc<Core>, store: Arc<dyn Store>, stop: CancellationToken) {
    let holder: Arc<str> = core.name().into();
    let mut driven: BTreeMap<Id, JobId> = BTreeMap::new();
    let mut drives: JoinSet<()> = JoinSet::new();
    let mut changed = core.jobs.changed.subscribe();
    let mut prune_at = Instant::now();
    while !stop.is_cancelled() && !core.is_draining() {
        if prune_at <= Instant::now() {
            prune_at = Instant::now() + PRUNE;
            prune(&*store).await;
        }
        match store.offline().running_jobs(AT_ONCE).await {
            Ok(jobs) => {
                let here: BTreeSet<JobId> = driven.values().copied().collect();
                let new = jobs.into_iter().filter(|job| !here.contains(&job.id));
                for job in new.take((AT_ONCE as usize).saturating_sub(here.len())) {
                    let id = job.id;
                    let (core, store) = (Arc::clone(&core), Arc::clone(&store));
                    let (holder, stop) = (Arc::clone(&holder), stop.clone());
                    let drive = drives.spawn(drive(core, store, holder, job, stop));
                    driven.insert(drive.id(), id);
                }
            }
            Err(error) => tracing::debug!(%error, "the jobs could not be read; it is tried again"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            _ = changed.changed() => {}
            Some(ended) = drives.join_next_with_id(), if !drives.is_empty() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => {
                        tracing::error!(%error, "work on a job failed; this is a bug");
                        error.id()
                    }
                };
                driven.remove(&id);
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    while drives.join_next().await.is_some() {}
}

async fn prune(store: &dyn Store) {
    let now = unix_now();
    let kept = u64::try_from(KEPT.as_micros()).unwrap_or(u64::MAX);
    match store.offline().prune_jobs(UnixMicros(now.0.saturating_sub(kept)), now).await {
        Ok(0) => {}
        Ok(jobs) => tracing::info!(jobs, "old jobs were removed"),
        Err(error) => tracing::debug!(%error, "old jobs could not be removed; it is tried again"),
    }
}
