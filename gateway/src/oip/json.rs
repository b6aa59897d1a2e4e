//! The protocol's JSON, with tensors in it or behind it (Triton's binary extension).

use super::infer::Response;
use super::request::{Request, Tensor, Value, Wanted};
use super::{Signature, TENSORS_MAX};
use crate::errors::ApiError;
use crate::goals::Entries;
use crate::http::body::media_type;
use crate::regions::Area;
use crate::suggest::excerpt;
use crate::told;
use bytes::Bytes as Buffer;
use http::HeaderMap;
use modelless_oip::elements;
use modelless_types::DType;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// What says in a head how long the JSON is.
pub(crate) const HEAD_LENGTH: &str = "inference-header-content-length";

/// Else a structure would be read from a list, its fields in order.
pub(crate) fn check_object(json: &[u8]) -> Result<(), ApiError> {
    if json.trim_ascii_start().starts_with(b"{") {
        return Ok(());
    }
    Err(ApiError::malformed("the JSON body must be an object"))
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    parameters: Option<&'a RawValue>,
    #[serde(borrow)]
    inputs: Vec<In<'a>>,
    #[serde(default, borrow)]
    outputs: Option<Vec<Out<'a>>>,
}

#[derive(Deserialize)]
struct In<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Option<InParameters>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct InParameters {
    #[serde(default)]
    binary_data_size: Option<u64>,
    #[serde(default)]
    shared_memory_region: Option<String>,
    #[serde(default)]
    shared_memory_offset: Option<u64>,
    #[serde(default)]
    shared_memory_byte_size: Option<u64>,
}

#[derive(Deserialize)]
struct Out<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    parameters: Option<OutParameters>,
}

#[derive(Deserialize, Default)]
struct OutParameters {
    #[serde(default)]
    binary_data: Option<bool>,
    #[serde(default)]
    classification: Option<u32>,
    #[serde(default)]
    shared_memory_region: Option<String>,
    #[serde(default)]
    shared_memory_offset: Option<u64>,
    #[serde(default)]
    shared_memory_byte_size: Option<u64>,
}

/// A request out of a body, whose JSON has `head` bytes, or is all of it.
pub(crate) fn parse(body: &Buffer, head: Option<usize>, signature: &Signature) -> Result<Request, ApiError> {
    if head == Some(0) {
        return raw(body, signature);
    }
    let head = head.unwrap_or(body.len());
    let Some((json, _)) = body.split_at_checked(head) else {
        let message = format!(
            "{HEAD_LENGTH} is {head}, and the body has {} bytes: it must be at most that",
            body.len()
        );
        return Err(ApiError::malformed(message));
    };
    check_object(json)?;
    let Head { id, parameters, inputs, outputs } = serde_json::from_slice(json)
        .map_err(|error| ApiError::malformed(format!("the request does not follow the protocol: {error}")))?;
    let outputs = outputs.unwrap_or_default();
    if inputs.len().max(outputs.len()) > TENSORS_MAX {
        return Err(ApiError::malformed(format!(
            "a request has at most {TENSORS_MAX} inputs and as many outputs"
        )));
    }
    let mut tail = body.slice(head..);
    let inputs = inputs.into_iter().map(|input| tensor(input, &mut tail)).collect::<Result<Vec<_>, _>>()?;
    if !tail.is_empty() {
        let message = format!("{} bytes follow the last tensor; none may", tail.len());
        return Err(ApiError::malformed(message));
    }
    let wanted = |Out { name, parameters }: Out<'_>| {
        let parameters = parameters.unwrap_or_default();
        let OutParameters { binary_data, classification, .. } = parameters;
        let (offset, bytes) = (parameters.shared_memory_offset, parameters.shared_memory_byte_size);
        Ok::<_, ApiError>(Wanted {
            area: Area::of(&name, parameters.shared_memory_region, (offset, bytes))?,
            name: name.into_owned(),
            classes: classification,
            binary: binary_data,
            room: None,
        })
    };
    Ok(Request {
        id: id.map(Cow::into_owned).unwrap_or_default(),
        parameters: parameters.map(values).transpose()?.unwrap_or_default(),
        inputs,
        outputs: outputs.into_iter().map(wanted).collect::<Result<_, _>>()?,
    })
}

