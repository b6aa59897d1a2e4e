//! Shared memory of clients on this machine.

use super::{Doc, path};
use serde_json::{Value, json};

const TAG: &str = "open inference protocol";
const ONLY_HERE: &str =
    "Only for clients on the server's machine, where it was started with `--shared-memory`.";

fn named(doc: Doc) -> Doc {
    doc.parameter(path("region", "The region's name."))
}

fn listed(id: &'static str, summary: &'static str) -> Doc {
    let region = json!({"type": "object", "required": ["name", "key", "offset", "byte_size"], "properties": {
        "name": {"type": "string"}, "key": {"type": "string"},
        "offset": {"type": "integer"}, "byte_size": {"type": "integer"}}});
    Doc::new(id, TAG, summary).answers(200, "Your own.", &json!({"type": "array", "items": region}))
}

fn empty(doc: Doc) -> Doc {
    let object: Value = json!({"type": "object"});
    doc.answers(200, "Done.", &object)
}

pub(crate) fn status() -> Doc {
    listed("oipRegions", "The regions of shared memory that your application registered")
}

pub(crate) fn status_of_one() -> Doc {
    named(listed("oipRegion", "One of them")).errors(&[404])
}

pub(crate) fn register() -> Doc {
    let whole = || json!({"type": "integer", "minimum": 0});
    let body = json!({"type": "object", "required": ["key", "byte_size"], "additionalProperties": false, "properties": {
        "key": {"type": "string"}, "offset": whole(), "byte_size": whole()},
        "example": {"key": "/inputs", "offset": 0, "byte_size": 4096}});
    empty(named(Doc::new("oipRegionRegister", TAG, "Register a part of a shared memory as a region")))
        .describe(ONLY_HERE)
        .json_body(true, &body)
        .errors(&[400, 404, 408, 409, 413, 415, 429, 501])
}

pub(crate) fn unregister_all() -> Doc {
    empty(Doc::new("oipRegionsUnregister", TAG, "Forget all regions of your application"))
}

pub(crate) fn unregister() -> Doc {
    empty(named(Doc::new("oipRegionUnregister", TAG, "Forget a region")))
}

pub(crate) fn none_of_gpus() -> Doc {
    Doc::new("oipGpuRegions", TAG, "Memory of GPUs: there is none").answers(
        200,
        "None.",
        &json!({"type": "array"}),
    )
}

pub(crate) fn no_such_of_gpus() -> Doc {
    named(Doc::new("oipGpuRegion", TAG, "Memory of GPUs: there is none").answers(
        200,
        "None.",
        &json!({"type": "array"}),
    ))
}

pub(crate) fn no_register_of_gpus() -> Doc {
    named(Doc::new("oipGpuRegionRegister", TAG, "Not served: memory of GPUs is not taken")).errors(&[501])
}

pub(crate) fn no_unregister_of_gpus() -> Doc {
    empty(Doc::new("oipGpuRegionsUnregister", TAG, "Forget memory of GPUs, of which there is none"))
}

pub(crate) fn no_unregister_of_one_of_gpus() -> Doc {
    empty(named(Doc::new("oipGpuRegionUnregister", TAG, "The same of one region")))
}
