//! What is true only for a moment: who is there, how busy, what is asked for, that something changed.
//!
//! All of it may be lost at any moment and is whole again within a heartbeat: members say again and again what they
//! are, and whoever listens for notices is told when some may have been missed and reads the store instead. Nothing here
//! is on a query's path; without it nodes and gateways serve on with those they know. [`MemLive`] is for one
//! process, [`RedisLive`] for many; one suite (`tests/suite.rs`) holds for both.
#![warn(missing_docs)]

mod head;
mod mem;
mod members;
mod redis;
mod said;

pub use crate::redis::RedisLive;
pub use mem::MemLive;
pub use members::{Known, follow, keep_announced};
pub use said::{ASKED, CORRECTIONS, DEMAND, ENOUGH, RESIDENT, TRIALS};

use async_trait::async_trait;
use modelless_decision::Correction;
use modelless_decision::query::Class;
use modelless_decision::trial::Counts;
use modelless_types::{Bytes, DeviceIx, Micros, NodeId, ReplicaState, TaskId, TrialId, VariantId, Within};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// The largest member that may be announced: its lists, and the rest, each.
pub const MEMBER_BYTES: usize = 1 << 20;
/// At most so many are read; what comes after is a mistake, not a cluster.
pub const MEMBERS: usize = 10_000;
/// Notices that a slow listener may leave unread before it is told that some are missed.
pub const NOTICES: usize = 1_024;

/// What a member is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Takes queries from clients.
    Gateway,
    /// Answers them.
    Node,
    /// Plans.
    Scheduler,
}

impl Role {
    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Node => "node",
            Self::Scheduler => "scheduler",
        }
    }
}

/// A process of the cluster as it makes itself known. Its lists are told when they change, the rest with every heartbeat.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// What it is.
    pub role: Role,
    /// Its name, of which there is one in each role.
    pub name: String,
    /// Drawn at its start: tells it from one of the same name before it, or beside it by mistake.
    pub instance: u64,
    /// Its number in the store, for a node.
    pub node: Option<NodeId>,
    /// Where it is reached, for a node: `host:port` or `unix:/path`.
    pub address: Option<String>,
    /// Takes nothing new.
    pub draining: bool,
    /// How busy it is.
    pub load: Load,
    /// Hardware that behaves alike, for a node.
    pub device_class: String,
    /// What it has in memory, up to [`RESIDENT`].
    pub resident: Arc<[Resident]>,
    /// How long it has been there on its own clock, for a gateway. `None` also while what it was asked is older than that.
    pub up: Option<Micros>,
    /// What is asked of it, up to [`DEMAND`].
    pub demand: Arc<[Demand]>,
    /// When each task was asked for last, up to [`ASKED`].
    pub asked: Arc<[Asked]>,
    /// Whether that is every task that was asked for since it is there.
    pub tells_all_asked: bool,
    /// How much slower or quicker than their profiles its variants are, where it saw anything lately, up to [`CORRECTIONS`].
    pub corrections: Arc<[Corrected]>,
    /// What it counted of trials that run, for a gateway, up to [`TRIALS`].
    pub trials: Arc<[Tried]>,
    /// Entries of these lists that are beyond their bounds.
    pub left_out: u32,
}

impl Member {
    /// One that says no more than that it is there.
    pub fn new(role: Role, name: &str, instance: u64) -> Self {
        Self {
            role,
            name: name.to_owned(),
            instance,
            node: None,
            address: None,
            draining: false,
            load: Load::default(),
            device_class: String::new(),
            resident: Arc::default(),
            up: None,
            demand: Arc::default(),
            asked: Arc::default(),
            tells_all_asked: false,
            corrections: Arc::default(),
            trials: Arc::default(),
            left_out: 0,
        }
    }
}

/// What live traffic says of a variant's profile on a node.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Corrected {
    /// The task.
    pub task: TaskId,
    /// The variant, by its ordinal in the task.
    pub ordinal: u8,
    /// How far it is off.
    pub correction: Correction,
}

