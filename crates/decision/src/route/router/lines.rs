//! Queries that wait, in lines, and who of them goes when a node has something free.
//!
//! A class has a line of those that may go to any node, and one for each node that gave some back and has not got on since. All of
//! a line may go to the same nodes, so when its first cannot go, nobody else of it is looked at. What an event costs is bounded: it
//! says which node has something free, lines that this node does not serve are passed over, and of the others so many at
//! most are looked at in vain.
//!
//! Where applications share what devices do, each has lines of its own. As long as there is enough for all that makes no difference: the
//! first of all lines goes. Once there is not, a task has its turn as before, when its first is due, and who of the task goes then is whose
//! turn it is among its applications.

use super::super::load::Stand;
use super::super::pick::Verdict;
use super::super::sharing::Turn;
use super::super::snapshot::NodeIx;
use super::{Router, Where};
use crate::estimate::Moments;
use crate::query::Query;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;
use modelless_types::{AppId, Bytes, ClassId, NodeId, QueryKey, TaskId, Time};

/// Lines whose first was looked at in vain after which an event ends; the next one goes on behind them.
const IN_VAIN: u32 = 16;

/// Who goes while not all are answered in time is to have so many times the time that his node keeps him waiting.
const SPARE: f64 = 1.5;

/// Queries that may go to the same nodes, earliest deadline first.
#[derive(Debug, Default)]
struct Line {
    queries: BTreeSet<(Time, QueryKey)>,
    /// How the node stood that gave them back, when it gave back the last of them.
    stood: Option<Stand>,
}

/// Which of a class's lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    /// The node that may not get those who stand there, since it gave them back.
    pub(super) not: Option<NodeId>,
    /// As whom they are counted, where applications share.
    pub(super) party: Option<AppId>,
}

/// The first of a line, in the order in which they are looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Head {
    /// When its task has its turn: when it is due itself, unless applications share what is too little for all.
    at: Time,
    /// Whose turn it is within the task.
    turn: Turn,
    due: Time,
    key: QueryKey,
    class: ClassId,
    place: Place,
}

/// All who wait.
#[derive(Debug, Default)]
pub(super) struct Lines {
    of: BTreeMap<ClassId, BTreeMap<Place, Line>>,
    /// Up to where the last event looked that had to end early.
    looked: Option<Head>,
    /// How often it was asked where the first of a line could go.
    looks: u64,
}

/// What happened that those who wait may profit by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Freed {
    /// A node spoke, or gave credit back.
    At(NodeIx),
    /// A node is gone: who waited for it may have to have another one load.
    Without(NodeIx),
    /// Anything: the table is another.
    Anywhere,
}

impl Lines {
    pub(super) fn insert(
        &mut self,
        class: ClassId,
        place: Place,
        at: (Time, QueryKey),
        stood: Option<Stand>,
    ) {
        let line = self.of.entry(class).or_default().entry(place).or_default();
        line.queries.insert(at);
        line.stood = stood;
    }

    pub(super) fn remove(&mut self, class: ClassId, place: Place, at: (Time, QueryKey)) {
        let Some(lines) = self.of.get_mut(&class) else { return };
        if let Some(line) = lines.get_mut(&place) {
            line.queries.remove(&at);
            if line.queries.is_empty() {
                lines.remove(&place);
            }
        }
        if lines.is_empty() {
            self.of.remove(&class);
        }
    }

    pub(super) fn clear(&mut self) {
        self.of.clear();
    }

    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    /// How many of a class wait, and when the first is due.
    pub(super) fn of_class(&self, class: ClassId) -> (u32, Option<Time>) {
        let lines = || self.of.get(&class).into_iter().flat_map(BTreeMap::values);
        let count: usize = lines().map(|line| line.queries.len()).sum();
        let first = lines().filter_map(|line| line.queries.first().map(|(due, _)| *due)).min();
        (u32::try_from(count).unwrap_or(u32::MAX), first)
    }

    /// One of each class that waits, and how many they are.
    pub(super) fn counts(&self) -> impl Iterator<Item = (QueryKey, u32)> {
        self.of.iter().filter_map(|(class, lines)| {
            let (_, key) = lines.values().next()?.queries.first()?;
            Some((*key, self.of_class(*class).0))
        })
    }

