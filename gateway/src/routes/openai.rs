//! OpenAI's embeddings, under `/openai/v1`: a task of vectors is a model. Errors have OpenAI's shape, so that its clients show them.

use super::query::opened;
use super::{FromApp, Named};
use crate::access::Caller;
use crate::core::Core;
use crate::errors::{ApiError, json_response, raw_json};
use crate::goals::Given;
use crate::http::body;
use crate::oip::request::{Request as Asked, Tensor};
use crate::oip::{infer, json as oip};
use crate::suggest::excerpt;
use crate::traces::Door;
use crate::view::TaskView;
use crate::whole::Whole;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use modelless_oip::elements;
use modelless_types::{DType, TaskKind};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Said by those who have no date.
const CREATED: u64 = 0;

/// An error in OpenAI's shape.
pub(super) struct Refused(ApiError);

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let kind = if error.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        let body =
            json!({"error": {"message": error.message, "type": kind, "param": null, "code": error.reason}});
        let status = error.status;
        // Headers such as `retry-after` are those of any error.
        let mut response = error.into_response();
        let (head, text) = json_response(status, &body).into_parts();
        response.headers_mut().extend(head.headers);
        *response.body_mut() = text;
        response
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(default)]
    encoding_format: Form,
    #[serde(default)]
    dimensions: Option<usize>,
    /// Who asks, in the client's own words; nothing is done with it.
    #[serde(default, rename = "user")]
    _user: Option<String>,
    #[serde(borrow, default)]
    goals: Option<&'a RawValue>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Form {
    #[default]
    Float,
    Base64,
}

fn model(task: &TaskView) -> Value {
    json!({"id": task.task.name, "object": "model", "created": CREATED, "owned_by": "modelless"})
}

fn embeds(task: &TaskView) -> bool {
    task.task.kind == TaskKind::FeatureExtraction
}

pub(super) async fn models(State(app): FromApp, caller: Caller) -> Response {
    let view = app.core.view_of(&caller);
    let mut tasks: Vec<&TaskView> = view.tasks.values().filter(|task| embeds(task)).collect();
    tasks.sort_by(|a, b| a.task.name.cmp(&b.task.name));
    let data: Vec<Value> = tasks.into_iter().map(model).collect();
    json_response(StatusCode::OK, &json!({"object": "list", "data": data}))
}

pub(super) async fn show(
    State(app): FromApp,
    caller: Caller,
    Named(name): Named<String>,
) -> Result<Response, Refused> {
    let view = app.core.view_of(&caller);
    Ok(json_response(StatusCode::OK, &model(embedding(view.task(&name)?)?)))
}

/// Only tasks of vectors are models here.
fn embedding(task: &TaskView) -> Result<&TaskView, ApiError> {
    if embeds(task) {
        return Ok(task);
    }
    let (name, kind) = (&task.task.name, task.task.kind.name());
    let message = format!("task {name:?} is of {kind}; embeddings are made by tasks of feature-extraction");
    Err(ApiError::not_found("unknown_task", message))
}

pub(super) async fn embeddings(
    State(app): FromApp,
    caller: Caller,
    request: Request,
) -> Result<Response, Refused> {
    Ok(embed(&app.core, &caller, request).await?)
}

async fn embed(core: &Core, caller: &Caller, request: Request) -> Result<Response, ApiError> {
    let arrived = core.driver.clock().now();
    let (head, body) = request.into_parts();
    let unread = |error| caller.unread(core.driver.clock().now(), error);
    oip::check_media(&head.headers)?;
    let (text, _held) = body::read(core, &head, body).await.map_err(unread)?;
    let Body { model, input, encoding_format, dimensions, _user: _, goals } = read(&text).map_err(unread)?;
    let view = core.view_of(caller);
    let task = embedding(opened(core, &view, &model)?)?;
    let mut whole = Whole::of(core, task, arrived);
    let asked = || {
        let mut given = Given::of_request(head.uri.query(), &head.headers)?;
        goals.map_or(Ok(()), |goals| given.add_json(goals))?;
        check_dimensions(task, dimensions)?;
        Ok((given, asked(input)?))
    };
    let answer = match asked().map_err(|error| task.unread(core, caller, error)) {
        Ok((given, asked)) => {
            let manner = core.manner(&head.headers, Door::OpenAi);
            Box::pin(infer::run(&mut whole, (&view, caller, &manner), asked, given)).await
        }
        Err(error) => Err(error),
    };
    told(task, whole.end(answer)?, encoding_format)
}

