//! Tasks.

use super::schemas::reference;
use super::{Doc, task_parameter};
use serde_json::json;

pub(crate) fn list() -> Doc {
    let schema =
        json!({"type": "object", "properties": {"tasks": {"type": "array", "items": reference("Task")}}});
    Doc::new("listTasks", "tasks", "All tasks").answers(200, "In the order of names.", &schema)
}

pub(crate) fn create() -> Doc {
    let schema =
        json!({"type": "object", "properties": {"task": {"type": "string"}, "id": {"type": "integer"}}});
    Doc::new("createTask", "tasks", "Make a task")
        .json_body(true, &reference("NewTask"))
        .answers(201, "Made.", &schema)
        .errors(&[400, 409, 413, 415])
}

pub(crate) fn show() -> Doc {
    let schema = json!({"allOf": [reference("Task"), {"type": "object", "properties": {
        "labels": {"type": "array", "items": {"type": "string"}},
        "models": {"type": "array", "items": reference("Model")},
        "variants": {"type": "array", "items": reference("Variant")},
        "wake_ms": {"type": ["number", "null"], "description": "What the first query takes that has to wait for a load (99 times in 100, estimated): of what answers without a pin, the quickest to come. Null where something is in memory."},
    }}]});
    Doc::new("showTask", "tasks", "One task with its variants")
        .describe("Each variant with its profiles, where every figure came from, and whether it is on the frontier.")
        .parameter(task_parameter())
        .answers(200, "The task.", &schema)
        .errors(&[404])
}

pub(crate) fn change() -> Doc {
    let schema = json!({"type": "object", "required": ["task", "live_accuracy"], "properties": {
        "task": {"type": "string"}, "live_accuracy": {"type": "string"}, "declared_accuracy": {"type": "string"},
        "cache": {"type": "string"}, "keep": {"type": "string"},
    }});
    Doc::new("changeTask", "tasks", "Change a task's rules")
        .describe(
            "What is left out stays. Queries that were taken in before are answered as they were admitted.",
        )
        .parameter(task_parameter())
        .json_body(true, &reference("ChangeTask"))
        .answers(200, "The rules that hold now.", &schema)
        .errors(&[400, 404, 415, 503])
}

pub(crate) fn remove() -> Doc {
    let schema = json!({"type": "object", "properties": {"removed": {"type": "string"}}});
    Doc::new("removeTask", "tasks", "Remove a task that has no models")
        .parameter(task_parameter())
        .answers(200, "Removed.", &schema)
        .errors(&[404, 409])
}
