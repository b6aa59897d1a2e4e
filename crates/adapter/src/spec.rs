//! The notation in which a model says how its task's input becomes its tensors: JSON in the store, TOML in a
//! manifest. What does not depend on the model's file is checked here; the rest by [`crate::Adapter::new`].

use crate::SpecError;
use crate::preparation::Preparation;
use crate::text::{EmbeddingSpec, LabelSpec, Tokenizer, TokensSpec};
use modelless_types::{DType, Task, TaskKind, TensorSpec};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The largest width or height of a model's input.
const MAX_INPUT_SIDE: u32 = 4_096;

/// What a model needs of its task's input and does with its output, by task kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AdapterSpec {
    /// Pictures in, labels out.
    ImageClassification(ImageSpec),
    /// Texts in, labels out.
    TextClassification(LabelSpec),
    /// Texts in, one vector out.
    FeatureExtraction(EmbeddingSpec),
    /// Tensors in, tensors out.
    Tensor(TensorsSpec),
}

/// How a picture becomes one tensor and one tensor scored labels.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// The model's input; may be left out where it has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The model's output; may be left out where it has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Width of the model's input.
    pub width: u32,
    /// Height of the model's input.
    pub height: u32,
    /// Which channels, in which order.
    pub channels: Channels,
    /// Order of the axes.
    #[serde(default)]
    pub layout: Layout,
    /// How a picture of any size becomes one of this size.
    #[serde(default)]
    pub resize: Resize,
    /// Factor applied to each pixel first; left out, 1/255 for floats and 1 for `uint8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<PerChannel>,
    /// Subtracted then, in the order of the model's channels.
    #[serde(default = "PerChannel::zero")]
    pub mean: PerChannel,
    /// Divided by last, in the order of the model's channels.
    #[serde(default = "PerChannel::one")]
    pub std: PerChannel,
    /// Type of the input's elements.
    #[serde(default)]
    pub dtype: InputType,
    /// What makes scores of the outputs.
    #[serde(default)]
    pub activation: Activation,
    /// How many labels are answered unless the query says otherwise.
    #[serde(default = "default_top_k")]
    pub top_k: u32,
}

pub(crate) fn default_top_k() -> u32 {
    5
}

/// Which tensors of the model are which of the task: from the task's names to the model's. A name that is not
/// listed is the same in both.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorsSpec {
    /// Inputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// Outputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, String>,
}

/// Channels of a model's input, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channels {
    /// One: brightness.
    Grey,
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
}

/// The colour a picture is decoded to. `rgb` and `bgr` models share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Colour {
    /// One byte per pixel.
    Grey,
    /// Three bytes per pixel: red, green, blue.
    Rgb,
}

/// Order of the axes of a model's input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channel, row, column.
    #[default]
    Nchw,
    /// Row, column, channel.
    Nhwc,
}

/// How a picture of any size becomes one of the model's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// What happens to the proportions.
    pub mode: Mode,
    /// How pixels are weighed.
    pub filter: Filter,
    /// With `shorter-side`: what the shorter side is resized to before cropping; left out, the larger of width
    /// and height, so that nothing but the excess of the longer side is cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// With `letterbox`: the pixel value (before normalising) of the bars.
    pub fill: u8,
}

/// What happens to the proportions of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Both sides are resized to the model's, whatever that does to the proportions.
    #[default]
    Stretch,
    /// The shorter side is resized to `size`, then the middle is cut out.
    ShorterSide,
    /// The whole picture is fitted in; bars fill the rest.
    Letterbox,
}

/// How pixels are weighed when resizing. All widen when making smaller, so nothing is skipped over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// Triangle.
    #[default]
    Bilinear,
    /// Cubic with a = -0.5.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
    /// Mean of the area.
    #[serde(alias = "box")]
    Area,
}

/// Type of a picture tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputType {
    /// Single precision.
    #[default]
    Fp32,
    /// Half precision.
    Fp16,
    /// Bytes: values are rounded to the nearest and held within 0 to 255.
    Uint8,
}

impl AdapterSpec {
    /// The model's inputs and outputs, as far as task and adapter alone tell them: what an engine needs for formats that
    /// say nothing of their tensors. Inputs are all there, in the order in which such a model takes them; outputs are
    /// left out where only the model knows them.
    pub fn tensors(&self, task: &Task) -> (Vec<TensorSpec>, Vec<TensorSpec>) {
        match self {
            Self::ImageClassification(image) => {
                let (width, height) = (image.width, image.height);
                let channels = if image.channels == Channels::Grey { 1 } else { 3 };
                let shape = match image.layout {
                    Layout::Nchw => vec![channels, height, width],
                    Layout::Nhwc => vec![height, width, channels],
                };
                let name = image.input.clone().unwrap_or_else(|| "input".to_owned());
                (vec![TensorSpec { name, dtype: image.dtype.dtype(), shape }], Vec::new())
            }
            Self::TextClassification(LabelSpec { tokens, .. })
            | Self::FeatureExtraction(EmbeddingSpec { tokens, .. }) => (tokens.tensors(), Vec::new()),
            Self::Tensor(names) => {
                let renamed = |specs: &[TensorSpec], names: &BTreeMap<String, String>| {
                    let renamed = |spec: &TensorSpec| TensorSpec {
                        name: names.get(&spec.name).unwrap_or(&spec.name).clone(),
                        ..spec.clone()
                    };
                    specs.iter().map(renamed).collect()
                };
                (renamed(&task.inputs, &names.inputs), renamed(&task.outputs, &names.outputs))
            }
        }
    }
}

