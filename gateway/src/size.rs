//! How large an input is once decoded, as far as its first bytes tell, or as it came if that is larger: what bounds on
//! waiting bytes count, here, at a node and on the way to it.
//!
//! An estimate and nothing more. Whether the input is any good is for the node to find out.

use modelless_types::{Bytes, TaskKind};
use modelless_wire::Input;

/// Pixels are kept as three bytes.
const CHANNELS: u64 = 3;
/// Where a picture's size cannot be found: compressed pictures are about this much smaller than their pixels.
const UNKNOWN_FACTOR: u64 = 10;
/// Nodes refuse larger pictures before they decode them, so whatever such a header claims takes no room.
const PIXELS_MAX: u64 = 64_000_000;
/// Headers of a JPEG are looked through so far; cameras put large previews in front.
const SCAN: usize = 256 << 10;

pub(crate) fn decoded(kind: TaskKind, input: &Input) -> Bytes {
    let came = match input {
        Input::Raw(raw) => raw.len(),
        Input::Json { inputs, parameters } => inputs.len() + parameters.as_ref().map_or(0, bytes::Bytes::len),
    };
    let bytes = match (kind, input) {
        (TaskKind::ImageClassification, Input::Raw(raw)) => {
            let pixels = png_pixels(raw).or_else(|| jpeg_pixels(raw));
            match pixels {
                None => raw.len() as u64 * UNKNOWN_FACTOR,
                Some(pixels) if pixels > PIXELS_MAX => raw.len() as u64,
                Some(pixels) => pixels * CHANNELS,
            }
        }
        // Three quarters of base64 are bytes.
        (TaskKind::ImageClassification, Input::Json { inputs, .. }) => {
            inputs.len() as u64 * 3 / 4 * UNKNOWN_FACTOR
        }
        // Tokens of four bytes, about one for each four letters.
        (TaskKind::TextClassification | TaskKind::FeatureExtraction | TaskKind::Tensor, Input::Raw(raw)) => {
            raw.len() as u64
        }
        (
            TaskKind::TextClassification | TaskKind::FeatureExtraction | TaskKind::Tensor,
            Input::Json { inputs, .. },
        ) => inputs.len() as u64,
    };
    Bytes(bytes.max(came as u64))
}

fn png_pixels(bytes: &[u8]) -> Option<u64> {
    let header = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n")?.get(8..16)?;
    let side = |at: usize| header[at..at + 4].try_into().map(u32::from_be_bytes).ok().map(u64::from);
    side(0)?.checked_mul(side(4)?)
}

fn jpeg_pixels(bytes: &[u8]) -> Option<u64> {
    let mut rest = bytes.get(..SCAN.min(bytes.len()))?.strip_prefix(b"\xff\xd8")?;
    loop {
        let [0xff, marker, high, low, ..] = *rest else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        // The frame headers; 0xc4, 0xc8 and 0xcc lie among them and are something else.
        if (0xc0..=0xcf).contains(&marker) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            let sides = rest.get(5..9)?;
            let side = |at: usize| u64::from(u16::from_be_bytes([sides[at], sides[at + 1]]));
            return side(0).checked_mul(side(2));
        }
        rest = rest.get(2 + length.max(2)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(bytes: &[u8]) -> Bytes {
        decoded(TaskKind::ImageClassification, &Input::Raw(bytes.to_vec().into()))
    }

    #[test]
    fn reads_the_size_of_pictures_from_their_headers() {
        let png =
            [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &28_u32.to_be_bytes(), &10_u32.to_be_bytes()].concat();
        assert_eq!(raw(&png), Bytes(840));
        let jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08\x00\x0a\x00\x1c\x01\x01\x11\x00";
        assert_eq!(raw(jpeg), Bytes(840));
    }

    #[test]
    fn an_absurd_claim_takes_no_room() {
        let png = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &[0xff; 8]].concat();
        assert_eq!(raw(&png), Bytes(24));
    }

    #[test]
    fn a_small_picture_in_a_large_file_counts_as_the_file() {
        let tiny = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";
        assert_eq!(raw(&[&tiny[..], &[0; 1_000]].concat()), Bytes(1_000 + tiny.len() as u64));
        let parameters = Some(b"{}".repeat(50).into());
        let json = Input::Json { inputs: b"[1]"[..].into(), parameters };
        assert_eq!(decoded(TaskKind::Tensor, &json), Bytes(103));
    }

    #[test]
    fn guesses_where_nothing_is_to_be_read() {
        assert_eq!(raw(b"what is this"), Bytes(120));
        assert_eq!(raw(b""), Bytes(0));
        assert_eq!(raw(b"\xff\xd8\xff\xe0\xff\xff"), Bytes(60));
        assert_eq!(raw(b"\xff\xd8\xff\xe0\x00\x00\xff"), Bytes(70));
    }
}
