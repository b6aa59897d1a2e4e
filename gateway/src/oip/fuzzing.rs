//! What a fuzzer feeds this crate with, and what must hold whatever it feeds. Compiled by `cargo fuzz` and for this crate's own
//! tests, which feed it what the fuzzer has kept (`fuzz/corpus`); never into what runs.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a property that does not hold is to stop the fuzzer"
)]

use super::answers::{Collected, Output, scored};
use super::infer::Response;
use super::json;
use super::request::{Request, Tensor, Value, Wanted};
use super::rows::Rows;
use super::{ROWS_MAX, Signature, TENSORS_MAX};
use crate::goals::{Entries, Given, Goal};
use crate::native;
use crate::regions::Area;
use bytes::Bytes as Buffer;
use http::{HeaderMap, HeaderValue};
use modelless_oip::elements;
use modelless_oip::messages::InferRequest;
use modelless_types::tensor::{packed, strings};
use modelless_types::{
    AccuracyRule, DType, DeclaredRule, Goals, LiveRule, SpaceId, Task, TaskId, TaskKind, TenantId,
    TensorSpec, VariantId,
};
use modelless_wire::Input;
use prost::Message as _;
use serde_json::value::RawValue;
use std::fmt::Write as _;

/// Rows that are looked at of one request: each is cut out the same way.
const ROWS: usize = 32;

/// A request all of whose body is JSON, behind one byte that says which task it is for.
pub fn oip_json(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    over_http(*choice, body, None);
}

/// A request with tensors behind its JSON: one byte says which task, two how long the JSON is.
pub fn oip_binary(data: &[u8]) {
    let Some(([choice, length @ ..], body)) = data.split_first_chunk::<3>() else { return };
    over_http(*choice, body, Some(usize::from(u16::from_le_bytes(*length))));
}

/// A message over gRPC, behind one byte that says which task it is for.
///
/// What can be read is written as bytes that mean the same.
pub fn oip_grpc(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    let Ok(message) = InferRequest::decode(Buffer::copy_from_slice(body)) else { return };
    let encoded = message.encode_to_vec();
    let again = InferRequest::decode(encoded.as_slice()).expect("our own message");
    assert_eq!(again.encode_to_vec(), encoded, "a message means something else when it is said again");
    let (task, signature) = asked(*choice);
    if let Ok(request) = crate::grpc::read(message) {
        taken(request, &task, &signature);
    }
}

/// What a node answers for a task of tensors, behind one byte that says for which one.
///
/// What can be read is written as the same bytes, and what is told of it in JSON has its outputs, in their order.
pub fn answers(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    let (_, signature) = asked(3 + choice % 6);
    let outputs = || signature.outputs.iter().map(|port| (port.name.as_str(), port.dtype));
    let told = native::tensors(outputs(), body);
    let Some(tensors) = packed::all(body) else {
        assert!(told.is_err(), "an answer is told that cannot be read");
        return;
    };
    let mut again = Vec::with_capacity(body.len());
    for tensor in &tensors {
        packed::push(&tensor.shape().collect::<Vec<_>>(), tensor.data, &mut again);
    }
    assert_eq!(again, body, "an answer means something else when it is written again");
    let Ok(told) = told else { return };
    let told: serde_json::Value = serde_json::from_slice(&told).expect("an answer that is JSON");
    for ((name, dtype), tensor) in outputs().zip(&tensors) {
        let output = &told["outputs"][name];
        assert_eq!(output["datatype"], dtype.name());
        assert_eq!(output["shape"], serde_json::json!(tensor.shape().collect::<Vec<_>>()));
        assert!(output["data"].is_array(), "{told}");
    }
}

fn over_http(choice: u8, body: &[u8], head: Option<usize>) {
    let (task, signature) = asked(choice);
    let Ok(request) = json::parse(&Buffer::copy_from_slice(body), head, &signature) else { return };
    // Nothing is left over and nothing is taken twice: what came behind the JSON is what the tensors have.
    let behind: usize =
        request.inputs.iter().filter(|input| !input.from_json).map(|input| input.data.len()).sum();
    assert_eq!(behind, body.len() - head.unwrap_or(body.len()), "bytes of the body were lost or made up");
    taken(request, &task, &signature);
}

