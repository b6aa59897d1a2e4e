//! What a query's trace shows: the gateway's wait, the node that answered and what it did there, and those that it was taken from.
//!
//! A node tells with its answer how long each of its steps took, not when, so its clock is not asked. Its steps are laid into
//! the time between the query's leaving and its answer's coming, the way out as long as the way back.

use super::{Door, Trace};
use crate::ask::Answered;
use crate::core::Core;
use crate::decisions::Asked;
use crate::errors::ApiError;
use crate::pending::Way;
use crate::told::GIVEN_BEFORE;
use crate::view::TaskView;
use modelless_types::{Micros, NodeId, QueryNumber, Time};
use std::borrow::Cow;

/// Who did it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Gateway,
    /// By name.
    Node(String),
    /// A model's process on a node.
    Runner(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Inside,
    Serves,
    Asks,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Text(Cow<'static, str>),
    Truth(bool),
    Whole(i64),
    Number(f64),
}

type Attributes = Vec<(&'static str, Value)>;

/// Of spans that were laid into place by what a node told, and not begun and ended by whoever did the work.
const RECONSTRUCTED: &str = "modelless.reconstructed";

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Span {
    pub(super) of: Part,
    pub(super) id: u64,
    pub(super) parent: Option<u64>,
    /// Whether its parent is in another process.
    pub(super) remote: bool,
    pub(super) name: Cow<'static, str>,
    pub(super) kind: Kind,
    pub(super) start: Time,
    pub(super) end: Time,
    pub(super) attributes: Attributes,
    /// Why it failed, if it did.
    pub(super) failed: Option<String>,
}

/// Of one query.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Spans {
    pub(super) trace: u128,
    pub(super) state: String,
    /// The process's time zero, in microseconds since 1970.
    pub(super) zero: u64,
    pub(super) all: Vec<Span>,
}

/// A query that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) number: QueryNumber,
    pub(crate) task: &'a TaskView,
    pub(crate) asked: &'a Asked,
    pub(crate) way: &'a Way,
    pub(crate) result: &'a Result<Answered, ApiError>,
    pub(crate) arrived: Time,
    pub(crate) now: Time,
}

/// A time in which something happened.
#[derive(Clone, Copy)]
struct Between(Time, Time);

/// Puts spans together, each with an id of its own.
struct Making<'a> {
    ids: &'a dyn Fn() -> u64,
    spans: Vec<Span>,
}

impl Making<'_> {
    fn add(
        &mut self,
        (of, kind): (Part, Kind),
        parent: Option<u64>,
        name: impl Into<Cow<'static, str>>,
        Between(start, end): Between,
    ) -> &mut Span {
        let id = (self.ids)();
        // Between two parts there is a wire, or at least two threads.
        let remote = kind == Kind::Serves && parent.is_some();
        let name = name.into();
        let span =
            Span { of, id, parent, remote, name, kind, start, end, attributes: Vec::new(), failed: None };
        let at = self.spans.len();
        self.spans.push(span);
        &mut self.spans[at]
    }
}

pub(super) fn spans(core: &Core, ids: &dyn Fn() -> u64, trace: &Trace, ended: &Ended<'_>) -> Vec<Span> {
    let mut making = Making { ids, spans: Vec::with_capacity(8) };
    let whole = Between(ended.arrived, ended.now);
    let name = format!("query {}", ended.task.task.name);
    let root = making.add((Part::Gateway, Kind::Serves), trace.parent, name, whole);
    root.attributes = asked(ended, trace.door);
    match ended.result {
        Ok(answered) => root.attributes.extend(told(ended, answered)),
        Err(error) => {
            root.attributes.push(("error.type", Value::Text(error.reason.into())));
            root.failed = Some(error.reason.to_owned()); // a message may quote what a client sent
        }
    }
    let root = root.id;

    let Way { sent, before } = ended.way;
    let Some(sent) = sent else { return making.spans };
    let first = before.first().unwrap_or(sent);
    making.add(
        (Part::Gateway, Kind::Inside),
        Some(root),
        "wait for a node",
        Between(ended.arrived, first.at),
    );
    let until = before.iter().skip(1).map(|next| next.at).chain([sent.at]);
    for (given, until) in before.iter().zip(until) {
        let asks = (Part::Gateway, Kind::Asks);
        let node = node(core, given.node);
        let span = making.add(asks, Some(root), format!("ask {node}"), Between(given.at, until));
        span.attributes.push(("modelless.node", Value::Text(node.into())));
        span.failed = Some("the query was taken from it, and given to a node again".to_owned());
    }
    let name = node(core, sent.node);
    let asks = making.add(
        (Part::Gateway, Kind::Asks),
        Some(root),
        format!("ask {name}"),
        Between(sent.at, ended.now),
    );
    asks.attributes.push(("modelless.node", Value::Text(name.clone().into())));
    asks.attributes.push(("modelless.expected_ms", millis(sent.expected)));
    match ended.result {
        Err(error) => asks.failed = Some(error.reason.to_owned()),
        // An answer may come from a node that the query had been taken from; then this is not its way.
        Ok(answered) if answered.node == Some(sent.node) => {
            let parent = asks.id;
            at_node(&mut making, parent, name, answered, Between(sent.at, ended.now));
        }
        Ok(_) => {}
    }
    making.spans
}

