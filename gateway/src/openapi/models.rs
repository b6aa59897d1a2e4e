//! Models, variants and artefacts.

use super::schemas::{name, reference};
use super::{Doc, path, query_parameter, task_parameter};
use serde_json::{Value, json};

fn of_task() -> Value {
    query_parameter("task", "Only those of this task.", &json!({"type": "string"}))
}

fn model_parameter() -> Value {
    path("model", "The model's name.")
}

fn listed(what: &str, schema: &str) -> Value {
    json!({"type": "object", "properties": {what: {"type": "array", "items": reference(schema)}}})
}

pub(crate) fn list() -> Doc {
    Doc::new("listModels", "models", "Models")
        .parameter(of_task())
        .answers(200, "By task and name, newest version first.", &listed("models", "Model"))
        .errors(&[400, 404])
}

pub(crate) fn variants() -> Doc {
    Doc::new("listVariants", "models", "Variants with their profiles")
        .parameter(of_task())
        .answers(200, "By task.", &listed("variants", "Variant"))
        .errors(&[400, 404])
}

pub(crate) fn show() -> Doc {
    Doc::new("showModel", "models", "One model in all its versions")
        .parameter(task_parameter())
        .parameter(model_parameter())
        .answers(
            200,
            "Newest first, with what was done to them lately.",
            &json!({"type": "object", "properties": {
                "versions": {"type": "array", "items": reference("Model")},
                "history": {"type": ["array", "null"], "items": reference("VersionChange")},
                "sharing": {"type": ["object", "null"], "description": "Which other tenants may use it; told to its owner."},
            }}),
        )
        .errors(&[404])
}

pub(crate) fn share() -> Doc {
    let tenants = json!({"type": "array", "items": {"type": "string"}, "description": "By name; only where it is shared."});
    let word = json!({"type": "string", "enum": ["private", "shared", "public"]});
    let body = json!({
        "type": "object", "required": ["visibility"], "additionalProperties": false,
        "properties": {"visibility": word, "tenants": tenants},
        "oneOf": [
            {"properties": {"visibility": {"const": "shared"}, "tenants": {"minItems": 1}}, "required": ["tenants"]},
            {"properties": {"visibility": {"enum": ["private", "public"]}, "tenants": {"maxItems": 0}}},
        ],
        "example": {"visibility": "public"},
    });
    let answer = json!({"type": "object", "properties": {
        "task": {"type": "string"}, "model": {"type": "string"}, "visibility": word, "tenants": tenants,
    }});
    Doc::new("shareModel", "models", "Say which other tenants may use a model")
        .describe(
            "All its versions, later ones too. Those who may use it may ask its task, and see no more of the task than such models. \
             A tenant's own task of the same name goes first.",
        )
        .parameter(task_parameter())
        .parameter(model_parameter())
        .json_body(true, &body)
        .answers(200, "Who may use it now.", &answer)
        .errors(&[400, 403, 404, 408, 413, 415, 503])
}

pub(crate) fn registrations() -> Doc {
    Doc::new("listRegistrations", "models", "Models that are being registered just now")
        .describe(
            "Of the caller's tenant, while this server measures them: what is being measured, and how long it still takes. Nodes \
             of a cluster say the same with the model, as `measuring` of its variants.",
        )
        .answers(200, "In the order in which they were asked for.", &listed("registrations", "Registration"))
        .errors(&[])
}

pub(crate) fn register() -> Doc {
    let schema = json!({"type": "object", "properties": {
        "id": {"type": "integer"}, "name": {"type": "string"}, "version": {"type": "integer"},
        "variants": {"type": "array", "items": {"type": "object", "properties": {
            "id": {"type": "integer"}, "name": {"type": "string"}, "ordinal": {"type": "integer"},
            "measured": {"type": "boolean"},
        }}},
    }});
    Doc::new("registerModel", "models", "Register a model")
        .describe(
            "Its artefacts were uploaded before, to this server. Each variant is loaded, checked and measured; that takes \
             a while. A gateway of a cluster does not wait for it: it answers 202, nodes measure, and `measuring` of the \
             model's variants tells which node does it and how far it is.",
        )
        .json_body(true, &reference("RegisterModel"))
        .answers(201, "Registered and measured.", &schema)
        .answers(202, "Registered; nodes measure it now.", &schema)
        .errors(&[400, 404, 409, 413, 415, 501, 503])
}

