//! Which tasks sleep: nothing of them is pinned, since nobody has asked for as long as each is kept.
//!
//! Whoever knows too little moves nothing: a task falls asleep only where it is known that nobody asked for so long, and wakes only
//! by a query that is known of. Several schedulers see times a little apart, and count from different moments. So there is a band between
//! the two: what one has just put to sleep was asked for longer ago than half of what it is kept, and the other does not wake it. The other way
//! round, whoever wakes a task counts that in the plan, and whoever reads a count that is new takes the task as asked for just now.
//!
//! What earlier days tell ([`crate::forecast`]) wakes a task before it is asked for, and keeps it awake while that is still to come; the
//! second reaches further than the first, so that the same holds between two.

use super::{Input, Plan};
use crate::forecast::Ahead;
use crate::words::span;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Micros, TaskId};
use serde::{Deserialize, Serialize};

/// A task as the plan sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanTask {
    /// Which.
    pub id: TaskId,
    /// For how long it is kept in memory after its last query. `None` is always.
    pub keep: Option<Micros>,
    /// How long ago the last query came that is known of.
    #[serde(default)]
    pub asked: Option<Micros>,
    /// For how long nobody has asked, for certain. `None` where that is not known.
    #[serde(default)]
    pub unasked: Option<Micros>,
    /// What is expected of it by what was asked on earlier days. `None` where that does not count, or is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
}

impl PlanTask {
    fn soon(&self) -> bool {
        self.ahead.is_some_and(|ahead| ahead.soon.is_some())
    }

    fn held(&self) -> bool {
        self.ahead.is_some_and(|ahead| ahead.held.is_some())
    }
}

/// Whether a task sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rest {
    /// Nothing of it is pinned.
    pub asleep: bool,
    /// How often it was woken so far. Starts anew where the task is kept always for a while.
    pub woken: u32,
}

/// Why a task sleeps or does not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskStep {
    /// Which.
    pub task: TaskId,
    /// Why, with the figures that decided.
    pub why: String,
}

/// A task that falls asleep, or wakes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turned {
    /// Which.
    pub task: TaskId,
    /// It falls asleep; otherwise it wakes.
    pub asleep: bool,
    /// Why.
    pub why: String,
}

/// Since when a query wakes: within half of what a task is kept.
const fn wakes(asked: Option<Micros>, keep: Micros) -> bool {
    matches!(asked, Some(ago) if ago.0 < keep.0 / 2)
}

const fn falls_asleep(unasked: Option<Micros>, keep: Micros) -> bool {
    matches!(unasked, Some(idle) if idle.0 >= keep.0)
}

/// How every task rests after `before`, and why. What is kept always stands in neither.
pub(super) fn rests(tasks: &[PlanTask], before: &Plan) -> (BTreeMap<TaskId, Rest>, Vec<TaskStep>) {
    let (mut rests, mut steps) = (BTreeMap::new(), Vec::new());
    for task in tasks {
        let was = before.rest.get(&task.id).copied().unwrap_or_default();
        let Some(keep) = task.keep else { continue };
        let rest = match was.asleep {
            true if wakes(task.asked, keep) || task.soon() => {
                Rest { asleep: false, woken: was.woken.wrapping_add(1) }
            }
            false if falls_asleep(task.unasked, keep) && !task.held() => Rest { asleep: true, ..was },
            true | false => was,
        };
        steps.push(TaskStep { task: task.id, why: why(task, keep, rest.asleep) });
        if rest != Rest::default() {
            rests.insert(task.id, rest);
        }
    }
    (rests, steps)
}

fn why(task: &PlanTask, keep: Micros, asleep: bool) -> String {
    let expected = task.ahead.and_then(|ahead| ahead.words()).filter(|_| !asleep);
    match expected {
        None => known(task, keep, asleep),
        Some(expected) if falls_asleep(task.unasked, keep) || task.asked.is_none() => expected,
        Some(expected) => format!("{}; besides, {expected}", known(task, keep, asleep)),
    }
}

