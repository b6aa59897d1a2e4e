//! How many machines of each kind there should be: enough for what is asked now and will be once a machine that is asked for is
//! there. The simulator and the live scheduler decide by it alike; what they do about it is theirs.
//!
//! Demand of each kind of query is the highest of its mean rates over 2 and 10 s, and what it rises by, if it does, for as long as a
//! machine takes to start. Work is counted in the cheapest variant that keeps the floor, in batches that take half of the
//! bound: what is more accurate is for lanes that are paid and idle. Machines that stay come first, then those that do most for their
//! price, until none is busier than is wanted. A machine goes only when the highest five seconds of the last minute would do
//! without it.
//!
//! What earlier days tell ([`crate::forecast`]) is added where it is more than what is counted: of a task that comes by the time that a machine
//! asked for now serves, and, for one to stay, that comes again before another one would be worth its start. It takes nothing away.

use crate::estimate::{Moments, RunModel};
use crate::query::Class;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use modelless_types::{Micros, TaskId};

/// So many seconds are remembered where nothing else is said.
pub const REMEMBERED: usize = 60;
/// Of these an hour's worth of trend is not believed: a rise is carried on for so many seconds at most.
const AHEAD_S: f64 = 60.0;

/// Queries that are alike: who may answer them, and their bound.
pub type Asked = (Class, Micros);

/// What was asked, second by second, the last one at the end.
#[derive(Clone, Debug)]
pub struct Counts {
    now: BTreeMap<Asked, u64>,
    past: BTreeMap<Asked, VecDeque<u64>>,
    remembered: usize,
    passed: usize,
}

/// Machines that are alike.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Kind {
    /// How many there may be.
    pub most: usize,
    /// How many of them are there whatever is asked.
    pub stay: usize,
    /// Batches that one of them runs side by side.
    pub lanes: f64,
    /// What one costs.
    pub usd_per_hour: f64,
    /// From asking for one until it serves, in seconds.
    pub lead_s: f64,
}

/// What there may be.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Of each kind.
    pub kinds: &'a [Kind],
    /// None is to be busier than this share of its time.
    pub busy: f64,
    /// What all together may cost an hour; infinite where that is not limited.
    pub budget_usd: f64,
}

/// What is expected beside what is counted, in queries a second by task.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Expected {
    /// By the time that a machine which is asked for now serves.
    pub soon: BTreeMap<TaskId, f64>,
    /// Before it would be worth to let one go and have another come.
    pub again: BTreeMap<TaskId, f64>,
    /// What of a task is asked, where it is not asked for now; a task that is not here is expected nothing of.
    pub usual: BTreeMap<TaskId, Asked>,
}

impl Expected {
    /// Rates with what lacks of a task to what is expected of it.
    fn lift(&self, mut rates: BTreeMap<Asked, f64>, by: &BTreeMap<TaskId, f64>) -> BTreeMap<Asked, f64> {
        for (task, expected) in by {
            let known: f64 =
                rates.iter().filter(|((class, _), _)| class.task == *task).map(|(_, rate)| rate).sum();
            if let Some(usual) = self.usual.get(task).filter(|_| *expected > known) {
                *rates.entry(*usual).or_default() += expected - known;
            }
        }
        rates
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self::over(REMEMBERED)
    }
}

impl Counts {
    /// Counts that remember so many seconds, ten at least.
    pub fn over(remembered: usize) -> Self {
        Self { now: BTreeMap::new(), past: BTreeMap::new(), remembered: remembered.max(10), passed: 0 }
    }

    /// Remembers so many seconds from now on, ten at least.
    pub fn remember(&mut self, seconds: usize) {
        self.remembered = seconds.max(10);
        for past in self.past.values_mut() {
            past.drain(..past.len().saturating_sub(self.remembered));
        }
        self.passed = self.passed.min(self.remembered);
    }

    /// So many queries came.
    pub fn came(&mut self, asked: Asked, many: u64) {
        *self.now.entry(asked).or_default() += many;
    }

