//! Replicas under pressure: *overloaded* when their queue cannot drain in time, *interfered* when they are slower than
//! their profile though it could.

use super::Residency;
use crate::replica::ReplicaEvent;
use crate::worker::api::Action;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, ReplicaState, Time, VariantId};

/// So long without a sign of overload it is over.
const CALM: Micros = Micros::from_secs(1);
/// Slower than the profile by this much is interference, and no longer when it is below the second.
const SLOW: f64 = 1.5;
const WELL: f64 = 1.2;
/// Batches seen before it is said.
const SEEN: u32 = 10;

impl Residency {
    /// A batch of it was bound, and what waits behind cannot drain in time.
    pub(in crate::worker) fn overloaded(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        actions: &mut VecDeque<Action>,
    ) {
        if self.state(device, variant) == ReplicaState::Active {
            let cause = "what waits for it cannot be done in time";
            self.step(device, variant, ReplicaEvent::QueueGrew, cause, actions);
        }
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.calm_at = now + CALM;
        }
    }

    /// What was overloaded and is not any more.
    pub(in crate::worker) fn calm(&mut self, now: Time, actions: &mut VecDeque<Action>) {
        let over =
            self.replicas().filter(|(_, _, r)| r.state == ReplicaState::Overloaded && r.calm_at <= now);
        let over: Vec<_> = over.map(|(device, variant, _)| (device, variant)).collect();
        for (device, variant) in over {
            self.step(device, variant, ReplicaEvent::QueueDrained, "its queue drains in time again", actions);
        }
    }

    /// When the next one may be.
    pub(in crate::worker) fn next_calm(&self) -> Option<Time> {
        let overloaded = self.replicas().filter(|(_, _, r)| r.state == ReplicaState::Overloaded);
        overloaded.map(|(_, _, r)| r.calm_at).min()
    }

    /// Compares what was seen of every replica with its profile.
    pub(in crate::worker) fn compare(&mut self, actions: &mut VecDeque<Action>) {
        let changed = |(device, variant, replica): (DeviceIx, VariantId, &super::Replica)| {
            let correction = self.variants.get(&variant)?.run.correction;
            let slow = correction.ratio >= SLOW && correction.samples >= SEEN;
            let (changes, event, cause) = if replica.state == ReplicaState::Active {
                let cause = "it is slower than its profile though its load is below capacity";
                (slow, ReplicaEvent::SlowedDown, cause)
            } else {
                (correction.ratio < WELL, ReplicaEvent::SpedUp, "it is as fast as its profile again")
            };
            let can = matches!(replica.state, ReplicaState::Active | ReplicaState::Interfered);
            (can && changes).then_some((device, variant, event, cause))
        };
        let changed: Vec<_> = self.replicas().filter_map(changed).collect();
        for (device, variant, event, cause) in changed {
            self.step(device, variant, event, cause, actions);
        }
    }
}
