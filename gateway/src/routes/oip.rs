//! The Open Inference Protocol over HTTP, with Triton's extensions: `/v2`.

use super::query::opened;
use super::{Answer, App, FromApp, Named};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, JSON, json_response};
use crate::goals::Given;
use crate::http::{body, encoding};
use crate::oip::json::HEAD_LENGTH;
use crate::oip::request::Value as Parameter;
use crate::oip::{about, infer, json as form, residency, shown, statistics};
use crate::suggest::noted;
use crate::traces::Door;
use crate::view::View;
use crate::whole::Whole;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use modelless_oip::messages::ModelMetadata;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// What a path names.
#[derive(Deserialize)]
pub(super) struct At {
    task: String,
    #[serde(default)]
    version: String,
}

pub(super) async fn server(State(app): FromApp) -> Response {
    let about = about::server(app.core.config.shared_memory);
    json_response(
        StatusCode::OK,
        &json!({"name": about.name, "version": about.version, "extensions": about.extensions}),
    )
}

pub(super) async fn models(State(app): FromApp, caller: Caller) -> Response {
    let view = app.core.view_of(&caller);
    let mut names: Vec<&String> = view.tasks.keys().collect();
    names.sort_unstable();
    json_response(StatusCode::OK, &json!({"models": names}))
}

pub(super) async fn metadata(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    let view = app.core.view_of(&caller);
    let ModelMetadata { name, versions, platform, inputs, outputs } =
        about::metadata(view.task(&at.task)?, &at.version)?;
    let tensors = |tensors: Vec<modelless_oip::messages::TensorMetadata>| -> Value {
        let one = |t: modelless_oip::messages::TensorMetadata| json!({"name": t.name, "datatype": t.datatype, "shape": t.shape});
        tensors.into_iter().map(one).collect()
    };
    let body = json!({"name": name, "versions": versions, "platform": platform,
        "inputs": tensors(inputs), "outputs": tensors(outputs)});
    Ok(json_response(StatusCode::OK, &body))
}

pub(super) async fn config(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    let view = app.core.view_of(&caller);
    let task = view.task(&at.task)?;
    let config = about::config(task, &at.version, app.core.cache.serves(task))?;
    Ok(json_response(StatusCode::OK, &shown::config(&config)))
}

pub(super) async fn ready(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    let view = app.core.view_of(&caller);
    let task = view.task(&at.task)?;
    if about::ready(&view, task, &at.version)? {
        return Ok(json_response(StatusCode::OK, &json!({"name": at.task, "ready": true})));
    }
    let error = "no node that takes queries can run it";
    let body = json!({"name": at.task, "ready": false, "error": error, "reason": "not_ready"});
    Ok(json_response(StatusCode::SERVICE_UNAVAILABLE, &body))
}

pub(super) async fn statistics(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    let view = app.core.view_of(&caller);
    let all = statistics::of_task(&view, view.task(&at.task)?, &at.version)?;
    Ok(json_response(StatusCode::OK, &shown::statistics(&all)))
}

pub(super) async fn all_statistics(State(app): FromApp, caller: Caller) -> Answer {
    let all = statistics::of_all(&app.core, &caller)?;
    Ok(json_response(StatusCode::OK, &shown::statistics(&all)))
}

pub(super) async fn answer(
    State(app): FromApp,
    caller: Caller,
    Named(at): Named<At>,
    request: Request,
) -> Answer {
    let core = &*app.core;
    let arrived = core.driver.clock().now();
    let view = core.view_of(&caller);
    let mut whole = Whole::of(core, opened(core, &view, &at.task)?, arrived);
    let answer = asked(&mut whole, (&view, &caller), &at.version, request).await;
    whole.end(answer)
}

