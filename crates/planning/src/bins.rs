//! What is asked of each task in slots of five minutes, out of the counts that gateways announce: what later days are foretold by.
//!
//! Every observer counts for itself and tells the store what it saw, over and over; there the greatest stands. A second counts as seen
//! only while all gateways tell all that they were asked: of one that is met for the first time nobody knows when its queries came, and
//! what is not known is not nothing.

use modelless_decision::query::Class;
use modelless_live::{Member, Role};
use modelless_store::{BINS_A_SLOT, SlotSeen};
use modelless_types::{Bin, Micros, Slot, TaskId, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Between looks, at least: gateways announce themselves about as often.
const EVERY: Micros = Micros::from_secs(1);
/// A peak is the mean of so long, so that it does not matter when in a second somebody looks.
const PEAK_OVER: Micros = Micros::from_secs(5);
/// After a longer absence nobody knows when what came meanwhile came.
const ABSENT: Micros = Micros::from_secs(30);
/// What a slot has come to is told so often before it is over, so that whoever is killed has told most of it.
const TOLD_EVERY: Micros = Micros::from_secs(60);

/// What one task was asked in the slot that runs.
#[derive(Clone, Debug, Default)]
struct Counted {
    bin: Bin,
    /// Of the last looks: how long, and how many queries.
    last: VecDeque<(Micros, u64)>,
}

/// Counts slots, as one observer of gateways sees them.
#[derive(Clone, Debug, Default)]
pub struct Bins {
    /// What each gateway told last, by name and instance.
    told: BTreeMap<(String, u64), (BTreeMap<Class, u64>, u32)>,
    looked: Option<Time>,
    slot: Slot,
    seen: Micros,
    tasks: BTreeMap<TaskId, Counted>,
    said: Time,
    due: VecDeque<SlotSeen>,
}

impl Bins {
    /// What members announce, by the clock on the wall; nothing where the live state does not answer.
    pub fn look(&mut self, now: Time, members: Option<&[Member]>) {
        let passed = self.looked.map(|before| now.since(before));
        if passed.is_some_and(|passed| passed < EVERY) && self.looked <= Some(now) {
            return;
        }
        self.looked = Some(now);
        self.turn(now);
        let passed = passed.filter(|passed| (EVERY..=ABSENT).contains(passed));
        let (came, all) = self.count(members.unwrap_or_default());
        let Some(passed) = passed.filter(|_| members.is_some()) else {
            self.tasks.values_mut().for_each(|counted| counted.last.clear());
            return;
        };
        if all {
            self.seen = Micros(self.seen.0.saturating_add(passed.0).min(Slot::LONG.0));
        }
        for task in came.keys() {
            self.tasks.entry(*task).or_default();
        }
        for (task, counted) in &mut self.tasks {
            counted.add(passed, came.get(task).copied().unwrap_or_default());
        }
        if now.since(self.said) >= TOLD_EVERY {
            self.say(now);
        }
    }

    /// What is to be told now, the oldest first.
    pub fn due(&mut self) -> Option<SlotSeen> {
        self.due.pop_front()
    }

    /// By task what came since the last look, and whether that is all that came.
    fn count(&mut self, members: &[Member]) -> (BTreeMap<TaskId, u64>, bool) {
        let mut came: BTreeMap<TaskId, u64> = BTreeMap::new();
        let (mut told, mut all) = (BTreeMap::new(), false);
        for member in members.iter().filter(|member| member.role == Role::Gateway) {
            let key = (member.name.clone(), member.instance);
            let before = self.told.remove(&key);
            let left_out = before.as_ref().map_or(0, |(_, left_out)| *left_out).max(member.left_out);
            all = (all || told.is_empty()) && before.is_some() && left_out == 0;
            let now: BTreeMap<Class, u64> = member.demand.iter().map(|of| (of.class, of.arrived)).collect();
            for (class, arrived) in before.iter().flat_map(|_| &now) {
                let known = before.as_ref().and_then(|(before, _)| before.get(class)).copied();
                // A class that was not announced before had nothing, unless some were left out then or are now.
                let Some(known) = known.or((left_out == 0).then_some(0)) else { continue };
                let more = arrived.saturating_sub(known);
                if more > 0 {
                    *came.entry(class.task).or_default() += more;
                }
            }
            told.insert(key, (now, member.left_out));
        }
        self.told = told;
        (came, all)
    }

    /// Begins another slot, if it is time.
    fn turn(&mut self, now: Time) {
        let slot = Slot::of(now);
        if slot == self.slot {
            return;
        }
        self.say(now);
        self.slot = slot;
        self.seen = Micros::ZERO;
        self.tasks.clear();
    }

    fn say(&mut self, now: Time) {
        self.said = now;
        let asked = self.tasks.iter().filter(|(_, counted)| counted.bin.queries > 0);
        let mut bins: Vec<(TaskId, Bin)> = asked.map(|(task, counted)| (*task, counted.bin)).collect();
        if bins.is_empty() && self.seen == Micros::ZERO {
            return;
        }
        bins.sort_by_key(|(task, bin)| (Reverse(bin.queries), *task));
        bins.truncate(BINS_A_SLOT);
        let seen_s = u16::try_from(self.seen.0 / 1_000_000).unwrap_or(u16::MAX);
        // What was to be told of the same slot is in this.
        self.due.retain(|due| due.slot != self.slot);
        self.due.push_back(SlotSeen { slot: self.slot, seen_s, bins: bins.into_iter().collect() });
        while self.due.len() > Self::DUE {
            self.due.pop_front();
        }
    }

    /// Slots that wait for a store that does not answer: an hour.
    const DUE: usize = 12;

    /// What could not be told is told later, unless more is known of it by now.
    pub fn not_told(&mut self, seen: SlotSeen) {
        if self.due.iter().all(|due| due.slot != seen.slot) && self.due.len() < Self::DUE {
            self.due.push_front(seen);
        }
    }
}

impl Counted {
    fn add(&mut self, passed: Micros, came: u64) {
        self.bin.queries = self.bin.queries.saturating_add(came);
        self.last.push_back((passed, came));
        let over = |last: &VecDeque<(Micros, u64)>| last.iter().map(|(passed, _)| passed.0).sum::<u64>();
        while self.last.front().is_some_and(|(first, _)| over(&self.last) - first.0 >= PEAK_OVER.0) {
            self.last.pop_front();
        }
        // What came in a shorter time counts as if nothing had come before.
        let over = u128::from(over(&self.last).max(PEAK_OVER.0));
        let queries = u128::from(self.last.iter().map(|(_, came)| came).sum::<u64>());
        let rate = u64::try_from(queries * 1_000_000_000 / over).unwrap_or(u64::MAX);
        self.bin.peak_per_1000_s = self.bin.peak_per_1000_s.max(rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_live::Demand;

    const SLOT: Slot = Slot(5_900_000);
    const TASK: TaskId = TaskId(3);

    fn gateway(instance: u64, counts: &[(u8, u64)]) -> Member {
        let demand = |&(ordinal, arrived): &(u8, u64)| {
            let class = Class { task: TASK, admits: [ordinal].into_iter().collect() };
            Demand { class, arrived, in_time: 0, waiting: 0, within: Vec::new() }
        };
        Member { demand: counts.iter().map(demand).collect(), ..Member::new(Role::Gateway, "g", instance) }
    }

    fn at(second: u64) -> Time {
        SLOT.starts() + Micros::from_secs(second)
    }

    /// A slot, for how long it was seen, and the peak and the queries of it.
    type Told = (u32, u16, Option<(u64, u64)>);

    /// The last that was said of each slot.
    fn said(bins: &mut Bins) -> Vec<Told> {
        let of = |seen: SlotSeen| {
            let bin = seen.bins.get(&TASK).map(|bin| (bin.peak_per_1000_s, bin.queries));
            (seen.slot.0 - SLOT.0, seen.seen_s, bin)
        };
        std::iter::from_fn(|| bins.due()).map(of).collect()
    }

    #[test]
    fn a_slot_has_its_queries_and_the_most_that_came_for_five_seconds() {
        let mut bins = Bins::default();
        let mut arrived = 1_000_000;
        for second in 0..300 {
            // Forty a second for ten seconds, one a second else, looked at more often than once a second.
            arrived += if (100..110).contains(&second) { 40 } else { 1 };
            bins.look(at(second), Some(&[gateway(1, &[(0, arrived), (1, 7)])]));
            bins.look(at(second) + Micros(500_000), Some(&[gateway(1, &[(0, arrived), (1, 7)])]));
        }
        let whole = Some((40_000, 299 + 390));
        let told = said(&mut bins);
        assert_eq!(
            told,
            [(0, 240, Some((40_000, 240 + 390)))],
            "it is told while it runs, the last word only"
        );
        bins.look(at(300), Some(&[gateway(1, &[(0, arrived), (1, 7)])]));
        assert_eq!(said(&mut bins), [(0, 299, whole)]);
        bins.look(at(600), None);
        assert_eq!(said(&mut bins), [(1, 1, None)], "nothing was asked in the second that was seen");
    }

    #[test]
    fn what_is_not_known_was_not_seen() {
        let mut bins = Bins::default();
        let with = |counts: &[(u8, u64)], left_out| Member { left_out, ..gateway(1, counts) };
        bins.look(at(0), Some(&[gateway(1, &[(0, 500)])]));
        bins.look(at(1), Some(&[]));
        bins.look(at(2), Some(&[with(&[(0, 900)], 0)])); // met again
        bins.look(at(3), Some(&[with(&[(0, 910), (1, 5)], 0)]));
        bins.look(at(4), Some(&[with(&[(0, 911), (2, 5_000)], 3)])); // nobody knows when the third came
        bins.look(at(5), Some(&[with(&[(0, 912), (2, 5_001), (3, 7_000)], 0)])); // nor of the fourth, though none is left out now
        bins.look(at(6), None);
        bins.look(at(7), Some(&[with(&[(0, 915)], 0)])); // since the live state was away
        bins.look(at(40), Some(&[with(&[(0, 9_999)], 0)]));
        bins.look(at(41), Some(&[with(&[(0, 10_000)], 0), gateway(2, &[(0, 1_000_000)])]));
        bins.look(at(301), Some(&[]));
        assert_eq!(said(&mut bins), [(0, 1, Some((3_600, 10 + 5 + 1 + 2 + 1)))]);
    }

    #[test]
    fn what_could_not_be_told_is_told_again_and_no_more_of_it_than_there_is_room_for() {
        let mut bins = Bins::default();
        for slot in 0..40 {
            for second in [1, 2] {
                let now = at(slot * 300 + second);
                bins.look(now, Some(&[gateway(1, &[(0, slot * 2 + second)])]));
            }
        }
        let first = bins.due().unwrap();
        bins.not_told(first.clone());
        assert_eq!(bins.due(), Some(first.clone()));
        assert_eq!(said(&mut bins).len(), Bins::DUE - 1);
        bins.not_told(first.clone());
        assert_eq!(bins.due(), Some(first));
    }
}
