//! Filter, score, pick: which node gets a query.
//!
//! One exhaustive pass over the nodes that have something resident for the class. The objective, in order: in time;
//! then what the query prefers (accuracy, cost or latency); then the earliest completion. Equal nodes are told apart
//! by a hash with the passed seed, so that gateways with the same view do not all pick the same one. What it does
//! not do: keep state, book anything, or choose the variant, which the node does when it runs the query.

use super::candidates::{Candidates, Cold, Option_, RowNode};
use super::load::LoadView;
use super::snapshot::{NodeIx, Snapshot};
use crate::estimate::Moments;
use crate::query::Query;
use crate::waking;
use modelless_types::{ClassId, Micros, Prefer, Refusal, TaskId, Time};

/// A node that has less to do than so many microseconds begins at once.
pub(super) const AT_ONCE: f64 = 100.0;
/// So many queries that only spare time is spent on may be at a node, of one gateway.
pub(super) const SPARE_AT_A_NODE: u32 = 256;

/// A node, and what is expected of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// The node.
    pub node: NodeIx,
    /// The variant it could answer with in time. It may bind another.
    pub ordinal: u8,
    /// From now to the answer.
    pub completion: Moments,
    /// What the query adds to the node's work.
    pub work: Moments,
    /// It goes there with others of its class whose batch has not begun, and waits so long: less than what the node will have to do.
    pub joined: Option<Moments>,
}

/// What to do with a query.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Give it to this node now.
    Send(Choice),
    /// Every node that could serve it is at its credit: wait, at the latest until then.
    Wait {
        /// After this the fastest idle node would be too late.
        until: Time,
    },
    /// Only a load can serve it: have the node load, and send the query there to wait for it if `in_time`.
    Load {
        /// The node.
        node: NodeIx,
        /// The variant.
        ordinal: u8,
        /// Until it is in memory.
        ready_in: Micros,
        /// Whether the query's goals leave time for that.
        in_time: bool,
        /// The nearest bound that surely does.
        bound: Micros,
    },
    /// Nobody can.
    Refuse(Refusal),
}

/// Decides for one query. `class` is the number of `query.class` in this snapshot.
pub fn pick(
    snapshot: &Snapshot,
    load: &LoadView,
    class: ClassId,
    query: &Query,
    now: Time,
    seed: u64,
) -> Verdict {
    pick_elsewhere(snapshot, load, class, query, now, seed, None)
}

/// The same without one node, which has given the query back.
pub fn pick_elsewhere(
    snapshot: &Snapshot,
    load: &LoadView,
    class: ClassId,
    query: &Query,
    now: Time,
    seed: u64,
    not: Option<NodeIx>,
) -> Verdict {
    let Some(candidates) = snapshot.candidates(class) else {
        return Verdict::Refuse(Refusal::NothingRunnable { why: "its class is not known here".into() });
    };
    if query.priority.is_spare()
        && let Some(verdict) = pick_spare(candidates, load, query, now, seed, not)
    {
        return verdict;
    }
    let slack = slack(query, now);
    let scan = Scan { candidates, load, class, query, now, seed, slack, not, by: Waits::ForAll };
    match scan.resident() {
        // Nobody has time for it behind all who wait. Where it goes before those who are due later, one may.
        Some(Verdict::Wait { until }) if load.tells_later() => {
            let scan = Scan { by: Waits::ForThoseBefore, ..scan };
            scan.resident().unwrap_or(Verdict::Wait { until })
        }
        Some(verdict) => verdict,
        None => scan.cold(),
    }
}

/// Whether a node has time for a query behind all who wait there, so that it is routed by that.
pub(crate) fn has_time_behind_all(
    snapshot: &Snapshot,
    load: &LoadView,
    class: ClassId,
    query: &Query,
    now: Time,
    not: Option<NodeIx>,
) -> bool {
    let Some(candidates) = snapshot.candidates(class) else { return true };
    let slack = slack(query, now);
    let scan = Scan { candidates, load, class, query, now, seed: 0, slack, not, by: Waits::ForAll };
    matches!(scan.resident(), Some(Verdict::Send(_)))
}

