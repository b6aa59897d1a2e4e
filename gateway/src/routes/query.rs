//! `POST /v1/tasks/{task}`: the one route that everything else is for.

use super::media::Inputs;
use super::{Answer, FromApp, Named, media};
use crate::access::Caller;
use crate::ask::{Answered, Manner, let_in_rows};
use crate::core::Core;
use crate::errors::{ApiError, raw_json};
use crate::goals::Given;
use crate::http::body;
use crate::many::{self, Common};
use crate::native;
use crate::oip::{OUTPUT_MAX, ROWS_OPEN};
use crate::told;
use crate::traces::Door;
use crate::trials::Seen;
use crate::view::{TaskView, View};
use crate::whole::Whole;
use axum::extract::{Request, State};
use bytes::Bytes as Buffer;
use http::StatusCode;
use modelless_decision::rows::Begins;
use modelless_types::{Goals, Micros, Refusal, TaskKind, Time};
use modelless_wire::Input;

/// A request as it was read.
struct Asked<'a> {
    goals: Goals,
    /// The bound on the latency was given with the request: it holds for all of its texts together.
    bounded: bool,
    inputs: Inputs,
    /// The body's memory counts as held until the query has ended.
    _held: body::Held<'a>,
}

pub(super) async fn answer(
    State(app): FromApp,
    caller: Caller,
    Named(name): Named<String>,
    request: Request,
) -> Answer {
    let core = &*app.core;
    let arrived = core.driver.clock().now();
    let view = core.view_of(&caller);
    let mut whole = Whole::of(core, opened(core, &view, &name)?, arrived);
    let answer = asked(&mut whole, (&view, &caller), request).await;
    whole.end(answer)
}

async fn asked(whole: &mut Whole<'_>, (view, caller): (&View, &Caller), request: Request) -> Answer {
    let Whole { core, task, arrived, .. } = *whole;
    let manner = core.manner(request.headers(), Door::Query);
    let asked = read(core, task, request).await.map_err(|error| task.unread(core, caller, error))?;
    let Asked { goals, bounded, inputs, _held } = asked;
    match inputs {
        Inputs::One(input) => {
            let one = Common { core, task, goals, caller, manner: &manner, arrived, let_in: false };
            let mut answered = one.ask(input, Begins::WithAll).await?;
            // As Hugging Face answers a text: a list of one answer.
            let in_a_list = task.task.kind == TaskKind::TextClassification;
            let body = native::json(task, &answered.answer.body).await;
            let query = Some(core.number(answered.key));
            let body = body.map_err(|refusal| {
                answered.seen.iter_mut().for_each(Seen::failed);
                ApiError { query, ..refusal.into() }
            })?;
            let body = if in_a_list { listed([&body]) } else { body };
            told(whole, view, &[answered], body)
        }
        Inputs::Many(inputs) => {
            let times = (arrived, bounded);
            let (parts, body) = all(core, (task, goals), (caller, &manner), inputs, times).await?;
            told(whole, view, &parts, body)
        }
    }
}

/// Asks each of a list, a bounded number at a time and in order: what came of each, and the answers as a list.
async fn all(
    core: &Core,
    (task, goals): (&TaskView, Goals),
    (caller, manner): (&Caller, &Manner),
    inputs: Vec<Input>,
    (arrived, bounded): (Time, bool),
) -> Result<(Vec<Answered>, Buffer), ApiError> {
    let count = inputs.len();
    let places = let_in_rows(core, (caller, task), count, ROWS_OPEN)?;
    // Answers count as held memory while they are gathered.
    let mut gathered = body::Held::of(core, caller, 0)?;
    let common = Common { core, task, goals, caller, manner, arrived, let_in: places.let_in() };
    let one = |at: usize, begins: Begins| common.ask(inputs[at].clone(), begins);
    let (mut parts, mut list) = (Vec::with_capacity(count), List::default());
    let asked = many::ask(
        count,
        many::pace(&task.task, &caller.policies.applied(task, &goals), (count, bounded), places.at_once),
        one,
        |answered: &Answered| gathered.add(answered.answer.body.len()).map(|()| answered.total),
        |mut answered: Answered| {
            list.add(&answered.answer.body);
            if list.0.len() > OUTPUT_MAX {
                let message = format!(
                    "the answers are larger than {OUTPUT_MAX} bytes together; ask fewer texts at once"
                );
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
            }
            if count > told::IDS_MAX {
                // It was read; kept are only those whose label a query's name tells.
                answered.answer.body.clear();
            }
            parts.push(answered);
            Ok(())
        },
    );
    asked.await.map_err(|(at, error)| {
        let message = format!("text {} of the list: {}", at + 1, error.message);
        ApiError { message, ..error }
    })?;
    Ok((parts, list.finish()))
}

/// The task that is asked, unless nothing new is taken; a node that has nothing to do may wake up meanwhile.
pub(crate) fn opened<'a>(core: &Core, view: &'a View, name: &str) -> Result<&'a TaskView, ApiError> {
    let task = view.task(name)?;
    if core.is_draining() {
        task.metrics.refused(Refusal::Draining.name());
        task.metrics.failed(Refusal::Draining.name(), Micros::ZERO);
        return Err(Refusal::Draining.into());
    }
    core.expect_query();
    Ok(task)
}

fn told(whole: &mut Whole<'_>, view: &View, parts: &[Answered], body: Buffer) -> Answer {
    let mut response = raw_json(StatusCode::OK, body);
    told::tell(whole.core, view, whole.task, parts, response.headers_mut())?;
    whole.answered(parts);
    Ok(response)
}

/// Bodies as a JSON list.
pub(crate) fn listed<'a>(bodies: impl IntoIterator<Item = &'a Buffer>) -> Buffer {
    let mut list = List::default();
    bodies.into_iter().for_each(|body| list.add(body));
    list.finish()
}

/// The same while they come.
#[derive(Default)]
struct List(Vec<u8>);

impl List {
    fn add(&mut self, body: &Buffer) {
        self.0.push(if self.0.is_empty() { b'[' } else { b',' });
        self.0.extend_from_slice(body);
    }

    fn finish(mut self) -> Buffer {
        if self.0.is_empty() {
            self.0.push(b'[');
        }
        self.0.push(b']');
        self.0.into()
    }
}

async fn read<'a>(core: &'a Core, task: &TaskView, request: Request) -> Result<Asked<'a>, ApiError> {
    let (head, body) = request.into_parts();
    let mut given = Given::of_request(head.uri.query(), &head.headers)?;
    let form = media::form(&head.headers, &task.task)?;
    let (body, held) = body::read(core, &head, body).await?;
    let inputs = media::inputs(&task.task, form, body, &mut given, media::LIST_MAX)?;
    let bounded = given.latency.is_some();
    Ok(Asked { goals: task.resolve(&given)?, bounded, inputs, _held: held })
}
