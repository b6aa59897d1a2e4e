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
        "rest": {"type": ["string", "null"], "description": "Why it sleeps or does not, as of the plan that holds. Null where it is kept always."},
        "wake_ms": {"type": ["number", "null"], "description": "What the first query takes that has to wait for a load (99 times in 100, estimated): of what answers without a pin, the quickest to come. Null where something is in memory."},
    }}]});
    Doc::new("showTask", "tasks", "One task with its variants")
        .describe("Each variant with its profiles, where every figure came from, and whether it is on the frontier.")
        .parameter(task_parameter())
        .answers(200, "The task.", &schema)
        .errors(&[404])
}

pub(crate) fn forecast() -> Doc {
    let peak = |or_none: bool| {
        let kind = if or_none { json!(["object", "null"]) } else { json!("object") };
        json!({"type": kind, "properties": {
            "at_unix_us": {"type": "integer", "description": "When the slot begins."}, "time": {"type": "string"},
            "per_s": {"type": "number", "description": "The most that comes for five seconds, a second."},
            "queries": {"type": "integer", "description": "In all of the slot."},
            "like": {"type": "string", "enum": ["days", "weekdays"], "description": "Which days it comes from: those before, or this weekday of the weeks before."},
            "on": {"type": "integer", "description": "It was asked on so many of these days."}, "of": {"type": "integer"},
            "why": {"type": "string"},
        }})
    };
    let schema = json!({"type": "object", "properties": {
        "task": {"type": "string"}, "ahead": {"type": "string"}, "keep": {"type": "string"}, "as_of_unix_us": {"type": "integer"},
        "loads_ms": {"type": "number", "description": "What its loads take together."},
        "begun_before_ms": {"type": "number", "description": "So long before they are needed they are begun."},
        "soon": peak(true), "held": peak(true), "slot_s": {"type": "integer"},
        "expected": {"type": "array", "items": peak(false)},
        "known": {"type": "object", "properties": {
            "since_unix_us": {"type": ["integer", "null"]}, "seconds": {"type": "integer"}, "slots": {"type": "integer"},
        }},
    }});
    Doc::new("forecastTask", "tasks", "What earlier days tell of a task")
        .describe(
            "What is to be expected of it in the next 24 hours, slot by slot, and on which days it was asked so. With `ahead` on, its \
             variants and machines are made ready for what comes `soon`, and stay so for what is `held`.",
        )
        .parameter(task_parameter())
        .answers(200, "What is expected.", &schema)
        .errors(&[403, 404])
}

pub(crate) fn change() -> Doc {
    let schema = json!({"type": "object", "required": ["task", "live_accuracy"], "properties": {
        "task": {"type": "string"}, "live_accuracy": {"type": "string"}, "declared_accuracy": {"type": "string"},
        "cache": {"type": "string"}, "keep": {"type": "string"},
        "ahead": {"type": "string"}, "batching": {"type": ["string", "null"]},
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
