//! How much of a node's credit a gateway gets beside others: by what it asks for.
//!
//! What waits at a gateway counts as much as what it sent, since one that gets little credit cannot send more. Small
//! traffic counts alike, so that chance does not move shares, and everybody gets something. Nodes share by this, live and in
//! the simulator.

use super::load::Limit;
use modelless_types::{Micros, Time};

/// How often [`Asker::beat`] is called.
pub const SHARE_BEAT: Micros = Micros::from_millis(250);
/// A gateway that has asked for nothing for so long leaves its share of the credit to the others.
pub const IDLE_AFTER: Micros = Micros::from_secs(1);
/// Queries between two beats up to which gateways are equals; above it each so many weigh one more.
const ALIKE: u64 = 8;
/// Counts are kept in sixteenths, so that what halves does not vanish at once.
const PARTS: u64 = 16;

/// What a gateway asked of a node lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// Queries since the last beat.
    sent: u64,
    /// Queries between two beats, in parts; what is older counts half with each.
    known: u64,
    asked: Option<Time>,
}

impl Asker {
    /// It sent a query. Whether that was the first in a while, so that one more shares the credit.
    pub fn sent(&mut self, now: Time) -> bool {
        self.sent = self.sent.saturating_add(1);
        let before = self.asked.replace(now);
        before.is_none_or(|before| now - before >= IDLE_AFTER)
    }

    /// [`SHARE_BEAT`] is over.
    pub fn beat(&mut self) {
        let sent = core::mem::take(&mut self.sent).saturating_mul(PARTS);
        self.known = (self.known / 2).saturating_add(sent / 2);
    }

    /// Its weight among those that share the credit, at least 1; `None` if it has nothing at the node, nothing waiting, and
    /// asked for nothing lately.
    pub fn weight(&self, now: Time, open: bool, waiting: u64) -> Option<u64> {
        let lately = self.asked.is_some_and(|asked| now - asked < IDLE_AFTER);
        let weight = 1 + (self.known / PARTS).saturating_add(waiting) / ALIKE;
        (lately || open || waiting > 0).then_some(weight)
    }
}

/// What a gateway of weight `own` gets of a node's credit, where those that ask weigh so much altogether, itself included.
/// One that asks for nothing is told what it would get if it did.
pub fn share(limit: Limit, own: Option<u64>, all: u64) -> Limit {
    let of = all.saturating_add(u64::from(own.is_none()));
    limit.part(own.unwrap_or(1), of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Bytes;

    const NOW: Time = Time(5_000_000);

    fn beats(asker: &mut Asker, count: u32, queries: u32) {
        for _ in 0..count {
            (0..queries).for_each(|_| {
                asker.sent(NOW);
            });
            asker.beat();
        }
    }

    #[test]
    fn it_follows_what_is_sent_within_a_few_beats_and_forgets_it_again() {
        let mut asker = Asker::default();
        beats(&mut asker, 6, 160);
        let weight = asker.weight(NOW, true, 0).expect("it asks");
        assert!((19..=21).contains(&weight), "{weight}");
        beats(&mut asker, 12, 0);
        assert_eq!(asker.weight(NOW, true, 0), Some(1));
        let later = NOW + IDLE_AFTER;
        assert_eq!(asker.weight(later, false, 0), None, "it asked for nothing in a while");
        assert!(asker.sent(later) && !asker.sent(later + Micros(1)), "one more shares the credit");
    }

    #[test]
    fn a_handful_of_queries_makes_no_difference_and_what_waits_does() {
        let mut asker = Asker::default();
        beats(&mut asker, 1, 7);
        let weights = [0, 1, 80].map(|waiting| asker.weight(NOW, true, waiting));
        assert_eq!(weights, [Some(1), Some(1), Some(11)]);
    }

    #[test]
    fn the_parts_of_those_that_ask_are_about_the_whole_and_nobody_gets_nothing() {
        let limit = Limit { queries: 40, bytes: Bytes(400) };
        let queries = |own, all| share(limit, own, all).queries;
        assert_eq!((queries(Some(1), 8), queries(Some(7), 8)), (5, 35));
        assert_eq!(queries(Some(1), 1_000), 1);
        assert_eq!((queries(None, 0), queries(None, 1)), (40, 20), "what it would get if it asked");
    }
}
