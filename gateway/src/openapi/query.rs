//! Asking, and asking why.

use super::schemas::{goal, goal_words, reference};
use super::{Doc, path, task_parameter};
use crate::goals::Goal;
use crate::routes::LIST_MAX;
use serde_json::{Map, Value, json};

/// A picture of one grey pixel, so that the example is a valid input.
pub(crate) const PIXEL_PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==";

/// Each goal as a query parameter and as a header.
pub(super) fn goals() -> Vec<Value> {
    let parameter = |place: &str, name: String, of: Goal| json!({"name": name, "in": place, "required": false, "description": goal_words(of), "schema": goal(of)});
    let query = Goal::ALL.into_iter().map(|of| parameter("query", of.name().to_owned(), of));
    let header = Goal::ALL
        .into_iter()
        .map(|of| parameter("header", format!("modelless-{}", of.name().replace('_', "-")), of));
    query.chain(header).collect()
}

fn json_body(required: &[&str]) -> Value {
    json!({
        "type": "object",
        "required": required,
        "additionalProperties": false,
        "properties": {
            "inputs": {
                "description": "For pictures, the file in base64; for texts, one or a list of them; for `tensor` tasks, named arrays.",
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": LIST_MAX},
                    {"type": "array", "items": {"type": "object", "required": ["name", "datatype", "shape", "data"],
                        "properties": {
                            "name": {"type": "string"},
                            "datatype": {"type": "string"},
                            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                            "data": {"type": "array"},
                        }}},
                ],
                "example": PIXEL_PNG,
            },
            "parameters": {"type": ["object", "null"], "description": "How the answer is to look, such as `top_k`."},
            "goals": reference("Goals"),
        },
    })
}

/// What the headers of an answer say.
pub(super) fn decision_headers() -> Map<String, Value> {
    let text = [
        ("modelless-model", "Which model answered."),
        ("modelless-variant", "Which variant of it."),
        ("modelless-accuracy-provenance", "Where its accuracy comes from: `measured`, `declared` or `live`."),
        ("modelless-node", "On which node."),
        ("modelless-space", "The output space of the answer."),
        (
            "modelless-cache",
            "Of tasks whose answers may be given again: `hit` if this one was given before, else `miss`; `some` of several. `age` says how many seconds ago.",
        ),
        (
            "modelless-query",
            "The query as the server's log and traces name it; of several the slowest. Refusals have it, too.",
        ),
        ("modelless-reason", "Why this variant."),
        (
            "modelless-trial",
            "The trial that the query was drawn for, where it was: the version on trial answered.",
        ),
        ("modelless-query-id", "The query's signed name, for feedback."),
    ];
    let numbers = [
        ("modelless-accuracy", "The variant's accuracy that the floor was compared with."),
        ("modelless-batch", "Queries in the batch."),
        ("modelless-cost", "Dollars per 1,000 such queries."),
        ("modelless-predicted-ms", "From arrival to the answer as expected when the query was sent (p99)."),
        ("modelless-predicted-run-ms", "Time on the device as expected (p99)."),
        ("modelless-queue-ms", "Waiting at the gateway and at the node."),
        ("modelless-decode-ms", "Decoding the input."),
        ("modelless-prepare-ms", "Writing the batch."),
        ("modelless-run-ms", "On the device."),
        ("modelless-total-ms", "From arrival at the gateway to the answer."),
    ];
    let header = |(name, words): (&str, &str), kind| {
        (name.to_owned(), json!({"description": words, "schema": {"type": kind}}))
    };
    let numbers = numbers.into_iter().map(|entry| header(entry, "number"));
    text.into_iter().map(|entry| header(entry, "string")).chain(numbers).collect()
}

pub(crate) fn answer() -> Doc {
    let binary = || json!({"schema": {"type": "string", "format": "binary"}});
    Doc::new("ask", "queries", "Ask a task")
        .describe(
            "The body is the raw input, or JSON around it. Goals may stand in the query string, in headers or in the \
             JSON `goals`; the same goal given twice must have the same value.",
        )
        .parameter(task_parameter())
        .parameters(goals())
        .body(
            true,
            json!({
                "application/json": {"schema": json_body(&["inputs"])},
                "image/jpeg": binary(),
                "image/png": binary(),
                "text/plain": {"schema": {"type": "string"}},
                "application/octet-stream": binary(),
            }),
        )
        .answers_as(
            200,
            json!({
                "description": "The answer in Hugging Face's shape; the decision is in the headers.",
                "headers": decision_headers(),
                "content": {"application/json": {"schema": {"anyOf": [
                    reference("Classification"),
                    reference("Vector"),
                    {"type": "array", "description": "One answer for each text of a list, in its order."},
                    {"type": "object", "description": "Named arrays, for `tensor` tasks."},
                ]}}},
            }),
        )
        .errors(&[400, 404, 408, 413, 415, 422, 429, 503, 504])
}

