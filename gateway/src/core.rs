//! The gateway's heart: the router behind its driver, the open queries, the nodes, and what is known of them.
//!
//! It performs what the router decides and feeds it what happens. It decides nothing itself.

mod announcing;
mod ended;
mod receiving;

use self::ended::Ended;
use crate::access::{Caller, Gate};
use crate::ask::Manner;
use crate::cache::{Cache, Wish};
use crate::config::Config;
use crate::decisions::Decisions;
use crate::demand::Demands;
use crate::handover::Handover;
use crate::http::refusals::Refusals;
use crate::ids::QueryIds;
use crate::jobs::Jobs;
use crate::members::{Members, Seen};
use crate::met::Met;
use crate::outlook::Outlook;
use crate::pending::{Outcome, Pending, Sent, Told};
use crate::regions::Regions;
use crate::shadow::Shadows;
use crate::traces::{Door, Traces};
use crate::trials::Trials;
use crate::view::{View, Views};
use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue};
use modelless_decision::route::{Action, End, Event, NodeReport, Router};
use modelless_drive::{Driver, Perform};
use modelless_live::Member;
use modelless_telemetry::{Metrics, NodeMetrics};
use modelless_types::{
    Micros, NodeId, Priority, QueryKey, QueryNumber, Refusal, TaskId, TenantId, VariantId,
};
use modelless_wire::{Connection, Demand, NodeLink, NodeStatus, QueryFrame, ToNode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// A node as the gateway reaches it.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) status: watch::Receiver<NodeStatus>,
    link: Arc<dyn NodeLink>,
    /// Whether it has said anything yet.
    up: AtomicBool,
    /// Whether somebody watches its status.
    pub(crate) followed: AtomicBool,
    pub(crate) metrics: NodeMetrics,
    early: Mutex<Early>,
}

/// What a node said before the table knew it, kept because the router forgets reports of strangers.
#[derive(Default)]
struct Early {
    tabled: bool,
    report: Option<NodeReport>,
    spare: Spare,
}

/// Older connections to the same node, the newest last: one may go on standing when the newest is ended as one too many.
#[derive(Default)]
struct Spare {
    nodes: Vec<Arc<Node>>,
    /// What the node said last, over whichever. Kept only where there are others: one that takes over may hear nothing for long.
    report: Option<NodeReport>,
}

impl Node {
    fn early(&self) -> MutexGuard<'_, Early> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mean of the way to it and back, as its connection measures it; nothing inside one process.
    pub(crate) fn way(&self) -> Micros {
        self.status.borrow().info.rtt.mean()
    }

    /// Its status ends with its connection.
    fn stands(&self) -> bool {
        self.status.has_changed().is_ok()
    }
}

/// How far what requests see goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    /// The version of the catalogue.
    pub(crate) version: u64,
    /// The catalogue and the nodes as they were after so many were asked for.
    pub(crate) asked: u64,
}

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) driver: Driver<Router>,
    pub(crate) pending: Pending,
    pub(crate) ids: QueryIds,
    /// Who may ask.
    pub(crate) gate: Gate,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) handover: Handover,
    /// Tells this process's queries apart from those of others, in query ids.
    number_base: u64,
    next_key: AtomicU64,
    nodes: RwLock<Vec<Arc<Node>>>,
    views: ArcSwap<Views>,
    /// What requests see.
    pub(crate) shown: watch::Sender<Shown>,
    /// How often it was asked to look anew.
    pub(crate) asked: AtomicU64,
    loaded: AtomicBool,
    /// Who was to be met at the start has been.
    met: Met,
    /// Clients are sent elsewhere, but still answered.
    pub(crate) leaving: Arc<AtomicBool>,
    /// How many were told of late.
    pub(crate) refusals: Arc<Refusals>,
    draining: AtomicBool,
    ended: Ended,
    /// Something may have changed: look again.
    pub(crate) changed: Notify,
    /// The catalogue may have.
    pub(crate) catalog_changed: AtomicBool,
    pub(crate) ready: watch::Sender<bool>,
    /// Bytes of bodies that are held.
    pub(crate) held: AtomicU64,
    pub(crate) demand: Demands,
    /// Shared memory of clients.
    pub(crate) regions: Regions,
    /// For those who watch.
    pub(crate) decisions: Arc<Decisions>,
    /// Answers that are given again.
    pub(crate) cache: Cache,
    /// What offline jobs share.
    pub(crate) jobs: Jobs,
    /// Where a collector wants to hear of queries.
    pub(crate) traces: Option<Traces>,
    /// Versions that are tried.
    pub(crate) trials: Trials,
    /// Copies of queries, for a version that is tried by them.
    pub(crate) shadows: Shadows,
    /// Who else is there.
    pub(crate) members: Mutex<Members>,
    /// What is asked of all gateways, as a scheduler would count it.
    pub(crate) outlook: Mutex<Outlook>,
}

