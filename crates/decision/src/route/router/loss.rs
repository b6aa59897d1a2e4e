//! Nodes that are lost, or look as if they were, and the queries they had.
//!
//! A query that lost its node is tried once more elsewhere; one that loses a second is refused by name. A node is found
//! dead by its connection, which for one that is stopped takes a while; sooner it is found by its deadlines: it keeps a
//! query past its time and says nothing.

use super::super::pick::Verdict;
use super::super::snapshot::NodeIx;
use super::{Action, Router, Where};
use crate::query::Query;
use alloc::vec::Vec;
use modelless_types::{Micros, QueryKey, Refusal, Time};

/// A node in doubt gets nothing for so many times the grace, or until it does something.
const DOUBT: u64 = 5;

impl Router {
    pub(super) fn node_down(&mut self, now: Time, node: NodeIx) {
        self.load.down(node);
        self.hears_no_more(now, node);
        for key in self.open_at(node) {
            if let Some(open) = self.take(key) {
                self.not_run(now, &open);
                self.again(now, open.query);
            }
        }
    }

    /// A query whose node is lost: once more elsewhere if time allows.
    pub(super) fn again(&mut self, now: Time, query: Query) {
        if self.retried.insert(query.key) {
            self.place(now, query);
        } else {
            self.refuse(query.key, Refusal::NodeLost);
        }
    }

    /// A node has kept a query past its time. If it has done nothing since that time either, it gets nothing for a while, and
    /// those of its queries that another node would take at once go there.
    pub(super) fn overdue(&mut self, now: Time, node: NodeIx, expired: Time) {
        if !self.load.silent_since(node, expired) {
            return;
        }
        self.load.doubt(now, node, Micros(self.limits.grace.0.saturating_mul(DOUBT)));
        for key in self.open_at(node) {
            let Some(query) = self.open.get(&key).map(|open| open.query) else { continue };
            if self.retried.contains(&key) {
                continue;
            }
            let class = self.class_id(query.class);
            if let Verdict::Send(choice) = self.decide(now, class, &query) {
                if let Some(open) = self.take(key) {
                    self.not_run(now, &open);
                }
                self.retried.insert(key);
                if let Some(node) = self.snapshot.node(node).map(|node| node.id) {
                    self.actions.push_back(Action::Cancel { key, node });
                }
                self.send(now, class, query, &choice);
            }
        }
    }

    fn open_at(&self, node: NodeIx) -> Vec<QueryKey> {
        let there = |at: &Where| matches!(at, Where::Sent { node: at, .. } if *at == node);
        self.open.iter().filter(|(_, open)| there(&open.at)).map(|(key, _)| *key).collect()
    }
}
