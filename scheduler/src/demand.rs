//! What is asked of all gateways lately, class by class, out of the counts that they announce.
//!
//! Counts only rise while a gateway lives, so what it did not announce for a while is not lost. A gateway that is met for the first time
//! says nothing of when its queries came: only what comes after that counts.

use modelless_decision::query::Class;
use modelless_live::Member;
use modelless_types::TaskId;
use std::collections::BTreeMap;
use std::time::Duration;

/// What came so long ago counts half.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Below this a class is forgotten.
const NOTHING: f64 = 0.1;

#[derive(Debug, Default)]
pub(crate) struct Demands {
    /// What each gateway, by name and instance, had counted in each class.
    counted: BTreeMap<(String, u64), BTreeMap<Class, u64>>,
    lately: BTreeMap<Class, f64>,
}

impl Demands {
    /// What members announce, so long after the last time.
    #[expect(clippy::cast_precision_loss, reason = "queries of a second")]
    pub(crate) fn look(&mut self, members: &[Member], after: Duration) {
        let fade = 0.5_f64.powf(after.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.lately.retain(|_, count| {
            *count *= fade;
            *count > NOTHING
        });
        let mut counted = BTreeMap::new();
        for member in members.iter().filter(|member| !member.demand.is_empty()) {
            let name = (member.name.clone(), member.instance);
            let now: BTreeMap<Class, u64> = member.demand.iter().map(|d| (d.class, d.arrived)).collect();
            if let Some(before) = self.counted.get(&name) {
                for (class, count) in &now {
                    let more = count.saturating_sub(before.get(class).copied().unwrap_or(0));
                    if more > 0 {
                        *self.lately.entry(*class).or_default() += more as f64;
                    }
                }
            }
            counted.insert(name, now);
        }
        self.counted = counted;
    }

    /// How much is asked of the classes that a variant may answer, in doublings.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a logarithm of a count")]
    pub(crate) fn level(&self, task: TaskId, ordinal: u8) -> u8 {
        let asked =
            self.lately.iter().filter(|(class, _)| class.task == task && class.admits.contains(ordinal));
        let count: f64 = asked.map(|(_, count)| count).sum();
        if count < 1.0 { 0 } else { 1 + count.log2() as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_live::{Demand, Role};

    const TASK: TaskId = TaskId(3);

    fn gateway(instance: u64, arrived: u64) -> Member {
        let class = Class { task: TASK, admits: [0, 2].into_iter().collect() };
        let demand = vec![Demand { class, arrived, in_time: 0, waiting: 0 }];
        Member { demand, ..Member::new(Role::Gateway, "g", instance) }
    }

    #[test]
    fn what_came_lately_counts_for_the_variants_that_may_answer_it_and_fades() {
        let mut demands = Demands::default();
        demands.look(&[gateway(1, 1_000_000)], Duration::ZERO);
        assert_eq!(demands.level(TASK, 0), 0, "nobody knows when those came");
        demands.look(&[gateway(1, 1_000_100)], Duration::from_secs(1));
        assert_eq!([0, 1, 2].map(|ordinal| demands.level(TASK, ordinal)), [7, 0, 7]);
        assert_eq!(demands.level(TaskId(4), 0), 0);
        demands.look(&[], HALF_LIFE);
        assert_eq!(demands.level(TASK, 0), 6);
        demands.look(&[gateway(2, 50)], HALF_LIFE * 20);
        assert_eq!(demands.level(TASK, 0), 0, "another instance begins anew");
    }
}