impl Core {
    pub(crate) fn new(
        config: Config,
        driver: Driver<Router>,
        (ids, number_base): (QueryIds, u64),
        gate: Gate,
        metrics: Arc<Metrics>,
        views: Views,
        cache: Cache,
    ) -> Self {
        let demand = Demands::new(driver.clock().now());
        let pending = Pending::new(config.max_connections, config.waiting.waiting);
        let trials = Trials::new(Micros::from_millis(config.trial_beat_ms));
        Self {
            config,
            driver,
            pending,
            ids,
            gate,
            metrics,
            handover: Handover::default(),
            number_base,
            next_key: AtomicU64::new(1),
            nodes: RwLock::default(),
            shown: watch::Sender::new(Shown {
                version: views.of(TenantId::DEFAULT).catalog.version,
                asked: 0,
            }),
            asked: AtomicU64::new(0),
            views: ArcSwap::from_pointee(views),
            loaded: AtomicBool::new(false),
            met: Met::default(),
            leaving: Arc::default(),
            refusals: Arc::default(),
            draining: AtomicBool::new(false),
            ended: Ended::default(),
            changed: Notify::new(),
            catalog_changed: AtomicBool::new(false),
            ready: watch::Sender::new(false),
            held: AtomicU64::new(0),
            demand,
            regions: Regions::default(),
            decisions: Arc::default(),
            cache,
            jobs: Jobs::default(),
            traces: None,
            trials,
            shadows: Shadows::default(),
            members: Mutex::default(),
            outlook: Mutex::default(),
        }
    }

    /// A query as everybody outside of this process names it.
    pub(crate) fn number(&self, key: QueryKey) -> QueryNumber {
        QueryNumber::of(key, QueryNumber(self.number_base))
    }

    /// The query that has a number, if this process gave it out.
    pub(crate) fn key_of(&self, number: QueryNumber) -> Option<QueryKey> {
        let key = number.0.wrapping_sub(self.number_base);
        (1..self.next_key.load(Ordering::Relaxed)).contains(&key).then_some(QueryKey(key))
    }

    /// Where its queries are numbered from: what tells this process from all others.
    pub(crate) const fn instance(&self) -> u64 {
        self.number_base
    }

    /// This process, as its work on jobs is marked: no other one is called so.
    pub(crate) fn name(&self) -> String {
        format!("{:016x}", self.number_base)
    }

    /// In which manner a request is made.
    pub(crate) fn manner(&self, headers: &HeaderMap, door: Door) -> Manner {
        let trace = self.traces.as_ref().map(|traces| traces.begin(headers, door));
        Manner { trace, wish: Wish::of(headers) }
    }

