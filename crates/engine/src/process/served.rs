//! What a load has to give way to: what is in memory, and whether any of it was run lately.

use super::Inner;
use crate::clock;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Inner {
    /// Here, or by an engine that shares the machine.
    pub(super) fn something_is_served(&self) -> bool {
        // One lock at a time.
        let serves = |inner: &Self| !inner.read().variants.is_empty();
        serves(self)
            || self.beside.get().into_iter().flatten().filter_map(Weak::upgrade).any(|other| serves(&other))
    }

    /// The same, and whether any of it was run within so long.
    pub(super) fn something_ran(&self, within: Duration) -> bool {
        let runs = |inner: &Self| {
            let ran = inner.ran.load(Ordering::Relaxed);
            let since = clock::now()
                .saturating_duration_since(inner.began)
                .saturating_sub(Duration::from_micros(ran));
            ran > 0 && since <= within && !inner.read().variants.is_empty()
        };
        runs(self)
            || self.beside.get().into_iter().flatten().filter_map(Weak::upgrade).any(|other| runs(&other))
    }

    pub(super) fn runs_now(&self) {
        let now = clock::micros(clock::now().saturating_duration_since(self.began));
        self.ran.store(now.max(1), Ordering::Relaxed);
    }
}
