//! Keeps the router's table and everybody's view in step with the catalogue and the nodes.
//!
//! What changes where queries may go (a variant resident or gone, a new model) counts at once, and so does an
//! estimate that leaps; what only moves estimates a little is passed on about once a second. If the store does not answer, the last table stays.

use crate::core::{Core, Node};
use crate::members;
use crate::table;
use crate::view::{self, Tasks, View};
use modelless_decision::Coverage;
use modelless_decision::route::{Event, Offer, Table};
use modelless_store::{Catalog, Store};
use modelless_telemetry::{CoverageGauge, NodeGauges, ReplicaGauge};
use modelless_types::{Model, Variant};
use modelless_wire::NodeStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How often the catalogue's version is asked for.
const POLL: Duration = Duration::from_secs(1);
/// A store that takes longer is away. It may be cut off, and then it would never be done.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a table that only moves estimates is passed on.
const ESTIMATES: Duration = Duration::from_secs(1);
/// Nodes that change all the time are looked at no more often than this.
const PACE: Duration = Duration::from_millis(10);

pub(crate) struct Updater {
    core: Arc<Core>,
    store: Arc<dyn Store>,
    catalog: Arc<Catalog>,
    tasks: Arc<Tasks>,
    table: Table,
    shape: Table,
    fed: Instant,
    /// The store did not answer last time.
    outage: bool,
}

impl Updater {
    pub(crate) fn new(core: Arc<Core>, store: Arc<dyn Store>, catalog: Arc<Catalog>) -> Self {
        let (table, shape) = (Table::default(), Table::default());
        let tasks = Arc::default();
        let mut updater =
            Self { core, store, catalog, tasks, table, shape, fed: Instant::now(), outage: false };
        updater.refresh(true, 0);
        updater
    }

    /// Runs until stopped. The store is asked beside everything else: while it does not answer, nodes still come and go.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut followers = JoinSet::new();
        let mut reading: JoinSet<Read> = JoinSet::new();
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ask_store = false;
        // The newest wish to look anew that the store's answer covers.
        let mut seen = 0;
        loop {
            for node in self.core.nodes() {
                if !node.followed.swap(true, Ordering::AcqRel) {
                    followers.spawn(follow(Arc::clone(&self.core), node));
                }
            }
            let looked = Instant::now();
            let mut new_catalog = false;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(lost) = followers.join_next() => match lost {
                    Ok(node) => self.core.lost_node(&node),
                    Err(error) => tracing::error!(%error, "the watch over a node failed; this is a bug"),
                },
                Some(read) = reading.join_next() => match read {
                    Ok(Read { asked, catalog }) => {
                        seen = asked;
                        new_catalog = self.take_catalog(catalog);
                    }
                    Err(error) => tracing::error!(%error, "reading the catalogue failed; this is a bug"),
                },
                _ = poll.tick() => ask_store = true,
                () = self.core.changed.notified() => {}
            }
            ask_store |= self.core.catalog_changed.swap(false, Ordering::AcqRel);
            if ask_store && reading.is_empty() {
                ask_store = false;
                let asked = self.core.asked.load(Ordering::Acquire);
                reading.spawn(read(Arc::clone(&self.store), self.catalog.version, asked));
            }
            self.refresh(new_catalog, seen);
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep_until(looked + PACE) => {}
            }
        }
        followers.shutdown().await;
        reading.shutdown().await;
    }

    /// Whether there is a new one.
    fn take_catalog(&mut self, read: Result<Option<Catalog>, String>) -> bool {
        match read {
            Ok(catalog) => {
                if std::mem::take(&mut self.outage) {
                    tracing::info!("the store answers again");
                }
                catalog.map(|catalog| self.catalog = Arc::new(catalog)).is_some()
            }
            Err(error) => {
                if !std::mem::replace(&mut self.outage, true) {
                    tracing::warn!(%error, "the store does not answer; serving on with what was last read");
                }
                false
            }
        }
    }

    fn refresh(&mut self, new_catalog: bool, asked: u64) {
        let began = Instant::now();
        let nodes = self.core.nodes();
        let statuses: Vec<NodeStatus> = nodes.iter().map(|node| node.status.borrow().clone()).collect();
        let mut table = table::build(&self.catalog, &statuses, self.core.handover.estimate());
        members::lend(&mut table, &statuses, &self.core.members());
        let shape = table::shape(&table);
        let reshaped = shape != self.shape;
        let urgent = reshaped || table::leaps(&self.table, &table);
        if urgent || (table != self.table && self.fed.elapsed() >= ESTIMATES) {
            self.core.driver.feed(Event::Table(table.clone()), &*self.core);
            self.table = table;
            self.shape = shape;
            self.fed = Instant::now();
        }
        // A node that came back stands in the table already, but as one that is down.
        self.core.tabled(&nodes);
        if new_catalog || reshaped {
            self.tasks = Arc::new(view::tasks(&self.catalog, &self.table, &self.core.metrics));
        }
        let view = View::new(Arc::clone(&self.catalog), Arc::clone(&self.tasks), statuses);
        self.core.metrics.set_nodes(&gauges(&view));
        self.core.publish(view, asked);
        self.core.metrics.table_updated(began.elapsed());
    }
}

/// What the store said, and how often it had been asked for before.
struct Read {
    asked: u64,
    catalog: Result<Option<Catalog>, String>,
}

/// The catalogue, if it is another than the one that is known.
async fn read(store: Arc<dyn Store>, known: u64, asked: u64) -> Read {
    let read = async {
        if store.catalog_version().await? == known {
            return Ok(None);
        }
        store.catalog().await.map(Some)
    };
    let catalog = match timeout(PATIENCE, read).await {
        Ok(read) => read.map_err(|error: modelless_store::Error| error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    };
    Read { asked, catalog }
}

/// Says when a node's status changes; ends when the node is gone.
async fn follow(core: Arc<Core>, node: Arc<Node>) -> Arc<Node> {
    let mut status = node.status.clone();
    while status.changed().await.is_ok() {
        core.changed.notify_one();
    }
    node
}

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

fn gauges(view: &View) -> Vec<NodeGauges> {
    let replica = |replica: &modelless_wire::ReplicaStatus| ReplicaGauge {
        slowdown: replica.slowdown,
        variant: view
            .catalog
            .variants
            .iter()
            .find(|variant| variant.id == replica.variant)
            .map_or_else(|| replica.variant.to_string(), |variant| variant.name.clone()),
        state: replica.state.name(),
    };
    let node = |node: &NodeStatus| NodeGauges {
        node: node.name.clone(),
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
        replicas: node.replicas.iter().map(replica).collect(),
        coverage: node.info.offers.iter().filter_map(|offer| coverage(view, offer)).collect(),
    };
    view.nodes.iter().map(node).collect()
}
