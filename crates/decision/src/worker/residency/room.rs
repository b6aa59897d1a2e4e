//! Making room: what comes, and what goes for it.

use super::{Replica, Residency, Wanted};
use crate::replica::ReplicaEvent;
use crate::worker::api::{Action, EVICTED, Runner, WorkerVariant};
use crate::worker::needs::Needs;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Bytes, DeviceIx, Micros, ReplicaState, Time, VariantId};

/// Whether memory for something is free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::worker) enum Room {
    Made,
    /// When something has ended or left.
    Later,
    /// Not while the plan pins what it pins.
    Never,
}

/// How hard room is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Press {
    /// What is in memory takes more than there is: whatever is idle and not waited for leaves.
    Over,
    /// For something wanted: what besides has been there for its least time.
    Gentle,
    /// For something that has been waited for as long as its load takes: what was in demand lately, too.
    Firm,
    /// For something that can wait no longer, or that the plan pins: what is busy or has queued work, too, after its least
    /// time, and after what has none.
    Last,
}

/// Back within this many least residences (or loads) is back soon.
const SOON: u64 = 10;
/// The longest residence that is granted to what keeps coming back, in least ones.
const LONGEST: u64 = 4;

impl Residency {
    /// A batch of it was bound on which only spare time is spent: it is busy, and worth no more than before.
    pub(in crate::worker) fn spared_now(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy += 1;
            replica.used = now;
        }
    }

    /// A batch of it was bound: it was worth having, for each of so many queries. By batches what answers most would count for least, since
    /// it is what runs the largest ones.
    pub(in crate::worker) fn used_now(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        queries: u32,
    ) {
        let Some(load_time) = self.variants.get(&variant).map(|v| v.load_time) else { return };
        let device = self.device_mut(device);
        let clock = device.clock;
        if let Some(replica) = device.replicas.get_mut(&variant) {
            replica.uses = replica.uses.saturating_add(queries.into());
            replica.busy += 1;
            replica.used = now;
            replica.worth = clock + worth(replica.uses, load_time, replica.memory);
        }
    }

    /// A batch of it ended or was given up.
    pub(in crate::worker) fn released(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        actions: &mut VecDeque<Action>,
    ) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy = replica.busy.saturating_sub(1);
            replica.used = now;
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
            let away = mine || device.kept_out.contains_key(id);
            let to_come = || if away { None } else { self.variants.get(id).map(|v| v.memory.0) };
            replica.filter(|r| r.state.serves()).map(|r| r.holds().0).or_else(to_come)
        });
        Bytes(device.memory.0.saturating_sub(others.sum()))
    }

    /// Something should be in memory. It is loaded when its turn comes and room can be made.
    pub(in crate::worker) fn want(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        self.want_for(now, device, variant, false);
    }

    /// The same for `spare` time, or not. What was wanted for that only stands in line anew when somebody waits for it.
    pub(in crate::worker) fn want_for(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        spare: bool,
    ) {
        let known = self.variants.contains_key(&variant);
        // What is on its way out has to be out first.
        let idle = matches!(self.state(device, variant), ReplicaState::Inactive | ReplicaState::Draining);
        let wanted = &mut self.device_mut(device).wanted;
        if !known || !idle {
            return;
        }
        if !spare {
            wanted.retain(|w| w.variant != variant || !w.spare);
        }
        if !wanted.iter().any(|w| w.variant == variant) {
            // Whoever waits stands before spare time.
            let at = if spare { wanted.len() } else { wanted.iter().take_while(|w| !w.spare).count() };
            wanted.insert(at, Wanted { variant, since: now, spare });
        }
    }

    /// The first in line that a load may begin for now.
    fn next_wanted(&self, now: Time, device: DeviceIx) -> Option<Wanted> {
        let leaves = |wanted: &&Wanted| self.state(device, wanted.variant) == ReplicaState::Draining;
        let device = self.device(device);
        let begins = |wanted: &&Wanted| !device.line.keeps(self.runner_of(wanted.variant)) && !leaves(wanted);
        let mut able = device.wanted.iter().filter(begins);
        able.next().filter(|_| device.line.is_free(now)).copied()
    }

    fn runner_of(&self, variant: VariantId) -> Option<Runner> {
        self.variants.get(&variant).map(WorkerVariant::runner)
    }

    fn no_longer_wanted(&mut self, device: DeviceIx, variant: VariantId) {
        self.device_mut(device).wanted.retain(|wanted| wanted.variant != variant);
    }

    /// What a load needs is not on this machine: it is brought here first.
    pub(in crate::worker) fn fetching(&mut self, device: DeviceIx, variant: VariantId) {
        self.device_mut(device).line.fetches(variant);
    }

    /// It is here.
    pub(in crate::worker) fn fetched(&mut self, device: DeviceIx, variant: VariantId) {
        self.device_mut(device).line.fetched(variant);
    }

    /// When another load may begin beside one that takes far too long, if anything waits for that.
    pub(in crate::worker) fn next_overdue_load(&self, now: Time) -> Option<Time> {
        let waits = |at: &DeviceIx| {
            let device = self.device(*at);
            !device.wanted.is_empty() || device.line.waiting().next().is_some()
        };
        self.device_ids().filter(waits).filter_map(|at| self.device(at).line.next_overdue(now)).min()
    }

    /// Loads whose files came go on, one after another; they were asked for before anything that is only wanted.
    fn go_on(&mut self, now: Time, device: DeviceIx, actions: &mut VecDeque<Action>) {
        let waiting: Vec<VariantId> = self.device(device).line.waiting().collect();
        for variant in waiting {
            // Unwanted while it was brought here.
            if self.state(device, variant) != ReplicaState::Loading {
                self.device_mut(device).line.ended(variant);
                actions.push_back(Action::Unload { device, variant });
            }
        }
        if let Some(variant) = self.device(device).line.next(now) {
            self.device_mut(device).line.goes_on(now, variant);
            actions.push_back(Action::Load { device, variant });
        }
    }

    /// Starts the next wanted load of each device whose line lets another begin and that has, or can be made to have, room.
    /// Called last, when every lane has taken what it can: what was just loaded must not go before it served.
    pub(in crate::worker) fn advance(&mut self, now: Time, needs: Needs, actions: &mut VecDeque<Action>) {
        for device in self.device_ids() {
            // What was loaded may have turned out larger than it was thought to be.
            if self.used(device) > self.device(device).memory {
                self.make_room(now, device, Bytes(0), Press::Over, needs, actions);
            }
            self.go_on(now, device, actions);
            while let Some(wanted) = self.next_wanted(now, device) {
                let variant = wanted.variant;
                let Some(memory) = self.to_load(device, variant) else {
                    self.no_longer_wanted(device, variant);
                    continue;
                };
                let last = self.last_from(device, wanted, needs);
                let press = match (self.firm_from(device, wanted).is_some_and(|firm| firm <= now), last) {
                    (_, Some(last)) if last <= now => Press::Last,
                    (true, _) => Press::Firm,
                    (false, _) => Press::Gentle,
                };
                let beside = self.claimed(device);
                match self.make_room(now, device, memory + beside, press, needs, actions) {
                    Room::Made => self.load(now, device, variant, memory, actions),
                    Room::Later => {
                        let next = if press == Press::Last { None } else { self.fits_as_it_is(device) };
                        let Some((variant, memory)) = next else { break }; // tried again when something ends
                        self.load(now, device, variant, memory, actions);
                    }
                    Room::Never => self.no_longer_wanted(device, variant),
                }
            }
        }
    }

    /// What a wanted variant needs; `None` if it cannot be loaded now.
    fn to_load(&self, device: DeviceIx, variant: VariantId) -> Option<Bytes> {
        let memory = self.variants.get(&variant)?.memory;
        let known = self.device(device).replicas.get(&variant).map_or(Bytes(0), |r| r.memory);
        (self.state(device, variant) == ReplicaState::Inactive).then_some(memory.max(known))
    }

    /// From when on a wanted variant makes those leave that are never idle: at once if the plan pins it, else when it
    /// has been waited for as long as its load takes; never for spare time.
    fn firm_from(&self, device: DeviceIx, wanted: Wanted) -> Option<Time> {
        let Wanted { variant, since, spare } = wanted;
        let load_time = self.variants.get(&variant).map_or(Micros::ZERO, |v| v.load_time);
        if self.device(device).pinned.contains(&variant) {
            return Some(since);
        }
        (!spare).then_some(since + load_time)
    }

    /// From when on even what has queued work makes room for a wanted variant: never before others do, and at once if the
    /// plan pins it.
    fn last_from(&self, device: DeviceIx, wanted: Wanted, needs: Needs) -> Option<Time> {
        let firm = self.firm_from(device, wanted)?;
        if self.device(device).pinned.contains(&wanted.variant) {
            return Some(firm);
        }
        needs.last_moment(self, wanted.variant).map(|last| last.max(firm))
    }

    /// Something wanted for which nothing must leave, while the first in line waits for its room.
    fn fits_as_it_is(&self, device: DeviceIx) -> Option<(VariantId, Bytes)> {
        let state = self.device(device);
        if state.replicas.values().any(|r| r.state == ReplicaState::Draining) {
            return None; // what is being freed is the first one's
        }
        let taken = self.used(device) + self.claimed(device);
        let free = Bytes(state.memory.0.saturating_sub(taken.0));
        let wanted = state.wanted.iter().map(|w| w.variant);
        let wanted = wanted.filter(|id| !state.line.keeps(self.runner_of(*id)));
        let mut fits = wanted.filter_map(|id| Some((id, self.to_load(device, id)?)));
        fits.find(|(_, memory)| *memory <= free)
    }

    /// When room may next be made that cannot be made now.
    pub(in crate::worker) fn next_room(&self, now: Time, needs: Needs) -> Option<Time> {
        let moments = self.device_ids().filter_map(|at| {
            let device = self.device(at);
            let front = self.next_wanted(now, at);
            let load = front.and_then(|front| self.firm_from(at, front));
            let last = front.and_then(|front| self.last_from(at, front, needs));
            let firm: Vec<Time> = load.into_iter().chain(last).chain(self.claim_firm_from(at)).collect();
            if firm.is_empty() {
                return None;
            }
            let held =
                device.replicas.iter().filter(|(id, r)| r.state.serves() && !device.pinned.contains(id));
            let held = held.map(|(_, r)| r.stays_until);
            held.chain(firm).filter(|moment| *moment > now).min()
        });
        moments.min()
    }

    pub(super) fn load(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        memory: Bytes,
        actions: &mut VecDeque<Action>,
    ) {
        self.no_longer_wanted(device, variant);
        let takes = self.variants.get(&variant).map_or(Micros::ZERO, |v| v.load_time);
        let runner = self.runner_of(variant);
        let state = self.device_mut(device);
        state.line.begins(now, variant, runner, takes);
        let fresh = Replica {
            state: ReplicaState::Inactive,
            memory,
            more: Bytes(0),
            rest_until: Time::ZERO,
            failures: 0,
            wary: false,
            lost: false,
            why_failed: String::new(),
            cause: String::new(),
            worth: state.clock,
            uses: 0,
            busy: 0,
            stays_until: Time::ZERO,
            used: now,
            stay: Micros::ZERO,
            left: Time::ZERO,
            trouble: super::Trouble::default(),
        };
        let replica = state.replicas.entry(variant).or_insert(fresh);
        (replica.memory, replica.more) = (memory, Bytes(0));
        // What it was used for long ago says half as much each time.
        replica.uses /= 2;
        self.step(device, variant, ReplicaEvent::Wanted, "wanted in memory", actions);
        actions.push_back(Action::Load { device, variant });
    }

    /// Evicts what is worth least, if `memory` fits then. What is busy finishes what it has and takes nothing new.
    pub(super) fn make_room(
        &mut self,
        now: Time,
        device: DeviceIx,
        memory: Bytes,
        press: Press,
        needs: Needs,
        actions: &mut VecDeque<Action>,
    ) -> Room {
        let state = self.device(device);
        let total = self.used(device) + memory;
        if total <= state.memory {
            return Room::Made;
        }
        if state.replicas.values().any(|r| r.state == ReplicaState::Draining) {
            return Room::Later; // room is already being made
        }
        let excess = Bytes(total.0 - state.memory.0);
        let mut may_go: Vec<(VariantId, &Replica)> = state
            .replicas
            .iter()
            .filter(|(id, r)| r.state.serves() && !state.pinned.contains(id))
            .map(|(id, r)| (*id, r))
            .collect();
        // Where the budget is broken, whatever can go is of use.
        if press != Press::Over && Bytes(may_go.iter().map(|(_, r)| r.holds().0).sum()) < excess {
            // A quarantine does not last.
            return if self.quarantines(device) { Room::Later } else { Room::Never };
        }
        let needed =
            if press == Press::Gentle { needs.in_demand(self, device) } else { needs.queued(self, device) };
        let held = |id: &VariantId, r: &Replica| r.busy > 0 || needed.contains(id);
        may_go.retain(|(id, r)| match press {
            Press::Over => !held(id, r),
            Press::Gentle | Press::Firm => !held(id, r) && r.stays_until <= now,
            Press::Last => r.stays_until <= now,
        });
        may_go.sort_by(|(a_id, a), (b_id, b)| {
            held(a_id, a).cmp(&held(b_id, b)).then(a.worth.total_cmp(&b.worth))
        });
        let mut freed = Bytes(0);
        let mut victims = Vec::new();
        for (id, replica) in may_go {
            if freed >= excess {
                break;
            }
            freed = freed + replica.holds();
            victims.push((id, replica.worth, replica.busy));
        }
        // To send some away and not be able to load all the same would help nobody, unless the budget is broken.
        if freed < excess && press != Press::Over {
            return Room::Later;
        }
        for (victim, worth, busy) in victims {
            let state = self.device_mut(device);
            state.clock = state.clock.max(worth);
            if let Some(replica) = state.replicas.get_mut(&victim) {
                replica.left = now;
            }
            self.step(device, victim, ReplicaEvent::Unwanted, EVICTED, actions);
            if busy == 0 {
                actions.push_back(Action::Unload { device, variant: victim });
            }
        }
        Room::Later
    }

    pub(in crate::worker) fn loaded(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        memory: Bytes,
        took: Micros,
        actions: &mut VecDeque<Action>,
    ) {
        let state = self.state(device, variant);
        self.device_mut(device).line.ended(variant);
        if let Some(known) = self.variants.get_mut(&variant) {
            known.memory = memory;
            // The first load here says more than a profile. What came out of the page cache this time may come from the disk
            // the next: after it a slow load counts at once, a quick one by and by.
            let first = self.timed.insert(variant);
            let by_and_by = Micros((known.load_time.0 * 3 + took.0) / 4);
            known.load_time = if first { took } else { took.max(by_and_by) };
        }
        let least = self.min_residence;
        if let Some(replica) = self.replica_mut(device, variant) {
            (replica.memory, replica.more) = (memory, Bytes(0));
            // What was sent away and is back so soon takes longer turns, or two that do not fit together would spend
            // their time on loading each other.
            let soon = replica.left > Time::ZERO && now - replica.left < Micros(SOON * least.0.max(took.0));
            let longer = Micros(replica.stay.0.saturating_mul(2)).clamp(least, Micros(LONGEST * least.0));
            replica.stay = if soon { longer } else { least };
            replica.stays_until = now + replica.stay;
        }
        match state {
            ReplicaState::Loading => {
                self.step(device, variant, ReplicaEvent::Loaded, "loaded", actions);
                self.used_once(now, device, variant);
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
    pub(super) fn used_once(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        self.used_now(now, device, variant, 1);
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.busy -= 1;
        }
    }

    /// What a replica takes is another than was told when it was loaded. What a next load needs is not.
    pub(in crate::worker) fn weighed(&mut self, device: DeviceIx, variant: VariantId, memory: Bytes) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.more = Bytes(memory.0.saturating_sub(replica.memory.0));
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
            let lost = self.replica_mut(device, variant).filter(|r| r.lost).map(|r| {
                r.lost = false;
                r.why_failed.clone()
            });
            match lost {
                Some(why) => self.step(device, variant, ReplicaEvent::Crashed, &why, actions),
                None => self.step(device, variant, ReplicaEvent::Emptied, "out of memory", actions),
            }
        }
        if !self.variants.contains_key(&variant) {
            self.device_mut(device).replicas.remove(&variant);
        }
        self.want_pinned(now, device);
    }
}

/// What keeping a replica saves per byte: how often it was used, times what loading it again would take.
fn worth(uses: u64, load_time: Micros, memory: Bytes) -> f64 {
    let number = |number| crate::Moments::exactly(Micros(number)).mean;
    number(uses) * number(load_time.0) / number(memory.0.max(1))
}
