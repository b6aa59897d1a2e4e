//! What the worker makes known: replicas, offers, credit, how long a query would wait.

use super::api::WorkerVariant;
use super::bind::admits;
use super::lanes::Lane;
use super::machine::Worker;
use super::needs::Needs;
use crate::estimate::{Correction, Moments};
use crate::query::Class;
use crate::replica::Signs;
use crate::route::{Later, Limit, Made, NodeReport, Offer, Ready, STEPS, Step};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Bytes, DeviceIx, Micros, ReplicaState, Time, VariantId};

/// No credit larger than this many queries a lane, whatever the largest batch.
const CREDIT_A_LANE: u32 = 64;

/// A device that is pressed has so many batches of each to choose from: only of whole ones does it take the cheapest.
const BATCHES: u32 = 2;

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
    /// That has been so far from the profile for so long that it is to be measured again.
    pub drifted: bool,
    /// What its state rests on, while it serves.
    pub signs: Option<Signs>,
}

impl Worker {
    /// Every replica that has been more than wanted.
    pub fn replicas(&self) -> Vec<ReplicaView> {
        let view =
            |(device, variant, replica): (DeviceIx, VariantId, &super::residency::Replica)| ReplicaView {
                device,
                variant,
                state: replica.state,
                memory: replica.holds(),
                cause: replica.cause.clone(),
                correction: self.residency.variant(variant).map_or(Correction::NONE, |v| v.run.correction),
                drifted: self.has_drifted(variant),
                signs: self.signs(self.now, device, variant).filter(|_| replica.state.serves()),
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
            let width = self.residency.device_ids().map(|d| self.residency.cut(d).serves_at(v)).min()?;
            Some(Offer { task: v.task, ordinal: v.ordinal, ready, run: v.run.told(), width })
        };
        self.residency.variants().filter_map(offer).collect()
    }

    /// Memory that replicas take on all devices, in quarantine included.
    pub fn memory_used(&self) -> Bytes {
        Bytes(self.residency.device_ids().map(|device| self.residency.used(device).0).sum())
    }

    /// Queries here that are not done: waiting, prepared or running.
    pub fn open(&self) -> usize {
        let in_batches = |lane: &Lane| {
            let batches = lane.running.iter().chain(lane.next.iter());
            batches
                .map(|batch| batch.members.iter().filter(|m| !m.gone && !m.is_asked_for()).count())
                .sum::<usize>()
        };
        self.queue.own()
            + self.aside.len()
            + self.quarantine.open()
            + self.all_lanes().map(in_batches).sum::<usize>()
    }

    /// Whether a drain is complete.
    pub fn drained(&self) -> bool {
        self.draining
            && self.queue.len() == 0
            && self.aside.len() == 0
            && self.quarantine.is_empty()
            && self.all_lanes().all(Lane::is_empty)
    }

    /// How many may be here of those that something in memory may answer.
    pub(super) fn credit(&self) -> u32 {
        // More than is bound, since the slot that falls free next is filled at once, so what fills it must be here: a batch for
        // each variant that it may be filled with. Were it one batch of all classes together, each variant would find a part.
        let needs = Needs { queue: &self.queue, rates: &self.rates, now: self.now };
        let batch = |v: &WorkerVariant| v.max_batch.clamp(1, CREDIT_A_LANE);
        let most = usize::from(self.config.foresight.pool);
        let pool = |device: DeviceIx| {
            let largest = self.residency.serving(device).map(batch).max().unwrap_or(1);
            let widest = needs.in_demand(&self.residency, device);
            let widest = widest.iter().filter_map(|id| self.residency.variant(*id));
            let mut batches: Vec<u32> = widest.map(batch).collect();
            batches.sort_unstable_by_key(|batch| core::cmp::Reverse(*batch));
            let one_each = batches.into_iter().take(most).sum::<u32>().max(largest);
            if self.is_pressed(self.now, device) { one_each.saturating_mul(BATCHES) } else { one_each }
        };
        let pools: BTreeMap<DeviceIx, u32> =
            self.residency.device_ids().map(|device| (device, pool(device))).collect();
        let credit = self.credit_of(|lane| pools.get(&lane.device).copied().unwrap_or(1));
        debug_assert!(credit <= self.most_credit(), "a credit of {credit} is more than the most");
        credit
    }

