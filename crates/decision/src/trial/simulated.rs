//! Many trials, played: how often a good version is called worse, and how soon a worse one is found.

use super::{Came, Counts, Verdict, compare};
use crate::route::mix;
use modelless_types::Micros;
use std::vec::Vec;

/// Numbers that look like chance, from a seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(1);
        #[expect(clippy::cast_precision_loss, reason = "53 bits are kept")]
        let part = (mix(self.0) >> 11) as f64;
        part / 9_007_199_254_740_992.0
    }

    /// Spread about 0 by about 1.
    fn spread(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}

/// A version, as it would serve: how often it fails, how much longer it takes, and hiccups of its own, in each of which all its queries
/// are late at once.
#[derive(Clone, Copy)]
struct Version {
    fails: f64,
    slower: f64,
    /// Hiccups in a second.
    hiccups: f64,
    /// How long they last on average, in seconds.
    last: f64,
    /// Its hiccup ends then.
    until: f64,
}

const GOOD: Version = Version { fails: 0.0, slower: 1.0, hiccups: 1.0 / 60.0, last: 0.3, until: 0.0 };
/// In seconds: after that an answer is late.
const DEADLINE: f64 = 0.1;

impl Version {
    /// What becomes of the query that is compared in a second, on a machine that takes so much longer at that moment.
    fn ask(&mut self, second: f64, machine: f64, chance: &mut Chance) -> Came {
        if chance.next() < self.hiccups {
            self.until = second + chance.next() - self.last * libm::log(1.0 - chance.next());
        }
        if chance.next() < self.fails {
            return Came::Failed;
        }
        let at = second + chance.next() * 0.05;
        let run = 0.010 * self.slower * machine * libm::exp(0.3 * chance.spread());
        let total = run + (self.until - at).max(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds, and none below 0"
        )]
        let micros = Micros((total * 1e6) as u64);
        Came::Answered { total: micros, late: total > DEADLINE }
    }
}

/// Plays a trial, and looks at it every second. What it was found to be, and after how many pairs.
fn play(seed: u64, mut candidate: Version, seconds: u32) -> (Verdict, u32) {
    let mut chance = Chance(mix(seed));
    let (mut other, mut counts) = (GOOD, Counts::default());
    // What the whole machine has to do changes slowly and hits both.
    let mut machine = 1.0_f64;
    for second in 0..seconds {
        machine = (machine * libm::exp(0.05 * chance.spread())).clamp(0.5, 3.0);
        let own = candidate.ask(f64::from(second), machine, &mut chance);
        let others = other.ask(f64::from(second), machine, &mut chance);
        counts.candidate.count(own);
        counts.other.count(others);
        counts.pair(own, others);
        let found = compare(&counts);
        if matches!(found, Verdict::Worse { .. }) {
            return (found, second + 1);
        }
    }
    (compare(&counts), seconds)
}

/// Of so many trials of a version, how many called it worse, and after how many pairs 95 of a hundred had.
fn played(candidate: Version, trials: u64, seconds: u32) -> (usize, u32) {
    let ended: Vec<(Verdict, u32)> = (0..trials).map(|seed| play(seed, candidate, seconds)).collect();
    let worse = ended.iter().filter(|(verdict, _)| matches!(verdict, Verdict::Worse { .. })).count();
    let mut after: Vec<u32> = ended.iter().map(|(_, after)| *after).collect();
    after.sort_unstable();
    (worse, after[after.len() * 95 / 100])
}

#[test]
fn a_version_as_good_as_the_other_is_called_worse_in_less_than_one_of_a_hundred_trials() {
    let (worse, _) = played(GOOD, 400, 600);
    assert!(worse < 4, "{worse} of 400");
}

#[test]
fn a_version_that_fails_in_one_of_twenty_or_takes_twice_as_long_is_found_soon() {
    let (found, after) = played(Version { fails: 0.05, ..GOOD }, 100, 600);
    assert!(found >= 95 && after <= 450, "{found} of 100, most after {after} pairs");
    let (found, after) = played(Version { slower: 2.0, ..GOOD }, 100, 300);
    assert!(found == 100 && after <= 90, "{found} of 100, most after {after} pairs");
}

#[test]
fn a_good_version_is_known_to_be_good_within_a_quarter_of_an_hour() {
    let good = (0..40).filter(|seed| play(*seed, GOOD, 900).0 == Verdict::NotWorse).count();
    assert!(good >= 38, "{good} of 40");
}
