//! MArk-like: machines of each kind by a forecast, cheapest for what they serve.
//!
//! Every minute the highest rate of five seconds in each past minute is carried on for six minutes: level and trend, where its authors trained
//! a network; before the first minute is over, the load's sample stands for it. With a fifth to spare, instances are then taken one by
//! one while the first minute lacks anything: each time the kind with the least price and launch cost for what it would serve over the
//! minutes that lack; instances that are there cost no launch. What is too many by each of the last six plans goes. An instance is a lane
//! with one model. The largest batch takes half of the bound. Its description lets a serverless service take what no forecast foresaw; the
//! simulated world has none.

use super::Policy;
use super::cluster::{Ask, Cluster};
use super::dedicated::{Dedicated, Wanted};
use super::fixed::{Choice, Rule};
use super::given::{Given, value};
use crate::outcome::ratio;
use modelless_decision::Moments;
use modelless_types::{Micros, Time};
use std::collections::VecDeque;

const STEPS: usize = 6;
const WINDOW: Micros = Micros::from_secs(5);
const TREND: f64 = 0.5;
/// More instances of a model than this are never planned.
const MOST: usize = 10_000;

/// A kind of instances, for one model.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    usd_per_second: f64,
    launch_usd: f64,
    /// A second.
    serves: f64,
    /// Those that are there, and all there can be.
    has: u32,
    most: u32,
}

/// See above.
pub(super) struct Mark {
    rule: Rule,
    dedicated: Dedicated,
    spare: f64,
    minute: u32,
    seconds: u32,
    /// Level and trend of each model's rate.
    levels: Vec<Option<(f64, f64)>>,
    /// The highest rate of five seconds in this minute.
    highest: Vec<f64>,
    plans: VecDeque<Wanted>,
}

impl Mark {
    pub(super) fn new(given: &Given) -> Self {
        Self {
            rule: Rule::new(Choice::Cheapest, given),
            dedicated: Dedicated::default(),
            spare: value(given, "spare", 1.2),
            minute: whole(value(given, "minute_s", 60.0)).max(1),
            seconds: 0,
            levels: Vec::new(),
            highest: Vec::new(),
            plans: VecDeque::new(),
        }
    }

    fn plan(&mut self, cluster: &mut Cluster<'_>) {
        let mut plan = Wanted::new();
        for (at, level) in self.levels.iter().enumerate() {
            let (level, trend) = level.unwrap_or_default();
            let ahead = |step: u32| (level + trend * f64::from(step)).max(0.0) * self.spare;
            let forecast: Vec<f64> = (1..=u32::try_from(STEPS).unwrap_or(6)).map(ahead).collect();
            let kinds: Vec<Kind> =
                (0..self.dedicated.kinds.len()).map(|kind| self.kind(cluster, at, kind)).collect();
            for (kind, many) in fill(&forecast, &kinds, f64::from(self.minute)).into_iter().enumerate() {
                plan.insert((at, kind), many);
            }
        }
        self.plans.push_back(plan);
        if self.plans.len() > STEPS {
            self.plans.pop_front();
        }
        let mut wanted = Wanted::new();
        for plan in &self.plans {
            for (place, many) in plan {
                let known = wanted.entry(*place).or_default();
                *known = (*many).max(*known);
            }
        }
        // Something of each model stays.
        for at in 0..self.levels.len() {
            let nothing = wanted.iter().filter(|((model, _), _)| *model == at).all(|(_, many)| *many == 0);
            if nothing && let Some((_, many)) = wanted.iter_mut().find(|((model, _), _)| *model == at) {
                *many = 1;
            }
        }
        self.dedicated.give(cluster, &wanted);
    }

