//! What live batches teach about the profiles, and how it fades.

use super::lanes::Batch;
use super::machine::Worker;
use crate::estimate::Correction;
use alloc::vec::Vec;
use modelless_types::{Micros, Time, VariantId};

/// How long a correction stands without being seen again before it fades a step.
const FADE_EVERY: Micros = Micros::from_secs(1);

impl Worker {
    /// What was seen corrects the profile.
    pub(super) fn learn(&mut self, now: Time, batch: &Batch, took: Micros) {
        let size = u32::try_from(batch.members.len()).unwrap_or(u32::MAX);
        if let Some(variant) = self.residency.variant_mut(batch.variant) {
            let predicted = variant.run.uncorrected(size);
            variant.run.correction = variant.run.correction.observe(took, predicted);
            self.seen.insert(batch.variant, now);
            self.fade_at.get_or_insert(now + FADE_EVERY);
        }
        self.residency.compare(&mut self.actions);
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
            self.seen.remove(&id);
            if let Some(variant) = self.residency.variant_mut(id) {
                variant.run.correction = variant.run.correction.faded();
            }
        }
        self.residency.compare(&mut self.actions);
        let left = self.residency.variants().any(|v| v.run.correction != Correction::NONE);
        self.fade_at = left.then_some(now + FADE_EVERY);
    }
}
