//! What both ends of a connection share: greetings, heartbeats, what is out of place.

use crate::codec::{Frame, Hello};
use crate::config::{Config, limits};
use crate::frame::{Kind, VERSION};
use crate::lost::{Lost, Nonsense};
use crate::seam::{Body, FromNode, ToNode};
use modelless_types::Micros;
use std::time::Duration;

/// The first frame of the other side.
pub(crate) fn greeting(frame: Frame, expected: &'static str) -> Result<Hello, Lost> {
    let Frame::Hello(hello) = frame else { return Err(out_of_place(&frame, expected)) };
    if hello.version == VERSION {
        Ok(hello)
    } else {
        Err(Nonsense::Version { found: hello.version, ours: VERSION }.into())
    }
}

/// Whether both sides serve one store.
pub(crate) fn one_store(hello: &Hello, config: &Config) -> Result<(), Lost> {
    if hello.store == config.store { Ok(()) } else { Err(Lost::OtherStore) }
}

/// The heartbeat of a connection: the slower one of both sides, so that none takes the other's pace for silence.
pub(crate) fn heartbeat(hello: &Hello, config: &Config) -> Duration {
    config.heartbeat.max(Duration::from_millis(hello.heartbeat_ms).min(limits::HEARTBEAT))
}

/// Heartbeats in a row at which not a byte had been heard since the one before. Counted rather than timed: a process
/// that was itself stopped finds what came meanwhile before it calls anybody lost. Bytes rather than frames, since on a
/// slow way a part of a large frame takes longer than a heartbeat.
#[derive(Debug)]
pub(crate) struct Missed {
    most: u32,
    each: Duration,
    count: u32,
    heard: u64,
    /// Heartbeats at which something had been heard.
    alive: u32,
}

impl Missed {
    pub(crate) fn new(most: u32, each: Duration) -> Self {
        Self { most, each, count: 0, heard: 0, alive: 0 }
    }

    /// A heartbeat is over; so many bytes were heard until now.
    pub(crate) fn tick(&mut self, heard: u64) -> Result<(), Lost> {
        if std::mem::replace(&mut self.heard, heard) == heard {
            self.count += 1;
        } else {
            self.count = 0;
            self.alive = self.alive.saturating_add(1);
        }
        if self.count >= self.most {
            return Err(Lost::Silent { after: self.each * self.count });
        }
        Ok(())
    }

    /// For how long the other side was heard.
    pub(crate) fn alive(&self) -> Duration {
        self.each * self.alive
    }
}

/// Whoever greets as a gateway sends queries and artefacts, whoever greets as a scheduler pins; neither does the other's.
pub(crate) fn in_role(frame: &Frame, gateway: bool) -> Result<(), Lost> {
    match frame {
        Frame::ToNode(ToNode::Pin { .. }) if gateway => {
            Err(out_of_place(frame, "something that gateways say"))
        }
        Frame::Piece(..)
        | Frame::ToNode(
            ToNode::Query(_)
            | ToNode::Announce(_)
            | ToNode::Demand(_)
            | ToNode::Cancel { .. }
            | ToNode::MayReturn { .. }
            | ToNode::Wake { .. }
            | ToNode::Unload { .. },
        ) if !gateway => Err(out_of_place(frame, "something that schedulers say")),
        Frame::Hello(_)
        | Frame::Status(_)
        | Frame::Proof(_)
        | Frame::Want(_)
        | Frame::Piece(..)
        | Frame::Ping { .. }
        | Frame::Pong { .. }
        | Frame::Beat
        | Frame::Goodbye(_)
        | Frame::ToNode(_)
        | Frame::FromNode(_) => Ok(()),
    }
}

/// The end of a connection on which something came that was not due. A goodbye always is.
pub(crate) fn out_of_place(frame: &Frame, expected: &'static str) -> Lost {
    let kind = match frame {
        Frame::Hello(_) => Kind::Hello,
        Frame::Status(_) => Kind::Status,
        Frame::Ping { .. } => Kind::Ping,
        Frame::Pong { .. } => Kind::Pong,
        Frame::Goodbye(_) => Kind::Goodbye,
        Frame::Beat => Kind::Beat,
        Frame::Proof(_) => Kind::Proof,
        Frame::Want(_) => Kind::Want,
        Frame::Piece(..) => Kind::Piece,
        Frame::ToNode(ToNode::Query(_)) => Kind::Query,
        Frame::ToNode(ToNode::Announce(_)) => Kind::Announce,
        Frame::ToNode(ToNode::Demand(_)) => Kind::Demand,
        Frame::ToNode(ToNode::Cancel { .. }) => Kind::Cancel,
        Frame::ToNode(ToNode::MayReturn { .. }) => Kind::MayReturn,
        Frame::ToNode(ToNode::Pin { .. }) => Kind::Pin,
        Frame::ToNode(ToNode::Wake { .. }) => Kind::Wake,
        Frame::ToNode(ToNode::Unload { .. }) => Kind::Unload,
        Frame::FromNode(FromNode { body, report: _ }) => match body {
            Body::Answer { .. } => Kind::Answer,
            Body::Refused { .. } => Kind::Refused,
            Body::BadInput { .. } => Kind::BadInput,
            Body::HandedBack { .. } => Kind::HandedBack,
            Body::Declined { .. } => Kind::Declined,
            Body::Claim { .. } => Kind::Claim,
            Body::Report => Kind::Report,
        },
    };
    match frame {
        Frame::Goodbye(why) => Lost::Goodbye(why.clone()),
        Frame::Hello(_)
        | Frame::Status(_)
        | Frame::Proof(_)
        | Frame::Want(_)
        | Frame::Piece(..)
        | Frame::Ping { .. }
        | Frame::Pong { .. }
        | Frame::Beat
        | Frame::ToNode(_)
        | Frame::FromNode(_) => Nonsense::OutOfPlace { kind, expected }.into(),
    }
}

pub(crate) fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// One of the two ways.
pub(crate) fn half(rtt: Micros) -> Micros {
    Micros(rtt.0 / 2)
}
