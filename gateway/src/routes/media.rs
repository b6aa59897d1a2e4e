//! What a query's body is: raw bytes of the task's native form, or JSON around them.

use crate::errors::ApiError;
use crate::goals::Given;
use crate::http::body::media_type;
use crate::oip::ROWS_MAX;
use crate::suggest::excerpt;
use bytes::Bytes as Buffer;
use http::HeaderMap;
use modelless_types::{Task, TaskKind};
use modelless_wire::Input;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Texts that one request may bring: as many as a request of the Open Inference Protocol has rows.
pub(crate) const LIST_MAX: usize = ROWS_MAX;

/// What a body asks for.
pub(crate) enum Inputs {
    One(Input),
    /// Each is a query of its own, and the answers come together.
    Many(Vec<Input>),
}

/// What the headers say of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Raw,
    Json,
    /// Nothing: its first byte tells.
    Untold,
}

/// A body in Hugging Face's shape, and our goals.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonBody<'a> {
    #[serde(borrow, default)]
    inputs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(borrow, default)]
    goals: Option<&'a RawValue>,
    // Of vectors Hugging Face's client gives its parameters here.
    #[serde(borrow, default)]
    normalize: Option<&'a RawValue>,
    #[serde(default)]
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Option<String>,
    #[serde(default)]
    prompt_name: Option<String>,
}

impl JsonBody<'_> {
    /// Those parameters that stand beside the input, as if they stood among the others.
    fn beside(&self, kind: TaskKind) -> Result<Option<Buffer>, ApiError> {
        let said = |name: &str, expected: &str| {
            Err(ApiError::malformed(format!("`{name}` cannot be had here; {expected}")))
        };
        let Self { normalize, truncate, truncation_direction, prompt_name, .. } = self;
        let any = normalize.is_some()
            || truncate.is_some()
            || truncation_direction.is_some()
            || prompt_name.is_some();
        if any && kind != TaskKind::FeatureExtraction {
            let names = "`normalize`, `truncate`, `truncation_direction` and `prompt_name`";
            return Err(ApiError::malformed(format!("{names} are for tasks of feature-extraction only")));
        }
        if *truncate == Some(false) {
            return said("truncate", "a text that is longer than its model takes is always cut");
        }
        if truncation_direction.as_ref().is_some_and(|side| !side.eq_ignore_ascii_case("right")) {
            return said("truncation_direction", "texts are cut at their end (`right`)");
        }
        if prompt_name.is_some() {
            return said("prompt_name", "put the prompt before the text");
        }
        Ok(normalize.map(|value| Buffer::from(format!("{{\"normalize\":{}}}", value.get()))))
    }
}

pub(crate) fn form(headers: &HeaderMap, task: &Task) -> Result<Form, ApiError> {
    let Some(media) = media_type(headers)? else { return Ok(Form::Untold) };
    match (media.as_str(), task.kind) {
        ("application/json", _) => Ok(Form::Json),
        ("application/octet-stream", _)
        | ("image/jpeg" | "image/png", TaskKind::ImageClassification)
        | ("text/plain", TaskKind::TextClassification | TaskKind::FeatureExtraction) => Ok(Form::Raw),
        // What `curl --data-binary @file` says of anything: as good as nothing said.
        ("application/x-www-form-urlencoded", _) => Ok(Form::Untold),
        (other, kind) => {
            let taken = match kind {
                TaskKind::ImageClassification => "image/jpeg, image/png, application/octet-stream",
                TaskKind::TextClassification | TaskKind::FeatureExtraction => {
                    "text/plain, application/octet-stream"
                }
                TaskKind::Tensor => "application/octet-stream",
            };
            let (other, name) = (excerpt(other), &task.name);
            let message =
                format!("task {name:?} takes {taken} or application/json; the content type is {other}");
            Err(ApiError::unsupported_media(message))
        }
    }
}

