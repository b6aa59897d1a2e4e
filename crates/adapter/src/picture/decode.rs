//! File bytes to upright pixels of one byte, by the rules of the module above.

use super::Picture;
use super::scan::{Format, check_size, scan};
use crate::spec::Colour;
use crate::{InputError, Limits};
use image::codecs::{jpeg::JpegDecoder, png::PngDecoder};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, GrayImage, ImageDecoder, ImageError, RgbImage};
use std::io::Cursor;

pub(crate) fn decode(file: &[u8], colour: Colour, limits: &Limits) -> Result<Picture, InputError> {
    if file.len() > limits.max_bytes {
        return Err(InputError::TooManyBytes { bytes: file.len(), limit: limits.max_bytes });
    }
    let facts = scan(file, limits)?;
    let mut decoder_limits = image::Limits::no_limits();
    decoder_limits.max_image_width = Some(limits.max_side);
    decoder_limits.max_image_height = Some(limits.max_side);
    decoder_limits.max_alloc = Some(limits.max_decoder_bytes);
    let refused = |error| explain(facts.format, error, limits);
    let (raw, kind, width, height) = match facts.format {
        Format::Jpeg => {
            let mut decoder = JpegDecoder::new(Cursor::new(file)).map_err(refused)?;
            decoder.set_limits(decoder_limits).map_err(refused)?;
            read(decoder, facts.working_bytes, colour, limits, refused)?
        }
        Format::Png => {
            let decoder = PngDecoder::with_limits(Cursor::new(file), decoder_limits).map_err(refused)?;
            read(decoder, facts.working_bytes, colour, limits, refused)?
        }
    };
    let pixels = convert(raw, kind, colour).ok_or_else(|| InputError::BadPicture {
        format: facts.format.name(),
        why: format!("pixels of kind {kind:?} are not known here"),
    })?;
    let orientation = facts.exif.and_then(Orientation::from_exif_chunk).unwrap_or(Orientation::NoTransforms);
    let (width, height, pixels) = turn(width, height, pixels, colour, orientation);
    Picture::new(width, height, colour, pixels).ok_or_else(|| InputError::BadPicture {
        format: facts.format.name(),
        why: "it has not as many pixels as it says".to_owned(),
    })
}

type Raw = (Vec<u8>, ColorType, u32, u32);

fn read<D: ImageDecoder>(
    decoder: D,
    working_bytes: u64,
    colour: Colour,
    limits: &Limits,
    refused: impl Fn(ImageError) -> InputError,
) -> Result<Raw, InputError> {
    let (width, height) = decoder.dimensions();
    check_size(width, height, limits)?;
    let kind = decoder.color_type();
    let per_pixel = u64::from(kind.bytes_per_pixel()) + working_bytes + colour.channels() as u64;
    let needs = (u64::from(width) * u64::from(height)).saturating_mul(per_pixel);
    let length = usize::try_from(decoder.total_bytes()).ok();
    let (true, Some(length)) = (needs <= limits.max_decoder_bytes, length) else {
        return Err(InputError::TooMuchMemory { needs, limit: limits.max_decoder_bytes });
    };
    let mut raw = vec![0; length];
    decoder.read_image(&mut raw).map_err(refused)?;
    Ok((raw, kind, width, height))
}

