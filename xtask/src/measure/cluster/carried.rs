//! What load a cluster carries, out of windows at set rates, and how far such figures can be trusted.

use anyhow::{Context as _, Result};
use modelless_testkit::stats;

use super::count;

pub(super) fn median(values: &[f64]) -> Result<f64> {
    stats::median(values).context("no repetitions; this is a bug")
}

/// The standard error of a median, as a share of it.
pub(super) fn scatter(values: &[f64]) -> Result<f64> {
    /// Of a median, over that of a mean.
    const OF_MEDIAN: f64 = 1.253;
    let (median, count) = (median(values)?, count(values.len())?);
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = OF_MEDIAN * (squares / (count - 1.0).max(1.0) / count).sqrt();
    Ok(if median > 0.0 { error / median } else { 1.0 })
}

/// A window at some rate: what was asked in it, and what of that was not answered in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) rate: f64,
    pub(super) asked: f64,
    pub(super) missed: f64,
}

/// The rate at which no more than `1 - share` are missed, by the line through the logarithms of what was missed: of the median
/// slope, and in the middle of the windows. At most the highest that was tried.
pub(super) fn carried(windows: &[Window], share: f64) -> Result<f64> {
    let points: Vec<(f64, f64)> =
        windows.iter().map(|w| (w.rate, ((w.missed + 0.5) / (w.asked + 1.0)).ln())).collect();
    let pairs =
        points.iter().enumerate().flat_map(|(at, one)| points[at + 1..].iter().map(move |two| (one, two)));
    let slopes: Vec<f64> = pairs.map(|((x, y), (other_x, other_y))| (other_y - y) / (other_x - x)).collect();
    let highest = points.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let slope = stats::median(&slopes).context("fewer than two windows")?;
    if slope <= 0.0 {
        // Next to nothing is missed at any rate, or nearly all; or most windows were spoilt.
        let missed: Vec<f64> = windows.iter().map(|w| 1.0 - w.in_time()).collect();
        return Ok(if median(&missed)? <= 1.0 - share { highest } else { 0.0 });
    }
    let at_none = median(&points.iter().map(|(rate, missed)| missed - slope * rate).collect::<Vec<_>>())?;
    Ok((((1.0 - share).ln() - at_none) / slope).clamp(0.0, highest))
}

impl Window {
    pub(super) fn in_time(&self) -> f64 {
        1.0 - self.missed / self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_scatter_say_nothing() {
        assert!(scatter(&[100.0, 100.0, 100.0]).unwrap() < 1e-9);
        let error = scatter(&[90.0, 100.0, 110.0]).unwrap();
        assert!((error - 1.253 * 0.1 / 3.0_f64.sqrt()).abs() < 1e-9, "{error}");
        assert!(scatter(&[0.0, 0.0]).unwrap() > 0.9 && scatter(&[]).is_err());
    }

    /// Windows of 20 s where a hundredth is missed at so many a second, and twice as much with every fifty more.
    fn windows(carried: f64, spoilt: Option<usize>) -> Vec<Window> {
        let window = |(at, rate): (usize, f64)| {
            let share = 0.01 * ((rate - carried) / 50.0).exp2();
            let share = if spoilt == Some(at) { 0.3 } else { share.min(1.0) };
            Window { rate, asked: 20.0 * rate, missed: (20.0 * rate * share).round() }
        };
        [450.0, 520.0, 590.0, 660.0, 730.0].into_iter().enumerate().map(window).collect()
    }

    #[test]
    fn what_is_carried_is_found_between_rates_and_beside_a_window_that_was_spoilt() {
        for wanted in [470.0, 600.0, 615.0, 700.0] {
            let found = carried(&windows(wanted, None), 0.99).unwrap();
            assert!((found - wanted).abs() < 6.0, "{found} of {wanted}");
            let spoilt = carried(&windows(wanted, Some(1)), 0.99).unwrap();
            assert!((spoilt - wanted).abs() < 0.05 * wanted, "{spoilt} of {wanted}");
        }
        let all = |share: f64| -> Vec<Window> {
            windows(600.0, None).into_iter().map(|w| Window { missed: w.asked * share, ..w }).collect()
        };
        assert!((carried(&all(0.0), 0.99).unwrap() - 730.0).abs() < 1e-9, "no more than was tried");
        assert!(carried(&all(1.0), 0.99).unwrap() < 1e-9, "nothing is carried");
        let mut spoilt = all(0.001);
        spoilt[0].missed = 0.6 * spoilt[0].asked;
        assert!((carried(&spoilt, 0.99).unwrap() - 730.0).abs() < 1e-9, "{spoilt:?}");
        assert!(carried(&[], 0.99).is_err());
    }
}
