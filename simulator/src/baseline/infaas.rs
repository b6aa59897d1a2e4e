//! INFaaS as its paper tells it: a variant and a node for each query when it comes, and an autoscaler on each node.
//!
//! Of the variants that keep the floor and the bound and run somewhere without being overloaded or interfered, the cheapest is taken, on
//! the least loaded node that has it; without any, the one whose load and run together end first, on the least used node with room. The
//! query then waits there, bound, in order of coming. Every second each node compares what its variants could do with what is asked
//! (headroom below 1.05): it adds an instance of the same variant elsewhere or a variant with more throughput, whichever adds less to cost
//! times (1 + lambda x load time); it takes one away when one fewer would do, after as many seconds as a load takes. An
//! instance is a replica on a node. Cost is the memory that a replica holds.

use super::cluster::{Ask, Cluster, Ran};
use super::given::{Given, value};
use super::place::admitted;
use super::vms::{Health, Vms};
use super::{Policy, Queue};
use modelless_decision::Moments;
use modelless_types::{Micros, VariantId};
use std::collections::BTreeMap;

const HEADROOM: f64 = 1.05;
/// How far a run may exceed its profile before a variant counts as interfered.
const INTERFERED: f64 = 1.5;
/// The weight of load times, in seconds, against cost. The paper leaves it open; the scoreboard's tuning sweeps it.
const LAMBDA: f64 = 1.0;

type Place = (usize, VariantId);

#[derive(Clone, Debug)]
struct Instance {
    queue: Queue,
    /// Queries that came this second, and smoothed over seconds.
    came: u32,
    rate: f64,
    /// Runs over profile, this second.
    seen: (f64, u32),
    overloaded: bool,
    interfered: bool,
    /// Seconds for which one fewer would have done.
    spare: u32,
    /// The tightest bound that it is asked under.
    bound: Micros,
}

/// See above.
pub(super) struct Infaas {
    lambda: f64,
    headroom: f64,
    instances: BTreeMap<Place, Instance>,
    vms: Vms,
}

/// What an instance does at most a second, in batches that keep the bound.
fn peak(cluster: &Cluster<'_>, (node, variant): Place, bound: Micros) -> f64 {
    let batch = cluster.fits(node, variant, bound).max(1);
    let lanes = f64::from(u32::try_from(cluster.lanes_of(node)).unwrap_or(1));
    lanes * f64::from(batch) * 1e6 / cluster.mean_us(node, variant, batch)
}

/// What an instance adds to cost times (1 + lambda x load time).
fn objective(cluster: &Cluster<'_>, node: usize, variant: VariantId, lambda: f64) -> f64 {
    let memory = Moments::exactly(Micros(cluster.memory(node, variant).0)).mean;
    let load = Moments::exactly(cluster.load_time(node, variant)).mean / 1e6;
    memory * (1.0 + lambda * load)
}

/// Device time of a query at the largest batch within a bound, at the node's price.
fn price(cluster: &Cluster<'_>, (node, variant): Place, bound: Micros) -> f64 {
    cluster.usd_per_hour(node) / peak(cluster, (node, variant), bound)
}

impl Infaas {
    pub(super) fn new(given: &Given) -> Self {
        let (lambda, headroom) = (value(given, "lambda", LAMBDA), value(given, "headroom", HEADROOM));
        Self { lambda, headroom, instances: BTreeMap::new(), vms: Vms::default() }
    }

    fn work(&self, cluster: &Cluster<'_>, node: usize) -> f64 {
        let waiting = self.instances.iter().filter(|((at, _), _)| *at == node);
        let each = waiting.map(|((_, variant), instance)| {
            let batch = instance.queue.len().clamp(1, cluster.max_batch(node, *variant).max(1));
            f64::from(instance.queue.len()) * cluster.mean_us(node, *variant, batch) / f64::from(batch)
        });
        let running = f64::from(u32::try_from(cluster.busy_lanes(node)).unwrap_or(0));
        (each.sum::<f64>() + running) / f64::from(u32::try_from(cluster.lanes_of(node)).unwrap_or(1))
    }

    fn add(&mut self, cluster: &mut Cluster<'_>, (node, variant): Place, bound: Micros) -> bool {
        if !cluster.load(node, variant) {
            return false;
        }
        let instance = Instance {
            queue: Queue::of_comers(),
            came: 0,
            rate: 0.0,
            seen: (0.0, 0),
            overloaded: false,
            interfered: false,
            spare: 0,
            bound,
        };
        self.instances.insert((node, variant), instance);
        true
    }

