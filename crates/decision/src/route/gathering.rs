//! Batches that gather at nodes: who comes joins those of its class who were sent last, as long as these have not begun.
//!
//! Were each query sent where it would be done first, a class would be spread evenly over all nodes that serve it, since each that is sent makes its
//! node look a little busier. Then every node gets a small part of every batch, and where a large batch takes hardly longer than a single run, devices are
//! full with what one of them could do. So the first of a batch goes where it would be done first, which says when it will be begun there at the latest; until then the
//! others of its class follow it, up to what one batch takes. The next batch goes elsewhere, as that node is the busier for this one.
//!
//! Nobody is kept waiting for it: while some node could begin at once nobody joins, and at low load a node that has nothing to do has nothing to
//! gather before, so all are spread as ever.

use super::load::LoadView;
use super::pick::{Choice, pick_at};
use super::snapshot::{NodeIx, Snapshot};
use crate::estimate::Moments;
use crate::query::Query;
use alloc::collections::BTreeMap;
use modelless_types::{ClassId, Prefer, Time};

/// A node with less to do than so many microseconds begins at once.
const AT_ONCE: f64 = 100.0;

/// What gathers at a node.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Batch {
    node: NodeIx,
    /// By then it will have begun.
    begins: Time,
    /// So many more go into it.
    room: u32,
    /// What its first would prefer: where that is best is not where others do best who prefer something else.
    prefer: Prefer,
}

/// Of each class the batch that gathers.
#[derive(Debug, Default)]
pub(super) struct Gathering(BTreeMap<ClassId, Batch>);

impl Gathering {
    /// Classes and nodes are numbered anew.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn of(&self, now: Time, class: ClassId, query: &Query) -> Option<&Batch> {
        let waits = |batch: &&Batch| batch.begins > now && batch.room > 0 && batch.prefer == query.prefer;
        self.0.get(&class).filter(waits)
    }

    /// Where a query would join, and how long it would wait there.
    pub(super) fn place(&self, now: Time, class: ClassId, query: &Query) -> Option<(NodeIx, Moments)> {
        self.of(now, class, query).map(|batch| (batch.node, Moments::exactly(batch.begins - now)))
    }

    /// Whether a query joins the batch that gathers, and where.
    pub(super) fn joins(
        &self,
        snapshot: &Snapshot,
        load: &LoadView,
        now: Time,
        (class, query): (ClassId, &Query),
    ) -> Option<Choice> {
        let place @ (node, _) = self.place(now, class, query)?;
        if !load.has_credit(now, node, query.bytes) {
            return None;
        }
        let candidates = snapshot.candidates(class)?;
        let idles = |other: NodeIx| {
            other != node
                && load.has_credit(now, other, query.bytes)
                && load.wait(now, class, other).mean < AT_ONCE
        };
        if candidates.nodes.iter().any(|entry| idles(entry.node)) {
            return None;
        }
        pick_at(candidates, load, (class, query), now, place)
    }

    /// A query goes to a node, which is not booked there yet.
    pub(super) fn sent(
        &mut self,
        snapshot: &Snapshot,
        load: &LoadView,
        now: Time,
        (class, query): (ClassId, &Query),
        node: NodeIx,
    ) {
        if self.of(now, class, query).is_some_and(|batch| batch.node == node) {
            if let Some(batch) = self.0.get_mut(&class) {
                batch.room -= 1;
            }
            return;
        }
        let largest =
            snapshot.candidates(class).and_then(|all| all.entry(node)).map_or(1, |entry| entry.batch);
        let begins = now + load.wait(now, class, node).mean();
        let batch = Batch { node, begins, room: largest.saturating_sub(1), prefer: query.prefer };
        if batch.room > 0 && begins > now {
            self.0.insert(class, batch);
        } else {
            self.0.remove(&class);
        }
    }
}
