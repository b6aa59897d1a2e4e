//! How much time has to be to spare where nobody is in time for certain, learnt from such answers that came late.
//!
//! Who is not in time for certain, even alone, is answered all the same if it more likely than not is: a probable answer is worth more than a
//! sure refusal. Each of these is a gamble, though, and where queues are long there are many of them: then it is they who come late, and
//! whoever waits for an answer would rather have heard "no" in time. So with each that was lost a little more has to be to spare for
//! the next, and with each answer in time, of whatever kind, a little less, until as few are late as are worth it. Where few are late
//! nobody is refused for this, and what was learnt fades while nobody comes.
//!
//! It is a share of what one query takes by itself, and not of how much that scatters: scatter is known from what ran, so that whoever
//! refuses because of it may never learn that it is over. Where nothing runs before it every chance is taken.

use super::api::WorkerVariant;
use super::bind::{Binding, Draw, slack};
use super::lanes::Batch;
use super::machine::Worker;
use crate::query::Query;
use modelless_types::{Micros, Time};

/// With each that was lost.
const UP: f64 = 0.02;
/// It stands still where so many of all that are answered are late for this.
const BEARABLE: f64 = 0.0005;
/// However many are lost.
const MOST: f64 = 1.0;
/// What was learnt fades by half in so long.
const HALF_LIFE: Micros = Micros::from_secs(60);

/// How much has to be to spare, as a share of what one query takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sureness {
    share: f64,
    at: Time,
}

impl Sureness {
    fn share(self, now: Time) -> f64 {
        let halves = (now - self.at).as_millis_f64() / HALF_LIFE.as_millis_f64();
        self.share * libm::exp2(-halves)
    }

    fn moved(self, now: Time, by: f64) -> Self {
        Self { share: (self.share(now) + by).clamp(0.0, MOST), at: now }
    }

    fn lost(self, now: Time) -> Self {
        self.moved(now, UP)
    }

    fn in_time(self, now: Time) -> Self {
        if self.share > 0.0 { self.moved(now, -UP * BEARABLE) } else { self }
    }
}

impl Worker {
    /// A member that is waited for was answered. Nothing is learnt of a machine that stood still.
    pub(super) fn learn_chance(&mut self, now: Time, batch: &Batch, query: &Query) {
        if now <= query.deadline {
            self.sureness = self.sureness.in_time(now);
        } else if batch.chance && !self.stood_still(now, query) {
            self.sureness = self.sureness.lost(now);
        }
    }
}

impl Draw<'_> {
    /// Whether the head alone, behind another, is not in time for certain.
    pub(super) fn is_chance(&self, variant: &WorkerVariant) -> bool {
        let ends = self.start(variant) + self.worker.residency.estimate(variant, 1);
        self.worker.before(self.lane, variant).is_some() && !ends.within(slack(self.now, self.head))
    }

    /// Whether it would be a chance with too little to spare.
    pub(super) fn is_too_unsure(&self, binding: &Binding) -> bool {
        let Some(variant) = self.worker.residency.variant(binding.variant).filter(|_| binding.chance) else {
            return false;
        };
        let chances = self.worker.config.foresight.chances;
        let share = if chances { self.worker.sureness.share(self.now) } else { 0.0 };
        let alone = self.worker.residency.estimate(variant, 1).mean;
        self.start(variant).mean + alone * (1.0 + share) > slack(self.now, self.head)
    }

    /// Whether the head may yet go elsewhere here: where something is free sooner, or on a server.
    pub(super) fn has_another_place(&self, binding: &Binding) -> bool {
        let Some(variant) = self.worker.residency.variant(binding.variant) else { return false };
        let sooner = self.worker.soonest(self.now, self.device).mean < self.start(variant).mean;
        (sooner && self.in_time_elsewhere()) || self.in_time_apart()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000);

    fn after(lost: u32, in_time: u32) -> Sureness {
        let mut sureness = Sureness::default();
        (0..lost).for_each(|_| sureness = sureness.lost(NOW));
        (0..in_time).for_each(|_| sureness = sureness.in_time(NOW));
        sureness
    }

    #[test]
    fn it_is_at_rest_where_one_in_two_thousand_is_lost() {
        let share = |lost, in_time| after(lost, in_time).share(NOW);
        assert!((share(5, 0) - 0.1).abs() < 1e-9);
        assert!((share(5, 1_000) - 0.09).abs() < 1e-9);
        assert!(share(5, 1_000_000).abs() < 1e-9);
        assert!((share(1_000, 0) - MOST).abs() < 1e-9);
    }

    #[test]
    fn it_fades_while_nobody_comes() {
        assert!((after(5, 0).share(NOW + HALF_LIFE) - 0.05).abs() < 1e-9);
    }
}