    /// A second has passed.
    pub fn pass(&mut self) {
        for (asked, many) in &self.now {
            let past = self.past.entry(*asked).or_default();
            past.push_back(*many);
            if past.len() > self.remembered {
                past.pop_front();
            }
        }
        self.now.values_mut().for_each(|many| *many = 0);
        self.passed = (self.passed + 1).min(self.remembered);
    }

    /// Whether it was watched for as long as anything is remembered: before that, nobody may be let go for want of demand.
    pub fn watched(&self) -> bool {
        self.passed == self.remembered
    }

    /// Forgets what was not asked for as long as anything is remembered.
    pub fn forget_silent(&mut self) {
        let remembered = self.remembered;
        self.past.retain(|_, past| past.len() < remembered || past.iter().any(|many| *many > 0));
        let past = &self.past;
        self.now.retain(|asked, many| *many > 0 || past.contains_key(asked));
    }

    /// As if so much had been asked of a task for as long as anything is remembered, in queries a second, instead of what was.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "queries of seconds"
    )]
    pub fn suppose(&mut self, task: TaskId, rates: &[(Asked, f64)]) {
        self.past.retain(|(class, _), _| class.task != task);
        self.now.retain(|(class, _), _| class.task != task);
        for (asked, rate) in rates {
            // Parts of a query add up over the seconds.
            let until = |second: usize| (second as f64 * rate) as u64;
            let past = (0..self.remembered).map(|second| until(second + 1) - until(second));
            self.past.insert(*asked, past.collect());
        }
        self.passed = self.remembered;
    }

    /// Means over so many seconds until so many seconds ago.
    #[expect(clippy::cast_precision_loss, reason = "queries of seconds")]
    fn mean(past: &VecDeque<u64>, over: usize, until: usize) -> f64 {
        let count: u64 = past.iter().rev().skip(until).take(over).sum();
        if over == 0 { 0.0 } else { count as f64 / over as f64 }
    }

    /// What is asked a second.
    pub fn level(&self) -> BTreeMap<Asked, f64> {
        let level =
            |past: &VecDeque<u64>| Self::mean(past, 2, 0).max(Self::mean(past, 10.min(past.len().max(1)), 0));
        self.past.iter().map(|(asked, past)| (*asked, level(past))).collect()
    }

    /// What will be asked a second, when a machine that is asked for now is there.
    fn soon(&self, lead_s: f64) -> BTreeMap<Asked, f64> {
        let mut level = self.level();
        for (asked, level) in &mut level {
            let past = &self.past[asked];
            let (late, early) = (Self::mean(past, 5, 0), Self::mean(past, 5, 5));
            // Less than this is chance.
            let sure = 2.0 * libm::sqrt((late + early) / 5.0);
            let rises = if past.len() >= 10 && late - early > sure { (late - early) / 5.0 } else { 0.0 };
            *level += rises * lead_s.min(AHEAD_S);
        }
        level
    }

    /// The most that was asked for five seconds.
    fn lately(&self) -> BTreeMap<Asked, f64> {
        let rate = |past: &VecDeque<u64>| {
            let means = (0..past.len().div_ceil(5)).map(|n| Self::mean(past, 5, 5 * n));
            means.fold(0.0, f64::max)
        };
        self.past.iter().map(|(asked, past)| (*asked, rate(past))).collect()
    }
}

/// The most of a model that a lane can do within a bound, a second.
pub fn best_rate(run: &RunModel, max_batch: u32, bound: Micros) -> f64 {
    let bound = Moments::exactly(bound).mean;
    let rate = |batch: u32| {
        let mean = run.uncorrected(batch).mean;
        if mean > 0.0 && mean <= bound { f64::from(batch) * 1e6 / mean } else { 0.0 }
    };
    (1..=max_batch).map(rate).fold(0.0, f64::max)
}

/// Device time of a query in seconds, in that of these variants which takes least, each with its largest batch; `None` where none
/// can answer within the bound.
pub fn takes<'a>(may: impl Iterator<Item = (&'a RunModel, u32)>, bound: Micros) -> Option<f64> {
    let rate = |(run, max_batch): (&RunModel, u32)| {
        let half = best_rate(run, max_batch, Micros(bound.0 / 2));
        if half > 0.0 { half } else { best_rate(run, 1, bound) }
    };
    let best = may.map(rate).fold(0.0, f64::max);
    (best > 0.0).then(|| 1.0 / best)
}