    /// Who else is there, as the live state told last.
    pub(crate) fn members(&self) -> Arc<Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).all()
    }

    /// What nodes of a kind saw of their profiles, as the live state told last.
    pub(crate) fn seen(&self) -> Arc<Seen> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).seen()
    }

    pub(crate) fn next_key(&self) -> QueryKey {
        QueryKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// What the first tenant sees; and all there is of machines.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(self.views.load().of(TenantId::DEFAULT))
    }

    pub(crate) fn view_of(&self, caller: &Caller) -> Arc<View> {
        self.view_for(caller.tenant)
    }

    pub(crate) fn view_for(&self, tenant: TenantId) -> Arc<View> {
        Arc::clone(self.views.load().of(tenant))
    }

    /// `asked` is how often it had been asked to look anew before it looked; without `views` that found nothing new.
    pub(crate) fn publish(&self, views: Option<Views>, asked: u64) {
        if let Some(views) = views {
            self.views.store(Arc::new(views));
        }
        let shown = Shown { version: self.view().catalog.version, asked };
        self.shown.send_if_modified(|known| std::mem::replace(known, shown) != shown);
        self.loaded.store(true, Ordering::Release);
        self.refresh_ready();
    }

    pub(crate) fn add_node(&self, status: watch::Receiver<NodeStatus>, link: Arc<dyn NodeLink>) {
        let (id, name) = {
            let status = status.borrow();
            (status.node, status.name.clone())
        };
        let node = Node {
            id,
            status,
            link,
            up: AtomicBool::new(false),
            followed: AtomicBool::new(false),
            metrics: self.metrics.node(&name),
            early: Mutex::default(),
        };
        let node = Arc::new(node);
        // Another may join as this number meanwhile.
        while !self.put(&node) {
            // One that comes back is a new one: what the old one had is lost, and only then is it the new one's turn.
            let Some((old, queries)) = self.take_out(|known| known.id == id) else { continue };
            self.metrics.node_lost(&name, queries as u64);
            let older = std::mem::take(&mut old.early().spare.nodes);
            let mut early = node.early();
            early.spare.nodes.extend(older);
            early.spare.nodes.push(old);
            early.spare.nodes.retain(|node| node.stands());
        }
        self.changed.notify_one();
    }

    /// A node is gone: what it had is lost, and it stands in no table from now on, unless it is reached in another way.
    pub(crate) fn lost_node(&self, node: &Arc<Node>) {
        let Some((_, queries)) = self.take_out(|known| Arc::ptr_eq(known, node)) else {
            return; // another has taken its place meanwhile
        };
        let name = node.status.borrow().name.clone();
        self.metrics.node_lost(&name, queries as u64);
        let spare = std::mem::take(&mut node.early().spare);
        if self.reinstate(spare) {
            tracing::info!(node = %node.id, name, queries, "a connection to a node ended; an older one stands");
        } else {
            tracing::warn!(node = %node.id, name, queries, "a node is gone");
        }
        self.refresh_ready();
        self.changed.notify_one();
    }

    /// The newest that stands takes the place of one that is gone, if there is any and nobody else has.
    fn reinstate(&self, spare: Spare) -> bool {
        let Spare { mut nodes, report } = spare;
        nodes.retain(|node| node.stands());
        let Some(newest) = nodes.pop() else { return false };
        newest.up.store(report.is_some(), Ordering::Release);
        *newest.early() = Early { tabled: false, report: report.clone(), spare: Spare { nodes, report } };
        self.put(&newest)
    }

    /// False if there is one of its number.
    fn put(&self, node: &Arc<Node>) -> bool {
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let free = !nodes.iter().any(|known| known.id == node.id);
        if free {
            nodes.push(Arc::clone(node));
        }
        free
    }

    /// A connection that is gone, and how many queries were at its node. The router hears of it in the same step: what joins as this
    /// node meanwhile is not taken for the one that went.
    fn take_out(&self, is: impl Fn(&Arc<Node>) -> bool) -> Option<(Arc<Node>, usize)> {
        let out = |_: &mut Router, _| {
            let gone = {
                let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
                let at = nodes.iter().position(&is)?;
                nodes.remove(at)
            };
            let queries = self.pending.at(gone.id);
            Some((Event::NodeDown { node: gone.id }, (gone, queries)))
        };
        self.driver.feed_with(out, self)
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<Arc<Node>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().find(|node| node.id == id).cloned()
    }

    pub(crate) fn node_name(&self, id: NodeId) -> Option<String> {
        self.node(id).map(|node| node.status.borrow().name.clone())
    }

    /// A node's name as answers tell it. One that joined while a query waited is not in what the query read at its start.
    pub(crate) fn node_header(&self, view: &View, id: NodeId) -> Option<HeaderValue> {
        let joined = || Some(crate::view::header(&self.node(id)?.status.borrow().name));
        view.node_header(id).or_else(joined)
    }

    /// The table knows these nodes now: what they said before counts from now on.
    pub(crate) fn tabled(&self, nodes: &[Arc<Node>]) {
        for node in nodes {
            let report = {
                let mut early = node.early();
                early.tabled = true;
                early.report.take()
            };
            if let Some(report) = report {
                self.driver.feed(Event::Report { node: node.id, report }, self);
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Not ready from now on, and every answer asks for its connection's end.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.refresh_ready();
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.refresh_ready();
    }

    /// The end of a drain: what has not finished by now is refused by name.
    pub(crate) fn give_up(&self) {
        let given_up = self.pending.refuse_all(&Refusal::Draining);
        if !given_up.is_empty() {
            tracing::warn!(queries = given_up.len(), "queries were given up that did not finish in time");
        }
        for key in given_up {
            self.driver.feed(Event::Cancel { key }, self);
        }
    }

    /// Lets go of the nodes. They hold on to this gateway as it does to them, so one side must.
    pub(crate) fn forget_nodes(&self) {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.refresh_ready();
    }

    /// Ready: a node has spoken, those that were there at the start stand in the table, and nobody asked for an end.
    pub(crate) fn refresh_ready(&self) {
        let nodes = self.nodes();
        let there = |node: &&Arc<Node>| node.up.load(Ordering::Acquire);
        let up = nodes.iter().any(|node| there(&node));
        let met = up
            && self.met.look(Instant::now(), || {
                let tabled: Vec<NodeId> = nodes
                    .iter()
                    .filter(there)
                    .filter(|node| node.early().tabled)
                    .map(|node| node.id)
                    .collect();
                let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).all();
                let others = members.iter().filter_map(|member| member.node);
                let all = nodes.iter().map(|node| node.id).chain(others).all(|id| tabled.contains(&id));
                (tabled.len(), all)
            });
        let ready = self.loaded.load(Ordering::Acquire) && met && !self.is_leaving() && !self.is_draining();
        self.ready.send_if_modified(|known| std::mem::replace(known, ready) != ready);
    }

    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Why it is not ready, in words.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        if self.is_leaving() || self.is_draining() {
            Some("the gateway is shutting down")
        } else if !self.loaded.load(Ordering::Acquire) {
            Some("the catalogue was not read yet")
        } else if !self.is_ready() {
            Some("no node has reported yet, or not all that are known of")
        } else {
            None
        }
    }

    /// A query is being read. If it is the only one, the only node there is may wake up for it meanwhile.
    pub(crate) fn expect_query(&self) {
        if self.pending.len() > 0 {
            return;
        }
        let only = {
            let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
            if let [only] = nodes.as_slice() { Some(Arc::clone(only)) } else { None }
        };
        if let Some(node) = only {
            node.link.expect_query();
        }
    }

    /// Has a node load a variant.
    pub(crate) fn wake(&self, node: NodeId, task: TaskId, ordinal: u8) {
        self.to_node(node, ToNode::Wake { task, ordinal });
    }

    /// Has a node take a variant out of memory.
    pub(crate) fn unload(&self, node: NodeId, variant: VariantId) {
        self.to_node(node, ToNode::Unload { variant });
    }

    fn to_node(&self, node: NodeId, frame: ToNode) {
        if let Some(node) = self.reach(node) {
            node.link.send(frame);
        }
    }

    /// A node, or the router hears that there is none.
    fn reach(&self, id: NodeId) -> Option<Arc<Node>> {
        loop {
            if let Some(node) = self.node(id) {
                return Some(node);
            }
            let absent =
                |_: &mut Router, _| self.node(id).is_none().then_some((Event::NodeDown { node: id }, ()));
            if self.driver.feed_with(absent, self).is_some() {
                return None;
            }
        }
    }

    fn heard(&self, id: NodeId, report: &NodeReport) {
        let Some(node) = self.node(id) else { return };
        {
            let mut early = node.early();
            if !early.tabled {
                early.report = Some(report.clone());
            }
            if !early.spare.nodes.is_empty() {
                early.spare.report = Some(report.clone());
            }
        }
        if !node.up.swap(true, Ordering::AcqRel) {
            self.refresh_ready();
        }
    }

    /// The answer leaves before the books are done: nobody waits for those.
    fn finished(
        &self,
        (over, node): (Connection, NodeId),
        key: QueryKey,
        outcome: Outcome,
        report: NodeReport,
    ) {
        let end = end(&outcome);
        match self.pending.told(key, node, over, outcome) {
            Told::Ended => self.driver.feed(Event::Finished { key, node, report, end }, self),
            Told::Overtook => {
                self.driver.feed(Event::Report { node, report }, self);
                self.driver.feed(Event::Cancel { key }, self);
            }
            // Not as the end of it: the query may be on its way to that node again.
            Told::Stale => self.driver.feed(Event::Report { node, report }, self),
        }
    }
}

