//! What nobody can be better than: the fluid bound.
//!
//! It takes every variant to be in memory everywhere at no cost, queries to be divisible, batches to be as full as pays, runs to take
//! their means, and nothing to fail. Then what comes in a stretch of time has to be served by the end of the stretch and its own
//! bound after it, so whatever exceeds what all lanes can do by then is late whoever decides. Of stretches of many lengths those count
//! together that tell the most and do not overlap; a policy that looks better than this is counted wrongly.
//!
//! Run times are drawn about their means, so over a short run luck may beat the bound by a little.

mod charged;
mod disjoint;

use crate::Error;
use crate::known::Catalog;
use crate::scenario::Scenario;
use crate::simplex::Programme;
use crate::workload::Source;
use charged::Presence;
use modelless_decision::Moments;
use modelless_decision::admission;
use modelless_decision::hire::{best_rate, takes};
use modelless_decision::query::Class;
use modelless_decision::route::{NodeInfo, Offer, Ready, Snapshot, Table};
use modelless_types::{Micros, NodeId, PricePerHour};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The bounds of a scenario.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Fluid {
    /// At least this share of queries is late or refused.
    pub violations: f64,
    /// The same for who asks for machines that come and go when what comes needs them, and not before: with their start and a load charged. No bound for
    /// whoever asks for more than that.
    #[serde(default)]
    pub charged: f64,
    /// At most so accurate are answers on average, of whoever misses no more than a point above these. `None` if nothing can be served.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// At most so many a second can be served, of the scenario's mix.
    pub capacity: f64,
    /// At least this is paid for a million answers in time, were machines rented by the lane and the second. `None` if nothing
    /// can be served.
    pub usd_per_million: Option<f64>,
}

/// What an answer is worth beside its accuracy, where as many as can be come first.
const ANSWER: f64 = 100.0;
/// So much more may be missed than must be by whom the most accurate is told of.
const POINT: f64 = 0.01;

/// A stretch begins at so many places of its length: a crowd seldom comes when one does.
const PLACES: u64 = 24;
/// The next are longer by such a part.
const LONGER: u64 = 6;
/// Ends of those that tell the most are moved by at most the longest bound and at least this, in microseconds.
const FINEST: u64 = 1_000;
/// More of one length are not looked at.
const MOST_STRETCHES: u64 = 4_000;

/// Queries that the same variants may answer within the same bound.
struct Group {
    /// Within which they are to be answered.
    bound: Micros,
    /// How many a second each kind of lane serves at most.
    rates: Vec<f64>,
    /// The same for who leaves half of the bound for waiting, as those do who rent.
    careful: Vec<f64>,
    /// How accurate each variant's answers are, and how many a second it gives on each kind of lane.
    ways: Vec<Vec<(f64, f64)>>,
    streams: Vec<usize>,
}

/// Lanes that are alike.
struct Lanes {
    node: usize,
    /// All of them, and how many lanes each has.
    nodes: Vec<(usize, f64)>,
    count: f64,
    usd_per_second: f64,
}

/// Who may answer what: the same admission as live, on idle machines with everything in memory.
pub(crate) fn everything_ready(scenario: &Scenario, known: &Catalog<'_>) -> Snapshot {
    let node = |at: usize| {
        let way = Moments::exactly(scenario.link.one_way + scenario.nodes[at].far + scenario.link.jitter);
        let offer = |v: &crate::known::Known<'_>| Offer {
            task: v.task,
            ordinal: v.spec.ordinal,
            ready: Ready::Resident,
            run: v.told.clone(),
            width: 1,
        };
        NodeInfo {
            id: NodeId(u32::try_from(at + 1).unwrap_or(u32::MAX)),
            rtt: way.times(2.0),
            price: scenario.nodes[at].worker.devices.first().map_or(PricePerHour(0), |d| d.price),
            offers: known.all_on(at).map(offer).collect(),
        }
    };
    Snapshot::new(Table {
        tasks: scenario.tasks.iter().map(crate::TaskSpec::info).collect(),
        nodes: (0..scenario.nodes.len()).map(node).collect(),
    })
}

