//! Waiting for HTTP/2 on a lane's own thread. `h2` is written for an asynchronous runtime; one request at a time on one
//! connection needs none: poll it, and sleep in `poll(2)` until the socket has news.

use super::super::http::left;
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
    /// The last write found no room.
    blocked: Arc<AtomicBool>,
}

/// The same socket, to be waited for.
#[derive(Debug)]
pub(super) struct Watch {
    stream: TcpStream,
    blocked: Arc<AtomicBool>,
}

pub(super) fn split(stream: TcpStream) -> io::Result<(Socket, Watch)> {
    stream.set_nonblocking(true)?;
    let blocked = Arc::new(AtomicBool::new(false));
    let watch = Watch { stream: stream.try_clone()?, blocked: Arc::clone(&blocked) };
    Ok((Socket { stream, blocked }, watch))
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match retried(|| self.stream.read(into.initialize_unfilled())) {
            Ok(count) => {
                into.advance(count);
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = retried(|| self.stream.write(bytes));
        let blocked = matches!(&written, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.blocked.store(blocked, Ordering::Relaxed);
        if blocked { Poll::Pending } else { Poll::Ready(written) }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
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
