//! What happened, for whoever asks now and then and for whoever follows it.

use super::{Answer, FromApp, Params, SHOWN_WITHIN};
use crate::errors::{ApiError, json_response};
use crate::show;
use axum::extract::State;
use http::{StatusCode, Uri};
use modelless_store::Event;
use serde_json::json;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

/// Events shown unless another number is asked for, and the most that can be.
pub(crate) const EVENTS: u32 = 100;
pub(crate) const EVENTS_MAX: u32 = 1_000;
/// The longest that one who follows may wait in one request.
pub(crate) const WAIT_MS_MAX: u32 = 30_000;
/// How often the store is asked for those who follow.
const LOOK: Duration = Duration::from_millis(250);
/// So many may follow at once; each asks the store.
static FOLLOWERS: Semaphore = Semaphore::const_new(32);

pub(super) async fn list(State(app): FromApp, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let after = match params.take("after") {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            let text = crate::suggest::excerpt(&text);
            ApiError::malformed(format!("after is {text}; expected the number of an event, or 0"))
        })?),
    };
    let limit = params.take_number("limit", 1, EVENTS_MAX)?.unwrap_or(EVENTS);
    let wait = params.take_number("wait_ms", 0, WAIT_MS_MAX)?.unwrap_or(0);
    params.finish(&["after", "limit", "wait_ms"])?;
    let until = Instant::now() + Duration::from_millis(u64::from(wait));
    let _follows = match wait {
        0 => None,
        _ => Some(FOLLOWERS.try_acquire().map_err(|_| {
            let message = "too many follow events already; ask without `wait_ms`, or later";
            ApiError::unavailable("queue_full", message)
        })?),
    };
    let events: Vec<Event> = loop {
        let events = app.store.events(after, limit).await?;
        let over = Instant::now() >= until || app.core.is_leaving() || app.core.is_draining();
        if !events.is_empty() || over {
            break events;
        }
        sleep(LOOK).await;
    };
    let view = app.core.view();
    let unknown = |event: &Event| event.about.node.is_some_and(|node| view.node(node).is_none());
    let stored = if events.iter().any(unknown) {
        timeout(SHOWN_WITHIN, app.store.nodes()).await.ok().and_then(Result::ok).unwrap_or_default()
    } else {
        Vec::new()
    };
    let last = events.last().map_or(after.unwrap_or(0), |event| event.seq);
    let shown: Vec<_> = events.iter().map(|event| show::event(&view, &stored, event)).collect();
    Ok(json_response(StatusCode::OK, &json!({"events": shown, "last": last})))
}
