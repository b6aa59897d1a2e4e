//! Labels and scores.
#![allow(clippy::unwrap_used, reason = "a test that is wrong may stop; its numbers are small")]

mod common;

use common::{bytes_of, labelled, parse, spec};
use half::f16;
use modelless_adapter::{
    Activation, Adapter, NamedTensor, Output, OutputError, OutputParams, Scored, argmax,
};
use modelless_types::DType;
use proptest::prelude::*;

fn adapter(classes: u32, rest: &str) -> Adapter {
    let json = format!(r#"{{"kind":"image-classification","width":1,"height":1,"channels":"grey"{rest}}}"#);
    let output = spec("logits", DType::Fp32, &[classes]);
    Adapter::new(&parse(&json), &labelled(classes as usize), &[spec("x", DType::Fp32, &[1])], &[output])
        .unwrap()
}

fn labels(adapter: &Adapter, row: &[f32], params: OutputParams) -> Vec<Scored> {
    match adapter.finish(None, &[&bytes_of(row)], params).unwrap() {
        Output::Labels(labels) => labels,
        Output::Tensors(_) | Output::Vector(_) => panic!("something else instead of labels"),
    }
}

#[test]
fn the_best_come_first_and_equals_by_their_position() {
    let row = [1.0, 3.0, 3.0, -2.0];
    let got = labels(&adapter(4, r#","top_k":3"#), &row, OutputParams::default());
    assert_eq!(got.iter().map(|s| s.label).collect::<Vec<_>>(), [1, 2, 0]);
    let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
    assert!((f64::from(got[0].score) - 3_f64.exp() / sum).abs() < 1e-7);
    assert_eq!(got[0].score.to_bits(), got[1].score.to_bits());

    // Scores that are equal only by rounding stay in the order of the outputs behind them.
    let sigmoid =
        OutputParams { top_k: Some(2), function_to_apply: Some(Activation::Sigmoid), normalize: None };
    let got = labels(&adapter(3, ""), &[50.0, 80.0, 0.0], sigmoid);
    assert_eq!(got, [Scored { label: 1, score: 1.0 }, Scored { label: 0, score: 1.0 }]);
}

#[test]
fn a_query_may_ask_for_more_fewer_or_other_scores() {
    let adapter = adapter(3, r#","top_k":2"#);
    let row = [0.5, -1.0, 0.0];
    let ask = |json: &str| labels(&adapter, &row, serde_json::from_str(json).unwrap());
    assert_eq!(ask("{}").len(), 2);
    assert_eq!(ask(r#"{"top_k":null}"#).len(), 2);
    assert_eq!(ask(r#"{"top_k":1}"#).len(), 1);
    assert_eq!(ask(r#"{"top_k":4000000000}"#).len(), 3);
    assert_eq!(ask(r#"{"function_to_apply":"none"}"#)[0], Scored { label: 0, score: 0.5 });
    assert!((ask(r#"{"function_to_apply":"sigmoid"}"#)[0].score - 0.622_459_35).abs() < 1e-7);
    let none = OutputParams { top_k: Some(0), ..OutputParams::default() };
    let error = adapter.finish(None, &[&bytes_of(&row)], none).unwrap_err();
    assert_eq!(error.to_string(), "parameter `top_k` is 0; expected at least 1");
}

#[test]
fn what_is_no_number_is_named() {
    let adapter = adapter(3, "");
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let row = bytes_of(&[1.0, odd, 0.0]);
        let expected = OutputError::NotFinite { output: "logits".to_owned(), index: 1 };
        assert_eq!(adapter.finish(None, &[&row], OutputParams::default()), Err(expected.clone()));
        assert_eq!(adapter.class(&[&row]), Err(expected));
    }
    assert!(matches!(
        adapter.finish(None, &[&[0; 8]], OutputParams::default()),
        Err(OutputError::RowLength { got: 8, expected: 12, .. })
    ));
    let tensor = |data| NamedTensor { name: "y".to_owned(), dtype: DType::Fp32, shape: vec![2], data };
    let mut out = b"before".to_vec();
    let error =
        Output::Tensors(vec![tensor(bytes_of(&[1.0, f32::NAN]))]).write_json(&[], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "the model's output `y` is not a finite number at element 1");
    assert_eq!(out, b"before");
}

#[test]
fn labels_are_written_as_hugging_face_does() {
    let names = ["T-shirt/top".to_owned(), "a \"quoted\" caf\u{e9}".to_owned()];
    let scored = vec![
        Scored { label: 1, score: 0.75 },
        Scored { label: 0, score: 1e-7 },
        Scored { label: 2, score: 0.0 },
    ];
    let mut out = Vec::new();
    Output::Labels(scored).write_json(&names, &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "[{\"label\":\"a \\\"quoted\\\" caf\u{e9}\",\"score\":0.75},{\"label\":\"T-shirt/top\",\"score\":1e-7},{\"label\":\"LABEL_2\",\"score\":0.0}]"
    );
}

#[test]
fn argmax_is_the_first_of_the_largest_in_every_type() {
    let check = |dtype, row: Vec<u8>, n, expected| {
        assert_eq!(argmax(&spec("y", dtype, &[n]), &row), Ok(expected), "{dtype:?}");
    };
    check(DType::Fp32, bytes_of(&[-1.0, -0.5, -0.5]), 3, 1);
    check(DType::Fp16, [-1.0, 2.0].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(), 2, 1);
    check(DType::Fp64, [3.0_f64, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect(), 2, 0);
    check(DType::Int8, vec![0xff, 0x00], 2, 1);
    check(DType::Uint8, vec![0xff, 0x00], 2, 0);
    check(DType::Int32, [-7_i32, -9].iter().flat_map(|v| v.to_le_bytes()).collect(), 2, 0);
    check(DType::Int64, [1_i64 << 40, 1 << 41].iter().flat_map(|v| v.to_le_bytes()).collect(), 2, 1);
    for (n, row) in [(0, vec![]), (2, vec![0; 4]), (1, vec![0; 5])] {
        assert!(argmax(&spec("y", DType::Fp32, &[n]), &row).is_err(), "{n}");
    }
}

proptest! {
    /// Against sorting everything: same labels, falling scores, softmax sums to one, the class comes first.
    #[test]
    fn choosing_the_best_equals_sorting_all(row in prop::collection::vec(-30.0_f32..30.0, 1..60), top_k in 1_u32..70) {
        let adapter = adapter(u32::try_from(row.len()).unwrap(), "");
        let params = OutputParams { top_k: Some(top_k), ..OutputParams::default() };
        let got = labels(&adapter, &row, params);
        let mut all: Vec<usize> = (0..row.len()).collect();
        all.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        all.truncate(top_k as usize);
        prop_assert_eq!(got.iter().map(|s| s.label as usize).collect::<Vec<_>>(), all);
        prop_assert!(got.windows(2).all(|pair| pair[0].score >= pair[1].score));
        if top_k as usize >= row.len() {
            let sum: f32 = got.iter().map(|s| s.score).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5);
        }
        prop_assert_eq!(adapter.class(&[&bytes_of(&row)]), Ok(got[0].label as usize));
    }
}
