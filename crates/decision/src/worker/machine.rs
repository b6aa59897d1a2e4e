//! The worker's four verbs.

use super::api::{Action, BatchId, Event, Failure, LaneIx, Outcome, WorkerConfig, WorkerVariant};
use super::batching::{Caps, Rates};
use super::bind::{Bound, admits};
use super::lanes::{Batch, Lane, Member};
use super::queue::{Queue, Waiting};
use super::residency::{Residency, Unavailable};
use crate::estimate::{Correction, Moments};
use crate::machine::{Machine, Wake};
use crate::query::{Class, Query};
use crate::route::{Limit, NodeReport, Offer, Ready};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use modelless_types::{
    Bytes, DeviceIx, Micros, ModelId, Nearest, Prefer, PricePerHour, QueryKey, Refusal, ReplicaState, Time,
    VariantId,
};

/// No credit larger than this many queries a lane, whatever the largest batch.
const CREDIT_A_LANE: u32 = 64;

/// Binds queries to variants, and decides what is in memory. See the module's words.
#[derive(Debug)]
pub struct Worker {
    pub(super) config: WorkerConfig,
    pub(super) residency: Residency,
    pub(super) queue: Queue,
    pub(super) lanes: Vec<Lane>,
    pub(super) rates: Rates,
    pub(super) caps: Caps,
    /// When it is time to bind what it was too early for.
    bind_at: Option<Time>,
    next_batch: u64,
    /// When corrections that saw nothing new fade next; `None` when there is none.
    pub(super) fade_at: Option<Time>,
    /// When a batch of a variant last ended well.
    pub(super) seen: BTreeMap<VariantId, Time>,
    draining: bool,
    /// `residency.changes` when those that nothing serves were last placed.
    placed: u64,
    actions: VecDeque<Action>,
}

/// A replica as shown to people and to gateways.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplicaView {
    /// Where.
    pub device: DeviceIx,
    /// What.
    pub variant: VariantId,
    /// Its state.
    pub state: ReplicaState,
    /// Memory it takes.
    pub memory: Bytes,
    /// Why it is in that state.
    pub cause: String,
    /// What live traffic says of its profile.
    pub correction: Correction,
}

impl Worker {
    /// Idle, with nothing in memory and nothing known to run.
    pub fn new(config: WorkerConfig) -> Self {
        let mut lanes = Vec::new();
        for (at, device) in config.devices.iter().enumerate() {
            let device_ix = DeviceIx(u16::try_from(at).expect("fewer than 2^16 devices"));
            lanes.extend((0..device.lanes.max(1)).map(|lane| Lane::new(device_ix, LaneIx(lane))));
        }
        Self {
            residency: Residency::new(&config),
            queue: Queue::default(),
            lanes,
            rates: Rates::default(),
            caps: Caps::default(),
            bind_at: None,
            next_batch: 0,
            fade_at: None,
            seen: BTreeMap::new(),
            draining: false,
            placed: 0,
            actions: VecDeque::new(),
            config,
        }
    }

    pub(super) fn price(&self, device: DeviceIx) -> PricePerHour {
        self.config.devices.get(usize::from(device.0)).map_or(PricePerHour(0), |d| d.price)
    }

    /// Every replica that has been more than wanted.
    pub fn replicas(&self) -> Vec<ReplicaView> {
        let view =
            |(device, variant, replica): (DeviceIx, VariantId, &super::residency::Replica)| ReplicaView {
                device,
                variant,
                state: replica.state,
                memory: replica.memory,
                cause: replica.cause.clone(),
                correction: self.residency.variant(variant).map_or(Correction::NONE, |v| v.run.correction),
            };
        self.residency.replicas().map(view).collect()
    }