/// The tightest bound of a scenario in single runs: of the most accurate model that may answer within it, and of the quickest.
pub(crate) fn in_single_runs(scenario: &Scenario) -> (f64, f64) {
    let known = Catalog::new(scenario);
    let snapshot = everything_ready(scenario, &known);
    let (mut tightest, mut least) = (f64::INFINITY, f64::INFINITY);
    for stream in &scenario.streams {
        let Ok(admitted) = admission::admit(&snapshot, stream.task, &stream.goals) else { continue };
        let bound = Moments::exactly(admitted.latency).mean;
        let all = (0..scenario.nodes.len()).flat_map(|node| known.all_on(node));
        let may = all.filter(|v| v.task == stream.task && admitted.class.admits.contains(v.spec.ordinal));
        let alone = may.map(|v| (v.spec.accuracy, Moments::exactly(v.told.estimate(1).p99()).mean));
        let alone: Vec<_> = alone.filter(|(_, alone)| *alone <= bound).collect();
        let best = alone.iter().max_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        tightest = best.map_or(tightest, |(_, alone)| tightest.min(bound / alone));
        let quickest = alone.iter().map(|(_, alone)| bound / alone).reduce(f64::max);
        least = quickest.map_or(least, |quickest| least.min(quickest));
    }
    (tightest, least)
}

struct Case {
    groups: Vec<Group>,
    lanes: Vec<Lanes>,
    longest: Micros,
}

