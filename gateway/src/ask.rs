//! One query: admitted, given to the router, awaited. Dropping the future (the client went away) cancels it.

use crate::access::{Caller, Open, Origins, Queries};
use crate::account::Account;
use crate::cache::{Entry, Wish};
use crate::core::Core;
use crate::decisions::Asked;
use crate::errors::ApiError;
use crate::pending::{Outcome, Reply, Way};
use crate::shadow::Form;
use crate::traces::{Ended, Trace};
use crate::trials::{self, Running, Seen};
use crate::view::{TaskView, VariantView};
use modelless_decision::admission::Admitted;
use modelless_decision::query::Class;
use modelless_decision::route::{Event, Snapshot};
use modelless_decision::trial::{OnTrial, Taken};
use modelless_decision::{Query, admission, trial};
use modelless_store::UnixMicros;
use modelless_telemetry::{Got, Ran, Took, Wanted};
use modelless_types::{
    Bytes, CostPer1k, Goals, Micros, Prefer, QueryKey, QueryNumber, Refusal, Time, TrialId,
};
use modelless_wire::{Answer, Input, Reason};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::oneshot;

/// Where queries are logged, each with a line.
const QUERIES: &str = "modelless_gateway::queries";

/// A query as the HTTP side read it.
pub(crate) struct Ask<'a> {
    pub(crate) task: &'a TaskView,
    pub(crate) goals: Goals,
    pub(crate) input: Input,
    /// Size once decoded.
    pub(crate) decoded: Bytes,
    /// Who asks.
    pub(crate) caller: &'a Caller,
    /// When its head had been read.
    pub(crate) arrived: Time,
    /// In which manner.
    pub(crate) manner: &'a Manner,
    /// It was let in with the others of its request.
    pub(crate) let_in: bool,
    /// It came too late a moment ago, and is asked once more: no further demand.
    pub(crate) again: bool,
}

/// What a request says beside what it asks, for all its queries.
#[derive(Debug)]
pub(crate) struct Manner {
    /// Where queries are traced.
    pub(crate) trace: Option<Trace>,
    /// Whether answers that were given before will do.
    pub(crate) wish: Wish,
}

/// An answer with the gateway's own figures.
pub(crate) struct Answered {
    pub(crate) key: QueryKey,
    pub(crate) answer: Box<Answer>,
    pub(crate) node: Option<modelless_types::NodeId>,
    /// From arrival to the answer, as expected when it was sent (99th percentile).
    pub(crate) predicted: Micros,
    /// Waiting, here and at the node.
    pub(crate) queued: Micros,
    /// From arrival to the answer.
    pub(crate) total: Micros,
    /// How old it is, if it was given before.
    pub(crate) cached: Option<Micros>,
    /// It counts for a trial, when this is dropped.
    pub(crate) seen: Option<Seen>,
}

impl Answered {
    /// Where its time went, if it was run.
    pub(crate) fn took(&self) -> Took {
        let answer = &self.answer;
        let input = answer.decode + answer.prepare;
        let rest = answer.queued + input + answer.run;
        Took {
            queue: self.queued,
            input,
            infer: answer.run,
            output: answer.at_node.saturating_sub(rest),
            batch: answer.batch,
        }
    }
}

/// What is counted of a query, however it ends.
#[derive(Clone, Copy)]
struct Counted<'a> {
    task: &'a TaskView,
    caller: &'a Caller,
    wanted: Wanted,
}

impl Counted<'_> {
    fn refused(&self, reason: &'static str) {
        self.task.metrics.refused(reason);
        self.task.metrics.goals().refused(&self.wanted);
        self.caller.metrics.refused();
    }

    fn refusal(&self, refusal: Refusal) -> ApiError {
        self.refused(refusal.name());
        refusal.into()
    }
}

/// Cancels the query unless it has ended.
struct Guard<'a> {
    account: Account<'a>,
    way: &'a mut Way,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(way) = self.account.abandon() {
            *self.way = way;
        }
    }
}

/// Where the query stands once the router has it.
enum Entered {
    /// It was answered before.
    Known(Micros, Arc<Entry>),
    Waits(Micros, Class, Option<Seen>),
    Refused(Refusal),
}

