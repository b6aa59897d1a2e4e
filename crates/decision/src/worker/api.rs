//! What the worker is told and what it wants done.

use super::foresight::Foresight;
use super::reason::Reason;
use crate::estimate::{Moments, RunModel};
use crate::machine::{Rank, Ranked};
use crate::query::{Class, Query};
use crate::replica::Host;
use alloc::string::String;
use alloc::vec::Vec;
use modelless_types::{
    Accuracy, Batching, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, QueryKey, Refusal,
    ReplicaState, TaskId, Time, VariantId,
};
use serde::{Deserialize, Serialize};

/// Why a replica goes that made room; nothing else has this cause.
pub const EVICTED: &str = "evicted for another that is wanted";
/// Why a replica goes that somebody had unloaded.
pub const UNLOADED: &str = "unloaded by hand";

/// A lane: one place of a device where one batch runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LaneIx(pub u16);

/// A batch of this worker, in order of binding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct BatchId(pub u64);

/// A device of this node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeviceConfig {
    /// How many batches run side by side, before it is cut otherwise.
    pub lanes: u16,
    /// Cores of each lane; 0 stands for 1.
    #[serde(default)]
    pub width: u16,
    /// Memory that replicas may take together.
    pub memory: Bytes,
    /// What an hour of one core costs, and so of a lane of one core.
    pub price: PricePerHour,
}

/// Bounds and habits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// The devices.
    pub devices: Vec<DeviceConfig>,
    /// Queries that may wait here unbound.
    pub queue: u32,
    /// Decoded bytes that may wait here.
    pub queue_bytes: Bytes,
    /// How long a failed replica rests before it may be tried again; doubles with each failure in a row, up to a
    /// minute. After a first crash it restarts at once.
    pub back_off: Micros,
    /// Failures in a row after which a variant is not waited for any more: queries are refused until it has rested,
    /// then one at a time tries it.
    pub give_up_after: u32,
    /// How queries share batches where their task does not say.
    #[serde(default)]
    pub batching: Batching,
    /// A replica is not evicted sooner than this after it was loaded.
    #[serde(default)]
    pub min_residence: Micros,
    /// Queries that cannot be in time here go back to their gateway while another node may still answer them.
    #[serde(default)]
    pub hand_back: bool,
    /// How far it looks ahead.
    #[serde(default)]
    pub foresight: Foresight,
    /// What runs several times as long as it should, and at least this long, gives its lane up to others that wait for it. Zero,
    /// as in recordings from before there was such a thing: never.
    #[serde(default)]
    pub suspect_after: Micros,
    /// Batches that another server computes hold no lane meanwhile. In recordings from before there was such a thing they do.
    #[serde(default)]
    pub servers_apart: bool,
    /// So many loads of a device may take far longer than they were measured to while another begins. Zero, as in recordings from
    /// before there was such a thing: what loads keeps all others waiting until it ends.
    #[serde(default)]
    pub overdue_loads: u16,
    /// Fewer lanes run side by side while something slows them down. Not in recordings from before there was such a thing.
    #[serde(default)]
    pub narrow: bool,
}

impl Default for WorkerConfig {
    /// Without a device. Every figure is told in `docs/defaults.md`.
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            queue: 1_024,
            queue_bytes: Bytes::from_mib(256),
            back_off: Micros::from_millis(100),
            give_up_after: 5,
            batching: Batching::Deadline,
            min_residence: Micros::from_millis(500),
            hand_back: true,
            foresight: Foresight::default(),
            suspect_after: Micros::from_millis(50),
            servers_apart: true,
            overdue_loads: 2,
            narrow: true,
        }
    }
}