/// What a query has left, in microseconds.
fn slack(query: &Query, now: Time) -> f64 {
    if query.best_effort { f64::INFINITY } else { Moments::exactly(query.expires - now).mean }
}

/// A batch that gathers at a node.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Gathers {
    pub(crate) node: NodeIx,
    /// How long until it begins.
    pub(crate) wait: Moments,
    /// How many go already.
    pub(crate) count: u32,
}

/// The same for a query that would go with a batch that gathers, if it is in time so, and none that could begin at once or do more of what it
/// prefers has credit for it.
pub(crate) fn pick_with(
    candidates: &Candidates,
    load: &LoadView,
    (class, query): (ClassId, &Query),
    now: Time,
    Gathers { node, wait, count }: Gathers,
) -> Option<Choice> {
    let slack = slack(query, now);
    let scan = Scan { candidates, load, class, query, now, seed: 0, slack, not: None, by: Waits::ForAll };
    let entry = candidates.entry(node)?;
    let mut best: Option<Best> = None;
    for (at, option) in (entry.first as usize..).zip(candidates.options_of(entry)) {
        let wish = scan.wish(option);
        if best.as_ref().is_some_and(|best| wish > best.wish) {
            continue;
        }
        // A batch takes as long as all who are in it.
        let all = candidates.work.get(at).map_or(0.0, |work| work.mean) * f64::from(count + 1);
        let more = Moments { mean: (all - option.service.mean).max(0.0), var: 0.0 };
        scan.improve(&mut best, node, (at, option), wish, wait + more);
    }
    let best = best?;
    let is_better = |entry: &RowNode| {
        if entry.node == node || !load.has_credit(now, entry.node, query.bytes) {
            return false;
        }
        let wait = load.wait(now, class, entry.node).mean;
        wait < AT_ONCE || (scan.bound(entry) < best.wish && wait + scan.mean(entry) <= slack)
    };
    if candidates.nodes.iter().any(is_better) {
        return None;
    }
    Some(Choice { joined: Some(wait), ..scan.choice(&best) })
}

/// What is expected of a node that begins now with whatever is quickest there, as one does that claimed a query.
pub(crate) fn at_once(snapshot: &Snapshot, class: ClassId, node: NodeIx) -> Choice {
    let nothing = Choice { node, ordinal: 0, completion: Moments::ZERO, work: Moments::ZERO, joined: None };
    let Some(candidates) = snapshot.candidates(class) else { return nothing };
    let Some(entry) = candidates.entry(node) else { return nothing };
    let options = (entry.first as usize..).zip(candidates.options_of(entry));
    let quickest = options.min_by(|a, b| a.1.service.mean.total_cmp(&b.1.service.mean));
    quickest.map_or(nothing, |(at, option)| {
        let work = candidates.work.get(at).copied().unwrap_or(option.service);
        Choice { ordinal: option.ordinal, completion: option.service, work, ..nothing }
    })
}

/// For a query that only spare time is spent on: of the nodes that have something resident the one that has the fewest of them, so that each
/// gets as many as it ends. They take no credit. `None` where only a load could serve it.
fn pick_spare(
    candidates: &Candidates,
    load: &LoadView,
    query: &Query,
    now: Time,
    seed: u64,
    not: Option<NodeIx>,
) -> Option<Verdict> {
    let there = candidates.nodes.iter().filter(|entry| Some(entry.node) != not);
    let there = there.filter_map(|entry| Some((entry, load.nodes.get(entry.node.0 as usize)?)));
    let there = there.filter(|(_, node)| node.trusted(now));
    let least = there.min_by_key(|(entry, node)| (node.spare, mix(seed ^ u64::from(entry.node.0))));
    let (entry, node) = least?;
    if node.spare >= SPARE_AT_A_NODE {
        return Some(Verdict::Wait { until: query.expires });
    }
    let option = candidates.options_of(entry).first()?;
    let (completion, work) = (option.service, Moments::ZERO);
    Some(Verdict::Send(Choice { node: entry.node, ordinal: option.ordinal, completion, work, joined: None }))
}

struct Scan<'a> {
    candidates: &'a Candidates,
    load: &'a LoadView,
    class: ClassId,
    query: &'a Query,
    now: Time,
    seed: u64,
    slack: f64,
    /// Gets nothing.
    not: Option<NodeIx>,
    by: Waits,
}

