//! How much one input may ask for.

use serde::{Deserialize, Serialize};

/// Bounds of one input. They are checked before anything of that size is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of the input as it was sent (after base64).
    pub max_bytes: usize,
    /// Bytes of a text. Cutting it up takes time in proportion to it, and a model sees its beginning only.
    pub max_text_bytes: usize,
    /// Pixels of a picture.
    pub max_pixels: u64,
    /// Pixels of the longer side of a picture. Resizing needs memory in proportion to it.
    pub max_side: u32,
    /// Memory that decoding a picture may need at once, with the result.
    pub max_decoder_bytes: u64,
    /// Passes over a progressive JPEG. Each costs time in proportion to all pixels, however few bytes it has.
    pub max_scans: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 32 << 20,
            max_text_bytes: 1 << 20,
            max_pixels: 64_000_000,
            max_side: 32_768,
            max_decoder_bytes: 640 << 20, // a progressive JPEG of 64 million pixels needs 9 bytes for each
            max_scans: 100,
        }
    }
}
