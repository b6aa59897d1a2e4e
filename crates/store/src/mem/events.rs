//! What happened, in one order; and plans.

use super::State;
use crate::error::Result;
use crate::events::{Event, NewEvent};
use crate::records::{NewTransition, Node, NodeState, Plan, SavePlan, Transition, UnixMicros};
use crate::{EVENTS_KEPT, PLANS_KEPT};
use modelless_types::PlanId;

impl State {
    pub(super) fn note(&mut self, about: NewEvent) -> Event {
        let event = Event { seq: self.next("event"), about };
        self.events.push(event.clone());
        self.events.retain(|known| known.seq + EVENTS_KEPT > event.seq);
        event
    }

    pub(super) fn move_replica(&mut self, change: NewTransition) -> Result<Transition> {
        let replica = self.replica(change.replica)?;
        replica.must_be(change.from)?;
        replica.state = change.to;
        let (variant, node) = (replica.variant, replica.node);
        let transition = Transition { seq: self.next("transition"), variant, node, change };
        self.transitions.push(transition.clone());
        self.note(NewEvent::of_transition(&transition));
        Ok(transition)
    }

    pub(super) fn note_node(&mut self, node: &Node, state: NodeState, at: UnixMicros) {
        self.note(NewEvent::of_node(node.id, &node.about.name, state, at));
    }

    pub(super) fn events(&self, after: Option<u64>, limit: u32) -> Vec<Event> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let from = match after {
            Some(after) => self.events.partition_point(|known| known.seq <= after),
            None => self.events.len().saturating_sub(limit),
        };
        self.events[from..].iter().take(limit).cloned().collect()
    }

    pub(super) fn save_plan(&mut self, parent: Option<PlanId>, json: String, at: UnixMicros) -> SavePlan {
        let current = self.plans.last().map(|plan| plan.id);
        if current != parent {
            return SavePlan::Lost { current };
        }
        let id = PlanId(self.next("plan"));
        self.plans.push(Plan { id, parent, json, at });
        self.plans.retain(|plan| plan.id.0 + PLANS_KEPT > id.0);
        SavePlan::Saved(id)
    }
}
