//! Accepting connections, up to a bound.

use super::connection::{self, Way};
use super::places::Places;
use super::two;
use crate::access::Bucket;
use crate::core::Core;
use crate::door::Door;
use crate::regions::Ends;
use crate::tls::{Greeting, Tls, speaks_h2};
use axum::Router;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// After an accept that failed (no file descriptor left), others get a moment to close theirs.
const PAUSE: Duration = Duration::from_millis(50);
/// How long connections have to end after the stop.
const LAST: Duration = Duration::from_secs(2);

/// One in so many of an address's connections may send its head slowly.
const SLOW_PART: usize = 10;
/// Connections that are turned away and told why: one in so many microseconds, and so many at once.
const TOLD_EVERY_US: u64 = 10_000;
const TOLD_AT_ONCE: u64 = 100;

const FULL: &str =
    r#"{"error":"this gateway has as many connections as it takes","reason":"too_many_connections"}"#;
const FULL_FOR_YOU: &str = r#"{"error":"this gateway has as many connections of your address as it takes","reason":"too_many_connections"}"#;

/// Serves until stopped, then lets requests at hand finish.
pub(crate) async fn serve(
    (mut door, tls): (Door, Option<Tls>),
    router: Router,
    core: Arc<Core>,
    stop: CancellationToken,
) {
    let (began, told) = (Instant::now(), Bucket::default());
    // What it is told would be no TLS. Of very many only some are told anything: that takes longer than closing.
    let may_tell = || {
        let now = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        tls.is_none() && told.take(now, TOLD_EVERY_US, TOLD_EVERY_US * TOLD_AT_ONCE).is_ok()
    };
    let mut connections = JoinSet::new();
    let places = Places::new(core.config.max_connections_per_address);
    let slow_heads = Places::new((core.config.max_connections_per_address / SLOW_PART).max(1));
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(end) = connections.join_next() => report(end),
            accepted = door.next() => match accepted {
                Ok(caller) => {
                    let from = caller.from.ip();
                    let place = if connections.len() < core.config.max_connections {
                        places.take(from).ok_or(FULL_FOR_YOU)
                    } else {
                        Err(FULL)
                    };
                    let place = match place {
                        Ok(place) => place,
                        Err(why) => {
                            let told = may_tell().then(|| refusal(why));
                            door.turn_away(caller, told.as_deref()).await;
                            continue;
                        }
                    };
                    let greeting = match &tls {
                        None => None,
                        Some(tls) => {
                            let Some(greeting) = tls.begin(from) else {
                                door.turn_away(caller, None).await;
                                continue;
                            };
                            Some(greeting)
                        }
                    };
                    let stream = match caller.let_in() {
                        Ok(stream) => stream,
                        Err(error) => {
                            tracing::debug!(%error, "a connection was gone before it began");
                            continue;
                        }
                    };
                    let (router, core, stop) = (router.clone(), Arc::clone(&core), stop.clone());
                    let slow = (Arc::clone(&slow_heads), from);
                    connections.spawn(async move {
                        let _place = place; // given back at the end
                        match greeting {
                            None => {
                                let leaving = Arc::clone(&core.leaving);
                                let (ends, refusals) = (ends(&core, &stream), Arc::clone(&core.refusals));
                                let way = Way { router, ends, refusals, slow: Some(slow) };
                                connection::serve(stream, way, &core.config, leaving, stop).await;
                            }
                            Some(greeting) => greeted(greeting, stream, (router, slow), &core, stop).await,
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        core.metrics.set_connections(connections.len() as u64);
    }
    drop(door);
    let rest = async {
        while let Some(end) = connections.join_next().await {
            report(end);
        }
    };
    if tokio::time::timeout(LAST, rest).await.is_err() {
        tracing::warn!(open = connections.len(), "connections were closed that did not end by themselves");
    }
    connections.shutdown().await;
}

/// Serves what both sides agree on, once they have.
async fn greeted(
    greeting: Greeting,
    stream: TcpStream,
    (router, slow): (Router, (Arc<Places>, IpAddr)),
    core: &Core,
    stop: CancellationToken,
) {
    let stream = tokio::select! {
        stream = greeting.finish(stream) => stream,
        () = stop.cancelled() => None,
    };
    let Some(stream) = stream else { return };
    let leaving = Arc::clone(&core.leaving);
    let (ends, refusals) = (ends(core, stream.get_ref().0), Arc::clone(&core.refusals));
    let way = Way { router, ends, refusals, slow: Some(slow) };
    if speaks_h2(&stream) {
        two::serve(stream, way, &core.config, leaving, stop).await;
    } else {
        connection::serve(stream, way, &core.config, leaving, stop).await;
    }
}

/// Only for shared memory does anybody look from where a request comes.
fn ends(core: &Core, stream: &TcpStream) -> Option<Ends> {
    if core.config.shared_memory { Ends::of(stream) } else { None }
}

/// A handler that panicked has lost its connection, and nothing else.
fn report(end: Result<(), JoinError>) {
    if let Err(error) = end
        && error.is_panic()
    {
        tracing::error!(%error, "a request made its handler panic; this is a bug");
    }
}

/// A whole answer that says so.
fn refusal(body: &str) -> String {
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
                connection: close\r\ncontent-length: ";
    format!("{head}{}\r\n\r\n{body}", body.len())
}