/// A request that was read: it is the same when it is sent again in either form, and its rows have the sizes that the task says.
fn taken(request: Request, task: &Task, signature: &Signature) {
    assert!(request.inputs.len().max(request.outputs.len()) <= TENSORS_MAX);
    for form in [Form::Json, Form::Binary] {
        let Some((body, head)) = written(&request, form) else { continue };
        let shown = || String::from_utf8_lossy(&body).into_owned();
        let again = json::parse(&Buffer::copy_from_slice(&body), head, signature);
        let again = again.unwrap_or_else(|error| panic!("{} is refused: {error:?}", shown()));
        assert_eq!(meant(&again), meant(&request), "{}", shown());
    }
    let mut given = Given::default();
    let Ok(extra) = request.goals(task.kind, &mut given) else { return };
    let wanted = request.outputs.iter().map(|Wanted { name, classes, binary, area, room: _ }| Wanted {
        name: name.clone(),
        classes: *classes,
        binary: *binary,
        area: area.clone(),
        room: None,
    });
    if Collected::of(wanted.collect(), signature).is_err() {
        return;
    }
    let columns: Vec<(String, Buffer)> =
        request.inputs.iter().map(|input| (input.name.clone(), input.data.clone())).collect();
    answered(&request, signature);
    let Ok(rows) = Rows::of(request, task, signature, &extra, scored(task.kind)) else { return };
    assert!((1..=ROWS_MAX).contains(&rows.count) && (rows.count == 1 || !rows.single));
    let mut whole = Vec::new();
    for row in 0..rows.count.min(ROWS) {
        match rows.input(row) {
            Ok(Input::Raw(bytes)) => {
                if task.kind == TaskKind::Tensor {
                    fits(&bytes, task);
                }
                whole.extend_from_slice(&bytes);
            }
            Ok(Input::Json { inputs, parameters }) => {
                for part in [Some(inputs), parameters].into_iter().flatten() {
                    serde_json::from_slice::<&RawValue>(&part).expect("a row that is JSON");
                }
            }
            Err(error) => assert!(error.status.is_client_error(), "{error:?}"),
        }
    }
    if let ([(_, data)], TaskKind::Tensor) = (columns.as_slice(), task.kind) {
        assert!(
            data.starts_with(&whole) && (rows.count > ROWS || data.len() == whole.len()),
            "rows are not what came"
        );
    }
}

/// The tensors of a row, one after the other, are exactly those of the task.
fn fits(row: &[u8], task: &Task) {
    let mut rest = row;
    for input in &task.inputs {
        let taken = match input.item_bytes() {
            Some(bytes) => rest.split_at_checked(bytes),
            None => strings::take(rest, input.elements().unwrap()),
        };
        rest = taken.expect("a row has all its tensors").1;
    }
    assert!(rest.is_empty(), "a row has more than its tensors");
}

/// An answer with the same tensors is JSON, and behind it come exactly those that are said to.
fn answered(request: &Request, signature: &Signature) {
    let outputs = request.inputs.iter().zip([Some(true), Some(false), None].into_iter().cycle());
    let outputs = outputs.map(|(input, binary)| Output {
        name: input.name.clone(),
        dtype: input.dtype,
        shape: input.shape.clone(),
        data: input.data.to_vec(),
        binary,
        room: None,
    });
    let response = Response {
        id: request.id.clone(),
        version: VariantId(1),
        outputs: outputs.collect(),
        binary: signature.inputs.len() > 1,
        told: HeaderMap::new(),
    };
    let Ok((body, head)) = json::write("task", &response) else { return };
    let (text, tail) = body.split_at(head.unwrap_or(body.len()));
    let text: serde_json::Value = serde_json::from_slice(text).expect("an answer that is JSON");
    let sizes =
        text["outputs"].as_array().unwrap().iter().map(|output| &output["parameters"]["binary_data_size"]);
    assert_eq!(sizes.filter_map(serde_json::Value::as_u64).sum::<u64>(), tail.len() as u64);
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Json,
    Binary,
}

