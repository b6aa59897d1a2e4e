//! What runs while more is asked of a device than it can do.
//!
//! The look ahead (`ahead`) weighs each choice against all who wait, but everything after it as if it were as quick as can be. Where not all can be
//! answered anyway it still finds a little gained by letting whoever is nearly late go in a small batch of something quick, and every such batch costs those behind it
//! more than it gave. A device that is pressed (`level`) does what gives most answers instead, and asks nothing else:
//!
//! * each class is answered by the variant that its level gave it;
//! * of those variants of which a whole batch waits, the one that takes least for each goes first, the earliest deadline where none does: so what is dear waits
//!   until there is time for it, or is too late;
//! * the first in line goes in the largest batch that is there, up to the one that pays and half of its bound. If it has no time for that, and less
//!   would be dearer, it gives way, unless a lane that is free sooner has time for it.
//!
//! Who is not like others (what is reserved, best effort, price ceilings, what is run again alone) keeps the place that his deadline gives him and is looked at as ever.

use super::api::WorkerVariant;
use super::bind::{Binding, Draw, admits, slack};
use super::machine::Worker;
use super::queue::Waiting;
use super::reason::Reason;
use crate::estimate::Moments;
use alloc::collections::BTreeMap;
use modelless_types::{Batching, DeviceIx, Priority, Time, VariantId};

/// A batch is as good as whole from this share on.
const WHOLE: (usize, usize) = (9, 10);
/// No batch takes longer than this part of the bound of its first: as long again it may have waited.
const LONGEST: f64 = 0.5;
/// A smaller batch that takes at most so many times as much for each costs those behind it little.
const FAIR: f64 = 1.1;

/// What becomes of the first in line.
pub(super) enum Pressed {
    /// This.
    Goes(Binding),
    /// It gives way to those behind it.
    GivesWay,
    /// Another lane has time for it.
    Elsewhere,
}

/// Whether a query is like others.
fn is_ordinary(waiting: &Waiting) -> bool {
    let query = &waiting.query;
    !waiting.alone && !query.best_effort && query.max_cost.is_none() && query.priority != Priority::RESERVED
}

impl Worker {
    /// Of the variants by which a pressed device answers, the one that goes first whatever is due when: that of which a whole batch waits, and of
    /// several the one that takes least for each.
    pub(super) fn goes_first(&self, device: DeviceIx) -> Option<VariantId> {
        let level = self.levels.get(&device).filter(|level| level.is_pressed())?;
        if self.queue.mixed_beside_reserved() {
            return None;
        }
        let mut there: BTreeMap<VariantId, usize> = BTreeMap::new();
        for (class, count) in self.queue.classes() {
            if let Some(by) = level.pressed(class) {
                *there.entry(by).or_default() += count;
            }
        }
        let whole = |(id, count): (VariantId, usize)| {
            let variant = self.residency.variant(id)?;
            let largest = u32::try_from(self.largest(device, variant)).unwrap_or(u32::MAX);
            let best = self.residency.best_batch(variant, largest) as usize;
            (count * WHOLE.1 >= best * WHOLE.0).then(|| (self.residency.batched(variant).mean, id))
        };
        let least =
            there.into_iter().filter_map(whole).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        least.map(|(_, id)| id)
    }

    /// Whether more is asked of a device than it can do, as it was lately.
    pub(super) fn is_pressed(&self, now: Time, device: DeviceIx) -> bool {
        let level = self.levels.get(&device);
        level.is_some_and(|level| level.is_pressed() && level.is_of_late(now))
    }

    /// Whether a query is looked at before those of other variants, where one goes first.
    pub(super) fn is_first(&self, device: DeviceIx, waiting: &Waiting, first: Option<VariantId>) -> bool {
        let by = || self.levels.get(&device).and_then(|level| level.pressed(&waiting.query.class));
        first.is_none() || !is_ordinary(waiting) || by() == first
    }
}

impl Draw<'_> {
    /// What becomes of the head while the device is pressed; `None` where that says nothing of it.
    pub(super) fn pressed(&self) -> Option<Pressed> {
        let query = &self.head.query;
        if !is_ordinary(self.head) || self.worker.queue.mixed_beside_reserved() {
            return None;
        }
        let id = self.level?.pressed(&query.class)?;
        let variant = *self.admitted().find(|v| v.id == id)?;
        if self.worker.batching(variant) != Batching::Deadline || self.worker.apart(variant) {
            return None;
        }
        // Whoever is due before the head was passed over: he has time on another lane.
        let with = |w: &&Waiting| {
            let may = admits(&w.query.class, variant) && self.allows(&w.query.class, variant);
            may && w.query.expires >= query.expires && w.query.max_cost.is_none()
        };
        let largest = u32::try_from(self.worker.largest(self.device, variant)).unwrap_or(u32::MAX);
        let best = self.worker.residency.best_batch(variant, largest);
        let there = 1 + self.others().filter(with).take(best as usize).count();
        let most = u32::try_from(there).unwrap_or(u32::MAX).min(best);
        let longest = Moments::exactly(query.deadline - query.arrived).mean * LONGEST;
        let takes = self.worker.residency.takes(variant);
        let most = (2..=most).rev().find(|n| takes(*n).mean <= longest).unwrap_or(1);
        let each = |n: u32| takes(n).mean / f64::from(n);
        let members = self.draw(variant, most as usize);
        let drawn = members.as_ref().map_or(0, |members| u32::try_from(members.len()).unwrap_or(u32::MAX));
        match members {
            Some(members) if drawn == most || each(drawn) <= each(most) * FAIR => {
                let binding = self.bind(variant, self.lead(variant), &members);
                Some(Pressed::Goes(Binding { drains: false, ..binding }))
            }
            _ if !self.worker.config.foresight.gives_way => None,
            Some(_) | None => {
                let sooner = self.worker.soonest(self.now, self.device);
                let has_time = (sooner + takes(most)).mostly_within(slack(self.now, self.head));
                let is_another = sooner.mean < self.worker.start(self.now, self.lane).mean;
                Some(if is_another && has_time { Pressed::Elsewhere } else { Pressed::GivesWay })
            }
        }
    }

    /// Why it is answered by this.
    fn lead(&self, variant: &WorkerVariant) -> Reason {
        let liked = self.admitted().min_by(|a, b| self.preferred(a, b)).is_some_and(|v| v.id == variant.id);
        match (self.admitted().count(), liked) {
            (1, _) => Reason::Only,
            (_, true) => Reason::Preferred(self.head.query.prefer),
            (_, false) => Reason::Affordable,
        }
    }
}
