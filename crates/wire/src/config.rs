//! Habits and bounds of connections.

use crate::key::Key;
use crate::received::Received;
use crate::shelf::Shelf;
use crate::tls::{TlsAccept, TlsConnect};
use modelless_types::{Bytes, Time};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What no peer may exceed; a frame that does ends its connection by name.
pub mod limits {
    use std::time::Duration;

    /// The longest time between heartbeats that a peer may ask for.
    pub const HEARTBEAT: Duration = Duration::from_mins(1);
    /// Head of a frame that is on a query's path (ids, goals, figures).
    pub const HEAD: u32 = 64 << 10;
    /// Head of a frame that is not: a greeting, a node's status, a plan's pins.
    pub const RARE_HEAD: u32 = 8 << 20;
    /// Bytes behind a head: an input or an answer.
    pub const PAYLOAD: u32 = 256 << 20;
    /// Bytes of an artefact that are sent at once.
    pub const PIECE: usize = 1 << 20;
    /// Payloads larger than this are sent in parts of it, and other frames go between them.
    pub const PART: usize = 64 << 10;
    /// Frames that are under way in parts at once, in each direction; each gets its turn.
    pub const STREAMS: u16 = 8;
    /// Bytes of small frames after which a part of a large one gets its turn.
    pub const AHEAD: usize = 4 * PART;
    /// Frames that wait for a slow peer. Queries and what becomes of them are not counted: credit bounds them, and what nobody
    /// waits for any longer is taken back.
    pub const QUEUE_FRAMES: usize = 4_096;
    /// Bytes of these. One larger frame may wait alone.
    pub const QUEUE_BYTES: usize = 64 << 20;
    /// Bytes of answers that wait for a slow gateway. One larger answer may wait alone; those beyond it become a refusal.
    pub const QUEUE_ANSWERS: usize = 256 << 20;
    /// Words (reasons) inside a frame are cut to this many bytes.
    pub const WORDS: usize = 4 << 10;
    /// Bytes of large frames that are not whole yet, over all connections of a process, where nothing else is set.
    pub const RECEIVED: u64 = 1 << 30;
    /// A large frame of which nothing came for so long is dropped: nobody else is to wait for room because of it.
    pub const STALLED: Duration = Duration::from_secs(10);
    /// And one that is not whole after so long.
    pub const UNDER_WAY: Duration = Duration::from_mins(5);
    /// Classes whose wait a report tells apart; the others share the node's general wait.
    pub const REPORT_CLASSES: usize = 256;
    /// Classes of which a gateway may say that queries wait.
    pub const DEMAND_CLASSES: usize = 4_096;
    /// Queries that one gateway may have open at a node, far above any credit.
    pub const OPEN: usize = 65_536;
    /// Connections that a node serves at once.
    pub const PEERS: usize = 256;
    /// Connections that a node lets greet it at once. One more, and the one that has taken longest makes room.
    pub const STRANGERS: usize = 64;
}

/// Habits of a connection.
#[derive(Clone)]
pub struct Config {
    /// Between heartbeats. Of the two sides of a connection the slower one is kept to.
    pub heartbeat: Duration,
    /// So many heartbeats in a row without a word, and the other side is lost.
    pub missed: u32,
    /// Connecting and greeting take no longer than this.
    pub handshake: Duration,
    /// The first wait before connecting again; it doubles with each failure, and half of it is chance.
    pub back_off: Duration,
    /// The longest wait.
    pub back_off_most: Duration,
    /// A connection in which the other side was heard for so long makes the next wait short again.
    pub proven: Duration,
    /// How long a report may wait that comes with another gateway's answer.
    pub report_within: Duration,
    /// A node that ends writes what it has said for so long, if the other side goes on taking it.
    pub last_words: Duration,
    /// What both sides of a connection must have; without one anybody who can connect may.
    pub key: Option<Key>,
    /// How connections over TCP that come are encrypted; without it they are not.
    pub accept: Option<TlsAccept>,
    /// How connections over TCP that are made are encrypted; without it they are not.
    pub connect: Option<TlsConnect>,
    /// Artefacts for nodes that lack them; asked by what connects.
    pub shelf: Option<Arc<dyn Shelf>>,
    /// Which store this process serves. Whoever serves another is not talked to: the same numbers mean other models there.
    pub store: Option<String>,
    /// What all connections of this process hold of what they receive: shared by all that are to be bounded together.
    pub received: Arc<Received>,
    /// This process's clock, for moments inside a node's status.
    pub now: Arc<dyn Fn() -> Time + Send + Sync>,
}

impl Config {
    /// The defaults, with a clock.
    pub fn new(now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            missed: 4,
            handshake: Duration::from_secs(2),
            back_off: Duration::from_millis(50),
            back_off_most: Duration::from_secs(2),
            proven: Duration::from_secs(5),
            report_within: Duration::from_millis(20),
            last_words: Duration::from_secs(10),
            key: None,
            accept: None,
            connect: None,
            shelf: None,
            store: None,
            received: Received::new(Bytes(limits::RECEIVED)),
            now: Arc::new(now),
        }
    }

    /// The longest time from a peer's last word to calling it lost, where the peer has no slower heartbeat.
    pub fn lost_within(&self) -> Duration {
        self.heartbeat * (self.missed + 1)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("heartbeat", &self.heartbeat)
            .field("missed", &self.missed)
            .field("handshake", &self.handshake)
            .field("back_off", &self.back_off)
            .field("back_off_most", &self.back_off_most)
            .field("proven", &self.proven)
            .field("report_within", &self.report_within)
            .field("last_words", &self.last_words)
            .field("key", &self.key)
            .field("store", &self.store)
            .field("accept", &self.accept)
            .field("connect", &self.connect)
            .finish_non_exhaustive()
    }
}
