//! What is in memory on each device, what comes and goes, and the state of each replica.
//!
//! The plan pins a set; everything else is loaded on demand and evicted by GreedyDual-Size-Frequency: what was used
//! often, takes long to load and little room stays. A device loads one thing at a time, so that a load disturbs the
//! others as little as possible, unless that one takes far too long (`line`).
//!
//! Never evicted are: what the plan pins; what was loaded moments ago; anything, if the load it would make room for
//! would not fit all the same. Only for something that has been waited for as long as its load takes: what is busy
//! (it finishes first) and the cheapest replica of a class in demand. So two models that do not fit together take
//! turns, and turns grow longer while they go on.

use super::api::{Action, DeviceConfig, WorkerConfig, WorkerVariant};
use super::cutting::Cut;
use super::times::Times;
use crate::common::Common;
use crate::estimate::{Moments, RunModel};
use crate::replica::{self, ReplicaEvent};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use line::Line;
use modelless_types::{Bytes, DeviceIx, Engine, Micros, ReplicaState, TaskId, Time, VariantId};
use pressure::Trouble;

mod by_hand;
mod catalog;
mod failing;
mod idle;
mod line;
mod pressure;
mod room;
mod ward;

pub(in crate::worker) use room::Room;
pub(in crate::worker) use ward::Claim;

/// A variant's replica on a device.
#[derive(Clone, Debug)]
pub(in crate::worker) struct Replica {
    pub(in crate::worker) state: ReplicaState,
    /// What it takes, as measured at load or else as profiled.
    pub(in crate::worker) memory: Bytes,
    /// What it was seen to hold beyond that since. A next load begins without it.
    pub(in crate::worker) more: Bytes,
    /// When a failed one may be tried again.
    rest_until: Time,
    failures: u32,
    /// It hung, and nothing has shown since that it does not always: while it has failed, it comes back only once a query
    /// ran well in quarantine.
    wary: bool,
    /// Its server does not answer: it leaves memory, and rests then.
    lost: bool,
    why_failed: String,
    /// Why it is in its state.
    pub(in crate::worker) cause: String,
    /// GreedyDual: the clock at its last use plus its worth.
    worth: f64,
    /// Queries that it was bound to answer, and one for its load.
    uses: u64,
    /// Batches bound to it and not finished.
    pub(in crate::worker) busy: u32,
    /// Before this it is not evicted.
    stays_until: Time,
    /// When it was loaded, or something last ran on it.
    used: Time,
    /// How long it was granted last.
    stay: Micros,
    /// When it was evicted last.
    left: Time,
    /// What speaks of it being overloaded or disturbed.
    trouble: Trouble,
}

impl Replica {
    /// All that it counts for.
    pub(in crate::worker) fn holds(&self) -> Bytes {
        self.memory + self.more
    }
}

/// Something that should be in memory, since when.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    variant: VariantId,
    since: Time,
    /// Only for spare time: nothing that was in demand lately leaves for it.
    spare: bool,
}

#[derive(Clone, Debug, Default)]
struct Device {
    cut: Option<Cut>,
    memory: Bytes,
    pinned: BTreeSet<VariantId>,
    /// Of these, what somebody had unloaded, and until when it stays away.
    kept_out: BTreeMap<VariantId, Time>,
    replicas: BTreeMap<VariantId, Replica>,
    /// What loads.
    line: Line,
    /// Wanted and not begun, in order of asking; bounded by the number of variants.
    wanted: VecDeque<Wanted>,
    /// GreedyDual's clock: the worth of what was evicted last.
    clock: f64,
    /// What its quarantine runner holds, and what is to come into it.
    ward: Bytes,
    claim: Option<Claim>,
}

#[derive(Clone, Debug, Default)]
pub(in crate::worker) struct Residency {
    variants: BTreeMap<VariantId, WorkerVariant>,
    /// What each takes, as it is known now.
    times: BTreeMap<VariantId, Times>,
    /// Whose load time is what loads took here, and no longer what the profile says.
    timed: BTreeSet<VariantId>,
    devices: Vec<Device>,
    /// By task and ordinal.
    index: BTreeMap<(TaskId, u8), VariantId>,
    /// Counts changes of state, so that others can tell whether anything changed.
    pub(in crate::worker) changes: u64,
    back_off: Micros,
    give_up_after: u32,
    min_residence: Micros,
}

/// The least that a variant which does not serve is away: zero means that it serves.
const NOT_YET: Micros = Micros(1);

