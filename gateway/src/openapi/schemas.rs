//! What bodies look like.

use crate::admin::BUDGET_MS_MAX;
use crate::goals::{COST_MAX_USD, Goal, LATENCY_MAX_MS, NAME_MAX};
use crate::profiles::{PROFILES, PROFILES_VERSION};
use crate::routes::{
    TRIAL_FOR_MS as FOR_MS, TRIAL_FOR_MS_LEAST as FOR_MS_LEAST, TRIAL_FOR_MS_MAX as FOR_MS_MAX,
    TRIAL_SHARE_MAX as SHARE_MAX,
};
use modelless_types::{
    AccuracyRule, Ahead, DType, DeclaredRule, Fallback, LiveRule, Prefer, Priority, Provenance, ReplicaState,
    TaskKind, TrialState,
};
use serde_json::{Map, Value, json};

/// A way of batching, as a pattern.
const BATCHING: &str = "deadline|aimd|off|fixed:[0-9]+:[0-9]+(ms|us)";

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn list(name: &str) -> Value {
    json!({"type": "array", "items": reference(name)})
}

/// A name as the store takes it: no control characters, and no blanks at an end.
pub(super) fn name() -> Value {
    let pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f]([^\\x00-\\x1f\\x7f-\\x9f]*[^\\s\\x00-\\x1f\\x7f-\\x9f])?$";
    json!({"type": "string", "minLength": 1, "maxLength": 200, "pattern": pattern})
}

/// Who does something, or nobody.
pub(super) fn by(description: &str) -> Value {
    let mut by = name();
    let pattern = by["pattern"].as_str().unwrap_or_default().trim_matches(['^', '$']);
    by["pattern"] = json!(format!("^({pattern})?$"));
    by["minLength"] = json!(0);
    by["description"] = json!(description);
    by
}

/// An object whose answers hold at least these.
pub(super) fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "required": required});
    schema["properties"] = properties;
    schema
}

/// An object in a request, where unknown fields are refused.
fn strict(properties: Value, required: &[&str]) -> Value {
    let mut schema = object(properties, required);
    schema["additionalProperties"] = json!(false);
    schema
}

/// The value of a goal, wherever it stands.
pub(super) fn goal(goal: Goal) -> Value {
    match goal {
        Goal::Accuracy => json!({"type": "number", "minimum": 0, "maximum": 1, "example": 0.5}),
        Goal::LatencyMs => {
            json!({"type": "number", "minimum": 0.001, "maximum": LATENCY_MAX_MS, "example": 500})
        }
        Goal::MaxCost => json!({"type": "number", "minimum": 0, "maximum": COST_MAX_USD, "example": 100}),
        Goal::Prefer => json!({"type": "string", "enum": Prefer::NAMES.map(|(name, _)| name)}),
        Goal::Priority => json!({"type": "integer", "minimum": 0, "maximum": Priority::LOWEST, "example": 5}),
        Goal::Fallback => json!({"type": "string", "enum": Fallback::NAMES.map(|(name, _)| name)}),
        Goal::Model | Goal::Variant => json!({"type": "string", "minLength": 1, "maxLength": NAME_MAX}),
    }
}

pub(super) const fn goal_words(goal: Goal) -> &'static str {
    match goal {
        Goal::Accuracy => {
            "The floor, by the task's metric: no variant measured below it answers. Never relaxed."
        }
        Goal::LatencyMs => "From arrival at the gateway to the answer, in milliseconds.",
        Goal::MaxCost => "Ceiling in dollars per 1,000 queries.",
        Goal::Prefer => "What capacity that is already paid for is spent on.",
        Goal::Priority => "Who goes first when not all can: 1 is the highest level, 0 the default one (5).",
        Goal::Fallback => {
            "What to do when latency or cost cannot be met; `best_effort` never relaxes accuracy."
        }
        Goal::Model => {
            "Answer with this model only: with the version that answers by default, or with another as `NAME@VERSION`."
        }
        Goal::Variant => "Answer with this variant only.",
    }
}