/// Lets in all queries of a request, or says which quota they would break.
pub(crate) fn let_in(core: &Core, caller: &Caller, queries: Queries) -> Result<[Open; 2], ApiError> {
    let now = core.driver.clock().now();
    caller.begin(now, queries).or_else(|refused| {
        // What went on without its client may have ended meanwhile.
        if core.pending.ended_by(now) { caller.begin(now, queries) } else { Err(refused) }
    })
}

/// The rows of a request that were let in, and how many of them may be open at a time. One alone is let in when it is asked.
pub(crate) struct Rows {
    pub(crate) at_once: usize,
    open: Option<[Open; 2]>,
}

impl Rows {
    /// They were let in together.
    pub(crate) fn let_in(&self) -> bool {
        self.open.is_some()
    }
}

/// The same for the rows of a request, of which at most so many are open at a time: no more than its quota lets be.
pub(crate) fn let_in_rows(
    core: &Core,
    (caller, task): (&Caller, &TaskView),
    rows: usize,
    at_once: usize,
) -> Result<Rows, ApiError> {
    if rows == 1 {
        return Ok(Rows { at_once, open: None });
    }
    let at_once = caller.places().map_or(at_once, |places| at_once.min(places));
    let open = let_in(core, caller, Queries::of(rows, at_once)).inspect_err(|error| {
        task.metrics.refused(error.reason);
        caller.metrics.refused();
    })?;
    Ok(Rows { at_once, open: Some(open) })
}

pub(crate) async fn ask(core: &Core, ask: Ask<'_>) -> Result<Answered, ApiError> {
    let applied = ask.caller.policies.apply(ask.task, &ask.goals);
    let (goals, from) = applied.as_ref().map_or((ask.goals, Origins::default()), |applied| *applied);
    let defaults = &ask.task.task.defaults;
    let asked = Asked {
        task: ask.task.task.id,
        accuracy: goals.accuracy.or(defaults.accuracy),
        latency: goals.latency.or(defaults.latency),
        max_cost: goals.max_cost.or(defaults.max_cost),
        goals,
        from,
    };
    let (key, way) = (core.next_key(), Way::default());
    let number = core.number(key);
    let (task, arrived, trace) = (ask.task, ask.arrived, ask.manner.trace.as_ref());
    let caller = ask.caller;
    let drawn = None;
    let mut ending =
        Ending { core, number, key, asked, task, arrived, trace, caller, way, drawn, told: false };
    let result = match applied {
        Ok(_) => answered(core, key, Ask { goals, ..ask }, (&mut ending.way, &mut ending.drawn)).await,
        Err(error) => {
            let Asked { accuracy, max_cost, .. } = asked;
            let wanted = Wanted { latency: None, accuracy, max_cost };
            Counted { task, caller, wanted }.refused(error.reason);
            Err(error)
        }
    };
    let result = result.map_err(|error| ApiError { query: Some(number), ..error });
    ending.tell(&result);
    result
}

/// Tells whoever follows what a query came to, also where its client went away and this is dropped instead.
struct Ending<'a> {
    core: &'a Core,
    number: QueryNumber,
    key: QueryKey,
    asked: Asked,
    task: &'a TaskView,
    arrived: Time,
    trace: Option<&'a Trace>,
    caller: &'a Caller,
    way: Way,
    /// For which trial it was drawn.
    drawn: Option<OnTrial>,
    told: bool,
}

impl Ending<'_> {
    fn tell(&mut self, result: &Result<Answered, ApiError>) {
        let Self { core, number, key, asked, task, arrived, trace, caller, way, drawn, told } = self;
        *told = true;
        log(core, (*number, *trace, drawn.map(|trial| trial.id)), (task, caller), result);
        core.decisions.tell((*number, *key, *arrived), *drawn, caller, asked, result);
        if let (Some(traces), Some(trace)) = (&core.traces, *trace) {
            let now = core.driver.clock().now();
            traces.tell(
                core,
                trace,
                &Ended { number: *number, task, asked, way, result, arrived: *arrived, now },
            );
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.task.metrics.cancelled();
            self.caller.metrics.cancelled();
            self.tell(&Err(Refusal::Cancelled.into()));
        }
    }
}

