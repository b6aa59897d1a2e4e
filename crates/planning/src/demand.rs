//! What is asked of all gateways lately, class by class, out of the counts that they announce.
//!
//! Counts only rise while a gateway lives, so what it did not announce for a while is not lost. A gateway or a class that is
//! met for the first time says nothing of when its queries came: only what comes after that counts. Nothing is told of demand
//! before it was watched for a while, and it stands still while the live state is away: a scheduler that knows little must not
//! move what one that knew more has pinned.

use modelless_decision::demand::{self, Asked, Lately};
use modelless_decision::plan::PlanClass;
use modelless_live::{Demand, Member};
use modelless_types::{Accuracy, Micros, TaskId, VariantId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Classes of a gateway whose counts are remembered although it does not announce them any more.
const REMEMBERED: usize = 4_096;

/// What a gateway had counted.
#[derive(Clone, Debug, Default)]
struct Counted {
    asked: BTreeMap<Asked, u64>,
    /// How long the live state was away since it told anything new.
    missed: Duration,
}

/// Demand, as one observer of gateways counts it.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    /// Each gateway, by name and instance.
    counted: BTreeMap<(String, u64), Counted>,
    lately: Lately,
}

impl Demands {
    /// What members announce, so long after the last time.
    pub fn look(&mut self, members: &[Member], after: Duration) {
        if self.counted.is_empty() {
            self.lately.fade(micros(after));
        } else {
            self.lately.pass(micros(after));
        }
        let mut counted = BTreeMap::new();
        for member in members.iter().filter(|member| !member.demand.is_empty()) {
            let name = (member.name.clone(), member.instance);
            let mut known = self.counted.remove(&name).unwrap_or_default();
            self.add(member, &mut known, after);
            counted.insert(name, known);
        }
        self.counted = counted;
    }

    #[expect(clippy::cast_precision_loss, reason = "queries of a second")]
    fn add(&mut self, member: &Member, known: &mut Counted, after: Duration) {
        let now: BTreeMap<Asked, u64> = member.demand.iter().flat_map(told).collect();
        let share = if known.missed.is_zero() { 1.0 } else { demand::left_of(micros(known.missed + after)) };
        for (asked, count) in &now {
            let before = known.asked.get(asked).copied().unwrap_or(*count);
            let more = count.saturating_sub(before);
            if more > 0 {
                self.lately.came(*asked, more as f64 * share);
                known.missed = Duration::ZERO;
            }
        }
        if known.asked.len() > REMEMBERED {
            known.asked.clear();
        }
        known.asked.extend(now);
    }

    /// Nothing could be known for so long.
    pub fn stand_still(&mut self, after: Duration) {
        for known in self.counted.values_mut() {
            known.missed = known.missed.saturating_add(after);
        }
    }

    /// As if so much were asked of a task, in queries a second, since long ago.
    pub fn suppose(&mut self, task: TaskId, rates: &[(Asked, f64)]) {
        self.lately.suppose(task, rates);
    }

    /// How much is asked of the classes that a variant may answer, in doublings.
    pub fn level(&self, task: TaskId, ordinal: u8) -> u8 {
        self.lately.level(task, ordinal)
    }

    /// The same of those classes only that nothing less accurate may answer.
    pub fn level_at_least(&self, task: TaskId, ordinal: u8, accuracy: impl Fn(u8) -> Option<Accuracy>) -> u8 {
        self.lately.level_at_least(task, ordinal, accuracy)
    }

    /// How much is asked of each class, where variants are known by their tasks' ordinals.
    pub fn classes(&self, variant: impl Fn(TaskId, u8) -> Option<VariantId>) -> Vec<PlanClass> {
        PlanClass::of(&self.lately, variant)
    }
}

/// What a gateway tells of a class, by the bounds within which it is asked; one of before does not tell those.
fn told(demand: &Demand) -> Vec<(Asked, u64)> {
    if demand.within.is_empty() {
        return vec![((demand.class, None), demand.arrived)];
    }
    demand.within.iter().map(|(within, arrived)| ((demand.class, Some(*within)), *arrived)).collect()
}

fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_decision::query::Class;
    use modelless_live::Role;
    use modelless_types::Within;

    const TASK: TaskId = TaskId(3);
    const SECOND: Duration = Duration::from_secs(1);
    const HALF_LIFE: Duration = Duration::from_micros(demand::HALF_LIFE.0);

    fn gateway_of(instance: u64, counts: &[(TaskId, u64)]) -> Member {
        let demand = |(task, arrived): &(TaskId, u64)| {
            let class = Class { task: *task, admits: [0, 2].into_iter().collect() };
            Demand { class, arrived: *arrived, in_time: 0, waiting: 0, within: Vec::new() }
        };
        let demand = counts.iter().map(demand).collect();
        Member { demand, ..Member::new(Role::Gateway, "g", instance) }
    }

    fn gateway(instance: u64, arrived: u64) -> Member {
        gateway_of(instance, &[(TASK, arrived)])
    }

    /// Has watched one gateway for long enough.
    fn watched(arrived: u64) -> Demands {
        let mut demands = Demands::default();
        demands.look(&[gateway(1, arrived)], Duration::ZERO);
        demands.look(&[gateway(1, arrived)], HALF_LIFE);
        demands
    }

    #[test]
    fn what_came_lately_counts_for_the_variants_that_may_answer_it_and_fades() {
        let mut demands = watched(1_000_000);
        assert_eq!(demands.level(TASK, 0), 0, "nobody knows when those came");
        demands.look(&[gateway(1, 1_000_100)], SECOND);
        assert_eq!([0, 1, 2].map(|ordinal| demands.level(TASK, ordinal)), [7, 0, 7]);
        assert_eq!(demands.level(TaskId(4), 0), 0);
        demands.look(&[], HALF_LIFE);
        assert_eq!(demands.level(TASK, 0), 6);
        demands.look(&[gateway(2, 50)], HALF_LIFE * 20);
        assert_eq!(demands.level(TASK, 0), 0, "another instance begins anew");
    }

    #[test]
    fn what_is_asked_within_what_is_told_apart_and_stays_so_where_more_is_supposed() {
        let class = Class { task: TASK, admits: [0, 2].into_iter().collect() };
        let [tight, loose] = [10, 300].map(|ms| Within::of(Micros::from_millis(ms)));
        let gateway = |counts: [u64; 2]| {
            let within = vec![(tight, counts[0]), (loose, counts[1])];
            let demand = [Demand { class, arrived: counts[0] + counts[1], in_time: 0, waiting: 0, within }];
            Member { demand: demand.into(), ..Member::new(Role::Gateway, "g", 1) }
        };
        let mut demands = Demands::default();
        demands.look(&[gateway([5, 1_000])], Duration::ZERO);
        demands.look(&[gateway([5, 1_000])], HALF_LIFE);
        demands.look(&[gateway([37, 1_256])], SECOND);
        let told = |demands: &Demands| {
            let told = demands.classes(|_, ordinal| Some(VariantId(ordinal.into())));
            told.iter().map(|class| (class.within, class.steps)).collect::<Vec<_>>()
        };
        assert_eq!(told(&demands), [(Some(tight), 81), (Some(loose), 129)]);
        assert_eq!(demands.level(TASK, 0), 9);
        demands.suppose(TASK, &[((class, None), 43.28 * 9.0 / 8.0)]);
        let shares: Vec<i32> = told(&demands).iter().map(|(_, steps)| i32::from(*steps)).collect();
        assert_eq!(shares[1] - shares[0], 48, "eight of nine within the loose one");
        assert_eq!(
            told(&demands).iter().map(|(within, _)| *within).collect::<Vec<_>>(),
            [Some(tight), Some(loose)]
        );
    }

    #[test]
    fn nothing_is_told_before_demand_was_watched_for_a_while() {
        let mut demands = Demands::default();
        demands.look(&[gateway(1, 0)], HALF_LIFE * 9);
        demands.look(&[gateway(1, 100)], HALF_LIFE / 2);
        assert_eq!(demands.level(TASK, 0), 0);
        demands.look(&[gateway(1, 200)], HALF_LIFE / 2);
        assert_eq!(demands.level(TASK, 0), 8);
    }

    #[test]
    fn a_class_that_is_announced_again_counts_only_by_what_came_since() {
        let mut demands = watched(1_000_000);
        let other = (TaskId(4), 5_000);
        demands.look(&[gateway_of(1, &[other])], SECOND);
        assert_eq!(demands.level(TaskId(4), 0), 0, "met for the first time");
        demands.look(&[gateway_of(1, &[(TASK, 1_000_002), other])], SECOND);
        assert_eq!(demands.level(TASK, 0), 2, "two, not a million");
    }

    #[test]
    fn demand_stands_still_while_the_live_state_is_away() {
        let mut demands = watched(0);
        demands.look(&[gateway(1, 128)], SECOND);
        demands.stand_still(HALF_LIFE * 20);
        assert_eq!(demands.level(TASK, 0), 8);
        demands.look(&[gateway(1, 128)], SECOND);
        assert_eq!(demands.level(TASK, 0), 7, "what came meanwhile is not told yet");
        demands.look(&[gateway(1, 128 + 128 * 20)], SECOND);
        assert_eq!(demands.level(TASK, 0), 9, "not as if all of it had come at once, which would be 12");
    }

    #[test]
    fn what_only_some_may_answer_counts_for_the_least_accurate_of_them() {
        let mut demands = watched(0);
        demands.suppose(
            TASK,
            &[
                ((Class { task: TASK, admits: [0, 1, 2].into_iter().collect() }, None), 100.0),
                ((Class { task: TASK, admits: [0, 2].into_iter().collect() }, None), 1.0),
            ],
        );
        // The second is the least accurate, then the first.
        let accuracy = |ordinal: u8| Accuracy::from_ppm([800_000, 700_000, 900_000][usize::from(ordinal)]);
        let least = |accuracy: &dyn Fn(u8) -> Option<Accuracy>| {
            [0, 1, 2].map(|ordinal| demands.level_at_least(TASK, ordinal, accuracy))
        };
        assert_eq!(least(&accuracy), [6, 13, 0]);
        // Where the second cannot run, all of it is for the first.
        assert_eq!(least(&|ordinal| accuracy(ordinal).filter(|_| ordinal != 1)), [13, 0, 0]);
    }
}