fn told(task: &TaskView, answer: infer::Response, form: Form) -> Result<Response, ApiError> {
    let [output] = answer.outputs.as_slice() else {
        return Err(ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "there is no vector in the answer",
        ));
    };
    let rows = output.shape.first().and_then(|rows| usize::try_from(*rows).ok()).unwrap_or(1).max(1);
    let body = written(&task.task.name, &output.data, output.data.len() / rows, form)?;
    let mut response = raw_json(StatusCode::OK, body.into());
    response.headers_mut().extend(answer.told);
    Ok(response)
}

fn read(text: &[u8]) -> Result<Body<'_>, ApiError> {
    oip::check_object(text)?;
    serde_json::from_slice(text)
        .map_err(|error| ApiError::malformed(format!("the body does not follow its form: {error}")))
}

/// A vector has the length that it has.
fn check_dimensions(task: &TaskView, wanted: Option<usize>) -> Result<(), ApiError> {
    let known = task.signature.outputs.first().and_then(crate::oip::Port::elements);
    match (wanted, known) {
        (Some(wanted), Some(known)) if wanted != known => {
            let message = format!("`dimensions` is {wanted}; the vectors of this task have {known}");
            Err(ApiError::malformed(message))
        }
        _ => Ok(()),
    }
}

/// One text, or a list of them.
fn asked(input: &RawValue) -> Result<Asked, ApiError> {
    let mut data = Vec::new();
    let limit = input.get().len().saturating_mul(4);
    let rows = elements::read(DType::Bytes, input.get(), &mut data, limit).map_err(|why| {
        let found = excerpt(input.get());
        ApiError::malformed(format!(
            "`input` must be a text or a list of texts, not tokens: {why} in {found}"
        ))
    })?;
    if rows == 0 {
        return Err(ApiError::malformed("`input` is empty; send at least one text"));
    }
    let text = Tensor {
        area: None,
        name: "text".to_owned(),
        dtype: DType::Bytes,
        shape: vec![i64::try_from(rows).unwrap_or(i64::MAX)],
        data: data.into(),
        from_json: true,
        bare: false,
    };
    Ok(Asked { inputs: vec![text], ..Asked::default() })
}

fn written(model: &str, data: &[u8], row: usize, form: Form) -> Result<Vec<u8>, ApiError> {
    let mut out = br#"{"object":"list","data":["#.to_vec();
    for (index, vector) in data.chunks(row.max(1)).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(format!(r#"{{"object":"embedding","index":{index},"embedding":"#).as_bytes());
        match form {
            Form::Float => elements::write(DType::Fp32, vector, &mut out).map_err(|why| {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("vector {index}: {why}"))
            })?,
            Form::Base64 => {
                let mut text = String::with_capacity(vector.len() / 3 * 4 + 8);
                text.push('"');
                STANDARD.encode_string(vector, &mut text);
                text.push('"');
                out.extend_from_slice(text.as_bytes());
            }
        }
        out.push(b'}');
    }
    // Texts are cut into tokens at nodes, which do not tell how many they were.
    let rest = json!({"model": model, "usage": {"prompt_tokens": 0, "total_tokens": 0}}).to_string();
    out.extend_from_slice(b"],");
    out.extend_from_slice(&rest.as_bytes()[1..]);
    Ok(out)
}
