//! The rules for pictures: what is refused, what is made of alpha, EXIF, grey and 16 bits.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that is wrong may stop; its numbers are small"
)]

mod common;

use common::{decode, decode_with, exif, jpeg, png, with_app1, with_chunk};
use image::ExtendedColorType as Kind;
use modelless_adapter::{Body, Colour, InputError, InputErrorKind, Limits, Preparation, decode_base64_input};

#[test]
fn what_a_file_is_decides_and_nothing_else() {
    for (file, found) in [
        (b"GIF89a...".as_slice(), "a GIF"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "a WebP picture"),
        (b"\0\0\0\x1cftypavif", "an AVIF picture"),
        (b"%PDF-1.7", "a PDF"),
        (b"", "empty"),
        (b"\x89PNX", "of an unknown kind"),
        (b"\xff\xd8", "of an unknown kind"),
    ] {
        let error = decode(file, Colour::Rgb).unwrap_err();
        assert_eq!(error, InputError::UnsupportedMedia { found: found.to_owned() });
        assert_eq!(error.kind(), InputErrorKind::UnsupportedMedia);
    }
}

#[test]
fn alpha_is_laid_over_white_before_grey_is_made() {
    let rgba = png(2, 2, Kind::Rgba8, &[10, 20, 30, 255, 200, 100, 0, 0, 0, 0, 0, 128, 255, 0, 0, 51]);
    let colour = decode(&rgba, Colour::Rgb).unwrap();
    assert_eq!(colour.pixels(), [10, 20, 30, 255, 255, 255, 127, 127, 127, 255, 204, 204]);
    let grey = decode(&rgba, Colour::Grey).unwrap();
    // 0.299 x 10 + 0.587 x 20 + 0.114 x 30 = 18.15; 0.299 x 255 + 0.701 x 204 = 219.2
    assert_eq!(grey.pixels(), [18, 255, 127, 219]);

    let grey_alpha = png(2, 1, Kind::La8, &[100, 255, 100, 0]);
    assert_eq!(decode(&grey_alpha, Colour::Grey).unwrap().pixels(), [100, 255]);
    assert_eq!(decode(&grey_alpha, Colour::Rgb).unwrap().pixels(), [100, 100, 100, 255, 255, 255]);
}

#[test]
fn sixteen_bits_become_eight_by_the_high_byte() {
    let words = |values: &[u16]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
    let grey = png(3, 1, Kind::L16, &words(&[0x00ff, 0x8000, 0xffff]));
    assert_eq!(decode(&grey, Colour::Grey).unwrap().pixels(), [0x00, 0x80, 0xff]);
    let rgb = png(1, 1, Kind::Rgb16, &words(&[0x12ff, 0x3400, 0x5680]));
    assert_eq!(decode(&rgb, Colour::Rgb).unwrap().pixels(), [0x12, 0x34, 0x56]);
    let rgba = png(1, 1, Kind::Rgba16, &words(&[0x12ff, 0x3400, 0x5680, 0x00ff]));
    assert_eq!(decode(&rgba, Colour::Rgb).unwrap().pixels(), [0xff; 3]);
    let grey_alpha = png(1, 1, Kind::La16, &words(&[0x12ff, 0xffff]));
    assert_eq!(decode(&grey_alpha, Colour::Grey).unwrap().pixels(), [0x12]);
}

#[test]
fn grey_becomes_colour_and_colour_grey() {
    let grey = png(2, 1, Kind::L8, &[7, 200]);
    assert_eq!(decode(&grey, Colour::Rgb).unwrap().pixels(), [7, 7, 7, 200, 200, 200]);
    let rgb = png(4, 1, Kind::Rgb8, &[255, 0, 0, 0, 255, 0, 0, 0, 255, 99, 99, 99]);
    assert_eq!(decode(&rgb, Colour::Grey).unwrap().pixels(), [76, 150, 29, 99]);
}

/// Three flat blocks beside each other, `a b c`, in JPEG blocks of 8 so that nothing bleeds.
fn three_blocks() -> Vec<u8> {
    let line = [[40_u8; 8], [130; 8], [220; 8]].concat();
    jpeg(24, 8, Kind::L8, &line.repeat(8))
}

