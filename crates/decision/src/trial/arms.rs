//! What is counted of a trial.

use super::{SLOWER_PERCENT, What};
use modelless_types::Micros;
use serde::{Deserialize, Serialize};

/// How a query ended that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// It was answered.
    Answered {
        /// From its arrival.
        total: Micros,
        /// After its deadline.
        late: bool,
    },
    /// The model failed.
    Failed,
    /// There was no answer in time, or whoever asked did not wait for it.
    Unanswered,
}

/// How many steps of latencies are told apart.
pub const LATENCIES: usize = 32;
/// The first step ends here, and each of the others at the square root of two times the one before.
const FIRST: Micros = Micros(250);

/// How long answers took, in steps. The last has all that took longer than about ten seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Latencies(pub [u64; LATENCIES]);

impl Latencies {
    /// Which step a time is in.
    pub fn step(time: Micros) -> usize {
        (0..LATENCIES - 1).find(|step| time <= Self::end(*step)).unwrap_or(LATENCIES - 1)
    }

    fn end(step: usize) -> Micros {
        let whole = FIRST.0 << (step / 2);
        // 181 / 128 is the root of two, nearly.
        Micros(if step.is_multiple_of(2) { whole } else { whole * 181 / 128 })
    }

    /// The end of the step in which the answer is that so many thousandths are no slower than. Nothing of none.
    pub fn quantile(&self, permille: u64) -> Option<Micros> {
        let all: u64 = self.0.iter().sum();
        let rank = all.saturating_mul(permille).div_ceil(1_000).max(1);
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        let step = self.0.iter().position(reached).filter(|_| all > 0)?;
        Some(Self::end(step))
    }
}

/// What is counted of the queries that one of the two had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArmCounts {
    /// Answered, in time or not.
    pub answered: u64,
    /// Of those, after their deadline.
    pub late: u64,
    /// The model failed.
    pub failed: u64,
    /// Not answered in time, or nobody waited for it any longer.
    pub unanswered: u64,
    /// Answers that somebody said are right.
    pub right: u64,
    /// Answers that somebody said are wrong.
    pub wrong: u64,
    /// How long answers took.
    pub latencies: Latencies,
}

impl ArmCounts {
    /// One more query.
    pub fn count(&mut self, came: Came) {
        match came {
            Came::Answered { total, late } => {
                self.answered += 1;
                self.late += u64::from(late);
                self.latencies.0[Latencies::step(total)] += 1;
            }
            Came::Failed => self.failed += 1,
            Came::Unanswered => self.unanswered += 1,
        }
    }

    fn add(&mut self, more: &Self) {
        for (own, more) in [
            (&mut self.answered, more.answered),
            (&mut self.late, more.late),
            (&mut self.failed, more.failed),
            (&mut self.unanswered, more.unanswered),
            (&mut self.right, more.right),
            (&mut self.wrong, more.wrong),
        ] {
            *own = own.saturating_add(more);
        }
        for (own, more) in self.latencies.0.iter_mut().zip(more.latencies.0) {
            *own = own.saturating_add(more);
        }
    }
}

/// How queries that were compared, one of each arm, came out for the new version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pairs {
    /// It did worse.
    pub worse: u64,
    /// Both did the same.
    pub even: u64,
    /// It did better.
    pub better: u64,
}

impl Pairs {
    fn count(&mut self, candidate_bad: bool, other_bad: bool) {
        match (candidate_bad, other_bad) {
            (true, false) => self.worse += 1,
            (false, true) => self.better += 1,
            (true, true) | (false, false) => self.even += 1,
        }
    }

    fn add(&mut self, more: Self) {
        self.worse = self.worse.saturating_add(more.worse);
        self.even = self.even.saturating_add(more.even);
        self.better = self.better.saturating_add(more.better);
    }
}

