//! Tasks, models and variants: what is registered, as the store keeps it and everyone else reads it.

use crate::AccuracyRule;
use crate::goals::Goals;
use crate::ids::{ModelId, SpaceId, TaskId, TenantId, VariantId};
use crate::profile::Profile;
use crate::tensor::TensorSpec;
use crate::units::Bytes;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What goes in and what comes out, named as Hugging Face names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// A JPEG or PNG in, labels with scores out.
    ImageClassification,
    /// Named arrays in, named arrays out.
    Tensor,
}

impl TaskKind {
    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ImageClassification => "image-classification",
            Self::Tensor => "tensor",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::ImageClassification, Self::Tensor].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The labels of a classification task, in the order of the model's outputs. Empty for other kinds.
pub type Labels = Vec<String>;

/// What is asked: an input kind, an output kind, one accuracy metric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Number in the store.
    pub id: TaskId,
    /// The name in URLs: lower-case letters, digits, `-` and `_`.
    pub name: String,
    /// Who owns it.
    pub tenant: TenantId,
    /// Input and output kind.
    pub kind: TaskKind,
    /// Name of the one metric that `accuracy` means here, such as `top-1`.
    pub metric: String,
    /// Which figure floors are compared with.
    pub accuracy_rule: AccuracyRule,
    /// Output labels, for classification. Every model of the default output space has exactly these.
    pub labels: Labels,
    /// Inputs of one item, for `tensor` tasks. Empty for others.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of one item, for `tensor` tasks. Empty for others.
    pub outputs: Vec<TensorSpec>,
    /// The output space that queries without a pin are answered in.
    pub default_space: SpaceId,
    /// Goals that hold where a query gives none.
    pub defaults: Goals,
    /// One sentence for people.
    pub description: String,
}

/// One trained artefact for a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Model {
    /// Number in the store.
    pub id: ModelId,
    /// What it was trained for.
    pub task: TaskId,
    /// Who owns it.
    pub tenant: TenantId,
    /// Unique in its task together with `version`.
    pub name: String,
    /// The owner's version.
    pub version: u32,
    /// Family, such as `cnn` or `efficientnet`.
    pub architecture: String,
    /// Licence, as an SPDX expression where there is one.
    pub licence: String,
    /// The output space of its answers.
    pub space: SpaceId,
    /// How the task's input becomes its tensors and its tensors the task's output, in the adapter's own
    /// notation (JSON). Only the `adapter` crate reads it.
    pub adapter: String,
}

/// Which inference library runs a variant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// ONNX Runtime.
    Onnx,
}

impl Engine {
    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a model is made runnable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VariantSettings {
    /// The library.
    pub engine: Engine,
    /// Numbers the artefact computes in, such as `fp32` or `int8`. A name; the artefact decides.
    pub precision: String,
    /// Threads of one run.
    pub threads: u16,
    /// The largest batch it may be given.
    pub max_batch: u32,
}

/// A model made runnable, with what was measured of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Variant {
    /// Number in the store.
    pub id: VariantId,
    /// The model it makes runnable.
    pub model: ModelId,
    /// Its position in its task's [`crate::VariantSet`]; never reused there while the task lives.
    pub ordinal: u8,
    /// Unique in its task, such as `cnn_m-int8`.
    pub name: String,
    /// How it is run.
    pub settings: VariantSettings,
    /// sha256 of the artefact, in hexadecimal: its address in the artefact store.
    pub artefact: String,
    /// Size of the artefact.
    pub artefact_bytes: Bytes,
    /// What was measured of it, one per device class.
    pub profiles: Vec<Profile>,
}

impl Variant {
    /// What was measured of it on a device class.
    pub fn profile_on(&self, device_class: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.device_class == device_class)
    }
}