    /// The first of a line that is due then or later; the last where none is.
    fn first_due_after(&self, class: ClassId, place: Place, due: Time) -> Option<QueryKey> {
        let queries = &self.of.get(&class)?.get(&place)?.queries;
        queries.range((due, QueryKey(0))..).next().or_else(|| queries.last()).map(|(_, key)| *key)
    }

    fn head(&self, class: ClassId, place: Place) -> Option<Head> {
        let (due, key) = *self.of.get(&class)?.get(&place)?.queries.first()?;
        Some(Head { at: due, turn: Turn::default(), due, key, class, place })
    }
}

impl Router {
    /// Serves what waits, earliest deadline first over all lines. A line whose first cannot go keeps its place; the others go on.
    pub(super) fn serve_waiting(&mut self, now: Time, freed: Freed) {
        if self.waiting == 0 {
            return;
        }
        let nothing = |router: &Self| match freed {
            Freed::At(node) => !router.load.has_credit(now, node, Bytes(0)),
            Freed::Without(_) | Freed::Anywhere => false,
        };
        if nothing(self) {
            return;
        }
        if let Freed::At(node) = freed {
            self.let_back(node);
        }
        let mut heads = self.heads(now, freed);
        let looked = self.lines.looked.take();
        let mut in_vain = 0;
        while let Some(head) = next(&heads, looked) {
            heads.remove(&head);
            let Head { key, class, place, .. } = head;
            let Some(query) = self.open.get(&key).map(|open| open.query) else { continue };
            let turn = self.sharing.turn(now, query.class.task, place.party);
            if turn > head.turn {
                heads.insert(Head { turn, ..head }); // others of its application went meanwhile
                continue;
            }
            let query = self.not_at_the_brink(now, (class, place), freed, query.class.task).unwrap_or(query);
            if matches!(freed, Freed::At(node) if !self.might_take(now, class, node, &query)) {
                continue;
            }
            self.lines.looks += 1;
            if self.goes(now, class, query, freed) {
                if nothing(self) {
                    return;
                }
                let turn = self.sharing.turn(now, query.class.task, place.party);
                let next = self.lines.head(class, place);
                let short = self.sharing.is_short(now, query.class.task);
                heads.extend(next.map(|next| if short { Head { at: head.at, turn, ..next } } else { next }));
            } else if matches!(freed, Freed::At(_)) {
                in_vain += 1;
                if in_vain >= IN_VAIN {
                    self.lines.looked = Some(head);
                    return;
                }
            }
        }
    }

    /// The first of each line that the event concerns.
    fn heads(&self, now: Time, freed: Freed) -> BTreeSet<Head> {
        let node = match freed {
            Freed::At(node) | Freed::Without(node) => Some(node),
            Freed::Anywhere => None,
        };
        let id = node.and_then(|node| self.snapshot.node(node)).map(|node| node.id);
        let serves = |class| {
            let candidates = self.snapshot.candidates(class);
            node.is_none_or(|node| candidates.is_some_and(|candidates| candidates.has(node)))
        };
        let mut heads = BTreeSet::new();
        for (class, lines) in &self.lines.of {
            if serves(*class) {
                // Its own line has nothing of it.
                let lines = lines.keys().filter(|place| place.not.is_none() || place.not != id);
                heads.extend(lines.filter_map(|place| self.lines.head(*class, *place)));
            }
        }
        self.by_turns(now, heads)
    }

    /// Of tasks whose applications share what is too little for all, whose turn it is goes when the first of the task is due.
    fn by_turns(&self, now: Time, heads: BTreeSet<Head>) -> BTreeSet<Head> {
        let task = |head: &Head| self.open.get(&head.key).map(|open| open.query.class.task);
        let shares = |head: &Head| head.place.party.is_some();
        if !heads.iter().any(shares) {
            return heads;
        }
        let mut first: BTreeMap<TaskId, Time> = BTreeMap::new();
        let mut by_turns = BTreeSet::new();
        // Earliest deadline first, so that the first that is met of a task is the first that is due.
        for head in heads {
            let Some(task) = task(&head).filter(|task| self.sharing.is_short(now, *task)) else {
                by_turns.insert(head);
                continue;
            };
            let at = *first.entry(task).or_insert(head.due);
            let turn = self.sharing.turn(now, task, head.place.party);
            by_turns.insert(Head { at, turn, ..head });
        }
        by_turns
    }

