//! Frames as bytes: a header of 16 bytes, a head, a payload.
//!
//! ```text
//!  0  u8   version
//!  1  u8   kind
//!  2  u16  stream: 0 for a frame that comes whole
//!  4  u32  length of the head
//!  8  u32  length of the payload
//! 12  u32  microseconds that the frame waited at its sender before the first byte left
//! 16  head: bincode's format for what is on a query's path, JSON for the rest
//!     payload: raw bytes, as they came from or go to the client
//! ```
//! Everything is little-endian.
//!
//! A frame with a large payload comes in parts, so that others need not wait for all of it: its header and head come first
//! and open a stream; its payload follows in frames of the kind `Part` (no head, the stream's number), between
//! which anything else may come. The last byte of the payload closes the stream; so does a part without bytes, which
//! means that the rest will not come.

use crate::config::limits;
use crate::lost::Nonsense;
use bytes::Bytes as Buffer;
use modelless_types::{Micros, QueryKey};

pub(crate) const VERSION: u8 = 10;
pub(crate) const HEADER: usize = 16;
/// Where the header says how long the frame waited.
pub(crate) const WAITED: std::ops::Range<usize> = 12..16;
/// Where it says which stream it belongs to.
pub(crate) const STREAM: std::ops::Range<usize> = 2..4;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Who I am.
    Hello = 1,
    /// What the node makes known of itself.
    Status = 2,
    /// Are you there?
    Ping = 3,
    /// I am.
    Pong = 4,
    /// I close the connection, and why.
    Goodbye = 5,
    /// That I have the cluster's key.
    Proof = 6,
    /// I am here, whatever else is under way.
    Beat = 7,
    /// Bytes of a payload whose frame was begun before.
    Part = 8,
    /// Answer this.
    Query = 16,
    /// So much waits.
    Demand = 17,
    /// Nobody waits any longer.
    Cancel = 18,
    /// Keep this in memory.
    Pin = 19,
    /// Load this.
    Wake = 20,
    /// A part of an artefact that was asked for.
    Piece = 21,
    /// You may give this back.
    MayReturn = 22,
    /// Take this out of memory.
    Unload = 23,
    /// You may claim this.
    Announce = 24,
    /// An answer.
    Answer = 32,
    /// A named "no".
    Refused = 33,
    /// The input cannot be used.
    BadInput = 34,
    /// Given back unstarted.
    HandedBack = 35,
    /// Credit and load.
    Report = 36,
    /// An artefact is lacking here.
    Want = 37,
    /// I will not claim this.
    Declined = 38,
    /// I ask for these.
    Claim = 39,
}

impl Kind {
    pub(crate) const ALL: [Self; 25] = [
        Self::Hello,
        Self::Status,
        Self::Ping,
        Self::Pong,
        Self::Goodbye,
        Self::Proof,
        Self::Beat,
        Self::Part,
        Self::Query,
        Self::Demand,
        Self::Cancel,
        Self::Pin,
        Self::Wake,
        Self::Piece,
        Self::MayReturn,
        Self::Unload,
        Self::Announce,
        Self::Answer,
        Self::Refused,
        Self::BadInput,
        Self::HandedBack,
        Self::Report,
        Self::Want,
        Self::Declined,
        Self::Claim,
    ];

    fn head_limit(self) -> u32 {
        match self {
            Self::Status | Self::Pin => limits::RARE_HEAD,
            // The first two come from who may be a stranger.
            Self::Hello
            | Self::Proof
            | Self::Ping
            | Self::Pong
            | Self::Goodbye
            | Self::Query
            | Self::Demand
            | Self::Cancel
            | Self::MayReturn
            | Self::Wake
            | Self::Unload
            | Self::Announce
            | Self::Answer
            | Self::Refused
            | Self::BadInput
            | Self::HandedBack
            | Self::Declined
            | Self::Claim
            | Self::Piece
            | Self::Want
            | Self::Report => limits::HEAD,
            Self::Beat | Self::Part => 0,
        }
    }

    fn payload_limit(self) -> u32 {
        match self {
            Self::Query | Self::Answer => limits::PAYLOAD,
            #[expect(clippy::cast_possible_truncation, reason = "one MiB")]
            Self::Piece => limits::PIECE as u32,
            #[expect(clippy::cast_possible_truncation, reason = "64 KiB")]
            Self::Part => limits::PART as u32,
            Self::Hello
            | Self::Status
            | Self::Proof
            | Self::Ping
            | Self::Pong
            | Self::Goodbye
            | Self::Beat
            | Self::Demand
            | Self::Cancel
            | Self::MayReturn
            | Self::Pin
            | Self::Wake
            | Self::Unload
            | Self::Announce
            | Self::Refused
            | Self::BadInput
            | Self::HandedBack
            | Self::Declined
            | Self::Claim
            | Self::Want
            | Self::Report => 0,
        }
    }
}

