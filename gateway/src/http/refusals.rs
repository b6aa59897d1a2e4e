//! Refusals that whoever gets them could have foreseen are told slowly once there are many of them: keys that nobody knows, quotas that are used
//! up, bodies that are too large. A client that asks again as soon as it was told no would otherwise keep the processors from everybody else
//! with nothing but refusals. Answers, and refusals for want of time or room, are never held up.

use crate::access::Bucket;
use modelless_types::Micros;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// So many of weight one are told at once in a second, and so many after a while without any.
const AT_ONCE_PER_S: u64 = 50;
const BURST: u64 = 100;
/// How long one of the others is held.
const HELD: Duration = Duration::from_millis(500);
/// The same of a quota that is used up, which is there again in part a moment later.
const HELD_SHORTLY: Duration = Duration::from_millis(50);

/// Marks a response that is to be told slowly, with what it weighs, and for how long it may be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slowly {
    weight: u64,
    held: Duration,
}

impl Slowly {
    /// Who asks may not, or is not known.
    pub(crate) const DENIED: Self = Self { weight: 1, held: HELD };
    /// Up to its bound it was read.
    pub(crate) const TOO_LARGE: Self = Self { weight: 10, held: HELD };
    pub(crate) const OVER_QUOTA: Self = Self { weight: 1, held: HELD_SHORTLY };
}

/// Of one gateway, for all its connections: those who are not refused are not held up, so it need not be known who they are.
#[derive(Debug)]
pub(crate) struct Refusals {
    began: Instant,
    told: Bucket,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { began: Instant::now(), told: Bucket::default() }
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
        let each = Micros::from_secs(1).0 / AT_ONCE_PER_S;
        if self.told.take(now, each * slowly.weight, each * BURST).is_err() {
            sleep(slowly.held).await;
        }
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
}
