//! Walks the structure of a JPEG or PNG without decoding it: is it whole, how large does it say it is, which way
//! up. Decoders are lenient about missing ends and allocate by what a header says; this is why we look first.

use crate::{InputError, Limits};

/// What the structure says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Facts<'a> {
    pub(super) format: Format,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Bytes per pixel a decoder needs beside its output.
    pub(super) working_bytes: u64,
    /// The EXIF block, from its TIFF header on.
    pub(super) exif: Option<&'a [u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Jpeg,
    Png,
}

impl Format {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
        }
    }
}

const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Files that people send by mistake, by how they begin (after as many bytes as the number says).
const OTHERS: [(usize, &[u8], &str); 12] = [
    (0, b"GIF8", "a GIF"),
    (8, b"WEBP", "a WebP picture"),
    (0, b"BM", "a BMP picture"),
    (0, b"II*\0", "a TIFF picture"),
    (0, b"MM\0*", "a TIFF picture"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftyphei", "a HEIC picture"),
    (0, b"%PDF", "a PDF"),
    (0, b"<svg", "an SVG picture"),
    (0, b"{", "JSON, perhaps (then say `content-type: application/json`)"),
    (0, b"<", "HTML or XML, perhaps"),
    (0, b"data:", "a data: URL (then send it in JSON as `inputs`)"),
];

pub(super) fn scan<'a>(file: &'a [u8], limits: &Limits) -> Result<Facts<'a>, InputError> {
    let facts = if file.starts_with(b"\xff\xd8\xff") {
        jpeg(file, limits)?
    } else if file.starts_with(PNG_MAGIC) {
        png(file)?
    } else {
        let known =
            OTHERS.iter().find(|(at, magic, _)| file.get(*at..).is_some_and(|f| f.starts_with(magic)));
        let found = match known {
            Some((_, _, name)) => *name,
            None if file.is_empty() => "empty",
            None => "of an unknown kind",
        };
        return Err(InputError::UnsupportedMedia { found: found.to_owned() });
    };
    check_size(facts.width, facts.height, limits)?;
    Ok(facts)
}

/// Also used on what the decoder says, should that ever differ.
pub(super) fn check_size(width: u32, height: u32, limits: &Limits) -> Result<(), InputError> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels > limits.max_pixels || width.max(height) > limits.max_side {
        return Err(InputError::TooManyPixels {
            width,
            height,
            pixels: limits.max_pixels,
            side: limits.max_side,
        });
    }
    Ok(())
}

fn jpeg<'a>(file: &'a [u8], limits: &Limits) -> Result<Facts<'a>, InputError> {
    let cut = |missing| InputError::Truncated { format: "JPEG", missing };
    let mut facts = Facts { format: Format::Jpeg, width: 0, height: 0, working_bytes: 0, exif: None };
    let mut scans = 0;
    let mut at = 2;
    loop {
        // To the next marker: past coded data, in which 0xFF is followed by 0, and past restart markers.
        let marker = loop {
            let rest = file.get(at..).unwrap_or_default();
            let ff = rest.iter().position(|b| *b == 0xff).ok_or_else(|| cut("the end marker"))?;
            match rest.get(ff + 1) {
                None => return Err(cut("the end marker")),
                Some(0xff) => at += ff + 1,
                Some(0x00 | 0x01 | 0xd0..=0xd8) => at += ff + 2,
                Some(marker) => {
                    at += ff + 2;
                    break *marker;
                }
            }
        };
        if marker == 0xd9 {
            break;
        }
        let segment = file
            .get(at..)
            .and_then(|rest| {
                let length = u16::from_be_bytes([*rest.first()?, *rest.get(1)?]);
                rest.get(2..usize::from(length))
            })
            .ok_or_else(|| cut("part of a segment"))?;
        at += 2 + segment.len();
        match (marker, segment) {
            (0xc4 | 0xc8 | 0xcc, _) => {} // tables among the frame headers
            (0xc0..=0xcf, [_, h1, h0, w1, w0, components, ..]) => {
                let (w, h) = (u16::from_be_bytes([*w1, *w0]), u16::from_be_bytes([*h1, *h0]));
                facts.width = facts.width.max(u32::from(w));
                facts.height = facts.height.max(u32::from(h));
                let progressive = matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce);
                // A progressive file is held as two-byte coefficients until its last scan.
                let working = u64::from(*components) * if progressive { 2 } else { 0 };
                facts.working_bytes = facts.working_bytes.max(working);
            }
            (0xe1, [b'E', b'x', b'i', b'f', 0, 0, tiff @ ..]) if facts.exif.is_none() => {
                facts.exif = Some(tiff);
            }
            (0xda, _) => {
                scans += 1;
                if scans > limits.max_scans {
                    return Err(InputError::TooManyScans { limit: limits.max_scans });
                }
            }
            _ => {}
        }
    }
    if scans == 0 || facts.width == 0 || facts.height == 0 {
        return Err(InputError::BadPicture { format: "JPEG", why: "there is no picture in it".to_owned() });
    }
    Ok(facts)
}

fn png(file: &[u8]) -> Result<Facts<'_>, InputError> {
    let cut = |missing| InputError::Truncated { format: "PNG", missing };
    let bad = |why: &str| InputError::BadPicture { format: "PNG", why: why.to_owned() };
    let mut facts = Facts { format: Format::Png, width: 0, height: 0, working_bytes: 0, exif: None };
    let mut rest = file.get(PNG_MAGIC.len()..).unwrap_or_default();
    let mut first = true;
    loop {
        let (head, after) = rest.split_first_chunk::<8>().ok_or_else(|| cut("the end chunk"))?;
        let [l3, l2, l1, l0, kind @ ..] = *head;
        let length = u32::from_be_bytes([l3, l2, l1, l0]);
        let length = usize::try_from(length).map_err(|_| cut("part of a chunk"))?;
        let data = after.get(..length).ok_or_else(|| cut("part of a chunk"))?;
        // The four bytes of checksum.
        rest = after.get(length..).and_then(|r| r.get(4..)).ok_or_else(|| cut("part of a chunk"))?;
        match (&kind, data) {
            (b"IHDR", [w3, w2, w1, w0, h3, h2, h1, h0, ..]) if first => {
                facts.width = u32::from_be_bytes([*w3, *w2, *w1, *w0]);
                facts.height = u32::from_be_bytes([*h3, *h2, *h1, *h0]);
            }
            (b"eXIf", exif) if facts.exif.is_none() => facts.exif = Some(exif),
            (b"IEND", _) => break,
            _ if first => return Err(bad("it does not begin with its header")),
            _ => {}
        }
        first = false;
    }
    if facts.width == 0 || facts.height == 0 {
        return Err(bad("its width or height is 0"));
    }
    Ok(facts)
}
