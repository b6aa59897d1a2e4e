//! How long it takes from the end of a batch until whoever asked was told: the machine hears of it, decides what runs next, and then answers go out one by
//! one. Short, but of a bound of a third of a millisecond it is a part: so much has to be left of every bound when a batch ends, as the way back over
//! a network has to be left to gateways elsewhere.

use modelless_types::{Micros, Time};
use std::sync::{Mutex, PoisonError};

/// What the last one weighs.
const NEW: u64 = 16;
/// Whoever took longer was put aside meanwhile.
const MOST: Micros = Micros(100);
/// No more of a bound than this part is left for it.
const PART: u64 = 8;
/// What was seen longer ago counts no more: where it had everybody refused nothing else would ever be seen.
const KNOWN: Micros = Micros::from_secs(1);

#[derive(Debug, Default)]
struct Usual {
    sixteenths_us: u64,
    at: Time,
}

/// As it was lately.
#[derive(Debug, Default)]
pub(crate) struct WayBack(Mutex<Usual>);

impl WayBack {
    /// Whoever was told last of a batch was told after so long.
    pub(crate) fn took(&self, now: Time, time: Micros) {
        let mut usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = usual.sixteenths_us;
        *usual = Usual { sixteenths_us: known - known / NEW + time.min(MOST).0, at: now };
    }

    /// What is left of bounds if the way back is kept free.
    pub(crate) fn before<const N: usize>(&self, now: Time, bounds: [Micros; N]) -> [Micros; N] {
        let usual = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = if now - usual.at < KNOWN { usual.sixteenths_us } else { 0 };
        let usual = Micros(known.div_ceil(NEW));
        bounds.map(|bound| bound.saturating_sub(usual.min(Micros(bound.0 / PART))))
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
    fn what_is_usual_is_left_of_a_bound_and_never_much_of_a_tight_one() {
        let way = WayBack::default();
        assert_eq!(left(&way, NOW, 400), 400, "nothing is known");
        (0..500).for_each(|_| way.took(NOW, Micros(20)));
        assert!((379..=381).contains(&left(&way, NOW, 400)));
        assert_eq!(left(&way, NOW, 80), 70);
        assert_eq!(left(&way, NOW, 0), 0);
        assert_eq!(left(&way, NOW + KNOWN, 400), 400, "long ago");
    }

    #[test]
    fn one_who_was_put_aside_hardly_counts() {
        let way = WayBack::default();
        (0..500).for_each(|_| way.took(NOW, Micros(10)));
        way.took(NOW, Micros::from_secs(60));
        assert!(left(&way, NOW, 1_000) >= 983);
    }
}
