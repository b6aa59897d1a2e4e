//! A decoded picture into a model's input: exact values, layouts, channels, and that all ways agree.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "a test that is wrong may stop; its numbers are small"
)]

mod common;

use common::{bytes_of, decode, floats, labelled, parse, png, spec};
use half::f16;
use image::ExtendedColorType as Kind;
use modelless_adapter::{
    Adapter, Body, Colour, Decoded, Limits, Picture, Preparation, PrepareError, Scratch,
};
use modelless_types::{DType, TensorSpec};
use proptest::prelude::*;

/// Bound to a model that takes exactly what the adapter writes.
fn bind(json: &str) -> (Adapter, usize) {
    let adapter = parse(json);
    let modelless_adapter::AdapterSpec::ImageClassification(image) = &adapter else { panic!("{json}") };
    let elements = u32::try_from(image.channels.count()).unwrap() * image.width * image.height;
    let input = TensorSpec { name: "x".to_owned(), dtype: image.dtype.dtype(), shape: vec![elements] };
    let bytes = input.item_bytes().unwrap();
    (Adapter::new(&adapter, &labelled(2), &[input], &[spec("y", DType::Fp32, &[2])]).unwrap(), bytes)
}

fn written(json: &str, picture: &Picture) -> Vec<u8> {
    let (adapter, bytes) = bind(json);
    let mut row = vec![0xaa; bytes];
    adapter.prepare(&Decoded::Picture(picture.clone()), 0, &mut row, &mut Scratch::default()).unwrap();
    row
}

