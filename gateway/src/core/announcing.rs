//! Queries that nodes may claim: told to each of them without their input, which stays here until one asks.

use super::Core;
use modelless_types::{Micros, NodeId, QueryKey};
use modelless_wire::{Announcement, ToNode};

impl Core {
    /// Tells a node of a query, with the part of its class that would be the node's, and how long the quickest other takes. Of one that ended this
    /// moment nothing is told: who ended it tells the router, which takes back what was announced.
    pub(super) fn announce(&self, key: QueryKey, node: NodeId, (part_ppm, quickest): (u32, Micros)) {
        let Some(query) = self.pending.query(key) else { return };
        let now = self.driver.clock().now();
        let told = Announcement {
            key,
            tenant: query.tenant,
            app: query.app,
            class: query.class,
            deadline_in: query.deadline - now,
            expires_in: query.expires - now,
            spent: now - query.arrived,
            max_cost: query.max_cost,
            prefer: query.prefer,
            priority: query.priority,
            best_effort: query.best_effort,
            decoded: query.bytes,
            part_ppm,
            quickest,
        };
        self.metrics.announced();
        self.to_node(node, ToNode::Announce(Box::new(told)));
    }
}
