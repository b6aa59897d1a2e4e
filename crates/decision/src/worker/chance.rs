//! How much time has to be to spare where nobody is in time for certain, learnt from such answers that came late.
//!
//! Who is not in time for certain, even alone, is answered all the same if it more likely than not is: a probable answer is worth more than a
//! sure refusal. Each of these is a gamble, though, and where queues are long there are many of them: then it is they who come late, and
//! whoever waits for an answer would rather have heard "no" in time. So with each that was lost a little more has to be to spare for
//! the next, and with each answer in time, of whatever kind, a little less, until as few are late as are worth it. Where few are late
//! nobody is refused for this.
//!
//! It is a share of what one query takes by itself, and not of how much that scatters: scatter is known from what ran, so that whoever
//! refuses because of it may never learn that it is over. And a device that has nothing to do takes every chance.

use super::lanes::{Batch, Lane};
use super::machine::Worker;
use crate::estimate::Moments;

/// With each that was lost.
const UP: f64 = 0.02;
/// It stands still where so many of all that are answered are late for this.
const BEARABLE: f64 = 0.001;
/// However many are lost.
const MOST: f64 = 1.0;

/// How much has to be to spare, as a share of what one query takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sureness(f64);

impl Sureness {
    fn moved(self, by: f64) -> Self {
        Self((self.0 + by).clamp(0.0, MOST))
    }

    fn lost(self) -> Self {
        self.moved(UP)
    }

    fn in_time(self) -> Self {
        self.moved(-UP * BEARABLE)
    }

    /// Whether who can start then and takes so long alone leaves enough to spare.
    pub(super) fn allows(self, start: Moments, alone: Moments, slack: f64) -> bool {
        start.mean + alone.mean * (1.0 + self.0) <= slack
    }
}

impl Worker {
    /// As sure as one has to be now before a chance is taken on a lane.
    pub(super) fn sureness(&self, lane: &Lane) -> Sureness {
        let heeded = self.config.foresight.chances && lane.running.is_some();
        if heeded { self.sureness } else { Sureness::default() }
    }

    /// A member that is waited for was answered.
    pub(super) fn learn_chance(&mut self, batch: &Batch, in_time: bool) {
        if in_time {
            self.sureness = self.sureness.in_time();
        } else if batch.chance {
            self.sureness = self.sureness.lost();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lost: u32, in_time: u32) -> Sureness {
        let mut sureness = Sureness::default();
        (0..lost).for_each(|_| sureness = sureness.lost());
        (0..in_time).for_each(|_| sureness = sureness.in_time());
        sureness
    }

    #[test]
    fn it_is_at_rest_where_one_in_a_thousand_is_lost() {
        assert!((after(5, 0).0 - 0.1).abs() < 1e-9);
        assert!((after(5, 1_000).0 - 0.08).abs() < 1e-9);
        assert!(after(5, 1_000_000).0.abs() < 1e-9);
    }

    #[test]
    fn what_one_takes_is_always_enough() {
        let (start, alone) = (Moments { mean: 500.0, var: 1e6 }, Moments { mean: 1_000.0, var: 1e6 });
        assert!(
            after(1_000, 0).allows(start, alone, 2_500.0) && !after(1_000, 0).allows(start, alone, 2_499.0)
        );
        assert!(after(0, 9).allows(start, alone, 1_500.0) && !after(0, 9).allows(start, alone, 1_499.0));
    }
}
