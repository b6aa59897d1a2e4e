//! What is in memory on each device, what comes and goes, and the state of each replica.
//!
//! The plan pins a set; everything else is loaded on demand and evicted by GreedyDual-Size-Frequency: what was used
//! often, takes long to load and little room stays. A device loads one thing at a time, so that a load disturbs the
//! others as little as possible. Nothing that runs, is prepared, or is pinned is evicted.

use super::api::{Action, WorkerConfig, WorkerVariant};
use crate::replica::{self, ReplicaEvent};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Bytes, DeviceIx, Micros, ModelId, ReplicaState, TaskId, Time, VariantId};

/// A variant's replica on a device.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) state: ReplicaState,
    /// What it takes, as measured at load or else as profiled.
    pub(super) memory: Bytes,
    /// When a load was asked for.
    asked: Time,
    /// When a failed one may be tried again.
    rest_until: Time,
    failures: u32,
    why_failed: String,
    /// Why it is in its state.
    pub(super) cause: String,
    /// GreedyDual: the clock at its last use plus its worth.
    worth: f64,
    uses: u32,
    /// Batches bound to it and not finished.
    pub(super) busy: u32,
}

/// Something that should be in memory, since when.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    variant: VariantId,
    since: Time,
}

/// Whether memory for something is free.
enum Room {
    Made,
    /// When something has ended or left.
    Later,
    /// Not while the plan pins what it pins.
    Never,
}

#[derive(Clone, Debug, Default)]
struct Device {
    memory: Bytes,
    pinned: BTreeSet<VariantId>,
    replicas: BTreeMap<VariantId, Replica>,
    loading: Option<VariantId>,
    /// Wanted, in order of asking; bounded by the number of variants.
    wanted: VecDeque<Wanted>,
    /// GreedyDual's clock: the worth of what was evicted last.
    clock: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Residency {
    variants: BTreeMap<VariantId, WorkerVariant>,
    devices: Vec<Device>,
    /// By task and ordinal.
    index: BTreeMap<(TaskId, u8), VariantId>,
    /// Counts changes of state, so that others can tell whether anything changed.
    pub(super) changes: u64,
    back_off: Micros,
    give_up_after: u32,
}

/// The least that a variant which does not serve is away: zero means that it serves.
const NOT_YET: Micros = Micros(1);

/// Why a variant cannot be had here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Unavailable {
    Failed(String),
    TooBig { needs: Bytes, budget: Bytes },
    Unknown,
}

impl Residency {
    pub(super) fn new(config: &WorkerConfig) -> Self {
        let device = |d: &super::api::DeviceConfig| Device { memory: d.memory, ..Device::default() };
        Self {
            variants: BTreeMap::new(),
            index: BTreeMap::new(),
            changes: 0,
            devices: config.devices.iter().map(device).collect(),
            back_off: config.back_off,
            give_up_after: config.give_up_after,
        }
    }

    pub(super) fn variant(&self, id: VariantId) -> Option<&WorkerVariant> {
        self.variants.get(&id)
    }

    pub(super) fn variants(&self) -> impl Iterator<Item = &WorkerVariant> {
        self.variants.values()
    }

    pub(super) fn variant_mut(&mut self, id: VariantId) -> Option<&mut WorkerVariant> {
        self.variants.get_mut(&id)
    }

    pub(super) fn find(&self, task: TaskId, ordinal: u8) -> Option<VariantId> {
        self.index.get(&(task, ordinal)).copied()
    }

    pub(super) fn device_ids(&self) -> impl Iterator<Item = DeviceIx> + use<> {
        let count = u16::try_from(self.devices.len()).expect("fewer than 2^16 devices");
        (0..count).map(DeviceIx)
    }

    fn device(&self, at: DeviceIx) -> &Device {
        &self.devices[usize::from(at.0)]
    }

    fn device_mut(&mut self, at: DeviceIx) -> &mut Device {
        &mut self.devices[usize::from(at.0)]
    }

    /// What serves on a device.
    pub(super) fn serving(&self, device: DeviceIx) -> impl Iterator<Item = &WorkerVariant> {
        let replicas = self.device(device).replicas.iter();
        replicas.filter(|(_, r)| r.state.serves()).filter_map(|(id, _)| self.variants.get(id))
    }

