//! What the worker makes known: replicas, offers, credit, how long a query would wait.

use super::api::WorkerVariant;
use super::bind::admits;
use super::lanes::Lane;
use super::machine::Worker;
use crate::estimate::{Correction, Moments};
use crate::query::Class;
use crate::route::{Limit, Made, NodeReport, Offer, Ready};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{Bytes, DeviceIx, Micros, ReplicaState, Time, VariantId};

/// No credit larger than this many queries a lane, whatever the largest batch.
const CREDIT_A_LANE: u32 = 64;

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
}

impl Worker {
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
                drifted: self.has_drifted(variant),
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
            batches.map(|batch| batch.members.iter().filter(|m| !m.gone).count()).sum::<usize>()
        };
        self.queue.len() + self.quarantine.open() + self.lanes.iter().map(in_batches).sum::<usize>()
    }

    /// Whether a drain is complete.
    pub fn drained(&self) -> bool {
        self.draining
            && self.queue.len() == 0
            && self.quarantine.is_empty()
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
            made: Made { inputs: self.inputs, at: now },
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
    pub(super) fn servable(&self, class: &Class) -> bool {
        self.residency.device_ids().any(|device| self.residency.serving(device).any(|v| admits(class, v)))
    }
}
