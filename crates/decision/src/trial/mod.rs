//! Whether a new version does as well as what answers now, by queries that chance gave to the one or the other.
//!
//! Of each arm at most one query in each second is compared, whichever of its queries came first in it; the two make a pair. So one hiccup
//! that makes a hundred answers late counts once, and what troubles the whole machine troubles both of a pair. A version that is as
//! good as the other is the worse one of a pair as often as the better one, and `evidence` says how surely it is not so. What it says
//! holds however often it is looked at. Counts alone decide, so those of several gateways are added up.
//!
//! What is left to others: who asks what (`gateway`), who ends a trial (`scheduler`), and what is kept of it (`store`).

mod arms;
mod draw;
mod evidence;
#[cfg(test)]
mod simulated;

pub use arms::{ArmCounts, Came, Counts, LATENCIES, Latencies, Pairs};
pub use draw::{Arm, OnTrial, Taken, admit, is_drawn};

use alloc::format;
use alloc::string::String;
use core::fmt;
use evidence::{is_no_worse, is_not_more_often, is_worse};
use modelless_types::{Accuracy, Micros};
use serde::{Deserialize, Serialize};

/// A pair's answer is slower where it took more than so many hundredths of the other's time.
pub const SLOWER_PERCENT: u64 = 130;
/// A version is good once it is known to fail, to be late, or to be wrong, in fewer than so many more of a hundred queries than the other.
pub const MORE_PERCENT: u32 = 5;
/// A trial that is to promote and of which nothing is known yet goes on for so many times the time that was asked for.
pub const LONGEST_TIMES: u64 = 10;
/// And for so long at least.
pub const LONGEST_LEAST: Micros = Micros::from_secs(86_400);

/// In what a version may do worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// It fails.
    Failures,
    /// Its answers are late, or so slow that nobody waits for them.
    Lateness,
    /// Its answers take longer.
    Latency,
    /// Its answers are wrong, as far as somebody says so.
    Accuracy,
}

impl What {
    /// All of it, in the order in which it is looked at.
    pub const ALL: [Self; 4] = [Self::Failures, Self::Lateness, Self::Latency, Self::Accuracy];

    /// As shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::Lateness => "lateness",
            Self::Latency => "latency",
            Self::Accuracy => "accuracy",
        }
    }

    const fn said(self) -> &'static str {
        match self {
            Self::Failures => "it fails more often",
            Self::Lateness => "it is late more often",
            Self::Latency => "its answers take longer",
            Self::Accuracy => "its answers are wrong more often",
        }
    }
}

/// What counts come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It does worse.
    Worse {
        /// In what.
        what: What,
        /// Seen by these.
        pairs: Pairs,
    },
    /// It is known to do about as well, or better.
    NotWorse,
    /// Nothing is known yet.
    TooFewYet,
}

/// What counts come to. May be asked as often as one likes: a version that is as good as the other is called worse in less than one of a
/// hundred trials, however long they go on; and one that is worse by the margins above is called good in less than one of a hundred. Where
/// somebody says which answers are right, that has to be known as well; where nobody does, nothing is known of it.
pub fn compare(counts: &Counts) -> Verdict {
    for what in What::ALL {
        let pairs = counts.pairs(what);
        if is_worse(pairs) {
            return Verdict::Worse { what, pairs };
        }
    }
    let good = counts.candidate.answered > 0
        && is_no_worse(counts.failures, MORE_PERCENT)
        && is_no_worse(counts.lateness, MORE_PERCENT)
        && is_not_more_often(counts.latency)
        && (counts.accuracy == Pairs::default() || is_no_worse(counts.accuracy, MORE_PERCENT));
    if good { Verdict::NotWorse } else { Verdict::TooFewYet }
}

/// What was agreed on when a trial began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// How long it is to go on: until its end, or at least so long before the version is promoted.
    pub lasts: Micros,
    /// The version becomes the default once it is known to be good.
    pub promote_when_good: bool,
}

impl Terms {
    /// By then it ends, whatever is known.
    fn longest(self) -> Micros {
        Micros(self.lasts.0.saturating_mul(LONGEST_TIMES)).max(LONGEST_LEAST)
    }
}

/// What is to be done about a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing.
    GoOn,
    /// The version is asked no longer.
    RollBack(String),
    /// It becomes the default.
    Promote(String),
    /// The trial ends, and nothing else changes.
    Stop(String),
}

