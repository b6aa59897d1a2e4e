//! `POST /v1/tasks/{task}`: the one route that everything else is for.

use super::media::Inputs;
use super::{Answer, FromApp, Named, media};
use crate::access::Caller;
use crate::ask::{Answered, Ask, ask};
use crate::core::Core;
use crate::errors::{ApiError, raw_json};
use crate::goals::Given;
use crate::http::body;
use crate::native;
use crate::size;
use crate::told;
use crate::traces::Door;
use crate::view::{TaskView, View};
use crate::whole::Whole;
use axum::extract::{Request, State};
use bytes::Bytes as Buffer;
use futures_util::future::try_join_all;
use http::StatusCode;
use modelless_types::{Goals, Micros, Refusal, TaskKind};
use modelless_wire::Input;

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
    // The body's memory counts as held until the query has ended.
    let (goals, inputs, _held) = read(core, task, request).await.inspect_err(|error| task.unread(error))?;
    let one = |input: Input, goals: Goals| {
        let decoded = size::decoded(task.task.kind, &input);
        ask(core, Ask { task, goals, input, decoded, caller, arrived, manner: &manner })
    };
    match inputs {
        Inputs::One(input) => {
            let answered = one(input, goals).await?;
            // As Hugging Face answers a text: a list of one answer.
            let in_a_list = task.task.kind == TaskKind::TextClassification;
            let body = native::json(task, &answered.answer.body).await?;
            let body = if in_a_list { listed([&body]) } else { body };
            told(whole, view, &[answered], body)
        }
        Inputs::Many(inputs) => {
            // The first that is refused ends the request; going away, the others are cancelled.
            let parts = inputs.into_iter().enumerate().map(|(at, input)| {
                let part = one(input, goals);
                async move {
                    part.await.map_err(|error| {
                        let message = format!("text {} of the list: {}", at + 1, error.message);
                        ApiError { message, ..error }
                    })
                }
            });
            let parts = try_join_all(parts).await?;
            let body = listed(parts.iter().map(|part| &part.answer.body));
            told(whole, view, &parts, body)
        }
    }
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
    let mut list = vec![b'['];
    for (at, body) in bodies.into_iter().enumerate() {
        if at > 0 {
            list.push(b',');
        }
        list.extend_from_slice(body);
    }
    list.push(b']');
    list.into()
}

async fn read<'a>(
    core: &'a Core,
    task: &TaskView,
    request: Request,
) -> Result<(Goals, Inputs, body::Held<'a>), ApiError> {
    let (head, body) = request.into_parts();
    let mut given = Given::of_request(head.uri.query(), &head.headers)?;
    let form = media::form(&head.headers, &task.task)?;
    let (body, held) = body::read(core, &head, body).await?;
    let inputs = media::inputs(&task.task, form, body, &mut given)?;
    Ok((task.resolve(&given)?, inputs, held))
}
