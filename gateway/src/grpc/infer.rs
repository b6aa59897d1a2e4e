//! A request's messages, made into what both encodings share, and the answer back. Who asks with raw tensors is answered so.

use super::coming::Held;
use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::goals::Given;
use crate::oip::request::{Request, Tensor, Value, Wanted};
use crate::oip::{TENSORS_MAX, about, infer, json};
use crate::regions::Area;
use crate::routes::opened;
use crate::suggest::excerpt;
use crate::traces::Door;
use crate::view::View;
use crate::whole::Whole;
use bytes::Bytes as Buffer;
use http::HeaderMap;
use modelless_oip::contents::{of_bytes, to_bytes};
use modelless_oip::messages::{self, Choice, InferRequest, InferResponse, Parameter, StreamResponse};
use modelless_types::DType;
use std::collections::BTreeMap;

/// Parameters of a tensor in shared memory.
const REGION: &str = "shared_memory_region";
const OFFSET: &str = "shared_memory_offset";
const BYTES: &str = "shared_memory_byte_size";

/// Asks. What the message holds of the memory for bodies it holds until the request has ended.
pub(super) async fn run(
    core: &Core,
    (headers, caller): (&HeaderMap, &Caller),
    (request, held): (InferRequest, Held),
) -> Result<InferResponse, ApiError> {
    let arrived = core.driver.clock().now();
    let view = core.view_of(caller);
    let task = opened(core, &view, &request.model_name)?;
    let mut whole = Whole::of(core, task, arrived);
    let answer = asked(&mut whole, (headers, &view, caller), (request, held)).await;
    whole.end(answer)
}

async fn asked(
    whole: &mut Whole<'_>,
    (headers, view, caller): (&HeaderMap, &View, &Caller),
    (request, mut held): (InferRequest, Held),
) -> Result<InferResponse, ApiError> {
    let Whole { core, task, .. } = *whole;
    let raw = !request.raw_input_contents.is_empty() || request.inputs.iter().any(shared);
    let version = request.model_version.clone();
    let read = || {
        let mut given = Given::of_request(None, headers)?;
        if let Some(pin) = about::version(task, &version)? {
            given.add("variant", &pin.variant.name)?;
        }
        let request = read(request)?;
        // Raw tensors are where the message was; others have taken its place.
        let size: usize = request.inputs.iter().map(|input| input.data.len()).sum();
        let most = caller.max_body(core.config.max_body_bytes);
        if size as u64 > most {
            caller.oversized(core.driver.clock().now());
            return Err(ApiError::too_large(most));
        }
        held.at_least(size)?;
        Ok((given, request))
    };
    let (given, request) = read().map_err(|error| task.unread(core, caller, error))?;
    let manner = core.manner(headers, Door::Grpc);
    let response = Box::pin(infer::run(whole, (view, caller, &manner), request, given)).await?;
    Ok(written(&task.task.name, response, raw))
}

/// The same in a stream, where a refusal is an answer.
pub(super) async fn streamed(
    core: &Core,
    asked: (&HeaderMap, &Caller),
    (request, held): (InferRequest, Held),
) -> StreamResponse {
    let (model_name, id) = (request.model_name.clone(), request.id.clone());
    match run(core, asked, (request, held)).await {
        Ok(mut response) => {
            // There is never a second answer.
            let last = Parameter { choice: Some(Choice::Bool(true)) };
            response.parameters.insert("triton_final_response".to_owned(), last);
            StreamResponse { error_message: String::new(), infer_response: Some(response) }
        }
        Err(error) => {
            held_up(core, &error).await;
            let response = InferResponse { model_name, id, ..InferResponse::default() };
            StreamResponse { error_message: error.message, infer_response: Some(response) }
        }
    }
}

/// Waits, if such a refusal is told slowly.
pub(super) async fn held_up(core: &Core, error: &ApiError) {
    if let Some(slowly) = error.slowly() {
        core.refusals.hold(slowly).await;
    }
}

/// What is in shared memory has no place among the raw contents.
fn shared(input: &messages::Tensor) -> bool {
    input.parameters.contains_key(REGION)
}

/// Where a tensor lies in shared memory, as its parameters say.
fn area(name: &str, parameters: &mut BTreeMap<String, Parameter>) -> Result<Option<Area>, ApiError> {
    let wrong = |what: &str| ApiError::malformed(format!("the tensor {}: {what}", excerpt(name)));
    let mut number = |of: &str| match parameters.remove(of).and_then(value) {
        None => Ok(None),
        Some(Value::Number(text)) if text.parse::<u64>().is_ok() => Ok(text.parse().ok()),
        Some(_) => Err(wrong(&format!("`{of}` must be a number of bytes"))),
    };
    let (offset, bytes) = (number(OFFSET)?, number(BYTES)?);
    let region = match parameters.remove(REGION) {
        None => None,
        Some(region) => match value(region) {
            Some(Value::Text(region)) => Some(region),
            _ => return Err(wrong(&format!("`{REGION}` must be a region's name"))),
        },
    };
    Area::of(name, region, (offset, bytes))
}

