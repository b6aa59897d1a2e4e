//! Clockwork-like: one controller decides centrally when what is loaded, unloaded and run, and cancels what cannot be in time.
//!
//! An application has one model, the most accurate one that leaves half of the bound. Each model has one queue. A lane that falls idle gets the
//! model whose batch must start first: the largest batch that is in time for its earliest deadline, required to start at that deadline less
//! its run. What could not be in time alone is cancelled. A model's demand is the device time of what waits for it; it is allocated to the
//! nodes that hold the model, less where more is allocated already. Its priority to be loaded is demand less what those nodes can do of it
//! within its bound; a node loads one model at a time, the one with the highest priority above zero, and makes room by unloading what was
//! used longest ago. Decisions take no time here, so nothing is sent ahead; loads take what the scenario says, where its authors copied from
//! host memory in milliseconds.

use super::cluster::{Ask, Cluster};
use super::fixed::{Asked, Choice, Rule, choose};
use super::given::{Given, value};
use super::{Policy, Queue};
use modelless_decision::Moments;
use modelless_types::{Micros, Time, VariantId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
struct Model {
    queue: Queue,
    /// The tightest bound that it is asked under.
    bound: Micros,
}

/// See above.
pub(super) struct Clockwork {
    of: BTreeMap<Asked, VariantId>,
    models: BTreeMap<VariantId, Model>,
    /// When a model ran last on a node.
    used: BTreeMap<(usize, VariantId), Time>,
    every: Micros,
    rule: Rule,
}

impl Clockwork {
    pub(super) fn new(given: &Given) -> Self {
        let every =
            Micros::from_millis_f64(value(given, "every_ms", 5.0)).unwrap_or_default().max(Micros(1_000));
        Self {
            of: BTreeMap::new(),
            models: BTreeMap::new(),
            used: BTreeMap::new(),
            every,
            rule: Rule::new(Choice::Best, given),
        }
    }

    /// By model, how much more is demanded of it than the nodes that have it can do in time, in microseconds of a lane.
    fn priorities(&self, cluster: &Cluster<'_>) -> Vec<(f64, VariantId)> {
        let mut loads = vec![0.0; cluster.nodes()];
        let mut demands = Vec::new();
        for (variant, model) in &self.models {
            let holders: Vec<usize> =
                (0..cluster.nodes()).filter(|node| cluster.placed(*node, *variant)).collect();
            let node = holders.first().copied().unwrap_or_else(|| runs_on(cluster, *variant));
            let demand = demand(cluster, node, *variant, model);
            let share = demand / f64::from(u32::try_from(holders.len()).unwrap_or(1)).max(1.0);
            for node in &holders {
                loads[*node] += share;
            }
            demands.push((*variant, model.bound, demand, holders));
        }
        let priority = |(variant, bound, demand, holders): &(VariantId, Micros, f64, Vec<usize>)| {
            // More of it where less is allocated.
            let ease = |node: &usize| 1.0 / loads[*node].max(1.0);
            let all: f64 = holders.iter().map(ease).sum();
            let can = |node: &usize| {
                let lanes = f64::from(u32::try_from(cluster.lanes_of(*node)).unwrap_or(1));
                let capacity = lanes * Moments::exactly(*bound).mean;
                demand * ease(node) / all * capacity / loads[*node].max(1.0)
            };
            (demand - holders.iter().map(can).sum::<f64>(), *variant)
        };
        let mut all: Vec<(f64, VariantId)> = demands.iter().map(priority).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all
    }

    fn load(&mut self, cluster: &mut Cluster<'_>) {
        let priorities = self.priorities(cluster);
        for node in 0..cluster.nodes() {
            let loading = cluster.models(node).into_iter().any(|v| !cluster.ready(node, v));
            if loading {
                continue;
            }
            let wanted = |(priority, v): &&(f64, VariantId)| {
                *priority > 0.0 && !cluster.placed(node, *v) && cluster.max_batch(node, *v) > 0
            };
            let Some((_, variant)) = priorities.iter().find(wanted).copied() else { continue };
            // What has work of its own that nobody else does is not taken out for it.
            let mut idle = cluster.models(node);
            idle.retain(|v| self.models.get(v).is_none_or(|model| model.queue.is_empty()));
            idle.sort_by_key(|v| (self.used.get(&(node, *v)).copied(), *v));
            let mut idle = idle.into_iter();
            while cluster.memory(node, variant) > cluster.free_memory(node)
                && let Some(oldest) = idle.next()
            {
                // Memory is free a little later: the load follows then.
                cluster.unload(node, oldest);
            }
            if cluster.load(node, variant) {
                return;
            }
        }
    }
}

fn runs_on(cluster: &Cluster<'_>, variant: VariantId) -> usize {
    (0..cluster.nodes()).find(|node| cluster.max_batch(*node, variant) > 0).unwrap_or(0)
}

/// Device time of what waits, in batches as large as half of the bound allows.
fn demand(cluster: &Cluster<'_>, node: usize, variant: VariantId, model: &Model) -> f64 {
    let most = cluster.fits(node, variant, Micros(model.bound.0 / 2)).max(1);
    let batch = most.min(model.queue.len().max(1));
    f64::from(model.queue.len()) * cluster.mean_us(node, variant, batch) / f64::from(batch)
}

impl Policy for Clockwork {
    fn every(&self) -> Option<Micros> {
        Some(self.every)
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        for asked in cluster.asked() {
            if let Some(variant) = choose(cluster, self.rule, asked) {
                self.of.insert(asked, variant);
                let model = self.models.entry(variant).or_default();
                model.bound = if model.bound == Micros::ZERO { asked.2 } else { asked.2.min(model.bound) };
            }
        }
        // What is known to be asked is loaded once each before the first query; where more is needed, demand tells.
        for variant in self.models.keys() {
            let mut nodes: Vec<usize> = (0..cluster.nodes()).collect();
            nodes.sort_by_key(|node| (std::cmp::Reverse(cluster.free_memory(*node)), *node));
            let _placed = nodes.into_iter().any(|node| cluster.load(node, *variant));
        }
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let variant = self.of.get(&(ask.task, ask.admits, ask.bound));
        match variant.and_then(|variant| self.models.get_mut(variant)) {
            Some(model) => model.queue.push(ask),
            None => cluster.refuse(&ask, "no_variant"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let mut first: Option<(Time, VariantId, u32)> = None;
        for (variant, model) in &mut self.models {
            if !cluster.ready(node, *variant) {
                continue;
            }
            model.queue.drop_late(cluster, node, *variant);
            let batch = model.queue.in_time(cluster, node, *variant);
            if let Some(head) = model.queue.head() {
                let takes = cluster.p99(node, *variant, batch);
                let starts = Time(head.deadline.0.saturating_sub(takes.0));
                first = Some(
                    first.map_or((starts, *variant, batch), |known| known.min((starts, *variant, batch))),
                );
            }
        }
        let Some((_, variant, batch)) = first else { return };
        self.used.insert((node, variant), cluster.now());
        if let Some(model) = self.models.get_mut(&variant) {
            let members = model.queue.take(batch);
            cluster.run(lane, variant, members);
        }
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        // What waits for a model that is nowhere is cancelled as well.
        for (variant, model) in &mut self.models {
            model.queue.drop_late(cluster, runs_on(cluster, *variant), *variant);
        }
        self.load(cluster);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    fn clockwork() -> Clockwork {
        Clockwork::new(&Given::default())
    }

    #[test]
    fn the_largest_batch_that_is_in_time_runs_and_what_cannot_be_is_cancelled() {
        // 20 ms for one, 40 for four, within 65: the first runs alone until 20, then four until 60; of the last two one alone would
        // end at 80.
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 20), (4, 40)], ms(1))]).bound(ms(65));
        let outcome = outcome(&world.asks(&[0; 7]).build(), &mut clockwork());
        assert_eq!(outcome.batches.into_iter().collect::<Vec<_>>(), [(1, 1), (4, 1)]);
        assert_eq!((outcome.total.in_time(), outcome.total.refused.get("too_late")), (5, Some(&2)));
    }

    #[test]
    fn a_model_is_loaded_elsewhere_as_far_as_demand_exceeds_what_its_nodes_do() {
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 20)], ms(100))]).nodes(2, 1).build();
        let mut cluster = Cluster::new(&world, 1, false).expect("a world");
        let mut policy = clockwork();
        policy.start(&mut cluster);
        // One node has it and does 100 ms of it within the bound.
        let asked = cluster.asked()[0];
        let ask = |key| cluster.ask_for_tests(key, asked);
        let asks: Vec<Ask> = (0..7).map(ask).collect();
        for (many, priority) in [(4, -20_000.0), (7, 40_000.0)] {
            let model = policy.models.get_mut(&VariantId(1)).expect("a model");
            model.queue = Queue::default();
            asks[..many].iter().for_each(|ask| model.queue.push(*ask));
            let seen = policy.priorities(&cluster);
            assert!((seen[0].0 - priority).abs() < 1e-6, "{many}: {seen:?}");
        }
        assert!(!cluster.placed(1, VariantId(1)));
        policy.load(&mut cluster);
        assert!(cluster.placed(1, VariantId(1)));
    }

    #[test]
    fn of_two_models_the_one_whose_batch_must_start_first_runs() {
        // Both come while the lane runs the first. `short` is due first, at 101, and must start at 81; `long` must start at 102 - 40.
        let world = World::of(vec![
            variant("long", 1, 900_000, &[(1, 40)], ms(1)),
            variant("short", 2, 800_000, &[(1, 20)], ms(1)),
        ]);
        let world = world.pinned(&[("long", 0), ("short", 1), ("long", 2)]).build();
        let outcome = outcome(&world, &mut clockwork());
        let ends = |name: &str| outcome.streams.iter().find(|s| s.name == name).map(|s| s.latency.max);
        assert_eq!((ends("long"), ends("short")), (Some(ms(78)), Some(ms(99))));
    }
}
