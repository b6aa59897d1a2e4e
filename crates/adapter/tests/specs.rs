//! The notation, and what is found wrong when it is bound to a model and a task.
#![allow(
    clippy::unwrap_used,
    clippy::cloned_ref_to_slice_refs,
    clippy::redundant_clone,
    reason = "a test that is wrong may stop; lists written alike read better"
)]

mod common;

use common::{labelled, parse, spec, tensors};
use modelless_adapter::{
    Activation, Adapter, AdapterSpec, Channels, Filter, InputType, Layout, Mode, PerChannel, SpecError,
};
use modelless_types::DType::{Bytes, Fp16, Fp32, Int64, Uint8};

const PLAIN: &str = r#"{"kind":"image-classification","width":4,"height":3,"channels":"rgb"}"#;

#[test]
fn what_is_left_out_has_stated_defaults() {
    let AdapterSpec::ImageClassification(image) = parse(PLAIN) else { panic!("not a picture's") };
    assert_eq!((image.layout, image.dtype, image.top_k), (Layout::Nchw, InputType::Fp32, 5));
    assert_eq!((image.resize.mode, image.resize.filter), (Mode::Stretch, Filter::Bilinear));
    assert_eq!((image.mean, image.std, image.scale), (PerChannel::All(0.0), PerChannel::All(1.0), None));
    assert_eq!((image.activation, image.channels), (Activation::Softmax, Channels::Rgb));
}

