//! What runs while more is asked of a device than it can do.
//!
//! The look ahead (`ahead`) weighs each choice against all who wait, but everything after it as if it were as quick as can be. Where not all can be
//! answered anyway it still finds a little gained by letting whoever is nearly late go in a small batch of something quick, and every such batch costs those behind it
//! more than it gave. A device that is pressed (`level`) does what gives most answers instead, and asks nothing else:
//!
//! * each class is answered by the variant that its level gave it;
//! * of those variants of which a whole batch waits, or whose first has no time to wait for one, the one that takes least for each in the batch that is there goes first,
//!   the earliest deadline where there is none: so what is dear waits until there is time for it, or is too late, and what is cheap and rare does not starve behind dear
//!   whole batches;
//! * the first in line goes in the largest batch that is there, up to the one that pays and half of its bound. If it has no time for that, and less
//!   would be dearer, it gives way, unless a lane that is free sooner has time for it. Where there is *plenty* to do by its variant (more than the lanes can, once everything
//!   that takes less for each has gone first, and a whole batch of it waits) whoever gives way has his place taken: then it goes in no smaller batch that is dearer at all, and only
//!   if it is in time for certain. A full batch of it is bound some milliseconds earlier, so that no lane waits for it.
//!
//! Who is not like others (what is reserved, best effort, price ceilings, what is run again alone) keeps the place that his deadline gives him and is looked at as ever.

use super::api::WorkerVariant;
use super::bind::{Binding, Draw, admits, slack};
use super::lanes::Lane;
use super::machine::Worker;
use super::queue::Waiting;
use super::reason::Reason;
use crate::estimate::Moments;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use modelless_types::{Batching, DeviceIx, Micros, Priority, Time, VariantId};

/// A batch is as good as whole from this share on.
const WHOLE: (usize, usize) = (9, 10);
/// No batch takes longer than this part of the bound of its first: as long again it may have waited.
const LONGEST: f64 = 0.5;
/// A smaller batch that takes at most so many times as much for each costs those behind it little. Not where there is plenty to do.
const FAIR: f64 = 1.1;

/// Who will have no more time than his batch takes, and this part of the longest batch, when the lane is free does not wait for more to come. With all of the longest 0.6 points more
/// are missed over twelve simulated rows, with nothing of it 0.4 (ADR 0225).
const BEHIND: f64 = 0.5;

/// So much earlier than others a full batch is bound where there is plenty to do: what runs may end sooner than foreseen, and who comes meanwhile
/// finds a full batch before him.
pub(super) const EARLY: Micros = Micros::from_millis(3);

/// Those who wait for a variant.
struct There {
    count: usize,
    /// What their first will have left when the lane is free, in microseconds.
    left: f64,
}

/// A batch of them.
struct Batch {
    by: VariantId,
    /// Microseconds, of it as it is, for each in it, and of one as large as pays.
    takes: f64,
    each: f64,
    longest: f64,
    is_whole: bool,
    left: f64,
}

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
pub(super) fn is_ordinary(waiting: &Waiting) -> bool {
    let query = &waiting.query;
    !waiting.alone && !query.best_effort && query.max_cost.is_none() && query.priority != Priority::RESERVED
}

impl Worker {
    /// Of the variants by which a pressed device answers, the one that goes first whatever is due when: that of which a whole batch waits, or of which
    /// some would be late if another batch went before, and of several the one that takes least for each of those who are there.
    pub(super) fn goes_first(&self, now: Time, lane: &Lane) -> Option<VariantId> {
        let device = lane.device;
        let level = self.levels.get(&device).filter(|level| level.is_pressed())?;
        if self.queue.mixed_beside_reserved() {
            return None;
        }
        let starts = self.start(now, lane).mean;
        let mut there: BTreeMap<VariantId, There> = BTreeMap::new();
        for (class, count) in self.queue.classes() {
            let (Some(by), Some((first, _))) = (level.pressed(class), self.queue.in_groups(class, 1).next())
            else {
                continue;
            };
            let known = there.entry(by).or_insert(There { count: 0, left: f64::INFINITY });
            known.count += count;
            known.left = known.left.min(slack(now, first) - starts);
        }
        let batches: Vec<Batch> =
            there.iter().filter_map(|(id, there)| self.batch_of(device, *id, there)).collect();
        let longest = batches.iter().map(|batch| batch.longest).fold(0.0, f64::max);
        let may =
            batches.iter().filter(|batch| batch.is_whole || batch.left < batch.takes + longest * BEHIND);
        may.min_by(|a, b| a.each.total_cmp(&b.each).then(a.by.cmp(&b.by))).map(|batch| batch.by)
    }

    /// What could go of a variant now.
    fn batch_of(&self, device: DeviceIx, by: VariantId, there: &There) -> Option<Batch> {
        let variant = self.residency.variant(by)?;
        let largest = u32::try_from(self.largest(device, variant)).unwrap_or(u32::MAX);
        let best = self.residency.best_batch(variant, largest);
        let count = u32::try_from(there.count).unwrap_or(u32::MAX).clamp(1, best.max(1));
        let takes = self.residency.estimate(variant, count).mean;
        let longest = self.residency.estimate(variant, best).mean;
        let is_whole = there.count * WHOLE.1 >= best as usize * WHOLE.0;
        Some(Batch { by, takes, each: takes / f64::from(count), longest, is_whole, left: there.left })
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
        // Those of a whole batch that is there are followed by others, or there is none of them to spare.
        let is_plenty = self.level?.is_plenty(id) && there >= best as usize;
        let fair = if is_plenty { 1.0 } else { FAIR };
        let in_time = if is_plenty { Moments::within } else { Moments::mostly_within };
        let members = self.draw_as_sure(variant, most as usize, in_time);
        let drawn = members.as_ref().map_or(0, |members| u32::try_from(members.len()).unwrap_or(u32::MAX));
        match members {
            Some(members) if drawn == most || each(drawn) <= each(most) * fair => {
                let binding = self.bind(variant, self.lead(variant), &members);
                let is_early = is_plenty && drawn >= best && self.lane.running.is_some();
                let early = if is_early { EARLY } else { Micros::ZERO };
                let until = binding.until.map(|at| Time(at.0.saturating_sub(early.0)));
                let until = until.filter(|at| *at > self.now);
                Some(Pressed::Goes(Binding { drains: false, until, ..binding }))
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
