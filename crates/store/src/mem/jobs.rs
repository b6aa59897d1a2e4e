//! Offline jobs, in memory.

use super::{MemStore, State};
use crate::check;
use crate::error::{Error, Result};
use crate::jobs::rules::{self, LEFT};
use crate::jobs::{JOBS_KEPT, JOBS_OPEN_MAX, Job, JobInput, JobOutput, Jobs, NewJob};
use crate::records::UnixMicros;
use async_trait::async_trait;
use modelless_types::{AppId, JobId, JobState, TenantId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Shared until it is changed, for it can be much.
#[derive(Clone, Default)]
pub(super) struct Kept(BTreeMap<JobId, Arc<One>>);

#[derive(Clone)]
struct One {
    job: Job,
    waiting: BTreeMap<u32, Waiting>,
    outputs: BTreeMap<u32, Arc<JobOutput>>,
}

#[derive(Clone)]
struct Waiting {
    input: Arc<JobInput>,
    /// Who took it, and until when.
    taken: Option<(Arc<str>, UnixMicros)>,
}

impl One {
    fn end(&mut self, end: JobState, why: &str, now: UnixMicros) {
        if self.job.end(end, why, now) {
            self.waiting.clear();
        }
    }
}

impl State {
    fn one(&self, job: JobId) -> Result<&One> {
        self.jobs.0.get(&job).map(|one| &**one).ok_or_else(|| Error::not_found("job", job))
    }

    fn one_mut(&mut self, job: JobId) -> Result<&mut One> {
        self.jobs.0.get_mut(&job).map(Arc::make_mut).ok_or_else(|| Error::not_found("job", job))
    }

    fn jobs_of(&self, tenant: TenantId) -> impl Iterator<Item = &Job> {
        self.jobs.0.values().map(|one| &one.job).filter(move |job| job.tenant == tenant)
    }
}

fn several(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

#[async_trait]
impl Jobs for MemStore {
    async fn add_job(&self, new: NewJob) -> Result<Job> {
        new.check()?;
        self.write(|state| {
            let task_name = state.task(new.task)?.name.clone();
            let of_tenant = |app: &&crate::records::App| app.id == new.app && app.tenant == new.tenant;
            let known = state.catalog.apps.iter().find(of_tenant);
            known.ok_or_else(|| Error::not_found("application", new.app))?;
            let open = state.jobs_of(new.tenant).filter(|job| !job.state.ended());
            if open.count() >= usize::try_from(JOBS_OPEN_MAX).unwrap_or(usize::MAX) {
                return Err(Error::TooManyJobs { limit: JOBS_OPEN_MAX });
            }
            let job = new.numbered(JobId(state.next("jobs")), task_name);
            let (waiting, outputs) = Default::default();
            state.jobs.0.insert(job.id, Arc::new(One { job: job.clone(), waiting, outputs }));
            Ok(job)
        })
    }

    async fn add_job_inputs(&self, job: JobId, inputs: Vec<JobInput>, most: u64) -> Result<Job> {
        let mut inputs = rules::given(job, inputs)?;
        self.write(|state| {
            let one = state.one(job)?;
            one.job.receives(&inputs)?;
            for (at, known) in inputs.keys().filter_map(|at| Some((at, one.waiting.get(at)?))) {
                rules::same(job, &known.input, &inputs[at])?;
            }
            inputs.retain(|at, _| !one.waiting.contains_key(at));
            let tenant = one.job.tenant;
            let others = state.jobs_of(tenant).filter(|other| other.id != job).map(Job::counts).sum();
            let one = state.one_mut(job)?;
            one.job.receive(&inputs, (others, most))?;
            let waiting = |input| Waiting { input: Arc::new(input), taken: None };
            one.waiting.extend(inputs.into_iter().map(|(at, input)| (at, waiting(input))));
            Ok(one.job.clone())
        })
    }

    async fn start_job(&self, job: JobId, now: UnixMicros) -> Result<Job> {
        check::number("time", now.0)?;
        self.write(|state| {
            let one = state.one_mut(job)?;
            one.job.start(now)?;
            Ok(one.job.clone())
        })
    }

    async fn job_bytes(&self, tenant: TenantId) -> Result<u64> {
        self.read(|state| state.jobs_of(tenant).map(Job::counts).sum())
    }

    async fn end_job(&self, job: JobId, end: JobState, why: &str, now: UnixMicros) -> Result<Job> {
        rules::an_end(end, now)?;
        self.write(|state| {
            let one = state.one_mut(job)?;
            one.end(end, why, now);
            Ok(one.job.clone())
        })
    }

    async fn remove_job(&self, job: JobId) -> Result<()> {
        self.write(|state| {
            state.one(job)?.job.remove()?;
            state.jobs.0.remove(&job);
            Ok(())
        })
    }

    async fn job(&self, job: JobId) -> Result<Option<Job>> {
        self.read(|state| state.one(job).ok().map(|one| one.job.clone()))
    }

    async fn jobs(&self, tenant: Option<TenantId>, app: Option<AppId>, limit: u32) -> Result<Vec<Job>> {
        self.read(|state| {
            let newest = state.jobs.0.values().rev().map(|one| &one.job);
            let theirs = newest.filter(|job| tenant.is_none_or(|tenant| job.tenant == tenant));
            let wanted = theirs.filter(|job| app.is_none_or(|app| job.app == app));
            wanted.take(several(limit)).cloned().collect()
        })
    }

    async fn running_jobs(&self, limit: u32) -> Result<Vec<Job>> {
        self.read(|state| {
            let all = state.jobs.0.values().map(|one| &one.job);
            let mut running: Vec<Job> = all.filter(|job| job.state == JobState::Running).cloned().collect();
            running.sort_by_key(|job| (job.deadline.is_none(), job.deadline, job.id));
            running.truncate(several(limit));
            running
        })
    }

    async fn take_job_inputs(
        &self,
        job: JobId,
        holder: &str,
        (now, until): (UnixMicros, UnixMicros),
        (most, bytes): (u32, u64),
    ) -> Result<Vec<JobInput>> {
        check::name("holder", holder)?;
        check::number("time", until.0.max(now.0))?;
        let holder: Arc<str> = holder.into();
        self.write(|state| {
            let one = state.one_mut(job)?;
            if one.job.state != JobState::Running {
                return Ok(Vec::new());
            }
            let waits = |known: &&mut Waiting| known.taken.as_ref().is_none_or(|(_, until)| *until <= now);
            let mut found: Vec<&mut Waiting> =
                one.waiting.values_mut().filter(waits).take(several(rules::most(most))).collect();
            let fits = rules::within(found.iter().map(|known| rules::size(&known.input.body)), bytes);
            let taken = found.iter_mut().take(fits).map(|known| {
                known.taken = Some((Arc::clone(&holder), until));
                JobInput::clone(&known.input)
            });
            Ok(taken.collect())
        })
    }

    async fn keep_job_inputs(
        &self,
        job: JobId,
        holder: &str,
        until: UnixMicros,
        inputs: Vec<u32>,
    ) -> Result<()> {
        check::name("holder", holder)?;
        check::number("time", until.0)?;
        rules::at_once(inputs.len())?;
        self.write(|state| {
            let one = state.one_mut(job)?;
            for at in inputs {
                let Some(known) = one.waiting.get_mut(&at) else { continue };
                if let Some((who, known)) = &mut known.taken
                    && **who == *holder
                {
                    *known = until;
                }
            }
            Ok(())
        })
    }

    async fn give_back_job_inputs(&self, job: JobId, holder: &str, inputs: Vec<u32>) -> Result<()> {
        check::name("holder", holder)?;
        rules::at_once(inputs.len())?;
        self.write(|state| {
            let one = state.one_mut(job)?;
            for at in inputs {
                let Some(known) = one.waiting.get_mut(&at) else { continue };
                known.taken.take_if(|(who, _)| **who == *holder);
            }
            Ok(())
        })
    }

    async fn end_job_inputs(&self, job: JobId, ended: Vec<JobOutput>) -> Result<Job> {
        let ended = rules::ends(ended)?;
        self.write(|state| {
            let one = state.one_mut(job)?;
            if !one.job.answers()? {
                return Ok(one.job.clone());
            }
            for (at, output) in ended {
                let Some(Waiting { input, .. }) = one.waiting.remove(&at) else { continue };
                one.job.count(&output, rules::size(&input.body));
                one.outputs.insert(at, Arc::new(JobOutput { name: input.name.clone(), ..output }));
            }
            Ok(one.job.clone())
        })
    }

    async fn job_outputs(&self, job: JobId, from: u32, (most, bytes): (u32, u64)) -> Result<Vec<JobOutput>> {
        self.read(|state| {
            let found = state.one(job)?.outputs.range(from..).map(|(_, output)| output);
            let found: Vec<_> = found.take(several(rules::most(most))).collect();
            let fits = rules::within(found.iter().map(|output| output.bytes()), bytes);
            Ok(found[..fits].iter().map(|output| JobOutput::clone(output)).collect())
        })?
    }

    async fn missing_job_inputs(&self, job: JobId, limit: u32) -> Result<Vec<u32>> {
        self.read(|state| {
            let One { job, waiting, .. } = state.one(job)?;
            if job.state != JobState::Receiving {
                return Ok(Vec::new());
            }
            let missing = (0..job.inputs).filter(|at| !waiting.contains_key(at));
            Ok(missing.take(several(rules::most(limit))).collect())
        })?
    }

    async fn prune_jobs(&self, before: UnixMicros, now: UnixMicros) -> Result<u64> {
        check::number("time", before.0.max(now.0))?;
        self.write(|state| {
            let jobs = &mut state.jobs.0;
            let ended = jobs.values().filter_map(|one| Some((one.job.ended?, one.job.id, one.job.tenant)));
            let mut ended: Vec<_> = ended.map(Reverse).collect();
            ended.sort();
            let (mut kept, mut pruned) = (BTreeMap::<TenantId, u64>::new(), 0);
            for Reverse((at, job, tenant)) in ended {
                let kept = kept.entry(tenant).or_default();
                *kept += 1;
                if *kept > JOBS_KEPT || at < before {
                    jobs.remove(&job);
                    pruned += 1;
                }
            }
            let left = |one: &&mut Arc<One>| one.job.state == JobState::Receiving && one.job.made < before;
            for one in jobs.values_mut().filter(left) {
                Arc::make_mut(one).end(JobState::Cancelled, LEFT, now);
                pruned += 1;
            }
            Ok(pruned)
        })
    }
}
