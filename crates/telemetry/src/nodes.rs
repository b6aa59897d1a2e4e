//! What is shown of each node: its own figures as it told them last, and how long its answers took as this gateway saw them.

use crate::bounded::Names;
use crate::histogram::{Histogram, TIMES};
use modelless_types::Micros;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Names of nodes that have series of their own for what this gateway saw of them. Machines come and go, and so do their names.
const MOST: usize = 500;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNode {
    node: String,
}

/// What is shown of each node.
#[derive(Debug)]
pub(crate) struct NodeFamilies {
    names: Names,
    answers: Family<OfNode, Histogram, fn() -> Histogram>,
    lost: Family<OfNode, Counter>,
    memory_used: Family<OfNode, Gauge>,
    memory_budget: Family<OfNode, Gauge>,
    started: Family<OfNode, Gauge>,
    lanes: Family<OfNode, Gauge>,
    lanes_busy: Family<OfNode, Gauge>,
    caution: Family<OfNode, Gauge<f64, AtomicU64>>,
    sent: Family<OfNode, Gauge>,
    queued: Family<OfNode, Gauge>,
    running: Family<OfNode, Gauge>,
    batches: Family<OfNode, Counter>,
    queries: Family<OfNode, Counter>,
    crashes: Family<OfNode, Counter>,
    restarts: Family<OfNode, Counter>,
    loads: Family<OfNode, Counter>,
    load_seconds: Family<OfNode, Counter<f64, AtomicU64>>,
    evictions: Family<OfNode, Counter>,
    /// Whose they are. A node that stays is never taken out meanwhile, or its counters would seem to begin anew.
    known: Mutex<BTreeSet<String>>,
}

impl Default for NodeFamilies {
    fn default() -> Self {
        Self {
            names: Names::new(MOST),
            answers: Family::new_with_constructor(|| Histogram::new(TIMES)),
            lost: Family::default(),
            memory_used: Family::default(),
            memory_budget: Family::default(),
            started: Family::default(),
            lanes: Family::default(),
            lanes_busy: Family::default(),
            caution: Family::default(),
            sent: Family::default(),
            queued: Family::default(),
            running: Family::default(),
            batches: Family::default(),
            queries: Family::default(),
            crashes: Family::default(),
            restarts: Family::default(),
            loads: Family::default(),
            load_seconds: Family::default(),
            evictions: Family::default(),
            known: Mutex::default(),
        }
    }
}

impl NodeFamilies {
    pub(crate) fn register(&self, r: &mut Registry) {
        let help = "At the node, from reaching it to the answer leaving it";
        r.register_with_unit("node_answer", help, Unit::Seconds, self.answers.clone());
        let help =
            "Queries that a node had when it was lost; each is tried elsewhere once or refused by name";
        r.register("queries_lost_with_node", help, self.lost.clone());
        let help = "Memory that replicas take";
        r.register_with_unit("node_memory_used", help, Unit::Bytes, self.memory_used.clone());
        let help = "Memory that replicas may take";
        r.register_with_unit("node_memory_budget", help, Unit::Bytes, self.memory_budget.clone());
        let help = "When the node started, since 1970";
        r.register_with_unit("node_start_time", help, Unit::Seconds, self.started.clone());
        r.register("node_lanes", "Batches that can run side by side", self.lanes.clone());
        r.register("node_lanes_busy", "Lanes on which a batch runs", self.lanes_busy.clone());
        let help = "Times as long as batches are taken to last where variants are compared, as queries were late there lately";
        r.register("node_caution_ratio", help, self.caution.clone());
        let help = "Queries that this gateway has sent to the node and that have not ended";
        r.register("node_queries_sent", help, self.sent.clone());
        r.register("node_queries_queued", "Queries that wait at the node", self.queued.clone());
        r.register("node_queries_running", "Queries in batches handed to runners", self.running.clone());
        r.register("node_batches", "Batches handed to runners", self.batches.clone());
        let help = "Queries in batches handed to runners, reruns counted again";
        r.register("node_queries", help, self.queries.clone());
        r.register("node_runner_crashes", "Runners that ended unasked", self.crashes.clone());
        let help = "Replicas that came back after their runner had ended";
        r.register("node_replica_restarts", help, self.restarts.clone());
        r.register("node_loads", "Replicas brought into memory", self.loads.clone());
        let help = "Time that bringing replicas into memory took";
        r.register_with_unit("node_load", help, Unit::Seconds, self.load_seconds.clone());
        let help = "Replicas taken out of memory to make room for others";
        r.register("node_evictions", help, self.evictions.clone());
    }

