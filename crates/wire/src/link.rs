//! One connection: sending from any thread without waiting, reading frames one after the other.
//!
//! A frame is written on the thread that sends it while nothing else waits; what the socket does not take at once
//! waits in a bounded queue that the connection's task drains. A queue that overflows ends the connection by name:
//! a peer that does not read is as good as gone.

use crate::codec::{self, Frame};
use crate::config::limits;
use crate::frame::{Encoded, HEADER, Header, TooLarge, WAITED};
use crate::lost::Lost;
use crate::stream::Stream;
use bytes::{Buf, BytesMut};
use modelless_types::Micros;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Small frames share a buffer of this size; a larger frame gets one of its own.
const CHUNK: usize = 16 << 10;
/// What is still to be written when a connection is ended on purpose gets this long.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub(crate) struct Link {
    stream: Stream,
    out: Mutex<Out>,
    wake: Notify,
}

#[derive(Default)]
struct Out {
    queue: VecDeque<Waiting>,
    bytes: usize,
    lost: Option<Lost>,
}

struct Waiting {
    frame: Encoded,
    written: usize,
    since: Instant,
}

impl Link {
    pub(crate) fn new(stream: Stream) -> Arc<Self> {
        Arc::new(Self { stream, out: Mutex::default(), wake: Notify::new() })
    }

    /// Sends, now or from the queue. After the connection is lost this does nothing: whoever sends learns of the
    /// loss from the connection's task.
    pub(crate) fn send(&self, frame: Encoded) {
        let mut out = self.lock();
        if out.lost.is_some() {
            return;
        }
        let mut waiting = Waiting { frame, written: 0, since: Instant::now() };
        if out.queue.is_empty() {
            match waiting.write(&self.stream) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return self.lose(out, Lost::Broken(Arc::new(error))),
            }
        }
        out.bytes += waiting.frame.len();
        out.queue.push_back(waiting);
        let (frames, bytes) = (out.queue.len(), out.bytes);
        if frames > limits::QUEUE_FRAMES || (bytes > limits::QUEUE_BYTES && frames > 1) {
            return self.lose(out, Lost::Overflow { frames, bytes });
        }
        drop(out);
        self.wake.notify_one();
    }

    /// Sends what was made to be sent; what was too large is a bug where its maker has no way to say so.
    pub(crate) fn say(&self, frame: Result<Encoded, TooLarge>) {
        match frame {
            Ok(frame) => self.send(frame),
            Err(error) => tracing::error!(%error, "a frame was not sent"),
        }
    }

    /// Drains the queue; ends when the connection is lost.
    pub(crate) async fn drain(&self) -> Lost {
        loop {
            let flushed = {
                let mut out = self.lock();
                match &out.lost {
                    Some(lost) => return lost.clone(),
                    None => out.flush(&self.stream),
                }
            };
            match flushed {
                Ok(true) => self.wake.notified().await,
                Ok(false) => {
                    tokio::select! {
                        ready = self.stream.writable() => if let Err(error) = ready {
                            self.end(Lost::Broken(Arc::new(error)));
                        },
                        () = self.wake.notified() => {} // perhaps it is lost
                    }
                }
                Err(error) => self.end(Lost::Broken(Arc::new(error))),
            }
        }
    }

    /// Nothing more is sent or read. The first reason stands.
    pub(crate) fn end(&self, lost: Lost) {
        self.lose(self.lock(), lost);
    }

    /// Tells the other side why, if it still listens, then ends.
    pub(crate) async fn part(&self, lost: &Lost) {
        match lost {
            Lost::Nonsense(_)
            | Lost::WrongNode { .. }
            | Lost::TooManyPeers { .. }
            | Lost::Silent { .. }
            | Lost::NoGreeting { .. }
            | Lost::Unproven
            | Lost::Stopped => {
                self.say(codec::goodbye(&lost.to_string()));
                let written = async {
                    while !self.lock().queue.is_empty() {
                        if self.stream.writable().await.is_err() || self.flush_once().is_err() {
                            return;
                        }
                    }
                };
                let _ = tokio::time::timeout(LAST_WORDS, written).await;
            }
            Lost::Random(_)
            | Lost::Connect(_)
            | Lost::Closed
            | Lost::Goodbye(_)
            | Lost::Broken(_)
            | Lost::Overflow { .. } => {}
        }
        self.end(lost.clone());
    }

    fn flush_once(&self) -> io::Result<bool> {
        self.lock().flush(&self.stream)
    }

    fn lose(&self, mut out: MutexGuard<'_, Out>, lost: Lost) {
        out.lost.get_or_insert(lost);
        out.queue.clear();
        out.bytes = 0;
        drop(out);
        self.stream.shut();
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    /// Whether nothing is left.
    fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        while let Some(first) = self.queue.front_mut() {
            if first.written == 0 {
                let waited = u32::try_from(first.since.elapsed().as_micros()).unwrap_or(u32::MAX);
                first.frame.head[WAITED].copy_from_slice(&waited.to_le_bytes());
            }
            if !first.write(stream)? {
                return Ok(false);
            }
            self.bytes -= first.frame.len();
            self.queue.pop_front();
        }
        Ok(true)
    }
}

impl Waiting {
    /// Whether all of it is written.
    fn write(&mut self, stream: &Stream) -> io::Result<bool> {
        let whole = self.frame.len();
        while self.written < whole {
            let mut skip = self.written;
            let [first, second] = &self.frame.payload;
            let parts = [&self.frame.head[..], first, second].map(|part| {
                let from = skip.min(part.len());
                skip -= from;
                IoSlice::new(&part[from..])
            });
            match stream.try_write(&parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The reading half. Its state survives a dropped [`Reader::next`], so that may stand in a `select!`.
pub(crate) struct Reader {
    link: Arc<Link>,
    buffer: BytesMut,
}

impl Reader {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, buffer: BytesMut::with_capacity(CHUNK) }
    }

    /// The next frame, and how long it waited at its sender.
    pub(crate) async fn next(&mut self) -> Result<(Frame, Micros), Lost> {
        loop {
            let mut wanted = HEADER;
            if let Some(header) = self.buffer.first_chunk::<HEADER>() {
                let header = Header::parse(header)?;
                wanted = header.frame();
                if self.buffer.len() >= wanted {
                    return self.cut(&header);
                }
            }
            self.make_room(wanted);
            match self.link.stream.read(&mut self.buffer).await {
                Ok(0) => return Err(Lost::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Lost::Closed),
                Err(error) => return Err(Lost::Broken(Arc::new(error))),
            }
        }
    }

    /// Payloads are slices of what was read; nothing is copied.
    fn cut(&mut self, header: &Header) -> Result<(Frame, Micros), Lost> {
        let mut frame = self.buffer.split_to(header.frame()).freeze();
        frame.advance(HEADER);
        let head = frame.split_to(header.head);
        Ok((codec::decode(header, &head, frame)?, header.waited))
    }

    /// A frame that does not fit gets a buffer of exactly its size, so what the kernel has is read straight into
    /// the place where it stays.
    fn make_room(&mut self, wanted: usize) {
        let room = self.buffer.capacity() - self.buffer.len();
        let enough = if wanted == HEADER { CHUNK / 8 } else { 1 };
        if self.buffer.capacity() >= wanted && room >= enough {
            return;
        }
        let mut roomy = BytesMut::with_capacity(wanted.max(CHUNK));
        roomy.extend_from_slice(&self.buffer);
        self.buffer = roomy;
    }
}
