//! Plans, what happened, and what a replica's state rests on.

use super::schemas::reference;
use super::{Doc, path, query_parameter};
use crate::routes::{
    A_SECOND, A_SECOND_MAX, EVENT_STREAM, EVENTS, EVENTS_MAX, PLANS, PLANS_MAX, WAIT_MS_MAX,
};
use serde_json::{Value, json};

fn number(least: u32, most: u32, default: u32) -> Value {
    json!({"type": "integer", "minimum": least, "maximum": most, "default": default})
}

fn all(name: &str, of: &Value) -> Value {
    json!({"type": "object", "properties": {name: {"type": "array", "items": of}}})
}

fn change() -> Value {
    json!({"type": "object", "properties": {
        "node": {"type": ["string", "null"]}, "variant": {"type": ["string", "null"]}, "task": {"type": ["string", "null"]}, "device": {"type": "integer"},
        "change": {"type": "string", "enum": ["pin", "unpin"]}, "why": {"type": "string"},
    }})
}

fn step_of_plan() -> Value {
    json!({"type": "object", "properties": {
        "node": {"type": ["string", "null"]}, "variant": {"type": ["string", "null"]}, "task": {"type": ["string", "null"]},
        "pinned": {"type": "boolean"}, "why": {"type": "string"}, "beaten_by": {"type": ["string", "null"]},
    }})
}

fn plan() -> Value {
    json!({"type": "object", "properties": {
        "id": {"type": "integer"}, "parent": {"type": ["integer", "null"]}, "at_unix_us": {"type": "integer"},
        "pins": {"type": "integer"}, "discretionary_permille": {"type": ["integer", "null"]},
        "changes": {"type": ["array", "null"], "items": change()},
        "steps": {"type": "array", "items": step_of_plan()},
    }})
}

pub(crate) fn replica() -> Doc {
    let schema = all("replicas", &reference("Replica"));
    Doc::new("showReplica", "fleet", "A variant on a node: its state, what that rests on, its history")
        .parameter(path("node", "The node's name."))
        .parameter(path("variant", "The variant's name."))
        .answers(200, "One for each task that has a variant of this name.", &schema)
        .errors(&[404, 503])
}

pub(crate) fn events() -> Doc {
    let event = json!({"type": "object", "properties": {
        "seq": {"type": "integer"}, "kind": {"type": "string"}, "node": {"type": ["string", "null"]},
        "variant": {"type": ["string", "null"]}, "task": {"type": ["string", "null"]}, "what": {"type": "string"}, "cause": {"type": "string"},
        "who": {"type": "string"}, "at_unix_us": {"type": "integer"},
    }});
    let mut schema = all("events", &event);
    schema["properties"]["last"] =
        json!({"type": "integer", "description": "Give this as `after` to go on."});
    let after = json!({"type": "integer", "minimum": 0});
    Doc::new("listEvents", "fleet", "What happened: states of replicas, plans, nodes that come and go")
        .parameter(query_parameter(
            "after",
            "Only those after this one, oldest first; without it the latest.",
            &after,
        ))
        .parameter(query_parameter("limit", "How many at most.", &number(1, EVENTS_MAX, EVENTS)))
        .parameter(query_parameter("wait_ms", "How long to wait for one.", &number(0, WAIT_MS_MAX, 0)))
        .answers_as(200, json!({
            "description": "Oldest first; as server-sent events where `Accept` asks for them, each with its number as id, and \
                            those that happen later too.",
            "content": {"application/json": {"schema": schema}, EVENT_STREAM: {"schema": {"type": "string"}}},
        }))
        .errors(&[400, 503])
}

pub(crate) fn decisions() -> Doc {
    let event =
        json!({"type": "string", "description": "Events, each with a decision as JSON in its `data`."});
    let stream = json!({
        "description": "They end with the connection, after ten minutes at most.",
        "content": {EVENT_STREAM: {"schema": event}},
    });
    let task = json!({"type": "string"});
    Doc::new("watchDecisions", "fleet", "What queries come to at this gateway, as they end")
        .describe(
            "Server-sent events, for those who ask for them (`Accept: text/event-stream`): of your tenant's queries; for the operator of all. `query` in each is the number that \
             its answer or refusal has as `modelless-query`, `asked` the goals with the task's defaults, and what was pinned, preferred or fallen back to where anything was. \
             `skipped` says how many ended since the last and are not told.",
        )
        .parameter(query_parameter("task", "Only of this task.", &task))
        .parameter(query_parameter("per_second", "How many at most.", &number(1, A_SECOND_MAX, A_SECOND)))
        .answers_as(200, stream)
        .errors(&[400, 404, 406, 503])
}

