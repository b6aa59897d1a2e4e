//! What a query costs besides its node: reading it, handing it over, waking up for its answer.
//!
//! No node can measure that, so the gateway does, as mean and variance, and adds it to every node's round trip. Until
//! something was seen a guess stands in, told in `docs/defaults.md`. Only queries that are all of their request are looked at: those
//! of one request wait for each other. What was seen in a bad moment fades: queries that it calls impossible are refused, so they
//! could never show that it is over.

use modelless_decision::Moments;
use modelless_types::{Micros, Time};
use std::sync::{Mutex, PoisonError};

/// The guess: 150 us, give or take 50.
const GUESS: Moments = Moments { mean: 150.0, var: 2_500.0 };
/// Weight of the newest observation.
const WEIGHT: f64 = 0.02;
/// One stopped thread must not pass for the usual: more than this many times the mean counts as that.
const CLAMP: f64 = 4.0;
/// The table is made anew when the estimate moves, so it moves in steps.
const STEP_US: f64 = 10.0;
/// How long a body takes to come is its client's doing; of reading it, so much counts at most.
const READING: Micros = Micros::from_millis(1);
/// Nothing was seen for so long: what is above the guess begins to fade, and is half as much each time so long after that.
const SILENT: Micros = Micros::from_secs(1);
const FADES: Micros = Micros::from_secs(1);

#[derive(Debug)]
pub(crate) struct Handover(Mutex<Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    known: Moments,
    at: Time,
}

impl Default for Handover {
    fn default() -> Self {
        Self(Mutex::new(Seen { known: GUESS, at: Time::ZERO }))
    }
}

impl Seen {
    fn at(&self, now: Time) -> Moments {
        let known = self.known;
        let silent = (now - self.at).saturating_sub(SILENT);
        let left = 0.5_f64.powf(Moments::exactly(silent).mean / Moments::exactly(FADES).mean);
        let fade =
            |known: f64, guess: f64| if known > guess { guess + (known - guess) * left } else { known };
        Moments { mean: fade(known.mean, GUESS.mean), var: fade(known.var, GUESS.var) }
    }
}

impl Handover {
    /// Of a query that is all of its request: how long it took to be read, and what was nobody's afterwards.
    pub(crate) fn observe(&self, now: Time, reading: Micros, besides: Micros) {
        let took = reading.min(READING) + besides;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = seen.at(now);
        let error = Moments::exactly(took).mean.min(known.mean * CLAMP) - known.mean;
        known.mean += WEIGHT * error;
        known.var = (1.0 - WEIGHT) * (known.var + WEIGHT * error * error);
        *seen = Seen { known, at: now };
    }

    /// In steps, so that it rests when nothing much changes.
    pub(crate) fn estimate(&self, now: Time) -> Moments {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).at(now);
        let step = |x: f64, step: f64| (x / step).ceil() * step;
        let deviation = step(known.var.sqrt(), STEP_US);
        Moments { mean: step(known.mean, STEP_US), var: deviation * deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000_000);

    fn usual() -> Handover {
        let handover = Handover::default();
        for _ in 0..1_000 {
            handover.observe(NOW, Micros(30), Micros(50));
        }
        handover
    }

    #[test]
    fn it_follows_what_is_seen_and_shrugs_off_one_stopped_thread() {
        let handover = usual();
        let known = handover.estimate(NOW);
        assert!((80.0..=90.0).contains(&known.mean), "{known:?}");
        handover.observe(NOW, Micros(30), Micros(5_000_000));
        assert!(handover.estimate(NOW).mean < 100.0, "{:?}", handover.estimate(NOW));
    }

    #[test]
    fn who_sends_slowly_makes_nobody_else_wait_longer() {
        let handover = usual();
        for _ in 0..1_000 {
            handover.observe(NOW, Micros::from_secs(60), Micros(50));
        }
        assert!(handover.estimate(NOW).mean <= 1_060.0, "{:?}", handover.estimate(NOW));
    }

    #[test]
    fn what_is_so_all_the_time_does_not_fade_between_queries() {
        let handover = Handover::default();
        let mut now = NOW;
        for _ in 0..1_000 {
            now = now + Micros::from_millis(900);
            handover.observe(now, Micros(0), Micros(5_000));
        }
        assert!(handover.estimate(now).mean > 4_900.0, "{:?}", handover.estimate(now));
    }

    #[test]
    fn a_bad_moment_is_over_though_nothing_shows_it() {
        let handover = usual();
        for _ in 0..1_000 {
            handover.observe(NOW, Micros(30), Micros(80_000));
        }
        assert!(handover.estimate(NOW).mean > 70_000.0);
        let later = NOW + Micros::from_secs(12);
        assert!(handover.estimate(later).mean < 200.0, "{:?}", handover.estimate(later));
        assert!(usual().estimate(later).mean < 100.0, "what is below the guess stays");
    }
}
