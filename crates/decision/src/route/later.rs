//! What of a node's wait is for those who are due later than a query.
//!
//! A node runs who is due first first, so whoever comes with a tight bound goes before all who have more time, however many they are. Were it told that it waits for
//! all of them, its gateway would take it for late and keep it until it is, while its node would have had it in time.

use crate::estimate::Moments;
use modelless_types::{Micros, Time};
use serde::{Deserialize, Serialize};

/// So many steps tell how what waits is spread over what is due when: it is told with every frame.
pub const STEPS: usize = 8;

/// Of those who wait: what is due after a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// The moment, from when it was told on.
    pub due: Micros,
    /// What those who are due after it take of all lanes.
    pub takes: Micros,
}

/// The same for several moments, the first of which is the present, in order. A node that says nothing of it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Later([Step; STEPS]);

impl Later {
    /// As many as there is room for.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let mut all = Self::default();
        for (place, step) in all.0.iter_mut().zip(steps) {
            *place = step;
        }
        all
    }

    /// All of it is due after whoever asks, who is not said.
    pub(crate) fn surely(takes: Micros) -> Self {
        Self::new([Step { due: Micros::ZERO, takes }])
    }

    /// Whether nothing is said.
    pub fn is_untold(&self) -> bool {
        self.0[0].takes == Micros::ZERO
    }

    /// What was told.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        let told = |(at, step): (usize, &Step)| {
            let is_told = if at == 0 { step.takes > Micros::ZERO } else { step.due > Micros::ZERO };
            is_told.then_some(*step)
        };
        self.0.iter().enumerate().map_while(told)
    }

    /// What is due after a query, of what a node told at a moment, in microseconds.
    pub(crate) fn after(&self, due: Time, told: Time) -> f64 {
        let due = Moments::exactly(due - told).mean;
        let mut before: Option<(f64, f64)> = None;
        for step in self.steps() {
            let (at, takes) = (Moments::exactly(step.due).mean, Moments::exactly(step.takes).mean);
            if at > due {
                let Some((from, most)) = before else { return takes };
                return most + (takes - most) * (due - from) / (at - from);
            }
            before = Some((at, takes));
        }
        before.map_or(0.0, |(_, takes)| takes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_after_a_query_lies_between_the_steps_around_it() {
        let step = |due, takes| Step { due: Micros(due), takes: Micros(takes) };
        let later = Later::new([step(0, 9_000), step(10_000, 6_000), step(20_000, 1_000), step(30_000, 0)]);
        let after = |due: u64| later.after(Time(5_000_000 + due), Time(5_000_000));
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(near(after(0), 9_000.0) && near(after(5_000), 7_500.0) && near(after(10_000), 6_000.0));
        assert!(near(after(12_000), 5_000.0) && near(after(29_000), 100.0) && near(after(90_000), 0.0));
        assert!(near(later.after(Time(4_000_000), Time(5_000_000)), 9_000.0), "overdue: before all of them");
        assert_eq!(later.steps().count(), 4);
    }

    #[test]
    fn who_says_nothing_has_nobody_due_later() {
        assert!(Later::default().is_untold());
        assert!(Later::default().after(Time(7), Time(3)).abs() < 1e-9);
        assert!((Later::surely(Micros(800)).after(Time(1 << 40), Time(3)) - 800.0).abs() < 1e-9);
    }
}