    /// What this node could run and how ready each is, with corrected times: what gateways route by. What failed for
    /// good, or can never fit, is left out.
    pub fn offers(&self, now: Time) -> Vec<Offer> {
        let offer = |v: &WorkerVariant| {
            let ready = self
                .residency
                .device_ids()
                .filter_map(|d| self.residency.ready_in(now, d, v.id).ok())
                .min()?;
            let loading =
                self.residency.device_ids().any(|d| self.residency.state(d, v.id) == ReplicaState::Loading);
            let ready = match ready {
                Micros::ZERO => Ready::Resident,
                left if loading => Ready::Loading { at: now + left },
                load => Ready::Cold { load },
            };
            Some(Offer { task: v.task, ordinal: v.ordinal, ready, run: v.run.clone() })
        };
        self.residency.variants().filter_map(offer).collect()
    }

    /// Memory that replicas take on all devices.
    pub fn memory_used(&self) -> Bytes {
        Bytes(self.residency.device_ids().map(|device| self.residency.used(device).0).sum())
    }

    /// Queries here that are not done: waiting, prepared or running.
    pub fn open(&self) -> usize {
        let in_batches = |lane: &Lane| {
            let batches = lane.running.iter().chain(lane.next.iter());
            batches.map(|batch| batch.members.iter().filter(|m| !m.gone).count()).sum::<usize>()
        };
        self.queue.len() + self.lanes.iter().map(in_batches).sum::<usize>()
    }

    /// Whether a drain is complete.
    pub fn drained(&self) -> bool {
        self.draining
            && self.queue.len() == 0
            && self.lanes.iter().all(|l| l.running.is_none() && l.next.is_none())
    }

    /// What goes back with every frame: credit and how long a new query would wait.
    pub fn report(&self, now: Time) -> NodeReport {
        let largest = |device: DeviceIx| {
            let batches = self.residency.serving(device).map(|v| v.max_batch);
            batches.max().unwrap_or(1).clamp(1, CREDIT_A_LANE)
        };
        // One more batch than is bound: the slot that falls free next is filled at once, so what fills it must be here.
        let a_lane = |lane: &Lane| lane.bound_queries() + largest(lane.device);
        let credit: u32 = if self.draining { 0 } else { self.lanes.iter().map(a_lane).sum() };
        // Those that wait for a load must not keep others from what is loaded.
        let stuck: usize = self.queue.classes().filter(|(c, _)| !self.servable(c)).map(|(_, n)| n).sum();
        let limit = Limit {
            queries: credit.saturating_add(u32::try_from(stuck).unwrap_or(u32::MAX)).min(self.config.queue),
            bytes: self.config.queue_bytes,
        };
        let waits: BTreeMap<DeviceIx, Moments> =
            self.residency.device_ids().map(|device| (device, self.wait_on(now, device))).collect();
        let least = |devices: &mut dyn Iterator<Item = DeviceIx>| {
            let known = devices.filter_map(|device| waits.get(&device).copied());
            known.min_by(|a, b| a.mean.total_cmp(&b.mean))
        };
        let of_class = |(class, _): (&Class, usize)| {
            let devices = self.residency.device_ids();
            least(&mut devices.filter(|device| self.residency.serving(*device).any(|v| admits(class, v))))
                .map(|wait| (*class, wait))
        };
        let many = waits.len() > 1;
        NodeReport {
            limit,
            wait: least(&mut self.residency.device_ids()).unwrap_or(Moments::ZERO),
            waits: if many { self.queue.classes().filter_map(of_class).collect() } else { Vec::new() },
        }
    }

    fn wait_on(&self, now: Time, device: DeviceIx) -> Moments {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let count = f64::from(u32::try_from(lanes.clone().count()).unwrap_or(1).max(1));
        let free = lanes.map(|lane| lane.until_free(now));
        let mut wait = free.min_by(|a, b| a.mean.total_cmp(&b.mean)).unwrap_or(Moments::ZERO);
        for (class, waiting) in self.queue.classes() {
            if let Some(each) = self.per_query(device, class) {
                wait += each.times(f64::from(u32::try_from(waiting).unwrap_or(u32::MAX)) / count);
            }
        }
        wait
    }