#[test]
fn every_exif_orientation_is_applied() {
    let blocks = three_blocks();
    for little_endian in [true, false] {
        for orientation in 0..=9_u16 {
            let file = with_app1(&blocks, &exif(orientation, little_endian));
            let picture = decode(&file, Colour::Grey).unwrap();
            let upright = (5..=8).contains(&orientation);
            let size = if upright { (8, 24) } else { (24, 8) };
            assert_eq!((picture.width(), picture.height()), size, "orientation {orientation}");
            let pixels = picture.pixels();
            let (first, last) = (pixels[0], pixels[pixels.len() - 1]);
            // 2 and 3 swap left and right; 7 and 8 put what was left at the bottom.
            let swapped = matches!(orientation, 2 | 3 | 7 | 8);
            let (a, c) = if swapped { (220, 40) } else { (40, 220) };
            assert!(
                first.abs_diff(a) <= 2 && last.abs_diff(c) <= 2,
                "orientation {orientation}: {first} {last}"
            );
        }
    }
}

#[test]
fn flips_and_turns_go_the_right_way() {
    // 1 2
    // 3 4 as a PNG, where every pixel is exact and eXIf stands after the pixels.
    let file = png(2, 2, Kind::L8, &[1, 2, 3, 4]);
    for (orientation, expected) in [
        (1, [1, 2, 3, 4]),
        (2, [2, 1, 4, 3]),
        (3, [4, 3, 2, 1]),
        (4, [3, 4, 1, 2]),
        (5, [1, 3, 2, 4]),
        (6, [3, 1, 4, 2]),
        (7, [4, 2, 3, 1]),
        (8, [2, 4, 1, 3]),
    ] {
        let file = with_chunk(&file, *b"eXIf", &exif(orientation, false));
        assert_eq!(decode(&file, Colour::Grey).unwrap().pixels(), expected, "orientation {orientation}");
    }
}

#[test]
fn a_damaged_exif_block_is_ignored() {
    let blocks = three_blocks();
    let whole = exif(6, true);
    for length in 0..whole.len() {
        let picture = decode(&with_app1(&blocks, &whole[..length]), Colour::Grey).unwrap();
        assert!([(24, 8), (8, 24)].contains(&(picture.width(), picture.height())), "cut at {length}");
    }
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let pixels: Vec<u8> = (0..32 * 24 * 3).map(|i: u32| (i * 7 % 251) as u8).collect();
    for file in [jpeg(32, 24, Kind::Rgb8, &pixels), png(32, 24, Kind::Rgb8, &pixels)] {
        assert!(decode(&file, Colour::Rgb).is_ok());
        for length in 0..file.len() {
            let error = decode(&file[..length], Colour::Rgb).expect_err("a file that is cut off");
            if length >= 8 {
                assert!(matches!(error, InputError::Truncated { .. }), "cut at {length}: {error}");
            }
        }
        let mut longer = file.clone();
        longer.extend(b"what follows the end is ignored");
        assert_eq!(decode(&longer, Colour::Rgb), decode(&file, Colour::Rgb));
    }
}

/// A PNG that says it is this large, without the pixels.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut file = png(1, 1, Kind::L8, &[0]);
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    file
}

#[test]
fn sizes_are_refused_before_anything_is_decoded() {
    let limits = Limits::default();
    for (width, height) in [(u32::MAX, u32::MAX), (30_000, 30_000), (1, 40_000), (40_000, 1)] {
        let error = decode(&png_header(width, height), Colour::Rgb).unwrap_err();
        let (pixels, side) = (limits.max_pixels, limits.max_side);
        assert_eq!(error, InputError::TooManyPixels { width, height, pixels, side });
        assert_eq!(error.kind(), InputErrorKind::TooLarge);
    }
    let mut file = jpeg(8, 8, Kind::L8, &[0; 64]);
    let frame = file.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    file[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(decode(&file, Colour::Grey), Err(InputError::TooManyPixels { width: 65_535, .. })));
}

