//! What the tests of this crate share: tasks, and files made by hand.
#![allow(dead_code, reason = "every test program uses its own part of this")]

use image::{ExtendedColorType, ImageEncoder};
use modelless_adapter::{AdapterSpec, Body, Colour, Decoded, InputError, Limits, Picture, Preparation};
use modelless_types::{AccuracyRule, DType, Goals, SpaceId, Task, TaskId, TaskKind, TenantId, TensorSpec};

/// A classification task with labels `l0`, `l1`, ...
pub(crate) fn labelled(labels: usize) -> Task {
    Task {
        id: TaskId(1),
        name: "things".to_owned(),
        tenant: TenantId::DEFAULT,
        kind: TaskKind::ImageClassification,
        metric: "top-1".to_owned(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: modelless_types::LiveRule::default(),
        declared_accuracy: modelless_types::DeclaredRule::default(),
        labels: (0..labels).map(|i| format!("l{i}")).collect(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        default_space: SpaceId(1),
        defaults: Goals::default(),
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    }
}

/// A `tensor` task.
pub(crate) fn tensors(inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Task {
    Task {
        kind: TaskKind::Tensor,
        labels: Vec::new(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        ..labelled(0)
    }
}

pub(crate) fn spec(name: &str, dtype: DType, shape: &[u32]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

pub(crate) fn parse(json: &str) -> AdapterSpec {
    AdapterSpec::parse(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

pub(crate) fn floats(row: &[u8]) -> Vec<f32> {
    row.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn png(width: u32, height: u32, kind: ExtendedColorType, pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    image::codecs::png::PngEncoder::new(&mut file).write_image(pixels, width, height, kind).unwrap();
    file
}

pub(crate) fn jpeg(width: u32, height: u32, kind: ExtendedColorType, pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 100)
        .write_image(pixels, width, height, kind)
        .unwrap();
    file
}

/// A TIFF block that says nothing but the orientation.
pub(crate) fn exif(orientation: u16, little_endian: bool) -> Vec<u8> {
    let short = |v: u16| if little_endian { v.to_le_bytes() } else { v.to_be_bytes() };
    let long = |v: u32| if little_endian { v.to_le_bytes() } else { v.to_be_bytes() };
    let mut tiff = if little_endian { b"II".to_vec() } else { b"MM".to_vec() };
    tiff.extend(short(42));
    tiff.extend(long(8));
    tiff.extend(short(1)); // one entry
    tiff.extend(short(0x0112));
    tiff.extend(short(3));
    tiff.extend(long(1));
    tiff.extend(short(orientation));
    tiff.extend(short(0));
    tiff.extend(long(0));
    tiff
}

/// The JPEG with an APP1 segment after its start.
pub(crate) fn with_app1(jpeg: &[u8], tiff: &[u8]) -> Vec<u8> {
    let mut out = jpeg[..2].to_vec();
    out.extend([0xff, 0xe1]);
    out.extend(u16::try_from(2 + 6 + tiff.len()).unwrap().to_be_bytes());
    out.extend(b"Exif\0\0");
    out.extend(tiff);
    out.extend(&jpeg[2..]);
    out
}

/// The PNG with one more chunk before its end chunk.
pub(crate) fn with_chunk(png: &[u8], kind: [u8; 4], data: &[u8]) -> Vec<u8> {
    let (body, end) = png.split_at(png.len() - 12);
    let mut out = body.to_vec();
    out.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    out.extend(kind);
    out.extend(data);
    let crc = checksum(&[kind.as_slice(), data].concat());
    out.extend(crc.to_be_bytes());
    out.extend(end);
    out
}

pub(crate) fn decode_with(file: &[u8], colour: Colour, limits: &Limits) -> Result<Picture, InputError> {
    let file = file.to_vec().into();
    match (Preparation::Picture { colour }).decode(Body::Raw(&file), limits)? {
        Decoded::Picture(picture) => Ok(picture),
        Decoded::Tensors(_) | Decoded::Tokens(_) => panic!("a picture became something else"),
    }
}

pub(crate) fn decode(file: &[u8], colour: Colour) -> Result<Picture, InputError> {
    decode_with(file, colour, &Limits::default())
}

/// As PNG chunks have it.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    })
}

/// The PNG with every checksum made right again, as far as its chunks go.
pub(crate) fn mended(mut png: Vec<u8>) -> Vec<u8> {
    let mut at = 8;
    while let Some(head) = png.get(at..at + 4) {
        let end = at + 8 + u32::from_be_bytes(head.try_into().unwrap()) as usize;
        let Some(chunk) = png.get(at + 4..end) else { break };
        let crc = checksum(chunk);
        let Some(place) = png.get_mut(end..end + 4) else { break };
        place.copy_from_slice(&crc.to_be_bytes());
        at = end + 4;
    }
    png
}
