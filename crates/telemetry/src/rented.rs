//! Machines that are rented, and versions on trial: written anew whenever somebody asks, so that what is over leaves no series behind.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfState {
    pool: String,
    state: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfPool {
    pool: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfArm {
    task: String,
    trial: String,
    arm: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Families {
    machines: Family<OfState, Gauge>,
    price: Family<OfPool, Gauge<f64, AtomicU64>>,
    trials: Family<OfArm, Counter>,
}

impl Families {
    pub(crate) fn register(&self, r: &mut Registry) {
        r.register("machines", "Rented machines that have not ended, by state", self.machines.clone());
        let help = "What rented machines that have not ended cost an hour";
        r.register("machines_usd_per_hour", help, self.price.clone());
        let help = "Queries of this gateway that count for a version on trial, by who was to answer and what became of them";
        r.register("trial_queries", help, self.trials.clone());
    }

    /// Nothing is said of machines where it is not known how they stand.
    pub(crate) fn set(&self, machines: Option<&[MachineGauge]>, trials: &[TrialGauge]) {
        self.machines.clear();
        self.price.clear();
        self.trials.clear();
        for MachineGauge { pool, state, usd_per_hour } in machines.unwrap_or_default() {
            self.machines.get_or_create(&OfState { pool: pool.clone(), state }).inc();
            self.price.get_or_create(&OfPool { pool: pool.clone() }).inc_by(*usd_per_hour);
        }
        for TrialGauge { task, trial, arm, outcomes } in trials {
            for (outcome, many) in outcomes {
                let labels = OfArm { task: task.clone(), trial: trial.clone(), arm, outcome };
                self.trials.get_or_create(&labels).inc_by(*many);
            }
        }
    }
}

/// A machine that has not ended, for [`crate::Metrics::told`].
#[derive(Clone, PartialEq, Debug)]
pub struct MachineGauge {
    /// Its pool.
    pub pool: String,
    /// The state's name.
    pub state: &'static str,
    /// What it costs.
    pub usd_per_hour: f64,
}

/// One side of a trial, for [`crate::Metrics::told`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrialGauge {
    /// The task's name.
    pub task: String,
    /// The trial's number, as answers tell it.
    pub trial: String,
    /// Who answers: the version on trial, or what it is compared with.
    pub arm: &'static str,
    /// What was counted since the gateway heard of the trial.
    pub outcomes: Vec<(&'static str, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metrics, Told};

    #[test]
    fn what_is_over_is_gone_and_prices_of_a_pool_are_added_up() {
        let metrics = Metrics::new();
        let machine = |state| MachineGauge { pool: "p".to_owned(), state, usd_per_hour: 0.25 };
        let trial = TrialGauge {
            task: "t".to_owned(),
            trial: "3".to_owned(),
            arm: "candidate",
            outcomes: vec![("answered", 7)],
        };
        let machines = [machine("joined"), machine("joined"), machine("starting")];
        let text = metrics.told(&Told { machines: Some(&machines), trials: &[trial], ..Told::default() });
        for line in [
            "modelless_machines{pool=\"p\",state=\"joined\"} 2",
            "modelless_machines{pool=\"p\",state=\"starting\"} 1",
            "modelless_machines_usd_per_hour{pool=\"p\"} 0.75",
            "modelless_trial_queries_total{task=\"t\",trial=\"3\",arm=\"candidate\",outcome=\"answered\"} 7",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        let text = metrics.told(&Told::default());
        assert!(
            !text.contains("modelless_machines{") && !text.contains("modelless_trial_queries_total{"),
            "{text}"
        );
    }
}
