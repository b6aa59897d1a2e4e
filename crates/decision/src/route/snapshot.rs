//! What the gateway knows of tasks, variants and nodes: a value, replaced whole when it changes.

use super::candidates::Candidates;
use crate::estimate::{Moments, RunModel};
use crate::query::Class;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use modelless_types::{
    Accuracy, ClassId, CostPer1k, Goals, Micros, ModelId, NodeId, PricePerHour, SpaceId, TaskId, Time,
    VariantId, VariantSet,
};
use serde::{Deserialize, Serialize};

/// A node's position in the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeIx(pub u32);

/// A variant as routing sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VariantInfo {
    /// Number in the store.
    pub id: VariantId,
    /// Its model.
    pub model: ModelId,
    /// Its position in the task's sets.
    pub ordinal: u8,
    /// Its output space.
    pub space: SpaceId,
    /// What floors are compared with.
    pub accuracy: Accuracy,
    /// The largest batch it takes.
    pub max_batch: u32,
    /// Of a version that is not the default of its name: it answers only where it is pinned.
    #[serde(default)]
    pub candidate: bool,
}

/// A task as routing sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TaskInfo {
    /// Number in the store.
    pub id: TaskId,
    /// The space of queries without a pin.
    pub default_space: SpaceId,
    /// Goals where a query gives none; `latency` is always set.
    pub defaults: Goals,
    /// By rising ordinal.
    pub variants: Vec<VariantInfo>,
}

impl TaskInfo {
    /// The variant with an ordinal.
    pub fn variant(&self, ordinal: u8) -> Option<&VariantInfo> {
        self.variants.binary_search_by_key(&ordinal, |v| v.ordinal).ok().map(|at| &self.variants[at])
    }
}

/// Whether a node can run a variant now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ready {
    /// In memory.
    Resident,
    /// On its way there.
    Loading {
        /// When it is expected.
        at: Time,
    },
    /// Could be loaded.
    Cold {
        /// How long that takes.
        load: Micros,
    },
}

/// A variant that a node could run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The task.
    pub task: TaskId,
    /// The variant, by ordinal.
    pub ordinal: u8,
    /// Whether it is in memory there.
    pub ready: Ready,
    /// How long it takes there.
    pub run: RunModel,
    /// Cores of the lane that it would run on, all of which it pays for. 0 stands for 1.
    #[serde(default)]
    pub width: u16,
}

impl Offer {
    /// What an hour of its lane costs, where one of a core costs this.
    pub const fn price(&self, core: PricePerHour) -> PricePerHour {
        let width = if self.width == 0 { 1 } else { self.width };
        PricePerHour(core.0.saturating_mul(width as u64))
    }
}

/// A node as routing sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Number in the store.
    pub id: NodeId,
    /// There and back, without work.
    pub rtt: Moments,
    /// Of one core of the device that runs these offers.
    pub price: PricePerHour,
    /// What it could run, resident or not.
    pub offers: Vec<Offer>,
}

/// All of it, as it is sent and logged.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// Tasks.
    pub tasks: Vec<TaskInfo>,
    /// Nodes; positions are [`NodeIx`].
    pub nodes: Vec<NodeInfo>,
}

/// The best any node could do for a variant, were it idle: what admission compares goals with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Best {
    /// Shortest 99th percentile at batch 1, round trip included, once in memory.
    pub(crate) latency: Micros,
    /// Lowest price, at any batch size it takes.
    pub(crate) cost: CostPer1k,
    /// Lowest price of a query that shares its batch with nobody.
    pub(crate) cost_alone: CostPer1k,
}

/// A table made ready for questions.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    table: Arc<Table>,
    tasks: BTreeMap<TaskId, usize>,
    nodes: BTreeMap<NodeId, NodeIx>,
    best: BTreeMap<(TaskId, u8), Best>,
    /// What is in memory somewhere.
    resident: BTreeMap<TaskId, VariantSet>,
    classes: Vec<Candidates>,
    index: BTreeMap<Class, ClassId>,
}