impl Case {
    fn new(scenario: &Scenario, known: &Catalog<'_>) -> Self {
        let snapshot = everything_ready(scenario, known);
        let mut lanes: Vec<(String, PricePerHour, Lanes)> = Vec::new();
        for (node, spec) in scenario.nodes.iter().enumerate() {
            for device in &spec.worker.devices {
                let count = f64::from(device.lanes.max(1));
                let alike = |(class, price, _): &&mut (String, PricePerHour, Lanes)| {
                    *class == spec.class && *price == device.price
                };
                if let Some((.., alike)) = lanes.iter_mut().find(alike) {
                    alike.count += count;
                    alike.nodes.push((node, count));
                } else {
                    let usd_per_second = device.price.as_usd() / 3_600.0;
                    let nodes = vec![(node, count)];
                    let first = Lanes { node, nodes, count, usd_per_second };
                    lanes.push((spec.class.clone(), device.price, first));
                }
            }
        }
        let lanes: Vec<Lanes> = lanes.into_iter().map(|(.., lanes)| lanes).collect();
        let mut groups: BTreeMap<(Class, Micros), Group> = BTreeMap::new();
        for (at, stream) in scenario.streams.iter().enumerate() {
            let Ok(admitted) = admission::admit(&snapshot, stream.task, &stream.goals) else { continue };
            let ways = |lanes: &Lanes| -> Vec<(f64, f64)> {
                let may = known
                    .all_on(lanes.node)
                    .filter(|v| v.task == stream.task && admitted.class.admits.contains(v.spec.ordinal));
                let way = |v: &crate::known::Known<'_>| {
                    (v.spec.accuracy.as_f64(), best_rate(&v.run, v.max_batch, admitted.latency))
                };
                may.map(way).filter(|(_, rate)| *rate > 0.0).collect()
            };
            let careful = |lanes: &Lanes| {
                let may = known
                    .all_on(lanes.node)
                    .filter(|v| v.task == stream.task && admitted.class.admits.contains(v.spec.ordinal));
                takes(may.map(|v| (&v.run, v.max_batch)), admitted.latency).map_or(0.0, |each| 1.0 / each)
            };
            let group = groups.entry((admitted.class, admitted.latency)).or_insert_with(|| {
                let ways: Vec<_> = lanes.iter().map(ways).collect();
                let quickest = |ways: &Vec<(f64, f64)>| ways.iter().map(|way| way.1).fold(0.0, f64::max);
                Group {
                    bound: admitted.latency,
                    rates: ways.iter().map(quickest).collect(),
                    careful: lanes.iter().map(careful).collect(),
                    ways,
                    streams: Vec::new(),
                }
            });
            group.streams.push(at);
        }
        let longest = groups.keys().map(|(_, bound)| *bound).max().unwrap_or(Micros::ZERO);
        Self { groups: groups.into_values().collect(), lanes, longest }
    }

    fn variable(&self, group: usize, lanes: usize) -> usize {
        group * self.lanes.len() + lanes
    }

    /// How much of each group is served by each kind of lane at best: as much as can be, and where that is `cheap` as cheaply as it can be.
    fn served(&self, counts: &[f64], lane_seconds: &[f64], cheap: bool) -> Option<Vec<f64>> {
        let price =
            |group: usize, lanes: usize| self.lanes[lanes].usd_per_second / self.groups[group].rates[lanes];
        let pairs = || {
            let all = (0..self.groups.len()).flat_map(|g| (0..self.lanes.len()).map(move |l| (g, l)));
            all.filter(|(g, l)| self.groups[*g].rates[*l] > 0.0)
        };
        let dearest = pairs().map(|(g, l)| price(g, l)).fold(0.0, f64::max);
        // One more answer is worth more than any saving.
        let saved = if cheap { 1e-3 / dearest.max(f64::MIN_POSITIVE) } else { 0.0 };
        let mut gains = vec![0.0; self.groups.len() * self.lanes.len()];
        for (g, l) in pairs() {
            gains[self.variable(g, l)] = 1.0 - saved * price(g, l);
        }
        let mut programme = Programme::new(gains);
        for (g, count) in counts.iter().enumerate() {
            let sum = pairs().filter(|(group, _)| *group == g).map(|(_, l)| (self.variable(g, l), 1.0));
            programme.at_most(sum.collect(), *count);
        }
        for (l, seconds) in lane_seconds.iter().enumerate() {
            let busy = pairs().filter(|(_, lanes)| *lanes == l);
            let busy = busy.map(|(g, _)| (self.variable(g, l), 1.0 / self.groups[g].rates[l]));
            programme.at_most(busy.collect(), *seconds);
        }
        programme.solve()
    }

    /// What a million of these cost at the least, where as many as can be are served.
    fn usd_per_million(&self, counts: &[f64], lane_seconds: &[f64]) -> Option<f64> {
        let served = self.served(counts, lane_seconds, true)?;
        let each = |(at, n): (usize, &f64)| {
            let (g, l) = (at / self.lanes.len(), at % self.lanes.len());
            if *n > 0.0 { n / self.groups[g].rates[l] * self.lanes[l].usd_per_second } else { 0.0 }
        };
        let usd: f64 = served.iter().enumerate().map(each).sum();
        let answers: f64 = served.iter().sum();
        (answers > 0.0).then(|| usd / answers * 1e6)
    }

    /// How many of these cannot be served at best. Nobody, where that cannot be told.
    fn lost(&self, counts: &[f64], lane_seconds: &[f64]) -> f64 {
        // Mostly there is time for all, and mostly one kind of lane has it.
        let takes = |count: f64, rate: f64| if count > 0.0 { count / rate } else { 0.0 };
        let work = |l: usize| -> f64 {
            counts.iter().zip(&self.groups).map(|(count, group)| takes(*count, group.rates[l])).sum()
        };
        if lane_seconds.iter().enumerate().any(|(l, seconds)| work(l) <= *seconds) {
            return 0.0;
        }
        let served = self.served(counts, lane_seconds, false);
        served.map_or(0.0, |served| counts.iter().sum::<f64>() - served.iter().sum::<f64>())
    }

    /// How accurate answers are on average at best, if so many are given in all.
    fn most_accurate(&self, counts: &[f64], lane_seconds: &[f64], answers: f64) -> Option<f64> {
        /// Of which group, on which lanes, how accurate, and how many a second.
        type Way = (usize, usize, f64, f64);
        let mut ways: Vec<Way> = Vec::new();
        for (g, group) in self.groups.iter().enumerate() {
            for (l, of) in group.ways.iter().enumerate() {
                ways.extend(of.iter().map(|(accuracy, rate)| (g, l, *accuracy, *rate)));
            }
        }
        // First so many, and then as accurate as can be.
        let mut programme = Programme::new(ways.iter().map(|way| ANSWER + way.2).collect());
        let rows = |of: &dyn Fn(&Way) -> Option<f64>| {
            ways.iter().enumerate().filter_map(|(at, way)| Some((at, of(way)?))).collect::<Vec<_>>()
        };
        for (g, count) in counts.iter().enumerate() {
            programme.at_most(rows(&|way| (way.0 == g).then_some(1.0)), *count);
        }
        for (l, seconds) in lane_seconds.iter().enumerate() {
            programme.at_most(rows(&|way| (way.1 == l).then(|| 1.0 / way.3)), *seconds);
        }
        programme.at_most(rows(&|_| Some(1.0)), answers);
        let given = programme.solve()?;
        let all: f64 = given.iter().sum();
        let accuracy: f64 = given.iter().zip(&ways).map(|(given, way)| given * way.2).sum();
        (all > 0.0).then(|| accuracy / all)
    }

    /// How many are lost whoever decides, with lanes that are there when `presence` says: the most that stretches tell of which no two overlap. Who came in a
    /// stretch is served in it or within his bound after it, or lost.
    fn most_lost(
        &self,
        scenario: &Scenario,
        presence: &Presence,
        counts: &impl Fn(u64, u64) -> Vec<f64>,
    ) -> f64 {
        let all = scenario.duration.0.max(1);
        let bounds: BTreeSet<Micros> = self.groups.iter().map(|group| group.bound).collect();
        // Of those who are to be answered within a bound, or a tighter one.
        let lost_of = |came: &[f64], from: u64, to: u64, bound: Micros| {
            let within = came.iter().zip(&self.groups);
            let came: Vec<f64> =
                within.map(|(came, group)| if group.bound <= bound { *came } else { 0.0 }).collect();
            self.lost(&came, &presence.lane_seconds(from, to + bound.0))
        };
        let lost = |from: u64, to: u64| {
            let came = counts(from, to);
            bounds.iter().map(|bound| lost_of(&came, from, to, *bound)).fold(0.0, f64::max)
        };
        let mut stretches = vec![(0, all, lost(0, all))];
        let mut length = self.longest.0.max(1);
        while length < all {
            // Short stretches of a long run are looked at in fewer places, or not at all: they tell little and take long.
            let step = length.div_ceil(PLACES).max(all.div_ceil(MOST_STRETCHES));
            if step <= length {
                let from = (0..).map(|n| n * step).take_while(|from| from + length <= all);
                stretches.extend(from.map(|from| (from, from + length, lost(from, from + length))));
            }
            length = length.saturating_add(length.div_ceil(LONGER));
        }
        stretches.retain(|(_, _, lost)| *lost > 0.0);
        let chosen = disjoint::most(stretches);
        let chosen = disjoint::better(chosen, (self.longest.0, FINEST), all, &lost);
        chosen.into_iter().map(|(.., lost)| lost).sum()
    }

    /// By which factor arrivals in these proportions could grow at most.
    fn headroom(&self, rates: &[f64]) -> Option<f64> {
        let variables = self.groups.len() * self.lanes.len();
        let mut gains = vec![0.0; variables + 1];
        gains[variables] = 1.0;
        let mut programme = Programme::new(gains);
        for (g, rate) in rates.iter().enumerate() {
            let served = (0..self.lanes.len()).filter(|l| self.groups[g].rates[*l] > 0.0);
            let mut sum: Vec<(usize, f64)> = served.map(|l| (self.variable(g, l), -1.0)).collect();
            sum.push((variables, *rate));
            programme.at_most(sum, 0.0);
        }
        for (l, lanes) in self.lanes.iter().enumerate() {
            let busy = (0..self.groups.len()).filter(|g| self.groups[*g].rates[l] > 0.0);
            let busy = busy.map(|g| (self.variable(g, l), 1.0 / self.groups[g].rates[l]));
            programme.at_most(busy.collect(), lanes.count);
        }
        Some(programme.solve()?[variables])
    }

    /// How many a second can be served at most, in the proportions of those who came in a run so long.
    fn capacity(&self, counts: &[f64], duration: Micros) -> Result<f64, Error> {
        let rates: Vec<f64> = counts.iter().map(|n| n / (float(duration.0.max(1)) / 1e6)).collect();
        let all: f64 = rates.iter().sum();
        let headroom = if all > 0.0 { self.headroom(&rates) } else { Some(0.0) };
        let known = headroom.map(|headroom| headroom * all);
        known.ok_or_else(|| Error::Scenario("how much could be served at most was not found".into()))
    }
}

