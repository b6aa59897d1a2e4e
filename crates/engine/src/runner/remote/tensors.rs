//! Tensors in the Open Inference Protocol's two forms: numbers in JSON, and Triton's binary extension.

use modelless_types::tensor::strings;
use modelless_types::{DType, TensorSpec};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The tensors of one answer, in the order in which the model declares them.
pub(super) struct Answered {
    pub(super) dtype: DType,
    pub(super) axes: Vec<u32>,
    pub(super) bytes: Vec<u8>,
}

/// A request: its JSON, and what follows it in binary form.
pub(super) fn request(
    inputs: &[(&TensorSpec, Cow<'_, [u8]>)],
    rows: u32,
    binary: bool,
) -> Result<(Vec<u8>, Vec<u8>), String> {
    let mut tail = Vec::new();
    let mut tensors = Vec::new();
    for (spec, bytes) in inputs {
        let shape: Vec<u32> = std::iter::once(rows).chain(spec.shape.iter().copied()).collect();
        let mut tensor = json!({"name": spec.name, "datatype": spec.dtype.name(), "shape": shape});
        if binary {
            tensor["parameters"] = json!({"binary_data_size": bytes.len()});
            tail.extend_from_slice(bytes);
        } else {
            tensor["data"] = numbers(spec.dtype, bytes).map_err(|why| format!("`{}`: {why}", spec.name))?;
        }
        tensors.push(tensor);
    }
    let mut request = json!({"inputs": tensors});
    if binary {
        request["parameters"] = json!({"binary_data_output": true});
    }
    Ok((request.to_string().into_bytes(), tail))
}

/// The tensors of an answer, whose JSON ends after `head` bytes where binary ones follow.
pub(super) fn answer(body: &[u8], head: Option<usize>, names: &[String]) -> Result<Vec<Answered>, String> {
    let head = head.unwrap_or(body.len());
    let (json, mut tail) = body.split_at_checked(head).ok_or("its answer is shorter than it says")?;
    let parsed: Map<String, Value> =
        serde_json::from_slice(json).map_err(|error| format!("its answer is no JSON object: {error}"))?;
    let outputs = parsed.get("outputs").and_then(Value::as_array).ok_or("its answer has no `outputs`")?;
    let mut found = Vec::new();
    for output in outputs {
        let name = output["name"].as_str().unwrap_or_default();
        let wrong = |why: String| format!("output `{name}` of its answer: {why}");
        let datatype = output["datatype"].as_str().unwrap_or_default();
        let dtype = DType::parse(datatype)
            .ok_or_else(|| wrong(format!("elements of type {datatype} are not supported")))?;
        let axes = output["shape"].as_array().map(|axes| {
            axes.iter()
                .map(|axis| axis.as_u64().and_then(|axis| u32::try_from(axis).ok()))
                .collect::<Option<Vec<u32>>>()
        });
        let axes = axes.flatten().ok_or_else(|| wrong("it has no shape".to_owned()))?;
        let bytes = if let Some(size) = output["parameters"]["binary_data_size"].as_u64() {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let (bytes, rest) =
                tail.split_at_checked(size).ok_or_else(|| wrong("its bytes are missing".to_owned()))?;
            tail = rest;
            bytes.to_vec()
        } else {
            let mut bytes = Vec::new();
            from_numbers(dtype, &output["data"], &mut bytes).map_err(wrong)?;
            bytes
        };
        if !whole(dtype, &axes, &bytes) {
            return Err(wrong(format!("shape {axes:?} and {} bytes do not go together", bytes.len())));
        }
        found.push((name.to_owned(), Answered { dtype, axes, bytes }));
    }
    in_order(found, names)
}

/// Outputs in the order in which the model declares them.
pub(super) fn in_order(
    mut found: Vec<(String, Answered)>,
    names: &[String],
) -> Result<Vec<Answered>, String> {
    names
        .iter()
        .map(|name| {
            let at = found.iter().position(|(known, _)| known == name);
            let at = at.ok_or_else(|| format!("its answer lacks the output `{name}`"))?;
            Ok(found.swap_remove(at).1)
        })
        .collect()
}

/// Whether bytes are just what a tensor of this shape has.
pub(super) fn whole(dtype: DType, axes: &[u32], bytes: &[u8]) -> bool {
    let elements = axes.iter().try_fold(1_usize, |n, axis| n.checked_mul(usize::try_from(*axis).ok()?));
    match (elements, dtype.size()) {
        (None, _) => false,
        (Some(elements), Some(size)) => elements.checked_mul(size) == Some(bytes.len()),
        (Some(elements), None) => strings::take(bytes, elements).is_some_and(|(_, rest)| rest.is_empty()),
    }
}

/// Elements as JSON numbers or strings, flat.
fn numbers(dtype: DType, bytes: &[u8]) -> Result<Value, String> {
    fn all<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> Value) -> Value {
        bytes.as_chunks::<N>().0.iter().map(|element| read(*element)).collect()
    }
    let numbers = match dtype {
        DType::Bool => all::<1>(bytes, |[byte]| json!(byte != 0)),
        DType::Uint8 => all::<1>(bytes, |[byte]| json!(byte)),
        DType::Int8 => all(bytes, |four| json!(i8::from_le_bytes(four))),
        DType::Int32 => all(bytes, |four| json!(i32::from_le_bytes(four))),
        DType::Int64 => all(bytes, |eight| json!(i64::from_le_bytes(eight))),
        DType::Fp32 => all(bytes, |four| json!(f32::from_le_bytes(four))),
        DType::Fp64 => all(bytes, |eight| json!(f64::from_le_bytes(eight))),
        DType::Bytes => {
            let texts = strings::each(bytes).map(|string| std::str::from_utf8(string).map(Value::from));
            texts.collect::<Result<_, _>>().map_err(|_| {
                "a string is no UTF-8, which JSON cannot say, and the server offers no binary form".to_owned()
            })?
        }
        DType::Fp16 => {
            return Err(format!("{} has no form in JSON, and the server offers no binary one", dtype.name()));
        }
    };
    let not_finite = numbers.as_array().is_some_and(|all| all.iter().any(Value::is_null));
    if not_finite { Err("a number is not finite, which JSON cannot say".to_owned()) } else { Ok(numbers) }
}

/// The bytes of JSON numbers, nested or flat.
fn from_numbers(dtype: DType, value: &Value, into: &mut Vec<u8>) -> Result<(), String> {
    if let Value::Array(values) = value {
        return values.iter().try_for_each(|value| from_numbers(dtype, value, into));
    }
    let whole = || value.as_i64().or_else(|| value.as_f64().and_then(exact));
    let known = match dtype {
        DType::Bool => value
            .as_bool()
            .or_else(|| whole().map(|number| number != 0))
            .map(|truth| into.push(u8::from(truth))),
        DType::Uint8 => whole().and_then(|number| u8::try_from(number).ok()).map(|number| into.push(number)),
        DType::Int8 => {
            whole().and_then(|number| i8::try_from(number).ok()).map(|n| into.extend(n.to_le_bytes()))
        }
        DType::Int32 => {
            whole().and_then(|number| i32::try_from(number).ok()).map(|n| into.extend(n.to_le_bytes()))
        }
        DType::Int64 => whole().map(|number| into.extend(number.to_le_bytes())),
        #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is the point")]
        DType::Fp32 => value.as_f64().map(|number| into.extend((number as f32).to_le_bytes())),
        DType::Fp64 => value.as_f64().map(|number| into.extend(number.to_le_bytes())),
        DType::Fp16 => value.as_f64().map(|number| into.extend(half::f16::from_f64(number).to_le_bytes())),
        DType::Bytes => value.as_str().and_then(|text| strings::push(text.as_bytes(), into)),
    };
    known.ok_or_else(|| format!("{value} is no {}", dtype.name()))
}

/// Some servers write whole numbers as 1.0.
#[expect(clippy::cast_possible_truncation, reason = "checked: whole, and below 2^53")]
fn exact(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dtype: DType, shape: &[u32]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn both_forms_say_the_same() {
        let (floats, bools) = (spec("x", DType::Fp32, &[2]), spec("b", DType::Bool, &[]));
        let x: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let inputs = [(&floats, Cow::from(&x)), (&bools, Cow::from(&[7][..]))];
        let (json, tail) = request(&inputs, 1, false).unwrap();
        let parsed: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            parsed["inputs"][0],
            json!({"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]})
        );
        assert_eq!(parsed["inputs"][1]["data"], json!([true]));
        assert!(tail.is_empty());
        let (json, tail) = request(&inputs, 1, true).unwrap();
        let parsed: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(parsed["inputs"][0]["parameters"]["binary_data_size"], 8);
        assert_eq!(parsed["parameters"]["binary_data_output"], true);
        assert_eq!(tail, [&x[..], &[7]].concat());
    }

    #[test]
    fn answers_are_found_by_name_in_either_form() {
        let names = ["a".to_owned(), "b".to_owned()];
        let nested = br#"{"outputs":[{"name":"b","datatype":"INT64","shape":[1],"data":[3]},
            {"name":"a","datatype":"FP32","shape":[1,2],"data":[[1,2.5]]}]}"#;
        let found = answer(nested, None, &names).unwrap();
        assert_eq!((found[0].dtype, &found[0].axes[..]), (DType::Fp32, &[1, 2][..]));
        assert_eq!(found[1].bytes, 3_i64.to_le_bytes());
        let head =
            br#"{"outputs":[{"name":"a","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}},
            {"name":"b","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}}]}"#;
        let found = answer(&[&head[..], &[1, 255, 9]].concat(), Some(head.len()), &names).unwrap();
        assert_eq!((&found[0].bytes[..], &found[1].bytes[..]), (&[1, 255][..], &[9][..]));
    }

    #[test]
    fn answers_that_do_not_add_up_are_refused() {
        let names = ["a".to_owned()];
        for body in [
            "[]",
            r#"{"error": "no"}"#,
            r#"{"outputs": []}"#,
            r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1]}]}"#,
            r#"{"outputs":[{"name":"a","datatype":"UINT8","shape":[1],"data":[256]}]}"#,
            r#"{"outputs":[{"name":"a","datatype":"BYTES","shape":[1],"data":[7]}]}"#,
            r#"{"outputs":[{"name":"a","datatype":"BYTES","shape":[2],"data":["x"]}]}"#,
            r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[-1],"data":[]}]}"#,
            r#"{"outputs":[{"name":"a","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}"#,
        ] {
            assert!(answer(body.as_bytes(), None, &names).is_err(), "{body}");
        }
        assert!(answer(b"{}", Some(99), &names).is_err());
        let not_finite = f32::NAN.to_le_bytes();
        let x = spec("x", DType::Fp32, &[]);
        assert!(request(&[(&x, not_finite[..].into())], 1, false).unwrap_err().contains("not finite"));
        assert!(request(&[(&x, not_finite[..].into())], 1, true).is_ok());
    }

    #[test]
    fn strings_cross_in_either_form_and_only_text_as_json() {
        let texts = spec("t", DType::Bytes, &[]);
        let packed = b"\x02\0\0\0hi\0\0\0\0";
        let (json, _) = request(&[(&texts, packed[..].into())], 2, false).unwrap();
        let parsed: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(parsed["inputs"][0]["data"], json!(["hi", ""]));
        let (json, tail) = request(&[(&texts, packed[..].into())], 2, true).unwrap();
        let parsed: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            (&parsed["inputs"][0]["parameters"]["binary_data_size"], &tail[..]),
            (&json!(10), &packed[..])
        );
        let no_text = b"\x01\0\0\0\xff";
        assert!(request(&[(&texts, no_text[..].into())], 1, false).unwrap_err().contains("UTF-8"));
        let names = ["t".to_owned()];
        let body = br#"{"outputs":[{"name":"t","datatype":"BYTES","shape":[2,1],"data":[["hi"],[""]]}]}"#;
        assert_eq!(answer(body, None, &names).unwrap()[0].bytes, packed);
        let head = br#"{"outputs":[{"name":"t","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":10}}]}"#;
        assert_eq!(answer(&[&head[..], packed].concat(), Some(head.len()), &names).unwrap()[0].bytes, packed);
    }
}
