//! The Open Inference Protocol.

use super::query::{PIXEL_PNG, decision_headers, goals};
use super::{Doc, path, task_parameter, tensors};
use crate::oip::json::HEAD_LENGTH;
use serde_json::{Value, json};

const TAG: &str = "open inference protocol";

fn doc(id: &'static str, summary: &'static str) -> Doc {
    Doc::new(id, TAG, summary)
}

/// Of a task.
fn of_task(id: &'static str, summary: &'static str) -> Doc {
    doc(id, summary).parameter(task_parameter())
}

/// Of one of its variants.
fn of_version(doc: Doc) -> Doc {
    doc.parameter(path("version", "The number of a variant, as answers tell it.")).errors(&[404])
}

fn object() -> Value {
    json!({"type": "object"})
}

pub(crate) fn server() -> Doc {
    doc("oipServer", "What serves, and the extensions it speaks").answers(
        200,
        "Name and version.",
        &tensors::server(),
    )
}

pub(crate) fn models() -> Doc {
    doc("oipModels", "The tasks, as models").answers(200, "Their names.", &tensors::models())
}

fn metadata_as(id: &'static str) -> Doc {
    of_task(id, "The tensors of a task")
        .answers(200, "Names, types and shapes.", &tensors::metadata())
        .errors(&[404])
}

pub(crate) fn metadata() -> Doc {
    metadata_as("oipMetadata")
}

pub(crate) fn metadata_of_version() -> Doc {
    of_version(metadata_as("oipMetadataOfVersion"))
}

fn ready_as(id: &'static str) -> Doc {
    of_task(id, "Whether a task takes queries")
        .answers(200, "It does.", &tensors::ready())
        .errors(&[404, 503])
}

pub(crate) fn ready() -> Doc {
    ready_as("oipReady")
}

pub(crate) fn ready_of_version() -> Doc {
    of_version(ready_as("oipReadyOfVersion"))
}

fn config_as(id: &'static str) -> Doc {
    of_task(id, "A task's configuration, as Triton shows a model's")
        .answers(200, "As far as clients look.", &tensors::config())
        .errors(&[404])
}

pub(crate) fn config() -> Doc {
    config_as("oipConfig")
}

pub(crate) fn config_of_version() -> Doc {
    of_version(config_as("oipConfigOfVersion"))
}

fn statistics_as(id: &'static str) -> Doc {
    of_task(id, "What the variants of a task did, as Triton counts it")
        .answers(200, "Since this gateway started.", &tensors::statistics())
        .errors(&[404])
}

pub(crate) fn statistics() -> Doc {
    statistics_as("oipStatistics")
}

pub(crate) fn statistics_of_version() -> Doc {
    of_version(statistics_as("oipStatisticsOfVersion"))
}

pub(crate) fn all_statistics() -> Doc {
    doc("oipAllStatistics", "The same of all tasks")
        .answers(200, "Since this gateway started.", &tensors::statistics())
        .errors(&[429])
}

fn infer_as(id: &'static str) -> Doc {
    let tensor = json!({
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"type": "string"},
            "datatype": tensors::datatypes(),
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "parameters": {"type": "object"},
            "data": {"type": "array"},
        },
    });
    let body = json!({
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": tensors::parameters(true),
            "inputs": {"type": "array", "items": tensor, "minItems": 1},
            "outputs": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "parameters": tensors::parameters(true),
            }}},
        },
        "example": {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1, 1], "data": [PIXEL_PNG]}]},
    });
    let mut headers = decision_headers();
    let length = json!({"description": "How many bytes of the body are JSON, where tensors follow it.",
        "schema": {"type": "integer", "minimum": 0}});
    headers.insert(HEAD_LENGTH.to_owned(), length);
    of_task(id, "Ask a task with tensors")
        .describe(
            "Goals stand in `parameters`, headers or the query string. A picture or a text is one element of BYTES. Tensors may \
             follow the JSON in binary form; `Inference-Header-Content-Length` then says how long the JSON is.",
        )
        .parameters(goals())
        .parameter(json!({"name": HEAD_LENGTH, "in": "header", "required": false, "schema": {"type": "integer", "minimum": 0},
            "description": "How many bytes of the body are JSON, where tensors follow; 0 where all of it is one tensor."}))
        .body(
            true,
            json!({
                "application/json": {"schema": body},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            }),
        )
        .answers_as(
            200,
            json!({
                "description": "The outputs; the decision is in `parameters` and in the headers.",
                "headers": headers,
                "content": {
                    "application/json": {"schema": tensors::inferred()},
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                },
            }),
        )
        .errors(&[400, 404, 408, 413, 415, 422, 429, 501, 503, 504])
}