#[test]
fn json_and_toml_say_the_same_and_are_read_back_as_written() {
    let from_toml: AdapterSpec = toml::from_str(
        r#"
        kind = "image-classification"
        input = "pixels"
        width = 224
        height = 200
        channels = "bgr"
        layout = "nhwc"
        resize = { mode = "shorter-side", filter = "box", size = 256 }
        scale = 1
        mean = [104, 116.7, 122.7]
        std = 1
        dtype = "fp16"
        activation = "none"
        top_k = 3
        "#,
    )
    .unwrap();
    from_toml.check().unwrap();
    let json = from_toml.to_json().unwrap();
    assert_eq!(parse(&json), from_toml);
    let AdapterSpec::ImageClassification(image) = from_toml else { panic!("not a picture's") };
    assert_eq!(image.mean, PerChannel::Each(vec![104.0, 116.7, 122.7]));
    assert_eq!(image.resize.filter, Filter::Area);
    let tensor = parse(r#"{"kind":"tensor","inputs":{"x":"input.1"}}"#);
    assert_eq!(parse(&tensor.to_json().unwrap()), tensor);
}

#[test]
fn errors_say_what_was_found_and_what_was_expected() {
    let with = |more: &str| PLAIN.replace('}', &format!(",{more}}}"));
    for (json, expected) in [
        (String::new(), "expected a JSON object such as"),
        ("[]".to_owned(), "expected"),
        (
            r#"{"kind":"pictures"}"#.to_owned(),
            "unknown variant `pictures`, expected one of `image-classification`, `text-classification`",
        ),
        (PLAIN.replace(r#""width":4,"#, ""), "missing field `width`"),
        (PLAIN.replace("rgb", "grb"), "unknown variant `grb`, expected one of `grey`, `rgb`, `bgr`"),
        (with(r#""colour":1"#), "unknown field `colour`"),
        (PLAIN.replace(":4", ":0"), "`width` is 0; expected 1 to 4096"),
        (PLAIN.replace(":3", ":5000"), "`height` is 5000; expected 1 to 4096"),
        (
            with(r#""mean":[1,2]"#),
            "`mean` is [1.0, 2.0]; expected one number, or a list of 3 (one per channel), finite",
        ),
        (with(r#""mean":"much""#), "expected a number or a list of numbers, one per channel"),
        (with(r#""mean":[1,2,3,4]"#), "at most 3 channels"),
        (with(r#""std":[1,0,1]"#), "`std` is [1.0, 0.0, 1.0]; expected"),
        (with(r#""std":-1"#), "finite and above 0"),
        (with(r#""scale":0"#), "finite and not 0"),
        (with(r#""top_k":0"#), "`top_k` is 0; expected at least 1"),
        (with(r#""resize":{"size":9}"#), "it has a meaning only with mode `shorter-side`"),
        (
            with(r#""resize":{"mode":"shorter-side","size":3}"#),
            "`resize.size` is 3; expected at least the larger",
        ),
        (with(r#""resize":{"mode":"squeeze"}"#), "unknown variant `squeeze`"),
        (r#"{"kind":"tensor","input":"x"}"#.to_owned(), "unknown field `input`"),
    ] {
        let error = AdapterSpec::parse(&json).expect_err(&json).to_string();
        assert!(error.contains(expected), "{json}\n  says: {error}\n  not: {expected}");
    }
}

#[test]
fn a_picture_adapter_has_to_fit_its_model_and_task() {
    let task = labelled(10);
    let input = spec("in", Fp32, &[3, 3, 4]);
    let output = spec("out", Fp32, &[10]);
    let bind = |json: &str, inputs: &[_], outputs: &[_]| {
        Adapter::new(&parse(json), &task, inputs, outputs).map(drop)
    };
    bind(PLAIN, &[input.clone()], &[output.clone()]).unwrap();
    bind(PLAIN, &[spec("in", Fp32, &[36])], &[spec("out", Fp16, &[1, 10])]).unwrap();
    let nhwc = PLAIN.replace('}', r#","layout":"nhwc","dtype":"uint8"}"#);
    bind(&nhwc, &[spec("in", Uint8, &[3, 4, 3])], &[output.clone()]).unwrap();
    let grey = PLAIN.replace("rgb", "grey");
    bind(&grey, &[spec("in", Fp32, &[3, 4])], &[output.clone()]).unwrap();
    let named = PLAIN.replace('}', r#","output":"logits"}"#);
    bind(&named, &[input.clone()], &[spec("features", Fp32, &[64]), spec("logits", Fp32, &[10])]).unwrap();

    let says = |json: &str, inputs: &[_], outputs: &[_], expected: &str| {
        let error = bind(json, inputs, outputs).expect_err(expected).to_string();
        assert!(error.contains(expected), "says: {error}\n not: {expected}");
    };
    let good = [input.clone()];
    says(
        PLAIN,
        &[spec("in", Fp32, &[3, 4, 3])],
        &[output.clone()],
        "`in` is FP32 [3, 4, 3]; expected FP32 [3, 3, 4]",
    );
    says(PLAIN, &[spec("in", Uint8, &[3, 3, 4])], &[output.clone()], "is UINT8 [3, 3, 4]; expected FP32");
    says(PLAIN, &[], &[output.clone()], "exactly one input; the model has none");
    says(PLAIN, &[input.clone(), spec("mask", Fp32, &[1])], &[output.clone()], "the model has `in`, `mask`");
    says(
        PLAIN,
        &good,
        &[spec("out", Fp32, &[9])],
        "`out` is FP32 [9]; expected floats, one for each of the 10 labels",
    );
    says(PLAIN, &good, &[spec("out", Fp32, &[2, 5])], "[2, 5]; expected floats");
    says(PLAIN, &good, &[spec("out", Int64, &[10])], "INT64 [10]; expected floats");
    says(PLAIN, &good, &[], "does not say which output is meant; the model has none");
    says(
        PLAIN,
        &good,
        &[output.clone(), spec("b", Fp32, &[1])],
        "does not say which output is meant; the model has `out`, `b`",
    );
    says(&named, &good, &[output.clone()], "names the output `logits`; the model has `out`");
    says(
        r#"{"kind":"tensor"}"#,
        &good,
        &[output.clone()],
        "adapter for `tensor`, but the task `things` is of kind `image-classification`",
    );
}

#[test]
fn a_tensor_adapter_has_to_cover_its_model_and_task() {
    let task = tensors(&[spec("x", Fp32, &[2]), spec("n", Int64, &[])], &[spec("y", Fp32, &[3])]);
    let bind = |json: &str, inputs: &[_], outputs: &[_]| {
        Adapter::new(&parse(json), &task, inputs, outputs).map(drop)
    };
    let (x, n, y) = (spec("x", Fp32, &[2]), spec("n", Int64, &[]), spec("y", Fp32, &[3]));
    let plain = r#"{"kind":"tensor"}"#;
    bind(plain, &[n.clone(), x.clone()], &[spec("extra", Fp32, &[1]), y.clone()]).unwrap();
    let renamed = r#"{"kind":"tensor","inputs":{"x":"input.1"},"outputs":{"y":"37"}}"#;
    bind(renamed, &[spec("input.1", Fp32, &[2]), n.clone()], &[spec("37", Fp32, &[3])]).unwrap();

    let says = |json: &str, inputs: &[_], outputs: &[_], expected: &str| {
        let error = bind(json, inputs, outputs).expect_err(expected).to_string();
        assert!(error.contains(expected), "says: {error}\n not: {expected}");
    };
    let (good_in, good_out) = ([x.clone(), n.clone()], [y.clone()]);
    says(plain, &[x.clone()], &good_out, "names the input `n`; the model has `x`");
    says(
        plain,
        &[x.clone(), n.clone(), spec("z", Fp32, &[1])],
        &good_out,
        "input `z` is no input of the task",
    );
    says(
        plain,
        &[spec("x", Fp32, &[3]), n.clone()],
        &good_out,
        "`x` is FP32 [3]; expected FP32 [2], as the task says",
    );
    says(plain, &[spec("x", Fp16, &[2]), n.clone()], &good_out, "`x` is FP16 [2]; expected FP32 [2]");
    says(plain, &good_in, &[spec("y", Fp32, &[4])], "output `y` is FP32 [4]; expected FP32 [3]");
    says(
        plain,
        &good_in,
        &[y.clone(), spec("s", Bytes, &[u32::MAX; 3])],
        "expected a type and shape with a fixed size",
    );
    says(
        r#"{"kind":"tensor","inputs":{"w":"x"}}"#,
        &good_in,
        &good_out,
        "a new name for `w`; expected only names that the task has: x, n",
    );
    says(r#"{"kind":"tensor","inputs":{"n":"x"}}"#, &good_in, &good_out, "`x` would stand for two tensors");
    for broken in [
        tensors(&[], &[y.clone()]),
        tensors(&[spec("s", Bytes, &[u32::MAX; 3])], &[y.clone()]),
        tensors(&[x], &[]),
    ] {
        let error = Adapter::new(&parse(plain), &broken, &good_in, &good_out).unwrap_err();
        assert!(matches!(error, SpecError::Task { .. }), "{error}");
    }
}
