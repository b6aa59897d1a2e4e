//! What verdicts on single answers say of a variant's accuracy.
//!
//! Right and wrong answers are draws of an unknown share. With every share as likely as any other beforehand, what is known of it
//! afterwards is a beta distribution; its middle 95 % are the interval. Verdicts are not drawn at random (who finds an answer
//! wrong says so sooner), so this flags and, where a task asks for it, lowers. It never raises.

use modelless_types::Accuracy;

/// Verdicts below which nothing is said of a variant.
pub const ENOUGH: u64 = 30;
/// What a flagged variant was found to be is said anew when it has moved by so much.
const MOVED_PPM: u32 = 10_000;
/// A flagged variant is no longer flagged once so much of what is known of it lies below what was measured, and the rest reaches
/// it. Between this and the interval's 97.5 % nothing changes, so no single verdict turns a flag to and fro.
const REACHES: f64 = 0.9;

/// What is known of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posterior {
    /// Its mean.
    pub mean: Accuracy,
    /// 2.5 % of it are below.
    pub low: Accuracy,
    /// 2.5 % of it are above.
    pub high: Accuracy,
}

/// After so many right and wrong answers.
pub fn posterior(correct: u64, wrong: u64) -> Posterior {
    let (a, b) = (count(correct) + 1.0, count(wrong) + 1.0);
    Posterior {
        mean: share(a / (a + b)),
        low: share(quantile(a, b, 0.025)),
        high: share(quantile(a, b, 0.975)),
    }
}

/// With what accuracy a variant is to be flagged as less accurate than measured, if at all. It is once its whole interval lies
/// below what was measured, and no longer when what is known of it reaches that again, even with some of it cut off.
pub fn judge(
    measured: Accuracy,
    (correct, wrong): (u64, u64),
    flagged: Option<Accuracy>,
) -> Option<Accuracy> {
    if correct.saturating_add(wrong) < ENOUGH {
        return flagged;
    }
    let live = posterior(correct, wrong);
    match flagged {
        None => (live.high < measured).then_some(live.mean),
        Some(_) if share(quantile(count(correct) + 1.0, count(wrong) + 1.0, REACHES)) >= measured => None,
        Some(known) if known.ppm().abs_diff(live.mean.ppm()) >= MOVED_PPM => Some(live.mean),
        Some(known) => Some(known),
    }
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 verdicts one more makes no difference")]
fn count(verdicts: u64) -> f64 {
    verdicts as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a million fits, and a float cast saturates"
)]
fn share(value: f64) -> Accuracy {
    Accuracy::from_ppm(libm::round(value * 1e6).clamp(0.0, 1e6) as u32).unwrap_or(Accuracy::ONE)
}

/// Where the distribution's mass below is `mass`, by halving: thirty steps are a thousandth of a part per million.
fn quantile(a: f64, b: f64, mass: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        if below(a, b, middle) < mass {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The regularised incomplete beta function: the mass of a beta distribution below `x`.
fn below(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    let log =
        libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * libm::log(x) + b * libm::log1p(-x);
    let front = libm::exp(log);
    // The fraction converges quickly on this side of the mean; the other side is its mirror image.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(a, b, x) / a
    } else {
        1.0 - front * fraction(b, a, 1.0 - x) / b
    }
}

/// Its continued fraction, evaluated from the front (Lentz's method).
#[expect(clippy::many_single_char_names, reason = "as they stand in every book")]
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    /// The square root of the larger count bounds how many are needed.
    const STEPS: u32 = 1_000;
    let away = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away(1.0 - (a + b) * x / (a + 1.0));
    let mut result = d;
    for step in 1..=STEPS {
        let m = f64::from(step);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / away(1.0 + term * d);
            c = away(1.0 + term / c);
            result *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-12 {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_that_tables_give() {
        for (correct, wrong, low, high) in [
            (0, 0, 25_000, 975_000),
            (9, 1, 587_220, 977_169),
            (90, 10, 825_447, 944_363),
            (900, 100, 879_831, 917_063),
            (0, 5, 4_211, 459_258),
            (5, 0, 540_742, 995_789),
            (8_000, 2_000, 792_045, 807_722),
        ] {
            let live = posterior(correct, wrong);
            assert!(live.low.ppm().abs_diff(low) <= 2, "{correct} {wrong} {live:?}");
            assert!(live.high.ppm().abs_diff(high) <= 2, "{correct} {wrong} {live:?}");
        }
        assert_eq!(posterior(9, 1).mean.ppm(), 833_333);
    }

    #[test]
    fn more_verdicts_make_it_narrower_and_right_ones_higher() {
        let mut before = posterior(0, 0);
        for n in 1..200 {
            let (now, better) = (posterior(3 * n, n), posterior(3 * n + 1, n));
            assert!(now.high.ppm() - now.low.ppm() < before.high.ppm() - before.low.ppm(), "{n}");
            assert!(now.low <= now.mean && now.mean <= now.high, "{now:?}");
            assert!(better.low > now.low && better.mean > now.mean && better.high > now.high, "{n}");
            before = now;
        }
    }

    fn measured() -> Accuracy {
        Accuracy::from_ppm(900_000).expect("below one")
    }

    #[test]
    fn a_variant_is_flagged_when_it_is_certainly_worse_and_not_for_bad_luck() {
        assert_eq!(judge(measured(), (0, ENOUGH - 1), None), None, "too few to say anything");
        assert_eq!(judge(measured(), (85, 15), None), None, "its interval reaches the measured value");
        let flagged = judge(measured(), (80, 20), None);
        assert_eq!(flagged, Some(posterior(80, 20).mean));
        assert_eq!(judge(measured(), (90, 10), None), None);
        // Near enough, what was said stands; then it is said anew; and it ends only when it reaches what was measured.
        assert_eq!(judge(measured(), (81, 19), flagged), flagged);
        assert_eq!(judge(measured(), (830, 170), flagged), Some(posterior(830, 170).mean));
        assert!(judge(measured(), (870, 130), flagged).is_some());
        assert_eq!(judge(measured(), (890, 110), flagged), None);
    }

    #[test]
    fn no_flag_is_raised_and_taken_back_in_turns() {
        for total in [30_u64, 100, 1_000, 9_999] {
            for correct in 0..=total {
                let of = |correct| (correct, total - correct);
                let Some(flagged) = judge(measured(), of(correct), None) else { continue };
                let then = judge(measured(), of(correct), Some(flagged));
                assert!(then.is_some(), "{correct} of {total}");
                // Nor by the next verdict.
                let next = judge(measured(), (correct + 1, total - correct), Some(flagged));
                assert!(next.is_some(), "{correct} of {total}");
            }
        }
        // And what answers as measured comes back.
        let mut flag = judge(measured(), (20, 20), None);
        assert!(flag.is_some());
        for more in 1..400 {
            flag = judge(measured(), (20 + 9 * more, 20 + more), flag);
        }
        assert_eq!(flag, None);
    }
}
