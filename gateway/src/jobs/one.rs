//! One input of a job: asked as a query is, and what its end means for the job.
//!
//! It is counted apart from queries: how long it took says nothing of the platform, and a refusal only that there was no spare time.

use super::pacer::Pass;
use crate::access::{Caller, Open, Queries};
use crate::account::Account;
use crate::ask::let_in;
use crate::core::Core;
use crate::errors::ApiError;
use crate::goals::Given;
use crate::native;
use crate::pending::{Outcome, Reply};
use crate::routes::{MediaInputs, listed, media_form, media_inputs};
use crate::size;
use crate::view::{TaskView, View};
use bytes::Bytes as Buffer;
use futures_util::future::try_join_all;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use modelless_decision::query::Class;
use modelless_decision::route::Event;
use modelless_decision::{Query, admission};
use modelless_store::{JobEnd, JobInput};
use modelless_types::{CostPer1k, Goals, Micros, Refusal, SpaceId, TaskKind, VariantId};
use modelless_wire::{Answer, Input};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Texts that one input of a job may be: all of them are open at once.
const LIST_MAX: usize = 64;

/// How an attempt at an input ended.
#[derive(Debug)]
pub(super) enum Came {
    Ended(JobEnd),
    /// It is tried again.
    Again {
        why: ApiError,
        kind: Why,
    },
    /// The task answers in another output space than it did.
    OtherSpace,
}

/// What stood in its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// There is no spare time for it: what the pace of all inputs of a task goes by.
    NoRoom,
    /// So few at once cost more than its ceiling.
    TooFew,
    /// Something of this job's own that may pass, or whoever had it is gone.
    Busy,
    /// It failed where it was run: not for ever.
    Trouble,
    /// Nothing that is registered meets the job's goals.
    Goals,
}

/// What an attempt needs.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) core: Arc<Core>,
    pub(super) view: Arc<View>,
    pub(super) caller: Caller,
    pub(super) task: Arc<str>,
    pub(super) goals: Goals,
    pub(super) space: SpaceId,
}

/// The query, or the few of a list of texts, that an input is.
fn inputs_of(task: &TaskView, input: &JobInput) -> Result<MediaInputs, ApiError> {
    let mut headers = HeaderMap::new();
    if let Some(media) = &input.media {
        let media = HeaderValue::from_str(media)
            .map_err(|_| ApiError::unsupported_media("the content type is not readable"))?;
        headers.insert(CONTENT_TYPE, media);
    }
    let form = media_form(&headers, &task.task)?;
    let mut given = Given::default();
    let inputs = media_inputs(&task.task, form, Buffer::from(input.body.clone()), &mut given, LIST_MAX)?;
    if given != Given::default() {
        return Err(ApiError::bad_goal("an input of a job has no goals of its own; give them with the job"));
    }
    Ok(inputs)
}

/// Cancels the query unless it has ended.
struct Guard<'a>(Account<'a>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Attempt {
    /// Tries one.
    pub(super) async fn at(self, input: &JobInput, pass: Pass) -> Came {
        let Ok(task) = self.view.task(&self.task) else {
            return Came::Again {
                why: Refusal::NothingRunnable { why: "its task is gone".into() }.into(),
                kind: Why::Goals,
            };
        };
        let inputs = match inputs_of(task, input) {
            Ok(inputs) => inputs,
            Err(error) => return ended(task, failure(&error)),
        };
        let result = self.asked(task, inputs).await;
        let now = self.core.driver.clock().now();
        match result {
            Ok((answers, _)) if answers.iter().any(|answer| answer.space != self.space) => Came::OtherSpace,
            Ok((answers, body)) => {
                let waited = answers.iter().map(|answer| answer.queued).max().unwrap_or_default();
                pass.answered(now, waited);
                ended(task, answered(task, &answers, &body))
            }
            Err(refusal) => match refused(refusal) {
                Came::Ended(end) => ended(task, end),
                came @ (Came::Again { .. } | Came::OtherSpace) => {
                    if matches!(came, Came::Again { kind: Why::NoRoom, .. }) {
                        pass.refused(now);
                    } else if matches!(came, Came::Again { kind: Why::TooFew, .. }) {
                        pass.too_few(now);
                    }
                    came
                }
            },
        }
    }

