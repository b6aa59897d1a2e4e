//! What is asked of this gateway, class by class, for whoever plans. Counts only rise.
//!
//! Classes that nobody has asked for in a while are not forgotten, since what is told must not fall; but there is a bound, and of what
//! comes beyond it only that there is such is known.

use modelless_decision::admission;
use modelless_decision::query::Class;
use modelless_decision::route::Snapshot;
use modelless_types::{Goals, Micros, Refusal, TaskId, Time, Within};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Classes that are counted.
const KEPT: usize = 4_096;
/// Tasks of which is known when they were asked for.
const ASKED: usize = 4_096;
/// Classes that are told, those that are asked for most.
const TOLD: usize = 256;
/// Of a class so many bounds are counted apart.
const BOUNDS: usize = 16;

/// What was asked in one class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassDemand {
    /// The class.
    pub class: Class,
    /// Queries that came since the gateway started.
    pub arrived: u64,
    /// Of those, answered in time.
    pub in_time: u64,
    /// Queries that wait here at this moment.
    pub waiting: u32,
    /// Within what those that came were asked, rising.
    pub within: Vec<(Within, u64)>,
}

/// What is told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DemandTold {
    /// The classes that are asked for most.
    pub classes: Vec<ClassDemand>,
    /// How many more there are; where even these are too many to be counted, at least so many.
    pub left_out: u32,
    /// Queries that wait here at this moment, of whatever class.
    pub waiting: u32,
}

/// When tasks were asked for last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AskedTold {
    /// For how long that is known of: since the gateway began.
    pub up: Micros,
    /// When each was, on the same clock.
    pub tasks: Vec<(TaskId, Micros)>,
    /// Whether these are all that were asked for.
    pub all: bool,
}

#[derive(Debug)]
pub(crate) struct Demands {
    began: Time,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    of: BTreeMap<Class, Counted>,
    /// There are classes that are not counted.
    more: bool,
    /// When each task was asked for last.
    asked: BTreeMap<TaskId, Time>,
    /// There are tasks of which that is not known.
    more_asked: bool,
}

/// What came of one class.
#[derive(Debug, Default)]
struct Counted {
    arrived: u64,
    in_time: u64,
    /// By bound, rising.
    within: Vec<(Within, u64)>,
}

impl Counted {
    /// One came. Where there are too many bounds it counts as asked within the next that is tighter: what would be too slow for it
    /// is not taken to serve it.
    fn came(&mut self, bound: Micros) {
        self.arrived += 1;
        let within = Within::of(bound);
        match self.within.binary_search_by_key(&within, |(known, _)| *known) {
            Ok(at) => self.within[at].1 += 1,
            Err(at) if self.within.len() < BOUNDS => self.within.insert(at, (within, 1)),
            Err(0) => self.within[0] = (within, self.within[0].1 + 1),
            Err(at) => self.within[at - 1].1 += 1,
        }
    }
}

