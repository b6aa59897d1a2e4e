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
    /// Nodes fall behind now and then.
    #[serde(default)]
    pub slow: Option<Slow>,
}

/// How often and how long a node's devices take longer than they should: both exponentially distributed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Slow {
    /// Mean time between two times.
    pub every: Micros,
    /// Mean length.
    pub mean: Micros,
    /// How many times as long.
    pub factor: f64,
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
        slow: None,
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
        slow: None,
    };
    /// The same, but instead of standing still nodes take four times as long for half a second now and then, as beside somebody
    /// else's work: they go on and fall behind, and so does what is known of them.
    pub const BEHIND: Self = Self {
        pauses: None,
        slow: Some(Slow { every: Micros::from_secs(4), mean: Micros::from_millis(500), factor: 4.0 }),
        ..Self::SHARED
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
    /// Loads, as shares of the capacity, of which is told what share is in time: where that is less than wanted whatever the load,
    /// goodput tells nothing.
    #[serde(default)]
    pub loads: Vec<f64>,
}

/// Three nodes of two lanes under two gateways with all that they have, undisturbed.
impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 3,
            lanes: 2,
            gateways: 2,
            credits: true,
            hand_back: true,
            noise: Noise::QUIET,
            bound: 3.0,
            share: 0.99,
            queries: 600,
            seeds: vec![1],
            loads: Vec::new(),
        }
    }
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
    /// Of each of the loads, the share in time: mean over the seeds.
    #[serde(default)]
    pub in_time: Vec<(f64, f64)>,
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
    let mut mean = |load: f64| -> Result<f64, Error> {
        let shares = shares(capacity * load)?;
        let seeds = f64::from(u32::try_from(shares.len()).unwrap_or(u32::MAX).max(1));
        Ok(shares.iter().sum::<f64>() / seeds)
    };
    let in_time = setup.loads.iter().map(|load| Ok((*load, mean(*load)?))).collect::<Result<_, Error>>()?;
    let overloaded = mean(OVERLOAD)? * capacity * OVERLOAD;
    let setup = setup.clone();
    Ok(Row { setup, capacity, goodput: low, tried, in_time, overloaded, handed_back, asked, outstanding })
}

/// From when until when, one time after the other.
fn times(every: Micros, mean: Micros, until: Micros, rng: &mut Rng) -> Vec<(Micros, Micros)> {
    let mut draw = |mean: Micros| Moments::exactly(mean).times(rng.exponential()).mean();
    let (mut times, mut now) = (Vec::new(), Micros::ZERO);
    loop {
        let at = now + draw(every);
        if at >= until {
            return times;
        }
        now = at + draw(mean);
        times.push((at, now));
    }
}

/// What happens to a node.
fn faults(node: usize, noise: &Noise, duration: Micros, seed: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some(Pauses { every, mean }) = noise.pauses {
        let mut rng = Rng::new(seed, &format!("pauses of {node}"));
        let times = times(every, mean, duration, &mut rng);
        faults.extend(times.into_iter().map(|(at, until)| Fault::Pause { node, at, until }));
    }
    if let Some(Slow { every, mean, factor }) = noise.slow {
        let mut rng = Rng::new(seed, &format!("slowness of {node}"));
        let times = times(every, mean, duration, &mut rng);
        faults.extend(times.into_iter().map(|(at, until)| Fault::Slow { node, at, until, factor }));
    }
    faults
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
    let of = |node| faults(node, &noise, scenario.duration, seed);
    scenario.faults = (0..scenario.nodes.len()).flat_map(of).collect();
    run(&scenario, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::MODELS;

    #[test]
    fn more_nodes_with_the_same_lanes_lose_a_little_and_credits_lose_less_than_deep_queues() {
        let row = |nodes, lanes, credits| {
            let setup = Setup { nodes, lanes, credits, ..Setup::default() };
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
            let (share, queries, seeds) = (0.98, 800, vec![1, 2]);
            let setup = Setup { hand_back, noise, share, queries, seeds, ..Setup::default() };
            goodput(&setup, &MODELS[2]).unwrap()
        };
        let pauses = Some(Pauses { every: Micros::from_secs(1), mean: Micros::from_millis(60) });
        let stopped = Noise { pauses, ..Noise::SHARED };
        let (quiet, with, without) = (row(Noise::QUIET, true), row(stopped, true), row(stopped, false));
        assert!(with.goodput < 0.9 * quiet.goodput, "{quiet:?} {with:?}");
        assert!(with.handed_back > 0 && without.handed_back == 0);
        assert!(with.goodput >= 0.95 * without.goodput, "{with:?} {without:?}");
    }

    #[test]
    fn under_many_gateways_giving_back_answers_more_where_nodes_fall_behind() {
        let in_time = |credits, hand_back| {
            let (gateways, noise, bound, share) = (8, Noise::BEHIND, 6.0, 0.95);
            let (queries, seeds) = (2_500, vec![1, 2]);
            let base = Setup { gateways, noise, bound, share, queries, seeds, ..Setup::default() };
            let setup = Setup { credits, hand_back, ..base };
            let seen = setup.seeds.iter().map(|seed| {
                let rate = 0.5 * peak(&spec(&MODELS[2])) * 6.0;
                let outcome = outcome(&setup, &MODELS[2], rate, *seed).unwrap();
                crate::outcome::ratio(outcome.total.in_time(), outcome.total.offered)
            });
            seen.sum::<f64>() / 2.0
        };
        let [both, credits, neither] = [in_time(true, true), in_time(true, false), in_time(false, false)];
        assert!(both > credits + 0.003 && credits > neither + 0.001, "{both} {credits} {neither}");
    }
}
