//! One connection: hyper's HTTP/1.1 with the time limits that it does not have, and a close that loses no answer.
//!
//! A head must be complete soon after its first byte, while between requests a connection may rest for long. And a
//! refusal that goes out before the request was read whole must not be lost: closing a socket with unread input
//! resets it, which can throw away what the other side has not read yet. So the end is said first, and what still
//! comes is read and thrown away for a moment.

use crate::config::Config;
use crate::errors::ApiError;
use crate::http::places::Places;
use crate::http::refusals::Refusals;
use crate::regions::Ends;
use crate::routes::{EVENT_STREAM, GOES_ON};
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// A head that is not complete after so long comes slowly.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// How long what still comes is read after the end was said.
const LINGER: Duration = Duration::from_secs(1);

/// Where a connection leads, and what it shares with others.
pub(super) struct Way {
    pub(super) router: Router,
    pub(super) ends: Option<Ends>,
    pub(super) refusals: Arc<Refusals>,
    /// Places for heads that come slowly, and from where this one does.
    pub(super) slow: Option<(Arc<Places>, IpAddr)>,
}

impl Way {
    #[cfg(test)]
    pub(super) fn to(router: Router) -> Self {
        Self { router, ends: None, refusals: Arc::default(), slow: None }
    }
}

/// Where a connection stands, and how often that has changed. Only its own task touches it.
struct Phase(AtomicU32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Between requests.
    Idle = 0,
    /// A head has begun.
    Head = 1,
    /// A request is being answered.
    Busy = 2,
    /// An answer goes on: one that tells events as they happen.
    Telling = 3,
}

impl Phase {
    fn now(&self) -> (At, u32) {
        let word = self.0.load(Ordering::Relaxed);
        let at = match word & 3 {
            0 => At::Idle,
            1 => At::Head,
            2 => At::Busy,
            _ => At::Telling,
        };
        (at, word >> 2)
    }

    fn set(&self, at: At) {
        let changes = (self.0.load(Ordering::Relaxed) >> 2).wrapping_add(1);
        self.0.store(changes << 2 | at as u32, Ordering::Relaxed);
    }
}

/// A stream that notices when a head begins, and lingers when it is closed.
struct Watched<S> {
    stream: S,
    phase: Arc<Phase>,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before && this.phase.now().0 == At::Idle {
            this.phase.set(At::Head);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let until = this.lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut thrown_away = [0; 4096];
        // Some at a time, so that a client that never stops sending cannot keep this task to itself.
        for _ in 0..64 {
            let mut buffer = ReadBuf::new(&mut thrown_away);
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Hands requests to the routes.
struct Entrance {
    router: Router,
    /// Told to the routes, where they look who asks.
    ends: Option<Ends>,
    phase: Arc<Phase>,
    leaving: Arc<AtomicBool>,
    refusals: Arc<Refusals>,
    max_header_bytes: usize,
}

impl hyper::service::Service<Request<Incoming>> for Entrance {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.phase.set(At::Busy);
        let phase = Arc::clone(&self.phase);
        // hyper counts a head only while it comes in pieces.
        if head_bytes(&request) > self.max_header_bytes {
            let error = head_too_large(self.max_header_bytes);
            return Box::pin(async move {
                phase.set(At::Idle);
                Ok(error.into_response())
            });
        }
        let mut request = request.map(Body::new);
        if let Some(ends) = self.ends {
            request.extensions_mut().insert(ends);
        }
        let answer = self.router.clone().call(request);
        let (leaving, refusals) = (Arc::clone(&self.leaving), Arc::clone(&self.refusals));
        Box::pin(async move {
            let mut answer = answer.await;
            if let Ok(answer) = &answer {
                refusals.tell(answer.extensions()).await;
            }
            let tells = answer.as_ref().is_ok_and(tells);
            // It ends the connection, and a client that stops reading is not waited for longer than one that reads.
            phase.set(if tells { At::Telling } else { At::Idle });
            if (tells || leaving.load(Ordering::Relaxed))
                && let Ok(answer) = &mut answer
            {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        })
    }
}

/// Whether an answer goes on, telling events as they happen.
pub(super) fn tells(answer: &Response) -> bool {
    answer.headers().get(CONTENT_TYPE).is_some_and(|media| media == EVENT_STREAM)
}

fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let line = uri.path().len() + uri.query().map_or(0, str::len);
    // `: ` and the line's end come to four bytes.
    line + request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
}

pub(super) fn head_too_large(limit: usize) -> ApiError {
    let message =
        format!("the request's first line and headers are longer than {limit} bytes, which is the limit");
    ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message)
}

/// Serves a connection until either side ends it. After `stop`, the request at hand is finished and no other read.
/// While `leaving`, every answer asks the client to go elsewhere with its next request.
pub(super) async fn serve<S>(
    stream: S,
    way: Way,
    config: &Config,
    leaving: Arc<AtomicBool>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Whoever connects is about to ask: the first head has begun.
    let phase = Arc::new(Phase(AtomicU32::new(At::Head as u32)));
    let watched = Watched { stream, phase: Arc::clone(&phase), lingering: None };
    let max_header_bytes = config.max_header_bytes;
    let Way { router, ends, refusals, slow } = way;
    let entrance = Entrance { router, ends, phase: Arc::clone(&phase), leaving, refusals, max_header_bytes };
    let mut connection = pin!(
        http1::Builder::new()
            .max_headers(config.max_headers)
            .max_header_size(config.max_header_bytes)
            .header_read_timeout(None) // ours, below, knows idle connections from slow heads
            .serve_connection(TokioIo::new(watched), entrance)
    );
    let mut stop = pin!(stop.cancelled_owned());
    let (mut stopping, mut slowly) = (false, None);
    let (mut seen, mut since) = (phase.now().1, Instant::now());
    let mut alarm = pin!(sleep(config.header_timeout()));
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(end) = connection.as_mut().poll(cx) {
                if let Err(error) = end {
                    tracing::debug!(%error, "a connection ended");
                }
                return Poll::Ready(());
            }
            if !stopping && stop.as_mut().poll(cx).is_ready() {
                stopping = true;
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let (at, changes) = phase.now();
            if changes != seen {
                (seen, since) = (changes, Instant::now());
            }
            if at != At::Head {
                slowly = None;
            } else if slowly.is_none()
                && since.elapsed() >= SLOW_AFTER
                && let Some((places, from)) = &slow
            {
                slowly = places.take(*from);
                if slowly.is_none() {
                    tracing::debug!("a connection was closed: too many heads from its address come slowly");
                    return Poll::Ready(());
                }
            }
            let undecided = at == At::Head && slowly.is_none() && slow.is_some();
            let due = match at {
                At::Busy => return Poll::Pending,
                // Who says nothing at all wakes nobody either.
                At::Head if undecided => since + SLOW_AFTER.min(config.header_timeout()),
                At::Head => since + config.header_timeout(),
                At::Idle => since + config.idle_timeout(),
                At::Telling => since + GOES_ON + config.idle_timeout(),
            };
            // An alarm that is set too early costs one wake now and then; setting it anew each time costs more.
            if alarm.is_elapsed() || due < alarm.deadline() {
                alarm.as_mut().reset(due);
            }
            ready!(alarm.as_mut().poll(cx));
            if Instant::now() >= due && !(undecided && since.elapsed() < config.header_timeout()) {
                tracing::debug!(?at, "a connection was closed because nothing came");
                return Poll::Ready(());
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests;
