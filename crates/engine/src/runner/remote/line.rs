//! A connection to a server, encrypted where its address says so, on which every wait has an end.

use super::peer::Access;
use super::tls::Session;
use crate::clock;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: TcpStream,
    pub(super) session: Option<Session>,
}

impl Line {
    /// To the first of the server's addresses that is there.
    pub(super) fn open(access: &Access, until: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name stands for no address");
        for address in &access.addresses {
            match TcpStream::connect_timeout(address, left(until)?) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    let begin = |trust| Session::begin(trust, &mut Timed { socket: &socket, until });
                    let session = access.trust.as_ref().map(begin).transpose()?;
                    return Ok(Self { socket, session });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(super) fn write_all(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        let mut socket = Timed { socket: &self.socket, until };
        let Some(session) = &mut self.session else { return socket.write_all(bytes) };
        while !bytes.is_empty() {
            let written = session.write(&mut socket, bytes)?;
            bytes = &bytes[written..];
        }
        session.flush(&mut socket)
    }

    pub(super) fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        let mut socket = Timed { socket: &self.socket, until };
        match &mut self.session {
            Some(session) => session.read(&mut socket, into),
            None => socket.read(into),
        }
    }
}

/// Time left; never zero, which would mean to wait without end.
pub(super) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(clock::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket that waits until a moment at most, however often it is asked.
struct Timed<'a> {
    socket: &'a TcpStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.until)?))?;
        self.socket.read(into).map_err(over)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.until)?))?;
        self.socket.write(bytes).map_err(over)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket says that it would have to wait longer.
fn over(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}