/// For whom a query is taken to wait at a node.
///
/// Nodes are compared as if it were for all: where much waits a query would make others late, and small batches would be made of those who are due first. Only
/// one that would have to wait here otherwise goes where those who are due later make room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    ForAll,
    ForThoseBefore,
}

/// The best so far. Better is: more of what the query prefers, then the earlier completion, then a seeded coin.
struct Best<'a> {
    wish: u64,
    completion: f64,
    node: NodeIx,
    option: &'a Option_,
    /// Its place among all options.
    at: usize,
    total: Moments,
}

impl Scan<'_> {
    /// `None` when no node with something resident could be in time however idle it were.
    fn resident(&self) -> Option<Verdict> {
        let row = self.load.waits.get(self.class.0 as usize);
        let mut best: Option<Best> = None;
        let mut soonest: Option<f64> = None;
        for entry in &self.candidates.nodes {
            if best.as_ref().is_some_and(|best| self.bound(entry) > best.wish) {
                continue;
            }
            let at = entry.node.0 as usize;
            let Some(node) = self.load.nodes.get(at) else { continue };
            if !node.up || Some(entry.node) == self.not || !entry.fastest.within(self.slack) {
                continue;
            }
            if node.has_credit(self.now, self.query.bytes) {
                let told = row.map_or(node.wait, |row| row[at]);
                let told = match self.by {
                    Waits::ForAll => told,
                    Waits::ForThoseBefore => self.load.before(entry.node, told, self.query.deadline),
                };
                let wait = told.less(self.now - node.reported) + node.booked;
                if best.as_ref().is_some_and(|best| self.later(entry, wait, best)) {
                    continue;
                }
                for (at, option) in (entry.first as usize..).zip(self.candidates.options_of(entry)) {
                    let wish = self.wish(option);
                    if best.as_ref().is_some_and(|best| wish > best.wish) {
                        if self.query.prefer == Prefer::Accuracy {
                            break; // what follows is less accurate still
                        }
                        continue;
                    }
                    self.improve(&mut best, entry.node, (at, option), wish, wait);
                }
            }
            // How long one may wait matters only while nothing can be sent to.
            if best.is_none() {
                let service = entry.fastest.p99_f64();
                soonest = Some(soonest.map_or(service, |s: f64| s.min(service)));
            }
        }
        if let Some(best) = best {
            return Some(Verdict::Send(self.choice(&best)));
        }
        soonest.map(|service| Verdict::Wait { until: self.latest_start(service) })
    }

    fn choice(&self, best: &Best<'_>) -> Choice {
        let Best { node, option, at, total, .. } = best;
        let work = self.candidates.work.get(*at).copied().unwrap_or(option.service);
        Choice { node: *node, ordinal: option.ordinal, completion: *total, work, joined: None }
    }

    /// The best wish that any option of a node could fulfil.
    fn bound(&self, entry: &RowNode) -> u64 {
        match self.query.prefer {
            Prefer::Latency => 0,
            Prefer::Accuracy => u64::from(u32::MAX - entry.top.ppm()),
            Prefer::Cost => entry.least_cost.0,
        }
    }

    /// Whether none of a node's options that fulfil the wish as well as the best could complete before it.
    fn later(&self, entry: &RowNode, wait: Moments, best: &Best) -> bool {
        self.bound(entry) == best.wish && wait.mean + self.mean(entry) > best.completion
    }

    /// What an option that fulfils the best wish there takes at the least: a lower bound, as what is best and what is quickest may be two.
    fn mean(&self, entry: &RowNode) -> f64 {
        if self.query.prefer == Prefer::Accuracy { entry.top_mean } else { entry.least_mean }
    }

    /// Takes an option that fulfils the wish as well as the best, if it is in time and better; asks the cheap
    /// questions first.
    fn improve<'o>(
        &self,
        best: &mut Option<Best<'o>>,
        node: NodeIx,
        (at, option): (usize, &'o Option_),
        wish: u64,
        wait: Moments,
    ) {
        let total = wait + option.service;
        let beaten = |best: &Best| wish == best.wish && total.mean > best.completion;
        if best.as_ref().is_some_and(beaten) || !total.within(self.slack) {
            return;
        }
        let completion = total.p99_f64();
        let better = |best: &Best| {
            let coin = |node: NodeIx| mix(self.seed ^ u64::from(node.0));
            wish < best.wish
                || completion < best.completion
                || (completion <= best.completion && coin(node) < coin(best.node))
        };
        if best.as_ref().is_none_or(better) {
            *best = Some(Best { wish, completion, node, option, at, total });
        }
    }

    fn wish(&self, option: &Option_) -> u64 {
        match self.query.prefer {
            Prefer::Latency => 0,
            Prefer::Accuracy => u64::from(u32::MAX - option.accuracy.ppm()),
            Prefer::Cost => option.cost.0,
        }
    }

    fn latest_start(&self, service: f64) -> Time {
        let service = Moments { mean: service, var: 0.0 }.mean();
        Time(self.query.expires.0.saturating_sub(service.0).max(self.now.0))
    }

    /// Nothing resident can be in time: the best variant that a load could bring in time, at the node that
    /// rendezvous hashing gives it, so that a herd of queries loads it once.
    fn cold(&self) -> Verdict {
        let up = |cold: &&Cold| {
            let node = self.load.nodes.get(cold.node.0 as usize);
            Some(cold.node) != self.not && node.is_some_and(|node| node.up)
        };
        let total = |cold: &Cold| Moments::exactly(cold.ready.time_left(self.now)) + cold.service;
        let in_time = |cold: &&Cold| total(cold).within(self.slack);
        let task = self.candidates.class.task;
        let better = |a: &Cold, b: &Cold| {
            let wish = match self.query.prefer {
                Prefer::Accuracy => b.accuracy.cmp(&a.accuracy),
                Prefer::Cost => a.cost.cmp(&b.cost),
                Prefer::Latency => a.service.p99_f64().total_cmp(&b.service.p99_f64()),
            };
            wish.then(rendezvous(task, b).cmp(&rendezvous(task, a)))
        };
        let all = || self.candidates.cold.iter().filter(up);
        if let Some(cold) = all().filter(in_time).min_by(|a, b| better(a, b)) {
            return Self::load(cold, self.now, true);
        }
        // Something in memory could have answered it and it only came to be late: a load would help nobody who comes after it.
        let bound = Moments::exactly(self.query.deadline - self.query.arrived).mean;
        let was_in_time = |entry: &RowNode| {
            let node = self.load.nodes.get(entry.node.0 as usize);
            Some(entry.node) != self.not && node.is_some_and(|node| node.up) && entry.fastest.within(bound)
        };
        if self.candidates.nodes.iter().any(was_in_time) {
            return Verdict::Refuse(Refusal::TooLate { waited: self.now - self.query.arrived });
        }
        // For those who come after it, and ask with the same bound.
        let able = all().filter(|cold| cold.service.within(bound));
        if let Some(cold) = able.min_by_key(|c| (c.ready.time_left(self.now), rendezvous(task, c))) {
            return Self::load(cold, self.now, false);
        }
        if self.candidates.nodes.is_empty() && self.candidates.cold.is_empty() {
            return Verdict::Refuse(Refusal::NothingRunnable { why: "no node has or could load it".into() });
        }
        if !self.load.nodes.iter().any(|node| node.up) {
            return Verdict::Refuse(Refusal::NodeLost);
        }
        Verdict::Refuse(Refusal::TooLate { waited: self.now - self.query.arrived })
    }

    fn load(cold: &Cold, now: Time, in_time: bool) -> Verdict {
        let ready_in = cold.ready.time_left(now);
        let bound = waking::bound(ready_in, cold.service);
        Verdict::Load { node: cold.node, ordinal: cold.ordinal, ready_in, in_time, bound }
    }
}

/// The same for every gateway: a variant's weight at a node.
fn rendezvous(task: TaskId, cold: &Cold) -> u64 {
    mix(u64::from(task.0) << 40 ^ u64::from(cold.ordinal) << 32 ^ u64::from(cold.node.0))
}

/// splitmix64's finaliser: scatters any number.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
