//! `POST /v1/tasks/{task}`: the one route that everything else is for.

use super::{Answer, FromApp, Named, media};
use crate::ask::{Answered, Ask, ask};
use crate::core::Core;
use crate::errors::{ApiError, raw_json};
use crate::goals::Given;
use crate::http::body;
use crate::ids::QueryId;
use crate::size;
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use http::{HeaderName, HeaderValue, StatusCode};
use modelless_store::UnixMicros;
use modelless_types::{Goals, Micros, Refusal};
use modelless_wire::Input;
use std::io::Write as _;
use std::time::SystemTime;

pub(super) async fn answer(State(app): FromApp, Named(name): Named<String>, request: Request) -> Answer {
    let core = &*app.core;
    let arrived = core.driver.clock().now();
    let view = core.view();
    let task = view.task(&name)?;
    if core.is_draining() {
        task.metrics.refused(Refusal::Draining.name());
        return Err(Refusal::Draining.into());
    }
    core.expect_query();
    // The body's memory counts as held until the query has ended.
    let (goals, input, _held) = read(core, task, request).await.inspect_err(|error| {
        if error.status.is_client_error() && error.status != StatusCode::UNPROCESSABLE_ENTITY {
            task.metrics.bad_input();
        } else {
            task.metrics.refused(error.reason);
        }
    })?;
    let decoded = size::decoded(task.task.kind, &input);
    let answered = ask(core, Ask { task, goals, input, decoded, arrived }).await?;
    Ok(respond(core, &view, task, answered))
}

async fn read<'a>(
    core: &'a Core,
    task: &TaskView,
    request: Request,
) -> Result<(Goals, Input, body::Held<'a>), ApiError> {
    let (head, body) = request.into_parts();
    let mut given = Given::of_request(head.uri.query(), &head.headers)?;
    let form = media::form(&head.headers, &task.task)?;
    let (body, held) = body::read(core, &head.headers, body, core.config.max_body_bytes).await?;
    let input = media::input(&task.task, form, body, &mut given)?;
    Ok((task.resolve(&given)?, input, held))
}

const fn name(text: &'static str) -> HeaderName {
    HeaderName::from_static(text)
}

fn respond(core: &Core, view: &View, task: &TaskView, answered: Answered) -> axum::response::Response {
    let Answered { key, answer, node, predicted, queued, total } = answered;
    let mut response = raw_json(StatusCode::OK, answer.body);
    let headers = response.headers_mut();
    headers.reserve(20);
    if let Some(variant) = task.variant(answer.variant) {
        headers.insert(name("modelless-model"), variant.model_header.clone());
        headers.insert(name("modelless-variant"), variant.variant_header.clone());
        headers.insert(name("modelless-space"), variant.space_header.clone());
        if let Some(accuracy) = &variant.accuracy_header {
            headers.insert(name("modelless-accuracy"), accuracy.clone());
        }
    }
    if let Some(node) = node.and_then(|node| view.node_header(node)) {
        headers.insert(name("modelless-node"), node);
    }
    headers.insert(name("modelless-batch"), HeaderValue::from(answer.batch));
    headers.insert(name("modelless-cost"), decimal(answer.cost.0, 9));
    for (header, time) in [
        (name("modelless-predicted-ms"), predicted),
        (name("modelless-predicted-run-ms"), answer.predicted_run),
        (name("modelless-queue-ms"), queued),
        (name("modelless-decode-ms"), answer.decode),
        (name("modelless-prepare-ms"), answer.prepare),
        (name("modelless-run-ms"), answer.run),
        (name("modelless-total-ms"), total),
    ] {
        headers.insert(header, millis(time));
    }
    headers.insert(name("modelless-reason"), HeaderValue::from_static(answer.why.text()));
    let id = QueryId {
        variant: answer.variant,
        at_unix_us: UnixMicros::of(SystemTime::now()).0,
        number: core.number_base.wrapping_add(key.0),
    };
    if let Ok(id) = HeaderValue::try_from(core.ids.issue(id)) {
        headers.insert(name("modelless-query-id"), id);
    }
    response
}

fn millis(time: Micros) -> HeaderValue {
    decimal(time.0, 3)
}

/// `value / 10^digits`, exactly, without an allocation of its own.
fn decimal(value: u64, digits: u8) -> HeaderValue {
    let mut buffer = [0; 40];
    let scale = 10_u64.pow(u32::from(digits));
    let mut rest = buffer.as_mut_slice();
    let width = usize::from(digits);
    // 20 digits, a point and at most 9 more always fit.
    let fits = write!(rest, "{}.{:0width$}", value / scale, value % scale).is_ok();
    let left = rest.len();
    let written = if fits { &buffer[..buffer.len() - left] } else { &b"0"[..] };
    HeaderValue::from_bytes(written).unwrap_or(HeaderValue::from_static("0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_prices_are_written_exactly() {
        assert_eq!(millis(Micros(12_345)), "12.345");
        assert_eq!(millis(Micros(7)), "0.007");
        assert_eq!(millis(Micros(0)), "0.000");
        assert_eq!(millis(Micros(u64::MAX)), "18446744073709551.615");
        assert_eq!(decimal(1_500_000, 9), "0.001500000");
        assert_eq!(decimal(u64::MAX, 9), "18446744073.709551615");
    }
}
