//! What the Open Inference Protocol's answers look like.

use super::schemas::object;
use crate::oip::about::STATES;
use modelless_types::DType;
use serde_json::{Value, json};

fn text() -> Value {
    json!({"type": "string"})
}

fn whole() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn list(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

/// The number of a variant.
fn version() -> Value {
    json!({"type": "string", "pattern": "^[0-9]+$"})
}

/// Types of elements.
pub(super) fn datatypes() -> Value {
    json!({"type": "string", "enum": DType::ALL.map(DType::name)})
}

/// What parameters may be.
pub(super) fn parameters(null: bool) -> Value {
    let mut kinds = vec!["string", "number", "boolean"];
    kinds.extend(null.then_some("null"));
    json!({"type": "object", "additionalProperties": {"type": kinds}})
}

pub(super) fn server() -> Value {
    let properties = json!({"name": text(), "version": text(), "extensions": list(&text())});
    object(properties, &["name", "version", "extensions"])
}

pub(super) fn models() -> Value {
    object(json!({"models": list(&text())}), &["models"])
}

pub(super) fn metadata() -> Value {
    let shape = json!({"type": "array", "items": {"type": "integer", "minimum": -1},
        "description": "With the batch in front; -1 is any."});
    let tensor = object(
        json!({"name": text(), "datatype": datatypes(), "shape": shape}),
        &["name", "datatype", "shape"],
    );
    let tensors = list(&tensor);
    let properties = json!({"name": text(), "versions": list(&version()), "platform": text(),
        "inputs": tensors, "outputs": tensors});
    object(properties, &["name", "versions", "platform", "inputs", "outputs"])
}

pub(super) fn ready() -> Value {
    object(json!({"name": text(), "ready": {"const": true}}), &["name", "ready"])
}

pub(super) fn config() -> Value {
    let dims = json!({"type": "array", "items": {"type": "integer", "minimum": -1}, "description": "Without the batch."});
    let kind = json!({"type": "string", "pattern": "^TYPE_[A-Z0-9]+$"});
    let input = object(
        json!({"name": text(), "data_type": kind, "format": text(), "dims": dims, "is_shape_tensor": flag(),
            "allow_ragged_batch": flag(), "optional": flag()}),
        &["name", "data_type", "format", "dims", "is_shape_tensor", "allow_ragged_batch", "optional"],
    );
    let output = object(
        json!({"name": text(), "data_type": kind, "dims": dims, "label_filename": text(), "is_shape_tensor": flag()}),
        &["name", "data_type", "dims", "label_filename", "is_shape_tensor"],
    );
    let batching = object(
        json!({"preferred_batch_size": list(&whole()), "priority_levels": whole(), "default_priority_level": whole()}),
        &["preferred_batch_size", "priority_levels", "default_priority_level"],
    );
    let properties = json!({
        "name": text(), "platform": text(), "backend": text(), "version_policy": {"type": "object"},
        "max_batch_size": whole(), "input": list(&input), "output": list(&output), "dynamic_batching": batching,
        "model_transaction_policy": object(json!({"decoupled": {"const": false}}), &["decoupled"]),
        "response_cache": object(json!({"enable": flag()}), &["enable"]),
    });
    let all: Vec<String> =
        properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    object(properties, &all.iter().map(String::as_str).collect::<Vec<_>>())
}

const COMPUTE: [&str; 3] = ["compute_input", "compute_infer", "compute_output"];

pub(super) fn statistics() -> Value {
    let duration = || object(json!({"count": whole(), "ns": whole()}), &["count", "ns"]);
    let durations = |names: &[&str]| {
        let each = names.iter().map(|name| ((*name).to_owned(), duration()));
        object(Value::Object(each.collect()), names)
    };
    let mut stats = vec!["success", "fail", "queue", "cache_hit", "cache_miss"];
    stats.extend(COMPUTE);
    let mut batch = durations(&COMPUTE);
    batch["properties"]["batch_size"] = json!({"type": "integer", "minimum": 1});
    batch["required"] = json!(["batch_size", "compute_input", "compute_infer", "compute_output"]);
    let memory = object(
        json!({"type": {"const": "CPU"}, "id": whole(), "byte_size": whole()}),
        &["type", "id", "byte_size"],
    );
    let model = object(
        json!({"name": text(), "version": version(), "last_inference": whole(), "inference_count": whole(),
            "execution_count": whole(), "inference_stats": durations(&stats), "response_stats": {"type": "object"},
            "batch_stats": list(&batch), "memory_usage": list(&memory)}),
        &[
            "name",
            "version",
            "last_inference",
            "inference_count",
            "execution_count",
            "inference_stats",
            "response_stats",
            "batch_stats",
            "memory_usage",
        ],
    );
    object(json!({"model_stats": list(&model)}), &["model_stats"])
}

pub(super) fn index() -> Value {
    let state = json!({"type": "string", "enum": STATES});
    list(&object(
        json!({"name": text(), "version": version(), "state": state, "reason": text()}),
        &["name", "version", "state", "reason"],
    ))
}

/// An answer's JSON.
pub(super) fn inferred() -> Value {
    let output = object(
        json!({
            "name": text(), "datatype": datatypes(), "shape": list(&whole()),
            "parameters": object(json!({"binary_data_size": whole()}), &["binary_data_size"]),
            "data": {"type": "array", "items": {"type": ["number", "string", "boolean"]},
                "description": "Row after row. Left out where its bytes follow the JSON or went into shared memory."},
        }),
        &["name", "datatype", "shape"],
    );
    let properties = json!({"model_name": text(), "model_version": version(), "id": text(),
        "parameters": parameters(false), "outputs": list(&output)});
    object(properties, &["model_name", "model_version", "parameters", "outputs"])
}
