//! InferLine-like: a planner that finds the cheapest batch size and number of replicas on a sample of the load, and a tuner that watches
//! traffic envelopes.
//!
//! The planner simulates one queue in order of coming for each model: for each kind of machines and each batch size (powers of two), the
//! least number of replicas with which 99 in 100 are within the bound, and of all these the cheapest; its description steps there greedily. The
//! sample is the scenario's load under another seed. The tuner compares how many came within windows of twice the length each, from a run's
//! time to 60 s, with the most that the sample had in any such window; more at once gives `rate x / (throughput x planned utilisation)`
//! replicas. Only after 15 s without such a step it takes replicas away, by the highest rate of 5 s in the last 30 s. Its description serves
//! chains of models; here each chain is one model long.

use super::Policy;
use super::cluster::{Ask, Cluster};
use super::dedicated::{Dedicated, Wanted};
use super::fixed::{Choice, Rule};
use super::given::{Given, value};
use crate::outcome::ratio;
use modelless_types::{Micros, Time};

const EVERY: Micros = Micros::from_millis(100);
const LONGEST: Micros = Micros::from_secs(60);
const STEP: Micros = Micros::from_secs(5);

/// What was planned for a model.
#[derive(Clone, PartialEq, Debug)]
struct Planned {
    kind: usize,
    batch: u32,
    /// Of a replica, a second.
    throughput: f64,
    utilisation: f64,
    /// Windows, and the most that the sample had in one.
    envelope: Vec<(Micros, usize)>,
}

/// See above.
pub(super) struct InferLine {
    rule: Rule,
    dedicated: Dedicated,
    planned: Vec<Planned>,
    /// When each model got more replicas last.
    grown: Vec<Time>,
    quiet: Micros,
    back: Micros,
}

impl InferLine {
    pub(super) fn new(given: &Given) -> Self {
        Self {
            rule: Rule::new(Choice::Cheapest, given),
            dedicated: Dedicated::default(),
            planned: Vec::new(),
            grown: Vec::new(),
            quiet: seconds(value(given, "quiet_s", 15.0)),
            back: seconds(value(given, "back_s", 30.0)),
        }
    }
}

fn seconds(seconds: f64) -> Micros {
    Micros::from_millis_f64(seconds * 1e3).unwrap_or(LONGEST)
}

