//! What is asked of this gateway, class by class, for whoever plans. Counts only rise.
//!
//! Classes that nobody has asked for in a while are not forgotten, since what is told must not fall; but there is a bound, and what
//! comes beyond it is counted nowhere.

use modelless_decision::query::Class;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Classes that are counted.
const KEPT: usize = 4_096;
/// Classes that are told, those that are asked for most.
const TOLD: usize = 256;

/// What was asked in one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassDemand {
    /// The class.
    pub class: Class,
    /// Queries that came since the gateway started.
    pub arrived: u64,
    /// Of those, answered in time.
    pub in_time: u64,
    /// Queries that wait here at this moment.
    pub waiting: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Demands(Mutex<BTreeMap<Class, (u64, u64)>>);

impl Demands {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<Class, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn arrived(&self, class: Class) {
        let mut counts = self.counts();
        if counts.len() < KEPT || counts.contains_key(&class) {
            counts.entry(class).or_default().0 += 1;
        }
    }

    pub(crate) fn answered_in_time(&self, class: Class) {
        if let Some((_, in_time)) = self.counts().get_mut(&class) {
            *in_time += 1;
        }
    }

    pub(crate) fn told(&self, waiting: &[(Class, u32)]) -> Vec<ClassDemand> {
        let mut all: Vec<ClassDemand> = self
            .counts()
            .iter()
            .map(|(&class, &(arrived, in_time))| ClassDemand { class, arrived, in_time, waiting: 0 })
            .collect();
        all.sort_by_key(|demand| (std::cmp::Reverse(demand.arrived), demand.class));
        all.truncate(TOLD);
        for demand in &mut all {
            let here = waiting.iter().find(|(class, _)| *class == demand.class);
            demand.waiting = here.map_or(0, |(_, waiting)| *waiting);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::TaskId;

    fn class(task: u32) -> Class {
        Class { task: TaskId(task), admits: [0].into_iter().collect() }
    }

    #[test]
    fn counts_rise_and_the_most_asked_for_is_told_first_within_bounds() {
        let demands = Demands::default();
        for task in 0..5_000 {
            demands.arrived(class(task));
        }
        (0..3).for_each(|_| demands.arrived(class(70)));
        demands.answered_in_time(class(70));
        demands.answered_in_time(class(4_999)); // beyond the bound: not counted
        let told = demands.told(&[(class(70), 9), (class(4_999), 1)]);
        assert_eq!(told.len(), TOLD);
        assert_eq!(told[0], ClassDemand { class: class(70), arrived: 4, in_time: 1, waiting: 9 });
        assert_eq!(demands.counts().len(), KEPT);
    }
}
