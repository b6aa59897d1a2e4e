//! Why a connection ended. Every end has a name.

use crate::frame::{Kind, TooLarge};
use modelless_types::NodeId;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a connection ended, or came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Lost {
    /// It could not be opened.
    #[error("cannot connect: {0}")]
    Connect(Arc<io::Error>),
    /// The two sides did not come to an encrypted connection.
    #[error("no TLS with the other side: {0}")]
    Tls(Arc<io::Error>),
    /// The other side closed it without a word: its process ended, or it was cut.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side closed it and said why.
    #[error("the other side closed the connection: {0}")]
    Goodbye(String),
    /// The network said no.
    #[error("the connection broke: {0}")]
    Broken(Arc<io::Error>),
    /// The other side sent what no peer of this version sends.
    #[error("the other side does not follow the protocol: {0}")]
    Nonsense(#[from] Nonsense),
    /// The other side says nothing, not even that it is alive.
    #[error("nothing was heard for {after:?}")]
    Silent {
        /// How long.
        after: Duration,
    },
    /// The other side reads more slowly than we write.
    #[error("{frames} frames ({bytes} bytes) wait to be sent, which is more than is kept for a slow peer")]
    Overflow {
        /// Frames that waited.
        frames: usize,
        /// Bytes that waited.
        bytes: usize,
    },
    /// The address leads to another node than it did.
    #[error("{found} answers there, not {wanted}")]
    WrongNode {
        /// Who was looked for.
        wanted: NodeId,
        /// Who is there.
        found: NodeId,
    },
    /// One side's numbers of tasks and models mean others at the other.
    #[error(
        "the other side serves another database than this one; all processes of a cluster need the same `database`"
    )]
    OtherStore,
    /// Without what it was to say this side cannot go on, and no peer would take it.
    #[error("a {kind:?} frame that must be told has {bytes} bytes, more than is sent between nodes")]
    TooLarge {
        /// Of which frame.
        kind: Kind,
        /// Its size.
        bytes: usize,
    },
    /// The other side has not the cluster's key, or this side has one and the other needs none.
    #[error(
        "the other side does not prove that it has this cluster's key; all processes of a cluster need the same"
    )]
    Unproven,
    /// Its certificate is good, but not for what it does.
    #[error("its certificate is for {names}, and {role} needs one for {wanted} here (`{setting}`)")]
    Misnamed {
        /// Whom its certificate is for.
        names: String,
        /// What it came as.
        role: &'static str,
        /// What would do.
        wanted: String,
        /// Where that is set.
        setting: &'static str,
    },
    /// The system gave no random bytes to greet with.
    #[error("no random bytes to greet with: {0}")]
    Random(getrandom::Error),
    /// The greeting took too long.
    #[error("no greeting came within {within:?}")]
    NoGreeting {
        /// How long it may take.
        within: Duration,
    },
    /// Others came while this one had not greeted, and it had taken longest.
    #[error("more than {limit} connections have not greeted yet, and this one is the oldest of them")]
    Crowded {
        /// How many may be in their greeting.
        limit: usize,
    },
    /// As many peers are connected as this node serves.
    #[error("{limit} gateways are connected already, which is the limit")]
    TooManyPeers {
        /// The limit.
        limit: usize,
    },
    /// We were told to end.
    #[error("shutting down")]
    Stopped,
}

/// What is wrong with what a peer sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Nonsense {
    /// Another protocol, or another version of this one.
    #[error("a frame starts with version {found}; this process speaks version {ours}")]
    Version {
        /// What came.
        found: u8,
        /// What is spoken here.
        ours: u8,
    },
    /// A kind of frame that this version does not have.
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    /// A stream that its kind cannot have, or that there is not.
    #[error("a {kind:?} frame belongs to stream {stream}, which it cannot")]
    Stream {
        /// Of which frame.
        kind: Kind,
        /// Its number.
        stream: u16,
    },
    /// Parts that do not belong to what was begun.
    #[error("the parts of stream {stream} are not those of a frame: {why}")]
    Parts {
        /// Its number.
        stream: u16,
        /// What is wrong.
        why: &'static str,
    },
    /// A head larger than any that is sent.
    #[error("the head of a {kind:?} frame has {found} bytes; at most {limit} are accepted")]
    Head {
        /// Of which frame.
        kind: Kind,
        /// Bytes announced.
        found: u32,
        /// The bound.
        limit: u32,
    },
    /// More payload than is accepted.
    #[error("the payload of a {kind:?} frame has {found} bytes; at most {limit} are accepted")]
    Payload {
        /// Of which frame.
        kind: Kind,
        /// Bytes announced.
        found: u32,
        /// The bound.
        limit: u32,
    },
    /// The head is not what its kind says.
    #[error("a {kind:?} frame cannot be read: {why}")]
    Unreadable {
        /// Of which frame.
        kind: Kind,
        /// What is wrong.
        why: String,
    },
    /// A frame that this side is never sent, or not now.
    #[error("a {kind:?} frame came where {expected} was expected")]
    OutOfPlace {
        /// What came.
        kind: Kind,
        /// What was expected.
        expected: &'static str,
    },
    /// More of something than any gateway has.
    #[error("the gateway has more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
}

impl From<TooLarge> for Lost {
    fn from(TooLarge { kind, bytes }: TooLarge) -> Self {
        Self::TooLarge { kind, bytes }
    }
}
