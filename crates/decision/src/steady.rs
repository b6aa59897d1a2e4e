//! Whether the minute in which a variant was timed is one to go by.
//!
//! A machine that is shared runs the same batches a few per cent quicker or slower from one minute to the next, which the 99th
//! percentiles of profiles allow for. In a bad minute it is a fifth or a half, and a profile that was taken then is wrong until
//! live traffic corrects it. Three things tell of such a minute, none of which tells of all: how the series of a batch size compare
//! (a minute that is bad from the first to the last series looks even), how long work takes that is always the same
//! (of the first minute nobody knows whether it was a good one), and what the host gave to others (where it says so).
//!
//! Others only ever slow down, so all of it is compared with what was best, and that with what was usual: one quick series in
//! three is believed, one slow one in three is not even looked at.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::Unsteady;

/// The batch size in the middle took so much longer most of the time than at best. Minutes usually differ by 3.5 %
/// (one deviation), so this is four of those.
const SIZES: f64 = 0.15;
/// Less than this is a wake-up's doing, whatever its share, in microseconds.
const WORTH_US: f64 = 20.0;
/// Fewer series have no middle one.
const SERIES: u32 = 3;
/// The same for work that is always the same.
const SAME_WORK: f64 = 0.15;
/// What counts as best of that: so many of a hundred were quicker, so that one lucky moment is not what all others are held
/// against.
const BEST_OF_100: usize = 10;
/// So much of the processor time that was wanted went to others.
const STOLEN: f64 = 0.10;
/// Measured again so often at most.
const MOST_AGAIN: u32 = 3;

/// A batch size, by its series.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Series {
    /// The mean of the quickest, in microseconds.
    pub quickest_us: f64,
    /// And of the middle one, which counts.
    pub middle_us: f64,
    /// How many there are.
    pub count: u32,
}

/// What was seen of the machine while a variant was timed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Minute<'a> {
    /// By batch size.
    pub sizes: &'a [Series],
    /// How long the work took that is always the same: before, between and after.
    pub same_work: &'a [f64],
    /// And lately, with other variants; what of it is best is the measure.
    pub lately: &'a [f64],
    /// Of the processor time that was wanted, what others had; `None`: nobody says.
    pub stolen: Option<f64>,
}

/// What speaks against a minute; `None` for one to go by.
pub fn judge(minute: &Minute<'_>) -> Option<Unsteady> {
    let seen = Unsteady {
        sizes: middle(minute.sizes.iter().filter(|of| of.count >= SERIES).map(|of| {
            let more = of.middle_us - of.quickest_us;
            if more >= WORTH_US { share(more, of.quickest_us) } else { 0.0 }
        })),
        same_work: same_work(minute),
        stolen: minute
            .stolen
            .map_or(0.0, |stolen| if stolen.is_finite() { stolen.clamp(0.0, 1.0) } else { 0.0 }),
        tries: 1,
        left: MOST_AGAIN,
    };
    (worst(&seen) > 1.0).then_some(seen)
}

/// Which of two profiles of a variant on a device class stands, and what is known of its minute then.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settled {
    /// The one from before, for its minute was the steadier one.
    pub before: bool,
    /// `None`: a steady minute.
    pub unsteady: Option<Unsteady>,
}

/// Measured again. `comparable` says that nothing else is better about the new profile: the one from before was not coarse, and
/// nothing says that it is off. Only then the steadier one stands; else the new one does, whatever its minute. How often it may be
/// measured again goes down with each time.
pub fn settle(before: Option<Unsteady>, now: Option<Unsteady>, comparable: bool) -> Settled {
    let (before, now) = match (before, now) {
        (_, None) => return Settled { before: false, unsteady: None },
        (None, Some(_)) if comparable => return Settled { before: true, unsteady: None },
        (None, Some(_)) => return Settled { before: false, unsteady: now },
        (Some(before), Some(now)) => (before, now),
    };
    let stays = comparable && worst(&before) <= worst(&now);
    let tries = before.tries.saturating_add(1);
    // Whoever wrote a file may have written anything.
    let left = before.left.min(MOST_AGAIN).saturating_sub(1);
    let unsteady = Unsteady { tries, left, ..if stays { before } else { now } };
    Settled { before: stays, unsteady: Some(unsteady) }
}

