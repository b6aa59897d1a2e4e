//! What a new plan changes, told as an event: in the names of people, and no longer than somebody reads.

use modelless_decision::plan::{Change, Plan, changes, turns};
use modelless_store::{Catalog, EventKind, NewEvent, PlanId, UnixMicros};
use modelless_types::NodeId;
use modelless_wire::NodeStatus;
use std::collections::{BTreeMap, BTreeSet};

/// So many changes are told in full.
const IN_FULL: usize = 4;

/// The events of a plan that was saved: itself, the nodes that it gave up, and the tasks that fall asleep or wake.
pub(crate) fn events(
    (id, before, after): (PlanId, &Plan, &Plan),
    (catalog, nodes): (&Catalog, &[NodeStatus]),
    who: &str,
    at: UnixMicros,
) -> Vec<NewEvent> {
    let event = |kind, node, what: String, cause| NewEvent {
        kind,
        node,
        variant: None,
        task: None,
        what,
        cause,
        who: who.to_owned(),
        at,
    };
    let told = event(
        EventKind::Plan,
        None,
        format!("plan {}", id.0),
        summary(&changes(before, after), catalog, nodes),
    );
    let of = |plan: &Plan| plan.pins.iter().map(|pin| pin.node).collect::<BTreeSet<NodeId>>();
    let reached: BTreeSet<NodeId> = nodes.iter().map(|status| status.node).collect();
    let (old, new) = (of(before), of(after));
    let lost = old.difference(&new).filter(|node| !reached.contains(node)).map(|node| {
        let cause = "neither reached nor announced any more, so nothing is planned for it";
        event(EventKind::Node, Some(*node), "lost".into(), cause.into())
    });
    let turned = turns(before, after).into_iter().map(|turn| {
        let what = if turn.asleep { "asleep" } else { "awake" };
        NewEvent { task: Some(turn.task), ..event(EventKind::Task, None, what.into(), turn.why) }
    });
    lost.chain([told]).chain(turned).collect()
}

fn summary(changes: &[Change], catalog: &Catalog, nodes: &[NodeStatus]) -> String {
    let variants: BTreeMap<_, _> = catalog.variants.iter().map(|v| (v.id, v.name.as_str())).collect();
    let names: BTreeMap<_, _> = nodes.iter().map(|status| (status.node, status.name.as_str())).collect();
    let (come, go) = changes.iter().partition::<Vec<&Change>, _>(|change| change.comes);
    let told = |change: &Change| {
        let variant =
            variants.get(&change.pin.variant).map_or_else(|| change.pin.variant.to_string(), |n| (*n).into());
        let node = names.get(&change.pin.node).map_or_else(|| change.pin.node.to_string(), |n| (*n).into());
        let sign = if change.comes { '+' } else { '-' };
        format!("{sign} {variant} on {node} ({})", change.why)
    };
    let mut text = format!("{} pinned, {} let go", come.len(), go.len());
    for change in come.iter().chain(&go).take(IN_FULL) {
        text = format!("{text}; {}", told(change));
    }
    match changes.len().saturating_sub(IN_FULL) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}
