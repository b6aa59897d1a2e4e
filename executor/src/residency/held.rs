//! What runners really hold, beside what their replicas count for.
//!
//! A replica counts for what it took when it was loaded, a small run included. Libraries keep what larger batches needed, so a node that
//! was full of small models by that count can hold several times its budget once all of them are busy. While all processes together
//! hold less than the node may, nothing follows from that. As soon as they hold more, each replica counts for what it holds, and what is
//! idle makes room as for a load. A next load begins with what a load takes.

use crate::core::Handle;
use modelless_decision::worker::Event;
use modelless_types::{Bytes, ReplicaState};

impl Handle {
    pub(crate) fn weigh_what_is_held(&self) {
        let held = self.engine().held();
        let all = Bytes(held.iter().map(|(_, bytes)| bytes.0).sum());
        let budget = self.config().memory;
        if all <= budget {
            return;
        }
        let there = |state: ReplicaState| state.serves() || state == ReplicaState::Draining;
        let mut replicas = self.core().driver.look(|worker, _| worker.replicas());
        replicas.retain(|replica| there(replica.state));
        for (variants, bytes) in held {
            let mut inside = replicas.iter().filter(|replica| variants.contains(&replica.variant));
            let counted: u64 = inside.clone().map(|replica| replica.memory.0).sum();
            let Some(first) = inside.next().filter(|_| bytes.0 > counted) else { continue };
            let memory = first.memory + Bytes(bytes.0 - counted);
            tracing::info!(variant = %first.variant, %memory, was = %first.memory, %all, %budget, "batches left more in memory than the node may hold");
            self.feed(Event::Weighed { device: first.device, variant: first.variant, memory });
        }
    }
}
