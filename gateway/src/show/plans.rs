//! Plans, and what happened.

use super::fleet::{task_name, variant_name};
use crate::view::{View, metered};
use modelless_decision::plan::{Change, Plan, Step};
use modelless_store::{Event, Node, Plan as Saved};
use modelless_types::{NodeId, TaskId};
use serde_json::{Value, json};

fn node_name<'a>(view: &'a View, stored: &'a [Node], id: NodeId) -> Option<&'a str> {
    let known = view.node(id).map(|node| node.name.as_str());
    known.or_else(|| stored.iter().find(|node| node.id == id).map(|node| node.about.name.as_str()))
}

fn event_task(view: &View, id: Option<TaskId>) -> Option<String> {
    let task = view.catalog.tasks.iter().find(|task| Some(task.id) == id)?;
    Some(metered(&view.catalog, task))
}

pub(crate) fn event(view: &View, stored: &[Node], event: &Event) -> Value {
    let about = &event.about;
    json!({
        "seq": event.seq,
        "kind": about.kind,
        "node": about.node.and_then(|node| node_name(view, stored, node)),
        "variant": about.variant.and_then(|variant| variant_name(view, variant)),
        "task": about.variant.map_or_else(|| event_task(view, about.task), |variant| task_name(view, variant)),
        "what": about.what,
        "cause": about.cause,
        "who": about.who,
        "at_unix_us": about.at,
    })
}

/// `changed` is what it changed in its parent, if that is still known.
pub(crate) fn plan_in_short(view: &View, saved: &Saved, plan: &Plan, changed: Option<&[Change]>) -> Value {
    json!({
        "id": saved.id,
        "parent": saved.parent,
        "at_unix_us": saved.at,
        "pins": plan.pins.len(),
        "discretionary_permille": plan.discretionary_permille,
        "changes": changed.map(|all| all.iter().map(|one| change(view, one)).collect::<Vec<_>>()),
    })
}

pub(crate) fn change(view: &View, change: &Change) -> Value {
    json!({
        "node": node_name(view, &[], change.pin.node),
        "device": change.pin.device,
        "variant": variant_name(view, change.pin.variant),
        "task": task_name(view, change.pin.variant),
        "change": if change.comes { "pin" } else { "unpin" },
        "why": change.why,
    })
}

pub(crate) fn step(view: &View, plan: &Plan, step: &Step) -> Value {
    let pinned = plan.pins.iter().any(|pin| pin.node == step.node && pin.variant == step.variant);
    json!({
        "node": node_name(view, &[], step.node),
        "variant": variant_name(view, step.variant),
        "task": task_name(view, step.variant),
        "pinned": pinned,
        "why": step.why,
        "beaten_by": step.beaten_by.and_then(|variant| variant_name(view, variant)),
    })
}