/// The body is one tensor and nothing else, of a task that takes one.
fn raw(body: &Buffer, signature: &Signature) -> Result<Request, ApiError> {
    let [port] = signature.inputs.as_slice() else {
        let message = "a body without JSON is for tasks of one input; this one has several";
        return Err(ApiError::malformed(message));
    };
    let shape = std::iter::once(1).chain(port.dims.iter().copied()).collect();
    let bare = port.dtype == DType::Bytes;
    if bare && port.dims != [1] {
        return Err(ApiError::malformed(
            "a body without JSON can be one string, and this task takes several",
        ));
    }
    let tensor = Tensor {
        name: port.name.clone(),
        dtype: port.dtype,
        shape,
        data: body.clone(),
        from_json: false,
        bare,
        area: None,
    };
    let parameters = vec![("binary_data_output".to_owned(), Value::Bool(true))];
    Ok(Request { id: String::new(), parameters, inputs: vec![tensor], outputs: Vec::new() })
}

fn tensor(input: In<'_>, tail: &mut Buffer) -> Result<Tensor, ApiError> {
    let In { name, datatype, shape, parameters, data } = input;
    let parameters = parameters.unwrap_or_default(); // also where it says `null`
    let wrong = |why: &str| ApiError::malformed(format!("the input {}: {why}", excerpt(&name)));
    let dtype = DType::parse(&datatype)
        .ok_or_else(|| wrong(&format!("elements of type {} are not taken", excerpt(&datatype))))?;
    let place = (parameters.shared_memory_offset, parameters.shared_memory_byte_size);
    let area = Area::of(&name, parameters.shared_memory_region, place)?;
    let (bytes, from_json) = match (parameters.binary_data_size, data) {
        (None, None) if area.is_some() => (Buffer::new(), false),
        (_, _) if area.is_some() => {
            return Err(wrong("it is in shared memory and in the body; it must be in one of them"));
        }
        (Some(_), Some(_)) => return Err(wrong("it has both `data` and `binary_data_size`")),
        (None, None) => return Err(wrong("it has no `data`")),
        (Some(size), None) => {
            let size = usize::try_from(size).ok().filter(|size| *size <= tail.len());
            let size = size.ok_or_else(|| wrong("its bytes are missing: the body ends before them"))?;
            (tail.split_to(size), false)
        }
        (None, Some(data)) => {
            let mut bytes = Vec::new();
            // Each element has two characters at least, a string's length four bytes.
            let limit = data.get().len().saturating_mul(4);
            elements::read(dtype, data.get(), &mut bytes, limit).map_err(|why| wrong(&why))?;
            (bytes.into(), true)
        }
    };
    Ok(Tensor { name: name.into_owned(), dtype, shape, data: bytes, from_json, bare: false, area })
}

/// The entries of `parameters`, in their order.
pub(crate) fn values(parameters: &RawValue) -> Result<Vec<(String, Value)>, ApiError> {
    if parameters.get() == "null" {
        return Ok(Vec::new());
    }
    let entries: Entries<'_> = serde_json::from_str(parameters.get())
        .map_err(|error| ApiError::malformed(format!("`parameters` must be an object: {error}")))?;
    let value = |(name, value): (Cow<'_, str>, &RawValue)| {
        let text = value.get();
        let value = match text.as_bytes().first() {
            Some(b'n') => return None, // as if it were not there
            Some(b't' | b'f') => Value::Bool(text == "true"),
            Some(b'"') => match serde_json::from_str(text) {
                Ok(text) => Value::Text(text),
                Err(error) => return Some(Err(ApiError::malformed(format!("parameter {name}: {error}")))),
            },
            Some(b'[' | b'{') => {
                let message = format!("parameter {} must be a string, a number or a boolean", excerpt(&name));
                return Some(Err(ApiError::malformed(message)));
            }
            _ => Value::Number(text.to_owned()),
        };
        Some(Ok((name.into_owned(), value)))
    };
    entries.0.into_iter().filter_map(value).collect()
}

/// The decision as parameters of an answer: what the headers say, by name.
pub(crate) fn decision(told: &HeaderMap) -> impl Iterator<Item = (String, Value)> {
    // Everything else is a text, also where it looks like a number: names may, and a query's digits now and then do.
    const NUMBERS: [&str; 10] = [
        "accuracy",
        "batch",
        "cost",
        "predicted_ms",
        "predicted_run_ms",
        "queue_ms",
        "decode_ms",
        "prepare_ms",
        "run_ms",
        "total_ms",
    ];
    told.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(told::PREFIX)?.replace('-', "_");
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let number = NUMBERS.contains(&name.as_str()) && text.parse().is_ok_and(f64::is_finite);
        let value = if number { Value::Number(text) } else { Value::Text(text) };
        Some((name, value))
    })
}

