//! What the router is told and what it wants done.

use super::super::load::NodeReport;
use super::super::sharing::Said;
use super::super::snapshot::Table;
use super::whole;
use crate::machine::{Rank, Ranked};
use crate::query::Query;
use crate::worker::{draining, is_draining};
use alloc::vec::Vec;
use modelless_types::{Bytes, Micros, NodeId, QueryKey, Refusal, TaskId, Time};
use serde::{Deserialize, Serialize};

/// To so many nodes a query is announced where nothing else is set: one more hardly ever claims it, and hears of it all the same.
pub const ANNOUNCE: u16 = 16;

/// Bounds on what waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Queries waiting here, all classes together.
    pub waiting: u32,
    /// Decoded bytes waiting here.
    pub waiting_bytes: Bytes,
    /// How long after a query's time its node may still answer before it is given up.
    pub grace: Micros,
    /// Classes remembered before those without queries are forgotten.
    pub classes: u32,
    /// Whole batches go to one node each. In recordings from before there was such a thing they do not.
    #[serde(default)]
    pub whole_batches: bool,
    /// To so many nodes at most a query is announced that none could begin at once, and whichever claims it first has it. Below 2 each
    /// goes to one node, or waits here, as in recordings from before there was such a thing.
    /// Gateways that run have [`ANNOUNCE`].
    #[serde(default)]
    pub announce: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 4_096,
            waiting_bytes: Bytes::from_mib(512),
            grace: Micros::from_millis(50),
            classes: 1_024,
            whole_batches: true,
            announce: 0,
        }
    }
}

/// What the router is told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A query that was admitted.
    Arrive(Query),
    /// A node answered or refused a query; with every frame comes its report.
    Finished {
        /// The query.
        key: QueryKey,
        /// Who says so.
        node: NodeId,
        /// The node's load.
        report: NodeReport,
        /// What it came to there.
        #[serde(default, skip_serializing_if = "End::is_unknown")]
        end: End,
    },
    /// A node gives back a query that it has not started.
    HandedBack {
        /// The query.
        key: QueryKey,
        /// Who says so.
        node: NodeId,
        /// The node's load.
        report: NodeReport,
        /// What the query is told if nobody else can answer it.
        #[serde(default = "draining", skip_serializing_if = "is_draining")]
        why: Refusal,
    },
    /// A node will not claim a query that was announced to it.
    Declined {
        /// The query.
        key: QueryKey,
        /// Who says so.
        node: NodeId,
        /// The node's load.
        report: NodeReport,
        /// What the query is told if nobody else can answer it.
        why: Refusal,
    },
    /// A node asks for queries that were announced to it.
    Claim {
        /// Which.
        queries: Vec<QueryKey>,
        /// Who asks.
        node: NodeId,
        /// How many lanes it has.
        lanes: u16,
        /// Its load.
        report: NodeReport,
    },
    /// A node speaks without being asked (heartbeat).
    Report {
        /// Who.
        node: NodeId,
        /// Its load.
        report: NodeReport,
    },
    /// A node cannot be reached; what it had is lost.
    NodeDown {
        /// Who.
        node: NodeId,
    },
    /// The client went away.
    Cancel {
        /// The query.
        key: QueryKey,
    },
    /// Tasks, variants or nodes changed.
    Table(Table),
    /// Weights and reserved shares of applications, in place of all that was said before.
    Shares(Vec<Said>),
}

/// What a query came to at its node, as far as whoever shares devices' time has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum End {
    /// Anything else, or nobody told.
    #[default]
    Unknown,
    /// It was answered.
    Answered {
        /// Its part of its batch.
        device: Micros,
    },
    /// There was no time or no room for it.
    Short,
}

impl End {
    /// Of a query that its node refused.
    pub fn refused(why: &Refusal) -> Self {
        let short =
            matches!(why, Refusal::TooLate { .. } | Refusal::QueueFull { .. } | Refusal::BytesFull { .. });
        if short { Self::Short } else { Self::Unknown }
    }

    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

impl Ranked for Event {
    fn rank(&self) -> Rank {
        match self {
            Self::Finished { .. }
            | Self::HandedBack { .. }
            | Self::Declined { .. }
            | Self::Claim { .. }
            | Self::Report { .. }
            | Self::NodeDown { .. } => Rank::Completion,
            Self::Arrive(_) | Self::Cancel { .. } | Self::Table(_) | Self::Shares(_) => Rank::Arrival,
        }
    }
}

/// What the router wants done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Give a query to a node, with how many of its class still wait here.
    Send {
        /// The query.
        key: QueryKey,
        /// The node.
        node: NodeId,
        /// 99th percentile of what is expected, from now to the answer.
        expected: Micros,
        /// The node's part of those that still wait in this class after it, if all that could serve them do alike.
        waiting: u32,
        /// Deadline of the first of those.
        first: Option<Time>,
        /// Among how many nodes whole batches of the class go in turn; 1 where they do not, and 0 where nothing is said of it.
        #[serde(default, skip_serializing_if = "whole::is_untold")]
        among: u32,
        /// Whether the node may give it back: another could answer it, and none has given it back yet.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        returnable: bool,
        /// It is within what is reserved for its application while not all can be answered in time: it goes before all priorities there.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        reserved: bool,
    },
    /// Tell a node of a query that it may claim. The input stays here until then.
    Announce {
        /// The query.
        key: QueryKey,
        /// The node.
        node: NodeId,
        /// The part of its class that the node would answer if all who hear of it did what they can, in millionths.
        part_ppm: u32,
        /// How long it takes on the quickest of the others, alone and without the way there.
        quickest: Micros,
    },
    /// Tell a node that a query which was announced to it, or which it claims, is not to be had any more.
    Withdraw {
        /// The query.
        key: QueryKey,
        /// The node.
        node: NodeId,
    },
    /// Tell the client no.
    Refuse {
        /// The query.
        key: QueryKey,
        /// Why.
        refusal: Refusal,
    },
    /// Tell a node that it may give a query back after all: another that could answer it has come since.
    MayReturn {
        /// The query.
        key: QueryKey,
        /// The node.
        node: NodeId,
    },
    /// Tell a node that nobody waits for a query any longer.
    Cancel {
        /// The query.
        key: QueryKey,
        /// The node.
        node: NodeId,
    },
    /// Ask a node to load a variant.
    Wake {
        /// The node.
        node: NodeId,
        /// The task.
        task: TaskId,
        /// The variant.
        ordinal: u8,
    },
}