/// The 99th percentile of one queue with so many servers, which take what waits when they fall free.
fn p99(at: &[Micros], most: u32, servers: u32, takes: &dyn Fn(u32) -> Micros) -> Micros {
    let mut free = vec![0_u64; servers.max(1) as usize];
    let (mut next, mut took) = (0, Vec::with_capacity(at.len()));
    while next < at.len() {
        let first = (0..free.len()).min_by_key(|server| free[*server]).unwrap_or(0);
        let starts = free[first].max(at[next].0);
        let waiting = at[next..].partition_point(|at| at.0 <= starts).clamp(1, most as usize);
        let ends = starts + takes(u32::try_from(waiting).unwrap_or(most)).0;
        took.extend(at[next..next + waiting].iter().map(|at| Micros(ends - at.0)));
        free[first] = ends;
        next += waiting;
    }
    took.sort_unstable();
    took.get((took.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// The most that came within any window of this length.
fn most_within(at: &[Micros], window: Micros) -> usize {
    let within = |(from, first): (usize, &Micros)| at[from..].partition_point(|at| at.0 < first.0 + window.0);
    at.iter().enumerate().map(within).max().unwrap_or(0)
}

fn planned(cluster: &Cluster<'_>, dedicated: &Dedicated, model: usize, sample: &[Micros]) -> (Planned, u32) {
    let (variant, bound) = (dedicated.models[model].variant, dedicated.models[model].bound);
    let mut best: Option<(bool, f64, Planned, u32)> = None;
    for (kind, nodes) in dedicated.kinds.iter().enumerate() {
        let node = nodes[0];
        let lanes = u32::try_from(dedicated.lanes_of(cluster, kind).len()).unwrap_or(u32::MAX);
        let price =
            cluster.usd_per_hour(node) / f64::from(u32::try_from(cluster.lanes_of(node)).unwrap_or(1));
        let most = cluster.fits(node, variant, bound);
        for batch in (0..10).map(|power| 1_u32 << power).take_while(|batch| *batch <= most) {
            let takes = |b: u32| cluster.p99(node, variant, b);
            let feasible = |many: u32| p99(sample, batch, many, &takes) <= bound;
            let Some((ok, many)) = least(lanes, feasible) else { continue };
            let throughput = f64::from(batch) * 1e6 / cluster.mean_us(node, variant, batch);
            let cost = price * f64::from(many);
            // What keeps the bound goes before what does not, then cost; of what does not, the most throughput.
            let cost = if ok { cost } else { -throughput * f64::from(many) };
            if best.as_ref().is_none_or(|(known, least, ..)| (!ok, cost) < (!known, *least)) {
                let windows = windows(cluster.p99(node, variant, batch));
                let envelope = windows.into_iter().map(|w| (w, most_within(sample, w))).collect();
                let span = sample.last().map_or(1, |last| last.0).max(1_000_000);
                let rate = ratio(sample.len() as u64 * 1_000_000, span);
                let utilisation = (rate / throughput / f64::from(many)).clamp(0.05, 1.0);
                best = Some((ok, cost, Planned { kind, batch, throughput, utilisation, envelope }, many));
            }
        }
    }
    let nothing = Planned { kind: 0, batch: 1, throughput: 1.0, utilisation: 1.0, envelope: Vec::new() };
    best.map_or((nothing, 1), |(_, _, planned, many)| (planned, many))
}

/// The least number that will do, by halving; with `false` all there are, where they do not.
fn least(most: u32, will_do: impl Fn(u32) -> bool) -> Option<(bool, u32)> {
    if most == 0 {
        return None;
    }
    if !will_do(most) {
        return Some((false, most));
    }
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = u32::midpoint(low, high);
        if will_do(middle) { high = middle } else { low = middle + 1 }
    }
    Some((true, low))
}

fn windows(shortest: Micros) -> Vec<Micros> {
    let doubled = |window: &Micros| Some(Micros(window.0 * 2)).filter(|w| *w <= LONGEST);
    std::iter::successors(Some(shortest.max(Micros(1_000))), doubled).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn replicas(rate: f64, planned: &Planned) -> u32 {
    (rate / (planned.throughput * planned.utilisation)).ceil().max(1.0) as u32
}

impl Policy for InferLine {
    fn every(&self) -> Option<Micros> {
        Some(EVERY)
    }

    fn scales(&self) -> bool {
        true
    }

    fn start(&mut self, cluster: &mut Cluster<'_>) {
        self.dedicated = Dedicated::start(cluster, self.rule);
        let samples = self.dedicated.sample(cluster);
        let mut wanted = Wanted::new();
        for (model, sample) in samples.iter().enumerate() {
            let (planned, many) = planned(cluster, &self.dedicated, model, sample);
            self.dedicated.models[model].batch = planned.batch;
            wanted.insert((model, planned.kind), many);
            self.planned.push(planned);
        }
        self.grown = vec![cluster.start(); self.planned.len()];
        self.dedicated.give(cluster, &wanted);
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
        let now = cluster.now();
        let mut wanted = Wanted::new();
        for (at, planned) in self.planned.iter().enumerate() {
            let model = &self.dedicated.models[at];
            let has = self.dedicated.replicas(cluster, at, planned.kind);
            let beyond = planned.envelope.iter().filter_map(|(window, most)| {
                let seen = model.lately(now, *window);
                (seen > *most).then(|| ratio(seen as u64 * 1_000_000, window.0))
            });
            let many =
                if let Some(rate) = beyond.reduce(f64::max) { replicas(rate, planned).max(has) } else { has };
            let many = if many > has {
                self.grown[at] = now;
                many
            } else if now - self.grown[at] >= self.quiet && now - cluster.start() >= self.back {
                let steps = self.back.0.div_ceil(STEP.0).max(1);
                let ends = (0..steps).map(|step| Time(now.0.saturating_sub(step * STEP.0)));
                let counts = ends.map(|end| {
                    model.lately(now, Micros((now - end).0 + STEP.0)) - model.lately(now, now - end)
                });
                let rate = ratio(counts.max().unwrap_or(0) as u64 * 1_000_000, STEP.0);
                replicas(rate, planned).min(has)
            } else {
                has
            };
            wanted.insert((at, planned.kind), many);
        }
        self.dedicated.give(cluster, &wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, ms, outcome, variant};
    use super::*;

    #[test]
    fn the_planner_takes_the_batch_that_needs_the_fewest_replicas() {
        // 200 a second, evenly. 20 ms alone and 40 for four, within 100 ms: alone four replicas are needed, in pairs (27 ms) three, in
        // fours (100 a second each) two: one that fell behind would not come back.
        let at: Vec<u64> = (0..400).map(|n| n * 5).collect();
        let world = World::of(vec![variant("only", 1, 900_000, &[(1, 20), (4, 40)], ms(1))]).nodes(6, 1);
        let world = world.asks(&at).build();
        let cluster = Cluster::new(&world, 1, true).expect("a world");
        let dedicated = Dedicated::start(&cluster, Rule::new(Choice::Cheapest, &Given::default()));
        let sample = dedicated.sample(&cluster);
        let (planned, many) = planned(&cluster, &dedicated, 0, &sample[0]);
        assert_eq!((planned.batch, many), (4, 2), "{planned:?}");
        assert!((planned.throughput - 100.0).abs() < 1e-9, "{planned:?}");
        // The rate over the throughput of two.
        assert!((planned.utilisation - 1.0).abs() < 0.01, "{planned:?}");
        // The most within 40 ms, 80 ms, ...: every 5 ms one.
        assert_eq!(planned.envelope[..2], [(ms(40), 8), (ms(80), 16)]);
    }

    #[test]
    fn one_queue_with_servers_is_simulated() {
        // Four at once, two servers, pairs in 10 ms: all within 10; one server needs 20.
        let (at, takes) = ([Micros::ZERO; 4], |_: u32| ms(10));
        assert_eq!(
            (p99(&at, 2, 2, &takes), p99(&at, 2, 1, &takes), p99(&at, 1, 1, &takes)),
            (ms(10), ms(20), ms(40))
        );
    }

    #[test]
    fn more_in_a_window_than_the_sample_ever_had_brings_replicas_at_once_and_they_leave_after_quiet() {
        let planned =
            Planned { kind: 0, batch: 4, throughput: 100.0, utilisation: 0.8, envelope: Vec::new() };
        // 250 a second over 100 x 0.8: 3.1.
        assert_eq!(
            (replicas(250.0, &planned), replicas(10.0, &planned), replicas(80.0, &planned)),
            (4, 1, 1)
        );
    }

    #[test]
    fn machines_that_no_replica_needs_are_given_back() {
        // A recording is its own sample: 150 a second for a second and then 5 a second for 60. Planned are three
        // replicas of 50 a second, on average busy for 0.05 of the time: 5 a second still take two.
        let mut at: Vec<u64> = (0..150).map(|n| n * 20 / 3).collect();
        at.extend((0..300).map(|n| 1_000 + n * 200));
        let world =
            World::of(vec![variant("only", 1, 900_000, &[(1, 20)], ms(1))]).nodes(4, 1).rented(3, ms(500));
        let outcome = outcome(&world.asks(&at).build(), &mut InferLine::new(&Given::default()));
        let machines: Vec<u32> = outcome.series.buckets.iter().map(|b| b.machines).collect();
        assert!(machines[2] >= 3 && *machines.last().expect("some") == 2, "{machines:?}");
        assert!(outcome.total.violations < 0.02, "{:?}", outcome.total);
    }
}