    /// Whether something in memory may answer a class.
    fn servable(&self, class: &Class) -> bool {
        self.residency.device_ids().any(|device| self.residency.serving(device).any(|v| admits(class, v)))
    }

    fn refuse(&mut self, key: QueryKey, refusal: Refusal) {
        self.actions.push_back(Action::Refuse { key, refusal });
    }

    fn arrive(&mut self, now: Time, query: Query) {
        self.rates.came(now, query.class);
        if self.draining {
            return self.actions.push_back(Action::HandBack { key: query.key });
        }
        if self.queue.len() >= self.config.queue as usize {
            return self.refuse(query.key, Refusal::QueueFull { limit: self.config.queue });
        }
        let bytes = self.queue.bytes() + query.bytes;
        if bytes > self.config.queue_bytes && self.queue.len() > 0 {
            return self.refuse(query.key, Refusal::BytesFull { limit: self.config.queue_bytes });
        }
        let waiting = Waiting { query, alone: false, loaded: false };
        match self.place(now, &waiting) {
            Ok(resident) => self.queue.push(Waiting { loaded: !resident, ..waiting }),
            Err(refusal) => self.refuse(query.key, refusal),
        }
    }

    /// Sees to it that something can answer the query: resident in time, or loaded in time. A "no" still starts the
    /// quickest load, for those who come after. Gives whether it is resident.
    fn place(&mut self, now: Time, waiting: &Waiting) -> Result<bool, Refusal> {
        let query = &waiting.query;
        let slack =
            if query.best_effort { f64::INFINITY } else { Moments::exactly(query.expires - now).mean };
        let mut soonest: Option<(Micros, DeviceIx, VariantId)> = None;
        let mut best: Option<(DeviceIx, VariantId, bool)> = None;
        let mut why_not: Option<Unavailable> = None;
        for device in self.residency.device_ids() {
            for ordinal in query.class.admits.iter() {
                let Some(id) = self.residency.find(query.class.task, ordinal) else { continue };
                let ready_in = match self.residency.ready_in(now, device, id) {
                    Ok(ready_in) => ready_in,
                    Err(why) => {
                        why_not = Some(why);
                        continue;
                    }
                };
                let Some(variant) = self.residency.variant(id) else { continue };
                if (Moments::exactly(ready_in) + variant.run.estimate(1)).within(slack) {
                    let resident = ready_in == Micros::ZERO;
                    if best.is_none_or(|known| self.better(query, (device, id, resident), known)) {
                        best = Some((device, id, resident));
                    }
                }
                if soonest.is_none_or(|(known, _, _)| ready_in < known) {
                    soonest = Some((ready_in, device, id));
                }
            }
        }
        match (best, soonest) {
            (Some((_, _, true)), _) => Ok(true),
            (Some((device, id, false)), _) => {
                self.residency.want(now, device, id);
                Ok(false)
            }
            (None, Some((Micros::ZERO, _, _))) => Err(Refusal::TooLate { waited: now - query.arrived }),
            (None, Some((ready_in, device, id))) => {
                self.residency.want(now, device, id);
                Err(Refusal::Loading { ready_in })
            }
            (None, None) => Err(match why_not {
                Some(Unavailable::Failed(why)) => Refusal::VariantFailed { why },
                Some(Unavailable::TooBig { needs, budget }) => Refusal::OutOfMemory { needs, budget },
                Some(Unavailable::Unknown) | None => {
                    Refusal::NothingRunnable { why: "this node does not know what could answer".into() }
                }
            }),
        }
    }

