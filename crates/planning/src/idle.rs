//! For how long nobody has asked for each task, out of what all gateways announce.
//!
//! A gateway tells when, on its own clock, the last query for each task came, and how late it is there now. So who begins to look
//! knows at once what the gateways know, and nothing is counted from when it began. It tells nothing before it looked for a few seconds,
//! since what it reads first may be a little old, nor while the live state is away, nor where a gateway does not tell all that it was asked.
//! What a gateway told that is gone is remembered: that nobody else was asked does not mean that nobody asked.

use modelless_decision::plan::{Plan, Rest};
use modelless_live::{Member, Role};
use modelless_types::{Micros, TaskId};
use std::collections::BTreeMap;
use std::time::Duration;

/// What members tell, and what others plan, is known to whoever looked for so long.
const SETTLED: Duration = Duration::from_secs(5);
/// Tasks whose last queries are remembered.
const REMEMBERED: usize = 65_536;

/// How long nobody asked for tasks, as one observer of gateways knows it.
#[derive(Clone, Debug, Default)]
pub struct Idle {
    /// How long it has been looking, in microseconds.
    clock: i64,
    /// How long it has been looking without a break.
    watched: Duration,
    /// How long ago each task was asked for last, as the gateways tell that are there.
    asked: BTreeMap<TaskId, Micros>,
    /// For so long all of them have been there, and tell all that they were asked. `None` where that is not so.
    there: Option<Micros>,
    /// When each task was asked for last, on the clock above, or before it began to look: what was told, or read of in a plan.
    last: BTreeMap<TaskId, i64>,
    /// How often each task had been woken. `None` before the first plan was read.
    woken: Option<BTreeMap<TaskId, u32>>,
}

impl Idle {
    /// What members announce, so long after the last time.
    pub fn look(&mut self, members: &[Member], after: Duration) {
        self.clock = self.clock.saturating_add(micros(after));
        self.watched += after;
        let gateways = || members.iter().filter(|member| member.role == Role::Gateway);
        let of = |gateway: &Member| gateway.up.filter(|_| gateway.tells_all_asked);
        self.there = gateways().map(of).min().flatten();
        self.asked.clear();
        for gateway in gateways() {
            let Some(up) = gateway.up else { continue };
            for asked in gateway.asked.iter() {
                let ago = Micros(up.0.saturating_sub(asked.at.0));
                let known = self.asked.entry(asked.task).or_insert(ago);
                *known = ago.min(*known);
            }
        }
        let clock = self.clock;
        for (&task, ago) in &self.asked {
            let at = clock.saturating_sub_unsigned(ago.0);
            let known = self.last.entry(task).or_insert(at);
            *known = at.max(*known);
        }
        while self.last.len() > REMEMBERED {
            let Some((&task, _)) = self.last.iter().min_by_key(|(_, at)| **at) else { break };
            self.last.remove(&task);
        }
    }

    /// Nothing could be known for so long.
    pub fn stand_still(&mut self, after: Duration) {
        self.clock = self.clock.saturating_add(micros(after));
        self.watched = Duration::ZERO;
        self.there = None;
        self.asked.clear();
    }

    /// What the plan says that holds now. What somebody else has woken was asked for, whether that was heard here already or not.
    pub fn read(&mut self, plan: &Plan) {
        let woken = plan.rest.iter().map(|(&task, &Rest { woken, .. })| (task, woken)).collect();
        // What was before it began tells nothing. What came to rest since then had not been woken.
        let Some(before) = self.woken.replace(woken) else { return };
        for (&task, &Rest { woken, .. }) in &plan.rest {
            if before.get(&task).copied().unwrap_or_default() != woken {
                self.last.insert(task, self.clock);
            }
        }
    }

    /// As if somebody asked for a task now.
    pub fn suppose_asked(&mut self, task: TaskId) {
        self.asked.insert(task, Micros::ZERO);
        self.last.insert(task, self.clock);
    }

    /// How long ago a task was asked for last, as somebody tells who is there.
    pub fn asked(&self, task: TaskId) -> Option<Micros> {
        self.asked.get(&task).copied()
    }

