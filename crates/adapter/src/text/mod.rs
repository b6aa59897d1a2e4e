//! Texts: strings to tokens, those into a model's inputs, and its outputs to labels or one vector.
//!
//! The rules, so that one text means the same to every model and every client:
//!
//! * **A text is tokenised once per tokenizer**, whatever the variants are that may answer. What is kept are its own tokens;
//!   the special ones around them (`[CLS]`, `[SEP]`) and the cut to a model's greatest length are added when a row is
//!   written, so that variants with different lengths share the tokens.
//! * **A text that is too long is cut at its end**, or refused where the model's adapter says `truncate = false`.
//! * **A row is as long as its batch is.** What a text leaves of it is filled with `pad`, and the mask says so.
//! * **A vector is pooled from this text's tokens only**, special ones included, never from what fills the row.
//! * **An empty text is refused**: what a model makes of nothing means nothing.

mod bound;
mod pool;
mod spec;
mod tokenizer;

pub(crate) use bound::{BoundText, Wanted};
pub use spec::{EmbeddingSpec, LabelSpec, Pooling, TokenType, TokensSpec};
pub use tokenizer::Tokenizer;

use crate::{InputError, Limits};
use std::borrow::Cow;
use std::sync::Arc;

/// Rows of a batch are as long as the longest text in it, rounded up to a multiple of this: fewer shapes for a runtime to
/// prepare for, at the price of few tokens.
const BUCKET: u32 = 8;

/// A text as its tokenizer cut it up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tokens {
    ids: Vec<u32>,
    around: Around,
}

/// What a tokenizer puts around a text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Around {
    before: Arc<[u32]>,
    after: Arc<[u32]>,
}

impl Tokens {
    /// How many there are, special ones included, if nothing is cut off.
    pub fn count(&self) -> usize {
        self.around.before.len() + self.ids.len() + self.around.after.len()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.ids.len() * size_of::<u32>()
    }

    /// At most so many of them: special ones all, the text's own as many as fit.
    pub fn cut(&self, most: usize) -> impl Iterator<Item = u32> + '_ {
        let Around { before, after } = &self.around;
        let own = most.saturating_sub(before.len() + after.len()).min(self.ids.len());
        before.iter().chain(&self.ids[..own]).chain(after.iter()).copied()
    }
}

/// The value of `inputs` in a JSON request: one string.
pub(crate) fn from_json(value: &[u8], limits: &Limits) -> Result<String, InputError> {
    #[derive(serde::Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let Text(text) = serde_json::from_slice(value)
        .map_err(|error| InputError::BadJson { why: format!("{error}; expected one text, as a string") })?;
    fits(&text, limits)?;
    Ok(text.into_owned())
}

/// A body that is the text itself.
pub(crate) fn from_raw<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, InputError> {
    let text = std::str::from_utf8(bytes).map_err(|error| InputError::BadText { at: error.valid_up_to() })?;
    fits(text, limits)?;
    Ok(text)
}

fn fits(text: &str, limits: &Limits) -> Result<(), InputError> {
    if text.len() > limits.max_text_bytes {
        return Err(InputError::TooManyBytes { bytes: text.len(), limit: limits.max_text_bytes });
    }
    if text.trim().is_empty() { Err(InputError::EmptyText) } else { Ok(()) }
}
