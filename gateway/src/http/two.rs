//! One connection by HTTP/2, which clients can agree upon in a TLS greeting: many requests side by side, the same limits for each.

use crate::config::Config;
use crate::http::connection::{Way, head_too_large, tells};
use crate::http::refusals::Refusals;
use crate::regions::Ends;
use crate::routes::GOES_ON;
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// Requests that are open at one time on one connection.
const STREAMS: u32 = 128;
/// A connection that says nothing is asked whether it lives, and closed when it does not say so.
const PING_AFTER: Duration = Duration::from_mins(1);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// How long a client has to say goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

/// How many requests have come on a connection and how many have ended.
#[derive(Default)]
struct Counts {
    came: AtomicU64,
    ended: AtomicU64,
    /// Answers at hand that go on.
    telling: AtomicU64,
}

/// An answer that goes on, until nobody waits for it any longer.
struct Telling(Arc<Counts>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.telling.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request at hand; it ends also when nobody waits for its answer any longer.
struct AtHand(Arc<Counts>);

impl Drop for AtHand {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hands requests to the routes.
struct Entrance {
    router: Router,
    ends: Option<Ends>,
    counts: Arc<Counts>,
    refusals: Arc<Refusals>,
    max_headers: usize,
    max_header_bytes: usize,
}

impl hyper::service::Service<Request<Incoming>> for Entrance {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.counts.came.fetch_add(1, Ordering::Relaxed);
        let at_hand = AtHand(Arc::clone(&self.counts));
        if request.headers().len() > self.max_headers {
            let error = head_too_large(self.max_header_bytes);
            return Box::pin(async move {
                let _at_hand = at_hand;
                Ok(error.into_response())
            });
        }
        let mut request = request.map(Body::new);
        if let Some(ends) = self.ends {
            request.extensions_mut().insert(ends);
        }
        let answer = self.router.clone().call(request);
        let refusals = Arc::clone(&self.refusals);
        Box::pin(async move {
            let answer = answer.await?;
            refusals.tell(answer.extensions()).await;
            if !tells(&answer) {
                return Ok(answer);
            }
            // At hand as long as it goes on.
            at_hand.0.telling.fetch_add(1, Ordering::Relaxed);
            let telling = Telling(Arc::clone(&at_hand.0));
            Ok(answer.map(|body| {
                Body::from_stream(body.into_data_stream().map(move |piece| {
                    let _at_hand = (&at_hand, &telling);
                    piece
                }))
            }))
        })
    }
}

/// Serves a connection until either side ends it. After `stop`, or while `leaving`, requests at hand are finished and the client is told
/// to ask elsewhere.
pub(super) async fn serve<S>(
    stream: S,
    Way { router, ends, refusals, .. }: Way,
    config: &Config,
    leaving: Arc<AtomicBool>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let counts = Arc::new(Counts::default());
    let (max_headers, max_header_bytes) = (config.max_headers, config.max_header_bytes);
    let entrance =
        Entrance { router, ends, counts: Arc::clone(&counts), refusals, max_headers, max_header_bytes };
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(max_header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PONG_WITHIN)
            .serve_connection(TokioIo::new(stream), entrance)
    );
    let mut stop = pin!(stop.cancelled_owned());
    let (mut seen, mut since) = ((0, 0), Instant::now());
    let mut alarm = pin!(sleep(config.header_timeout()));
    let mut ending = false;
    let mut telling_since = None;
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(end) = connection.as_mut().poll(cx) {
                if let Err(error) = end {
                    tracing::debug!(%error, "a connection ended");
                }
                return Poll::Ready(());
            }
            if !ending && (leaving.load(Ordering::Relaxed) || stop.as_mut().poll(cx).is_ready()) {
                // It has a moment to say goodbye from now on, however long it has been idle.
                (ending, since) = (true, Instant::now());
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let now = (counts.came.load(Ordering::Relaxed), counts.ended.load(Ordering::Relaxed));
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            // Of a client that does not read, nothing else is looked at: its answer would go on for ever.
            let tells = counts.telling.load(Ordering::Relaxed) > 0;
            telling_since = telling_since.filter(|_| tells).or_else(|| tells.then(Instant::now));
            let followed = telling_since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
            if followed >= GOES_ON + config.idle_timeout() {
                tracing::debug!("a connection is closed because it did not end what it follows");
                return Poll::Ready(());
            }
            let idle = now.0 == now.1;
            // Whoever connects is about to ask. Later a head that does not come to its end counts as none.
            let patience = match (ending, now.0) {
                (true, _) => FAREWELL,
                (false, 0) => config.header_timeout(),
                (false, _) => config.idle_timeout(),
            };
            let due = if idle { since + patience } else { Instant::now() + config.idle_timeout() };
            if idle && Instant::now() >= due {
                if ending {
                    return Poll::Ready(());
                }
                tracing::debug!("a connection is closed because nothing came");
                // Said first, so that a request that crosses this is asked again instead of lost.
                (ending, since) = (true, Instant::now());
                connection.as_mut().graceful_shutdown();
                continue;
            }
            // An alarm that rings too early costs one wake now and then; one that is set with each request costs more.
            if alarm.is_elapsed() || (idle && due < alarm.deadline()) {
                alarm.as_mut().reset(due);
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::EVENT_STREAM;
    use axum::routing::get;
    use futures_util::stream;
    use http::header::CONTENT_TYPE;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinSet;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const ACK: u8 = 1;
    const END_STREAM_AND_HEADERS: u8 = 5;

    /// A client that does only what a test has it do: it never makes room for more of an answer.
    struct Client {
        stream: DuplexStream,
        _server: JoinSet<()>,
    }

    impl Client {
        /// Connected, with a request for `/` under way.
        async fn asking(router: Router, stop: CancellationToken) -> Self {
            let (near, far) = duplex(1 << 20);
            let mut server = JoinSet::new();
            server.spawn(async move {
                serve(far, Way::to(router), &Config::default(), Arc::default(), stop).await;
            });
            let mut client = Self { stream: near, _server: server };
            client.stream.write_all(PREFACE).await.unwrap();
            client.send(SETTINGS, 0, 0, &[]).await;
            // GET, http and `/` by their numbers in the table of names.
            client.send(HEADERS, END_STREAM_AND_HEADERS, 1, &[0x82, 0x86, 0x84]).await;
            client
        }

        async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
            let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
            frame.extend([kind, flags]);
            frame.extend(stream.to_be_bytes());
            frame.extend(payload);
            // Whoever has gone takes nothing any more.
            self.stream.write_all(&frame).await.ok();
        }

        /// The next frame, pings answered: its kind and what is in it. `None` once the connection is closed.
        async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(len).unwrap()];
            self.stream.read_exact(&mut payload).await.ok()?;
            if head[3] == PING && head[4] & ACK == 0 {
                self.send(PING, ACK, 0, &payload).await;
            }
            Some((head[3], payload))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_idle_when_its_gateway_stops_is_told_what_was_taken_from_it() {
        let stop = CancellationToken::new();
        let router = Router::new().route("/", get(|| async { "here" }));
        let mut client = Client::asking(router, stop.clone()).await;
        while client.next().await.expect("an answer") != (0, b"here".to_vec()) {}
        // Longer than a goodbye takes, shorter than whoever says nothing is borne with.
        sleep(30 * FAREWELL).await;
        stop.cancel();
        let mut last = None;
        while let Some((kind, payload)) = client.next().await {
            if kind == GOAWAY {
                last = Some(u32::from_be_bytes(payload[..4].try_into().unwrap()));
            }
        }
        assert_eq!(
            last,
            Some(1),
            "the first goodbye leaves open what was taken; the second, after an answered ping, tells"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_follows_and_does_not_read_is_cut_off_though_its_pings_are_answered() {
        let follow = || async {
            let pieces = stream::repeat(Ok::<_, Infallible>(vec![b'.'; 16_384]));
            ([(CONTENT_TYPE, EVENT_STREAM)], Body::from_stream(pieces))
        };
        let router = Router::new().route("/", get(follow));
        let mut client = Client::asking(router, CancellationToken::new()).await;
        let began = Instant::now();
        let mut pings = 0;
        while let Some((kind, _)) = client.next().await {
            pings += u32::from(kind == PING);
        }
        let allowed = GOES_ON + Config::default().idle_timeout();
        let lasted = began.elapsed();
        assert!(pings > 5, "it was asked whether it lives {pings} times");
        assert!(lasted >= allowed && lasted < allowed + PING_AFTER, "{lasted:?} of {allowed:?}");
    }
}
