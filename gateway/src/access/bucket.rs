//! So much in a time, and some of it at once: one number, the moment at which it is full again, moved on by what is taken out. No lock, and
//! nothing to refill.

use std::sync::atomic::{AtomicU64, Ordering};

/// Microseconds of the process's clock at which it is full again.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    /// Takes out what fills up again in `cost`, if no more than `burst` is out then; else how long until it could be.
    pub(crate) fn take(&self, now: u64, cost: u64, burst: u64) -> Result<(), u64> {
        let mut full_at = self.0.load(Ordering::Relaxed);
        loop {
            let after = full_at.max(now).saturating_add(cost);
            let over = after.saturating_sub(now.saturating_add(burst));
            if over > 0 {
                return Err(over);
            }
            match self.0.compare_exchange_weak(full_at, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }

    /// Takes it out unless that would be there in `most` or later only, and says how long until it is.
    pub(crate) fn queue(&self, now: u64, cost: u64, most: u64) -> Option<u64> {
        let queued = |full_at: u64| Some(full_at.max(now).saturating_add(cost)).filter(|at| at - now <= most);
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, queued);
        before.ok().and_then(queued).map(|at| at - now)
    }

    /// Takes it out in any case, and says how long until it would have been there.
    pub(super) fn reserve(&self, now: u64, cost: u64) -> u64 {
        let reserved = |full_at: u64| full_at.max(now).saturating_add(cost);
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| Some(reserved(at)));
        reserved(before.unwrap_or_else(|at| at)) - now
    }

    /// Takes it out in any case: it was used already.
    pub(super) fn charge(&self, now: u64, cost: u64) {
        let charged = |full_at: u64| Some(full_at.max(now).saturating_add(cost));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged);
    }

    /// Puts back what was taken out a moment ago.
    pub(super) fn put_back(&self, cost: u64) {
        let before = |full_at: u64| Some(full_at.saturating_sub(cost));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, before);
    }
}
