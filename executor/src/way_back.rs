//! How long it takes from the end of a batch until whoever asked was told: the machine hears of it, decides what runs next, and then answers go out one by
//! one. Short, but of a bound of a third of a millisecond it is a part: so much has to be left of every bound when a batch ends, as the way back over
//! a network has to be left to gateways elsewhere.

use modelless_types::{Micros, Time};
use std::sync::atomic::{AtomicU64, Ordering};

/// One in so many takes longer than what is kept free: with each that does it is so many steps more, with each other one less.
const ONE_IN: u64 = 16;
/// A step, in sixteenths of a microsecond.
const STEP: u64 = 4;
/// No more is ever kept free.
const MOST: Micros = Micros(100);
/// No more of a bound than this part is left for it.
const PART: u64 = 8;
/// What was seen longer ago counts no more: where it had everybody refused nothing else would ever be seen.
const KNOWN: Micros = Micros::from_secs(1);

/// As it was lately.
#[derive(Debug, Default)]
pub(crate) struct WayBack {
    sixteenths_us: AtomicU64,
    /// When it was seen last.
    at: AtomicU64,
}

impl WayBack {
    /// Whoever was told last of a batch was told after so long. Of two that are told at once one may be forgotten.
    pub(crate) fn took(&self, now: Time, time: Micros) {
        let before = self.sixteenths_us.load(Ordering::Relaxed);
        let longer = time.0 > before / 16;
        let after = if longer { before + STEP * (ONE_IN - 1) } else { before.saturating_sub(STEP) };
        self.sixteenths_us.store(after.min(MOST.0 * 16), Ordering::Relaxed);
        self.at.store(now.0, Ordering::Relaxed);
    }

    /// What is left of bounds if the way back is kept free.
    pub(crate) fn before<const N: usize>(&self, now: Time, bounds: [Micros; N]) -> [Micros; N] {
        let is_known = now - Time(self.at.load(Ordering::Relaxed)) < KNOWN;
        let known = if is_known { self.sixteenths_us.load(Ordering::Relaxed) } else { 0 };
        let kept = Micros(known.div_ceil(16));
        bounds.map(|bound| bound.saturating_sub(kept.min(Micros(bound.0 / PART))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(5_000_000);

    fn left(way: &WayBack, now: Time, bound: u64) -> u64 {
        way.before(now, [Micros(bound)])[0].0
    }

    #[test]
    fn what_nearly_all_take_is_left_of_a_bound_and_never_much_of_a_tight_one() {
        let way = WayBack::default();
        assert_eq!(left(&way, NOW, 400), 400, "nothing is known");
        (0..500).for_each(|at| way.took(NOW, Micros(if at % 10 == 0 { 20 } else { 10 })));
        assert!((375..=382).contains(&left(&way, NOW, 400)), "{}", left(&way, NOW, 400));
        assert_eq!(left(&way, NOW, 80), 70);
        assert_eq!(left(&way, NOW, 0), 0);
        assert_eq!(left(&way, NOW + KNOWN, 400), 400, "long ago");
    }

    #[test]
    fn one_who_was_put_aside_hardly_counts() {
        let way = WayBack::default();
        (0..500).for_each(|_| way.took(NOW, Micros(10)));
        way.took(NOW, Micros::from_secs(60));
        assert!(left(&way, NOW, 1_000) >= 980);
    }
}
