//! Which queries whole batches are made of: see [`super::super::gathering`].

use super::super::candidates::RowNode;
use super::super::gathering::Gathering;
use super::super::pick::Choice;
use super::super::snapshot::NodeIx;
use super::Router;
use crate::query::Query;
use modelless_types::{ClassId, Time};

impl Router {
    /// The batches that gather at nodes.
    pub fn gathering(&self) -> &Gathering {
        &self.gathering
    }

    /// Whether a query follows others, and others follow it. One that a node has given back goes where there is room for it alone.
    fn is_of_batches(&self, query: &Query) -> bool {
        self.limits.whole_batches && !query.priority.is_spare() && !self.returned.contains_key(&query.key)
    }

    /// Where a query goes with others of its class whose batch has not begun.
    pub(super) fn joins(&self, now: Time, class: ClassId, query: &Query) -> Option<Choice> {
        let may = self.is_of_batches(query);
        may.then(|| self.gathering.joins(&self.snapshot, &self.load, now, (class, query))).flatten()
    }

    /// A query goes to a node, which is not booked there yet.
    pub(super) fn gathers(&mut self, now: Time, class: ClassId, query: &Query, node: NodeIx) {
        if self.is_of_batches(query) {
            self.gathering.sent(&self.snapshot, &self.load, now, (class, query), node);
        }
    }

    /// Among how many of so many nodes whole batches of a class go in turn, as it is told to them.
    pub(super) fn among(&self, entries: &[RowNode], nodes: u32) -> u32 {
        match (self.limits.whole_batches, entries.iter().any(|entry| entry.batch > 1)) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => nodes,
        }
    }
}

/// Whether nothing is said, as in recordings from before it was.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(super) fn is_untold(among: &u32) -> bool {
    *among == 0
}
