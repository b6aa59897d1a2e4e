//! Batches that gather at nodes: who comes joins those of its class who were sent last, as long as these have not begun.
//!
//! Were each query sent where it would be done first, a class would be spread evenly over all nodes that serve it, since each that is sent makes its
//! node look a little busier. Then every node gets a small part of every batch, and where a large batch takes hardly longer than a single run, devices are
//! full with what one of them could do. So the first of a batch goes where it would be done first, which says when it will probably be begun there; until then the
//! others of its class follow it, up to what one batch takes. The next batch goes elsewhere, as that node is the busier for this one.
//!
//! Nobody follows who would be late with all who go already, nor while some node could begin at once or do better what is preferred, nor who wants to be fast. At low load a
//! node that has nothing to do has nothing to gather before, so all are spread as ever.

use super::load::LoadView;
use super::pick::{Choice, Gathers, pick_with};
use super::snapshot::{NodeIx, Snapshot};
use crate::estimate::Moments;
use crate::query::Query;
use alloc::collections::BTreeMap;
use modelless_types::{ClassId, Prefer, Time};

/// What gathers at a node.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Batch {
    node: NodeIx,
    /// When its first was sent, and how long it was to wait.
    since: Time,
    wait: Moments,
    /// By then it will probably have begun.
    begins: Time,
    /// So many go already, of at most so many.
    count: u32,
    most: u32,
}

/// Of each class, and of what is preferred, the batch that gathers: where one is best is not where others do best.
#[derive(Clone, Debug, Default)]
pub struct Gathering(BTreeMap<(ClassId, Prefer), Batch>);

impl Gathering {
    /// Classes and nodes are numbered anew.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn of(&self, now: Time, class: ClassId, query: &Query) -> Option<Gathers> {
        let batch = self.0.get(&(class, query.prefer))?;
        let Batch { node, since, wait, begins, count, most } = *batch;
        let gathers = begins > now && count < most && query.prefer != Prefer::Latency;
        // How uncertain it is was weighed for the first, and to spread what follows would not make it any surer.
        let wait = Moments { var: 0.0, ..wait.less(now - since) };
        gathers.then_some(Gathers { node, wait, count })
    }

    /// Where a query goes with others whose batch has not begun, if it does.
    pub(crate) fn joins(
        &self,
        snapshot: &Snapshot,
        load: &LoadView,
        now: Time,
        (class, query): (ClassId, &Query),
    ) -> Option<Choice> {
        let gathers = self.of(now, class, query)?;
        if !load.has_credit(now, gathers.node, query.bytes) {
            return None;
        }
        pick_with(snapshot.candidates(class)?, load, (class, query), now, gathers)
    }

    /// A query of those that may be followed goes to a node, which is not booked there yet.
    pub(super) fn sent(
        &mut self,
        snapshot: &Snapshot,
        load: &LoadView,
        now: Time,
        (class, query): (ClassId, &Query),
        node: NodeIx,
    ) {
        let key = (class, query.prefer);
        if self.of(now, class, query).is_some_and(|gathers| gathers.node == node) {
            if let Some(batch) = self.0.get_mut(&key) {
                batch.count += 1;
            }
            return;
        }
        let most = snapshot.candidates(class).and_then(|all| all.entry(node)).map_or(1, |entry| entry.batch);
        let wait = load.wait_of(now, class, node, query.deadline);
        let begins = now + wait.mean();
        if most > 1 && begins > now {
            self.0.insert(key, Batch { node, since: now, wait, begins, count: 1, most });
        } else {
            self.0.remove(&key);
        }
    }

    /// A node has no time for a class: nobody follows those who went there.
    pub(super) fn falls_behind(&mut self, class: ClassId, node: NodeIx) {
        self.0.retain(|(of, _), batch| *of != class || batch.node != node);
    }
}