/// One line for each query, where somebody wants them: `MODELLESS_LOG=warn,modelless_gateway::queries=debug`.
fn log(
    core: &Core,
    (query, trace, drawn): (QueryNumber, Option<&Trace>, Option<TrialId>),
    (task, caller): (&TaskView, &Caller),
    result: &Result<Answered, ApiError>,
) {
    if !tracing::enabled!(target: QUERIES, tracing::Level::DEBUG) {
        return;
    }
    let (task_name, trace) = (&task.task.name, trace.map(Trace::id).map(tracing::field::display));
    let (tenant, app, trial) = (&caller.names.tenant, &caller.names.app, drawn.map(tracing::field::display));
    match result {
        Ok(Answered { answer, node, predicted, queued, total, cached, key: _, seen: _ }) => {
            let variant = task.variant(answer.variant).map_or("", |variant| variant.variant.name.as_str());
            tracing::debug!(
                target: QUERIES, %query, trace, tenant, app, task = task_name, trial, variant, node = node.and_then(|node| core.node_name(node)),
                cached = cached.is_some(), batch = answer.batch, queue_us = queued.0, run_us = answer.run.0, predicted_us = predicted.0,
                total_us = total.0, "answered"
            );
        }
        Err(ApiError { status, reason, message, .. }) => {
            let status = status.as_u16();
            tracing::debug!(target: QUERIES, %query, trace, tenant, app, task = task_name, trial, status, reason, why = message, "refused");
        }
    }
}

async fn answered(
    core: &Core,
    key: QueryKey,
    ask: Ask<'_>,
    (way, drawn): (&mut Way, &mut Option<OnTrial>),
) -> Result<Answered, ApiError> {
    let Ask {
        task,
        mut goals,
        input,
        decoded,
        caller,
        arrived,
        manner,
        let_in: with_others,
        again: once_more,
    } = ask;
    let reading = core.driver.clock().now() - arrived;
    let defaults = &task.task.defaults;
    let wanted = Wanted {
        latency: None,
        accuracy: goals.accuracy.or(defaults.accuracy),
        max_cost: goals.max_cost.or(defaults.max_cost),
    };
    let mut counted = Counted { task, caller, wanted };
    goals.priority = caller.priority(goals.priority).inspect_err(|error| counted.refused(error.reason))?;
    // It counts as open until it is answered, and each row of a request is one.
    let open = if with_others {
        // What those before it took of devices is charged by now.
        caller.has_device_time(core.driver.clock().now()).map(|()| None)
    } else {
        let_in(core, caller, Queries::ONE).map(Some)
    };
    let _open = open.inspect_err(|error| counted.refused(error.reason))?;
    let lookup = core.cache.lookup(task, caller.tenant, &goals, &input, manner.wish).await;
    let mut known = None;
    // What looking took is nothing that other queries have to expect of this gateway.
    let mut looked = Micros::ZERO;
    if let Some(lookup) = &lookup {
        let began = core.driver.clock().now();
        known = core.cache.find(lookup, task, began, unix_now()).await;
        looked = core.driver.clock().now() - began;
        if core.is_draining() {
            return Err(counted.refusal(Refusal::Draining));
        }
    }
    let (reply, answer) = oneshot::channel();
    let account = Account { core, caller, key, counts: true };
    let guard = Guard { account, way };
    let best_effort = Micros::from_millis(core.config.best_effort_ms);
    let mut entered = Entered::Refused(Refusal::Draining);
    let mut copy = None;
    core.driver.feed_with(
        |router, now| {
            let query = |admitted: &Admitted| {
                let deadline = arrived + admitted.latency;
                Query {
                    key,
                    tenant: caller.tenant,
                    app: caller.app,
                    class: admitted.class,
                    arrived,
                    deadline,
                    expires: if admitted.best_effort { deadline + best_effort } else { deadline },
                    max_cost: admitted.max_cost,
                    prefer: admitted.prefer,
                    priority: goals.priority,
                    best_effort: admitted.best_effort,
                    bytes: decoded,
                    returnable: false,
                }
            };
            let taken = match admit(core, task, router.snapshot(), &goals, key) {
                Ok(taken) => taken,
                Err(refusal) => {
                    router.turned_away(now, key, &refusal);
                    if !once_more {
                        let asked = (router.snapshot(), task.task.id, &goals);
                        core.demand.turned_away(asked, &refusal, now);
                    }
                    entered = Entered::Refused(refusal);
                    return None;
                }
            };
            let in_time = |tried: &Admitted| router.sends(now, &query(tried));
            let Taken { admitted, arm, copied, either: _ } = taken.unless_late(in_time);
            if let Some(entry) = &known
                && may_answer(task, &admitted, &goals, entry)
            {
                entered = Entered::Known(admitted.latency, Arc::clone(entry));
                return None;
            }
            let query = query(&admitted);
            if !once_more {
                core.demand.arrived(admitted.class, admitted.latency, now);
            }
            if let Some((class, running, form)) = copy_of(task, copied)
                && let Some(held) = core.shadows.hold(&input)
            {
                let of = (input.clone(), decoded, held);
                copy = Some(running.copies((class, form), (caller.tenant, caller.app), of, now));
            }
            if let Err(limit) = core.pending.insert((now, caller.alone), query, input, reply) {
                entered = Entered::Refused(Refusal::QueueFull { limit });
                return None;
            }
            let seen = arm.zip(task.trial.as_ref()).map(|(arm, running)| running.takes(arm, now));
            entered = Entered::Waits(admitted.latency, admitted.class, seen);
            Some((Event::Arrive(query), ()))
        },
        core,
    );
    let (latency, class, mut seen) = match entered {
        Entered::Waits(latency, class, seen) => (latency, class, seen),
        Entered::Known(latency, entry) => {
            counted.wanted.latency = Some(latency);
            task.metrics.admitted(decoded);
            return Ok(again(core, &counted, key, &entry, arrived));
        }
        Entered::Refused(refusal) => return Err(counted.refusal(refusal)),
    };
    *drawn = seen.as_ref().and_then(Seen::drawn).map(|running| running.on);
    if seen.is_none() && goals.model.is_none() && goals.variant.is_none() {
        task.trial.iter().for_each(|running| running.wake(core, task, &goals, arrived));
    }
    if lookup.is_some() {
        task.metrics.cached(false);
    }
    counted.wanted.latency = Some(latency);
    task.metrics.admitted(decoded);
    let Ok(mut reply) = answer.await else {
        // The entry went without a word, which nothing here does.
        return Err(counted.refusal(Refusal::NodeLost));
    };
    drop(guard);
    account.ended(&reply);
    *way = std::mem::take(&mut reply.way);
    let unanswered = trials::unanswered(&reply.outcome, way.sent.is_some());
    if let Some(copy) = copy {
        core.shadows.want(copy, &reply.outcome);
    }
    let mut settled =
        settle(core, &counted, key, (reply, way), &Times { arrived, reading, looked, alone: !with_others });
    if let Ok(Answered { answer, total, .. }) = &settled {
        let device = Micros(answer.run.0 / u64::from(answer.batch.max(1)));
        let in_time = *total <= latency;
        caller.used(core.driver.clock().now(), device);
        caller.metrics.answered(*total, in_time, (device, answer.cost));
        if in_time {
            core.demand.answered_in_time(class);
        }
        // What a version on trial answers is given again to nobody: those who are not drawn do not take it.
        if let Some(lookup) = lookup.as_ref().filter(|_| drawn.is_none()) {
            if let Some(variant) = task.variant(answer.variant) {
                variant.served.missed(looked);
            }
            core.cache.keep(lookup, task, answer, core.driver.clock().now(), unix_now());
        }
    }
    if let Some(seen) = &mut seen {
        let total = settled.as_ref().ok().map(|answered| answered.total);
        seen.ended(total.map_or(unanswered, |total| Some(trials::answered(total, latency))));
    }
    if let Ok(answered) = &mut settled {
        answered.seen = seen;
    }
    settled
}

