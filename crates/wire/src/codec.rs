//! From the seam's types to frames and back.

use crate::config::Config;
use crate::frame::{Bound, Encoded, HEADER, Header, Kind, TooLarge, VERSION, encode};
use crate::head::{
    AnnounceHead, AnswerHead, BadInputHead, ClaimHead, DemandHead, GoodbyeHead, HandedBackHead, InputHead,
    PinHead, PingHead, QueryHead, RefusedHead, ReportHead, WakeHead, fault, fault_code, words,
};
use crate::lost::Nonsense;
use crate::seam::{Body, FromNode, Input, ToNode};
use crate::shelf::Piece;
use crate::status::NodeStatus;
use bytes::Bytes as Buffer;
use modelless_decision::route::Ready;
use modelless_types::{DeviceIx, Micros, NodeId, PlanId, QueryKey, TaskId, Time, VariantId};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use wincode::config::DefaultConfig;
use wincode::{SchemaRead, SchemaWrite};

const NOTHING: [Buffer; 2] = [Buffer::new(), Buffer::new()];

/// The first frame of each side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The newest version that is spoken.
    pub(crate) version: u8,
    /// Who speaks, for people.
    pub(crate) name: String,
    /// What it is.
    #[serde(flatten)]
    pub(crate) role: Role,
    /// Milliseconds between its heartbeats.
    pub(crate) heartbeat_ms: u64,
    /// Which store it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    /// Of a gateway: what is added to its names of queries makes the numbers by which others know them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) numbers_from: Option<u64>,
    /// A number to prove the cluster's key for, where one is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nonce: Option<String>,
    /// The proof for the other side's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<String>,
}

/// The proof of the side that greeted first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ProofHead {
    pub(crate) proof: String,
}

/// What a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum Role {
    /// A node.
    Node {
        /// Its number in the store.
        node: NodeId,
    },
    /// It sends queries, so it gets a share of the credit.
    Gateway,
    /// It only sends pins.
    Scheduler,
}

impl Hello {
    pub(crate) fn new(name: &str, role: Role, config: &Config) -> Self {
        Self {
            version: VERSION,
            name: words(name),
            role,
            heartbeat_ms: u64::try_from(config.heartbeat.as_millis()).unwrap_or(u64::MAX),
            store: config.store.clone(),
            numbers_from: None,
            nonce: None,
            proof: None,
        }
    }
}

/// An artefact that a node lacks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WantHead {
    pub(crate) id: u64,
    pub(crate) sha256: String,
    pub(crate) offset: u64,
}

/// What a piece answers, and the size of the whole, if it is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct PieceHead {
    id: u64,
    total: Option<u64>,
}

/// A status with the moment it was told, by the node's own clock.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StatusHead {
    now: Time,
    status: NodeStatus,
}

impl StatusHead {
    /// The status with its moments as the receiver's clock counts them.
    pub(crate) fn at(self, now: Time, late: Micros) -> NodeStatus {
        let Self { now: theirs, mut status } = self;
        for offer in &mut status.info.offers {
            if let Ready::Loading { at } = &mut offer.ready {
                *at = now + at.since(theirs).saturating_sub(late);
            }
        }
        status
    }
}

/// What can be read from a connection.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    Hello(Hello),
    Status(Box<StatusHead>),
    Ping { sent: u64, rtt: Micros },
    Pong { sent: u64 },
    Goodbye(String),
    Beat,
    Proof(String),
    Want(WantHead),
    Piece(u64, Option<Piece>),
    ToNode(ToNode),
    FromNode(FromNode),
}

pub(crate) fn hello(hello: &Hello) -> Result<Encoded, TooLarge> {
    json(Kind::Hello, hello)
}

pub(crate) fn proof(proof: String) -> Result<Encoded, TooLarge> {
    json(Kind::Proof, &ProofHead { proof })
}

pub(crate) fn want(id: u64, sha256: &str, offset: u64) -> Result<Encoded, TooLarge> {
    json(Kind::Want, &WantHead { id, sha256: sha256.to_owned(), offset })
}

