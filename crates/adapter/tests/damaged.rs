//! No bytes make decoding panic or exceed its limits: random ones, and good files with some bytes changed.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that is wrong may stop; its numbers are small"
)]

mod common;

use common::{decode_with, exif, jpeg, mended, png, with_app1, with_chunk};
use image::ExtendedColorType as Kind;
use modelless_adapter::{Colour, Limits, decode_base64_input};
use proptest::prelude::*;
use std::sync::LazyLock;

/// Good files of many kinds, small enough that a change of a few bytes hits something.
static GOOD: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let noise = |n: usize| (0..n).map(|i| (i * i * 31 + i * 7) as u8).collect::<Vec<u8>>();
    let mut files = vec![
        png(9, 7, Kind::L8, &noise(63)),
        png(9, 7, Kind::Rgba8, &noise(252)),
        png(5, 3, Kind::Rgb16, &noise(90)),
        with_chunk(&png(4, 4, Kind::La8, &noise(32)), *b"eXIf", &exif(6, true)),
        jpeg(17, 9, Kind::L8, &noise(153)),
        jpeg(17, 9, Kind::Rgb8, &noise(459)),
        with_app1(&jpeg(8, 8, Kind::Rgb8, &noise(192)), &exif(7, false)),
    ];
    // And JPEGs that our own encoder does not make: progressive, with restart markers, CMYK.
    let golden: serde_json::Value = serde_json::from_str(include_str!("golden/cases.json")).unwrap();
    for photograph in golden["jpegs"].as_array().unwrap() {
        files.push(decode_base64_input(photograph["jpeg"].as_str().unwrap(), &Limits::default()).unwrap());
    }
    files
});

const LIMITS: Limits = Limits {
    max_text_bytes: 1 << 20,
    max_bytes: 1 << 20,
    max_pixels: 200_000,
    max_side: 2_000,
    max_decoder_bytes: 4 << 20,
    max_scans: 20,
};

fn check(file: &[u8]) {
    for colour in [Colour::Grey, Colour::Rgb] {
        if let Ok(picture) = decode_with(file, colour, &LIMITS) {
            let pixels = u64::from(picture.width()) * u64::from(picture.height());
            assert!(pixels <= LIMITS.max_pixels && picture.width().max(picture.height()) <= LIMITS.max_side);
            assert_eq!(picture.pixels().len() as u64, pixels * colour.channels() as u64);
        }
    }
}

/// How many cases; more when asked, for a long search: `PROPTEST_CASES=1000000`.
fn cases() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(2_000), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn random_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in 0..3) {
        match magic {
            0 => {}
            1 => bytes.splice(0..0, *b"\xff\xd8\xff").for_each(drop),
            _ => bytes.splice(0..0, *b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR").for_each(drop),
        }
        check(&bytes);
    }

    #[test]
    fn damaged_files_do_no_harm(
        which in 0_usize..14,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = GOOD[which].clone();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        check(&file);
        check(&mended(file));
    }

    #[test]
    fn spliced_files_do_no_harm(
        (a, b) in (0_usize..14, 0_usize..14),
        (from, to) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let (a, b) = (&GOOD[a], &GOOD[b]);
        check(&[&a[..from.index(a.len())], &b[to.index(b.len())..]].concat());
    }
}