    /// Lets in all queries of an input.
    fn let_in(&self, queries: usize) -> Result<Option<[Open; 2]>, Refused> {
        let Self { core, caller, goals, .. } = self;
        // What spare time is spent on takes nothing from queries, and so nothing of how many of them may come.
        if goals.priority.is_spare() {
            let now = core.driver.clock().now();
            return caller.has_device_time(now).map(|()| None).map_err(Refused::before);
        }
        let_in(core, caller, Queries::of(queries, queries)).map(Some).map_err(Refused::before)
    }

    async fn asked(
        &self,
        task: &TaskView,
        inputs: MediaInputs,
    ) -> Result<(Vec<Box<Answer>>, Buffer), Refused> {
        let in_a_list = task.task.kind == TaskKind::TextClassification;
        match inputs {
            MediaInputs::One(input) => {
                let _open = self.let_in(1)?;
                let answer = self.ask(task, input).await?;
                let body = native::json(task, &answer.body).await;
                let body = body.map_err(|refusal| Refused::admitted(refusal.into()))?;
                Ok((vec![answer], if in_a_list { listed([&body]) } else { body }))
            }
            MediaInputs::Many(inputs) => {
                let _open = self.let_in(inputs.len())?;
                let answers = try_join_all(inputs.into_iter().map(|input| self.ask(task, input))).await?;
                let body = listed(answers.iter().map(|answer| &answer.body));
                Ok((answers, body))
            }
        }
    }

    async fn ask(&self, task: &TaskView, input: Input) -> Result<Box<Answer>, Refused> {
        let Self { core, caller, goals, .. } = self;
        let core = &**core;
        let arrived = core.driver.clock().now();
        let spare = goals.priority.is_spare();
        let key = core.next_key();
        let decoded = size::decoded(task.task.kind, &input);
        let (reply, answer) = oneshot::channel();
        let account = Account { core, caller, key, counts: !spare };
        let guard = Guard(account);
        let (mut refused, mut class): (Option<Refusal>, Option<Class>) = (None, None);
        core.driver.feed_with(
            |router, now| {
                let admitted = match admission::admit(router.snapshot(), task.task.id, goals) {
                    Ok(admitted) => admitted,
                    Err(refusal) => {
                        if !spare {
                            let asked = (router.snapshot(), task.task.id, goals);
                            core.demand.turned_away(asked, &refusal, now);
                        }
                        refused = Some(refusal);
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
                    expires: deadline,
                    max_cost: admitted.max_cost,
                    prefer: admitted.prefer,
                    priority: goals.priority,
                    best_effort: false,
                    bytes: decoded,
                    returnable: false,
                };
                if !spare {
                    core.demand.arrived(admitted.class, deadline - arrived, now);
                    class = Some(admitted.class);
                }
                if let Err(limit) = core.pending.insert((now, caller.alone), query, input, reply) {
                    refused = Some(Refusal::QueueFull { limit });
                    return None;
                }
                Some((Event::Arrive(query), ()))
            },
            core,
        );
        if let Some(refusal) = refused {
            return Err(Refused::before(refusal.into()));
        }
        let reply = answer.await.map_err(|_| Refused::admitted(Refusal::NodeLost.into()))?;
        drop(guard);
        account.ended(&reply);
        let Reply { outcome, .. } = reply;
        match outcome {
            Outcome::Answered(answer) => {
                let device = share(&answer);
                let now = core.driver.clock().now();
                caller.used(now, device);
                caller.metrics.worked(device, answer.cost);
                if let Some(class) = class.filter(|_| Some(now - arrived) <= goals.latency) {
                    core.demand.answered_in_time(class);
                }
                Ok(answer)
            }
            Outcome::Refused(refusal) => Err(Refused::admitted(refusal.into())),
            Outcome::BadInput(fault, why) => Err(Refused::admitted(ApiError::input(fault, why))),
        }
    }
}

/// What an answer took of its device: its part of the batch.
fn share(answer: &Answer) -> Micros {
    Micros(answer.run.0 / u64::from(answer.batch.max(1)))
}

fn answered(task: &TaskView, answers: &[Box<Answer>], body: &Buffer) -> JobEnd {
    let variant = answers.first().map_or(VariantId(0), |answer| answer.variant);
    let name = task.variant(variant).map(|view| view.variant.name.clone()).unwrap_or_default();
    JobEnd::Answer {
        body: body.to_vec(),
        variant,
        variant_name: name,
        device: Micros(answers.iter().map(|answer| share(answer).0).sum()),
        cost: CostPer1k(answers.iter().map(|answer| answer.cost.0).sum()),
    }
}

fn ended(task: &TaskView, end: JobEnd) -> Came {
    task.metrics.job_input(matches!(end, JobEnd::Answer { .. }));
    Came::Ended(end)
}

fn failure(error: &ApiError) -> JobEnd {
    JobEnd::Failure { reason: error.reason.to_owned(), message: error.message.clone() }
}

/// A refusal, and whether something meets the job's goals all the same.
#[derive(Debug)]
struct Refused {
    error: ApiError,
    admitted: bool,
}

impl Refused {
    fn before(error: ApiError) -> Self {
        Self { error, admitted: false }
    }