/// For people: what speaks against it, and what becomes of it.
pub fn reason(unsteady: &Unsteady) -> String {
    let percent = |share: f64| libm::round(share * 100.0);
    let mut why = Vec::new();
    if unsteady.sizes > SIZES {
        why.push(format!(
            "its batches took {} % longer most of the time than at best",
            percent(unsteady.sizes)
        ));
    }
    if unsteady.same_work > SAME_WORK {
        why.push(format!(
            "work that is always the same took {} % longer than at best",
            percent(unsteady.same_work)
        ));
    }
    if unsteady.stolen > STOLEN {
        why.push(format!("the host gave {} % of the processor time to others", percent(unsteady.stolen)));
    }
    let again = match (unsteady.left, unsteady.tries) {
        (0, tries) => format!("measured {tries} times, never in a steady minute; the steadiest is kept"),
        (_, _) => "it is measured again when a node has nothing to do".into(),
    };
    format!("measured in an unsteady minute: {}; {again}", why.join(", and "))
}

/// How far the worst of it is beyond its bound: above one is unsteady.
fn worst(seen: &Unsteady) -> f64 {
    (seen.sizes / SIZES).max(seen.same_work / SAME_WORK).max(seen.stolen / STOLEN)
}

fn same_work(minute: &Minute<'_>) -> f64 {
    let usable = |us: &&f64| us.is_finite() && **us > 0.0;
    let mut all: Vec<f64> = minute.lately.iter().chain(minute.same_work).filter(usable).copied().collect();
    all.sort_by(f64::total_cmp);
    let Some(best) = all.get(all.len() * BEST_OF_100 / 100) else { return 0.0 };
    let now = middle(minute.same_work.iter().filter(usable).copied());
    share(now - best, *best)
}

fn share(more: f64, of: f64) -> f64 {
    let share = more / of;
    if share.is_finite() { share.max(0.0) } else { 0.0 }
}

