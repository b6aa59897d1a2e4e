//! What a variant takes, worked out once for the sizes of batches that decisions ask for again and again: a figure changes only when a
//! batch has ended, and between two ends it is asked for hundreds of times.

use super::api::WorkerVariant;
use crate::estimate::{Moments, RunModel};
use alloc::vec::Vec;

/// Larger batches than this are worked out when they are asked for.
const KEPT: u32 = 64;

/// See above.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// The batch that takes the least device time per query.
    best: u32,
    /// Device time per query in that batch.
    batched: Moments,
    /// Of a batch of one, of two, and so on, as the profile has it.
    profiled: Vec<Moments>,
    /// The same as it was seen to be.
    of: Vec<Moments>,
}

impl Times {
    pub(super) fn new(variant: &WorkerVariant) -> Self {
        let sizes = 1..=variant.max_batch.clamp(1, KEPT);
        let profiled: Vec<Moments> = sizes.map(|batch| variant.run.uncorrected(batch)).collect();
        let of = Vec::with_capacity(profiled.len());
        let mut times = Self { best: 1, batched: Moments::ZERO, profiled, of };
        times.learn(variant);
        times
    }

    /// What is known of a variant changed, but for its profile.
    pub(super) fn learn(&mut self, variant: &WorkerVariant) {
        let run = &variant.run;
        self.of.clear();
        self.of.extend(run.estimates_from(&self.profiled));
        debug_assert!(
            (1..).zip(&self.of).all(|(batch, of)| *of == run.estimate(batch)),
            "kinds of sizes differ"
        );
        self.best = run.best_batch_of(variant.max_batch, |batch| self.estimate(run, batch));
        self.batched = self.estimate(run, self.best).times(1.0 / f64::from(self.best));
    }

    /// Device time per query of the batch that pays, or of one alone where batches gain nothing.
    pub(super) fn batched(&self) -> Moments {
        self.batched
    }

    /// The batch that pays, if none is larger than `largest`; `max_batch` is the variant's own.
    pub(super) fn best(&self, run: &RunModel, largest: u32, max_batch: u32) -> u32 {
        if largest >= max_batch { self.best } else { run.best_batch(largest) }
    }

    /// What [`RunModel::estimate`] says.
    pub(super) fn estimate(&self, run: &RunModel, batch: u32) -> Moments {
        let kept = usize::try_from(batch.max(1) - 1).ok().and_then(|at| self.of.get(at));
        kept.copied().unwrap_or_else(|| run.estimate(batch))
    }
}
