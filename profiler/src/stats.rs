//! Figures out of repetitions.

use modelless_types::{Accuracy, StageTime};

/// The 97.5th percentile of the normal distribution: 95 % lie within.
const Z95: f64 = 1.959_964;

/// What a series of times says. The slowest hundredth (at least one of ten or more) is left out: on a machine with other
/// things to do these are the operating system's pauses, and one of them among a few dozen repetitions would make the
/// variance many times that of the model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Summary {
    pub(crate) mean_us: f64,
    pub(crate) var_us2: f64,
    pub(crate) samples: u32,
}

impl Summary {
    /// `None` for no samples.
    #[expect(clippy::cast_precision_loss, reason = "a few hundred samples")]
    pub(crate) fn of(mut times_us: Vec<f64>) -> Option<Self> {
        times_us.sort_by(f64::total_cmp);
        let all = times_us.len();
        if all == 0 {
            return None;
        }
        let dropped = if all >= 10 { (all / 100).max(1) } else { 0 };
        let kept = &times_us[..all - dropped];
        let mean_us = kept.iter().sum::<f64>() / kept.len() as f64;
        let squares: f64 = kept.iter().map(|time| (time - mean_us).powi(2)).sum();
        let var_us2 = if kept.len() > 1 { squares / (kept.len() - 1) as f64 } else { 0.0 };
        Some(Self { mean_us, var_us2, samples: u32::try_from(all).unwrap_or(u32::MAX) })
    }

    pub(crate) fn stage(self) -> StageTime {
        let Self { mean_us, var_us2, samples } = self;
        StageTime { mean_us, var_us2, samples }
    }
}

/// The 95 % Wilson interval of `right` out of `of`, rounded outwards and never without the point value in it.
/// `None` for an empty set or more right than there are.
#[expect(clippy::cast_precision_loss, reason = "sets have far fewer than 2^53 items")]
pub(crate) fn wilson(right: u64, of: u64) -> Option<(Accuracy, Accuracy, Accuracy)> {
    let value = Accuracy::measured(right, of)?;
    let (n, p) = (of as f64, right as f64 / of as f64);
    let z2 = Z95 * Z95;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z95 / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let low = ppm((centre - half).max(0.0), f64::floor)?.min(value);
    let high = ppm((centre + half).min(1.0), f64::ceil)?.max(value);
    Some((low, value, high))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a million")]
fn ppm(share: f64, round: fn(f64) -> f64) -> Option<Accuracy> {
    Accuracy::from_ppm(round(share * 1e6) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pause_of_the_machine_does_not_become_variance() {
        let mut times = vec![100.0, 102.0, 98.0, 101.0, 99.0, 100.0, 101.0, 99.0, 100.0];
        times.push(9_000.0);
        let summary = Summary::of(times).unwrap();
        assert!((summary.mean_us - 100.0).abs() < 0.1, "{summary:?}");
        assert!(summary.var_us2 < 2.0, "{summary:?}");
        assert_eq!(summary.samples, 10);
    }

    #[test]
    fn few_samples_are_all_kept() {
        let summary = Summary::of(vec![1.0, 3.0]).unwrap();
        assert_eq!(summary, Summary { mean_us: 2.0, var_us2: 2.0, samples: 2 });
        let alone = Summary { mean_us: 7.0, var_us2: 0.0, samples: 1 };
        assert_eq!(Summary::of(vec![7.0]), Some(alone));
        assert_eq!(Summary::of(Vec::new()), None);
    }

    /// Reference values worked out with forty digits from the closed formula.
    #[test]
    fn the_interval_is_wilsons() {
        for (right, of, low, high) in [
            (9_155_u64, 10_000_u64, 0.909_887_f64, 0.920_794_f64),
            (1_831, 2_000, 0.902_499, 0.926_908),
            (0, 10, 0.0, 0.277_533),
            (10, 10, 0.722_467, 1.0),
            (5, 10, 0.236_593, 0.763_407),
        ] {
            let (l, value, h) = wilson(right, of).unwrap();
            assert!((l.as_f64() - low).abs() < 2e-6, "{right}/{of}: {l} instead of {low}");
            assert!((h.as_f64() - high).abs() < 2e-6, "{right}/{of}: {h} instead of {high}");
            assert!(l <= value && value <= h);
        }
        assert_eq!(wilson(0, 0), None);
        assert_eq!(wilson(3, 2), None);
    }
}