/// Who may answer a copy, what for, and in which form answers come.
fn copy_of(task: &TaskView, copied: Option<Class>) -> Option<(Class, &Arc<Running>, Form)> {
    Some((copied?, task.trial.as_ref()?, Form::of(task)?))
}

/// Who may answer, and whose it is of the two that a trial compares.
fn admit(
    core: &Core,
    task: &TaskView,
    snapshot: &Snapshot,
    goals: &Goals,
    key: QueryKey,
) -> Result<Taken, Refusal> {
    match &task.trial {
        Some(running) => trial::admit(snapshot, task.task.id, goals, (&running.on, core.number(key))),
        None => admission::admit(snapshot, task.task.id, goals).map(Taken::usual),
    }
}

/// Whether an answer that was given before answers this query: its variant must be one that may, and the most accurate of those where
/// the query or its task prefers accuracy. That idle time is spent on it where nobody says so is no reason to spend time.
fn may_answer(task: &TaskView, admitted: &Admitted, goals: &Goals, entry: &Entry) -> bool {
    let among = |view: &&VariantView| admitted.class.admits.contains(view.variant.ordinal);
    let Some(variant) = task.variant(entry.variant).filter(among) else { return false };
    let best = || task.variants.iter().filter(among).filter_map(|view| view.accuracy).max();
    let prefer = goals.prefer.or(task.task.defaults.prefer);
    prefer != Some(Prefer::Accuracy) || variant.accuracy >= best()
}

