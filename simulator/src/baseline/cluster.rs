//! The machines that baselines decide for: lanes, memory, run times, links and prices of a scenario, without a decision of ours.
//!
//! Arrivals are the very same as of a run with our policies under the same seed. A policy is told of each query once it has come
//! over the link and is decoded; what it hands to a lane runs at once and its answers go back over the link. Writing inputs
//! is taken to happen while the lane runs something else, and what a policy itself needs to think takes no time: both favour it.

mod renting;
pub(super) mod turning;

use crate::Error;
use crate::check::{Broken, ensure};
use crate::heap::Heap;
use crate::known::{Catalog, Known};
use crate::meter::Meter;
use crate::oracle::everything_ready;
use crate::outcome::Outcome;
use crate::record::Record;
use crate::rng::Rng;
use crate::scenario::{Fault, Scenario, VariantSpec};
use crate::workload::Source;
use modelless_decision::admission::{self, Admitted};
use modelless_decision::{Moments, Rank};
use modelless_types::{Bytes, CostPer1k, Micros, PricePerHour, TaskId, Time, VariantId, VariantSet};
use renting::Life;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A query as a policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Its number.
    pub key: u64,
    /// What is asked.
    pub task: TaskId,
    /// Who may answer: what keeps the floor and could be in time on an idle machine.
    pub admits: VariantSet,
    /// The bound that was given.
    pub bound: Micros,
    /// When it came.
    pub came: Time,
    /// When its run must have ended for the answer to be in time.
    pub deadline: Time,
    stream: usize,
    arrived: Time,
    due: Time,
}

pub(super) enum Ev {
    Offer { stream: usize },
    Come(Ask),
    Ran { lane: usize },
    Loaded { node: usize, variant: VariantId, load: u64 },
    Unloaded { node: usize, memory: Bytes, lives: u64 },
    Started { node: usize, start: u64 },
    Tick,
    Wake,
    Look,
}

struct Run {
    variant: VariantId,
    members: Vec<Ask>,
    took: Micros,
}

/// A batch that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Where.
    pub lane: usize,
    /// What.
    pub variant: VariantId,
    /// How many.
    pub batch: u32,
    /// How long.
    pub took: Micros,
    /// How many of them were late.
    pub late: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Loading { until: Time, load: u64 },
    Ready,
}

struct Machine {
    free: Bytes,
    models: BTreeMap<VariantId, State>,
    life: Life,
    /// How often it has gone; what was said of an earlier life is void.
    lives: u64,
    worked_us: u64,
}

/// The machines, and what is known of them.
pub struct Cluster<'a> {
    scenario: &'a Scenario,
    known: Rc<Catalog<'a>>,
    admitted: Vec<Result<Admitted, &'static str>>,
    now: Time,
    /// The node of each lane, and what it runs.
    lanes: Vec<(usize, Option<Run>)>,
    machines: Vec<Machine>,
    sources: Vec<Source>,
    pub(super) heap: Heap<Ev>,
    /// When lanes are to be looked at again.
    wakes: BTreeSet<Time>,
    open: BTreeMap<u64, Ask>,
    next_key: u64,
    next_load: u64,
    seed: u64,
    record: Record,
    runs: Rng,
    links: Rng,
    faults: Rng,
    starts: Rng,
    meter: Meter,
    outcome: Outcome,
    busy_us: u64,
    nano_usd: u64,
    last_left: Time,
    broken: Option<Broken>,
}