/// Machines of each kind that do these rates; `takes` by kind and what is asked.
fn enough(
    rates: &BTreeMap<Asked, f64>,
    Room { kinds, busy, budget_usd }: Room<'_>,
    takes: &dyn Fn(usize, Asked) -> Option<f64>,
) -> Vec<usize> {
    let mut left = rates.clone();
    let mut many: Vec<usize> = kinds.iter().map(|kind| kind.stay.min(kind.most)).collect();
    let cost = |many: &[usize]| {
        let each = kinds.iter().zip(many);
        each.map(|(kind, many)| kind.usd_per_hour * f64::from(u32::try_from(*many).unwrap_or(u32::MAX)))
            .sum::<f64>()
    };
    // Of what is left, what one more machine of a kind takes.
    let serve = |left: &mut BTreeMap<Asked, f64>, kind: usize| {
        let each = |asked: &Asked, rate: f64| takes(kind, *asked).map(|takes| takes * rate);
        let work: f64 = left.iter().filter_map(|(asked, rate)| each(asked, *rate)).sum();
        let share = (busy * kinds[kind].lanes / work.max(1e-12)).min(1.0);
        for (asked, rate) in left.iter_mut() {
            if takes(kind, *asked).is_some() {
                *rate *= 1.0 - share;
            }
        }
    };
    for (at, there) in many.iter().enumerate() {
        for _ in 0..*there {
            serve(&mut left, at);
        }
    }
    loop {
        let before: f64 = left.values().sum();
        if before <= 1e-6 {
            return many;
        }
        let gain = |at: usize| {
            let mut after = left.clone();
            serve(&mut after, at);
            // What the last one takes less of is no reason to take a dearer one: a part of it is paid in whole.
            (before - after.values().sum::<f64>()) / kinds[at].usd_per_hour.max(1e-9)
        };
        // Where a dear one is too much, a cheap one may not be.
        let spent = cost(&many);
        let payable = |at: &usize| spent + kinds[*at].usd_per_hour <= budget_usd * (1.0 + 1e-9);
        let open = (0..kinds.len()).filter(|at| many[*at] < kinds[*at].most).filter(payable);
        let best = open.map(|at| (gain(at), at)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        match best {
            Some((gain, at)) if gain > 1e-9 => {
                many[at] += 1;
                serve(&mut left, at);
            }
            Some(_) | None => return many,
        }
    }
}

/// At least and at most so many machines of each kind there should be now.
pub fn wanted(
    (counts, expected): (&Counts, &Expected),
    room: Room<'_>,
    takes: &dyn Fn(usize, Asked) -> Option<f64>,
) -> Vec<(usize, usize)> {
    let lead_s = room.kinds.iter().map(|kind| kind.lead_s).fold(0.0, f64::max);
    let least = enough(&expected.lift(counts.soon(lead_s), &expected.soon), room, takes);
    let most = enough(&expected.lift(counts.lately(), &expected.again), room, takes);
    least.into_iter().zip(most).map(|(least, most)| (least, most.max(least))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::VariantSet;

    const TAKES_S: f64 = 0.01;
    const NONE: Expected = Expected { soon: BTreeMap::new(), again: BTreeMap::new(), usual: BTreeMap::new() };

    fn asked() -> Asked {
        (Class { task: TaskId(1), admits: [0].into_iter().collect::<VariantSet>() }, Micros::from_millis(100))
    }

    fn kind(most: usize, stay: usize, usd_per_hour: f64) -> Kind {
        Kind { most, stay, lanes: 1.0, usd_per_hour, lead_s: 10.0 }
    }

    /// None busier than seven tenths, whatever they cost.
    fn room(kinds: &[Kind]) -> Room<'_> {
        Room { kinds, busy: 0.7, budget_usd: f64::INFINITY }
    }

    fn after(counts: &[u64]) -> Counts {
        let mut all = Counts::default();
        for many in counts {
            all.came(asked(), *many);
            all.pass();
        }
        all
    }

    #[test]
    fn there_are_as_many_machines_as_keep_them_seven_tenths_busy() {
        // A query takes 10 ms, so that a machine does 70 a second.
        for (rate, many) in [(0, 1), (60, 1), (69, 1), (71, 2), (139, 2), (141, 3), (900, 4)] {
            let counts = after(&[rate; 20]);
            let seen = wanted((&counts, &NONE), room(&[kind(4, 1, 1.0)]), &|_, _| Some(TAKES_S));
            assert_eq!(seen, [(many, many)], "{rate}");
        }
    }

    #[test]
    fn a_rise_is_answered_for_the_time_that_a_machine_takes_and_a_fall_after_a_minute() {
        // From 50 to 58 a second: so little may be chance.
        assert_eq!(
            wanted((&after(&[&[50; 5][..], &[58; 5]].concat()), &NONE), room(&[kind(9, 1, 1.0)]), &|_, _| {
                Some(TAKES_S)
            }),
            [(1, 1)]
        );
        // From 100 to 200: 20 more a second each, 400 when it comes: 5.7 machines.
        let rising = after(&[&[100; 5][..], &[200; 5]].concat());
        assert_eq!(wanted((&rising, &NONE), room(&[kind(9, 1, 1.0)]), &|_, _| Some(TAKES_S)), [(6, 6)]);
        let fallen = after(&[&[300; 10][..], &[10; 30]].concat());
        assert_eq!(wanted((&fallen, &NONE), room(&[kind(9, 1, 1.0)]), &|_, _| Some(TAKES_S)), [(1, 5)]);
        let long_ago = after(&[&[300; 10][..], &[10; 60]].concat());
        assert_eq!(wanted((&long_ago, &NONE), room(&[kind(9, 1, 1.0)]), &|_, _| Some(TAKES_S)), [(1, 1)]);
    }

    #[test]
    fn the_kind_that_does_most_for_its_price_is_taken_and_another_when_there_is_no_more_of_it() {
        // The second takes a quarter of the time and costs thrice as much.
        let takes = |kind: usize, _: Asked| Some(if kind == 0 { TAKES_S } else { TAKES_S / 4.0 });
        let kinds = [kind(9, 0, 1.0), kind(2, 0, 3.0)];
        assert_eq!(wanted((&after(&[500; 20]), &NONE), room(&kinds), &takes), [(0, 0), (2, 2)]);
        let many = wanted((&after(&[700; 20]), &NONE), room(&kinds), &takes);
        assert_eq!(many[1], (2, 2));
        assert_eq!(many[0], (2, 2), "560 a second are done by two, 140 are left");
    }

    #[test]
    fn what_may_not_be_spent_on_a_dear_one_is_spent_on_a_cheap_one() {
        // The dear one does six times as much for thrice the price.
        let takes = |kind: usize, _: Asked| Some(if kind == 0 { TAKES_S } else { TAKES_S / 6.0 });
        let kinds = [kind(9, 0, 1.0), kind(9, 0, 3.0)];
        let many = |budget_usd| {
            let room = Room { budget_usd, ..room(&kinds) };
            wanted((&after(&[800; 20]), &NONE), room, &takes)
        };
        assert_eq!(many(f64::INFINITY), [(0, 0), (2, 2)]);
        assert_eq!(many(5.0), [(2, 2), (1, 1)], "a second dear one would make it 6");
        assert_eq!(many(2.0), [(2, 2), (0, 0)]);
        assert_eq!(many(0.0), [(0, 0), (0, 0)]);
    }

    #[test]
    fn what_is_not_there_and_cannot_be_had_serves_nobody() {
        let takes = |_: usize, _: Asked| Some(TAKES_S);
        let kinds = |most| [Kind { most, ..kind(9, 3, 1.0) }, kind(9, 0, 2.0)];
        assert_eq!(wanted((&after(&[200; 20]), &NONE), room(&kinds(9)), &takes), [(3, 3), (0, 0)]);
        assert_eq!(wanted((&after(&[200; 20]), &NONE), room(&kinds(1)), &takes), [(1, 1), (2, 2)]);
    }

    #[test]
    fn more_or_fewer_seconds_may_be_remembered_from_now_on() {
        let mut counts = after(&[&[300; 10][..], &[10; 50]].concat());
        assert!(counts.watched());
        counts.remember(70);
        assert!(!counts.watched(), "nobody knows what was ten seconds before");
        (0..10).for_each(|_| {
            counts.came(asked(), 10);
            counts.pass();
        });
        assert!(counts.watched() && counts.lately()[&asked()] > 299.0);
        counts.remember(20);
        assert!(counts.watched() && counts.lately()[&asked()] < 11.0);
    }

    #[test]
    fn what_is_expected_counts_where_it_is_more_and_a_machine_stays_for_what_comes_again() {
        let of = |soon: &[(u32, f64)], again: &[(u32, f64)]| {
            let rates = |all: &[(u32, f64)]| all.iter().map(|(task, rate)| (TaskId(*task), *rate)).collect();
            Expected { soon: rates(soon), again: rates(again), usual: [(TaskId(1), asked())].into() }
        };
        let many = |counts: &Counts, expected: &Expected| {
            wanted((counts, expected), room(&[kind(9, 1, 1.0)]), &|_, _| Some(TAKES_S))[0]
        };
        let (quiet, busy) = (after(&[0; 60]), after(&[300; 60]));
        assert_eq!((many(&quiet, &NONE), many(&busy, &NONE)), ((1, 1), (5, 5)));
        assert_eq!(many(&quiet, &of(&[(1, 300.0)], &[(1, 300.0)])), (5, 5));
        assert_eq!(
            many(&quiet, &of(&[], &[(1, 300.0)])),
            (1, 5),
            "one that is there stays, and none is asked for"
        );
        assert_eq!(
            many(&busy, &of(&[(1, 100.0)], &[(1, 100.0)])),
            (5, 5),
            "it lowers nothing and is not added"
        );
        assert_eq!(many(&busy, &of(&[(1, 400.0)], &[(1, 400.0)])), (6, 6));
        assert_eq!(
            many(&quiet, &of(&[(2, 300.0)], &[(2, 300.0)])),
            (1, 1),
            "nobody knows what that task takes"
        );
    }

    #[test]
    fn what_is_supposed_to_be_asked_counts_as_if_it_had_been_all_the_time() {
        let mut counts = after(&[500; 3]);
        let other = (Class { task: TaskId(9), admits: [0].into_iter().collect() }, Micros::from_millis(100));
        counts.came(other, 20);
        counts.pass();
        assert!(!counts.watched());
        counts.suppose(TaskId(1), &[(asked(), 70.5)]);
        assert!(counts.watched(), "what is supposed is known for as long as anything is");
        let level = counts.level();
        assert!((level[&asked()] - 70.5).abs() < 0.51 && level[&other] > 0.0, "{level:?}");
        let takes = |_: usize, of: Asked| (of == asked()).then_some(TAKES_S);
        assert_eq!(
            wanted((&counts, &NONE), room(&[kind(9, 0, 1.0)]), &takes),
            [(2, 2)],
            "one does 70 a second"
        );
        counts.suppose(TaskId(1), &[]);
        assert_eq!(wanted((&counts, &NONE), room(&[kind(9, 0, 1.0)]), &takes), [(0, 0)]);
    }

    #[test]
    fn what_is_not_asked_any_more_is_forgotten_and_what_is_stays() {
        let mut counts = after(&[&[7; 5][..], &[0; 59]].concat());
        counts.forget_silent();
        assert_eq!(counts.level().len(), 1, "a minute is not over");
        counts.pass();
        counts.forget_silent();
        assert!(counts.level().is_empty() && counts.now.is_empty());
        counts.came(asked(), 9);
        counts.pass();
        counts.forget_silent();
        assert_eq!(counts.level().values().copied().collect::<Vec<_>>(), [9.0]);
    }
}