pub(crate) fn remove() -> Doc {
    let force = query_parameter(
        "force",
        "Also while a replica of it serves, or while it is the default version of several.",
        &json!({"type": "boolean"}),
    );
    let version = query_parameter(
        "version",
        "Which version; needed where there are several.",
        &json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
    );
    let by = query_parameter("by", "Who does it, for the history. Nothing proves it.", &name());
    let schema = json!({"type": "object", "properties": {"removed": {"type": "array"}}});
    Doc::new("removeModel", "models", "Remove a model")
        .parameter(task_parameter())
        .parameter(model_parameter())
        .parameters(vec![force, version, by])
        .answers(200, "Removed.", &schema)
        .errors(&[400, 404, 409])
}

fn changed() -> Value {
    json!({"type": "object", "required": ["name", "default"], "properties": {
        "name": {"type": "string"}, "default": {"type": ["integer", "null"]}, "before": {"type": ["integer", "null"]},
        "change": reference("VersionChange"),
        "unknown": {"type": "array", "items": {"type": "string"}, "description": "What nobody measured of the version that answers now: its variants by device class."},
    }})
}

pub(crate) fn promote() -> Doc {
    Doc::new("promoteModel", "models", "Make a version the default")
        .describe(
            "The default version of a name answers queries that pin nothing; the others answer only where they are pinned \
             (`model=NAME@VERSION`, or one of their variants). Queries that were taken in before are answered as they were \
             admitted.",
        )
        .parameter(task_parameter())
        .parameter(model_parameter())
        .json_body(true, &reference("Promote"))
        .answers(200, "It is the default.", &changed())
        .errors(&[400, 404, 409, 415, 503])
}

pub(crate) fn roll_back() -> Doc {
    Doc::new("rollBackModel", "models", "Go back to the default version before this one")
        .parameter(task_parameter())
        .parameter(model_parameter())
        .json_body(true, &reference("RollBack"))
        .answers(200, "The earlier one is the default again.", &changed())
        .errors(&[400, 404, 409, 415, 503])
}

fn variant_parameter() -> Value {
    path("variant", "The variant's name.")
}

pub(crate) fn flags() -> Doc {
    let history = json!({"type": "object", "properties": {
        "history": {"type": "array", "items": reference("FlagChange")},
    }});
    Doc::new("showFlags", "models", "What was said of a variant's live accuracy, newest first")
        .parameter(task_parameter())
        .parameter(variant_parameter())
        .answers(200, "When it was flagged, why, and how that ended.", &history)
        .errors(&[404, 503])
}

pub(crate) fn unflag() -> Doc {
    let schema = json!({"type": "object", "required": ["change"], "properties": {
        "task": {"type": "string"}, "variant": {"type": "string"}, "change": reference("FlagChange"),
    }});
    Doc::new("unflagVariant", "models", "Take back that a variant is less accurate than measured")
        .describe("Verdicts on it are counted anew from then on. Who did it and why is kept.")
        .parameter(task_parameter())
        .parameter(variant_parameter())
        .json_body(true, &reference("Unflag"))
        .answers(200, "It is not flagged any more.", &schema)
        .errors(&[400, 404, 409, 415, 503])
}

pub(crate) fn artefact() -> Doc {
    let schema = json!({"type": "object", "required": ["sha256", "bytes"], "properties": {
        "sha256": {"type": "string"}, "bytes": {"type": "integer"},
    }});
    Doc::new("showArtefact", "models", "Whether an artefact is here")
        .describe("One that is here whole need not be sent. Nobody clears it away within a day of this.")
        .parameter(path("sha256", "Its sha256 in lower-case hexadecimal."))
        .answers(200, "It is here.", &schema)
        .errors(&[400, 404, 501, 503])
}

pub(crate) fn upload() -> Doc {
    let schema = json!({"type": "object", "required": ["sha256", "bytes"], "properties": {
        "sha256": {"type": "string"}, "bytes": {"type": "integer"},
    }});
    Doc::new("uploadArtefact", "models", "Upload an artefact or labelled set")
        .describe("The bytes are kept under their sha256, which registering then names.")
        .body(true, json!({"application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}}))
        .answers(201, "Kept.", &schema)
        .errors(&[400, 408, 413, 415, 501, 507])
}
