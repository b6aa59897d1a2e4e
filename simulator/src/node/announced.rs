//! What is announced to a node, and what it claims.

use super::FromNode;
use crate::Error;
use crate::world::World;
use modelless_decision::worker::Event;
use modelless_types::QueryKey;
use std::collections::BTreeMap;

impl World<'_> {
    /// A node asks for queries, each at the gateway that announced it.
    pub(super) fn claim(
        &mut self,
        at: usize,
        queries: &[QueryKey],
        lanes: u16,
        frames: &mut Vec<(usize, u32, FromNode)>,
    ) {
        let mut at_gateways: BTreeMap<(usize, u32), Vec<QueryKey>> = BTreeMap::new();
        for key in queries {
            if let Some(from) = self.nodes[at].heard.get(key) {
                at_gateways.entry(*from).or_default().push(*key);
            }
        }
        self.claims += queries.len() as u64;
        let frame = |((gateway, epoch), queries)| (gateway, epoch, FromNode::Claim { queries, lanes });
        frames.extend(at_gateways.into_iter().map(frame));
    }

    /// A query that was announced to a node is not to be had any more.
    pub(super) fn withdrawn(&mut self, at: usize, key: QueryKey) -> Result<(), Error> {
        match self.nodes[at].heard.remove(&key) {
            Some(_) => self.feed_worker(at, Event::Cancel { key }),
            None => Ok(()),
        }
    }

    /// A gateway is gone, and what it announced with it.
    pub(super) fn hears_no_more_of(&mut self, at: usize, from: (usize, u32)) -> Result<(), Error> {
        let theirs = self.nodes[at].heard.iter().filter(|(_, by)| **by == from);
        let keys: Vec<QueryKey> = theirs.map(|(key, _)| *key).collect();
        keys.into_iter().try_for_each(|key| self.withdrawn(at, key))
    }
}
