//! Queries that a node gives back unstarted.
//!
//! One that drains is asked for nothing more, so what it had goes wherever it can, as if it had just come. One that has
//! fallen behind gives a query back at most once: another node that can be in time by what is known here gets it, be it after a
//! load, or it waits for the credit of such a one, or it hears what the node would have told it. The node that gave it back gets
//! it again only once it has got on; where no other node can make it, the query waits for that, as it would have waited there.

use super::super::load::{NodeReport, Stand};
use super::super::pick::{Verdict, mix, pick_elsewhere};
use super::super::snapshot::NodeIx;
use super::lines::{Freed, Place};
use super::{Action, Open, Router, Where};
use crate::estimate::Moments;
use crate::query::Query;
use alloc::vec::Vec;
use modelless_types::{AppId, ClassId, NodeId, QueryKey, Refusal, Time};

/// Who gave a query back, and how it stood then; nobody any longer, once that one has got on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    by: Option<NodeId>,
    stood: Option<Stand>,
}

impl Router {
    /// Which node gets a query, if any. One that has given it back must have got on since.
    pub(super) fn decide(&self, now: Time, class: ClassId, query: &Query) -> Verdict {
        self.choose(now, class, query).0
    }

    /// The same, and whether the query waits in line for the node that gave it back, since nobody else can answer it in time.
    fn choose(&self, now: Time, class: ClassId, query: &Query) -> (Verdict, bool) {
        let seed = mix(self.seed ^ query.key.0);
        let pick = |not| pick_elsewhere(&self.snapshot, &self.load, class, query, now, seed, not);
        let Some(node) = self.barred(query.key) else {
            let joined = self.joins(now, class, query).map(Verdict::Send);
            return (joined.unwrap_or_else(|| pick(None)), false);
        };
        let elsewhere = pick(Some(node));
        if !self.is_in_vain(now, query, &elsewhere) {
            return (elsewhere, false);
        }
        match pick(None) {
            Verdict::Send(_) => (Verdict::Wait { until: self.until_too_late(class, query, node) }, true),
            wait @ Verdict::Wait { .. } => (wait, true),
            Verdict::Load { .. } | Verdict::Refuse(_) => (elsewhere, false),
        }
    }