fn goals() -> Value {
    let properties: Map<String, Value> = Goal::ALL
        .into_iter()
        .map(|of| {
            let mut schema = goal(of);
            schema["description"] = json!(goal_words(of));
            // A null is as good as nothing.
            if let Some(kind) = schema.get("type").cloned() {
                schema["type"] = json!([kind, "null"]);
            }
            if let Some(Value::Array(values)) = schema.get_mut("enum") {
                values.push(Value::Null);
            }
            (of.name().to_owned(), schema)
        })
        .collect();
    strict(Value::Object(properties), &[])
}

/// Goals, but for these.
pub(super) fn goals_without(others: &[Goal]) -> Value {
    let mut goals = goals();
    for other in others {
        goals["properties"][other.name()] = json!({"type": "null"});
    }
    goals
}

/// Goals that a task may set for all its queries, before it has models that could be pinned.
fn defaults() -> Value {
    goals_without(&[Goal::Model, Goal::Variant, Goal::Priority, Goal::Fallback])
}

fn enumeration(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}

fn provenance() -> Value {
    let all = [Provenance::Measured, Provenance::Declared, Provenance::Estimated, Provenance::Live];
    json!({"type": "string", "enum": all, "description": "Where a figure came from."})
}

fn kinds() -> Value {
    enumeration(&TaskKind::ALL.map(TaskKind::name))
}

fn datatypes() -> Value {
    enumeration(&DType::ALL.map(DType::name))
}

fn sha256() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-f]{64}$", "example": "0".repeat(64)})
}

fn number_or_null() -> Value {
    json!({"type": ["number", "null"]})
}

fn text_or_null() -> Value {
    json!({"type": ["string", "null"]})
}

pub(super) fn all() -> Value {
    let mut all = requests();
    for more in [answers(), of_feedback(), of_trials()] {
        if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
            all.extend(more);
        }
    }
    all
}

/// Without a usual one it may be left out, or null.
fn keep(default: Option<&str>) -> Value {
    let seconds = "[5-9]|[1-9][0-9]{1,5}|1[0-9]{6}|2[0-4][0-9]{5}|25[0-8][0-9]{4}|259[01][0-9]{3}|2592000";
    let minutes = "[1-9][0-9]{0,3}|[1-3][0-9]{4}|4[0-2][0-9]{3}|43[01][0-9]{2}|43200";
    let hours = "[1-9][0-9]?|[1-6][0-9]{2}|7[01][0-9]|720";
    let mut schema = json!({"type": "string",
        "pattern": format!("^(always|({seconds})s|({minutes})m|({hours})h)$"),
        "description": "For how long its variants stay in memory after its last query: `always`, or a time from 5s to 720h.",
        "example": "always"});
    match default {
        Some(default) => schema["default"] = json!(default),
        None => schema["type"] = json!(["string", "null"]),
    }
    schema
}

/// The same.
fn cache(default: Option<&str>) -> Value {
    let seconds = "[1-9][0-9]{0,3}|[1-7][0-9]{4}|8[0-5][0-9]{3}|86[0-3][0-9]{2}|86400";
    let minutes = "[1-9][0-9]{0,2}|1[0-3][0-9]{2}|14[0-3][0-9]|1440";
    let mut schema = json!({"type": "string",
        "pattern": format!("^(off|({seconds})s|({minutes})m|([1-9]|1[0-9]|2[0-4])h)$"),
        "description": "For how long an answer may be given again to who asks the very same: `off`, or a time from 1s to 24h.",
        "example": "off"});
    match default {
        Some(default) => schema["default"] = json!(default),
        None => schema["type"] = json!(["string", "null"]),
    }
    schema
}

fn live_rule(usual: Option<&str>) -> Value {
    let words = "What feedback is good for: it is shown, or what it shows to be less accurate than measured also stops \
                 counting for floors that it no longer meets.";
    rule(&LiveRule::NAMES.map(|(name, _)| name), usual, words)
}

fn declared_rule(usual: Option<&str>) -> Value {
    let words = "What accuracies are good for that nobody measured: floors are compared with them while nothing in the task was \
                 measured, or in any case.";
    rule(&DeclaredRule::NAMES.map(|(name, _)| name), usual, words)
}

