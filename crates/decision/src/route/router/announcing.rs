//! Queries that are announced to several nodes, and go to whichever claims them first.
//!
//! Sent to one node, or kept here for the first that has room, a query is where it is by a guess: who will be free first, and with which batch it would go,
//! is known only there and then. So a query that no node could begin at once is announced to all that have something in memory for it, at
//! most [`Limits::announce`](super::Limits::announce) of them. It stands in the queue of each, and the one that binds it claims it. The first claim has it, with its
//! input, and from then on it is like any query that was sent there; the others are told to drop it. It keeps its place among those who wait here,
//! and is refused when all nodes have given it up as too late, or at the last moment, unless another node is in time by what is known here.
//!
//! Announced is nothing that only one node could answer, that a node could begin at once, that takes hardly longer than to ask for it, that only spare time is spent on, or that a node
//! has given back; and nothing of a task whose applications share what is too little for all, since whose turn it is then is decided here.

use super::super::load::NodeReport;
use super::super::pick::{AT_ONCE, Verdict, at_once, mix, pick};
use super::super::snapshot::NodeIx;
use super::lines::Freed;
use super::{Action, Did, Open, Router, Where};
use crate::estimate::Moments;
use crate::query::Query;
use alloc::vec::Vec;
use modelless_types::{AppId, ClassId, NodeId, QueryKey, Refusal, Time};

/// Where most of a class would be answered a run takes so many times as long as the way there and back, at the least: what is over sooner is over before it
/// is asked for. Nodes that are farther away hear of it as well: who is told of some nodes only would wait for those while others idle.
const WAYS: f64 = 5.0;

/// Who was told of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Those who may claim it. Never empty, and no more than [`Limits::announce`](super::Limits::announce) says.
    may: Vec<NodeId>,
    /// Those who have given it up since it would be too late there.
    late: Vec<NodeId>,
    /// Another one could not have it for another reason.
    otherwise: bool,
}

impl Told {
    /// A node will not claim it. Whether it might have.
    fn without(&mut self, node: NodeId, why: &Refusal) -> bool {
        let before = self.may.len();
        self.may.retain(|known| *known != node);
        if self.may.len() == before {
            return false;
        }
        if matches!(why, Refusal::TooLate { .. }) {
            self.late.push(node);
        } else {
            self.otherwise = true;
        }
        true
    }
}

/// A node that hears of a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hears {
    ix: NodeIx,
    id: NodeId,
    /// How long until it could have answered it, in microseconds.
    ends: f64,
    /// Queries a microsecond that it could answer of the class.
    speed: f64,
    /// What a run of one takes there at the least, without the way, in microseconds.
    alone: f64,
    /// The same, with it.
    least: f64,
    /// A run takes long against the way.
    is_near: bool,
}

impl Router {
    /// To whom a query is announced; `None` where it goes to one node, or waits for one.
    pub(super) fn who_hears(&self, now: Time, class: ClassId, query: &Query) -> Option<Vec<Hears>> {
        let most = usize::from(self.limits.announce);
        let task = query.class.task;
        if most < 2
            || query.priority.is_spare()
            || self.returned.contains_key(&query.key)
            || self.sharing.is_short(now, task)
        {
            return None;
        }
        let mut all = self.able(now, class, query)?;
        let seed = mix(self.seed ^ query.key.0);
        if let Verdict::Send(choice) = pick(&self.snapshot, &self.load, class, query, now, seed)
            && self.load.wait(now, class, choice.node).mean < AT_ONCE
        {
            return None;
        }
        if all.len() > most {
            let coin = |one: &Hears| mix(seed ^ u64::from(one.ix.0));
            let sooner = |a: &Hears, b: &Hears| a.ends.total_cmp(&b.ends).then(coin(a).cmp(&coin(b)));
            all.select_nth_unstable_by(most, sooner);
            all.truncate(most);
        }
        Some(all)
    }

