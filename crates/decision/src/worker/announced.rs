//! Queries that are announced to several nodes, of which whichever claims one first has it.
//!
//! They stand in the queue like all others, so that whoever is free next draws its batch from all that waits, wherever. But they are no
//! obligation: they take no credit, nothing is loaded or kept in memory for them, and nothing is learnt of those that this node gives up, since
//! another may answer them. Where it is reckoned how long there is to do, and what comes, each counts by the part that falls to this node,
//! which its gateway tells: were all of them counted, each node would take itself for overloaded.
//!
//! A slow node must not take what a quicker one would end sooner: see [`Worker::leaves_to_quicker`].

use super::api::Action;
use super::bind::{admits, slack};
use super::lanes::Lane;
use super::machine::Worker;
use super::queue::{Came, Waiting};
use crate::estimate::Moments;
use crate::query::{Class, Query};
use alloc::collections::BTreeMap;
use modelless_types::{DeviceIx, Micros, QueryKey, Refusal, Time};

/// So many may stand here that are only announced. Gateways keep no more than that either.
const ANNOUNCED: usize = 4_096;
/// Of so many classes it is remembered what falls to this node.
const CLASSES: usize = 1_024;
/// A node that takes so many times as long as the quickest is slow.
const SLOW: f64 = 1.5;
/// What gateways told of a class counts for so long after its last announcement: a class that is still announced is announced far more often, and what
/// was so before nodes came or went, or announcing was switched off, is not so any more.
const LASTS: Micros = Micros::from_secs(10);
/// Whoever is left to quicker nodes is taken all the same once he has no more than so many runs of his left here.
const RUNS: f64 = 1.5;

/// What gateways tell of a class whose queries they announce.
#[derive(Clone, Copy, Debug)]
struct Told {
    part: f64,
    /// On the quickest of the others, in microseconds.
    quickest: f64,
    at: Time,
}

/// The same of all classes, and when the last was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    of: BTreeMap<Class, Told>,
    last: Option<Time>,
}

impl Heard {
    /// Whether anything was announced lately.
    pub(super) fn is_told(&self, now: Time) -> bool {
        self.last.is_some_and(|last| now - last <= LASTS)
    }

    fn note(&mut self, class: Class, told: Told) {
        if self.of.len() >= CLASSES && !self.of.contains_key(&class) {
            let oldest = self.of.iter().min_by_key(|(_, told)| told.at).map(|(class, _)| *class);
            oldest.and_then(|class| self.of.remove(&class));
        }
        self.last = Some(told.at);
        self.of.insert(class, told);
    }

    /// Of a class of which somebody waits who was only announced: nothing newer is known of him, however long he waits.
    fn of_waiting(&self, class: &Class) -> Option<&Told> {
        self.of.get(class)
    }

    fn part(&self, class: &Class) -> f64 {
        self.of_waiting(class).map_or(1.0, |told| told.part)
    }

    /// Of a class that may be announced no more.
    fn lately(&self, now: Time, class: &Class) -> Option<&Told> {
        self.of.get(class).filter(|told| now - told.at <= LASTS)
    }
}

impl Worker {
    /// A query is announced.
    pub(super) fn announced(&mut self, now: Time, query: Query, part_ppm: u32, quickest: Micros) {
        let part = (f64::from(part_ppm) / 1e6).clamp(1e-3, 1.0);
        let quickest = Moments::exactly(quickest).mean;
        self.heard.note(query.class, Told { part, quickest, at: now });
        if self.draining {
            return self.declines(query.key, Refusal::Draining);
        }
        self.rates.announced(now, &query, part);
        if self.queue.announced() >= ANNOUNCED {
            let limit = u32::try_from(ANNOUNCED).unwrap_or(u32::MAX);
            return self.declines(query.key, Refusal::QueueFull { limit });
        }
        // What is here already, or was sent, is no news.
        if self.queue.get(query.key).is_some() || self.all_lanes().any(|lane| lane.has(query.key)) {
            return;
        }
        let waiting = Waiting::new(Query { returnable: false, ..query }, Came::Announced);
        if self.may_claim(now, &waiting) {
            self.queue.push(waiting);
        } else {
            self.declines(query.key, Refusal::TooLate { waited: now - query.arrived });
        }
    }

