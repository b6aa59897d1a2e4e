//! How long to wait before connecting again.

use crate::config::Config;
use std::time::Duration;

/// Doubles with each connection that came to nothing; half of every wait is chance, so that gateways do not come all at once.
/// Only a connection that was alive for a while makes it short again: one that is accepted, or greeted and then
/// forgotten, says nothing about the next.
#[derive(Debug)]
pub(crate) struct BackOff {
    first: Duration,
    most: Duration,
    proven: Duration,
    next: Duration,
    state: u64,
}

impl BackOff {
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        let Config { back_off: first, back_off_most: most, proven, .. } = *config;
        Self { first, most, proven, next: first, state: seed }
    }

    /// The wait after a connection in which the other side was heard for so long after its greeting.
    pub(crate) fn after(&mut self, alive: Duration) -> Duration {
        if alive >= self.proven {
            self.next = self.first;
        }
        let wait = self.next.min(self.most);
        self.next = wait * 2;
        // splitmix64
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        let permille = u32::try_from(x % 1_000).unwrap_or(0);
        wait / 2 + wait / 2 * permille / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Time;

    #[test]
    fn it_grows_to_its_bound_and_is_short_again_only_after_proven_health() {
        let config = Config::new(|| Time(0));
        let mut back_off = BackOff::new(&config, 7);
        let mut longest = config.back_off;
        for _ in 0..20 {
            let wait = back_off.after(config.proven / 2);
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?} of {longest:?}");
            longest = (longest * 2).min(config.back_off_most);
        }
        assert_eq!(longest, config.back_off_most);
        assert!(back_off.after(config.proven) <= config.back_off);
    }

    #[test]
    fn two_gateways_do_not_wait_alike() {
        let config = Config::new(|| Time(0));
        let waits = |seed| {
            let mut back_off = BackOff::new(&config, seed);
            (0..10).map(|_| back_off.after(Duration::ZERO)).collect::<Vec<_>>()
        };
        assert_ne!(waits(1), waits(2));
        assert_eq!(waits(1), waits(1));
    }
}
