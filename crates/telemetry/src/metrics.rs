//! The metrics registry, in Prometheus' base units.
//!
//! Histograms rather than summaries, so that several gateways can be added up. Labels are tasks, variants, applications, nodes and
//! reasons, each with a bound on its values. Never a query, a client or a text that a client chose. `docs/telemetry.md` lists all, and a
//! test compares.

use crate::applications::{self, AppMetrics, ShareGauge};
use crate::bounded::{Names, OTHERS};
use crate::cache::{self, SharedCache, TaskCache};
use crate::goals::{self, GoalMetrics};
use crate::histogram::{BYTES, Histogram, ITEMS, RATIO, SHORT_TIMES, TIMES};
use crate::nodes::{CoverageGauge, NodeFamilies, NodeGauges, NodeMetrics, ReplicaGauge};
use crate::rented::{self, MachineGauge, TrialGauge};
use crate::traces::{self, TraceMetrics};
use crate::triton::{Failed, Served, Triton};
use modelless_types::{Bytes, CostPer1k, Micros};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Tasks that have series of their own, and variants of all of them together.
const TASKS_MOST: usize = 500;
const VARIANTS_MOST: usize = 2_000;

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
    task: String,
    variant: String,
    state: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNodeAndVariant {
    node: String,
    task: String,
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
    tasks: Names,
    variants: Names,
    applications: applications::Families,
    goals: goals::Families,
    queries: Family<OfOutcome, Counter>,
    refusals: Family<OfReason, Counter>,
    handed_back: Family<OfHandBack, Counter>,
    announced: Counter,
    claimed: Counter,
    declined: Counter,
    job_inputs: Family<OfOutcome, Counter>,
    in_time: Family<OfTask, Counter>,
    query_seconds: Histograms<OfTask>,
    input_bytes: Histograms<OfTask>,
    queue_seconds: Histograms<OfVariant>,
    run_seconds: Histograms<OfVariant>,
    batch_items: Histograms<OfVariant>,
    over_predicted: Histograms<OfVariant>,
    cost: Family<OfVariant, Counter<f64, AtomicU64>>,
    replicas: Family<OfReplica, Gauge>,
    slowdown: Family<OfNodeAndVariant, Gauge<f64, AtomicU64>>,
    batches_run: Family<OfNodeAndVariant, Counter>,
    batches_above: Family<OfNodeAndVariant, Counter>,
    feedback: Family<OfVerdict, Counter>,
    nodes: NodeFamilies,
    waiting: Gauge,
    open: Gauge,
    connections: Gauge,
    table_update: Histogram,
    rented: rented::Families,
    traces: Family<traces::OfOutcome, Counter>,
    cache: cache::Families,
    triton: Triton,
    /// Held by who is being told: what nodes make known is filled in anew for each.
    telling: Mutex<()>,
}