pub(crate) fn piece(id: u64, piece: Option<Piece>) -> Result<Encoded, TooLarge> {
    let head = PieceHead { id, total: piece.as_ref().map(|piece| piece.total) };
    let payload = [piece.map(|piece| piece.bytes).unwrap_or_default(), Buffer::new()];
    encode(Kind::Piece, Bound::Own, payload, |out| {
        serde_json::to_writer(out, &head).expect("plain data is written to memory; this is a bug");
    })
}

pub(crate) fn status(status: &NodeStatus, now: Time) -> Result<Encoded, TooLarge> {
    json(Kind::Status, &StatusHead { now, status: status.clone() })
}

pub(crate) fn ping(sent: u64, rtt: Micros) -> Result<Encoded, TooLarge> {
    plain(Kind::Ping, NOTHING, &PingHead { sent, rtt: u32::try_from(rtt.0).unwrap_or(u32::MAX) })
}

pub(crate) fn pong(sent: u64) -> Result<Encoded, TooLarge> {
    plain(Kind::Pong, NOTHING, &sent)
}

pub(crate) fn beat() -> Result<Encoded, TooLarge> {
    encode(Kind::Beat, Bound::Own, NOTHING, |_| {})
}

pub(crate) fn goodbye(why: &str) -> Result<Encoded, TooLarge> {
    plain(Kind::Goodbye, NOTHING, &GoodbyeHead { why: words(why) })
}

pub(crate) fn to_node(frame: &ToNode) -> Result<Encoded, TooLarge> {
    match frame {
        ToNode::Query(query) => {
            let (input, payload) = match &query.input {
                Input::Raw(bytes) => (InputHead::Raw, [bytes.clone(), Buffer::new()]),
                Input::Json { inputs, parameters } => {
                    let length = |part: &Buffer| {
                        let bytes = part.len();
                        u32::try_from(bytes).map_err(|_| TooLarge { kind: Kind::Query, bytes })
                    };
                    let head = InputHead::Json {
                        inputs: length(inputs)?,
                        parameters: parameters.as_ref().map(length).transpose()?,
                    };
                    (head, [inputs.clone(), parameters.clone().unwrap_or_default()])
                }
            };
            bounded(Kind::Query, Bound::Query(query.key), payload, &QueryHead::new(query, input))
        }
        ToNode::Announce(told) => {
            bounded(Kind::Announce, Bound::Announced(told.key), NOTHING, &AnnounceHead::from(&**told))
        }
        ToNode::Demand(demand) => plain(Kind::Demand, NOTHING, &DemandHead::from(*demand)),
        ToNode::Cancel { key } => plain(Kind::Cancel, NOTHING, &key.0),
        ToNode::MayReturn { key } => plain(Kind::MayReturn, NOTHING, &key.0),
        ToNode::Pin { plan, pins } => {
            let pins = pins.iter().map(|(device, variant)| (device.0, variant.0)).collect();
            plain(Kind::Pin, NOTHING, &PinHead { plan: plan.0, pins })
        }
        ToNode::Wake { task, ordinal } => {
            plain(Kind::Wake, NOTHING, &WakeHead { task: task.0, ordinal: *ordinal })
        }
        ToNode::Unload { variant } => plain(Kind::Unload, NOTHING, &variant.0),
    }
}

pub(crate) fn from_node(frame: &FromNode) -> Result<Encoded, TooLarge> {
    let report = ReportHead::from(&frame.report);
    match &frame.body {
        Body::Answer { key, answer } => {
            let payload = [answer.body.clone(), Buffer::new()];
            bounded(Kind::Answer, Bound::Outcome(*key), payload, &AnswerHead::new(*key, answer, report))
        }
        Body::Refused { key, refusal } => {
            let head = RefusedHead { key: key.0, refusal: refusal.into(), report };
            bounded(Kind::Refused, Bound::Outcome(*key), NOTHING, &head)
        }
        Body::BadInput { key, fault, why } => {
            let head = BadInputHead { key: key.0, fault: fault_code(*fault), why: words(why), report };
            bounded(Kind::BadInput, Bound::Outcome(*key), NOTHING, &head)
        }
        Body::HandedBack { key, why } => {
            let head = HandedBackHead { key: key.0, why: why.into(), report };
            bounded(Kind::HandedBack, Bound::Outcome(*key), NOTHING, &head)
        }
        Body::Declined { key, why } => {
            let head = HandedBackHead { key: key.0, why: why.into(), report };
            bounded(Kind::Declined, Bound::Outcome(*key), NOTHING, &head)
        }
        Body::Claim { queries, lanes } => {
            let queries = queries.iter().map(|key| key.0).collect();
            plain(Kind::Claim, NOTHING, &ClaimHead { queries, lanes: *lanes, report })
        }
        Body::Report => bounded(Kind::Report, Bound::Newest, NOTHING, &report),
    }
}

