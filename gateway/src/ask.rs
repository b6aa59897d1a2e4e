//! One query: admitted, given to the router, awaited. Dropping the future (the client went away) cancels it.

use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::pending::{Outcome, Reply};
use crate::view::TaskView;
use modelless_decision::query::Class;
use modelless_decision::route::Event;
use modelless_decision::{Query, admission};
use modelless_telemetry::Took;
use modelless_types::{Bytes, Goals, Micros, QueryKey, Refusal, Time};
use modelless_wire::{Answer, Input};
use tokio::sync::oneshot;

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
}

/// Cancels the query unless it has ended.
struct Guard<'a> {
    core: &'a Core,
    key: QueryKey,
    task: &'a TaskView,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.core.pending.abandon(self.key) {
            self.task.metrics.cancelled();
            self.core.driver.feed(Event::Cancel { key: self.key }, self.core);
        }
    }
}

/// Where the query stands once the router has it.
enum Entered {
    Waits(Time, Class),
    Refused(Refusal),
}

pub(crate) async fn ask(core: &Core, ask: Ask<'_>) -> Result<Answered, ApiError> {
    let Ask { task, mut goals, input, decoded, caller, arrived } = ask;
    goals.priority =
        caller.priority(goals.priority).inspect_err(|error| task.metrics.refused(error.reason))?;
    // It counts as open until it is answered, and each row of a request is one.
    let _open =
        caller.begin(core.driver.clock().now()).inspect_err(|error| task.metrics.refused(error.reason))?;
    let key = core.next_key();
    let (reply, answer) = oneshot::channel();
    let guard = Guard { core, key, task };
    let best_effort = Micros::from_millis(core.config.best_effort_ms);
    let mut entered = Entered::Refused(Refusal::Draining);
    core.driver.feed_with(
        |router, now| {
            let admitted = match admission::admit(router.snapshot(), task.task.id, &goals) {
                Ok(admitted) => admitted,
                Err(refusal) => {
                    entered = Entered::Refused(refusal);
                    return None;
                }
            };
            let deadline = arrived + admitted.latency;
            let query = Query {
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
            };
            core.demand.arrived(admitted.class);
            if let Err(limit) = core.pending.insert(now, query, input, reply) {
                entered = Entered::Refused(Refusal::QueueFull { limit });
                return None;
            }
            entered = Entered::Waits(deadline, admitted.class);
            Some((Event::Arrive(query), ()))
        },
        core,
    );
    let (deadline, class) = match entered {
        Entered::Waits(deadline, class) => (deadline, class),
        Entered::Refused(refusal) => return Err(refused(task, refusal)),
    };
    let Ok(reply) = answer.await else {
        // The entry went without a word, which nothing here does.
        return Err(refused(task, Refusal::NodeLost));
    };
    drop(guard);
    let settled = settle(core, task, key, reply, arrived, deadline);
    if let Ok(answered) = &settled {
        let share = answered.answer.run.0 / u64::from(answered.answer.batch.max(1));
        caller.used(core.driver.clock().now(), Micros(share));
    }
    if settled.as_ref().is_ok_and(|answered| arrived + answered.total <= deadline) {
        core.demand.answered_in_time(class);
    }
    settled
}

fn refused(task: &TaskView, refusal: Refusal) -> ApiError {
    task.metrics.refused(refusal.name());
    refusal.into()
}

fn settle(
    core: &Core,
    task: &TaskView,
    key: QueryKey,
    reply: Reply,
    arrived: Time,
    deadline: Time,
) -> Result<Answered, ApiError> {
    let now = core.driver.clock().now();
    match reply.outcome {
        Outcome::Answered(answer) => {
            let total = now - arrived;
            task.metrics.answered(total, now <= deadline);
            let at_gateway = reply.sent.map_or(Micros::ZERO, |sent| sent.at - reply.placed);
            // The way is in the node's own round trip already.
            let way = reply.sent.map_or(Micros::ZERO, |sent| core.way(sent.node));
            let here = total.saturating_sub(answer.at_node).saturating_sub(at_gateway);
            core.handover.observe(here.saturating_sub(way));
            let queued = at_gateway + answer.queued;
            if let Some(variant) = task.variant(answer.variant) {
                variant.metrics.answered(queued, answer.run, answer.batch);
                let input = answer.decode + answer.prepare;
                let rest = answer.queued + input + answer.run;
                variant.served.answered(&Took {
                    total,
                    queue: queued,
                    input,
                    infer: answer.run,
                    output: answer.at_node.saturating_sub(rest),
                    batch: answer.batch,
                });
            }
            let predicted = reply.sent.map_or(Micros::ZERO, |sent| (sent.at - arrived) + sent.expected);
            let node = reply.sent.map(|sent| sent.node);
            Ok(Answered { key, answer, node, predicted, queued, total })
        }
        Outcome::Refused(refusal) => Err(refused(task, refusal)),
        Outcome::BadInput(fault, why) => {
            task.metrics.bad_input();
            Err(ApiError::input(fault, why))
        }
    }
}