fn ahead_rule(usual: Option<&str>) -> Value {
    let words = "Whether what earlier days tell of it counts before it is asked for: with `on` it is awake and comes first where room is \
                 short, and machines are there, before what recurs at a time of day.";
    rule(&Ahead::NAMES.map(|(name, _)| name), usual, words)
}

/// A word out of a list. Without a usual one it may be left out, or null.
fn rule(names: &[&str], usual: Option<&str>, words: &str) -> Value {
    let mut schema = enumeration(names);
    schema["description"] = json!(words);
    match (usual, &mut schema["enum"]) {
        (Some(usual), _) => schema["default"] = json!(usual),
        (None, Value::Array(values)) => {
            values.push(Value::Null);
            schema["type"] = json!(["string", "null"]);
        }
        (None, _) => {}
    }
    schema
}

/// What feedback came to.
fn of_feedback() -> Value {
    let text = || json!({"type": "string"});
    let count = || json!({"type": "integer", "minimum": 0});
    json!({
        "FlagChange": object(json!({
            "action": enumeration(&["flagged", "recovered", "cleared", "remeasured", "promoted"]), "reason": text(),
            "who": text(), "at_unix_us": number_or_null(), "correct": count(), "wrong": count(), "value": number_or_null(),
        }), &["action", "reason", "correct", "wrong"]),
    })
}

fn of_trials() -> Value {
    let text = || json!({"type": "string"});
    let number = || json!({"type": "number"});
    let count = || json!({"type": "integer", "minimum": 0});
    let both = json!({"properties": {"shadow": {"const": true}, "promote_when_good": {"const": true}}, "required": ["shadow", "promote_when_good"]});
    let mut all = json!({
        "Try": strict(json!({
            "model": text(),
            "version": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
            "share": {"type": "number", "minimum": 0.0001, "maximum": SHARE_MAX, "example": 0.05, "description": "How much of the task's queries it answers."},
            "shadow": {"type": "boolean", "default": false, "description": "It is asked copies of these in time that nothing else needs; their answers are compared and thrown away."},
            "for_ms": {"type": "integer", "minimum": FOR_MS_LEAST, "maximum": FOR_MS_MAX, "default": FOR_MS, "description": "How long; with `promote_when_good` for how long at least."},
            "promote_when_good": {"type": "boolean", "default": false, "description": "It becomes the default once it is known to do no worse."},
            "force": {"type": "boolean", "default": false, "description": "Also where no node was measured with it yet, or where it would not be promoted since floors would be lost."},
            "by": by("Who does it, for the history. Nothing proves it."),
        }), &["model", "version", "share"]),
        "Trial": object(json!({
            "id": text(), "task": text_or_null(), "model": text(), "version": count(),
            "against": {"type": "integer", "description": "The default version when it began, which it is compared with."},
            "share": number(), "shadow": {"type": "boolean"}, "agreed": count(), "differed": count(), "for_ms": count(), "promote_when_good": {"type": "boolean"}, "forced": {"type": "boolean"},
            "state": enumeration(&TrialState::ALL.map(TrialState::name)), "began_unix_us": count(), "began_by": text(),
            "ended_unix_us": number_or_null(), "ended_by": text_or_null(), "cause": text_or_null(),
            "candidate": reference("TrialArm"), "other": reference("TrialArm"),
            "compared": {"type": "object", "description": "Pairs of queries, one of each: in how many it did worse, as well, and better.", "additionalProperties": object(
                json!({"worse": count(), "even": count(), "better": count()}), &["worse", "even", "better"],
            )},
            "verdict": {"type": "object", "required": ["verdict"], "properties": {"verdict": enumeration(&["worse", "not_worse", "too_few_yet"])}},
        }), &["id", "model", "version", "share", "state", "candidate", "other", "compared", "verdict"]),
        "TrialArm": object(json!({
            "answered": count(), "late": count(), "failed": count(), "unanswered": count(), "right": count(), "wrong": count(),
            "median_ms": number_or_null(), "p99_ms": number_or_null(),
        }), &["answered", "late", "failed", "unanswered", "right", "wrong"]),
    });
    all["Try"]["not"] = both; // copies say nothing of lateness
    all
}

