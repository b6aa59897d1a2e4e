//! Whether it lives, whether it is ready, what it counts, and what it serves.

use super::{Answer, FromApp};
use crate::errors::{json_response, raw_json};
use crate::gauges::{gauges, machines, shares};
use axum::extract::State;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use modelless_telemetry::Told;
use serde_json::json;

/// It answers, so it lives: draining or not.
pub(super) async fn live() -> Response {
    json_response(StatusCode::OK, &json!({"live": true}))
}

pub(super) async fn ready(State(app): FromApp) -> Response {
    match app.core.unready() {
        None => json_response(StatusCode::OK, &json!({"ready": true, "live": true})),
        Some(why) => {
            let body = json!({"ready": false, "live": true, "error": why, "reason": "not_ready"});
            json_response(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    }
}

pub(super) async fn metrics(State(app): FromApp) -> Response {
    let looked = app.core.driver.look(|router, now| (router.waiting(), router.open(), router.standings(now)));
    let (waiting, open, standings) = looked;
    app.core.metrics.set_open(u64::from(waiting), open as u64);
    let machines = machines(&*app.store).await;
    let view = app.core.view();
    let now = Told {
        nodes: &gauges(&view, |node| app.core.pending.at(node)),
        machines: machines.as_deref(),
        trials: &app.core.trials.gauges(&view),
        shares: &shares(&view, &standings, |of| app.core.gate.app_names(of)),
    };
    let mut response = Response::new(axum::body::Body::from(app.core.metrics.told(&now)));
    let media = HeaderValue::from_static(modelless_telemetry::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

pub(super) async fn openapi(State(app): FromApp) -> Answer {
    Ok(raw_json(StatusCode::OK, app.openapi.clone()))
}