/// A variant this node could run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorkerVariant {
    /// Number in the store.
    pub id: VariantId,
    /// Its model; variants of one model for one engine share a runner.
    pub model: ModelId,
    /// What runs it. Recordings from before there were several do not say.
    #[serde(default = "onnx")]
    pub engine: Engine,
    /// Its task.
    pub task: TaskId,
    /// Its position in the task's sets.
    pub ordinal: u8,
    /// What floors are compared with.
    pub accuracy: Accuracy,
    /// The largest batch it takes.
    pub max_batch: u32,
    /// How long it takes here.
    pub run: RunModel,
    /// Memory of a replica.
    pub memory: Bytes,
    /// From asking for it to ready.
    pub load_time: Micros,
    /// Threads of a run: it runs on lanes of at least as many cores. 0 stands for 1.
    #[serde(default)]
    pub threads: u16,
    /// How its task wants batches made. `None`: as the worker is set.
    #[serde(default)]
    pub batching: Option<Batching>,
    /// It runs on a GPU, in a process apart from those of the same model that do not.
    #[serde(default)]
    pub gpu: bool,
    /// For how long it stays in memory after it last ran, where the plan does not want it there. `None`: until its room is needed.
    #[serde(default)]
    pub keep: Option<Micros>,
}

pub(crate) const fn draining() -> Refusal {
    Refusal::Draining
}

pub(crate) fn is_draining(why: &Refusal) -> bool {
    *why == Refusal::Draining
}

const fn onnx() -> Engine {
    Engine::Onnx
}

/// A process that runs variants: all of one model for one engine, those on a GPU apart from the others.
pub(super) type Runner = (ModelId, Engine, bool);

impl WorkerVariant {
    pub(super) const fn runner(&self) -> Runner {
        (self.model, self.engine, self.gpu)
    }
}

/// How a batch ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Every member has its rows.
    Ran,
    /// It was taken back before it began: [`Action::Revoke`].
    Revoked,
    /// The batch did not run to its end.
    Failed {
        /// How.
        failure: Failure,
        /// What the engine said.
        why: String,
    },
}

/// The ways a batch can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Failure {
    /// The model reported an error and lives on.
    Model,
    /// It found no memory and lives on: something that its process ran beside may have had it.
    Memory,
    /// The process died and took the batch with it; in older recordings also one that hung.
    Process,
    /// It ran over its limit, and its process was ended for it.
    Hung,
    /// What it would have been computed on did not answer: a server that is down. Its process lives on.
    Unreachable,
    /// It was gone, or had no slot, before the batch could be given to it.
    NotStarted,
}

impl Failure {
    /// The process is gone, and what it ran is suspected.
    pub(super) const fn died(self) -> bool {
        matches!(self, Self::Process | Self::Hung)
    }
}

