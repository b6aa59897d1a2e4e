//! What a variant really does on this machine: its latency by batch, its memory, its accuracy.
//!
//! The quick form: a few seconds for a dozen small variants, at first start and whenever a model is registered.
//! Everything is measured the way it is used: the model in a runner process, its tensors in shared memory, its
//! inputs through the task's adapter. What comes of it is a [`modelless_types::Profile`], and every figure says
//! that it was measured, on what and by which command.
//!
//! It decides nothing and serves nothing. [`Package`] reads the manifests that describe a task and its models,
//! [`LabelledSet`] the labelled data; [`Registrar`] puts both into the store.
#![warn(missing_docs)]

mod accuracy;
mod answers;
mod bench;
mod doubts;
mod dump;
mod earlier;
mod error;
pub mod generate;
mod idx;
mod inspect;
mod latency;
mod manifest;
mod minute;
mod onnx;
mod points;
mod profile;
mod register;
mod set;
mod stats;
mod torchscript;

pub use accuracy::Tally;
pub use dump::{Dump, Dumped, DumpedTensor};
pub use error::Error;
pub use manifest::{
    ModelManifest, Package, SetManifest, SpaceManifest, TaskManifest, VariantManifest, usual_variant_name,
};
pub use minute::{Host, Ticks};
pub use onnx::{Declared, OnnxModel};
pub use profile::{Config, Profiler, Progress, Report, Subject};
pub use register::{Known, NewRegistration, NewRegistrationVariant, Registrar};
pub use set::LabelledSet;
pub use torchscript::{Argument, Parameter, TorchScript};
