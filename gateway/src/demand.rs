//! What is asked of this gateway, class by class, for whoever plans. Counts only rise.
//!
//! Classes that nobody has asked for in a while are not forgotten, since what is told must not fall; but there is a bound, and of what
//! comes beyond it only that there is such is known.

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

#[derive(Debug, Default)]
pub(crate) struct Demands(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    of: BTreeMap<Class, (u64, u64)>,
    /// There are classes that are not counted.
    more: bool,
}

impl Demands {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn arrived(&self, class: Class) {
        let mut counts = self.counts();
        if counts.of.len() < KEPT || counts.of.contains_key(&class) {
            counts.of.entry(class).or_default().0 += 1;
        } else {
            counts.more = true;
        }
    }

    pub(crate) fn answered_in_time(&self, class: Class) {
        if let Some((_, in_time)) = self.counts().of.get_mut(&class) {
            *in_time += 1;
        }
    }

    pub(crate) fn told(&self, waiting: &[(Class, u32)]) -> DemandTold {
        let counts = self.counts();
        let left_out = counts.of.len().saturating_sub(TOLD) + usize::from(counts.more);
        let mut all: Vec<ClassDemand> = counts
            .of
            .iter()
            .map(|(&class, &(arrived, in_time))| ClassDemand { class, arrived, in_time, waiting: 0 })
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
        assert_eq!(told.classes.len(), TOLD);
        assert_eq!(told.classes[0], ClassDemand { class: class(70), arrived: 4, in_time: 1, waiting: 9 });
        assert_eq!(demands.counts().of.len(), KEPT);
        assert_eq!(told.waiting, 10, "those of classes that are not told wait as well");
    }

    #[test]
    fn classes_that_are_not_told_are_counted() {
        let demands = Demands::default();
        let left_out = |upto: u32| {
            (0..upto).for_each(|task| demands.arrived(class(task)));
            demands.told(&[]).left_out
        };
        let (told, kept) = (u32::try_from(TOLD).unwrap(), u32::try_from(KEPT).unwrap());
        assert_eq!([left_out(told), left_out(told + 7), left_out(kept)], [0, 7, kept - told]);
        assert_eq!(left_out(kept + 900), kept - told + 1, "at least one more");
    }
}
