//! The quarantine runner's part of a device's memory.
//!
//! What is in quarantine counts like a replica: it comes in when there is room, which is made by the rules for any load,
//! and what it is waiting for is kept free of other loads. It goes first because it is short and because what it needs
//! has just become free by a crash: on a device that holds a model once, the model comes back when quarantine is over.

use super::Residency;
use super::room::{Press, Room};
use crate::worker::api::Action;
use crate::worker::needs::Needs;
use alloc::collections::VecDeque;
use modelless_types::{Bytes, DeviceIx, Micros, Time, VariantId};

/// What is to come into a quarantine runner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) struct Claim {
    pub(in crate::worker) variant: VariantId,
    /// Since when somebody waits for it.
    pub(in crate::worker) since: Time,
}

impl Residency {
    /// Room is kept for what is to come into a device's quarantine runner.
    pub(in crate::worker) fn claim(&mut self, device: DeviceIx, claim: Option<Claim>) {
        self.device_mut(device).claim = claim;
    }

    /// The device's quarantine runner is out of memory.
    pub(in crate::worker) fn ward_left(&mut self, device: DeviceIx) {
        self.device_mut(device).ward = Bytes(0);
    }

    /// Takes room for a variant in the device's quarantine runner, or makes some. What the runner holds leaves first.
    pub(in crate::worker) fn ward_room(
        &mut self,
        now: Time,
        device: DeviceIx,
        claim: Claim,
        needs: Needs,
        actions: &mut VecDeque<Action>,
    ) -> Room {
        let memory = self.ward_needs(claim.variant);
        let press = if self.firm_claim(claim) <= now { Press::Last } else { Press::Gentle };
        let before = core::mem::take(&mut self.device_mut(device).ward);
        self.device_mut(device).claim = None;
        let room = self.make_room(now, device, memory, press, needs, actions);
        // What loads now can be sent away afterwards.
        let loading = !self.device(device).line.is_empty();
        let room = if room == Room::Never && loading { Room::Later } else { room };
        self.device_mut(device).ward = if room == Room::Made { memory } else { before };
        room
    }

    /// What a variant needs in a device's quarantine runner, and what there is beside what the plan pins.
    pub(in crate::worker) fn ward_budget(&self, device: DeviceIx, variant: VariantId) -> (Bytes, Bytes) {
        let pinned = self.device(device).replicas.iter();
        let pinned = pinned.filter(|(id, r)| r.state.serves() && self.device(device).pinned.contains(id));
        let pinned: u64 = pinned.map(|(_, r)| r.holds().0).sum();
        let budget = Bytes(self.device(device).memory.0.saturating_sub(pinned));
        (self.ward_needs(variant), budget)
    }

    /// What is kept free for it, besides what the quarantine runner holds and gives up first.
    pub(super) fn claimed(&self, device: DeviceIx) -> Bytes {
        let device = self.device(device);
        let claimed = device.claim.map_or(Bytes(0), |claim| self.ward_needs(claim.variant));
        Bytes(claimed.0.saturating_sub(device.ward.0))
    }

    /// Whether a quarantine runner takes room of the device, or is about to.
    pub(super) fn quarantines(&self, device: DeviceIx) -> bool {
        let device = self.device(device);
        device.ward > Bytes(0) || device.claim.is_some()
    }

    /// From when on what waits for a device's quarantine runner makes those leave that are never idle.
    pub(super) fn claim_firm_from(&self, device: DeviceIx) -> Option<Time> {
        self.device(device).claim.map(|claim| self.firm_claim(claim))
    }

    fn firm_claim(&self, claim: Claim) -> Time {
        claim.since + self.variants.get(&claim.variant).map_or(Micros::ZERO, |v| v.load_time)
    }

    /// A quarantine runner serves one lane, so it takes this at most.
    fn ward_needs(&self, variant: VariantId) -> Bytes {
        self.variants.get(&variant).map_or(Bytes(0), |v| v.memory)
    }
}
