//! How much more has to be reckoned with than is foreseen, learnt from who was missed although the look ahead had found room for all.
//!
//! The look ahead plays on in expectation. What it does not know of (other programs on the same cores, runs that take twice as long now and
//! then, whoever comes in a bunch) shows in one place only: queries are late that were not to be. So with each of them
//! batches are taken to last a little longer where variants are compared, and with each that is answered in time a little less long. Then
//! queues are kept shorter by cheaper variants while that is needed, down to each query's floor, until as few are missed as are worth an accurate answer to the others.

use super::bind::admits;
use super::lanes::Batch;
use super::machine::Worker;
use crate::estimate::Moments;
use crate::query::Query;
use modelless_types::{Micros, Time};

/// With each that is missed.
const UP: f64 = 0.1;
/// It stands still where so many are missed.
const BEARABLE: f64 = 0.002;
/// However many are missed.
const MOST: f64 = 4.0;
/// While nobody is there to learn from, what was learnt fades by half in so long.
const HALF_LIFE: Micros = Micros::from_secs(60);
/// Who leaves less than so many runs of the quickest that may answer is missed by any chance, however cautious one is.
const RUNS: f64 = 3.0;

/// What is to be multiplied with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caution {
    factor: f64,
    at: Time,
}

impl Default for Caution {
    fn default() -> Self {
        Self { factor: 1.0, at: Time::ZERO }
    }
}

impl Caution {
    pub(super) fn factor(self, now: Time) -> f64 {
        let halves = (now - self.at).as_millis_f64() / HALF_LIFE.as_millis_f64();
        1.0 + (self.factor - 1.0) * libm::exp2(-halves)
    }

    fn moved(self, now: Time, by: f64) -> Self {
        Self { factor: (self.factor(now) + by).clamp(1.0, MOST), at: now }
    }

    fn missed(self, now: Time) -> Self {
        self.moved(now, UP)
    }

    fn in_time(self, now: Time) -> Self {
        self.moved(now, -UP * BEARABLE)
    }
}

impl Worker {
    /// Where variants are compared, batches are taken to last so many times as long, because of who was missed lately.
    pub fn caution(&self, now: Time) -> f64 {
        if self.config.foresight.caution { self.caution.factor(now) } else { 1.0 }
    }

    /// A query that waited here was given up, or answered too late. Nothing is learnt of a machine that stood still, where all are late
    /// whatever was chosen.
    pub(super) fn learn_missed(&mut self, now: Time, query: &Query) {
        if !self.stood_still(now, query) && self.could_be_in_time(query) {
            self.caution = self.caution.missed(now);
        }
    }

    /// What the members of a batch that ran teach.
    pub(super) fn learn_ended(&mut self, now: Time, batch: &Batch) {
        for member in batch.members.iter().filter(|member| !member.gone) {
            let query = &member.waiting.query;
            if query.best_effort || query.priority.is_spare() {
                continue;
            }
            self.learn_chance(now, batch, query);
            if now > query.deadline {
                self.learn_missed(now, query);
            } else {
                self.caution = self.caution.in_time(now);
            }
        }
    }

    fn could_be_in_time(&self, query: &Query) -> bool {
        if query.best_effort || query.priority.is_spare() {
            return false;
        }
        let bound = Moments::exactly(query.deadline - query.arrived).mean;
        let alone = self.residency.device_ids().flat_map(|device| {
            let serving = self.residency.serving(device).filter(|v| admits(&query.class, v));
            serving.map(|v| self.residency.estimate(v, 1).mean)
        });
        alone.fold(f64::INFINITY, f64::min) * RUNS <= bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(missed: u32, in_time: u32) -> Caution {
        let mut caution = Caution::default();
        (0..missed).for_each(|_| caution = caution.missed(Time::ZERO));
        (0..in_time).for_each(|_| caution = caution.in_time(Time::ZERO));
        caution
    }

    #[test]
    fn it_grows_with_who_is_missed_and_shrinks_with_who_is_not() {
        let factor = |missed, in_time| after(missed, in_time).factor(Time::ZERO);
        assert!((factor(0, 100) - 1.0).abs() < 1e-9);
        assert!((factor(10, 0) - 2.0).abs() < 1e-9);
        assert!((factor(10, 2_500) - 1.5).abs() < 1e-6, "{}", factor(10, 2_500));
        assert!((factor(500, 0) - MOST).abs() < 1e-9);
    }

    #[test]
    fn it_fades_while_nobody_comes() {
        let later = Time::ZERO + HALF_LIFE;
        assert!((after(20, 0).factor(later) - 2.0).abs() < 1e-9);
        assert!((after(20, 0).factor(later + HALF_LIFE) - 1.5).abs() < 1e-9);
    }
}
