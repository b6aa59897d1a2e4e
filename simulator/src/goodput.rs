//! How much load one, two or three nodes carry that have the same lanes altogether: what the choice of a node before the
//! choice of a batch loses.
//!
//! Device times are those that were measured for [`crate::batching`]. Goodput is the highest rate, found by bisection, at which
//! the wanted share of queries is answered in time with every seed.

use crate::batching::{Measured, peak, spec, whole};
use crate::scenario::{Arrivals, NodeSpec, Scenario, Stream, TaskSpec};
use crate::{Error, run};
use modelless_types::{Bytes, Goals, Micros, SpaceId, TaskId, VariantId};
use serde::{Deserialize, Serialize};

/// A cluster and what is asked of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Nodes.
    pub nodes: u16,
    /// Lanes of each.
    pub lanes: u16,
    /// Gateways that share the load.
    pub gateways: u32,
    /// Whether nodes bound what gateways may have outstanding.
    pub credits: bool,
    /// Whether nodes give back what they cannot answer in time.
    pub hand_back: bool,
    /// The latency bound as a multiple of the time of a single query.
    pub bound: f64,
    /// The share that must be in time.
    pub share: f64,
    /// Queries of each run.
    pub queries: u32,
    /// One run each.
    pub seeds: Vec<u64>,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The cluster.
    pub setup: Setup,
    /// Queries a second that all lanes could answer, were they never idle.
    pub capacity: f64,
    /// Queries a second at which the wanted share is in time.
    pub goodput: f64,
    /// Every rate that was tried, with the least share of any seed.
    pub tried: Vec<(f64, f64)>,
}

/// Halvings of the interval in which the goodput is.
const STEPS: usize = 8;

/// The goodput of a cluster.
pub fn goodput(setup: &Setup, model: &Measured) -> Result<Row, Error> {
    let capacity = peak(&spec(model)) * f64::from(setup.nodes) * f64::from(setup.lanes);
    let (mut low, mut high, mut tried) = (0.0, capacity, Vec::new());
    for _ in 0..STEPS {
        let rate = f64::midpoint(low, high);
        let mut least = 1.0_f64;
        for seed in &setup.seeds {
            least = least.min(in_time(setup, model, rate, *seed)?);
        }
        tried.push((rate, least));
        if least >= setup.share {
            low = rate;
        } else {
            high = rate;
        }
    }
    Ok(Row { setup: setup.clone(), capacity, goodput: low, tried })
}

fn in_time(setup: &Setup, model: &Measured, rate: f64, seed: u64) -> Result<f64, Error> {
    let bound = Micros(whole(setup.bound * model.points[0].1));
    let goals = Goals { latency: Some(bound), ..Goals::default() };
    let task = TaskSpec {
        id: TaskId(1),
        default_space: SpaceId(1),
        defaults: Goals::default(),
        batching: None,
        variants: vec![spec(model)],
    };
    let mut node = NodeSpec::with(setup.lanes, Bytes::from_mib(1_024), vec![VariantId(1)]);
    node.worker.hand_back = setup.hand_back;
    let nodes = (0..setup.nodes).map(|_| node.clone()).collect();
    let stream = Stream::new(model.name, TaskId(1), Arrivals::Poisson { rate }, goals);
    let mut scenario = Scenario::new(model.name, vec![task], nodes, vec![stream]);
    scenario.gateways = setup.gateways;
    scenario.credits = setup.credits;
    scenario.duration = Micros(whole(f64::from(setup.queries) * 1e6 / rate));
    let total = run(&scenario, seed)?.total;
    Ok(crate::outcome::ratio(total.in_time(), total.offered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::MODELS;

    #[test]
    fn more_nodes_with_the_same_lanes_lose_a_little_and_credits_lose_less_than_deep_queues() {
        let row = |nodes, lanes, credits| {
            let (gateways, seeds) = (2, vec![1]);
            let (bound, share, queries, hand_back) = (3.0, 0.99, 600, true);
            let setup = Setup { nodes, lanes, gateways, credits, hand_back, bound, share, queries, seeds };
            goodput(&setup, &MODELS[2]).unwrap()
        };
        let (one, three, deep) = (row(1, 6, true), row(3, 2, true), row(3, 2, false));
        assert!(one.goodput > 0.7 * one.capacity, "{one:?}");
        assert!(three.goodput > 0.9 * one.goodput, "{three:?}");
        assert!(deep.goodput <= three.goodput * 1.02, "{deep:?}");
    }
}
