//! Nodes, replicas, health, and this document itself.

use super::schemas::reference;
use super::{Doc, query_parameter};
use crate::routes::{SHOWN, SHOWN_MAX, TRANSITIONS, TRANSITIONS_MAX};
use serde_json::json;

pub(crate) fn nodes() -> Doc {
    let schema =
        json!({"type": "object", "properties": {"nodes": {"type": "array", "items": reference("Node")}}});
    Doc::new("listNodes", "fleet", "Nodes").answers(200, "Gone ones included.", &schema)
}

pub(crate) fn members() -> Doc {
    let all = json!({"type": "array", "items": {"type": "object"}});
    let schema = json!({"type": "object", "properties": {"members": all, "demand": all}});
    Doc::new(
        "listMembers",
        "fleet",
        "Processes that announce themselves, and what is asked of all gateways, class by class",
    )
    .answers(
        200,
        "As the live state tells, a second or so ago; empty while it is away at the start.",
        &schema,
    )
}

pub(crate) fn pools() -> Doc {
    let all = json!({"type": "array", "items": {"type": "object"}});
    let schema = json!({"type": "object", "properties": {"pools": all}});
    Doc::new("listPools", "fleet", "Pools of rented machines, with how many there should be and why").answers(
        200,
        "As the scheduler that leads last saw them.",
        &schema,
    )
}

pub(crate) fn machines() -> Doc {
    let number = json!({"type": "integer", "minimum": 0, "maximum": SHOWN_MAX, "default": SHOWN});
    let all = json!({"type": "array", "items": {"type": "object"}});
    let schema = json!({"type": "object", "properties": {"machines": all, "changes": all}});
    Doc::new("listMachines", "fleet", "Rented machines, and what became of them")
        .parameter(query_parameter("ended", "How many of those that ended to show, newest first.", &number))
        .parameter(query_parameter("changes", "How many changes to show, newest first.", &number))
        .parameter(query_parameter("name", "Only this one, ended or not.", &json!({"type": "string"})))
        .answers(200, "Who, when, why.", &schema)
        .errors(&[400, 404])
}

pub(crate) fn replicas() -> Doc {
    let number = json!({"type": "integer", "minimum": 0, "maximum": TRANSITIONS_MAX, "default": TRANSITIONS});
    let schema = json!({"type": "object", "properties": {
        "replicas": {"type": "array", "items": reference("Replica")},
        "transitions": {"type": "array", "items": reference("Transition")},
    }});
    Doc::new("listReplicas", "fleet", "Replicas, and what happened to them lately")
        .parameter(query_parameter("transitions", "How many transitions to show, newest first.", &number))
        .answers(200, "Who, when, why.", &schema)
        .errors(&[400])
}

pub(crate) fn live() -> Doc {
    let schema = json!({"type": "object", "properties": {"live": {"type": "boolean"}}});
    Doc::new("live", "health", "Whether it lives").answers(200, "It does.", &schema)
}

pub(crate) fn ready() -> Doc {
    let schema =
        json!({"type": "object", "properties": {"ready": {"type": "boolean"}, "live": {"type": "boolean"}}});
    Doc::new("ready", "health", "Whether it takes queries").answers(200, "It does.", &schema).answers(
        503,
        "It does not yet, or no longer.",
        &schema,
    )
}

pub(crate) fn metrics() -> Doc {
    Doc::new("metrics", "health", "Prometheus metrics").answers_as(
        200,
        json!({
            "description": "In the OpenMetrics text format.",
            "content": {"application/openmetrics-text": {"schema": {"type": "string"}}},
        }),
    )
}

pub(crate) fn openapi() -> Doc {
    Doc::new("openapi", "health", "This document").answers(200, "OpenAPI 3.1.", &json!({"type": "object"}))
}
