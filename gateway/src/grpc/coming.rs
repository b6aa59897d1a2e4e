//! A call's message while it comes: counted as it does, bounded, and in time.
//!
//! `tonic` gathers a message whole before anybody sees it. What is gathered counts as held memory like any body that HTTP brings, so calls
//! together never hold more than bodies may, and none of them waits for ever.

use super::service::status;
use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::http::body::Holding;
use crate::routes::Shared;
use axum::body::HttpBody;
use bytes::Bytes as Buffer;
use http::StatusCode;
use hyper::body::{Frame, SizeHint};
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

/// What has come of a message that nobody has yet.
pub(super) struct Gathered(Mutex<State>);

struct State {
    holding: Holding<Arc<Core>>,
    bytes: u64,
    /// When its first bytes came.
    since: Option<Instant>,
}

impl Gathered {
    fn of(app: &Shared, caller: &Caller) -> Arc<Self> {
        let holding = Holding::new(Arc::clone(&app.core), caller.clone());
        Arc::new(Self(Mutex::new(State { holding, bytes: 0, since: None })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has the message: what comes from now on is the next one's.
    pub(super) fn taken(&self) {
        let mut state = self.state();
        state.holding.clear();
        (state.bytes, state.since) = (0, None);
    }

    fn add(&self, bytes: usize, limit: u64, now: Instant) -> Result<(), ApiError> {
        let mut state = self.state();
        state.since.get_or_insert(now);
        state.bytes += bytes as u64;
        if state.bytes > limit {
            return Err(ApiError::too_large(limit));
        }
        state.holding.add(bytes)
    }
}

/// A call's body on its way to `tonic`.
pub(super) struct Coming {
    body: Body,
    gathered: Arc<Gathered>,
    limit: u64,
    within: Duration,
    alarm: Pin<Box<Sleep>>,
}

impl Coming {
    /// With what counts it. A message may have so many bytes.
    pub(super) fn counted(body: Body, app: &Shared, caller: &Caller, limit: u64) -> (Body, Arc<Gathered>) {
        let gathered = Gathered::of(app, caller);
        let within = app.core.config.body_timeout();
        let alarm = Box::pin(sleep(within));
        let coming = Self { body, gathered: Arc::clone(&gathered), limit, within, alarm };
        (Body::new(coming), gathered)
    }
}

impl HttpBody for Coming {
    type Data = Buffer;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Buffer>, Status>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
            if let Some(data) = frame.data_ref()
                && let Err(error) = this.gathered.add(data.len(), this.limit, Instant::now())
            {
                return Poll::Ready(Some(Err(status(&error))));
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        // Between two messages of a stream nothing is due.
        let Some(since) = this.gathered.state().since else { return Poll::Pending };
        let due = since + this.within;
        if this.alarm.deadline() != due {
            this.alarm.as_mut().reset(due);
        }
        if this.alarm.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let message = format!("the message was not here within {} s", this.within.as_secs_f64());
        let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message);
        Poll::Ready(Some(Err(status(&error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
