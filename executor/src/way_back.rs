//! How long it takes from the end of a batch until whoever asked was told: the machine hears of it, decides what runs next, and then answers go out one by
//! one. Short, but of a bound of a third of a millisecond it is a part: so much has to be left of every bound when a batch ends, as the way back over
//! a network has to be left to gateways elsewhere.

use modelless_types::Micros;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the last one weighs.
const NEW: u64 = 16;
/// Whoever took longer was put aside meanwhile.
const MOST: Micros = Micros(100);
/// No more of a bound than this part is left for it.
const PART: u64 = 8;

/// As it was lately.
#[derive(Debug, Default)]
pub(crate) struct WayBack {
    /// In sixteenths of a microsecond.
    usual: AtomicU64,
}

impl WayBack {
    /// Whoever was told last of a batch was told after so long. Of two that are told at once one may be forgotten.
    pub(crate) fn took(&self, time: Micros) {
        let usual = self.usual.load(Ordering::Relaxed);
        let took = time.min(MOST).0;
        self.usual.store(usual - usual / NEW + took, Ordering::Relaxed);
    }

    /// What is left of a bound if the way back is kept free.
    pub(crate) fn before(&self, bound: Micros) -> Micros {
        let usual = Micros(self.usual.load(Ordering::Relaxed).div_ceil(NEW));
        bound.saturating_sub(usual.min(Micros(bound.0 / PART)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_left_of_a_bound_and_never_much_of_a_tight_one() {
        let way = WayBack::default();
        assert_eq!(way.before(Micros(400)), Micros(400), "nothing is known");
        (0..500).for_each(|_| way.took(Micros(20)));
        let left = way.before(Micros(400)).0;
        assert!((379..=381).contains(&left), "{left}");
        assert_eq!(way.before(Micros(80)), Micros(70));
        assert_eq!(way.before(Micros::ZERO), Micros::ZERO);
    }

    #[test]
    fn one_who_was_put_aside_hardly_counts() {
        let way = WayBack::default();
        (0..500).for_each(|_| way.took(Micros(10)));
        way.took(Micros::from_secs(60));
        assert!(way.before(Micros(1_000)) >= Micros(983));
    }
}
