//! From series of repetitions to the points of a profile.
//!
//! Whatever else the machine does for a while slows a whole series down, so of several series of a batch size, each taken at
//! another time, the middle one counts (of an even number the quicker of the two in the middle, as others only ever slow
//! down). Repetitions far from all others are the machine's pauses: they are counted and shown, and kept out of the
//! variance.
//!
//! A 99th percentile takes hundreds of repetitions, which no single size of a large model has, so it is drawn from all of them
//! together; a size with many repetitions has more of its own in it. Some stragglers are a share of the batch's time (caches,
//! clocks), others last as long whatever the batch (the system's pauses). Which it was nobody knows, so both are asked, and
//! the one that promises less excess is believed: a pause of 4 ms makes a batch of 0.4 ms take eleven times as long, but not one
//! of 10 ms.
//!
//! All of it is timed within seconds, and a machine is some per cent quicker or slower as a whole from one minute to the next,
//! which none of the repetitions can tell. So the excess that was seen is taken together with that of [`MOMENTS`].

use crate::stats::Summary;
use modelless_decision::search::Seen;
use modelless_decision::steady::Series;
use modelless_types::{BatchPoint, Bytes, PointDetail};
use std::collections::BTreeMap;

/// Further from the median than so many deviations, and than this share of it: not the model's doing.
const FAR: (f64, f64) = (8.0, 0.5);
/// One deviation of the mean of the same batches from one run to another, as a share. In the four runs of `cargo xtask measure
/// profile-fit` that were kept when this was chosen it was 3.7 % over all sizes.
const MOMENTS: f64 = 0.035;
/// Of a normal distribution one in a hundred is so many deviations above.
const ONE_IN_A_HUNDRED: f64 = 2.326;
/// What all sizes together say weighs as much as so many of a size's own repetitions.
const COMMON: f64 = 200.0;

/// Everything that was timed of one batch size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timed {
    /// Each at another time, in microseconds.
    pub(crate) series: Vec<Vec<f64>>,
    /// The most memory its process had held when this size had first run, and none larger.
    pub(crate) peak: Option<Bytes>,
}

/// Everything that was timed, by batch size.
pub(crate) type All = BTreeMap<u32, Timed>;

/// As the search wants it.
pub(crate) fn seen(all: &All) -> Vec<Seen> {
    let one = |(batch, timed): (&u32, &Timed)| {
        let means = means(timed);
        let mean_us = middle(&means)?;
        let apart = (means.last()? - means.first()?) / mean_us.max(f64::MIN_POSITIVE);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let samples = count(timed.series.iter().map(Vec::len).sum());
        Some(Seen { batch: *batch, mean_us, apart, rounds: count(means.len()), samples })
    };
    all.iter().filter_map(one).collect()
}

/// How the series of each size compare, for whoever judges the minute.
pub(crate) fn compared(all: &All) -> Vec<Series> {
    let one = |timed: &Timed| {
        let means = means(timed);
        let count = u32::try_from(means.len()).unwrap_or(u32::MAX);
        Some(Series { quickest_us: *means.first()?, middle_us: middle(&means)?, count })
    };
    all.values().filter_map(one).collect()
}

/// As a profile holds it.
pub(crate) fn points(all: &All) -> (Vec<BatchPoint>, Vec<PointDetail>) {
    let common = common_tail(all);
    all.iter().filter_map(|(batch, timed)| point(*batch, timed, common)).unzip()
}

