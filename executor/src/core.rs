//! What all parts of the executor share, and the two ways in: frames from gateways, actions of the machine.

use crate::batches::Flight;
use crate::catalogue::{Catalogue, Tokenizers};
use crate::config::Config;
use crate::demanded::Demanded;
use crate::history::History;
use crate::intake::Pending;
use crate::node::Tally;
use crate::quarantine::Quarantine;
use crate::telling::{self, Telling};
use crate::way_back::WayBack;
use async_trait::async_trait;
use modelless_decision::Correction;
use modelless_decision::worker::{Action, BatchId, EVICTED, Event, LaneIx, Outcome, Worker};
use modelless_drive::{Clock, Driver, Perform};
use modelless_engine::Engine;
use modelless_store::Artefacts;
use modelless_types::{Bytes, DeviceIx, NodeId, PlanId, QueryKey, Refusal, Time, VariantId};
use modelless_wire::{Body, Demand, FromNode, GatewayLink, NodeLink, NodeStatus, ToNode};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::task::TaskTracker;

/// Pins, and the plan that they are of.
pub(crate) type Pinned = (PlanId, Vec<(DeviceIx, VariantId)>);

/// Brings artefacts to this node.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Puts an artefact where the others lie; says why not, if it cannot. `stated` is its size, where that is registered:
    /// what is of another is not taken.
    async fn fetch(&self, sha256: &str, stated: Option<Bytes>) -> Result<(), String>;
}

/// The executor as others reach it. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<Core>);

