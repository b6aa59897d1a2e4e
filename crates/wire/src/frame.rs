//! Frames as bytes: a header of 16 bytes, a head, a payload.
//!
//! ```text
//!  0  u8   version, 2
//!  1  u8   kind
//!  2  u16  flags, none so far
//!  4  u32  length of the head
//!  8  u32  length of the payload
//! 12  u32  microseconds that the frame waited at its sender before the first byte left
//! 16  head: bincode's format for what is on a query's path, JSON for the rest
//!     payload: raw bytes, as they came from or go to the client
//! ```
//! Everything is little-endian.

use crate::config::limits;
use crate::lost::Nonsense;
use bytes::Bytes as Buffer;
use modelless_types::Micros;

pub(crate) const VERSION: u8 = 2;
pub(crate) const HEADER: usize = 16;
/// Where the header says how long the frame waited.
pub(crate) const WAITED: std::ops::Range<usize> = 12..16;

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
}

impl Kind {
    pub(crate) const ALL: [Self; 18] = [
        Self::Hello,
        Self::Status,
        Self::Ping,
        Self::Pong,
        Self::Goodbye,
        Self::Proof,
        Self::Query,
        Self::Demand,
        Self::Cancel,
        Self::Pin,
        Self::Wake,
        Self::Piece,
        Self::Answer,
        Self::Refused,
        Self::BadInput,
        Self::HandedBack,
        Self::Report,
        Self::Want,
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
            | Self::Wake
            | Self::Answer
            | Self::Refused
            | Self::BadInput
            | Self::HandedBack
            | Self::Piece
            | Self::Want
            | Self::Report => limits::HEAD,
        }
    }

    fn payload_limit(self) -> u32 {
        match self {
            Self::Query | Self::Answer => limits::PAYLOAD,
            #[expect(clippy::cast_possible_truncation, reason = "one MiB")]
            Self::Piece => limits::PIECE as u32,
            Self::Hello
            | Self::Status
            | Self::Proof
            | Self::Ping
            | Self::Pong
            | Self::Goodbye
            | Self::Demand
            | Self::Cancel
            | Self::Pin
            | Self::Wake
            | Self::Refused
            | Self::BadInput
            | Self::HandedBack
            | Self::Want
            | Self::Report => 0,
        }
    }
}

/// A header that keeps all bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
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
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
        if flags != 0 {
            return Err(Nonsense::Flags { kind, flags });
        }
        let (head, payload) = (word(4), word(8));
        if head > kind.head_limit() {
            return Err(Nonsense::Head { kind, found: head, limit: kind.head_limit() });
        }
        if payload > kind.payload_limit() {
            return Err(Nonsense::Payload { kind, found: payload, limit: kind.payload_limit() });
        }
        Ok(Self { kind, head: head as usize, payload: payload as usize, waited: Micros(word(12).into()) })
    }

    pub(crate) fn frame(&self) -> usize {
        HEADER + self.head + self.payload
    }
}

/// A frame ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    /// Header and head.
    pub(crate) head: Vec<u8>,
    pub(crate) payload: [Buffer; 2],
}

impl Encoded {
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
    payload: [Buffer; 2],
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<Encoded, TooLarge> {
    let mut head = Vec::with_capacity(256);
    head.extend_from_slice(&[VERSION, kind as u8]);
    head.resize(HEADER, 0);
    write(&mut head);
    let encoded = Encoded { head, payload };
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
