//! OpenAI's embeddings.

use super::query::goals;
use super::schemas::reference;
use super::{Doc, task_parameter};
use serde_json::json;

const TAG: &str = "openai";

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
