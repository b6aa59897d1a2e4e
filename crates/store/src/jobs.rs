//! Offline jobs: many inputs of one task, each answered once, whoever crashes meanwhile.
//!
//! An input waits, is taken by somebody for some time, and ends once: whoever ends it takes it away from those that wait and puts its
//! output in its place. What was taken by one who is not heard of any more is taken by another when that time is over; should both end
//! it, only the first counts. What holds for all stores is in `rules`.

pub(crate) mod rules;

use crate::error::Result;
use crate::records::UnixMicros;
use async_trait::async_trait;
use modelless_types::{AppId, CostPer1k, JobId, JobState, Micros, TaskId, TenantId, VariantId};
use serde::{Deserialize, Serialize};

/// Inputs of one job.
pub const JOB_INPUTS_MAX: u32 = 1_000_000;
/// Jobs of one tenant that have not ended.
pub const JOBS_OPEN_MAX: u64 = 100;
/// Largest body of an input, and largest answer.
pub const JOB_BODY_MAX: usize = 64 << 20;
/// Of a tenant's jobs that ended so many are remembered; the oldest are removed with their outputs.
pub const JOBS_KEPT: u64 = 1_000;
/// Inputs that are given, taken or ended by one call.
pub const JOB_INPUTS_AT_ONCE: usize = 1_000;

/// A job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Number in the store.
    pub id: JobId,
    /// For people; need not be unique.
    pub name: String,
    /// Whose it is.
    pub tenant: TenantId,
    /// Which of its applications pays.
    pub app: AppId,
    /// What is asked of each input.
    pub task: TaskId,
    /// The task's name, which may outlive it.
    pub task_name: String,
    /// With which goals: a JSON object.
    pub goals: String,
    /// Where it stands.
    pub state: JobState,
    /// Why, where it did not end by itself.
    pub why: Option<String>,
    /// How many inputs it has when all have come.
    pub inputs: u32,
    /// How many have come.
    pub received: u32,
    /// How many have an output.
    pub done: u32,
    /// How many have a reason why they have none.
    pub failed: u32,
    /// Bytes of inputs that have not ended.
    pub bytes: u64,
    /// Bytes of its outputs.
    pub kept: u64,
    /// What its outputs took of devices.
    pub device: Micros,
    /// What its outputs cost, each as if a thousand of it were asked for: a thousandth of it is the bill.
    pub cost: CostPer1k,
    /// What was expected of that when it was made.
    pub estimate: Option<CostPer1k>,
    /// By when it should be done.
    pub deadline: Option<UnixMicros>,
    /// When it was made.
    pub made: UnixMicros,
    /// When its last input had come.
    pub started: Option<UnixMicros>,
    /// When it ended.
    pub ended: Option<UnixMicros>,
}

/// One more job; it has no inputs yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewJob {
    /// For people.
    pub name: String,
    /// Whose it is.
    pub tenant: TenantId,
    /// Which of its applications pays.
    pub app: AppId,
    /// What is asked of each input.
    pub task: TaskId,
    /// With which goals: a JSON object.
    pub goals: String,
    /// How many inputs it will have, 1 to [`JOB_INPUTS_MAX`].
    pub inputs: u32,
    /// What it is expected to cost, as in [`Job::cost`].
    pub estimate: Option<CostPer1k>,
    /// By when it should be done.
    pub deadline: Option<UnixMicros>,
    /// Now.
    pub made: UnixMicros,
}

/// An input of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobInput {
    /// Its place, from 0.
    pub at: u32,
    /// What its owner calls it, such as a file's name.
    pub name: String,
    /// Its content type; nothing where that was not said.
    pub media: Option<String>,
    /// What a query's body would be.
    pub body: Vec<u8>,
}

/// How an input ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobEnd {
    /// With an answer.
    Answer {
        /// The JSON that a query would have got.
        body: Vec<u8>,
        /// Who answered.
        variant: VariantId,
        /// Its name, which may outlive it.
        variant_name: String,
        /// What it took of a device.
        device: Micros,
        /// What it cost, if a thousand of it were asked for.
        cost: CostPer1k,
    },
    /// With a reason why there is none.
    Failure {
        /// In one word, for programs.
        reason: String,
        /// For people.
        message: String,
    },
}

/// An input that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobOutput {
    /// Its place.
    pub at: u32,
    /// What its owner calls it.
    pub name: String,
    /// How it ended.
    pub end: JobEnd,
    /// When.
    pub ended: UnixMicros,
}

