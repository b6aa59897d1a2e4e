//! The seam: what is said, and the two traits it is said through.

use bytes::Bytes as Buffer;
use modelless_decision::query::Class;
use modelless_decision::route::NodeReport;
use modelless_decision::worker::Reason;
use modelless_types::{
    AppId, Bytes, CostPer1k, DeviceIx, Micros, ModelId, NodeId, PlanId, Prefer, Priority, QueryKey,
    QueryNumber, Refusal, SpaceId, TaskId, TenantId, VariantId,
};

/// Where a gateway sends what a node is to do.
pub trait NodeLink: Send + Sync {
    /// Hands over a frame. Must not block; a node may use the calling thread for as long as its configuration says
    /// (half a millisecond) when that brings the answer of a lone query sooner.
    fn send(&self, frame: ToNode);

    /// A query is being read and nothing else is open: it may come any moment. A node nearby can use that to wake up;
    /// others do nothing.
    fn expect_query(&self) {}

    /// Which connection this is.
    fn connection(&self) -> Connection {
        Connection::default()
    }
}

/// Tells connections to one node apart, within a process. The default is the one inside the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Connection(pub u64);

/// Where a node sends what a gateway is to know.
pub trait GatewayLink: Send + Sync {
    /// Hands over a frame. Must not block.
    fn receive(&self, node: NodeId, frame: FromNode);

    /// The same where there may be several connections to the node: over which it came.
    fn receive_over(&self, _over: Connection, node: NodeId, frame: FromNode) {
        self.receive(node, frame);
    }

    /// A query as everybody outside of its gateway's process names it. `None` where that is not known: a gateway that is gone,
    /// or that never said where its numbers begin. For what is told to people, never on the way of a query that goes well.
    fn number_of(&self, key: QueryKey) -> Option<QueryNumber> {
        let _ = key;
        None
    }
}

/// From a gateway to a node.
#[derive(Clone, Debug)]
pub enum ToNode {
    /// Answer this.
    Query(Box<QueryFrame>),
    /// This may be claimed: it is announced to several nodes, and whichever asks first has it.
    Announce(Box<Announcement>),
    /// How much of a class waits at the gateway.
    Demand(Demand),
    /// Nobody waits for this any longer; or of what was announced: it is not to be had any more.
    Cancel {
        /// The query.
        key: QueryKey,
    },
    /// Another node could answer this by now: it may be given back.
    MayReturn {
        /// The query.
        key: QueryKey,
    },
    /// The scheduler's plan for this node: what must be resident. Everything else is at the node's discretion.
    Pin {
        /// Which. Of several the one with the highest number counts, in whatever order they come.
        plan: PlanId,
        /// All that it pins on this node.
        pins: Vec<(DeviceIx, VariantId)>,
    },
    /// Load this: someone asked for it and could not wait.
    Wake {
        /// The task.
        task: TaskId,
        /// The variant, by its ordinal in the task.
        ordinal: u8,
    },
    /// Take this out of memory: somebody who may asked for it.
    Unload {
        /// What.
        variant: VariantId,
    },
}

/// How much of a class waits at the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The class.
    pub class: Class,
    /// Queries that wait.
    pub waiting: u32,
    /// Until the first deadline among them.
    pub first: Option<Micros>,
    /// Among how many nodes its gateways divide it, each of which gets whole batches in turn. 0: nobody says.
    pub among: u32,
}

/// A query on its way to a node.
#[derive(Clone, Debug)]
pub struct QueryFrame {
    /// The gateway's name for it.
    pub key: QueryKey,
    /// Who pays.
    pub tenant: TenantId,
    /// Who asks.
    pub app: AppId,
    /// Which variants may answer.
    pub class: Class,
    /// Until it wants its answer.
    pub deadline_in: Micros,
    /// Until nobody waits any longer.
    pub expires_in: Micros,
    /// Time already spent since it reached the gateway.
    pub spent: Micros,
    /// Price ceiling, checked at dispatch.
    pub max_cost: Option<CostPer1k>,
    /// What idle capacity is spent on.
    pub prefer: Prefer,
    /// Who goes first when not all can.
    pub priority: Priority,
    /// Latency and cost may be missed rather than the query refused.
    pub best_effort: bool,
    /// Another node could answer it too: one that has fallen behind may give it back.
    pub returnable: bool,
    /// Size once decoded, as far as the gateway can tell.
    pub decoded: Bytes,
    /// The input.
    pub input: Input,
    /// What waits behind it in its class.
    pub demand: Demand,
}

