//! For one class: the nodes that could serve it and with what, laid out flat so that routing a query is one pass
//! over contiguous memory.

use super::snapshot::{NodeIx, Ready, Table, TaskInfo};
use crate::estimate::Moments;
use crate::query::Class;
use alloc::vec::Vec;
use modelless_types::{Accuracy, CostPer1k, Micros, Time};

/// One way a node could answer now: a resident variant that no other resident one there beats on every axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Option_ {
    /// Round trip, decoding and device time at batch 1.
    pub service: Moments,
    /// Accuracy of the variant.
    pub accuracy: Accuracy,
    /// Price at batch 1.
    pub cost: CostPer1k,
    /// The variant.
    pub ordinal: u8,
}

/// A node's options: a range of [`Candidates::options`], most accurate first, never empty. What bounds all of them
/// stands here, so that the pass over the nodes mostly touches nothing else.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RowNode {
    /// The node.
    pub node: NodeIx,
    /// The accuracy of the most accurate option.
    pub top: Accuracy,
    /// The least mean of the options that are as accurate as that.
    pub top_mean: f64,
    /// The lowest price of any option.
    pub least_cost: CostPer1k,
    /// The least mean of any option.
    pub least_mean: f64,
    /// The service of the option that is fastest behind no queue.
    pub fastest: Moments,
    /// The largest batch of those that gain by being large, or 1.
    pub batch: u32,
    pub(crate) first: u32,
    pub(crate) len: u32,
}

/// A variant that a node could load for the class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cold {
    /// The node.
    pub node: NodeIx,
    /// The variant.
    pub ordinal: u8,
    /// Its accuracy.
    pub accuracy: Accuracy,
    /// Round trip, decoding and device time at batch 1, once loaded.
    pub service: Moments,
    /// Price at batch 1.
    pub cost: CostPer1k,
    /// When it could be in memory.
    pub ready: ColdReady,
}

/// When a variant that is not in memory could be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColdReady {
    /// Somebody asked for it already.
    At(Time),
    /// This long after being asked for.
    After(Micros),
}

impl ColdReady {
    /// How long from `now`.
    pub fn time_left(self, now: Time) -> Micros {
        match self {
            Self::At(at) => at - now,
            Self::After(load) => load,
        }
    }
}

/// A whole batch gains by being one if it takes at most this part of the device time of as many single runs.
const GAINS: f64 = 0.5;

/// Who could serve a class.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidates {
    /// Which.
    pub class: Class,
    /// Nodes with something resident.
    pub nodes: Vec<RowNode>,
    /// Their options, node after node.
    pub options: Vec<Option_>,
    /// What a query adds to the work of each of these: it will most likely share a batch.
    pub work: Vec<Moments>,
    /// What could be loaded.
    pub cold: Vec<Cold>,
}

impl Candidates {
    pub(super) fn of(table: &Table, task: Option<&TaskInfo>, class: Class) -> Self {
        let mut all =
            Self { class, nodes: Vec::new(), options: Vec::new(), work: Vec::new(), cold: Vec::new() };
        let Some(task) = task else { return all };
        for (at, node) in table.nodes.iter().enumerate() {
            let ix = NodeIx(u32::try_from(at).expect("fewer than 2^32 nodes"));
            let mut here = Vec::new();
            let mut batch = 1;
            for offer in
                node.offers.iter().filter(|o| o.task == class.task && class.admits.contains(o.ordinal))
            {
                let Some(variant) = task.variant(offer.ordinal) else { continue };
                let service = node.rtt + offer.run.service();
                let cost = offer.run.cost(1, offer.price(node.price));
                let (ordinal, accuracy) = (offer.ordinal, variant.accuracy);
                let ready = match offer.ready {
                    Ready::Resident => {
                        let work = offer.run.per_query(variant.max_batch);
                        if work.mean <= offer.run.estimate(1).mean * GAINS {
                            batch = batch.max(variant.max_batch);
                        }
                        here.push((Option_ { service, accuracy, cost, ordinal }, work));
                        continue;
                    }
                    Ready::Loading { at } => ColdReady::At(at),
                    Ready::Cold { load } => ColdReady::After(load),
                };
                all.cold.push(Cold { node: ix, ordinal, accuracy, service, cost, ready });
            }
            all.add_node(ix, here, batch);
        }
        all
    }

    /// A node with something resident.
    pub(super) fn entry(&self, node: NodeIx) -> Option<&RowNode> {
        self.nodes.binary_search_by_key(&node, |entry| entry.node).ok().map(|at| &self.nodes[at])
    }

    /// Whether a node could load something for the class.
    pub(super) fn is_cold(&self, node: NodeIx) -> bool {
        self.cold.binary_search_by_key(&node, |cold| cold.node).is_ok()
    }

    /// Whether a node could serve the class, be it after a load.
    pub(super) fn has(&self, node: NodeIx) -> bool {
        self.entry(node).is_some() || self.is_cold(node)
    }

    fn add_node(&mut self, node: NodeIx, mut here: Vec<(Option_, Moments)>, batch: u32) {
        here.sort_by(|(a, _), (b, _)| {
            a.service.p99_f64().total_cmp(&b.service.p99_f64()).then(b.accuracy.cmp(&a.accuracy))
        });
        let first = self.options.len();
        let mut pairs: Vec<(Option_, Moments)> = Vec::new();
        for (option, work) in here {
            // Both moments count: behind an uncertain wait a steady option may be slower than a scattered one that
            // looked slower alone.
            let beats = |o: &Option_| {
                o.accuracy >= option.accuracy
                    && o.cost <= option.cost
                    && o.service.mean <= option.service.mean
                    && o.service.var <= option.service.var
            };
            if !pairs.iter().any(|(kept, _)| beats(kept)) {
                pairs.push((option, work));
            }
        }
        let Some(fastest) = pairs.first().map(|(o, _)| o.service) else { return };
        pairs.sort_by_key(|(option, _)| core::cmp::Reverse(option.accuracy));
        self.options.extend(pairs.iter().map(|(option, _)| *option));
        self.work.extend(pairs.iter().map(|(_, work)| *work));
        let kept = &self.options[first..];
        let top = kept[0].accuracy;
        let least = |means: &mut dyn Iterator<Item = f64>| means.fold(f64::INFINITY, f64::min);
        self.nodes.push(RowNode {
            node,
            top,
            top_mean: least(&mut kept.iter().filter(|o| o.accuracy == top).map(|o| o.service.mean)),
            least_cost: kept.iter().map(|o| o.cost).min().unwrap_or(CostPer1k(0)),
            least_mean: least(&mut kept.iter().map(|o| o.service.mean)),
            fastest,
            batch,
            len: u32::try_from(kept.len()).expect("at most 256 options a node"),
            first: u32::try_from(first).expect("fewer than 2^32 options"),
        });
    }

    /// A node's options, most accurate first and among equals the fastest.
    pub fn options_of(&self, row: &RowNode) -> &[Option_] {
        &self.options[row.first as usize..(row.first + row.len) as usize]
    }
}