/// The input in a body, or of a list of texts so many at `most`; goals that stand there are added to `given`.
pub(crate) fn inputs(
    task: &Task,
    form: Form,
    body: Buffer,
    given: &mut Given,
    most: usize,
) -> Result<Inputs, ApiError> {
    if body.is_empty() {
        return Err(ApiError::malformed("the body is empty; send the input, or JSON with `inputs`"));
    }
    let texts = is_text(task.kind);
    if texts && form != Form::Raw && bare(&body) {
        // One text or a list of them without an object around.
        let value: Result<&RawValue, _> = serde_json::from_slice(&body);
        match (value, form) {
            (Ok(value), _) => return of_texts(&body, value, None, most),
            (Err(error), Form::Json) => {
                return Err(ApiError::malformed(format!("the JSON body cannot be read: {error}")));
            }
            // A text that begins with a quotation mark is one.
            (Err(_), Form::Untold | Form::Raw) => return Ok(Inputs::One(Input::Raw(body))),
        }
    }
    let json = match form {
        Form::Raw => false,
        Form::Json => true,
        // Tensors may well begin with the byte of a brace, but hardly ever when their length is right; strings may, when
        // the first has 123 bytes, but then the next byte is one that JSON never has.
        Form::Untold => {
            let brace = body.trim_ascii_start().starts_with(b"{") && !body.starts_with(b"{\0");
            brace && raw_length(task) != Some(body.len())
        }
    };
    if !json {
        return Ok(Inputs::One(Input::Raw(body)));
    }
    let parsed = parse(&body)?;
    let beside = parsed.beside(task.kind)?;
    let JsonBody { inputs, parameters, goals, .. } = parsed;
    let Some(inputs) = inputs else {
        return Err(ApiError::malformed("`inputs` is missing from the JSON body"));
    };
    check(parameters, goals, given)?;
    let part = |value: &RawValue| body.slice_ref(value.get().as_bytes());
    let parameters = parameters.filter(|value| value.get() != "null").map(part);
    if parameters.is_some() && beside.is_some() {
        return Err(ApiError::malformed("`normalize` stands beside `parameters`; put it into them"));
    }
    let parameters = parameters.or(beside);
    if texts {
        return of_texts(&body, inputs, parameters.as_ref(), most);
    }
    Ok(Inputs::One(Input::Json { inputs: part(inputs), parameters }))
}

const fn is_text(kind: TaskKind) -> bool {
    match kind {
        TaskKind::TextClassification | TaskKind::FeatureExtraction => true,
        TaskKind::ImageClassification | TaskKind::Tensor => false,
    }
}

/// JSON without an object around.
fn bare(body: &[u8]) -> bool {
    body.trim_ascii_start().first().is_some_and(|first| matches!(first, b'"' | b'['))
}

/// One text, or each of a list. What is no text is told by who reads it, with its place in the list.
fn of_texts(
    body: &Buffer,
    value: &RawValue,
    parameters: Option<&Buffer>,
    most: usize,
) -> Result<Inputs, ApiError> {
    let one = |value: &RawValue| Input::Json {
        inputs: body.slice_ref(value.get().as_bytes()),
        parameters: parameters.cloned(),
    };
    if !value.get().starts_with('[') {
        return Ok(Inputs::One(one(value)));
    }
    let list: Vec<&RawValue> = serde_json::from_str(value.get())
        .map_err(|error| ApiError::malformed(format!("the list of texts cannot be read: {error}")))?;
    match list.len() {
        0 => Err(ApiError::malformed("the list of texts is empty; send at least one")),
        more if more > most => {
            let message = format!("the list has {more} texts; at most {most} are taken at once");
            Err(ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "too_large", message))
        }
        _ => Ok(Inputs::Many(list.into_iter().map(one).collect())),
    }
}

/// The goals in a body that asks for an explanation; an input may stand there and is not looked at.
pub(super) fn goals(body: &Buffer, given: &mut Given) -> Result<(), ApiError> {
    let JsonBody { parameters, goals, .. } = parse(body)?;
    check(parameters, goals, given)
}

fn parse(body: &[u8]) -> Result<JsonBody<'_>, ApiError> {
    let object = body.trim_ascii_start().starts_with(b"{"); // else serde would take an array for the fields in order
    if !object {
        return Err(ApiError::malformed("the JSON body must be an object with `inputs`"));
    }
    serde_json::from_slice(body)
        .map_err(|error| ApiError::malformed(format!("the JSON body does not follow its form: {error}")))
}

fn check(parameters: Option<&RawValue>, goals: Option<&RawValue>, given: &mut Given) -> Result<(), ApiError> {
    if let Some(parameters) = parameters
        && !parameters.get().starts_with('{')
        && parameters.get() != "null"
    {
        return Err(ApiError::malformed("`parameters` must be an object"));
    }
    goals.filter(|goals| goals.get() != "null").map_or(Ok(()), |goals| given.add_json(goals))
}

/// Bytes of one item of a tensor task.
fn raw_length(task: &Task) -> Option<usize> {
    match task.kind {
        TaskKind::ImageClassification | TaskKind::TextClassification | TaskKind::FeatureExtraction => None,
        TaskKind::Tensor => {
            task.inputs.iter().try_fold(0_usize, |sum, input| sum.checked_add(input.item_bytes()?))
        }
    }
}