/// Most clients say nothing of the body; what says that it is something else is refused.
pub(crate) fn check_media(headers: &HeaderMap) -> Result<(), ApiError> {
    match media_type(headers)?.as_deref() {
        // The last is what libcurl says of anything.
        None
        | Some("application/json" | "application/octet-stream" | "application/x-www-form-urlencoded") => {
            Ok(())
        }
        Some(other) => {
            let other = excerpt(other);
            let message = format!(
                "this takes application/json, with tensors behind it or not; the content type is {other}"
            );
            Err(ApiError::unsupported_media(message))
        }
    }
}

/// An answer's body, and how many bytes of it are JSON where not all are.
pub(crate) fn write(task: &str, response: &Response) -> Result<(Vec<u8>, Option<usize>), ApiError> {
    let mut out = Vec::with_capacity(1_024);
    out.extend_from_slice(b"{\"model_name\":");
    text(task, &mut out);
    out.extend_from_slice(b",\"model_version\":");
    text(&response.version.0.to_string(), &mut out);
    if !response.id.is_empty() {
        out.extend_from_slice(b",\"id\":");
        text(&response.id, &mut out);
    }
    out.extend_from_slice(b",\"parameters\":{");
    for (at, (name, value)) in decision(&response.told).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        text(&name, &mut out);
        out.push(b':');
        match value {
            Value::Text(value) => text(&value, &mut out),
            Value::Number(number) => out.extend_from_slice(number.as_bytes()),
            Value::Bool(truth) => out.extend_from_slice(if truth { b"true" } else { b"false" }),
        }
    }
    out.extend_from_slice(b"},\"outputs\":[");
    let mut tail = Vec::new();
    for (at, output) in response.outputs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"name\":");
        text(&output.name, &mut out);
        out.extend_from_slice(b",\"datatype\":");
        text(output.dtype.name(), &mut out);
        out.extend_from_slice(b",\"shape\":");
        json(&output.shape, &mut out);
        if output.room.is_some() {
            // It is there by now. Triton says no more either, and its C++ client takes parameters for those of bytes that follow.
        } else if output.binary.unwrap_or(response.binary) {
            out.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            json(&output.data.len(), &mut out);
            out.push(b'}');
            tail.push(&output.data);
        } else {
            out.extend_from_slice(b",\"data\":");
            elements::write(output.dtype, &output.data, &mut out).map_err(|why| {
                let message = format!(
                    "output {:?}: {why}, which JSON cannot say; ask for it with `binary_data`",
                    output.name
                );
                ApiError::malformed(message)
            })?;
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    if tail.is_empty() {
        return Ok((out, None));
    }
    let head = out.len();
    out.reserve(tail.iter().map(|data| data.len()).sum());
    for data in tail {
        out.extend_from_slice(data);
    }
    Ok((out, Some(head)))
}

fn text(text: &str, out: &mut Vec<u8>) {
    json(text, out);
}

fn json<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value)
        .expect("strings and numbers always become JSON in memory; this is a bug");
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn what_names_something_stays_a_text_also_where_it_looks_like_a_number() {
        for looks in ["00000000000001e5", "1234567890123456", "1e5", "-1"] {
            let mut told = HeaderMap::new();
            for name in ["modelless-query", "modelless-model", "modelless-node", "modelless-cache"] {
                told.insert(name, HeaderValue::from_static(looks));
            }
            told.insert("modelless-run-ms", HeaderValue::from_static("1.500"));
            for (name, value) in decision(&told) {
                let right = match value {
                    Value::Text(text) => text == looks && name != "run_ms",
                    Value::Number(number) => number == "1.500" && name == "run_ms",
                    Value::Bool(_) => false,
                };
                assert!(right, "{name} of {looks}");
            }
        }
    }

    #[test]
    fn parameters_that_are_null_are_none() {
        let plain = br#"{"parameters":null,"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":null,"data":[1]}],
            "outputs":[{"name":"y","parameters":null}]}"#;
        let head = Some(plain.len());
        let signature = Signature { inputs: Vec::new(), outputs: Vec::new() };
        let request = parse(&Buffer::from_static(plain), head, &signature).unwrap();
        assert_eq!((request.inputs.len(), request.outputs.len()), (1, 1));
    }
}
