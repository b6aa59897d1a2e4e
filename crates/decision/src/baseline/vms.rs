//! INFaaS' VM-autoscaler: every two seconds one look at how busy and how well the machines of each kind are.
//!
//! One is added where the least used of a kind is busier than 80 %, where each of them has an interfered variant, or, of the kind that is
//! busiest, where more than 80 % of all have an overloaded one; never a second while one is on its way. The paper tells no rule for taking
//! one away; this is that of its code: after fifteen looks in a row at which those of a kind were busy for at most 30 % on average, one
//! goes. Its code kills that one with all it has, which is a defect and no rule: here it drains, as every machine does.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Micros, Time};

/// Between looks.
const EVERY: Micros = Micros::from_secs(2);
/// Whoever asks every second is now and then some milliseconds early, and must not have to wait for the third one.
const EARLY: Micros = Micros::from_millis(250);
/// All of a kind busier than this: one more.
const BUSY: f64 = 0.8;
/// At most so busy on average: one fewer would do.
const IDLE: f64 = 0.3;
/// After so many looks in a row.
const IDLE_LOOKS: u32 = 15;

/// A machine at a look.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Worker {
    /// The share of its time since the look before that it was busy.
    pub busy: f64,
    /// One of its variants is asked for as much as it can do.
    pub overloaded: bool,
    /// One of its variants is slower than its profile, though it could do what is asked of it.
    pub interfered: bool,
}

/// What is to be done about a kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    /// One more.
    Add,
    /// One fewer.
    Take,
}

/// What it remembers from look to look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Autoscaler {
    /// Looks in a row at which each kind was idle.
    idle: Vec<u32>,
}

fn mean(all: &[Worker]) -> f64 {
    let count = u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    all.iter().map(|worker| worker.busy).sum::<f64>() / f64::from(count)
}

/// By how the machines of a kind are, of which there are some.
fn act(workers: &[Worker], idle_looks: u32) -> Option<Act> {
    let least = workers.iter().map(|worker| worker.busy).fold(f64::INFINITY, f64::min);
    if least > BUSY || workers.iter().all(|worker| worker.interfered) {
        return Some(Act::Add);
    }
    (idle_looks >= IDLE_LOOKS).then_some(Act::Take)
}

impl Autoscaler {
    /// A look at the machines that are there, kind by kind. What should be done, that which should most at the front: of these the
    /// first is done that can be.
    pub fn look(&mut self, kinds: &[Vec<Worker>]) -> Vec<(Act, usize)> {
        self.idle.resize(kinds.len(), 0);
        let all = || kinds.iter().flatten();
        let overloaded = all().filter(|worker| worker.overloaded).count();
        let crowded = overloaded * 5 > all().count() * 4;
        let mut acts: Vec<(Act, usize, f64)> = Vec::new();
        for (kind, workers) in kinds.iter().enumerate() {
            let mean = mean(workers);
            self.idle[kind] = if !workers.is_empty() && mean <= IDLE { self.idle[kind] + 1 } else { 0 };
            // A kind of which nothing is there is only added where all is crowded.
            let act = if workers.is_empty() { None } else { act(workers, self.idle[kind]) };
            acts.extend(act.map(|act| (act, kind, mean)));
            if crowded && act != Some(Act::Add) {
                acts.push((Act::Add, kind, mean));
            }
        }
        acts.sort_by(|a, b| a.0.cmp(&b.0).then(b.2.total_cmp(&a.2)).then(a.1.cmp(&b.1)));
        acts.into_iter().map(|(act, kind, _)| (act, kind)).collect()
    }

    /// One of a kind goes: it is watched anew before another one does.
    pub fn took(&mut self, kind: usize) {
        if let Some(idle) = self.idle.get_mut(kind) {
            *idle = 0;
        }
    }
}

/// A pool at this moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    /// At least so many machines.
    pub least: u32,
    /// At most so many.
    pub most: u32,
    /// Machines that serve or will.
    pub there: u32,
    /// Of these, how many have not joined yet.
    pub coming: u32,
    /// Those that serve: lanes that run and lanes there are, and whether a variant is overloaded or interfered.
    pub workers: BTreeMap<String, Seen>,
}

/// What a machine tells of itself at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Lanes that run a batch.
    pub busy_lanes: u16,
    /// Lanes that there are.
    pub lanes: u16,
    /// A variant is overloaded.
    pub overloaded: bool,
    /// A variant is interfered.
    pub interfered: bool,
}

