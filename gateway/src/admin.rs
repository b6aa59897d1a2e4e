//! What registering a model takes besides the store: looking into the artefact and measuring it. Somebody else
//! knows how; this is what the gateway asks of them.

use async_trait::async_trait;
use modelless_store::Registered;
use modelless_types::{Bytes, Engine, Optimisation, Processor, TenantId};
use serde::{Deserialize, Serialize};

/// A model to be registered. Its artefacts were uploaded before and are named by their sha256.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// The task's name.
    pub task: String,
    /// Unique in its task together with `version`.
    pub name: String,
    /// The owner's version.
    #[serde(default = "first_version")]
    pub version: u32,
    /// Family, such as `cnn`.
    #[serde(default)]
    pub architecture: String,
    /// Licence, as an SPDX expression where there is one.
    #[serde(default)]
    pub licence: String,
    /// Whom to ask about it.
    #[serde(default)]
    pub owner: String,
    /// Whether it becomes the default version of its name; the first one does in any case.
    #[serde(default)]
    pub promote: bool,
    /// Who registers it, in their own words.
    #[serde(default)]
    pub by: String,
    /// How the task's input becomes its tensors and its tensors the task's output.
    pub adapter: serde_json::Value,
    /// The output space of its vectors; left out, the task's default. Only vectors have to do with it.
    #[serde(default)]
    pub space: Option<String>,
    /// How it is to be run.
    pub variants: Vec<RegisterVariant>,
    /// What to measure its accuracy on.
    #[serde(default)]
    pub set: Option<SetRef>,
    /// The accuracy its owner claims, where it cannot be measured here.
    #[serde(default)]
    pub declared_accuracy: Option<f64>,
    /// So long at most measuring may take, in milliseconds, and the best that is known then; `null`: as long as it takes. A
    /// cluster's nodes give each variant an equal share of it, and measure what is coarse then again when they have nothing else to do.
    #[serde(default = "usual_budget")]
    pub budget_ms: Option<u64>,
}

/// One way to run a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterVariant {
    /// Unique in its task; `NAME-PRECISION` if it is not given.
    #[serde(default)]
    pub name: Option<String>,
    /// The library that runs it.
    #[serde(default = "usual_engine")]
    pub engine: Engine,
    /// Numbers the artefact computes in, such as `fp32`.
    pub precision: String,
    /// Threads of one run.
    #[serde(default = "one_thread")]
    pub threads: u16,
    /// The largest batch it may be given.
    #[serde(default = "usual_batch")]
    pub max_batch: u32,
    /// How far the graph may be rewritten.
    #[serde(default)]
    pub optimisation: Optimisation,
    /// What it computes on.
    #[serde(default)]
    pub processor: Processor,
    /// The most memory of a GPU that one replica takes for each of its streams, in bytes.
    #[serde(default)]
    pub gpu_memory: Option<Bytes>,
    /// The most bytes that one item's strings take in one tensor.
    #[serde(default)]
    pub string_bytes: Option<Bytes>,
    /// The artefact: sha256 in lower-case hexadecimal.
    pub artefact_sha256: String,
}

/// A labelled set that was uploaded like an artefact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRef {
    /// Its name, shown with every accuracy that was measured on it.
    pub name: String,
    /// sha256 in lower-case hexadecimal.
    pub artefact_sha256: String,
}

/// Within a minute there is something to go by; what is coarse then is measured again by itself.
/// Longer than a day nobody waits; who wants it to take as long as it takes says so.
pub(crate) const BUDGET_MS_MAX: u64 = 86_400_000;

#[expect(clippy::unnecessary_wraps, reason = "what is left out is a minute, and null is none")]
const fn usual_budget() -> Option<u64> {
    Some(60_000)
}

const fn first_version() -> u32 {
    1
}

const fn usual_engine() -> Engine {
    Engine::Onnx
}

const fn one_thread() -> u16 {
    1
}

const fn usual_batch() -> u32 {
    16
}

/// Why a model was not registered.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// What was asked cannot be: no such task, a tensor that does not fit.
    #[error("{0}")]
    Invalid(String),
    /// The store said no.
    #[error(transparent)]
    Store(#[from] modelless_store::Error),
    /// What is needed for it is missing here (an engine).
    #[error("{0}")]
    Unavailable(String),
}

/// How far a registration is that is being measured here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct UnderWay {
    /// The task's name.
    pub task: String,
    /// The model's.
    pub model: String,
    /// Its version.
    pub version: u32,
    /// What is measured now; `None`: it waits for its turn.
    pub variant: Option<String>,
    /// What is done with it, for people.
    pub progress: String,
    /// Which of its variants it is, from 1.
    pub at: usize,
    /// How many there are.
    pub of: usize,
    /// About so many thousandths of all of it are done.
    pub permille: u64,
    /// About how much longer it takes; `None`: nobody can tell yet.
    pub left_ms: Option<u64>,
}

/// Registers models.
#[async_trait]
pub trait Admin: Send + Sync {
    /// For a tenant. Looks into the artefacts, measures each variant, and stores the model with what was found; or stores it, and
    /// whoever runs it measures it then. The profiles tell which.
    async fn register(&self, tenant: TenantId, request: RegisterRequest) -> Result<Registered, AdminError>;

    /// What of a tenant's is being registered just now. Nothing, where others measure and say so with the model.
    fn under_way(&self, _tenant: TenantId) -> Vec<UnderWay> {
        Vec::new()
    }
}
