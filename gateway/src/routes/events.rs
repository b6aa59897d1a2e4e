//! What happened, for whoever asks now and then and for whoever follows it.

use super::{Answer, FromApp, Params, SHOWN_WITHIN, Shared, stream};
use crate::core::Core;
use crate::errors::{ApiError, json_response};
use crate::show;
use axum::extract::State;
use http::{HeaderMap, StatusCode, Uri};
use modelless_store::Event;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Events shown unless another number is asked for, and the most that can be.
pub(crate) const EVENTS: u32 = 100;
pub(crate) const EVENTS_MAX: u32 = 1_000;
/// The longest that one who follows may wait in one request.
pub(crate) const WAIT_MS_MAX: u32 = 30_000;
/// What a browser says when it comes back: the number of the last event that it saw.
const LAST: &str = "last-event-id";

pub(super) async fn list(State(app): FromApp, uri: Uri, headers: HeaderMap) -> Answer {
    let mut params = Params::of(&uri)?;
    let after = params.take("after").map(|text| number("after", &text)).transpose()?;
    let limit = params.take_number("limit", 1, EVENTS_MAX)?.unwrap_or(EVENTS);
    let wait = params.take_number("wait_ms", 0, WAIT_MS_MAX)?.unwrap_or(0);
    params.finish(&["after", "limit", "wait_ms"])?;
    if stream::wanted(&headers) {
        let last =
            headers.get(LAST).map(|last| number(LAST, last.to_str().unwrap_or_default())).transpose()?;
        let place = stream::place(true)?;
        return Ok(stream::answer(place, Followed { app, after: last.or(after), limit }));
    }
    let until = Instant::now() + Duration::from_millis(u64::from(wait));
    let _follows = match wait {
        0 => None,
        _ => Some(stream::place(true)?),
    };
    let events: Vec<Event> = loop {
        let events = app.store.events(after, limit).await?;
        let over = Instant::now() >= until || app.core.is_leaving() || app.core.is_draining();
        if !events.is_empty() || over {
            break events;
        }
        sleep(stream::LOOK).await;
    };
    let last = events.last().map_or(after.unwrap_or(0), |event| event.seq);
    let shown = shown(&app, &events).await;
    Ok(json_response(StatusCode::OK, &json!({"events": shown, "last": last})))
}

fn number(what: &str, text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        let text = crate::suggest::excerpt(text);
        ApiError::malformed(format!("{what} is {text}; expected the number of an event, or 0"))
    })
}

async fn shown(app: &Shared, events: &[Event]) -> Vec<Value> {
    let view = app.core.view();
    let unknown = |event: &Event| event.about.node.is_some_and(|node| view.node(node).is_none());
    let stored = if events.iter().any(unknown) {
        timeout(SHOWN_WITHIN, app.store.nodes()).await.ok().and_then(Result::ok).unwrap_or_default()
    } else {
        Vec::new()
    };
    events.iter().map(|event| show::event(&view, &stored, event)).collect()
}

/// For one who follows by an answer that goes on.
struct Followed {
    app: Shared,
    after: Option<u64>,
    limit: u32,
}

impl stream::Source for Followed {
    fn core(&self) -> &Core {
        &self.app.core
    }

    async fn next(&mut self) -> Option<String> {
        // The client comes back, and is then told why if the store is still away.
        let asked = self.app.store.events(self.after, self.limit);
        let events = timeout(SHOWN_WITHIN, asked).await.ok()?.ok()?;
        let Some(last) = events.last() else {
            // From now on, where there was nothing yet.
            self.after.get_or_insert(0);
            sleep(stream::LOOK).await;
            return Some(String::new());
        };
        self.after = Some(last.seq);
        let mut text = String::new();
        for (event, shown) in events.iter().zip(shown(&self.app, &events).await) {
            stream::frame(&mut text, Some(event.seq), &shown);
        }
        Some(text)
    }
}