/// A header that keeps all bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// 0 if it comes whole.
    pub(crate) stream: u16,
    pub(crate) head: usize,
    pub(crate) payload: usize,
    pub(crate) waited: Micros,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Result<Self, Nonsense> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != VERSION {
            return Err(Nonsense::Version { found: bytes[0], ours: VERSION });
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[1]);
        let kind = kind.ok_or(Nonsense::Kind(bytes[1]))?;
        let stream = u16::from_le_bytes([bytes[2], bytes[3]]);
        let (cuttable, part) = (kind.payload_limit() > 0, kind == Kind::Part);
        if stream > limits::STREAMS || (stream > 0 && !cuttable) || (stream == 0 && part) {
            return Err(Nonsense::Stream { kind, stream });
        }
        let (head, payload) = (word(4), word(8));
        if head > kind.head_limit() {
            return Err(Nonsense::Head { kind, found: head, limit: kind.head_limit() });
        }
        if payload > kind.payload_limit() {
            return Err(Nonsense::Payload { kind, found: payload, limit: kind.payload_limit() });
        }
        Ok(Self {
            kind,
            stream,
            head: head as usize,
            payload: payload as usize,
            waited: Micros(word(12).into()),
        })
    }

    /// Bytes that follow each other: all of a frame that comes whole, else what opens its stream.
    pub(crate) fn together(&self) -> usize {
        let payload = if self.stream == 0 { self.payload } else { 0 };
        HEADER + self.head + payload
    }

    /// In front of the next bytes of a payload.
    pub(crate) fn of_part(stream: u16, bytes: usize) -> [u8; HEADER] {
        let bytes = u32::try_from(bytes).expect("a part is small; this is a bug");
        let mut header = [0; HEADER];
        header[0] = VERSION;
        header[1] = Kind::Part as u8;
        header[STREAM].copy_from_slice(&stream.to_le_bytes());
        header[8..12].copy_from_slice(&bytes.to_le_bytes());
        header
    }
}

/// What bounds how much of it may wait for a slow peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// A count of its own.
    Own,
    /// The same, and one that waits is replaced by the next.
    Newest,
    /// Whoever lets queries go: a query is sent on credit that the peer granted, and taken back once nobody waits for it.
    Query(QueryKey),
    /// The queries that whoever lets them go announces: it keeps only so many, and takes back what is not to be had any more.
    Announced(QueryKey),
    /// The queries that the peer has open: each has one outcome. An answer's bytes are counted.
    Outcome(QueryKey),
}

/// A frame ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    /// Header and head.
    pub(crate) head: Vec<u8>,
    pub(crate) payload: [Buffer; 2],
    pub(crate) bound: Bound,
}

impl Encoded {
    /// Whether its payload goes in parts.
    pub(crate) fn is_cut(&self) -> bool {
        self.len() - self.head.len() > limits::PART
    }

    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Buffer::len).sum::<usize>()
    }
}

/// The frame exceeds what any peer would accept, so it is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a {kind:?} frame of {bytes} bytes is larger than what is sent between nodes")]
pub(crate) struct TooLarge {
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
}

/// Puts the header in front of a head that `write` appends.
pub(crate) fn encode(
    kind: Kind,
    bound: Bound,
    payload: [Buffer; 2],
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<Encoded, TooLarge> {
    let mut head = Vec::with_capacity(256);
    head.extend_from_slice(&[VERSION, kind as u8]);
    head.resize(HEADER, 0);
    write(&mut head);
    let encoded = Encoded { head, payload, bound };
    let bytes = encoded.len();
    let length = |length: usize, limit: u32| match u32::try_from(length) {
        Ok(length) if length <= limit => Ok(length.to_le_bytes()),
        _ => Err(TooLarge { kind, bytes }),
    };
    let mut encoded = encoded;
    let head = length(encoded.head.len() - HEADER, kind.head_limit())?;
    let payload = length(bytes - encoded.head.len(), kind.payload_limit())?;
    encoded.head[4..8].copy_from_slice(&head);
    encoded.head[8..12].copy_from_slice(&payload);
    Ok(encoded)
}
