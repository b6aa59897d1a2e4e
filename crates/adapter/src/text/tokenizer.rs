//! A tokenizer's file (`tokenizer.json`), read once and shared by everything that uses it.
//!
//! The file comes with a model, so it is somebody else's: whatever it makes the library do, a panic included, becomes an
//! error of this model or this text.

use super::{Around, Tokens};
use crate::{InputError, SpecError};
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Larger files are no tokenizers. The largest vocabularies that are in use take about 20 MB.
const MAX_BYTES: usize = 64 << 20;

/// What is tokenised to find out what a tokenizer puts around a text.
const PROBE: &str = "a";

/// Reads texts as one model family does.
pub struct Tokenizer {
    digest: String,
    inner: tokenizers::Tokenizer,
    around: Around,
    /// More than its largest token.
    size: usize,
}

impl Tokenizer {
    /// From the content of a `tokenizer.json`. What it says of cutting and filling up is left aside: models say that.
    pub fn read(file: &[u8]) -> Result<Arc<Self>, SpecError> {
        let wrong = |why: String| SpecError::Tokenizer { why };
        if file.len() > MAX_BYTES {
            return Err(wrong(format!("it has {} bytes, and {MAX_BYTES} are the most", file.len())));
        }
        let read = guarded(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(file)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        });
        let inner = read.map_err(wrong)?;
        let around = around(&inner).map_err(wrong)?;
        let size = inner.get_vocab_size(true);
        Ok(Arc::new(Self { digest: digest(file), inner, around, size }))
    }

    /// sha256 of its file, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// How many tokens it knows.
    pub fn vocabulary(&self) -> usize {
        self.size
    }

    /// Special tokens around every text.
    pub(crate) fn special(&self) -> usize {
        self.around.before.len() + self.around.after.len()
    }

    /// Cuts a text up.
    pub fn tokens(&self, text: &str) -> Result<Tokens, InputError> {
        let encoded = guarded(|| self.inner.encode_fast(text, false));
        let encoded = encoded.map_err(|why| InputError::Tokenizer { why })?;
        let ids = encoded.get_ids().to_vec();
        if ids.is_empty() {
            return Err(InputError::EmptyText);
        }
        Ok(Tokens { ids, around: self.around.clone() })
    }
}

impl PartialEq for Tokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Tokenizer {}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// What stands before and after a text, which must not depend on the text, and be of the first kind: one text is all
/// that a query has.
fn around(inner: &tokenizers::Tokenizer) -> Result<Around, String> {
    let encode = |special| guarded(|| inner.encode_fast(PROBE, special));
    let (plain, full) = (encode(false)?, encode(true)?);
    let (plain, ids) = (plain.get_ids(), full.get_ids());
    let before = full.get_special_tokens_mask().iter().take_while(|special| **special == 1).count();
    let before = before.min(ids.len());
    let rest = &ids[before..];
    let after = rest.strip_prefix(plain).ok_or("what it puts around a text depends on the text")?;
    if full.get_type_ids().iter().any(|kind| *kind != 0) {
        return Err("it gives a single text another type than 0, which is not supported".to_owned());
    }
    Ok(Around { before: ids[..before].into(), after: after.into() })
}

fn digest(file: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(file) {
        let _ = write!(text, "{byte:02x}"); // memory takes everything
    }
    text
}

/// What the library says, or that it panicked.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it made the library fail".to_owned()),
    }
}