/// `None` for a kind of pixel that neither format has.
fn convert(raw: Vec<u8>, kind: ColorType, colour: Colour) -> Option<Vec<u8>> {
    // `image` gives 16 bits in the machine's own order.
    const HIGH: usize = if cfg!(target_endian = "little") { 1 } else { 0 };
    Some(match (kind, colour) {
        (ColorType::L8, Colour::Grey) | (ColorType::Rgb8, Colour::Rgb) => raw,
        (ColorType::L8, Colour::Rgb) => map(&raw, |[l]: [u8; 1]| [l; 3]),
        (ColorType::Rgb8, Colour::Grey) => map(&raw, |p: [u8; 3]| [luma(p)]),
        (ColorType::La8, _) => flatten(&raw, colour, |[l, a]: [u8; 2]| ([l; 3], a)),
        (ColorType::Rgba8, _) => flatten(&raw, colour, |[r, g, b, a]: [u8; 4]| ([r, g, b], a)),
        (ColorType::L16, _) => flatten(&raw, colour, |p: [u8; 2]| ([p[HIGH]; 3], u8::MAX)),
        (ColorType::La16, _) => flatten(&raw, colour, |p: [u8; 4]| ([p[HIGH]; 3], p[2 + HIGH])),
        (ColorType::Rgb16, _) => {
            flatten(&raw, colour, |p: [u8; 6]| ([p[HIGH], p[2 + HIGH], p[4 + HIGH]], u8::MAX))
        }
        (ColorType::Rgba16, _) => {
            flatten(&raw, colour, |p: [u8; 8]| ([p[HIGH], p[2 + HIGH], p[4 + HIGH]], p[6 + HIGH]))
        }
        _ => return None,
    })
}

fn flatten<const N: usize>(raw: &[u8], colour: Colour, split: impl Fn([u8; N]) -> ([u8; 3], u8)) -> Vec<u8> {
    let over_white = |pixel: [u8; N]| {
        let (rgb, alpha) = split(pixel);
        rgb.map(|c| over_white(c, alpha))
    };
    match colour {
        Colour::Rgb => map(raw, over_white),
        Colour::Grey => map(raw, |pixel| [luma(over_white(pixel))]),
    }
}

fn map<const N: usize, const M: usize>(raw: &[u8], f: impl Fn([u8; N]) -> [u8; M]) -> Vec<u8> {
    let (pixels, _) = raw.as_chunks::<N>();
    let mut out = vec![0; pixels.len() * M];
    for (to, from) in out.as_chunks_mut::<M>().0.iter_mut().zip(pixels) {
        *to = f(*from);
    }
    out
}

/// Rounded to the nearest; 255 is odd, so there is no half.
#[expect(clippy::cast_possible_truncation, reason = "a weighted mean of bytes is a byte")]
fn over_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

/// BT.601 in 16 bits of fraction; the weights sum to 65536, so white stays white and grey stays itself.
#[expect(clippy::cast_possible_truncation, reason = "a weighted mean of bytes is a byte")]
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
}

fn turn(
    width: u32,
    height: u32,
    pixels: Vec<u8>,
    colour: Colour,
    orientation: Orientation,
) -> (u32, u32, Vec<u8>) {
    if orientation == Orientation::NoTransforms {
        return (width, height, pixels);
    }
    let whole = match colour {
        Colour::Grey => GrayImage::from_raw(width, height, pixels).map(DynamicImage::ImageLuma8),
        Colour::Rgb => RgbImage::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8),
    };
    // `None` only when there are too few pixels, which `Picture::new` then reports.
    whole.map_or((width, height, Vec::new()), |mut whole| {
        whole.apply_orientation(orientation);
        (whole.width(), whole.height(), whole.into_bytes())
    })
}

fn explain(format: Format, error: ImageError, limits: &Limits) -> InputError {
    match error {
        ImageError::Limits(_) => InputError::TooMuchMemory {
            needs: limits.max_decoder_bytes.saturating_add(1),
            limit: limits.max_decoder_bytes,
        },
        ImageError::Unsupported(what) => InputError::UnsupportedMedia {
            found: format!("a {} of a kind not known here ({what})", format.name()),
        },
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            InputError::Truncated { format: format.name(), missing: "part of the pixels" }
        }
        ImageError::Decoding(_)
        | ImageError::Encoding(_)
        | ImageError::Parameter(_)
        | ImageError::IoError(_) => InputError::BadPicture { format: format.name(), why: error.to_string() },
    }
}