pub(crate) struct Core {
    pub(crate) node: NodeId,
    pub(crate) config: Config,
    pub(crate) driver: Driver<Worker>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) quarantine: Quarantine,
    pub(crate) artefacts: Arc<Artefacts>,
    /// Brings artefacts that are not here.
    pub(crate) fetch: OnceLock<Arc<dyn Fetch>>,
    pub(crate) catalogue: RwLock<Arc<Catalogue>>,
    pub(crate) gateway: OnceLock<Arc<dyn GatewayLink>>,
    /// Queries that came and are not answered. Bounded by the credit that gateways are given.
    pub(crate) queries: Mutex<HashMap<QueryKey, Pending>>,
    /// Batches that are bound and not done: at most two a lane.
    pub(crate) batches: Mutex<HashMap<BatchId, Flight>>,
    /// Batches that crashed or could not start, for the loop that reads the engine's events: whatever death is behind
    /// it must be told first, or the machine would give more to a runner that is gone.
    pub(crate) endings: mpsc::Sender<(BatchId, Outcome)>,
    /// Batches that the machine gave up before whoever prepares them was done: they find out then. Locked after `batches`.
    pub(crate) given_up: Mutex<BTreeSet<BatchId>>,
    /// How many cores a lane has now.
    pub(crate) width: AtomicU16,
    /// How long it takes to tell that a batch has ended.
    pub(crate) way_back: WayBack,
    pub(crate) history: Mutex<Option<History>>,
    pub(crate) status: watch::Sender<NodeStatus>,
    /// The newest plan that was told, and what it pins here.
    pub(crate) pinned: Mutex<Option<Pinned>>,
    /// Something that the status shows changed.
    pub(crate) changed: Notify,
    /// Classes of which a gateway said that queries wait there.
    pub(crate) demanded: Mutex<Demanded>,
    /// The last batch's place: a query that comes alone most likely runs there again.
    pub(crate) last: Mutex<Option<(VariantId, LaneIx)>>,
    pub(crate) draining: AtomicBool,
    /// The corrections that the status last told.
    pub(crate) told: Mutex<BTreeMap<VariantId, Correction>>,
    /// What was done since the start.
    pub(crate) tally: Mutex<Tally>,
    /// The catalogue should be read again.
    pub(crate) catalog: Notify,
    /// Something of the catalogue could not be had when it was read last: the next look tries again.
    pub(crate) incomplete: AtomicBool,
    /// What cuts texts up.
    pub(crate) tokenizers: Mutex<Tokenizers>,
    /// How many large inputs are decoded at once.
    pub(crate) decoders: Arc<Semaphore>,
    /// One at a time of what only spare time is spent on: queries do not wait for these.
    pub(crate) spare_decoder: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Handle {
    pub(crate) fn new(core: Core) -> Self {
        Self(Arc::new(core))
    }

    /// Says where answers go. Only the first call counts.
    pub fn connect(&self, gateway: Arc<dyn GatewayLink>) {
        if self.0.gateway.set(gateway).is_ok() {
            self.report();
        }
    }

    /// Says where artefacts come from that are not here. Only the first call counts.
    pub fn fetch_with(&self, fetch: Arc<dyn Fetch>) {
        let _ = self.0.fetch.set(fetch);
    }

    /// What the node makes known of itself.
    pub fn status(&self) -> watch::Receiver<NodeStatus> {
        self.0.status.subscribe()
    }

    /// Tasks, models, variants or profiles changed in the store.
    pub fn catalog_changed(&self) {
        self.0.catalog.notify_one();
    }

    pub(crate) fn catalog_incomplete(&self) {
        self.0.incomplete.store(true, Ordering::Relaxed);
    }

    pub(crate) fn core(&self) -> &Core {
        &self.0
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.0.engine
    }

    pub(crate) fn artefacts(&self) -> Arc<Artefacts> {
        Arc::clone(&self.0.artefacts)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.0.driver.clock()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock().now()
    }

    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.0.catalogue.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn queries(&self) -> MutexGuard<'_, HashMap<QueryKey, Pending>> {
        self.0.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn batches(&self) -> MutexGuard<'_, HashMap<BatchId, Flight>> {
        self.0.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.0.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn given_up(&self) -> MutexGuard<'_, BTreeSet<BatchId>> {
        self.0.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn gateway(&self) -> Option<&dyn GatewayLink> {
        self.0.gateway.get().map(|gateway| &**gateway)
    }

    pub(crate) fn feed(&self, event: Event) {
        self.0.driver.feed(event, self);
    }

    /// A batch crashed or could not start.
    pub(crate) fn fell_through(&self, batch: BatchId, outcome: Outcome) {
        if let Err(full) = self.0.endings.try_send((batch, outcome)) {
            let (batch, outcome) = full.into_inner();
            self.feed(Event::Done { batch, outcome });
        }
    }

    /// Runs something beside the query path; a drain waits for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn_on(task, &self.0.runtime);
    }

    /// Says something to the gateway, with credit and load. One in this process may send the next query before it returns.
    pub(crate) fn say(&self, bodies: impl IntoIterator<Item = Body>) {
        self.say_and_when(bodies);
    }

    /// Gives when the last of them was told: what whoever heard it sends at once is no part of that.
    pub(crate) fn say_and_when(&self, bodies: impl IntoIterator<Item = Body>) -> Time {
        let Some(gateway) = self.0.gateway.get() else { return self.now() };
        let report = self.0.driver.look(|worker, now| worker.report(now));
        let telling = Telling::begin();
        for body in bodies {
            gateway.receive(self.0.node, FromNode { body, report: report.clone() });
        }
        let told = self.now();
        telling.end();
        told
    }

    pub(crate) fn hear(&self, frame: ToNode) {
        match frame {
            ToNode::Query(query) => self.take_in(*query),
            ToNode::Announce(told) => self.announced(&told),
            ToNode::Demand(demand) => self.demand(demand),
            ToNode::Cancel { key } => {
                if self.queries().remove(&key).is_some() {
                    self.tell_cancelled(key);
                }
                self.feed(Event::Cancel { key });
                self.one_less();
            }
            ToNode::MayReturn { key } => self.may_return(key),
            ToNode::Pin { plan, pins } => self.pin(plan, pins),
            ToNode::Wake { task, ordinal } => self.feed(Event::Wake { task, ordinal }),
            ToNode::Unload { variant } => self.feed(Event::Unwanted { variant }),
        }
    }

    /// Tells the gateway credit and load.
    pub(crate) fn report(&self) {
        self.say([Body::Report]);
    }

    /// A profile is off by so much, or not any longer.
    pub(crate) fn note_drift(&self, variant: VariantId, ratio_ppm: Option<u64>) {
        let history = self.0.history.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(history) = history.as_ref() {
            history.note_drift(variant, ratio_ppm);
        }
        self.0.changed.notify_one();
    }

    /// Fewer lanes run side by side, or more again.
    fn note_lanes(&self, lanes: u16, of: u16, cause: &str) {
        let history = self.0.history.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(history) = history.as_ref() {
            let what = if lanes < of { "narrowed" } else { "full width" };
            history.say(what, format!("{lanes} of {of} lanes run side by side: {cause}"));
        }
        self.0.changed.notify_one();
    }

    /// Says no to a query.
    pub(crate) fn refuse(&self, key: QueryKey, refusal: Refusal) {
        if self.queries().remove(&key).is_some() {
            self.tell_refused(key, &refusal);
            self.say([Body::Refused { key, refusal }]);
            self.one_less();
        }
    }

    /// Gives a query back that never ran: another node may answer it.
    pub(crate) fn hand_back(&self, key: QueryKey, why: Refusal) {
        if self.queries().remove(&key).is_some() {
            self.tally().gave_back();
            self.tell_handed_back(key, &why);
            self.say([Body::HandedBack { key, why }]);
            self.one_less();
        }
    }

    /// Gives back those that are still being decoded, of which the machine does not know. Whoever decodes them finds out.
    pub(crate) fn hand_back_undecoded(&self) {
        let undecoded = |(key, pending): (&QueryKey, &Pending)| pending.decoded.is_none().then_some(*key);
        let keys: Vec<QueryKey> = self.queries().iter().filter_map(undecoded).collect();
        for key in keys {
            self.never_comes(key);
            self.hand_back(key, Refusal::Draining);
        }
    }

    /// A drain may be over with it.
    pub(crate) fn one_less(&self) {
        if self.draining() {
            self.0.changed.notify_one();
        }
    }

    pub(crate) fn draining(&self) -> bool {
        self.0.draining.load(Ordering::SeqCst)
    }

    /// What waits at the gateway.
    pub(crate) fn demand(&self, demand: Demand) {
        let Demand { class, waiting, first, among } = demand;
        {
            let mut known = self.0.demanded.lock().unwrap_or_else(PoisonError::into_inner);
            if !known.is_news(class, waiting, among) {
                return;
            }
        }
        let first = first.map(|first| self.now() + first);
        self.feed(Event::Demand { class, waiting, first, among });
    }
}

