//! Profiles that are off for too long: marked as stale, so that the variant is measured again when there is time for it.
//!
//! Never on one bad moment, nor to and fro: a correction has to be far off for as long as [`LASTS`] to be marked, and near for
//! as long to have the mark taken back, with a gap between far and near. What was measured again and is off again, as it would be
//! if live traffic is slow for a reason that an idle node does not show, is not marked again at once, and ever more rarely.

use super::api::Action;
use super::machine::Worker;
use crate::estimate::Correction;
use modelless_types::{Micros, Time, VariantId};

/// Slower or quicker than the profile by this factor is far off.
const FAR: f64 = 1.5;
/// Within this it is near.
const NEAR: f64 = 1.25;
/// How long it has to be one or the other, seen at least every second.
const LASTS: Micros = Micros::from_secs(30);
/// Batches seen before it is said.
const SEEN: u32 = 20;
/// After it was measured again, so long passes before it may be marked again; doubled each time.
const REST: Micros = Micros::from_secs(600);
const LONGEST_REST: Micros = Micros::from_secs(24 * 3_600);

/// How a variant's profile stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drift {
    /// Marked as stale.
    marked: bool,
    /// Since when it is far off, or near while it is marked.
    since: Option<Time>,
    /// Before this it is not marked again.
    rests_until: Time,
    rest: Micros,
}

/// What follows from an observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Drifted,
    Steadied,
}

impl Drift {
    fn observe(&mut self, now: Time, correction: &Correction) -> Option<Turn> {
        let within = |bound: f64| correction.ratio <= bound && correction.ratio >= 1.0 / bound;
        let far = correction.samples >= SEEN && !within(FAR);
        let lasted = |since: Time| now - since >= LASTS;
        if self.marked {
            self.since = if within(NEAR) { self.since.or(Some(now)) } else { None };
            if self.since.is_some_and(lasted) {
                (self.marked, self.since) = (false, None);
                return Some(Turn::Steadied);
            }
        } else if within(NEAR) || now < self.rests_until {
            self.since = None;
        } else if far {
            let since = *self.since.get_or_insert(now);
            if lasted(since) {
                (self.marked, self.since) = (true, None);
                return Some(Turn::Drifted);
            }
        }
        None
    }

    /// It was measured again.
    fn measured(&mut self, now: Time) {
        self.since = None;
        if core::mem::take(&mut self.marked) {
            // What kept to its profile for much longer than it rested has no history.
            let calm = now - self.rests_until > Micros(self.rest.0.saturating_mul(4));
            self.rest = if calm || self.rest == Micros::ZERO {
                REST
            } else {
                Micros(self.rest.0.saturating_mul(2)).min(LONGEST_REST)
            };
            self.rests_until = now + self.rest;
        }
    }
}

impl Worker {
    /// A batch of it was seen.
    pub(super) fn watch(&mut self, now: Time, variant: VariantId, correction: &Correction) {
        match self.drifts.entry(variant).or_default().observe(now, correction) {
            Some(Turn::Drifted) => {
                self.actions.push_back(Action::Drifted { variant, ratio_ppm: ppm(correction.ratio) });
            }
            Some(Turn::Steadied) => self.actions.push_back(Action::Steadied { variant }),
            None => {}
        }
    }

    /// Nothing of it was seen for a while, so nothing is known to last.
    pub(super) fn unseen(&mut self, variant: VariantId) {
        if let Some(drift) = self.drifts.get_mut(&variant) {
            drift.since = None;
        }
    }

    /// These have a new profile.
    pub(super) fn start_anew(&mut self, now: Time, remeasured: &[VariantId]) {
        for variant in remeasured {
            if let Some(drift) = self.drifts.get_mut(variant) {
                drift.measured(now);
            }
        }
    }

    /// An earlier life of this node marked these: it takes that back when they keep to their profiles, and need not say it again.
    pub(super) fn marked_before(&mut self, variants: &[VariantId]) {
        for variant in variants.iter().filter(|variant| self.residency.variant(**variant).is_some()) {
            self.drifts.entry(*variant).or_default().marked = true;
        }
    }