/// What is as it is now, in place of what was told before, for [`Metrics::told`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Told<'a> {
    /// All nodes.
    pub nodes: &'a [NodeGauges],
    /// Rented machines that have not ended; nothing where it is not known how they stand.
    pub machines: Option<&'a [MachineGauge]>,
    /// Both sides of each trial that runs.
    pub trials: &'a [TrialGauge],
    /// Applications of tasks of which not all can be answered in time.
    pub shares: &'a [ShareGauge],
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// With nothing counted yet.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("modelless"),
            tasks: Names::new(TASKS_MOST),
            variants: Names::new(VARIANTS_MOST),
            applications: applications::Families::default(),
            goals: goals::Families::default(),
            queries: Family::default(),
            refusals: Family::default(),
            handed_back: Family::default(),
            announced: Counter::default(),
            claimed: Counter::default(),
            declined: Counter::default(),
            job_inputs: Family::default(),
            in_time: Family::default(),
            query_seconds: Histograms::new_with_constructor(|| Histogram::new(TIMES)),
            input_bytes: Histograms::new_with_constructor(|| Histogram::new(BYTES)),
            queue_seconds: Histograms::new_with_constructor(|| Histogram::new(TIMES)),
            run_seconds: Histograms::new_with_constructor(|| Histogram::new(TIMES)),
            batch_items: Histograms::new_with_constructor(|| Histogram::new(ITEMS)),
            over_predicted: Histograms::new_with_constructor(|| Histogram::new(RATIO)),
            cost: Family::default(),
            replicas: Family::default(),
            slowdown: Family::default(),
            batches_run: Family::default(),
            batches_above: Family::default(),
            feedback: Family::default(),
            nodes: NodeFamilies::default(),
            waiting: Gauge::default(),
            open: Gauge::default(),
            connections: Gauge::default(),
            table_update: Histogram::new(SHORT_TIMES),
            rented: rented::Families::default(),
            traces: Family::default(),
            cache: cache::Families::default(),
            triton: Triton::default(),
            telling: Mutex::default(),
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
        let help = "Queries that nodes may claim, once for each node that is told";
        r.register("queries_announced", help, self.announced.clone());
        let help = "Queries that nodes asked for, also those that another had by then";
        r.register("queries_claimed", help, self.claimed.clone());
        let help = "Queries that nodes were told of and gave up";
        r.register("queries_declined", help, self.declined.clone());
        r.register("job_inputs", "Inputs of offline jobs by how they ended", self.job_inputs.clone());
        r.register("answers_in_time", "Answers within their latency bound (goodput)", self.in_time.clone());
        let seconds = || Unit::Seconds;
        let help = "From arrival at the gateway to the answer";
        r.register_with_unit("query", help, seconds(), self.query_seconds.clone());
        let help = "Inputs of queries that were admitted, decoded as far as the gateway can tell";
        r.register_with_unit("input", help, Unit::Bytes, self.input_bytes.clone());
        self.goals.register(r);
        self.applications.register(r);
        let help = "Waiting, at the gateway and at the node, until bound to a variant";
        r.register_with_unit("queue", help, seconds(), self.queue_seconds.clone());
        let help = "On the device, the whole batch";
        r.register_with_unit("run", help, seconds(), self.run_seconds.clone());
        r.register("batch_items", "Queries in the batch of an answered query", self.batch_items.clone());
        let help = "Time on the device over what was predicted for the batch";
        r.register("run_over_predicted_ratio", help, self.over_predicted.clone());
        r.register("cost_usd", "What answers cost in time of devices", self.cost.clone());
        r.register("replicas", "Replicas by state", self.replicas.clone());
        let help = "Live over profiled time of a variant";
        r.register("replica_slowdown", help, self.slowdown.clone());
        r.register("variant_batches", "Batches that ran to their end", self.batches_run.clone());
        let help = "Of these, those that took longer than predicted in 99 of 100 cases";
        r.register("variant_batches_above_p99", help, self.batches_above.clone());
        r.register("feedback", "Verdicts on answers, each query's once", self.feedback.clone());
        self.nodes.register(r);
        r.register("queries_waiting", "Queries that wait at the gateway", self.waiting.clone());
        r.register("queries_open", "Queries at the gateway or at a node", self.open.clone());
        r.register("connections", "Open HTTP connections", self.connections.clone());
        let help = "Making the table that routing reads, from what the nodes said";
        r.register_with_unit("table_update", help, seconds(), self.table_update.clone());
        traces::register(r, &self.traces);
        self.cache.register(r);
        self.rented.register(r);
    }

    /// Where gateways share answers.
    pub fn shared_cache(&self) -> SharedCache {
        self.cache.shared()
    }

    /// What becomes of traces.
    pub fn traces(&self) -> TraceMetrics {
        TraceMetrics::new(&self.traces)
    }

    /// The handles of one task.
    pub fn task(&self, task: &str) -> TaskMetrics {
        let failed = self.triton.failed(task);
        let task = &*self.tasks.label(task);
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
            failed,
            input: self.input_bytes.get_or_create_owned(&of_task),
            goals: self.goals.of(task),
            cache: self.cache.of(task),
            job_inputs: ["answered", "failed"].map(|outcome| {
                self.job_inputs.get_or_create_owned(&OfOutcome { task: task.to_owned(), outcome })
            }),
        }
    }

    /// A node gave a query back unstarted.
    pub fn handed_back(&self, reason: &'static str) {
        self.handed_back.get_or_create_owned(&OfHandBack { reason }).inc();
    }

    /// A node was told of a query that it may claim.
    pub fn announced(&self) {
        self.announced.inc();
    }

    /// A node asked for so many.
    pub fn claimed(&self, queries: u64) {
        self.claimed.inc_by(queries);
    }

    /// A node gave one up that it was told of.
    pub fn declined(&self) {
        self.declined.inc();
    }

    /// The handles of one variant.
    pub fn variant(&self, task: &str, variant: &str) -> VariantMetrics {
        let (task, variant) = self.named(task, variant);
        let labels = OfVariant { task, variant };
        VariantMetrics {
            queue: self.queue_seconds.get_or_create_owned(&labels),
            run: self.run_seconds.get_or_create_owned(&labels),
            batch: self.batch_items.get_or_create_owned(&labels),
            over_predicted: self.over_predicted.get_or_create_owned(&labels),
            cost: self.cost.get_or_create_owned(&labels),
        }
    }

    /// The handles of one application.
    pub fn application(&self, tenant: &str, application: &str) -> AppMetrics {
        self.applications.of(tenant, application)
    }

    /// The handles of one node.
    pub fn node(&self, node: &str) -> NodeMetrics {
        self.nodes.lost(node, 0); // a count that begins with its first loss shows no increase
        self.nodes.of(node)
    }

    /// What a variant did, as Triton counts it; `version` is the variant's number.
    pub fn served(&self, task: &str, version: u32) -> Arc<Served> {
        self.triton.served(task, version)
    }

    /// How long it took to make the table that routing reads.
    pub fn table_updated(&self, took: std::time::Duration) {
        self.table_update.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// What the series of a variant are labelled with.
    fn named(&self, task: &str, variant: &str) -> (String, String) {
        let own = self.variants.has_room(&format!("{task}\n{variant}"));
        let (task, variant) = if own { (task, variant) } else { (OTHERS, OTHERS) };
        (task.to_owned(), variant.to_owned())
    }

    /// All of it as text, with the state of everything else as it is now.
    pub fn told(&self, now: &Told<'_>) -> String {
        let _alone = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        self.set_nodes(now.nodes);
        self.rented.set(now.machines, now.trials);
        self.applications.set_shares(now.shares);
        self.encode()
    }

    /// The state of all nodes, in place of what was said before.
    fn set_nodes(&self, nodes: &[NodeGauges]) {
        self.replicas.clear();
        self.slowdown.clear();
        self.batches_run.clear();
        self.batches_above.clear();
        self.nodes.set(nodes);
        for node in nodes {
            let of = |task: &str, variant: &str| {
                let (task, variant) = self.named(task, variant);
                OfNodeAndVariant { node: node.node.clone(), task, variant }
            };
            for CoverageGauge { task, variant, batches, above } in &node.coverage {
                let labels = of(task, variant);
                self.batches_run.get_or_create(&labels).inc_by(*batches);
                self.batches_above.get_or_create(&labels).inc_by(*above);
            }
            for ReplicaGauge { task, variant, state, slowdown } in &node.replicas {
                let labels = of(task, variant);
                if let Some(slowdown) = slowdown {
                    self.slowdown.get_or_create(&labels).set(*slowdown);
                }
                let OfNodeAndVariant { node, task, variant } = labels;
                self.replicas.get_or_create(&OfReplica { node, task, variant, state }).inc();
            }
        }
    }

    /// A node was lost that had so many queries. Stays when the node does not: it tells what happened.
    pub fn node_lost(&self, node: &str, queries: u64) {
        self.nodes.lost(node, queries);
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

    /// All of it as text, with the nodes as they were told of last.
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

pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
pub(crate) fn seconds(time: Micros) -> f64 {
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
    input: Histogram,
    goals: GoalMetrics,
    /// Found, and not.
    cache: TaskCache,
    /// Answered, and not.
    job_inputs: [Counter; 2],
}

impl TaskMetrics {
    /// Whether a query was answered by what was kept.
    pub fn cached(&self, hit: bool) {
        self.cache.looked(hit);
    }

    /// What is kept of its answers.
    pub fn cache(&self) -> &TaskCache {
        &self.cache
    }

    /// An input of an offline job ended.
    pub fn job_input(&self, answered: bool) {
        self.job_inputs[usize::from(!answered)].inc();
    }

    /// How its queries' goals are kept.
    pub fn goals(&self) -> &GoalMetrics {
        &self.goals
    }

    /// A query was admitted, with an input of this size.
    pub fn admitted(&self, input: Bytes) {
        self.input.observe(input.0);
    }

    /// An answer went out.
    pub fn answered(&self, total: Micros, in_time: bool) {
        self.answered.inc();
        if in_time {
            self.in_time.inc();
        }
        self.seconds.observe(total.0);
    }

    /// A query was refused.
    pub fn refused(&self, reason: &'static str) {
        self.refused.inc();
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
    }

    /// Somebody said whether an answer was right; the first to say so of it.
    pub fn feedback(&self, correct: bool) {
        self.feedback[usize::from(!correct)].inc();
    }

    /// A query whose client went away.
    pub fn cancelled(&self) {
        self.cancelled.inc();
    }

    /// A request that was not answered, as Triton counts it: once, however many queries it asked.
    pub fn failed(&self, reason: &str, took: Micros) {
        self.failed.count(reason, took);
    }

    /// How many these were, and how long from their arrivals to their ends.
    pub fn failures(&self) -> (u64, Micros) {
        self.failed.all()
    }
}

/// Counts the answers of one variant.
#[derive(Clone, Debug)]
pub struct VariantMetrics {
    queue: Histogram,
    run: Histogram,
    batch: Histogram,
    over_predicted: Histogram,
    cost: Counter<f64, AtomicU64>,
}

/// How an answered query was run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Waiting, at the gateway and at the node.
    pub queue: Micros,
    /// On the device, the whole batch.
    pub run: Micros,
    /// What was predicted for that.
    pub predicted: Micros,
    /// Queries in the batch.
    pub batch: u32,
    /// What the query cost.
    pub cost: CostPer1k,
}

impl VariantMetrics {
    /// It answered a query.
    pub fn answered(&self, ran: &Ran) {
        let Ran { queue, run, predicted, batch, cost } = *ran;
        self.queue.observe(queue.0);
        self.run.observe(run.0);
        self.batch.observe(u64::from(batch));
        self.over_predicted.observe(run.0.saturating_mul(1_000_000) / predicted.0.max(1));
        self.cost.inc_by(cost.as_usd() / 1_000.0);
    }
}

#[cfg(test)]
mod tests;