    /// For how long nobody has asked for a task, for certain.
    pub fn unasked(&self, task: TaskId) -> Option<Micros> {
        let there = self.there.filter(|_| self.watched >= SETTLED)?;
        let remembered = self.last.get(&task).map(|at| Micros(self.clock.abs_diff(*at)));
        self.asked(task).into_iter().chain(remembered).chain([there]).min()
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_live::Asked;

    const TASK: TaskId = TaskId(3);
    const OTHER: TaskId = TaskId(4);

    fn gateway(name: &str, up_s: u64, asked_s: &[(TaskId, u64)]) -> Member {
        let asked = asked_s.iter().map(|&(task, at)| Asked { task, at: Micros::from_secs(at) });
        Member {
            up: Some(Micros::from_secs(up_s)),
            asked: asked.collect(),
            tells_all_asked: true,
            ..Member::new(Role::Gateway, name, 1)
        }
    }

    fn settled(members: &[Member]) -> Idle {
        let mut idle = Idle::default();
        idle.look(members, Duration::ZERO);
        idle.look(members, SETTLED);
        idle
    }

    fn seconds(idle: &Idle, task: TaskId) -> (Option<u64>, Option<u64>) {
        let whole = |time: Micros| time.0 / 1_000_000;
        (idle.asked(task).map(whole), idle.unasked(task).map(whole))
    }

    #[test]
    fn the_least_time_of_all_gateways_counts_and_what_none_was_asked_counts_from_when_the_youngest_came() {
        let idle = settled(&[gateway("a", 1_000, &[(TASK, 400)]), gateway("b", 700, &[(TASK, 650)])]);
        assert_eq!(seconds(&idle, TASK), (Some(50), Some(50)));
        assert_eq!(seconds(&idle, OTHER), (None, Some(700)));
        let idle = settled(&[gateway("a", 1_000, &[(TASK, 400)]), gateway("b", 20, &[])]);
        assert_eq!(
            seconds(&idle, TASK),
            (Some(600), Some(20)),
            "nobody knows what came to the one before it"
        );
    }

    #[test]
    fn who_knows_too_little_tells_nothing() {
        let one = gateway("a", 1_000, &[(TASK, 990)]);
        let mut idle = Idle::default();
        idle.look(std::slice::from_ref(&one), Duration::ZERO);
        assert_eq!(seconds(&idle, TASK), (Some(10), None), "it has only begun to look");
        assert_eq!(seconds(&settled(&[]), TASK), (None, None));
        assert_eq!(seconds(&settled(&[Member::new(Role::Scheduler, "s", 1)]), TASK), (None, None));
        let silent = Member { up: None, ..gateway("b", 0, &[]) };
        assert_eq!(
            seconds(&settled(&[one.clone(), silent]), TASK),
            (Some(10), None),
            "it is of an older version"
        );
        let more = Member { tells_all_asked: false, ..gateway("b", 900, &[]) };
        assert_eq!(seconds(&settled(&[one.clone(), more]), OTHER), (None, None), "it was asked for too many");
        let mut idle = settled(std::slice::from_ref(&one));
        idle.stand_still(SETTLED);
        assert_eq!(seconds(&idle, TASK), (None, None), "the live state is away");
        idle.look(&[one], Duration::from_secs(1));
        assert_eq!(seconds(&idle, TASK), (Some(10), None), "and is only just back");
    }

    #[test]
    fn what_a_gateway_was_asked_that_is_gone_is_remembered_and_wakes_nobody() {
        let other = || gateway("b", 5_000, &[]);
        let mut idle = settled(&[gateway("a", 1_000, &[(TASK, 999)]), other()]);
        idle.look(&[other()], Duration::from_secs(30));
        assert_eq!(seconds(&idle, TASK), (None, Some(31)));
    }

    #[test]
    fn what_another_scheduler_has_woken_was_asked_for() {
        let mut idle = settled(&[gateway("a", 1_000, &[(TASK, 100)])]);
        let plan = |asleep, woken| Plan {
            rest: BTreeMap::from([(TASK, Rest { asleep, woken })]),
            ..Plan::default()
        };
        idle.read(&plan(true, 1));
        assert_eq!(seconds(&idle, TASK), (Some(900), Some(900)), "what was before it began tells it nothing");
        idle.read(&plan(false, 2));
        assert_eq!(seconds(&idle, TASK), (Some(900), Some(0)));
        idle.read(&plan(true, 2));
        idle.look(&[gateway("a", 1_020, &[(TASK, 100)])], Duration::from_secs(20));
        assert_eq!(seconds(&idle, TASK), (Some(920), Some(20)));
    }

    #[test]
    fn what_was_woken_before_it_was_known_to_rest_was_asked_for_unless_that_is_the_first_plan() {
        let plan = |rest: &[(TaskId, u32)]| Plan {
            rest: rest.iter().map(|&(task, woken)| (task, Rest { asleep: false, woken })).collect(),
            ..Plan::default()
        };
        let mut idle = settled(&[gateway("a", 1_000, &[(TASK, 100), (OTHER, 100)])]);
        idle.read(&plan(&[]));
        idle.read(&plan(&[(TASK, 1), (OTHER, 0)]));
        let unasked = |task| seconds(&idle, task).1;
        assert_eq!((unasked(TASK), unasked(OTHER)), (Some(0), Some(900)));
        let mut idle = settled(&[gateway("a", 1_000, &[(TASK, 100)])]);
        idle.read(&plan(&[(TASK, 1)]));
        assert_eq!(seconds(&idle, TASK).1, Some(900));
    }
}