    /// Resident beats loading; then what the query prefers.
    fn better(&self, query: &Query, a: (DeviceIx, VariantId, bool), b: (DeviceIx, VariantId, bool)) -> bool {
        let (Some(va), Some(vb)) = (self.residency.variant(a.1), self.residency.variant(b.1)) else {
            return false;
        };
        let quicker = || va.run.estimate(1).p99_f64().total_cmp(&vb.run.estimate(1).p99_f64());
        let wish = match query.prefer {
            Prefer::Accuracy => vb.accuracy.cmp(&va.accuracy),
            Prefer::Cost => va.run.cost(1, self.price(a.0)).cmp(&vb.run.cost(1, self.price(b.0))),
            Prefer::Latency => Ordering::Equal,
        };
        b.2.cmp(&a.2).then(wish).then_with(quicker) == Ordering::Less
    }

    /// Whether a load could still bring an answer to a query in time.
    pub(super) fn could_wait_for_load(&self, now: Time, query: &Query) -> bool {
        let slack = Moments::exactly(query.expires - now).mean;
        self.residency.device_ids().any(|device| {
            query.class.admits.iter().any(|ordinal| {
                let id = self.residency.find(query.class.task, ordinal);
                let variant = id.and_then(|id| self.residency.variant(id));
                variant.is_some_and(|v| match self.residency.ready_in(now, device, v.id) {
                    Ok(Micros::ZERO) | Err(_) => false,
                    Ok(ready_in) => (Moments::exactly(ready_in) + v.run.estimate(1)).within(slack),
                })
            })
        })
    }

    /// Everything that follows from an input, in this order: lanes take what they can, then what is wanted is loaded,
    /// then whoever waits for what left memory or failed is placed anew.
    fn settle(&mut self, now: Time) {
        self.fill_lanes(now);
        self.advance(now);
        if self.placed != self.residency.changes {
            self.place_stranded(now);
            self.advance(now);
            self.placed = self.residency.changes;
        }
    }

    fn advance(&mut self, now: Time) {
        let queue = &self.queue;
        let needed = |residency: &Residency, device| -> BTreeSet<VariantId> {
            let only = |(class, _): (&Class, usize)| {
                let mut serving = residency.serving(device).filter(|v| admits(class, v));
                serving.next().filter(|_| serving.next().is_none()).map(|v| v.id)
            };
            queue.classes().filter_map(only).collect()
        };
        self.residency.advance(now, &needed, &mut self.actions);
    }

    fn place_stranded(&mut self, now: Time) {
        let classes = self.queue.classes().map(|(class, _)| *class);
        let unserved: Vec<Class> = classes.filter(|class| !self.servable(class)).collect();
        let stranded: Vec<QueryKey> = unserved.iter().flat_map(|class| self.queue.keys_of(class)).collect();
        for key in stranded {
            let Some(waiting) = self.queue.get(key).copied() else { continue };
            if let Err(refusal) = self.place(now, &waiting) {
                self.queue.remove(key);
                self.refuse(key, refusal);
            }
        }
    }

    /// Fills every free prepared slot and starts what can start, until nothing more moves.
    fn fill_lanes(&mut self, now: Time) {
        self.bind_at = None;
        for at in 0..self.lanes.len() {
            loop {
                self.unbind(now, at);
                let dropped = self.lanes[at].start_what_can(now, &mut self.actions);
                if let Some(batch) = dropped {
                    let device = self.lanes[at].device;
                    self.residency.released(device, batch.variant, &mut self.actions);
                }
                if self.lanes[at].next.is_some() {
                    break;
                }
                match self.bind_for(now, &self.lanes[at]) {
                    Bound::Batch(binding) => self.bind(at, &binding),
                    Bound::Late(key) => {
                        if let Some(waiting) = self.queue.remove(key) {
                            self.refuse(key, Refusal::TooLate { waited: now - waiting.query.arrived });
                        }
                    }
                    Bound::Later(at) => {
                        self.bind_at = self.bind_at.into_iter().chain(at).min();
                        break;
                    }
                }
            }
        }
    }