    fn admitted(error: ApiError) -> Self {
        Self { error, admitted: true }
    }
}

/// Whether a refusal is the input's own, or may be another the next time.
fn refused(Refused { error, admitted }: Refused) -> Came {
    const GOALS: [&str; 4] = ["floor_unreachable", "latency_unreachable", "cost_unreachable", "pin_unusable"];
    const TROUBLE: [&str; 2] = ["variant_failed", "out_of_memory"];
    const NO_ROOM: [&str; 3] = ["queue_full", "bytes_full", "too_late"];
    let kind = match error.status {
        // What it cost was reckoned by the best batch, and too few of them were there for it.
        _ if error.reason == "cost_unreachable" && admitted => Why::TooFew,
        // What a node could not meet now it may meet when fewer queries come.
        _ if GOALS.contains(&error.reason) && admitted => Why::NoRoom,
        _ if GOALS.contains(&error.reason) => Why::Goals,
        _ if TROUBLE.contains(&error.reason) => Why::Trouble,
        _ if NO_ROOM.contains(&error.reason) => Why::NoRoom,
        StatusCode::TOO_MANY_REQUESTS => Why::Busy,
        status if status.is_client_error() && status.as_u16() != 499 => return Came::Ended(failure(&error)),
        _ => Why::Busy,
    };
    Came::Again { why: error, kind }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Nearest;

    #[test]
    fn an_input_ends_by_its_own_fault_and_waits_for_whatever_else_stands_in_its_way() {
        let why = || "x".to_owned();
        let came = |refused: Came| match refused {
            Came::Again { kind, .. } => Some(kind),
            Came::Ended(_) | Came::OtherSpace => None,
        };
        let kind = |refusal: Refusal| came(refused(Refused::admitted(refusal.into())));
        for refusal in [Refusal::QueueFull { limit: 1 }, Refusal::TooLate { waited: Micros(1) }] {
            assert_eq!(kind(refusal.clone()), Some(Why::NoRoom), "{refusal:?}");
        }
        for refusal in [
            Refusal::NodeLost,
            Refusal::Draining,
            Refusal::OverQuota,
            Refusal::NothingRunnable { why: why() },
            Refusal::Loading { ready_in: Micros(1), bound: Micros(2) },
            Refusal::Cancelled,
        ] {
            assert_eq!(kind(refusal.clone()), Some(Why::Busy), "{refusal:?}");
        }
        let unreachable = || Refusal::FloorUnreachable { best: None };
        assert_eq!(came(refused(Refused::before(unreachable().into()))), Some(Why::Goals));
        let too_dear = || Refusal::CostUnreachable { nearest: Nearest::default() };
        assert_eq!(kind(too_dear()), Some(Why::TooFew), "a larger batch may do");
        assert_eq!(came(refused(Refused::before(too_dear().into()))), Some(Why::Goals));
        assert_eq!(kind(unreachable()), Some(Why::NoRoom), "something met its goals when it was admitted");
        assert_eq!(kind(Refusal::VariantFailed { why: why() }), Some(Why::Trouble));
        assert_eq!(kind(Refusal::InputCrashed { why: why() }), None);
        assert_eq!(kind(Refusal::ModelError { why: why() }), None);
        assert!(matches!(
            refused(Refused::admitted(ApiError::malformed("x"))),
            Came::Ended(JobEnd::Failure { .. })
        ));
    }
}