fn requests() -> Value {
    let text = || json!({"type": "string"});
    json!({
        "Goals": goals(),
        "Tensor": strict(json!({
            "name": text(),
            "datatype": datatypes(),
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}, "example": [4]},
        }), &["name", "datatype", "shape"]),
        "NewTask": strict(json!({
            "name": {"type": "string", "pattern": "^[a-z0-9_-]{1,200}$", "not": {"const": "stats"}, "example": "sample-task",
                "description": "`stats` is taken: `/v2/models/stats` tells what all tasks did."},
            "kind": kinds(),
            "metric": {"type": "string", "description": "What `accuracy` means; `top-1` for classification."},
            "accuracy_rule": {
                "type": "string", "enum": AccuracyRule::NAMES.map(|(name, _)| name), "default": "point",
                "description": "What floors are compared with: the measured value, or the lower end of its 95 % \
                                interval.",
            },
            "live_accuracy": live_rule(Some("shown")),
            "declared_accuracy": declared_rule(Some("unless_measured")),
            "labels": {"type": "array", "items": text(), "description": "In the order of outputs; for classification.",
                "example": ["a", "b"]},
            "inputs": {"type": "array", "items": reference("Tensor"), "description": "Of one item; for `tensor`."},
            "outputs": {"type": "array", "items": reference("Tensor"), "description": "Of one item; for `tensor`."},
            "space": strict(json!({"name": text(), "dimension": {"type": "integer", "minimum": 1, "maximum": 65_536}}),
                &["name", "dimension"]),
            "defaults": defaults(),
            "batching": {"type": ["string", "null"], "pattern": format!("^({BATCHING})$"),
                "description": "How queries share batches: `deadline`, `aimd`, `off` or `fixed:SIZE:WAIT`. None: as \
                                each node is set.", "example": "deadline"},
            "cache": cache(Some("off")),
            "keep": keep(Some("always")),
            "ahead": ahead_rule(Some("on")),
            "description": text(),
        }), &["name", "kind", "labels"]),
        "RegisterModel": strict(json!({
            "task": text(),
            "name": text(),
            "version": {"type": "integer", "minimum": 0, "maximum": u32::MAX, "default": 1},
            "architecture": text(),
            "licence": {"type": "string", "description": "An SPDX expression where there is one."},
            "owner": {"type": "string", "description": "Whom to ask about it."},
            "promote": {"type": "boolean", "default": false, "description": "Make it the default version. The first of its name is in any case. A cluster keeps a later one as a candidate until its nodes have measured all of its variants, and makes it the default then."},
            "by": by("Who registers it, for the history. Nothing proves it."),
            "adapter": {"description": "How the task's input becomes tensors and tensors its output."},
            "space": {"type": "string", "description": "The output space of its vectors, where that is not the task's default."},
            "variants": {"type": "array", "minItems": 1, "items": reference("RegisterVariant")},
            "set": reference("LabelledSet"),
            "declared_accuracy": {"type": "number", "minimum": 0, "maximum": 1},
            "budget_ms": {"type": ["integer", "null"], "minimum": 1, "maximum": BUDGET_MS_MAX, "default": 60_000, "description": "So long at most measuring may take; null is as long as it takes. What is not known well by then is marked as coarse, and measured again by itself when nothing is asked."},
        }), &["task", "name", "adapter", "variants"]),
        "RegisterVariant": strict(json!({
            "name": text(),
            "engine": {"enum": ["onnx", "openvino", "torch", "remote"], "default": "onnx"},
            "precision": {"type": "string", "example": "fp32"},
            "threads": {"type": "integer", "minimum": 1, "maximum": u16::MAX, "default": 1},
            "max_batch": {"type": "integer", "minimum": 1, "maximum": u32::MAX, "default": 16},
            "optimisation": {"enum": ["off", "basic", "extended", "all"], "default": "all"},
            "processor": {"type": "string", "pattern": "^(cpu|(cuda|tensorrt)(:[0-9]{1,3})?)$", "default": "cpu", "description": "cpu, cuda, cuda:N, tensorrt or tensorrt:N"},
            "gpu_memory": {"type": "integer", "minimum": 1, "description": "The most bytes of a GPU that one replica takes for each of its two streams; of `onnx` alone."},
            "string_bytes": {"type": "integer", "minimum": 4, "default": 65_536, "description": "The most bytes that one item's strings (BYTES) take in one tensor, four for the length of each included."},
            "artefact_sha256": sha256(),
        }), &["precision", "artefact_sha256"]),
        "Registration": object(json!({
            "task": text(), "model": text(), "version": json!({"type": "integer", "minimum": 0}),
            "variant": {"type": ["string", "null"], "description": "What is measured now; null while it waits for its turn."},
            "progress": text(), "at": json!({"type": "integer", "minimum": 0}), "of": json!({"type": "integer", "minimum": 0}), "permille": json!({"type": "integer", "minimum": 0}), "left_ms": json!({"type": ["integer", "null"], "minimum": 0}),
        }), &["task", "model", "version", "progress", "at", "of"]),
        "ProfileFile": object(json!({
            "format": {"const": PROFILES}, "version": {"const": PROFILES_VERSION},
            "profiles": {"type": "array", "items": reference("ProfileEntry"), "example": []},
        }), &["format", "version", "profiles"]),
        "ProfileEntry": object(json!({
            "task": text(), "model": text(), "model_version": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
            "variant": text(), "artefact_sha256": sha256(),
            "settings": {"type": ["object", "null"], "description": "How it is run; compared where it is given."},
            "adapter_sha256": sha256(), "tokenizer_sha256": sha256(), "labels_sha256": sha256(),
            "profile": {"type": "object", "description": "As docs/profiles.md has it."},
        }), &["task", "variant", "artefact_sha256", "profile"]),
        "LabelledSet": strict(json!({"name": text(), "artefact_sha256": sha256()}), &["name", "artefact_sha256"]),
        "Promote": strict(json!({
            "version": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
            "force": {"type": "boolean", "default": false, "description": "Also where no node was measured with it yet, or where it answers in another output space."},
            "by": by("Who does it, for the history. Nothing proves it."),
        }), &["version"]),
        "RollBack": strict(json!({
            "version": {"type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "What is taken for the default; where it is not, nothing is done."},
            "force": {"type": "boolean", "default": false, "description": "Also where no node was measured with the version before it."},
            "by": by("Who does it, for the history. Nothing proves it."),
        }), &[]),
        "ChangeTask": strict(
            json!({"live_accuracy": live_rule(None), "declared_accuracy": declared_rule(None), "cache": cache(None),
                "keep": keep(None), "ahead": ahead_rule(None), "batching": {
                    "type": "string", "pattern": format!("^(node|{BATCHING})$"), "example": "node",
                    "description": "How queries share batches: `deadline`, `aimd`, `off` or `fixed:SIZE:WAIT`; `node`: as each node \
                                    is set.",
                }}), &[],
        ),
        "Unflag": strict(json!({
            "reason": {"type": "string", "minLength": 1, "maxLength": 2_000, "description": "Why, for the history.",
                "example": "the labels it was judged by were wrong"},
            "by": by("Who does it, for the history. Nothing proves it."),
        }), &["reason"]),
    })
}

