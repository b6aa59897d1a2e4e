//! Which variants nobody would ever want, because another is at least as good in everything.
//!
//! A small pure function over what was measured: accuracy, latency at every batch size, memory, size of the file. What it finds is
//! kept and marked, never removed: another machine, or tomorrow's measurement, may tell otherwise.

use modelless_types::{Profile, Variant};

/// What a variant offers. More accuracy is better, less of everything else.
#[derive(Clone, PartialEq, Debug)]
pub struct Offer {
    /// Share of right answers.
    pub accuracy: f64,
    /// Mean latency in microseconds by batch size, rising.
    pub latency_us: Vec<(u32, f64)>,
    /// Bytes in memory when loaded.
    pub memory: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Offer {
    /// What was measured of a variant whose file has so many bytes.
    pub fn of(profile: &Profile, bytes: u64) -> Self {
        Self {
            accuracy: profile.accuracy.value.as_f64(),
            latency_us: profile.latency.iter().map(|point| (point.batch, point.mean_us)).collect(),
            memory: profile.memory.0,
            bytes,
        }
    }

    /// What was measured of it on a device class, if it was.
    pub fn on(variant: &Variant, device_class: &str) -> Option<Self> {
        Some(Self::of(variant.profile_on(device_class)?, variant.artefact_bytes.0))
    }

    /// Whether it is at least as good in everything and better in something. What the other can do and this one cannot, such
    /// as a larger batch, speaks against it; what nobody measured (no number) speaks for nobody.
    fn dominates(&self, other: &Self) -> bool {
        let at = |batch: u32| self.latency_us.iter().find(|(own, _)| *own == batch).map(|(_, us)| *us);
        let mut better = self.accuracy > other.accuracy
            || self.memory < other.memory
            || self.bytes < other.bytes
            || other.latency_us.iter().all(|(batch, _)| self.latency_us.iter().any(|(own, _)| own > batch));
        if !(self.accuracy >= other.accuracy && self.memory <= other.memory && self.bytes <= other.bytes) {
            return false;
        }
        for (batch, theirs) in &other.latency_us {
            match at(*batch) {
                Some(ours) if ours <= *theirs => better |= ours < *theirs,
                Some(_) | None => return false,
            }
        }
        better
    }
}

/// For each offer, one that dominates it and is itself dominated by none; `None` for those of the frontier. Of several the first.
pub fn dominated(offers: &[Offer]) -> Vec<Option<usize>> {
    let is_beaten = |offer: &Offer| offers.iter().any(|other| other.dominates(offer));
    let frontier: Vec<bool> = offers.iter().map(|offer| !is_beaten(offer)).collect();
    let by = |offer: &Offer| {
        let best = offers.iter().zip(&frontier);
        best.enumerate().find(|(_, (other, first))| **first && other.dominates(offer)).map(|(at, _)| at)
    };
    offers.iter().map(by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(accuracy: f64, us: f64, memory: u64, bytes: u64) -> Offer {
        Offer { accuracy, latency_us: vec![(1, us), (8, 6.0 * us)], memory, bytes }
    }

    #[test]
    fn what_is_worse_in_everything_is_marked_with_what_beats_it() {
        let offers = [
            offer(0.93, 100.0, 50, 40),
            offer(0.92, 40.0, 20, 10),
            offer(0.91, 60.0, 30, 12),
            offer(0.80, 10.0, 10, 5),
        ];
        assert_eq!(dominated(&offers), [None, None, Some(1), None]);
    }

    #[test]
    fn one_axis_is_enough_to_be_wanted_and_equals_stay() {
        let base = offer(0.9, 50.0, 20, 10);
        for better in [
            Offer { accuracy: 0.91, ..offer(0.0, 90.0, 90, 90) },
            Offer { memory: 1, ..offer(0.1, 90.0, 90, 90) },
            Offer { bytes: 1, ..offer(0.1, 90.0, 90, 90) },
            Offer { latency_us: vec![(1, 90.0), (8, 10.0)], ..offer(0.1, 0.0, 90, 90) },
        ] {
            assert_eq!(dominated(&[base.clone(), better]), [None, None]);
        }
        assert_eq!(dominated(&[base.clone(), base.clone()]), [None, None]);
        let once = Offer { latency_us: vec![(1, 1.0)], ..offer(0.99, 0.0, 1, 1) };
        assert_eq!(dominated(&[base, once]), [None, None], "it cannot take eight at once");
    }

    fn offers() -> impl Strategy<Value = Vec<Offer>> {
        // Few values, so that ties and chains are common.
        let one = (0..4_u32, prop::collection::vec(0..4_u32, 1..3), 0..4_u64, 0..4_u64);
        let one = one.prop_map(|(accuracy, us, memory, bytes)| Offer {
            accuracy: f64::from(accuracy),
            latency_us: (1..).zip(us.into_iter().map(f64::from)).collect(),
            memory,
            bytes,
        });
        prop::collection::vec(one, 0..9)
    }

    proptest! {
        #[test]
        fn whoever_dominates_is_of_the_frontier_and_never_itself(offers in offers()) {
            let found = dominated(&offers);
            prop_assert_eq!(found.len(), offers.len());
            for (at, by) in found.iter().enumerate() {
                if let Some(by) = *by {
                    prop_assert!(by != at && found[by].is_none());
                    prop_assert!(offers[by].dominates(&offers[at]) && !offers[at].dominates(&offers[by]));
                }
            }
            prop_assert!(offers.is_empty() || found.iter().any(Option::is_none));
        }

        #[test]
        fn an_offer_of_the_frontier_is_dominated_by_none_and_others_by_one(offers in offers()) {
            for (at, by) in dominated(&offers).iter().enumerate() {
                let beaten = offers.iter().any(|other| other.dominates(&offers[at]));
                prop_assert_eq!(beaten, by.is_some());
            }
        }

        #[test]
        fn without_the_dominated_the_frontier_is_the_same(offers in offers()) {
            let found = dominated(&offers);
            let frontier: Vec<Offer> =
                offers.iter().zip(&found).filter(|(_, by)| by.is_none()).map(|(offer, _)| offer.clone()).collect();
            prop_assert!(dominated(&frontier).iter().all(Option::is_none));
        }

        #[test]
        fn the_order_of_offers_does_not_matter(offers in offers()) {
            let mut turned = offers.clone();
            turned.reverse();
            let marks = |offers: &[Offer]| dominated(offers).iter().map(Option::is_some).collect::<Vec<_>>();
            let mut back = marks(&turned);
            back.reverse();
            prop_assert_eq!(marks(&offers), back);
        }

        #[test]
        fn it_is_transitive(a in offers(), b in offers(), c in offers()) {
            for ((a, b), c) in a.iter().zip(&b).zip(&c) {
                if a.dominates(b) && b.dominates(c) {
                    prop_assert!(a.dominates(c));
                }
            }
        }
    }
}
