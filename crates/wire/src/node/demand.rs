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
        let (waits, gateways) = self.demand_of(class);
        // Each gateway goes round by itself, so of several each comes back the sooner.
        Ok(Demand { among: among.div_ceil(gateways.max(1)), ..waits })
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
            self.node.send(ToNode::Demand(self.demand_of(class).0));
        }
    }

    /// What waits of a class at all gateways, and how many gateways ask for anything at all.
    pub(super) fn demand_of(&self, class: Class) -> (Demand, u32) {
        let (mut waiting, mut first, mut gateways) = (0_u32, None::<Instant>, 0);
        let now = self.now();
        for peer in self.peers.read().unwrap_or_else(PoisonError::into_inner).values() {
            let state = peer.state();
            gateways += u32::from(state.weight(now).is_some());
            if let Some(here) = state.demand.get(&class) {
                waiting = waiting.saturating_add(here.queries);
                first = first.into_iter().chain(here.first).min();
            }
        }
        let in_micros = |at: Instant| micros(at.saturating_duration_since(Instant::now()));
        (Demand { class, waiting, first: first.map(in_micros), among: 0 }, gateways)
    }
}
