//! How much load one, two or three nodes carry that have the same lanes altogether: what the choice of a node before the
//! choice of a batch loses.
//!
//! Device times are those that were measured for [`crate::batching`]. Goodput is the highest rate, found by bisection, at which
//! the wanted share of queries is answered in time with every seed.

use crate::batching::{Measured, peak, spec, whole};
use crate::scenario::{Arrivals, Fault, Jitter, LinkSpec, NodeSpec, Scenario, Stream, TaskSpec};
use crate::{Error, Outcome, Rng, run};
use modelless_decision::Moments;
use modelless_types::{Bytes, Goals, Micros, SpaceId, TaskId, VariantId};
use serde::{Deserialize, Serialize};

/// What is not as it should be, nor known at once.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Noise {
    /// What a frame takes.
    pub link: LinkSpec,
    /// Between a node's reports that nothing else brings.
    pub heartbeat: Micros,
    /// How much later than asked a timer of a node's shell wakes.
    pub timer_late: Micros,
    /// How long it takes until a device that has nothing to do runs the batch that is handed to it.
    pub handover: Micros,
    /// What batches take beyond what they were measured to take.
    pub jitter: Option<Jitter>,
    /// Nodes stand still now and then.
    pub pauses: Option<Pauses>,
}

/// How often and how long a node stands still: both exponentially distributed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pauses {
    /// Mean time between two.
    pub every: Micros,
    /// Mean length.
    pub mean: Micros,
}

impl Noise {
    /// A world in which everything is known almost at once and takes as long as it was measured to take.
    pub const QUIET: Self = Self {
        link: LinkSpec { one_way: Micros(50), jitter: Micros(10) },
        heartbeat: Micros::from_millis(50),
        timer_late: Micros::ZERO,
        handover: Micros::ZERO,
        jitter: None,
        pauses: None,
    };
    /// As on a machine that others share. Heartbeats and timers are those of the shells, and a replayed batch ends at the timer's next
    /// millisecond. Way and pauses are assumed.
    pub const SHARED: Self = Self {
        link: LinkSpec { one_way: Micros(100), jitter: Micros(100) },
        heartbeat: Micros::from_millis(250),
        timer_late: Micros::from_millis(1),
        handover: Micros(100),
        jitter: Some(Jitter { chance: 1.0, mean: Micros(500) }),
        pauses: Some(Pauses { every: Micros::from_secs(2), mean: Micros::from_millis(15) }),
    };
}

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
    /// What disturbs it.
    pub noise: Noise,
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
    /// Answered in time a second when half as much again is asked as all lanes could do: mean over the seeds.
    pub overloaded: f64,
    /// Queries that nodes gave back, of how many, in all runs.
    pub handed_back: u64,
    /// Those.
    pub asked: u64,
    /// The most that a gateway ever had at a node at once.
    pub outstanding: u32,
}

/// Times the capacity.
const OVERLOAD: f64 = 1.5;

/// Halvings of the interval in which the goodput is.
const STEPS: usize = 8;

/// The goodput of a cluster.
pub fn goodput(setup: &Setup, model: &Measured) -> Result<Row, Error> {
    let capacity = peak(&spec(model)) * f64::from(setup.nodes) * f64::from(setup.lanes);
    let (mut low, mut high, mut tried) = (0.0, capacity, Vec::new());
    let (mut handed_back, mut asked, mut outstanding) = (0, 0, 0);
    let mut shares = |rate: f64| -> Result<Vec<f64>, Error> {
        let seen = |seed: &u64| {
            let outcome = outcome(setup, model, rate, *seed)?;
            handed_back += outcome.handed_back;
            asked += outcome.total.offered;
            outstanding = outstanding.max(outcome.outstanding_max);
            Ok(crate::outcome::ratio(outcome.total.in_time(), outcome.total.offered))
        };
        setup.seeds.iter().map(seen).collect()
    };
    for _ in 0..STEPS {
        let rate = f64::midpoint(low, high);
        let least = shares(rate)?.into_iter().fold(1.0, f64::min);
        tried.push((rate, least));
        if least >= setup.share {
            low = rate;
        } else {
            high = rate;
        }
    }
    let rate = capacity * OVERLOAD;
    let over = shares(rate)?;
    let seeds = f64::from(u32::try_from(over.len()).unwrap_or(u32::MAX).max(1));
    let overloaded = over.iter().sum::<f64>() / seeds * rate;
    let setup = setup.clone();
    Ok(Row { setup, capacity, goodput: low, tried, overloaded, handed_back, asked, outstanding })
}

