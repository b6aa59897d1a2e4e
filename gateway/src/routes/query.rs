//! `POST /v1/tasks/{task}`: the one route that everything else is for.

use super::media::Inputs;
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
use bytes::Bytes as Buffer;
use futures_util::future::try_join_all;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use modelless_store::UnixMicros;
use modelless_types::{Goals, Micros, Refusal, TaskKind};
use modelless_wire::Input;
use serde::Deserialize;
use std::borrow::Cow;
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
    let (goals, inputs, _held) = read(core, task, request).await.inspect_err(|error| {
        if error.status.is_client_error() && error.status != StatusCode::UNPROCESSABLE_ENTITY {
            task.metrics.bad_input();
        } else {
            task.metrics.refused(error.reason);
        }
    })?;
    let one = |input: Input, goals: Goals| {
        let decoded = size::decoded(task.task.kind, &input);
        ask(core, Ask { task, goals, input, decoded, arrived })
    };
    match inputs {
        Inputs::One(input) => {
            let mut answered = one(input, goals).await?;
            // As Hugging Face answers a text: a list of one answer.
            if task.task.kind == TaskKind::TextClassification {
                answered.answer.body = listed([&answered.answer.body]);
            }
            Ok(respond(core, &view, task, answered))
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
            together(core, &view, task, try_join_all(parts).await?)
        }
    }
}

/// Bodies as a JSON list.
fn listed<'a>(bodies: impl IntoIterator<Item = &'a Buffer>) -> Buffer {
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

/// One response for several queries. Its headers tell of the slowest; names are all that answered, the accuracy is the
/// lowest of theirs, ids are in the order of the list.
fn together(core: &Core, view: &View, task: &TaskView, parts: Vec<Answered>) -> Answer {
    if parts.iter().any(|part| part.answer.space != parts[0].answer.space) {
        // The task's default changed in between.
        let message = "the texts were answered in different output spaces; ask again";
        return Err(ApiError::unavailable("space_changed", message));
    }
    let body = listed(parts.iter().map(|part| &part.answer.body));
    let mut joined = HeaderMap::new();
    let all = |found: &dyn Fn(&Answered) -> Option<HeaderValue>| {
        let mut names: Vec<HeaderValue> = parts.iter().filter_map(found).collect();
        names.sort_unstable();
        names.dedup();
        HeaderValue::from_bytes(&names.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..]))
            .ok()
    };
    let variant = |part: &Answered| task.variant(part.answer.variant);
    let accuracy = parts.iter().filter_map(variant).min_by_key(|variant| variant.accuracy);
    let ids: Vec<String> = parts.iter().map(|part| query_id(core, task, part)).collect();
    for (header, value) in [
        (name("modelless-model"), all(&|part| Some(variant(part)?.model_header.clone()))),
        (name("modelless-variant"), all(&|part| Some(variant(part)?.variant_header.clone()))),
        (name("modelless-accuracy"), accuracy.and_then(|variant| variant.accuracy_header.clone())),
        (
            name("modelless-accuracy-provenance"),
            accuracy.and_then(|variant| variant.accuracy_from_header.clone()),
        ),
        (name("modelless-query-id"), HeaderValue::try_from(ids.join(", ")).ok()),
    ] {
        if let Some(value) = value {
            joined.insert(header, value);
        }
    }
    let slowest = parts.into_iter().max_by_key(|part| part.total);
    let slowest = slowest.ok_or_else(|| ApiError::malformed("the list of texts is empty"))?;
    let mut response = respond(core, view, task, slowest);
    response.headers_mut().extend(joined);
    response.headers_mut().remove(http::header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
    Ok(response)
}

fn query_id(core: &Core, task: &TaskView, part: &Answered) -> String {
    core.ids.issue(QueryId {
        label: best_label(&part.answer.body).and_then(|label| task.label(&label)),
        variant: part.answer.variant,
        at_unix_us: UnixMicros::of(SystemTime::now()).0,
        number: core.number_base.wrapping_add(part.key.0),
    })
}

/// The label of a body that begins with `[{"label": ...`, or with several such brackets: the best comes first.
fn best_label(body: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Best<'a> {
        #[serde(borrow)]
        label: Cow<'a, str>,
    }
    let start = body.iter().position(|byte| *byte != b'[')?;
    if body.get(start) != Some(&b'{') || start == 0 {
        return None;
    }
    let first = serde_json::Deserializer::from_slice(&body[start..]).into_iter::<Best<'_>>().next()?;
    first.ok().map(|best| best.label)
}

async fn read<'a>(
    core: &'a Core,
    task: &TaskView,
    request: Request,
) -> Result<(Goals, Inputs, body::Held<'a>), ApiError> {
    let (head, body) = request.into_parts();
    let mut given = Given::of_request(head.uri.query(), &head.headers)?;
    let form = media::form(&head.headers, &task.task)?;
    let (body, held) = body::read(core, &head.headers, body, core.config.max_body_bytes).await?;
    let inputs = media::inputs(&task.task, form, body, &mut given)?;
    Ok((task.resolve(&given)?, inputs, held))
}

const fn name(text: &'static str) -> HeaderName {
    HeaderName::from_static(text)
}

fn respond(core: &Core, view: &View, task: &TaskView, answered: Answered) -> axum::response::Response {
    let id = query_id(core, task, &answered);
    let Answered { key: _, answer, node, predicted, queued, total } = answered;
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
        if let Some(from) = &variant.accuracy_from_header {
            headers.insert(name("modelless-accuracy-provenance"), from.clone());
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
    if let Ok(id) = HeaderValue::try_from(id) {
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
    fn the_best_label_is_read_from_the_answer_itself() {
        for (body, label) in [
            (r#"[{"label":"bag","score":0.9},{"label":"coat","score":0.1}]"#, Some("bag")),
            (r#"[[{"label":"a \"b\"","score":1.0}]]"#, Some("a \"b\"")),
            (r#"{"outputs":{"label":{}}}"#, None),
            ("[[0.5,0.5]]", None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(best_label(body.as_bytes()).as_deref(), label, "{body}");
        }
    }

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
