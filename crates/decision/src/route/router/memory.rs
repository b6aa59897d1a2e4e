//! What the router saw when it decided: the table and how the nodes stood, of so many of its last decisions. Whoever asks afterwards
//! why gets from it by the same calls what was decided then ([`crate::explain`]).
//!
//! Nothing is kept unless it is asked for. A decision that is kept takes the place of the oldest one, list and all, so that in the
//! long run nothing is allocated for it; what it costs is a copy of how up to [`NODES`] nodes stood.

use super::super::later::Later;
use super::super::load::{LoadView, NodeLoad};
use super::super::pick::{Choice, mix};
use super::super::sharing::Standing;
use super::super::snapshot::{NodeIx, Snapshot, Table};
use super::Router;
use crate::estimate::Moments;
use crate::query::Query;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use modelless_types::{ClassId, Micros, NodeId, QueryKey, Refusal, Time};

/// Nodes of a decision that are kept; of more those that could answer at once, the chosen one among them.
const NODES: usize = 64;
/// Tables change all the time. Of large ones only so many are kept as have so many offers together, and the decisions made from older
/// ones are forgotten.
const OFFERS: usize = 100_000;

/// What was done with a query.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Did {
    /// It went to a node.
    Sent {
        /// Which.
        node: NodeId,
        /// 99th percentile of what was expected, from then to the answer.
        expected: Micros,
        /// What was chosen, where it went with others of its class whose batch had not begun.
        joined: Option<Choice>,
    },
    /// It was announced: whichever node claims it first has it.
    Announced {
        /// To so many nodes.
        nodes: u32,
        /// Refused then at the latest, if none has claimed it.
        until: Time,
    },
    /// It went to a node that claimed it.
    Claimed {
        /// Which.
        node: NodeId,
        /// 99th percentile of what was expected, from then to the answer.
        expected: Micros,
    },
    /// It waits at the gateway.
    Waits {
        /// Looked at again then at the latest.
        until: Time,
    },
    /// It was refused, for a reason of this name.
    Refused(&'static str),
}

/// How a node stood.
#[derive(Clone, Copy, PartialEq, Debug)]
struct SeenNode {
    node: NodeIx,
    load: NodeLoad,
    /// How long the query's class waits there, as it was last told.
    wait: Moments,
    /// What of it was for those who are due later than the query.
    later: Micros,
}

/// One decision, and what was seen when it was made.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// When.
    pub at: Time,
    /// Of which query.
    pub key: QueryKey,
    /// The query as it was routed; `None` where its goals were refused before that.
    pub query: Option<Query>,
    /// What was done with it.
    pub did: Did,
    /// How its application stood among those of the task, where not all could be answered in time.
    pub standing: Option<Standing>,
    /// Nodes that are not kept.
    pub left_out: u32,
    /// What broke ties.
    pub(crate) seed: u64,
    /// The node that could not get it, since it had given it back.
    pub(crate) not: Option<NodeIx>,
    table: Arc<Table>,
    nodes: Vec<SeenNode>,
}

impl Seen {
    /// Snapshot and load as they were, as far as they are kept: nodes that are not look as if they were away.
    pub fn view(&self) -> (Snapshot, LoadView) {
        let mut snapshot = Snapshot::new(Arc::clone(&self.table));
        let mut load = LoadView::new(snapshot.node_count());
        let mut row = alloc::vec![Moments::ZERO; snapshot.node_count()];
        for seen in &self.nodes {
            let at = seen.node.0 as usize;
            (load.nodes[at], row[at]) = (seen.load, seen.wait);
            load.later[at] = Later::surely(seen.later);
        }
        if let Some(query) = &self.query {
            snapshot.intern(query.class);
            load.waits.push(row);
        }
        (snapshot, load)
    }

    /// Whether it is kept how a node stood.
    pub(crate) fn knows(&self, node: NodeIx) -> bool {
        self.nodes.iter().any(|seen| seen.node == node)
    }
}

/// The last decisions, oldest first.
#[derive(Debug, Default)]
pub(super) struct Memory {
    most: usize,
    seen: VecDeque<Seen>,
    /// Their tables, oldest first, each with how many offers it has.
    tables: VecDeque<(Arc<Table>, usize)>,
    offers: usize,
}

