//! What leaves memory because somebody asked for that.

use super::Residency;
use crate::replica::ReplicaEvent;
use crate::worker::api::{Action, UNLOADED};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, ReplicaState, Time, VariantId};

/// How long what the plan pins stays away: long enough to do something else with its memory, and no longer than a plan can
/// be without what it counts on.
const KEPT_OUT: Micros = Micros::from_secs(60);

impl Residency {
    /// Somebody wants it out of memory. A query that needs it has it loaded again, and so have those that wait already; what the
    /// plan pins comes back by itself after a while.
    pub(in crate::worker) fn unwanted(
        &mut self,
        now: Time,
        variant: VariantId,
        actions: &mut VecDeque<Action>,
    ) {
        for device in self.device_ids() {
            let at = self.device_mut(device);
            if at.pinned.contains(&variant) {
                at.kept_out.insert(variant, now + KEPT_OUT);
            }
            let before = at.wanted.len();
            at.wanted.retain(|wanted| wanted.variant != variant);
            if at.wanted.len() < before {
                self.changes += 1; // who waits for it looks again
            }
            self.let_go(device, variant, UNLOADED, actions);
        }
    }

    /// What is in memory, or on its way there, leaves once it has finished what it has.
    pub(super) fn let_go(
        &mut self,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let Some((state, busy)) = self.replica_mut(device, variant).map(|r| (r.state, r.busy)) else {
            return;
        };
        if !state.serves() && state != ReplicaState::Loading {
            return;
        }
        self.step(device, variant, ReplicaEvent::Unwanted, why, actions);
        if state.serves() && busy == 0 {
            actions.push_back(Action::Unload { device, variant });
        }
    }

    /// When something may come back.
    pub(in crate::worker) fn next_return(&self) -> Option<Time> {
        self.devices.iter().flat_map(|device| device.kept_out.values()).copied().min()
    }

    /// What has been away long enough comes back.
    pub(in crate::worker) fn bring_back(&mut self, now: Time) {
        let over = |at: &DeviceIx| self.device(*at).kept_out.values().any(|until| *until <= now);
        let due: Vec<DeviceIx> = self.device_ids().filter(over).collect();
        for device in due {
            self.device_mut(device).kept_out.retain(|_, until| *until > now);
            self.want_pinned(now, device);
        }
    }
}
