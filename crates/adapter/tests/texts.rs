//! Strings as task inputs and answers: any bytes raw, text as JSON, bounded, never cut.
#![allow(clippy::unwrap_used, reason = "a test that is wrong may stop; its numbers are small")]

mod common;

use bytes::Bytes;
use common::{parse, spec, tensors};
use modelless_adapter::{
    Adapter, Body, Decoded, InputError, InputErrorKind, Limits, OutputError, OutputParams, Preparation,
    PrepareError, Scratch, SpecError,
};
use modelless_types::tensor::strings;
use modelless_types::{DType, TensorSpec};
use proptest::prelude::*;

const PLAIN: &str = r#"{"kind":"tensor"}"#;

fn packed(texts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in texts {
        strings::push(text, &mut bytes).unwrap();
    }
    bytes
}

fn inputs() -> [TensorSpec; 2] {
    [spec("text", DType::Bytes, &[2]), spec("n", DType::Uint8, &[])]
}

fn decode_within(body: Body<'_>, max_bytes: usize) -> Result<Decoded, InputError> {
    let limits = Limits { max_bytes, ..Limits::default() };
    Preparation::Tensors { inputs: inputs().into() }.decode(body, &limits)
}

fn decode(body: Body<'_>) -> Result<Vec<Vec<u8>>, InputError> {
    match decode_within(body, 1 << 20)? {
        Decoded::Tensors(all) => Ok((0..all.count()).map(|i| all.get(i).unwrap().to_vec()).collect()),
        Decoded::Picture(_) | Decoded::Tokens(_) => panic!("tensors became something else"),
    }
}

#[test]
fn json_and_raw_mean_the_same() {
    let expected = vec![packed(&["Grüße".as_bytes(), b""]), vec![7]];
    for text in [
        r#"{"text":["Grüße",""],"n":7}"#,
        r#"{"n":7,"text":[["Gr\u00fc\u00dfe",""]]}"#,
        r#"{"n":7,"text":{"datatype":"BYTES","shape":[1,2],"data":["Grüße",""]}}"#,
    ] {
        assert_eq!(decode(Body::Json(text.as_bytes())).as_ref(), Ok(&expected), "{text}");
    }
    let raw = Bytes::from(expected.concat());
    assert_eq!(decode(Body::Raw(&raw)), Ok(expected));
    // Raw strings are any bytes.
    let odd = [packed(&[b"\xff\0", b"{"]), vec![7]];
    assert_eq!(decode(Body::Raw(&odd.concat().into())).unwrap(), odd);
}

#[test]
fn what_does_not_end_where_it_should_is_refused() {
    let good = [packed(&[b"ab", b"c"]), vec![7]].concat();
    for bytes in [&good[..good.len() - 1], &[&good[..], &[0]].concat(), &good[4..], b"", &[0xff; 40]] {
        let error = decode(Body::Raw(&bytes.to_vec().into())).unwrap_err();
        assert_eq!(error.kind(), InputErrorKind::Malformed);
        let said = error.to_string();
        assert!(said.contains("at least 9, a length of four bytes before each string"), "{said}");
        assert!(said.ends_with("`text` BYTES [2], then `n` UINT8 []"), "{said}");
    }
}

#[test]
fn strings_that_are_too_long_are_told_from_those_that_are_wrong() {
    let text = format!(r#"{{"text":["{}","b"],"n":7}}"#, "a".repeat(90));
    let error = decode_within(Body::Json(text.as_bytes()), 100).unwrap();
    assert_eq!(error.bytes(), 90 + 1 + 8 + 1);
    let error = decode_within(Body::Json(text.as_bytes()), 98).unwrap_err();
    assert_eq!(error.kind(), InputErrorKind::TooLarge);
    assert!(error.to_string().contains("larger than 98 bytes"), "{error}");
}

#[test]
fn strings_are_written_into_their_room_if_there_is_enough() {
    let io = [spec("text", DType::Bytes, &[2])];
    let adapter = Adapter::new(&parse(PLAIN), &tensors(&io, &io), &io, &io).unwrap();
    let input = packed(&[b"one", b"two"]);
    let decoded = Preparation::Tensors { inputs: io.into() }
        .decode(Body::Raw(&input.clone().into()), &Limits::default())
        .unwrap();
    let mut room = [0xee; 20];
    adapter.prepare(&decoded, 0, &mut room, &mut Scratch::default()).unwrap();
    assert_eq!((&room[..14], &room[14..]), (&input[..], &[0xee; 6][..]));
    let error = adapter.prepare(&decoded, 0, &mut room[..13], &mut Scratch::default()).unwrap_err();
    assert_eq!(error, PrepareError::TooLong { input: "text".to_owned(), got: 14, room: 13 });

    // And read out of it, whatever lies behind them.
    let mut json = Vec::new();
    let output = adapter.finish(None, &[&room], OutputParams::default()).unwrap();
    output.write_json(&[], &mut json).unwrap();
    let expected = r#"{"outputs":{"text":{"shape":[2],"datatype":"BYTES","data":["one","two"]}}}"#;
    assert_eq!(String::from_utf8(json).unwrap(), expected);

    let odd = packed(&[b"one", b"\xff"]);
    let output = adapter.finish(None, &[&odd], OutputParams::default()).unwrap();
    let error = output.write_json(&[], &mut Vec::new()).unwrap_err();
    assert_eq!(error, OutputError::NotText { output: "text".to_owned(), index: 1 });
    let cut_off = adapter.finish(None, &[&odd[..10]], OutputParams::default());
    assert!(matches!(cut_off, Err(OutputError::RowLength { .. })), "{cut_off:?}");
    assert!(adapter.class(&[&odd]).is_err());
}

#[test]
fn a_task_of_strings_needs_a_known_number_of_them() {
    let y = [spec("y", DType::Fp32, &[1])];
    let many = [spec("s", DType::Bytes, &[u32::MAX, u32::MAX, 2])];
    let error = Adapter::new(&parse(PLAIN), &tensors(&many, &y), &many, &y).unwrap_err();
    assert!(matches!(error, SpecError::Task { .. }), "{error}");
}

proptest! {
    /// Whatever the strings are, they are read back as exactly the same bytes.
    #[test]
    fn strings_survive_json(a in ".{0,40}", b in any::<String>()) {
        let text = serde_json::json!({"text": [a, b], "n": 7}).to_string();
        let expected = packed(&[a.as_bytes(), b.as_bytes()]);
        prop_assert_eq!(&decode(Body::Json(text.as_bytes())).unwrap()[0], &expected);
        let raw = [expected.clone(), vec![7]].concat();
        prop_assert_eq!(&decode(Body::Raw(&raw.into())).unwrap()[0], &expected);
    }

    #[test]
    fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), text in r#"[\[\]{}",:texn0-9\\ ]{0,60}"#) {
        let _ = decode(Body::Json(&bytes));
        let _ = decode(Body::Json(text.as_bytes()));
        let _ = decode(Body::Json(format!("{{\"n\":1,\"text\":{text}}}").as_bytes()));
        let _ = decode(Body::Raw(&bytes.into()));
    }
}