/// Busy lanes and all lanes, summed over the moments since the last look.
type Sums = (u64, u64);

/// How many machines there should be of each pool. Machines tell only what they do at a moment, so what they told between two looks
/// is averaged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Targets {
    rules: Autoscaler,
    looked: Option<Time>,
    wanted: Vec<u32>,
    sums: BTreeMap<String, Sums>,
}

impl Targets {
    /// To be called once for each time that machines tell anew. At first there should be as many as there are.
    pub fn look(&mut self, now: Time, pools: &[Pool]) -> Vec<u32> {
        if self.wanted.len() != pools.len() {
            self.wanted = pools.iter().map(|pool| pool.there).collect();
        }
        for (wanted, pool) in self.wanted.iter_mut().zip(pools) {
            *wanted = (*wanted).max(pool.least).min(pool.most);
        }
        for (name, seen) in pools.iter().flat_map(|pool| &pool.workers) {
            let (busy, lanes) = self.sums.entry(name.clone()).or_default();
            *busy += u64::from(seen.busy_lanes);
            *lanes += u64::from(seen.lanes);
        }
        let due = self.looked.map_or(now + EVERY, |looked| looked + EVERY);
        self.looked.get_or_insert(now);
        if now + EARLY >= due {
            // One that is early counts as in time, or whoever asks often would look ever earlier.
            self.looked = Some(now.max(due));
            self.decide(pools);
        }
        self.wanted.clone()
    }

