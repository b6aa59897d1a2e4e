//! Batches that take no place of their lane: those that run far too long take as long as they take, whatever runs beside them, and
//! those that a server computes are apart from it.

use super::{Batch, Node};
use crate::Error;
use crate::check::ensure;
use crate::world::World;
use modelless_decision::worker::{BatchId, LaneIx};
use modelless_types::{DeviceIx, Engine};

impl Batch {
    /// It goes to a server: it left the lane when it was prepared.
    pub(super) fn is_apart(&self) -> bool {
        self.prepared && self.runner.1 == Engine::Remote
    }
}

impl Node {
    /// How many batches hold a lane, or are bound to it.
    pub(super) fn on_lane(&self, device: DeviceIx, lane: LaneIx) -> usize {
        let there = self.batches.iter().filter(|(_, b)| (b.device, b.lane) == (device, lane) && !b.ended);
        there.filter(|(id, b)| !b.is_apart() && !self.suspected.contains(id)).count()
    }
}

impl World<'_> {
    pub(super) fn suspect(&mut self, at: usize, batch: BatchId) -> Result<(), Error> {
        let node = &mut self.nodes[at];
        let runs = node.batches.get(&batch).filter(|b| b.started && !b.ended);
        let place = runs.map(|b| (b.device, b.lane, b.runner));
        ensure(place.is_some(), self.now, "what is suspected runs", || format!("{batch:?}"))?;
        // What was handed over behind it goes with it.
        let theirs = |b: &Batch| b.started && Some((b.device, b.lane, b.runner)) == place;
        let theirs = node.batches.iter().filter(|(_, b)| theirs(b));
        node.suspected.extend(theirs.map(|(id, _)| *id));
        Ok(())
    }
}
