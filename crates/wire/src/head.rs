//! Heads of the frames on a query's path: plain mirrors of the seam's types, so that a change there cannot change
//! the bytes unnoticed. Fields and variants are only ever added with a new version.

mod announcing;

pub(crate) use announcing::{AnnounceHead, ClaimHead};

use crate::config::limits;
use crate::seam::{Answer, Demand, InputFault, QueryFrame};
use bytes::Bytes as Buffer;
use modelless_decision::Moments;
use modelless_decision::query::Class;
use modelless_decision::route::{Later, Limit, Made, NodeReport, STEPS, Step};
use modelless_decision::worker::Reason;
use modelless_types::{
    Accuracy, AppId, Bytes, CostPer1k, Micros, ModelId, Nearest, Prefer, Priority, QueryKey, Refusal,
    SpaceId, TaskId, TenantId, Time, VariantId, VariantSet,
};
use wincode::{SchemaRead, SchemaWrite};

/// What stands in a head but means nothing.
pub(crate) type Bad = &'static str;

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct ClassHead {
    task: u32,
    admits: [u64; 4],
}

impl From<Class> for ClassHead {
    fn from(class: Class) -> Self {
        let Class { task, admits } = class;
        Self { task: task.0, admits: admits.words() }
    }
}

impl From<ClassHead> for Class {
    fn from(head: ClassHead) -> Self {
        Self { task: TaskId(head.task), admits: VariantSet::from_words(head.admits) }
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct DemandHead {
    class: ClassHead,
    waiting: u32,
    first: Option<u64>,
    among: u32,
}

impl From<Demand> for DemandHead {
    fn from(demand: Demand) -> Self {
        let Demand { class, waiting, first, among } = demand;
        Self { class: class.into(), waiting, first: first.map(|first| first.0), among }
    }
}

impl From<DemandHead> for Demand {
    fn from(head: DemandHead) -> Self {
        let DemandHead { class, waiting, first, among } = head;
        Self { class: class.into(), waiting, first: first.map(Micros), among }
    }
}

/// Where the parts of an input lie in the payload.
#[derive(Clone, Copy, SchemaRead, SchemaWrite)]
pub(crate) enum InputHead {
    Raw,
    Json { inputs: u32, parameters: Option<u32> },
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct QueryHead {
    key: u64,
    tenant: u32,
    app: u32,
    deadline_in: u64,
    expires_in: u64,
    spent: u64,
    max_cost: Option<u64>,
    prefer: u8,
    priority: u8,
    best_effort: bool,
    returnable: bool,
    decoded: u64,
    demand: DemandHead,
    pub(crate) input: InputHead,
}

impl QueryHead {
    pub(crate) fn new(frame: &QueryFrame, input: InputHead) -> Self {
        let QueryFrame {
            key,
            tenant,
            app,
            class: _, // the demand names it
            deadline_in,
            expires_in,
            spent,
            max_cost,
            prefer,
            priority,
            best_effort,
            returnable,
            decoded,
            input: _,
            demand,
        } = frame;
        Self {
            key: key.0,
            tenant: tenant.0,
            app: app.0,
            deadline_in: deadline_in.0,
            expires_in: expires_in.0,
            spent: spent.0,
            max_cost: max_cost.map(|cost| cost.0),
            prefer: prefer_code(*prefer),
            priority: priority.level(),
            best_effort: *best_effort,
            returnable: *returnable,
            decoded: decoded.0,
            demand: (*demand).into(),
            input,
        }
    }

    pub(crate) fn into_demand(self) -> DemandHead {
        self.demand
    }

    pub(crate) fn frame(self, input: crate::seam::Input) -> Result<QueryFrame, Bad> {
        let demand = Demand::from(self.demand);
        Ok(QueryFrame {
            key: QueryKey(self.key),
            tenant: TenantId(self.tenant),
            app: AppId(self.app),
            class: demand.class,
            deadline_in: Micros(self.deadline_in),
            expires_in: Micros(self.expires_in),
            spent: Micros(self.spent),
            max_cost: self.max_cost.map(CostPer1k),
            prefer: prefer(self.prefer)?,
            priority: Priority::from_level(self.priority).ok_or("an unknown priority")?,
            best_effort: self.best_effort,
            returnable: self.returnable,
            decoded: Bytes(self.decoded),
            input,
            demand,
        })
    }
}

fn prefer_code(prefer: Prefer) -> u8 {
    match prefer {
        Prefer::Accuracy => 0,
        Prefer::Cost => 1,
        Prefer::Latency => 2,
    }
}

fn prefer(code: u8) -> Result<Prefer, Bad> {
    match code {
        0 => Ok(Prefer::Accuracy),
        1 => Ok(Prefer::Cost),
        2 => Ok(Prefer::Latency),
        _ => Err("an unknown preference"),
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct WakeHead {
    pub(crate) task: u32,
    pub(crate) ordinal: u8,
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct PinHead {
    pub(crate) plan: u64,
    pub(crate) pins: Vec<(u16, u32)>,
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct PingHead {
    /// The sender's clock, given back in the answer.
    pub(crate) sent: u64,
    /// The round trip as the sender knows it, in microseconds; 0 for not yet.
    pub(crate) rtt: u32,
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct GoodbyeHead {
    pub(crate) why: String,
}

#[derive(SchemaRead, SchemaWrite)]
struct MomentsHead {
    mean: f64,
    var: f64,
}

impl From<Moments> for MomentsHead {
    fn from(moments: Moments) -> Self {
        let Moments { mean, var } = moments;
        Self { mean, var }
    }
}

impl MomentsHead {
    /// A figure that is none would spread through every estimate.
    fn moments(&self) -> Result<Moments, Bad> {
        let usable = |x: f64| x.is_finite() && x >= 0.0;
        if usable(self.mean) && usable(self.var) {
            Ok(Moments { mean: self.mean, var: self.var })
        } else {
            Err("a time that is negative or no number")
        }
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct ReportHead {
    queries: u32,
    bytes: u64,
    wait: MomentsHead,
    waits: Vec<(ClassHead, MomentsHead)>,
    inputs: u64,
    made_at: u64,
    /// When it is due from when this was made, and what is due after that, in microseconds.
    later: Vec<(u32, u32)>,
}

impl From<&NodeReport> for ReportHead {
    fn from(report: &NodeReport) -> Self {
        let NodeReport { limit: Limit { queries, bytes }, wait, waits, made: Made { inputs, at }, later } =
            report;
        // What is due in more than an hour is due after whoever asks.
        let short = |time: Micros| u32::try_from(time.0).ok();
        let step = |step: Step| Some((short(step.due)?, short(step.takes).unwrap_or(u32::MAX)));
        let told = waits.iter().take(limits::REPORT_CLASSES);
        Self {
            queries: *queries,
            bytes: bytes.0,
            wait: (*wait).into(),
            inputs: *inputs,
            made_at: at.0,
            waits: told.map(|(class, wait)| ((*class).into(), (*wait).into())).collect(),
            later: later.steps().map_while(step).collect(),
        }
    }
}

/// Moments that go back and forth would say nothing.
fn later(told: &[(u32, u32)]) -> Result<Later, Bad> {
    let in_order = told.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1);
    if told.len() > STEPS || !in_order || told.first().is_some_and(|first| first.0 != 0) {
        return Err("what is due later is not told in order");
    }
    let step =
        |(due, takes): &(u32, u32)| Step { due: Micros((*due).into()), takes: Micros((*takes).into()) };
    Ok(Later::new(told.iter().map(step)))
}

impl ReportHead {
    pub(crate) fn report(self) -> Result<NodeReport, Bad> {
        Ok(NodeReport {
            limit: Limit { queries: self.queries, bytes: Bytes(self.bytes) },
            wait: self.wait.moments()?,
            made: Made { inputs: self.inputs, at: Time(self.made_at) },
            waits: self
                .waits
                .into_iter()
                .map(|(class, wait)| Ok((class.into(), wait.moments()?)))
                .collect::<Result<_, Bad>>()?,
            later: later(&self.later)?,
        })
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct AnswerHead {
    key: u64,
    model: u32,
    variant: u32,
    space: u32,
    batch: u32,
    predicted_run: u64,
    cost: u64,
    queued: u64,
    decode: u64,
    prepare: u64,
    run: u64,
    at_node: u64,
    why: u8,
    pub(crate) report: ReportHead,
}

impl AnswerHead {
    pub(crate) fn new(key: QueryKey, answer: &Answer, report: ReportHead) -> Self {
        let Answer {
            body: _,
            model,
            variant,
            space,
            batch,
            predicted_run,
            cost,
            queued,
            decode,
            prepare,
            run,
            at_node,
            why,
        } = answer;
        Self {
            key: key.0,
            model: model.0,
            variant: variant.0,
            space: space.0,
            batch: *batch,
            predicted_run: predicted_run.0,
            cost: cost.0,
            queued: queued.0,
            decode: decode.0,
            prepare: prepare.0,
            run: run.0,
            at_node: at_node.0,
            why: match why {
                Reason::Preferred(prefer) => prefer_code(*prefer),
                Reason::InTime => 3,
                Reason::Only => 4,
                Reason::Joined => 5,
                Reason::Loaded => 6,
                Reason::Rerun => 7,
                Reason::Spare => 8,
                Reason::Affordable => 9,
            },
            report,
        }
    }

    pub(crate) fn answer(self, body: Buffer) -> Result<(QueryKey, Box<Answer>, NodeReport), Bad> {
        let answer = Answer {
            body,
            model: ModelId(self.model),
            variant: VariantId(self.variant),
            space: SpaceId(self.space),
            batch: self.batch,
            predicted_run: Micros(self.predicted_run),
            cost: CostPer1k(self.cost),
            queued: Micros(self.queued),
            decode: Micros(self.decode),
            prepare: Micros(self.prepare),
            run: Micros(self.run),
            at_node: Micros(self.at_node),
            why: match self.why {
                code @ 0..=2 => Reason::Preferred(prefer(code)?),
                3 => Reason::InTime,
                4 => Reason::Only,
                5 => Reason::Joined,
                6 => Reason::Loaded,
                7 => Reason::Rerun,
                8 => Reason::Spare,
                9 => Reason::Affordable,
                _ => return Err("an unknown reason"),
            },
        };
        Ok((QueryKey(self.key), Box::new(answer), self.report.report()?))
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct RefusedHead {
    pub(crate) key: u64,
    pub(crate) refusal: RefusalHead,
    pub(crate) report: ReportHead,
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct BadInputHead {
    pub(crate) key: u64,
    pub(crate) fault: u8,
    pub(crate) why: String,
    pub(crate) report: ReportHead,
}

/// Of what was sent, and of what was announced.
#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct HandedBackHead {
    pub(crate) key: u64,
    pub(crate) why: RefusalHead,
    pub(crate) report: ReportHead,
}

pub(crate) fn fault_code(fault: InputFault) -> u8 {
    match fault {
        InputFault::Malformed => 0,
        InputFault::TooLarge => 1,
        InputFault::UnsupportedMedia => 2,
    }
}

pub(crate) fn fault(code: u8) -> Result<InputFault, Bad> {
    match code {
        0 => Ok(InputFault::Malformed),
        1 => Ok(InputFault::TooLarge),
        2 => Ok(InputFault::UnsupportedMedia),
        _ => Err("an unknown fault"),
    }
}

#[derive(SchemaRead, SchemaWrite)]
pub(crate) struct NearestHead {
    accuracy: Option<u32>,
    latency: Option<u64>,
    max_cost: Option<u64>,
}

impl From<Nearest> for NearestHead {
    fn from(nearest: Nearest) -> Self {
        let Nearest { accuracy, latency, max_cost } = nearest;
        Self {
            accuracy: accuracy.map(Accuracy::ppm),
            latency: latency.map(|latency| latency.0),
            max_cost: max_cost.map(|cost| cost.0),
        }
    }
}

impl NearestHead {
    fn nearest(&self) -> Result<Nearest, Bad> {
        Ok(Nearest {
            accuracy: accuracy(self.accuracy)?,
            latency: self.latency.map(Micros),
            max_cost: self.max_cost.map(CostPer1k),
        })
    }
}

fn accuracy(ppm: Option<u32>) -> Result<Option<Accuracy>, Bad> {
    ppm.map(|ppm| Accuracy::from_ppm(ppm).ok_or("an accuracy above 1")).transpose()
}

/// Every "no". New ones come at the end.
#[derive(SchemaRead, SchemaWrite)]
pub(crate) enum RefusalHead {
    FloorUnreachable { best: Option<u32> },
    LatencyUnreachable { nearest: NearestHead },
    CostUnreachable { nearest: NearestHead },
    PinUnusable { why: String },
    NothingRunnable { why: String },
    TooLate { waited: u64 },
    QueueFull { limit: u32 },
    BytesFull { limit: u64 },
    OverQuota,
    Loading { ready_in: u64, bound: u64 },
    VariantFailed { why: String },
    InputCrashed { why: String },
    ModelError { why: String },
    OutOfMemory { needs: u64, budget: u64 },
    Draining,
    NodeLost,
    Cancelled,
}

impl From<&Refusal> for RefusalHead {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::FloorUnreachable { best } => Self::FloorUnreachable { best: best.map(Accuracy::ppm) },
            Refusal::LatencyUnreachable { nearest } => {
                Self::LatencyUnreachable { nearest: (*nearest).into() }
            }
            Refusal::CostUnreachable { nearest } => Self::CostUnreachable { nearest: (*nearest).into() },
            Refusal::PinUnusable { why } => Self::PinUnusable { why: words(why) },
            Refusal::NothingRunnable { why } => Self::NothingRunnable { why: words(why) },
            Refusal::TooLate { waited } => Self::TooLate { waited: waited.0 },
            Refusal::QueueFull { limit } => Self::QueueFull { limit: *limit },
            Refusal::BytesFull { limit } => Self::BytesFull { limit: limit.0 },
            Refusal::OverQuota => Self::OverQuota,
            Refusal::Loading { ready_in, bound } => Self::Loading { ready_in: ready_in.0, bound: bound.0 },
            Refusal::VariantFailed { why } => Self::VariantFailed { why: words(why) },
            Refusal::InputCrashed { why } => Self::InputCrashed { why: words(why) },
            Refusal::ModelError { why } => Self::ModelError { why: words(why) },
            Refusal::OutOfMemory { needs, budget } => Self::OutOfMemory { needs: needs.0, budget: budget.0 },
            Refusal::Draining => Self::Draining,
            Refusal::NodeLost => Self::NodeLost,
            Refusal::Cancelled => Self::Cancelled,
        }
    }
}

impl RefusalHead {
    pub(crate) fn refusal(self) -> Result<Refusal, Bad> {
        Ok(match self {
            Self::FloorUnreachable { best } => Refusal::FloorUnreachable { best: accuracy(best)? },
            Self::LatencyUnreachable { nearest } => {
                Refusal::LatencyUnreachable { nearest: nearest.nearest()? }
            }
            Self::CostUnreachable { nearest } => Refusal::CostUnreachable { nearest: nearest.nearest()? },
            Self::PinUnusable { why } => Refusal::PinUnusable { why },
            Self::NothingRunnable { why } => Refusal::NothingRunnable { why },
            Self::TooLate { waited } => Refusal::TooLate { waited: Micros(waited) },
            Self::QueueFull { limit } => Refusal::QueueFull { limit },
            Self::BytesFull { limit } => Refusal::BytesFull { limit: Bytes(limit) },
            Self::OverQuota => Refusal::OverQuota,
            Self::Loading { ready_in, bound } => {
                Refusal::Loading { ready_in: Micros(ready_in), bound: Micros(bound) }
            }
            Self::VariantFailed { why } => Refusal::VariantFailed { why },
            Self::InputCrashed { why } => Refusal::InputCrashed { why },
            Self::ModelError { why } => Refusal::ModelError { why },
            Self::OutOfMemory { needs, budget } => {
                Refusal::OutOfMemory { needs: Bytes(needs), budget: Bytes(budget) }
            }
            Self::Draining => Refusal::Draining,
            Self::NodeLost => Refusal::NodeLost,
            Self::Cancelled => Refusal::Cancelled,
        })
    }
}

/// Words for people, cut where they become a novel.
pub(crate) fn words(text: &str) -> String {
    text[..text.floor_char_boundary(limits::WORDS)].to_owned()
}
