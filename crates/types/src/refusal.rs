//! Every "no" there is. Each reaches the user as a reason; where the goals were impossible, with the nearest
//! that could be met.

use crate::units::{Accuracy, Bytes, CostPer1k, Micros};
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The nearest goals that could be met. Each figure alone, put in place of the goal asked for, would do (the others
/// as they were); `None` where changing that goal alone does not help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Nearest {
    /// The best accuracy there is under the other goals.
    pub accuracy: Option<Accuracy>,
    /// The shortest latency there is at this floor.
    pub latency: Option<Micros>,
    /// The lowest cost there is at this floor.
    pub max_cost: Option<CostPer1k>,
}

/// Why a query was not answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// No variant of the task is as accurate as asked.
    FloorUnreachable {
        /// The best there is.
        best: Option<Accuracy>,
    },
    /// No variant that keeps the floor is this fast, even on an idle machine.
    LatencyUnreachable {
        /// Goals that could be met.
        nearest: Nearest,
    },
    /// No variant that keeps the floor is this cheap.
    CostUnreachable {
        /// Goals that could be met.
        nearest: Nearest,
    },
    /// A pinned model or variant does not exist in this task, or pins and floor contradict each other.
    PinUnusable {
        /// What is wrong with it.
        why: String,
    },
    /// The task has no variant that could run anywhere.
    NothingRunnable {
        /// What is missing.
        why: String,
    },
    /// The deadline came, or could no longer be met, while the query waited.
    TooLate {
        /// How long it had waited.
        waited: Micros,
    },
    /// More queries wait already than the bound allows.
    QueueFull {
        /// The bound that was hit.
        limit: u32,
    },
    /// More decoded input waits already than the bound allows.
    BytesFull {
        /// The bound that was hit.
        limit: Bytes,
    },
    /// The tenant or application has used up its share.
    OverQuota,
    /// What could answer is not in memory yet and the deadline is sooner.
    Loading {
        /// When it is expected to be.
        ready_in: Micros,
        /// The nearest latency bound that leaves time for that, for whoever asks again now.
        bound: Micros,
    },
    /// What could answer failed to load or keeps crashing.
    VariantFailed {
        /// What the engine said.
        why: String,
    },
    /// The input made the model's process fail, alone and twice.
    InputCrashed {
        /// What the engine said.
        why: String,
    },
    /// The model ran and reported an error for this input.
    ModelError {
        /// What the engine said.
        why: String,
    },
    /// Memory for what could answer cannot be freed.
    OutOfMemory {
        /// What it needs.
        needs: Bytes,
        /// The budget it does not fit in.
        budget: Bytes,
    },
    /// The node is going away and took nothing new.
    Draining,
    /// The node that had it is gone and the deadline left no time for another.
    NodeLost,
    /// The client went away, so nobody waits for the answer.
    Cancelled,
}

impl Refusal {
    /// The name in answers, logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FloorUnreachable { .. } => "floor_unreachable",
            Self::LatencyUnreachable { .. } => "latency_unreachable",
            Self::CostUnreachable { .. } => "cost_unreachable",
            Self::PinUnusable { .. } => "pin_unusable",
            Self::NothingRunnable { .. } => "nothing_runnable",
            Self::TooLate { .. } => "too_late",
            Self::QueueFull { .. } => "queue_full",
            Self::BytesFull { .. } => "bytes_full",
            Self::OverQuota => "over_quota",
            Self::Loading { .. } => "loading",
            Self::VariantFailed { .. } => "variant_failed",
            Self::InputCrashed { .. } => "input_crashed",
            Self::ModelError { .. } => "model_error",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Draining => "draining",
            Self::NodeLost => "node_lost",
            Self::Cancelled => "cancelled",
        }
    }

    /// The nearest goals that could be met, where goals were the trouble.
    pub fn nearest(&self) -> Option<Nearest> {
        match self {
            Self::FloorUnreachable { best } => {
                best.map(|best| Nearest { accuracy: Some(best), ..Nearest::default() })
            }
            Self::LatencyUnreachable { nearest } | Self::CostUnreachable { nearest } => Some(*nearest),
            Self::Loading { bound, .. } => Some(Nearest { latency: Some(*bound), ..Nearest::default() }),
            Self::PinUnusable { .. }
            | Self::NothingRunnable { .. }
            | Self::TooLate { .. }
            | Self::QueueFull { .. }
            | Self::BytesFull { .. }
            | Self::OverQuota
            | Self::VariantFailed { .. }
            | Self::InputCrashed { .. }
            | Self::ModelError { .. }
            | Self::OutOfMemory { .. }
            | Self::Draining
            | Self::NodeLost
            | Self::Cancelled => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FloorUnreachable { best: Some(best) } => {
                write!(f, "no variant reaches this accuracy; the best there is measures {best}")
            }
            Self::FloorUnreachable { best: None } => {
                f.write_str("no variant of this task has a known accuracy, so no floor can be promised")
            }
            Self::LatencyUnreachable { nearest } => {
                f.write_str("no variant at or above this accuracy is this fast")?;
                match nearest.latency {
                    Some(latency) => write!(f, "; the shortest latency that could be met is {latency}"),
                    None => Ok(()),
                }
            }
            Self::CostUnreachable { nearest } => {
                f.write_str("no variant at or above this accuracy is this cheap")?;
                match nearest.max_cost {
                    Some(cost) => {
                        write!(f, "; the lowest that could be met is {} USD per 1,000 queries", cost.as_usd())
                    }
                    None => Ok(()),
                }
            }
            Self::PinUnusable { why } => write!(f, "the pinned model or variant cannot be used: {why}"),
            Self::NothingRunnable { why } => write!(f, "nothing can run this task: {why}"),
            Self::TooLate { waited } => {
                write!(f, "the latency goal could no longer be met after waiting {waited}")
            }
            Self::QueueFull { limit } => write!(f, "{limit} queries wait already, which is the limit"),
            Self::BytesFull { limit } => {
                write!(f, "{limit} of inputs or answers wait already, which is the limit")
            }
            Self::OverQuota => f.write_str("the quota of this application is used up"),
            Self::Loading { ready_in, bound } => {
                write!(
                    f,
                    "what could answer is being loaded and will be ready in about {ready_in}; a bound of {bound} leaves \
                     time for that"
                )
            }
            Self::VariantFailed { why } => write!(f, "what could answer does not run: {why}"),
            Self::InputCrashed { why } => write!(f, "this input made the model's process fail twice: {why}"),
            Self::ModelError { why } => write!(f, "the model reported an error for this input: {why}"),
            Self::OutOfMemory { needs, budget } => {
                write!(f, "what could answer needs {needs}, which does not fit in the budget of {budget}")
            }
            Self::Draining => f.write_str("this node is shutting down"),
            Self::NodeLost => f.write_str("the node that had this query is gone"),
            Self::Cancelled => f.write_str("the client went away"),
        }
    }
}