    pub(super) fn state(&self, device: DeviceIx, variant: VariantId) -> ReplicaState {
        self.device(device).replicas.get(&variant).map_or(ReplicaState::Inactive, |r| r.state)
    }

    pub(super) fn replica_mut(&mut self, device: DeviceIx, variant: VariantId) -> Option<&mut Replica> {
        self.device_mut(device).replicas.get_mut(&variant)
    }

    /// Every replica, for showing.
    pub(super) fn replicas(&self) -> impl Iterator<Item = (DeviceIx, VariantId, &Replica)> {
        self.device_ids().flat_map(move |at| self.device(at).replicas.iter().map(move |(id, r)| (at, *id, r)))
    }

    /// Memory that replicas take on a device, those on their way in or out included.
    pub(super) fn used(&self, device: DeviceIx) -> Bytes {
        let held = |r: &&Replica| !matches!(r.state, ReplicaState::Inactive | ReplicaState::Failed);
        Bytes(self.device(device).replicas.values().filter(held).map(|r| r.memory.0).sum())
    }

    /// A batch of it was bound: it was worth having.
    pub(super) fn used_now(&mut self, device: DeviceIx, variant: VariantId) {
        let Some(load_time) = self.variants.get(&variant).map(|v| v.load_time) else { return };
        let device = self.device_mut(device);
        let clock = device.clock;
        if let Some(replica) = device.replicas.get_mut(&variant) {
            replica.uses = replica.uses.saturating_add(1);
            replica.busy += 1;
            replica.worth = clock + worth(replica.uses, load_time, replica.memory);
        }
    }

