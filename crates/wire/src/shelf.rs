//! Artefacts for a node that lacks them, from the gateways that are connected to it, piece after piece.
//!
//! A node asks; a gateway never sends what was not asked for. One piece is under way at a time for each artefact, so queries on
//! the same connection wait for one piece at most. What comes is not believed here: who fetches compares its digest.

use crate::codec;
use crate::config::limits;
use crate::link::Link;
use bytes::Bytes as Buffer;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// A gateway that takes longer over a piece has not got it.
const PIECE_WITHIN: Duration = Duration::from_secs(10);
/// Pieces that a gateway reads at once for one node.
const READING: usize = 4;

/// A part of an artefact.
#[derive(Clone, PartialEq, Eq)]
pub struct Piece {
    /// Size of the whole.
    pub total: u64,
    /// From the offset that was asked for; empty only at the end.
    pub bytes: Buffer,
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} of {} bytes)", self.bytes.len(), self.total)
    }
}

/// Where a gateway has artefacts from.
pub trait Shelf: Send + Sync {
    /// At most so many bytes from an offset; `None` if it is not here. May block.
    fn piece(&self, sha256: &str, offset: u64, most: usize) -> io::Result<Option<Piece>>;
}

/// What a node asked gateways for.
#[derive(Default)]
pub(crate) struct Wants {
    state: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    next: u64,
    open: BTreeMap<u64, (u32, oneshot::Sender<Option<Piece>>)>,
}

impl Wants {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one gateway. `None` if it has not got it, is gone, or takes too long.
    pub(crate) async fn ask(&self, peer: u32, link: &Link, sha256: &str, offset: u64) -> Option<Piece> {
        let (id, came) = {
            let (sender, came) = oneshot::channel();
            let mut asked = self.lock();
            asked.next += 1;
            let id = asked.next;
            asked.open.insert(id, (peer, sender));
            (id, came)
        };
        link.say(codec::want(id, sha256, offset));
        let came = timeout(PIECE_WITHIN, came).await;
        self.lock().open.remove(&id);
        came.ok()?.ok()?
    }

    /// A piece came. One that nobody waits for any longer is dropped.
    pub(crate) fn came(&self, peer: u32, id: u64, piece: Option<Piece>) {
        let mut asked = self.lock();
        if asked.open.get(&id).is_some_and(|(of, _)| *of == peer)
            && let Some((_, waits)) = asked.open.remove(&id)
        {
            let _ = waits.send(piece);
        }
    }

    /// A gateway is gone.
    pub(crate) fn lost(&self, peer: u32) {
        self.lock().open.retain(|_, (of, _)| *of != peer);
    }
}

/// The gateway's side of it, for one connection.
pub(crate) struct Giving {
    shelf: Option<Arc<dyn Shelf>>,
    reading: Arc<Semaphore>,
}

impl Giving {
    pub(crate) fn new(shelf: Option<Arc<dyn Shelf>>) -> Self {
        Self { shelf, reading: Arc::new(Semaphore::new(READING)) }
    }

    /// Answers, later and from a thread that may wait for the disk.
    pub(crate) fn give(&self, link: &Arc<Link>, id: u64, sha256: String, offset: u64) {
        let place = Arc::clone(&self.reading).try_acquire_owned();
        let (Some(shelf), Ok(place)) = (self.shelf.clone(), place) else {
            return link.say(codec::piece(id, None));
        };
        let link = Arc::clone(link);
        tokio::task::spawn_blocking(move || {
            let piece = shelf.piece(&sha256, offset, limits::PIECE).unwrap_or_else(|error| {
                tracing::warn!(sha256, %error, "an artefact that a node lacks cannot be read");
                None
            });
            link.say(codec::piece(id, piece));
            drop(place);
        });
    }
}
