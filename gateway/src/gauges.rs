//! What nodes make known, as figures for Prometheus: made when somebody asks for them.

use crate::view::View;
use modelless_decision::Coverage;
use modelless_decision::route::{Offer, Standing};
use modelless_store::{Machine, Store};
use modelless_telemetry::{CoverageGauge, MachineGauge, NodeGauges, ReplicaGauge, ShareGauge};
use modelless_types::{AppId, Model, NodeId, TaskId, Variant};
use modelless_wire::NodeStatus;
use std::collections::HashMap;
use std::time::Duration;

/// Who asks for figures is not kept waiting for a database.
const STORE_WITHIN: Duration = Duration::from_millis(500);

/// A task's name.
pub(crate) fn of(view: &View, task: TaskId) -> String {
    let named = view.catalog.tasks.iter().find(|named| named.id == task);
    named.map_or_else(|| task.to_string(), |named| named.name.clone())
}

fn coverage(view: &View, offer: &Offer) -> Option<CoverageGauge> {
    let Coverage { batches, above } = offer.run.coverage;
    let of_task = |model: &&Model| model.task == offer.task;
    let its = |variant: &&Variant| {
        variant.ordinal == offer.ordinal
            && view.catalog.models.iter().filter(of_task).any(|model| model.id == variant.model)
    };
    let variant = if batches > 0 { view.catalog.variants.iter().find(its) } else { None }?;
    Some(CoverageGauge { task: of(view, offer.task), variant: variant.name.clone(), batches, above })
}

/// How applications stand with tasks of which not all can be answered in time.
pub(crate) fn shares(
    view: &View,
    standings: &[(TaskId, AppId, Standing)],
    named: impl Fn(AppId) -> Option<(String, String)>,
) -> Vec<ShareGauge> {
    let part = |ppm: u32| f64::from(ppm) / 1e6;
    let gauge = |(task, app, standing): &(TaskId, AppId, Standing)| {
        let (tenant, application) = named(*app)?;
        let (used, share) = (part(standing.used_ppm), part(standing.share_ppm));
        Some(ShareGauge { task: of(view, *task), tenant, application, used, share })
    };
    standings.iter().filter_map(gauge).collect()
}

/// `sent` is how many queries of this gateway are at a node.
pub(crate) fn gauges(view: &View, sent: impl Fn(NodeId) -> usize) -> Vec<NodeGauges> {
    let tasks: HashMap<_, _> = view.catalog.models.iter().map(|model| (model.id, model.task)).collect();
    let named = view.catalog.variants.iter().map(|variant| (variant.id, variant));
    let named: HashMap<_, _> = named.collect();
    let replica = |replica: &modelless_wire::ReplicaStatus| {
        let (variant, state, slowdown) =
            (named.get(&replica.variant), replica.state.name(), replica.slowdown);
        let task = variant.and_then(|variant| tasks.get(&variant.model)).map(|task| of(view, *task));
        let variant = variant.map_or_else(|| replica.variant.to_string(), |variant| variant.name.clone());
        ReplicaGauge { task: task.unwrap_or_default(), variant, state, slowdown }
    };
    let node = |node: &NodeStatus| NodeGauges {
        node: node.name.clone(),
        sent: sent(node.node) as u64,
        used: node.memory_used.0,
        budget: node.memory_budget.0,
        started_unix_us: node.started_unix_us,
        lanes: u64::from(node.lanes),
        lanes_busy: u64::from(node.load.lanes_busy),
        caution: node.caution.unwrap_or(1.0),
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

/// Rented machines that have not ended; nothing while the store does not say.
pub(crate) async fn machines(store: &dyn Store) -> Option<Vec<MachineGauge>> {
    let known = tokio::time::timeout(STORE_WITHIN, store.rented().machines()).await.ok()?.ok()?;
    let gauge = |machine: &Machine| MachineGauge {
        pool: machine.pool.clone(),
        state: machine.state.name(),
        usd_per_hour: machine.price.as_usd(),
    };
    Some(known.iter().map(gauge).collect())
}
