//! Nodes that are in the plan and not reached: what is pinned there stays in the plan until they are gone for sure.
//!
//! A scheduler that has just started reaches one node after the other, and one that reaches some of them only must not undo what
//! another planned for the rest.

use modelless_decision::plan::Plan;
use modelless_live::{Member, Role};
use modelless_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A node is gone that was neither reached nor announced for so long, while the live state answered.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(30);

/// Nodes of the plan, with when each was last reached, announced, or met in the plan for the first time.
#[derive(Debug, Default)]
pub(crate) struct Absent(BTreeMap<NodeId, Instant>);

impl Absent {
    /// Adds to `next` what `before` has for nodes that it was not made for. `members` are who is there, if that is
    /// known.
    pub(crate) fn carry_over(
        &mut self,
        next: &mut Plan,
        before: &Plan,
        reached: &BTreeSet<NodeId>,
        members: Option<&[Member]>,
    ) {
        let now = Instant::now();
        let announced: BTreeSet<NodeId> = members
            .into_iter()
            .flatten()
            .filter(|member| member.role == Role::Node)
            .filter_map(|member| member.node)
            .collect();
        let planned: BTreeSet<NodeId> = before.pins.iter().map(|pin| pin.node).collect();
        self.0.retain(|node, _| planned.contains(node));
        for node in planned {
            let seen = self.0.entry(node).or_insert(now);
            if members.is_none() || reached.contains(&node) || announced.contains(&node) {
                *seen = now;
            }
        }
        let stays = |node: &NodeId| {
            !reached.contains(node) && self.0.get(node).is_some_and(|seen| now - *seen < GONE_AFTER)
        };
        next.pins.extend(before.pins.iter().filter(|pin| stays(&pin.node)));
        next.pins.sort_unstable();
        next.serves.extend(before.serves.iter().filter(|pin| stays(&pin.node)));
        next.report.extend(before.report.iter().filter(|step| stays(&step.node)).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::plan::Pin;
    use modelless_types::{DeviceIx, VariantId};

    #[tokio::test(start_paused = true)]
    async fn what_serves_most_on_a_node_that_is_not_reached_yet_stays_with_its_pins() {
        let pin = |node| Pin { node: NodeId(node), device: DeviceIx(0), variant: VariantId(7) };
        let all: Vec<Pin> = (1..=2).map(pin).collect();
        let before = Plan {
            serves: all.iter().copied().collect(),
            pins: all.clone(),
            informed: true,
            ..Plan::default()
        };
        let mut absent = Absent::default();
        let mut with = |before: &Plan| {
            let mut next =
                Plan { pins: vec![all[0]], serves: [all[0]].into(), informed: true, ..Plan::default() };
            absent.carry_over(&mut next, before, &[NodeId(1)].into(), Some(&[]));
            next
        };
        assert!(with(&before).asks_the_same(&before));
        tokio::time::advance(GONE_AFTER).await;
        let gone = with(&before);
        assert_eq!((gone.pins, gone.serves), (vec![all[0]], [all[0]].into()));
    }
}