impl Snapshot {
    /// From a table.
    pub fn new(table: impl Into<Arc<Table>>) -> Self {
        let table = table.into();
        let tasks = table.tasks.iter().enumerate().map(|(at, task)| (task.id, at)).collect();
        let ix = |at| NodeIx(u32::try_from(at).expect("fewer than 2^32 nodes"));
        let nodes = table.nodes.iter().enumerate().map(|(at, node)| (node.id, ix(at))).collect();
        let mut best: BTreeMap<(TaskId, u8), Best> = BTreeMap::new();
        let mut resident: BTreeMap<TaskId, VariantSet> = BTreeMap::new();
        let mut snapshot = Self { table, tasks, nodes, ..Self::default() };
        for node in &snapshot.table.nodes {
            for offer in &node.offers {
                let Some(variant) = snapshot.task(offer.task).and_then(|task| task.variant(offer.ordinal))
                else {
                    continue;
                };
                if offer.ready == Ready::Resident {
                    resident.entry(offer.task).or_default().insert(offer.ordinal);
                }
                let largest = variant.max_batch.min(offer.run.largest_measured()).max(1);
                // Slower than profiled just now is no reason to call goals impossible; faster is one to believe it.
                let profiled = offer.run.profiled();
                let price = offer.price(node.price);
                let alone = offer.run.cost(1, price).min(profiled.cost(1, price));
                let here = Best {
                    latency: (node.rtt + offer.run.service())
                        .p99()
                        .min((node.rtt + profiled.service()).p99()),
                    cost: alone.min(profiled.cost(largest, price)),
                    cost_alone: alone,
                };
                best.entry((offer.task, offer.ordinal))
                    .and_modify(|known| {
                        known.latency = known.latency.min(here.latency);
                        known.cost = known.cost.min(here.cost);
                        known.cost_alone = known.cost_alone.min(here.cost_alone);
                    })
                    .or_insert(here);
            }
        }
        snapshot.best = best;
        snapshot.resident = resident;
        snapshot
    }

    /// What it was made from.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The same, to hold on to.
    pub(crate) fn shared(&self) -> &Arc<Table> {
        &self.table
    }

    /// A task.
    pub fn task(&self, id: TaskId) -> Option<&TaskInfo> {
        self.tasks.get(&id).map(|at| &self.table.tasks[*at])
    }

    /// A node.
    pub fn node(&self, ix: NodeIx) -> Option<&NodeInfo> {
        usize::try_from(ix.0).ok().and_then(|at| self.table.nodes.get(at))
    }

    /// Where a node stands.
    pub fn node_ix(&self, id: NodeId) -> Option<NodeIx> {
        self.nodes.get(&id).copied()
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.table.nodes.len()
    }

    pub(crate) fn best(&self, task: TaskId, ordinal: u8) -> Option<Best> {
        self.best.get(&(task, ordinal)).copied()
    }

    /// Whether anything that may answer a class is in memory anywhere.
    pub fn is_resident(&self, class: &Class) -> bool {
        let resident = self.resident.get(&class.task);
        resident.is_some_and(|resident| !resident.intersection(&class.admits).is_empty())
    }

    /// The number of a class, worked out once for each.
    pub fn intern(&mut self, class: Class) -> ClassId {
        if let Some(id) = self.index.get(&class) {
            return *id;
        }
        let id = ClassId(u32::try_from(self.classes.len()).expect("fewer than 2^32 classes"));
        let candidates = Candidates::of(&self.table, self.task(class.task), class);
        self.classes.push(candidates);
        self.index.insert(class, id);
        id
    }

    /// The number of a class if it was asked for before.
    pub fn class_id(&self, class: &Class) -> Option<ClassId> {
        self.index.get(class).copied()
    }

    /// Who could serve a class.
    pub fn candidates(&self, class: ClassId) -> Option<&Candidates> {
        usize::try_from(class.0).ok().and_then(|at| self.classes.get(at))
    }

    /// How many classes are known.
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }
}