/// All that is counted of a trial. Counts only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Queries that were drawn.
    pub candidate: ArmCounts,
    /// Queries that could have been, and were not.
    pub other: ArmCounts,
    /// Pairs, by whether the model failed.
    pub failures: Pairs,
    /// Pairs of which neither failed, by whether they were late.
    pub lateness: Pairs,
    /// Pairs that were both answered, by whether the new version's took longer by far. None is even.
    pub latency: Pairs,
    /// Pairs of verdicts, by whether the answer was wrong.
    pub accuracy: Pairs,
    /// Copies that were answered as their originals were.
    pub agreed: u64,
    /// Copies that were answered otherwise.
    pub differed: u64,
}

impl Counts {
    /// One query of each arm was compared.
    pub fn pair(&mut self, candidate: Came, other: Came) {
        self.pair_of(candidate, other, true);
    }

    /// The same; `alike` says whether how long they took can be compared.
    pub fn pair_of(&mut self, candidate: Came, other: Came, alike: bool) {
        let failed = |came| matches!(came, Came::Failed);
        self.failures.count(failed(candidate), failed(other));
        if failed(candidate) || failed(other) {
            return;
        }
        let late = |came| matches!(came, Came::Unanswered | Came::Answered { late: true, .. });
        self.lateness.count(late(candidate), late(other));
        if let (true, Came::Answered { total: own, .. }, Came::Answered { total: others, .. }) =
            (alike, candidate, other)
        {
            let slower = own.0.saturating_mul(100) > others.0.saturating_mul(SLOWER_PERCENT);
            self.latency.count(slower, !slower);
        }
    }

    /// A verdict on an answer of each arm was compared: whether it was right.
    pub fn pair_verdicts(&mut self, candidate: bool, other: bool) {
        self.accuracy.count(!candidate, !other);
    }

    /// What somebody else counted of the same trial.
    pub fn add(&mut self, more: &Self) {
        self.candidate.add(&more.candidate);
        self.other.add(&more.other);
        self.failures.add(more.failures);
        self.lateness.add(more.lateness);
        self.latency.add(more.latency);
        self.accuracy.add(more.accuracy);
        self.agreed = self.agreed.saturating_add(more.agreed);
        self.differed = self.differed.saturating_add(more.differed);
    }

    /// How pairs came out in one respect.
    pub const fn pairs(&self, what: What) -> Pairs {
        match what {
            What::Failures => self.failures,
            What::Lateness => self.lateness,
            What::Latency => self.latency,
            What::Accuracy => self.accuracy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_ends_of_steps_that_are_no_more_than_half_as_long_again() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(500), None);
        for ms in 1..=100 {
            latencies.0[Latencies::step(Micros::from_millis(ms))] += 1;
        }
        for (permille, exact) in [(1, 1), (500, 50), (990, 99)] {
            let told = latencies.quantile(permille).unwrap();
            let exact = Micros::from_millis(exact);
            assert!(told >= exact && told.0 * 2 <= exact.0 * 3, "{permille}: {told:?}");
        }
        assert_eq!(Latencies::step(Micros(u64::MAX)), LATENCIES - 1);
        assert_eq!(Latencies::step(Micros(0)), 0);
        let ends = (0..LATENCIES).map(Latencies::end);
        assert!(ends.clone().zip(ends.skip(1)).all(|(one, next)| one < next));
    }

    #[test]
    fn a_pair_is_looked_at_in_each_way_that_says_something() {
        let took = |ms, late| Came::Answered { total: Micros::from_millis(ms), late };
        let mut counts = Counts::default();
        counts.pair(Came::Failed, took(1, true));
        counts.pair(Came::Failed, Came::Failed);
        counts.pair(Came::Unanswered, took(1, false));
        counts.pair(took(14, false), took(10, true));
        counts.pair(took(13, false), took(10, false));
        let pairs = |worse, even, better| Pairs { worse, even, better };
        assert_eq!(counts.failures, pairs(1, 4, 0));
        assert_eq!(counts.lateness, pairs(1, 1, 1));
        assert_eq!(counts.latency, pairs(1, 0, 1));
        let before = counts.latency;
        counts.pair_of(took(90, false), took(10, false), false);
        assert_eq!((counts.latency, counts.lateness), (before, pairs(1, 2, 1)), "one alone, one of many");
        let mut twice = counts;
        twice.add(&counts);
        assert_eq!(twice.failures, pairs(2, 10, 0));
    }
}
