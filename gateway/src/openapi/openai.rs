//! OpenAI's embeddings.

use super::query::goals;
use super::schemas::reference;
use super::{Doc, task_parameter};
use serde_json::{Value, json};

pub(super) const TAG: &str = "openai";
/// The form that OpenAI's clients look for in errors.
pub(super) const ERROR: &str = "OpenAiError";

/// That form.
pub(super) fn error() -> Value {
    let error = json!({
        "type": "object",
        "required": ["message", "type", "code"],
        "properties": {
            "message": {"type": "string", "description": "For people."},
            "type": {"type": "string", "enum": ["invalid_request_error", "server_error"]},
            "param": {"type": "null"},
            "code": {"type": "string", "description": "For programs; as `reason` elsewhere."},
        },
    });
    json!({"type": "object", "required": ["error"], "properties": {"error": error}})
}

pub(crate) fn models() -> Doc {
    Doc::new("openaiModels", TAG, "Tasks of vectors, as models").answers(
        200,
        "Their names.",
        &json!({"type": "object"}),
    )
}

pub(crate) fn model() -> Doc {
    Doc::new("openaiModel", TAG, "One of them")
        .parameter(task_parameter())
        .answers(200, "It is there.", &json!({"type": "object"}))
        .errors(&[404])
}

pub(crate) fn embeddings() -> Doc {
    let body = json!({
        "type": "object",
        "required": ["model", "input"],
        "additionalProperties": false,
        "properties": {
            "model": {"type": "string", "description": "The task's name."},
            "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
            "encoding_format": {"type": "string", "enum": ["float", "base64"]},
            "dimensions": {"type": ["integer", "null"], "minimum": 1},
            "user": {"type": ["string", "null"]},
            "goals": reference("Goals"),
        },
        "example": {"model": "vectors", "input": "a ship"},
    });
    Doc::new("openaiEmbeddings", TAG, "Vectors of texts")
        .describe(
            "Goals stand in `goals`, headers or the query string. Tokens are not counted: `usage` is 0.",
        )
        .parameters(goals())
        .json_body(true, &body)
        .answers(200, "The vectors, in order; the decision is in the headers.", &json!({"type": "object"}))
        .errors(&[400, 404, 408, 413, 415, 422, 429, 503, 504])
}
