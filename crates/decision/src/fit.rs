//! From what was measured to the points that the performance model goes through: monotone, and with a 99th percentile that
//! live batches exceed about once in a hundred times.
//!
//! A larger batch never takes less time. Where a few noisy repetitions say otherwise the truth lies between, so such points
//! are pooled, each with the weight of its repetitions (the nearest monotone line by least squares). Nothing else is smoothed:
//! the model goes through its points, and the search puts them where the curve bends.
//!
//! Nor does it more seldom take long: what had one size's 99th percentile be above that of a larger one was something else that the
//! machine did while that size was timed. So none is believed to be above that of any larger size.
//!
//! Variances are of the repetitions without their stragglers, so of a machine with other things to do they promise too much.
//! A profile that drew its 99th percentiles from all sizes together ([`Detail::tail`]) has variances that lead there; of
//! older ones the variances stand.
//!
//! [`Detail::tail`]: modelless_types::Detail

use crate::estimate::{Moments, Z99};
use alloc::vec::Vec;
use modelless_types::{BatchPoint, Profile};

/// The points of a profile.
pub(crate) fn of_profile(profile: &Profile) -> Vec<(u32, Moments)> {
    monotone(&profile.latency, profile.detail.tail)
}

/// The points, and nothing said of their 99th percentiles.
pub(crate) fn of_points(points: &[BatchPoint]) -> Vec<(u32, Moments)> {
    monotone(points, false)
}

/// Points that became one, or one that is still alone.
struct Block {
    mean: f64,
    weight: f64,
    /// How many points.
    of: usize,
}

fn monotone(points: &[BatchPoint], tail: bool) -> Vec<(u32, Moments)> {
    let mut usable: Vec<&BatchPoint> = points
        .iter()
        .filter(|p| p.batch > 0 && p.mean_us.is_finite() && p.mean_us >= 0.0 && p.var_us2.is_finite())
        .collect();
    usable.sort_by_key(|point| point.batch);
    usable.dedup_by_key(|point| point.batch);
    // Pool adjacent violators.
    let mut blocks: Vec<Block> = Vec::with_capacity(usable.len());
    for point in &usable {
        let mut block = Block { mean: point.mean_us, weight: f64::from(point.samples.max(1)), of: 1 };
        while let Some(before) = blocks.pop_if(|before| before.mean > block.mean) {
            let weight = before.weight + block.weight;
            let mean = (before.mean * before.weight + block.mean * block.weight) / weight;
            block = Block { mean, weight, of: before.of + block.of };
        }
        blocks.push(block);
    }
    let means = blocks.iter().flat_map(|block| core::iter::repeat_n(block.mean, block.of));
    let mut all: Vec<(u32, Moments)> =
        usable.iter().zip(means).map(|(point, mean)| (point.batch, moments(point, mean, tail))).collect();
    let mut least = f64::INFINITY;
    for (_, Moments { mean, var }) in all.iter_mut().rev() {
        // Means rise, so that of a smaller one is never above it.
        let most = (least - *mean) / Z99;
        *var = var.min(most * most);
        // Of a point that was timed once nobody knows how long it takes at times.
        if *var > 0.0 {
            least = Moments { mean: *mean, var: *var }.p99_f64();
        }
    }
    all
}

fn moments(point: &BatchPoint, mean: f64, tail: bool) -> Moments {
    let seen = point.var_us2.max(0.0);
    // Told from the mean that it was measured with: pooling moves a point, it does not make it steadier.
    let beyond = (point.p99_us - point.mean_us) / Z99;
    let led = if tail && beyond.is_finite() && beyond > 0.0 { beyond * beyond } else { 0.0 };
    Moments { mean, var: seen.max(led) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn point(batch: u32, mean_us: f64, samples: u32) -> BatchPoint {
        BatchPoint { batch, mean_us, var_us2: 4.0, p99_us: mean_us + 100.0, samples }
    }

    #[test]
    fn what_rises_stays_as_it_was_measured() {
        let points = [point(1, 100.0, 9), point(2, 150.0, 9), point(4, 150.0, 9)];
        let means: Vec<f64> = of_points(&points).iter().map(|(_, time)| time.mean).collect();
        assert_eq!(means, [100.0, 150.0, 150.0]);
    }

    #[test]
    fn a_larger_batch_that_seemed_quicker_is_pooled_by_its_repetitions() {
        let points = [point(1, 110.0, 30), point(2, 90.0, 10), point(4, 200.0, 9)];
        let means: Vec<f64> = of_points(&points).iter().map(|(_, time)| time.mean).collect();
        assert_eq!(means, [105.0, 105.0, 200.0]);
    }

    #[test]
    fn only_percentiles_of_all_sizes_together_widen_the_variance() {
        let points = [point(1, 100.0, 9)];
        let (old, new) = (monotone(&points, false)[0].1, monotone(&points, true)[0].1);
        assert!((old.var - 4.0).abs() < 1e-9);
        assert_eq!(new.p99().0, 200);
        // A percentile below the mean says nothing.
        let odd = BatchPoint { p99_us: 10.0, ..points[0] };
        assert!((monotone(&[odd], true)[0].1.var - 4.0).abs() < 1e-9);
    }

    #[test]
    fn no_size_is_held_up_more_than_a_larger_one() {
        let p99 = |p99_us, point| BatchPoint { p99_us, ..point };
        let points = [
            p99(150.0, point(1, 100.0, 9)),
            p99(900.0, point(2, 120.0, 9)),
            p99(400.0, point(4, 200.0, 9)),
            p99(700.0, point(8, 350.0, 9)),
        ];
        let told: Vec<u64> = monotone(&points, true).iter().map(|(_, time)| time.p99().0).collect();
        assert_eq!(told, [150, 400, 400, 700]);
        // One that was timed once says nothing of that.
        let points = [point(1, 100.0, 9), p99(100.0, BatchPoint { var_us2: 0.0, ..point(2, 100.0, 1) })];
        assert_eq!(monotone(&points, true)[0].1.p99().0, 200);
    }

    proptest! {
        #[test]
        fn times_never_fall_and_stay_within_what_was_seen(
            means in prop::collection::vec((1.0..1e6_f64, 1..100_u32), 1..12),
        ) {
            let points: Vec<BatchPoint> =
                (1..).zip(&means).map(|(batch, (mean, samples))| point(batch, *mean, *samples)).collect();
            let fitted = of_points(&points);
            prop_assert_eq!(fitted.len(), points.len());
            prop_assert!(fitted.windows(2).all(|pair| pair[0].1.mean <= pair[1].1.mean));
            let least = means.iter().map(|(mean, _)| *mean).fold(f64::INFINITY, f64::min);
            let most = means.iter().map(|(mean, _)| *mean).fold(0.0, f64::max);
            prop_assert!(fitted.iter().all(|(_, time)| time.mean >= least * 0.999 && time.mean <= most * 1.001));
            // The weighted sum is kept, so nothing is made quicker or slower as a whole.
            let sum = |of: &mut dyn Iterator<Item = (f64, u32)>| of.map(|(m, w)| m * f64::from(w)).sum::<f64>();
            let before = sum(&mut means.iter().copied());
            let after = sum(&mut fitted.iter().map(|(_, t)| t.mean).zip(means.iter().map(|(_, w)| *w)));
            prop_assert!((before - after).abs() <= 1e-6 * before);
        }
    }

    #[test]
    fn unusable_points_are_left_out() {
        let nan = BatchPoint { mean_us: f64::NAN, ..point(2, 0.0, 1) };
        let zero = point(0, 5.0, 1);
        assert_eq!(of_points(&[nan, zero]), vec![]);
    }
}