/// What is to be done about a trial that has run for so long. `floors` is what [`keeps_floors`] says of the two versions now.
pub fn judge(counts: &Counts, ran: Micros, terms: Terms, floors: Result<(), FloorsLost>) -> Step {
    let over = ran >= terms.lasts;
    match compare(counts) {
        Verdict::Worse { what, pairs } => RollBackCause { what, pairs }.step(),
        Verdict::NotWorse if over && terms.promote_when_good => match floors {
            Ok(()) => Step::Promote("it does not do worse".into()),
            Err(lost) => Step::Stop(format!("it does not do worse and is not promoted all the same: {lost}")),
        },
        Verdict::NotWorse if over => Step::Stop("its time is over; it did not do worse".into()),
        Verdict::TooFewYet if over && !terms.promote_when_good => {
            Step::Stop("its time is over; too few queries were compared to tell whether it does worse".into())
        }
        Verdict::TooFewYet if ran >= terms.longest() => Step::Stop(format!(
            "it was not known to be good within {} hours, and is not promoted; try it with a larger share or for a longer time",
            terms.longest().0 / 3_600_000_000
        )),
        Verdict::NotWorse | Verdict::TooFewYet => Step::GoOn,
    }
}

struct RollBackCause {
    what: What,
    pairs: Pairs,
}

impl RollBackCause {
    fn step(self) -> Step {
        let Self { what, pairs: Pairs { worse, better, even } } = self;
        let all = worse + better + even;
        let more = match what {
            What::Latency => {
                format!(" (by more than {} %)", SLOWER_PERCENT - 100)
            }
            What::Failures | What::Lateness | What::Accuracy => String::new(),
        };
        Step::RollBack(format!(
            "{}{more}: of {all} pairs of queries it did worse in {worse} and the other in {better}",
            what.said()
        ))
    }
}

/// The floors that queries have kept until now would not be kept by the new version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloorsLost {
    /// The most accurate variant of the version that it is compared with; the highest floor that is kept now.
    pub kept: Accuracy,
    /// The most accurate one of the new version.
    pub would: Option<Accuracy>,
}

impl fmt::Display for FloorsLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.would {
            Some(would) => write!(
                f,
                "its most accurate variant keeps floors up to {would}, that of the default version up to {}",
                self.kept
            ),
            None => {
                write!(
                    f,
                    "it has no variant of a known accuracy, and the default version keeps floors up to {}",
                    self.kept
                )
            }
        }
    }
}