impl InputType {
    /// The tensor type.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::Fp32,
            Self::Fp16 => DType::Fp16,
            Self::Uint8 => DType::Uint8,
        }
    }
}

/// What makes scores of a model's outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// Scores that sum to one: for outputs that are logits of classes that exclude each other.
    #[default]
    Softmax,
    /// Each score on its own.
    Sigmoid,
    /// The outputs are scores already.
    None,
}

/// One number for all channels, or one for each.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum PerChannel {
    /// For all.
    All(f64),
    /// For each, in the order of the model's channels.
    Each(Vec<f64>),
}

impl PerChannel {
    fn zero() -> Self {
        Self::All(0.0)
    }

    fn one() -> Self {
        Self::All(1.0)
    }

    /// The number for a channel. Channels beyond the list, which [`AdapterSpec::check`] refuses, have its last.
    pub(crate) fn of(&self, channel: usize) -> f64 {
        match self {
            Self::All(value) => *value,
            Self::Each(values) => values.get(channel).or(values.last()).copied().unwrap_or(f64::NAN),
        }
    }

    fn check(
        &self,
        setting: &'static str,
        channels: usize,
        fine: fn(f64) -> bool,
        expected: &str,
    ) -> Result<(), SpecError> {
        let (values, right_length) = match self {
            Self::All(value) => (std::slice::from_ref(value), true),
            Self::Each(values) => (values.as_slice(), values.len() == channels),
        };
        if right_length && values.iter().all(|value| fine(*value)) {
            return Ok(());
        }
        Err(SpecError::Setting {
            setting,
            found: format!("{values:?}"),
            expected: format!("one number, or a list of {channels} (one per channel), {expected}"),
        })
    }
}

impl<'de> Deserialize<'de> for PerChannel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrEach;
        impl<'de> Visitor<'de> for OneOrEach {
            type Value = PerChannel;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a list of numbers, one per channel")
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<PerChannel, E> {
                Ok(PerChannel::All(value))
            }
            #[expect(clippy::cast_precision_loss, reason = "such a setting is never beyond 2^53")]
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<PerChannel, E> {
                Ok(PerChannel::All(value as f64))
            }
            #[expect(clippy::cast_precision_loss, reason = "such a setting is never beyond 2^53")]
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<PerChannel, E> {
                Ok(PerChannel::All(value as f64))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PerChannel, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = seq.next_element()? {
                    if values.len() == 3 {
                        return Err(de::Error::invalid_length(4, &"at most 3 channels"));
                    }
                    values.push(value);
                }
                Ok(PerChannel::Each(values))
            }
        }
        deserializer.deserialize_any(OneOrEach)
    }
}

impl Channels {
    /// How many.
    pub const fn count(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb | Self::Bgr => 3,
        }
    }

    /// What a picture has to be decoded to.
    pub const fn colour(self) -> Colour {
        match self {
            Self::Grey => Colour::Grey,
            Self::Rgb | Self::Bgr => Colour::Rgb,
        }
    }
}

impl Colour {
    /// Bytes of one pixel.
    pub const fn channels(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grey => "a grey picture",
            Self::Rgb => "a colour picture",
        }
    }
}

impl AdapterSpec {
    /// Reads the JSON notation and checks all that can be checked without the model.
    pub fn parse(json: &str) -> Result<Self, SpecError> {
        let spec: Self = serde_json::from_str(json).map_err(|error| {
            SpecError::Notation(format!(
                "{error}; expected a JSON object such as {{\"kind\": \"image-classification\", \"width\": 224, \
                 \"height\": 224, \"channels\": \"rgb\"}} or {{\"kind\": \"tensor\"}}"
            ))
        })?;
        spec.check()?;
        Ok(spec)
    }

    /// Writes the JSON notation.
    pub fn to_json(&self) -> Result<String, SpecError> {
        serde_json::to_string(self).map_err(|error| SpecError::Notation(error.to_string()))
    }

    /// Checks all that can be checked without the model; for a spec that came another way than by `parse`.
    pub fn check(&self) -> Result<(), SpecError> {
        match self {
            Self::ImageClassification(image) => image.check(),
            Self::TextClassification(labels) => labels.check(),
            Self::FeatureExtraction(embedding) => embedding.check(),
            Self::Tensor(_) => Ok(()),
        }
    }

    /// Which kind of task it is for.
    pub const fn kind(&self) -> TaskKind {
        match self {
            Self::ImageClassification(_) => TaskKind::ImageClassification,
            Self::TextClassification(_) => TaskKind::TextClassification,
            Self::FeatureExtraction(_) => TaskKind::FeatureExtraction,
            Self::Tensor(_) => TaskKind::Tensor,
        }
    }

