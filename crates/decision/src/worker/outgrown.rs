//! What processes really hold, beside what their replicas count for.
//!
//! A replica counts for what it took when it was loaded, a small run included. Libraries keep what larger batches needed, so a node that
//! was full of small models by that count can hold several times its budget once all of them are busy. While all processes together
//! hold less than the node may, nothing follows from that. As soon as they hold more, each replica counts for what it holds, and what is
//! idle makes room as for a load. A next load begins with what a load takes.

use super::api::Event;
use super::machine::Worker;
use alloc::vec::Vec;
use modelless_types::{Bytes, ReplicaState, VariantId};

impl Worker {
    /// What is to be counted anew, given what each process holds now and which variants are in it, and what all of them may hold. Of several
    /// in one process the first counts for what none of them is known to have.
    pub fn outgrown(&self, held: &[(Vec<VariantId>, Bytes)], budget: Bytes) -> Vec<Event> {
        let all = held.iter().fold(0_u64, |all, (_, bytes)| all.saturating_add(bytes.0));
        if all <= budget.0 {
            return Vec::new();
        }
        let there = |state: ReplicaState| state.serves() || state == ReplicaState::Draining;
        let weighed = |(variants, bytes): &(Vec<VariantId>, Bytes)| {
            let replicas = self.residency.replicas();
            let mut inside =
                replicas.filter(|(_, id, replica)| variants.contains(id) && there(replica.state));
            let (device, variant, first) = inside.next()?;
            let others = inside.fold(0_u64, |others, (.., replica)| others.saturating_add(replica.holds().0));
            let memory = Bytes(bytes.0.saturating_sub(others));
            (memory > first.holds()).then_some(Event::Weighed { device, variant, memory })
        };
        held.iter().filter_map(weighed).collect()
    }
}
