//! Keys and tenants.

use super::schemas::name;
use super::{Doc, path, query_parameter};
use crate::goals::{COST_MAX_USD, LATENCY_MAX_MS, NAME_MAX};
use crate::routes::{AUDIT_SHOWN, AUDIT_SHOWN_MAX, EXPIRY_MAX_S, OVERLAP_MAX_S, OVERLAP_S};
use modelless_store::WEIGHT_MAX;
use modelless_types::Priority;
use serde_json::{Value, json};

fn key() -> Value {
    json!({"type": "object", "properties": {
        "id": {"type": "integer"},
        "prefix": {"type": "string", "description": "How the secret begins; all of it that is shown after it was made."},
        "name": {"type": "string"},
        "state": {"type": "string", "enum": ["valid", "expired", "revoked"]},
        "tenant": {"type": ["string", "null"]}, "app": {"type": ["string", "null"]},
        "scopes": scopes(),
        "created_unix_us": {"type": "integer"},
        "expires_unix_us": {"type": ["integer", "null"]}, "revoked_unix_us": {"type": ["integer", "null"]},
        "successor": {"type": ["integer", "null"], "description": "The key that takes its place."},
    }})
}

fn scopes() -> Value {
    json!({"type": "array", "items": {"type": "string", "enum": ["query", "register", "admin"]}})
}

fn secret() -> Value {
    json!({"type": "string", "description": "The key itself. It is told this once."})
}

fn expires() -> Value {
    json!({"type": ["integer", "null"], "minimum": 1, "maximum": EXPIRY_MAX_S,
        "description": "Seconds until it ends by itself; without it only when it is revoked."})
}

/// Of what is made from now on.
fn plain_name() -> Value {
    json!({"type": "string", "pattern": "^[a-z0-9_-]{1,200}$"})
}

fn key_parameter() -> Value {
    path("key", "The key's number, or its `prefix`.")
}

pub(crate) fn list() -> Doc {
    let schema = json!({"type": "object", "properties": {
        "keys": {"type": "array", "items": key()},
        "needed": {"type": "boolean", "description": "Whether requests need a key: from the first one on that was made."},
    }});
    Doc::new("listKeys", "access", "Keys of your tenant; for the tenant `default`, of all")
        .answers(200, "In the order in which they were made.", &schema)
        .errors(&[503])
}

pub(crate) fn create() -> Doc {
    let mut some_scopes = scopes();
    some_scopes["minItems"] = json!(1);
    let body = json!({
        "type": "object",
        "required": ["name", "scopes"],
        "additionalProperties": false,
        "properties": {
            "name": name(), "scopes": some_scopes,
            "tenant": {"type": ["string", "null"], "description": "Without it that of your key."},
            "app": {"allOf": [plain_name()], "default": "default", "description": "Made if there is none of that name."},
            "expires_in_s": expires(),
        },
        "example": {"name": "camera", "scopes": ["query"]},
    });
    let mut answer = key();
    answer["properties"]["secret"] = secret();
    Doc::new("createKey", "access", "Make a key")
        .describe(
            "The very first key is not made here but at the store (`modelless key create --data DIR` or `--database URL`): \
             where nobody needs a key this says 409.",
        )
        .json_body(true, &body)
        .answers(201, "Made. The secret is in this answer and nowhere else.", &answer)
        .errors(&[400, 404, 408, 409, 413, 415, 503])
}

pub(crate) fn rotate() -> Doc {
    let body = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "overlap_s": {"type": "integer", "minimum": 0, "maximum": OVERLAP_MAX_S, "default": OVERLAP_S,
                "description": "For so many seconds both keys are valid."},
            "expires_in_s": expires(),
        },
        "example": {"overlap_s": 3600},
    });
    let answer = json!({"type": "object", "properties": {"old": key(), "new": key(), "secret": secret()}});
    Doc::new("rotateKey", "access", "Put a new key in the place of one")
        .describe("A key is rotated once; after that this says 409 `already_rotated` and names the one in its place, and of one that has ended 409 `key_ended`.")
        .parameter(key_parameter())
        .json_body(true, &body)
        .answers(200, "Both, and the secret of the new one.", &answer)
        .errors(&[400, 404, 408, 409, 413, 415, 503])
}