/// Why a variant cannot be had here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Unavailable {
    Failed(String),
    TooBig { needs: Bytes, budget: Bytes },
    Unknown,
}

impl Residency {
    pub(in crate::worker) fn new(config: &WorkerConfig) -> Self {
        let device = |d: &DeviceConfig| Device {
            cut: Some(Cut::new(d.lanes, d.width)),
            memory: d.memory,
            line: Line::new(config.overdue_loads),
            ..Device::default()
        };
        Self {
            variants: BTreeMap::new(),
            times: BTreeMap::new(),
            timed: BTreeSet::new(),
            index: BTreeMap::new(),
            changes: 0,
            devices: config.devices.iter().map(device).collect(),
            back_off: config.back_off,
            give_up_after: config.give_up_after,
            min_residence: config.min_residence,
        }
    }

    pub(in crate::worker) fn variant(&self, id: VariantId) -> Option<&WorkerVariant> {
        self.variants.get(&id)
    }

    pub(in crate::worker) fn variants(&self) -> impl Iterator<Item = &WorkerVariant> {
        self.variants.values()
    }

    /// What was seen changes what a variant is known to take. Whatever changes that goes through here.
    pub(in crate::worker) fn learn<T>(
        &mut self,
        id: VariantId,
        lesson: impl FnOnce(&mut RunModel) -> T,
    ) -> Option<T> {
        let variant = self.variants.get_mut(&id)?;
        let learnt = lesson(&mut variant.run);
        if let Some(times) = self.times.get_mut(&id) {
            times.learn(variant);
        }
        Some(learnt)
    }

    /// What variants of one kind of device have in common is what those are expected to take of which little was seen. What runs on
    /// another server has nothing in common with this machine.
    pub(in crate::worker) fn lend(&mut self) {
        let Self { variants, times, .. } = self;
        for gpu in [false, true] {
            let kin = |variant: &WorkerVariant| variant.gpu == gpu && variant.engine != Engine::Remote;
            let common = Common::of(variants.values().filter(|v| kin(v)).map(|v| v.run.own()));
            for variant in variants.values_mut().filter(|v| kin(v)) {
                let common = common.without(variant.run.own());
                if variant.run.borrow(common)
                    && let Some(times) = times.get_mut(&variant.id)
                {
                    times.learn(variant);
                }
            }
        }
    }

    /// What a batch takes.
    pub(in crate::worker) fn estimate(&self, variant: &WorkerVariant, batch: u32) -> Moments {
        let times = self.times.get(&variant.id);
        times.map_or_else(|| variant.run.estimate(batch), |times| times.estimate(&variant.run, batch))
    }

    /// The same for many sizes of one variant.
    pub(in crate::worker) fn takes(&self, variant: &WorkerVariant) -> impl Fn(u32) -> Moments {
        let times = self.times.get(&variant.id);
        move |batch| times.map_or_else(|| variant.run.estimate(batch), |t| t.estimate(&variant.run, batch))
    }

    /// Device time per query of a variant's best batch, or of one alone where batches gain nothing.
    pub(in crate::worker) fn batched(&self, variant: &WorkerVariant) -> Moments {
        let times = self.times.get(&variant.id);
        times.map_or_else(|| variant.run.per_query(variant.max_batch), Times::batched)
    }

    /// The batch that takes the least device time per query, of at most so many.
    pub(in crate::worker) fn best_batch(&self, variant: &WorkerVariant, largest: u32) -> u32 {
        let (run, most) = (&variant.run, variant.max_batch);
        let times = self.times.get(&variant.id);
        times.map_or_else(|| run.best_batch(largest.min(most)), |times| times.best(run, largest, most))
    }

    pub(in crate::worker) fn find(&self, task: TaskId, ordinal: u8) -> Option<VariantId> {
        self.index.get(&(task, ordinal)).copied()
    }

    pub(in crate::worker) fn device_ids(&self) -> impl Iterator<Item = DeviceIx> + use<> {
        let count = u16::try_from(self.devices.len()).expect("fewer than 2^16 devices");
        (0..count).map(DeviceIx)
    }

    fn device(&self, at: DeviceIx) -> &Device {
        &self.devices[usize::from(at.0)]
    }

    fn device_mut(&mut self, at: DeviceIx) -> &mut Device {
        &mut self.devices[usize::from(at.0)]
    }

    pub(in crate::worker) fn cut(&self, device: DeviceIx) -> Cut {
        self.device(device).cut.unwrap_or(Cut::new(1, 1))
    }