    /// Nodes that have something in memory that could answer a query in time, were they free; `None` where fewer than two have.
    fn able(&self, now: Time, class: ClassId, query: &Query) -> Option<Vec<Hears>> {
        let candidates = self.snapshot.candidates(class)?;
        if candidates.nodes.len() < 2 {
            return None;
        }
        let left = if query.best_effort { f64::INFINITY } else { Moments::exactly(query.expires - now).mean };
        let hears = |entry: &super::super::candidates::RowNode| {
            let load = self.load.nodes.get(entry.node.0 as usize)?;
            // One that drains grants nothing.
            if !load.trusted(now) || load.limit.queries == 0 || !entry.fastest.within(left) {
                return None;
            }
            let node = self.snapshot.node(entry.node)?;
            let alone = (entry.least_mean - node.rtt.mean).max(0.0);
            let first = entry.first as usize;
            let work = candidates.work.get(first..first + entry.len as usize).unwrap_or_default();
            let each = work.iter().map(|work| work.mean).fold(f64::INFINITY, f64::min).max(1.0);
            Some(Hears {
                ix: entry.node,
                id: node.id,
                ends: self.load.wait(now, class, entry.node).mean + entry.least_mean,
                speed: f64::from(load.lanes.max(1)) / each,
                alone,
                least: entry.least_mean,
                is_near: alone >= node.rtt.mean * WAYS,
            })
        };
        let all: Vec<Hears> = candidates.nodes.iter().filter_map(hears).collect();
        let speed =
            |near: bool| all.iter().filter(|one| one.is_near == near).map(|one| one.speed).sum::<f64>();
        (all.len() > 1 && speed(true) >= speed(false)).then_some(all)
    }

    pub(super) fn announce(&mut self, now: Time, class: ClassId, query: Query, to: &[Hears]) {
        let party = self.sharing.party(now, &query);
        let level = self.level(now, &query, party);
        if let Err(refusal) = self.make_room(now, &query, party, level) {
            return self.refuse_seen(now, class, &query, refusal);
        }
        let key = query.key;
        let least = to.iter().map(|one| one.least).fold(f64::INFINITY, f64::min);
        let least = Moments { mean: least, var: 0.0 }.mean();
        let until = Time(query.expires.0.saturating_sub(least.0)).max(now);
        let nodes = u32::try_from(to.len()).unwrap_or(u32::MAX);
        self.remember(now, class, &query, Did::Announced { nodes, until });
        self.waiting += 1;
        self.waiting_bytes = self.waiting_bytes + query.bytes;
        self.ranks.insert((level, query.deadline, key));
        self.timers.insert((until, key));
        self.sharing.waits(&query, party);
        self.open.insert(key, Open { query, at: Where::Announced { until, party, level } });
        let told = Told { may: to.iter().map(|one| one.id).collect(), ..Told::default() };
        self.announced.insert(key, told);
        let speed: f64 = to.iter().map(|one| one.speed).sum();
        for one in to {
            let others = to.iter().filter(|other| other.ix != one.ix).map(|other| other.alone);
            let quickest = Moments { mean: others.fold(f64::INFINITY, f64::min), var: 0.0 }.mean();
            self.actions.push_back(Action::Announce {
                key,
                node: one.id,
                part_ppm: ppm(one.speed / speed),
                quickest,
            });
        }
    }

    /// Nobody may claim a query any more, but who has it. They are told so. Whoever gives it up before he hears it is heard later, and changes nothing.
    pub(super) fn withdraw(&mut self, key: QueryKey, but: Option<NodeId>) {
        let Some(told) = self.announced.remove(&key) else { return };
        let others = told.may.into_iter().filter(|node| Some(*node) != but);
        self.actions.extend(others.map(|node| Action::Withdraw { key, node }));
    }

    /// No node that heard of a query could do it in time any more, were it free, and none has claimed it. Whoever is taken to be free all the same has it:
    /// its claim may have been lost, or it had nothing in memory for it when it was announced.
    pub(super) fn at_the_last_moment(&mut self, now: Time, query: Query) {
        self.withdraw(query.key, None);
        let class = self.class_id(query.class);
        match self.decide(now, class, &query) {
            verdict @ (Verdict::Send(_) | Verdict::Load { in_time: true, .. }) => {
                self.settle(now, class, query, verdict);
            }
            // Nothing is loaded for who is too late for it.
            Verdict::Wait { .. } | Verdict::Load { .. } | Verdict::Refuse(_) => {
                let waited = now - query.arrived;
                self.refuse_seen(now, class, &query, Refusal::TooLate { waited });
            }
        }
    }