/// What is written down of offline jobs. Part of a [`crate::Store`].
#[async_trait]
pub trait Jobs: Send + Sync {
    /// One more, receiving. Refused where its task is not there, or its tenant has [`JOBS_OPEN_MAX`] that have not ended.
    async fn add_job(&self, new: NewJob) -> Result<Job>;

    /// Takes in inputs of a job that is receiving. One that came already and is the same changes nothing, so that whoever does not know
    /// whether they came gives them again; another one in its place is refused. At most `most` bytes may the tenant's inputs that have not
    /// ended and its outputs come to, over all its jobs, those that have ended too: bodies, answers and messages, and something for each
    /// input or output besides. All of a call's inputs come, or none.
    async fn add_job_inputs(&self, job: JobId, inputs: Vec<JobInput>, most: u64) -> Result<Job>;

    /// All inputs have come: work on it may begin. Refused while some are missing, and where it ended before it began; nothing changes
    /// where it has begun.
    async fn start_job(&self, job: JobId, now: UnixMicros) -> Result<Job>;

    /// What a tenant's jobs come to, as [`Jobs::add_job_inputs`] counts it.
    async fn job_bytes(&self, tenant: TenantId) -> Result<u64>;

    /// Ends a job that has not ended, as [`JobState::Cancelled`] or [`JobState::Failed`]; inputs that have not ended are forgotten.
    /// Nothing changes where it has ended.
    async fn end_job(&self, job: JobId, end: JobState, why: &str, now: UnixMicros) -> Result<Job>;

    /// Removes a job that has ended, with its outputs.
    async fn remove_job(&self, job: JobId) -> Result<()>;

    /// A job.
    async fn job(&self, job: JobId) -> Result<Option<Job>>;

    /// Jobs of one tenant, or of all, and of these of one application, or of all, newest first.
    async fn jobs(&self, tenant: Option<TenantId>, app: Option<AppId>, limit: u32) -> Result<Vec<Job>>;

    /// Jobs that are running: those with the nearest deadline first, those without one last, then by number.
    async fn running_jobs(&self, limit: u32) -> Result<Vec<Job>>;

    /// Takes inputs of a running job that wait, or were taken by somebody whose time is over by `now`, in order. They are `holder`'s until then
    /// ([`JOB_INPUTS_AT_ONCE`] at most, and no more than come to `bytes`, but always one if there is one). Of many who do this at once none
    /// gets what another got. Nothing where the job is not running.
    async fn take_job_inputs(
        &self,
        job: JobId,
        holder: &str,
        (now, until): (UnixMicros, UnixMicros),
        (most, bytes): (u32, u64),
    ) -> Result<Vec<JobInput>>;

    /// Lengthens the time for which those of these inputs are `holder`'s that are so still.
    async fn keep_job_inputs(
        &self,
        job: JobId,
        holder: &str,
        until: UnixMicros,
        inputs: Vec<u32>,
    ) -> Result<()>;

    /// Gives back inputs that `holder` took and did not end: they wait again.
    async fn give_back_job_inputs(&self, job: JobId, holder: &str, inputs: Vec<u32>) -> Result<()>;

    /// Ends inputs, each once and whoever holds it: of those that ended before nothing changes, and neither does anything where the job has
    /// ended. Their bodies are forgotten; their names stay what they were, whatever is given here. With its last input the job is done.
    /// [`JOB_INPUTS_AT_ONCE`] at most.
    async fn end_job_inputs(&self, job: JobId, ended: Vec<JobOutput>) -> Result<Job>;

    /// How inputs ended, from a place on, in order: `most` and [`JOB_INPUTS_AT_ONCE`] at most, and no more than whose answers come to
    /// `bytes`, but always one if there is one.
    async fn job_outputs(&self, job: JobId, from: u32, (most, bytes): (u32, u64)) -> Result<Vec<JobOutput>>;

    /// Which inputs of a receiving job have not come, in order: for whoever goes on sending them. [`JOB_INPUTS_AT_ONCE`] at most.
    async fn missing_job_inputs(&self, job: JobId, limit: u32) -> Result<Vec<u32>>;

    /// Removes jobs that ended before a moment, and those of each tenant beyond [`JOBS_KEPT`]; ends those that have been receiving since
    /// before it; and forgets what is left of the inputs of jobs that ended. Gives how many it removed or ended. One that fails keeps none
    /// of the others.
    async fn prune_jobs(&self, before: UnixMicros, now: UnixMicros) -> Result<u64>;
}
