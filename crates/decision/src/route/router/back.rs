//! Queries that a node gives back unstarted.
//!
//! One that drains is asked for nothing more, so what it had goes wherever it can, as if it had just come. One that has
//! fallen behind gives a query back at most once: another node that can be in time by what is known here gets it, or it waits
//! for the credit of such a one, or it hears what the node would have told it.

use super::super::load::NodeReport;
use super::super::pick::Verdict;
use super::super::snapshot::NodeIx;
use super::Router;
use crate::estimate::Moments;
use crate::query::Query;
use modelless_types::{ClassId, NodeId, QueryKey, Refusal, Time};

impl Router {
    pub(super) fn handed_back(
        &mut self,
        now: Time,
        key: QueryKey,
        node: NodeId,
        report: &NodeReport,
        why: Refusal,
    ) {
        let ix = self.snapshot.node_ix(node);
        let back = self.is_at(key, ix).then(|| self.take(key)).flatten();
        self.report(now, node, report, true);
        match (back, ix) {
            (Some(open), Some(from)) if why != Refusal::Draining => {
                self.elsewhere(now, open.query, (node, from), why);
            }
            (Some(open), _) => self.place(now, open.query),
            (None, _) => {}
        }
        self.serve_waiting(now);
    }

    /// Once, to another node that can be in time.
    fn elsewhere(&mut self, now: Time, query: Query, (node, from): (NodeId, NodeIx), why: Refusal) {
        let late = matches!(why, Refusal::TooLate { .. });
        let why = if late { Refusal::TooLate { waited: now - query.arrived } } else { why };
        if self.returned.insert(query.key, node).is_some() {
            return self.refuse(query.key, why); // it was not to come back again
        }
        let class = self.class_id(query.class);
        if late && !query.best_effort {
            self.load.behind(now, class, from, Moments::exactly(query.expires - now));
        }
        match self.decide(now, class, &query) {
            verdict @ (Verdict::Send(_) | Verdict::Load { in_time: true, .. }) => {
                self.settle(now, class, query, verdict);
            }
            Verdict::Wait { until } if until > now && self.only_lacks_credit(now, class, &query, from) => {
                self.wait(now, class, query, until);
            }
            Verdict::Wait { .. } | Verdict::Load { .. } | Verdict::Refuse(_) => self.refuse(query.key, why),
        }
    }

    /// Whether another node would be in time if it had credit.
    fn only_lacks_credit(&self, now: Time, class: ClassId, query: &Query, from: NodeIx) -> bool {
        let Some(candidates) = self.snapshot.candidates(class) else { return false };
        let left = Moments::exactly(query.expires - now).mean;
        candidates.nodes.iter().any(|entry| {
            let mean = self.load.wait(now, class, entry.node).mean + entry.least_mean;
            entry.node != from && self.load.trusted(now, entry.node) && (query.best_effort || mean <= left)
        })
    }

    /// Whether a node that gets a query may give it back: it has not come back yet, and another that is up has in memory
    /// what may answer it.
    pub(super) fn returnable(&self, now: Time, class: ClassId, query: &Query, node: NodeIx) -> bool {
        let Some(candidates) = self.snapshot.candidates(class) else { return false };
        let other = |at: NodeIx| at != node && self.load.trusted(now, at);
        candidates.nodes.iter().any(|entry| other(entry.node)) && !self.returned.contains_key(&query.key)
    }

    /// A query has left: nothing is remembered of it.
    pub(super) fn over(&mut self, key: QueryKey) {
        self.retried.remove(&key);
        self.returned.remove(&key);
    }
}
