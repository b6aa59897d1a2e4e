//! A request as it means the same in both encodings.

use crate::errors::ApiError;
use crate::goals::Given;
use crate::regions::{Area, Room};
use crate::suggest::{excerpt, suggest};
use bytes::Bytes as Buffer;
use modelless_types::{DType, TaskKind};
use serde_json::{Map, json};

/// What a request asks.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// The client's name for it, said again in the answer.
    pub(crate) id: String,
    pub(crate) parameters: Vec<(String, Value)>,
    pub(crate) inputs: Vec<Tensor>,
    /// None: all there are.
    pub(crate) outputs: Vec<Wanted>,
}

/// A parameter's value. Numbers keep the digits they were written with: an accuracy is a decimal.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Bool(bool),
    Number(String),
    Text(String),
}

/// An input.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
    /// Its elements, little-endian and row by row; strings with their lengths before them.
    pub(crate) data: Buffer,
    /// They came as JSON, where bytes that are no text can only be base64.
    pub(crate) from_json: bool,
    /// One string without its length: the whole body of a raw request.
    pub(crate) bare: bool,
    /// Its elements lie there and are yet to be read.
    pub(crate) area: Option<Area>,
}

/// An output that is asked for.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// As so many of the best classes, `SCORE:INDEX:LABEL` each.
    pub(crate) classes: Option<u32>,
    /// Raw after the JSON, where the encoding has a choice.
    pub(crate) binary: Option<bool>,
    /// It is to go there.
    pub(crate) area: Option<Area>,
    /// The same once it is known that there is such a region.
    pub(crate) room: Option<Room>,
}

/// What parameters say besides goals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Extra {
    /// What the node is told of the output: a JSON object.
    pub(crate) output: Map<String, serde_json::Value>,
    /// All outputs that say nothing else come raw.
    pub(crate) binary: bool,
    /// The bound on the latency was given with the request: it holds for all of its rows together.
    pub(crate) bounded: bool,
}

/// What clients of Triton say that means nothing here.
const IGNORED: [&str; 3] = ["headers", "content_type", "sequence_end"];
/// Parameters of the output that nodes know.
const OUTPUT: [&str; 2] = ["function_to_apply", "normalize"];

impl Request {
    /// Adds the goals among the parameters to those that are `given` already.
    pub(crate) fn goals(&self, kind: TaskKind, given: &mut Given) -> Result<Extra, ApiError> {
        let mut extra = Extra::default();
        let mut timeout = None;
        for (name, value) in &self.parameters {
            match (name.as_str(), value) {
                ("binary_data_output", Value::Bool(binary)) => extra.binary = *binary,
                ("timeout", value) => timeout = Some(micros(value)?),
                ("sequence_id" | "sequence_start", value) => no_sequence(value)?,
                (name, _) if IGNORED.contains(&name) || name.starts_with("triton_") => {}
                (name, value) if OUTPUT.contains(&name) && kind != TaskKind::Tensor => {
                    let value = match value {
                        Value::Bool(truth) => json!(truth),
                        Value::Number(text) | Value::Text(text) => json!(text),
                    };
                    extra.output.insert(name.to_owned(), value);
                }
                (name, value) => {
                    let text = match value {
                        Value::Number(text) | Value::Text(text) => text.as_str(),
                        Value::Bool(true) => "true",
                        Value::Bool(false) => "false",
                    };
                    if !given.add(name, text)? {
                        let known = Given::names().chain(OUTPUT).chain(["timeout", "binary_data_output"]);
                        let near = suggest(name, known);
                        let message = format!("there is no parameter {}{near}", excerpt(name));
                        return Err(ApiError::bad_goal(message));
                    }
                }
            }
        }
        if let Some(timeout) = timeout {
            given.within(timeout)?;
        }
        extra.bounded = given.latency.is_some();
        Ok(extra)
    }
}

/// Triton's bound on waiting, in microseconds; 0 stands for none.
fn micros(value: &Value) -> Result<u64, ApiError> {
    let micros = match value {
        Value::Number(text) | Value::Text(text) => text.parse().ok(),
        Value::Bool(_) => None,
    };
    micros.ok_or_else(|| ApiError::bad_goal("timeout must be a whole number of microseconds"))
}

/// Queries of a task are answered by themselves: whoever needs the state of the last one carries it.
fn no_sequence(value: &Value) -> Result<(), ApiError> {
    match value {
        Value::Bool(false) => Ok(()),
        Value::Number(text) | Value::Text(text) if text == "0" || text.is_empty() => Ok(()),
        Value::Bool(true) | Value::Number(_) | Value::Text(_) => Err(ApiError::bad_goal(
            "sequences are not kept here: queries are answered one by one, on any node; send a recurrent model's state with them",
        )),
    }
}
