//! What a query costs besides its node: reading it, handing it over, waking up for its answer.
//!
//! No node can measure that, so the gateway does, as mean and variance, and adds it to every node's round trip. Until
//! something was seen a guess stands in, told in `docs/defaults.md`.

use modelless_decision::Moments;
use modelless_types::Micros;
use std::sync::{Mutex, PoisonError};

/// The guess: 150 us, give or take 50.
const GUESS: Moments = Moments { mean: 150.0, var: 2_500.0 };
/// Weight of the newest observation.
const WEIGHT: f64 = 0.02;
/// One stopped thread must not pass for the usual: more than this many times the mean counts as that.
const CLAMP: f64 = 4.0;
/// The table is made anew when the estimate moves, so it moves in steps.
const STEP_US: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct Handover(Mutex<Moments>);

impl Default for Handover {
    fn default() -> Self {
        Self(Mutex::new(GUESS))
    }
}

impl Handover {
    pub(crate) fn observe(&self, took: Micros) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = Moments::exactly(took).mean.min(known.mean * CLAMP);
        let error = seen - known.mean;
        known.mean += WEIGHT * error;
        known.var = (1.0 - WEIGHT) * (known.var + WEIGHT * error * error);
    }

    /// In steps, so that it rests when nothing much changes.
    pub(crate) fn estimate(&self) -> Moments {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let step = |x: f64, step: f64| (x / step).ceil() * step;
        let deviation = step(known.var.sqrt(), STEP_US);
        Moments { mean: step(known.mean, STEP_US), var: deviation * deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_seen_and_shrugs_off_one_stopped_thread() {
        let handover = Handover::default();
        for _ in 0..1_000 {
            handover.observe(Micros(80));
        }
        let known = handover.estimate();
        assert!((80.0..=90.0).contains(&known.mean), "{known:?}");
        handover.observe(Micros(5_000_000));
        assert!(handover.estimate().mean < 100.0, "{:?}", handover.estimate());
    }
}
