//! What only spare time is spent on: inputs of offline jobs ([`Priority::SPARE`](modelless_types::Priority::SPARE)).
//!
//! They stand aside of the queue, so that nothing that is decided for others sees them: no rate, no backlog, no demand, no credit. A lane
//! takes a batch of them when it is empty and nothing else waits, here or at a gateway; and as what began cannot be stopped, only one that is
//! short against what comes:
//!
//! * as long as the quickest answer to the queries that came lately takes by itself, and no more than a small [`PART`] of their tightest bound;
//! * one input alone, where even that takes longer, as long as what comes would still be in time behind it;
//! * where nothing has come for a moment ([`QUIET`]), [`ALONE`], or one input alone, as long as what came within [`SELDOM`] would still be in
//!   time behind it if it came again;
//! * [`ALONE`], or one input alone whatever it takes, where nothing has come for longer than that: nobody is expected.
//!
//! While queries come, one lane of a device does this at a time, so that another one is free for them, and after each batch the device
//! rests from it for [`REST`] times as long: most queries find nothing in their way.
//!
//! What is bound but has not begun steps back at once when a query comes.

use super::api::{Action, Failure, WorkerVariant};
use super::bind::{Binding, admits};
use super::lanes::{Batch, Lane};
use super::machine::Worker;
use super::queue::{Came, Waiting};
use super::reason::Reason;
use crate::query::{Class, Query};
use alloc::vec::Vec;
use core::cmp::Ordering;
use modelless_types::{Batching, DeviceIx, Micros, Prefer, QueryKey, Refusal, Time};

/// So many may stand aside.
const ASIDE: usize = 1_024;
/// A batch of several takes at most such a part of the tightest bound.
const PART: f64 = 0.05;
/// So many times as long as such a batch took none follows it, while queries come.
const REST: u64 = 5;
/// Behind one input alone that takes longer, what comes must be in time with so much of its bound.
const BEHIND: f64 = 0.8;
/// Nothing else came for so long: it does not come all the time.
const QUIET: Micros = Micros::from_secs(1);
/// Nothing else came for so long: nobody is expected.
const SELDOM: Micros = Micros::from_secs(60);
/// What a batch of several takes at most when nobody is expected, in microseconds.
const ALONE: f64 = 50e3;

/// What to do with a lane that nobody else wants.
pub(super) enum Spare {
    Batch(Binding),
    /// Nothing before this moment; `None`: not before something happens.
    Later(Option<Time>),
}

/// How long a batch may take.
struct Bounds {
    /// One of several inputs, in microseconds.
    several: f64,
    /// One input alone.
    one: f64,
    /// Queries come all the time, by what is known until then.
    until: Option<Time>,
    /// When what comes seldom is not expected any more.
    later: Option<Time>,
}

/// Whether only spare time is spent on a batch.
pub(super) fn is_spare(batch: &Batch) -> bool {
    batch.members.iter().all(|member| member.waiting.query.priority.is_spare())
}

impl Worker {
    /// A batch ended, after so long on its lane.
    pub(super) fn rest_from_spare(&mut self, now: Time, device: DeviceIx, batch: &Batch, took: Micros) {
        if is_spare(batch) {
            self.spare_rest.insert(device, now + Micros(took.0.saturating_mul(REST)));
        }
    }

    /// One came that only spare time is spent on.
    pub(super) fn arrive_aside(&mut self, now: Time, query: Query) {
        if self.draining {
            return self.actions.push_back(Action::HandBack { key: query.key, why: Refusal::Draining });
        }
        if self.aside.len() >= ASIDE {
            let limit = u32::try_from(ASIDE).unwrap_or(u32::MAX);
            return self.refuse(query.key, Refusal::QueueFull { limit });
        }
        if self.aside.bytes() + query.bytes > self.config.queue_bytes && self.aside.len() > 0 {
            return self.refuse(query.key, Refusal::BytesFull { limit: self.config.queue_bytes });
        }
        let waiting = Waiting::new(query, Came::Sent);
        match self.place(now, &waiting) {
            Ok(resident) => self.aside.push(Waiting { loaded: !resident, ..waiting }),
            Err(refusal) => self.refuse(query.key, refusal),
        }
    }

