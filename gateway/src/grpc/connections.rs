//! Connections for gRPC, up to a bound: what comes beyond it is closed at once.

use crate::door::Door;
use crate::http::places::{Place, Places};
use crate::regions::Ends;
use crate::tls::{Socket, Tls};
use futures_util::{Stream, stream};
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// After an accept that failed (no file descriptor left), others get a moment to close theirs.
const PAUSE: Duration = Duration::from_millis(50);
/// What every client of HTTP/2 begins with: its preface of 24 bytes, and the head of its first frame.
const GREETING: usize = 24 + 9;

pub(super) struct Connections {
    door: Door,
    room: Arc<Semaphore>,
    places: Arc<Places>,
    tls: Option<Tls>,
    /// How long one has to say that it speaks HTTP/2.
    patience: Duration,
    /// Those that are not done with their TLS greeting yet.
    greeting: JoinSet<Option<Connection>>,
}

/// One of them.
pub(super) struct Connection {
    stream: Socket,
    /// How much was heard, and until when, while that is no greeting yet.
    early: Option<(usize, Pin<Box<Sleep>>)>,
    _place: (OwnedSemaphorePermit, Place),
}

impl Connection {
    fn new(stream: Socket, patience: Duration, place: (OwnedSemaphorePermit, Place)) -> Self {
        Self { stream, early: Some((0, Box::pin(sleep(patience)))), _place: place }
    }
}

impl Connections {
    /// So many, and of each address no more than that.
    pub(super) fn new(
        (door, tls): (Door, Option<Tls>),
        (most, of_address): (usize, usize),
        patience: Duration,
    ) -> Self {
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { door, room, places: Places::new(of_address), tls, patience, greeting: JoinSet::new() }
    }

    /// As they come. It never ends by itself.
    pub(super) fn stream(self) -> impl Stream<Item = io::Result<Connection>> {
        stream::unfold(self, async |mut connections| {
            let next = connections.next().await;
            Some((Ok(next), connections))
        })
    }

    async fn next(&mut self) -> Connection {
        loop {
            let accepted = tokio::select! {
                Some(greeted) = self.greeting.join_next() => match greeted {
                    Ok(Some(connection)) => return connection,
                    Ok(None) | Err(_) => continue,
                },
                accepted = self.door.next() => accepted,
            };
            match accepted {
                Ok(caller) => {
                    let from = caller.from.ip();
                    let room = Arc::clone(&self.room).try_acquire_owned().ok();
                    let Some(place) = room.and_then(|room| Some((room, self.places.take(from)?))) else {
                        self.door.turn_away(caller, None).await;
                        continue;
                    };
                    let greeting = match &self.tls {
                        None => None,
                        Some(tls) => {
                            let Some(greeting) = tls.begin(from) else {
                                self.door.turn_away(caller, None).await;
                                continue;
                            };
                            Some(greeting)
                        }
                    };
                    let Ok(stream) = caller.let_in() else { continue };
                    let Some(greeting) = greeting else {
                        return Connection::new(Socket::Plain(stream), self.patience, place);
                    };
                    let patience = self.patience;
                    self.greeting.spawn(async move {
                        let stream = Socket::Tls(Box::new(greeting.finish(stream).await?.into()));
                        Some(Connection::new(stream, patience, place))
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Option<Ends>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Ends::of(self.stream.tcp())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let Some((heard, alarm)) = &mut self.early else { return read };
        *heard += into.filled().len() - before;
        if *heard >= GREETING {
            self.early = None;
        } else if alarm.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into())); // it would keep its place for ever
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
