//! How well goals are kept: for each task, how many queries had one and how many of these got it, and by how much.

use crate::histogram::{Histogram, MARGIN, RATIO};
use modelless_types::{Accuracy, CostPer1k, Micros};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfGoal {
    task: String,
    goal: &'static str,
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfTask {
    task: String,
}

/// What a query asked for. Every query has a bound on its latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The bound that holds; `None` if it was refused before one was found.
    pub latency: Option<Micros>,
    /// The floor, if there is one.
    pub accuracy: Option<Accuracy>,
    /// The price ceiling, if there is one.
    pub max_cost: Option<CostPer1k>,
}

/// What it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Got {
    /// From arrival to the answer.
    pub total: Micros,
    /// Of the variant that answered, as far as it is known.
    pub accuracy: Option<Accuracy>,
    /// What it cost.
    pub cost: CostPer1k,
}

#[derive(Debug)]
pub(crate) struct Families {
    goals: Family<OfGoal, Counter>,
    latency: Family<OfTask, Histogram, fn() -> Histogram>,
    margin: Family<OfTask, Histogram, fn() -> Histogram>,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            goals: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(RATIO)),
            margin: Family::new_with_constructor(|| Histogram::new(MARGIN)),
        }
    }
}

impl Families {
    pub(crate) fn register(&self, r: &mut Registry) {
        let help = "Queries that had a goal, by whether they were answered within it";
        r.register("goals", help, self.goals.clone());
        let help = "Of answers: the time they took over the time they had";
        r.register("goal_latency_ratio", help, self.latency.clone());
        let help = "Of answers with a floor: the accuracy of the variant that answered, less the floor";
        r.register("goal_accuracy_margin_ratio", help, self.margin.clone());
    }

    pub(crate) fn of(&self, task: &str) -> GoalMetrics {
        let outcomes = |goal| {
            ["met", "missed"].map(|outcome| {
                self.goals.get_or_create_owned(&OfGoal { task: task.to_owned(), goal, outcome })
            })
        };
        let of_task = OfTask { task: task.to_owned() };
        GoalMetrics {
            latency: outcomes("latency"),
            accuracy: outcomes("accuracy"),
            cost: outcomes("cost"),
            used: self.latency.get_or_create_owned(&of_task),
            margin: self.margin.get_or_create_owned(&of_task),
        }
    }
}

/// Those of one task, found beforehand.
#[derive(Clone, Debug)]
pub struct GoalMetrics {
    /// Met, and missed.
    latency: [Counter; 2],
    accuracy: [Counter; 2],
    cost: [Counter; 2],
    used: Histogram,
    margin: Histogram,
}

fn count([met, missed]: &[Counter; 2], is_met: bool) {
    if is_met { met } else { missed }.inc();
}

impl GoalMetrics {
    /// A query was answered.
    pub fn answered(&self, wanted: &Wanted, got: &Got) {
        let in_time = wanted.latency.is_some_and(|bound| got.total <= bound);
        count(&self.latency, in_time);
        if let Some(bound) = wanted.latency {
            self.used.observe(got.total.0.saturating_mul(1_000_000) / bound.0.max(1));
        }
        if let Some(floor) = wanted.accuracy {
            let margin = got.accuracy.and_then(|accuracy| accuracy.ppm().checked_sub(floor.ppm()));
            count(&self.accuracy, margin.is_some());
            if let Some(margin) = margin {
                self.margin.observe(u64::from(margin));
            }
        }
        if let Some(ceiling) = wanted.max_cost {
            count(&self.cost, got.cost <= ceiling);
        }
    }

    /// A query was refused, so it got nothing of what it wanted.
    pub fn refused(&self, wanted: &Wanted) {
        count(&self.latency, false);
        if wanted.accuracy.is_some() {
            count(&self.accuracy, false);
        }
        if wanted.max_cost.is_some() {
            count(&self.cost, false);
        }
    }
}
