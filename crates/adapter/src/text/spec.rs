//! The notation for models that read texts.

use crate::SpecError;
use crate::spec::Activation;
use modelless_types::{DType, TensorSpec};
use serde::{Deserialize, Serialize};

/// The greatest length of a model's input, in tokens.
const MAX_TOKENS: u32 = 32_768;
/// The greatest length of a vector.
const MAX_DIMENSION: u32 = 65_536;

/// How a text becomes a model's tokens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensSpec {
    /// The tokenizer's file: in a manifest its path, in the store its sha256.
    pub tokenizer: String,
    /// The most tokens that the model takes, special ones included.
    pub max: u32,
    /// Whether a longer text is cut at its end; else it is refused.
    #[serde(default = "yes")]
    pub truncate: bool,
    /// The model's input for the tokens' numbers.
    #[serde(default = "input_ids")]
    pub ids: String,
    /// The model's input that is 1 where a token is, and 0 where a shorter text was filled up.
    #[serde(default = "attention_mask")]
    pub mask: String,
    /// The model's input for which of two texts a token is of, where it has one: all 0 here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<String>,
    /// Type of the elements of these inputs.
    #[serde(default)]
    pub dtype: TokenType,
    /// What shorter texts are filled up with.
    #[serde(default)]
    pub pad: u32,
}

fn yes() -> bool {
    true
}

fn input_ids() -> String {
    "input_ids".to_owned()
}

fn attention_mask() -> String {
    "attention_mask".to_owned()
}

/// Type of a tensor of tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// Eight bytes.
    #[default]
    Int64,
    /// Four bytes.
    Int32,
}

/// A text in, labels out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSpec {
    /// How it is read.
    pub tokens: TokensSpec,
    /// The model's output; may be left out where it has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What makes scores of the outputs.
    #[serde(default)]
    pub activation: Activation,
    /// How many labels are answered unless the query says otherwise.
    #[serde(default = "crate::spec::default_top_k")]
    pub top_k: u32,
}

/// A text in, one vector out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSpec {
    /// How it is read.
    pub tokens: TokensSpec,
    /// The model's output; may be left out where it has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// How the vectors of a text's tokens become one.
    #[serde(default)]
    pub pooling: Pooling,
    /// Whether the vector is scaled to the length 1.
    #[serde(default)]
    pub normalise: bool,
    /// How many numbers it has.
    pub dimension: u32,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// That of the first token.
    Cls,
    /// The largest of each number.
    Max,
    /// The model has done it.
    None,
}

impl TokenType {
    /// The tensor type.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Int64 => DType::Int64,
            Self::Int32 => DType::Int32,
        }
    }
}

impl TokensSpec {
    /// The model's inputs for one item of the greatest length.
    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        let names = [Some(&self.ids), Some(&self.mask), self.types.as_ref()];
        let tensor = |name: &String| TensorSpec {
            name: name.clone(),
            dtype: self.dtype.dtype(),
            shape: vec![self.max],
        };
        names.into_iter().flatten().map(tensor).collect()
    }

    fn check(&self) -> Result<(), SpecError> {
        if self.max < 3 || self.max > MAX_TOKENS {
            return Err(SpecError::Setting {
                setting: "tokens.max",
                found: self.max.to_string(),
                expected: format!("3 to {MAX_TOKENS}: what the model was trained for"),
            });
        }
        if self.tokenizer.is_empty() {
            return Err(SpecError::Setting {
                setting: "tokens.tokenizer",
                found: "empty".to_owned(),
                expected: "the model's tokenizer.json".to_owned(),
            });
        }
        let names = [Some(&self.ids), Some(&self.mask), self.types.as_ref()];
        let names: Vec<&String> = names.into_iter().flatten().collect();
        let twice = (1..names.len()).find(|ix| names[..*ix].contains(&names[*ix]));
        match twice {
            None => Ok(()),
            Some(ix) => Err(SpecError::Setting {
                setting: "tokens",
                found: format!("twice the input `{}`", names[ix]),
                expected: "different inputs of the model for `ids`, `mask` and `types`".to_owned(),
            }),
        }
    }
}

impl LabelSpec {
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        self.tokens.check()?;
        crate::spec::check_top_k(self.top_k)
    }
}

impl EmbeddingSpec {
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        self.tokens.check()?;
        if self.dimension == 0 || self.dimension > MAX_DIMENSION {
            return Err(SpecError::Setting {
                setting: "dimension",
                found: self.dimension.to_string(),
                expected: format!("1 to {MAX_DIMENSION}: how many numbers the model's vectors have"),
            });
        }
        Ok(())
    }
}
