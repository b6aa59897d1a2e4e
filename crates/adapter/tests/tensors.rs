//! Tensor inputs, and answers: strict in what is taken, exact in what is written.
#![allow(clippy::unwrap_used, reason = "a test that is wrong may stop; its numbers are small")]

mod common;

use bytes::Bytes;
use common::{bytes_of, parse, spec, tensors};
use half::f16;
use modelless_adapter::{
    Adapter, Body, Decoded, InputError, InputErrorKind, Limits, NamedTensor, Output, OutputError,
    OutputParams, Preparation, Scratch,
};
use modelless_types::{DType, TensorSpec};
use proptest::prelude::*;

fn decode(inputs: &[TensorSpec], body: Body<'_>) -> Result<Vec<Vec<u8>>, InputError> {
    let preparation = Preparation::Tensors { inputs: inputs.into() };
    match preparation.decode(body, &Limits::default())? {
        Decoded::Tensors(tensors) => {
            Ok((0..tensors.count()).map(|i| tensors.get(i).unwrap().to_vec()).collect())
        }
        Decoded::Picture(_) | Decoded::Tokens(_) => panic!("tensors became something else"),
    }
}

fn json(inputs: &[TensorSpec], text: &str) -> Result<Vec<Vec<u8>>, InputError> {
    decode(inputs, Body::Json(text.as_bytes()))
}

#[test]
fn every_form_means_the_same() {
    let x = [spec("x", DType::Fp32, &[2, 2])];
    let expected = vec![bytes_of(&[1.0, 2.5, -3.0, 4e-3])];
    for text in [
        "[[1,2.5],[-3,4e-3]]",
        "[1, 2.5, -3, 0.004]",
        "[[[1,2.5],[-3,4e-3]]]",
        r#"{"x":[[1,2.5],[-3,4e-3]]}"#,
        "{ \"x\" : [1, 2.5,\n -3.0,\t0.4e-2] }",
        r#"{"x":{"data":[1,2.5,-3,4e-3]}}"#,
        r#"{"x":{"shape":[2,2],"datatype":"FP32","data":[1,2.5,-3,4e-3]}}"#,
        r#"{"x":{"shape":[1,2,2],"data":[[[1,2.5],[-3,4e-3]]]}}"#,
        r#"{"\u0078":[1,2.5,-3,4e-3]}"#,
    ] {
        assert_eq!(json(&x, text).as_ref(), Ok(&expected), "{text}");
    }
    let raw = Bytes::from(expected.concat());
    assert_eq!(decode(&x, Body::Raw(&raw)), Ok(expected));
}

