//! Proteus-like: every ten seconds each lane gets one variant, so that served accuracy is highest and demand is met.
//!
//! Demand is smoothed, and must be met with 5 % to spare; where it cannot be, as much as possible is. Batches are the largest that take at
//! most half of the bound. What its description leaves to a solver that stops within 50 % of the optimum is done here by taking
//! lanes one by one where they add most, and by upgrading lanes while demand stays met. Queries go to lanes at random by capacity. A lane holds
//! its queue until the head would be late with one more in its batch, drops what cannot be in time, and takes batches of powers of two.
//! A new plan is charged its loads: until its variant is in memory a lane goes on with the old one.

use super::cluster::{Ask, Cluster};
use super::fixed::Asked;
use super::given::{Given, value};
use super::place::admitted;
use super::{Policy, Queue};
use crate::rng::Rng;
use modelless_types::{Micros, VariantId};
use std::collections::BTreeMap;

const EVERY: Micros = Micros::from_secs(10);
/// Of demand, what must be met.
const SPARE: f64 = 1.05;
/// What a second's count weighs: a centre of mass of 1.6.
const WEIGHT: f64 = 1.0 / 2.6;

#[derive(Clone, Debug, Default)]
struct Lane {
    asked: Option<Asked>,
    now: Option<VariantId>,
    next: Option<VariantId>,
    queue: Queue,
    batch: u32,
    rate: f64,
}

/// See above.
pub(super) struct Proteus {
    spare: f64,
    weight: f64,
    counts: BTreeMap<Asked, (u32, f64)>,
    lanes: Vec<Lane>,
    seconds: u32,
    rng: Rng,
}

/// A variant on a lane for who asks: its batch and how many a second it does.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Choice {
    variant: VariantId,
    accuracy: f64,
    batch: u32,
    rate: f64,
}

impl Proteus {
    pub(super) fn new(given: &Given) -> Self {
        Self {
            spare: value(given, "spare", SPARE),
            weight: value(given, "weight", WEIGHT),
            counts: BTreeMap::new(),
            lanes: Vec::new(),
            seconds: 0,
            rng: Rng::new(1, "proteus"),
        }
    }
}

/// What may serve on a node within half of the bound, the most accurate first and none that another beats.
fn options(cluster: &Cluster<'_>, node: usize, asked: Asked) -> Vec<Choice> {
    let (task, admits, bound) = asked;
    let option = |variant: VariantId| {
        let batch = cluster.fits(node, variant, Micros(bound.0 / 2));
        let batch = if batch == 0 { u32::from(cluster.p99(node, variant, 1) <= bound) } else { batch };
        let rate = f64::from(batch) * 1e6 / cluster.mean_us(node, variant, batch.max(1));
        let accuracy = f64::from(cluster.accuracy(variant)) / 1e6;
        (batch > 0).then_some(Choice { variant, accuracy, batch, rate })
    };
    let all = admitted(cluster, task, admits).into_iter().filter_map(|(v, _)| option(v));
    let mut all: Vec<Choice> = all.collect();
    all.sort_by(|a, b| b.accuracy.total_cmp(&a.accuracy).then(b.rate.total_cmp(&a.rate)));
    let mut best = 0.0;
    all.retain(|o| {
        let quicker = o.rate > best;
        best = o.rate.max(best);
        quicker
    });
    all
}

/// Down to a power of two.
fn rounded(batch: u32) -> u32 {
    1 << batch.max(1).ilog2()
}

/// Accuracies served by lanes with these choices, under a demand.
fn worth(chosen: &[Choice], demand: f64) -> f64 {
    let mut all: Vec<&Choice> = chosen.iter().collect();
    all.sort_by(|a, b| b.accuracy.total_cmp(&a.accuracy));
    let mut left = demand;
    let mut sum = 0.0;
    for option in all {
        let served = option.rate.min(left);
        sum += served * option.accuracy;
        left -= served;
    }
    sum
}