/// What the worker is told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A query came, decoded. If it was claimed here it is this node's from now on.
    Arrive(Query),
    /// A query is announced: whoever of several nodes claims it first has it. Its input stays at its gateway until then.
    Announce {
        /// The query.
        query: Query,
        /// The part of its class that this node would answer if all who hear of it did what they can, in millionths.
        part_ppm: u32,
        /// How long it takes on the quickest of the others, alone and without the way there.
        quickest: Micros,
    },
    /// How many queries of a class wait at the gateways, and the first deadline among them.
    Demand {
        /// The class.
        class: Class,
        /// How many.
        waiting: u32,
        /// The first deadline.
        first: Option<Time>,
        /// Among how many nodes their class is divided, each of which gets whole batches in turn. 0, as in recordings from before it was told:
        /// nobody says.
        #[serde(default)]
        among: u32,
    },
    /// A batch's inputs stand in its slot. Members whose input would not go in are named and answered by the shell.
    Prepared {
        /// The batch.
        batch: BatchId,
        /// Members that fell out.
        dropped: Vec<QueryKey>,
    },
    /// A batch ended.
    Done {
        /// The batch.
        batch: BatchId,
        /// How.
        outcome: Outcome,
    },
    /// A replica is in memory.
    Loaded {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
        /// What it really takes.
        memory: Bytes,
        /// How long it really took.
        took: Micros,
    },
    /// What a load needs is not on this machine and is brought here: until then it keeps no other load waiting.
    Fetching {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
    },
    /// It is here: [`Action::Load`] is given again when the load's turn comes.
    Fetched {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
    },
    /// A replica would not load.
    LoadFailed {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
        /// What the engine said.
        why: String,
    },
    /// What a replica takes turned out to be more than when it was loaded: what a process takes without any model is counted for the
    /// first one in it, and has to be for another when that one left; and batches leave memory behind that libraries keep.
    Weighed {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
        /// All that it counts for from now on.
        memory: Bytes,
    },
    /// A replica is out of memory.
    Unloaded {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
    },
    /// A model's process died while idle or in a batch. Best told before the `Done` of the batches it had, so that
    /// nothing is bound to it meanwhile; what it was loading is reported by `LoadFailed`.
    RunnerDied {
        /// The model.
        model: ModelId,
        /// What was in it: the model's variants for another engine live on. `None`, as in recordings from before
        /// there were several engines: all of the model.
        #[serde(default)]
        variants: Option<Vec<VariantId>>,
        /// What is known of it.
        why: String,
        /// A batch of it ran over its limit.
        #[serde(default)]
        hung: bool,
    },
    /// The device's quarantine runner, which was to end, is out of memory.
    QuarantineEnded {
        /// Which.
        device: DeviceIx,
    },
    /// What became of a query that was rerun alone in quarantine.
    Quarantined {
        /// The query.
        key: QueryKey,
        /// How its run ended.
        outcome: Outcome,
    },
    /// Nobody waits for a query any longer, or another node has claimed it.
    Cancel {
        /// The query.
        key: QueryKey,
    },
    /// Another node could answer a query by now: it may be given back.
    MayReturn {
        /// The query.
        key: QueryKey,
    },
    /// The plan: what must be resident where. Everything else is at the worker's discretion.
    Pin(Vec<(DeviceIx, VariantId)>),
    /// A gateway asks for a variant to be loaded.
    Wake {
        /// The task.
        task: TaskId,
        /// The variant.
        ordinal: u8,
    },
    /// Somebody asks for a variant to leave memory.
    Unwanted {
        /// Which.
        variant: VariantId,
    },
    /// What can be run here changed.
    Catalog(Vec<WorkerVariant>),
    /// A device's cores are to be cut into lanes of this width.
    Recut {
        /// Which.
        device: DeviceIx,
        /// Cores of each lane.
        width: u16,
    },
    /// Of these the profiles were marked as stale from here before this began, and still are.
    Marked(Vec<VariantId>),
    /// What the machine's system tells of it, about once a second.
    Host(Host),
    /// Take nothing new, hand back what is not started, finish the rest.
    Drain,
}

impl Ranked for Event {
    fn rank(&self) -> Rank {
        match self {
            Self::Prepared { .. }
            | Self::Done { .. }
            | Self::Loaded { .. }
            | Self::LoadFailed { .. }
            | Self::Fetching { .. }
            | Self::Fetched { .. }
            | Self::Weighed { .. }
            | Self::Unloaded { .. }
            | Self::RunnerDied { .. }
            | Self::QuarantineEnded { .. }
            | Self::Quarantined { .. } => Rank::Completion,
            Self::Arrive(_)
            | Self::Announce { .. }
            | Self::Demand { .. }
            | Self::Cancel { .. }
            | Self::MayReturn { .. }
            | Self::Pin(_)
            | Self::Wake { .. }
            | Self::Unwanted { .. }
            | Self::Catalog(_)
            | Self::Marked(_)
            | Self::Recut { .. }
            | Self::Host(_)
            | Self::Drain => Rank::Arrival,
        }
    }
}

