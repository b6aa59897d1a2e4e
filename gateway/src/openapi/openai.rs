//! OpenAI's embeddings.

use super::query::goals;
use super::schemas::{object, reference};
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

/// A task as OpenAI's clients expect a model.
fn a_model() -> Value {
    let properties = json!({
        "id": {"type": "string", "description": "The task's name."},
        "object": {"const": "model"},
        "created": {"type": "integer", "minimum": 0},
        "owned_by": {"type": "string"},
    });
    object(properties, &["id", "object", "created", "owned_by"])
}

fn list(of: &Value) -> Value {
    object(json!({"object": {"const": "list"}, "data": {"type": "array", "items": of}}), &["object", "data"])
}

fn vectors() -> Value {
    let vector = json!({"anyOf": [
        {"type": "array", "items": {"type": "number"}},
        {"type": "string", "description": "Little-endian 32-bit floats as base64, where `encoding_format` asks for it."},
    ]});
    let one = json!({
        "object": {"const": "embedding"},
        "index": {"type": "integer", "minimum": 0},
        "embedding": vector,
    });
    let tokens = json!({"prompt_tokens": {"const": 0}, "total_tokens": {"const": 0}});
    let mut all = list(&object(one, &["object", "index", "embedding"]));
    all["properties"]["model"] = json!({"type": "string", "description": "The model that answered."});
    all["properties"]["usage"] = object(tokens, &["prompt_tokens", "total_tokens"]);
    all["required"] = json!(["object", "data", "model", "usage"]);
    all
}

pub(crate) fn models() -> Doc {
    Doc::new("openaiModels", TAG, "Tasks of vectors, as models").answers(
        200,
        "Their names.",
        &list(&a_model()),
    )
}

pub(crate) fn model() -> Doc {
    Doc::new("openaiModel", TAG, "One of them")
        .parameter(task_parameter())
        .answers(200, "It is there.", &a_model())
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
        .answers(200, "The vectors, in order; the decision is in the headers.", &vectors())
        .errors(&[400, 404, 408, 413, 415, 422, 429, 503, 504])
}