/// The best choices for lanes of these options each: as much as is demanded first, then accuracy.
fn arrange(lanes: &[Vec<Choice>], demand: f64) -> Vec<Choice> {
    let mut at: Vec<usize> = lanes.iter().map(|options| options.len() - 1).collect();
    let chosen = |at: &[usize]| lanes.iter().zip(at).map(|(o, at)| o[*at]).collect::<Vec<_>>();
    loop {
        let now = chosen(&at);
        let rate: f64 = now.iter().map(|o| o.rate).sum();
        let better = (0..lanes.len()).filter(|lane| at[*lane] > 0).filter_map(|lane| {
            let up = lanes[lane][at[lane] - 1];
            let kept = rate - now[lane].rate + up.rate >= demand;
            let gain = (up.accuracy - now[lane].accuracy) / (now[lane].rate - up.rate).max(1e-9);
            kept.then_some((lane, gain))
        });
        match better.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))) {
            Some((lane, _)) => at[lane] -= 1,
            None => return now,
        }
    }
}

impl Proteus {
    fn plan(&mut self, cluster: &mut Cluster<'_>) {
        let asked: Vec<(Asked, f64)> =
            self.counts.iter().map(|(asked, (_, rate))| (*asked, (rate * self.spare).max(1.0))).collect();
        let mut given: Vec<Vec<usize>> = vec![Vec::new(); asked.len()];
        for lane in 0..self.lanes.len() {
            let node = cluster.node_of(lane);
            let gain = |at: usize| {
                let (asked, demand) = asked[at];
                let of = |lanes: &[usize]| -> Vec<Vec<Choice>> {
                    lanes.iter().map(|lane| options(cluster, cluster.node_of(*lane), asked)).collect()
                };
                let more = options(cluster, node, asked);
                if more.is_empty() {
                    return f64::NEG_INFINITY;
                }
                let mut lanes = of(&given[at]);
                let before = worth(&arrange(&lanes, demand), demand);
                lanes.push(more);
                worth(&arrange(&lanes, demand), demand) - before
            };
            let gains: Vec<f64> = (0..asked.len()).map(gain).collect();
            let best = (0..asked.len()).max_by(|a, b| gains[*a].total_cmp(&gains[*b]).then(b.cmp(a)));
            if let Some(best) = best.filter(|best| gains[*best].is_finite()) {
                given[best].push(lane);
            }
        }
        for ((asked, demand), lanes) in asked.into_iter().zip(given) {
            let all: Vec<Vec<Choice>> =
                lanes.iter().map(|lane| options(cluster, cluster.node_of(*lane), asked)).collect();
            for (lane, option) in lanes.into_iter().zip(arrange(&all, demand)) {
                let lane = &mut self.lanes[lane];
                if lane.asked != Some(asked) {
                    (lane.asked, lane.now) = (Some(asked), None);
                }
                (lane.next, lane.batch, lane.rate) = (Some(option.variant), option.batch, option.rate);
            }
        }
        self.move_models(cluster);
    }

    /// Loads what lanes are to have, and makes room by unloading what no lane of the node has or is to have.
    fn move_models(&mut self, cluster: &mut Cluster<'_>) {
        for at in 0..self.lanes.len() {
            let node = cluster.node_of(at);
            let Some(next) = self.lanes[at].next else { continue };
            if !cluster.placed(node, next) && !cluster.load(node, next) {
                for variant in cluster.models(node) {
                    let wanted = |(lane, l): (usize, &Lane)| {
                        cluster.node_of(lane) == node && (l.now == Some(variant) || l.next == Some(variant))
                    };
                    if !self.lanes.iter().enumerate().any(wanted) {
                        cluster.unload(node, variant);
                    }
                }
                cluster.load(node, next);
            }
            if cluster.ready(node, next) {
                self.lanes[at].now = Some(next);
            }
        }
    }
}

