//! What decoding depends on, and what comes of it.

use crate::spec::Colour;
use crate::{InputError, Limits, Picture, Tensors, Tokenizer, Tokens, base64_input, picture, tensor, text};
use bytes::Bytes;
use modelless_types::TensorSpec;
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// Settings that decoding depends on. Variants whose preparations are equal share one decoded input, whatever
/// size and normalisation they want.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preparation {
    /// A JPEG or PNG.
    Picture {
        /// To which colour.
        colour: Colour,
    },
    /// Named arrays.
    Tensors {
        /// The task's inputs, in its order.
        inputs: Arc<[TensorSpec]>,
    },
    /// A text.
    Text {
        /// What cuts it up.
        tokenizer: Arc<Tokenizer>,
    },
}

/// A hash of a [`Preparation`]: what decoded inputs are kept under.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PreparationId(pub u64);

impl fmt::Debug for PreparationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparationId({:016x})", self.0)
    }
}

/// A query's input as it came.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// A file, a text, or raw little-endian tensors one after the other.
    Raw(&'a Bytes),
    /// The value of `inputs` in a JSON request: for pictures a string of base64, for texts a string, for tensors an object of
    /// arrays by name or, where the task has one input, the array.
    Json(&'a [u8]),
}

/// A decoded input, ready to be written into any batch of its preparation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// A picture, in its own size.
    Picture(Picture),
    /// Tensors of one item.
    Tensors(Tensors),
    /// A text, cut up.
    Tokens(Tokens),
}

impl Decoded {
    /// How much memory it holds: what queues are bounded by.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Picture(picture) => picture.pixels().len(),
            Self::Tensors(tensors) => tensors.bytes(),
            Self::Tokens(tokens) => tokens.bytes(),
        }
    }

    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Picture(picture) => picture.colour().name(),
            Self::Tensors(_) => "tensors",
            Self::Tokens(_) => "a text",
        }
    }
}

impl Preparation {
    /// The key of what this decodes to. Equal preparations have equal keys in every process.
    pub fn id(&self) -> PreparationId {
        // The numbers are versions of the decoding rules: whoever changes the rules counts them up.
        let text = match self {
            Self::Picture { colour } => format!("picture 1 {}", colour.channels()),
            Self::Text { tokenizer } => format!("text 1 {}", tokenizer.digest()),
            Self::Tensors { inputs } => {
                let words = inputs.iter().map(|i| format!(" {:?} {} {:?}", i.name, i.dtype.name(), i.shape));
                format!("tensors 1{}", words.collect::<String>())
            }
        };
        let digest = Sha256::digest(text.as_bytes());
        PreparationId(digest.iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte)))
    }

    /// Decodes an input. Costs milliseconds for a photograph; meant for a thread that may be busy that long.
    pub fn decode(&self, body: Body<'_>, limits: &Limits) -> Result<Decoded, InputError> {
        let length = match body {
            Body::Raw(bytes) => bytes.len(),
            // Base64 and JSON are longer than what they stand for.
            Body::Json(text) => text.len() / 4,
        };
        if length > limits.max_bytes {
            return Err(InputError::TooManyBytes { bytes: length, limit: limits.max_bytes });
        }
        match (self, body) {
            (Self::Picture { colour }, Body::Raw(file)) => {
                picture::decode(file, *colour, limits).map(Decoded::Picture)
            }
            (Self::Picture { colour }, Body::Json(value)) => {
                let file = base64_input::decode_json_string(value, limits)?;
                picture::decode(&file, *colour, limits).map(Decoded::Picture)
            }
            (Self::Text { tokenizer }, Body::Raw(bytes)) => {
                tokenizer.tokens(text::from_raw(bytes, limits)?).map(Decoded::Tokens)
            }
            (Self::Text { tokenizer }, Body::Json(value)) => {
                tokenizer.tokens(&text::from_json(value, limits)?).map(Decoded::Tokens)
            }
            (Self::Tensors { inputs }, Body::Raw(bytes)) => {
                tensor::from_raw(bytes, inputs).map(Decoded::Tensors)
            }
            (Self::Tensors { inputs }, Body::Json(value)) => {
                tensor::from_json(value, inputs, limits.max_bytes).map(Decoded::Tensors)
            }
        }
    }
}