/// Gives an answer again. It takes no device, so it costs nothing and is nobody's demand.
fn again(core: &Core, counted: &Counted<'_>, key: QueryKey, entry: &Entry, arrived: Time) -> Answered {
    let now = core.driver.clock().now();
    let Counted { task, caller, wanted } = counted;
    let total = now - arrived;
    let in_time = wanted.latency.is_some_and(|latency| total <= latency);
    let none = (Micros::ZERO, CostPer1k(0));
    let variant = task.variant(entry.variant);
    let accuracy = variant.and_then(|variant| variant.accuracy);
    if let Some(variant) = variant {
        variant.served.given_again(total);
    }
    task.metrics.cached(true);
    task.metrics.answered(total, in_time);
    task.metrics.goals().answered(wanted, &Got { total, accuracy, cost: none.1 });
    caller.metrics.answered(total, in_time, none);
    let answer = Answer {
        body: entry.body.clone(),
        model: entry.model,
        variant: entry.variant,
        space: entry.space,
        batch: 1,
        predicted_run: Micros::ZERO,
        cost: none.1,
        queued: Micros::ZERO,
        decode: Micros::ZERO,
        prepare: Micros::ZERO,
        run: Micros::ZERO,
        at_node: Micros::ZERO,
        why: Reason::Only, // not shown: that it was given before is what is told
    };
    let (predicted, queued) = (Micros::ZERO, Micros::ZERO);
    let cached = Some(entry.age(unix_now()));
    Answered { key, answer: Box::new(answer), node: None, predicted, queued, total, cached, seen: None }
}

fn unix_now() -> u64 {
    UnixMicros::of(SystemTime::now()).0
}

/// How a query spent its time before it was the router's.
struct Times {
    arrived: Time,
    reading: Micros,
    /// Among answers given before.
    looked: Micros,
    /// It is all of its request.
    alone: bool,
}

fn settle(
    core: &Core,
    counted: &Counted<'_>,
    key: QueryKey,
    (reply, way): (Reply, &Way),
    times: &Times,
) -> Result<Answered, ApiError> {
    let now = core.driver.clock().now();
    let Times { arrived, reading, looked, alone } = *times;
    let Counted { task, caller, wanted } = counted;
    match reply.outcome {
        Outcome::Answered(answer) => {
            let total = now - arrived;
            task.metrics.answered(total, wanted.latency.is_some_and(|latency| total <= latency));
            let at_gateway = way.sent.map_or(Micros::ZERO, |sent| sent.at - reply.placed);
            let node = way.sent.and_then(|sent| core.node(sent.node));
            // The way is in the node's own round trip already.
            let apart = node.as_ref().map_or(Micros::ZERO, |node| node.way());
            if let Some(node) = &node {
                node.metrics.answered(answer.at_node);
            }
            if alone {
                let elsewhere = answer.at_node + at_gateway + apart + looked + reading;
                core.handover.observe(now, reading, total.saturating_sub(elsewhere));
            }
            let queued = at_gateway + answer.queued;
            let variant = task.variant(answer.variant);
            let accuracy = variant.and_then(|variant| variant.accuracy);
            task.metrics.goals().answered(wanted, &Got { total, accuracy, cost: answer.cost });
            if let Some(variant) = variant {
                variant.metrics.answered(&Ran {
                    queue: queued,
                    run: answer.run,
                    predicted: answer.predicted_run,
                    batch: answer.batch,
                    cost: answer.cost,
                });
            }
            let predicted = way.sent.map_or(Micros::ZERO, |sent| (sent.at - arrived) + sent.expected);
            let node = way.sent.map(|sent| sent.node);
            let answered = Answered { key, answer, node, predicted, queued, total, cached: None, seen: None };
            if let Some(variant) = variant {
                variant.served.ran(&answered.took());
            }
            Ok(answered)
        }
        Outcome::Refused(refusal) => Err(counted.refusal(refusal)),
        Outcome::BadInput(fault, why) => {
            task.metrics.bad_input();
            caller.metrics.bad_input();
            Err(ApiError::input(fault, why))
        }
    }
}
