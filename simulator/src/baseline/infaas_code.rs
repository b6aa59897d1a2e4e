//! INFaaS as its published code does it, which is not what its paper tells.
//!
//! A query looks into a cache of the last five variants, then into the first bin of accuracies (five points wide here; the width is
//! not known) that has anything above its floor, of which only so many are looked at as fit into 15 % of the bound at 0.6 ms each. Of
//! those that run and are not flagged the slowest that is within the bound is taken, its time predicted at the full batch; a variant that
//! does not run counts 1,000 ms more than its load and run. A flagged one is placed anew on a random node with room; one in ten stays.
//! Flags and scaling go by the thresholds of the code for GPUs. A variant is in memory at most once on a node, so more load means a faster
//! variant there; twenty-one idle seconds unload one. The code's answers of one task for another (its cache does not look) are
//! not repeated, and it is given the drop rule and the floors of all.

use super::cluster::{Ask, Cluster, Ran};
use super::given::{Given, value};
use super::place::admitted;
use super::vms::{Health, Vms};
use super::{Policy, Queue};
use crate::rng::Rng;
use modelless_decision::Moments;
use modelless_types::{Micros, VariantId};
use std::collections::{BTreeMap, VecDeque};

const CACHE: usize = 5;
const BIN_PPM: u32 = 50_000;
const STAYS: f64 = 0.1;
const GPU_BATCH: u32 = 32;
/// By this its code tells bounds that a CPU is for.
const PATIENT_MS: f64 = 100.0;
const CPU_BATCH: u32 = 64;
const VOTES: f64 = 20.0;
const LOAD_HEURISTIC: f64 = 0.0002;

type Place = (usize, VariantId);

#[derive(Clone, Debug)]
struct Instance {
    queue: Queue,
    came: u32,
    rate: f64,
    /// Milliseconds from coming to the end of a run, and how many, this second.
    seen: (f64, u32),
    flagged: bool,
    votes: u32,
}

/// See above.
pub(super) struct InfaasCode {
    votes: f64,
    load_heuristic: f64,
    instances: BTreeMap<Place, Instance>,
    cache: VecDeque<VariantId>,
    vms: Vms,
    rng: Rng,
}

impl InfaasCode {
    pub(super) fn new(given: &Given) -> Self {
        Self {
            votes: value(given, "votes", VOTES),
            load_heuristic: value(given, "load_heuristic", LOAD_HEURISTIC),
            instances: BTreeMap::new(),
            cache: VecDeque::new(),
            vms: Vms::with_back_off(),
            rng: Rng::new(1, "infaas-code"),
        }
    }
}

/// What a run is predicted to take: at the full batch, but of what takes more than 64, by which its code knows a CPU, as it came.
fn predicted_ms(cluster: &Cluster<'_>, (node, variant): Place) -> f64 {
    let most = cluster.max_batch(node, variant);
    let batch = if most > CPU_BATCH { 1 } else { most.clamp(1, GPU_BATCH) };
    cluster.mean_us(node, variant, batch) / 1e3
}

fn ms(time: Micros) -> f64 {
    time.as_millis_f64()
}

impl InfaasCode {
    fn node_that_can(cluster: &Cluster<'_>, variant: VariantId) -> usize {
        (0..cluster.nodes()).find(|node| cluster.max_batch(*node, variant) > 0).unwrap_or(0)
    }

    fn well(&self, variant: VariantId) -> Vec<Place> {
        let all = self.instances.iter().filter(|((_, v), i)| *v == variant && !i.flagged);
        all.map(|(place, _)| *place).collect()
    }

    fn anywhere(&self, variant: VariantId) -> Vec<Place> {
        self.instances.keys().copied().filter(|(_, v)| *v == variant).collect()
    }

    /// Of the three with the fewest queries a second one at random.
    fn quiet(&mut self, mut places: Vec<Place>) -> Option<Place> {
        places.sort_by(|a, b| {
            let rate = |p: &Place| self.instances.get(p).map_or(0.0, |i| i.rate + f64::from(i.came));
            rate(a).total_cmp(&rate(b)).then(a.cmp(b))
        });
        places.truncate(3);
        let drawn = self.rng.below(places.len());
        places.get(drawn).copied()
    }

    fn add(&mut self, cluster: &mut Cluster<'_>, place: Place) -> bool {
        if !cluster.load(place.0, place.1) {
            return false;
        }
        let queue = Queue::of_comers();
        let (came, rate, seen, flagged, votes) = (0, 0.0, (0.0, 0), false, 0);
        self.instances.insert(place, Instance { queue, came, rate, seen, flagged, votes });
        true
    }

