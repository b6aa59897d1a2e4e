//! How much of a node's credit a gateway gets beside others: by what it asks for.
//!
//! What waits at a gateway counts as much as what it sent, since one that gets little credit cannot send more. Small
//! traffic counts alike, so that chance does not move shares, and everybody gets something.

/// Queries of a heartbeat up to which gateways are equals; above it each so many weigh one more.
const ALIKE: u64 = 8;
/// Counts are kept in sixteenths, so that what halves does not vanish at once.
const PARTS: u64 = 16;

/// What a gateway asked for lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Queries since the last heartbeat.
    sent: u64,
    /// Queries of a heartbeat, in parts; what is older counts half with each.
    known: u64,
}

impl Traffic {
    pub(crate) fn sent(&mut self) {
        self.sent = self.sent.saturating_add(1);
    }

    /// A heartbeat is over.
    pub(crate) fn beat(&mut self) {
        let sent = std::mem::take(&mut self.sent).saturating_mul(PARTS);
        self.known = (self.known / 2).saturating_add(sent / 2);
    }

    /// At least one.
    pub(crate) fn weight(self, waiting: u64) -> u64 {
        1 + (self.known / PARTS).saturating_add(waiting) / ALIKE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_is_sent_within_a_few_heartbeats_and_forgets_it_again() {
        let mut traffic = Traffic::default();
        for _ in 0..6 {
            (0..160).for_each(|_| traffic.sent());
            traffic.beat();
        }
        assert!((19..=21).contains(&traffic.weight(0)), "{}", traffic.weight(0));
        (0..12).for_each(|_| traffic.beat());
        assert_eq!(traffic.weight(0), 1);
    }

    #[test]
    fn a_handful_of_queries_makes_no_difference_and_what_waits_does() {
        let mut traffic = Traffic::default();
        (0..7).for_each(|_| traffic.sent());
        traffic.beat();
        assert_eq!((traffic.weight(0), traffic.weight(1), traffic.weight(80)), (1, 1, 11));
    }
}
