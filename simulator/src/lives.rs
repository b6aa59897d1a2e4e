//! Nodes that come and go.

use crate::Error;
use crate::node::Node;
use crate::world::{Ev, World};
use modelless_decision::Rank;
use modelless_decision::worker::{Event, Worker};
use modelless_types::{DeviceIx, VariantId};

impl World<'_> {
    /// A node is gone with all it had.
    pub(crate) fn node_down(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.up {
            return;
        }
        node.up = false;
        let life = node.life;
        node.life += 1;
        for gateway in 0..self.gateways.len() {
            let epoch = self.gateways[gateway].epoch;
            let seen = self.now + self.scenario.detect;
            self.push(seen, Rank::Completion, Ev::NodeLost { gateway, epoch, node: at, life });
        }
    }

    /// A node starts, with nothing in memory.
    pub(crate) fn node_up(&mut self, at: usize) -> Result<(), Error> {
        let old = &self.nodes[at];
        let spec = &self.scenario.nodes[at];
        let worker = Worker::new(spec.worker.clone());
        self.nodes[at] = Node::new(old.id, old.life + 1, worker, old.info.clone());
        self.feed_worker(at, Event::Catalog(self.scenario.catalog(&spec.class)))?;
        self.pin(at, &spec.pinned)?;
        let life = self.nodes[at].life;
        self.push_idle(self.now, Ev::Heartbeat { node: at, life });
        self.push_idle(self.now, Ev::Beat { node: at, life });
        self.refresh_table();
        Ok(())
    }

    pub(crate) fn pin(&mut self, at: usize, variants: &[VariantId]) -> Result<(), Error> {
        let pins = variants.iter().map(|variant| (DeviceIx(0), *variant)).collect();
        self.feed_worker(at, Event::Pin(pins))
    }
}