pub(crate) fn feedback() -> Doc {
    let body = json!({
        "description": "One of the two.",
        "type": "object",
        "additionalProperties": false,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "label": {"type": "string", "description": "The right label."},
            "verdict": {"type": "string", "enum": ["correct", "wrong"]},
        },
        "example": {"verdict": "correct"},
    });
    let answer = json!({"type": "object", "properties": {
        "stored": {"type": "string", "enum": ["new", "changed", "said before"]},
        "task": {"type": "string"}, "variant": {"type": ["string", "null"]},
        "verdict": {"type": "string", "enum": ["correct", "wrong"]},
        "live_accuracy": {"type": "object"},
    }});
    let mut query =
        path("query", "The answer's `modelless-query-id`; one of them, where several texts were asked.");
    query["schema"] = json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{52}$"});
    Doc::new("feedback", "queries", "Say whether an answer was right")
        .describe(
            "Given twice, the last verdict stands. Any gateway of a cluster takes it, whichever answered. The label is compared \
             with the best of the answer.",
        )
        .parameter(query)
        .json_body(true, &body)
        .answers(200, "It is stored; with what all verdicts on that variant come to.", &answer)
        .errors(&[400, 404, 408, 410, 413, 415, 429, 503])
}

pub(crate) fn recall() -> Doc {
    let number = || json!({"type": ["number", "null"]});
    let stage = json!({"type": "object", "required": ["stage", "expected_ms", "took_ms"], "properties": {
        "stage": {"type": "string"}, "expected_ms": number(), "took_ms": number(),
    }});
    let did = json!({"type": "object", "required": ["action"], "properties": {
        "action": {"type": "string", "enum": ["sent", "announced", "claimed", "waits", "refused"]}, "node": {"type": ["string", "null"]},
        "nodes": {"type": "integer", "description": "To so many nodes it was announced."},
        "predicted_ms": number(), "at_most_ms": number(), "reason": {"type": "string"},
        "joined": {"type": "boolean", "description": "Sent with others of its class whose batch had not begun, be it that another node would have begun it sooner."},
    }});
    let part =
        |what: &str| json!({"type": ["number", "null"], "minimum": 0, "maximum": 1, "description": what});
    let share = json!({"type": "object", "required": ["used", "share", "because"], "description": "How its application stood, where the task's applications share and not all could be answered in time.", "properties": {
        "used": part("Of the devices' time that the task got lately."), "share": part("What it may count on: what is reserved for it, or by weight among those who ask, whichever is more."),
        "weight": {"type": "integer"}, "reserve": part("What is reserved for it."), "within_reserve": {"type": "boolean"}, "because": {"type": "string"},
    }});
    let decision = json!({"allOf": [reference("Explanation"), {"type": "object", "properties": {
        "after_ms": number(), "did": did, "nodes_left_out": {"type": "integer", "minimum": 0}, "share": share,
    }}]});
    let schema = json!({"type": "object", "required": ["query", "asked", "outcome", "stages", "decisions"], "properties": {
        "query": {"type": "string"}, "at_unix_us": {"type": "integer"}, "task": {"type": ["string", "null"]}, "tenant": {"type": "string"},
        "app": {"type": "string"}, "asked": {"type": "object"}, "outcome": {"type": "string"}, "variant": {"type": ["string", "null"]},
        "node": {"type": ["string", "null"]}, "batch": {"type": "integer"}, "why": {"type": "string"},
        "stages": {"type": "array", "items": stage}, "decisions": {"type": "array", "items": decision},
    }});
    let mut query =
        path("query", "The answer's or refusal's `modelless-query`, or an answer's `modelless-query-id`.");
    query["schema"] = json!({"type": "string", "pattern": "^([0-9a-fA-F]{16}|[A-Za-z0-9_-]{52})$"});
    Doc::new("explainQuery", "queries", "What became of a query, and why?")
        .describe(
            "Each decision on it is made again by the calls that made it, from what the gateway saw then. The gateway that was asked              the query keeps the last 1,024; another one says which that is (`kept_elsewhere`).",
        )
        .parameter(query)
        .answers(200, "What it came to, what was expected of each stage, and every candidate of each decision.", &schema)
        .errors(&[400, 404, 429])
}

fn explanation(id: &'static str, summary: &'static str) -> Doc {
    Doc::new(id, "queries", summary)
        .describe("What would be decided for a query with these goals that came now. Nothing is run.")
        .parameter(task_parameter())
        .parameters(goals())
        .answers(200, "Every candidate with what spoke for or against it.", &reference("Explanation"))
        .errors(&[400, 404, 408, 413, 415, 422, 429])
}

pub(crate) fn explain_get() -> Doc {
    explanation("explain", "Why would which variant be taken?")
}

pub(crate) fn explain_post() -> Doc {
    explanation("explainWithBody", "The same with goals in a JSON body").json_body(false, &json_body(&[]))
}