    /// Has one wait, or wait again, where it belongs.
    pub(super) fn push(&mut self, waiting: Waiting) {
        if waiting.query.priority.is_spare() { self.aside.push(waiting) } else { self.queue.push(waiting) }
    }

    /// Gives up those whose time is up.
    pub(super) fn expire_aside(&mut self, now: Time) {
        while let Some((at, key)) = self.aside.first_expiry()
            && at <= now
        {
            if let Some(waiting) = self.aside.remove(key) {
                let refusal = self.expired(now, &waiting.query);
                self.refuse(key, refusal);
            }
        }
    }

    /// Places those anew that nothing in memory can answer any more.
    pub(super) fn place_aside(&mut self, now: Time) {
        let classes = self.aside.classes().map(|(class, _)| *class);
        let unserved: Vec<Class> = classes.filter(|class| !self.servable(class)).collect();
        let stranded: Vec<QueryKey> = unserved.iter().flat_map(|class| self.aside.keys_of(class)).collect();
        for key in stranded {
            let Some(waiting) = self.aside.get(key).copied() else { continue };
            if let Err(refusal) = self.place(now, &waiting) {
                self.aside.remove(key);
                self.refuse(key, refusal);
            }
        }
    }

    /// What only spare time is spent on steps back from a lane where it has not begun, as soon as somebody else waits.
    pub(super) fn unbind_spare(&mut self, at: usize) {
        if self.queue.len() == 0 {
            return;
        }
        let device = self.lanes[at].device;
        let Some(batch) = self.lanes[at].unbind(is_spare) else { return };
        self.actions.extend(batch.discard());
        self.residency.released(self.now, device, batch.variant, &mut self.actions);
        self.rerun(self.now, device, &batch, Failure::NotStarted, "others came first");
    }

    /// A batch of those who stand aside, if the lane is theirs.
    pub(super) fn bind_spare(&self, now: Time, lane: &Lane) -> Spare {
        if self.aside.len() == 0 || !lane.is_empty() || self.queue.len() > 0 {
            return Spare::Later(None);
        }
        // Those at gateways are on their way here; past their first deadline that says nothing any more.
        if let Some(until) = self.queue.demand(now).map(|(_, demand)| demand.first).max() {
            return Spare::Later(Some(until));
        }
        let serving = self.serving_on(lane);
        let bounds = self.spare_bounds(now, &serving);
        if bounds.until.is_some() {
            if let Some(until) = self.spare_rest.get(&lane.device).filter(|until| **until > now) {
                return Spare::Later(Some(*until));
            }
            if self.lanes.iter().any(|other| other.device == lane.device && other.batches().any(is_spare)) {
                return Spare::Later(None); // its end is heard of
            }
        }
        // The first of each class: where one is too long or too dear beside what comes, another may not be.
        let theirs = |class: &Class| serving.iter().any(|v| admits(class, v));
        for head in self.aside.first(&theirs, 1) {
            let mut variants: Vec<&WorkerVariant> =
                serving.iter().copied().filter(|v| admits(&head.query.class, v)).collect();
            variants.sort_by(|a, b| self.preferred(head.query.prefer, lane, (a, b)));
            for variant in variants {
                if let Some(binding) = self.draw_spare(lane, variant, head, &bounds) {
                    return Spare::Batch(binding);
                }
            }
        }
        Spare::Later(bounds.until.or(bounds.later))
    }