pub(crate) fn read(request: InferRequest) -> Result<Request, ApiError> {
    let InferRequest { id, parameters, inputs, outputs, raw_input_contents, .. } = request;
    if inputs.len().max(outputs.len()) > TENSORS_MAX {
        let message = format!("a request has at most {TENSORS_MAX} inputs and as many outputs");
        return Err(ApiError::malformed(message));
    }
    let raw = !raw_input_contents.is_empty();
    let here = inputs.iter().filter(|input| !shared(input)).count();
    if raw && raw_input_contents.len() != here {
        let message = format!(
            "the request has {here} inputs and the bytes of {}; raw contents are for all inputs or for none",
            raw_input_contents.len()
        );
        return Err(ApiError::malformed(message));
    }
    let mut contents = raw_input_contents.into_iter();
    let inputs = inputs
        .into_iter()
        .map(|input| {
            let raw = if shared(&input) { None } else { contents.next() };
            tensor(input, raw)
        })
        .collect::<Result<_, _>>()?;
    Ok(Request {
        id,
        parameters: parameters
            .into_iter()
            .filter_map(|(name, parameter)| Some((name, value(parameter)?)))
            .collect(),
        inputs,
        outputs: outputs.into_iter().map(wanted).collect::<Result<_, _>>()?,
    })
}

fn tensor(input: messages::Tensor, raw: Option<Buffer>) -> Result<Tensor, ApiError> {
    let messages::Tensor { name, datatype, shape, mut parameters, contents } = input;
    let wrong = |why: &str| ApiError::malformed(format!("the input {}: {why}", excerpt(&name)));
    let dtype = DType::parse(&datatype)
        .ok_or_else(|| wrong(&format!("elements of type {} are not taken", excerpt(&datatype))))?;
    let area = area(&name, &mut parameters)?;
    let data = match (raw, contents) {
        (None, None) if area.is_some() => Buffer::new(),
        (_, _) if area.is_some() => {
            return Err(wrong("it is in shared memory and in the message; it must be in one of them"));
        }
        (Some(raw), None) => raw,
        (Some(_), Some(_)) => return Err(wrong("it has both raw and typed contents")),
        (None, contents) => to_bytes(dtype, &contents.unwrap_or_default()).map_err(|why| wrong(&why))?.into(),
    };
    Ok(Tensor { name, dtype, shape, data, from_json: false, bare: false, area })
}

fn wanted(output: messages::Wanted) -> Result<Wanted, ApiError> {
    let messages::Wanted { name, mut parameters } = output;
    let area = area(&name, &mut parameters)?;
    let classes = match parameters.remove("classification").and_then(value) {
        None => None,
        Some(Value::Number(text)) if text.parse::<u32>().is_ok() => text.parse().ok(),
        Some(_) => return Err(ApiError::malformed("`classification` must be a number of classes")),
    };
    Ok(Wanted { name, classes, binary: None, area, room: None })
}

/// A number keeps its value as a decimal: the shortest that means it.
fn value(parameter: Parameter) -> Option<Value> {
    Some(match parameter.choice? {
        Choice::Bool(truth) => Value::Bool(truth),
        Choice::Int(number) => Value::Number(number.to_string()),
        Choice::Unsigned(number) => Value::Number(number.to_string()),
        Choice::Double(number) => Value::Number(number.to_string()),
        Choice::Text(text) => Value::Text(text),
    })
}

