//! Failures: rest, restart, give up, try again.

use super::{Replica, Residency};
use crate::replica::ReplicaEvent;
use crate::worker::api::{Action, Runner, WorkerVariant};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, ModelId, ReplicaState, Time, VariantId};

/// The longest that a failed replica rests.
const LONGEST_REST: Micros = Micros::from_secs(60);

fn doubled(back_off: Micros, times: u32) -> Micros {
    Micros(back_off.0.saturating_mul(1 << times.saturating_sub(1).min(16))).min(LONGEST_REST)
}

impl Replica {
    /// It comes back only by way of quarantine.
    fn barred(&self) -> bool {
        self.wary && self.state == ReplicaState::Failed
    }
}

impl Residency {
    pub(in crate::worker) fn load_failed(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        self.device_mut(device).line.ended(variant);
        let event = match self.state(device, variant) {
            ReplicaState::Loading => ReplicaEvent::LoadFailed,
            ReplicaState::Draining => ReplicaEvent::Crashed,
            ReplicaState::Inactive
            | ReplicaState::Active
            | ReplicaState::Overloaded
            | ReplicaState::Interfered
            | ReplicaState::Failed => return,
        };
        let rests = event == ReplicaEvent::LoadFailed;
        self.fail(now, device, variant, event, rests, why, actions);
    }