    /// Whether something in memory would answer it in time, were it free.
    fn may_claim(&self, now: Time, waiting: &Waiting) -> bool {
        let left = slack(now, waiting);
        self.residency.device_ids().any(|device| {
            let mut serving = self.residency.serving(device).filter(|v| admits(&waiting.query.class, v));
            serving.any(|v| self.in_time_alone(now, device, v, Moments::ZERO, left))
        })
    }

    /// This node will not claim it. Others may.
    pub(super) fn declines(&mut self, key: QueryKey, why: Refusal) {
        self.actions.push_back(Action::Decline { key, why });
    }

    /// So many queries that were only announced wait here.
    pub fn announced_here(&self) -> usize {
        self.queue.announced()
    }

    /// The part of one that waits that falls to this node.
    pub(super) fn part_here(&self, waiting: &Waiting) -> f64 {
        if waiting.came == Came::Announced { self.heard.part(&waiting.query.class) } else { 1.0 }
    }

    /// The same of all of a class that wait.
    pub(super) fn falls_here(&self, class: &Class) -> f64 {
        let announced = self.queue.announced_of(class);
        if announced == 0 {
            return 1.0;
        }
        let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
        let (announced, all) = (count(announced), count(self.queue.count_of(class)));
        (all - announced + announced * self.heard.part(class)) / all
    }

    /// So many times as many of a class as fall to this node come to gateways, in batches of which every so manieth comes here.
    pub(super) fn among(&self, now: Time, class: &Class) -> f64 {
        self.heard.lately(now, class).map_or_else(|| self.rates.among(class), |told| 1.0 / told.part)
    }

    /// Until when an announced query is left to quicker nodes: where this one takes far longer, and all that is announced would be done
    /// there before it is done here. Not for longer than there is time left to do it here after all, should none of them come to it.
    ///
    /// What others take for those that wait follows from the parts that fall to them. One that is in the middle of a batch goes on with it
    /// first, so twice the quickest run has to be less as well.
    pub(super) fn leaves_to_quicker(&self, now: Time, lane: &Lane, waiting: &Waiting) -> Option<Time> {
        if waiting.came != Came::Announced || waiting.alone {
            return None;
        }
        let class = &waiting.query.class;
        let told = self.heard.of_waiting(class)?;
        let serving = self.residency.serving(lane.device).filter(|v| admits(class, v));
        let alone = serving.map(|v| self.residency.estimate(v, 1).mean).min_by(f64::total_cmp)?;
        if alone < told.quickest * SLOW {
            return None;
        }
        let here = self.start(now, lane).mean + alone;
        if here <= 2.0 * told.quickest + self.others_take(lane.device) {
            return None;
        }
        let left = slack(now, waiting).min(1e12) - here - (RUNS - 1.0) * alone;
        let until = now + Moments { mean: left.max(0.0), var: 0.0 }.mean();
        (until > now).then_some(until)
    }

    /// How long others take for all that is announced, in microseconds.
    fn others_take(&self, device: DeviceIx) -> f64 {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device).count();
        let lanes = f64::from(u32::try_from(lanes).unwrap_or(u32::MAX).max(1));
        let takes = self.heard.of.iter().filter_map(|(class, told)| {
            let waiting = self.queue.announced_of(class);
            let each = if waiting > 0 { self.per_query(device, class)?.mean } else { return None };
            let waiting = f64::from(u32::try_from(waiting).unwrap_or(u32::MAX));
            // This node does its part in `each`, and the others theirs meanwhile.
            Some(waiting * each / lanes * told.part / (1.0 - told.part).max(1e-3))
        });
        takes.sum()
    }
}