async fn asked(
    whole: &mut Whole<'_>,
    (view, caller): (&View, &Caller),
    version: &str,
    request: Request,
) -> Answer {
    let Whole { core, task, .. } = *whole;
    let (head, body) = request.into_parts();
    let packed = encoding::wanted(&head.headers);
    let read = async {
        let mut given = Given::of_request(head.uri.query(), &head.headers)?;
        if let Some(pin) = about::version(task, version)? {
            given.add("variant", &pin.variant.name)?;
        }
        form::check_media(&head.headers)?;
        let json = json_length(&head.headers)?;
        let (body, held) = body::read(core, &head, body).await?;
        let request = form::parse(&body, json, &task.signature)?;
        Ok((given, request, held))
    };
    // The body's memory counts as held until the request has ended.
    let (given, request, _held) = read.await.map_err(|error| task.unread(core, caller, error))?;
    let manner = core.manner(&head.headers, Door::Oip);
    let response = Box::pin(infer::run(whole, (view, caller, &manner), request, given)).await?;
    let (body, json) = form::write(&task.task.name, &response)?;
    let mut headers = response.told;
    let media = match json {
        None => JSON,
        Some(length) => {
            headers.insert(HeaderName::from_static(HEAD_LENGTH), HeaderValue::from(length));
            HeaderValue::from_static("application/octet-stream")
        }
    };
    headers.insert(CONTENT_TYPE, media);
    let mut answer = Response::new(encoding::pack(packed, body, &mut headers).into());
    *answer.headers_mut() = headers;
    Ok(answer)
}

/// How much of the body is JSON, where something follows it.
fn json_length(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let Some(value) = headers.get(HEAD_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    length.map(Some).ok_or_else(|| ApiError::malformed(format!("{HEAD_LENGTH} must be a number of bytes")))
}

/// What a request about the repository may say. Its body may be left out, and what else it says is of no account, as for Triton.
#[derive(Deserialize, Default)]
struct Repository<'a> {
    #[serde(default)]
    ready: bool,
    #[serde(default, borrow)]
    parameters: Option<&'a RawValue>,
}

async fn repository<T>(
    app: &App,
    request: Request,
    then: impl FnOnce(Repository<'_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let (head, body) = request.into_parts();
    form::check_media(&head.headers)?;
    let (body, _held) = body::read_little(&app.core, &head, body).await?;
    // It may be left out, unless it is said that there is JSON.
    let json = body::media_type(&head.headers)?.is_some_and(|media| media == "application/json");
    let asked = if body.is_empty() && !json {
        Repository::default()
    } else {
        form::check_object(&body)?;
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::malformed(format!("the body does not follow the protocol: {error}")))?
    };
    then(asked)
}

pub(super) async fn index(State(app): FromApp, caller: Caller, request: Request) -> Answer {
    let ready = repository(&app, request, |asked| {
        asked.parameters.map(form::values).transpose()?; // of no account, but what they are is said
        Ok(asked.ready)
    })
    .await?;
    let view: &View = &app.core.view_of(&caller);
    let entry = |entry: modelless_oip::messages::IndexEntry| json!({"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason});
    let all: Vec<Value> = about::index(view, ready).into_iter().map(entry).collect();
    Ok(json_response(StatusCode::OK, &all))
}

pub(super) async fn load(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(at): Named<At>,
    request: Request,
) -> Answer {
    let parameters = parameters(&app, request).await?;
    detail.say(of_version(&parameters).unwrap_or_default());
    residency::load(&app.core, &caller, &at.task, &parameters).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

pub(super) async fn unload(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(at): Named<At>,
    request: Request,
) -> Answer {
    let parameters = parameters(&app, request).await?;
    detail.say(of_version(&parameters).unwrap_or_default());
    residency::unload(&app.core, &caller, &at.task, &parameters).await?;
    Ok(json_response(StatusCode::OK, &json!({})))
}

/// The version that is loaded or unloaded, for whoever reads of it later.
pub(crate) fn of_version(parameters: &[(String, Parameter)]) -> Option<String> {
    parameters.iter().find_map(|(name, value)| match (name.as_str(), value) {
        ("version", Parameter::Text(version) | Parameter::Number(version)) => {
            Some(format!("version {}", noted(version)))
        }
        _ => None,
    })
}

async fn parameters(app: &App, request: Request) -> Result<Vec<(String, Parameter)>, ApiError> {
    let given =
        |asked: Repository<'_>| Ok(asked.parameters.map(form::values).transpose()?.unwrap_or_default());
    repository(app, request, given).await
}
