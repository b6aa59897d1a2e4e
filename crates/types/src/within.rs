//! Latency bounds in steps, for whoever counts what is asked within them.

use crate::units::Micros;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A latency bound, rounded down to a quarter of a doubling (19 %): few enough to be counted each, and never looser than what was asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Within(u8);

/// Quarters of a doubling from one on, times 2^32, rounded up.
const QUARTERS: [u64; 4] = [1 << 32, 5_107_605_668, 6_074_001_000, 7_223_245_207];

impl Within {
    /// The step that a bound is in.
    pub fn of(bound: Micros) -> Self {
        let bound = bound.0.max(1);
        let doublings = bound.ilog2();
        let part = (u128::from(bound) << 32) >> doublings;
        let quarters = QUARTERS.iter().filter(|quarter| u128::from(**quarter) <= part).count();
        let step = doublings * 4 + u32::try_from(quarters.saturating_sub(1)).unwrap_or(0);
        Self(u8::try_from(step).unwrap_or(u8::MAX))
    }

    /// The tightest bound of the step.
    pub fn tightest(self) -> Micros {
        let least = (u128::from(QUARTERS[usize::from(self.0 % 4)]) << (self.0 / 4)).div_ceil(1 << 32);
        Micros(u64::try_from(least).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.tightest().as_millis_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_bound_is_rounded_down_by_less_than_a_fifth() {
        for bound in (1..40).flat_map(|n| [n * 7, n * 997, n * 1_234_567]) {
            let tightest = Within::of(Micros(bound)).tightest().0;
            assert!(
                tightest <= bound && (bound < 20 || bound * 10 < tightest * 12),
                "{tightest} for {bound}"
            );
        }
    }

    #[test]
    fn the_tightest_of_a_step_is_in_it_and_what_is_tighter_is_not() {
        for step in (40..140).map(Within) {
            assert_eq!(Within::of(step.tightest()), step);
            assert!(Within::of(Micros(step.tightest().0 - 1)) < step);
        }
        assert_eq!(Within::of(Micros(1_000_000)).to_string(), "881.7 ms");
    }

    #[test]
    fn whatever_is_read_is_a_bound() {
        assert_eq!(Within::of(Micros(u64::MAX)).0, 255);
        assert_eq!(Within::of(Micros(0)).tightest(), Micros(1));
        assert!(Within(255).tightest() > Micros(1 << 63));
    }
}
