//! A query that has ended: what was asked, what it came to, and why.

use super::fleet::variant_name;
use crate::access::Origins;
use crate::decisions::{Came, Decision};
use crate::told::GIVEN_BEFORE;
use crate::view::View;
use modelless_types::{Accuracy, CostPer1k, Fallback, Micros};
use serde_json::{Value, json};

pub(crate) fn decision(view: &View, decision: &Decision) -> Value {
    let asked = &decision.asked;
    let goals = &asked.goals;
    let model = |id| view.catalog.models.iter().find(|model| model.id == id);
    let task = view.catalog.tasks.iter().find(|task| task.id == asked.task);
    let mut shown = json!({
        "at_unix_us": decision.at,
        "task": task.map(|task| task.name.as_str()),
        "query": decision.query.to_string(),
        "tenant": decision.caller.names.tenant,
        "app": decision.caller.names.app,
        "asked": {
            "accuracy": asked.accuracy.map(Accuracy::as_f64),
            "latency_ms": asked.latency.map(Micros::as_millis_f64),
            "max_cost": asked.max_cost.map(CostPer1k::as_usd),
            "priority": goals.priority,
        },
    });
    let mut given = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown["asked"][name] = value;
        }
    };
    let prefer = goals.prefer.or(task.and_then(|task| task.defaults.prefer));
    given("prefer", prefer.map(|prefer| json!(prefer)));
    // Who asks for the usual one is not told from who asks for none.
    given("fallback", (goals.fallback != Fallback::default()).then(|| json!(goals.fallback)));
    let pinned = goals.model.and_then(model);
    given("model", pinned.map(|model| json!(format!("{}@{}", model.name, model.version))));
    given("variant", goals.variant.map(|variant| json!(variant_name(view, variant))));
    shown["asked"]["from"] = origins(asked.from);
    if let Some(trial) = decision.trial {
        shown["trial"] = json!(trial.id.to_string());
    }
    match &decision.came {
        Came::Answered { variant, node, batch, why, predicted, queued, run, total, cost, again, .. } => {
            shown["outcome"] = json!("answered");
            shown["variant"] = json!(variant_name(view, *variant));
            shown["node"] = json!(node.and_then(|node| view.node(node)).map(|node| node.name.as_str()));
            shown["batch"] = json!(batch);
            shown["why"] = json!(if *again { GIVEN_BEFORE } else { why.text() });
            shown["predicted_ms"] = json!(predicted.as_millis_f64());
            shown["queue_ms"] = json!(queued.as_millis_f64());
            shown["run_ms"] = json!(run.as_millis_f64());
            shown["total_ms"] = json!(total.as_millis_f64());
            shown["cost"] = json!(cost.as_usd());
            shown["in_time"] = json!(asked.latency.map(|latency| *total <= latency));
        }
        Came::Refused(reason) => shown["outcome"] = json!(reason),
    }
    shown
}

/// Where goals come from: the query, its application, its tenant or the task. Of those that nobody gave nothing is said.
pub(crate) fn origins(from: Origins) -> Value {
    let Origins { accuracy, latency, max_cost, prefer, pin } = from;
    let mut shown = json!({});
    for (name, origin) in [
        ("accuracy", accuracy),
        ("latency_ms", latency),
        ("max_cost", max_cost),
        ("prefer", prefer),
        ("pin", pin),
    ] {
        if let Some(origin) = origin.name() {
            shown[name] = json!(origin);
        }
    }
    shown
}
