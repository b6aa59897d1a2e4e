//! What the gateway believes about the nodes' load: what they reported, and what it has sent since.

use super::later::Later;
use super::snapshot::NodeIx;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::vec::Vec;
use modelless_types::{Bytes, ClassId, Micros, Time};
use serde::{Deserialize, Serialize};

/// So often at most the time is doubled for which a node gets nothing that looks dead.
const DOUBLED: u32 = 6;

/// How much a gateway may have outstanding at a node: what the node runs plus one prepared batch. Absolute, not
/// a difference, so that reports and sends that cross on the wire do no harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limit {
    /// Queries.
    pub queries: u32,
    /// Decoded bytes.
    pub bytes: Bytes,
}

impl Limit {
    /// What one gateway gets of it whose weight is such a part of all. At least one query, so that none starves.
    #[must_use]
    pub fn part(self, weight: u64, of: u64) -> Self {
        let of = of.max(weight).max(1);
        let part = |all: u64| {
            let nearest = (u128::from(all) * u128::from(weight) + u128::from(of) / 2) / u128::from(of);
            u64::try_from(nearest).unwrap_or(u64::MAX)
        };
        let queries = u32::try_from(part(self.queries.into())).unwrap_or(u32::MAX);
        let bytes = Bytes(part(self.bytes.0));
        Self {
            queries: queries.max(u32::from(self.queries > 0)),
            bytes: bytes.max(Bytes(u64::from(self.bytes.0 > 0))),
        }
    }
}

/// When a node's machine made a report, by the node's own count: what tells news from a copy that was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Made {
    /// Inputs that its machine had handled. While this stands still the node does not work, however often it speaks.
    pub inputs: u64,
    /// When it was made, by the node's own clock, which says nothing elsewhere.
    pub at: Time,
}

impl Made {
    /// Nothing known, as in recordings from before reports told it: taken for news.
    const UNKNOWN: Self = Self { inputs: 0, at: Time::ZERO };

    fn is_unknown(&self) -> bool {
        *self == Self::UNKNOWN
    }
}

/// What a node says with every reply.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its credit for the gateway it speaks to.
    pub limit: Limit,
    /// How long until a query of a class it was not asked about lately could start.
    pub wait: Moments,
    /// The same for classes that wait there.
    pub waits: Vec<(Class, Moments)>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Made::is_unknown")]
    pub made: Made,
    /// What of its wait is for those who are due later than whoever asks. Nodes with several devices do not say.
    #[serde(default, skip_serializing_if = "Later::is_untold")]
    pub later: Later,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct NodeLoad {
    pub(super) up: bool,
    pub(super) limit: Limit,
    pub(super) outstanding: Limit,
    /// When what is known of its waiting came here.
    pub(super) reported: Time,
    pub(super) made: Made,
    /// When it last said something after having done something.
    alive: Time,
    /// How often in a row it looked dead.
    doubts: u32,
    /// Work sent since the last report.
    pub(super) booked: Moments,
    pub(super) wait: Moments,
    /// It looks dead: until then, or until it speaks, it gets nothing.
    pub(super) doubted_until: Time,
    /// Reports that were news.
    news: u64,
    /// Queries of which it said what became of them.
    ended: u64,
    /// Outstanding queries that only spare time is spent on: they take no credit and keep nobody waiting.
    pub(super) spare: u32,
    /// How many lanes it has, once it has said so.
    pub(super) lanes: u16,
}

/// How a node stood at some moment, for asking later whether it has got on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Stand {
    news: u64,
    ended: u64,
    inputs: u64,
    wait: f64,
}

impl NodeLoad {
    pub(super) fn trusted(&self, now: Time) -> bool {
        self.up && self.doubted_until <= now
    }

    pub(super) fn has_credit(&self, now: Time, bytes: Bytes) -> bool {
        // A query larger than the whole byte credit may still go to a node that has nothing else.
        let fits = self.outstanding.bytes + bytes <= self.limit.bytes || self.outstanding.queries == 0;
        self.trusted(now) && self.outstanding.queries < self.limit.queries && fits
    }
}

