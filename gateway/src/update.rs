//! Keeps the router's table and everybody's view in step with the catalogue and the nodes.
//!
//! What changes where queries may go (a variant resident or gone, a new model) counts at once, and so does an
//! estimate that leaps; what only moves estimates a little is passed on about once a second, and what routing does not read makes no
//! table at all. Making tables takes a tenth of a core at most. If the store does not answer, the last table stays.

use crate::access::shares;
use crate::core::{Core, Node};
use crate::known::{Change, Known, moved};
use crate::members::{self, Seen};
use crate::table;
use crate::view::{self, TasksOf, Views};
use modelless_decision::Moments;
use modelless_decision::route::{Event, Said, Table};
use modelless_store::{Catalog, Doors, Grant, Store};
use modelless_types::TaskId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
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
/// The next table waits for so many times as long as the last one took.
const REST: u32 = 10;
/// And so long at most, should this process have been held up while it made one.
const LONGEST_REST: Duration = Duration::from_millis(250);

pub(crate) struct Updater {
    core: Arc<Core>,
    store: Arc<dyn Store>,
    catalog: Arc<Catalog>,
    grants: Vec<Grant>,
    tasks: TasksOf,
    known: Known,
    /// What is not in the table yet.
    due: Change,
    handover: Moments,
    seen: Arc<Seen>,
    table: Table,
    shape: Table,
    fed: Instant,
    /// What was said of who gets how much of devices' time.
    shares: Vec<Said>,
    /// The store did not answer last time.
    outage: bool,
}

impl Updater {
    pub(crate) fn new(
        core: Arc<Core>,
        store: Arc<dyn Store>,
        (catalog, grants, said): (Arc<Catalog>, Vec<Grant>, Vec<Said>),
    ) -> Self {
        let (table, shape) = (Table::default(), Table::default());
        let tasks = TasksOf::new();
        let mut updater = Self {
            core,
            store,
            catalog,
            grants,
            tasks,
            known: Known::default(),
            due: Change::Nothing,
            handover: Moments::ZERO,
            seen: Arc::default(),
            table,
            shape,
            fed: Instant::now(),
            shares: Vec::new(),
            outage: false,
        };
        updater.share(said);
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
        'looks: loop {
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
                Some(lost) = followers.join_next() => self.lost(lost),
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
            let took = self.refresh(new_catalog, seen);
            // A node that is lost meanwhile is not kept waiting for: what it had goes elsewhere at once.
            let rest = sleep_until(looked + (took * REST).clamp(PACE, LONGEST_REST));
            tokio::pin!(rest);
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break 'looks,
                    Some(lost) = followers.join_next() => self.lost(lost),
                    () = &mut rest => break,
                }
            }
        }
        followers.shutdown().await;
        reading.shutdown().await;
    }

    fn lost(&self, followed: Result<Arc<Node>, JoinError>) {
        match followed {
            Ok(node) => self.core.lost_node(&node),
            Err(error) => tracing::error!(%error, "the watch over a node failed; this is a bug"),
        }
    }

    /// Whether there is a new one.
    fn take_catalog(&mut self, read: Result<Option<(Catalog, Doors)>, String>) -> bool {
        match read {
            Ok(catalog) => {
                if std::mem::take(&mut self.outage) {
                    tracing::info!("the store answers again");
                }
                let Some((catalog, doors)) = catalog else { return false };
                self.grants.clone_from(&doors.grants);
                self.share(shares(&doors));
                self.core.gate.set(doors);
                self.catalog = Arc::new(catalog);
                let tasks: BTreeSet<TaskId> = self.catalog.tasks.iter().map(|task| task.id).collect();
                self.core.demand.forget(|task| tasks.contains(&task));
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.outage, true) {
                    tracing::warn!(%error, "the store does not answer; serving on with what was last read");
                }
                false
            }
        }
    }

    /// Weights and reserved shares of applications from now on, where they are others than before.
    fn share(&mut self, shares: Vec<Said>) {
        if self.shares != shares {
            self.core.driver.feed(Event::Shares(shares.clone()), &*self.core);
            self.shares = shares;
        }
    }

    /// Looks at everything, and gives how long the table took if one was made.
    fn refresh(&mut self, new_catalog: bool, asked: u64) -> Duration {
        let began = Instant::now();
        let nodes = self.core.nodes();
        let change = self.known.look(&nodes);
        let (seen, handover) =
            (self.core.seen(), self.core.handover.estimate(self.core.driver.clock().now()));
        let lent = if Arc::ptr_eq(&seen, &self.seen) { Change::Nothing } else { Change::Estimates };
        self.due = self.due.max(change).max(lent).max(moved(self.handover, handover));
        let estimates = self.due == Change::Estimates && self.fed.elapsed() >= ESTIMATES;
        let mut took = Duration::ZERO;
        let mut reshaped = false;
        if new_catalog || self.due == Change::Places || estimates {
            (self.seen, self.handover) = (seen, handover);
            reshaped = self.make_table();
            took = began.elapsed();
            self.core.metrics.table_updated(took);
        }
        // A node that came back stands in the table already, but as one that is down.
        self.core.tabled(&nodes);
        if new_catalog || reshaped {
            let (metrics, trials) = (&self.core.metrics, &self.core.trials);
            trials.follow(&self.catalog);
            self.tasks = view::tasks(&self.catalog, &self.grants, &self.table, (metrics, trials));
        }
        let shown = new_catalog || reshaped || change > Change::Nothing;
        let views = shown
            .then(|| Views::new(&self.catalog, &self.tasks, &self.known.statuses(), &self.known.headers()));
        self.core.publish(views, asked);
        took
    }

    /// Whether queries go elsewhere by it than by the last one.
    fn make_table(&mut self) -> bool {
        let statuses = self.known.statuses();
        let mut table = table::build(&self.catalog, &statuses, self.handover);
        members::lend(&mut table, &statuses, &self.seen);
        self.known.tabled();
        self.due = Change::Nothing;
        self.fed = Instant::now();
        if table == self.table {
            return false;
        }
        let shape = table::shape(&table);
        let reshaped = shape != self.shape;
        self.core.driver.feed(Event::Table(table.clone()), &*self.core);
        (self.table, self.shape) = (table, shape);
        reshaped
    }
}

/// What the store said, and how often it had been asked for before.
struct Read {
    asked: u64,
    catalog: Result<Option<(Catalog, Doors)>, String>,
}

/// The catalogue, if it is another than the one that is known.
async fn read(store: Arc<dyn Store>, known: u64, asked: u64) -> Read {
    let read = async {
        if store.catalog_version().await? == known {
            return Ok(None);
        }
        // The doors after the catalogue, so that they are never older: whoever was shut out is so as of this version.
        let catalog = store.catalog().await?;
        Ok(Some((catalog, store.access().doors().await?)))
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
