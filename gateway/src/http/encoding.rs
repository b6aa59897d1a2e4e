//! Compressed bodies: gzip and deflate, what they become bounded like any other body.
//!
//! Unpacked a piece at a time, giving way to others in between, and counted as held as it grows: a small body that becomes a large
//! one is refused at the limit, never made.

use super::body::{FIRST_ROOM, Holding};
use crate::core::Core;
use crate::errors::ApiError;
use bytes::Bytes as Buffer;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue};
use std::io::{self, Read, Write as _};
use std::ops::Deref;

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
    pub(crate) fn parse(text: &str) -> Option<Self> {
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

/// How an answer is to be packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packing {
    encoding: Encoding,
    /// Small ones too: as it is, it is refused.
    always: bool,
}

/// How an answer is wanted, by what a client accepts (RFC 9110, 12.5.3): what it weighs most of what is known here. Those who list all that they
/// know, with equal weights, do not ask for one way or another, and an answer would come later. Where nothing that is accepted is known,
/// it comes as it is.
pub(crate) fn wanted(headers: &HeaderMap) -> Option<Packing> {
    let mut weights = Weights::default();
    for value in headers.get_all(ACCEPT_ENCODING) {
        let listed = value.to_str().ok()?.split(',').map(str::trim).filter(|coding| !coding.is_empty());
        for coding in listed {
            weights.note(coding)?; // what cannot be read asks for nothing
        }
    }
    weights.choose()
}

/// What a client weighs codings by, in thousandths; nothing for what it does not list.
#[derive(Default)]
struct Weights {
    gzip: Option<u16>,
    deflate: Option<u16>,
    identity: Option<u16>,
    /// Of all that it does not list.
    any: Option<u16>,
    /// The first it gave, of whatever.
    first: Option<u16>,
    /// Others differ from that, or there are none.
    differ: bool,
    several: bool,
}

impl Weights {
    fn note(&mut self, coding: &str) -> Option<()> {
        let (name, weight) = match coding.split_once(';') {
            None => (coding, 1_000),
            Some((name, weight)) => (name.trim_end(), thousandths(weight.trim_start())?),
        };
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name {
            "*" => self.any = Some(weight),
            _ if is("gzip") || is("x-gzip") => self.gzip = Some(weight),
            _ if is("deflate") => self.deflate = Some(weight),
            _ if is("identity") => self.identity = Some(weight),
            _ => {}
        }
        match self.first {
            None => self.first = Some(weight),
            Some(first) => {
                self.several = true;
                self.differ |= first != weight;
            }
        }
        Some(())
    }

    fn choose(&self) -> Option<Packing> {
        let of = |own: Option<u16>| own.or(self.any);
        let (gzip, deflate) = (of(self.gzip).unwrap_or(0), of(self.deflate).unwrap_or(0));
        let (encoding, weight) =
            if deflate > gzip { (Encoding::Deflate, deflate) } else { (Encoding::Gzip, gzip) };
        // Not listed, it is accepted, after all that is.
        let as_it_is = of(self.identity);
        let always = as_it_is == Some(0);
        let asked = !self.several || self.differ;
        let better = asked && as_it_is.is_none_or(|as_it_is| as_it_is < weight);
        (weight > 0 && (always || better)).then_some(Packing { encoding, always })
    }
}

/// `q=0.25`: at most one, with at most three digits behind the point.
fn thousandths(weight: &str) -> Option<u16> {
    let digits = weight.strip_prefix("q=").or_else(|| weight.strip_prefix("Q="))?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = matches!(whole, "0" | "1") && part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
    let scaled =
        [100, 10, 1].into_iter().zip(part.bytes()).map(|(scale, digit)| scale * u16::from(digit - b'0'));
    let weight = if whole == "1" { 1_000 } else { 0 } + plain.then(|| scaled.sum::<u16>())?;
    (weight <= 1_000).then_some(weight)
}

