//! Triton's settings of tracing and of the log over HTTP. What they mean stands in [`crate::oip::settings`].

use super::{Answer, App, FromApp, Named};
use crate::access::Caller;
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::oip::{json as form, settings};
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

/// What a path names, if anything.
#[derive(Deserialize)]
pub(super) struct At {
    #[serde(default)]
    task: Option<String>,
}

/// Whether there is the task, if one is named.
fn check(app: &App, caller: &Caller, at: &At) -> Result<(), ApiError> {
    let view = app.core.view_of(caller);
    at.task.as_ref().map_or(Ok(()), |task| view.task(task).map(|_| ()))
}

fn none() -> Response {
    json_response(StatusCode::OK, &json!({}))
}

pub(super) async fn show(State(app): FromApp, caller: Caller, Named(at): Named<At>) -> Answer {
    check(&app, &caller, &at)?;
    Ok(none())
}

pub(super) async fn change(
    State(app): FromApp,
    caller: Caller,
    Named(at): Named<At>,
    request: Request,
) -> Answer {
    check(&app, &caller, &at)?;
    let (head, body) = request.into_parts();
    form::check_media(&head.headers)?;
    let (body, _held) = body::read_little(&app.core, &head, body).await?;
    // It may be left out, unless it is said that there is JSON.
    let json = body::media_type(&head.headers)?.is_some_and(|media| media == "application/json");
    if json || !body.is_empty() {
        let changes = settings::changes(&body);
        settings::unset(changes.map_err(|error| caller.unread(app.core.driver.clock().now(), error))?)?;
    }
    Ok(none())
}
