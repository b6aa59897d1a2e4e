//! What nodes make known, as figures for Prometheus: made when somebody asks for them.

use crate::view::View;
use modelless_decision::Coverage;
use modelless_decision::route::Offer;
use modelless_telemetry::{CoverageGauge, NodeGauges, ReplicaGauge};
use modelless_types::{Model, NodeId, Variant};
use modelless_wire::NodeStatus;
use std::collections::HashMap;

fn coverage(view: &View, offer: &Offer) -> Option<CoverageGauge> {
    let Coverage { batches, above } = offer.run.coverage;
    let of_task = |model: &&Model| model.task == offer.task;
    let its = |variant: &&Variant| {
        variant.ordinal == offer.ordinal
            && view.catalog.models.iter().filter(of_task).any(|model| model.id == variant.model)
    };
    let variant = if batches > 0 { view.catalog.variants.iter().find(its) } else { None }?;
    Some(CoverageGauge { variant: variant.name.clone(), batches, above })
}

/// `sent` is how many queries of this gateway are at a node.
pub(crate) fn gauges(view: &View, sent: impl Fn(NodeId) -> usize) -> Vec<NodeGauges> {
    let named = view.catalog.variants.iter().map(|variant| (variant.id, variant.name.as_str()));
    let names: HashMap<_, _> = named.collect();
    let replica = |replica: &modelless_wire::ReplicaStatus| ReplicaGauge {
        slowdown: replica.slowdown,
        variant: names
            .get(&replica.variant)
            .map_or_else(|| replica.variant.to_string(), |name| (*name).to_owned()),
        state: replica.state.name(),
    };
    let node = |node: &NodeStatus| NodeGauges {
        node: node.name.clone(),
        sent: sent(node.node) as u64,
        used: node.memory_used.0,
        budget: node.memory_budget.0,
        started_unix_us: node.started_unix_us,
        lanes: u64::from(node.lanes),
        lanes_busy: u64::from(node.load.lanes_busy),
        queued: u64::from(node.load.queued),
        running: u64::from(node.load.running),
        batches: node.load.batches,
        queries: node.load.queries,
        crashes: node.load.crashes,
        restarts: node.load.restarts,
        loads: node.load.loads,
        load_time: node.load.load_time,
        evictions: node.load.evictions,
        replicas: node.replicas.iter().map(replica).collect(),
        coverage: node.info.offers.iter().filter_map(|offer| coverage(view, offer)).collect(),
    };
    view.nodes.iter().map(|status| node(status)).collect()
}
