//! Server-sent events: what happens, told over one answer that goes on.
//!
//! Whoever reads is one of few, is told that the other end lives, and is sent off after a while or when this gateway goes; a
//! browser's `EventSource` comes back by itself, with the number of the last that it saw.

use crate::core::Core;
use crate::errors::ApiError;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes as Buffer;
use futures_util::stream::unfold;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

pub(crate) const MEDIA: &str = "text/event-stream";
/// The longest that one answer goes on.
pub(crate) const GOES_ON: Duration = Duration::from_mins(10);
/// How long nothing may come before a sign of life does: proxies take a silent connection for a dead one.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// How often is looked for something new, and for the end of this gateway.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// So many operators may follow something at once, and so many of tenants.
static FOLLOWERS: Semaphore = Semaphore::const_new(32);
static FOLLOWERS_OF_TENANTS: Semaphore = Semaphore::const_new(32);

/// A place among those who follow.
pub(super) fn place(operator: bool) -> Result<SemaphorePermit<'static>, ApiError> {
    let places = if operator { &FOLLOWERS } else { &FOLLOWERS_OF_TENANTS };
    places.try_acquire().map_err(|_| too_many())
}

pub(super) fn too_many() -> ApiError {
    let message = "too many follow what happens already; ask without waiting, or later";
    ApiError::unavailable("queue_full", message)
}

/// Whether the client asks for events as they happen.
pub(super) fn wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|media| media.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case(MEDIA)))
}

/// To a client that would wait for the end of an answer that has none.
pub(super) fn not_wanted() -> ApiError {
    let message = format!("what happens is told here by server-sent events; ask with `Accept: {MEDIA}`");
    ApiError::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", message)
}

/// One event, as a browser reads it. JSON has no line's end in it.
pub(super) fn frame(text: &mut String, number: Option<u64>, data: &Value) {
    if let Some(number) = number {
        let _ = writeln!(text, "id: {number}");
    }
    let _ = write!(text, "data: {data}\n\n");
}

/// Where what is told comes from.
pub(super) trait Source: Send + 'static {
    fn core(&self) -> &Core;

    /// What has come within about [`LOOK`], as frames; nothing if nothing has, `None` if nothing will.
    fn next(&mut self) -> impl Future<Output = Option<String>> + Send;
}

struct Told<S> {
    source: S,
    until: Instant,
    silent_since: Instant,
    begun: bool,
    _place: SemaphorePermit<'static>,
}

impl<S: Source> Told<S> {
    async fn piece(&mut self) -> Option<String> {
        if !std::mem::replace(&mut self.begun, true) {
            // At once, so that the client sees that it is heard; and when to come back once this has ended.
            return Some("retry: 1000\n\n".to_owned());
        }
        loop {
            let core = self.source.core();
            if core.is_leaving() || core.is_draining() || Instant::now() >= self.until {
                return None;
            }
            let text = self.source.next().await?;
            if !text.is_empty() {
                return Some(text);
            }
            if self.silent_since.elapsed() >= SIGN_OF_LIFE {
                return Some(":\n\n".to_owned());
            }
        }
    }
}

pub(super) fn answer(place: SemaphorePermit<'static>, source: impl Source) -> Response {
    let now = Instant::now();
    let told = Told { source, until: now + GOES_ON, silent_since: now, begun: false, _place: place };
    let pieces = unfold(told, |mut told| async move {
        let text = told.piece().await?;
        told.silent_since = Instant::now();
        Some((Ok::<_, Infallible>(Buffer::from(text)), told))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // What nginx would keep back otherwise.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