    fn kind(&self, cluster: &Cluster<'_>, model: usize, kind: usize) -> Kind {
        let node = self.dedicated.kinds[kind][0];
        let of = &self.dedicated.models[model];
        let lanes = f64::from(u32::try_from(cluster.lanes_of(node)).unwrap_or(1));
        let usd_per_second = cluster.usd_per_hour(node) / lanes / 3_600.0;
        let batch = cluster.fits(node, of.variant, Micros(of.bound.0 / 2));
        let batch = if batch == 0 { u32::from(cluster.p99(node, of.variant, 1) <= of.bound) } else { batch };
        let start = cluster.start_up(node) + cluster.load_time(node, of.variant);
        Kind {
            usd_per_second,
            launch_usd: if batch == 0 { 0.0 } else { usd_per_second * Moments::exactly(start).mean / 1e6 },
            serves: f64::from(batch) * 1e6 / cluster.mean_us(node, of.variant, batch.max(1)),
            has: self.dedicated.replicas(cluster, model, kind),
            most: u32::try_from(self.dedicated.lanes_of(cluster, kind).len()).unwrap_or(u32::MAX),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn whole(value: f64) -> u32 {
    value as u32
}

/// Instances of each kind until the first step lacks nothing.
fn fill(forecast: &[f64], kinds: &[Kind], step_s: f64) -> Vec<u32> {
    let mut left = forecast.to_vec();
    let mut many = vec![0_u32; kinds.len()];
    for _ in 0..MOST {
        let lacks = left.iter().take_while(|rate| **rate > 1e-9).count();
        if lacks == 0 {
            break;
        }
        let cost = |(at, kind): (usize, &Kind)| {
            let served: f64 = left[..lacks].iter().map(|rate| rate.min(kind.serves) * step_s).sum();
            let launch = if many[at] < kind.has { 0.0 } else { kind.launch_usd };
            let usd = kind.usd_per_second * step_s * f64::from(u32::try_from(lacks).unwrap_or(1)) + launch;
            (kind.serves > 0.0 && many[at] < kind.most).then_some((usd / served, at))
        };
        let least =
            kinds.iter().enumerate().filter_map(cost).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let Some((_, kind)) = least else { break };
        many[kind] += 1;
        for rate in &mut left {
            *rate = (*rate - kinds[kind].serves).max(0.0);
        }
    }
    many
}

impl Policy for Mark {
    fn every(&self) -> Option<Micros> {
        Some(Micros::from_secs(1))
    }

    fn scales(&self) -> bool {
        true
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        self.dedicated = Dedicated::start(cluster, self.rule);
        for at in 0..self.dedicated.models.len() {
            let model = &self.dedicated.models[at];
            let half = Micros(model.bound.0 / 2);
            let fits = |nodes: &Vec<usize>| cluster.fits(nodes[0], model.variant, half);
            let batch = self.dedicated.kinds.iter().map(fits).max().unwrap_or(1).max(1);
            self.dedicated.models[at].batch = batch;
        }
        let highest = |times: Vec<Micros>| {
            let end = times.last().map_or(0, |last| last.0 / WINDOW.0);
            let within = |n: u64| {
                let to = |at: u64| times.partition_point(|time| time.0 < at * WINDOW.0);
                (to(n + 1) - to(n)) as u64
            };
            ratio((0..=end).map(within).max().unwrap_or(0) * 1_000_000, WINDOW.0)
        };
        let samples = self.dedicated.sample(cluster);
        self.levels = samples.into_iter().map(|times| Some((highest(times), 0.0))).collect();
        self.highest = vec![0.0; self.levels.len()];
        self.plan(cluster);
        // What the sample said is no plan of a minute.
        self.levels.fill(None);
        self.plans.clear();
    }

    fn started(&mut self, cluster: &mut Cluster<'_>, _node: usize) {
        self.dedicated.settle(cluster);
    }

    fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        self.dedicated.arrive(cluster, ask);
    }

    fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        self.dedicated.fill(cluster, lane);
    }

    fn tick(&mut self, cluster: &mut Cluster<'_>) {
        let now: Time = cluster.now();
        for (highest, model) in self.highest.iter_mut().zip(&self.dedicated.models) {
            *highest = highest.max(ratio(model.lately(now, WINDOW) as u64 * 1_000_000, WINDOW.0));
        }
        self.seconds += 1;
        if !self.seconds.is_multiple_of(self.minute) {
            return self.dedicated.settle(cluster);
        }
        for (level, highest) in self.levels.iter_mut().zip(&mut self.highest) {
            let seen = core::mem::take(highest);
            // As much as there was, and half of what was seen of a trend.
            *level = Some(level.map_or((seen, 0.0), |(before, trend)| {
                (seen, TREND * (seen - before) + (1.0 - TREND) * trend)
            }));
        }
        self.plan(cluster);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    #[test]
    fn instances_are_taken_by_price_and_launch_for_what_they_serve() {
        // A dollar a second for 100 a second, or three for 400; launches cost 60 and 600 dollars.
        let small = Kind { usd_per_second: 1.0, launch_usd: 60.0, serves: 100.0, has: 0, most: 99 };
        let big = Kind { usd_per_second: 3.0, launch_usd: 600.0, serves: 400.0, has: 0, most: 99 };
        // One minute: small 120 / 6,000 = 0.02; big 780 / 24,000 = 0.0325. Of six minutes: 420 / 36,000 = 0.0117 and 1,680 / 144,000, the same.
        assert_eq!(fill(&[400.0], &[small, big], 60.0), [4, 0]);
        assert_eq!(fill(&[401.0; 6], &[small, Kind { launch_usd: 599.0, ..big }], 60.0), [1, 1]);
        // One that is there needs no launch.
        assert_eq!(fill(&[400.0], &[small, Kind { has: 1, ..big }], 60.0), [0, 1]);
        // Of what there is not more can be taken.
        assert_eq!(fill(&[400.0], &[Kind { most: 1, ..small }, Kind { most: 0, ..big }], 60.0), [1, 0]);
    }

    #[test]
    fn a_forecast_that_grows_starts_machines_and_they_stay_for_six_plans() {
        // 50 a second a machine. 25 a second, from the third minute (of 5 s) 120, from the fifth 25 again.
        let mut at: Vec<u64> = (0..250).map(|n| n * 40).collect();
        at.extend((0..1_200).map(|n| 10_000 + n * 25 / 3));
        at.extend((0..1_250).map(|n| 20_000 + n * 40));
        let world =
            World::of(vec![variant("only", 1, 900_000, &[(1, 20)], ms(1))]).nodes(6, 1).rented(5, ms(500));
        let given = Given::from([("minute_s".into(), 5.0)]);
        let outcome = outcome(&world.asks(&at).build(), &mut Mark::new(&given));
        let at_s = |s: usize| outcome.series.buckets[s * outcome.series.buckets.len() / 70].machines;
        // The sample is the load itself, so it begins with 120 x 1.2 / 50, three; plans then see 25 x 1.2 / 50, one, and 120 with a trend.
        assert_eq!((at_s(1), at_s(9)), (3, 1));
        assert!(at_s(19) >= 4, "with the trend: {}", at_s(19));
        assert!(at_s(40) >= 4 && at_s(65) == 1, "{} {}", at_s(40), at_s(65));
    }
}
