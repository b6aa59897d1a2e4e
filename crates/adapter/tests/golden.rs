//! Pictures against floats that Pillow and numpy made of them (`golden/make.py`).
#![allow(clippy::unwrap_used, reason = "a test that is wrong may stop; its numbers are small")]

mod common;

use common::{decode, floats, labelled};
use modelless_adapter::{
    Adapter, AdapterSpec, Body, Colour, InputError, Limits, Scratch, decode_base64_input,
};
use modelless_types::{DType, TensorSpec};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
    jpegs: Vec<Photograph>,
}

#[derive(Deserialize)]
struct Photograph {
    name: String,
    jpeg: String,
    width: u32,
    height: u32,
    pixels: String,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    png: String,
    adapter: serde_json::Value,
    values: Vec<f32>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/cases.json")).unwrap()
}

#[test]
fn jpegs_of_many_kinds_become_what_libjpeg_makes_of_them() {
    let limits = Limits::default();
    for case in golden().jpegs {
        let file = decode_base64_input(&case.jpeg, &limits).unwrap();
        let expected = decode_base64_input(&case.pixels, &limits).unwrap();
        let picture = decode(&file, Colour::Rgb).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!((picture.width(), picture.height()), (case.width, case.height), "{}", case.name);
        // Decoders may differ in the last bits of the cosine transform.
        let worst = picture.pixels().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= 3, "{}: off by {worst}", case.name);
        for length in 8..file.len() {
            let cut = decode(&file[..length], Colour::Rgb);
            assert!(matches!(cut, Err(InputError::Truncated { .. })), "{} cut at {length}", case.name);
        }
    }
}

#[test]
fn pictures_become_what_pillow_and_numpy_make_of_them() {
    let golden = golden();
    assert!(golden.cases.len() >= 15);
    let mut scratch = Scratch::default();
    for case in golden.cases {
        let spec = AdapterSpec::parse(&case.adapter.to_string()).unwrap();
        let AdapterSpec::ImageClassification(image) = &spec else { panic!("{}", case.name) };
        let (channels, width, height) = (image.channels.count(), image.width, image.height);
        let shape = vec![u32::try_from(channels).unwrap() * width * height];
        let input = TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape };
        let output = TensorSpec { name: "y".to_owned(), dtype: DType::Fp32, shape: vec![2] };
        let adapter = Adapter::new(&spec, &labelled(2), std::slice::from_ref(&input), &[output]).unwrap();

        let limits = Limits::default();
        let png = decode_base64_input(&case.png, &limits).unwrap().into();
        let decoded = adapter.preparation().decode(Body::Raw(&png), &limits).unwrap();
        let mut row = vec![0xee; input.item_bytes().unwrap()];
        adapter.prepare(&decoded, 0, &mut row, &mut scratch).unwrap();
        let got = floats(&row);

        // Where nothing is resized the pixels are equal and only single precision differs. Resized pixels may
        // differ by one step of 256 (both go across first and round between), Lanczos by two.
        let step = case.adapter["scale"].as_f64().unwrap_or(1.0 / 255.0);
        let least = |list: &Vec<serde_json::Value>| {
            list.iter().filter_map(serde_json::Value::as_f64).fold(1.0, f64::min)
        };
        let std = &case.adapter["std"];
        let std = std.as_array().map_or(std.as_f64().unwrap_or(1.0), least);
        let resized = case.name.contains("stretch")
            || case.name.contains("side")
            || matches!(case.name.as_str(), "letterbox" | "area" | "lanczos, blue first, rows first");
        let steps = if !resized {
            0.0
        } else if case.name.contains("lanczos") {
            2.0
        } else {
            1.0
        };
        let tolerance = steps * step / std + 2e-6 * (1.0 + step * 255.0);
        assert_eq!(got.len(), case.values.len(), "{}", case.name);
        let mut sum = 0.0;
        for (i, (got, expected)) in got.iter().zip(&case.values).enumerate() {
            let difference = f64::from(got - expected);
            assert!(
                difference.abs() <= tolerance,
                "{}: element {i} is {got}, expected {expected}",
                case.name
            );
            sum += difference * std / step;
        }
        let mean = sum / f64::from(u32::try_from(got.len()).unwrap());
        assert!(mean.abs() <= 0.2, "{}: brighter by {mean} steps in the mean", case.name);
    }
}
