//! Making room: what comes, and what goes for it.

use super::{Replica, Residency, Wanted};
use crate::replica::ReplicaEvent;
use crate::worker::api::Action;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use modelless_types::{Bytes, DeviceIx, Micros, ReplicaState, Time, VariantId};

/// Whether memory for something is free.
enum Room {
    Made,
    /// When something has ended or left.
    Later,
    /// Not while the plan pins what it pins.
    Never,
}

impl Residency {
    /// A batch of it was bound: it was worth having.
    pub(in crate::worker) fn used_now(&mut self, device: DeviceIx, variant: VariantId) {
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
    pub(in crate::worker) fn released(
        &mut self,
        device: DeviceIx,
        variant: VariantId,
        actions: &mut VecDeque<Action>,
    ) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy = replica.busy.saturating_sub(1);
            if replica.busy == 0 && replica.state == ReplicaState::Draining {
                actions.push_back(Action::Unload { device, variant });
            }
        }
    }

    /// What a variant may take at most: the device less what the plan pins besides it, there already or to come.
    pub(super) fn budget_for(&self, device: DeviceIx, variant: VariantId) -> Bytes {
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
    pub(in crate::worker) fn want(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
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
    pub(in crate::worker) fn advance(
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

    pub(super) fn load(
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

    pub(in crate::worker) fn loaded(
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
    pub(super) fn used_once(&mut self, device: DeviceIx, variant: VariantId) {
        self.used_now(device, variant);
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy -= 1;
        }
    }

    pub(in crate::worker) fn unloaded(
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
}

/// What keeping a replica saves per byte: how often it was used, times what loading it again would take.
fn worth(uses: u32, load_time: Micros, memory: Bytes) -> f64 {
    let load = crate::Moments::exactly(load_time).mean;
    let size = crate::Moments::exactly(Micros(memory.0.max(1))).mean;
    f64::from(uses) * load / size
}
