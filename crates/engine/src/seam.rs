//! What an engine is to the rest of the platform: loading, slots, batches, deaths.

use crate::slot::{BatchSlot, Outputs, Vacancy};
use async_trait::async_trait;
use modelless_types::{Bytes, Engine as Kind, Micros, ModelId, TensorSpec, VariantId, VariantSettings};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::time::Duration;
use tokio::sync::mpsc;

/// Runs variants. Object safe; shared as `Arc<dyn Engine>`.
///
/// A **lane** is one unit of concurrency on a device: batches of one lane run one after another in the order they
/// were submitted, batches of different lanes at the same time.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Whether variants can be loaded at all, and if not, why.
    async fn check(&self) -> Availability;

    /// The engines there are, and whether each can run anything. None that nothing is known of.
    async fn engines(&self) -> Vec<(Kind, Availability)> {
        Vec::new()
    }

    /// Version of the library that runs variants of a kind; `None` where it is not there. Starts a process that says it.
    async fn version(&self, kind: Kind) -> Option<String> {
        let found = self.engines().await.into_iter().find(|(known, _)| *known == kind)?;
        found.1.into_version()
    }

    /// Makes a variant resident. The artefact was opened (and its digest verified) by the caller.
    async fn load(&self, spec: LoadSpec) -> Result<Loaded, EngineError>;

    /// Gives a variant's memory back. With the last variant of a model its runner process ends. Refused while
    /// batches of the variant are in flight.
    async fn unload(&self, variant: VariantId) -> Result<Freed, EngineError>;

    /// A region for the inputs of one batch. There are [`crate::SLOTS_PER_LANE`] for each lane of a model: one
    /// that runs and one prepared ahead. Dropping the slot (or, after the run, its [`Outputs`]) frees it.
    fn slot(&self, variant: VariantId, lane: u16, batch: u32) -> Result<BatchSlot, EngineError>;

    /// Hands a filled slot to its lane and returns at once. `done` is called exactly once, on a thread of the
    /// engine (or on the caller's, before this returns, when the variant is gone already), so it must be short
    /// and must not block. A batch that is still running `limit` after it came to the head of its lane is
    /// [`BatchError::Hung`], and its runner is killed.
    fn submit(&self, slot: BatchSlot, limit: Duration, done: Done);

    /// Watches for the end of the batch at the head of a lane for at most `limit`, and if it comes calls its `done` on
    /// this thread. Saves a wake-up where nothing else is to be done; does nothing where that gains nothing.
    fn help(&self, variant: VariantId, lane: u16, limit: Duration) {
        let _ = (variant, lane, limit);
    }

    /// A batch of this variant will probably be submitted to the lane in a moment. Wakes what would have to wake up
    /// then; does nothing where that gains nothing.
    fn prime(&self, variant: VariantId, lane: u16) {
        let _ = (variant, lane);
    }

    /// Where to wait for a slot that [`Engine::slot`] does not have now. `None` if the variant is not there, or no such lane.
    fn vacancy(&self, variant: VariantId, lane: u16) -> Option<Vacancy>;

    /// Nobody waits any longer for a batch that was submitted to the lane. If it has not begun it ends with
    /// [`BatchError::Revoked`] when its turn comes; otherwise as it would have.
    fn revoke(&self, variant: VariantId, lane: u16, ticket: u64) {
        let _ = (variant, lane, ticket);
    }

    /// A batch that was submitted to the lane runs far longer than it should. Until it ends, what runs it stands back behind
    /// everything else that wants a core, as far as the kernel lets it come forward again afterwards.
    fn stand_back(&self, variant: VariantId, lane: u16, ticket: u64) {
        let _ = (variant, lane, ticket);
    }

    /// The most memory that the runner of a variant has held until now, with what it shares and with whatever else is
    /// in it. `None` where that is not known.
    fn peak(&self, variant: VariantId) -> Option<Bytes> {
        let _ = variant;
        None
    }

    /// What each process holds now that runs variants, without what is in memory because of files: with the variants in it. Empty where
    /// nothing tells.
    fn held(&self) -> Vec<(Vec<VariantId>, Bytes)> {
        Vec::new()
    }

    /// Processor time that the processes have taken which run variants, each as far as it is there. It falls when one ends. `None` where
    /// nothing tells.
    fn processor_time(&self) -> Option<Duration> {
        None
    }

    /// What happens without being asked for. The one receiver is given out once; `None` afterwards.
    fn events(&self) -> Option<mpsc::Receiver<EngineEvent>>;

    /// Ends every runner and waits for that. Batches in flight end with an error.
    async fn shutdown(&self);
}

