//! Offline jobs.

use super::schemas::goals_without;
use super::{Doc, path, query_parameter};
use crate::goals::Goal;
use crate::routes::{DEADLINE_MAX_S, INPUT_NAME_MAX, JOB_NAME_MAX, OUTPUTS, OUTPUTS_MAX};
use modelless_store::{JOB_INPUTS_AT_ONCE, JOB_INPUTS_MAX};
use modelless_types::JobState;
use serde_json::{Value, json};

const TAG: &str = "jobs";

fn job_parameter() -> Value {
    path("job", "The job's number.")
}

fn name(most: usize) -> Value {
    json!({"type": ["string", "null"], "minLength": 1, "maxLength": most, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"})
}

fn moment() -> Value {
    json!({"type": ["integer", "null"]})
}

fn job() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    let money = json!({"type": ["number", "null"], "minimum": 0});
    json!({"type": "object", "required": ["job", "task", "state", "inputs", "done", "failed"], "properties": {
        "job": {"type": "integer"},
        "name": {"type": "string"},
        "task": {"type": "string"},
        "goals": {"type": ["object", "null"]},
        "state": {"type": "string", "enum": JobState::ALL.map(JobState::name)},
        "why": {"type": ["string", "null"], "description": "Why it ended, where that was not because it was done."},
        "inputs": count, "received": count, "done": count, "failed": count,
        "waiting_bytes": {"type": "integer", "description": "What its inputs that have not ended take."},
        "kept_bytes": {"type": "integer", "description": "What its outputs take."},
        "estimate_usd": money, "cost_usd": money, "device_s": {"type": "number"},
        "late": {"type": "boolean"},
        "made_unix_us": moment(), "started_unix_us": moment(), "ended_unix_us": moment(), "deadline_unix_us": moment(),
        "tenant": {"type": ["string", "null"]}, "application": {"type": ["string", "null"]},
    }})
}

pub(crate) fn create() -> Doc {
    let mut goals = goals_without(&[Goal::LatencyMs, Goal::Priority, Goal::Fallback]);
    goals["type"] = json!(["object", "null"]);
    goals["description"] = json!("As those of a query, but for `latency_ms`, `priority` and `fallback`.");
    let body = json!({
        "type": "object",
        "required": ["task", "inputs"],
        "additionalProperties": false,
        "properties": {
            "task": {"type": "string"},
            "inputs": {"type": "integer", "minimum": 1, "maximum": JOB_INPUTS_MAX, "description": "How many it will have."},
            "name": name(JOB_NAME_MAX),
            "goals": goals,
            "deadline_s": {"type": ["integer", "null"], "minimum": 1, "maximum": DEADLINE_MAX_S,
                "description": "In how many seconds it should be done."},
        },
        "example": {"task": "fashion", "inputs": 10_000, "goals": {"accuracy": 0.9}},
    });
    let estimate = json!({"type": "object", "properties": {"estimate": {"type": "object", "properties": {
        "usd": {"type": ["number", "null"]}, "device_s": {"type": ["number", "null"]}, "variant": {"type": ["string", "null"]},
    }}}});
    Doc::new("createJob", TAG, "Make an offline job")
        .describe(
            "Many inputs of one task, answered while nothing else has to be. It has no inputs yet: give them with `giveJobInputs`, \
             then `startJob`.",
        )
        .parameter(query_parameter("dry_run", "Only say what it would cost.", &json!({"type": "boolean"})))
        .json_body(true, &body)
        .answers(200, "What it would cost (`dry_run`).", &estimate)
        .answers(201, "Made.", &job())
        .errors(&[400, 404, 408, 409, 413, 415, 422, 503])
}

pub(crate) fn list() -> Doc {
    let schema = json!({"type": "object", "properties": {"jobs": {"type": "array", "items": job()}}});
    Doc::new("listJobs", TAG, "Jobs of your application, or with the scope `admin` of your tenant")
        .answers(200, "Newest first.", &schema)
        .errors(&[503])
}

pub(crate) fn show() -> Doc {
    Doc::new("showJob", TAG, "One job")
        .parameter(job_parameter())
        .answers(200, "The job.", &job())
        .errors(&[404, 503])
}

pub(crate) fn give() -> Doc {
    let input = |with: &str, body: Value| {
        let mut input = json!({"type": "object", "required": ["at", with], "additionalProperties": false, "properties": {
            "at": {"type": "integer", "minimum": 0, "maximum": JOB_INPUTS_MAX - 1, "description": "Its place, from 0."},
            "name": name(INPUT_NAME_MAX),
            "type": {"type": ["string", "null"], "description": "The content type that a query's body would have."},
        }});
        // A null is as good as nothing.
        for other in ["data", "json"] {
            input["properties"][other] = json!({"type": "null"});
        }
        input["properties"][with] = body;
        input
    };
    let base64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$";
    let data = json!({"type": "string", "pattern": base64, "contentEncoding": "base64", "description": "A query's body."});
    let written = json!({"not": {"type": "null"}, "description": "The JSON body of a query."});
    let input = json!({"oneOf": [input("data", data), input("json", written)]});
    let body = json!({
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": false,
        "properties": {"inputs": {"type": "array", "minItems": 1, "maxItems": JOB_INPUTS_AT_ONCE, "items": input}},
        "example": {"inputs": [{"at": 0, "name": "boot.png", "type": "image/png", "data": "iVBORw0KGgo="}]},
    });
    Doc::new("giveJobInputs", TAG, "Give a job inputs")
        .describe(
            "The same again changes nothing, so whoever does not know whether they came gives them again.",
        )
        .parameter(job_parameter())
        .json_body(true, &body)
        .answers(200, "They are kept.", &job())
        .errors(&[400, 404, 408, 409, 413, 415, 503])
}

pub(crate) fn missing() -> Doc {
    let limit = json!({"type": "integer", "minimum": 1, "maximum": 100_000, "default": 1_000});
    let schema = json!({"type": "object", "properties": {
        "missing": {"type": "array", "items": {"type": "integer"}}, "job": job(),
    }});
    Doc::new("missingJobInputs", TAG, "Which inputs of a job have not come")
        .parameter(job_parameter())
        .parameter(query_parameter("limit", "How many at most.", &limit))
        .answers(200, "Their places, in order.", &schema)
        .errors(&[400, 404, 503])
}

pub(crate) fn start() -> Doc {
    Doc::new("startJob", TAG, "All inputs have come: begin")
        .parameter(job_parameter())
        .answers(200, "It runs.", &job())
        .errors(&[404, 409, 503])
}

pub(crate) fn cancel() -> Doc {
    Doc::new("cancelJob", TAG, "End a job; what was done is kept")
        .parameter(job_parameter())
        .answers(200, "It has ended.", &job())
        .errors(&[404, 503])
}

pub(crate) fn outputs() -> Doc {
    let from = json!({"type": "integer", "minimum": 0, "maximum": JOB_INPUTS_MAX, "default": 0});
    let limit = json!({"type": "integer", "minimum": 1, "maximum": OUTPUTS_MAX, "default": OUTPUTS});
    let output = json!({"type": "object", "required": ["at", "name"], "properties": {
        "at": {"type": "integer"}, "name": {"type": "string"},
        "answer": {"description": "As a query gets it."}, "variant": {"type": "string"},
        "device_ms": {"type": "number"}, "cost_usd_per_1k": {"type": "number"},
        "reason": {"type": "string", "description": "Why there is no answer."}, "message": {"type": "string"},
        "ended_unix_us": {"type": "integer"},
    }});
    let schema = json!({"type": "object", "properties": {
        "outputs": {"type": "array", "items": output},
        "next": {"type": ["integer", "null"], "description": "Give this as `from` to go on."},
        "job": job(),
    }});
    Doc::new("listJobOutputs", TAG, "How inputs of a job ended")
        .describe("In the order of their places; those that have not ended are left out.")
        .parameter(job_parameter())
        .parameter(query_parameter("from", "From this place on.", &from))
        .parameter(query_parameter("limit", "How many at most.", &limit))
        .answers(200, "In order.", &schema)
        .errors(&[400, 404, 503])
}

pub(crate) fn remove() -> Doc {
    let schema = json!({"type": "object", "properties": {"removed": {"type": "integer"}}});
    Doc::new("removeJob", TAG, "Remove a job that has ended, with its outputs")
        .parameter(job_parameter())
        .answers(200, "Removed.", &schema)
        .errors(&[404, 409, 503])
}