    /// How the input of a task has to be decoded for it. `tokenizer` is the file that [`AdapterSpec::tokenizer`] names.
    pub fn preparation(
        &self,
        task: &Task,
        tokenizer: Option<&Arc<Tokenizer>>,
    ) -> Result<Preparation, SpecError> {
        match self {
            Self::ImageClassification(image) => Ok(Preparation::Picture { colour: image.channels.colour() }),
            Self::Tensor(_) => Ok(Preparation::Tensors { inputs: task.inputs.as_slice().into() }),
            Self::TextClassification(_) | Self::FeatureExtraction(_) => match tokenizer {
                Some(tokenizer) => Ok(Preparation::Text { tokenizer: Arc::clone(tokenizer) }),
                None => Err(SpecError::Tokenizer { why: "its file is not here".to_owned() }),
            },
        }
    }

    /// The file that it needs besides the model: a path in a manifest, a sha256 in the store.
    pub fn tokenizer(&self) -> Option<&str> {
        self.tokens().map(|tokens| tokens.tokenizer.as_str())
    }

    /// Says where that file is.
    pub fn set_tokenizer(&mut self, place: String) {
        match self {
            Self::TextClassification(LabelSpec { tokens, .. })
            | Self::FeatureExtraction(EmbeddingSpec { tokens, .. }) => tokens.tokenizer = place,
            Self::ImageClassification(_) | Self::Tensor(_) => {}
        }
    }

    /// The greatest length of an item, where items may be shorter.
    pub fn longest(&self) -> Option<u32> {
        self.tokens().map(|tokens| tokens.max)
    }

    /// The output that counts, where it is named; otherwise the first.
    pub fn output(&self) -> Option<&str> {
        match self {
            Self::ImageClassification(image) => image.output.as_deref(),
            Self::TextClassification(labels) => labels.output.as_deref(),
            Self::FeatureExtraction(embedding) => embedding.output.as_deref(),
            Self::Tensor(_) => None,
        }
    }

    /// How many numbers a vector has, where that is what is answered.
    pub fn dimension(&self) -> Option<u32> {
        match self {
            Self::FeatureExtraction(embedding) => Some(embedding.dimension),
            Self::ImageClassification(_) | Self::TextClassification(_) | Self::Tensor(_) => None,
        }
    }

    fn tokens(&self) -> Option<&TokensSpec> {
        match self {
            Self::TextClassification(LabelSpec { tokens, .. })
            | Self::FeatureExtraction(EmbeddingSpec { tokens, .. }) => Some(tokens),
            Self::ImageClassification(_) | Self::Tensor(_) => None,
        }
    }
}

impl ImageSpec {
    /// The factor for a channel, the default included.
    pub(crate) fn scale_of(&self, channel: usize) -> f64 {
        match (&self.scale, self.dtype) {
            (Some(scale), _) => scale.of(channel),
            (None, InputType::Uint8) => 1.0,
            (None, InputType::Fp32 | InputType::Fp16) => 1.0 / 255.0,
        }
    }

    /// What the shorter side is resized to.
    pub(crate) fn shorter_side(&self) -> u32 {
        self.resize.size.unwrap_or(self.width.max(self.height))
    }

    fn check(&self) -> Result<(), SpecError> {
        let channels = self.channels.count();
        for (setting, side) in [("width", self.width), ("height", self.height)] {
            if side == 0 || side > MAX_INPUT_SIDE {
                return Err(SpecError::Setting {
                    setting,
                    found: side.to_string(),
                    expected: format!("1 to {MAX_INPUT_SIDE}"),
                });
            }
        }
        if let Some(scale) = &self.scale {
            scale.check("scale", channels, |v| v.is_finite() && v != 0.0, "finite and not 0")?;
        }
        self.mean.check("mean", channels, f64::is_finite, "finite")?;
        self.std.check("std", channels, |v| v.is_finite() && v > 0.0, "finite and above 0")?;
        match (self.resize.mode, self.resize.size) {
            (Mode::ShorterSide, Some(size))
                if size < self.width.max(self.height) || size > 4 * MAX_INPUT_SIDE =>
            {
                return Err(SpecError::Setting {
                    setting: "resize.size",
                    found: size.to_string(),
                    expected: format!(
                        "at least the larger of width and height ({}), so that the crop lies inside, and at most {}",
                        self.width.max(self.height),
                        4 * MAX_INPUT_SIDE
                    ),
                });
            }
            (Mode::Stretch | Mode::Letterbox, Some(size)) => {
                return Err(SpecError::Setting {
                    setting: "resize.size",
                    found: size.to_string(),
                    expected: "nothing: it has a meaning only with mode `shorter-side`".to_owned(),
                });
            }
            (Mode::Stretch | Mode::Letterbox, None) | (Mode::ShorterSide, _) => {}
        }
        check_top_k(self.top_k)
    }
}

pub(crate) fn check_top_k(top_k: u32) -> Result<(), SpecError> {
    if top_k > 0 {
        return Ok(());
    }
    Err(SpecError::Setting { setting: "top_k", found: "0".to_owned(), expected: "at least 1".to_owned() })
}