/// Decoding, waiting for a batch, writing it, running it, in that order. How long is measured, when is reckoned, and so said.
fn at_node(making: &mut Making<'_>, parent: u64, node: String, answered: &Answered, way: Between) {
    let answer = &answered.answer;
    let Between(sent, came) = way;
    let there = answer.at_node.min(came - sent);
    let start = sent + Micros(((came - sent).saturating_sub(there)).0 / 2);
    let end = start + there;
    let served =
        making.add((Part::Node(node.clone()), Kind::Serves), Some(parent), "answer", Between(start, end));
    served.attributes.push((RECONSTRUCTED, Value::Truth(true)));
    served.attributes.push(("modelless.batch", Value::Whole(i64::from(answer.batch))));
    let served = served.id;
    let mut at = start;
    let inside = (Part::Node(node.clone()), Kind::Inside);
    let run = (Part::Runner(node), Kind::Serves);
    for (part, name, took) in [
        (inside.clone(), "decode", answer.decode),
        (inside.clone(), "wait for a batch", answer.queued),
        (inside, "write the batch", answer.prepare),
        (run, "run", answer.run),
    ] {
        let until = (at + took).min(end);
        let span = making.add(part, Some(served), name, Between(at, until));
        span.attributes.push((RECONSTRUCTED, Value::Truth(true)));
        if name == "run" {
            span.attributes.push(("modelless.batch", Value::Whole(i64::from(answer.batch))));
            span.attributes.push(("modelless.predicted_ms", millis(answer.predicted_run)));
        }
        at = until;
    }
}

fn asked(ended: &Ended<'_>, door: Door) -> Attributes {
    let asked = ended.asked;
    let mut all: Attributes = vec![
        ("modelless.query", Value::Text(ended.number.to_string().into())),
        ("modelless.task", Value::Text(ended.task.task.name.clone().into())),
        ("modelless.door", Value::Text(door.name().into())),
        ("modelless.priority", Value::Whole(i64::from(asked.goals.priority.level()))),
    ];
    all.extend(asked.accuracy.map(|floor| ("modelless.goal.accuracy", Value::Number(floor.as_f64()))));
    all.extend(asked.latency.map(|bound| ("modelless.goal.latency_ms", millis(bound))));
    all.extend(asked.max_cost.map(|most| ("modelless.goal.max_cost", Value::Number(most.as_usd()))));
    if let Ok(Answered { answer, .. }) = ended.result {
        all.push(("modelless.cost", Value::Number(answer.cost.as_usd())));
    }
    all
}

/// What the answer's headers tell, too.
fn told(ended: &Ended<'_>, answered: &Answered) -> Attributes {
    let Answered { answer, predicted, queued, total, cached, .. } = answered;
    let mut all: Attributes = vec![
        (
            "modelless.reason",
            Value::Text(if cached.is_some() { GIVEN_BEFORE } else { answer.why.text() }.into()),
        ),
        ("modelless.batch", Value::Whole(i64::from(answer.batch))),
        ("modelless.predicted_ms", millis(*predicted)),
        ("modelless.queue_ms", millis(*queued)),
    ];
    if let Some(latency) = ended.asked.latency {
        all.push(("modelless.in_time", Value::Truth(*total <= latency)));
    }
    if let Some(variant) = ended.task.variant(answer.variant) {
        all.push(("modelless.model", Value::Text(variant.model.name.clone().into())));
        all.push(("modelless.variant", Value::Text(variant.variant.name.clone().into())));
        if let Some(accuracy) = variant.accuracy {
            all.push(("modelless.accuracy", Value::Number(accuracy.as_f64())));
        }
    }
    all
}

fn millis(time: Micros) -> Value {
    Value::Number(time.as_millis_f64())
}

fn node(core: &Core, id: NodeId) -> String {
    let name = core.node_header(&core.view(), id);
    name.and_then(|name| name.to_str().ok().map(str::to_owned)).unwrap_or_else(|| id.to_string())
}