impl Stand {
    /// Whether a node that stood so has got on: it has spoken anew, and has ended something or has less to do than it had.
    /// That it speaks alone says nothing: one that is held up does, too.
    pub(super) fn got_on(&self, since: &Self) -> bool {
        let anew = if self.inputs == 0 { self.news != since.news } else { self.inputs != since.inputs };
        anew && (self.ended != since.ended || self.wait < since.wait)
    }
}

/// All nodes' load, by position in the snapshot; and per class what differs from the node's general wait.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadView {
    pub(super) nodes: Vec<NodeLoad>,
    /// `[class][node]`; rows are as long as `nodes`.
    pub(super) waits: Vec<Vec<Moments>>,
    /// What of each node's wait is due when, as it was last told.
    pub(super) later: Vec<Later>,
}

impl LoadView {
    /// For so many nodes, none of which has said anything yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes: alloc::vec![NodeLoad::default(); nodes],
            waits: Vec::new(),
            later: alloc::vec![Later::default(); nodes],
        }
    }

    fn at(&mut self, node: NodeIx) -> Option<&mut NodeLoad> {
        usize::try_from(node.0).ok().and_then(|at| self.nodes.get_mut(at))
    }

    /// Makes room for a class.
    pub fn add_class(&mut self, class: ClassId) {
        let rows = class.0 as usize + 1;
        if self.waits.len() < rows {
            let general: Vec<Moments> = self.nodes.iter().map(|node| node.wait).collect();
            self.waits.resize(rows, general);
        }
    }

    /// A node spoke. `class_of` gives the number of a class if this gateway knows it. Who `worked` says
    /// what became of a query. A copy of what was said before only tells how credit is shared now: that it arrives says
    /// nothing of the node.
    pub fn report(
        &mut self,
        now: Time,
        node: NodeIx,
        report: &NodeReport,
        worked: bool,
        class_of: impl Fn(&Class) -> Option<ClassId>,
    ) {
        let Some(load) = self.at(node) else { return };
        let (made, known) = (report.made, load.made);
        let first = !core::mem::replace(&mut load.up, true) || made.is_unknown();
        let worked = worked && made.inputs >= known.inputs;
        // Copies are shared out anew, but what was overtaken by a newer one says nothing of the credit either.
        if first || made.at >= known.at {
            load.limit = report.limit;
        }
        if first || worked || made.inputs > known.inputs {
            load.alive = now;
            load.doubts = 0;
            load.doubted_until = Time::ZERO;
            load.booked = Moments::ZERO;
        }
        if !first && !worked && made.at <= known.at {
            return;
        }
        load.made = made;
        load.news += 1;
        load.reported = now;
        load.wait = report.wait;
        let at = node.0 as usize;
        self.later[at] = report.later;
        for row in &mut self.waits {
            row[at] = report.wait;
        }
        for (class, wait) in &report.waits {
            if let Some(row) = class_of(class).and_then(|id| self.waits.get_mut(id.0 as usize)) {
                row[at] = *wait;
            }
        }
    }

    /// A node is gone.
    pub fn down(&mut self, node: NodeIx) {
        if let Some(load) = self.at(node) {
            load.up = false;
        }
    }

    /// Whether a node is up and not in doubt.
    pub(super) fn trusted(&self, now: Time, node: NodeIx) -> bool {
        self.nodes.get(node.0 as usize).is_some_and(|load| load.trusted(now))
    }

    /// Whether a node has done nothing since then, as far as it has said.
    pub(super) fn silent_since(&self, node: NodeIx, then: Time) -> bool {
        self.nodes.get(node.0 as usize).is_some_and(|load| load.alive < then)
    }

    /// A node looks dead: it gets nothing for such a time, or until it does something. Twice as long each time in a row,
    /// since whoever tries it then is lost.
    pub(super) fn doubt(&mut self, now: Time, node: NodeIx, time: Micros) {
        if let Some(load) = self.at(node) {
            load.doubted_until = now + Micros(time.0 << load.doubts.min(DOUBLED));
            load.doubts += 1;
        }
    }

    /// How a node stands.
    pub(super) fn stand(&self, node: NodeIx) -> Option<Stand> {
        let load = self.nodes.get(node.0 as usize)?;
        let NodeLoad { news, ended, made, wait, .. } = load;
        Some(Stand { news: *news, ended: *ended, inputs: made.inputs, wait: wait.mean })
    }

    /// A node said what became of a query.
    pub(super) fn ended(&mut self, node: NodeIx) {
        if let Some(load) = self.at(node) {
            load.ended += 1;
        }
    }

    /// A node gave back a query of a class that it could not answer within a time: until it speaks again, whoever comes
    /// waits there for at least as long.
    pub(super) fn behind(&mut self, now: Time, class: ClassId, node: NodeIx, by: Moments) {
        let at = node.0 as usize;
        let known = self.wait(now, class, node);
        if known.mean < by.mean
            && let Some(row) = self.waits.get_mut(class.0 as usize)
            && let Some(load) = self.nodes.get(at)
        {
            // It counts from the last report on.
            row[at] = by + Moments::exactly(now - load.reported);
        }
    }

    /// A query goes to a node; `work` is what it adds there.
    pub fn book(&mut self, node: NodeIx, bytes: Bytes, work: Moments) {
        if let Some(load) = self.at(node) {
            load.outstanding.queries += 1;
            load.outstanding.bytes = load.outstanding.bytes + bytes;
            load.booked += work;
        }
    }

    /// A query that only spare time is spent on goes to a node, or is done there.
    pub(super) fn spare(&mut self, node: NodeIx, came: bool) {
        if let Some(load) = self.at(node) {
            load.spare = if came { load.spare + 1 } else { load.spare.saturating_sub(1) };
        }
    }

    /// A node is done with a query.
    pub fn release(&mut self, node: NodeIx, bytes: Bytes) {
        if let Some(load) = self.at(node) {
            load.outstanding.queries = load.outstanding.queries.saturating_sub(1);
            load.outstanding.bytes = Bytes(load.outstanding.bytes.0.saturating_sub(bytes.0));
        }
    }

    /// Queries this gateway has at a node.
    pub fn outstanding(&self, node: NodeIx) -> u32 {
        self.nodes.get(node.0 as usize).map_or(0, |load| load.outstanding.queries)
    }

    /// Whether a node is up and has credit for a query of this size.
    pub fn has_credit(&self, now: Time, node: NodeIx, bytes: Bytes) -> bool {
        self.nodes.get(node.0 as usize).is_some_and(|load| load.has_credit(now, bytes))
    }

    /// How long a query of a class that is not known here would wait at a node before it starts.
    pub fn general_wait(&self, now: Time, node: NodeIx) -> Moments {
        let load = self.nodes.get(node.0 as usize);
        load.map_or(Moments::ZERO, |load| load.wait.less(now - load.reported) + load.booked)
    }

    /// How long a query of a class would wait at a node before it starts.
    pub fn wait(&self, now: Time, class: ClassId, node: NodeIx) -> Moments {
        let at = node.0 as usize;
        let Some(load) = self.nodes.get(at) else { return Moments::ZERO };
        let reported = self.waits.get(class.0 as usize).map_or(load.wait, |row| row[at]);
        reported.less(now - load.reported) + load.booked
    }

    /// The same for a query that is due then: whoever is due later there does not keep it waiting.
    pub fn wait_of(&self, now: Time, class: ClassId, node: NodeIx, due: Time) -> Moments {
        let at = node.0 as usize;
        let Some(load) = self.nodes.get(at) else { return Moments::ZERO };
        let reported = self.waits.get(class.0 as usize).map_or(load.wait, |row| row[at]);
        self.before(node, reported, due).less(now - load.reported) + load.booked
    }

    /// What a node told of its wait, without what is for those who are due after a query.
    pub(super) fn before(&self, node: NodeIx, told: Moments, due: Time) -> Moments {
        Moments { mean: (told.mean - self.due_after(node, due)).max(0.0), ..told }
    }

    /// What of a node's wait is for those who are due after a query, in microseconds.
    pub(super) fn due_after(&self, node: NodeIx, due: Time) -> f64 {
        let at = node.0 as usize;
        let told = self.later.get(at).zip(self.nodes.get(at));
        // In whole microseconds, as it is remembered for explanations.
        told.map_or(0.0, |(later, load)| libm::floor(later.after(due, load.reported)))
    }

    /// Whether any node has said that somebody waits there who is due later than others.
    pub(super) fn tells_later(&self) -> bool {
        self.later.iter().any(|later| !later.is_untold())
    }
}