fn answers() -> Value {
    let number = || json!({"type": "number"});
    let text = || json!({"type": "string"});
    let count = || json!({"type": "integer", "minimum": 0});
    let timed = || json!({"type": ["object", "null"]});
    json!({
        "Nearest": object(json!({"accuracy": number(), "latency_ms": number(), "max_cost": number()}), &[]),
        "Error": object(json!({
            "error": {"type": "string", "description": "For people."},
            "reason": {"type": "string", "description": "For programs; one of a fixed set of names."},
            "nearest": reference("Nearest"),
        }), &["error", "reason"]),
        "Classification": {"type": "array", "items": object(json!({"label": text(), "score": number()}), &["label", "score"])},
        "Vector": {"type": "array", "description": "Of one text.", "items": number()},
        "Accuracy": object(json!({
            "value": number(),
            "interval": {"type": "array", "items": number(), "description": "95 % Wilson interval."},
            "samples": count(), "set": text(), "provenance": provenance(), "device_class": text(), "command": text(),
        }), &["value", "interval", "samples", "set", "provenance"]),
        "Profile": object(json!({
            "device_class": text(),
            "coarse": {"type": "boolean", "description": "The time for measuring was over before everything was known well."},
            "part_of_set": {"type": "boolean", "description": "Only a part of the labelled set was compared, so floors are compared with the lower end of the interval."},
            "unsteady": {"type": ["object", "null"], "description": "What shows that the machine was not steady while it was measured: `why` in words; as shares by how much batches (`sizes`) and work that is always the same (`same_work`) took longer than at best, and what of the processor time was `stolen`; how often it was measured (`tries`) and may be measured again for that (`left`)."},
            "warnings": {"type": "array", "items": text(), "description": "Why its accuracy looks as if it was measured with other labels than the model's."},
            "largest_batch": {"type": ["object", "null"], "description": "Where larger batches could not be run, and why."},
            "latency": object(json!({"provenance": provenance(), "by_batch": {"type": "array", "items": object(json!({
                "batch": count(), "mean_ms": number(), "deviation_ms": number(), "p99_ms": number(), "samples": count(),
                "series": count(), "median_ms": number(), "spread_ms": number(), "outliers": count(), "worst_ms": number(),
                "peak_bytes": number_or_null(),
            }), &["batch", "mean_ms"])}}), &["provenance", "by_batch"]),
            "decode": timed(), "prepare": timed(), "memory": timed(), "load": timed(),
            "accuracy": reference("Accuracy"), "also": list("Accuracy"),
        }), &["device_class", "latency", "accuracy"]),
        "Variant": object(json!({
            "task": text(), "id": count(), "name": text(), "model": text(), "model_id": count(),
            "model_version": count(),
            "default": {"type": "boolean", "description": "Whether it is of the default version: others answer only where they are pinned."},
            "engine": text(), "precision": text(), "threads": count(), "max_batch": count(),
            "optimisation": text(), "processor": text(),
            "artefact": timed(), "accuracy": number_or_null(), "accuracy_provenance": text_or_null(),
            "counts_for_floors": {"type": ["boolean", "null"]}, "estimate": timed(),
            "on_frontier": {"type": ["boolean", "null"]}, "unavailable": {"type": ["string", "null"], "description": "Why no node can run it, where all lack its engine."},
            "profiles": list("Profile"),
            "measuring": {"type": "array", "description": "Only with one model: who measures it, or why that failed.", "items": reference("Measuring")},
        }), &["task", "name", "model", "profiles"]),
        "Measuring": object(json!({
            "device_class": text(), "node": text(), "state": enumeration(&["running", "failed", "waiting"]),
            "progress": text(), "why": text_or_null(), "attempts": count(), "again_in_ms": number_or_null(),
        }), &["device_class", "node", "state", "attempts"]),
        "VersionChange": object(json!({
            "version": count(), "action": enumeration(&["registered", "promoted", "rolled_back", "removed"]),
            "default_before": {"type": ["integer", "null"]}, "default_after": {"type": ["integer", "null"]},
            "who": text(), "at_unix_us": count(),
        }), &["version", "action", "who", "at_unix_us"]),
        "Model": object(json!({
            "task": text(), "id": count(), "name": text(), "version": count(), "architecture": text(),
            "licence": text(), "owner": text(), "variants": {"type": "array"},
            "default": {"type": "boolean", "description": "Whether it answers queries that pin nothing."},
        }), &["task", "name", "version"]),
        "Task": object(json!({
            "name": text(), "kind": kinds(), "metric": text(), "accuracy_rule": text(),
            "live_accuracy": text(), "declared_accuracy": text(), "description": text(),
            "defaults": timed(), "batching": text_or_null(), "cache": text(), "keep": text(), "ahead": enumeration(&Ahead::NAMES.map(|(name, _)| name)),
            "asleep": {"type": ["boolean", "null"], "description": "Whether nothing of it is planned to be in memory, since nobody asked for `keep`. Null where it is not known whether there is a plan."},
            "space": timed(), "accuracy_from": number_or_null(), "accuracy_to": number_or_null(),
        }), &["name", "kind", "metric"]),
        "Explanation": object(json!({
            "task": text(), "goals": timed(), "decision": timed(),
            "candidates": {"type": "array", "items": object(json!({
                "model": text_or_null(), "variant": text_or_null(), "node": text_or_null(), "accuracy": number(),
                "latency_ms": number_or_null(), "wait_ms": number_or_null(), "cost": number_or_null(), "price_usd_per_hour": number_or_null(),
                "finding": text(), "because": text(), "ready_in_ms": number_or_null(),
            }), &["finding", "because"])},
        }), &["task", "candidates"]),
        "Replica": object(json!({
            "node": text(), "variant": text_or_null(), "task": text_or_null(), "state": enumeration(&ReplicaState::ALL.map(ReplicaState::name)),
            "memory_bytes": count(), "cause": text(), "slowdown": {
                "type": ["object", "null"], "required": ["ratio", "provenance"],
                "properties": {"ratio": number(), "provenance": provenance()},
            },
            "loads": object(json!({
                "count": count(), "cold_ms": number_or_null(), "warm_ms": number_or_null(),
            }), &["count", "cold_ms", "warm_ms"]),
        }), &["node", "state", "loads"]),
        "Transition": object(json!({
            "seq": count(), "replica": count(), "variant": text_or_null(), "task": text_or_null(), "node": text_or_null(), "from": text(),
            "to": text(), "cause": text(), "who": text(), "at_unix_us": count(),
        }), &["seq", "from", "to", "cause", "who", "at_unix_us"]),
        "Node": object(json!({
            "id": count(), "name": text(), "pool": text(), "zone": text(), "device_class": text(),
            "connected": {"type": "boolean"}, "state": text(), "draining": {"type": "boolean"},
            "hardware": object(json!({
                "cpu": text(), "arch": text(), "isa": {"type": "array", "items": text()}, "cores": count(),
                "memory_bytes": count(),
                "gpus": {"type": "array", "items": object(json!({
                    "name": text(), "memory_bytes": json!({"type": ["integer", "null"], "minimum": 0}),
                }), &["name", "memory_bytes"])},
            }), &["cpu", "arch", "isa", "cores", "memory_bytes", "gpus"]),
            "way_ms": {
                "type": "number", "minimum": 0,
                "description": "The way there and back over the network, on average, as this gateway sees it.",
            },
            "lanes": count(), "narrowed": {
                "type": ["object", "null"], "required": ["lanes", "of", "cause"],
                "description": "Fewer lanes run side by side for now, and why.",
                "properties": {"lanes": count(), "of": count(), "cause": text()},
            },
            "caution": {
                "type": "number", "minimum": 1,
                "description": "Where variants are compared, batches are taken to last so many times as long, as queries were late there lately.",
            },
            "price_usd_per_hour": number(),
            "price_provenance": {"type": "string", "enum": ["declared", "listed", "default"]},
            "price_source": text_or_null(), "started_unix_us": count(), "uptime_s": count(),
            "load": load(),
            "memory": object(json!({
                "used_bytes": count(), "budget_bytes": count(),
            }), &["used_bytes", "budget_bytes"]),
            "replicas": count(), "replica_states": list("Replica"),
            "warnings": {"type": "array", "items": text()},
        }), &["id", "name", "connected"]),
    })
}

/// What a node has at hand and has done: counts.
fn load() -> Value {
    const COUNTS: [&str; 11] = [
        "lanes_busy",
        "queued",
        "running",
        "batches",
        "queries",
        "runner_crashes",
        "replica_restarts",
        "handed_back",
        "loads",
        "load_us",
        "evictions",
    ];
    let counts = COUNTS.map(|name| (name.to_owned(), json!({"type": "integer", "minimum": 0})));
    object(Value::Object(counts.into_iter().collect()), &COUNTS)
}
