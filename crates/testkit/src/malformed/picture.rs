//! Pictures that no decoder may accept: cut, damaged, or with a head that promises the impossible.
//!
//! Only damage that is never a valid picture: the middle of JPEG data, for one, decodes to something whatever
//! stands there, and so is left alone.

use super::{Base, Case, Kind};
use crate::Rng;

/// The smallest JPEG: 8 by 8 pixels of one grey, baseline, with tables of one code each.
pub fn jpeg() -> Vec<u8> {
    let mut bytes = vec![0xff, 0xd8];
    bytes.extend([0xff, 0xdb, 0, 67, 0]);
    bytes.extend([1; 64]);
    bytes.extend([0xff, 0xc0, 0, 11, 8, 0, 8, 0, 8, 1, 1, 0x11, 0]);
    // One code of one bit: no difference for DC, end of block for AC.
    for class in [0x00, 0x10] {
        bytes.extend([0xff, 0xc4, 0, 20, class, 1]);
        bytes.extend([0; 15]);
        bytes.push(0);
    }
    bytes.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
    bytes.extend([0b0011_1111, 0xff, 0xd9]);
    bytes
}

pub(super) fn case(bases: &[Base], rng: &mut Rng) -> Option<Case> {
    let pictures: Vec<&Base> = bases.iter().filter(|base| has(base, "image/")).collect();
    if pictures.is_empty() {
        return None;
    }
    let base = *rng.pick(&pictures);
    let (class, what, body) =
        if has(base, "image/png") { damaged_png(&base.body, rng)? } else { damaged_jpeg(&base.body, rng)? };
    let bytes = base.to_request("").body(body).to_bytes();
    Some(Case { kind: Kind::Picture, class, what: format!("{}: {what}", base.name()), bytes, finish: false })
}

fn has(base: &Base, media: &str) -> bool {
    base.media.as_ref().is_some_and(|its| its.starts_with(media))
}

type Damaged = Option<(&'static str, String, Vec<u8>)>;

/// Where the width stands in a PNG: after the signature and the length and name of its first chunk.
const PNG_WIDTH: usize = 16;

fn damaged_png(valid: &[u8], rng: &mut Rng) -> Damaged {
    let mut png = valid.to_vec();
    let data = find(&png, b"IDAT")? + 4;
    Some(match rng.below(6) {
        0 => {
            let at = 1 + rng.below(data + 4);
            png.truncate(at);
            ("PNG cut", format!("a PNG cut after {at} bytes"), png)
        }
        1 => {
            let at = rng.below(8);
            png[at] ^= 0x41;
            ("PNG without its signature", format!("a PNG whose byte {at} is changed"), png)
        }
        2 => {
            let at = PNG_WIDTH + rng.below(13);
            png[at] ^= 1 << rng.below(8);
            ("PNG with a wrong checksum", format!("a PNG whose byte {at} is changed"), png)
        }
        3 => {
            png[data + 2] ^= 1 << rng.below(8);
            ("PNG with a wrong checksum", "a PNG whose pixels are changed".to_owned(), png)
        }
        4 => {
            let size = *rng.pick(&[0_u32, 20_000, 60_000, 1 << 24, (1 << 31) - 1, u32::MAX]);
            let at = PNG_WIDTH + 4 * rng.below(2);
            png[at..at + 4].copy_from_slice(&size.to_be_bytes());
            if size != 0 {
                // Both, so that no limit on pixels can be kept by the other being small.
                png[PNG_WIDTH..PNG_WIDTH + 4].copy_from_slice(&size.to_be_bytes());
                png[PNG_WIDTH + 4..PNG_WIDTH + 8].copy_from_slice(&size.to_be_bytes());
            }
            sign(&mut png);
            ("PNG of an impossible size", format!("a PNG that says it is {size} wide or high"), png)
        }
        _ => {
            let (at, value) = *rng.pick(&[(8, 3), (8, 255), (9, 1), (9, 5), (9, 77), (10, 9), (12, 2)]);
            png[PNG_WIDTH + at] = value;
            sign(&mut png);
            ("PNG of an unknown format", format!("a PNG with {value} at {at} of its head"), png)
        }
    })
}

/// Makes the head's checksum right again.
fn sign(png: &mut [u8]) {
    let sum = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
}

fn damaged_jpeg(valid: &[u8], rng: &mut Rng) -> Damaged {
    let mut jpeg = valid.to_vec();
    let frame = find(&jpeg, &[0xff, 0xc0])? + 4;
    let codes = find(&jpeg, &[0xff, 0xc4])? + 5;
    let scan = find(&jpeg, &[0xff, 0xda])?;
    Some(match rng.below(5) {
        0 => {
            let at = 1 + rng.below(scan);
            jpeg.truncate(at);
            ("JPEG cut", format!("a JPEG cut after {at} bytes"), jpeg)
        }
        1 => {
            let at = rng.below(2);
            jpeg[at] ^= 0x41;
            ("JPEG without its beginning", format!("a JPEG whose byte {at} is changed"), jpeg)
        }
        2 => {
            let size = *rng.pick(&[0_u16, 20_000, 60_000, u16::MAX]);
            jpeg[frame + 1..frame + 3].copy_from_slice(&size.to_be_bytes());
            jpeg[frame + 3..frame + 5].copy_from_slice(&size.to_be_bytes());
            ("JPEG of an impossible size", format!("a JPEG that says it is {size} wide and high"), jpeg)
        }
        3 => {
            let (at, value) = *rng.pick(&[(0, 13), (0, 0), (5, 0), (5, 200), (7, 0), (7, 0xff)]);
            jpeg[frame + at] = value;
            ("JPEG of an unknown format", format!("a JPEG with {value} at {at} of its frame"), jpeg)
        }
        _ => {
            jpeg[codes..codes + 16].fill(255);
            ("JPEG with impossible codes", "a JPEG with more codes than bits can tell".to_owned(), jpeg)
        }
    })
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// As PNG has it; a bit at a time, because it is of seventeen bytes.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = include_bytes!("../../../../examples/fashion/pictures/shirt.png");

    #[test]
    fn the_checksum_of_a_real_head_is_the_one_in_it() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(&PNG[12..29]).to_be_bytes(), PNG[29..33]);
    }

    #[test]
    fn every_damage_changes_the_picture() {
        let (mut rng, jpeg) = (Rng::new(3), jpeg());
        for _ in 0..500 {
            assert_ne!(damaged_png(PNG, &mut rng).unwrap().2, PNG);
            assert_ne!(damaged_jpeg(&jpeg, &mut rng).unwrap().2, jpeg);
        }
    }
}