/// What the worker wants done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Write these queries' inputs into a slot of the lane, in this order.
    Prepare {
        /// The batch.
        batch: BatchId,
        /// Where it will run.
        device: DeviceIx,
        /// On which lane.
        lane: LaneIx,
        /// With which variant.
        variant: VariantId,
        /// The members; row `i` of the batch is the `i`-th of them.
        queries: Vec<QueryKey>,
        /// Why this variant, for each of them.
        reasons: Vec<Reason>,
        /// Device time expected of it.
        expected: Moments,
    },
    /// Ask the gateways for these queries, which they announced: they come as [`Event::Arrive`], or [`Event::Cancel`] says that others have
    /// them or nobody waits for them.
    Claim {
        /// Which.
        queries: Vec<QueryKey>,
        /// How many lanes this node has, so that gateways know what part of a class it answers.
        lanes: u16,
    },
    /// Give the prepared batch to its runner.
    Start {
        /// The batch.
        batch: BatchId,
    },
    /// Nobody waits any longer for a batch that was handed to its runner and stands behind another: if it has not begun
    /// it need not be run. Its end is told all the same.
    Revoke {
        /// The batch.
        batch: BatchId,
    },
    /// The batch runs far longer than it should: its lane goes on to others, and what runs it is to stand back behind
    /// everything else until it ends. Its end is told all the same.
    Suspect {
        /// The batch.
        batch: BatchId,
    },
    /// Forget the batch's slot without running it: nobody waits for any of it.
    Discard {
        /// The batch.
        batch: BatchId,
    },
    /// Answer these queries with their rows of the batch.
    Deliver {
        /// The batch.
        batch: BatchId,
        /// Who still waits; all others of the batch are cancelled.
        queries: Vec<QueryKey>,
    },
    /// Run this query alone in the device's quarantine runner, which nothing else is given meanwhile. If it holds
    /// another variant, that one leaves first.
    Quarantine {
        /// The query.
        key: QueryKey,
        /// The variant that it was in a crashed batch of.
        variant: VariantId,
        /// Whose quarantine runner.
        device: DeviceIx,
        /// Device time expected of it.
        expected: Moments,
    },
    /// Answer the query with what its run in quarantine gave.
    Discharge {
        /// The query.
        key: QueryKey,
    },
    /// Nobody needs the device's quarantine runner any longer: end it, and say so when its memory is free.
    QuarantineOver {
        /// Which.
        device: DeviceIx,
    },
    /// Say no.
    Refuse {
        /// The query.
        key: QueryKey,
        /// Why.
        refusal: Refusal,
    },
    /// Give the query back to its gateway, unstarted.
    HandBack {
        /// The query.
        key: QueryKey,
        /// What it would have been told, were there no other node. Older recordings hand back only for a drain.
        #[serde(default = "draining", skip_serializing_if = "is_draining")]
        why: Refusal,
    },
    /// This node will not claim a query that was announced to it. If it was sent here meanwhile nothing need be said.
    Decline {
        /// The query.
        key: QueryKey,
        /// What it would have been told, were there no other node.
        why: Refusal,
    },
    /// The device's lanes are empty and cut anew; from now on batches are bound to these.
    Recut {
        /// Which.
        device: DeviceIx,
        /// Cores of each lane.
        width: u16,
        /// How many there are.
        lanes: u16,
    },
    /// So many lanes are open from now on, of those that there are: batches are bound to no others.
    Narrow {
        /// Of which device.
        device: DeviceIx,
        /// How many.
        lanes: u16,
        /// Of how many.
        of: u16,
        /// Why, with figures.
        cause: String,
    },
    /// Bring a variant into memory. For one that was being fetched: it is here, go on.
    Load {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
    },
    /// Take a variant out of memory; nothing of it runs.
    Unload {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
    },
    /// What was measured of a variant is off, and has been for so long that it had better be measured again: its profile is
    /// to be marked as stale.
    Drifted {
        /// Which.
        variant: VariantId,
        /// How much slower than measured it is now, in parts per million.
        ratio_ppm: u64,
    },
    /// It has kept to its profile again for as long: the mark is to be taken back.
    Steadied {
        /// Which.
        variant: VariantId,
    },
    /// A replica changed state: to be stored and shown.
    Transition {
        /// Where.
        device: DeviceIx,
        /// What.
        variant: VariantId,
        /// From.
        from: ReplicaState,
        /// To.
        to: ReplicaState,
        /// Why.
        cause: String,
    },
}