    /// The same where so many may be here for each lane beside what is bound to it.
    fn credit_of(&self, pool: impl Fn(&Lane) -> u32) -> u32 {
        let a_lane = |lane: &Lane| lane.on_credit().saturating_add(pool(lane));
        // What runs far too long, or on a server, takes no place of others.
        let beside = self.suspects.iter().chain(&self.ways).map(Lane::on_credit).sum::<u32>();
        if self.draining { 0 } else { self.lanes.iter().map(a_lane).fold(beside, u32::saturating_add) }
    }

    /// It is never more than this, which takes less to find.
    fn most_credit(&self) -> u32 {
        let batches = u32::from(self.config.foresight.pool).max(1) * BATCHES;
        self.credit_of(|_| batches.saturating_mul(CREDIT_A_LANE))
    }

    /// Whether it has nearly all that it may have: then it is not told of what comes to gateways.
    pub(super) fn is_at_credit(&self, now: Time) -> bool {
        // Where all that comes is announced it hears of everything.
        let twice = || u32::try_from(self.open()).unwrap_or(u32::MAX).saturating_mul(2);
        let has_all = |twice: u32| twice >= self.most_credit() || twice >= self.credit();
        !self.heard.is_told(now) && has_all(twice())
    }

    /// What goes back with every frame: credit and how long a new query would wait.
    pub fn report(&self, now: Time) -> NodeReport {
        let credit = self.credit();
        // Those that wait for a load, or stand behind what runs far too long, must not keep others from what is free.
        let held_up = |class: &Class| {
            !self.residency.device_ids().any(|device| self.per_query(device, class).is_some())
        };
        let stuck: usize = self.queue.own_classes().filter(|(class, _)| held_up(class)).map(|(_, n)| n).sum();
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
            made: Made { inputs: self.inputs, at: now },
            later: self.due_later(now),
            waits: if many { self.queue.classes().filter_map(of_class).collect() } else { Vec::new() },
        }
    }

    /// Of what waits, how much is due after moments that divide those who wait evenly. Whose device has it is not said of several.
    fn due_later(&self, now: Time) -> Later {
        let mut devices = self.residency.device_ids();
        let (Some(device), None) = (devices.next(), devices.next()) else { return Later::default() };
        if self.queue.len() < 2 {
            return Later::default(); // one who waits goes before or after whoever comes, which hardly matters
        }
        let lanes = self.lanes.iter().filter(|lane| lane.device == device).count();
        let lanes = f64::from(u32::try_from(lanes).unwrap_or(1).max(1));
        let each = |class: &Class| Some(self.per_query(device, class)?.mean * self.falls_here(class) / lanes);
        let each: Vec<(Class, f64)> =
            self.queue.classes().filter_map(|(class, _)| Some((*class, each(class)?))).collect();
        let after = |due: Time| {
            let takes = each.iter().map(|(class, each)| {
                each * f64::from(u32::try_from(self.queue.due_after(class, due)).unwrap_or(u32::MAX))
            });
            Moments { mean: takes.sum(), var: 0.0 }.mean()
        };
        let first = Step { due: Micros::ZERO, takes: after(now) };
        let moments = (1..STEPS).filter_map(|part| self.queue.due_at(part, STEPS - 1));
        // Whoever waits beyond his deadline stands behind others here, and says nothing of them.
        let mut last = now;
        let told = moments.filter(|due| {
            let is_next = *due > last;
            last = last.max(*due);
            is_next
        });
        let steps: Vec<Step> = told.map(|due| Step { due: due - now, takes: after(due) }).collect();
        Later::new(core::iter::once(first).chain(steps))
    }

    fn wait_on(&self, now: Time, device: DeviceIx) -> Moments {
        let lanes = self.lanes.iter().filter(|lane| lane.device == device);
        let count = f64::from(u32::try_from(lanes.clone().count()).unwrap_or(1).max(1));
        let free = lanes.map(|lane| lane.until_free(now) + self.held_up_for(now, lane));
        let mut wait = free.min_by(|a, b| a.mean.total_cmp(&b.mean)).unwrap_or(Moments::ZERO);
        for (class, waiting) in self.queue.classes() {
            if let Some(each) = self.per_query(device, class) {
                let waiting = f64::from(u32::try_from(waiting).unwrap_or(u32::MAX)) * self.falls_here(class);
                wait += each.times(waiting / count);
            }
        }
        wait
    }

    /// Whether something in memory may answer a class.
    pub(super) fn servable(&self, class: &Class) -> bool {
        self.residency.device_ids().any(|device| self.residency.serving(device).any(|v| admits(class, v)))
    }
}
