//! Well-formed HTTP around a body that is none.

use serde_json::Value;

use super::{Base, Case, Kind};
use crate::Rng;

pub(super) fn case(bases: &[Base], rng: &mut Rng) -> Option<Case> {
    let base = rng.pick(bases).clone();
    base.media.as_ref()?;
    let (class, (what, body)) = match &base.json {
        Some(value) => ("body: no JSON of this shape", json(&base, value, rng)?),
        None => ("body: raw bytes", raw(&base.body, rng)),
    };
    let bytes = base.to_request("").body(body).to_bytes();
    Some(Case { kind: Kind::Body, class, what: format!("{}: {what}", base.name()), bytes, finish: false })
}

/// Whether it takes any object: none of its fields must be there, and others are of no account.
fn takes_any(base: &Base) -> bool {
    let schema = base.operation.body("application/json").map(|body| &body.schema);
    schema.is_some_and(|schema| schema["required"].is_null() && schema["additionalProperties"] != false)
}

fn json(base: &Base, value: &Value, rng: &mut Rng) -> Option<(String, Vec<u8>)> {
    let text = &base.body;
    // A cut of an object is never JSON; other values may have valid beginnings.
    value.as_object()?;
    Some(match rng.below(8) {
        0 | 1 => {
            let at = rng.below(text.len());
            (format!("JSON cut after {at} bytes"), text[..at].to_vec())
        }
        2 => {
            let mut broken = text.clone();
            broken.splice(1..1, b"\"\xff\xfe\":1,".iter().copied());
            ("JSON with bytes that are no UTF-8".to_owned(), broken)
        }
        3 => {
            let depth = 1_000 + rng.below(100_000);
            (format!("JSON nested {depth} deep"), b"[".repeat(depth))
        }
        4 => {
            let literal =
                *rng.pick(&["NaN", "Infinity", "-Infinity", "nan", "1e", "0x10", "undefined", "'x'"]);
            let mut broken = format!("{{\"goals\":{{\"accuracy\":{literal}}},").into_bytes();
            broken.extend_from_slice(&text[1..]);
            (format!("JSON with the literal {literal}"), broken)
        }
        5 => {
            let other = *rng.pick(&["[]", "\"text\"", "7", "null", "true", "[[[[]]]]"]);
            (format!("JSON {other} for an object"), other.as_bytes().to_vec())
        }
        6 if takes_any(base) => return None,
        6 => {
            let shape = *rng.pick(&[
                "[9223372036854775807,9223372036854775807]",
                "[-1]",
                "[-9223372036854775808]",
                "[1e308]",
                "[4294967296,4294967296,16]",
                "\"all\"",
            ]);
            let body = format!(
                r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{shape},"data":[1.0]}}],"shape":{shape}}}"#
            );
            (format!("the shape {shape}"), body.into_bytes())
        }
        _ => {
            let len = 1 + rng.below(300);
            // A closing bracket too many, so that no chance makes it JSON.
            ("random bytes as JSON".to_owned(), [rng.bytes(len), b"]".to_vec()].concat())
        }
    })
}

/// A raw body of a size that its task cannot have, or of bytes that are no picture.
fn raw(valid: &[u8], rng: &mut Rng) -> (String, Vec<u8>) {
    let size = match rng.below(6) {
        0 => 0,
        1 => 1 + rng.below(3),
        2 => valid.len() + 1,
        3 => valid.len().saturating_sub(1),
        4 => valid.len() * 2 + 4,
        _ => valid.len() + 4 * (1 + rng.below(5_000)),
    };
    // A whole multiple might be taken as several items.
    let size = if size > 0 && size % valid.len().max(1) == 0 { size + 4 } else { size };
    (format!("a raw body of {size} random bytes"), rng.bytes(size))
}
