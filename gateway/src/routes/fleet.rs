//! Nodes and replicas as they are, and what happened to replicas lately.

use super::{Answer, FromApp, Params};
use crate::errors::json_response;
use crate::show;
use axum::extract::State;
use http::{StatusCode, Uri};
use serde_json::json;

/// Transitions shown unless another number is asked for.
pub(crate) const TRANSITIONS: u32 = 100;
/// The most that can be asked for.
pub(crate) const TRANSITIONS_MAX: u32 = 1_000;

pub(super) async fn nodes(State(app): FromApp) -> Answer {
    let view = app.core.view();
    let stored = app.store.nodes().await?;
    Ok(json_response(StatusCode::OK, &json!({"nodes": show::nodes(&view, &stored, &app.core.members())})))
}

pub(super) async fn members(State(app): FromApp) -> Answer {
    let (view, members) = (app.core.view(), app.core.members());
    let body = json!({"members": show::members(&view, &members), "demand": show::demand(&view, &members)});
    Ok(json_response(StatusCode::OK, &body))
}

pub(super) async fn replicas(State(app): FromApp, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let limit = params.take_number("transitions", 0, TRANSITIONS_MAX)?.unwrap_or(TRANSITIONS);
    params.finish(&["transitions"])?;
    let view = app.core.view();
    let transitions = app.store.transitions(None, limit).await?;
    let body = json!({
        "replicas": show::replicas(&view),
        "transitions": transitions.iter().map(|transition| show::transition(&view, transition)).collect::<Vec<_>>(),
    });
    Ok(json_response(StatusCode::OK, &body))
}