/// What is left of a query that will not be sent: what else waits in its class.
pub(crate) fn demand_instead(query: &Encoded) -> Option<Encoded> {
    let head: QueryHead = read(Kind::Query, &query.head[HEADER..]).ok()?;
    plain(Kind::Demand, NOTHING, &head.into_demand()).ok()
}

fn plain<T>(kind: Kind, payload: [Buffer; 2], head: &T) -> Result<Encoded, TooLarge>
where
    T: SchemaWrite<DefaultConfig, Src = T>,
{
    bounded(kind, Bound::Own, payload, head)
}

fn bounded<T>(kind: Kind, bound: Bound, payload: [Buffer; 2], head: &T) -> Result<Encoded, TooLarge>
where
    T: SchemaWrite<DefaultConfig, Src = T>,
{
    encode(kind, bound, payload, |out| {
        wincode::serialize_into(out, head).expect("a bounded head is written to memory; this is a bug");
    })
}

fn json<T: Serialize>(kind: Kind, head: &T) -> Result<Encoded, TooLarge> {
    encode(kind, Bound::Own, NOTHING, |out| {
        serde_json::to_writer(out, head).expect("plain data is written to memory; this is a bug");
    })
}

/// Reads what follows a header.
pub(crate) fn decode(header: &Header, head: &[u8], payload: Buffer) -> Result<Frame, Nonsense> {
    let kind = header.kind;
    let bad = |why: &'static str| Nonsense::Unreadable { kind, why: why.to_owned() };
    Ok(match kind {
        Kind::Hello => Frame::Hello(read_json(kind, head)?),
        Kind::Status => {
            let head: StatusHead = read_json(kind, head)?;
            if !head.status.info.offers.iter().all(|offer| offer.run.is_sound()) {
                return Err(bad("an offer's times are no times"));
            }
            Frame::Status(Box::new(head))
        }
        Kind::Ping => {
            let PingHead { sent, rtt } = read(kind, head)?;
            Frame::Ping { sent, rtt: Micros(rtt.into()) }
        }
        Kind::Pong => Frame::Pong { sent: read(kind, head)? },
        Kind::Goodbye => Frame::Goodbye(read::<GoodbyeHead>(kind, head)?.why),
        Kind::Beat => Frame::Beat,
        Kind::Part => return Err(bad("a part is no frame of its own")),
        Kind::Proof => Frame::Proof(read_json::<ProofHead>(kind, head)?.proof),
        Kind::Want => Frame::Want(read_json(kind, head)?),
        Kind::Piece => {
            let PieceHead { id, total } = read_json(kind, head)?;
            Frame::Piece(id, total.map(|total| Piece { total, bytes: payload }))
        }
        Kind::Query => {
            let head: QueryHead = read(kind, head)?;
            let input = input(head.input, payload).map_err(bad)?;
            Frame::ToNode(ToNode::Query(Box::new(head.frame(input).map_err(bad)?)))
        }
        Kind::Announce => {
            let told = read::<AnnounceHead>(kind, head)?.announcement().map_err(bad)?;
            Frame::ToNode(ToNode::Announce(Box::new(told)))
        }
        Kind::Demand => Frame::ToNode(ToNode::Demand(read::<DemandHead>(kind, head)?.into())),
        Kind::Cancel => Frame::ToNode(ToNode::Cancel { key: QueryKey(read(kind, head)?) }),
        Kind::MayReturn => Frame::ToNode(ToNode::MayReturn { key: QueryKey(read(kind, head)?) }),
        Kind::Pin => {
            let PinHead { plan, pins } = read(kind, head)?;
            let pins = pins.into_iter().map(|(device, variant)| (DeviceIx(device), VariantId(variant)));
            Frame::ToNode(ToNode::Pin { plan: PlanId(plan), pins: pins.collect() })
        }
        Kind::Wake => {
            let WakeHead { task, ordinal } = read(kind, head)?;
            Frame::ToNode(ToNode::Wake { task: TaskId(task), ordinal })
        }
        Kind::Unload => Frame::ToNode(ToNode::Unload { variant: VariantId(read(kind, head)?) }),
        Kind::Answer => {
            let (key, answer, report) = read::<AnswerHead>(kind, head)?.answer(payload).map_err(bad)?;
            Frame::FromNode(FromNode { body: Body::Answer { key, answer }, report })
        }
        Kind::Refused => {
            let RefusedHead { key, refusal, report } = read(kind, head)?;
            let refusal = refusal.refusal().map_err(bad)?;
            let body = Body::Refused { key: QueryKey(key), refusal };
            Frame::FromNode(FromNode { body, report: report.report().map_err(bad)? })
        }
        Kind::BadInput => {
            let BadInputHead { key, fault: code, why, report } = read(kind, head)?;
            let body = Body::BadInput { key: QueryKey(key), fault: fault(code).map_err(bad)?, why };
            Frame::FromNode(FromNode { body, report: report.report().map_err(bad)? })
        }
        Kind::HandedBack => {
            let HandedBackHead { key, why, report } = read(kind, head)?;
            let body = Body::HandedBack { key: QueryKey(key), why: why.refusal().map_err(bad)? };
            Frame::FromNode(FromNode { body, report: report.report().map_err(bad)? })
        }
        Kind::Declined => {
            let HandedBackHead { key, why, report } = read(kind, head)?;
            let body = Body::Declined { key: QueryKey(key), why: why.refusal().map_err(bad)? };
            Frame::FromNode(FromNode { body, report: report.report().map_err(bad)? })
        }
        Kind::Claim => {
            let ClaimHead { queries, lanes, report } = read(kind, head)?;
            let body = Body::Claim { queries: queries.into_iter().map(QueryKey).collect(), lanes };
            Frame::FromNode(FromNode { body, report: report.report().map_err(bad)? })
        }
        Kind::Report => {
            let report = read::<ReportHead>(kind, head)?.report().map_err(bad)?;
            Frame::FromNode(FromNode { body: Body::Report, report })
        }
    })
}

