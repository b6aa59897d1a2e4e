//! What a node makes known of itself.

use modelless_decision::narrow::Narrowed;
use modelless_decision::replica::Signs;
use modelless_decision::route::NodeInfo;
use modelless_types::{Bytes, DeviceIx, Engine, Micros, NodeId, PricePerHour, ReplicaState, VariantId};
use serde::{Deserialize, Serialize};

/// Replaced whole when something in it changes. Not on any query's path.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its number in the store.
    pub node: NodeId,
    /// Its name for people.
    pub name: String,
    /// Machines that are scaled together.
    pub pool: String,
    /// Where machines fail together.
    pub zone: String,
    /// Who says so, or why nothing better is known, for people.
    #[serde(default)]
    pub zone_source: String,
    /// What it runs on.
    pub hardware: Hardware,
    /// Hardware that behaves alike.
    pub device_class: String,
    /// What an hour of a lane costs.
    pub price: PricePerHour,
    /// Where that price comes from.
    pub price_origin: PriceOrigin,
    /// Batches that run side by side, ...
    pub lanes: u16,
    /// ... unless fewer do for now. Older nodes do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<Narrowed>,
    /// Where variants are compared, batches are taken to last so many times as long, as queries were missed there lately. Nothing
    /// where that is once, and of nodes from before this was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caution: Option<f64>,
    /// Memory that replicas may take.
    pub memory_budget: Bytes,
    /// Memory that they take.
    pub memory_used: Bytes,
    /// When it started, in microseconds since 1970 by its own clock.
    pub started_unix_us: u64,
    /// What it has at hand, as of when this was made known: about once a second, and when a replica changes.
    pub load: NodeLoad,
    /// Takes nothing new.
    pub draining: bool,
    /// What it could run, for routing.
    pub info: NodeInfo,
    /// Its replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// What is missing or weakened here (no library, no isolation layer), for people.
    pub warnings: Vec<String>,
    /// What it could run variants with.
    pub engines: Vec<EngineStatus>,
}

impl NodeStatus {
    /// A node on which nothing is and nothing has happened yet: one lane, no memory, an assumed price.
    pub fn idle(info: NodeInfo, name: &str, device_class: &str) -> Self {
        Self {
            node: info.id,
            name: name.to_owned(),
            pool: "default".to_owned(),
            zone: "local".to_owned(),
            zone_source: String::new(),
            hardware: Hardware::default(),
            device_class: device_class.to_owned(),
            price: info.price,
            price_origin: PriceOrigin::Assumed,
            lanes: 1,
            narrowed: None,
            caution: None,
            memory_budget: Bytes(0),
            memory_used: Bytes(0),
            started_unix_us: 0,
            load: NodeLoad::default(),
            draining: false,
            info,
            replicas: Vec::new(),
            warnings: Vec::new(),
            engines: Vec::new(),
        }
    }

    /// Why the node can run nothing with an engine, if so. An engine that it says nothing of may well be there.
    pub fn without(&self, engine: Engine) -> Option<&str> {
        self.engines.iter().find(|status| status.engine == engine)?.unavailable.as_deref()
    }
}

/// An inference engine as a node makes it known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Which.
    pub engine: Engine,
    /// The version of its library, if it runs.
    pub version: Option<String>,
    /// What is missing, if it does not.
    pub unavailable: Option<String>,
}

/// What a node runs on, as far as it may use it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hardware {
    /// The processor, such as `AMD EPYC 7B13`; empty where it has no name.
    pub cpu: String,
    /// Its architecture, such as `x86_64`.
    pub arch: String,
    /// Those of its instruction sets that matter to inference.
    pub isa: Vec<String>,
    /// Cores this process may use: what affinity and container leave it, or what it was told.
    pub cores: u16,
    /// Memory this process may use: the container's, or the machine's.
    pub memory: Bytes,
    /// Its graphics processors. Known, but nothing runs on them yet.
    pub gpus: Vec<Gpu>,
}

/// A graphics processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)] // it is also an entry in a file that people write
pub struct Gpu {
    /// Its product name.
    pub name: String,
    /// Its memory, where that is known.
    pub memory: Option<Bytes>,
}

/// Where a price comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PriceOrigin {
    /// Somebody gave it.
    Declared,
    /// Read from the price table that is shipped.
    Listed {
        /// Whose price, for what, when.
        source: String,
    },
    /// The default of a device that the table does not know.
    Assumed,
}

impl PriceOrigin {
    /// As shown.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Listed { .. } => "listed",
            Self::Assumed => "default",
        }
    }
}

/// What a node has at hand, and what it has done since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Lanes on which a batch runs.
    pub lanes_busy: u16,
    /// Queries that wait here.
    pub queued: u32,
    /// Queries in batches that were handed to a runner.
    pub running: u32,
    /// Batches handed to runners.
    pub batches: u64,
    /// Queries in them, reruns counted again.
    pub queries: u64,
    /// Runners that ended without having been asked to.
    pub crashes: u64,
    /// Replicas that came back after such an end.
    pub restarts: u64,
    /// Queries given back to their gateways, unstarted.
    #[serde(default)]
    pub handed_back: u64,
    /// Replicas brought into memory.
    #[serde(default, skip_serializing_if = "is_none")]
    pub loads: u64,
    /// What that took, all together.
    #[serde(default, skip_serializing_if = "took_none")]
    pub load_time: Micros,
    /// Replicas taken out of memory to make room for others.
    #[serde(default, skip_serializing_if = "is_none")]
    pub evictions: u64,
}

/// Left out where nothing happened, as by nodes that do not know of it yet.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn took_none(time: &Micros) -> bool {
    time.0 == 0
}

/// A replica as a node makes it known.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Where.
    pub device: DeviceIx,
    /// What.
    pub variant: VariantId,
    /// Its state.
    pub state: ReplicaState,
    /// Memory it takes.
    pub memory: Bytes,
    /// Live over profiled time, once anything was seen.
    pub slowdown: Option<f64>,
    /// Why it is in this state.
    pub cause: String,
    /// What loading it took.
    pub loads: LoadTimes,
    /// What its state rests on, while it serves. Nodes from before this was told do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signs: Option<Signs>,
}

/// How often a replica was loaded and what that took the last time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LoadTimes {
    /// Times since the node started.
    pub count: u32,
    /// With its file on the disk only.
    pub cold: Option<Micros>,
    /// With its file in memory already, or on a file system that does not tell.
    pub warm: Option<Micros>,
}