fn picture_spec(width: u32, height: u32, rest: &str) -> String {
    format!(r#"{{"kind":"image-classification","width":{width},"height":{height}{rest}}}"#)
}

/// Two pixels beside each other.
fn two() -> Picture {
    Picture::new(2, 1, Colour::Rgb, vec![1, 2, 3, 51, 52, 53]).unwrap()
}

#[test]
fn layouts_and_channels_are_where_they_belong() {
    for (rest, expected) in [
        (r#","channels":"rgb","scale":1"#, [1, 51, 2, 52, 3, 53]),
        (r#","channels":"bgr","scale":1"#, [3, 53, 2, 52, 1, 51]),
        (r#","channels":"rgb","scale":1,"layout":"nhwc""#, [1, 2, 3, 51, 52, 53]),
        (r#","channels":"bgr","scale":1,"layout":"nhwc""#, [3, 2, 1, 53, 52, 51]),
    ] {
        let expected = expected.map(|v: u8| f32::from(v));
        assert_eq!(floats(&written(&picture_spec(2, 1, rest), &two())), expected, "{rest}");
        let bytes = rest.to_owned() + r#","dtype":"uint8""#;
        let row = written(&picture_spec(2, 1, &bytes), &two());
        assert_eq!(row.iter().map(|b| f32::from(*b)).collect::<Vec<_>>(), expected, "{rest}");
    }
}

#[test]
#[expect(clippy::cast_possible_truncation, reason = "the expected value is rounded to single precision once")]
fn normalising_is_exact() {
    let mean = [0.485, 0.456, 0.406];
    let std = [0.229, 0.224, 0.225];
    let rest = r#","channels":"rgb","mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]"#;
    let row = floats(&written(&picture_spec(2, 1, rest), &two()));
    for (i, pixel) in [1.0, 51.0, 2.0, 52.0, 3.0, 53.0].into_iter().enumerate() {
        let expected = ((pixel * (1.0 / 255.0) - mean[i / 2]) / std[i / 2]) as f32;
        assert_eq!(row[i].to_bits(), expected.to_bits(), "element {i}");
    }
    let blue_first = rest.replace("rgb", "bgr");
    let row = floats(&written(&picture_spec(2, 1, &blue_first), &two()));
    // Means are in the order of the model's channels, so blue has the first.
    assert_eq!(row[0].to_bits(), (((3.0 / 255.0 - mean[0]) / std[0]) as f32).to_bits());

    let halves = written(&picture_spec(2, 1, &(rest.to_owned() + r#","dtype":"fp16""#)), &two());
    let first = f16::from_le_bytes([halves[0], halves[1]]);
    assert_eq!(first, f16::from_f64((1.0 / 255.0 - mean[0]) / std[0]));
    let held =
        written(&picture_spec(2, 1, r#","channels":"rgb","dtype":"uint8","scale":5,"mean":20"#), &two());
    assert_eq!(held, [0, 235, 0, 240, 0, 245]);
}

#[test]
fn letterbox_bars_are_filled_and_nothing_is_left_over() {
    let picture = Picture::new(2, 1, Colour::Rgb, vec![10; 6]).unwrap();
    for layout in ["nchw", "nhwc"] {
        let rest = format!(
            r#","channels":"rgb","scale":1,"layout":"{layout}","resize":{{"mode":"letterbox","fill":114}}"#
        );
        let row = floats(&written(&picture_spec(4, 4, &rest), &picture));
        let bar =
            |i: usize| if layout == "nchw" { matches!(i % 16 / 4, 0 | 3) } else { matches!(i / 12, 0 | 3) };
        for (i, value) in row.iter().enumerate() {
            assert_eq!(value.to_bits(), if bar(i) { 114.0_f32 } else { 10.0 }.to_bits(), "{layout} {i}");
        }
    }
}

#[test]
fn misuse_is_an_error_and_writes_nothing() {
    let (adapter, bytes) = bind(&picture_spec(2, 1, r#","channels":"grey""#));
    let mut scratch = Scratch::default();
    let mut row = vec![0xaa; bytes];
    let colour = Decoded::Picture(two());
    let grey = Decoded::Picture(Picture::new(2, 1, Colour::Grey, vec![1, 2]).unwrap());
    assert_eq!(
        adapter.prepare(&colour, 0, &mut row, &mut scratch),
        Err(PrepareError::Preparation { found: "a colour picture", needs: "a grey picture" })
    );
    assert_eq!(
        adapter.prepare(&grey, 1, &mut row, &mut scratch),
        Err(PrepareError::NoInput { index: 1, inputs: 1 })
    );
    assert_eq!(
        adapter.prepare(&grey, 0, &mut row[1..], &mut scratch),
        Err(PrepareError::RowLength { got: bytes - 1, expected: bytes })
    );
    assert!(row.iter().all(|byte| *byte == 0xaa));
    assert!(Picture::new(2, 2, Colour::Grey, vec![0; 3]).is_none());
    assert!(Picture::new(0, 2, Colour::Grey, vec![]).is_none());
}

#[test]
fn a_scratch_does_not_stay_large() {
    let picture = Picture::new(32_768, 400, Colour::Grey, vec![7; 32_768 * 400]).unwrap();
    let (adapter, bytes) = bind(&picture_spec(600, 600, r#","channels":"grey","scale":1"#));
    let (mut row, mut scratch) = (vec![0; bytes], Scratch::default());
    adapter.prepare(&Decoded::Picture(picture), 0, &mut row, &mut scratch).unwrap();
    assert!(floats(&row).iter().all(|value| *value == 7.0));
    let kept: usize =
        format!("{scratch:?}").chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
    assert!(kept < 2 << 20, "{kept} bytes");
}

#[test]
fn a_whole_photograph_goes_from_file_to_row() {
    let pixels: Vec<u8> =
        (0..100 * 80).flat_map(|i: u32| [(i % 100 * 2) as u8, (i / 100 * 3) as u8, 90]).collect();
    let file = common::jpeg(100, 80, Kind::Rgb8, &pixels).into();
    let preparation = Preparation::Picture { colour: Colour::Rgb };
    let decoded = preparation.decode(Body::Raw(&file), &Limits::default()).unwrap();
    assert_eq!(decoded.bytes(), 100 * 80 * 3);
    let (adapter, bytes) = bind(&picture_spec(10, 10, r#","channels":"rgb","scale":1,"layout":"nhwc""#));
    let mut row = vec![0; bytes];
    adapter.prepare(&decoded, 0, &mut row, &mut Scratch::default()).unwrap();
    for (i, pixel) in floats(&row).as_chunks::<3>().0.iter().enumerate() {
        // The middle of each field of 10 x 8.
        let expected = [(i % 10) as f32 * 20.0 + 9.0, (i / 10) as f32 * 24.0 + 10.5, 90.0];
        for (got, expected) in pixel.iter().zip(expected) {
            assert!((got - expected).abs() < 6.0, "{i}: {pixel:?}, expected {expected}");
        }
    }
}

fn resize_modes() -> impl Strategy<Value = String> {
    let filter = prop_oneof![Just("bilinear"), Just("bicubic"), Just("lanczos"), Just("area")];
    let mode = prop_oneof![Just("stretch"), Just("shorter-side"), Just("letterbox")];
    (filter, mode).prop_map(|(f, m)| format!(r#""resize":{{"filter":"{f}","mode":"{m}"}}"#))
}

/// These made `fast_image_resize` read past its buffer when it did both directions at once.
#[test]
fn a_part_that_begins_where_the_filter_is_zero_is_read_inside_the_picture() {
    for filter in ["bicubic", "lanczos", "bilinear", "area"] {
        for colour in [Colour::Grey, Colour::Rgb] {
            for (w, h) in (1..12).flat_map(|w| (1..6).map(move |h| (w, h))) {
                for (tw, th) in (1..6).flat_map(|w| [1, 4, 9, 20].map(move |h| (w, h))) {
                    let picture =
                        Picture::new(w, h, colour, vec![7; (w * h) as usize * colour.channels()]).unwrap();
                    let channels = if colour == Colour::Grey { "grey" } else { "rgb" };
                    let rest = format!(
                        r#","channels":"{channels}","scale":1,"resize":{{"mode":"shorter-side","filter":"{filter}"}}"#
                    );
                    let row = floats(&written(&picture_spec(tw, th, &rest), &picture));
                    assert!(row.iter().all(|v| *v == 7.0), "{filter} {w}x{h} -> {tw}x{th}");
                }
            }
        }
    }
}

proptest! {
    /// In every mode a picture of the model's size is taken as it is, whichever way it is written.
    #[test]
    fn a_picture_of_the_right_size_is_not_changed(
        (w, h) in (1_u32..20, 1_u32..20),
        resize in resize_modes(),
        seed in any::<u8>(),
    ) {
        // A crop to the larger side would not keep a picture that is not square.
        let h = if resize.contains("shorter") { w } else { h };
        let pixels: Vec<u8> = (0..w * h).map(|i| (i as u8).wrapping_mul(37) ^ seed).collect();
        let picture = Picture::new(w, h, Colour::Grey, pixels.clone()).unwrap();
        let row = written(&picture_spec(w, h, &format!(r#","channels":"grey","scale":1,{resize}"#)), &picture);
        let expected: Vec<f32> = pixels.iter().map(|p| f32::from(*p)).collect();
        prop_assert_eq!(floats(&row), expected);
    }

    /// The short way for the right size gives what the long way gives: a patch in the middle of a letterbox one
    /// row higher goes the long way, as does a crop that keeps the scale.
    #[test]
    fn the_short_way_equals_the_long_way(w in 2_u32..20, pixels in prop::collection::vec(any::<u8>(), 60)) {
        let pixels: Vec<u8> = pixels.iter().copied().cycle().take((w * w * 3) as usize).collect();
        let picture = Picture::new(w, w, Colour::Rgb, pixels.clone()).unwrap();
        let rest = r#","channels":"rgb","layout":"nhwc","mean":0.3,"std":0.7"#;
        let short = written(&picture_spec(w, w, rest), &picture);
        // Two more columns on the right and the left are cut off again without any resampling.
        let wider: Vec<u8> = pixels
            .chunks_exact(w as usize * 3)
            .flat_map(|line| [&[9; 6][..], line, &[9; 6]].concat())
            .collect();
        let wider = Picture::new(w + 4, w, Colour::Rgb, wider).unwrap();
        let cropped = format!(r#"{rest},"resize":{{"mode":"shorter-side"}}"#);
        prop_assert_eq!(written(&picture_spec(w, w, &cropped), &wider), short);
    }

    /// A crop is what is left when the whole is resized and the rest cut off, though only the part is resized.
    /// Not for `area`, which jumps where a pixel's border falls on another's. Two steps of 256 may lie between: each
    /// pass rounds its weights to a precision that depends on all of them.
    #[test]
    fn a_crop_equals_resizing_the_whole(
        (w, h) in (1_u32..40, 1_u32..40),
        (tw, th) in (1_u32..30, 1_u32..30),
        more in 0_u32..20,
        filter in prop_oneof![Just("bilinear"), Just("bicubic"), Just("lanczos")],
        seed in any::<u32>(),
    ) {
        let pixels: Vec<u8> = (0..w * h).map(|i| (i.wrapping_mul(seed | 1) >> 13) as u8).collect();
        let picture = Picture::new(w, h, Colour::Grey, pixels).unwrap();
        let size = tw.max(th) + more;
        let (rw, rh) = if w <= h { (size, size * h / w) } else { (size * w / h, size) };
        let crop = format!(
            r#","channels":"grey","dtype":"uint8","resize":{{"mode":"shorter-side","size":{size},"filter":"{filter}"}}"#
        );
        let whole = format!(r#","channels":"grey","dtype":"uint8","resize":{{"filter":"{filter}"}}"#);
        let part = written(&picture_spec(tw, th, &crop), &picture);
        let whole = written(&picture_spec(rw, rh, &whole), &picture);
        let even = |excess: u32| excess / 2 + (excess % 2) * (excess / 2 % 2);
        let (left, top) = (even(rw - tw), even(rh - th));
        for (i, got) in part.iter().enumerate() {
            let (x, y) = (i as u32 % tw + left, i as u32 / tw + top);
            let expected = whole[(y * rw + x) as usize];
            prop_assert!(got.abs_diff(expected) <= 2, "({x}, {y}) is {got}, expected {expected}");
        }
    }

    /// No size of picture and model is a panic, every cell is written, and flat pictures stay flat.
    #[test]
    fn any_size_fits_into_any_other(
        (w, h) in (1_u32..70, 1_u32..70),
        (tw, th) in (1_u32..40, 1_u32..40),
        resize in resize_modes(),
        layout in prop_oneof![Just("nchw"), Just("nhwc")],
        value in 0_u8..=255,
    ) {
        let picture = Picture::new(w, h, Colour::Rgb, vec![value; (w * h * 3) as usize]).unwrap();
        let resize = resize.replace('}', &format!(r#","fill":{value}}}"#));
        let rest = format!(r#","channels":"bgr","scale":1,"layout":"{layout}",{resize}"#);
        let row = floats(&written(&picture_spec(tw, th, &rest), &picture));
        prop_assert!(row.iter().all(|v| v.to_bits() == f32::from(value).to_bits()));
    }

    /// Lossless files give back exactly the pixels that went in.
    #[test]
    fn png_keeps_every_pixel(w in 1_u32..24, pixels in prop::collection::vec(any::<u8>(), 24 * 3..24 * 9)) {
        let h = u32::try_from(pixels.len()).unwrap() / (w * 3);
        let pixels = &pixels[..(w * h * 3) as usize];
        let picture = decode(&png(w, h, Kind::Rgb8, pixels), Colour::Rgb).unwrap();
        prop_assert_eq!((picture.width(), picture.height(), picture.pixels()), (w, h, pixels));
        let row = written(&picture_spec(w, h, r#","channels":"rgb","scale":1,"layout":"nhwc""#), &picture);
        let expected: Vec<f32> = pixels.iter().map(|p| f32::from(*p)).collect();
        prop_assert_eq!(row, bytes_of(&expected));
    }
}
