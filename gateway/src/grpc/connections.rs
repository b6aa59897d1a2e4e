//! Connections for gRPC, up to a bound: what comes beyond it is closed at once.

use crate::door::Door;
use crate::http::places::{Place, Places};
use crate::regions::Ends;
use crate::tls::{Socket, Tls};
use futures_util::{Stream, stream};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tonic::transport::server::Connected;

/// After an accept that failed (no file descriptor left), others get a moment to close theirs.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Connections {
    door: Door,
    room: Arc<Semaphore>,
    places: Arc<Places>,
    tls: Option<Tls>,
    /// Those that are not done with their TLS greeting yet.
    greeting: JoinSet<Option<Connection>>,
}

/// One of them.
pub(super) struct Connection {
    stream: Socket,
    _place: (OwnedSemaphorePermit, Place),
}

impl Connections {
    /// So many, and of each address no more than that.
    pub(super) fn new((door, tls): (Door, Option<Tls>), most: usize, of_address: usize) -> Self {
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { door, room, places: Places::new(of_address), tls, greeting: JoinSet::new() }
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
                        return Connection { stream: Socket::Plain(stream), _place: place };
                    };
                    self.greeting.spawn(async move {
                        let stream = Socket::Tls(Box::new(greeting.finish(stream).await?.into()));
                        Some(Connection { stream, _place: place })
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
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
        Pin::new(&mut self.stream).poll_read(cx, into)
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
