//! Tasks, models and variants: what is registered, as the store keeps it and everyone else reads it.

use crate::batching::Batching;
use crate::caching::CacheFor;
use crate::goals::Goals;
use crate::ids::{ModelId, SpaceId, TaskId, TenantId, VariantId};
use crate::keeping::{Ahead, KeepFor};
use crate::profile::Profile;
use crate::tensor::TensorSpec;
use crate::units::Bytes;
use crate::{AccuracyRule, DeclaredRule, LiveRule};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What goes in and what comes out, named as Hugging Face names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// A JPEG or PNG in, labels with scores out.
    ImageClassification,
    /// A text in, labels with scores out.
    TextClassification,
    /// A text in, one vector out.
    FeatureExtraction,
    /// Named arrays in, named arrays out.
    Tensor,
}

impl TaskKind {
    /// All there are.
    pub const ALL: [Self; 4] =
        [Self::ImageClassification, Self::TextClassification, Self::FeatureExtraction, Self::Tensor];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ImageClassification => "image-classification",
            Self::TextClassification => "text-classification",
            Self::FeatureExtraction => "feature-extraction",
            Self::Tensor => "tensor",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
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
    /// Whether feedback counts for floors.
    #[serde(default)]
    pub live_accuracy: LiveRule,
    /// Whether accuracies that nobody measured count for floors.
    #[serde(default)]
    pub declared_accuracy: DeclaredRule,
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
    /// How its queries share batches. `None`: as the node is set.
    #[serde(default)]
    pub batching: Option<Batching>,
    /// For how long its answers may be given again to who asks the very same.
    #[serde(default)]
    pub cache: CacheFor,
    /// For how long its variants stay in memory after its last query.
    #[serde(default)]
    pub keep: KeepFor,
    /// Whether what earlier days tell of it counts before it is asked for.
    #[serde(default)]
    pub ahead: Ahead,
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
    /// Whom to ask about it: a person or team, in the owner's words. Empty where nobody said.
    #[serde(default)]
    pub owner: String,
    /// When it was promoted, in versions of the catalogue; 0 for a candidate. Of the versions of a name the one that was
    /// promoted last is the default: it answers where nothing is pinned.
    #[serde(default)]
    pub promoted: u64,
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
    /// OpenVINO, on the same artefacts as ONNX Runtime.
    Openvino,
    /// libtorch, on TorchScript.
    Torch,
    /// Another server that speaks the Open Inference Protocol.
    Remote,
}

impl Engine {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Onnx, Self::Openvino, Self::Torch, Self::Remote];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Openvino => "openvino",
            Self::Torch => "torch",
            Self::Remote => "remote",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How far an engine may rewrite a model's graph before running it. Engines without such a choice take it as it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimisation {
    /// Not at all.
    Off,
    /// What changes no result: constants folded, what is unused removed.
    Basic,
    /// Also operators fused.
    Extended,
    /// Everything it knows, layouts of memory included.
    #[default]
    All,
}

impl Optimisation {
    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Basic => "basic",
            Self::Extended => "extended",
            Self::All => "all",
        }
    }
}

/// What a variant computes on: `cpu`, `cuda` or `cuda:N`, `tensorrt` or `tensorrt:N`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Processor {
    /// The machine's own cores.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(u16),
    /// An NVIDIA GPU, by its number, through TensorRT.
    Tensorrt(u16),
}

impl Processor {
    /// From what users write.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, number) = text.split_once(':').unwrap_or((text, "0"));
        let number = number.parse().ok()?;
        match kind {
            "cpu" if kind == text => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(number)),
            "tensorrt" => Some(Self::Tensorrt(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Tensorrt(number) => write!(f, "tensorrt:{number}"),
        }
    }
}

impl TryFrom<String> for Processor {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| {
            format!("{text:?} is no processor; it is cpu, cuda, cuda:N, tensorrt or tensorrt:N")
        })
    }
}

impl From<Processor> for String {
    fn from(processor: Processor) -> Self {
        processor.to_string()
    }
}

/// How a model is made runnable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VariantSettings {
    /// The library.
    pub engine: Engine,
    /// Numbers the artefact computes in, such as `fp32` or `int8`. A name; the artefact decides. OpenVINO alone also
    /// computes an `fp32` artefact in `bf16` where this says so.
    pub precision: String,
    /// Threads of one run.
    pub threads: u16,
    /// The largest batch it may be given.
    pub max_batch: u32,
    /// How far the graph may be rewritten.
    #[serde(default)]
    pub optimisation: Optimisation,
    /// What it computes on.
    #[serde(default)]
    pub processor: Processor,
    /// The most memory of a GPU that one replica takes for each of its streams; where nothing is said, as much as it likes. Only
    /// ONNX Runtime keeps to it; others refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Bytes>,
    /// The most bytes that one item's strings take in one tensor, four for the length of each included. Only tensors of
    /// strings have to do with it. `None`: [`VariantSettings::STRING_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_bytes: Option<Bytes>,
}

impl VariantSettings {
    /// What strings may take where nothing is said: several pages of text.
    pub const STRING_BYTES: Bytes = Bytes(64 << 10);

    /// What one item's strings may take in one tensor.
    pub fn strings(&self) -> Bytes {
        self.string_bytes.unwrap_or(Self::STRING_BYTES)
    }

    /// One thread on the CPU, with everything the engine knows done to the graph.
    pub fn new(engine: Engine, precision: impl Into<String>, max_batch: u32) -> Self {
        Self {
            engine,
            precision: precision.into(),
            threads: 1,
            max_batch,
            optimisation: Optimisation::All,
            processor: Processor::Cpu,
            gpu_memory: None,
            string_bytes: None,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_as_they_are_written() {
        for (text, processor) in [
            ("cpu", Processor::Cpu),
            ("cuda", Processor::Cuda(0)),
            ("cuda:3", Processor::Cuda(3)),
            ("tensorrt:1", Processor::Tensorrt(1)),
        ] {
            assert_eq!(Processor::parse(text), Some(processor));
            assert_eq!(Processor::parse(&processor.to_string()), Some(processor));
        }
        for text in ["", "cpu:0", "gpu", "cuda:", "cuda:-1", "cuda:x"] {
            assert_eq!(Processor::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_engine_has_a_name_of_its_own() {
        for engine in Engine::ALL {
            assert_eq!(Engine::parse(engine.name()), Some(engine));
        }
        assert_eq!(Engine::parse("tpu"), None);
    }
}