impl<'a> Cluster<'a> {
    /// `scales`: whether the policy starts and stops machines; for one that does not all are there all the time.
    pub(super) fn new(scenario: &'a Scenario, seed: u64, scales: bool) -> Result<Self, Error> {
        scenario.check().map_err(Error::Scenario)?;
        if let Some(fault) = scenario.faults.iter().find(|f| !matches!(f, Fault::Slow { .. })) {
            let what = format!("baselines know no fault but `slow`, and there is {fault:?}");
            return Err(Error::Scenario(what));
        }
        let known = Rc::new(Catalog::new(scenario));
        let snapshot = everything_ready(scenario, &known);
        let admit = |stream: &crate::Stream| {
            admission::admit(&snapshot, stream.task, &stream.goals).map_err(|refusal| refusal.name())
        };
        let lanes = scenario.nodes.iter().enumerate().flat_map(|(node, spec)| {
            let lanes = spec.worker.devices.first().map_or(0, |d| d.lanes.max(1));
            (0..lanes).map(move |_| (node, None))
        });
        let there = |spec: &crate::NodeSpec| !scales || spec.there_at_start();
        let machine = |spec: &crate::NodeSpec| Machine {
            free: spec.worker.devices.first().map_or(Bytes(0), |d| d.memory),
            models: BTreeMap::new(),
            life: if there(spec) { Life::Here } else { Life::Away },
            lives: 0,
            worked_us: 0,
        };
        Ok(Self {
            admitted: scenario.streams.iter().map(admit).collect(),
            now: Time::ZERO,
            lanes: lanes.collect(),
            machines: scenario.nodes.iter().map(machine).collect(),
            sources: Source::of(scenario, seed),
            heap: Heap::new(),
            wakes: BTreeSet::new(),
            open: BTreeMap::new(),
            next_key: 0,
            next_load: 0,
            seed,
            record: Record::new(scenario),
            runs: Rng::new(seed, "runs"),
            links: Rng::new(seed, "links"),
            faults: Rng::new(seed, "faults"),
            starts: Rng::new(seed, "starts"),
            meter: Meter::new(scenario, |node| there(&scenario.nodes[node])),
            outcome: Outcome::default(),
            busy_us: 0,
            nano_usd: 0,
            last_left: Time::ZERO,
            broken: None,
            scenario,
            known,
        })
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        self.now
    }

    /// When the first query may come.
    pub fn start(&self) -> Time {
        Time::ZERO + self.scenario.start
    }

    /// How many lanes there are; each runs one batch at a time.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// How many nodes there are; lanes of a node share its memory.
    pub fn nodes(&self) -> usize {
        self.machines.len()
    }

    /// The node of a lane.
    pub fn node_of(&self, lane: usize) -> usize {
        self.lanes[lane].0
    }

    /// Whether a lane is there and runs nothing.
    pub fn idle(&self, lane: usize) -> bool {
        self.lanes[lane].1.is_none() && self.here(self.lanes[lane].0)
    }

    /// How many lanes of a node run something.
    pub fn busy_lanes(&self, node: usize) -> usize {
        self.lanes.iter().filter(|(at, run)| *at == node && run.is_some()).count()
    }

    /// How many lanes a node has.
    pub fn lanes_of(&self, node: usize) -> usize {
        self.lanes.iter().filter(|(at, _)| *at == node).count()
    }

