//! What leaves memory because nobody needed it for as long as its task is kept.
//!
//! What the plan pins stays, whatever its task says: a task that nobody asks for is put to sleep by the plan, which then pins nothing of it.

use super::Residency;
use crate::words::span;
use crate::worker::api::Action;
use crate::worker::needs::Needs;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Time, VariantId};

impl Residency {
    /// What is not pinned and does nothing, with when it will have been kept long enough.
    fn kept(&self) -> impl Iterator<Item = (DeviceIx, VariantId, Time)> {
        self.replicas().filter_map(|(device, id, replica)| {
            let keep = self.variants.get(&id)?.keep?;
            let idle = replica.state.serves() && replica.busy == 0 && !self.pinned(device, id);
            idle.then_some((device, id, replica.used + keep))
        })
    }

    /// Those leave that have been kept long enough, unless somebody waits for them.
    pub(in crate::worker) fn let_idle_go(&mut self, now: Time, needs: Needs, actions: &mut VecDeque<Action>) {
        let due: Vec<(DeviceIx, VariantId)> =
            self.kept().filter(|(.., until)| *until <= now).map(|(device, id, _)| (device, id)).collect();
        for (device, id) in due {
            if needs.queued(self, device).contains(&id) {
                continue;
            }
            let Some(keep) = self.variants.get(&id).and_then(|known| known.keep) else { continue };
            let used = self.device(device).replicas.get(&id).map_or(now, |replica| replica.used);
            let why = format!(
                "nothing ran on it for {}, its task is kept for {}, and no plan pins it",
                span(now - used),
                span(keep)
            );
            self.let_go(device, id, &why, actions);
        }
    }

    /// When the next one will have been kept long enough.
    pub(in crate::worker) fn next_idle(&self, now: Time) -> Option<Time> {
        self.kept().map(|(.., until)| until).filter(|until| *until > now).min()
    }
}