    /// Whether a verdict means that no other node can answer in time: none has what it takes in memory, and one that would have
    /// to load it would be too late, or has no room before it is.
    fn is_in_vain(&self, now: Time, query: &Query, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Refuse(_) | Verdict::Load { in_time: false, .. } => true,
            Verdict::Load { node, ready_in, .. } => {
                query.expires - now <= *ready_in && !self.load.has_credit(now, *node, query.bytes)
            }
            Verdict::Send(_) | Verdict::Wait { .. } => false,
        }
    }

    /// The node that may not have a query, since it has given it back and has not got on.
    pub(super) fn barred(&self, key: QueryKey) -> Option<NodeIx> {
        let returned = self.returned.get(&key)?;
        let node = self.snapshot.node_ix(returned.by?)?;
        (!self.has_got_on(node, returned.stood)).then_some(node)
    }

    /// Whether a node has got on since it stood so.
    pub(super) fn has_got_on(&self, node: NodeIx, since: Option<Stand>) -> bool {
        self.load.stand(node).zip(since).is_some_and(|(now, then)| now.got_on(&then))
    }

    /// The node that gave a query back has got on.
    pub(super) fn may_go_anywhere(&mut self, key: QueryKey) {
        if let Some(returned) = self.returned.get_mut(&key) {
            returned.by = None;
        }
    }

    /// Puts a query into its line: that of those who may not go to the node that may not get it either, and as whom it is counted.
    pub(super) fn stands_in_line(&mut self, class: ClassId, query: &Query, party: Option<AppId>) -> Place {
        let not = self.barred(query.key).and_then(|node| self.snapshot.node(node)).map(|node| node.id);
        let stood = not.and_then(|_| self.returned.get(&query.key)).and_then(|returned| returned.stood);
        let place = Place { not, party };
        self.lines.insert(class, place, (query.deadline, query.key), stood);
        self.sharing.waits(query, party);
        place
    }

    /// Until the node, idle, would be too late.
    pub(super) fn until_too_late(&self, class: ClassId, query: &Query, node: NodeIx) -> Time {
        let candidates = self.snapshot.candidates(class);
        let entry = candidates.and_then(|all| all.nodes.iter().find(|entry| entry.node == node));
        let service = entry.map_or(Moments::ZERO, |entry| entry.fastest).mean();
        Time(query.expires.0.saturating_sub(service.0))
    }

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
        if let Some(open) = &back {
            self.not_run(now, open);
        }
        self.report(now, node, report, true);
        match (back, ix) {
            (Some(open), Some(from)) if why != Refusal::Draining => {
                self.elsewhere(now, open.query, (node, from), why);
            }
            (Some(open), _) => self.place(now, open.query),
            (None, _) => {}
        }
        if let Some(ix) = ix {
            self.serve_waiting(now, Freed::At(ix));
        }
    }

    /// Once, to another node that can be in time.
    fn elsewhere(&mut self, now: Time, query: Query, (node, from): (NodeId, NodeIx), why: Refusal) {
        let late = matches!(why, Refusal::TooLate { .. });
        let room = matches!(why, Refusal::QueueFull { .. } | Refusal::BytesFull { .. });
        let why = if late { Refusal::TooLate { waited: now - query.arrived } } else { why };
        let returned = Returned { by: Some(node), stood: self.load.stand(from) };
        if self.returned.insert(query.key, returned).is_some() {
            self.refused_for(now, &query, &why);
            return self.refuse(query.key, why); // it was not to come back again
        }
        let class = self.class_id(query.class);
        if late && !query.best_effort {
            self.load.behind(now, class, from, Moments::exactly(query.expires - now));
            self.gathering.falls_behind(class, from);
        }
        match self.choose(now, class, &query) {
            (verdict @ (Verdict::Send(_) | Verdict::Load { in_time: true, .. }), _) => {
                self.settle(now, class, query, verdict);
            }
            // The node gave it back since another could answer it. That one has gone: it waits here as it would have there.
            (Verdict::Wait { until }, true) if until > now && (late || room) => {
                self.wait(now, class, query, until);
            }
            (Verdict::Wait { until }, false)
                if until > now && self.only_lacks_credit(now, class, &query, from) =>
            {
                self.wait(now, class, query, until);
            }
            (Verdict::Wait { .. } | Verdict::Load { .. } | Verdict::Refuse(_), _) => {
                self.refuse_seen(now, class, &query, why);
            }
        }
    }

    /// Whether another node would be in time if it had credit.
    fn only_lacks_credit(&self, now: Time, class: ClassId, query: &Query, from: NodeIx) -> bool {
        let Some(candidates) = self.snapshot.candidates(class) else { return false };
        let left = Moments::exactly(query.expires - now).mean;
        candidates.nodes.iter().any(|entry| {
            let wait = self.load.wait_of(now, class, entry.node, query.deadline);
            let mean = wait.mean + entry.least_mean;
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

    /// Another node is there than before, or has something else in memory: what was sent when nobody else could answer it may come
    /// back from now on. (The other way round nothing need be told: what comes back then waits.)
    pub(super) fn offer_return(&mut self, now: Time) {
        let kept: Vec<(QueryKey, Query, NodeIx)> = {
            let kept = self.open.iter().filter_map(|(key, open)| match open.at {
                Where::Sent { node, returnable: false, .. } => Some((*key, open.query, node)),
                Where::Sent { .. } | Where::Announced { .. } | Where::Waiting { .. } => None,
            });
            kept.filter(|(key, ..)| !self.returned.contains_key(key)).collect()
        };
        for (key, query, node) in kept {
            let class = self.class_id(query.class);
            let Some(id) = self.snapshot.node(node).map(|node| node.id) else { continue };
            if self.returnable(now, class, &query, node)
                && let Some(Open { at: Where::Sent { returnable, .. }, .. }) = self.open.get_mut(&key)
            {
                *returnable = true;
                self.actions.push_back(Action::MayReturn { key, node: id });
            }
        }
    }

    /// A query has left: nothing is remembered of it.
    pub(super) fn over(&mut self, key: QueryKey) {
        self.retried.remove(&key);
        self.returned.remove(&key);
    }
}