    /// On a random node that has room, among the ten with most.
    fn start_somewhere(&mut self, cluster: &mut Cluster<'_>, variant: VariantId) -> Option<Place> {
        let mut nodes: Vec<usize> =
            (0..cluster.nodes()).filter(|node| !cluster.placed(*node, variant)).collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(cluster.free_memory(*node)));
        nodes.truncate(10);
        while !nodes.is_empty() {
            let node = nodes.swap_remove(self.rng.below(nodes.len()));
            if self.add(cluster, (node, variant)) {
                return Some((node, variant));
            }
        }
        None
    }

    fn choose(&mut self, cluster: &mut Cluster<'_>, ask: &Ask) -> Option<Place> {
        let slo = ms(ask.bound);
        let cached = self.cache.iter().copied().find(|v| {
            let within = predicted_ms(cluster, (Self::node_that_can(cluster, *v), *v)) <= slo;
            // What is patient is not given what is far quicker, if that is only known to the cache.
            let too_good = slo > PATIENT_MS
                && predicted_ms(cluster, (Self::node_that_can(cluster, *v), *v)) < PATIENT_MS;
            cluster.admits(ask, *v) && within && !too_good && !self.well(*v).is_empty()
        });
        if let Some(variant) = cached {
            let well = self.well(variant);
            return self.quiet(well);
        }
        let mut all: Vec<(u32, VariantId)> = admitted(cluster, ask.task, ask.admits)
            .into_iter()
            .map(|(v, _)| (cluster.accuracy(v), v))
            .collect();
        all.sort_unstable();
        let bin = all.first()?.0 / BIN_PPM;
        let looked_at = if slo * 0.15 / 0.6 > 3.0 { slo * 0.15 / 0.6 } else { 3.0 };
        all.retain(|(accuracy, _)| accuracy / BIN_PPM == bin);
        all.truncate(limit(looked_at));
        let mut best: Option<(f64, bool, VariantId)> = None;
        for (_, variant) in all {
            let node = Self::node_that_can(cluster, variant);
            let takes = predicted_ms(cluster, (node, variant));
            if takes > slo {
                continue;
            }
            let runs = !self.well(variant).is_empty();
            let score =
                if runs { slo - takes } else { 1_000.0 + ms(cluster.load_time(node, variant)) + takes };
            if best.is_none_or(|(known, ..)| score < known) {
                best = Some((score, runs, variant));
            }
        }
        let (_, runs, variant) = best?;
        self.cache.retain(|known| *known != variant);
        self.cache.push_front(variant);
        self.cache.truncate(CACHE);
        if runs {
            let well = self.well(variant);
            return self.quiet(well);
        }
        let flagged = self.anywhere(variant);
        if !flagged.is_empty() && self.rng.chance(STAYS) {
            return self.quiet(flagged);
        }
        match self.start_somewhere(cluster, variant) {
            Some(place) => Some(place),
            None => self.quiet(flagged),
        }
    }

    fn flag(cluster: &Cluster<'_>, place: Place, instance: &mut Instance) {
        let takes = cluster.mean_us(place.0, place.1, 1) / 1e3;
        let (by_latency, unset) = (if takes < 10.0 { (15.0 / takes).min(5.0) } else { 1.5 }, 1.25);
        let second = 1_000.0 / takes;
        let seen =
            if instance.seen.1 == 0 { takes / 1.5 } else { instance.seen.0 / f64::from(instance.seen.1) };
        let queue = f64::from(instance.queue.len());
        if (seen > by_latency * takes && instance.rate > 0.3 * second) || queue > 0.8 * second {
            instance.flagged = true;
        } else if queue < 0.8 * second && seen < unset * takes {
            instance.flagged = false;
        }
    }

    fn scale(&mut self, cluster: &mut Cluster<'_>, place: Place) {
        let (node, variant) = place;
        let Some(instance) = self.instances.get(&place) else { return };
        let batch = cluster.max_batch(node, variant).clamp(1, GPU_BATCH);
        let single = f64::from(batch) * 1e6 / cluster.mean_us(node, variant, batch);
        let delta =
            instance.rate - single + self.load_heuristic * single * ms(cluster.load_time(node, variant));
        if delta > 0.0 {
            // No second replica on a node: the next faster variant instead.
            let faster = |v: &VariantId| {
                let rate = |v: VariantId| {
                    let batch = cluster.max_batch(node, v).clamp(1, GPU_BATCH);
                    f64::from(batch) * 1e6 / cluster.mean_us(node, v, batch)
                };
                cluster.task_of(*v) == cluster.task_of(variant)
                    && cluster.accuracy(*v) >= cluster.accuracy(variant)
                    && !cluster.placed(node, *v)
                    && rate(*v) > single
            };
            if let Some(next) = cluster.variants(node).into_iter().find(faster) {
                self.add(cluster, (node, next));
            }
            if let Some(instance) = self.instances.get_mut(&place) {
                instance.votes = 0;
            }
            return;
        }
        let Some(instance) = self.instances.get_mut(&place) else { return };
        instance.votes += u32::from(instance.rate <= 0.0);
        let (votes, empty) = (instance.votes, instance.queue.is_empty());
        if f64::from(votes) > self.votes
            && empty
            && cluster.ready(node, variant)
            && cluster.unload(node, variant)
        {
            self.instances.remove(&place);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn limit(many: f64) -> usize {
    many as usize
}

impl Policy for InfaasCode {
    fn scales(&self) -> bool {
        true
    }

    fn every(&self) -> Option<Micros> {
        Some(Micros::from_secs(1))
    }

    /// As of a user who starts one variant of each task beforehand: the slowest within the bound.
    fn start(&mut self, cluster: &mut Cluster<'_>) {
        for (task, admits, bound) in cluster.asked() {
            let all = admitted(cluster, task, admits).into_iter().map(|(v, _)| v);
            let within =
                all.filter(|v| predicted_ms(cluster, (Self::node_that_can(cluster, *v), *v)) <= ms(bound));
            let takes = |v: &VariantId| predicted_ms(cluster, (Self::node_that_can(cluster, *v), *v));
            let slowest = within.max_by(|a, b| takes(a).total_cmp(&takes(b)).then(b.cmp(a)));
            if let Some(variant) = slowest.filter(|v| self.anywhere(*v).is_empty()) {
                self.start_somewhere(cluster, variant);
            }
        }
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        match self.choose(cluster, &ask).and_then(|place| self.instances.get_mut(&place)) {
            Some(instance) => {
                instance.came += 1;
                instance.queue.push(ask);
            }
            None => cluster.refuse(&ask, "no_instance"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let here = (node, VariantId(0))..(node + 1, VariantId(0));
        for ((_, variant), instance) in self.instances.range_mut(here.clone()) {
            instance.queue.drop_late(cluster, node, *variant);
        }
        let ready = self.instances.range(here).filter(|((_, v), _)| cluster.ready(node, *v));
        let next = ready.filter_map(|((_, v), i)| Some((i.queue.head()?.came, *v))).min();
        let Some((_, variant)) = next else { return };
        if let Some(instance) = self.instances.get_mut(&(node, variant)) {
            let members = instance.queue.take(cluster.max_batch(node, variant).min(GPU_BATCH));
            let now = cluster.now();
            for ask in &members {
                instance.seen.0 += ms(now - ask.came);
            }
            cluster.run(lane, variant, members);
        }
    }

    fn ran(&mut self, cluster: &mut Cluster<'_>, ran: Ran) {
        let node = cluster.node_of(ran.lane);
        if let Some(instance) = self.instances.get_mut(&(node, ran.variant)) {
            instance.seen.0 += f64::from(ran.batch) * Moments::exactly(ran.took).mean / 1e3;
            instance.seen.1 += ran.batch;
        }
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        let places: Vec<Place> = self.instances.keys().copied().collect();
        for place in &places {
            let Some(instance) = self.instances.get_mut(place) else { continue };
            instance.rate = f64::from(core::mem::take(&mut instance.came));
            Self::flag(cluster, *place, instance);
            instance.seen = (0.0, 0);
        }
        for place in places {
            self.scale(cluster, place);
        }
        let instances = &self.instances;
        let health = |node: usize| {
            let mut here = instances.range((node, VariantId(0))..(node + 1, VariantId(0)));
            // The code has one flag for both.
            let flagged = here.clone().any(|(_, i)| i.flagged);
            let empty = here.all(|(_, i)| i.queue.is_empty());
            Health { overloaded: flagged, interfered: flagged, empty }
        };
        if let Some(gone) = self.vms.look(cluster, &health) {
            self.instances.retain(|(node, _), _| *node != gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    #[test]
    fn the_slowest_variant_within_the_bound_answers_its_time_predicted_at_the_full_batch() {
        // At the full batch `slow` takes 90 ms and `quick` 10; within 100 the first is nearest, within 50 the second.
        let world = |bound: u64| {
            let slow = variant("slow", 1, 820_000, &[(1, 20), (8, 90)], ms(10));
            let quick = variant("quick", 2, 810_000, &[(1, 5), (8, 10)], ms(10));
            World::of(vec![slow, quick]).bound(ms(bound)).asks(&[0, 300]).build()
        };
        for (bound, name) in [(100, "slow"), (50, "quick")] {
            let outcome = outcome(&world(bound), &mut InfaasCode::new(&Given::default()));
            assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), [name], "{bound}");
        }
    }

    #[test]
    fn only_the_first_bin_of_accuracies_is_looked_at_even_if_nothing_in_it_is_in_time() {
        // 0.81 takes too long and 0.95, in a later bin, would do.
        let slow = variant("slow", 1, 810_000, &[(1, 20), (8, 90)], ms(10));
        let good = variant("good", 2, 950_000, &[(1, 5), (8, 10)], ms(10));
        let world = World::of(vec![slow, good]).bound(ms(50)).asks(&[0]).build();
        let outcome = outcome(&world, &mut InfaasCode::new(&Given::default()));
        assert_eq!(outcome.total.refused.get("no_instance"), Some(&1), "{:?}", outcome.total);
    }

    #[test]
    fn an_idle_instance_is_unloaded_after_twenty_one_seconds() {
        let world = |at: u64| World::ladder().floor("0.9").asks(&[0, at]).build();
        // The tick at 0 is the first, and none of the next twenty sees a query.
        assert_eq!(outcome(&world(15_000), &mut InfaasCode::new(&Given::default())).unloads, 0);
        assert_eq!(outcome(&world(25_000), &mut InfaasCode::new(&Given::default())).unloads, 1);
    }
}