impl Handle {
    /// Of several plans the newest counts, in whatever order they are told, and by however many at once.
    fn pin(&self, plan: PlanId, pins: Vec<(DeviceIx, VariantId)>) {
        let newest = || self.0.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut newest = newest();
            if newest.as_ref().is_some_and(|(known, _)| plan < *known) {
                return tracing::debug!(%plan, "an older plan came late, and is not followed");
            }
            *newest = Some((plan, pins.clone()));
        }
        let mut followed = plan;
        self.feed(Event::Pin(pins));
        loop {
            // Another may have told a newer one meanwhile, which the machine was to hear last.
            let Some((plan, pins)) = newest().clone() else { return };
            if plan == std::mem::replace(&mut followed, plan) {
                return;
            }
            self.feed(Event::Pin(pins));
        }
    }
}

impl NodeLink for Handle {
    fn send(&self, frame: ToNode) {
        if let Some(frame) = telling::put_off(self, frame) {
            self.hear(frame);
        }
    }

    fn expect_query(&self) {
        self.prime();
    }
}

impl Perform<Action> for Handle {
    fn perform(&self, action: Action) {
        match action {
            Action::Prepare { batch, device: _, lane, variant, queries, reasons, expected } => {
                let members = queries.into_iter().zip(reasons).collect();
                self.prepare(batch, lane, variant, members, expected);
            }
            Action::Claim { queries, lanes } => self.say([Body::Claim { queries, lanes }]),
            // One that came meanwhile is this node's, and its gateway knows better.
            Action::Decline { key, .. } if self.queries().contains_key(&key) => {}
            Action::Decline { key, why } => self.say([Body::Declined { key, why }]),
            Action::Start { batch } => self.start(batch),
            Action::Revoke { batch } => self.revoke(batch),
            Action::Suspect { batch } => self.suspect(batch),
            Action::Discard { batch } => self.discard(batch),
            Action::Deliver { batch, queries } => {
                self.deliver(batch, &queries);
                self.one_less();
            }
            Action::Quarantine { key, variant, device: _, expected } => {
                self.quarantine(key, variant, expected);
            }
            Action::Discharge { key } => self.discharge(key),
            Action::QuarantineOver { device } => self.end_quarantine(device),
            Action::Refuse { key, refusal } => self.refuse(key, refusal),
            Action::HandBack { key, why } => self.hand_back(key, why),
            Action::Recut { device, width, lanes } => {
                tracing::info!(?device, width, lanes, "lanes are cut anew");
                self.0.width.store(width, Ordering::Relaxed);
                self.0.changed.notify_one();
            }
            Action::Narrow { device, lanes, of, cause } => {
                tracing::info!(?device, lanes, of, cause, "lanes that batches run on");
                self.note_lanes(lanes, of, &cause);
            }
            Action::Load { device, variant } => self.load(device, variant),
            Action::Unload { device, variant } => self.unload(device, variant),
            Action::Drifted { variant, ratio_ppm } => {
                tracing::debug!(%variant, ratio_ppm, "a profile is off");
                self.note_drift(variant, Some(ratio_ppm));
            }
            Action::Steadied { variant } => {
                tracing::info!(%variant, "a variant keeps to its profile again");
                self.note_drift(variant, None);
            }
            Action::Transition { device, variant, from, to, cause } => {
                tracing::debug!(%variant, %from, %to, cause, "replica");
                if cause == EVICTED {
                    self.tally().evicted();
                }
                let history = self.0.history.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(history) = history.as_ref() {
                    history.note(device, variant, from, to, cause);
                }
                self.0.changed.notify_one();
            }
        }
    }
}
