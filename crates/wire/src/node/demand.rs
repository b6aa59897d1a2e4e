//! What waits at gateways for a node, class by class, and at all of them together.

use super::Hub;
use crate::lost::Nonsense;
use crate::peer::micros;
use crate::peers::Peer;
use crate::seam::{Demand, ToNode};
use modelless_decision::query::Class;
use modelless_types::Micros;
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;

/// Microseconds of a day: as good as never for what waits, and no sum overflows.
const DAY: u64 = 86_400_000_000;

impl Hub {
    /// Keeps what waits at one gateway and gives what waits at all of them.
    pub(super) fn demand(&self, peer: &Peer, demand: Demand, late: Micros) -> Result<Demand, Nonsense> {
        let Demand { class, waiting, first, among } = demand;
        let after = |first: Micros| Duration::from_micros(first.saturating_sub(late).0.min(DAY));
        let first = first.map(|first| Instant::now() + after(first));
        {
            let mut state = peer.state();
            state.waits(class, waiting, first)?;
            self.scale.weigh(&mut state, self.now());
        }
        // Each gateway goes round by itself, so of several each comes back the sooner.
        let now = self.now();
        let asks = |peer: &&std::sync::Arc<Peer>| peer.state().weight(now).is_some();
        let gateways =
            self.peers.read().unwrap_or_else(PoisonError::into_inner).values().filter(asks).count();
        let among = among.div_ceil(u32::try_from(gateways).unwrap_or(u32::MAX).max(1));
        Ok(Demand { among, ..self.demand_of(class) })
    }

    /// What waits at a gateway is told with the queries that it sends, and the last of those may have gone to another node. Once
    /// the first is due nobody waits there any longer, or the gateway will say so.
    pub(super) fn forget_old_demand(&self) {
        let now = Instant::now();
        let mut old = BTreeSet::new();
        for peer in self.peers() {
            old.extend(peer.state().old_demand(now));
        }
        for class in old {
            self.node.send(ToNode::Demand(self.demand_of(class)));
        }
    }

    pub(super) fn demand_of(&self, class: Class) -> Demand {
        let (mut waiting, mut first) = (0_u32, None::<Instant>);
        for peer in self.peers.read().unwrap_or_else(PoisonError::into_inner).values() {
            if let Some(here) = peer.state().demand.get(&class) {
                waiting = waiting.saturating_add(here.queries);
                first = first.into_iter().chain(here.first).min();
            }
        }
        let in_micros = |at: Instant| micros(at.saturating_duration_since(Instant::now()));
        Demand { class, waiting, first: first.map(in_micros), among: 0 }
    }
}
