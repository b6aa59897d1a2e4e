//! What there is to run, and what the plan wants in memory.

use super::Residency;
use crate::worker::api::{Action, WorkerVariant};
use crate::worker::times::Times;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, ReplicaState, Time, VariantId};

impl Residency {
    /// The plan's set: those missing are wanted; those no longer in it stay until their room is needed.
    pub(in crate::worker) fn pin(&mut self, now: Time, pins: &[(DeviceIx, VariantId)]) {
        for device in self.device_ids() {
            let set = pins.iter().filter(|(at, _)| *at == device).map(|(_, variant)| *variant).collect();
            let at = self.device_mut(device);
            let before = core::mem::replace(&mut at.pinned, set);
            // What was pinned already stays out as long as it was to.
            at.kept_out.retain(|id, _| before.contains(id) && at.pinned.contains(id));
            self.want_pinned(now, device);
        }
    }

    pub(super) fn want_pinned(&mut self, now: Time, device: DeviceIx) {
        let at = self.device(device);
        let pinned: Vec<VariantId> = at
            .pinned
            .iter()
            .copied()
            .filter(|id| at.kept_out.get(id).is_none_or(|until| *until <= now))
            .collect();
        for variant in pinned {
            self.want(now, device, variant);
        }
    }

    /// What can be run changed: new ones are known, those gone are drained, corrections of the others stay, and so does what their loads
    /// took, except of those that were measured again. Which these are.
    pub(in crate::worker) fn catalog(
        &mut self,
        now: Time,
        variants: Vec<WorkerVariant>,
        actions: &mut VecDeque<Action>,
    ) -> Vec<VariantId> {
        let mut old = core::mem::take(&mut self.variants);
        let mut remeasured = Vec::new();
        for mut variant in variants {
            if let Some(known) = old.remove(&variant.id) {
                let same = variant.run.inherit(&known.run);
                if !same {
                    remeasured.push(variant.id);
                    self.timed.remove(&variant.id);
                }
                if self.timed.contains(&variant.id) {
                    variant.load_time = known.load_time;
                }
                variant.memory = known.memory.max(variant.memory);
            }
            self.variants.insert(variant.id, variant);
        }
        self.timed.retain(|id| self.variants.contains_key(id));
        self.times = self.variants.iter().map(|(id, variant)| (*id, Times::new(variant))).collect();
        self.lend();
        self.index = self.variants.values().map(|v| ((v.task, v.ordinal), v.id)).collect();
        self.changes += 1;
        let give_up_after = self.give_up_after;
        for device in self.device_ids() {
            for &gone in old.keys() {
                self.let_go(device, gone, "removed from the catalogue", actions);
                if matches!(self.state(device, gone), ReplicaState::Failed | ReplicaState::Inactive) {
                    self.device_mut(device).replicas.remove(&gone);
                }
            }
            // A changed catalogue gives what was given up another chance.
            for replica in self.device_mut(device).replicas.values_mut() {
                if replica.state == ReplicaState::Failed && replica.failures >= give_up_after {
                    replica.rest_until = now;
                    replica.failures = 0;
                }
            }
            self.want_pinned(now, device);
        }
        remeasured
    }
}
