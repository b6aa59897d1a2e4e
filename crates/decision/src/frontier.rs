//! Which variants are worth having: those that no other equals or beats on every axis. The one answer to that question, for plans,
//! for what is shown, and for what a generator makes.
//!
//! Figures of time and memory scatter. What differs by less than that is taken for equal, and of equals one is enough: otherwise
//! every repetition of a measurement would find other variants worth having, each for a hundredth of a millisecond. Accuracies
//! are compared as they are, because floors are.

use crate::estimate::RunModel;
use alloc::vec::Vec;
use core::cmp::Reverse;
use modelless_types::{Accuracy, Bytes, CostPer1k, Micros, Profile};

/// Times and prices that differ by so many hundredths are equal: two measurements of one variant often do.
const TIME_PERCENT: u64 = 3;
/// Memory that differs by so many hundredths, or by so little at all, is equal: whole libraries and their heaps are in it.
const MEMORY_PERCENT: u64 = 1;
const MEMORY_LEAST: Bytes = Bytes::from_mib(1);

/// One variant on one device class, as far as choosing goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Higher is better.
    pub accuracy: Accuracy,
    /// Time of a query alone, in nanoseconds. Lower is better.
    pub latency: u64,
    /// Lower is better.
    pub cost: CostPer1k,
    /// Device time per query in its best batch, in nanoseconds. Lower is better: alone, what a batch gains does not show.
    pub work: u64,
    /// Memory of a replica. Lower is better.
    pub memory: Bytes,
}

/// A time in nanoseconds, as points have it.
pub const fn nanos(time: Micros) -> u64 {
    time.0.saturating_mul(1_000)
}

impl Point {
    /// What was measured of a variant that takes batches of so many, beside others on the same device: what they cost there
    /// goes with the time they take. Sizes between those that were timed are the performance model's, so it matters to nobody
    /// which sizes were. `None` if nothing was timed.
    pub fn of(profile: &Profile, max_batch: u32) -> Option<Self> {
        let run = RunModel::from_profile(profile)?;
        Some(Self {
            accuracy: profile.accuracy.value,
            latency: run.work(1),
            cost: CostPer1k(0),
            work: run.work(profile.largest_batch(max_batch)),
            memory: profile.memory,
        })
    }

    /// Whether it is as good on every axis, as far as measurements can tell.
    fn covers(&self, other: &Self) -> bool {
        let time = |own: u64, others: u64| own <= others.saturating_add(others / 100 * TIME_PERCENT);
        let more = Bytes(other.memory.0 / 100 * MEMORY_PERCENT).max(MEMORY_LEAST);
        self.accuracy >= other.accuracy
            && time(self.latency, other.latency)
            && time(self.cost.0, other.cost.0)
            && time(self.work, other.work)
            && self.memory <= other.memory + more
    }

    /// Whether it is at least as good on every axis by the figures themselves, and better on one.
    fn beats(&self, other: &Self) -> bool {
        let no_worse = self.accuracy >= other.accuracy
            && self.latency <= other.latency
            && self.cost <= other.cost
            && self.work <= other.work
            && self.memory <= other.memory;
        no_worse && self != other
    }
}

/// For each point, whether it is on the frontier of accuracy, latency, cost, work and memory.
pub fn frontier(points: &[Point]) -> Vec<bool> {
    dominated(points).iter().map(Option::is_none).collect()
}

