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
//!   would be dearer, it gives way.

use super::bind::{Binding, Draw, admits};
use super::level::Level;
use super::machine::Worker;
use super::queue::Waiting;
use super::reason::Reason;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::BTreeMap;
use modelless_types::{Batching, DeviceIx, Priority, VariantId};

/// A batch is as good as whole from this share on.
const WHOLE: (usize, usize) = (9, 10);
/// No batch takes longer than this part of the bound of its first: as long again it may have waited.
const LONGEST: f64 = 0.5;
/// A smaller batch that takes at most so many times as much for each costs those behind it little.
const EVEN: f64 = 1.1;

/// What becomes of the first in line.
pub(super) enum Pressed {
    /// This.
    Goes(Binding),
    /// It gives way to those behind it.
    GivesWay,
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

    /// Whether more is asked of a device than it can do.
    pub(super) fn is_pressed(&self, device: DeviceIx) -> bool {
        self.levels.get(&device).is_some_and(Level::is_pressed)
    }

    /// Whether a class is answered by a variant while a device is pressed.
    pub(super) fn is_pressed_by(&self, device: DeviceIx, class: &Class, variant: Option<VariantId>) -> bool {
        let by = self.levels.get(&device).and_then(|level| level.pressed(class));
        by.is_some() && by == variant
    }
}

impl Draw<'_> {
    /// What becomes of the head while the device is pressed; `None` where that says nothing of it.
    pub(super) fn pressed(&self) -> Option<Pressed> {
        let query = &self.head.query;
        let apart = self.head.alone || query.best_effort || query.max_cost.is_some();
        if apart || query.priority == Priority::RESERVED || self.worker.queue.mixed_beside_reserved() {
            return None;
        }
        let id = self.level?.pressed(&query.class)?;
        let variant = *self.admitted().find(|v| v.id == id)?;
        if self.worker.batching(variant) != Batching::Deadline || self.worker.apart(variant) {
            return None;
        }
        let with = |w: &&&Waiting| admits(&w.query.class, variant) && self.allows(&w.query.class, variant);
        let there = 1 + self.others().iter().filter(with).count();
        let largest = u32::try_from(self.worker.largest(self.device, variant)).unwrap_or(u32::MAX);
        let best = self.worker.residency.best_batch(variant, largest);
        let most = u32::try_from(there).unwrap_or(u32::MAX).min(best);
        let longest = Moments::exactly(query.deadline - query.arrived).mean * LONGEST;
        let takes = self.worker.residency.takes(variant);
        let most = (2..=most).rev().find(|n| takes(*n).mean <= longest).unwrap_or(1);
        let each = |n: u32| takes(n).mean / f64::from(n);
        let members = self.draw(variant, most as usize);
        let drawn = members.as_ref().map_or(0, |members| u32::try_from(members.len()).unwrap_or(u32::MAX));
        match members {
            Some(members) if drawn == most || each(drawn) <= each(most) * EVEN => {
                let binding = self.bind(variant, Reason::Affordable, &members);
                Some(Pressed::Goes(Binding { drains: false, ..binding }))
            }
            Some(_) | None => Some(Pressed::GivesWay),
        }
    }
}