    /// The tasks.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.scenario.tasks.iter().map(|task| task.id)
    }

    /// The applications' queries as they would be asked: of which task, who may answer, in which time. Without those that
    /// nothing can answer.
    pub fn asked(&self) -> Vec<(TaskId, VariantSet, Micros)> {
        let mut all: Vec<_> =
            self.admitted.iter().flatten().map(|a| (a.class.task, a.class.admits, a.latency)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// When queries of each kind come in a sample of the load: the same scenario under another seed, at most a minute of it.
    pub fn sample(&self) -> Vec<((TaskId, VariantSet, Micros), Vec<Micros>)> {
        let duration = self.scenario.duration.min(Micros::from_secs(60));
        let short = Source::of(self.scenario, self.seed ^ 0x5A5A);
        let mut all: BTreeMap<(TaskId, VariantSet, Micros), Vec<Micros>> = BTreeMap::new();
        for (mut source, admitted) in short.into_iter().zip(&self.admitted) {
            let Ok(admitted) = admitted else { continue };
            let of = all.entry((admitted.class.task, admitted.class.admits, admitted.latency)).or_default();
            of.extend(std::iter::from_fn(|| source.next()).take_while(|at| *at < duration));
        }
        all.into_iter().collect()
    }

    /// A query that nobody sent.
    #[cfg(test)]
    pub(super) fn ask_for_tests(&self, key: u64, asked: (TaskId, VariantSet, Micros)) -> Ask {
        let ((task, admits, bound), now) = (asked, self.now);
        let due = now + bound;
        Ask { key, task, admits, bound, came: now, deadline: due, stream: 0, arrived: now, due }
    }

    /// The variants that a node can run, by rising number.
    pub fn variants(&self, node: usize) -> Vec<VariantId> {
        self.known.all_on(node).map(|v| v.spec.id).collect()
    }

    fn on(&self, node: usize, variant: VariantId) -> Option<&Known<'a>> {
        self.known.on(node, variant)
    }

    fn spec(&self, variant: VariantId) -> &'a VariantSpec {
        self.known.spec(variant).expect("policies name variants of the scenario")
    }

    /// What a variant answers.
    pub fn task_of(&self, variant: VariantId) -> TaskId {
        let has = |task: &&crate::TaskSpec| task.variants.iter().any(|v| v.id == variant);
        self.scenario.tasks.iter().find(has).map_or(TaskId(0), |task| task.id)
    }

    /// Its position in its task.
    pub fn ordinal(&self, variant: VariantId) -> u8 {
        self.spec(variant).ordinal
    }

    /// What floors are compared with, in millionths.
    pub fn accuracy(&self, variant: VariantId) -> u32 {
        self.spec(variant).accuracy.ppm()
    }

    /// Whether a variant may answer a query.
    pub fn admits(&self, ask: &Ask, variant: VariantId) -> bool {
        ask.task == self.task_of(variant) && ask.admits.contains(self.spec(variant).ordinal)
    }

    /// The largest batch of a variant on a node; 0 where it cannot run.
    pub fn max_batch(&self, node: usize, variant: VariantId) -> u32 {
        self.on(node, variant).map_or(0, |v| v.max_batch)
    }

    /// The 99th percentile of a batch's run, as profiled.
    pub fn p99(&self, node: usize, variant: VariantId, batch: u32) -> Micros {
        self.on(node, variant).map_or(Micros(u64::MAX / 4), |v| v.told.uncorrected(batch).p99())
    }

    /// The mean of it, in microseconds.
    pub fn mean_us(&self, node: usize, variant: VariantId, batch: u32) -> f64 {
        self.on(node, variant).map_or(f64::INFINITY, |v| v.told.uncorrected(batch).mean)
    }

    /// The largest batch whose 99th percentile is within a time; 0 if not even one query is.
    pub fn fits(&self, node: usize, variant: VariantId, within: Micros) -> u32 {
        let most = self.max_batch(node, variant);
        (1..=most).rev().find(|b| self.p99(node, variant, *b) <= within).unwrap_or(0)
    }

    /// Memory of a replica on a node.
    pub fn memory(&self, node: usize, variant: VariantId) -> Bytes {
        self.on(node, variant).map_or(Bytes(u64::MAX / 4), |v| v.memory)
    }

    /// How long loading takes there.
    pub fn load_time(&self, node: usize, variant: VariantId) -> Micros {
        self.on(node, variant).map_or(Micros(u64::MAX / 4), |v| v.load_time)
    }

    /// What an hour of a node costs, in dollars.
    pub fn usd_per_hour(&self, node: usize) -> f64 {
        self.scenario.nodes[node].usd_per_hour()
    }

    /// Memory that nothing holds; none where the machine is not there.
    pub fn free_memory(&self, node: usize) -> Bytes {
        if self.here(node) { self.machines[node].free } else { Bytes(0) }
    }

    /// Whether a variant is in memory.
    pub fn ready(&self, node: usize, variant: VariantId) -> bool {
        self.machines[node].models.get(&variant) == Some(&State::Ready)
    }

    /// Whether it is, or is on its way there.
    pub fn placed(&self, node: usize, variant: VariantId) -> bool {
        self.machines[node].models.contains_key(&variant)
    }

    /// When what is on its way is expected.
    pub fn expected(&self, node: usize, variant: VariantId) -> Option<Time> {
        match self.machines[node].models.get(&variant)? {
            State::Loading { until, .. } => Some(*until),
            State::Ready => Some(self.now),
        }
    }

    /// What is in memory or on its way there.
    pub fn models(&self, node: usize) -> Vec<VariantId> {
        self.machines[node].models.keys().copied().collect()
    }

    /// Brings a variant into memory. `false` where it cannot run, has no room, or is already.
    pub fn load(&mut self, node: usize, variant: VariantId) -> bool {
        let Some((memory, load_time)) = self.on(node, variant).map(|v| (v.memory, v.load_time)) else {
            return false;
        };
        if self.placed(node, variant) || !self.here(node) || memory > self.machines[node].free {
            return false;
        }
        let mean = Moments::exactly(load_time);
        let sd = mean.mean * self.scenario.nodes[node].load_scatter;
        let took = self.runs.duration(Moments { var: sd * sd, ..mean });
        let load = self.next_load;
        self.next_load += 1;
        self.outcome.loads += 1;
        let machine = &mut self.machines[node];
        machine.free = Bytes(machine.free.0 - memory.0);
        let until = self.now + load_time;
        machine.models.insert(variant, State::Loading { until, load });
        self.heap.push(self.now + took, Rank::Completion, Ev::Loaded { node, variant, load });
        true
    }

    /// Takes a variant out of memory. `false` while it runs, or where it is not.
    pub fn unload(&mut self, node: usize, variant: VariantId) -> bool {
        let runs = |(at, run): &(usize, Option<Run>)| {
            *at == node && run.as_ref().is_some_and(|run| run.variant == variant)
        };
        if self.lanes.iter().any(runs) || self.machines[node].models.remove(&variant).is_none() {
            return false;
        }
        self.outcome.unloads += 1;
        let memory = self.memory(node, variant);
        let at = self.now + self.scenario.nodes[node].unload;
        let lives = self.machines[node].lives;
        self.heap.push(at, Rank::Completion, Ev::Unloaded { node, memory, lives });
        true
    }

    /// Says no.
    pub fn refuse(&mut self, ask: &Ask, why: &'static str) {
        if self.open.remove(&ask.key).is_some() {
            self.record.refused((ask.stream, ask.arrived), why);
            self.last_left = self.now;
        }
    }

    /// Runs a batch on an idle lane.
    pub fn run(&mut self, lane: usize, variant: VariantId, members: Vec<Ask>) {
        if let Err(broken) = self.check(lane, variant, &members) {
            self.broken.get_or_insert(broken);
            return;
        }
        let node = self.lanes[lane].0;
        let size = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let raw = self.on(node, variant).map_or(Moments::ZERO, |v| v.run.uncorrected(size));
        let slow = self.slow(node);
        let time = Moments { mean: raw.mean * slow, var: raw.var * slow * slow };
        let took = self.runs.duration(time) + self.scenario.nodes[node].handover;
        self.busy_us += took.0;
        self.machines[node].worked_us += took.0;
        let price = self.scenario.nodes[node].worker.devices.first().map_or(PricePerHour(0), |d| d.price);
        self.nano_usd += CostPer1k::of_batch(took, price, 1).0 / 1_000;
        *self.outcome.batches.entry(size).or_default() += 1;
        self.lanes[lane].1 = Some(Run { variant, members, took });
        self.heap.push(self.now + took, Rank::Completion, Ev::Ran { lane });
    }

    fn check(&self, lane: usize, variant: VariantId, members: &[Ask]) -> Result<(), Broken> {
        let (node, running) = &self.lanes[lane];
        let name = || self.spec(variant).name.clone();
        ensure(running.is_none(), self.now, "a lane runs one batch", name)?;
        ensure(self.here(*node), self.now, "only a machine that is there runs anything", name)?;
        ensure(self.ready(*node, variant), self.now, "only what is in memory answers", name)?;
        let most = self.max_batch(*node, variant) as usize;
        ensure(
            (1..=most).contains(&members.len()),
            self.now,
            "no batch is larger than its variant takes",
            name,
        )?;
        for ask in members {
            let open = self.open.contains_key(&ask.key);
            ensure(open, self.now, "every query leaves exactly once", || format!("{} has left", ask.key))?;
            ensure(self.admits(ask, variant), self.now, "a variant answers only who admits it", name)?;
        }
        Ok(())
    }

    /// Lanes are to be looked at again then.
    pub fn wake_at(&mut self, at: Time) {
        let at = at.max(self.now);
        if self.wakes.insert(at) {
            self.heap.push(at, Rank::Timer, Ev::Wake);
        }
    }

    fn slow(&self, node: usize) -> f64 {
        let since = self.now - self.start();
        let factor = |fault: &Fault| match fault {
            Fault::Slow { node: at, at: from, until, factor }
                if *at == node && self.now >= self.start() && (*from..*until).contains(&since) =>
            {
                Some(*factor)
            }
            Fault::Slow { .. }
            | Fault::NodeDown { .. }
            | Fault::GatewayDown { .. }
            | Fault::RunnerCrash { .. }
            | Fault::Pause { .. }
            | Fault::Drain { .. }
            | Fault::Recut { .. }
            | Fault::Pin { .. } => None,
        };
        self.scenario.faults.iter().find_map(factor).unwrap_or(1.0)
    }

    fn way(&mut self, node: usize) -> Micros {
        let link = self.scenario.link;
        let jitter = Moments::exactly(link.jitter).times(self.links.exponential());
        link.one_way + self.scenario.nodes[node].far + jitter.mean()
    }
}
