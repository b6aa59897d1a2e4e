//! The words every part of modelless shares: ids, units, goals, profiles.
//!
//! No logic beyond what keeps a value valid, and no I/O: the crate is `no_std`, so nothing here can read a
//! clock, a file or the environment. Quantities are integers (microseconds, bytes, parts per million,
//! nano-dollars) because decisions compare them exactly and must come out the same everywhere.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

pub mod access;
pub mod batching;
pub mod caching;
pub mod catalog;
pub mod goals;
pub mod ids;
pub mod job;
pub mod keeping;
pub mod machine;
pub mod profile;
pub mod refusal;
pub mod replica;
pub mod slots;
mod spans;
pub mod tensor;
pub mod trial;
pub mod units;
pub mod variant_set;
pub mod within;

pub use access::{Scope, Scopes};
pub use batching::{Batching, TaskBatching};
pub use caching::CacheFor;
pub use catalog::{Engine, Labels, Model, Optimisation, Processor, Task, TaskKind, Variant, VariantSettings};
pub use goals::{Fallback, Goals, Prefer, Priority};
pub use ids::{
    AppId, ClassId, DeviceIx, JobId, KeyId, MachineId, ModelId, NodeId, PlanId, QueryKey, QueryNumber,
    ReplicaId, SpaceId, TaskId, TenantId, TrialId, VariantId,
};
pub use job::JobState;
pub use keeping::{Ahead, KeepFor};
pub use machine::MachineState;
pub use profile::{
    AccuracyMeasure, AccuracyRule, BatchPoint, DeclaredRule, Detail, Largest, LiveRule, PointDetail, Profile,
    Provenance, StageTime, Unsteady,
};
pub use refusal::{Nearest, Refusal};
pub use replica::ReplicaState;
pub use slots::{Bin, Slot};
pub use tensor::{DType, TensorSpec};
pub use trial::{Share, TrialState};
pub use units::{Accuracy, Bytes, CostPer1k, Micros, PricePerHour, Time};
pub use variant_set::VariantSet;
pub use within::Within;