/// For each point one of the frontier that is as good in everything; `None` for those of the frontier itself. Of equals the most
/// accurate stays, and then the first. No two that stay are equal: each is worse than each other one in something.
pub fn dominated(points: &[Point]) -> Vec<Option<usize>> {
    // By the figures alone first: that is transitive, so whatever is beaten is beaten by one that is not.
    let beaten: Vec<bool> =
        points.iter().map(|point| points.iter().any(|other| other.beats(point))).collect();
    let mut order: Vec<usize> = (0..points.len()).filter(|at| !beaten[*at]).collect();
    order.sort_by_key(|at| Reverse(points[*at].accuracy));
    let mut gave_way: Vec<Option<usize>> = alloc::vec![None; points.len()];
    let covering = |kept: &[usize], at: usize| {
        kept.iter().copied().find(|other| *other != at && points[*other].covers(&points[at]))
    };
    let kept = loop {
        // What is left out is covered by what stays. Were it enough that anything covers it, many small steps would be one.
        let mut kept: Vec<usize> = Vec::new();
        for &at in order.iter().filter(|at| gave_way[**at].is_none()) {
            if covering(&kept, at).is_none() {
                kept.push(at);
            }
        }
        // One that stayed because it came first may be covered by a later one, which is better in something.
        match kept.iter().find_map(|at| Some((*at, covering(&kept, *at)?))) {
            Some((at, by)) => gave_way[at] = Some(by),
            None => break kept,
        }
    };
    let by = |at: usize| {
        let mut of = at;
        while !kept.contains(&of) {
            let beating = || order.iter().copied().find(|other| points[*other].beats(&points[of]));
            match covering(&kept, of).or(gave_way[of]).or_else(beating) {
                Some(next) => of = next,
                None => break,
            }
        }
        (of != at).then_some(of)
    };
    (0..points.len()).map(by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use modelless_types::{AccuracyMeasure, BatchPoint, Provenance, StageTime};
    use proptest::prelude::*;

    fn accuracy(ppm: u32) -> Accuracy {
        Accuracy::from_ppm(ppm).expect("accuracy")
    }

    fn p(ppm: u32, us: u64, cost: u64) -> Point {
        Point {
            accuracy: accuracy(ppm),
            latency: us * 1_000,
            cost: CostPer1k(cost),
            work: us * 1_000,
            memory: Bytes::from_mib(100),
        }
    }

    #[test]
    fn what_is_beaten_on_every_axis_is_off_the_frontier() {
        let points = [
            p(900_000, 10, 10),
            p(800_000, 5, 5),
            p(850_000, 20, 20),
            p(950_000, 99, 99),
            p(840_000, 19, 19),
        ];
        assert_eq!(dominated(&points), [None, None, Some(0), None, Some(0)]);
        // Slower and dearer alone than the first, and no more accurate, but a batch of it takes less of the device.
        let batches = Point { work: 5_000, ..p(850_000, 20, 20) };
        assert_eq!(frontier(&[p(900_000, 10, 10), batches]), [true, true]);
    }

    #[test]
    fn what_needs_the_least_memory_is_worth_having_however_slow_it_is() {
        let small = Point { memory: Bytes::from_mib(20), ..p(700_000, 30, 30) };
        assert_eq!(frontier(&[p(900_000, 10, 10), small]), [true, true]);
    }

    #[test]
    fn what_differs_by_less_than_measurements_scatter_is_equal_and_of_equals_one_is_enough() {
        let base = p(900_000, 1_000, 1_000);
        for equal in [
            base,
            Point { latency: 971_000, ..base },
            Point { work: 971_000, accuracy: accuracy(899_999), ..base },
            Point { memory: Bytes(base.memory.0 - 900_000), ..base },
        ] {
            let on = frontier(&[base, equal]);
            assert_eq!(on.iter().filter(|on| **on).count(), 1, "{equal:?}: {on:?}");
        }
        for other in [
            Point { latency: 960_000, work: 1_030_000, ..base },
            Point { memory: Bytes::from_mib(98), work: 1_030_000, ..base },
            Point { accuracy: accuracy(900_001), latency: 1_040_000, ..base },
        ] {
            let found = dominated(&[base, other]);
            assert!(found == [None, None] || found == [Some(1), None], "{other:?}: {found:?}");
        }
        // As good within the scatter, and clearly better in one: the later one stays.
        let better = Point { work: 900_000, latency: 1_020_000, ..base };
        assert_eq!(dominated(&[base, better]), [Some(1), None]);
    }

    #[test]
    fn many_small_steps_are_not_one() {
        let steps: Vec<Point> =
            (0..10).map(|step| p(900_000 - step, 1_000 - 25 * u64::from(step), 1)).collect();
        let left = frontier(&steps).into_iter().filter(|on| *on).count();
        assert_eq!(left, 7, "from the first to the last it is a quarter less time");
    }

    /// Batch sizes and their means.
    fn profile(ppm: u32, times: &[(u32, f64)]) -> Profile {
        let point = |&(batch, mean_us): &(u32, f64)| BatchPoint {
            batch,
            mean_us,
            var_us2: 1.0,
            p99_us: mean_us,
            samples: 50,
        };
        let value = accuracy(ppm);
        Profile {
            device_class: String::new(),
            latency: times.iter().map(point).collect(),
            latency_provenance: Provenance::Measured,
            decode: StageTime::default(),
            prepare: StageTime::default(),
            memory: Bytes::from_mib(10),
            peak: None,
            load_time: Micros(1),
            accuracy: AccuracyMeasure {
                value,
                low: value,
                high: value,
                samples: 1,
                set: String::new(),
                provenance: Provenance::Measured,
                device_class: String::new(),
                command: String::new(),
            },
            also: Vec::new(),
            detail: modelless_types::Detail::default(),
        }
    }

    #[test]
    fn it_does_not_matter_at_which_sizes_a_variant_was_timed() {
        // One was timed at 20, the other at 16 and 24, and it takes more than twice as long at every size.
        let slow = profile(937_500, &[(1, 262.4), (8, 1_800.0), (20, 4_400.0), (32, 6_864.0)]);
        let quick = profile(940_366, &[(1, 99.1), (8, 640.0), (16, 1_240.0), (24, 1_850.0), (32, 2_396.0)]);
        let points = [&slow, &quick].map(|profile| Point::of(profile, 32).expect("it was timed"));
        assert_eq!(dominated(&points), [Some(1), None]);
        assert!(points[1].latency < points[0].latency && points[1].work < points[0].work, "{points:?}");
    }

    fn points() -> impl Strategy<Value = Vec<Point>> {
        // Small steps, so that equals, ties and chains are common.
        let one = (0..4_u32, 95..105_u64, 95..105_u64, 0..4_u64).prop_map(|(better, us, work, half)| Point {
            work: work * 1_000,
            memory: Bytes(half << 19),
            ..p(900_000 + better, us, 7)
        });
        prop::collection::vec(one, 0..12)
    }

    proptest! {
        #[test]
        fn whoever_dominates_is_of_the_frontier_and_no_two_of_it_are_equal(points in points()) {
            let found = dominated(&points);
            prop_assert!(points.is_empty() || found.iter().any(Option::is_none));
            for (at, by) in found.iter().enumerate() {
                match *by {
                    Some(by) => prop_assert!(by != at && found[by].is_none()),
                    None => for (other, _) in found.iter().enumerate().filter(|(other, by)| *other != at && by.is_none()) {
                        prop_assert!(!points[other].covers(&points[at]), "{:?} {:?}", points[other], points[at]);
                    },
                }
            }
        }

        #[test]
        fn what_another_beats_by_its_figures_is_never_on_the_frontier(points in points()) {
            for (at, on) in frontier(&points).into_iter().enumerate() {
                prop_assert!(!on || !points.iter().any(|other| other.beats(&points[at])));
            }
        }

        #[test]
        fn without_the_dominated_the_frontier_is_the_same(points in points()) {
            let on = frontier(&points);
            let left: Vec<Point> = points.iter().zip(&on).filter(|(_, on)| **on).map(|(point, _)| *point).collect();
            prop_assert!(frontier(&left).into_iter().all(|on| on));
        }
    }
}