fn written(task: &str, response: infer::Response, raw: bool) -> InferResponse {
    let parameter = |value: Value| {
        let choice = match value {
            Value::Bool(truth) => Choice::Bool(truth),
            Value::Text(text) => Choice::Text(text),
            Value::Number(text) => text.parse().map_or(Choice::Text(text), Choice::Double),
        };
        Parameter { choice: Some(choice) }
    };
    let parameters: BTreeMap<String, Parameter> =
        json::decision(&response.told).map(|(name, value)| (name, parameter(value))).collect();
    // FP16 has no typed form, and a message is raw as a whole or not at all.
    let raw = raw || response.outputs.iter().any(|output| output.dtype == DType::Fp16);
    let mut written = InferResponse {
        model_name: task.to_owned(),
        model_version: response.version.0.to_string(),
        id: response.id,
        parameters,
        ..InferResponse::default()
    };
    for output in response.outputs {
        // Of what went into shared memory nothing is said but its shape; among raw contents it has an empty place.
        let there = output.room.is_some();
        let contents = if raw || there { None } else { of_bytes(output.dtype, &output.data) };
        if raw {
            written.raw_output_contents.push(output.data.into());
        }
        written.outputs.push(messages::Tensor {
            name: output.name,
            datatype: output.dtype.name().to_owned(),
            shape: output.shape,
            contents,
            ..messages::Tensor::default()
        });
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::infer::Response;
    use modelless_types::VariantId;

    fn input(contents: Option<messages::Contents>) -> messages::Tensor {
        let (name, datatype) = ("x".to_owned(), "FP32".to_owned());
        messages::Tensor { name, datatype, shape: vec![1], contents, ..messages::Tensor::default() }
    }

    fn typed() -> messages::Contents {
        messages::Contents { floats: vec![1.5], ..messages::Contents::default() }
    }

    #[test]
    fn raw_and_typed_tensors_are_the_same_bytes() {
        let raw = Buffer::copy_from_slice(&1.5_f32.to_le_bytes());
        let both = [
            InferRequest {
                inputs: vec![input(None)],
                raw_input_contents: vec![raw.clone()],
                ..InferRequest::default()
            },
            InferRequest { inputs: vec![input(Some(typed()))], ..InferRequest::default() },
        ];
        for request in both {
            assert_eq!(super::read(request).unwrap().inputs[0].data, raw);
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let raw = || vec![Buffer::from_static(&[0; 4])];
        let shared = BTreeMap::from([("shared_memory_region".to_owned(), Parameter { choice: None })]);
        for (inputs, raw) in [
            (vec![input(None), input(None)], raw()),
            (vec![input(Some(typed()))], raw()),
            (vec![messages::Tensor { datatype: "BF16".to_owned(), ..input(None) }], raw()),
            (vec![messages::Tensor { parameters: shared, ..input(None) }], Vec::new()),
            (vec![input(None); TENSORS_MAX + 1], Vec::new()),
        ] {
            let request = InferRequest { inputs, raw_input_contents: raw, ..InferRequest::default() };
            assert!(super::read(request).is_err());
        }
    }

    fn in_region(name: &str) -> messages::Tensor {
        let text = Parameter { choice: Some(Choice::Text("r".to_owned())) };
        let number = |number| Parameter { choice: Some(Choice::Int(number)) };
        let place = [(REGION, text), (OFFSET, number(8)), (BYTES, number(4))];
        let parameters = place.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        messages::Tensor { name: name.to_owned(), parameters, ..input(None) }
    }

    #[test]
    fn an_input_in_shared_memory_takes_no_place_among_the_raw_ones() {
        let raw = Buffer::from_static(&[1, 2, 3, 4]);
        let request = |raw: Vec<Buffer>| InferRequest {
            inputs: vec![in_region("a"), input(None)],
            raw_input_contents: raw,
            ..InferRequest::default()
        };
        let read = super::read(request(vec![raw.clone()])).unwrap();
        let place = Area { region: "r".to_owned(), offset: 8, bytes: 4 };
        assert_eq!((&read.inputs[0].area, read.inputs[0].data.len()), (&Some(place), 0));
        assert_eq!((&read.inputs[1].area, &read.inputs[1].data), (&None, &raw));
        assert!(super::read(request(vec![raw.clone(), raw])).is_err(), "the bytes of which one?");
        let both = messages::Tensor { contents: Some(typed()), ..in_region("a") };
        assert!(super::read(InferRequest { inputs: vec![both], ..InferRequest::default() }).is_err());
        let negative = Parameter { choice: Some(Choice::Int(-1)) };
        let mut wrong = in_region("a");
        wrong.parameters.insert(OFFSET.to_owned(), negative);
        assert!(super::read(InferRequest { inputs: vec![wrong], ..InferRequest::default() }).is_err());
    }

    #[test]
    fn an_answer_has_the_form_of_its_question_and_numbers_stay_numbers() {
        let response = || {
            let mut told = HeaderMap::new();
            told.insert("modelless-accuracy", "0.9155".parse().unwrap());
            told.insert("modelless-model", "1".parse().unwrap());
            let data = 1.5_f32.to_le_bytes().to_vec();
            let output = crate::oip::Output {
                name: "y".to_owned(),
                dtype: DType::Fp32,
                shape: vec![1, 1],
                data,
                binary: None,
                room: None,
            };
            Response { id: "7".to_owned(), version: VariantId(3), outputs: vec![output], binary: false, told }
        };
        let raw = written("t", response(), true);
        assert_eq!((raw.raw_output_contents.len(), &raw.outputs[0].contents), (1, &None));
        let typed = written("t", response(), false);
        assert_eq!((typed.raw_output_contents.len(), &typed.outputs[0].contents), (0, &Some(self::typed())));
        assert_eq!((typed.model_version.as_str(), typed.id.as_str()), ("3", "7"));
        assert_eq!(typed.parameters["accuracy"].choice, Some(Choice::Double(0.9155)));
        assert_eq!(typed.parameters["model"].choice, Some(Choice::Text("1".to_owned())));
    }
}