impl Availability {
    pub(crate) fn into_version(self) -> Option<String> {
        match self {
            Self::Ready { version, .. } => Some(version),
            Self::Unavailable { .. } => None,
        }
    }
}

/// Called with what became of a batch.
pub type Done = Box<dyn FnOnce(BatchResult) + Send>;

/// What became of a batch.
pub type BatchResult = Result<Outputs, BatchError>;

/// A variant to load.
#[derive(Debug)]
pub struct LoadSpec {
    /// The variant.
    pub variant: VariantId,
    /// Its model: variants of one model share a runner process.
    pub model: ModelId,
    /// The artefact, opened for reading. Its descriptor is passed on; the runner opens nothing.
    pub artefact: File,
    /// Threads of a run and the largest batch.
    pub settings: VariantSettings,
    /// How many lanes will run it, numbered from 0.
    pub lanes: u16,
    /// The most private memory that its runner may hold on its account. `None`: what the engine allows any runner.
    pub memory_limit: Option<Bytes>,
    /// What the caller knows about its tensors: checked, and used where the artefact leaves an axis open.
    pub expect: Option<Io>,
    /// That is not a guess: an earlier load of the same artefact showed it. Then no first run is waited for.
    pub shown: bool,
}

/// The tensors of one item.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Io {
    /// In the order of the model.
    pub inputs: Vec<TensorSpec>,
    /// In the order of the model; none where nothing is known of them.
    pub outputs: Vec<TensorSpec>,
    /// Items may be shorter: the first axis of every input, the same for all items of a batch, at most this long. Where
    /// the model allows it, every batch says how long it is (see [`crate::BatchSlot::stretch`]); else all are this long.
    #[serde(default)]
    pub longest: Option<u32>,
}

impl Io {
    /// What has to be said to an engine of a model's tensors: nothing where its format says it, which it does not of
    /// items of different lengths.
    pub fn needed(
        engine: Kind,
        (inputs, outputs): (Vec<TensorSpec>, Vec<TensorSpec>),
        longest: Option<u32>,
    ) -> Option<Self> {
        match engine {
            Kind::Onnx | Kind::Openvino | Kind::Remote if longest.is_none() => None,
            Kind::Torch | Kind::Onnx | Kind::Openvino | Kind::Remote => {
                Some(Self { inputs, outputs, longest })
            }
        }
    }
}

/// What was found on loading a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Inputs of one item, in the order in which slots number them.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of one item, in the order in which results number them.
    pub outputs: Vec<TensorSpec>,
    /// The artefact takes exactly this many items a run. Smaller batches are padded and cost as much as a full one.
    pub fixed_batch: Option<u32>,
    /// Batches may be shorter than the items say: see [`Io::longest`].
    pub stretches: bool,
    /// By how much the runner grew: weights and one warm-up run, on every lane that has its own. For the first variant in it
    /// also what the process takes without any model; what is in memory because of files, such as the library, is nobody's.
    pub memory: Bytes,
    /// Shared memory of its slots, if every batch were as large as allowed. Taken as it is used.
    pub slots: Bytes,
    /// From the request until ready, start of the runner process included where there was none.
    pub load_time: Micros,
    /// Where it runs, such as `cpu`.
    pub device: String,
}

/// What unloading gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freed {
    /// What came back: by how much the runner shrank, and all that was its own if it ended. What is in memory because of files
    /// (the library, models) is nobody's.
    pub memory: Bytes,
    /// The runner process ended, so all of its memory is really free.
    pub process_ended: bool,
    /// What the runner still holds, for the variants that are left in it. Nothing if it ended.
    pub left: Bytes,
}

