//! A query that has ended: what was asked, what it came to, and why.

use super::fleet::variant_name;
use crate::decisions::{Came, Decision};
use crate::told::GIVEN_BEFORE;
use crate::view::View;
use modelless_types::{Accuracy, CostPer1k, Micros};
use serde_json::{Value, json};

pub(crate) fn decision(view: &View, decision: &Decision) -> Value {
    let asked = &decision.asked;
    let task = view.catalog.tasks.iter().find(|task| task.id == asked.task);
    let mut shown = json!({
        "at_unix_us": decision.at,
        "task": task.map(|task| task.name.as_str()),
        "tenant": asked.tenant,
        "asked": {
            "accuracy": asked.accuracy.map(Accuracy::as_f64),
            "latency_ms": asked.latency.map(Micros::as_millis_f64),
            "max_cost": asked.max_cost.map(CostPer1k::as_usd),
            "priority": asked.priority,
        },
    });
    match &decision.came {
        Came::Answered { variant, node, batch, why, predicted, queued, run, total, cost, again } => {
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
