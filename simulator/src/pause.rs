//! Nodes that stand still for a while: stopped, or without a processor, shell and devices alike.
//!
//! What comes to such a node stays where it came in and is heard in its order once it goes on; what was on a device takes as
//! much longer. So what its gateways know of it grows old, which no slow device shows. Gateways do not lose their
//! connections over it: pauses are to be shorter than it takes to find a node dead.

use crate::Error;
use crate::world::{Ev, World};
use modelless_decision::Rank;
use modelless_decision::worker::BatchId;
use modelless_types::Micros;

/// How a node stands still.
#[derive(Default)]
pub(crate) struct Pause {
    /// Pauses that are not over.
    open: u32,
    /// Microseconds that all of them take together, those that are not over included.
    stolen: u64,
    /// What came meanwhile.
    came: Vec<Ev>,
}

impl Pause {
    pub(crate) fn stolen(&self) -> u64 {
        self.stolen
    }
}

impl World<'_> {
    pub(crate) fn pause(&mut self, node: usize, length: Micros) {
        let pause = &mut self.nodes[node].pause;
        pause.open += 1;
        pause.stolen += length.0;
    }

    pub(crate) fn go_on(&mut self, node: usize) -> Result<(), Error> {
        let pause = &mut self.nodes[node].pause;
        pause.open = pause.open.saturating_sub(1);
        if pause.open > 0 {
            return Ok(());
        }
        core::mem::take(&mut pause.came).into_iter().try_for_each(|event| self.step(event))
    }

    /// Keeps what a node that stands still would have to do; gives everything else back.
    pub(crate) fn unless_paused(&mut self, event: Ev) -> Option<Ev> {
        let node = match &event {
            Ev::ToNode { node, .. }
            | Ev::Decoded { node, .. }
            | Ev::Prepared { node, .. }
            | Ev::Loaded { node, .. }
            | Ev::Unloaded { node, .. }
            | Ev::Judged { node, .. }
            | Ev::QuarantineEnded { node, .. }
            | Ev::Heartbeat { node, .. }
            | Ev::Beat { node, .. }
            | Ev::Shared { node, .. }
            | Ev::GatewayLost { node, .. }
            | Ev::NodeTimer { node, .. } => *node,
            // The end of a batch is put off by `still_owed`; the rest happens elsewhere.
            Ev::Ran { .. }
            | Ev::Offer { .. }
            | Ev::GiveUp { .. }
            | Ev::FromNode { .. }
            | Ev::NewTable
            | Ev::Look
            | Ev::Plan
            | Ev::Hire
            | Ev::Started { .. }
            | Ev::Fault { .. }
            | Ev::FaultOver { .. }
            | Ev::NodeLost { .. }
            | Ev::GatewayTimer { .. } => return Some(event),
        };
        let pause = &mut self.nodes[node].pause;
        if pause.open == 0 {
            return Some(event);
        }
        pause.came.push(event);
        None
    }

    /// Whether a batch has lost time on its device to pauses, and ends that much later.
    pub(crate) fn still_owed(&mut self, node: usize, id: BatchId) -> bool {
        let stolen = self.nodes[node].pause.stolen;
        let life = self.nodes[node].life;
        let Some(batch) = self.nodes[node].batches.get_mut(&id) else { return false };
        let owed = stolen - core::mem::replace(&mut batch.stolen, stolen);
        if owed == 0 {
            return false;
        }
        self.push(self.now + Micros(owed), Rank::Completion, Ev::Ran { node, life, batch: id });
        true
    }
}
