//! The search for batch sizes: it ends, keeps to its bounds, and leaves no bend unseen.

use modelless_decision::search::{Bounds, Seen, Why, is_complete, next};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Measures as the search says, with a curve and noise in place of a machine; what it asked for, in order.
struct Bench<'a> {
    curve: &'a dyn Fn(u32) -> f64,
    /// The batch that cannot be run.
    breaks: u32,
    noise: Vec<f64>,
    asked: Vec<(u32, Why)>,
    series: BTreeMap<u32, Vec<f64>>,
    spent_us: f64,
}

impl<'a> Bench<'a> {
    fn new(curve: &'a dyn Fn(u32) -> f64) -> Self {
        let (asked, series) = (Vec::new(), BTreeMap::new());
        Self { curve, breaks: u32::MAX, noise: vec![0.0], asked, series, spent_us: 0.0 }
    }

    fn seen(&self) -> Vec<Seen> {
        let seen = |(batch, series): (&u32, &Vec<f64>)| {
            let mut sorted = series.clone();
            sorted.sort_by(f64::total_cmp);
            let mean_us = sorted[(sorted.len() - 1) / 2];
            let apart = (sorted[sorted.len() - 1] - sorted[0]) / mean_us;
            let rounds = u32::try_from(series.len()).expect("few series");
            Seen { batch: *batch, mean_us, apart, rounds, samples: rounds * 10 }
        };
        self.series.iter().map(seen).collect()
    }

    fn run(&mut self, mut bounds: Bounds) -> Bounds {
        let budget = bounds.left_us;
        while let Some((batch, why)) = next(&self.seen(), &bounds) {
            self.asked.push((batch, why));
            assert!(self.asked.len() < 600, "it does not end: {:?}", self.asked);
            if batch >= self.breaks {
                assert!(bounds.ended.is_none_or(|ended| batch < ended), "it tries again what failed");
                bounds.ended = Some(batch);
                continue;
            }
            let noise = self.noise[self.asked.len() % self.noise.len()];
            let took = (self.curve)(batch) * (1.0 + noise);
            self.series.entry(batch).or_default().push(took);
            self.spent_us += took * modelless_decision::search::RUNS;
            bounds.left_us = budget.map(|budget| budget - self.spent_us);
        }
        bounds
    }

    fn sizes(&self) -> Vec<u32> {
        self.series.keys().copied().collect()
    }

    /// By how much a straight line through what was measured misses the curve, at worst.
    fn worst(&self, max_batch: u32) -> f64 {
        let seen = self.seen();
        let off = |batch: u32| {
            let at = seen.partition_point(|one| one.batch < batch);
            if seen.get(at).is_some_and(|one| one.batch == batch) {
                return 0.0;
            }
            let (low, high) = (seen[at - 1], seen[at]);
            let share = f64::from(batch - low.batch) / f64::from(high.batch - low.batch);
            let predicted = low.mean_us + share * (high.mean_us - low.mean_us);
            (predicted - (self.curve)(batch)).abs() / (self.curve)(batch)
        };
        (1..=max_batch).map(off).fold(0.0, f64::max)
    }
}

fn bounds(max_batch: u32) -> Bounds {
    Bounds { max_batch, fixed: None, ended: None, left_us: None }
}

#[test]
fn a_straight_line_takes_few_sizes() {
    let curve = |batch: u32| 5_000.0 * f64::from(batch);
    let mut bench = Bench::new(&curve);
    bench.run(bounds(64));
    assert_eq!(bench.sizes(), [1, 2, 4, 34, 64], "throughput never grew, so only the limit is looked at");
    assert!(bench.worst(64) < 1e-9);
}

#[test]
fn throughput_that_grows_is_followed_to_the_limit() {
    let curve = |batch: u32| 10_000.0 + 100.0 * f64::from(batch);
    let mut bench = Bench::new(&curve);
    bench.run(bounds(48));
    assert_eq!(bench.sizes(), [1, 2, 4, 8, 16, 32, 40, 48]);
    assert!(bench.asked.iter().all(|(_, why)| *why != Why::Bend));
}

#[test]
fn a_step_is_found_to_the_item() {
    for step in [3, 7, 9, 21, 30] {
        let curve =
            move |batch: u32| 1_000.0 + 50.0 * f64::from(batch) + if batch >= step { 4_000.0 } else { 0.0 };
        let mut bench = Bench::new(&curve);
        bench.run(bounds(32));
        assert!(bench.worst(32) < 0.25, "step at {step}: {:?} {}", bench.sizes(), bench.worst(32));
        assert!(bench.sizes().len() <= 14, "{:?}", bench.sizes());
    }
}