    /// Where a query goes: an instance that is well, else one to be loaded, else any that there is.
    fn place(&mut self, cluster: &mut Cluster<'_>, ask: &Ask) -> Option<Place> {
        let fits =
            |place: &Place| cluster.admits(ask, place.1) && cluster.p99(place.0, place.1, 1) <= ask.bound;
        let active: Vec<Place> = self
            .instances
            .iter()
            .filter(|(p, i)| fits(p) && !i.overloaded && !i.interfered)
            .map(|(p, _)| *p)
            .collect();
        let cheapest = active.iter().copied().min_by(|a, b| {
            price(cluster, *a, ask.bound).total_cmp(&price(cluster, *b, ask.bound)).then(a.cmp(b))
        });
        if let Some((_, variant)) = cheapest {
            let same = active.into_iter().filter(|(_, v)| *v == variant);
            return same
                .min_by(|a, b| self.work(cluster, a.0).total_cmp(&self.work(cluster, b.0)).then(a.cmp(b)));
        }
        let mut inactive: Vec<(Micros, VariantId)> = admitted(cluster, ask.task, ask.admits)
            .into_iter()
            .filter(|(_, alone)| *alone <= ask.bound)
            .map(|(variant, alone)| (cluster.load_time(0, variant) + alone, variant))
            .collect();
        inactive.sort_unstable();
        for (_, variant) in inactive {
            let mut nodes: Vec<usize> =
                (0..cluster.nodes()).filter(|node| !cluster.placed(*node, variant)).collect();
            nodes.sort_by(|a, b| self.work(cluster, *a).total_cmp(&self.work(cluster, *b)).then(a.cmp(b)));
            for node in nodes {
                if self.add(cluster, (node, variant), ask.bound) {
                    return Some((node, variant));
                }
            }
        }
        let any = self.instances.keys().copied().filter(|(_, v)| cluster.admits(ask, *v));
        any.min_by(|a, b| self.work(cluster, a.0).total_cmp(&self.work(cluster, b.0)).then(a.cmp(b)))
    }

    /// One second of a node's autoscaler for one of its instances.
    fn scale(&mut self, cluster: &mut Cluster<'_>, place: Place) {
        let (node, variant) = place;
        let Some(instance) = self.instances.get(&place).cloned() else { return };
        let bound = instance.bound;
        let most = peak(cluster, place, bound);
        if most < instance.rate * self.headroom {
            let elsewhere = (0..cluster.nodes())
                .filter(|at| !cluster.placed(*at, variant))
                .filter(|at| cluster.memory(*at, variant) <= cluster.free_memory(*at))
                .min_by(|a, b| self.work(cluster, *a).total_cmp(&self.work(cluster, *b)).then(a.cmp(b)));
            let replicate = elsewhere.map(|at| (objective(cluster, at, variant, self.lambda), (at, variant)));
            let better = |v: &VariantId| {
                cluster.task_of(*v) == cluster.task_of(variant)
                    && cluster.accuracy(*v) >= cluster.accuracy(variant)
                    && !cluster.placed(node, *v)
                    && cluster.p99(node, *v, 1) <= bound
                    && peak(cluster, (node, *v), bound) > most
                    && cluster.memory(node, *v) <= cluster.free_memory(node)
            };
            let upgrades = cluster.variants(node).into_iter().filter(better);
            let upgrade = upgrades.map(|v| (objective(cluster, node, v, self.lambda), (node, v)));
            let least =
                replicate.into_iter().chain(upgrade).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            if let Some((_, place)) = least {
                self.add(cluster, place, bound);
            }
            return;
        }
        // One fewer would do if the others of it could take what it gets.
        let others = self.instances.iter().filter(|((at, v), _)| *v == variant && *at != node);
        let room: f64 =
            others.map(|((at, v), i)| peak(cluster, (*at, *v), bound) / self.headroom - i.rate).sum();
        let wait = Moments::exactly(cluster.load_time(node, variant)).mean / 1e6;
        let Some(instance) = self.instances.get_mut(&place) else { return };
        instance.spare = if room >= instance.rate { instance.spare + 1 } else { 0 };
        let empty = instance.queue.is_empty() && cluster.ready(node, variant);
        if f64::from(instance.spare) > wait && empty && room > 0.0 && cluster.unload(node, variant) {
            self.instances.remove(&place);
        }
    }
}

impl Policy for Infaas {
    fn scales(&self) -> bool {
        true
    }

