//! Waiting for HTTP/2 on a lane's own thread. `h2` is written for an asynchronous runtime; one request at a time on one
//! connection needs none: poll it, and sleep in `poll(2)` until the socket has news.

use super::super::line::{Line, left};
use super::super::tls::Session;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket that never blocks, as `h2` takes it.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    session: Option<Session>,
    /// The last write found no room.
    blocked: Arc<AtomicBool>,
}

/// The same socket, to be waited for.
#[derive(Debug)]
pub(super) struct Watch {
    stream: TcpStream,
    blocked: Arc<AtomicBool>,
}

pub(super) fn split(line: Line) -> io::Result<(Socket, Watch)> {
    let Line { socket: stream, session } = line;
    stream.set_nonblocking(true)?;
    let blocked = Arc::new(AtomicBool::new(false));
    let watch = Watch { stream: stream.try_clone()?, blocked: Arc::clone(&blocked) };
    Ok((Socket { stream, session, blocked }, watch))
}

impl Socket {
    /// Not yet is no error. Whether it is because something could not be written is noted.
    fn polled<T>(&self, result: io::Result<T>, writing: bool) -> Poll<io::Result<T>> {
        let pending = matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        if let Some(session) = &self.session {
            self.blocked.store(session.is_blocked(), Ordering::Relaxed);
        } else if writing {
            self.blocked.store(pending, Ordering::Relaxed);
        }
        if pending { Poll::Pending } else { Poll::Ready(result) }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, session, .. } = &mut *self;
        let read = match session {
            Some(session) => session.read(stream, into.initialize_unfilled()),
            None => retried(|| stream.read(into.initialize_unfilled())),
        };
        self.polled(read.map(|count| into.advance(count)), false)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, session, .. } = &mut *self;
        let written = match session {
            Some(session) => session.write(stream, bytes),
            None => retried(|| stream.write(bytes)),
        };
        self.polled(written, true)
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, session, .. } = &mut *self;
        let flushed = session.as_mut().map_or(Ok(()), |session| session.flush(stream));
        self.polled(flushed, false)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(std::net::Shutdown::Write))
    }
}

fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Something inside has moved by itself and is to be polled again.
struct Again(AtomicBool);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for what happens on one socket, until a moment at most.
pub(super) fn wait<T>(watch: &Watch, until: Instant, future: impl Future<Output = T>) -> io::Result<T> {
    let again = Arc::new(Again(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&again));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        let left = left(until)?;
        if again.0.swap(false, Ordering::Relaxed) {
            continue;
        }
        let mut news = PollFlags::IN;
        if watch.blocked.load(Ordering::Relaxed) {
            news |= PollFlags::OUT;
        }
        let limit = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(&watch.stream, news)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