/// Whether each floor that variants of these accuracies keep is kept by variants of those too.
pub fn keeps_floors(
    default: impl Iterator<Item = Accuracy>,
    candidate: impl Iterator<Item = Accuracy>,
) -> Result<(), FloorsLost> {
    let (kept, would) = (default.max(), candidate.max());
    match kept {
        Some(kept) if would.is_none_or(|would| would < kept) => Err(FloorsLost { kept, would }),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const HOUR: Micros = Micros::from_secs(3_600);
    const QUICK: Came = Came::Answered { total: Micros::from_millis(10), late: false };

    fn counts(pairs: usize, candidate: Came, other: Came) -> Counts {
        let mut counts = Counts::default();
        for _ in 0..pairs {
            counts.candidate.count(candidate);
            counts.other.count(other);
            counts.pair(candidate, other);
        }
        counts
    }

    fn accuracy(ppm: u32) -> Accuracy {
        Accuracy::from_ppm(ppm).unwrap()
    }

    #[test]
    fn a_version_that_fails_is_late_or_is_slower_is_found_by_name() {
        let slow = Came::Answered { total: Micros::from_millis(20), late: false };
        let late = Came::Answered { total: Micros::from_millis(10), late: true };
        for (candidate, what) in [
            (Came::Failed, What::Failures),
            (Came::Unanswered, What::Lateness),
            (late, What::Lateness),
            (slow, What::Latency),
        ] {
            let seen = counts(30, candidate, QUICK);
            let Verdict::Worse { what: found, .. } = compare(&seen) else { panic!("{candidate:?}") };
            assert_eq!(found, what);
            assert!(
                !matches!(compare(&counts(400, QUICK, candidate)), Verdict::Worse { .. }),
                "{candidate:?}"
            );
        }
        let mut wrong = Counts::default();
        (0..30).for_each(|_| wrong.pair_verdicts(false, true));
        assert!(matches!(compare(&wrong), Verdict::Worse { what: What::Accuracy, .. }));
    }

    #[test]
    fn nothing_is_said_of_few_and_what_answered_nothing_is_never_good() {
        assert_eq!(compare(&Counts::default()), Verdict::TooFewYet);
        assert_eq!(compare(&counts(5, Came::Failed, QUICK)), Verdict::TooFewYet);
        assert_eq!(compare(&counts(20, QUICK, QUICK)), Verdict::TooFewYet);
        assert_eq!(compare(&counts(400, QUICK, QUICK)), Verdict::NotWorse);
        assert_eq!(compare(&counts(100_000, Came::Unanswered, Came::Unanswered)), Verdict::TooFewYet);
        let mut silent = counts(400, QUICK, QUICK);
        silent.candidate = ArmCounts::default();
        assert_eq!(compare(&silent), Verdict::TooFewYet);
    }

    #[test]
    fn where_somebody_says_what_is_right_a_version_is_good_once_it_is_known_to_be_right_as_often() {
        let mut seen = counts(400, QUICK, QUICK);
        seen.pair_verdicts(false, true);
        assert_eq!(compare(&seen), Verdict::TooFewYet);
        (0..200).for_each(|_| seen.pair_verdicts(true, true));
        assert_eq!(compare(&seen), Verdict::NotWorse);
        // Wrong in a tenth more, which is not yet sure to be worse.
        let mut seen = counts(400, QUICK, QUICK);
        seen.accuracy = Pairs { worse: 9, even: 80, better: 0 };
        assert_eq!(compare(&seen), Verdict::TooFewYet);
    }

    #[test]
    fn a_trial_ends_when_its_time_is_over_and_at_once_when_the_version_is_worse() {
        let (kept, lost) =
            (Ok(()), Err(FloorsLost { kept: accuracy(910_000), would: Some(accuracy(900_000)) }));
        let short = Terms { lasts: HOUR, promote_when_good: false };
        let promoting = Terms { promote_when_good: true, ..short };
        let (good, few, bad) =
            (counts(400, QUICK, QUICK), Counts::default(), counts(30, Came::Failed, QUICK));
        let soon = Micros::from_secs(60);
        for terms in [short, promoting] {
            assert_eq!(judge(&good, soon, terms, kept), Step::GoOn);
            assert_eq!(judge(&few, soon, terms, kept), Step::GoOn);
            let Step::RollBack(why) = judge(&bad, soon, terms, kept) else { panic!("it fails") };
            assert!(why.contains("of 30 pairs of queries it did worse in 30 and the other in 0"), "{why}");
        }
        assert!(
            matches!(judge(&good, HOUR, short, kept), Step::Stop(why) if why.contains("did not do worse"))
        );
        assert!(matches!(judge(&few, HOUR, short, kept), Step::Stop(why) if why.contains("too few")));
        assert!(matches!(judge(&good, HOUR, promoting, kept), Step::Promote(_)));
        assert_eq!(judge(&few, HOUR, promoting, kept), Step::GoOn, "until it is known");
        // That may be never.
        let (day, ten_days) = (Micros(24 * HOUR.0), Micros(240 * HOUR.0));
        assert_eq!(judge(&few, Micros(day.0 - 1), promoting, kept), Step::GoOn);
        assert!(
            matches!(judge(&few, day, promoting, kept), Step::Stop(why) if why.contains("within 24 hours"))
        );
        let long = Terms { lasts: day, ..promoting };
        assert_eq!(judge(&few, Micros(ten_days.0 - 1), long, kept), Step::GoOn);
        assert!(
            matches!(judge(&few, ten_days, long, kept), Step::Stop(why) if why.contains("within 240 hours"))
        );
        assert!(matches!(judge(&good, ten_days, long, kept), Step::Promote(_)));
        let Step::Stop(why) = judge(&good, HOUR, promoting, lost) else { panic!("floors would be lost") };
        assert!(why.contains("up to 0.9, that of the default version up to 0.91"), "{why}");
    }

    #[test]
    fn floors_are_kept_where_the_most_accurate_variant_is_no_less_accurate() {
        let of =
            |list: &[u32]| list.iter().copied().map(accuracy).collect::<alloc::vec::Vec<_>>().into_iter();
        assert_eq!(keeps_floors(of(&[900_000, 910_000]), of(&[910_000])), Ok(()));
        assert_eq!(keeps_floors(of(&[]), of(&[])), Ok(()));
        let lost = keeps_floors(of(&[910_000]), of(&[800_000, 909_999])).unwrap_err();
        assert_eq!(lost.would, Some(accuracy(909_999)));
        let none = keeps_floors(of(&[910_000]), of(&[])).unwrap_err();
        assert!(none.to_string().contains("no variant of a known accuracy"), "{none}");
    }
}