pub(crate) fn history() -> Doc {
    Doc::new("listPlans", "fleet", "Plans, newest first, and what each changed")
        .parameter(query_parameter("limit", "How many at most.", &number(1, PLANS_MAX, PLANS)))
        .answers(200, "Newest first.", &all("plans", &plan()))
        .errors(&[400, 503])
}

pub(crate) fn show() -> Doc {
    Doc::new("showPlan", "fleet", "A plan, with the reason for each variant on each node")
        .parameter(path("plan", "Its number, or `current`."))
        .answers(200, "The figures are those that decided then.", &plan())
        .errors(&[404, 503])
}

/// What would change, machines included.
fn next() -> Value {
    let number = || json!({"type": "number"});
    let count = || json!({"type": "integer", "minimum": 0});
    let or_null = |kind: &str| json!({"type": [kind, "null"]});
    let pool = json!({"type": "object", "properties": {
        "pool": {"type": "string"}, "least": count(), "most": count(), "wanted_least": count(), "wanted_most": count(), "there": count(),
        "paid": count(), "price_usd_per_hour": number(), "blocked": or_null("string"),
    }});
    let step = json!({"type": "object", "properties": {
        "step": {"type": "string", "enum": ["start", "drain", "take away", "give up"]}, "pool": {"type": "string"},
        "machine": or_null("string"), "why": {"type": "string"},
    }});
    let machines = json!({"type": ["object", "null"], "description": "`null` where no scheduler sees to machines.", "properties": {
        "rules": {"type": "string", "enum": ["modelless", "infaas"], "description": "Whose rules the scheduler goes by; what others than \
            its own would do is not known here, so `pools` and `steps` are empty then."},
        "pools": {"type": "array", "items": pool}, "steps": {"type": "array", "items": step},
        "usd_per_hour": {"type": "object", "properties": {"now": number(), "then": or_null("number")}},
        "budget_usd_per_hour": or_null("number"), "demand_per_s": number(), "busy": number(), "strain": number(),
        "watched": {"type": "boolean"}, "as_of_unix_us": or_null("integer"),
    }});
    json!({"type": "object", "properties": {
        "parent": or_null("integer"), "changes": {"type": "array", "items": change()}, "steps": {"type": "array", "items": step_of_plan()},
        "machines": machines,
    }})
}

/// So many queries a second, or so many times as many as now.
const RATE: &str = "^x?[0-9]{1,9}(\\.[0-9]{1,9})?$";
const AS_IF: &str =
    "By the calls that a scheduler plans with, and sees to machines with, from what this gateway sees.";

pub(crate) fn dry_run() -> Doc {
    let one = format!("[^,]*={}", RATE.trim_matches(['^', '$']));
    let demand = json!({"type": "string", "pattern": format!("^{one}(,{one})*$"), "example": "fashion=x10"});
    Doc::new("nextPlan", "fleet", "What would change if it were planned now, and why; nothing is changed")
        .parameter(query_parameter(
            "without",
            "As if this node, or the machine of this name, were not there.",
            &json!({"type": "string"}),
        ))
        .parameter(query_parameter(
            "demand",
            "As if so much were asked of tasks: `TASK=50` queries a second, or `TASK=x10` for ten times as much as in the last \
             seconds; several with commas.",
            &demand,
        ))
        .answers(200, AS_IF, &next())
        .errors(&[400, 404, 409, 503])
}

pub(crate) fn dry_run_with() -> Doc {
    let body = json!({"type": "object", "additionalProperties": false, "properties": {
        "without": {"type": ["string", "null"]},
        "demand": {"type": "object", "additionalProperties": {"type": "string", "pattern": RATE}, "maxProperties": 100},
        "pools": {"type": ["object", "null"], "required": ["busy", "pools"], "additionalProperties": false, "properties": {
            "budget": {"type": ["integer", "null"], "minimum": 0, "description": "Millionths of a dollar an hour."},
            "busy": {"type": "number", "minimum": 0.0001, "maximum": 1},
            "pools": {"type": "array", "items": {"type": "object", "required": ["rules", "joins_within_is_set", "start_up"]}, "minItems": 1, "maxItems": 20,
                "description": "As `modelless plan --dry-run --pools FILE` makes them of a file of pools."},
        }},
    }});
    Doc::new("nextPlanAsIf", "fleet", "The same, with other pools where that is wanted")
        .json_body(true, &body)
        .answers(200, AS_IF, &next())
        .errors(&[400, 404, 408, 409, 413, 415, 503])
}
