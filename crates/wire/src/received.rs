//! How much a process holds of large frames that are not whole yet, over all its connections.
//!
//! A connection may have eight of 256 MiB under way, and a node has hundreds of connections: what each may do alone must not be
//! done by all at once. Bytes are counted as they come, not as they are announced, so that a claim costs nobody anything. What
//! there is no room for is read and dropped, and its query is refused by name; no connection ends over it and none is read
//! more slowly, since heartbeats come the same way.
//!
//! Half of the room is for whoever comes first. The other half is for those who have no more than their share: the whole, divided
//! by the connections that hold something and one that may come. So one that sends much, or never ends, leaves room for others.

use modelless_types::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all connections of a process hold together.
#[derive(Debug)]
pub struct Received {
    most: u64,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    bytes: u64,
    /// Connections that hold something.
    holders: u64,
}

impl Received {
    /// At most so much.
    pub fn new(most: Bytes) -> Arc<Self> {
        Arc::new(Self { most: most.0, now: Mutex::default() })
    }

    /// The bound.
    pub fn limit(&self) -> Bytes {
        Bytes(self.most)
    }

    /// What is held at this moment.
    pub fn held(&self) -> Bytes {
        Bytes(self.now().bytes)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of one connection.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Received>,
    /// Changed only while the whole is locked.
    own: Mutex<u64>,
}

impl Share {
    pub(crate) fn new(of: Arc<Received>) -> Arc<Self> {
        Arc::new(Self { of, own: Mutex::new(0) })
    }

    fn more(&self, bytes: u64) -> bool {
        let (mut now, mut own) = (self.of.now(), self.own.lock().unwrap_or_else(PoisonError::into_inner));
        let most = self.of.most;
        let (Some(all), Some(mine)) = (now.bytes.checked_add(bytes), own.checked_add(bytes)) else {
            return false;
        };
        let holders = now.holders + u64::from(*own == 0);
        let room = all <= most / 2 || (all <= most && mine <= most / (holders + 1));
        if room && bytes > 0 {
            *now = Now { bytes: all, holders };
            *own = mine;
        }
        room
    }

    fn less(&self, bytes: u64) {
        let (mut now, mut own) = (self.of.now(), self.own.lock().unwrap_or_else(PoisonError::into_inner));
        now.bytes -= bytes;
        *own -= bytes;
        now.holders -= u64::from(bytes > 0 && *own == 0);
    }
}

/// The part of one frame; given back when it goes.
#[derive(Debug)]
pub(crate) struct Held {
    of: Arc<Share>,
    bytes: u64,
}

impl Held {
    pub(crate) fn none(of: &Arc<Share>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    /// So many more; false, and none of them, where there is no room.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        let room = self.of.more(bytes as u64);
        if room {
            self.bytes += bytes as u64;
        }
        room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.less(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(of: &Arc<Received>) -> Held {
        Held::none(&Share::new(Arc::clone(of)))
    }

    #[test]
    fn what_is_held_is_bounded_over_all_and_given_back() {
        let received = Received::new(Bytes(12));
        let (mut one, mut two) = (connection(&received), connection(&received));
        assert!(one.more(6) && !one.more(1), "alone it has half");
        assert!(two.more(4) && !two.more(1), "of two each has a third, and one is left for who may come");
        assert_eq!((received.held(), received.limit()), (Bytes(10), Bytes(12)));
        let mut three = connection(&received);
        assert!(!three.more(3) && three.more(2), "never more than all");
        drop(one);
        assert!(!two.more(1) && three.more(2));
        drop((two, three));
        assert_eq!(received.held(), Bytes(0));
        assert!(connection(&received).more(6));
    }

    #[test]
    fn one_that_has_much_leaves_their_share_to_all_others() {
        let received = Received::new(Bytes(1_200));
        let greedy = Share::new(Arc::clone(&received));
        let frames: Vec<Held> = (0..8)
            .map(|_| {
                let mut frame = Held::none(&greedy);
                while frame.more(10) {}
                frame
            })
            .collect();
        assert_eq!(received.held(), Bytes(600));
        let mut others: Vec<Held> = (0..3).map(|_| connection(&received)).collect();
        for other in &mut others {
            assert!(other.more(200), "{received:?}");
        }
        drop(frames);
        assert!(others[0].more(40) && !others[0].more(70), "{received:?}");
    }
}