    fn every(&self) -> Option<Micros> {
        Some(Micros::from_secs(1))
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        // What is asked is known to be asked: the cheapest variant of each runs on one node before the first query comes.
        for (task, admits, bound) in cluster.asked() {
            let there = |(_, v): &Place| cluster.task_of(*v) == task && admits.contains(cluster.ordinal(*v));
            if self.instances.keys().any(there) {
                continue;
            }
            let mut places: Vec<Place> = admitted(cluster, task, admits)
                .into_iter()
                .flat_map(|(v, _)| (0..cluster.nodes()).map(move |node| (node, v)))
                .filter(|(node, v)| cluster.p99(*node, *v, 1) <= bound)
                .collect();
            let free = |node: usize| std::cmp::Reverse(cluster.free_memory(node));
            places.sort_by(|a, b| {
                let cost = price(cluster, *a, bound).total_cmp(&price(cluster, *b, bound));
                cost.then(free(a.0).cmp(&free(b.0))).then(a.cmp(b))
            });
            for place in places {
                if self.add(cluster, place, bound) {
                    break;
                }
            }
        }
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        match self.place(cluster, &ask).and_then(|place| self.instances.get_mut(&place)) {
            Some(instance) => {
                instance.came += 1;
                instance.bound = instance.bound.min(ask.bound);
                instance.queue.push(ask);
            }
            None => cluster.refuse(&ask, "no_instance"),
        }
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let here = (node, VariantId(0))..(node + 1, VariantId(0));
        for ((_, variant), instance) in self.instances.range_mut(here.clone()) {
            // As large as peaks are reckoned with.
            let most = cluster.fits(node, *variant, instance.bound);
            instance.queue.shed(cluster, (node, *variant), most, |batch| batch);
        }
        let ready = self.instances.range(here).filter(|((_, v), _)| cluster.ready(node, *v));
        let next = ready.filter_map(|((_, v), i)| Some((i.queue.head()?.came, *v))).min();
        let Some((_, variant)) = next else { return };
        if let Some(instance) = self.instances.get_mut(&(node, variant)) {
            let batch = cluster.fits(node, variant, instance.bound).max(1);
            let members = instance.queue.take(batch);
            cluster.run(lane, variant, members);
        }
    }

    fn ran(&mut self, cluster: &mut Cluster<'_>, ran: Ran) {
        let node = cluster.node_of(ran.lane);
        let profiled = cluster.mean_us(node, ran.variant, ran.batch);
        if let Some(instance) = self.instances.get_mut(&(node, ran.variant)) {
            instance.seen.0 += Moments::exactly(ran.took).mean / profiled;
            instance.seen.1 += 1;
        }
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        let places: Vec<Place> = self.instances.keys().copied().collect();
        for place in &places {
            let Some(instance) = self.instances.get_mut(place) else { continue };
            instance.rate = f64::from(core::mem::take(&mut instance.came));
            let (sum, runs) = core::mem::take(&mut instance.seen);
            let most = peak(cluster, *place, instance.bound);
            instance.overloaded = instance.rate >= most;
            let slow = runs > 0 && sum / f64::from(runs) > INTERFERED;
            instance.interfered = slow && !instance.overloaded;
        }
        for place in places {
            self.scale(cluster, place);
        }
        let instances = &self.instances;
        let health = |node: usize| {
            let mut here = instances.range((node, VariantId(0))..(node + 1, VariantId(0)));
            Health {
                overloaded: here.clone().any(|(_, i)| i.overloaded),
                interfered: here.clone().any(|(_, i)| i.interfered),
                empty: here.all(|(_, i)| i.queue.is_empty()),
            }
        };
        if let Some(gone) = self.vms.look(cluster, &health) {
            self.instances.retain(|(node, _), _| *node != gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome};
    use super::*;

    #[test]
    fn the_cheapest_variant_that_meets_the_goals_answers_whatever_is_idle() {
        let outcome =
            outcome(&World::ladder().asks(&[0, 200, 400]).build(), &mut Infaas::new(&Given::default()));
        assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), ["quick"]);
        assert_eq!(outcome.loads, 1);
    }

    #[test]
    fn more_than_an_instance_does_brings_another_on_the_other_node() {
        // `quick` does 800 a second; 1,000 are asked, so after a second the other node loads it, which takes 100 ms.
        let at: Vec<u64> = (0..3_000).collect();
        let outcome =
            outcome(&World::ladder().nodes(2, 1).asks(&at).build(), &mut Infaas::new(&Given::default()));
        assert!(outcome.loads >= 2, "{outcome:?}");
        let quick = |bucket: &crate::Bucket| bucket.resident[1];
        let parts = &outcome.series.buckets;
        assert_eq!((quick(&parts[parts.len() / 5]), quick(&parts[parts.len() / 2])), (1, 2));
    }

    #[test]
    fn an_instance_that_others_could_stand_in_for_leaves_after_as_long_as_a_load_takes() {
        // 1,000 a second for two seconds, then ten: one of the two instances goes a second later.
        let mut at: Vec<u64> = (0..2_000).collect();
        at.extend((0..60).map(|n| 2_000 + n * 100));
        let outcome =
            outcome(&World::ladder().nodes(2, 1).asks(&at).build(), &mut Infaas::new(&Given::default()));
        let left: u32 = outcome.series.buckets.last().map_or(0, |bucket| bucket.resident.iter().sum());
        assert_eq!((left, outcome.unloads), (1, outcome.loads - 1), "{:?}", outcome.total);
        assert!(outcome.total.latency.max <= ms(100));
    }
}