/// The same where the payload was dropped: it is empty, and what of it the head tells is not true.
pub(crate) fn without_payload(header: &Header, head: &[u8]) -> Result<Frame, Nonsense> {
    let kind = header.kind;
    if kind == Kind::Query {
        let bad = |why: &'static str| Nonsense::Unreadable { kind, why: why.to_owned() };
        let head: QueryHead = read(kind, head)?;
        let query = head.frame(Input::Raw(Buffer::new())).map_err(bad)?;
        return Ok(Frame::ToNode(ToNode::Query(Box::new(query))));
    }
    let frame = decode(header, head, Buffer::new())?;
    if let Frame::Piece(id, _) = frame {
        return Ok(Frame::Piece(id, None));
    }
    Ok(frame)
}

fn input(head: InputHead, payload: Buffer) -> Result<Input, &'static str> {
    match head {
        InputHead::Raw => Ok(Input::Raw(payload)),
        InputHead::Json { inputs, parameters } => {
            let mut rest = payload;
            let together = inputs as usize + parameters.unwrap_or(0) as usize;
            if together != rest.len() {
                return Err("its parts are not as long as its payload");
            }
            let inputs = rest.split_to(inputs as usize);
            Ok(Input::Json { inputs, parameters: parameters.map(|_| rest) })
        }
    }
}

fn read<'a, T>(kind: Kind, head: &'a [u8]) -> Result<T, Nonsense>
where
    T: SchemaRead<'a, DefaultConfig, Dst = T>,
{
    wincode::deserialize_exact(head).map_err(|error| unreadable(kind, &error))
}

fn read_json<'a, T: Deserialize<'a>>(kind: Kind, head: &'a [u8]) -> Result<T, Nonsense> {
    serde_json::from_slice(head).map_err(|error| unreadable(kind, &error))
}

fn unreadable(kind: Kind, error: &dyn Display) -> Nonsense {
    Nonsense::Unreadable { kind, why: error.to_string() }
}
