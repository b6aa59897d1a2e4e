//! What is told where nothing is served.

use super::{App, FromApp, ROUTES, openai};
use crate::errors::ApiError;
use crate::http::refusals::Slowly;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, Method, StatusCode, Uri};

/// A "no" in the shape that clients of that path read.
pub(crate) fn refused(path: &str, error: ApiError) -> Response {
    if path.starts_with("/openai/") {
        return openai::Refused::from(error).into_response();
    }
    error.into_response()
}

pub(super) async fn unknown_path(State(app): FromApp, headers: HeaderMap, uri: Uri) -> Response {
    let path = crate::suggest::excerpt(uri.path());
    let message = format!("there is nothing at {path}; /openapi.json says what there is");
    nowhere(&app, &headers, uri.path(), ApiError::not_found("unknown_path", message))
}

pub(super) async fn wrong_method(
    State(app): FromApp,
    headers: HeaderMap,
    method: Method,
    uri: Uri,
) -> Response {
    let here = ROUTES.iter().filter(|route| matches(route.path, uri.path()));
    let allow = here.map(|route| route.method.as_str()).collect::<Vec<_>>().join(", ");
    let message = format!("{} is not served here; {allow} is", crate::suggest::excerpt(method.as_str()));
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    nowhere(&app, &headers, uri.path(), ApiError { allow: Some(allow.into()), ..error })
}

/// No key is asked for where there is nothing, and who has none is told slowly where many look for a way in.
fn nowhere(app: &App, headers: &HeaderMap, path: &str, error: ApiError) -> Response {
    let mut response = refused(path, error);
    if !app.core.gate.knows(headers) {
        response.extensions_mut().insert(Slowly::DENIED);
    }
    response
}

pub(super) fn matches(template: &str, path: &str) -> bool {
    let (mut template, mut path) = (template.split('/'), path.split('/'));
    loop {
        match (template.next(), path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(part)) if wanted.starts_with('{') || wanted == part => {}
            _ => return false,
        }
    }
}