pub(crate) fn revoke() -> Doc {
    Doc::new("revokeKey", "access", "End a key at once")
        .describe("Other gateways know within about a second.")
        .parameter(key_parameter())
        .answers(200, "Ended.", &key())
        .errors(&[400, 404, 503])
}

/// Of a tenant or of an application.
fn quota() -> Value {
    let bound = |words: &str| json!({"type": ["integer", "null"], "minimum": 1, "maximum": u32::MAX, "description": words});
    let bytes = |words: &str| json!({"type": ["integer", "null"], "minimum": 1, "maximum": i64::MAX, "description": words});
    json!({
        "type": "object", "additionalProperties": false,
        // A burst says nothing without a rate.
        "anyOf": [
            {"properties": {"burst": {"type": "null"}}},
            {"required": ["requests_per_s"], "properties": {"requests_per_s": {"type": "integer"}}},
        ],
        "description": "What is left out is not bounded. One for all gateways, each of which grants an equal share.",
        "properties": {
            "requests_per_s": bound("Queries a second; each row of a request is one."),
            "burst": bound("And so many at once; without it as many as in a second."),
            "device_s_per_h": bound("Seconds of devices' time in an hour; a batch's time is shared by its queries. What failed there, or was given up, counts too."),
            "concurrency": bound("Queries that are open at one time."),
            "body_bytes": bytes("Bytes of one body."),
            "artefact_bytes": bytes("Bytes of all artefacts of registered models."),
            "highest_priority": {"type": ["integer", "null"], "minimum": 1, "maximum": Priority::LOWEST,
                "description": "The highest level of priority that queries may ask for; 1 is the highest of all. Who asks for a higher one gets 403."},
        },
    })
}

fn tenant() -> Value {
    let app = json!({"type": "object", "properties": {
        "id": {"type": "integer"}, "name": {"type": "string"}, "quota": quota(),
    }});
    json!({"type": "object", "properties": {
        "id": {"type": "integer"}, "name": {"type": "string"}, "quota": quota(),
        "apps": {"type": "array", "items": app},
    }})
}

pub(crate) fn bound_tenant() -> Doc {
    let body = json!({
        "type": "object", "required": ["quota"], "additionalProperties": false,
        "properties": {
            "app": {"anyOf": [plain_name(), {"type": "null"}], "description": "Of this application; without it of the tenant with all of them. Made if there is none."},
            "quota": quota(),
        },
        "example": {"quota": {"requests_per_s": 100, "concurrency": 20}},
    });
    Doc::new("boundTenant", "access", "Say what a tenant, or one of its applications, may use")
        .describe("In place of what held before. Both bounds hold: the application's and its tenant's.")
        .parameter(path("tenant", "The tenant's name."))
        .json_body(true, &body)
        .answers(200, "What holds now.", &tenant())
        .errors(&[400, 404, 408, 409, 413, 415, 503])
}

pub(crate) fn audit() -> Doc {
    let entry = json!({"type": "object", "properties": {
        "seq": {"type": "integer"}, "at_unix_us": {"type": "integer"},
        "tenant": {"type": ["string", "null"]}, "key": {"type": ["integer", "null"]},
        "who": {"type": "string", "description": "How the key begins, and its name; without a key that is known, why it was refused."},
        "action": {"type": "string", "description": "A method and a route, or a call of gRPC."},
        "target": {"type": "string", "description": "The path as it came, and after `: ` what was asked of it, in words: which key (its number, how it begins, its name), tenant, scopes, bounds, tasks and versions."},
        "status": {"type": "integer", "description": "Of HTTP; of gRPC's calls what HTTP would have said. 499: its client went away before it was answered, and it may have been done."},
    }});
    let schema = json!({"type": "object", "properties": {"entries": {"type": "array", "items": entry}}});
    let number = json!({"type": "integer", "minimum": 1, "maximum": AUDIT_SHOWN_MAX, "default": AUDIT_SHOWN});
    let before = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    Doc::new("listAudit", "access", "What was asked for that changes something")
        .describe(
            "Of your tenant; for the operator of all. What is only asked or looked at is not in it, unless that was refused for want of the scope \
             `register` or `admin`. Whoever came without a key that is known has no tenant.",
        )
        .parameter(query_parameter("limit", "So many at most.", &number))
        .parameter(query_parameter("before", "Only those with a lower `seq`.", &before))
        .answers(200, "Newest first.", &schema)
        .errors(&[400, 503])
}

