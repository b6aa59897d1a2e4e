//! The metrics registry, in Prometheus' base units.
//!
//! Histograms rather than summaries, so that several gateways can be added up. Labels are tasks, variants, nodes and
//! reasons: each bounded by what is registered. Never a query, a client or a text that a client chose.

use crate::triton::{Failed, Served, Triton};
use modelless_types::Micros;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfTask {
    task: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfOutcome {
    task: String,
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfVerdict {
    task: String,
    verdict: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfReason {
    task: String,
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfVariant {
    task: String,
    variant: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfReplica {
    node: String,
    variant: String,
    state: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNode {
    node: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNodeAndVariant {
    node: String,
    variant: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfHandBack {
    reason: &'static str,
}

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    queries: Family<OfOutcome, Counter>,
    refusals: Family<OfReason, Counter>,
    handed_back: Family<OfHandBack, Counter>,
    in_time: Family<OfTask, Counter>,
    query_seconds: Histograms<OfTask>,
    queue_seconds: Histograms<OfVariant>,
    run_seconds: Histograms<OfVariant>,
    batch_items: Histograms<OfVariant>,
    replicas: Family<OfReplica, Gauge>,
    slowdown: Family<OfNodeAndVariant, Gauge<f64, AtomicU64>>,
    batches_run: Family<OfNodeAndVariant, Counter>,
    batches_above: Family<OfNodeAndVariant, Counter>,
    feedback: Family<OfVerdict, Counter>,
    nodes: NodeFamilies,
    lost_with_node: Family<OfNode, Counter>,
    waiting: Gauge,
    open: Gauge,
    connections: Gauge,
    table_update: Histogram,
    triton: Triton,
}

/// What is shown of each node.
#[derive(Debug, Default)]
struct NodeFamilies {
    memory_used: Family<OfNode, Gauge>,
    memory_budget: Family<OfNode, Gauge>,
    started: Family<OfNode, Gauge>,
    lanes: Family<OfNode, Gauge>,
    lanes_busy: Family<OfNode, Gauge>,
    sent: Family<OfNode, Gauge>,
    queued: Family<OfNode, Gauge>,
    running: Family<OfNode, Gauge>,
    batches: Family<OfNode, Counter>,
    queries: Family<OfNode, Counter>,
    crashes: Family<OfNode, Counter>,
    restarts: Family<OfNode, Counter>,
    /// Whose they are. A node that stays is never taken out meanwhile, or its counters would seem to begin anew.
    known: Mutex<BTreeSet<String>>,
}

impl NodeFamilies {
    fn register(&self, r: &mut Registry) {
        let help = "Memory that replicas take";
        r.register_with_unit("node_memory_used", help, Unit::Bytes, self.memory_used.clone());
        let help = "Memory that replicas may take";
        r.register_with_unit("node_memory_budget", help, Unit::Bytes, self.memory_budget.clone());
        let help = "When the node started, since 1970";
        r.register_with_unit("node_start_time", help, Unit::Seconds, self.started.clone());
        r.register("node_lanes", "Batches that can run side by side", self.lanes.clone());
        r.register("node_lanes_busy", "Lanes on which a batch runs", self.lanes_busy.clone());
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
    }

    fn set(&self, nodes: &[NodeGauges]) {
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
                family.get_or_create(&labels).set(signed(value));
            }
            for (family, value) in [
                (&self.batches, node.batches),
                (&self.queries, node.queries),
                (&self.crashes, node.crashes),
                (&self.restarts, node.restarts),
            ] {
                family.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
            }
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
            for family in [&self.batches, &self.queries, &self.crashes, &self.restarts] {
                family.remove(&labels);
            }
        }
    }
}

/// A node, for [`Metrics::set_nodes`].
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
    /// Its replicas.
    pub replicas: Vec<ReplicaGauge>,
    /// How well their batches keep to what is predicted.
    pub coverage: Vec<CoverageGauge>,
}

/// A replica, for [`Metrics::set_nodes`].
#[derive(Clone, PartialEq, Debug)]
pub struct ReplicaGauge {
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
    /// The variant.
    pub variant: String,
    /// Batches that ran.
    pub batches: u64,
    /// Of these, those above the predicted 99th percentile.
    pub above: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// From a quarter of a millisecond to eight seconds, each twice the last.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
}

fn batches() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 9))
}

impl Metrics {
    /// With nothing counted yet.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("modelless"),
            queries: Family::default(),
            refusals: Family::default(),
            handed_back: Family::default(),
            in_time: Family::default(),
            query_seconds: Histograms::new_with_constructor(times),
            queue_seconds: Histograms::new_with_constructor(times),
            run_seconds: Histograms::new_with_constructor(times),
            batch_items: Histograms::new_with_constructor(batches),
            replicas: Family::default(),
            slowdown: Family::default(),
            batches_run: Family::default(),
            batches_above: Family::default(),
            feedback: Family::default(),
            nodes: NodeFamilies::default(),
            lost_with_node: Family::default(),
            waiting: Gauge::default(),
            open: Gauge::default(),
            connections: Gauge::default(),
            // From 10 us to a third of a second, each twice the last.
            table_update: Histogram::new(exponential_buckets(0.000_01, 2.0, 16)),
            triton: Triton::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("queries", "Queries by how they ended", self.queries.clone());
        r.register("refusals", "Queries refused, by reason", self.refusals.clone());
        let help = "Queries that nodes gave back unstarted, by what they would have been told";
        r.register("queries_handed_back", help, self.handed_back.clone());
        r.register("answers_in_time", "Answers within their latency bound (goodput)", self.in_time.clone());
        let seconds = || Unit::Seconds;
        let help = "From arrival at the gateway to the answer";
        r.register_with_unit("query", help, seconds(), self.query_seconds.clone());
        let help = "Waiting, at the gateway and at the node, until bound to a variant";
        r.register_with_unit("queue", help, seconds(), self.queue_seconds.clone());
        let help = "On the device, the whole batch";
        r.register_with_unit("run", help, seconds(), self.run_seconds.clone());
        r.register("batch_items", "Queries in the batch of an answered query", self.batch_items.clone());
        r.register("replicas", "Replicas by state", self.replicas.clone());
        let help = "Live over profiled time of a variant";
        r.register("replica_slowdown", help, self.slowdown.clone());
        r.register("variant_batches", "Batches that ran to their end", self.batches_run.clone());
        let help = "Of these, those that took longer than predicted in 99 of 100 cases";
        r.register("variant_batches_above_p99", help, self.batches_above.clone());
        r.register("feedback", "Verdicts on answers, each query's once", self.feedback.clone());
        self.nodes.register(r);
        let help =
            "Queries that a node had when it was lost; each is tried elsewhere once or refused by name";
        r.register("queries_lost_with_node", help, self.lost_with_node.clone());
        r.register("queries_waiting", "Queries that wait at the gateway", self.waiting.clone());
        r.register("queries_open", "Queries at the gateway or at a node", self.open.clone());
        r.register("connections", "Open HTTP connections", self.connections.clone());
        let help = "Making the table that routing reads, from what the nodes said";
        r.register_with_unit("table_update", help, seconds(), self.table_update.clone());
    }

    /// The handles of one task.
    pub fn task(&self, task: &str) -> TaskMetrics {
        let outcome =
            |outcome| self.queries.get_or_create_owned(&OfOutcome { task: task.to_owned(), outcome });
        let of_task = OfTask { task: task.to_owned() };
        TaskMetrics {
            task: task.to_owned(),
            answered: outcome("answered"),
            refused: outcome("refused"),
            bad_input: outcome("bad_input"),
            cancelled: outcome("cancelled"),
            in_time: self.in_time.get_or_create_owned(&of_task),
            seconds: self.query_seconds.get_or_create_owned(&of_task),
            feedback: [true, false].map(|correct| {
                let verdict = if correct { "correct" } else { "wrong" };
                self.feedback.get_or_create_owned(&OfVerdict { task: task.to_owned(), verdict })
            }),
            reasons: Arc::default(),
            refusals: self.refusals.clone(),
            failed: self.triton.failed(task),
        }
    }

    /// A node gave a query back unstarted.
    pub fn handed_back(&self, reason: &'static str) {
        self.handed_back.get_or_create_owned(&OfHandBack { reason }).inc();
    }

    /// The handles of one variant.
    pub fn variant(&self, task: &str, variant: &str) -> VariantMetrics {
        let labels = OfVariant { task: task.to_owned(), variant: variant.to_owned() };
        VariantMetrics {
            queue: self.queue_seconds.get_or_create_owned(&labels),
            run: self.run_seconds.get_or_create_owned(&labels),
            batch: self.batch_items.get_or_create_owned(&labels),
        }
    }

    /// What a variant did, as Triton counts it; `version` is the variant's number.
    pub fn served(&self, task: &str, version: u32) -> Arc<Served> {
        self.triton.served(task, version)
    }

    /// How long it took to make the table that routing reads.
    pub fn table_updated(&self, took: std::time::Duration) {
        self.table_update.observe(took.as_secs_f64());
    }

    /// The state of all nodes, in place of what was said before.
    pub fn set_nodes(&self, nodes: &[NodeGauges]) {
        self.replicas.clear();
        self.slowdown.clear();
        self.batches_run.clear();
        self.batches_above.clear();
        self.nodes.set(nodes);
        for node in nodes {
            for CoverageGauge { variant, batches, above } in &node.coverage {
                let labels = OfNodeAndVariant { node: node.node.clone(), variant: variant.clone() };
                self.batches_run.get_or_create(&labels).inc_by(*batches);
                self.batches_above.get_or_create(&labels).inc_by(*above);
            }
            for ReplicaGauge { variant, state, slowdown } in &node.replicas {
                let (node, variant) = (node.node.clone(), variant.clone());
                if let Some(slowdown) = slowdown {
                    let labels = OfNodeAndVariant { node: node.clone(), variant: variant.clone() };
                    self.slowdown.get_or_create(&labels).set(*slowdown);
                }
                self.replicas.get_or_create(&OfReplica { node, variant, state }).inc();
            }
        }
    }

    /// A node was lost that had so many queries. Stays when the node does not: it tells what happened.
    pub fn node_lost(&self, node: &str, queries: u64) {
        self.lost_with_node.get_or_create(&OfNode { node: node.to_owned() }).inc_by(queries);
    }

    /// How many queries wait at the gateway, and how many are open in all.
    pub fn set_open(&self, waiting: u64, open: u64) {
        self.waiting.set(signed(waiting));
        self.open.set(signed(open));
    }

    /// How many connections are open.
    pub fn set_connections(&self, count: u64) {
        self.connections.set(signed(count));
    }

    /// All of it as text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail; this is a bug");
        // What follows the end mark is not read.
        text.truncate(text.trim_end().strip_suffix("# EOF").map_or(text.len(), str::len));
        self.triton.encode(&mut text);
        text.push_str("# EOF\n");
        text
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
fn seconds(time: Micros) -> f64 {
    time.0 as f64 / 1e6
}

/// Counts the queries of one task.
#[derive(Clone, Debug)]
pub struct TaskMetrics {
    task: String,
    answered: Counter,
    refused: Counter,
    bad_input: Counter,
    cancelled: Counter,
    in_time: Counter,
    seconds: Histogram,
    /// Of right and of wrong answers.
    feedback: [Counter; 2],
    /// Counters of the reasons seen so far: a handful, so a list is found through fastest.
    reasons: Arc<Mutex<Vec<(&'static str, Counter)>>>,
    refusals: Family<OfReason, Counter>,
    failed: Arc<Failed>,
}

impl TaskMetrics {
    /// An answer went out.
    pub fn answered(&self, total: Micros, in_time: bool) {
        self.answered.inc();
        if in_time {
            self.in_time.inc();
        }
        self.seconds.observe(seconds(total));
    }

    /// A query was refused.
    pub fn refused(&self, reason: &'static str) {
        self.refused.inc();
        self.failed.count(reason);
        let Ok(mut reasons) = self.reasons.lock() else { return };
        let at = reasons.iter().position(|(known, _)| *known == reason).unwrap_or_else(|| {
            let labels = OfReason { task: self.task.clone(), reason };
            reasons.push((reason, self.refusals.get_or_create_owned(&labels)));
            reasons.len() - 1
        });
        reasons[at].1.inc();
    }

    /// A query whose input cannot be used.
    pub fn bad_input(&self) {
        self.bad_input.inc();
        self.failed.count("bad_input");
    }

    /// Somebody said whether an answer was right; the first to say so of it.
    pub fn feedback(&self, correct: bool) {
        self.feedback[usize::from(!correct)].inc();
    }

    /// A query whose client went away.
    pub fn cancelled(&self) {
        self.cancelled.inc();
        self.failed.count("cancelled");
    }

    /// Queries that were not answered, whatever the reason.
    pub fn failures(&self) -> u64 {
        self.failed.all()
    }
}

/// Counts the answers of one variant.
#[derive(Clone, Debug)]
pub struct VariantMetrics {
    queue: Histogram,
    run: Histogram,
    batch: Histogram,
}

impl VariantMetrics {
    /// It answered a query.
    pub fn answered(&self, queue: Micros, run: Micros, batch: u32) {
        self.queue.observe(seconds(queue));
        self.run.observe(seconds(run));
        self.batch.observe(f64::from(batch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_shown_in_base_units() {
        let metrics = Metrics::new();
        let task = metrics.task("fashion");
        task.answered(Micros(2_000), true);
        task.answered(Micros(3_000_000), false);
        task.refused("too_late");
        task.refused("too_late");
        task.bad_input();
        metrics.variant("fashion", "cnn_m-fp32").answered(Micros(100), Micros(700), 4);
        metrics.set_open(3, 7);
        metrics.node_lost("n", 2);
        metrics.node_lost("n", 3);
        let text = metrics.encode();
        for line in [
            r#"modelless_queries_total{task="fashion",outcome="answered"} 2"#,
            r#"modelless_refusals_total{task="fashion",reason="too_late"} 2"#,
            r#"modelless_answers_in_time_total{task="fashion"} 1"#,
            r#"modelless_query_seconds_bucket{le="0.002",task="fashion"} 1"#,
            r#"modelless_query_seconds_count{task="fashion"} 2"#,
            r#"modelless_run_seconds_sum{task="fashion",variant="cnn_m-fp32"} 0.0007"#,
            r#"modelless_batch_items_bucket{le="4.0",task="fashion",variant="cnn_m-fp32"} 1"#,
            r#"modelless_queries_lost_with_node_total{node="n"} 5"#,
            "modelless_queries_waiting 3",
            "modelless_queries_open 7",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_task_asked_for_twice_counts_on() {
        let metrics = Metrics::new();
        metrics.task("a").cancelled();
        metrics.task("a").cancelled();
        assert!(metrics.encode().contains(r#"modelless_queries_total{task="a",outcome="cancelled"} 2"#));
    }

    #[test]
    fn replicas_that_are_gone_are_no_longer_shown() {
        let metrics = Metrics::new();
        let replica = ReplicaGauge { variant: "cnn_m-fp32".to_owned(), state: "active", slowdown: Some(1.5) };
        let node = NodeGauges {
            node: "n".to_owned(),
            used: 5,
            queued: 3,
            crashes: 2,
            replicas: vec![replica.clone(), replica],
            coverage: vec![CoverageGauge { variant: "cnn_m-fp32".to_owned(), batches: 200, above: 2 }],
            ..NodeGauges::default()
        };
        metrics.set_nodes(std::slice::from_ref(&node));
        metrics.set_nodes(&[node]);
        let text = metrics.encode();
        for line in [
            r#"modelless_node_queries_queued{node="n"} 3"#,
            r#"modelless_node_runner_crashes_total{node="n"} 2"#,
            r#"modelless_replica_slowdown{node="n",variant="cnn_m-fp32"} 1.5"#,
            r#"modelless_variant_batches_total{node="n",variant="cnn_m-fp32"} 200"#,
            r#"modelless_variant_batches_above_p99_total{node="n",variant="cnn_m-fp32"} 2"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        assert!(
            text.contains(r#"modelless_replicas{node="n",variant="cnn_m-fp32",state="active"} 2"#),
            "{text}"
        );
        assert!(text.contains(r#"modelless_node_memory_used_bytes{node="n"} 5"#), "{text}");
        metrics.set_nodes(&[]);
        let text = metrics.encode();
        assert!(!text.contains("cnn_m-fp32") && !text.contains(r#"node="n""#), "{text}");
    }
}