    /// The handle of one node.
    pub(crate) fn of(&self, node: &str) -> NodeMetrics {
        NodeMetrics { answers: self.answers.get_or_create_owned(&OfNode { node: self.names.label(node) }) }
    }

    pub(crate) fn lost(&self, node: &str, queries: u64) {
        self.lost.get_or_create(&OfNode { node: self.names.label(node) }).inc_by(queries);
    }

    pub(crate) fn set(&self, nodes: &[NodeGauges]) {
        let now: BTreeSet<String> = nodes.iter().map(|node| node.node.clone()).collect();
        let before = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, now.clone())
        };
        for node in nodes {
            let labels = OfNode { node: node.node.clone() };
            for (family, value) in [
                (&self.memory_used, node.used),
                (&self.memory_budget, node.budget),
                (&self.started, node.started_unix_us / 1_000_000),
                (&self.lanes, node.lanes),
                (&self.lanes_busy, node.lanes_busy),
                (&self.sent, node.sent),
                (&self.queued, node.queued),
                (&self.running, node.running),
            ] {
                family.get_or_create(&labels).set(crate::metrics::signed(value));
            }
            self.caution.get_or_create(&labels).set(node.caution);
            for (family, value) in [
                (&self.batches, node.batches),
                (&self.queries, node.queries),
                (&self.crashes, node.crashes),
                (&self.restarts, node.restarts),
                (&self.loads, node.loads),
                (&self.evictions, node.evictions),
            ] {
                family.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
            }
            let loading = crate::metrics::seconds(node.load_time);
            self.load_seconds.get_or_create(&labels).inner().store(loading.to_bits(), Ordering::Relaxed);
        }
        for gone in before.difference(&now) {
            let labels = OfNode { node: gone.clone() };
            for family in [
                &self.memory_used,
                &self.memory_budget,
                &self.started,
                &self.lanes,
                &self.lanes_busy,
                &self.sent,
                &self.queued,
                &self.running,
            ] {
                family.remove(&labels);
            }
            for family in
                [&self.batches, &self.queries, &self.crashes, &self.restarts, &self.loads, &self.evictions]
            {
                family.remove(&labels);
            }
            self.caution.remove(&labels);
            self.load_seconds.remove(&labels);
        }
    }
}

/// What a gateway saw of one node, found beforehand.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    answers: Histogram,
}

impl NodeMetrics {
    /// It answered a query, which it had for so long.
    pub fn answered(&self, at_node: Micros) {
        self.answers.observe(at_node.0);
    }
}

/// A node, for [`crate::Metrics::told`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeGauges {
    /// Its name.
    pub node: String,
    /// What replicas take.
    pub used: u64,
    /// What they may take.
    pub budget: u64,
    /// When it started.
    pub started_unix_us: u64,
    /// Batches that can run side by side.
    pub lanes: u64,
    /// Batches that do.
    pub lanes_busy: u64,
    /// Batches are taken to last so many times as long where variants are compared.
    pub caution: f64,
    /// Queries that this gateway has sent there and that have not ended.
    pub sent: u64,
    /// Queries that wait there.
    pub queued: u64,
    /// Queries handed to runners and not back.
    pub running: u64,
    /// Batches handed to runners since it started.
    pub batches: u64,
    /// Queries in them.
    pub queries: u64,
    /// Runners that ended unasked since it started.
    pub crashes: u64,
    /// Replicas that came back after that.
    pub restarts: u64,
    /// Replicas brought into memory since it started.
    pub loads: u64,
    /// What that took, all together.
    pub load_time: Micros,
    /// Replicas taken out again to make room.
    pub evictions: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaGauge>,
    /// How well their batches keep to what is predicted.
    pub coverage: Vec<CoverageGauge>,
}

/// A replica, for [`crate::Metrics::told`].
#[derive(Clone, PartialEq, Debug)]
pub struct ReplicaGauge {
    /// Of the variant, whose name says which it is within its task only.
    pub task: String,
    /// The variant's name.
    pub variant: String,
    /// The state's name.
    pub state: &'static str,
    /// Live over profiled time, once anything was seen.
    pub slowdown: Option<f64>,
}

/// How well a variant's batches keep to what is predicted, on a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoverageGauge {
    /// The variant, whose name says which it is within its task only.
    pub task: String,
    /// Its name.
    pub variant: String,
    /// Batches that ran.
    pub batches: u64,
    /// Of these, those above the predicted 99th percentile.
    pub above: u64,
}