#[test]
fn where_memory_ends_it_goes_no_further() {
    let curve = |batch: u32| 10_000.0 + 100.0 * f64::from(batch);
    for breaks in [2, 3, 5, 20, 31, 32] {
        let mut bench = Bench { breaks, ..Bench::new(&curve) };
        let after = bench.run(bounds(32));
        let largest = *bench.sizes().last().expect("at least one");
        assert!(after.ended.is_some() && largest < breaks, "{:?}", bench.sizes());
        assert!(breaks - largest <= 1 + largest / 2, "it stopped too early: {largest} of {breaks}");
        let failures = bench.asked.iter().filter(|(batch, _)| *batch >= breaks).count();
        assert!(failures <= 4, "each one costs a process: {failures}");
    }
}

#[test]
fn what_only_runs_full_is_measured_at_one_and_full() {
    let mut bench = Bench::new(&|_| 8_000.0);
    bench.run(Bounds { fixed: Some(8), ..bounds(32) });
    assert_eq!(bench.sizes(), [1, 8]);
}

#[test]
fn a_size_that_was_unsteady_is_measured_more_often() {
    let curve = |batch: u32| 1_000.0 + 900.0 * f64::from(batch);
    let mut steady = Bench::new(&curve);
    steady.run(bounds(8));
    let mut noisy = Bench { noise: vec![0.0, 0.3, 0.05, 0.6, 0.0], ..Bench::new(&curve) };
    noisy.run(bounds(8));
    let rounds = |bench: &Bench<'_>| bench.seen().iter().skip(1).map(|one| one.rounds).max();
    assert!(rounds(&steady) == Some(3) && rounds(&noisy) > Some(3));
}

#[test]
fn without_time_it_is_incomplete_and_says_so() {
    let curve = |batch: u32| 10_000.0 * f64::from(batch);
    let mut bench = Bench::new(&curve);
    let after = bench.run(Bounds { left_us: Some(900_000.0), ..bounds(32) });
    assert!(!is_complete(&bench.seen(), &after));
    assert_eq!(bench.asked[0], (1, Why::Bracket), "one at least, else there is no profile");
    let mut bench = Bench::new(&curve);
    let after = bench.run(bounds(32));
    assert!(is_complete(&bench.seen(), &after));
}

proptest! {
    #[test]
    fn it_ends_within_its_bounds_whatever_it_sees(
        max_batch in 1..300_u32,
        breaks in prop::option::of(2..300_u32),
        budget in prop::option::of(1e3..1e8_f64),
        base in 10.0..1e5_f64,
        each in 0.0..1e4_f64,
        bend in 1..300_u32,
        noise in prop::collection::vec(0.0..1.5_f64, 1..40),
    ) {
        let curve = move |batch: u32| {
            base + each * f64::from(batch) + if batch > bend { 3.0 * base } else { 0.0 }
        };
        let mut bench = Bench { breaks: breaks.unwrap_or(u32::MAX), noise, ..Bench::new(&curve) };
        let after = bench.run(Bounds { left_us: budget, ..bounds(max_batch) });
        prop_assert!(bench.sizes().iter().all(|batch| (1..=max_batch).contains(batch)));
        prop_assert_eq!(bench.sizes()[0], 1);
        prop_assert!(bench.series.values().all(|series| series.len() <= 15));
        let ladder = usize::try_from(max_batch.ilog2()).expect("a small number") + 2;
        prop_assert!(bench.sizes().len() <= ladder + 8 + 4);
        if let Some(budget) = budget {
            // A series costs what its size took before, so only noise and the very first go beyond.
            prop_assert!(bench.spent_us <= 2.5 * budget + 25.0 * curve(1) , "{} of {budget}", bench.spent_us);
        } else {
            prop_assert!(is_complete(&bench.seen(), &after));
        }
    }

    #[test]
    fn lines_with_an_overhead_are_predicted_everywhere(
        max_batch in 2..128_u32, base in 0.0..1e5_f64, each in 1.0..1e5_f64,
    ) {
        let curve = move |batch: u32| base + each * f64::from(batch);
        let mut bench = Bench::new(&curve);
        bench.run(bounds(max_batch));
        prop_assert!(bench.worst(max_batch) < 0.01);
        prop_assert!(bench.sizes().len() <= 10);
    }
}
