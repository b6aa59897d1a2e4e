//! The worker's four verbs.

use super::announced::Heard;
use super::api::{Action, BatchId, Event, Failure, LaneIx, Runner, WorkerConfig, WorkerVariant};
use super::batching::{Caps, Rates};
use super::bind::Bound;
use super::caution::Caution;
use super::chance::Sureness;
use super::claiming::Claiming;
use super::drift::Drift;
use super::lanes::{Batch, Lane, Member};
use super::learn::Handover;
use super::level::Level;
use super::narrowing::Company;
use super::needs::Needs;
use super::pressure;
use super::quarantine::Quarantine;
use super::queue::{Came, Queue, Waiting};
use super::residency::Residency;
use super::spare::{Spare, is_spare};
use crate::estimate::Moments;
use crate::machine::{Machine, Wake};
use crate::query::Query;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use modelless_types::{
    DeviceIx, Engine, ModelId, PricePerHour, QueryKey, Refusal, ReplicaState, Time, VariantId,
};

/// Binds queries to variants, and decides what is in memory. See the module's words.
#[derive(Debug)]
pub struct Worker {
    pub(super) config: WorkerConfig,
    pub(super) residency: Residency,
    pub(super) queue: Queue,
    /// What only spare time is spent on.
    pub(super) aside: Queue,
    /// Until when devices rest from that, while queries come.
    pub(super) spare_rest: BTreeMap<DeviceIx, Time>,
    pub(super) lanes: Vec<Lane>,
    /// What servers compute, apart from the lanes.
    pub(super) ways: Vec<Lane>,
    /// What runs far too long, on none of the lanes any more.
    pub(super) suspects: Vec<Lane>,
    /// When something will have run far too long that others wait for.
    pub(super) suspect_at: Option<Time>,
    /// Nothing is suspected before.
    pub(super) suspect_from: Time,
    /// Whoever came before this was here while the machine stood still.
    pub(super) stood_still_until: Time,
    pub(super) quarantine: Quarantine,
    /// Where and when something in a process last found no memory.
    pub(super) starved: BTreeMap<Runner, (LaneIx, Time)>,
    /// Processes in which memory ran out, when it last did, and nothing that began later has ended well: one batch at a time is run there, so that
    /// nobody is refused for what another one takes.
    pub(super) scarce: BTreeMap<Runner, Time>,
    pub(super) rates: Rates,
    pub(super) caps: Caps,
    pub(super) handover: Handover,
    pub(super) caution: Caution,
    pub(super) sureness: Sureness,
    /// What is known of classes whose queries are announced.
    pub(super) heard: Heard,
    /// How long it takes until who is claimed is here.
    pub(super) claiming: Claiming,
    /// When it is time to bind what it was too early for.
    bind_at: Option<Time>,
    pub(super) next_batch: u64,
    /// When corrections that saw nothing new fade next; `None` when there is none.
    pub(super) fade_at: Option<Time>,
    /// When it was worked out last what variants have in common.
    pub(super) lent: Option<Time>,
    /// When a batch of a variant last ended well.
    pub(super) seen: BTreeMap<VariantId, Time>,
    /// How long corrections have been far from, or near to, what the profile says.
    pub(super) drifts: BTreeMap<VariantId, Drift>,
    /// Which variants each device can afford.
    pub(super) levels: BTreeMap<DeviceIx, Level>,
    /// What the machine does beside this.
    pub(super) host: pressure::Machine,
    /// What lanes side by side do to each other, and how many are open.
    pub(super) company: Company,
    /// Inputs handled so far.
    pub(super) inputs: u64,
    /// When to ask again whether those who wait can be in time here; `None` while none could go elsewhere.
    pub(super) look_back: Option<Time>,
    pub(super) draining: bool,
    /// The last input's time.
    pub(super) now: Time,
    /// `residency.changes` when those that nothing serves were last placed.
    placed: u64,
    pub(super) actions: VecDeque<Action>,
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
            aside: Queue::default(),
            spare_rest: BTreeMap::new(),
            lanes,
            ways: Vec::new(),
            suspects: Vec::new(),
            suspect_at: None,
            suspect_from: Time::ZERO,
            stood_still_until: Time::ZERO,
            quarantine: Quarantine::default(),
            starved: BTreeMap::new(),
            scarce: BTreeMap::new(),
            rates: Rates::default(),
            caps: Caps::default(),
            handover: Handover::default(),
            caution: Caution::default(),
            sureness: Sureness::default(),
            heard: Heard::default(),
            claiming: Claiming::default(),
            bind_at: None,
            next_batch: 0,
            fade_at: None,
            lent: None,
            seen: BTreeMap::new(),
            drifts: BTreeMap::new(),
            levels: BTreeMap::new(),
            host: pressure::Machine::default(),
            company: Company::default(),
            look_back: None,
            inputs: 0,
            draining: false,
            now: Time::ZERO,
            placed: 0,
            actions: VecDeque::new(),
            config,
        }
    }

    pub(super) fn price(&self, device: DeviceIx) -> PricePerHour {
        let core = self.config.devices.get(usize::from(device.0)).map_or(0, |d| d.price.0);
        PricePerHour(core.saturating_mul(u64::from(self.residency.cut(device).width)))
    }

    pub(super) fn refuse(&mut self, key: QueryKey, refusal: Refusal) {
        self.actions.push_back(Action::Refuse { key, refusal });
    }

    fn arrive(&mut self, now: Time, query: Query) {
        if query.priority.is_spare() {
            return self.arrive_aside(now, query);
        }
        if self.granted(now, &query) {
            return;
        }
        if self.queue.get(query.key).is_some_and(|known| known.came == Came::Announced) {
            self.queue.remove(query.key); // it is this node's now, whatever becomes of it
        }
        self.rates.came(now, &query);
        self.note_width(now, &query);
        if self.draining {
            return self.actions.push_back(Action::HandBack { key: query.key, why: Refusal::Draining });
        }
        let waiting = Waiting::new(query, Came::Sent);
        if self.queue.own() >= self.config.queue as usize {
            self.give_up(now, &waiting, Refusal::QueueFull { limit: self.config.queue });
            return;
        }
        let bytes = self.queue.bytes() + query.bytes;
        if bytes > self.config.queue_bytes && self.queue.own() > 0 {
            self.give_up(now, &waiting, Refusal::BytesFull { limit: self.config.queue_bytes });
            return;
        }
        match self.place(now, &waiting) {
            Ok(resident) => self.queue.push(Waiting { loaded: !resident, ..waiting }),
            Err(refusal) => {
                self.give_up(now, &waiting, refusal);
            }
        }
    }

    /// Everything that follows from an input, in this order: lanes take what they can, then quarantine, then what is
    /// wanted is loaded, then whoever waits for what left memory or failed is placed anew.
    fn settle(&mut self, now: Time) {
        self.now = now;
        self.inputs += 1;
        self.notice_standstill(now);
        self.reconsider_cuts(now);
        self.open_lanes(now);
        self.reconsider_narrowing(now);
        self.settle_lanes();
        self.suspect_overdue(now);
        self.fill_lanes(now);
        self.try_alone(now);
        self.advance_quarantine(now);
        self.advance(now);
        if self.placed != self.residency.changes {
            self.place_stranded(now);
            self.advance(now);
            self.placed = self.residency.changes;
        }
        self.hand_back(now);
        self.watch_overdue(now);
        self.note_running(now);
    }

    fn advance(&mut self, now: Time) {
        let needs = Needs { queue: &self.queue, rates: &self.rates, now };
        self.residency.let_idle_go(now, needs, &mut self.actions);
        self.residency.advance(now, needs, &mut self.actions);
    }

    /// Fills every free prepared slot and starts what can start, until nothing more moves.
    fn fill_lanes(&mut self, now: Time) {
        self.bind_at = None;
        self.go_on_apart(now);
        for suspect in &mut self.suspects {
            suspect.start_what_can(now, &mut self.actions);
        }
        for at in 0..self.lanes.len() {
            loop {
                self.unbind(now, at);
                self.unbind_spare(at);
                self.settle_claims(now, at);
                // What was unbound may have asked for wider lanes just now.
                if self.residency.cut(self.lanes[at].device).next.is_some() {
                    break; // it is to be cut otherwise
                }
                self.send_apart(now, at);
                let dropped = self.lanes[at].start_what_can(now, &mut self.actions);
                if let Some(batch) = dropped {
                    let device = self.lanes[at].device;
                    self.residency.released(now, device, batch.variant, &mut self.actions);
                }
                if self.lanes[at].next.is_some() || self.closes(at) {
                    break;
                }
                if self.queue.len() > 0 {
                    self.reconsider_level(now, self.lanes[at].device);
                }
                match self.bind_for(now, &self.lanes[at]) {
                    Bound::Batch(binding) => self.bind(now, at, &binding),
                    Bound::Late(keys) => {
                        for waiting in
                            keys.into_iter().filter_map(|key| self.queue.remove(key)).collect::<Vec<_>>()
                        {
                            let waited = now - waiting.query.arrived;
                            // Another node may have it in time yet.
                            if self.give_up(now, &waiting, Refusal::TooLate { waited }) {
                                self.learn_missed(now, &waiting.query);
                            }
                        }
                    }
                    Bound::GivesPlace(key) | Bound::TooUnsure(key) => {
                        if let Some(waiting) = self.queue.remove(key) {
                            let waited = now - waiting.query.arrived;
                            self.give_up(now, &waiting, Refusal::TooLate { waited });
                        }
                    }
                    Bound::Later(until) => {
                        let until = match self.bind_spare(now, &self.lanes[at]) {
                            Spare::Batch(binding) => {
                                self.bind(now, at, &binding);
                                continue;
                            }
                            Spare::Later(spare) => until.into_iter().chain(spare).min(),
                        };
                        self.bind_at = self.bind_at.into_iter().chain(until).min();
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
        let Some(batch) = lane.unbind(|next| !holds(residency.state(device, next.variant))) else { return };
        self.actions.extend(batch.discard());
        self.residency.released(now, device, batch.variant, &mut self.actions);
        self.rerun(now, device, &batch, Failure::NotStarted, "its replica was gone before it ran");
    }

    fn bind(&mut self, now: Time, at: usize, binding: &super::bind::Binding) {
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        let (device, ix) = (self.lanes[at].device, self.lanes[at].ix);
        let taken = binding
            .members
            .iter()
            .filter_map(|key| self.queue.remove(*key).or_else(|| self.aside.remove(*key)));
        let with_reasons = taken.zip(&binding.reasons);
        let mut members: Vec<Member> = Vec::with_capacity(binding.members.len());
        members.extend(with_reasons.map(|(waiting, reason)| Member {
            waiting,
            gone: false,
            reason: *reason,
        }));
        let asked_for = members.iter().filter(|member| member.is_asked_for());
        let keys: Vec<QueryKey> = asked_for.map(|member| member.waiting.query.key).collect();
        let variant = binding.variant;
        let size = u32::try_from(binding.members.len()).unwrap_or(u32::MAX);
        let running = self.residency.variant(variant).map_or(Moments::ZERO, |known| known.run.running(size));
        let runner =
            self.residency.variant(variant).map_or((ModelId(0), Engine::Onnx, false), WorkerVariant::runner);
        let expected = binding.expected;
        let known = self.residency.variant(variant);
        let idle = known.is_none_or(|known| self.before(&self.lanes[at], known).is_none());
        let handover = if idle { self.handover.moments() } else { Moments::ZERO };
        self.lanes[at].turn = self.lanes[at].turn(now);
        self.lanes[at].next = Some(Batch {
            id,
            variant,
            runner,
            members,
            expected,
            running,
            handover,
            chance: binding.chance,
            prepared: false,
            claims: (!keys.is_empty()).then_some(now),
            started: None,
            revoked: false,
        });
        if self.lanes[at].next.as_ref().is_some_and(is_spare) {
            self.residency.spared_now(now, device, variant);
        } else {
            self.residency.used_now(now, device, variant, size);
        }
        if !binding.drains {
            self.note_late(now, device, variant);
        }
        if keys.is_empty() {
            let ready = self.lanes[at].next.as_ref().map(|batch| batch.prepare(device, ix));
            self.actions.extend(ready);
        } else {
            self.claim(keys);
        }
    }

    fn cancel(&mut self, now: Time, key: QueryKey) {
        if let Some(waiting) = self.queue.remove(key) {
            if waiting.came != Came::Announced {
                self.note_missed(now, &waiting.query);
            }
            return;
        }
        if self.aside.remove(key).is_some() || self.quarantine.cancel(key) {
            return;
        }
        for lane in self.all_lanes_mut() {
            if lane.cancel(key) {
                return;
            }
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        for key in self.queue.keys().into_iter().chain(self.aside.keys()) {
            let announced = self.queue.remove(key).is_some_and(|waiting| waiting.came == Came::Announced);
            self.aside.remove(key);
            if announced {
                self.declines(key, Refusal::Draining);
            } else {
                self.actions.push_back(Action::HandBack { key, why: Refusal::Draining });
            }
        }
    }
}

impl Machine for Worker {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Arrive(query) => self.arrive(now, query),
            Event::Announce { query, part_ppm, quickest } => self.announced(now, query, part_ppm, quickest),
            Event::Demand { class, waiting, first, among } => {
                self.queue.set_demand(class, waiting, first);
                self.rates.divided(&class, among);
            }
            Event::Prepared { batch, dropped } => {
                if let Some(lane) = self.all_lanes_mut().find(|lane| lane.holds(batch)) {
                    lane.prepared(batch, &dropped);
                }
            }
            Event::Done { batch, outcome } => {
                self.done(now, batch, outcome);
            }
            Event::Loaded { device, variant, memory, took } => {
                self.residency.loaded(now, device, variant, memory, took, &mut self.actions);
                if self.residency.state(device, variant).serves()
                    && let Some(known) = self.residency.variant(variant)
                {
                    self.rates.loaded(known);
                }
            }
            Event::LoadFailed { device, variant, why } => {
                self.residency.load_failed(now, device, variant, &why, &mut self.actions);
            }
            Event::Fetching { device, variant } => self.residency.fetching(device, variant),
            Event::Fetched { device, variant } => self.residency.fetched(device, variant),
            Event::Weighed { device, variant, memory } => self.residency.weighed(device, variant, memory),
            Event::Unloaded { device, variant } => {
                self.residency.unloaded(now, device, variant, &mut self.actions);
            }
            Event::Quarantined { key, outcome } => self.judged(now, key, outcome),
            Event::QuarantineEnded { device } => self.quarantine_ended(device),
            Event::RunnerDied { model, variants, why, hung } => {
                let dead = self.residency.in_runner(model, variants);
                for runner in self.residency.runners_of(&dead) {
                    self.quarantine.died(runner);
                }
                self.residency.runner_died(now, &dead, &why, hung, &mut self.actions);
            }
            Event::Cancel { key } => self.cancel(now, key),
            Event::MayReturn { key } => self.queue.may_return(key),
            Event::Pin(pins) => self.residency.pin(now, &pins),
            Event::Wake { task, ordinal } => {
                if let Some(variant) = self.residency.find(task, ordinal)
                    && let Some(device) = self.residency.device_ids().next()
                {
                    self.note_called(now, variant);
                    self.residency.want(now, device, variant);
                    self.ask_wider(now, device, variant);
                }
            }
            Event::Unwanted { variant } => self.residency.unwanted(now, variant, &mut self.actions),
            Event::Recut { device, width } => self.recut(now, device, width),
            Event::Catalog(variants) => {
                let remeasured = self.residency.catalog(now, variants, &mut self.actions);
                self.start_anew(now, &remeasured);
                let residency = &self.residency;
                self.drifts.retain(|variant, _| residency.variant(*variant).is_some());
                self.caps.keep(|variant| residency.variant(variant).is_some());
                self.quarantine.keep(residency.variants());
                let is_known = |runner: &Runner| residency.variants().any(|v| v.runner() == *runner);
                self.starved.retain(|runner, _| is_known(runner));
                self.scarce.retain(|runner, _| is_known(runner));
            }
            Event::Marked(variants) => self.marked_before(&variants),
            Event::Host(host) => self.note_host(now, host),
            Event::Drain => self.drain(),
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some((at, key)) = self.queue.first_expiry()
            && at <= now
        {
            if let Some(waiting) = self.queue.remove(key) {
                if waiting.came == Came::Announced {
                    self.declines(key, Refusal::TooLate { waited: now - waiting.query.arrived });
                    continue;
                }
                self.note_missed(now, &waiting.query);
                self.learn_missed(now, &waiting.query);
                let refusal = self.expired(now, &waiting.query);
                self.refuse(key, refusal);
            }
        }
        self.expire_aside(now);
        self.expire_bound(now);
        self.residency.rested(now, &mut self.actions);
        self.residency.bring_back(now);
        self.fade(now);
        self.judge_due(now);
        self.settle(now);
    }

    fn poll_timeout(&self) -> Option<Wake> {
        let expiry = self.queue.first_expiry().into_iter().chain(self.aside.first_expiry()).min();
        let expiry = expiry.map(|(at, _)| Wake { at, why: "a waiting query's time is up" });
        let rest = self.residency.next_rest_over(self.now);
        let rest = rest.map(|at| Wake { at, why: "a failed replica has rested" });
        let back_in = self.residency.next_return();
        let back_in = back_in.map(|at| Wake { at, why: "what was unloaded by hand comes back" });
        let needs = Needs { queue: &self.queue, rates: &self.rates, now: self.now };
        let room = self.residency.next_room(self.now, needs);
        let room = room.map(|at| Wake { at, why: "room may be made for what is wanted" });
        let load = self.residency.next_overdue_load(self.now);
        let load = load.map(|at| Wake { at, why: "a load takes far too long, and another may begin" });
        let calm = self.residency.next_look();
        let calm = calm.map(|at| Wake { at, why: "a replica's trouble may be over" });
        let idle = self.residency.next_idle(self.now);
        let idle = idle.map(|at| Wake { at, why: "what nobody needs has been kept long enough" });
        let cut = self.next_reconsideration();
        let cut = cut.map(|at| Wake { at, why: "lanes may be wider than anybody needs" });
        let narrow = self.next_narrowing();
        let narrow = narrow.map(|at| Wake { at, why: "lanes that were closed may be opened again" });
        let fade = self.fade_at.map(|at| Wake { at, why: "what was learnt fades" });
        let bound = self.all_lanes().filter_map(Lane::next_expiry);
        let bound = bound.chain(self.quarantine.next_expiry()).min();
        let bound = bound.map(|at| Wake { at, why: "a bound query's time is up" });
        let bind = self.bind_at.map(|at| Wake { at, why: "a batch has waited long enough" });
        let back = self.look_back.map(|at| Wake { at, why: "a query may do better elsewhere" });
        let claims = self.next_claim_over();
        let claims = claims.map(|at| Wake { at, why: "what was claimed does not come" });
        let overdue = self.suspect_at.map(|at| Wake { at, why: "a batch runs far too long" });
        expiry
            .into_iter()
            .chain(rest)
            .chain(back_in)
            .chain(fade)
            .chain(bound)
            .chain(bind)
            .chain(claims)
            .chain(room)
            .chain(cut)
            .chain(narrow)
            .chain(calm)
            .chain(back)
            .chain(overdue)
            .chain(idle)
            .chain(load)
            .min()
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