fn known(task: &PlanTask, keep: Micros, asleep: bool) -> String {
    let kept = span(keep);
    match (asleep, task.unasked.or(task.asked), task.asked) {
        (true, Some(idle), _) => {
            format!("nobody asked for its task for {}, and it is kept for {kept}", span(idle))
        }
        (true, None, _) => format!("its task sleeps until somebody asks for it; it is kept for {kept} then"),
        (false, _, Some(ago)) => format!("its task was asked for {} ago, and is kept for {kept}", span(ago)),
        (false, _, None) => {
            format!("it is not known that nobody asked for its task for {kept}, as long as it is kept")
        }
    }
}

/// The tasks that fall asleep or wake from one plan to the next.
pub fn turns(before: &Plan, after: &Plan) -> Vec<Turned> {
    let why = |task: TaskId| {
        let step = after.tasks.iter().find(|step| step.task == task);
        step.map_or_else(|| "it is kept always, or gone".into(), |step| step.why.clone())
    };
    let mut all: Vec<TaskId> = before.rest.keys().chain(after.rest.keys()).copied().collect();
    all.sort_unstable();
    all.dedup();
    let turn = |task| {
        let asleep = after.sleeps(task);
        (asleep != before.sleeps(task)).then(|| Turned { task, asleep, why: why(task) })
    };
    all.into_iter().filter_map(turn).collect()
}

