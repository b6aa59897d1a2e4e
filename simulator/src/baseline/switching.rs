//! Model-Switching: per load level the model with the best effective accuracy, switched as the load is measured.
//!
//! Effective accuracy is accuracy times the probability of an answer in time. Its description profiles that offline for each load; here it
//! is worked out for lanes that share a queue: with batches as large as half of the bound allows, a share `u` of busy lanes and `n` lanes,
//! a query waits longer than `w` with probability `u exp(-(1 - u) n w / l)`, and from `u = 1` on `1 / u` are answered in time. Once a
//! second each application's rate is smoothed and its model chosen anew among those in memory.

use super::cluster::{Ask, Cluster};
use super::fixed::{Asked, serve_earliest};
use super::given::{Given, value};
use super::place::{admitted, everywhere};
use super::{Policy, Queue};
use modelless_decision::Moments;
use modelless_types::{Micros, VariantId};
use std::collections::BTreeMap;

/// What a second's count weighs against what was known before.
const WEIGHT: f64 = 0.5;
const EVERY: Micros = Micros::from_secs(1);

#[derive(Clone, Debug, Default)]
struct Load {
    count: u32,
    rate: f64,
    now: Option<VariantId>,
}

/// See above.
pub(super) struct Switching {
    weight: f64,
    loads: BTreeMap<Asked, Load>,
    queues: BTreeMap<VariantId, Queue>,
}

/// Accuracy times the probability of being in time, at a rate on so many lanes of a node.
fn effective(cluster: &Cluster<'_>, variant: VariantId, bound: Micros, (rate, lanes): (f64, f64)) -> f64 {
    let node = (0..cluster.nodes()).find(|node| cluster.placed(*node, variant)).unwrap_or(0);
    let batch = cluster.fits(node, variant, Micros(bound.0 / 2)).max(1);
    let takes = cluster.mean_us(node, variant, batch);
    let busy = rate / 1e6 * takes / f64::from(batch) / lanes.max(1.0);
    let room = (Moments::exactly(bound).mean - takes).max(0.0);
    let in_time = if busy >= 1.0 {
        1.0 / busy
    } else {
        1.0 - busy * libm::exp(-(1.0 - busy) * lanes * room / takes.max(1.0))
    };
    f64::from(cluster.accuracy(variant)) / 1e6 * in_time
}

impl Switching {
    pub(super) fn new(given: &Given) -> Self {
        Self { weight: value(given, "weight", WEIGHT), loads: BTreeMap::new(), queues: BTreeMap::new() }
    }

    fn choose(&mut self, cluster: &Cluster<'_>) {
        let all: f64 = self.loads.values().map(|load| load.rate).sum();
        for (asked, load) in &mut self.loads {
            let (task, admits, bound) = *asked;
            let there = |v: &VariantId| (0..cluster.nodes()).any(|node| cluster.placed(node, *v));
            let known = admitted(cluster, task, admits).into_iter().filter(|(_, alone)| *alone <= bound);
            // An application has the lanes that its share of all queries is worth.
            let share = if all > 0.0 { load.rate / all } else { 1.0 };
            let lanes = share * f64::from(u32::try_from(cluster.lanes()).unwrap_or(u32::MAX));
            let worth = |v: &VariantId| effective(cluster, *v, bound, (load.rate, lanes.max(1.0)));
            let best = known
                .map(|(v, _)| v)
                .filter(there)
                .max_by(|a, b| worth(a).total_cmp(&worth(b)).then(b.cmp(a)));
            load.now = best.or(load.now);
        }
    }
}

impl Policy for Switching {
    fn every(&self) -> Option<Micros> {
        Some(EVERY)
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        let mut wanted: Vec<(std::cmp::Reverse<u32>, VariantId)> = Vec::new();
        for asked in cluster.asked() {
            self.loads.entry(asked).or_default();
            let all = admitted(cluster, asked.0, asked.1);
            let in_time = all.into_iter().filter(|(_, alone)| *alone <= asked.2).map(|(v, _)| v);
            wanted.extend(in_time.map(|v| (std::cmp::Reverse(cluster.accuracy(v)), v)));
        }
        wanted.sort_unstable();
        wanted.dedup();
        let wanted: Vec<VariantId> = wanted.into_iter().map(|(_, v)| v).collect();
        everywhere(cluster, &wanted);
        self.choose(cluster);
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let load = self.loads.entry((ask.task, ask.admits, ask.bound)).or_default();
        load.count += 1;
        match load.now {
            Some(variant) => self.queues.entry(variant).or_default().push(ask),
            None => cluster.refuse(&ask, "no_variant"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        serve_earliest(cluster, &mut self.queues, lane);
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        for load in self.loads.values_mut() {
            load.rate += self.weight * (f64::from(core::mem::take(&mut load.count)) - load.rate);
        }
        self.choose(cluster);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome};
    use super::*;

    #[test]
    fn effective_accuracy_is_accuracy_times_the_probability_of_being_in_time() {
        let world = World::ladder().build();
        let mut cluster = Cluster::new(&world, 1, false).expect("a world");
        cluster.load(0, VariantId(1));
        // `good`: 2 in 20 ms. At 50 a second half of the lane is busy and there are 80 ms of room: 1 - 0.5 exp(-0.5 x 4).
        let seen = effective(&cluster, VariantId(1), ms(100), (50.0, 1.0));
        assert!((seen - 0.95 * (1.0 - 0.5 * libm::exp(-2.0))).abs() < 1e-9, "{seen}");
        // At 200 a second twice what it can do comes.
        let seen = effective(&cluster, VariantId(1), ms(100), (200.0, 1.0));
        assert!((seen - 0.95 / 2.0).abs() < 1e-9, "{seen}");
    }

    #[test]
    fn a_high_load_switches_to_the_quicker_model_after_a_second_and_a_low_one_back() {
        // 300 a second for two seconds, then 5 a second.
        let mut at: Vec<u64> = (0..600).map(|n| n * 10 / 3).collect();
        at.extend((0..40).map(|n| 2_000 + n * 200));
        let outcome = outcome(&World::ladder().asks(&at).build(), &mut Switching::new(&Given::default()));
        let good = |from: usize, to: usize| {
            outcome.series.buckets[from..to].iter().map(|b| b.answers[0]).sum::<u64>()
        };
        let parts = outcome.series.buckets.len();
        assert_eq!(good(parts / 8, parts / 5), 0, "busy: {:?}", outcome.total.variants);
        assert!(good(parts * 8 / 10, parts) > 5, "calm: {:?}", outcome.total.variants);
    }
}