    /// Of the line of an application, where not all are answered in time, the first that has time to spare at a node. The first of all is at the brink where
    /// more is asked than can be answered: its node would take it for one that gives way, and who is answered would be whoever asks the most,
    /// not whose turn it is.
    fn not_at_the_brink(
        &self,
        now: Time,
        (class, place): (ClassId, Place),
        freed: Freed,
        task: TaskId,
    ) -> Option<Query> {
        let Freed::At(node) = freed else { return None };
        if place.party.is_none() || !self.sharing.is_short(now, task) {
            return None;
        }
        let entry = self.snapshot.candidates(class)?.entry(node)?;
        let wait = self.load.wait(now, class, node).mean;
        let needs = Moments { mean: wait * SPARE + entry.least_mean, var: 0.0 }.mean();
        let key = self.lines.first_due_after(class, place, now + needs)?;
        self.open.get(&key).map(|open| open.query)
    }

    /// Whether a query leaves its line.
    pub(super) fn goes(&mut self, now: Time, class: ClassId, query: Query, freed: Freed) -> bool {
        let verdict = self.decide(now, class, &query);
        let goes = match &verdict {
            Verdict::Send(_) => true,
            Verdict::Load { node, in_time, .. } => *in_time && self.load.has_credit(now, *node, query.bytes),
            // A node that is gone may come back while there is time.
            Verdict::Refuse(_) => !matches!(freed, Freed::Without(_)),
            Verdict::Wait { .. } => false,
        };
        if goes {
            self.take(query.key);
            self.settle(now, class, query, verdict);
        } else if let Verdict::Load { node, ordinal, .. } = verdict
            && !matches!(freed, Freed::At(_))
        {
            self.wake(node, query.class.task, ordinal); // nobody has asked for it yet
        }
        goes
    }

    /// Whether a node has room for a query and may be in time: what is cheap to ask before all are compared.
    fn might_take(&self, now: Time, class: ClassId, node: NodeIx, query: &Query) -> bool {
        let Some(candidates) = self.snapshot.candidates(class) else { return false };
        let left = Moments::exactly(query.expires - now).mean;
        let in_time = match candidates.entry(node) {
            Some(entry) => {
                let wait = self.load.wait_of(now, class, node, query.deadline);
                wait.mean + entry.least_mean <= left
            }
            None => true,
        };
        (query.best_effort || in_time || candidates.is_cold(node))
            && self.load.has_credit(now, node, query.bytes)
    }

    /// A node that has got on gets again what it gave back: those who wait stand in line with all others.
    fn let_back(&mut self, node: NodeIx) {
        let Some(id) = self.snapshot.node(node).map(|node| node.id) else { return };
        let got_on = |line: &Line| self.has_got_on(node, line.stood);
        let free: Vec<(ClassId, Place)> = {
            let own = self.lines.of.iter().flat_map(|(class, lines)| {
                let own = lines.iter().filter(|(place, line)| place.not == Some(id) && got_on(line));
                own.map(|(place, _)| (*class, *place))
            });
            own.collect()
        };
        for (class, place) in free {
            let line = self.lines.of.get_mut(&class).and_then(|lines| lines.remove(&place));
            let anywhere = Place { not: None, ..place };
            for (due, key) in line.map(|line| line.queries).unwrap_or_default() {
                if let Some(open) = self.open.get_mut(&key)
                    && let Where::Waiting { place, .. } = &mut open.at
                {
                    *place = anywhere;
                }
                self.may_go_anywhere(key);
                self.lines.insert(class, anywhere, (due, key), None);
            }
        }
    }
}

/// The first of those behind where the last event ended, then those before.
fn next(heads: &BTreeSet<Head>, looked: Option<Head>) -> Option<Head> {
    let behind = |looked| heads.range((Bound::Excluded(looked), Bound::Unbounded)).next();
    looked.and_then(behind).or_else(|| heads.first()).copied()
}
