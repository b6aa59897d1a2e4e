//! Queries that gateways announce to a node, and what it claims of them.

use super::Hub;
use crate::lost::Nonsense;
use crate::peers::{Peer, qualified, unqualified};
use crate::seam::{Announcement, Body};
use modelless_types::{Micros, QueryKey};
use std::collections::BTreeMap;
use std::sync::PoisonError;

impl Hub {
    /// What a gateway announces, as the node is told it; nothing of what the gateway has sent since, by another of its threads.
    pub(super) fn announced(
        peer: &Peer,
        told: Announcement,
        (late, way): (Micros, Micros),
    ) -> Result<Option<Announcement>, Nonsense> {
        if !peer.state().announces(told.key)? {
            return Ok(None);
        }
        // As with what is sent: what the way here took is gone already, and the way back must be left.
        let (gone, needed) = (late + way, late + way + way);
        Ok(Some(Announcement {
            key: qualified(peer.number, told.key),
            deadline_in: told.deadline_in.saturating_sub(needed),
            expires_in: told.expires_in.saturating_sub(needed),
            spent: told.spent + gone,
            ..told
        }))
    }

    /// The node asks for queries, each at the gateway that announced it. Of one that was sent or taken back meanwhile it hears anyway.
    pub(super) fn claim(&self, queries: Vec<QueryKey>, lanes: u16) {
        let mut of: BTreeMap<u32, Vec<QueryKey>> = BTreeMap::new();
        for key in queries {
            let (number, key) = unqualified(key);
            of.entry(number).or_default().push(key);
        }
        for (number, queries) in of {
            let peer = self.peers.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
            let Some(peer) = peer else { continue };
            let queries = peer.state().still_announced(queries);
            if !queries.is_empty() {
                self.tell(&peer, Body::Claim { queries, lanes });
            }
        }
    }
}