    /// A node asks for queries: each that is still to be had goes to it.
    pub(super) fn claimed(
        &mut self,
        now: Time,
        queries: &[QueryKey],
        node: NodeId,
        lanes: u16,
        report: &NodeReport,
    ) {
        self.report(now, node, report, false);
        let Some(ix) = self.snapshot.node_ix(node) else {
            let denied = queries.iter().map(|key| Action::Withdraw { key: *key, node });
            return self.actions.extend(denied);
        };
        if let Some(load) = self.load.nodes.get_mut(ix.0 as usize) {
            load.lanes = lanes;
        }
        for key in queries {
            let may = self.announced.get(key).is_some_and(|told| told.may.contains(&node));
            if let Some(open) = if may { self.take(*key) } else { None } {
                self.withdraw(*key, Some(node));
                let class = self.class_id(open.query.class);
                let choice = at_once(&self.snapshot, class, ix);
                self.give(now, class, open.query, &choice, true);
            } else if !self.is_at(*key, Some(ix)) {
                self.actions.push_back(Action::Withdraw { key: *key, node });
            }
        }
        self.serve_waiting(now, Freed::At(ix));
    }

    /// A node will not claim a query that was announced to it. Where nobody else may either it is refused if all of them would be too late and nobody else would be
    /// in time, and goes the way of others if not. One that was sent meanwhile, to that node or to another, is as it is.
    pub(super) fn declined(&mut self, now: Time, key: QueryKey, node: NodeId, why: &Refusal) {
        let Some(told) = self.announced.get_mut(&key) else { return };
        if !told.without(node, why) || !told.may.is_empty() {
            return;
        }
        let Told { late, otherwise, .. } = core::mem::take(told);
        self.announced.remove(&key);
        let Some(open) = self.take(key) else { return };
        let class = self.class_id(open.query.class);
        if otherwise || self.others_could(now, class, &open.query, &late) {
            self.are_behind(now, class, &open.query, &late);
            self.place_at_one(now, class, open.query);
        } else {
            let waited = now - open.query.arrived;
            self.refuse_seen(now, class, &open.query, Refusal::TooLate { waited });
        }
    }

    /// Whether a node other than these would be in time.
    fn others_could(&self, now: Time, class: ClassId, query: &Query, but: &[NodeId]) -> bool {
        let Some(candidates) = self.snapshot.candidates(class) else { return false };
        let left = Moments::exactly(query.expires - now).mean;
        candidates.nodes.iter().any(|entry| {
            let wait = self.load.wait_of(now, class, entry.node, query.deadline);
            let in_time = query.best_effort || wait.mean + entry.least_mean <= left;
            let id = self.snapshot.node(entry.node).map(|node| node.id);
            in_time && self.load.trusted(now, entry.node) && id.is_some_and(|id| !but.contains(&id))
        })
    }

    /// Nodes said that they would be too late for a query: whoever comes now waits there as long.
    fn are_behind(&mut self, now: Time, class: ClassId, query: &Query, late: &[NodeId]) {
        if query.best_effort {
            return;
        }
        for node in late.iter().filter_map(|node| self.snapshot.node_ix(*node)) {
            self.load.behind(now, class, node, Moments::exactly(query.expires - now));
        }
    }

    /// A node is gone, and with it whatever was announced to it.
    pub(super) fn hears_no_more(&mut self, now: Time, node: NodeIx) {
        let Some(id) = self.snapshot.node(node).map(|node| node.id) else { return };
        let told = self.announced.iter().filter(|(_, told)| told.may.contains(&id));
        let keys: Vec<QueryKey> = told.map(|(key, _)| *key).collect();
        for key in keys {
            self.declined(now, key, id, &Refusal::NodeLost);
        }
    }

    /// Under a new table: variants and nodes may be gone. Gives back a query that nobody hears of any more.
    pub(super) fn announced_anew(
        &mut self,
        key: QueryKey,
        mut query: Query,
        (until, party, level): (Time, Option<AppId>, u8),
    ) -> Option<Query> {
        query.class.admits = self.still_there(&query);
        if query.class.admits.is_empty() {
            self.withdraw(key, None);
            self.nothing_left(key, &query, (until, level));
            return None;
        }
        self.sharing.waits(&query, party);
        self.open.insert(key, Open { query, at: Where::Announced { until, party, level } });
        let snapshot = &self.snapshot;
        let told = self.announced.get_mut(&key)?;
        let before = told.may.len();
        told.may.retain(|node| snapshot.node_ix(*node).is_some());
        told.otherwise |= told.may.len() < before;
        if !told.may.is_empty() {
            return None;
        }
        self.announced.remove(&key);
        self.take(key).map(|open| open.query)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a million")]
fn ppm(part: f64) -> u32 {
    (part.clamp(0.0, 1.0) * 1e6) as u32
}
