//! The gateway's machine: queries that wait for credit, and what is known to be where.
//!
//! It owns the load view and every open query's whereabouts. Its shell sends, answers and refuses as told; the
//! only thing that survives a query here is the credit it gave back. Each query that arrives leaves by exactly one
//! of: a refusal, or a `Finished` event from its node. A guard refuses what a node kept past its time.

mod announcing;
mod api;
mod back;
mod lines;
mod loss;
mod memory;
mod room;
mod tables;
mod whole;

use super::gathering::Gathering;
use super::load::{LoadView, NodeReport};
use super::pick::{Choice, SPARE_AT_A_NODE, Verdict, pick};
use super::sharing::{Charged, Sharing};
use super::snapshot::{NodeIx, Snapshot};
use crate::explain::{Explanation, explain};
use crate::machine::{Machine, Wake};
use crate::query::{Class, Query};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use announcing::Told;
pub use api::{ANNOUNCE, Action, End, Event, Limits};
use back::Returned;
use lines::{Freed, Lines, Place};
use memory::Memory;
pub use memory::{Did, Seen};
use modelless_types::{AppId, Bytes, ClassId, Goals, NodeId, QueryKey, Refusal, TaskId, Time};

#[derive(Clone, Copy, Debug)]
enum Where {
    /// In which line, until when, and at which level it may be displaced.
    Waiting { class: ClassId, until: Time, place: Place, level: u8 },
    /// To whom is in `Router::announced`. Until when, as whom it is counted, and at which level it may be displaced.
    Announced { until: Time, party: Option<AppId>, level: u8 },
    /// `guard` is when the node has kept it past its time; whether it may give it back; what it was charged; whether it takes credit, as
    /// those do that the node did not ask for itself.
    Sent { node: NodeIx, guard: Time, returnable: bool, charged: Option<Charged>, credit: bool },
}

#[derive(Clone, Debug)]
struct Open {
    query: Query,
    at: Where,
}

/// Routes queries to nodes, and keeps those that must wait. See the module's words.
#[derive(Debug)]
pub struct Router {
    snapshot: Snapshot,
    load: LoadView,
    limits: Limits,
    seed: u64,
    open: BTreeMap<QueryKey, Open>,
    /// Waiting queries of each class, earliest deadline first.
    lines: Lines,
    /// The same queries by priority level, then deadline: the last gives way when there is no room.
    ranks: BTreeSet<(u8, Time, QueryKey)>,
    /// When to look at a query again, whatever happens.
    timers: BTreeSet<(Time, QueryKey)>,
    /// Those of the open queries that have lost a node already.
    retried: BTreeSet<QueryKey>,
    /// Those that a node has given back because it had fallen behind; it does not get them again until it shows room.
    returned: BTreeMap<QueryKey, Returned>,
    waiting: u32,
    waiting_bytes: Bytes,
    /// What applications have used, and whose turn it is, while there is not enough for all.
    sharing: Sharing,
    actions: VecDeque<Action>,
    /// What it saw when it decided lately.
    memory: Memory,
    /// Batches that gather at nodes.
    gathering: Gathering,
    /// Who may claim each query that is announced.
    announced: BTreeMap<QueryKey, Told>,
}