impl Demands {
    /// None, from now on.
    pub(crate) fn new(began: Time) -> Self {
        Self { began, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is refused because no machine is there counts all the same: none would ever come for it otherwise.
    pub(crate) fn turned_away(
        &self,
        (snapshot, task, goals): (&Snapshot, TaskId, &Goals),
        refusal: &Refusal,
        now: Time,
    ) {
        if matches!(refusal, Refusal::NothingRunnable { .. })
            && let Some(class) = admission::wanted(snapshot, task, goals)
        {
            let own = snapshot.task(task).and_then(|task| task.defaults.latency);
            let bound = goals.latency.or(own).unwrap_or(admission::DEFAULT_LATENCY);
            self.arrived(class, bound, now);
        }
    }

    pub(crate) fn arrived(&self, class: Class, bound: Micros, now: Time) {
        let mut counts = self.counts();
        if let Some(known) = counts.asked.get_mut(&class.task) {
            *known = now.max(*known);
        } else if counts.asked.len() < ASKED {
            counts.asked.insert(class.task, now);
        } else {
            counts.more_asked = true;
        }
        if counts.of.len() < KEPT || counts.of.contains_key(&class) {
            counts.of.entry(class).or_default().came(bound);
        } else {
            counts.more = true;
        }
    }

    /// Forgets when tasks were asked for that are not there any more, so that there is room for others.
    pub(crate) fn forget(&self, is_there: impl Fn(TaskId) -> bool) {
        self.counts().asked.retain(|task, _| is_there(*task));
    }

    pub(crate) fn answered_in_time(&self, class: Class) {
        if let Some(counted) = self.counts().of.get_mut(&class) {
            counted.in_time += 1;
        }
    }

    pub(crate) fn asked(&self, now: Time) -> AskedTold {
        let counts = self.counts();
        let tasks = counts.asked.iter().map(|(task, at)| (*task, *at - self.began)).collect();
        AskedTold { up: now - self.began, tasks, all: !counts.more_asked }
    }

    pub(crate) fn told(&self, waiting: &[(Class, u32)]) -> DemandTold {
        let counts = self.counts();
        let left_out = counts.of.len().saturating_sub(TOLD) + usize::from(counts.more);
        let mut all: Vec<ClassDemand> = counts
            .of
            .iter()
            .map(|(&class, Counted { arrived, in_time, within })| ClassDemand {
                class,
                arrived: *arrived,
                in_time: *in_time,
                waiting: 0,
                within: within.clone(),
            })
            .collect();
        drop(counts);
        all.sort_by_key(|demand| (std::cmp::Reverse(demand.arrived), demand.class));
        all.truncate(TOLD);
        for demand in &mut all {
            let here = waiting.iter().find(|(class, _)| *class == demand.class);
            demand.waiting = here.map_or(0, |(_, waiting)| *waiting);
        }
        DemandTold {
            classes: all,
            left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
            waiting: waiting.iter().map(|(_, waiting)| *waiting).fold(0, u32::saturating_add),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000_000);
    const BOUND: Micros = Micros::from_millis(100);

    fn class(task: u32) -> Class {
        Class { task: TaskId(task), admits: [0].into_iter().collect() }
    }

    #[test]
    fn counts_rise_and_the_most_asked_for_is_told_first_within_bounds() {
        let demands = Demands::new(NOW);
        for task in 0..5_000 {
            demands.arrived(class(task), BOUND, NOW);
        }
        (0..3).for_each(|_| demands.arrived(class(70), BOUND, NOW));
        demands.answered_in_time(class(70));
        demands.answered_in_time(class(4_999)); // beyond the bound: not counted
        let told = demands.told(&[(class(70), 9), (class(4_999), 1)]);
        assert_eq!(told.classes.len(), TOLD);
        let first = ClassDemand {
            class: class(70),
            arrived: 4,
            in_time: 1,
            waiting: 9,
            within: vec![(Within::of(BOUND), 4)],
        };
        assert_eq!(told.classes[0], first);
        assert_eq!(demands.counts().of.len(), KEPT);
        assert_eq!(told.waiting, 10, "those of classes that are not told wait as well");
    }

    #[test]
    fn a_class_is_counted_by_its_bounds_and_where_there_are_too_many_by_the_next_that_is_tighter() {
        let demands = Demands::new(NOW);
        let within = |bounds: &[u64]| {
            for ms in bounds {
                demands.arrived(class(7), Micros::from_millis(*ms), NOW);
            }
            demands.told(&[]).classes[0].within.clone()
        };
        let known = |ms: u64, count: u64| (Within::of(Micros::from_millis(ms)), count);
        assert_eq!(within(&[100, 20, 101]), [known(20, 1), known(100, 2)]);
        let powers: Vec<u64> = (0..BOUNDS - 2).map(|n| 200 << n).collect();
        let all = within(&powers);
        assert_eq!((all.len(), all[2]), (BOUNDS, known(200, 1)));
        // Between two, beyond all and below all.
        let all = within(&[150, u64::from(u32::MAX), 1]);
        assert_eq!((all[0], all[1], all.len()), (known(1, 2), known(100, 3), BOUNDS));
        assert_eq!(all[BOUNDS - 1].1, 2);
        assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), demands.told(&[]).classes[0].arrived);
    }

    #[test]
    fn of_every_task_that_was_asked_for_is_told_when_that_was_or_else_that_it_is_not_known_of_all() {
        let demands = Demands::new(NOW);
        let at = |s| NOW + Micros::from_secs(s);
        // In two classes of one task, of which the later comes to be counted first.
        demands.arrived(Class { admits: [1].into_iter().collect(), ..class(7) }, BOUND, at(9));
        demands.arrived(class(7), BOUND, at(8));
        demands.arrived(class(8), BOUND, at(2));
        let told = demands.asked(at(20));
        let whole = |time: Micros| time.0 / 1_000_000;
        let tasks: Vec<_> = told.tasks.iter().map(|(task, at)| (task.0, whole(*at))).collect();
        assert_eq!((whole(told.up), tasks, told.all), (20, vec![(7, 9), (8, 2)], true));
        let most = u32::try_from(ASKED).unwrap();
        (0..most).for_each(|task| demands.arrived(class(task), BOUND, NOW));
        assert!(demands.asked(NOW).all);
        demands.arrived(class(most), BOUND, NOW);
        let told = demands.asked(NOW);
        assert_eq!((told.tasks.len(), told.all), (ASKED, false));
    }

    #[test]
    fn tasks_that_are_gone_make_room_for_others() {
        let demands = Demands::new(NOW);
        let most = u32::try_from(ASKED).unwrap();
        (0..most).for_each(|task| demands.arrived(class(task), BOUND, NOW));
        demands.forget(|task| task.0 < 7);
        demands.arrived(class(most), BOUND, NOW);
        let told = demands.asked(NOW);
        assert_eq!((told.tasks.len(), told.all), (8, true));
        assert!(told.tasks.iter().any(|(task, _)| task.0 == most));
    }

    #[test]
    fn classes_that_are_not_told_are_counted() {
        let demands = Demands::new(NOW);
        let left_out = |upto: u32| {
            (0..upto).for_each(|task| demands.arrived(class(task), BOUND, NOW));
            demands.told(&[]).left_out
        };
        let (told, kept) = (u32::try_from(TOLD).unwrap(), u32::try_from(KEPT).unwrap());
        assert_eq!([left_out(told), left_out(told + 7), left_out(kept)], [0, 7, kept - told]);
        assert_eq!(left_out(kept + 900), kept - told + 1, "at least one more");
    }
}
