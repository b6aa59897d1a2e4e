//! The choice of variant and batch for a lane whose prepared slot is free.
//!
//! The query with the earliest deadline leads. Its variants are tried in the order it prefers; one is taken if the
//! batch drawn for it is in time **and** what would still wait afterwards can drain in time by the same variant. So a
//! backlog alone makes answers cheaper, down to each query's floor and never below, before anything is shed. If no variant lets the backlog drain, the one with the highest throughput is taken.

use super::api::{Reason, WorkerVariant};
use super::lanes::Lane;
use super::machine::Worker;
use super::queue::Waiting;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Ordering;
use modelless_types::{Batching, DeviceIx, Prefer, PricePerHour, QueryKey, TaskId, Time, VariantId};

/// A batch that could be bound.
pub(super) struct Binding {
    pub(super) variant: VariantId,
    pub(super) members: Vec<QueryKey>,
    pub(super) reasons: Vec<Reason>,
    pub(super) expected: Moments,
    /// What waits behind it can be in time.
    pub(super) drains: bool,
    /// Too early to bind it.
    until: Option<Time>,
    /// The first is in time.
    in_time: bool,
}

/// What to do with a lane's free slot.
pub(super) enum Bound {
    Batch(Binding),
    /// This query can no longer be in time anywhere here.
    Late(QueryKey),
    /// Nothing before this moment; `None`: not before something happens.
    Later(Option<Time>),
}

impl Worker {
    pub(super) fn bind_for(&self, now: Time, lane: &Lane) -> Bound {
        let free = |v: &&WorkerVariant| !self.residency.tried(lane.device, v.id);
        let serving: Vec<&WorkerVariant> = self.residency.serving(lane.device).filter(free).collect();
        if serving.is_empty() {
            return Bound::Later(None);
        }
        if let Some(until) = self.surely_too_early(now, lane, &serving) {
            return Bound::Later(Some(until));
        }
        let start = self.start(now, lane);
        let price = self.price(lane.device);
        let rates = self.rates(now, lane.device, &serving);
        if let Some(key) = self.sheds(now, lane, &rates) {
            return Bound::Late(key);
        }
        let mut later: Option<Time> = None;
        let mut deferred: BTreeSet<TaskId> = BTreeSet::new();
        for head in self.queue.merged(|class| rates.contains_key(class)) {
            if deferred.contains(&head.query.class.task) {
                continue;
            }
            let draw = Draw {
                worker: self,
                now,
                lane,
                device: lane.device,
                start,
                price,
                serving: &serving,
                rates: &rates,
                head,
            };
            if !draw.in_time_alone(start) {
                // Skipped while another lane is free sooner, or a load could still bring an answer in time.
                let elsewhere = draw.in_time_alone(self.soonest(now, lane.device));
                if elsewhere || self.could_wait_for_load(now, &head.query) {
                    continue;
                }
                return Bound::Late(head.query.key);
            }
            // With none, only its price ceiling is in the way: more of its kind may yet come and share the batch.
            match draw.best().or_else(|| draw.last_chance()) {
                Some(Binding { until: Some(until), .. }) => {
                    later = Some(later.map_or(until, |known| known.min(until)));
                    deferred.insert(head.query.class.task);
                }
                Some(binding) if draw.gives_way(&binding) => return Bound::Late(head.query.key),
                Some(binding) => return Bound::Batch(binding),
                None => {}
            }
        }
        Bound::Later(later)
    }

    /// Device time per query, at its fastest, of each class that waits here or at the gateways and can be served.
    fn rates(&self, now: Time, device: DeviceIx, serving: &[&WorkerVariant]) -> BTreeMap<Class, Moments> {
        let waiting = self.queue.classes().map(|(class, _)| *class);
        let classes = waiting.chain(self.queue.demand(now).map(|(class, _)| *class));
        let served = classes.filter(|class| serving.iter().any(|v| admits(class, v)));
        served.filter_map(|class| Some((class, self.per_query(device, &class)?))).collect()
    }

    /// How long until a batch bound to a lane now could run.
    pub(super) fn start(&self, now: Time, lane: &Lane) -> Moments {
        if lane.running.is_some() { lane.remaining(now) } else { self.handover.moments() }
    }

    /// How long until some lane of a device could start a batch bound now.
    pub(super) fn soonest(&self, now: Time, device: DeviceIx) -> Moments {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let free = lanes.map(|lane| lane.until_free(now));
        free.min_by(|a, b| a.mean.total_cmp(&b.mean)).unwrap_or(Moments::ZERO)
    }

    /// Device time per query of a class at its fastest, batched; `None` when nothing resident may answer it.
    pub(super) fn per_query(&self, device: DeviceIx, class: &Class) -> Option<Moments> {
        let serving = self.residency.serving(device).filter(|v| admits(class, v));
        serving.map(batched).min_by(|a, b| a.mean.total_cmp(&b.mean))
    }
}

/// Device time per query of a variant's largest batch, or of one alone where batches gain nothing.
pub(super) fn batched(variant: &WorkerVariant) -> Moments {
    variant.run.per_query(variant.max_batch)
}