/// What a node's word means for whoever shares devices' time.
fn end(outcome: &Outcome) -> End {
    match outcome {
        Outcome::Answered(answer) => {
            End::Answered { device: Micros(answer.run.0 / u64::from(answer.batch.max(1))) }
        }
        Outcome::Refused(why) => End::refused(why),
        Outcome::BadInput(..) => End::Unknown,
    }
}

impl Perform<Action> for Core {
    fn perform(&self, action: Action) {
        match action {
            Action::Send { key, node, expected, waiting, first, among, returnable, reserved } => {
                let now = self.driver.clock().now();
                // The one that it is sent over, though another may take its place meanwhile.
                let Some(to) = self.reach(node) else { return };
                let sent = Sent { at: now, node, over: to.link.connection(), expected };
                let Some((query, input)) = self.pending.send(key, sent) else {
                    // It ended this moment: its client went away, or the node that it was taken from answered.
                    return self.cancel_ended(key);
                };
                let first = first.map(|deadline| deadline - now);
                let frame = QueryFrame {
                    key,
                    tenant: query.tenant,
                    app: query.app,
                    class: query.class,
                    deadline_in: query.deadline - now,
                    expires_in: query.expires - now,
                    spent: now - query.arrived,
                    max_cost: query.max_cost,
                    prefer: query.prefer,
                    priority: if reserved { Priority::RESERVED } else { query.priority },
                    best_effort: query.best_effort,
                    returnable,
                    decoded: query.bytes,
                    input,
                    demand: Demand { class: query.class, waiting, first, among },
                };
                to.link.send(ToNode::Query(Box::new(frame)));
            }
            Action::Refuse { key, refusal } => {
                self.pending.finish(key, Outcome::Refused(refusal));
            }
            Action::Announce { key, node, part_ppm, quickest } => {
                self.announce(key, node, (part_ppm, quickest));
            }
            Action::Withdraw { key, node } => self.to_node(node, ToNode::Cancel { key }),
            Action::MayReturn { key, node } => self.to_node(node, ToNode::MayReturn { key }),
            Action::Cancel { key, node } => {
                self.pending.overdue(key, node);
                self.to_node(node, ToNode::Cancel { key });
            }
            Action::Wake { node, task, ordinal } => self.to_node(node, ToNode::Wake { task, ordinal }),
        }
    }
}