/// Tasks that turn though what is known of them does not say so. Looked at apart from how plans are made.
pub(super) fn unfounded(input: &Input, before: &Plan, plan: &Plan) -> Vec<(TaskId, bool)> {
    let turned = |task: &&PlanTask| plan.sleeps(task.id) != before.sleeps(task.id);
    let founded = |task: &PlanTask| match (plan.sleeps(task.id), task.keep) {
        (true, None) => false,
        (true, Some(keep)) => task.unasked.is_some_and(|idle| idle >= keep) && !task.held(),
        (false, None) => true,
        (false, Some(keep)) => task.soon() || task.asked.is_some_and(|ago| ago < Micros(keep.0 / 2)),
    };
    let known = input.tasks.iter().filter(turned).filter(|task| !founded(task));
    let known = known.map(|task| (task.id, plan.sleeps(task.id)));
    let unknown =
        plan.rest.iter().filter(|(id, rest)| rest.asleep && input.tasks.iter().all(|t| t.id != **id));
    known.chain(unknown.map(|(id, _)| (*id, true))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{check, plan};
    use super::*;
    use proptest::prelude::*;

    const TASK: TaskId = TaskId(3);
    const KEEP: Micros = Micros::from_secs(600);

    fn input(asked: Option<u64>, unasked: Option<u64>) -> Input {
        let (asked, unasked) = (asked.map(Micros::from_secs), unasked.map(Micros::from_secs));
        let task = PlanTask { id: TASK, keep: Some(KEEP), asked, unasked, ahead: None };
        Input { tasks: alloc::vec![task], ..Input::default() }
    }

    fn asleep(woken: u32) -> Plan {
        Plan { rest: BTreeMap::from([(TASK, Rest { asleep: true, woken })]), ..Plan::default() }
    }

    #[test]
    fn a_task_sleeps_once_nobody_asked_for_as_long_as_it_is_kept_and_wakes_by_a_query() {
        let awake = Plan::default();
        for unasked in [None, Some(0), Some(599)] {
            let made = plan(&input(unasked, unasked), &awake);
            assert!(!made.sleeps(TASK) && turns(&awake, &made).is_empty(), "{unasked:?}");
        }
        let made = plan(&input(Some(720), Some(720)), &awake);
        let turned = turns(&awake, &made);
        assert!(turned[0].asleep && turned[0].why.contains("for 12 min") && turned[0].why.contains("10 min"));
        for asked in [None, Some(300), Some(720)] {
            assert!(plan(&input(asked, asked), &made).sleeps(TASK), "{asked:?}");
        }
        let woken = plan(&input(Some(299), Some(299)), &made);
        assert_eq!(woken.rest.get(&TASK), Some(&Rest { asleep: false, woken: 1 }));
        let turned = turns(&made, &woken);
        assert!(!turned[0].asleep && turned[0].why.contains("asked for 299 s ago"), "{turned:?}");
    }

    #[test]
    fn whoever_knows_nothing_moves_nothing() {
        assert!(plan(&input(None, None), &asleep(4)).sleeps(TASK));
        assert!(!plan(&input(None, None), &Plan::default()).sleeps(TASK));
        let always = PlanTask { id: TASK, keep: None, asked: None, unasked: None, ahead: None };
        let always = Input { tasks: alloc::vec![always], ..Input::default() };
        let woken = plan(&always, &asleep(4));
        assert!(woken.rest.is_empty() && turns(&asleep(4), &woken).len() == 1);
        assert!(plan(&Input::default(), &asleep(4)).rest.is_empty(), "the task is gone");
    }

    #[test]
    fn what_turns_without_a_reason_is_found_before_it_is_saved() {
        let (awake, asleep) = (Plan::default(), asleep(0));
        let broken = |input: &Input, before: &Plan, after: &Plan| check(input, before, after).len();
        assert_eq!(broken(&input(Some(600), Some(600)), &awake, &asleep), 0);
        assert_eq!(broken(&input(Some(599), Some(599)), &awake, &asleep), 1);
        assert_eq!(broken(&input(Some(600), None), &awake, &asleep), 1);
        assert_eq!(broken(&input(Some(299), Some(299)), &asleep, &awake), 0);
        assert_eq!(broken(&input(Some(300), Some(300)), &asleep, &awake), 1);
        assert_eq!(broken(&input(None, None), &asleep, &asleep), 0);
        assert_eq!(broken(&Input::default(), &asleep, &asleep), 1, "nobody knows the task");
    }

    /// What a scheduler sees: the last query that had come when its view was taken, or that it read of in the plan.
    struct Scheduler {
        lag: u64,
        woken: u32,
        took_as_asked: Option<u64>,
    }

    impl Scheduler {
        fn round(&mut self, now: u64, queries: &[u64], keep: u64, saved: &mut Plan) -> bool {
            let rest = saved.rest.get(&TASK).copied().unwrap_or_default();
            if core::mem::replace(&mut self.woken, rest.woken) != rest.woken {
                self.took_as_asked = Some(now);
            }
            let seen = now.saturating_sub(self.lag);
            let last = queries.iter().copied().filter(|at| *at <= seen).max();
            let asked = last.map(|at| Micros(seen - at));
            let remembered = self.took_as_asked.map(|at| Micros(now - at));
            let unasked = Some(asked.into_iter().chain(remembered).min().unwrap_or(Micros(seen)));
            let task = PlanTask { id: TASK, keep: Some(Micros(keep)), asked, unasked, ahead: None };
            let input = Input { tasks: alloc::vec![task], ..Input::default() };
            let next = plan(&input, saved);
            assert!(check(&input, saved, &next).is_empty());
            let changed = next.rest != saved.rest;
            *saved = next;
            changed
        }
    }

    proptest! {
        /// Whatever they see of queries, and in whatever order they plan: a task falls asleep once after each time that it was
        /// left alone, and is woken once by who comes then.
        #[test]
        fn two_schedulers_whose_views_are_apart_never_take_turns(
            keep_ms in 5_000_u64..60_000,
            lags in (0_u64..2_000, 0_u64..2_000),
            gaps in prop::collection::vec(100_u64..150_000, 1..12),
            order in prop::collection::vec((any::<bool>(), 100_u64..1_000), 400..900),
        ) {
            let queries: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let new = |lag| Scheduler { lag, woken: 0, took_as_asked: None };
            let (mut first, mut second) = (new(lags.0), new(lags.1));
            let (mut saved, mut now, mut changes) = (Plan::default(), 0, Vec::new());
            for (which, step) in order {
                now += step;
                let scheduler = if which { &mut first } else { &mut second };
                if scheduler.round(now, &queries, keep_ms, &mut saved) {
                    changes.push(now);
                }
            }
            // Every time that it was left alone makes one plan at most, and so does the query after it.
            let alone = |from: u64, until: u64| until.saturating_sub(from) >= keep_ms;
            let starts = core::iter::once(0).chain(queries.iter().copied());
            let ends = queries.iter().copied().chain([u64::MAX]);
            let pauses = starts.zip(ends).filter(|(from, until)| *from < now && alone(*from, *until)).count();
            prop_assert!(changes.len() <= pauses * 2, "{changes:?} of {queries:?}, kept for {keep_ms}");
        }
    }
}