pub(crate) fn infer() -> Doc {
    infer_as("oipInfer")
}

pub(crate) fn infer_of_version() -> Doc {
    infer_as("oipInferByVersion").parameter(path("version", "The number of the variant that is to answer."))
}

pub(crate) fn index() -> Doc {
    let body = json!({"type": "object", "properties": {
        "ready": {"type": "boolean"}, "parameters": {"type": ["object", "null"], "description": "Of no account here.",
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}}});
    doc("oipIndex", "Every variant of every task, and whether it is in memory")
        .json_body(false, &body)
        .answers(200, "By task and number.", &tensors::index())
        .errors(&[400, 408, 413, 429])
}

pub(crate) fn load() -> Doc {
    let body = json!({"type": "object", "properties": {
        "ready": {"type": "boolean"},
        "parameters": {"type": ["object", "null"], "additionalProperties": false,
            "properties": {"version": {"type": ["string", "number", "null"]}}},
    }, "example": {"parameters": {}}});
    of_task("oipLoad", "Have a variant loaded")
        .describe(
            "The one with the number `version`, else the most accurate one. Answered when it is in memory.",
        )
        .json_body(false, &body)
        .answers(200, "It is in memory.", &object())
        .errors(&[400, 404, 408, 413, 429, 503])
}

pub(crate) fn unload() -> Doc {
    let body = json!({"type": "object", "properties": {
        "ready": {"type": "boolean"},
        "parameters": {"type": ["object", "null"], "additionalProperties": false, "properties": {
            "version": {"type": ["string", "number", "null"]}, "unload_dependents": {"type": ["boolean", "null"]},
        }},
    }, "example": {"parameters": {}}});
    of_task("oipUnload", "Have a task's variants leave memory, or one of them")
        .describe(
            "All of them, or the one with the number `version`. Answered when they have left; what is busy finishes first. A query that \
             needs one has it loaded again; what the plan pins is back after a minute.",
        )
        .json_body(false, &body)
        .answers(200, "It is not in memory.", &object())
        .errors(&[400, 403, 404, 408, 413, 429, 503])
}

/// Settings that are not there: of Triton's tracing, and of its log.
fn no_settings(id: &'static str, summary: &'static str) -> Doc {
    doc(id, summary).answers(200, "There are none.", &json!({"type": "object", "maxProperties": 0}))
}

fn not_set(doc: Doc) -> Doc {
    let body = json!({"type": "object", "description": "By name. None can be set, so all but an empty one is refused."});
    doc.json_body(false, &body).errors(&[400, 404, 408, 413, 415, 429, 501])
}

pub(crate) fn trace() -> Doc {
    no_settings("oipTrace", "Settings of Triton's tracing: there are none")
}

pub(crate) fn trace_of_task() -> Doc {
    no_settings("oipTraceOfTask", "The same of one task").parameter(task_parameter()).errors(&[404])
}

pub(crate) fn set_trace() -> Doc {
    not_set(no_settings("oipSetTrace", "Set Triton's tracing: not served"))
}

pub(crate) fn set_trace_of_task() -> Doc {
    not_set(no_settings("oipSetTraceOfTask", "The same of one task").parameter(task_parameter()))
}

pub(crate) fn log() -> Doc {
    no_settings("oipLog", "Settings of Triton's log: there are none")
}

pub(crate) fn set_log() -> Doc {
    not_set(no_settings("oipSetLog", "Set Triton's log: not served"))
}