pub(crate) fn tenants() -> Doc {
    let tenant = tenant();
    let schema = json!({"type": "object", "properties": {"tenants": {"type": "array", "items": tenant}}});
    Doc::new("listTenants", "access", "Tenants with their applications")
        .answers(200, "In the order in which they were made.", &schema)
        .errors(&[503])
}

pub(crate) fn create_tenant() -> Doc {
    let body = json!({
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {"name": plain_name()}, "example": {"name": "team-a"},
    });
    let schema =
        json!({"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}});
    Doc::new("createTenant", "access", "Make a tenant")
        .json_body(true, &body)
        .answers(201, "Made.", &schema)
        .errors(&[400, 408, 409, 413, 415, 503])
}

/// What is said of one.
fn policy() -> Value {
    let number = |most: u32| json!({"type": ["number", "null"], "minimum": 0, "maximum": most});
    let cost = || number(u32::try_from(COST_MAX_USD).unwrap_or(u32::MAX));
    json!({
        "goals": {"type": ["object", "null"], "additionalProperties": false, "description": "Where a query gives none; they go before those of its task.", "properties": {
            "accuracy": number(1), "latency_ms": {"type": ["number", "null"], "minimum": 0.001, "maximum": LATENCY_MAX_MS}, "max_cost": cost(),
            "prefer": {"anyOf": [{"type": "string", "enum": ["accuracy", "cost", "latency"]}, {"type": "null"}]},
        }},
        "bounds": {"type": ["object", "null"], "additionalProperties": false, "description": "Whatever it gives: no floor is lower, no ceiling is higher.", "properties": {
            "accuracy": number(1), "max_cost": cost(),
        }},
        "model": {"type": ["string", "null"], "minLength": 1, "maxLength": NAME_MAX, "description": "Only this model answers: a name, or NAME@VERSION. Needs a task."},
        "variant": {"type": ["string", "null"], "minLength": 1, "maxLength": NAME_MAX, "description": "Only this variant. Needs a task."},
        "weight": {"type": ["integer", "null"], "minimum": 1, "maximum": WEIGHT_MAX, "description": "How much of a task's devices an application gets beside others where not all can be answered in time. Others have 1. Only the operator says it, and of an application."},
        "reserve": {"type": ["number", "null"], "minimum": 0.01, "maximum": 1, "description": "What part of a task's devices is its own whatever others ask; what it leaves they have. Those of all applications are at most 1 together. Only the operator says it, and of an application."},
        "tenant": {"type": ["string", "null"]}, "app": {"type": ["string", "null"]}, "task": {"type": ["string", "null"]},
    })
}

pub(crate) fn policies() -> Doc {
    let schema = json!({"type": "object", "properties": {
        "policies": {"type": "array", "items": {"type": "object", "properties": policy()}},
    }});
    Doc::new("listPolicies", "access", "What holds for queries beside what they say themselves")
        .describe("Of your tenant; for the operator of all.")
        .answers(200, "Without `app` for all of the tenant's, without `task` for all tasks.", &schema)
        .errors(&[503])
}

pub(crate) fn set_policy() -> Doc {
    let mut body = json!({"type": "object", "additionalProperties": false, "properties": policy()});
    body["properties"]["app"] = json!({"anyOf": [plain_name(), {"type": "null"}], "description": "One that is there: its first key makes it. Without it all of the tenant's, which only the operator may say."});
    // What is a task's needs one, and what is an application's: nothing else of the body says so.
    let needs = |said: &str, kind: &str, needed: &str| {
        json!({
            "if": {"required": [said], "properties": {(said): {"type": kind}}},
            "then": {"required": [needed], "properties": {(needed): {"type": "string"}}},
        })
    };
    body["allOf"] = json!([
        needs("model", "string", "task"),
        needs("variant", "string", "task"),
        needs("weight", "integer", "app"),
        needs("reserve", "number", "app"),
    ]);
    body["example"] =
        json!({"app": "shop", "task": "fashion", "goals": {"accuracy": 0.9}, "bounds": {"max_cost": 0.001}});
    Doc::new("setPolicy", "access", "Say what holds for the queries of an application or a tenant")
        .describe("In place of what was said before for the same tenant, application and task; one that says nothing takes it away.")
        .json_body(true, &body)
        .answers(200, "What holds now.", &json!({"type": "object", "properties": policy()}))
        .errors(&[400, 404, 408, 409, 413, 415, 422, 503])
}