    /// A batch that was not handed over yet goes back to the queue if its replica is gone.
    fn unbind(&mut self, now: Time, at: usize) {
        let (lane, residency) = (&mut self.lanes[at], &self.residency);
        let device = lane.device;
        let holds = |state: ReplicaState| state.serves() || state == ReplicaState::Draining;
        let Some(batch) = lane.unbind(|variant| !holds(residency.state(device, variant))) else { return };
        self.actions.push_back(Action::Discard { batch: batch.id });
        self.residency.released(device, batch.variant, &mut self.actions);
        self.rerun(now, &batch, Failure::NotStarted, "its replica was gone before it ran");
    }

    fn bind(&mut self, at: usize, binding: &super::bind::Binding) {
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let lane = &mut self.lanes[at];
        let (device, ix) = (lane.device, lane.ix);
        let queries = binding.members.clone();
        let taken = queries.iter().filter_map(|key| self.queue.remove(*key));
        let members = taken.map(|waiting| Member { waiting, gone: false }).collect();
        let (variant, reasons) = (binding.variant, binding.reasons.clone());
        let model = self.residency.variant(variant).map_or(ModelId(0), |v| v.model);
        let expected = binding.expected;
        lane.next = Some(Batch { id, variant, model, members, expected, prepared: false, started: None });
        self.residency.used_now(device, variant);
        self.actions.push_back(Action::Prepare {
            batch: id,
            device,
            lane: ix,
            variant,
            queries,
            reasons,
            expected,
        });
    }

    fn done(&mut self, now: Time, id: BatchId, outcome: Outcome) {
        let Some(at) = self.lanes.iter().position(|lane| lane.holds(id)) else { return };
        let died = matches!(outcome, Outcome::Failed { failure: Failure::Process, .. });
        let Some((batch, took)) = self.lanes[at].ended(now, id, died) else { return };
        let device = self.lanes[at].device;
        match outcome {
            Outcome::Ran => {
                if let Some(took) = took {
                    self.learn(now, &batch, took);
                    self.adapt(device, &batch, took);
                }
                let alive = batch.members.iter().filter(|m| !m.gone).map(|m| m.waiting.query.key).collect();
                self.actions.push_back(Action::Deliver { batch: id, queries: alive });
            }
            Outcome::Failed { failure, why } => {
                if failure == Failure::NotStarted {
                    self.residency.lost(now, device, batch.variant, &why, &mut self.actions);
                }
                self.actions.push_back(Action::Deliver { batch: id, queries: Vec::new() });
                // Handed over behind one that took the process with it: it never ran, so it is not to blame.
                let innocent = failure == Failure::Process && took.is_none();
                self.rerun(now, &batch, if innocent { Failure::NotStarted } else { failure }, &why);
            }
        }
        self.residency.released(device, batch.variant, &mut self.actions);
    }

    /// Each member of a failed batch is run again alone, once. Who was alone has its answer: the failure.
    fn rerun(&mut self, now: Time, batch: &Batch, failure: Failure, why: &str) {
        let single = batch.members.len() == 1;
        for member in batch.members.iter().filter(|m| !m.gone) {
            let query = member.waiting.query;
            let last_chance = match failure {
                Failure::Model => single,
                Failure::Process => member.waiting.alone,
                Failure::NotStarted => false,
            };
            if last_chance {
                let why = String::from(why);
                let refusal = match failure {
                    Failure::Model => Refusal::ModelError { why },
                    Failure::Process | Failure::NotStarted => Refusal::InputCrashed { why },
                };
                self.refuse(query.key, refusal);
            } else if query.expires <= now {
                self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
            } else {
                let alone = failure != Failure::NotStarted || member.waiting.alone;
                let waiting = Waiting { alone, ..member.waiting };
                match self.place(now, &waiting) {
                    Ok(_) => self.queue.push(waiting),
                    Err(refusal) => self.refuse(query.key, refusal),
                }
            }
        }
    }

    fn cancel(&mut self, key: QueryKey) {
        if self.queue.remove(key).is_some() {
            return;
        }
        for at in 0..self.lanes.len() {
            if self.lanes[at].cancel(key) {
                return;
            }
        }
    }

