//! What can go wrong, in words for whoever reads it. No message holds a password or a key.

use modelless_types::{JobId, JobState, MachineId, MachineState, ReplicaId, ReplicaState, TaskId};
use std::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error as ThisError;

/// What a call of this crate gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The name is taken.
    #[error("the {what} {name:?} exists already; {}", instead(what))]
    AlreadyExists {
        /// What kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is no such thing.
    #[error("there is no {what} {name}")]
    NotFound {
        /// What kind of thing.
        what: &'static str,
        /// Its id or name.
        name: String,
    },
    /// A key has one in its place already.
    #[error("{key} was rotated before, and {by} takes its place; rotate that one")]
    RotatedBefore {
        /// How it begins.
        key: String,
        /// How the one in its place begins.
        by: String,
    },
    /// A key that opens nothing any more.
    #[error("{key} has ended and cannot be rotated; make a new key instead")]
    KeyEnded {
        /// How it begins.
        key: String,
    },
    /// A job has fewer inputs.
    #[error("{job} has {inputs} inputs, numbered from 0, so there is no {at}")]
    NoSuchInput {
        /// Which.
        job: JobId,
        /// How many it has.
        inputs: u32,
        /// Which was given.
        at: u32,
    },
    /// It cannot go while something needs it.
    #[error("the {what} {name} is in use: {by}")]
    InUse {
        /// What kind of thing.
        what: &'static str,
        /// Its id or name.
        name: String,
        /// By what.
        by: String,
    },
    /// The task has handed out all its ordinals.
    #[error(
        "task {task:?} has room for {free} more variants and {wanted} were given: a task can have {limit} over its \
         whole life, removed ones included, because their numbers are never used again; make a new task for more"
    )]
    TooManyVariants {
        /// The task's name.
        task: String,
        /// How many were to be added.
        wanted: usize,
        /// How many ordinals are left.
        free: usize,
        /// How many a task has.
        limit: usize,
    },
    /// More of a task's devices would be reserved than there is.
    #[error(
        "{} of the devices' time of {} would be reserved with this, and all there is is 100 %; reserve less, or take \
         away what another application has reserved",
        percent(*ppm),
        of_task(*task)
    )]
    OverReserved {
        /// Of which; `None` is every task for which nothing nearer is said.
        task: Option<TaskId>,
        /// How much, in parts per million.
        ppm: u64,
    },
    /// What was given cannot be stored.
    #[error("this {what} cannot be stored: {why}")]
    Invalid {
        /// What kind of thing.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else moved the replica first.
    #[error("{replica} is {found}, not {expected}: somebody else changed it; read it again")]
    StateChanged {
        /// Which.
        replica: ReplicaId,
        /// The state the caller thought it was in.
        expected: ReplicaState,
        /// The state it is in.
        found: ReplicaState,
    },
    /// Somebody else moved the machine first.
    #[error("{machine} is {}, not {}: somebody else moved it; read it again", found.name(), expected.name())]
    MachineMoved {
        /// Which.
        machine: MachineId,
        /// Where the caller thought it stood.
        expected: MachineState,
        /// Where it stands.
        found: MachineState,
    },
    /// A version is taken back that is not the default, or not any more.
    #[error("version {version} of {name:?} is not the default one: {now}. Look again before you roll back")]
    DefaultChanged {
        /// The models' name.
        name: String,
        /// The version that was to be taken back.
        version: u32,
        /// What is the default.
        now: String,
    },
    /// There is nothing to go back to.
    #[error(
        "version {version} of {name:?} is the first default that is still there: no earlier one is known to go back to; \
         promote the one that is to answer"
    )]
    NothingBefore {
        /// The models' name.
        name: String,
        /// The default version.
        version: u32,
    },
    /// Another version of the task is on trial.
    #[error(
        "{name} version {version} is on trial in {task}, and of each task one version is at a time; wait until that has ended, or stop it"
    )]
    TrialRuns {
        /// The task.
        task: TaskId,
        /// The name of the version on trial.
        name: String,
        /// Its number.
        version: u32,
    },
    /// A flag is to be taken back that is not there.
    #[error("variant {name:?} is not flagged as less accurate than measured; there is nothing to take back")]
    NotFlagged {
        /// The variant's name.
        name: String,
    },
    /// There is no room for another.
    #[error(
        "there are {limit} of the kind {what} {whose} already, which is the limit; end or remove others first"
    )]
    Full {
        /// Of which kind.
        what: &'static str,
        /// How many there may be.
        limit: usize,
        /// Whose they are, in words.
        whose: &'static str,
    },
    /// A tenant has as many jobs as it may have.
    #[error(
        "{limit} offline jobs of this tenant have not ended, and there is room for no more; wait until one is done, or \
         cancel one"
    )]
    TooManyJobs {
        /// How many there may be.
        limit: u64,
    },
    /// A tenant's inputs that wait and its outputs would come to more bytes than may be kept.
    #[error(
        "these inputs are too many bytes: {job} would have {own} of them, other jobs of this tenant have {others} with their outputs, \
         and {limit} may be kept altogether; {}",
        if own > limit { "make several jobs of this one" } else { "remove jobs that have ended, or send them again when another job is done" }
    )]
    TooManyBytes {
        /// Which.
        job: JobId,
        /// What its inputs would come to.
        own: u64,
        /// What those of the tenant's other jobs come to.
        others: u64,
        /// What all may come to.
        limit: u64,
    },
    /// Another input came to the same place before.
    #[error(
        "input {at} of {job} came before and was another one; it stays as it came. Number inputs from 0, each once"
    )]
    InputDiffers {
        /// Which.
        job: JobId,
        /// The place.
        at: u32,
    },
    /// A job cannot start without all its inputs.
    #[error("{missing} of the {inputs} inputs of {job} have not come; send them, and start it then")]
    InputsMissing {
        /// Which.
        job: JobId,
        /// How many have not come.
        missing: u32,
        /// How many it has.
        inputs: u32,
    },
    /// No input may come (any more).
    #[error("{job} is {}: its inputs are no longer taken; make another job", state.name())]
    JobNotReceiving {
        /// Which.
        job: JobId,
        /// Where it stands.
        state: JobState,
    },
    /// Nothing of it can have been answered yet.
    #[error("{job} has not started, so none of its inputs can have ended")]
    JobNotStarted {
        /// Which.
        job: JobId,
    },
    /// It cannot go before it has ended.
    #[error("{job} is {}; cancel it, or wait until it is done, and remove it then", state.name())]
    JobNotEnded {
        /// Which.
        job: JobId,
        /// Where it stands.
        state: JobState,
    },
    /// Another process uses the data folder.
    #[error(
        "the data folder {} is in use by {}; stop that one, or give another folder with --data",
        path.display(),
        pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who holds it, where it said so.
        pid: Option<u32>,
    },
    /// A later release has been here.
    #[error(
        "the database {database} is of version {found} and this program knows versions up to {known}; nothing was \
         changed. Use the newer program, or another database"
    )]
    NewerDatabase {
        /// Where, without password.
        database: String,
        /// Its version.
        found: i64,
        /// The newest known here.
        known: i64,
    },
    /// What is stored does not make sense.
    #[error(
        "the database {database} is damaged: {why}. It was left as it is. Restore it from a backup, or move it \
         aside (for SQLite with its -wal and -shm files) and start with an empty one"
    )]
    Corrupt {
        /// Where, without password.
        database: String,
        /// What was found.
        why: String,
    },
    /// Somebody else's database.
    #[error(
        "the database {database} is not one of modelless ({why}); nothing was changed. Give an empty or another one"
    )]
    NotOurs {
        /// Where, without password.
        database: String,
        /// What was found.
        why: String,
    },
    /// The database does not answer.
    #[error("the database {database} cannot be reached: {why}")]
    Unreachable {
        /// Where, without password.
        database: String,
        /// What happened.
        why: String,
    },
    /// The database answered with an error.
    #[error("the database {database} reports: {why}")]
    Database {
        /// Where, without password.
        database: String,
        /// What it said.
        why: String,
    },
    /// A stored artefact is not what it was.
    #[error(
        "the artefact {} is damaged (its content is {found}); register the model again from its original file",
        path.display()
    )]
    ArtefactCorrupt {
        /// The file.
        path: PathBuf,
        /// The sha256 it should have.
        expected: String,
        /// The sha256 it has.
        found: String,
    },
    /// A file or folder could not be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }

    pub(crate) fn not_found(what: &'static str, name: impl fmt::Display) -> Self {
        Self::NotFound { what, name: format!("{name}") }
    }

    pub(crate) fn task_in_use(task: TaskId) -> Self {
        Self::InUse {
            what: "task",
            name: task.to_string(),
            by: "it has models; remove them first".to_owned(),
        }
    }

    pub(crate) fn model_in_use(name: String, replica: ReplicaId, state: ReplicaState, node: &str) -> Self {
        let by = format!("{replica} of it is {state} on node {node:?}; remove it by force, or wait");
        Self::InUse { what: "model", name, by }
    }

    pub(crate) fn default_in_use(name: String, next: Option<u32>) -> Self {
        let then = match next {
            Some(version) => format!("then version {version} is the default again"),
            None => "then no version of it answers before one is promoted".to_owned(),
        };
        let by = format!(
            "it is the default version, which answers queries; promote another first, or remove it by force: {then}"
        );
        Self::InUse { what: "model", name, by }
    }

    pub(crate) fn not_default(name: String, version: u32, now: Option<u32>) -> Self {
        let now = now.map_or_else(|| "none is".to_owned(), |now| format!("version {now} is"));
        Self::DefaultChanged { name, version, now }
    }

    pub(crate) fn exists(what: &'static str, name: impl Into<String>) -> Self {
        Self::AlreadyExists { what, name: name.into() }
    }
}

/// Parts per million, to a tenth of a per cent, rounded up: what is over is never shown as all.
fn percent(ppm: u64) -> String {
    let tenths = ppm.div_ceil(1_000);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn of_task(task: Option<TaskId>) -> String {
    task.map_or_else(|| "every task".to_owned(), |task| task.to_string())
}

/// What to do where a name is taken, as far as that is possible.
fn instead(what: &str) -> &'static str {
    match what {
        "tenant" => "choose another name",
        "model" => "choose another name or version, or remove it first",
        _ => "choose another name, or remove it first",
    }
}