/// At most so many a second can be served of a scenario's mix, as a seed has it: [`Fluid::capacity`] without the rest, which takes long.
pub(crate) fn capacity(scenario: &Scenario, seed: u64) -> Result<f64, Error> {
    scenario.check().map_err(Error::Scenario)?;
    let case = Case::new(scenario, &Catalog::new(scenario));
    let arrivals = Source::all(scenario, seed);
    let of = |group: &Group| group.streams.iter().map(|at| arrivals[*at].len()).sum::<usize>();
    let all: Vec<f64> = case.groups.iter().map(|group| float(of(group) as u64)).collect();
    case.capacity(&all, scenario.duration)
}

/// The bounds of a scenario, with the arrivals that a seed gives it.
pub fn fluid(scenario: &Scenario, seed: u64) -> Result<Fluid, Error> {
    scenario.check().map_err(Error::Scenario)?;
    let known = Catalog::new(scenario);
    let case = Case::new(scenario, &known);
    let arrivals: Vec<Vec<Micros>> = Source::all(scenario, seed);
    let offered: usize = arrivals.iter().map(Vec::len).sum();
    let counts = |from: u64, to: u64| -> Vec<f64> {
        let within = |times: &Vec<Micros>| {
            times.partition_point(|at| at.0 < to) - times.partition_point(|at| at.0 < from)
        };
        let of = |group: &Group| group.streams.iter().map(|at| within(&arrivals[*at])).sum::<usize>();
        case.groups.iter().map(|group| float(of(group) as u64)).collect()
    };
    let always = Presence::always(&case.lanes);
    let most_lost = case.most_lost(scenario, &always, &counts);
    let most_lost_charged = if scenario.nodes.iter().any(|node| node.rented.is_some()) {
        let charged = Presence::charged(scenario, &known, (&case.lanes, &case.groups), counts);
        case.most_lost(scenario, &charged, &counts)
    } else {
        most_lost
    };
    let all = counts(0, u64::MAX);
    let admitted: f64 = all.iter().sum();
    let never = float(offered as u64) - admitted;
    let whole = always.lane_seconds(0, scenario.duration.0 + case.longest.0);
    let share = |lost: f64| if offered == 0 { 0.0 } else { (never + lost) / float(offered as u64) };
    let within_a_point = admitted - most_lost_charged - POINT * float(offered as u64);
    Ok(Fluid {
        violations: share(most_lost),
        charged: share(most_lost_charged),
        accuracy: case.most_accurate(&all, &whole, within_a_point.max(0.0)),
        capacity: case.capacity(&all, scenario.duration)?,
        usd_per_million: case.usd_per_million(&all, &whole),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{FASHION, fashion_mnist};
    use crate::{Arrivals, NodeSpec, Stream};
    use modelless_types::{Bytes, Goals};

    /// One model that takes 1 ms a query whatever the batch, on two lanes: 2,000 a second.
    pub(super) fn world(arrivals: Vec<Micros>, bound_ms: u64) -> Scenario {
        let mut task = fashion_mnist();
        task.variants.truncate(1);
        let variant = &mut task.variants[0];
        variant.latency.truncate(1);
        variant.latency[0].mean_us = 1_000.0;
        variant.max_batch = 1;
        let goals = Goals { latency: Some(Micros::from_millis(bound_ms)), ..Goals::default() };
        let stream = Stream::new("all", FASHION, Arrivals::At(arrivals), goals);
        let node = NodeSpec::with(2, Bytes::from_mib(64), Vec::new());
        Scenario::new("by hand", vec![task], vec![node], vec![stream])
    }

    #[test]
    fn a_herd_that_two_lanes_cannot_serve_within_its_bound_is_late_by_what_exceeds_them() {
        // 100 at once, a bound of 10 ms: no more than 2 x 10 can be in time.
        let herd = fluid(&world(vec![Micros::ZERO; 100], 10), 1).expect("runs");
        assert!((herd.violations - 0.8).abs() < 1e-3, "{herd:?}");
        // The same 100 over the whole second are no matter at all.
        let spread = fluid(&world((0..100).map(|n| Micros(n * 10_000)).collect(), 10), 1).expect("runs");
        assert!(spread.violations.abs() < 1e-9, "{spread:?}");
        assert!((spread.capacity - 2_000.0).abs() < 1e-6, "{spread:?}");
        // A lane costs 0.05 USD an hour: a million queries of a millisecond are 1,000 s of it.
        let usd = spread.usd_per_million.expect("something is served");
        assert!((usd - 0.05 * 1_000.0 / 3_600.0).abs() < 1e-9, "{usd}");
    }

    #[test]
    fn answers_are_as_accurate_as_the_lanes_have_time_for() {
        // Two variants: 1 ms and 4 ms. Two lanes have 2 s in a second (and a bound's time), of which 1,000 take all by x of the slow one
        // with 1 ms x (1,000 - x) + 4 ms x = 2.02 s; 10 of them need not be answered.
        let mut world = world((0..1_000).map(|n| Micros(n * 1_000)).collect(), 10);
        let mut slow = world.tasks[0].variants[0].clone();
        let quick = slow.accuracy.as_f64();
        slow.id = modelless_types::VariantId(2);
        slow.ordinal = 1;
        slow.name = "slow".into();
        slow.accuracy = modelless_types::Accuracy::parse_floor("0.99").expect("an accuracy");
        slow.latency[0].mean_us = 4_000.0;
        world.tasks[0].variants.push(slow);
        world.duration = Micros::from_secs(1);
        let seen = fluid(&world, 1).expect("runs").accuracy.expect("something is served");
        let slow = (2_020.0 - 990.0) / 3.0 / 990.0;
        let wanted = quick + slow * (0.99 - quick);
        assert!((seen - wanted).abs() < 1e-6, "{seen}, not {wanted}");
    }

    #[test]
    fn a_floor_that_nothing_reaches_is_violated_by_all_who_ask_for_it() {
        let mut world = world(vec![Micros::ZERO], 10);
        world.streams[0].goals.accuracy = modelless_types::Accuracy::parse_floor("0.99");
        let fluid = fluid(&world, 1).expect("runs");
        assert!((fluid.violations - 1.0).abs() < 1e-9 && fluid.capacity.abs() < 1e-9, "{fluid:?}");
    }

    #[test]
    fn no_seed_of_a_busy_world_does_better_than_the_bound() {
        for rate in [1_500.0, 2_400.0, 4_000.0] {
            let mut world = world(Vec::new(), 10);
            world.streams[0].arrivals = Arrivals::Renewal { rate, cv: 3.0 };
            world.nodes[0].pinned = vec![modelless_types::VariantId(1)];
            for seed in 1..4 {
                let bound = fluid(&world, seed).expect("runs").violations;
                let seen = crate::run(&world, seed).expect("runs").total.violations;
                assert!(seen >= bound - 0.005, "{rate} {seed}: {seen} below {bound}");
            }
        }
    }
}