/// A query that may be claimed. Its input stays at the gateway until then.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Announcement {
    /// The gateway's name for it.
    pub key: QueryKey,
    /// Who pays.
    pub tenant: TenantId,
    /// Who asks.
    pub app: AppId,
    /// Which variants may answer.
    pub class: Class,
    /// Until it wants its answer.
    pub deadline_in: Micros,
    /// Until nobody waits any longer.
    pub expires_in: Micros,
    /// Time already spent since it reached the gateway.
    pub spent: Micros,
    /// Price ceiling, checked at dispatch.
    pub max_cost: Option<CostPer1k>,
    /// What idle capacity is spent on.
    pub prefer: Prefer,
    /// Who goes first when not all can.
    pub priority: Priority,
    /// Latency and cost may be missed rather than the query refused.
    pub best_effort: bool,
    /// Size once decoded, as far as the gateway can tell.
    pub decoded: Bytes,
    /// The part of its class that the node would answer if all who hear of it did what they can, in millionths.
    pub part_ppm: u32,
    /// How long it takes on the quickest of the others, alone and without the way there.
    pub quickest: Micros,
}

/// An input as it came, undecoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Raw bytes of the task's native form: a JPEG or PNG, or tensors one after the other.
    Raw(Buffer),
    /// The JSON value of `inputs`, with the JSON object of `parameters` if there is one.
    Json {
        /// The text of `inputs`.
        inputs: Buffer,
        /// The text of `parameters`.
        parameters: Option<Buffer>,
    },
}

/// From a node to a gateway. With each comes the node's credit and load.
#[derive(Clone, Debug)]
pub struct FromNode {
    /// What is said.
    pub body: Body,
    /// Credit and load.
    pub report: NodeReport,
}

/// What a node says.
#[derive(Clone, Debug)]
pub enum Body {
    /// An answer.
    Answer {
        /// The query.
        key: QueryKey,
        /// What was found, and how.
        answer: Box<Answer>,
    },
    /// A named "no".
    Refused {
        /// The query.
        key: QueryKey,
        /// Why.
        refusal: Refusal,
    },
    /// The input cannot be used.
    BadInput {
        /// The query.
        key: QueryKey,
        /// What is wrong with it.
        fault: InputFault,
        /// In words.
        why: String,
    },
    /// The node gives it back unstarted.
    HandedBack {
        /// The query.
        key: QueryKey,
        /// What it would have been told, were there no other node.
        why: Refusal,
    },
    /// The node will not claim what was announced to it.
    Declined {
        /// The query.
        key: QueryKey,
        /// What it would have been told, were there no other node.
        why: Refusal,
    },
    /// The node asks for queries that were announced to it: each comes as [`ToNode::Query`], or [`ToNode::Cancel`] says that it does not.
    Claim {
        /// Which.
        queries: Vec<QueryKey>,
        /// How many lanes it has.
        lanes: u16,
    },
    /// Nothing but the report.
    Report,
}

/// The ways an input cannot be used; each has its own status code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputFault {
    /// It does not follow its own form, or not the task's.
    Malformed,
    /// It is larger than what is accepted.
    TooLarge,
    /// It is of a kind that this task does not take.
    UnsupportedMedia,
}

/// An answer with the decision behind it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// JSON in Hugging Face's shape; of tasks of tensors these in the task's order, as `modelless_types::tensor::packed` has them.
    pub body: Buffer,
    /// Who answered.
    pub model: ModelId,
    /// Who answered, exactly.
    pub variant: VariantId,
    /// The one output space of the answer.
    pub space: SpaceId,
    /// Queries in the batch.
    pub batch: u32,
    /// Device time that was expected of the batch (99th percentile).
    pub predicted_run: Micros,
    /// What one query of the batch costs per thousand.
    pub cost: CostPer1k,
    /// From reaching the node to being bound.
    pub queued: Micros,
    /// Decoding.
    pub decode: Micros,
    /// Writing inputs into the batch.
    pub prepare: Micros,
    /// On the device.
    pub run: Micros,
    /// At the node altogether, from reaching it to the answer.
    pub at_node: Micros,
    /// Why this variant, in a few words.
    pub why: Reason,
}
