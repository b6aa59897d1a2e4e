//! Texts against what Python's `tokenizers`, ONNX Runtime and numpy made of them (`golden/text/make.py`).
#![allow(clippy::unwrap_used, reason = "a test that is wrong may stop; its numbers are small")]

mod common;

use common::{bytes_of, labelled, parse, spec};
use modelless_adapter::{
    Adapter, AdapterSpec, Body, Decoded, InputError, InputErrorKind, Limits, Output, OutputParams,
    Preparation, PrepareError, Scratch, SpecError, Tokenizer,
};
use modelless_types::{DType, Task, TaskKind, TensorSpec};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<i64>,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("golden/text/cases.json")).unwrap()
}

const FILE: &[u8] = include_bytes!("golden/text/tokenizer.json");

fn tokenizer() -> Arc<Tokenizer> {
    Tokenizer::read(FILE).unwrap()
}

fn task(kind: TaskKind, labels: usize) -> Task {
    Task { kind, ..labelled(labels) }
}

fn decode(text: &str) -> Result<Decoded, InputError> {
    let body = bytes::Bytes::copy_from_slice(text.as_bytes());
    Preparation::Text { tokenizer: tokenizer() }.decode(Body::Raw(&body), &Limits::default())
}

fn json(text: &str) -> Result<Decoded, InputError> {
    Preparation::Text { tokenizer: tokenizer() }.decode(Body::Json(text.as_bytes()), &Limits::default())
}

fn inputs(dtype: DType, max: u32) -> Vec<TensorSpec> {
    ["input_ids", "attention_mask"].map(|name| spec(name, dtype, &[max])).to_vec()
}

fn vectors(rest: &str, max: u32, output: &TensorSpec) -> Result<Adapter, SpecError> {
    let json = format!(
        r#"{{"kind":"feature-extraction","dimension":2{rest},"tokens":{{"tokenizer":"t","max":{max},"pad":9}}}}"#
    );
    let spec = parse(&json);
    let task = task(TaskKind::FeatureExtraction, 0);
    let preparation = spec.preparation(&task, Some(&tokenizer()))?;
    Adapter::prepared(&spec, &task, preparation, &inputs(DType::Int64, max), std::slice::from_ref(output))
}

fn tokens_of(max: u32) -> Adapter {
    vectors("", max, &spec("y", DType::Fp32, &[max, 2])).unwrap()
}

fn row(adapter: &Adapter, decoded: &Decoded, input: usize, length: usize) -> Result<Vec<i64>, PrepareError> {
    let mut row = vec![0xff; length * 8];
    adapter.prepare(decoded, input, &mut row, &mut Scratch::default())?;
    Ok(row.as_chunks::<8>().0.iter().map(|cell| i64::from_le_bytes(*cell)).collect())
}

#[test]
fn texts_become_the_tokens_that_python_makes_of_them() {
    let adapter = tokens_of(64);
    for case in cases() {
        let decoded = decode(&case.text).unwrap();
        let length = adapter.length(&decoded).unwrap() as usize;
        assert!(
            length >= case.ids.len() && length < case.ids.len() + 8 && length.is_multiple_of(8),
            "{length}"
        );
        let ids = row(&adapter, &decoded, 0, length).unwrap();
        assert_eq!(ids[..case.ids.len()], case.ids, "{:?}", case.text);
        assert!(ids[case.ids.len()..].iter().all(|id| *id == 9), "{ids:?}");
        let mask = row(&adapter, &decoded, 1, length).unwrap();
        let ones = mask.iter().take_while(|one| **one == 1).count();
        assert_eq!((ones, mask.iter().sum::<i64>()), (case.ids.len(), case.ids.len().try_into().unwrap()));
        let quoted = serde_json::to_string(&case.text).unwrap();
        assert_eq!(json(&quoted).unwrap(), decoded, "JSON says the same");
    }
}

#[test]
fn a_long_text_is_cut_before_its_last_special_token() {
    let case = cases().pop().unwrap();
    let decoded = decode(&case.text).unwrap();
    let adapter = tokens_of(12);
    assert_eq!(adapter.length(&decoded), Some(12));
    let ids = row(&adapter, &decoded, 0, 12).unwrap();
    assert_eq!(ids[..11], case.ids[..11]);
    assert_eq!(ids.last(), case.ids.last());
    assert!(row(&adapter, &decoded, 0, 8).is_err(), "a row that is too short is noticed");
    assert!(row(&adapter, &decoded, 0, 13).is_err());
    assert!(row(&adapter, &decoded, 2, 12).is_err());
}

