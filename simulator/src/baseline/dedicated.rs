//! Replicas that are planned by number: each lane serves the models that were given to it, and no other. What InferLine-like and
//! MArk-like share: they decide how many replicas of which model run on which kind of machine, and this sees to it.
//!
//! An application has one model, the one with the least device time within its bound; applications with the same model share its replicas
//! under the tightest of their bounds. A model has one queue in order of deadlines for all its replicas. A replica is a lane; while there
//! are fewer lanes than replicas they share lanes. Machines that no replica needs are given back, and asked for when one does.

use super::Queue;
use super::cluster::{Ask, Cluster};
use super::fixed::{Asked, Rule, choose};
use modelless_types::{Micros, Time, VariantId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far back arrivals are remembered.
const REMEMBERED: Micros = Micros::from_secs(60);

/// A model that somebody asks for.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) variant: VariantId,
    /// The tightest bound that it is asked under.
    pub(super) bound: Micros,
    /// The largest batch that is made of it.
    pub(super) batch: u32,
    /// When queries came lately.
    pub(super) came: VecDeque<Time>,
    queue: Queue,
}

impl Model {
    /// How many came within a time until now.
    pub(super) fn lately(&self, now: Time, within: Micros) -> usize {
        let since = Time(now.0.saturating_sub(within.0));
        self.came.len() - self.came.partition_point(|at| *at <= since)
    }
}

/// How many replicas of each model there are to be on each kind of machine.
pub(super) type Wanted = BTreeMap<(usize, usize), u32>;

/// See above.
#[derive(Default)]
pub(super) struct Dedicated {
    pub(super) models: Vec<Model>,
    /// Machines that are alike.
    pub(super) kinds: Vec<Vec<usize>>,
    of: BTreeMap<Asked, usize>,
    /// The models of each lane.
    lanes: Vec<BTreeSet<usize>>,
}

impl Dedicated {
    pub(super) fn start(cluster: &Cluster<'_>, rule: Rule) -> Self {
        let (mut models, mut of) = (Vec::<Model>::new(), BTreeMap::new());
        for asked in cluster.asked() {
            let Some(variant) = choose(cluster, rule, asked) else { continue };
            let at = models.iter().position(|model| model.variant == variant).unwrap_or_else(|| {
                let (queue, came) = (Queue::default(), VecDeque::new());
                models.push(Model { variant, bound: asked.2, batch: 1, came, queue });
                models.len() - 1
            });
            models[at].bound = asked.2.min(models[at].bound);
            of.insert(asked, at);
        }
        Self { models, kinds: cluster.kinds(), of, lanes: vec![BTreeSet::new(); cluster.lanes()] }
    }

    /// When queries for each model come in a sample of the load.
    pub(super) fn sample(&self, cluster: &Cluster<'_>) -> Vec<Vec<Micros>> {
        let mut all = vec![Vec::new(); self.models.len()];
        for (asked, times) in cluster.sample() {
            if let Some(model) = self.of.get(&asked) {
                all[*model].extend(times);
            }
        }
        for times in &mut all {
            times.sort_unstable();
        }
        all
    }

    /// Lanes of a kind of machines.
    pub(super) fn lanes_of(&self, cluster: &Cluster<'_>, kind: usize) -> Vec<usize> {
        (0..cluster.lanes()).filter(|lane| self.kinds[kind].contains(&cluster.node_of(*lane))).collect()
    }

    /// Replicas of a model on a kind of machines now.
    pub(super) fn replicas(&self, cluster: &Cluster<'_>, model: usize, kind: usize) -> u32 {
        let lanes = self.lanes_of(cluster, kind).into_iter();
        u32::try_from(lanes.filter(|lane| self.lanes[*lane].contains(&model)).count()).unwrap_or(u32::MAX)
    }

    /// Changes as few lanes as possible.
    pub(super) fn give(&mut self, cluster: &mut Cluster<'_>, wanted: &Wanted) {
        for kind in 0..self.kinds.len() {
            let lanes = self.lanes_of(cluster, kind);
            for model in 0..self.models.len() {
                let many = wanted.get(&(model, kind)).copied().unwrap_or(0) as usize;
                let mut has: Vec<usize> =
                    lanes.iter().copied().filter(|lane| self.lanes[*lane].contains(&model)).collect();
                // Of shared lanes first, then the last ones, so that machines fall empty.
                has.sort_by_key(|lane| (self.lanes[*lane].len(), *lane));
                for lane in has.into_iter().skip(many) {
                    self.lanes[lane].remove(&model);
                }
            }
            for model in 0..self.models.len() {
                let many = wanted.get(&(model, kind)).copied().unwrap_or(0);
                while self.replicas(cluster, model, kind) < many {
                    let variant = self.models[model].variant;
                    let free = lanes.iter().copied().filter(|lane| !self.lanes[*lane].contains(&model));
                    let best = free.min_by_key(|lane| {
                        let node = cluster.node_of(*lane);
                        let (away, cold) = (!cluster.hired(node), !cluster.placed(node, variant));
                        (self.lanes[*lane].len(), away, cold, *lane)
                    });
                    let Some(lane) = best else { break };
                    self.lanes[lane].insert(model);
                }
            }
        }
        self.settle(cluster);
    }

    /// Machines and models as lanes need them.
    pub(super) fn settle(&mut self, cluster: &mut Cluster<'_>) {
        for node in 0..cluster.nodes() {
            let lanes = (0..cluster.lanes()).filter(|lane| cluster.node_of(*lane) == node);
            let needed: BTreeSet<VariantId> =
                lanes.flat_map(|lane| &self.lanes[lane]).map(|model| self.models[*model].variant).collect();
            if needed.is_empty() {
                cluster.release(node);
                continue;
            }
            cluster.rent(node);
            if !cluster.here(node) {
                continue;
            }
            for variant in &needed {
                if !cluster.placed(node, *variant) && !cluster.load(node, *variant) {
                    for idle in cluster.models(node).into_iter().filter(|v| !needed.contains(v)) {
                        cluster.unload(node, idle);
                    }
                    cluster.load(node, *variant);
                }
            }
        }
    }

    pub(super) fn arrive(&mut self, cluster: &mut Cluster<'_>, ask: Ask) {
        let Some(model) = self.of.get(&(ask.task, ask.admits, ask.bound)) else {
            return cluster.refuse(&ask, "no_variant");
        };
        let model = &mut self.models[*model];
        let long_ago = Time(cluster.now().0.saturating_sub(REMEMBERED.0));
        while model.came.front().is_some_and(|at| *at < long_ago) {
            model.came.pop_front();
        }
        model.came.push_back(cluster.now());
        model.queue.push(ask);
    }

    /// The earliest head of the lane's models, in as large a batch as was planned.
    pub(super) fn fill(&mut self, cluster: &mut Cluster<'_>, lane: usize) {
        let node = cluster.node_of(lane);
        let mut best: Option<(Time, usize, u32)> = None;
        for at in &self.lanes[lane] {
            let model = &mut self.models[*at];
            if cluster.ready(node, model.variant) {
                let most = model.batch.clamp(1, cluster.max_batch(node, model.variant));
                let batch = model.queue.shed(cluster, (node, model.variant), most, |batch| batch);
                let head = model.queue.head().map(|head| (head.deadline, *at, batch));
                best = [best, head].into_iter().flatten().min();
            }
        }
        let Some((_, at, batch)) = best else { return };
        let model = &mut self.models[at];
        let members = model.queue.take(batch);
        cluster.run(lane, model.variant, members);
    }
}