/// Whether a class may be answered by a variant.
pub(super) fn admits(class: &Class, variant: &WorkerVariant) -> bool {
    class.task == variant.task && class.admits.contains(variant.ordinal)
}

/// The time a query leaves for work, from now.
pub(super) fn slack(now: Time, waiting: &Waiting) -> f64 {
    if waiting.query.best_effort { f64::INFINITY } else { Moments::exactly(waiting.query.expires - now).mean }
}

struct Draw<'a> {
    worker: &'a Worker,
    now: Time,
    lane: &'a Lane,
    device: DeviceIx,
    start: Moments,
    price: PricePerHour,
    serving: &'a [&'a WorkerVariant],
    rates: &'a BTreeMap<Class, Moments>,
    head: &'a Waiting,
}

impl Draw<'_> {
    /// Whether the head more likely than not is in time if it goes alone.
    fn in_time_alone(&self, start: Moments) -> bool {
        let slack = slack(self.now, self.head);
        self.admitted().any(|v| self.worker.in_time_alone(self.now, self.device, v, start, slack))
    }

    /// The head alone with the fastest, where nothing is in time for certain: a probable answer is worth more than a
    /// sure refusal.
    fn last_chance(&self) -> Option<Binding> {
        let slack = slack(self.now, self.head);
        let sure = |v: &WorkerVariant| (self.start + v.run.estimate(1)).within(slack);
        let mean = |v: &WorkerVariant| v.run.estimate(1).mean;
        if self.admitted().any(|v| sure(v)) {
            return None; // its price ceiling is in the way
        }
        let quickest = self.admitted().min_by(|a, b| mean(a).total_cmp(&mean(b)))?;
        self.draw(quickest, Reason::InTime, 1)
    }

    fn admitted(&self) -> impl Iterator<Item = &&WorkerVariant> {
        self.serving.iter().filter(|v| admits(&self.head.query.class, v))
    }

    fn best(&self) -> Option<Binding> {
        let mut order: Vec<&WorkerVariant> = self.admitted().copied().collect();
        order.sort_by(|a, b| self.preferred(a, b));
        let mut widest: Option<(f64, Binding, &WorkerVariant, Reason)> = None;
        for (rank, variant) in order.iter().enumerate() {
            let lead = match (order.len(), rank) {
                (1, _) => Reason::Only,
                (_, 0) => Reason::Preferred(self.head.query.prefer),
                _ => Reason::InTime,
            };
            let Some(binding) = self.fill(variant, lead) else { continue };
            let good = match self.worker.batching(variant) {
                Batching::Deadline => self.rest_drains(variant, &binding),
                Batching::Aimd | Batching::Fixed { .. } | Batching::Off => binding.in_time,
            };
            if good {
                return Some(self.smaller(variant, &binding, lead, true).unwrap_or(binding));
            }
            let per_query = binding.expected.mean / count(binding.members.len());
            if widest.as_ref().is_none_or(|(known, ..)| per_query < *known) {
                widest = Some((per_query, binding, *variant, lead));
            }
        }
        widest.map(|(_, binding, variant, lead)| {
            let binding = self.smaller(variant, &binding, lead, false).unwrap_or(binding);
            let drains = self.worker.batching(variant) != Batching::Deadline;
            Binding { drains, ..binding }
        })
    }

    /// The first query of a batch decides what it prefers.
    fn preferred(&self, a: &WorkerVariant, b: &WorkerVariant) -> Ordering {
        let quicker = a.run.estimate(1).p99_f64().total_cmp(&b.run.estimate(1).p99_f64());
        match self.head.query.prefer {
            Prefer::Accuracy => b.accuracy.cmp(&a.accuracy).then(quicker),
            Prefer::Cost => {
                let batch = u32::try_from(self.worker.queue.len()).unwrap_or(u32::MAX).max(1);
                let cost = |v: &WorkerVariant| v.run.cost(batch.min(v.max_batch), self.price);
                cost(a).cmp(&cost(b)).then(quicker)
            }
            Prefer::Latency => quicker.then(b.accuracy.cmp(&a.accuracy)),
        }
    }

    /// Draws a batch for a variant: the head, and whoever else it may answer, while all stay in time, or as many as
    /// the task's way of batching says. `None` if the head does not get into it.
    fn fill(&self, variant: &WorkerVariant, lead: Reason) -> Option<Binding> {
        let largest = if self.head.alone { 1 } else { self.worker.largest(self.device, variant) };
        let alone = self.start + variant.run.estimate(1);
        let by_deadline = self.worker.batching(variant) == Batching::Deadline;
        if by_deadline && !alone.within(slack(self.now, self.head)) {
            return None;
        }
        self.draw(variant, lead, largest)
    }

    /// The same batch with fewer members, where that wastes nothing. With time to `spare` it may waste a little, if
    /// what is left out drains all the same.
    fn smaller(
        &self,
        variant: &WorkerVariant,
        binding: &Binding,
        lead: Reason,
        spare: bool,
    ) -> Option<Binding> {
        let drawn = binding.members.len();
        if drawn < 2 || self.worker.batching(variant) != Batching::Deadline {
            return None;
        }
        // When the largest batch there can be is waiting, throughput is what is short.
        let spare = spare && drawn < self.worker.largest(self.device, variant);
        let enough = self.worker.enough(self.device, variant, drawn, spare);
        let smaller = if enough < drawn { self.draw(variant, lead, enough) } else { None };
        smaller.filter(|smaller| !spare || self.rest_drains(variant, smaller))
    }

    fn draw(&self, variant: &WorkerVariant, lead: Reason, largest: usize) -> Option<Binding> {
        if !self.payable(variant) {
            return None;
        }
        let by_deadline = self.worker.batching(variant) == Batching::Deadline;
        let mut members: Vec<&Waiting> = Vec::new();
        let mut tightest = f64::INFINITY;
        let others = self.worker.queue.merged(|class| admits(class, variant));
        let others = others.filter(|w| w.query.key != self.head.query.key && !w.alone);
        for waiting in core::iter::once(self.head).chain(others) {
            if members.len() >= largest {
                break;
            }
            let slack = slack(self.now, waiting).min(tightest);
            let batch = u32::try_from(members.len() + 1).ok()?;
            let sure = by_deadline && largest > 1;
            // To be as sure of a batch as of one alone would keep batches small, and small batches miss more.
            let ends = self.start + variant.run.estimate(batch);
            let fits = if batch == 1 { ends.within(slack) } else { ends.mostly_within(slack) };
            if sure && !fits {
                if members.is_empty() {
                    return None;
                }
                if slack < tightest {
                    continue; // this one alone is too tight; it gets its turn with something faster
                }
                break;
            }
            tightest = slack;
            members.push(waiting);
        }
        self.affordable(variant, &mut members);
        if members.first()?.query.key != self.head.query.key {
            return None;
        }
        let batch = u32::try_from(members.len()).ok()?;
        let until = self.worker.wait_until(self.now, self.lane, variant, &members);
        let reason = |(at, w): (usize, &&Waiting)| match (w.alone, w.loaded, at) {
            (true, ..) => Reason::Rerun,
            (_, true, _) => Reason::Loaded,
            (_, _, 0) => lead,
            _ => Reason::Joined,
        };
        let reasons = members.iter().enumerate().map(reason).collect();
        let members = members.iter().map(|w| w.query.key).collect();
        let expected = variant.run.estimate(batch);
        let in_time = (self.start + expected).within(slack(self.now, self.head));
        Some(Binding { variant: variant.id, members, reasons, expected, drains: true, until, in_time })
    }

    /// Whether any batch of a variant could be cheap enough for the head: saves drawing one that cannot.
    fn payable(&self, variant: &WorkerVariant) -> bool {
        let cost = |batch| variant.run.cost(batch, self.price);
        let least = cost(1).min(cost(variant.max_batch.max(1))).min(cost(variant.run.largest_measured()));
        let query = &self.head.query;
        query.best_effort || query.max_cost.is_none_or(|ceiling| least <= ceiling)
    }

    /// Whether more of those who wait are in time if the head is given up.
    fn gives_way(&self, binding: &Binding) -> bool {
        let variant = self.serving.iter().find(|v| v.id == binding.variant);
        variant.is_some_and(|v| !binding.drains && self.worker.gives_way(self.now, self.lane, v, self.head))
    }

    /// Takes out those whose ceiling the batch would break; a smaller batch costs each more, so again until it holds.
    fn affordable(&self, variant: &WorkerVariant, members: &mut Vec<&Waiting>) {
        loop {
            let batch = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let cost = variant.run.cost(batch, self.price);
            let before = members.len();
            members.retain(|w| w.query.best_effort || w.query.max_cost.is_none_or(|ceiling| cost <= ceiling));
            if members.len() == before {
                return;
            }
        }
    }

    /// Whether what waits behind this batch, here and at the gateways, could still be in time if everything that may
    /// be were answered by the same variant, and the rest by the fastest there is for it. To ask only whether the
    /// fastest could do it would let the queue grow until each query is bound at its last moment, alone.
    fn rest_drains(&self, variant: &WorkerVariant, binding: &Binding) -> bool {
        let lanes = count(self.worker.lanes.iter().filter(|lane| lane.device == self.device).count());
        let chosen: BTreeSet<QueryKey> = binding.members.iter().copied().collect();
        let own = batched(variant);
        let each =
            |class: &Class| if admits(class, variant) { Some(own) } else { self.rates.get(class).copied() };
        let mut at = self.start + binding.expected;
        let waiting = self.worker.queue.merged(|class| self.rates.contains_key(class));
        for waiting in waiting.filter(|w| !chosen.contains(&w.query.key)) {
            let Some(each) = each(&waiting.query.class) else { continue };
            at += each.times(1.0 / lanes);
            if !at.within(slack(self.now, waiting)) {
                return false;
            }
        }
        for (class, demand) in self.worker.queue.demand(self.now) {
            let Some(each) = each(class) else { continue };
            at += each.times(f64::from(demand.waiting) / lanes);
            if !at.within(Moments::exactly(demand.first - self.now).mean) {
                return false;
            }
        }
        true
    }
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
