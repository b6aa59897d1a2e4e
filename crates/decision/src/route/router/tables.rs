//! What a new table does to the queries that are open: positions and classes are numbered anew, nodes and variants may be gone.

use super::super::load::LoadView;
use super::super::snapshot::{NodeIx, Snapshot, Table};
use super::{Open, Router, Where};
use crate::query::Query;
use alloc::sync::Arc;
use alloc::vec::Vec;
use modelless_types::{AppId, Bytes, QueryKey, Refusal, Time, VariantSet};

impl Router {
    /// A new table: positions and classes are numbered anew, so everything that uses them is put again.
    pub(super) fn rebuild(&mut self, now: Time, table: Arc<Table>) {
        let old = core::mem::replace(&mut self.snapshot, Snapshot::new(table));
        let count = self.snapshot.node_count();
        let old_load = core::mem::replace(&mut self.load, LoadView::new(count));
        let moved = |node: NodeIx, new: &Snapshot| old.node(node).and_then(|n| new.node_ix(n.id));
        for at in 0..old.node_count() {
            let ix = NodeIx(u32::try_from(at).expect("fewer than 2^32 nodes"));
            if let Some(new) = moved(ix, &self.snapshot) {
                self.load.nodes[new.0 as usize] = old_load.nodes[at];
                self.load.later[new.0 as usize] = old_load.later[at];
            }
        }
        self.lines.clear();
        self.gathering.clear();
        self.sharing.nobody_waits();
        let keys: Vec<QueryKey> = self.open.keys().copied().collect();
        let (mut lost, mut unheard) = (Vec::new(), Vec::new());
        for key in keys {
            let Some(open) = self.open.get(&key).cloned() else { continue };
            match open.at {
                Where::Sent { node, guard, returnable, charged, credit } => {
                    if let Some(node) = moved(node, &self.snapshot) {
                        let at = Where::Sent { node, guard, returnable, charged, credit };
                        self.open.insert(key, Open { query: open.query, at });
                    } else {
                        self.timers.remove(&(guard, key));
                        self.open.remove(&key);
                        self.not_run(now, &open);
                        lost.push(open.query);
                    }
                }
                Where::Waiting { until, place, level, .. } => {
                    self.requeue(key, open.query, (until, place.party, level));
                }
                Where::Announced { until, party, level } => {
                    unheard.extend(self.announced_anew(key, open.query, (until, party, level)));
                }
            }
        }
        let snapshot = &self.snapshot;
        self.sharing.keep(|task| snapshot.task(task).is_some());
        // Their node left the table.
        for query in lost {
            self.again(now, query);
        }
        for query in unheard {
            self.place(now, query);
        }
    }

    /// Puts a waiting query under its class's new number, without variants that are gone.
    fn requeue(&mut self, key: QueryKey, mut query: Query, (until, party, level): (Time, Option<AppId>, u8)) {
        query.class.admits = self.still_there(&query);
        if query.class.admits.is_empty() {
            return self.nothing_left(key, &query, (until, level));
        }
        let class = self.class_id(query.class);
        let place = self.stands_in_line(class, &query, party);
        self.open.insert(key, Open { query, at: Where::Waiting { class, until, place, level } });
    }

    /// Who may answer a query, without variants that are gone.
    pub(super) fn still_there(&self, query: &Query) -> VariantSet {
        let task = self.snapshot.task(query.class.task);
        let alive: VariantSet =
            task.map(|task| task.variants.iter().map(|v| v.ordinal).collect()).unwrap_or_default();
        query.class.admits.intersection(&alive)
    }

    /// Nothing that could answer a query that waits here is there any more.
    pub(super) fn nothing_left(&mut self, key: QueryKey, query: &Query, (until, level): (Time, u8)) {
        self.ranks.remove(&(level, query.deadline, key));
        self.timers.remove(&(until, key));
        self.waiting -= 1;
        self.waiting_bytes = Bytes(self.waiting_bytes.0 - query.bytes.0);
        let why = "every variant that could answer was removed while the query waited".into();
        self.refuse(key, Refusal::VariantFailed { why });
    }
}
