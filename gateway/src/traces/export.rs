//! Sends spans to a collector: some at a time, again where that may help, and never more than are worth waiting for.

use super::config::{Headers, Target, TracesConfig};
use super::connect::Outgoing;
use super::otlp::{self, Answered};
use super::spans::Spans;
use bytes::Bytes as Buffer;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use modelless_telemetry::TraceMetrics;
use prost::Message as _;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Queries in one message, and how long the first of them waits for others.
const TOGETHER: usize = 256;
const WITHIN: Duration = Duration::from_secs(1);
/// One attempt, from connecting to the answer's end.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Waits between attempts; a collector may ask for longer ones.
const AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
const LONGEST: Duration = Duration::from_secs(30);
/// What is left when the gateway ends has so long.
const LAST: Duration = Duration::from_secs(2);
const ANSWER_BYTES: usize = 64 << 10;

/// Sends what [`super::Traces`] takes in.
pub(crate) struct Exporter {
    target: Target,
    outgoing: Outgoing,
    headers: Headers,
    resource: Vec<(String, String)>,
    from: mpsc::Receiver<Spans>,
    metrics: TraceMetrics,
    /// Whether the last message got through, so that the log tells of changes only.
    well: bool,
}

/// What a message came to.
enum Came {
    Taken,
    /// Later, perhaps.
    Later(String, Option<Duration>),
    /// Never.
    No(String),
}

impl Exporter {
    pub(super) fn new(
        config: &TracesConfig,
        target: Target,
        from: mpsc::Receiver<Spans>,
        metrics: TraceMetrics,
    ) -> Result<Self, String> {
        let outgoing = Outgoing::new(target.tls, &target.host, config.ca.as_deref())?;
        let (headers, resource) = (config.headers.clone(), config.resource()?);
        Ok(Self { target, outgoing, headers, resource, from, metrics, well: true })
    }

    /// Until `stop`, and then what is left.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut some = Vec::with_capacity(TOGETHER);
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                first = self.from.recv() => first,
            };
            let Some(first) = first else { return };
            some.push(first);
            let collected = timeout(WITHIN, async {
                while some.len() < TOGETHER {
                    let Some(next) = self.from.recv().await else { return };
                    some.push(next);
                }
            });
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = collected => {}
            }
            let cut = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST).await;
            };
            let sent = tokio::select! {
                biased;
                () = self.send(&some) => true,
                () = cut => false,
            };
            if !sent {
                self.metrics.dropped_unreachable(some.len());
            }
            some.clear();
        }
        self.end(some).await;
    }

    /// Sends what is left, once.
    async fn end(mut self, mut some: Vec<Spans>) {
        while let Ok(next) = self.from.try_recv() {
            some.push(next);
        }
        let until = tokio::time::Instant::now() + LAST;
        for some in some.chunks(TOGETHER) {
            match tokio::time::timeout_at(until, self.attempt(some)).await {
                Ok(Came::Taken) => self.metrics.sent(some.len()),
                Ok(Came::No(_)) => self.metrics.dropped_refused(some.len()),
                Ok(Came::Later(..)) | Err(_) => self.metrics.dropped_unreachable(some.len()),
            }
        }
    }

    async fn send(&mut self, some: &[Spans]) {
        let mut waits = AGAIN.into_iter();
        loop {
            let why = match self.attempt(some).await {
                Came::Taken => {
                    if !self.well {
                        self.well = true;
                        tracing::info!("traces are taken again");
                    }
                    return self.metrics.sent(some.len());
                }
                Came::Later(why, wait) => {
                    if let Some(usual) = waits.next() {
                        tokio::time::sleep(wait.unwrap_or(usual).min(LONGEST)).await;
                        continue;
                    }
                    self.metrics.dropped_unreachable(some.len());
                    why
                }
                Came::No(why) => {
                    self.metrics.dropped_refused(some.len());
                    why
                }
            };
            if self.well {
                self.well = false;
                let to = &self.target.authority;
                tracing::warn!(to, why, "traces are lost; it is said again when they are taken");
            }
            return;
        }
    }

    async fn attempt(&self, some: &[Spans]) -> Came {
        let body = Buffer::from(otlp::encode(some, &self.resource));
        match timeout(ATTEMPT, self.exchange(body)).await {
            Err(_) => Came::Later("no answer in time".to_owned(), None),
            Ok(Err(why)) => Came::Later(why, None),
            Ok(Ok((head, body))) => judge(&head, &body),
        }
    }

    /// A connection for each message: there is one a second at most.
    async fn exchange(&self, body: Buffer) -> Result<(Response<()>, Buffer), String> {
        let Target { host, port, authority, path, .. } = &self.target;
        let socket = self.outgoing.connect(host, *port).await?;
        let failed = |error: hyper::Error| error.to_string();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(failed)?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(USER_AGENT, concat!("modelless/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.headers.0 {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        let asked = async {
            let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| error.to_string())?;
            Ok((Response::from_parts(head, ()), body.to_bytes()))
        };
        let mut asked = std::pin::pin!(asked);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            answer = &mut asked => answer,
            // It may end together with the answer.
            _ = &mut connection => asked.await,
        }
    }
}

/// As the protocol has it: some refusals mean later.
fn judge(head: &Response<()>, body: &[u8]) -> Came {
    let status = head.status();
    if status.is_success() {
        if let Ok(Answered { partial: Some(partial) }) = Answered::decode(body)
            && partial.rejected > 0
        {
            tracing::warn!(spans = partial.rejected, why = shortened(&partial.why), "spans were refused");
        }
        return Came::Taken;
    }
    let why = format!("status {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let wait = head.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            Came::Later(why, wait.map(Duration::from_secs))
        }
        _ => Came::No(why),
    }
}

/// Somebody else's words in a log.
fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