impl Memory {
    /// A list to fill, and the table held on to; forgets what there is no more room for.
    fn room(&mut self, table: &Arc<Table>) -> Vec<SeenNode> {
        if self.tables.back().is_none_or(|(known, _)| !Arc::ptr_eq(known, table)) {
            let offers = table.nodes.iter().map(|node| node.offers.len()).sum::<usize>().max(1);
            self.tables.push_back((Arc::clone(table), offers));
            self.offers += offers;
        }
        while self.offers > OFFERS && self.tables.len() > 1 {
            self.forget_table();
        }
        let oldest = if self.seen.len() >= self.most { self.seen.pop_front() } else { None };
        // A table that no decision kept was made from is not needed any more.
        let first = self.seen.front().map_or(table, |seen| &seen.table);
        while let Some((oldest, offers)) = self.tables.front()
            && !Arc::ptr_eq(oldest, first)
        {
            self.offers -= offers;
            self.tables.pop_front();
        }
        let mut nodes = oldest.map(|seen| seen.nodes).unwrap_or_default();
        nodes.clear();
        nodes
    }

    fn forget_table(&mut self) {
        let Some((table, offers)) = self.tables.pop_front() else { return };
        self.offers -= offers;
        while self.seen.front().is_some_and(|seen| Arc::ptr_eq(&seen.table, &table)) {
            self.seen.pop_front();
        }
    }
}

impl Router {
    /// Has it keep what it sees when it decides, of so many of its last decisions.
    #[must_use]
    pub fn remembering(mut self, decisions: usize) -> Self {
        self.memory.most = decisions;
        self.memory.seen.reserve_exact(decisions);
        self
    }

    /// The decisions on a query that are kept, in their order, and when the oldest was made that is kept of any query.
    pub fn seen(&self, key: QueryKey) -> (Vec<Seen>, Option<Time>) {
        let of_it = self.memory.seen.iter().filter(|seen| seen.key == key).cloned();
        (of_it.collect(), self.memory.seen.front().map(|seen| seen.at))
    }

    /// A query's goals were refused at admission: it never comes here.
    pub fn turned_away(&mut self, now: Time, key: QueryKey, refusal: &Refusal) {
        self.note(now, key, None, Did::Refused(refusal.name()));
    }

    pub(super) fn remember(&mut self, now: Time, class: ClassId, query: &Query, did: Did) {
        self.note(now, query.key, Some((class, query)), did);
    }

    /// Refuses a query by what is seen now.
    pub(super) fn refuse_seen(&mut self, now: Time, class: ClassId, query: &Query, refusal: Refusal) {
        self.refused_for(now, query, &refusal);
        self.remember(now, class, query, Did::Refused(refusal.name()));
        self.refuse(query.key, refusal);
    }

    fn note(&mut self, now: Time, key: QueryKey, of: Option<(ClassId, &Query)>, did: Did) {
        if self.memory.most == 0 {
            return;
        }
        let not = self.barred(key);
        let table = self.snapshot.shared();
        let mut nodes = self.memory.room(table);
        let row = of.and_then(|(class, _)| self.load.waits.get(class.0 as usize));
        let stood = |node: NodeIx| {
            let at = node.0 as usize;
            let load = *self.load.nodes.get(at)?;
            let wait = row.and_then(|row| row.get(at)).copied().unwrap_or(load.wait);
            let later = of.map_or(0.0, |(_, query)| self.load.due_after(node, query.deadline));
            let later = Moments { mean: later, var: 0.0 }.mean();
            Some(SeenNode { node, load, wait, later })
        };
        let sent_to = match did {
            Did::Sent { node, .. } | Did::Claimed { node, .. } => self.snapshot.node_ix(node),
            Did::Announced { .. } | Did::Waits { .. } | Did::Refused(_) => None,
        };
        let all = self.load.nodes.len();
        let every = (0..u32::try_from(all).unwrap_or(u32::MAX)).map(NodeIx);
        if let (true, Some((class, _))) = (all > NODES, of) {
            nodes.extend(sent_to.and_then(stood));
            let able = self.snapshot.candidates(class).map_or(&[][..], |candidates| &candidates.nodes);
            let others = able.iter().map(|entry| entry.node).filter(|node| Some(*node) != sent_to);
            nodes.extend(others.filter_map(stood).take(NODES - nodes.len()));
        } else {
            nodes.extend(every.filter_map(stood).take(NODES));
        }
        let left_out = u32::try_from(all - nodes.len()).unwrap_or(u32::MAX);
        let (query, seed) = (of.map(|(_, query)| *query), mix(self.seed ^ key.0));
        let table = Arc::clone(table);
        let standing = query.and_then(|query| self.standing(now, &query));
        self.memory.seen.push_back(Seen {
            at: now,
            key,
            query,
            did,
            standing,
            left_out,
            seed,
            not,
            table,
            nodes,
        });
    }
}
