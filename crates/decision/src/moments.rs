//! A duration that is not certain, and what is certain of it.

use core::ops::{Add, AddAssign};
use modelless_types::Micros;
use serde::{Deserialize, Serialize};

/// Standard deviations between the mean and the 99th percentile of a normal distribution.
pub(crate) const Z99: f64 = 2.326_347_9;
/// The same for the 90th.
const Z90: f64 = 1.281_551_6;

/// A duration that is not certain.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Moments {
    /// Microseconds.
    pub mean: f64,
    /// Square microseconds.
    pub var: f64,
}

impl Moments {
    /// Takes no time.
    pub const ZERO: Self = Self { mean: 0.0, var: 0.0 };

    /// Takes exactly this long.
    #[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
    pub fn exactly(time: Micros) -> Self {
        Self { mean: time.0 as f64, var: 0.0 }
    }

    /// `n` independent ones after each other.
    #[must_use]
    pub fn times(self, n: f64) -> Self {
        Self { mean: self.mean * n, var: self.var * n }
    }

    /// What is left after `elapsed` has passed; the uncertainty stays.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
    pub fn less(self, elapsed: Micros) -> Self {
        let mean = self.mean - elapsed.0 as f64;
        if mean > 0.0 { Self { mean, var: self.var } } else { Self::ZERO }
    }

    /// The 99th percentile, rounded up.
    pub fn p99(self) -> Micros {
        to_micros(self.mean + Z99 * libm::sqrt(self.var))
    }

    /// The mean, rounded up.
    pub fn mean(self) -> Micros {
        to_micros(self.mean)
    }

    /// Whether the 99th percentile is at most `bound`, without taking a root: the routing scan asks this of every
    /// node.
    pub(crate) fn within(self, bound: f64) -> bool {
        let room = bound - self.mean;
        room >= 0.0 && Z99 * Z99 * self.var <= room * room
    }

    /// Whether the 90th percentile is at most `bound`.
    pub(crate) fn mostly_within(self, bound: f64) -> bool {
        let room = bound - self.mean;
        room >= 0.0 && Z90 * Z90 * self.var <= room * room
    }

    /// The 99th percentile as a number, for comparisons inside one decision.
    pub(crate) fn p99_f64(self) -> f64 {
        self.mean + Z99 * libm::sqrt(self.var)
    }
}

impl Add for Moments {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self { mean: self.mean + o.mean, var: self.var + o.var }
    }
}

impl AddAssign for Moments {
    fn add_assign(&mut self, o: Self) {
        *self = *self + o;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn to_micros(us: f64) -> Micros {
    Micros(libm::ceil(us) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_take_the_percentile_last() {
        let stage = Moments { mean: 100.0, var: 100.0 };
        let four = stage.times(4.0);
        assert!(four.p99().0 < 4 * stage.p99().0);
        assert_eq!(four.p99(), Micros(447)); // 400 + 2.3263 * 20, rounded up
        assert!(four.within(447.0) && !four.within(446.0) && !four.within(100.0));
        assert!(four.mostly_within(426.0) && !four.mostly_within(425.0)); // 400 + 1.2816 * 20
    }
}