    /// By what is wished first, then by what a query takes of the device: throughput is what counts here.
    fn preferred(&self, prefer: Prefer, lane: &Lane, (a, b): (&WorkerVariant, &WorkerVariant)) -> Ordering {
        let takes = |v| self.residency.batched(v).mean;
        let wish = match prefer {
            Prefer::Accuracy => b.accuracy.cmp(&a.accuracy),
            Prefer::Cost => {
                let cost = |v: &WorkerVariant| v.run.cost(v.max_batch.max(1), self.price(lane.device));
                cost(a).cmp(&cost(b))
            }
            Prefer::Latency => Ordering::Equal,
        };
        wish.then_with(|| takes(a).total_cmp(&takes(b))).then(a.ordinal.cmp(&b.ordinal))
    }

    fn spare_bounds(&self, now: Time, serving: &[&WorkerVariant]) -> Bounds {
        let lately = self.rates.flows().filter(|(_, _, last)| now - *last < SELDOM);
        let mut bounds = Bounds { several: ALONE, one: f64::INFINITY, until: None, later: None };
        for (class, flow, last) in lately {
            let tightest = flow.bounds().iter().copied().fold(f64::INFINITY, f64::min);
            let runs = serving.iter().filter(|v| admits(class, v));
            let quickest =
                runs.map(|v| self.residency.estimate(v, 1).p99_f64()).fold(f64::INFINITY, f64::min);
            // What is not served here does not come here either, as far as this lane can tell.
            let behind = if quickest.is_finite() { BEHIND * tightest - quickest } else { tightest };
            if now - last < QUIET {
                bounds.one = bounds.one.min(behind);
                bounds.several = bounds.several.min(PART * tightest).min(quickest);
                bounds.until = bounds.until.max(Some(last + QUIET));
            } else if behind > 0.0 {
                // Else it is late whatever happens here.
                bounds.one = bounds.one.min(behind);
                bounds.several = bounds.several.min(behind);
                bounds.later = bounds.later.max(Some(last + SELDOM));
            }
        }
        bounds
    }

    fn draw_spare(
        &self,
        lane: &Lane,
        variant: &WorkerVariant,
        head: &Waiting,
        bounds: &Bounds,
    ) -> Option<Binding> {
        let largest = if head.alone { 1 } else { self.largest(lane.device, variant) };
        let there = self.aside.first(&|class| admits(class, variant), largest);
        let mut members: Vec<&Waiting> = there.filter(|waiting| !waiting.alone).take(largest).collect();
        if head.alone {
            members = alloc::vec![head];
        }
        let takes = |batch: usize| self.residency.estimate(variant, u32::try_from(batch).unwrap_or(u32::MAX));
        while members.len() > 1 && takes(members.len()).p99_f64() > bounds.several {
            members.pop();
        }
        let expected = takes(members.len());
        if members.len() == 1 && expected.p99_f64() > bounds.several.max(bounds.one) {
            return None;
        }
        self.payable_spare(lane, variant, &mut members);
        let batch = u32::try_from(members.len()).ok().filter(|batch| *batch > 0)?;
        let reason = |waiting: &&Waiting| match (waiting.alone, waiting.loaded) {
            (true, _) => Reason::Rerun,
            (_, true) => Reason::Loaded,
            _ => Reason::Spare,
        };
        Some(Binding {
            variant: variant.id,
            members: members.iter().map(|waiting| waiting.query.key).collect(),
            reasons: members.iter().map(reason).collect(),
            expected: self.residency.estimate(variant, batch),
            drains: true,
            nobody_missed: true,
            chance: false,
            batching: Batching::Deadline,
            until: None,
        })
    }

    /// Takes out those whose ceiling the batch would break; a smaller one costs each more, so again until it holds.
    fn payable_spare(&self, lane: &Lane, variant: &WorkerVariant, members: &mut Vec<&Waiting>) {
        loop {
            let before = members.len();
            let cost = variant.run.cost(u32::try_from(before).unwrap_or(u32::MAX), self.price(lane.device));
            members.retain(|waiting| {
                waiting.query.best_effort || waiting.query.max_cost.is_none_or(|ceiling| cost <= ceiling)
            });
            if members.len() == before {
                return;
            }
        }
    }
}