/// The request as a client would send it; `None` for what that form cannot say.
fn written(request: &Request, form: Form) -> Option<(Vec<u8>, Option<usize>)> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut head = format!("{{\"id\":{},\"parameters\":{{", quoted(&request.id));
    for (at, (name, value)) in request.parameters.iter().enumerate() {
        let value = match value {
            Value::Bool(truth) => truth.to_string(),
            Value::Number(number) => serde_json::from_str::<&RawValue>(number).ok()?.get().to_owned(),
            Value::Text(text) => quoted(text),
        };
        let comma = if at > 0 { "," } else { "" };
        write!(head, "{comma}{}:{value}", quoted(name)).unwrap();
    }
    head.push_str("},\"inputs\":[");
    let mut tail = Vec::new();
    for (at, tensor) in request.inputs.iter().enumerate() {
        let Tensor { name, dtype, shape, data, from_json, bare, area } = tensor;
        let comma = if at > 0 { "," } else { "" };
        let (name, datatype) = (quoted(name), dtype.name());
        write!(head, "{comma}{{\"name\":{name},\"datatype\":\"{datatype}\",\"shape\":{shape:?},").unwrap();
        if let Some(area) = area {
            write!(head, "\"parameters\":{}}}", serde_json::Value::from(lying(area))).unwrap();
        } else if form == Form::Json {
            // Raw bytes need not be elements, and raw truths need not be 0 or 1.
            if *bare || !from_json && (*dtype == DType::Bool || !is_whole(*dtype, data)) {
                return None;
            }
            let mut list = Vec::new();
            elements::write(*dtype, data, &mut list).ok()?;
            write!(head, "\"data\":{}}}", String::from_utf8(list).unwrap()).unwrap();
        } else {
            write!(head, "\"parameters\":{{\"binary_data_size\":{}}}}}", data.len()).unwrap();
            tail.extend_from_slice(data);
        }
    }
    head.push_str("],\"outputs\":[");
    for (at, wanted) in request.outputs.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let mut parameters = wanted.area.as_ref().map(lying).unwrap_or_default();
        parameters.insert("binary_data".to_owned(), wanted.binary.into());
        parameters.insert("classification".to_owned(), wanted.classes.into());
        let parameters = serde_json::Value::from(parameters);
        write!(head, "{comma}{{\"name\":{},\"parameters\":{parameters}}}", quoted(&wanted.name)).unwrap();
    }
    head.push_str("]}");
    let length = head.len();
    let body = [head.into_bytes(), tail].concat();
    Some((body, (form == Form::Binary).then_some(length)))
}

/// Parameters of a tensor in shared memory.
fn lying(area: &Area) -> serde_json::Map<String, serde_json::Value> {
    let Area { region, offset, bytes } = area;
    let all =
        [("region", region.as_str().into()), ("offset", (*offset).into()), ("byte_size", (*bytes).into())];
    all.into_iter().map(|(name, value)| (format!("shared_memory_{name}"), value)).collect()
}

/// Whether bytes are elements of a type and nothing else.
fn is_whole(dtype: DType, data: &[u8]) -> bool {
    match dtype.size() {
        Some(size) => data.len().is_multiple_of(size),
        None => strings::each(data).map(|string| strings::LENGTH + string.len()).sum::<usize>() == data.len(),
    }
}

/// What a request says, whatever its form.
fn meant(request: &Request) -> impl PartialEq + std::fmt::Debug {
    let inputs = request.inputs.iter().map(|input| {
        let lies = (input.area.clone(), input.data.clone());
        (input.name.clone(), input.dtype, input.shape.clone(), lies)
    });
    let outputs = request.outputs.iter();
    let outputs =
        outputs.map(|wanted| (wanted.name.clone(), wanted.classes, wanted.binary, wanted.area.clone()));
    (request.id.clone(), request.parameters.clone(), inputs.collect::<Vec<_>>(), outputs.collect::<Vec<_>>())
}