    /// Whether its profile is marked as stale from here.
    pub fn has_drifted(&self, variant: VariantId) -> bool {
        self.drifts.get(&variant).is_some_and(|drift| drift.marked)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn ppm(ratio: f64) -> u64 {
    (ratio * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn off(ratio: f64) -> Correction {
        Correction { ratio, spread: 0.0, samples: 100 }
    }

    /// Seen every 100 ms for so long.
    fn seen(drift: &mut Drift, now: &mut Time, time: Micros, ratio: f64) -> Option<Turn> {
        let until = *now + time;
        let mut turns = None;
        while *now < until {
            *now = *now + Micros::from_millis(100);
            turns = turns.or(drift.observe(*now, &off(ratio)));
        }
        turns
    }

    #[test]
    fn what_is_off_for_long_is_marked_once_and_the_mark_goes_when_it_is_near_for_long() {
        let (mut drift, mut now) = (Drift::default(), Time(1));
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(29), 2.0), None);
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(2), 2.0), Some(Turn::Drifted));
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(600), 2.0), None);
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(29), 1.2), None);
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(2), 1.2), Some(Turn::Steadied));
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(600), 1.49), None);
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(31), 0.6), Some(Turn::Drifted));
    }

    #[test]
    fn what_is_off_again_after_it_was_measured_rests_ever_longer() {
        let (mut drift, mut now) = (Drift::default(), Time(1));
        let mut marks = Vec::new();
        for _ in 0..24 * 3_600 {
            if seen(&mut drift, &mut now, Micros::from_secs(1), 2.0) == Some(Turn::Drifted) {
                marks.push(now);
                now = now + Micros::from_secs(5);
                drift.measured(now);
            }
        }
        let between: Vec<u64> = marks.windows(2).map(|pair| (pair[1] - pair[0]).0 / 60_000_000).collect();
        assert_eq!(between, [10, 20, 40, 80, 160, 320, 640]);
        assert!(!drift.marked);
        now = now + Micros::from_secs(20 * 24 * 3_600);
        assert_eq!(seen(&mut drift, &mut now, Micros::from_secs(31), 2.0), Some(Turn::Drifted));
        drift.measured(now);
        assert_eq!(drift.rest, REST, "long ago is forgotten");
    }

    proptest! {
        #[test]
        fn whatever_is_seen_it_never_flaps(
            steps in proptest::collection::vec((0_u8..6, 0.2_f64..4.0, 1_u64..40_000), 1..400),
        ) {
            let (mut drift, mut now) = (Drift::default(), Time(1));
            let (mut turned, mut marked, mut rests) = (Time::ZERO, false, Time::ZERO);
            let (mut last, mut out) = (None, None);
            for (what, ratio, pause) in steps {
                now = now + Micros::from_millis(pause);
                // A correction that fades is told so within a second.
                if pause > 1_000 || what == 0 {
                    drift.since = None;
                    out = None;
                }
                if what == 1 {
                    drift.measured(now);
                    if marked {
                        rests = now + REST;
                    }
                    (marked, out) = (false, None);
                    continue;
                }
                let (near, far) = ((1.0 / NEAR..=NEAR).contains(&ratio), !(1.0 / FAR..=FAR).contains(&ratio));
                if if marked { !near } else { near } {
                    out = None;
                } else if marked || far {
                    out = out.or(Some(now));
                }
                let turn = drift.observe(now, &off(ratio));
                if let Some(turn) = turn {
                    prop_assert!(last != Some(turn) || turn == Turn::Drifted, "{turn:?} twice");
                    prop_assert_eq!(turn == Turn::Drifted, !marked);
                    prop_assert!(now - turned >= LASTS, "after {:?}", now - turned);
                    prop_assert!(out.is_some_and(|since| now - since >= LASTS), "{out:?} {now:?}");
                    let grounds = if marked { near } else { far && now >= rests };
                    prop_assert!(grounds, "{ratio} at {now:?}");
                    (marked, turned, last, out) = (!marked, now, Some(turn), None);
                }
                prop_assert_eq!(drift.marked, marked);
            }
        }
    }
}
