//! Queries that ended lately, for who asks afterwards why. What was seen when they were decided on the router keeps itself.
//!
//! So many are kept, in places of their own, each with a lock that nobody is ever waited for at: whoever finds one taken, which is
//! while it is read, leaves his query out. So a query pays for a few words written, and allocates nothing.

use crate::decisions::Decision;
use modelless_store::UnixMicros;
use modelless_types::QueryNumber;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many queries are kept.
pub(crate) const KEPT: usize = 1_024;
/// And so many decisions on them: a query that waits, or comes back from a node, is decided on more than once.
pub(crate) const DECISIONS: usize = 2 * KEPT;

pub(crate) struct Past {
    places: Box<[Mutex<Option<Decision>>]>,
    next: AtomicUsize,
}

impl Default for Past {
    fn default() -> Self {
        Self { places: (0..KEPT).map(|_| Mutex::default()).collect(), next: AtomicUsize::new(0) }
    }
}

impl Past {
    /// In place of the oldest.
    pub(crate) fn keep(&self, decision: Decision) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.places.len();
        let before = self.places[at].try_lock().map(|mut place| place.replace(decision));
        drop(before); // with the place free again
    }

    pub(crate) fn find(&self, query: QueryNumber) -> Option<Decision> {
        self.all(|kept| (kept.query == query).then(|| kept.clone())).next()
    }

    /// When the first of those that are kept ended.
    pub(crate) fn since(&self) -> Option<UnixMicros> {
        self.all(|kept| Some(kept.at)).min()
    }

    fn all<T>(&self, of: impl Fn(&Decision) -> Option<T>) -> impl Iterator<Item = T> {
        let look = move |place: &Mutex<Option<Decision>>| {
            place.lock().ok().and_then(|place| place.as_ref().and_then(&of))
        };
        self.places.iter().filter_map(look)
    }
}