impl Policy for Proteus {
    fn every(&self) -> Option<Micros> {
        Some(Micros::from_secs(1))
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        self.lanes = vec![Lane::default(); cluster.lanes()];
        self.counts = cluster.asked().into_iter().map(|asked| (asked, (0, 0.0))).collect();
        self.plan(cluster);
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let asked = (ask.task, ask.admits, ask.bound);
        self.counts.entry(asked).or_default().0 += 1;
        let mine = |lane: &Lane| lane.asked == Some(asked);
        let all: f64 = self.lanes.iter().filter(|lane| mine(lane)).map(|lane| lane.rate).sum();
        let mut drawn = all * self.rng.unit();
        for lane in self.lanes.iter_mut().filter(|lane| mine(lane)) {
            drawn -= lane.rate;
            if drawn <= 0.0 {
                lane.queue.push(ask);
                return;
            }
        }
        cluster.refuse(&ask, "no_lane");
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, at: usize) {
        let node = cluster.node_of(at);
        let lane = &mut self.lanes[at];
        if let Some(next) = lane.next.filter(|next| lane.now != Some(*next) && cluster.ready(node, *next)) {
            lane.now = Some(next);
        }
        let Some(variant) = lane.now.filter(|now| cluster.ready(node, *now)) else { return };
        lane.queue.drop_late(cluster, node, variant);
        let Some(head) = lane.queue.head().copied() else { return };
        if !cluster.admits(&head, variant) {
            // It came before the lane was given to somebody else.
            let ask = lane.queue.take(1);
            for ask in &ask {
                cluster.refuse(ask, "no_lane");
            }
            return cluster.wake_at(cluster.now());
        }
        let most = lane.batch.clamp(1, cluster.max_batch(node, variant));
        let held = lane.queue.len().min(most);
        if held < most {
            let latest = head.deadline.0.saturating_sub(cluster.p99(node, variant, held + 1).0);
            if cluster.now().0 < latest {
                return cluster.wake_at(modelless_types::Time(latest));
            }
        }
        // Whoever would be late in the batch that is there is dropped, not waited for in smaller ones.
        let batch = lane.queue.shed(cluster, (node, variant), most, rounded);
        if batch == 0 {
            return;
        }
        let members = lane.queue.take_if(batch, |ask| cluster.admits(ask, variant));
        if members.is_empty() {
            // Those that are left came before the lane was given to somebody else.
            return cluster.wake_at(cluster.now());
        }
        cluster.run(at, variant, members);
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        for (count, rate) in self.counts.values_mut() {
            *rate += self.weight * (f64::from(core::mem::take(count)) - *rate);
        }
        self.seconds += 1;
        if u64::from(self.seconds) * 1_000_000 % EVERY.0 == 0 {
            self.plan(cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    #[test]
    fn lanes_are_upgraded_while_demand_stays_met() {
        let world = World::ladder().build();
        let cluster = Cluster::new(&world, 1, false).expect("a world");
        let asked = cluster.asked()[0];
        // Within 50 ms: `good` 2 in 20 ms is 100 a second, `quick` 8 in 10 ms is 800.
        let options = options(&cluster, 0, asked);
        assert_eq!(options.iter().map(|o| o.batch).collect::<Vec<_>>(), [2, 8]);
        let rates = |demand: f64| {
            let chosen = arrange(&[options.clone(), options.clone(), options.clone()], demand);
            chosen.iter().filter(|o| o.batch == 2).count()
        };
        assert_eq!(
            [rates(250.0), rates(950.0), rates(1_000.0), rates(1_100.0), rates(9_999.0)],
            [3, 2, 2, 1, 0]
        );
    }

    #[test]
    fn a_query_is_held_until_one_more_would_make_it_late() {
        // `good` could take two: the only one waits until 100 - 20 ms.
        let outcome = outcome(&World::ladder().asks(&[0]).build(), &mut Proteus::new(&Given::default()));
        assert_eq!((outcome.total.in_time(), outcome.total.latency.max), (1, ms(100)));
    }

    #[test]
    fn who_would_be_late_in_the_batch_that_is_there_is_dropped() {
        // 20 ms for one, 30 for two, within 85. Two pairs run until 60; the one that is left of those that came at once could end at 80
        // alone, but the batch that is there is of two: it goes, and the two that came later run until 90.
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 20), (2, 30)], ms(1))]).bound(ms(85));
        let world = world.asks(&[0, 0, 0, 0, 0, 35, 35]).build();
        let outcome = outcome(&world, &mut Proteus::new(&Given::default()));
        assert_eq!(outcome.batches.into_iter().collect::<Vec<_>>(), [(2, 3)]);
        assert_eq!((outcome.total.in_time(), outcome.total.refused.get("too_late")), (6, Some(&1)));
    }

    #[test]
    fn a_load_that_grows_is_answered_by_a_quicker_variant_from_the_next_plan_on() {
        let at: Vec<u64> = (0..5_000).map(|n| n * 5).collect();
        let outcome = outcome(&World::ladder().asks(&at).build(), &mut Proteus::new(&Given::default()));
        let quick = |from: usize, to: usize| {
            outcome.series.buckets[from..to].iter().map(|b| b.answers[1]).sum::<u64>()
        };
        // 200 a second for 25 s; planned at 10 s for the first time with what was seen.
        assert_eq!(quick(0, 40), 0, "{:?}", outcome.total.variants);
        assert!(quick(60, 120) > 2_000, "{:?}", outcome.total.variants);
    }
}
