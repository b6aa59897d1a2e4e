//! Which queries are traced. All of them where few are asked; of many so many a second.
//!
//! That is decided when a query has ended, so what failed or came late can go first: each of three kinds has a share of its own,
//! and a flood of one takes nothing from the others.

use crate::access::Bucket;
use modelless_types::Time;

const SECOND: u64 = 1_000_000;

/// Why a query would be traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Its client traces it.
    Joined,
    /// It was refused, or answered too late.
    Missed,
    Ordinary,
}

/// So many a second of each kind.
#[derive(Debug)]
pub(super) struct Chosen {
    joined: Rate,
    missed: Rate,
    ordinary: Rate,
}

impl Chosen {
    pub(super) fn new(per_second: u32) -> Self {
        let rate = || Rate::new(per_second);
        Self { joined: rate(), missed: rate(), ordinary: rate() }
    }

    pub(super) fn take(&self, kind: Kind, now: Time) -> bool {
        let of = match kind {
            Kind::Joined => &self.joined,
            Kind::Missed => &self.missed,
            Kind::Ordinary => &self.ordinary,
        };
        of.take(now)
    }
}

/// So many a second, and a second's worth at once.
#[derive(Debug)]
struct Rate {
    /// Between two, at the full rate; `None` for none at all.
    every: Option<u64>,
    left: Bucket,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        Self { every: SECOND.checked_div(u64::from(per_second)), left: Bucket::default() }
    }

    fn take(&self, now: Time) -> bool {
        self.every.is_some_and(|every| self.left.take(now.0, every, SECOND).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rate: &Rate, at: u64, times: usize) -> usize {
        (0..times).filter(|_| rate.take(Time(at))).count()
    }

    #[test]
    fn a_seconds_worth_at_once_and_then_as_time_goes_by() {
        let rate = Rate::new(10);
        let start = 100 * SECOND;
        assert_eq!(taken(&rate, start, 100), 10);
        assert_eq!(taken(&rate, start + SECOND / 2, 100), 5);
        assert_eq!(taken(&rate, start + 60 * SECOND, 100), 10, "what was not used for long is not kept");
        assert_eq!(taken(&rate, start, 100), 0, "a clock that went back gives nothing");
    }

    #[test]
    fn none_is_none_and_kinds_do_not_take_from_each_other() {
        assert_eq!(taken(&Rate::new(0), SECOND, 10), 0);
        let chosen = Chosen::new(1);
        let now = Time(10 * SECOND);
        assert!(chosen.take(Kind::Ordinary, now));
        assert!(!chosen.take(Kind::Ordinary, now));
        assert!(chosen.take(Kind::Missed, now));
        assert!(chosen.take(Kind::Joined, now));
        assert!(!chosen.take(Kind::Joined, now));
    }
}