#[test]
fn what_is_no_text_is_told_in_words() {
    for text in ["", " \n\t", "\u{a0}"] {
        assert_eq!(decode(text), Err(InputError::EmptyText), "{text:?}");
    }
    for (text, said) in
        [("5", "expected one text"), ("{}", "expected one text"), ("null", "string"), ("\"a", "EOF")]
    {
        let error = json(text).unwrap_err();
        assert_eq!(error.kind(), InputErrorKind::Malformed);
        assert!(error.to_string().contains(said), "{text}: {error}");
    }
    let preparation = Preparation::Text { tokenizer: tokenizer() };
    let odd = bytes::Bytes::from_static(b"ab\xff");
    let error = preparation.decode(Body::Raw(&odd), &Limits::default()).unwrap_err();
    assert_eq!(error, InputError::BadText { at: 2 });
    let long = Limits { max_text_bytes: 3, ..Limits::default() };
    let error = preparation.decode(Body::Json(b"\"abcd\""), &long).unwrap_err();
    assert_eq!(
        (error.clone(), error.kind()),
        (InputError::TooManyBytes { bytes: 4, limit: 3 }, InputErrorKind::TooLarge)
    );
}

#[test]
fn variants_that_share_a_tokenizer_share_the_tokens() {
    let task = task(TaskKind::FeatureExtraction, 0);
    let of = |json: &str| parse(json).preparation(&task, Some(&tokenizer())).unwrap().id();
    let short = of(r#"{"kind":"feature-extraction","dimension":2,"tokens":{"tokenizer":"t","max":16}}"#);
    let long = of(
        r#"{"kind":"text-classification","tokens":{"tokenizer":"t","max":512,"types":"token_type_ids","dtype":"int32"}}"#,
    );
    assert_eq!(short, long);
    let other =
        String::from_utf8(FILE.to_vec()).unwrap().replace("\"lowercase\": true", "\"lowercase\": false");
    let other = Tokenizer::read(other.as_bytes()).unwrap();
    assert_ne!(short, Preparation::Text { tokenizer: other }.id());
}

#[test]
fn a_tokenizer_that_is_none_is_refused() {
    for file in [&b""[..], b"{}", b"\x80\x04model", br#"{"version":"1.0","model":{"type":"WordPiece"}}"#] {
        let error = Tokenizer::read(file).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
    // Another type for the only text would be another input than models were trained with.
    let file = String::from_utf8(FILE.to_vec()).unwrap();
    let typed = file.replacen("\"type_id\": 0", "\"type_id\": 1", 1);
    assert_ne!(file, typed);
    assert!(Tokenizer::read(typed.as_bytes()).unwrap_err().to_string().contains("type"));
}

fn pooled(adapter: &Adapter, text: &str, rows: &[f32]) -> Vec<f32> {
    let decoded = decode(text).unwrap();
    match adapter.finish(Some(&decoded), &[&bytes_of(rows)], OutputParams::default()).unwrap() {
        Output::Vector(vector) => vector,
        other @ (Output::Labels(_) | Output::Tensors(_)) => panic!("{other:?}"),
    }
}

#[test]
fn a_vector_is_pooled_from_the_texts_own_tokens() {
    // `winter` is [CLS] winter [SEP]; the rest of the row is what padding became.
    let rows = [3.0, 0.0, 0.0, 4.0, 0.0, 2.0, 100.0, 100.0];
    let output = spec("y", DType::Fp32, &[16, 2]);
    for (settings, expected) in [
        ("", [1.0, 2.0]),
        (r#","pooling":"cls""#, [3.0, 0.0]),
        (r#","pooling":"max""#, [3.0, 4.0]),
        (r#","pooling":"max","normalise":true"#, [0.6, 0.8]),
    ] {
        let adapter = vectors(settings, 16, &output).unwrap();
        assert_eq!(pooled(&adapter, "winter", &rows), expected, "{settings}");
    }
    let own = vectors(r#","pooling":"none""#, 16, &spec("y", DType::Fp32, &[2])).unwrap();
    assert_eq!(pooled(&own, "winter", &[5.0, 6.0]), [5.0, 6.0]);
    let adapter = tokens_of(16);
    let decoded = decode("winter").unwrap();
    let finish = |rows: &[f32], params| adapter.finish(Some(&decoded), &[&bytes_of(rows)], params);
    let unit = OutputParams { normalize: Some(true), ..OutputParams::default() };
    let Output::Vector(vector) = finish(&[3.0, 4.0, 3.0, 4.0, 3.0, 4.0], unit).unwrap() else {
        panic!("no vector")
    };
    assert_eq!(vector, [0.6, 0.8]);
    let mut out = Vec::new();
    Output::Vector(vector).write_json(&[], &mut out).unwrap();
    assert_eq!(out, b"[0.6,0.8]");
    assert!(finish(&[1.0; 4], OutputParams::default()).is_err(), "fewer vectors than tokens");
    assert!(finish(&[1.0, 1.0, f32::NAN, 1.0, 1.0, 1.0], OutputParams::default()).is_err());
    assert!(adapter.finish(None, &[&bytes_of(&rows)], OutputParams::default()).is_err());
}

#[test]
fn labels_are_scored_as_those_of_pictures_are() {
    let spec_ = parse(
        r#"{"kind":"text-classification","activation":"sigmoid","tokens":{"tokenizer":"t","max":16,"dtype":"int32"}}"#,
    );
    let task = task(TaskKind::TextClassification, 2);
    let preparation = spec_.preparation(&task, Some(&tokenizer())).unwrap();
    let output = spec("logits", DType::Fp32, &[2]);
    let adapter = Adapter::prepared(
        &spec_,
        &task,
        preparation,
        &inputs(DType::Int32, 16),
        std::slice::from_ref(&output),
    )
    .unwrap();
    let decoded = decode("winter").unwrap();
    let Output::Labels(labels) =
        adapter.finish(Some(&decoded), &[&bytes_of(&[0.0, 1.0])], OutputParams::default()).unwrap()
    else {
        panic!("no labels")
    };
    assert_eq!((labels[0].label, labels[1].score), (1, 0.5));
    assert_eq!(adapter.class(&[&bytes_of(&[0.0, 1.0])]), Ok(1));
    let mut row = [0xff; 32];
    adapter.prepare(&decoded, 1, &mut row, &mut Scratch::default()).unwrap();
    assert_eq!(row[..16], [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn says_what_does_not_fit_between_model_and_adapter() {
    let hidden = |shape: &[u32]| spec("y", DType::Fp32, shape);
    for (settings, output, said) in [
        ("", hidden(&[16, 3]), "[16, 2]"),
        ("", hidden(&[2]), "pooling = \"none\""),
        (r#","pooling":"none""#, hidden(&[16, 2]), "one vector for each text"),
        ("", spec("y", DType::Int64, &[16, 2]), "floats"),
    ] {
        let error = vectors(settings, 16, &output).unwrap_err().to_string();
        assert!(error.contains(said), "{settings}: {error}");
    }
    let spec_ = parse(r#"{"kind":"feature-extraction","dimension":2,"tokens":{"tokenizer":"t","max":16}}"#);
    let task_ = task(TaskKind::FeatureExtraction, 0);
    let bind = |inputs: &[TensorSpec]| {
        let preparation = spec_.preparation(&task_, Some(&tokenizer())).unwrap();
        Adapter::prepared(&spec_, &task_, preparation, inputs, &[hidden(&[16, 2])]).unwrap_err().to_string()
    };
    let mut three = inputs(DType::Int64, 16);
    three.push(spec("token_type_ids", DType::Int64, &[16]));
    assert!(bind(&three).contains("`token_type_ids` is none of"));
    assert!(bind(&inputs(DType::Int64, 16)[..1]).contains("attention_mask"));
    assert!(bind(&inputs(DType::Int32, 16)).contains("INT64"));
    assert!(matches!(spec_.preparation(&task_, None), Err(SpecError::Tokenizer { .. })));
    for (json, said) in [
        (r#"{"kind":"feature-extraction","dimension":0,"tokens":{"tokenizer":"t","max":16}}"#, "dimension"),
        (r#"{"kind":"feature-extraction","dimension":2,"tokens":{"tokenizer":"t","max":2}}"#, "tokens.max"),
        (r#"{"kind":"feature-extraction","dimension":2,"tokens":{"tokenizer":"","max":16}}"#, "tokenizer"),
        (r#"{"kind":"text-classification","top_k":0,"tokens":{"tokenizer":"t","max":16}}"#, "top_k"),
        (
            r#"{"kind":"text-classification","tokens":{"tokenizer":"t","max":16,"types":"input_ids"}}"#,
            "twice",
        ),
        (r#"{"kind":"text-classification","tokens":{"tokenizer":"t","max":16,"length":3}}"#, "length"),
    ] {
        let error = AdapterSpec::parse(json).unwrap_err().to_string();
        assert!(error.contains(said), "{json}: {error}");
    }
}