    /// Whoever is bound to follow a batch and whose time is up hears so now, not when the device is free.
    fn expire_bound(&mut self, now: Time) {
        for at in 0..self.lanes.len() {
            for query in self.lanes[at].expire(now) {
                self.refuse(query.key, Refusal::TooLate { waited: now - query.arrived });
            }
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        for key in self.queue.keys() {
            self.queue.remove(key);
            self.actions.push_back(Action::HandBack { key });
        }
    }

    /// Why a query that waited out its time was not answered.
    fn expired(&self, now: Time, query: &Query) -> Refusal {
        let waited = now - query.arrived;
        let dearest = self.residency.device_ids().flat_map(|device| {
            let serving = self.residency.serving(device).filter(|v| admits(&query.class, v));
            serving.map(move |v| v.run.cost(1, self.price(device)))
        });
        match (query.max_cost, dearest.min()) {
            (Some(ceiling), Some(alone)) if alone > ceiling => {
                let nearest = Nearest { max_cost: Some(alone), ..Nearest::default() };
                Refusal::CostUnreachable { nearest }
            }
            _ => Refusal::TooLate { waited },
        }
    }
}

impl Machine for Worker {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Arrive(query) => self.arrive(now, query),
            Event::Demand { class, waiting, first } => self.queue.set_demand(class, waiting, first),
            Event::Prepared { batch, dropped } => {
                if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.holds(batch)) {
                    lane.prepared(batch, &dropped);
                }
            }
            Event::Done { batch, outcome } => {
                self.done(now, batch, outcome);
            }
            Event::Loaded { device, variant, memory, took } => {
                self.residency.loaded(device, variant, memory, took, &mut self.actions);
            }
            Event::LoadFailed { device, variant, why } => {
                self.residency.load_failed(now, device, variant, &why, &mut self.actions);
            }
            Event::Unloaded { device, variant } => {
                self.residency.unloaded(now, device, variant, &mut self.actions);
            }
            Event::RunnerDied { model, why } => {
                self.residency.runner_died(now, model, &why, &mut self.actions);
            }
            Event::Cancel { key } => self.cancel(key),
            Event::Pin(pins) => self.residency.pin(now, &pins),
            Event::Wake { task, ordinal } => {
                if let Some(variant) = self.residency.find(task, ordinal)
                    && let Some(device) = self.residency.device_ids().next()
                {
                    self.residency.want(now, device, variant);
                }
            }
            Event::Catalog(variants) => {
                self.residency.catalog(now, variants, &mut self.actions);
                let residency = &self.residency;
                self.caps.keep(|variant| residency.variant(variant).is_some());
            }
            Event::Drain => self.drain(),
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some((at, key)) = self.queue.first_expiry()
            && at <= now
        {
            if let Some(waiting) = self.queue.remove(key) {
                let refusal = self.expired(now, &waiting.query);
                self.refuse(key, refusal);
            }
        }
        self.expire_bound(now);
        self.residency.rested(now, &mut self.actions);
        self.fade(now);
        self.settle(now);
    }

    fn poll_timeout(&self) -> Option<Wake> {
        let expiry = self.queue.first_expiry();
        let expiry = expiry.map(|(at, _)| Wake { at, why: "a waiting query's time is up" });
        let rest = self.residency.next_rest_over();
        let rest = rest.map(|at| Wake { at, why: "a failed replica has rested" });
        let fade = self.fade_at.map(|at| Wake { at, why: "what was learnt fades" });
        let bound = self.lanes.iter().filter_map(Lane::next_expiry).min();
        let bound = bound.map(|at| Wake { at, why: "a bound query's time is up" });
        let bind = self.bind_at.map(|at| Wake { at, why: "a batch has waited long enough" });
        expiry.into_iter().chain(rest).chain(fade).chain(bound).chain(bind).min()
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