    pub(in crate::worker) fn cut_mut(&mut self, device: DeviceIx) -> &mut Cut {
        self.device_mut(device).cut.get_or_insert(Cut::new(1, 1))
    }

    /// What serves on a device, as its lanes are or are about to be.
    pub(in crate::worker) fn serving(&self, device: DeviceIx) -> impl Iterator<Item = &WorkerVariant> {
        let cut = self.cut(device);
        self.resident(device).filter(move |v| cut.needs(v) <= cut.next.unwrap_or(cut.width))
    }

    /// The same, with what would need wider lanes.
    pub(in crate::worker) fn resident(&self, device: DeviceIx) -> impl Iterator<Item = &WorkerVariant> {
        let replicas = self.device(device).replicas.iter();
        replicas.filter(|(_, r)| r.state.serves()).filter_map(|(id, _)| self.variants.get(id))
    }

    pub(in crate::worker) fn state(&self, device: DeviceIx, variant: VariantId) -> ReplicaState {
        self.device(device).replicas.get(&variant).map_or(ReplicaState::Inactive, |r| r.state)
    }

    pub(in crate::worker) fn replica_mut(
        &mut self,
        device: DeviceIx,
        variant: VariantId,
    ) -> Option<&mut Replica> {
        self.device_mut(device).replicas.get_mut(&variant)
    }

    /// Every replica, for showing.
    pub(in crate::worker) fn replicas(&self) -> impl Iterator<Item = (DeviceIx, VariantId, &Replica)> {
        self.device_ids().flat_map(move |at| self.device(at).replicas.iter().map(move |(id, r)| (at, *id, r)))
    }

    /// Memory that replicas take on a device, those on their way in or out and the quarantine runner's included.
    pub(in crate::worker) fn used(&self, device: DeviceIx) -> Bytes {
        let held = |r: &&Replica| !matches!(r.state, ReplicaState::Inactive | ReplicaState::Failed);
        let device = self.device(device);
        let replicas = device.replicas.values().filter(held).map(|r| r.holds().0);
        Bytes(replicas.sum::<u64>() + device.ward.0)
    }

    /// Until a load could begin that comes to this device now, or that stands in its line: what loads has to end, and so have
    /// those that stand before it. They may go sooner, in another order, or find no room; when, nobody knows yet.
    fn line_before(&self, now: Time, device: DeviceIx, variant: VariantId) -> Micros {
        let device = self.device(device);
        let first = device.wanted.iter().map(|wanted| wanted.variant).take_while(|id| *id != variant);
        let takes = first.filter_map(|id| self.variants.get(&id)).map(|known| known.load_time.0);
        let of_line = device.line.before(now, variant);
        Micros(takes.fold(of_line.0, u64::saturating_add))
    }

    /// Until a variant could serve on a device, zero if it does; or why it cannot.
    pub(in crate::worker) fn ready_in(
        &self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
    ) -> Result<Micros, Unavailable> {
        let Some(known) = self.variants.get(&variant) else { return Err(Unavailable::Unknown) };
        let replica = self.device(device).replicas.get(&variant);
        let cut = self.cut(device);
        if cut.needs(known) > cut.next.unwrap_or(cut.width) && self.state(device, variant).serves() {
            return Ok(cut.wider_in(now));
        }
        let state =
            replica.map_or(ReplicaState::Inactive, |r| if r.lost { ReplicaState::Failed } else { r.state });
        match state {
            ReplicaState::Active | ReplicaState::Overloaded | ReplicaState::Interfered => Ok(Micros::ZERO),
            ReplicaState::Loading => {
                let line = &self.device(device).line;
                let left = line.left(now, variant).unwrap_or(known.load_time);
                Ok((line.before(now, variant) + left).max(NOT_YET))
            }
            ReplicaState::Failed => match replica {
                Some(r) if r.failures < self.give_up_after || (r.wary && r.rest_until <= now) => {
                    let begins = (r.rest_until - now).max(self.line_before(now, device, variant));
                    Ok((begins + known.load_time).max(NOT_YET))
                }
                _ => Err(Unavailable::Failed(replica.map(|r| r.why_failed.clone()).unwrap_or_default())),
            },
            ReplicaState::Inactive | ReplicaState::Draining => {
                let needs = replica.map_or(known.memory, |r| r.memory.max(known.memory));
                let budget = self.budget_for(device, variant);
                if needs > budget {
                    Err(Unavailable::TooBig { needs, budget })
                } else {
                    Ok((self.line_before(now, device, variant) + known.load_time).max(NOT_YET))
                }
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
}
