//! What is remembered of replicas under pressure. Whether they are is decided in [`crate::replica::judge`].

use super::Residency;
use crate::replica::{self, ReplicaEvent};
use crate::worker::api::Action;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, ReplicaState, Time, VariantId};

/// Signs of trouble of one replica, by when they were seen.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct Trouble {
    /// A batch was bound behind which something would be late.
    pub(in crate::worker) late: Option<Time>,
    /// It was slower than what is well.
    pub(in crate::worker) slow: Option<Time>,
    /// A batch of it ended.
    pub(in crate::worker) ran: Option<Time>,
    /// It was well again.
    left: Option<Time>,
    /// How often it fell back soon after.
    pub(in crate::worker) relapses: u8,
    /// When to look again, while it is in trouble.
    look: Time,
}

const fn in_trouble(state: ReplicaState) -> bool {
    matches!(state, ReplicaState::Overloaded | ReplicaState::Interfered)
}

impl Residency {
    pub(in crate::worker) fn trouble(&self, device: DeviceIx, variant: VariantId) -> Option<Trouble> {
        self.device(device).replicas.get(&variant).map(|replica| replica.trouble)
    }

    pub(in crate::worker) fn note(
        &mut self,
        device: DeviceIx,
        variant: VariantId,
        note: impl FnOnce(&mut Trouble),
    ) {
        if let Some(replica) = self.replica_mut(device, variant) {
            note(&mut replica.trouble);
        }
    }

    /// A replica's trouble begins or is over.
    pub(in crate::worker) fn turn(
        &mut self,
        now: Time,
        (device, variant): (DeviceIx, VariantId),
        event: ReplicaEvent,
        calm: Micros,
        because: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let over = matches!(event, ReplicaEvent::QueueDrained | ReplicaEvent::SpedUp);
        self.note(device, variant, |trouble| {
            if over {
                trouble.left = Some(now);
            } else if trouble.left != Some(now) {
                // One trouble that turns out to be the other is not a second one.
                let fell_back = trouble.left.is_some_and(|left| replica::fell_back(now - left, calm));
                trouble.relapses = if fell_back { trouble.relapses.saturating_add(1) } else { 0 };
            }
        });
        self.step(device, variant, event, because, actions);
    }

    /// It is looked at again after so long, while it is in trouble.
    pub(in crate::worker) fn look_again(&mut self, device: DeviceIx, variant: VariantId, at: Time) {
        self.note(device, variant, |trouble| trouble.look = at);
    }

    /// Replicas in trouble; those that are to be looked at by then.
    pub(in crate::worker) fn troubled(&self, by: Time) -> Vec<(DeviceIx, VariantId)> {
        let due = self.replicas().filter(|(_, _, r)| in_trouble(r.state) && r.trouble.look <= by);
        due.map(|(device, variant, _)| (device, variant)).collect()
    }

    /// When the next one is to be looked at.
    pub(in crate::worker) fn next_look(&self) -> Option<Time> {
        let troubled = self.replicas().filter(|(_, _, r)| in_trouble(r.state));
        troubled.map(|(_, _, r)| r.trouble.look).min()
    }
}
