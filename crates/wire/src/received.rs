//! How much a process holds of large frames that are not whole yet, over all its connections.
//!
//! A connection may have eight of 256 MiB under way, and a node has hundreds of connections: what each may do alone must not be
//! done by all at once. Bytes are counted as they come, not as they are announced, so that a claim costs nobody anything. What
//! there is no room for is read and dropped, and its query is refused by name; no connection ends over it and none is read
//! more slowly, since heartbeats come the same way.

use modelless_types::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all connections of a process hold together.
#[derive(Debug)]
pub struct Received {
    most: u64,
    now: AtomicU64,
}

impl Received {
    /// At most so much.
    pub fn new(most: Bytes) -> Arc<Self> {
        Arc::new(Self { most: most.0, now: AtomicU64::new(0) })
    }

    /// The bound.
    pub fn limit(&self) -> Bytes {
        Bytes(self.most)
    }

    /// What is held at this moment.
    pub fn held(&self) -> Bytes {
        Bytes(self.now.load(Ordering::Relaxed))
    }
}

/// The part of one frame; given back when it goes.
#[derive(Debug)]
pub(crate) struct Held {
    of: Arc<Received>,
    bytes: u64,
}

impl Held {
    pub(crate) fn none(of: &Arc<Received>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    /// So many more; false, and none of them, where there is no room.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let most = self.of.most;
        let add = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= most);
        let room = self.of.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if room {
            self.bytes += bytes;
        }
        room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_over_all_and_given_back() {
        let received = Received::new(Bytes(10));
        let (mut one, mut two) = (Held::none(&received), Held::none(&received));
        assert!(one.more(6) && !two.more(5) && two.more(4));
        assert_eq!((received.held(), received.limit()), (Bytes(10), Bytes(10)));
        drop(one);
        assert!(two.more(6) && !two.more(1));
        drop(two);
        assert_eq!(received.held(), Bytes(0));
    }
}