/// When a node stands still, one pause after the other.
fn pauses(node: usize, pauses: Pauses, until: Micros, seed: u64) -> Vec<Fault> {
    let mut rng = Rng::new(seed, &format!("pauses of {node}"));
    let mut draw = |mean: Micros| Moments::exactly(mean).times(rng.exponential()).mean();
    let (mut faults, mut now) = (Vec::new(), Micros::ZERO);
    loop {
        let at = now + draw(pauses.every);
        if at >= until {
            return faults;
        }
        now = at + draw(pauses.mean);
        faults.push(Fault::Pause { node, at, until: now });
    }
}

fn outcome(setup: &Setup, model: &Measured, rate: f64, seed: u64) -> Result<Outcome, Error> {
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
    let noise = setup.noise;
    node.worker.hand_back = setup.hand_back;
    node.jitter = noise.jitter;
    node.timer_late = noise.timer_late;
    node.handover = noise.handover;
    let nodes = (0..setup.nodes).map(|_| node.clone()).collect();
    let stream = Stream::new(model.name, TaskId(1), Arrivals::Poisson { rate }, goals);
    let mut scenario = Scenario::new(model.name, vec![task], nodes, vec![stream]);
    scenario.gateways = setup.gateways;
    scenario.credits = setup.credits;
    scenario.duration = Micros(whole(f64::from(setup.queries) * 1e6 / rate));
    scenario.link = noise.link;
    scenario.heartbeat = noise.heartbeat;
    if let Some(spec) = noise.pauses {
        let of = |node| pauses(node, spec, scenario.duration, seed);
        scenario.faults = (0..scenario.nodes.len()).flat_map(of).collect();
    }
    run(&scenario, seed)
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
            let noise = Noise::QUIET;
            let setup =
                Setup { nodes, lanes, gateways, credits, hand_back, noise, bound, share, queries, seeds };
            goodput(&setup, &MODELS[2]).unwrap()
        };
        let (one, three, deep) = (row(1, 6, true), row(3, 2, true), row(3, 2, false));
        assert!(one.goodput > 0.7 * one.capacity, "{one:?}");
        assert!(three.goodput > 0.9 * one.goodput, "{three:?}");
        assert!(deep.goodput <= three.goodput * 1.02, "{deep:?}");
    }

    #[test]
    fn pauses_of_nodes_cost_goodput_and_giving_back_costs_nothing_beside_that() {
        let row = |noise, hand_back| {
            let (nodes, lanes, gateways, credits, seeds) = (3, 2, 2, true, vec![1, 2]);
            let (bound, share, queries) = (3.0, 0.98, 800);
            let setup =
                Setup { nodes, lanes, gateways, credits, hand_back, noise, bound, share, queries, seeds };
            goodput(&setup, &MODELS[2]).unwrap()
        };
        let pauses = Some(Pauses { every: Micros::from_secs(1), mean: Micros::from_millis(60) });
        let stopped = Noise { pauses, ..Noise::SHARED };
        let (quiet, with, without) = (row(Noise::QUIET, true), row(stopped, true), row(stopped, false));
        assert!(with.goodput < 0.9 * quiet.goodput, "{quiet:?} {with:?}");
        assert!(with.handed_back > 0 && without.handed_back == 0);
        assert!(with.goodput >= 0.95 * without.goodput, "{with:?} {without:?}");
    }
}