#[test]
fn inputs_come_by_name_in_any_order_and_raw_in_the_tasks_order() {
    let inputs = [spec("a", DType::Uint8, &[2]), spec("b", DType::Int64, &[]), spec("c", DType::Bool, &[1])];
    let expected = vec![vec![1, 255], (-5_i64).to_le_bytes().to_vec(), vec![1]];
    assert_eq!(json(&inputs, r#"{"c":[true],"b":-5,"a":[1,255]}"#).as_ref(), Ok(&expected));
    let raw = Bytes::from(expected.concat());
    assert_eq!(decode(&inputs, Body::Raw(&raw)), Ok(expected));

    let says = |text: &str, expected: &str| {
        let error = json(&inputs, text).expect_err(expected);
        assert_eq!(error.kind(), InputErrorKind::Malformed);
        assert!(error.to_string().contains(expected), "{text}\n says: {error}\n not: {expected}");
    };
    says("[1,2]", "an array without a name was sent; this task takes `a`, `b`, `c`");
    says(r#"{"a":[1,2],"b":1}"#, "the input `c` is missing; this task takes `a`, `b`, `c`");
    says(r#"{"a":[1,2],"b":1,"c":[0],"d":[]}"#, "there is no input `d`");
    says(r#"{"a":[1,2],"b":1,"c":[0],"b":2}"#, "the input `b` is given twice");

    let short = Bytes::from(vec![0; 10]);
    let error = decode(&inputs, Body::Raw(&short)).unwrap_err().to_string();
    assert_eq!(
        error,
        "the raw input has 10 bytes; this task takes 11: `a` UINT8 [2], then `b` INT64 [], then `c` BOOL [1]"
    );
    let no_bool = Bytes::from(vec![2; 11]);
    assert!(
        decode(&inputs, Body::Raw(&no_bool)).unwrap_err().to_string().contains("element 0 is the byte 2")
    );
}

#[test]
fn what_does_not_fit_its_type_is_refused() {
    for (dtype, good, bad) in [
        (DType::Bool, vec!["true", "false", "0", "1"], vec!["2", "-1", "1.0", "null", "\"true\""]),
        (DType::Uint8, vec!["0", "255"], vec!["256", "-1", "1.0", "1e2", "true", "99999999999999999999"]),
        (DType::Int8, vec!["-128", "127", "-0"], vec!["128", "-129", "0.5"]),
        (DType::Int32, vec!["-2147483648", "2147483647"], vec!["2147483648", "-2147483649", "1e3"]),
        (
            DType::Int64,
            vec!["-9223372036854775808", "9223372036854775807"],
            vec!["9223372036854775808", "-9223372036854775809"],
        ),
        (DType::Fp16, vec!["65504", "-65504", "1e-9"], vec!["65520", "1e5", "-1e300", "1e999"]),
        (DType::Fp32, vec!["3.4e38", "1e-60", "7"], vec!["3.5e38", "1e999", "\"1\"", "null", "true", "{}"]),
        (DType::Fp64, vec!["1.7e308", "1e-400"], vec!["1.8e308", "-1e999", "[]"]),
    ] {
        let x = [spec("x", dtype, &[1])];
        for text in good {
            assert!(json(&x, &format!("[{text}]")).is_ok(), "{dtype:?} {text}");
        }
        for text in bad {
            let error = json(&x, &format!("[{text}]")).expect_err(text);
            assert!(
                matches!(&error, InputError::Tensor { name, .. } if name == "x"),
                "{dtype:?} {text}: {error}"
            );
        }
    }
}

#[test]
fn what_is_no_json_is_refused() {
    let x = [spec("x", DType::Fp32, &[2])];
    for text in [
        "",
        " ",
        "[1,2",
        "[1,2]]",
        "[1,,2]",
        "[1 2]",
        "[1,2,]",
        "[01,2]",
        "[.5,1]",
        "[1.,2]",
        "[+1,2]",
        "[NaN,1]",
        "[Infinity,1]",
        "[-Infinity,1]",
        "[nan,1]",
        "[0x1,2]",
        "[1,2] 3",
        "{\"x\":[1,2]",
        "{\"x\" [1,2]}",
        "{x:[1,2]}",
        "\u{feff}[1,2]",
        "[1e,2]",
        "'[1,2]'",
        "[1,2]\0",
    ] {
        let error = json(&x, text).expect_err(text);
        assert!(matches!(error, InputError::BadJson { .. }), "{text}: {error}");
    }
    let not_utf8 = [b"{\"".as_slice(), &[0xff, 0xfe], b"\":[1,2]}"].concat();
    assert!(matches!(decode(&x, Body::Json(&not_utf8)), Err(InputError::BadJson { .. })));
}

#[test]
fn faults_say_what_was_found_and_what_was_expected() {
    let x = [spec("x", DType::Uint8, &[2, 2])];
    for (text, expected) in [
        ("[[1,2],[3]]", "input `x`: it is ragged at element 3"),
        ("[[1,2],[3,[4]]]", "it is ragged at element 3"),
        ("[1,2,3]", "it has 3 elements; expected 4, which is the shape [2, 2]"),
        ("[1,2,3,4,5]", "it has 5 elements; expected 4"),
        ("[[1],[2],[3],[4]]", "its shape is [4, 1]; expected [2, 2]"),
        ("[[[[1,2],[3,4]]]]", "nested more than 3 deep"),
        ("[1,2,3,300]", "element 3 is `300`; expected a whole number from 0 to 255 (UINT8)"),
        ("[1,2,3,\"4\"]", "element 3 is a string"),
        ("7", "it has 1 elements; expected 4"),
        ("\"AAAA\"", "element 0 is a string"),
        (r#"{"x":{"data":[1,2,3,4],"datatype":"FP32"}}"#, "its datatype is `FP32`; expected UINT8"),
        (r#"{"x":{"data":[1,2,3,4],"shape":[4]}}"#, "its shape is [4]; expected [2, 2]"),
        (r#"{"x":{"data":[1,2,3,4],"shape":[2,2,1]}}"#, "its shape is [2, 2, 1]"),
        (r#"{"x":{"shape":[2,2]}}"#, "missing field `data`"),
        (r#"{"x":{"data":[1,2,3,4],"dtype":"UINT8"}}"#, "unknown field `dtype`"),
    ] {
        let error = json(&x, text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}\n says: {error}\n not: {expected}");
    }
    let long = format!("[{}]", "9".repeat(10_000));
    assert!(json(&x, &long).unwrap_err().to_string().len() < 200);
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    assert!(json(&x, &deep).unwrap_err().to_string().contains("nested more than 3 deep"));
}

#[test]
fn tensors_reach_the_models_inputs_and_outputs_under_their_names() {
    let task = tensors(
        &[spec("a", DType::Uint8, &[2]), spec("b", DType::Uint8, &[1])],
        &[spec("y", DType::Fp32, &[2]), spec("z", DType::Int32, &[1])],
    );
    let model_in = [spec("B", DType::Uint8, &[1]), spec("a", DType::Uint8, &[2])];
    let model_out =
        [spec("z", DType::Int32, &[1]), spec("extra", DType::Fp32, &[1]), spec("Y", DType::Fp32, &[2])];
    let adapter = parse(r#"{"kind":"tensor","inputs":{"b":"B"},"outputs":{"y":"Y"}}"#);
    let adapter = Adapter::new(&adapter, &task, &model_in, &model_out).unwrap();
    let decoded =
        adapter.preparation().decode(Body::Json(b"{\"a\":[1,2],\"b\":[3]}"), &Limits::default()).unwrap();
    assert_eq!(decoded.bytes(), 3);
    let mut scratch = Scratch::default();
    let (mut b, mut a) = ([0], [0; 2]);
    adapter.prepare(&decoded, 0, &mut b, &mut scratch).unwrap();
    adapter.prepare(&decoded, 1, &mut a, &mut scratch).unwrap();
    assert_eq!((a, b), ([1, 2], [3]));
    assert!(adapter.prepare(&decoded, 2, &mut a, &mut scratch).is_err());
    assert!(adapter.prepare(&decoded, 0, &mut a, &mut scratch).is_err());

    let y = bytes_of(&[0.1, -2.0]);
    let rows: [&[u8]; 3] = [&7_i32.to_le_bytes(), &[0; 4], &y];
    let output = adapter.finish(None, &rows, OutputParams::default()).unwrap();
    let mut text = Vec::new();
    output.write_json(&[], &mut text).unwrap();
    assert_eq!(
        String::from_utf8(text).unwrap(),
        r#"{"outputs":{"y":{"shape":[2],"datatype":"FP32","data":[0.1,-2.0]},"z":{"shape":[1],"datatype":"INT32","data":[7]}}}"#
    );
    assert_eq!(adapter.class(&rows), Err(OutputError::NoClasses));
    assert_eq!(
        adapter.finish(None, &rows[..2], OutputParams::default()),
        Err(OutputError::Count { got: 2, expected: 3 })
    );
}

/// Any bytes of a type that JSON can say.
fn any_tensor() -> impl Strategy<Value = NamedTensor> {
    let dtypes = prop_oneof![
        Just(DType::Bool),
        Just(DType::Uint8),
        Just(DType::Int8),
        Just(DType::Int32),
        Just(DType::Int64),
        Just(DType::Fp16),
        Just(DType::Fp32),
        Just(DType::Fp64),
    ];
    (dtypes, prop::collection::vec(1_u32..4, 0..4), prop::collection::vec(any::<u8>(), 27 * 8)).prop_map(
        |(dtype, shape, mut data)| {
            let size = dtype.size().unwrap();
            data.truncate(shape.iter().product::<u32>() as usize * size);
            for cell in data.chunks_exact_mut(size) {
                let odd = match dtype {
                    DType::Fp16 => !f16::from_le_bytes(cell.try_into().unwrap()).is_finite(),
                    DType::Fp32 => !f32::from_le_bytes(cell.try_into().unwrap()).is_finite(),
                    DType::Fp64 => !f64::from_le_bytes(cell.try_into().unwrap()).is_finite(),
                    DType::Bool => cell[0] > 1,
                    DType::Uint8 | DType::Int8 | DType::Int32 | DType::Int64 | DType::Bytes => false,
                };
                if odd {
                    cell.fill(0);
                }
            }
            NamedTensor { name: "t".to_owned(), dtype, shape, data }
        },
    )
}

proptest! {
    /// What is answered as JSON is read back as exactly the same bytes, negative zero and subnormals included.
    #[test]
    fn tensors_survive_json(tensor in any_tensor()) {
        let mut text = Vec::new();
        Output::Tensors(vec![tensor.clone()]).write_json(&[], &mut text).unwrap();
        let answer: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text).unwrap();
        prop_assert!(answer["outputs"].is_object());
        let text = String::from_utf8(text).unwrap();
        let inner = text.strip_prefix(r#"{"outputs":"#).and_then(|t| t.strip_suffix('}')).unwrap();
        let input = TensorSpec { name: tensor.name, dtype: tensor.dtype, shape: tensor.shape };
        prop_assert_eq!(json(&[input], inner), Ok(vec![tensor.data]));
    }

    /// Nested lists of any depth and length: accepted exactly when `serde_json`'s tree has the declared shape.
    #[test]
    fn shapes_are_judged_as_by_a_tree(text in "[\\[\\],12 ]{0,14}") {
        let x = [spec("x", DType::Uint8, &[2, 1])];
        let tree = serde_json::from_str::<serde_json::Value>(&text).ok();
        let fits = tree.is_some_and(|tree| {
            ["[[A],[B]]", "[A,B]", "[[[A],[B]]]", "[[A,B]]"].iter().any(|form| {
                let values: Vec<String> = text
                    .split(['[', ']', ',', ' '])
                    .filter(|t| !t.is_empty())
                    .map(str::to_owned)
                    .collect();
                values.len() == 2
                    && values.iter().all(|v| v.parse::<u8>().is_ok())
                    && serde_json::from_str::<serde_json::Value>(
                        &form.replace('A', &values[0]).replace('B', &values[1]),
                    )
                    .is_ok_and(|expected| expected == tree)
            })
        });
        prop_assert_eq!(json(&x, &text).is_ok(), fits, "{}", text);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let inputs = [spec("x", DType::Fp32, &[2]), spec("y", DType::Bool, &[1])];
        let _ = decode(&inputs, Body::Json(&bytes));
        let _ = decode(&inputs, Body::Raw(&bytes.into()));
    }

    #[test]
    fn no_near_json_makes_it_panic(text in r#"[\[\]{}",:xy0-9.eE+\- ntrufalsd\\]{0,60}"#) {
        let inputs = [spec("x", DType::Fp16, &[2, 2]), spec("y", DType::Bool, &[])];
        let _ = json(&inputs, &text);
        let _ = json(&inputs[..1], &text);
    }
}