/// Whether an engine can run anything here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// It can.
    Ready {
        /// Version of the inference library.
        version: String,
        /// Where the library lies.
        library: String,
    },
    /// It cannot.
    Unavailable {
        /// What is missing and what to do.
        reason: String,
    },
}

/// What an engine reports without being asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    /// A runner ended by itself or was killed for hanging. This is in the channel before its batches complete
    /// with errors, so whoever reads events first never loads onto a runner that is dead.
    RunnerDied {
        /// Whose runner.
        model: ModelId,
        /// What was resident in it and is no more.
        variants: Vec<VariantId>,
        /// How it ended, with the last of what it printed.
        cause: String,
        /// It was killed because a batch ran over its limit.
        hung: bool,
    },
}

/// Why a batch has no outputs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// The library refused these inputs; the runner lives on.
    #[error("the model failed on this batch: {0}")]
    Model(String),
    /// The runner died while this batch was running.
    #[error("the runner died while running this batch: {0}")]
    Crashed(String),
    /// Somebody else killed the runner while this batch was running: the system for want of memory, or a person. The
    /// batch may have nothing to do with it.
    #[error("the runner was killed from outside while running this batch: {0}")]
    Killed(String),
    /// It ran over its limit and was killed.
    #[error("the batch ran longer than {} ms and its runner was killed", .0.as_millis())]
    Hung(Duration),
    /// Outputs came in other shapes than the variant declares.
    #[error("the outputs have the wrong shape: {0}")]
    Shape(String),
    /// What it would have been computed on did not answer: a server is down or late. The runner lives on.
    #[error("the batch was not computed: {0}")]
    Unreachable(String),
    /// It was taken back before it began: see [`Engine::revoke`].
    #[error("the batch was taken back before it began")]
    Revoked,
    /// It never ran: the variant or its runner was gone before its turn. Safe to give to another.
    #[error("the batch was not started: {0}")]
    NotStarted(String),
}

/// Whether an error says that there was no memory. Every library says so in its own words.
#[must_use]
pub fn says_memory(why: &str) -> bool {
    let words = [
        "bad_alloc",
        "memory allocation of",
        "Cannot allocate memory",
        "out of memory",
        "Failed to allocate memory",
    ];
    words.iter().any(|words| why.contains(words))
}

/// Why an engine did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// The library is missing or unfit.
    #[error("the engine cannot run here: {0}")]
    Unavailable(String),
    /// The artefact cannot be used.
    #[error("{variant} cannot be loaded: {why}")]
    Refused {
        /// The variant.
        variant: VariantId,
        /// What is wrong with it.
        why: String,
    },
    /// The runner died while loading.
    #[error("the runner of {model} died: {cause}")]
    Crashed {
        /// The model.
        model: ModelId,
        /// How it ended.
        cause: String,
    },
    /// Loading took too long; its runner was killed.
    #[error("the runner of {model} did not answer within {} s and was killed", .limit.as_secs())]
    Stuck {
        /// The model.
        model: ModelId,
        /// The limit.
        limit: Duration,
    },
    /// The variant is resident already.
    #[error("{0} is loaded already")]
    AlreadyLoaded(VariantId),
    /// The variant is not resident.
    #[error("{0} is not loaded")]
    NotLoaded(VariantId),
    /// Batches of it are in flight; drain first.
    #[error("{0} has batches in flight; unload it when they are done")]
    InUse(VariantId),
    /// Both slots of the lane are taken.
    #[error("lane {lane} of {variant} has no free slot")]
    NoSlot {
        /// The variant.
        variant: VariantId,
        /// The lane.
        lane: u16,
    },
    /// A number outside what was loaded or configured.
    #[error("{what} is {given}, but must be {allowed}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// What was asked for.
        given: u64,
        /// What is allowed.
        allowed: String,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        why: String,
    },
    /// The engine is shutting down or has too many requests waiting.
    #[error("the engine takes no more requests: {0}")]
    Busy(&'static str),
}

impl EngineError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System { what, why: error.to_string() }
    }

    pub(crate) fn range(what: &'static str, given: impl Into<u64>, allowed: impl Into<String>) -> Self {
        Self::OutOfRange { what, given: given.into(), allowed: allowed.into() }
    }
}