    fn decide(&mut self, pools: &[Pool]) {
        let sums = core::mem::take(&mut self.sums);
        let worker = |(name, seen): (&String, &Seen)| Worker {
            busy: sums.get(name).copied().map_or(0.0, share),
            overloaded: seen.overloaded,
            interfered: seen.interfered,
        };
        let of_pool = |pool: &Pool| pool.workers.iter().map(worker).collect();
        let kinds: Vec<Vec<Worker>> = pools.iter().map(of_pool).collect();
        for (act, kind) in self.rules.look(&kinds) {
            let (pool, wanted) = (&pools[kind], &mut self.wanted[kind]);
            if pool.coming > 0 {
                continue;
            }
            match act {
                // What was wanted before is there, or it waits for a reason that one more would wait for as well.
                Act::Add if pool.there >= *wanted && *wanted < pool.most => {
                    *wanted += 1;
                    return;
                }
                Act::Take if *wanted > pool.least => {
                    *wanted -= 1;
                    self.rules.took(kind);
                    return;
                }
                Act::Add | Act::Take => {}
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "lanes at some moments")]
fn share((busy, lanes): Sums) -> f64 {
    busy as f64 / lanes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn busy(busy: f64) -> Worker {
        Worker { busy, ..Worker::default() }
    }

    fn first(kinds: &[Vec<Worker>]) -> Option<(Act, usize)> {
        Autoscaler::default().look(kinds).first().copied()
    }

    #[test]
    fn one_is_added_where_the_least_used_of_a_kind_is_busier_than_four_fifths() {
        assert_eq!(first(&[vec![busy(0.81), busy(0.9)]]), Some((Act::Add, 0)));
        assert_eq!(first(&[vec![busy(0.79), busy(0.99)]]), None, "one has room");
        assert_eq!(first(&[vec![busy(0.5)], vec![busy(0.81)]]), Some((Act::Add, 1)), "of that hardware");
        assert_eq!(first(&[vec![busy(0.85)], vec![busy(0.95)]]), Some((Act::Add, 1)), "the busiest first");
    }

    #[test]
    fn one_is_added_where_all_of_a_kind_are_interfered_and_where_more_than_four_fifths_of_all_are_overloaded()
    {
        let sick = Worker { interfered: true, ..busy(0.1) };
        assert_eq!(first(&[vec![sick, sick]]), Some((Act::Add, 0)));
        assert_eq!(first(&[vec![sick, busy(0.1)]]), None, "one of them is well");
        let full = Worker { overloaded: true, ..busy(0.5) };
        assert_eq!(first(&[vec![full, full, full, full, busy(0.5)]]), None, "four fifths are not more");
        assert_eq!(first(&[vec![full; 5], vec![Worker { busy: 0.6, ..full }]]), Some((Act::Add, 1)));
    }

    #[test]
    fn one_is_taken_away_after_fifteen_idle_looks_and_fifteen_more_before_the_next() {
        let mut rules = Autoscaler::default();
        let idle = [vec![busy(0.3), busy(0.3)]];
        for look in 1..15 {
            assert_eq!(rules.look(&idle), [], "{look}");
        }
        assert_eq!(rules.look(&idle), [(Act::Take, 0)]);
        rules.took(0);
        for _ in 0..10 {
            assert_eq!(rules.look(&idle), []);
        }
        assert_eq!(rules.look(&[vec![busy(0.31)]]), [], "that was not idle");
        for _ in 0..14 {
            assert_eq!(rules.look(&idle), [], "in a row");
        }
        assert_eq!(rules.look(&idle), [(Act::Take, 0)]);
    }

    /// So many machines, each with so many of ten lanes busy.
    fn pool(there: u32, coming: u32, busy_lanes: u16) -> Pool {
        let seen = Seen { busy_lanes, lanes: 10, ..Seen::default() };
        let workers = (0..there - coming).map(|number| (format!("m-{number}"), seen)).collect();
        Pool { least: 1, most: 4, there, coming, workers }
    }

    fn at(s: u64) -> Time {
        Time::ZERO + Micros::from_secs(s)
    }

    #[test]
    fn machines_are_added_one_at_a_time_every_two_seconds_and_none_while_one_is_on_its_way() {
        let mut targets = Targets::default();
        let mut look = |s, pool| targets.look(at(s), &[pool])[0];
        assert_eq!([look(0, pool(1, 0, 10)), look(1, pool(1, 0, 10))], [1, 1], "two seconds are not over");
        assert_eq!(look(2, pool(1, 0, 10)), 2, "that is a look");
        assert_eq!([look(4, pool(2, 1, 10)), look(6, pool(2, 1, 10))], [2, 2], "it has not joined");
        assert_eq!(look(8, pool(2, 0, 10)), 3);
        assert_eq!(look(10, pool(3, 0, 10)), 4);
        assert_eq!(look(12, pool(4, 0, 10)), 4, "that is the most");
    }

    #[test]
    fn a_look_is_not_put_off_for_some_milliseconds() {
        let mut targets = Targets::default();
        let early = |ms| Time::ZERO + Micros::from_millis(ms);
        let seen = [0, 1_001, 1_990].map(|ms| targets.look(early(ms), &[pool(1, 0, 10)])[0]);
        assert_eq!(seen, [1, 1, 2]);
    }

    #[test]
    fn who_asks_all_the_time_is_early_once_and_no_more() {
        let mut targets = Targets::default();
        let mut wanted = 1;
        let mut looks = Vec::new();
        for ms in (0..8_000).step_by(10) {
            let now = Time::ZERO + Micros::from_millis(ms);
            let then = targets.look(now, &[Pool { most: 9, ..pool(wanted, 0, 10) }])[0];
            if core::mem::replace(&mut wanted, then) != then {
                looks.push(ms);
            }
        }
        assert_eq!(looks, [1_750, 3_750, 5_750, 7_750]);
    }

    #[test]
    fn how_busy_a_machine_was_is_what_it_told_since_the_last_look() {
        let mut targets = Targets::default();
        let mut look = |s, busy| targets.look(at(s), &[pool(1, 0, busy)])[0];
        assert_eq!([look(0, 10), look(1, 10), look(2, 4)], [1, 1, 1], "80 % are not more than 80 %");
        assert_eq!([look(3, 8), look(4, 9)], [1, 2]);
    }

    #[test]
    fn one_that_is_gone_is_still_wanted_and_the_idle_go_down_to_the_least() {
        let mut targets = Targets::default();
        assert_eq!(targets.look(at(0), &[pool(2, 0, 5)]), [2]);
        assert_eq!(targets.look(at(2), &[pool(1, 0, 5)]), [2], "another takes its place");
        let mut there = 2;
        for s in 2..100 {
            there = targets.look(at(2 * s), &[pool(there, 0, 1)])[0];
            assert_eq!(there, if s < 16 { 2 } else { 1 }, "{s}");
        }
    }

    #[test]
    fn a_second_is_not_wanted_while_the_first_cannot_be_had() {
        let mut targets = Targets::default();
        for s in 0..30 {
            // The budget is used up, so the second never comes.
            assert!(targets.look(at(s), &[pool(1, 0, 10)])[0] <= 2);
        }
    }
}