impl Router {
    /// With nothing known yet. `seed` breaks ties; two gateways should have different ones.
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            snapshot: Snapshot::default(),
            load: LoadView::default(),
            limits,
            seed,
            open: BTreeMap::new(),
            lines: Lines::default(),
            ranks: BTreeSet::new(),
            timers: BTreeSet::new(),
            retried: BTreeSet::new(),
            returned: BTreeMap::new(),
            waiting: 0,
            waiting_bytes: Bytes(0),
            sharing: Sharing::default(),
            actions: VecDeque::new(),
            memory: Memory::default(),
            gathering: Gathering::default(),
            announced: BTreeMap::new(),
        }
    }

    /// What it knows, for admission and explanations.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// What it believes about the nodes' load.
    pub fn load(&self) -> &LoadView {
        &self.load
    }

    /// What would be decided for a query with these goals that came now, and why. Changes nothing that matters: a
    /// class may become known.
    pub fn explain(&mut self, task: TaskId, goals: &Goals, now: Time) -> Explanation {
        let known = (&mut self.snapshot, &mut self.load);
        explain(&self.gathering, known, (task, goals), now, self.seed)
    }

    /// How many queries wait here.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// How many queries wait here of each class that has any, whether for one node or for whichever claims them.
    pub fn waiting_by_class(&self) -> Vec<(Class, u32)> {
        let class = |key: &QueryKey| Some(self.open.get(key)?.query.class);
        let in_line = self.lines.counts().filter_map(|(one, count)| Some((class(&one)?, count)));
        let announced = self.announced.keys().filter_map(|key| Some((class(key)?, 1)));
        let mut waiting: BTreeMap<Class, u32> = BTreeMap::new();
        for (class, count) in in_line.chain(announced) {
            *waiting.entry(class).or_default() += count;
        }
        waiting.into_iter().collect()
    }

    /// How often it has asked where a query that waits could go, since something was free: what waiting costs.
    pub fn looks(&self) -> u64 {
        self.lines.looks()
    }

    /// How many queries are open, here or at a node.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether a query that came now would be sent at once, to be answered in time by what is in memory. Decides nothing.
    pub fn sends(&mut self, now: Time, query: &Query) -> bool {
        let known = self.snapshot.class_id(&query.class).is_some();
        if !known && self.snapshot.class_count() >= self.limits.classes as usize {
            return false; // one more is not worth making room for
        }
        let class = self.class_id(query.class);
        matches!(pick(&self.snapshot, &self.load, class, query, now, self.seed), Verdict::Send(_))
    }

    fn class_id(&mut self, class: Class) -> ClassId {
        let id = self.snapshot.intern(class);
        self.load.add_class(id);
        id
    }

    fn place(&mut self, now: Time, query: Query) {
        if self.snapshot.class_count() >= self.limits.classes as usize {
            self.rebuild(now, Arc::clone(self.snapshot.shared()));
        }
        let class = self.class_id(query.class);
        if let Some(to) = self.who_hears(now, class, &query) {
            return self.announce(now, class, query, &to);
        }
        self.place_at_one(now, class, query);
    }

    /// With one node, or in line for one.
    fn place_at_one(&mut self, now: Time, class: ClassId, query: Query) {
        match self.decide(now, class, &query) {
            Verdict::Wait { until } => self.wait(now, class, query, until),
            Verdict::Send(choice) if self.gives_precedence(now, &query) => {
                self.stands_behind(now, class, query, choice);
            }
            verdict @ (Verdict::Send(_) | Verdict::Load { .. } | Verdict::Refuse(_)) => {
                self.settle(now, class, query, verdict);
            }
        }
    }

    /// Does what a verdict other than `Wait` says. The query stands in no queue.
    fn settle(&mut self, now: Time, class: ClassId, query: Query, verdict: Verdict) {
        match verdict {
            Verdict::Send(choice) => {
                self.gathers(now, class, &query, choice.node);
                self.send(now, class, query, &choice);
            }
            Verdict::Load { node, ordinal, ready_in, in_time, bound } => {
                self.wake(node, query.class.task, ordinal);
                // The last moment at which waiting for credit still helps; best effort has one as well.
                let until = Time(query.expires.0.saturating_sub(ready_in.0));
                if in_time && self.load.has_credit(now, node, query.bytes) {
                    let (completion, work) = (crate::Moments::exactly(ready_in), crate::Moments::ZERO);
                    let choice = Choice { node, ordinal, completion, work, joined: None };
                    self.send(now, class, query, &choice);
                } else if in_time && until > now {
                    self.wait(now, class, query, until);
                } else {
                    self.refuse_seen(now, class, &query, Refusal::Loading { ready_in, bound });
                }
            }
            Verdict::Refuse(refusal) => self.refuse_seen(now, class, &query, refusal),
            Verdict::Wait { until } => self.wait(now, class, query, until),
        }
    }

    fn wake(&mut self, node: NodeIx, task: TaskId, ordinal: u8) {
        if let Some(node) = self.snapshot.node(node).map(|n| n.id) {
            self.actions.push_back(Action::Wake { node, task, ordinal });
        }
    }

    fn send(&mut self, now: Time, class: ClassId, query: Query, choice: &Choice) {
        self.give(now, class, query, choice, false);
    }

    /// Gives a query to a node, which may have `claimed` it: then it knows of it, and it takes no credit.
    fn give(&mut self, now: Time, class: ClassId, query: Query, choice: &Choice, claimed: bool) {
        let Choice { node, completion, work, joined, .. } = *choice;
        let joined = joined.map(|_| *choice);
        let expected = completion.p99();
        let Some(id) = self.snapshot.node(node).map(|n| n.id) else {
            self.refuse(query.key, Refusal::NodeLost);
            return;
        };
        let did = if claimed {
            Did::Claimed { node: id, expected }
        } else {
            Did::Sent { node: id, expected, joined }
        };
        self.remember(now, class, &query, did);
        if query.priority.is_spare() {
            self.load.spare(node, true);
        } else if !claimed {
            self.load.book(node, query.bytes, work);
        }
        let guard = (query.expires + self.limits.grace).max(now);
        self.timers.insert((guard, query.key));
        let key = query.key;
        let returnable = self.returnable(now, class, &query, node);
        let charged = self.sharing.sent(now, &query, work.mean());
        let reserved = charged.is_some_and(|charged| charged.within);
        let credit = !claimed;
        self.open.insert(key, Open { query, at: Where::Sent { node, guard, returnable, charged, credit } });
        let (waiting, first) = self.lines.of_class(class);
        // All who could serve them hear of them, and each is to count on its part.
        let entries = self.snapshot.candidates(class).map_or(&[][..], |candidates| &candidates.nodes);
        let nodes = entries.iter().filter(|entry| self.load.trusted(now, entry.node)).count();
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
        let waiting = waiting.div_ceil(nodes);
        let among = self.among(entries, nodes);
        self.actions.push_back(Action::Send {
            key,
            node: id,
            expected,
            waiting,
            first,
            among,
            returnable,
            reserved,
        });
    }

    fn wait(&mut self, now: Time, class: ClassId, query: Query, until: Time) {
        if query.priority.is_spare() {
            // Nodes have as many as they take, and whoever has more waits himself: here they would be counted as demand.
            return self.refuse_seen(now, class, &query, Refusal::QueueFull { limit: SPARE_AT_A_NODE });
        }
        let party = self.sharing.party(now, &query);
        let level = self.level(now, &query, party);
        if let Err(refusal) = self.make_room(now, &query, party, level) {
            return self.refuse_seen(now, class, &query, refusal);
        }
        let until = until.max(now);
        self.remember(now, class, &query, Did::Waits { until });
        self.waiting += 1;
        self.waiting_bytes = self.waiting_bytes + query.bytes;
        let place = self.stands_in_line(class, &query, party);
        self.ranks.insert((level, query.deadline, query.key));
        self.timers.insert((until, query.key));
        self.open.insert(query.key, Open { query, at: Where::Waiting { class, until, place, level } });
    }

    fn refuse(&mut self, key: QueryKey, refusal: Refusal) {
        self.open.remove(&key);
        self.over(key);
        self.actions.push_back(Action::Refuse { key, refusal });
    }

    /// Takes a query out of wherever it is; its credit or its place in the queue is free again.
    fn take(&mut self, key: QueryKey) -> Option<Open> {
        let open = self.open.remove(&key)?;
        match open.at {
            Where::Waiting { class, until, place, level } => {
                self.lines.remove(class, place, (open.query.deadline, key));
                self.sharing.left(&open.query, place.party);
                self.ranks.remove(&(level, open.query.deadline, key));
                self.timers.remove(&(until, key));
                self.waiting -= 1;
                self.waiting_bytes = Bytes(self.waiting_bytes.0 - open.query.bytes.0);
            }
            Where::Announced { until, party, level } => {
                self.sharing.left(&open.query, party);
                self.ranks.remove(&(level, open.query.deadline, key));
                self.timers.remove(&(until, key));
                self.waiting -= 1;
                self.waiting_bytes = Bytes(self.waiting_bytes.0 - open.query.bytes.0);
            }
            Where::Sent { node, guard, credit, .. } => {
                self.timers.remove(&(guard, key));
                if open.query.priority.is_spare() {
                    self.load.spare(node, false);
                } else if credit {
                    self.load.release(node, open.query.bytes);
                }
            }
        }
        Some(open)
    }

    /// Whether `node` is the one that has the query now; anything else it says about it is an echo of the past.
    fn is_at(&self, key: QueryKey, node: Option<NodeIx>) -> bool {
        match self.open.get(&key).map(|open| open.at) {
            Some(Where::Sent { node: at, .. }) => Some(at) == node,
            Some(Where::Waiting { .. } | Where::Announced { .. }) | None => false,
        }
    }

    /// Who `worked` says what became of a query.
    fn report(&mut self, now: Time, node: NodeId, report: &NodeReport, worked: bool) {
        let Some(ix) = self.snapshot.node_ix(node) else { return };
        let snapshot = &self.snapshot;
        let before = self.load.trusted(now, ix);
        self.load.report(now, ix, report, worked, |class| snapshot.class_id(class));
        if !before && self.load.trusted(now, ix) {
            self.offer_return(now);
        }
    }
}