#[test]
fn each_limit_holds_exactly() {
    let file = png(10, 6, Kind::Rgba16, &[0; 10 * 6 * 8]);
    let fits = Limits {
        max_text_bytes: 1,
        max_bytes: file.len(),
        max_pixels: 60,
        max_side: 10,
        max_decoder_bytes: 60 * (8 + 3),
        max_scans: 0,
    };
    assert!(decode_with(&file, Colour::Rgb, &Limits { max_decoder_bytes: 1 << 20, ..fits }).is_ok());
    for (limits, expected) in [
        (Limits { max_bytes: file.len() - 1, ..fits }, "bytes"),
        (Limits { max_pixels: 59, ..fits }, "pixels"),
        (Limits { max_side: 9, ..fits }, "pixels"),
        (Limits { max_decoder_bytes: 60 * (8 + 3) - 1, ..fits }, "memory"),
    ] {
        let error = decode_with(&file, Colour::Rgb, &limits).unwrap_err();
        assert_eq!(error.kind(), InputErrorKind::TooLarge, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let photo = jpeg(8, 8, Kind::L8, &[9; 64]);
    assert_eq!(
        decode_with(&photo, Colour::Grey, &Limits { max_scans: 0, ..Limits::default() }),
        Err(InputError::TooManyScans { limit: 0 })
    );
}

#[test]
fn base64_comes_bare_or_in_a_data_url() {
    let file = png(2, 1, Kind::L8, &[7, 200]);
    let limits = Limits::default();
    let text = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(&file)
    };
    let broken: String = text
        .chars()
        .enumerate()
        .flat_map(|(i, c)| (i % 20 == 0).then_some('\n').into_iter().chain([c]))
        .collect();
    for good in [
        text.clone(),
        text.trim_end_matches('=').to_owned(),
        broken,
        format!("data:image/png;base64,{text}"),
        format!("DATA:;charset=x;BASE64,{text}"),
        format!("  {text}\n"),
    ] {
        assert_eq!(decode_base64_input(&good, &limits).as_ref(), Ok(&file), "{good}");
    }
    for bad in
        ["data:image/png,abc", "data:image/png;base64", "https://example.org/cat.jpg", "a", "%%%%", "ab-_"]
    {
        assert!(matches!(decode_base64_input(bad, &limits), Err(InputError::BadBase64 { .. })), "{bad}");
    }
    let small = Limits { max_bytes: 8, ..limits };
    assert!(matches!(decode_base64_input(&text, &small), Err(InputError::TooManyBytes { .. })));

    let picture = Preparation::Picture { colour: Colour::Grey };
    let value = serde_json::to_string(&text).unwrap();
    assert!(picture.decode(Body::Json(value.as_bytes()), &limits).is_ok());
    let escaped = value.replace('/', "\\/");
    assert!(picture.decode(Body::Json(escaped.as_bytes()), &limits).is_ok());
    for bad in ["12", "[1,2]", "\"abc", "null", ""] {
        let error = picture.decode(Body::Json(bad.as_bytes()), &limits).unwrap_err();
        assert!(matches!(error, InputError::BadJson { .. }), "{bad}: {error}");
    }
}

#[test]
fn preparations_differ_only_where_decoding_does() {
    let grey = Preparation::Picture { colour: Colour::Grey };
    let rgb = Preparation::Picture { colour: Colour::Rgb };
    let task = common::labelled(2);
    let of = |json: &str| common::parse(json).preparation(&task, None).unwrap().id();
    let small = of(r#"{"kind":"image-classification","width":8,"height":8,"channels":"rgb"}"#);
    let other = of(
        r#"{"kind":"image-classification","width":224,"height":9,"channels":"bgr","mean":5,"layout":"nhwc"}"#,
    );
    assert_eq!((small, other), (rgb.id(), rgb.id()));
    assert_ne!(grey.id(), rgb.id());
    // The key is kept by other processes, so it must never change by itself.
    assert_eq!(format!("{:?}", rgb.id()), "PreparationId(230f6256cb65ffa0)");
}
