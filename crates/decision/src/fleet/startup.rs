//! What was learnt from machines that came and went: how long they take to join, how often they fail, and whether there have to be
//! more of them than was counted.

use super::back_off;
use alloc::vec::Vec;
use modelless_types::{MachineState, Micros, Time};
use serde::{Deserialize, Serialize};

/// So many of the last starts count.
const STARTS: usize = 15;
/// What is assumed counts as so many starts.
const PRIOR: usize = 2;

/// How long a machine takes from being asked for until its node is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartUp {
    /// Half of them took no longer.
    pub median: Micros,
    /// Half of them lay no further from the median.
    pub spread: Micros,
    /// How many were seen.
    pub samples: u32,
}

impl StartUp {
    /// From what the last ones took, the newest last, and what is assumed before.
    pub fn learn(prior: Micros, took: &[Micros]) -> Self {
        let took = &took[took.len().saturating_sub(STARTS)..];
        let mut all: Vec<Micros> = took.to_vec();
        all.extend([prior; PRIOR]);
        let median = middle(&mut all);
        let mut off: Vec<Micros> = all.iter().map(|time| Micros(time.0.abs_diff(median.0))).collect();
        Self { median, spread: middle(&mut off), samples: u32::try_from(took.len()).unwrap_or(u32::MAX) }
    }

    /// What is planned with.
    pub fn lead(&self) -> Micros {
        Micros(self.median.0.saturating_add(self.spread.0))
    }

    /// About nineteen of twenty take no longer: the median, and two and a half times how far half of them lie from it.
    pub fn nearly_always(&self) -> Micros {
        Micros(self.median.0.saturating_add(self.spread.0.saturating_mul(5) / 2))
    }

    /// One that takes longer never comes: four times what is usual, and half a minute at least. It may be that starts take longer now than those
    /// that were seen, and none is seen where each is given up, so with each in a row that never came it is twice as much, four times at most.
    pub fn joins_within(&self, never_came: u32) -> Micros {
        let usual = self.lead().0.saturating_mul(4).max(Micros::from_secs(30).0);
        Micros(usual.saturating_mul(1 << never_came.min(2)))
    }
}

fn middle(all: &mut [Micros]) -> Micros {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(Micros::ZERO)
}

/// The end of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub state: MachineState,
    /// When it joined, if it did.
    pub joined: Option<Time>,
    /// Its provider had it.
    #[serde(default)]
    pub taken_up: bool,
    /// When it ended.
    pub at: Time,
}

/// Machines that failed one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Failures {
    /// How many since one came and stayed.
    pub in_a_row: u32,
    /// When the last one did.
    pub last: Time,
    /// Of these, how many their provider had and that never joined.
    #[serde(default)]
    pub never_joined: u32,
}

/// After the first failure of a pool, and at most.
const REST: (Micros, Micros) = (Micros::from_secs(5), Micros::from_secs(600));

impl Failures {
    /// From the ends of a pool's machines and when those joined that are still there. One that lived for `young` after it joined came and stayed,
    /// however it ended.
    pub fn of(ended: &[Ended], joined: &[Time], young: Micros, now: Time) -> Self {
        let stayed = |end: &Ended| end.joined.is_some_and(|joined| end.at.since(joined) >= young);
        let long_ago = ended.iter().filter(|end| stayed(end)).filter_map(|end| Some(end.joined? + young));
        let still = joined.iter().map(|joined| *joined + young).filter(|then| *then <= now);
        let good = long_ago.chain(still).max();
        let failed = |end: &&Ended| end.state == MachineState::Failed && !stayed(end);
        let since = ended.iter().filter(failed).filter(|end| good.is_none_or(|good| end.at > good));
        let mut all = Self::default();
        for end in since {
            all.in_a_row = all.in_a_row.saturating_add(1);
            all.never_joined =
                all.never_joined.saturating_add(u32::from(end.joined.is_none() && end.taken_up));
            all.last = all.last.max(end.at);
        }
        all
    }

    /// Until when nothing more is asked for: 5 s after the first, twice as long after each further one, ten minutes at most.
    pub fn until(&self) -> Option<Time> {
        (self.in_a_row > 0).then(|| self.last + back_off(REST.0, self.in_a_row, REST.1))
    }
}

/// How much more is needed than was counted, learnt from queries that were late although machines were there.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Strain {
    factor: f64,
    /// When it last rose, and when it last was looked at.
    rose: Time,
    looked: Time,
}

impl Default for Strain {
    fn default() -> Self {
        Self { factor: 1.0, rose: Time::ZERO, looked: Time::ZERO }
    }
}

/// What was seen over the last seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// Queries that came.
    pub came: u64,
    /// Of these, how many were not answered in time.
    pub late: u64,
    /// Lanes that run, and how many there are.
    pub busy_lanes: u64,
    /// How many there are.
    pub lanes: u64,
    /// All machines that are wanted are there, and have been for a while.
    pub settled: bool,
}

