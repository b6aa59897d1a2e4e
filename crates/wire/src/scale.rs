//! What the gateways of a node weigh, each and together: so its credit is shared out.
//!
//! What all weigh is kept as a sum, in which everybody stands with the weight that was found last. Whoever asks, says what waits, or is
//! told something is weighed anew then, and alone; what only time changes is found when all are, a few times a second. So an
//! answer costs the same however many gateways there are.

use crate::peers::PeerState;
use modelless_types::Time;
use std::sync::{Mutex, PoisonError};

/// The sum.
#[derive(Debug, Default)]
pub(crate) struct Scale {
    all: Mutex<u64>,
    #[cfg(test)]
    pub(crate) weighed: std::sync::atomic::AtomicUsize,
}

impl Scale {
    /// A gateway's weight, if it has queries here, had some lately, or some wait there; and what all weigh, itself included.
    pub(crate) fn weigh(&self, state: &mut PeerState, now: Time) -> (Option<u64>, u64) {
        #[cfg(test)]
        self.weighed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let own = state.weight(now);
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        *all = *all - state.weighs + own.unwrap_or(0);
        state.weighs = own.unwrap_or(0);
        (own, *all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Rng;
    use modelless_decision::query::Class;
    use modelless_decision::route::IDLE_AFTER;
    use modelless_types::{Micros, QueryKey, TaskId, VariantSet};
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    fn class(task: u32) -> Class {
        Class { task: TaskId(task), admits: VariantSet::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_sum_is_that_of_all_weights_whatever_happens() {
        let (scale, mut rng) = (Scale::default(), Rng(5));
        let mut peers: Vec<PeerState> = (0..7).map(|_| PeerState::new(true)).collect();
        let mut now = Time::ZERO;
        for step in 0..20_000_u64 {
            let at = usize::try_from(rng.below(7)).expect("small");
            let peer = &mut peers[at];
            match rng.below(6) {
                0 | 1 => _ = peer.opens(QueryKey(step), now),
                2 => _ = peer.open.pop_first(),
                3 => {
                    let queries = u32::try_from(rng.below(90)).expect("small");
                    _ = peer.waits(class(u32::from(step % 3 == 0)), queries, None);
                }
                4 => {
                    peer.beat();
                    peer.old_demand(Instant::now());
                }
                _ => {
                    now = now + Micros::from_millis(40);
                    advance(Duration::from_millis(40)).await;
                }
            }
            let (own, all) = scale.weigh(&mut peers[at], now);
            assert_eq!(
                (own.unwrap_or(0), all),
                (peers[at].weighs, peers.iter().map(|peer| peer.weighs).sum())
            );
        }
        now = now + IDLE_AFTER;
        for peer in &mut peers {
            peer.leaves();
            scale.weigh(peer, now);
        }
        assert_eq!(*scale.all.lock().unwrap(), 0, "nobody is left");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_to_wait_a_while_ago_weighs_nothing() {
        let (scale, mut peer) = (Scale::default(), PeerState::new(true));
        let late = Instant::now() + Duration::from_mins(1);
        peer.waits(class(1), 80, Some(late)).expect("a class");
        peer.waits(class(2), 16, Some(late)).expect("a class");
        assert_eq!(scale.weigh(&mut peer, Time::ZERO), (Some(13), 13));
        peer.waits(class(2), 0, None).expect("a class");
        peer.waits(class(1), 40, Some(late)).expect("a class");
        assert_eq!(scale.weigh(&mut peer, Time::ZERO), (Some(6), 6));
        advance(Duration::from_secs(1)).await;
        peer.beat();
        assert_eq!(scale.weigh(&mut peer, Time::ZERO), (None, 0));
        assert!(peer.old_demand(late).contains(&class(1)), "it is remembered until it is due");
    }

    #[test]
    fn a_scheduler_and_one_that_has_gone_weigh_nothing() {
        let (scale, mut scheduler, mut gone) =
            (Scale::default(), PeerState::new(false), PeerState::new(true));
        for peer in [&mut scheduler, &mut gone] {
            peer.opens(QueryKey(1), Time::ZERO).expect("a query");
        }
        assert_eq!(scale.weigh(&mut scheduler, Time::ZERO), (None, 0));
        assert_eq!(scale.weigh(&mut gone, Time::ZERO), (Some(1), 1));
        gone.leaves();
        assert_eq!(scale.weigh(&mut gone, Time::ZERO), (None, 0));
    }
}