/// Goals, a line each: `name=value`. They mean the same as parameters, in the query string, in headers and in JSON.
pub fn goals(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        if let Ok(value) = HeaderValue::from_bytes(data) {
            let headers = HeaderMap::from_iter([(name(Goal::Model), value)]);
            assert!(Given::of_request(None, &headers).is_err(), "a name that is no text was taken");
        }
        return;
    };
    let _ = Given::of_request(Some(text), &HeaderMap::new());
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).take(16).collect();
    let mut added = Given::default();
    let all = pairs.iter().try_for_each(|(name, text)| match added.add(name, text) {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(()),
    });
    let expected = all.is_ok().then_some(added);

    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
    assert_eq!(Given::of_request(Some(&query), &HeaderMap::new()).ok(), expected, "{query}");

    let headers = pairs.iter().map(|(named, text)| {
        let goal = Goal::ALL.into_iter().find(|goal| goal.name() == *named)?;
        let value = HeaderValue::from_str(text).ok().filter(|value| value.to_str().is_ok())?;
        Some((name(goal), value))
    });
    if let Some(headers) = headers.collect::<Option<Vec<_>>>() {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        assert_eq!(Given::of_request(None, &map).ok(), expected, "{map:?}");
    }

    let entries = pairs.iter().map(|(name, text)| {
        let number = serde_json::from_str::<serde_json::Number>(text).is_ok() && text.trim() == *text;
        let is_number = ["accuracy", "latency_ms", "max_cost", "priority"].contains(name);
        if is_number && !number {
            return None;
        }
        let value = if is_number { (*text).to_owned() } else { serde_json::Value::from(*text).to_string() };
        Some(format!("{}:{value}", serde_json::Value::from(*name)))
    });
    if let Some(entries) = entries.collect::<Option<Vec<_>>>() {
        let object = RawValue::from_string(format!("{{{}}}", entries.join(","))).expect("an object");
        let mut given = Given::default();
        assert_eq!(given.add_json(&object).ok().map(|()| given), expected, "{object}");
        let Entries(read) = serde_json::from_str(object.get()).expect("an object");
        assert_eq!(read.len(), pairs.len());
    }
}

fn name(goal: Goal) -> http::HeaderName {
    let name = format!("modelless-{}", goal.name().replace('_', "-"));
    http::HeaderName::try_from(name).expect("the name of a goal")
}

/// One of a few tasks, with all types of elements among them, and what it shows of itself.
fn asked(choice: u8) -> (Task, Signature) {
    let tensor =
        |name: &str, dtype, shape: &[u32]| TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() };
    let (kind, inputs) = match choice % 9 {
        0 => (TaskKind::ImageClassification, vec![]),
        1 => (TaskKind::TextClassification, vec![]),
        2 => (TaskKind::FeatureExtraction, vec![]),
        3 => (TaskKind::Tensor, vec![tensor("x", DType::Fp32, &[4])]),
        4 => (TaskKind::Tensor, vec![tensor("x", DType::Int64, &[2]), tensor("y", DType::Bytes, &[1])]),
        5 => (TaskKind::Tensor, vec![tensor("x", DType::Fp16, &[2, 2]), tensor("y", DType::Bool, &[])]),
        6 => (TaskKind::Tensor, vec![tensor("x", DType::Bytes, &[2])]),
        7 => (TaskKind::Tensor, vec![tensor("x", DType::Uint8, &[3]), tensor("y", DType::Int8, &[1])]),
        _ => (TaskKind::Tensor, vec![tensor("x", DType::Int32, &[1]), tensor("y", DType::Fp64, &[0])]),
    };
    let labels = if kind == TaskKind::Tensor { vec![] } else { vec!["cat".to_owned(), "dog".to_owned()] };
    let task = Task {
        id: TaskId(1),
        name: "fuzzed".to_owned(),
        tenant: TenantId::DEFAULT,
        kind,
        metric: "top-1".to_owned(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: LiveRule::default(),
        declared_accuracy: DeclaredRule::default(),
        labels,
        outputs: inputs.clone(),
        inputs,
        default_space: SpaceId(1),
        defaults: Goals::default(),
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    };
    let signature = Signature::of(&task, Some(3));
    (task, signature)
}

#[cfg(test)]
mod tests {
    use modelless_testkit::corpus::replay;

    #[test]
    fn nothing_the_fuzzer_kept_breaks_requests_in_json() {
        replay("oip_json", super::oip_json);
    }

    #[test]
    fn nothing_the_fuzzer_kept_breaks_requests_with_raw_tensors() {
        replay("oip_binary", super::oip_binary);
    }

    #[test]
    fn nothing_the_fuzzer_kept_breaks_messages() {
        replay("oip_grpc", super::oip_grpc);
    }

    #[test]
    fn nothing_the_fuzzer_kept_breaks_answers() {
        replay("answers", super::answers);
    }

    #[test]
    fn nothing_the_fuzzer_kept_breaks_goals() {
        replay("goals", super::goals);
    }
}