impl Strain {
    /// Each step up.
    const STEP: f64 = 1.3;
    /// However much is late.
    const MOST: f64 = 4.0;
    /// What was learnt so long ago counts half.
    const HALF_LIFE_S: f64 = 600.0;
    /// Between steps: the last one has to show first.
    const REST: Micros = Micros::from_secs(5);

    /// What is to be multiplied with.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Looks at the last seconds. More is needed where more than 2 % were late while the lanes were busy and everybody was there: who is
    /// late on idle lanes is so for another reason.
    pub fn look(&mut self, now: Time, seen: Lateness) {
        let passed = if self.looked == Time::ZERO { Micros::ZERO } else { now.since(self.looked) };
        self.looked = now;
        let fade = libm::exp2(-passed.as_millis_f64() / 1e3 / Self::HALF_LIFE_S);
        self.factor = 1.0 + (self.factor - 1.0) * fade;
        let late = seen.late > 5 && seen.late.saturating_mul(50) > seen.came;
        let busy = seen.busy_lanes.saturating_mul(10) >= seen.lanes.saturating_mul(8);
        if late && busy && seen.settled && now.since(self.rose) >= Self::REST {
            self.factor = (self.factor * Self::STEP).min(Self::MOST);
            self.rose = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(all: &[u64]) -> Vec<Micros> {
        all.iter().map(|s| Micros::from_secs(*s)).collect()
    }

    fn at(s: u64) -> Time {
        Time::ZERO + Micros::from_secs(s)
    }

    #[test]
    fn a_start_up_time_is_what_is_assumed_until_machines_have_come() {
        let prior = Micros::from_secs(90);
        let none = StartUp::learn(prior, &[]);
        assert_eq!((none.median, none.spread, none.samples), (prior, Micros::ZERO, 0));
        let some = StartUp::learn(prior, &secs(&[20, 30, 40, 30, 30]));
        assert_eq!((some.median, some.spread), (Micros::from_secs(30), Micros::from_secs(10)));
        assert_eq!(some.joins_within(0), Micros::from_secs(160));
        let waits = [1, 2, 9].map(|never_came| some.joins_within(never_came).0 / 1_000_000);
        assert_eq!(waits, [320, 640, 640], "starts may take longer than those that were seen");
        assert_eq!(some.nearly_always(), Micros::from_secs(55));
        let late = [secs(&[20; 20]), secs(&[70; 15])].concat();
        assert_eq!(StartUp::learn(prior, &late).median, Micros::from_secs(70), "the old ones are forgotten");
        assert_eq!(StartUp::learn(Micros::from_secs(1), &secs(&[1])).joins_within(0), Micros::from_secs(30));
    }

    #[test]
    fn failures_in_a_row_rest_longer_and_one_that_stayed_ends_the_row() {
        let end = |state, joined: Option<u64>, s| Ended {
            state,
            joined: joined.map(at),
            taken_up: true,
            at: at(s),
        };
        let failed = |joined, s| end(MachineState::Failed, joined, s);
        let of = |ended: &[Ended], joined: &[Time], now| {
            Failures::of(ended, joined, Micros::from_secs(60), at(now))
        };
        assert_eq!(of(&[], &[], 100).until(), None);
        let three = [failed(None, 100), failed(Some(108), 110), failed(None, 125)];
        assert_eq!(of(&three, &[], 130), Failures { in_a_row: 3, last: at(125), never_joined: 2 });
        assert_eq!(of(&three, &[], 130).until(), Some(at(145)));
        let refused = Ended { taken_up: false, ..failed(None, 126) };
        assert_eq!(of(&[refused], &[], 130), Failures { in_a_row: 1, last: at(126), never_joined: 0 });
        assert_eq!(of(&three, &[at(127)], 130).in_a_row, 3, "it may die young as well");
        assert_eq!(of(&three, &[at(127)], 187).until(), None, "that one stayed");
        let lived = end(MachineState::Failed, Some(10), 112);
        assert_eq!(
            of(&[three[0], lived, three[2]], &[], 130).in_a_row,
            2,
            "one that lived for long came and stayed"
        );
        let many: Vec<Ended> = (0..40).map(|n| failed(None, n)).collect();
        assert_eq!(of(&many, &[], 50).until(), Some(at(39 + 600)));
    }

    #[test]
    fn more_is_needed_when_queries_are_late_on_busy_machines_that_are_all_there() {
        let late = Lateness { came: 500, late: 100, busy_lanes: 9, lanes: 10, settled: true };
        let after = |seen| {
            let mut strain = Strain::default();
            strain.look(at(10), seen);
            strain.factor()
        };
        assert!(after(late) > 1.29);
        for not in [
            Lateness { settled: false, ..late },
            Lateness { busy_lanes: 5, ..late },
            Lateness { late: 10, ..late },
            Lateness { came: 5, late: 5, ..late },
        ] {
            assert!(after(not) < 1.01, "{not:?}");
        }
        let mut strain = Strain::default();
        (10..60).for_each(|s| strain.look(at(s), late));
        assert!(strain.factor() > 3.9 && strain.factor() <= 4.0, "{}", strain.factor());
        strain.look(at(659), Lateness::default());
        assert!(strain.factor() < 2.6, "it is forgotten: {}", strain.factor());
    }
}