impl Machine for Router {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Arrive(query) => self.place(now, query),
            Event::Finished { key, node, report, end } => {
                if self.is_at(key, self.snapshot.node_ix(node)) {
                    let open = self.take(key);
                    self.over(key);
                    if let Some(open) = open {
                        self.ended(now, &open, end);
                    }
                }
                self.report(now, node, &report, true);
                if let Some(ix) = self.snapshot.node_ix(node) {
                    self.load.ended(ix);
                    self.serve_waiting(now, Freed::At(ix));
                }
            }
            Event::HandedBack { key, node, report, why } => self.handed_back(now, key, node, &report, why),
            Event::Declined { key, node, report, why } => {
                // What it says of itself counts for where the query goes now, which may be to the same node.
                self.report(now, node, &report, true);
                self.declined(now, key, node, &why);
            }
            Event::Claim { queries, node, lanes, report } => {
                self.claimed(now, &queries, node, lanes, &report);
            }
            Event::Report { node, report } => {
                self.report(now, node, &report, false);
                if let Some(ix) = self.snapshot.node_ix(node) {
                    self.serve_waiting(now, Freed::At(ix));
                }
            }
            Event::NodeDown { node } => {
                if let Some(ix) = self.snapshot.node_ix(node) {
                    self.node_down(now, ix);
                    self.serve_waiting(now, Freed::Without(ix));
                }
            }
            Event::Cancel { key } => {
                self.withdraw(key, None);
                self.over(key);
                if let Some(open) = self.take(key)
                    && let Where::Sent { node: at, .. } = open.at
                    && let Some(node) = self.snapshot.node(at).map(|n| n.id)
                {
                    self.ended(now, &open, End::Unknown);
                    self.actions.push_back(Action::Cancel { key, node });
                    self.serve_waiting(now, Freed::At(at));
                }
            }
            Event::Table(table) => {
                self.rebuild(now, Arc::new(table));
                self.offer_return(now);
                self.serve_waiting(now, Freed::Anywhere);
            }
            Event::Shares(said) => self.share_anew(now, &said),
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(open) = self.take(key) else { continue };
            let waited = now - open.query.arrived;
            match open.at {
                Where::Sent { node, .. } => {
                    if let Some(node) = self.snapshot.node(node).map(|n| n.id) {
                        self.actions.push_back(Action::Cancel { key, node });
                    }
                    self.ended(now, &open, End::Unknown);
                    self.refused_for(now, &open.query, &Refusal::TooLate { waited });
                    self.refuse(key, Refusal::TooLate { waited });
                    self.overdue(now, node, open.query.expires);
                }
                Where::Announced { .. } => self.at_the_last_moment(now, open.query),
                Where::Waiting { class, .. } => {
                    // The last moment: take whatever the view offers now, else give up while it still helps.
                    match self.decide(now, class, &open.query) {
                        Verdict::Wait { until } if until > now => self.wait(now, class, open.query, until),
                        Verdict::Wait { .. } => {
                            self.refuse_seen(now, class, &open.query, Refusal::TooLate { waited });
                        }
                        verdict @ (Verdict::Send(_) | Verdict::Load { .. } | Verdict::Refuse(_)) => {
                            self.settle(now, class, open.query, verdict);
                        }
                    }
                }
            }
        }
    }

    fn poll_timeout(&self) -> Option<Wake> {
        let (at, key) = *self.timers.first()?;
        let why = match self.open.get(&key).map(|open| open.at) {
            Some(Where::Announced { .. }) => "the last moment at which a node could still claim a query",
            Some(Where::Waiting { .. }) => "the last moment at which a waiting query can still be in time",
            Some(Where::Sent { .. }) | None => "a node has kept a query past its time",
        };
        Some(Wake { at, why })
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
