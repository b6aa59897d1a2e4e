//! Compressed bodies: gzip and deflate, what they become bounded like any other body.
//!
//! Unpacked a piece at a time, giving way to others in between, and counted as held as it grows: a small body that becomes a large
//! one is refused at the limit, never made.

use super::body::Held;
use crate::errors::ApiError;
use bytes::Bytes as Buffer;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue};
use std::io::{self, Read, Write as _};

/// Unpacked in one go.
const PIECE: usize = 64 << 10;
/// Smaller answers gain nothing by being packed.
const WORTH: usize = 1_024;

/// How a body is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encoding {
    Gzip,
    /// In zlib's wrapping, as HTTP means it.
    Deflate,
}

impl Encoding {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }
}

/// How a request's body is packed, if it is.
pub(crate) fn of_request(headers: &HeaderMap) -> Result<Option<Encoding>, ApiError> {
    let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim().to_ascii_lowercase();
    if text.is_empty() || text == "identity" {
        return Ok(None);
    }
    Encoding::parse(&text).map(Some).ok_or_else(|| {
        ApiError::unsupported_media("bodies are taken as they are, or packed by gzip or by deflate, once")
    })
}

/// How an answer is wanted: only where a client asks for one way and no other. Those who list all they know do not ask for it, and an
/// answer would come later.
pub(crate) fn wanted(headers: &HeaderMap) -> Option<Encoding> {
    Encoding::parse(headers.get(ACCEPT_ENCODING)?.to_str().ok()?.trim())
}

/// Unpacks a body, which may have `limit` bytes then.
pub(crate) async fn unpack(
    encoding: Encoding,
    body: &Buffer,
    limit: u64,
    held: &mut Held<'_>,
) -> Result<Buffer, ApiError> {
    let mut reader: Box<dyn Read + Send> = match encoding {
        Encoding::Gzip => Box::new(MultiGzDecoder::new(io::Cursor::new(body.clone()))),
        Encoding::Deflate => Box::new(ZlibDecoder::new(io::Cursor::new(body.clone()))),
    };
    let mut out = Vec::new();
    loop {
        let before = out.len();
        let mut piece = reader.by_ref().take(PIECE as u64);
        piece.read_to_end(&mut out).map_err(|error| {
            ApiError::malformed(format!("the body cannot be unpacked as {}: {error}", encoding.name()))
        })?;
        let grown = out.len() - before;
        if grown == 0 {
            return Ok(out.into());
        }
        if out.len() as u64 > limit {
            return Err(ApiError::too_large(limit));
        }
        held.add(grown)?;
        tokio::task::yield_now().await;
    }
}

/// Packs an answer, and says so; small ones stay as they are.
pub(crate) fn pack(encoding: Option<Encoding>, body: Vec<u8>, headers: &mut HeaderMap) -> Vec<u8> {
    let Some(encoding) = encoding.filter(|_| body.len() >= WORTH) else { return body };
    let room = Vec::with_capacity(body.len() / 2);
    let packed = match encoding {
        Encoding::Gzip => {
            let mut packer = GzEncoder::new(room, Compression::fast());
            packer.write_all(&body).and_then(|()| packer.finish())
        }
        Encoding::Deflate => {
            let mut packer = ZlibEncoder::new(room, Compression::fast());
            packer.write_all(&body).and_then(|()| packer.finish())
        }
    };
    // Writing to memory does not fail; if it did, the answer goes as it is.
    packed.map_or(body, |packed| {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        packed
    })
}