/// The middle one; of an even number the lower; nothing for none.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.len().checked_sub(1).and_then(|last| values.get(last / 2)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const CALM: Minute<'static> = Minute { sizes: &[], same_work: &[], lately: &[], stolen: None };

    fn size(quickest_us: f64, middle_us: f64, count: u32) -> Series {
        Series { quickest_us, middle_us, count }
    }

    #[test]
    fn a_calm_minute_is_gone_by_and_so_is_one_of_which_nothing_is_known() {
        assert_eq!(judge(&CALM), None);
        let sizes = [size(100.0, 108.0, 3), size(400.0, 440.0, 3), size(1_000.0, 1_090.0, 3)];
        let same = [500.0, 530.0, 510.0];
        let calm = Minute { sizes: &sizes, same_work: &same, lately: &[495.0; 20], stolen: Some(0.04) };
        assert_eq!(judge(&calm), None);
    }

    #[test]
    fn each_of_the_three_signs_is_enough_and_is_said_in_words() {
        let sizes = [size(100.0, 160.0, 3), size(1_000.0, 1_400.0, 3), size(2_000.0, 2_020.0, 3)];
        for (minute, said) in [
            (Minute { sizes: &sizes, ..CALM }, "batches took 40 % longer"),
            (
                Minute { same_work: &[650.0; 3], lately: &[500.0; 10], ..CALM },
                "always the same took 30 % longer",
            ),
            (Minute { stolen: Some(0.22), ..CALM }, "gave 22 % of the processor time to others"),
        ] {
            let unsteady = judge(&minute).expect(said);
            assert_eq!((unsteady.tries, unsteady.left), (1, MOST_AGAIN));
            let words = reason(&unsteady);
            assert!(
                words.contains(said) && words.contains("measured again") && !words.contains(" and "),
                "{words}"
            );
        }
    }

    #[test]
    fn what_a_wake_up_does_to_small_batches_is_no_bad_minute_nor_is_one_slow_series_in_three() {
        let small = [size(30.0, 45.0, 5), size(35.0, 52.0, 5)];
        assert_eq!(judge(&Minute { sizes: &small, ..CALM }), None);
        // Of two the quicker one counts already.
        assert_eq!(judge(&Minute { sizes: &[size(1_000.0, 1_500.0, 2)], ..CALM }), None);
        // One lucky moment is not what all others are held against.
        let lately: Vec<f64> = (0..20).map(|at| if at == 7 { 100.0 } else { 500.0 }).collect();
        assert_eq!(judge(&Minute { same_work: &[510.0; 3], lately: &lately, ..CALM }), None);
    }

    #[test]
    fn the_steadier_of_two_stands_unless_the_other_is_off_or_coarse() {
        let by = |sizes: f64| judge(&Minute { sizes: &[size(1_000.0, 1_000.0 * (1.0 + sizes), 3)], ..CALM });
        let (bad, worse) = (by(0.2), by(0.5));
        let settled = settle(bad, worse, true);
        assert!(settled.before && settled.unsteady.is_some_and(|it| it.tries == 2 && it.sizes < 0.3));
        assert!(!settle(bad, worse, false).before, "what is off or coarse never stays");
        assert!(!settle(worse, bad, true).before);
        assert_eq!(settle(worse, None, true), Settled { before: false, unsteady: None });
        assert_eq!(settle(None, worse, true), Settled { before: true, unsteady: None });
        assert_eq!(settle(None, worse, false), Settled { before: false, unsteady: worse });
    }

    #[test]
    fn a_variant_that_never_finds_a_steady_minute_is_left_in_peace_and_says_so() {
        let bad = judge(&Minute { stolen: Some(0.5), ..CALM });
        let mut known = bad;
        let mut again = 0;
        while known.is_some_and(|it| it.left > 0) {
            known = settle(known, bad, true).unsteady;
            again += 1;
        }
        assert_eq!(again, MOST_AGAIN);
        let words = reason(&known.expect("it never was steady"));
        assert!(words.contains("measured 4 times") && !words.contains("measured again"), "{words}");
        // A file that claims more tries than there are.
        let claimed = known.map(|it| Unsteady { left: u32::MAX, ..it });
        assert!(settle(claimed, bad, true).unsteady.is_some_and(|it| it.left < MOST_AGAIN));
    }

    fn anything() -> impl Strategy<Value = f64> {
        prop_oneof![0.0..1e7_f64, Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(0.0)]
    }

    proptest! {
        #[test]
        fn whatever_was_seen_shares_are_figures_and_unsteady_means_that_one_is_beyond_its_bound(
            sizes in prop::collection::vec((anything(), anything(), 0..9_u32), 0..9),
            same_work in prop::collection::vec(anything(), 0..9),
            lately in prop::collection::vec(anything(), 0..30),
            stolen in prop::option::of(anything()),
        ) {
            let sizes: Vec<Series> = sizes.into_iter().map(|(q, m, n)| size(q, m, n)).collect();
            let minute = Minute { sizes: &sizes, same_work: &same_work, lately: &lately, stolen };
            if let Some(it) = judge(&minute) {
                prop_assert!([it.sizes, it.same_work, it.stolen].iter().all(|it| it.is_finite() && *it >= 0.0));
                prop_assert!(it.sizes > SIZES || it.same_work > SAME_WORK || it.stolen > STOLEN);
            }
        }

        #[test]
        fn a_machine_that_is_slower_throughout_is_no_less_unsteady_and_the_unit_does_not_matter(
            base in prop::collection::vec(1_000.0..1e5_f64, 1..9),
            by in 1.0..3.0_f64,
            more in 1.0..2.0_f64,
        ) {
            let of = |by: f64| {
                let sizes: Vec<Series> = base.iter().map(|us| size(*us, us * by, 3)).collect();
                let same = vec![500.0 * by; 3];
                judge(&Minute { sizes: &sizes, same_work: &same, lately: &[500.0; 30], stolen: None })
            };
            let (calm, slow) = (of(by), of(by * more));
            let worst = |it: Option<Unsteady>| it.as_ref().map_or(0.0, worst);
            prop_assert!(worst(slow) >= worst(calm));
            prop_assert_eq!(calm.is_some(), by - 1.0 > SIZES.min(SAME_WORK));
        }

        #[test]
        fn what_stands_is_never_less_steady_than_what_was_there_and_tries_end(
            shares in prop::collection::vec(prop::option::of(0.16..2.0_f64), 1..12),
        ) {
            let of = |share: Option<f64>| share.and_then(|by| judge(&Minute { stolen: Some(by.min(1.0)), ..CALM }));
            let mut known = of(shares[0]);
            for share in &shares[1..] {
                let settled = settle(known, of(*share), true);
                if let (Some(before), Some(after)) = (known, settled.unsteady) {
                    prop_assert!(worst(&after) <= worst(&before));
                    prop_assert!(after.left < before.left || before.left == 0);
                }
                known = settled.unsteady;
            }
        }
    }
}
