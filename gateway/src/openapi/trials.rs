//! Versions on trial.

use super::schemas::{name, reference};
use super::{Doc, query_parameter, task_parameter};
use crate::routes::{TRIALS_SHOWN, TRIALS_SHOWN_MAX};
use serde_json::{Value, json};

fn one(with: Value) -> Value {
    let mut schema =
        json!({"type": "object", "required": ["trial"], "properties": {"trial": reference("Trial")}});
    if let Value::Object(more) = with {
        more.into_iter().for_each(|(name, value)| schema["properties"][name] = value);
    }
    schema
}

pub(crate) fn begin() -> Doc {
    let told = json!({"told": {"type": "array", "items": {"type": "string"}, "description": "What is not known of it, and what is lost by force."}});
    Doc::new("beginTrial", "models", "Try a version with a share of the task's queries")
        .describe(
            "Queries that pin neither model nor variant are drawn by their number; those that are drawn are answered by the version \
             as far as it keeps their goals, floors above all. It is compared with what answers the others, and is asked no longer \
             once it does worse. Of each task one version is on trial at a time.",
        )
        .parameter(task_parameter())
        .json_body(true, &reference("Try"))
        .answers(201, "It is on trial.", &one(told))
        .errors(&[400, 404, 409, 415, 503])
}

pub(crate) fn show() -> Doc {
    Doc::new("showTrial", "models", "The trial of a task that runs, or else the last one")
        .describe("What was counted is that of all gateways, a second or so ago.")
        .parameter(task_parameter())
        .answers(200, "How it stands.", &one(Value::Null))
        .errors(&[404, 503])
}

pub(crate) fn stop() -> Doc {
    Doc::new("stopTrial", "models", "Stop the trial of a task")
        .parameter(task_parameter())
        .parameter(query_parameter("by", "Who does it, for the history. Nothing proves it.", &name()))
        .answers(200, "It ended. Nothing else changes.", &one(Value::Null))
        .errors(&[400, 404, 503])
}

pub(crate) fn list() -> Doc {
    let number =
        json!({"type": "integer", "minimum": 1, "maximum": TRIALS_SHOWN_MAX, "default": TRIALS_SHOWN});
    let schema = json!({"type": "object", "required": ["trials"], "properties": {
        "trials": {"type": "array", "items": reference("Trial")},
    }});
    Doc::new("listTrials", "models", "Trials of versions, newest first")
        .parameter(query_parameter("task", "Only of this task.", &json!({"type": "string"})))
        .parameter(query_parameter("limit", "How many to show.", &number))
        .answers(200, "Those that run and those that ended.", &schema)
        .errors(&[400, 404, 503])
}