    #[expect(clippy::too_many_arguments, reason = "a failure is all of these")]
    pub(super) fn fail(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        event: ReplicaEvent,
        rests: bool,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let back_off = self.back_off;
        let mut rest = Micros::ZERO;
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.lost = false;
            replica.failures = replica.failures.saturating_add(1);
            // A first crash may have been anything, so it restarts at once; what would not load will not a moment later.
            let times = replica.failures - u32::from(!rests);
            rest = if times == 0 { Micros::ZERO } else { doubled(back_off, times) };
            replica.rest_until = now + rest;
            replica.why_failed = why.into();
        }
        self.step(device, variant, event, why, actions);
        if rest == Micros::ZERO {
            self.step(device, variant, ReplicaEvent::BackedOff, "restarts at once after a crash", actions);
            self.want_pinned(now, device);
        }
    }

    /// A batch of it ended well: what failed before is over.
    pub(in crate::worker) fn ran_well(&mut self, device: DeviceIx, variant: VariantId) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.failures = 0;
            replica.wary = false;
        }
    }

    /// Whether it failed so often that only one query at a time may try it.
    pub(in crate::worker) fn on_trial(&self, device: DeviceIx, variant: VariantId) -> bool {
        let replica = self.device(device).replicas.get(&variant);
        replica.is_some_and(|r| r.failures >= self.give_up_after)
    }

    /// Whether a query is trying it now.
    pub(in crate::worker) fn tried(&self, device: DeviceIx, variant: VariantId) -> bool {
        let busy = self.device(device).replicas.get(&variant).is_some_and(|r| r.busy > 0);
        busy && self.on_trial(device, variant)
    }

    /// So many crashes of a runner were pinned on inputs: they do not count.
    pub(in crate::worker) fn pardon(&mut self, now: Time, runner: Runner, crashes: u32) {
        let theirs: BTreeSet<VariantId> =
            self.variants.values().filter(|v| v.runner() == runner).map(|v| v.id).collect();
        for device in &mut self.devices {
            let replicas = device.replicas.iter_mut().filter(|(id, _)| theirs.contains(id));
            for (_, replica) in replicas {
                replica.failures = replica.failures.saturating_sub(crashes);
                if replica.state == ReplicaState::Failed {
                    replica.rest_until = now;
                }
            }
        }
    }

    /// What was in a process of a model: all of it, if it is not said.
    pub(in crate::worker) fn in_runner(
        &self,
        model: ModelId,
        said: Option<Vec<VariantId>>,
    ) -> Vec<VariantId> {
        let of_model = || self.variants.values().filter(|v| v.model == model).map(|v| v.id).collect();
        said.unwrap_or_else(of_model)
    }

    /// The runners that some variants share, each once.
    pub(in crate::worker) fn runners_of(&self, variants: &[VariantId]) -> BTreeSet<Runner> {
        variants.iter().filter_map(|id| self.variants.get(id)).map(WorkerVariant::runner).collect()
    }

    /// The server that it is on did not answer. It leaves memory and rests, so that it is its next load and no batch that
    /// finds out whether the server is back.
    pub(in crate::worker) fn unreached(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let back_off = self.back_off;
        let serves = self.state(device, variant).serves();
        if let Some(replica) = self.replica_mut(device, variant).filter(|_| serves) {
            replica.failures = replica.failures.saturating_add(1);
            replica.rest_until = now + doubled(back_off, replica.failures);
            replica.why_failed = why.into();
            replica.lost = true;
            self.step(device, variant, ReplicaEvent::Unwanted, why, actions);
        }
    }

    /// A batch of it hung, whose process is gone: it is not tried on a lane again before it ran well in quarantine, since
    /// each try would keep everybody else on the lane waiting.
    pub(in crate::worker) fn hung(&mut self, device: DeviceIx, variant: VariantId) {
        if let Some(replica) = self.replica_mut(device, variant) {
            replica.wary = replica.state == ReplicaState::Failed;
        }
    }

    /// What hung and has rested since, so that a query may try it in quarantine.
    pub(in crate::worker) fn to_be_tried(&self, now: Time) -> Vec<(DeviceIx, VariantId)> {
        let rested = self.replicas().filter(|(_, _, r)| r.barred() && r.rest_until <= now);
        rested.map(|(device, variant, _)| (device, variant)).collect()
    }

    /// Whether the plan wants it in memory.
    pub(in crate::worker) fn pinned(&self, device: DeviceIx, variant: VariantId) -> bool {
        self.device(device).pinned.contains(&variant)
    }

    /// What hung ran well in quarantine: it comes back.
    pub(in crate::worker) fn proven(&mut self, now: Time, device: DeviceIx, variant: VariantId) {
        if let Some(replica) = self.replica_mut(device, variant).filter(|r| r.barred()) {
            replica.wary = false;
            replica.rest_until = now;
            self.changes += 1;
        }
    }

    /// It was tried in quarantine, and failed again.
    pub(in crate::worker) fn still_fails(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
    ) {
        let back_off = self.back_off;
        if let Some(replica) = self.replica_mut(device, variant).filter(|r| r.barred()) {
            replica.failures = replica.failures.saturating_add(1);
            replica.rest_until = now + doubled(back_off, replica.failures);
            replica.why_failed = why.into();
            self.changes += 1;
        }
    }

    /// A process is gone, and every replica in it.
    pub(in crate::worker) fn runner_died(
        &mut self,
        now: Time,
        dead: &[VariantId],
        why: &str,
        hung: bool,
        actions: &mut VecDeque<Action>,
    ) {
        for device in self.device_ids() {
            for &variant in dead {
                let state = self.state(device, variant);
                // One that is loading is reported by its own failed load.
                if state.serves() || state == ReplicaState::Draining {
                    self.fail(now, device, variant, ReplicaEvent::Crashed, hung, why, actions);
                }
            }
        }
    }

    /// A replica turned out to be gone when a batch was to be given to it; its process's death will be told too, later.
    pub(in crate::worker) fn lost(
        &mut self,
        now: Time,
        device: DeviceIx,
        variant: VariantId,
        why: &str,
        actions: &mut VecDeque<Action>,
    ) {
        let state = self.state(device, variant);
        if state.serves() || state == ReplicaState::Draining {
            self.fail(now, device, variant, ReplicaEvent::Crashed, false, why, actions);
        }
    }

    /// When the next failed replica may be tried again.
    pub(in crate::worker) fn next_rest_over(&self, now: Time) -> Option<Time> {
        // What has rested and is barred waits for a query, not for time.
        let failed = self.replicas().filter(|(_, _, r)| r.state == ReplicaState::Failed);
        failed.filter(|(_, _, r)| !r.barred() || r.rest_until > now).map(|(_, _, r)| r.rest_until).min()
    }

    pub(in crate::worker) fn rested(&mut self, now: Time, actions: &mut VecDeque<Action>) {
        let over: Vec<_> = self
            .replicas()
            .filter(|(_, _, r)| r.state == ReplicaState::Failed && !r.barred() && r.rest_until <= now)
            .map(|(device, variant, _)| (device, variant))
            .collect();
        for (device, variant) in over {
            self.step(device, variant, ReplicaEvent::BackedOff, "rested after a failure", actions);
            self.want_pinned(now, device);
        }
    }
}
