//! What a node lacks, from the gateways that are connected to it.

use super::{Hub, Peer};
use crate::shelf::Piece;
use std::sync::{Arc, PoisonError};

/// Finds who may have what the node lacks.
#[derive(Clone)]
pub struct Fetcher {
    pub(super) hub: Arc<Hub>,
}

impl Fetcher {
    /// The gateways that are connected at this moment, the longest connected first.
    pub fn sources(&self) -> Vec<Source> {
        // A scheduler has no artefacts.
        let gateways = self.hub.peers().into_iter().filter(|peer| peer.queries);
        gateways.map(|peer| Source { hub: Arc::clone(&self.hub), peer }).collect()
    }
}

/// One gateway. What it gives is not believed here: whoever takes all of it compares size and digest.
#[derive(Clone)]
pub struct Source {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
}

impl Source {
    /// The gateway, for people.
    pub fn name(&self) -> &str {
        &self.peer.name
    }

    /// A piece of an artefact. `None` if the gateway has not got it, is gone, or takes too long.
    pub async fn piece(&self, sha256: &str, offset: u64) -> Option<Piece> {
        // Nobody would say that one that went before it was asked is gone.
        let stands =
            self.hub.peers.read().unwrap_or_else(PoisonError::into_inner).contains_key(&self.peer.number);
        if !stands {
            return None;
        }
        self.hub.wants.ask(self.peer.number, &self.peer.link, sha256, offset).await
    }
}
