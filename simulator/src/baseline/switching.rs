//! Model-Switching: per load level the model with the best effective accuracy, switched as the load is measured.
//!
//! Effective accuracy is accuracy times the probability of an answer in time. As described that is profiled beforehand for each model
//! and each level of load: queries that come independently of each other, at a tenth more from level to level, are played through as many
//! lanes, in batches as large as half of the bound allows. Once a second each application's rate is smoothed and its model chosen anew
//! among those in memory, by the level at or above. Who waits then is answered by the model that is chosen: the queue stands before
//! the models. An application has the lanes that its share of all queries is worth.

use super::cluster::{Ask, Cluster};
use super::fixed::{Asked, serve_earliest};
use super::given::{Given, value};
use super::place::{admitted, everywhere};
use super::{Policy, Queue};
use crate::rng::Rng;
use modelless_decision::Moments;
use modelless_types::{Micros, VariantId};
use std::collections::BTreeMap;

/// What a second's count weighs against what was known before.
const WEIGHT: f64 = 0.5;
const EVERY: Micros = Micros::from_secs(1);
/// From one level of load to the next.
const LEVEL: f64 = 1.1;
/// So many queries are played for a level.
const PLAYED: usize = 4_000;

#[derive(Clone, Debug, Default)]
struct Load {
    count: u32,
    rate: f64,
    now: Option<VariantId>,
}

/// A model's bound, its lanes and the level of load.
type Level = (VariantId, Micros, usize, i32);

/// See above.
pub(super) struct Switching {
    weight: f64,
    loads: BTreeMap<Asked, Load>,
    queues: BTreeMap<VariantId, Queue>,
    /// The share in time of what was profiled.
    profiled: BTreeMap<Level, f64>,
}

/// The level at or above a rate.
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, as wanted")]
fn level(rate: f64) -> i32 {
    libm::ceil(libm::log(rate.max(1.0)) / libm::log(LEVEL) - 1e-9) as i32
}

/// The share of queries that is in time if they come independently of each other at a rate.
fn in_time(cluster: &Cluster<'_>, variant: VariantId, bound: Micros, (rate, lanes): (f64, usize)) -> f64 {
    let node = (0..cluster.nodes()).find(|node| cluster.placed(*node, variant)).unwrap_or(0);
    let most = cluster.fits(node, variant, Micros(bound.0 / 2)).max(1);
    let takes: Vec<f64> = (1..=most).map(|batch| cluster.mean_us(node, variant, batch)).collect();
    let bound = Moments::exactly(bound).mean;
    let (mut rng, mut at) = (Rng::new(1, "model-switching"), 0.0);
    let mut come = || {
        at += rng.exponential() * 1e6 / rate;
        at
    };
    let came: Vec<f64> = (0..PLAYED).map(|_| come()).collect();
    let mut free = vec![0.0_f64; lanes.max(1)];
    let (mut next, mut answered) = (0, 0_u64);
    while let Some(first) = came.get(next) {
        let Some(lane) = free.iter_mut().min_by(|a, b| a.total_cmp(b)) else { break };
        let now = lane.max(*first);
        let there = came[next..].iter().take(takes.len()).take_while(|at| **at <= now).count();
        let end = now + takes[there - 1];
        if end > first + bound {
            next += 1;
            continue;
        }
        answered += there as u64;
        next += there;
        *lane = end;
    }
    crate::outcome::ratio(answered, PLAYED as u64)
}

impl Switching {
    pub(super) fn new(given: &Given) -> Self {
        let (loads, queues, profiled) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { weight: value(given, "weight", WEIGHT), loads, queues, profiled }
    }

