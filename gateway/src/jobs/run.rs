//! Which jobs there are, and that somebody works on each.

use super::drive::{Hold, drive, unix_now};
use crate::core::Core;
use modelless_store::{Job, Store, UnixMicros};
use modelless_types::{JobId, TenantId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Jobs that a gateway works on at once; others wait for one of them to end, or to come to nothing for a while.
const AT_ONCE: usize = 32;
/// Running jobs that it chooses from.
const KNOWN: u32 = 1_000;
/// Another gateway may have started one, or left one.
const LOOK: Duration = Duration::from_secs(1);
/// A job that came to nothing while others waited is not chosen before them for so long.
const ASIDE: Duration = Duration::from_mins(1);
/// Ended jobs are kept so long, and those whose inputs stopped coming.
const KEPT: Duration = Duration::from_hours(7 * 24);
const PRUNE: Duration = Duration::from_mins(10);

/// A job that this gateway works on.
struct Driven {
    job: JobId,
    stop: CancellationToken,
}

/// Works on jobs until told to stop.
pub(crate) async fn run(core: Arc<Core>, store: Arc<dyn Store>, stop: CancellationToken) {
    let holder: Arc<str> = core.name().into();
    let mut driven: BTreeMap<Id, Driven> = BTreeMap::new();
    let mut aside: BTreeMap<JobId, Instant> = BTreeMap::new();
    let mut drives: JoinSet<Hold> = JoinSet::new();
    let mut changed = core.jobs.changed.subscribe();
    // On its own: what has to be removed may be much, and no job waits for that.
    let mut prunes = JoinSet::new();
    prunes.spawn(pruning(Arc::clone(&store), stop.clone()));
    while !stop.is_cancelled() && !core.is_draining() {
        match store.offline().running_jobs(KNOWN).await {
            Ok(jobs) => {
                let now = Instant::now();
                aside.retain(|_, until| *until > now);
                core.jobs.crowded(jobs.len() > AT_ONCE);
                let chosen = chosen(&jobs, |job| aside.contains_key(&job), AT_ONCE);
                for one in driven.values().filter(|one| !chosen.contains_key(&one.job)) {
                    one.stop.cancel();
                }
                for (id, job) in chosen {
                    if driven.len() >= AT_ONCE || driven.values().any(|one| one.job == id) {
                        continue;
                    }
                    let stop = stop.child_token();
                    let (core, store) = (Arc::clone(&core), Arc::clone(&store));
                    let drive =
                        drives.spawn(drive(core, store, Arc::clone(&holder), job.clone(), stop.clone()));
                    driven.insert(drive.id(), Driven { job: id, stop });
                }
            }
            Err(error) => tracing::debug!(%error, "the jobs could not be read; it is tried again"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            _ = changed.changed() => {}
            Some(ended) = drives.join_next_with_id(), if !drives.is_empty() => {
                let (id, hold) = match ended {
                    Ok(ended) => ended,
                    Err(error) => {
                        tracing::error!(%error, "work on a job failed; this is a bug");
                        (error.id(), Hold::Stuck)
                    }
                };
                if let Some(one) = driven.remove(&id) && hold == Hold::Stuck {
                    aside.insert(one.job, Instant::now() + ASIDE);
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    while drives.join_next().await.is_some() {}
    prunes.shutdown().await;
}

/// Which jobs to work on: of each tenant one, then a second of each, and so on, those with the nearest deadlines first, which is the order they
/// come in; and those that came to nothing lately after all others.
fn chosen(jobs: &[Job], aside: impl Fn(JobId) -> bool, most: usize) -> BTreeMap<JobId, &Job> {
    let mut of_tenant: BTreeMap<(bool, TenantId), usize> = BTreeMap::new();
    let mut order: Vec<(bool, usize, &Job)> = Vec::with_capacity(jobs.len());
    for job in jobs {
        let aside = aside(job.id);
        let nth = of_tenant.entry((aside, job.tenant)).or_default();
        order.push((aside, *nth, job));
        *nth += 1;
    }
    // Stable, so that deadlines decide where nothing else does.
    order.sort_by_key(|(aside, nth, _)| (*aside, *nth));
    order.into_iter().take(most).map(|(_, _, job)| (job.id, job)).collect()
}

async fn pruning(store: Arc<dyn Store>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        prune(&*store).await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(PRUNE) => {}
        }
    }
}

async fn prune(store: &dyn Store) {
    let now = unix_now();
    let kept = u64::try_from(KEPT.as_micros()).unwrap_or(u64::MAX);
    match store.offline().prune_jobs(UnixMicros(now.0.saturating_sub(kept)), now).await {
        Ok(0) => {}
        Ok(jobs) => tracing::info!(jobs, "old jobs were removed"),
        Err(error) => tracing::warn!(%error, "not all old jobs could be removed; it is tried again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::{AppId, CostPer1k, JobState, Micros, TaskId};

    fn job(id: JobId, tenant: TenantId) -> Job {
        Job {
            id,
            name: String::new(),
            tenant,
            app: AppId(1),
            task: TaskId(1),
            task_name: "t".to_owned(),
            goals: "{}".to_owned(),
            state: JobState::Running,
            why: None,
            inputs: 1,
            received: 1,
            done: 0,
            failed: 0,
            bytes: 0,
            kept: 0,
            device: Micros(0),
            cost: CostPer1k(0),
            estimate: None,
            deadline: None,
            made: UnixMicros(0),
            started: None,
            ended: None,
        }
    }

    #[test]
    fn every_tenant_has_a_job_worked_on_and_those_that_came_to_nothing_come_last() {
        let of = |tenants: &[u32]| -> Vec<Job> {
            let jobs = tenants.iter().enumerate();
            jobs.map(|(id, tenant)| job(JobId(id as u64), TenantId(*tenant))).collect()
        };
        let ids = |jobs: &[Job], aside: &[u64], most: usize| -> Vec<u64> {
            chosen(jobs, |job| aside.contains(&job.0), most).into_keys().map(|id| id.0).collect()
        };
        let jobs = of(&[1, 1, 1, 1, 2, 3]);
        assert_eq!(ids(&jobs, &[], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(ids(&jobs, &[], 3), [0, 4, 5], "one of each tenant");
        assert_eq!(ids(&jobs, &[], 4), [0, 1, 4, 5], "and then the nearest deadline");
        assert_eq!(ids(&jobs, &[0, 4], 3), [1, 2, 5], "those that came to nothing wait");
        assert_eq!(ids(&jobs, &[0, 4], 5), [0, 1, 2, 3, 5], "and have what is left");
    }
}
