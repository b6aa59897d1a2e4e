//! What live batches teach about the profiles, and how it fades.

use super::lanes::{Batch, Spent};
use super::machine::Worker;
use crate::estimate::{Moments, RunModel};
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, Time, VariantId};

/// How long a correction stands without being seen again before it fades a step.
const FADE_EVERY: Micros = Micros::from_secs(1);

/// How often it is worked out what variants have in common, while batches end.
const LEND_EVERY: Micros = Micros::from_millis(50);

/// The weight of the last batch in what is known of handing over: more than it has in a correction, so that of lone batches,
/// which do not tell one from the other, the smaller share goes to the model.
const NEW: f64 = 1.0 / 8.0;
/// Handing over takes no longer than this, in microseconds: what does is slowness of the model.
const MOST: f64 = 50.0;

/// How long it takes until a lane that has nothing to do runs what it is given: the same for a batch of any size, so it is
/// learnt beside the profile's correction, which is a ratio. As a part of that it would make large batches seem too slow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handover(f64);

impl Handover {
    #[must_use]
    fn observe(self, over: f64) -> Self {
        Self(self.0 + NEW * (over.clamp(0.0, MOST) - self.0))
    }

    pub(super) fn moments(self) -> Moments {
        Moments { mean: self.0, var: 0.0 }
    }
}

impl Worker {
    /// What was seen corrects the profile.
    pub(super) fn learn(&mut self, now: Time, device: DeviceIx, batch: &Batch, spent: Spent) {
        let size = u32::try_from(batch.members.len()).unwrap_or(u32::MAX);
        self.note_company(now, batch, spent.took);
        let handover = &mut self.handover;
        let lesson = |run: &mut RunModel| {
            run.judge(spent.took > batch.runs_at_most());
            let took = if spent.idle_before {
                let over = Moments::exactly(spent.took).mean - run.estimate(size).mean;
                *handover = handover.observe(over);
                spent.took.saturating_sub(handover.moments().mean())
            } else {
                spent.took
            };
            run.observe(size, took);
            (run.correction, took)
        };
        let threads = self.residency.variant(batch.variant).map_or(1, |variant| variant.threads.max(1));
        if let Some((correction, took)) = self.residency.learn(batch.variant, lesson) {
            self.host.ran(took.0.saturating_mul(u64::from(threads)));
            self.watch(now, batch.variant, &correction);
            self.seen.insert(batch.variant, now);
            self.fade_at.get_or_insert(now + FADE_EVERY);
            if self.lent.is_none_or(|at| now - at >= LEND_EVERY) {
                self.lent = Some(now);
                self.residency.lend();
            }
        }
        self.note_ran(now, device, batch.variant);
    }

    /// Corrections that saw nothing new for a while lose a part of their weight.
    pub(super) fn fade(&mut self, now: Time) {
        if self.fade_at.is_none_or(|at| at > now) {
            return;
        }
        let since = Time(now.0.saturating_sub(FADE_EVERY.0));
        let stale = |id: &VariantId| self.seen.get(id).is_none_or(|at| *at <= since);
        let stale: Vec<VariantId> = self.residency.variants().map(|v| v.id).filter(stale).collect();
        for id in stale {
            self.unseen(id);
            if self.still_stands(now, id) {
                continue; // what slows it down is still there, so nothing says that it would be quicker by now
            }
            self.seen.remove(&id);
            self.residency.learn(id, RunModel::fade);
        }
        self.residency.lend();
        let left = self.residency.variants().any(|v| v.run.is_corrected());
        self.fade_at = left.then_some(now + FADE_EVERY);
    }
}