    /// A batch of it ended or was given up.
    pub(super) fn released(&mut self, device: DeviceIx, variant: VariantId, actions: &mut VecDeque<Action>) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy = replica.busy.saturating_sub(1);
            if replica.busy == 0 && replica.state == ReplicaState::Draining {
                actions.push_back(Action::Unload { device, variant });
            }
        }
    }

    /// Until a variant could serve on a device, zero if it does; or why it cannot.
    pub(super) fn ready_in(
        &self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
    ) -> Result<Micros, Unavailable> {
        let Some(known) = self.variants.get(&variant) else { return Err(Unavailable::Unknown) };
        let replica = self.device(device).replicas.get(&variant);
        match replica.map_or(ReplicaState::Inactive, |r| r.state) {
            ReplicaState::Active | ReplicaState::Overloaded | ReplicaState::Interfered => Ok(Micros::ZERO),
            ReplicaState::Loading => {
                let since = replica.map_or(Micros::ZERO, |r| now - r.asked);
                Ok(known.load_time.saturating_sub(since).max(NOT_YET))
            }
            ReplicaState::Failed => match replica {
                Some(r) if r.rest_until < Time::FAR => {
                    Ok(((r.rest_until - now) + known.load_time).max(NOT_YET))
                }
                _ => Err(Unavailable::Failed(replica.map(|r| r.why_failed.clone()).unwrap_or_default())),
            },
            ReplicaState::Inactive | ReplicaState::Draining => {
                let needs = replica.map_or(known.memory, |r| r.memory.max(known.memory));
                let budget = self.budget_for(device, variant);
                if needs > budget {
                    Err(Unavailable::TooBig { needs, budget })
                } else {
                    Ok(known.load_time.max(NOT_YET))
                }
            }
        }
    }

    /// What a variant may take at most: the device less what the plan pins besides it, there already or to come.
    fn budget_for(&self, device: DeviceIx, variant: VariantId) -> Bytes {
        let device = self.device(device);
        let mine = device.pinned.contains(&variant);
        let others = device.pinned.iter().filter(|id| **id != variant).filter_map(|id| {
            let replica = device.replicas.get(id);
            let to_come = || if mine { None } else { self.variants.get(id).map(|v| v.memory.0) };
            replica.filter(|r| r.state.serves()).map(|r| r.memory.0).or_else(to_come)
        });
        Bytes(device.memory.0.saturating_sub(others.sum()))
    }

    /// Something should be in memory. It is loaded when its turn comes and room can be made.
    pub(super) fn want(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        let known = self.variants.contains_key(&variant);
        let idle = self.state(device, variant) == ReplicaState::Inactive;
        let wanted = &mut self.device_mut(device).wanted;
        if known && idle && !wanted.iter().any(|w| w.variant == variant) {
            wanted.push_back(Wanted { variant, since: now });
        }
    }

    /// Starts the next wanted load of each device that is not loading and has, or can be made to have, room. `needed`
    /// names the replicas of a device that somebody waiting depends on. Called last, when every lane has taken what
    /// it can: what was just loaded must not go before it served.
    pub(super) fn advance(
        &mut self,
        now: Time,
        needed: &dyn Fn(&Self, DeviceIx) -> BTreeSet<VariantId>,
        actions: &mut VecDeque<Action>,
    ) {
        for device in self.device_ids() {
            // What was loaded may have turned out larger than it was thought to be.
            if self.used(device) > self.device(device).memory {
                self.make_room(device, Bytes(0), false, needed, actions);
            }
            while self.device(device).loading.is_none()
                && let Some(&Wanted { variant, since }) = self.device(device).wanted.front()
            {
                let wanted = self.variants.get(&variant).map(|v| (v.memory, v.load_time));
                let (Some((memory, load_time)), ReplicaState::Inactive) =
                    (wanted, self.state(device, variant))
                else {
                    self.device_mut(device).wanted.pop_front();
                    continue;
                };
                let known = self.device(device).replicas.get(&variant).map_or(Bytes(0), |r| r.memory);
                let memory = memory.max(known);
                // Who has waited as long as its load takes may make those leave that are never idle.
                let firm = self.device(device).pinned.contains(&variant) || now - since >= load_time;
                match self.make_room(device, memory, firm, needed, actions) {
                    Room::Made => self.load(now, device, variant, memory, actions),
                    Room::Later => break, // tried again when something ends
                    Room::Never => {
                        self.device_mut(device).wanted.pop_front();
                    }
                }
            }
        }
    }

    fn load(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        memory: Bytes,
        actions: &mut VecDeque<Action>,
    ) {
        let state = self.device_mut(device);
        state.wanted.pop_front();
        state.loading = Some(variant);
        let fresh = Replica {
            state: ReplicaState::Inactive,
            memory,
            asked: now,
            rest_until: Time::ZERO,
            failures: 0,
            why_failed: String::new(),
            cause: String::new(),
            worth: state.clock,
            uses: 0,
            busy: 0,
        };
        let replica = state.replicas.entry(variant).or_insert(fresh);
        replica.asked = now;
        replica.memory = memory;
        self.step(device, variant, ReplicaEvent::Wanted, "wanted in memory", actions);
        actions.push_back(Action::Load { device, variant });
    }

    /// Evicts what is worth least until `memory` fits: what is idle, and if `firm` what is not, which then finishes
    /// what it has and takes nothing new.
    fn make_room(
        &mut self,
        device: DeviceIx,
        memory: Bytes,
        firm: bool,
        needed: &dyn Fn(&Self, DeviceIx) -> BTreeSet<VariantId>,
        actions: &mut VecDeque<Action>,
    ) -> Room {
        let budget = self.device(device).memory;
        loop {
            if self.used(device) + memory <= budget {
                return Room::Made;
            }
            let state = self.device(device);
            if state.replicas.values().any(|r| r.state == ReplicaState::Draining) {
                return Room::Later; // room is already being made
            }
            let needed = if firm { BTreeSet::new() } else { needed(self, device) };
            let discretionary =
                || state.replicas.iter().filter(|(id, r)| r.state.serves() && !state.pinned.contains(id));
            if memory > budget || discretionary().next().is_none() {
                return Room::Never;
            }
            let victim = discretionary()
                .filter(|(id, r)| firm || (r.busy == 0 && !needed.contains(id)))
                .min_by(|(_, a), (_, b)| (a.busy > 0).cmp(&(b.busy > 0)).then(a.worth.total_cmp(&b.worth)))
                .map(|(id, r)| (*id, r.worth, r.busy));
            let Some((victim, worth, busy)) = victim else { return Room::Later };
            self.device_mut(device).clock = worth;
            self.step(device, victim, ReplicaEvent::Unwanted, "evicted for another that is wanted", actions);
            if busy == 0 {
                actions.push_back(Action::Unload { device, variant: victim });
            }
        }
    }

    /// Moves a replica through the table and has it stored. An illegal move is a bug in this file.
    fn step(
        &mut self,
        device: DeviceIx,
        variant: VariantId,
        event: ReplicaEvent,
        cause: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(replica) = self.replica_mut(device, variant) else { return };
        let from = replica.state;
        match replica::next(from, event) {
            Ok(to) => {
                replica.state = to;
                replica.cause = cause.into();
                self.changes += 1;
                let cause = cause.into();
                actions.push_back(Action::Transition { device, variant, from, to, cause });
            }
            Err(illegal) => debug_assert!(false, "{illegal}"),
        }
    }

    pub(super) fn loaded(
        &mut self,
        device: DeviceIx,
        variant: VariantId,
        memory: Bytes,
        took: Micros,
        actions: &mut VecDeque<Action>,
    ) {
        let state = self.state(device, variant);
        self.device_mut(device).loading.take_if(|loading| *loading == variant);
        if let Some(known) = self.variants.get_mut(&variant) {
            known.memory = memory;
            known.load_time = took;
        }
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.memory = memory;
            replica.failures = 0;
        }
        match state {
            ReplicaState::Loading => {
                self.step(device, variant, ReplicaEvent::Loaded, "loaded", actions);
                self.used_once(device, variant);
            }
            // Unwanted while it loaded.
            ReplicaState::Draining => actions.push_back(Action::Unload { device, variant }),
            ReplicaState::Inactive
            | ReplicaState::Active
            | ReplicaState::Overloaded
            | ReplicaState::Interfered
            | ReplicaState::Failed => {}
        }
    }

    /// What was just loaded starts with the worth of one use, or it would be the next to go.
    fn used_once(&mut self, device: DeviceIx, variant: VariantId) {
        self.used_now(device, variant);
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy -= 1;
        }
    }

    pub(super) fn load_failed(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        self.device_mut(device).loading.take_if(|loading| *loading == variant);
        let event = match self.state(device, variant) {
            ReplicaState::Loading => ReplicaEvent::LoadFailed,
            ReplicaState::Draining => ReplicaEvent::Crashed,
            ReplicaState::Inactive
            | ReplicaState::Active
            | ReplicaState::Overloaded
            | ReplicaState::Interfered
            | ReplicaState::Failed => return,
        };
        self.fail(now, device, variant, event, why, actions);
    }

    fn fail(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        event: ReplicaEvent,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let (back_off, give_up_after) = (self.back_off, self.give_up_after);
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.failures = replica.failures.saturating_add(1);
            let doubled = back_off.0.saturating_mul(1 << (replica.failures - 1).min(16));
            let gave_up = replica.failures >= give_up_after;
            replica.rest_until = if gave_up { Time::FAR } else { now + Micros(doubled) };
            replica.why_failed = why.into();
        }
        self.step(device, variant, event, why, actions);
    }

    pub(super) fn unloaded(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        actions: &mut VecDeque<Action>,
    ) {
        if self.state(device, variant) == ReplicaState::Draining {
            self.step(device, variant, ReplicaEvent::Emptied, "out of memory", actions);
        }
        if !self.variants.contains_key(&variant) {
            self.device_mut(device).replicas.remove(&variant);
        }
        self.want_pinned(now, device);
    }

    /// A model's process is gone, and every replica in it.
    pub(super) fn runner_died(
        &mut self,
        now: Time,
        model: ModelId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let of_model: Vec<VariantId> =
            self.variants.values().filter(|v| v.model == model).map(|v| v.id).collect();
        for device in self.device_ids() {
            for &variant in &of_model {
                let state = self.state(device, variant);
                // One that is loading is reported by its own failed load.
                if state.serves() || state == ReplicaState::Draining {
                    self.fail(now, device, variant, ReplicaEvent::Crashed, why, actions);
                }
            }
        }
    }

    /// A replica turned out to be gone when a batch was to be given to it; its process's death will be told too, later.
    pub(super) fn lost(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let state = self.state(device, variant);
        if state.serves() || state == ReplicaState::Draining {
            self.fail(now, device, variant, ReplicaEvent::Crashed, why, actions);
        }
    }

    /// When the next failed replica may be tried again.
    pub(super) fn next_rest_over(&self) -> Option<Time> {
        let failed = self.replicas().filter(|(_, _, r)| r.state == ReplicaState::Failed);
        failed.map(|(_, _, r)| r.rest_until).filter(|at| *at < Time::FAR).min()
    }

    pub(super) fn rested(&mut self, now: Time, actions: &mut VecDeque<Action>) {
        let over: Vec<_> = self
            .replicas()
            .filter(|(_, _, r)| r.state == ReplicaState::Failed && r.rest_until <= now)
            .map(|(device, variant, _)| (device, variant))
            .collect();
        for (device, variant) in over {
            self.step(device, variant, ReplicaEvent::BackedOff, "rested after a failure", actions);
            self.want_pinned(now, device);
        }
    }

    /// The plan's set: those missing are wanted; those no longer in it stay until their room is needed.
    pub(super) fn pin(&mut self, now: Time, pins: &[(DeviceIx, VariantId)]) {
        for device in self.device_ids() {
            let set = pins.iter().filter(|(at, _)| *at == device).map(|(_, variant)| *variant).collect();
            self.device_mut(device).pinned = set;
            self.want_pinned(now, device);
        }
    }

    fn want_pinned(&mut self, now: Time, device: DeviceIx) {
        let pinned: Vec<VariantId> = self.device(device).pinned.iter().copied().collect();
        for variant in pinned {
            self.want(now, device, variant);
        }
    }

    /// What can be run changed: new ones are known, those gone are drained, corrections of the others stay.
    pub(super) fn catalog(
        &mut self,
        now: Time,
        variants: Vec<WorkerVariant>,
        actions: &mut VecDeque<Action>,
    ) {
        let mut old = core::mem::take(&mut self.variants);
        for mut variant in variants {
            if let Some(known) = old.remove(&variant.id) {
                variant.run.correction = known.run.correction;
                variant.memory = known.memory.max(variant.memory);
            }
            self.variants.insert(variant.id, variant);
        }
        self.index = self.variants.values().map(|v| ((v.task, v.ordinal), v.id)).collect();
        self.changes += 1;
        for device in self.device_ids() {
            for &gone in old.keys() {
                match self.replica_mut(device, gone).map(|r| (r.state, r.busy)) {
                    Some((state, busy)) if state.serves() => {
                        self.step(
                            device,
                            gone,
                            ReplicaEvent::Unwanted,
                            "removed from the catalogue",
                            actions,
                        );
                        if busy == 0 {
                            actions.push_back(Action::Unload { device, variant: gone });
                        }
                    }
                    Some((ReplicaState::Loading, _)) => {
                        self.step(
                            device,
                            gone,
                            ReplicaEvent::Unwanted,
                            "removed from the catalogue",
                            actions,
                        );
                    }
                    Some((ReplicaState::Failed | ReplicaState::Inactive, _)) => {
                        self.device_mut(device).replicas.remove(&gone);
                    }
                    Some(_) | None => {}
                }
            }
            // A changed catalogue gives what was given up another chance.
            for replica in self.device_mut(device).replicas.values_mut() {
                if replica.state == ReplicaState::Failed && replica.rest_until == Time::FAR {
                    replica.rest_until = now;
                    replica.failures = 0;
                }
            }
            self.want_pinned(now, device);
        }
    }
}

/// What keeping a replica saves per byte: how often it was used, times what loading it again would take.
fn worth(uses: u32, load_time: Micros, memory: Bytes) -> f64 {
    let load = crate::Moments::exactly(load_time).mean;
    let size = crate::Moments::exactly(Micros(memory.0.max(1))).mean;
    f64::from(uses) * load / size
}
