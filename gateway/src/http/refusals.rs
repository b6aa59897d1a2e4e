//! Refusals that whoever gets them could have foreseen are told slowly once there are many of them: keys that nobody knows, quotas that are used
//! up, bodies that are too large. A client that asks again as soon as it was told no would otherwise keep the processors from everybody else
//! with nothing but refusals. Answers, and refusals for want of time or room, are never held up.

use crate::access::Bucket;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// So many of weight one are told at once in a second, and so many after a while without any.
const AT_ONCE_PER_S: u64 = 50;
const BURST: u64 = 100;
/// How long one of the others is held.
const HELD: Duration = Duration::from_millis(500);
/// The same of a quota that is used up, which is there again in part a moment later: so many a second, and a second's worth of them at once. A
/// client on a few connections never gets there; of the rest each is held as the others are.
const HELD_SHORTLY: Duration = Duration::from_millis(50);
const SHORTLY_PER_S: u64 = 400;
/// However many are held, so many a second of those are told, each in its turn: with hundreds of calls at once on a connection, as gRPC has them,
/// the time alone would bound nothing. None waits for longer than this.
const HELD_PER_S: u64 = 200;
const HELD_AT_MOST: Duration = Duration::from_secs(10);
const SECOND_US: u64 = 1_000_000;

/// Marks a response that is to be told slowly, with what it weighs, and whether it may be held only shortly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slowly {
    weight: u64,
    shortly: bool,
}

impl Slowly {
    /// Who asks may not, or is not known.
    pub(crate) const DENIED: Self = Self { weight: 1, shortly: false };
    /// Up to its bound it was read.
    pub(crate) const TOO_LARGE: Self = Self { weight: 10, shortly: false };
    pub(crate) const OVER_QUOTA: Self = Self { weight: 1, shortly: true };
}

/// Of one gateway, for all its connections: those who are not refused are not held up, so it need not be known who they are.
#[derive(Debug)]
pub(crate) struct Refusals {
    began: Instant,
    told: Bucket,
    shortly: Bucket,
    held: Bucket,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            told: Bucket::default(),
            shortly: Bucket::default(),
            held: Bucket::default(),
        }
    }
}

impl Refusals {
    /// Waits, if it is to be told slowly.
    pub(crate) async fn tell(&self, extensions: &http::Extensions) {
        if let Some(slowly) = extensions.get() {
            self.hold(*slowly).await;
        }
    }

    /// Waits, if there were many just before.
    pub(crate) async fn hold(&self, slowly: Slowly) {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let each = SECOND_US / AT_ONCE_PER_S;
        if self.told.take(now, each * slowly.weight, each * BURST).is_ok() {
            return;
        }
        let shortly = slowly.shortly && self.shortly.take(now, SECOND_US / SHORTLY_PER_S, SECOND_US).is_ok();
        sleep(if shortly { HELD_SHORTLY } else { self.turn(now) }).await;
    }

    /// How long until it is the turn of one that is held.
    fn turn(&self, now: u64) -> Duration {
        let most = u64::try_from(HELD_AT_MOST.as_micros()).unwrap_or(u64::MAX);
        let wait =
            self.held.queue(now, SECOND_US / HELD_PER_S, most).map_or(HELD_AT_MOST, Duration::from_micros);
        wait.max(HELD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_refusals_are_told_slowly_and_few_at_once() {
        let refusals = Refusals::default();
        let began = Instant::now();
        let (mut light, mut heavy) = (http::Extensions::new(), http::Extensions::new());
        light.insert(Slowly::DENIED);
        heavy.insert(Slowly::TOO_LARGE);
        for _ in 0..BURST {
            refusals.tell(&light).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "these are few");
        refusals.tell(&light).await;
        assert_eq!(began.elapsed(), HELD);
        refusals.tell(&http::Extensions::new()).await;
        assert_eq!(began.elapsed(), HELD, "what is no refusal waits for nothing");
        // Meanwhile half a second's worth is there again, of which a heavy one takes ten.
        for _ in 0..2 {
            refusals.tell(&heavy).await;
        }
        assert_eq!(began.elapsed(), HELD);
        refusals.tell(&heavy).await;
        assert_eq!(began.elapsed(), 2 * HELD);
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_are_held_they_are_told_one_after_the_other_and_none_waits_for_ever() {
        let refusals = Refusals::default();
        let mut denied = http::Extensions::new();
        denied.insert(Slowly::DENIED);
        let began = Instant::now();
        let tells = (0..BURST + 4_000).map(|_| async {
            refusals.tell(&denied).await;
            began.elapsed()
        });
        let told = futures_util::future::join_all(tells).await;
        let by = |after: Duration| told.iter().filter(|told| **told <= after).count() as u64;
        assert_eq!((by(Duration::ZERO), by(HELD)), (BURST, BURST + HELD_PER_S / 2));
        assert_eq!(by(Duration::from_secs(2)), BURST + HELD_PER_S * 2);
        assert_eq!(by(HELD_AT_MOST), BURST + 4_000);
        let again = Instant::now();
        refusals.tell(&denied).await;
        assert_eq!(again.elapsed(), Duration::ZERO, "few are told at once again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_that_is_used_up_is_told_after_a_moment_but_not_to_any_number() {
        let refusals = Refusals::default();
        let mut over = http::Extensions::new();
        over.insert(Slowly::OVER_QUOTA);
        let began = Instant::now();
        let tells = (0..BURST + SHORTLY_PER_S + 10).map(|_| async {
            refusals.tell(&over).await;
            began.elapsed()
        });
        let told = futures_util::future::join_all(tells).await;
        let of = |held: Duration| told.iter().filter(|after| **after == held).count() as u64;
        assert_eq!((of(Duration::ZERO), of(HELD_SHORTLY), of(HELD)), (BURST, SHORTLY_PER_S, 10));
    }
}