/// What a gateway counted of a trial. Counts only rise while an instance lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// Which.
    pub trial: TrialId,
    /// What came of its queries.
    pub counts: Counts,
}

/// How busy a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Queries that it has.
    pub queries: u32,
    /// Of those, how many wait.
    pub waiting: u32,
    /// Lanes that run a batch.
    pub busy_lanes: u16,
    /// Lanes that there are.
    pub lanes: u16,
    /// Memory that replicas take.
    pub memory_used: Bytes,
    /// Memory that they may take.
    pub memory_budget: Bytes,
}

/// A replica in memory, or on its way there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resident {
    /// On which device.
    pub device: DeviceIx,
    /// What.
    pub variant: VariantId,
    /// How it is.
    pub state: ReplicaState,
}

/// What is asked of a gateway in one class. Counts only rise while an instance lives, so a heartbeat that is lost loses
/// nothing: the next one holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Demand {
    /// The class.
    pub class: Class,
    /// Queries that came since the instance started.
    pub arrived: u64,
    /// Of those, answered in time.
    pub in_time: u64,
    /// Queries that wait at this moment.
    pub waiting: u32,
    /// Within what those that came were asked, rising. Gateways of before do not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<(Within, u64)>,
}

/// When a gateway was asked for a task last, on its own clock ([`Member::up`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// The task.
    pub task: TaskId,
    /// When.
    pub at: Micros,
}

/// That something changed, which is then read in the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// There is a new plan.
    Plan {
        /// Its number in the store.
        id: u64,
    },
    /// Tasks, models or profiles changed.
    Catalog {
        /// The version there is now.
        version: u64,
    },
    /// The live state was away, or this listener too slow: anything may have changed. Never published, only heard.
    Missed,
}

/// Why the live state could not be asked. Never a reason to stop serving.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("`{url}` cannot be used as the address of a Redis: {why}")]
    Url {
        /// The address, without its password.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// It does not answer.
    #[error("the live state at {at} does not answer: {why}")]
    Away {
        /// Where it should be.
        at: String,
        /// What happened instead.
        why: String,
    },
    /// It answered with an error.
    #[error("the live state refused: {why}")]
    Refused {
        /// What it said.
        why: String,
    },
    /// A member says too much of itself.
    #[error("{name} takes {bytes} bytes to describe; at most {MEMBER_BYTES} are announced")]
    TooLarge {
        /// Who.
        name: String,
        /// How much.
        bytes: usize,
    },
    /// More members than a cluster has.
    #[error("{count} members are announced, which is more than {MEMBERS}")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// The live state.
#[async_trait]
pub trait Live: Send + Sync {
    /// Says that a member is there, until `ttl` has passed. Gives the instance that held the name until now, if it was
    /// another: usually the same process before a restart.
    async fn announce(&self, member: &Member, ttl: Duration) -> Result<Option<u64>, Error>;

    /// Takes a member back, unless another instance has its name by now.
    async fn withdraw(&self, role: Role, name: &str, instance: u64) -> Result<(), Error>;

    /// Everybody who is there, by role and name.
    async fn members(&self) -> Result<Vec<Member>, Error>;

    /// Tells all who listen. Those who cannot be reached read the store later.
    async fn publish(&self, notice: Notice) -> Result<(), Error>;

    /// Keeps something under a name for a while; what was under it before goes.
    async fn remember(&self, name: &str, value: &[u8], ttl: Duration) -> Result<(), Error>;

    /// What is kept under a name, as long as nobody needed its room.
    async fn recall(&self, name: &str) -> Result<Option<Vec<u8>>, Error>;

    /// Notices from now on. One that falls behind hears of it as `Lagged`, which means [`Notice::Missed`].
    fn notices(&self) -> broadcast::Receiver<Notice>;

    /// Keeps notices coming until `stop`.
    async fn run(&self, stop: CancellationToken);
}