    /// Accuracy times the share in time, at the level of a rate on so many lanes.
    fn effective(
        &mut self,
        cluster: &Cluster<'_>,
        variant: VariantId,
        bound: Micros,
        on: (f64, usize),
    ) -> f64 {
        let level = level(on.0);
        let known = self.profiled.entry((variant, bound, on.1, level));
        let rate = libm::pow(LEVEL, f64::from(level));
        let share = known.or_insert_with(|| in_time(cluster, variant, bound, (rate, on.1)));
        f64::from(cluster.accuracy(variant)) / 1e6 * *share
    }

    fn choose(&mut self, cluster: &Cluster<'_>) {
        let all: f64 = self.loads.values().map(|load| load.rate).sum();
        let asked: Vec<(Asked, f64)> = self.loads.iter().map(|(asked, load)| (*asked, load.rate)).collect();
        for (asked, rate) in asked {
            let (task, admits, bound) = asked;
            let share = if all > 0.0 { rate / all } else { 1.0 };
            let lanes = whole(share * f64::from(u32::try_from(cluster.lanes()).unwrap_or(u32::MAX)));
            let there = |v: &VariantId| (0..cluster.nodes()).any(|node| cluster.placed(node, *v));
            let known = admitted(cluster, task, admits).into_iter().filter(|(_, alone)| *alone <= bound);
            let mut best: Option<(f64, VariantId)> = None;
            for (variant, _) in known.filter(|(v, _)| there(v)) {
                let worth = self.effective(cluster, variant, bound, (rate, lanes));
                if best.is_none_or(|(known, _)| worth > known) {
                    best = Some((worth, variant));
                }
            }
            if let Some((_, best)) = best {
                self.switch(asked, best);
            }
        }
    }

    /// From now on this model answers an application, those included who wait.
    fn switch(&mut self, asked: Asked, to: VariantId) {
        let Some(load) = self.loads.get_mut(&asked) else { return };
        let before = load.now.replace(to).filter(|before| *before != to);
        let Some(queue) = before.and_then(|before| self.queues.get_mut(&before)) else { return };
        let theirs = queue.take_if(u32::MAX, |ask| (ask.task, ask.admits, ask.bound) == asked);
        let queue = self.queues.entry(to).or_default();
        for ask in theirs {
            queue.push(ask);
        }
    }
}

/// At least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn whole(lanes: f64) -> usize {
    (libm::round(lanes) as usize).max(1)
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
        // As on Clipper batches go by the objective, not by who is due: half of the bound, by which rates are judged too.
        serve_earliest(cluster, &mut self.queues, lane, 0.5);
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
    fn effective_accuracy_is_accuracy_times_the_share_in_time_at_the_level_of_the_load() {
        let world = World::ladder().build();
        let mut cluster = Cluster::new(&world, 1, false).expect("a world");
        cluster.load(0, VariantId(1));
        let mut policy = Switching::new(&Given::default());
        let mut seen = |rate| policy.effective(&cluster, VariantId(1), ms(100), (rate, 1));
        // `good`: 2 in 20 ms, so 100 a second in pairs. At 20 a second none waits for long.
        assert!((seen(20.0) - 0.95).abs() < 1e-3, "{}", seen(20.0));
        // At 400 a second, whose level is 1.1 to the 63rd or 405.3, the lane answers 100.
        assert!((seen(400.0) - 0.95 * 100.0 / 405.3).abs() < 0.01, "{}", seen(400.0));
        assert_eq!((level(0.0), level(1.1), level(1.11), level(400.0)), (0, 1, 2, 63));
    }

    #[test]
    fn who_waits_is_answered_by_the_model_that_is_switched_to() {
        // 400 at once just before the load is measured: 200 a second, of which `good` can answer half. Within 2 s it would answer 200 of
        // those who wait, `quick` all of them.
        let world = World::ladder().bound(ms(2_000)).asks(&[900; 400]).build();
        let outcome = outcome(&world, &mut Switching::new(&Given::default()));
        assert_eq!(outcome.total.in_time(), 400, "{:?}", outcome.total);
        assert_eq!(outcome.total.variants.keys().collect::<Vec<_>>(), ["good", "quick"]);
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