/// Unpacks a body, which may have `limit` bytes then: what is large is unpacked as slowly as what is large is read, and of one tenant's a few at a
/// time. Who sends hundreds at once that become large waits for itself.
pub(crate) async fn unpack(
    encoding: Encoding,
    body: &Buffer,
    limit: u64,
    held: &mut Holding<impl Deref<Target = Core>>,
) -> Result<Buffer, ApiError> {
    let mut reader: Box<dyn Read + Send> = match encoding {
        Encoding::Gzip => Box::new(MultiGzDecoder::new(io::Cursor::new(body.clone()))),
        Encoding::Deflate => Box::new(ZlibDecoder::new(io::Cursor::new(body.clone()))),
    };
    let _turn = held.turn_to_unpack().await;
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
        if out.len() as u64 > FIRST_ROOM {
            held.pace(grown as u64).await;
        }
        tokio::task::yield_now().await;
    }
}

/// Packs an answer, and says so; small ones stay as they are, unless that is refused.
pub(crate) fn pack(packing: Option<Packing>, body: Vec<u8>, headers: &mut HeaderMap) -> Vec<u8> {
    let worth = |packing: &Packing| packing.always || body.len() >= WORTH;
    let Some(Packing { encoding, .. }) = packing.filter(worth) else { return body };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(lines: &[&'static str]) -> Option<(Encoding, bool)> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        wanted(&headers).map(|packing| (packing.encoding, packing.always))
    }

    #[test]
    fn an_answer_is_packed_as_a_client_weighs_it() {
        let (gzip, deflate) = (Some((Encoding::Gzip, false)), Some((Encoding::Deflate, false)));
        for (line, wanted) in [
            ("gzip", gzip),
            ("x-gzip", gzip),
            ("GZip;q=0.3", gzip),
            ("deflate", deflate),
            ("gzip;q=0.5, deflate", deflate),
            ("gzip ; Q=0.501,\tdeflate;q=0.5", gzip),
            ("br;q=1.0, gzip;q=0.8, *;q=0.1", gzip),
            ("gzip;q=0, deflate", deflate),
            ("gzip;q=0, *", None),
            ("deflate;q=0.001, identity;q=0", Some((Encoding::Deflate, true))),
            ("identity;q=0.5, *;q=0.6", gzip),
            ("gzip, deflate, identity;q=0", Some((Encoding::Gzip, true))),
            ("identity;q=0, *;q=0.5", Some((Encoding::Gzip, true))),
            ("gzip, *;q=0", Some((Encoding::Gzip, true))),
        ] {
            assert_eq!(wants(&[line]), wanted, "{line}");
        }
        assert_eq!(wants(&["gzip;q=0.5", "deflate;q=0.7"]), deflate, "lines are one list");
    }

    #[test]
    fn an_answer_comes_as_it_is_where_nothing_else_is_asked_for() {
        for line in [
            "",
            ", ,",
            "*",
            "identity",
            "br",
            // Whoever lists all that they know.
            "gzip, deflate",
            "gzip, deflate, br, zstd",
            "gzip;q=0.9, deflate;q=0.9",
            "gzip, identity",
            // What is refused.
            "gzip;q=0",
            "gzip;q=0.000",
            "*;q=0",
            "identity;q=0",
            "gzip;q=0.2, identity;q=0.3",
            "gzip;q=0.2, *;q=0.3, deflate;q=0.1",
            // What cannot be read.
            "gzip;q=",
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.1234",
            "gzip;q=-0",
            "gzip;level=9",
        ] {
            assert_eq!(wants(&[line]), None, "{line}");
        }
        assert_eq!(wants(&[]), None);
    }

    #[test]
    fn small_answers_are_packed_only_where_they_are_refused_otherwise() {
        for (always, packed) in [(false, false), (true, true)] {
            let mut headers = HeaderMap::new();
            let packing = Packing { encoding: Encoding::Gzip, always };
            let body = pack(Some(packing), b"{}".to_vec(), &mut headers);
            assert_eq!((headers.contains_key(CONTENT_ENCODING), body != b"{}"), (packed, packed));
        }
    }
}