/// The middle value of the sorted ones; of an even number the lower.
fn middle(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// The means of its series, sorted.
fn means(timed: &Timed) -> Vec<f64> {
    let mut means: Vec<f64> = timed
        .series
        .iter()
        .filter_map(|times| Summary::of(times.clone()).map(|summary| summary.mean_us))
        .collect();
    means.sort_by(f64::total_cmp);
    means
}

/// By how much one repetition in a hundred exceeds the mean of its size, over all sizes.
#[derive(Clone, Copy)]
struct Common {
    /// Over the mean.
    times: f64,
    /// Above it, in microseconds.
    more_us: f64,
}

impl Common {
    fn p99_us(self, mean_us: f64) -> f64 {
        (mean_us * self.times).min(mean_us + self.more_us)
    }
}

/// `None` for no repetitions.
fn common_tail(all: &All) -> Option<Common> {
    let (mut shares, mut more) = (Vec::new(), Vec::new());
    for timed in all.values() {
        let Some(mean) = middle(&means(timed)).filter(|mean| *mean > 0.0) else { continue };
        shares.extend(timed.series.iter().flatten().map(|time| time / mean));
        more.extend(timed.series.iter().flatten().map(|time| time - mean));
    }
    shares.sort_by(f64::total_cmp);
    more.sort_by(f64::total_cmp);
    Some(Common { times: percentile99(&shares)?, more_us: percentile99(&more)? })
}

/// The smallest value that the next repetition is expected to exceed no more often than once in a hundred; where there are too
/// few to tell, the largest.
fn percentile99(sorted: &[f64]) -> Option<f64> {
    // Of n values each of the n + 1 places between and around them is as likely for the next one.
    let place = ((sorted.len() + 1) * 99).div_ceil(100).min(sorted.len());
    sorted.get(place.checked_sub(1)?).copied()
}

#[expect(clippy::cast_precision_loss, reason = "some thousand repetitions")]
fn point(batch: u32, timed: &Timed, common: Option<Common>) -> Option<(BatchPoint, PointDetail)> {
    let means = means(timed);
    let mean_us = middle(&means)?;
    let mut times = timed.series.concat();
    times.sort_by(f64::total_cmp);
    let median_us = middle(&times)?;
    let mut off: Vec<f64> = times.iter().map(|time| (time - median_us).abs()).collect();
    off.sort_by(f64::total_cmp);
    // Of a normal distribution half lie within 0.6745 deviations.
    let far = (FAR.0 * middle(&off)? / 0.6745).max(FAR.1 * median_us);
    let near: Vec<f64> = times.iter().copied().filter(|time| time - median_us <= far).collect();
    let samples = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let own = percentile99(&times)?;
    let weight = f64::from(samples) / (f64::from(samples) + COMMON);
    let seen_us = common.map_or(own, |common| weight * own + (1.0 - weight) * common.p99_us(mean_us));
    // The two have nothing to do with each other, so their squares add up.
    let p99_us = mean_us + (seen_us - mean_us).max(0.0).hypot(ONE_IN_A_HUNDRED * MOMENTS * mean_us);
    let detail = PointDetail {
        batch,
        rounds: u32::try_from(means.len()).unwrap_or(u32::MAX),
        median_us,
        spread_us: means.last()? - means.first()?,
        outliers: u32::try_from(times.len() - near.len()).unwrap_or(u32::MAX),
        worst_us: *times.last()?,
        peak: timed.peak,
    };
    let squares: f64 = near.iter().map(|time| (time - mean_us).powi(2)).sum();
    let var_us2 = if near.len() > 1 { squares / (near.len() - 1) as f64 } else { 0.0 };
    Some((BatchPoint { batch, mean_us, var_us2, p99_us, samples }, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(series: &[&[f64]]) -> Timed {
        Timed { series: series.iter().map(|times| times.to_vec()).collect(), peak: None }
    }

    #[test]
    fn one_bad_while_does_not_count_and_is_shown() {
        let calm = [100.0, 101.0, 99.0, 100.0];
        let busy = [180.0, 400.0, 220.0, 200.0];
        let all = All::from([(4, timed(&[&busy, &calm, &calm]))]);
        let (points, details) = points(&all);
        assert!((points[0].mean_us - 100.0).abs() < 0.1, "{points:?}");
        assert_eq!((points[0].samples, details[0].rounds, details[0].outliers), (12, 3, 4));
        assert!((details[0].median_us - 100.0).abs() < 1.1 && (details[0].worst_us - 400.0).abs() < 1e-9);
        assert!(details[0].spread_us > 100.0 && points[0].var_us2 < 4.0, "{details:?} {points:?}");
        assert_eq!(compared(&all), [Series { quickest_us: 100.0, middle_us: 100.0, count: 3 }]);
        let seen = seen(&all);
        assert!(seen[0].apart > 1.0 && seen[0].rounds == 3 && seen[0].samples == 12, "{seen:?}");
    }

    #[test]
    fn a_percentile_is_drawn_from_all_sizes_together() {
        // Of a thousand repetitions of size 1 two in a hundred take double; of size 8 only ten were timed, and none did.
        let many: Vec<f64> = (0..1_000).map(|at| if at % 50 == 7 { 200.0 } else { 100.0 }).collect();
        let few = [800.0; 10];
        let (points, _) = points(&All::from([(1, timed(&[&many])), (8, timed(&[&few]))]));
        assert!(points[0].p99_us > 195.0, "{points:?}");
        // It may as well have been a pause of 100 us as twice the time.
        assert!((890.0..920.0).contains(&points[1].p99_us), "the other size tells of it: {points:?}");
    }

    #[test]
    fn what_is_a_share_of_every_size_stays_one_and_a_pause_stays_a_pause() {
        let times = |mean: f64, slow: f64| -> Vec<f64> {
            (0..300).map(|at| if at % 30 == 7 { slow } else { mean }).collect()
        };
        let p99 = |small: f64, large: f64| {
            let all =
                All::from([(1, timed(&[&times(100.0, small)])), (32, timed(&[&times(3_000.0, large)]))]);
            points(&all).0.into_iter().map(|point| point.p99_us).collect::<Vec<_>>()
        };
        let shares = p99(150.0, 4_500.0);
        assert!((149.0..152.0).contains(&shares[0]) && (4_400.0..4_550.0).contains(&shares[1]), "{shares:?}");
        let pauses = p99(4_100.0, 7_000.0);
        assert!(
            (4_000.0..4_200.0).contains(&pauses[0]) && (6_900.0..7_100.0).contains(&pauses[1]),
            "{pauses:?}"
        );
    }

    #[test]
    fn one_pause_among_hundreds_is_not_the_ninety_ninth_percentile() {
        let mut times = vec![50.0; 400];
        times[17] = 4_000.0;
        let (points, details) = points(&All::from([(1, timed(&[&times]))]));
        assert!(points[0].p99_us < 55.0 && points[0].mean_us < 51.0, "{points:?}");
        assert_eq!(details[0].outliers, 1);
    }

    #[test]
    fn a_machine_that_is_another_minute_slower_is_allowed_for() {
        let p99 = |times: &[f64]| points(&All::from([(1, timed(&[times]))])).0[0].p99_us;
        // Never a microsecond off within these seconds: what is left is how minutes differ.
        assert!((108.0..108.3).contains(&p99(&[100.0; 300])));
        // Where batches differ by much more than minutes do it hardly adds to that.
        let wide: Vec<f64> = (0..300).map(|at| if at % 30 == 7 { 150.0 } else { 100.0 }).collect();
        assert!((150.0..151.5).contains(&p99(&wide)), "{}", p99(&wide));
    }

    #[test]
    fn of_few_repetitions_no_more_than_a_hundredth_is_expected_above() {
        let sorted = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        for (count, expected) in
            [(1, 1.0), (98, 98.0), (99, 99.0), (100, 100.0), (198, 198.0), (199, 198.0), (999, 990.0)]
        {
            let found = percentile99(&sorted(count)).unwrap();
            assert!((found - expected).abs() < 1e-9, "{count}: {found}");
        }
        assert_eq!(percentile99(&[]), None);
    }

    #[test]
    fn nothing_timed_is_no_point() {
        assert_eq!(points(&All::from([(1, Timed::default())])), (vec![], vec![]));
        assert!(seen(&All::new()).is_empty());
    }
}
