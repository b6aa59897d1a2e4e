//! One connection: sending from any thread without waiting.
//!
//! A frame is written on the thread that sends it while nothing else waits; what the socket does not take at once, and
//! most of what is large, waits for the connection's task ([`Out`] says in which order). A queue that overflows
//! ends the connection by name: a peer that does not read is as good as gone.

use crate::codec;
use crate::frame::{Encoded, TooLarge};
use crate::lost::Lost;
use crate::out::{Out, Overflow, Unit};
use crate::stream::Stream;
use modelless_types::QueryKey;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// What is still to be written when a connection is ended on purpose gets this long.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Whoever takes nothing for so long is not waited for at the end.
const GETS_ON: Duration = Duration::from_secs(2);
/// Whoever sends writes at most about so many bytes itself, and the connection's task so many before others have their turn.
const AT_ONCE: usize = 256 << 10;

pub(crate) struct Link {
    stream: Stream,
    state: Mutex<State>,
    wake: Notify,
    /// All is written.
    idle: Notify,
}

#[derive(Default)]
struct State {
    /// Bytes, altogether.
    written: u64,
    /// What is being written.
    current: Option<Unit>,
    out: Out,
    lost: Option<Lost>,
}

/// How far writing came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flushed {
    All,
    /// As far as the socket takes it.
    Blocked,
    /// As far as one may at once.
    Enough,
}

impl Link {
    pub(crate) fn new(stream: Stream) -> Arc<Self> {
        Arc::new(Self { stream, state: Mutex::default(), wake: Notify::new(), idle: Notify::new() })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sends, now or from the queue. After the connection is lost this does nothing: whoever sends learns of the
    /// loss from the connection's task.
    pub(crate) fn send(&self, frame: Encoded) {
        self.push(|out, now| out.push(frame, now));
    }

    /// The same of what is said of a query, and is not to overtake it.
    pub(crate) fn send_behind(&self, key: QueryKey, frame: Encoded) {
        self.push(|out, now| out.push_behind(key, frame, now));
    }

    fn push(&self, push: impl FnOnce(&mut Out, Instant) -> Result<(), Overflow>) {
        let mut state = self.lock();
        if state.lost.is_some() {
            return;
        }
        let idle = state.current.is_none() && state.out.is_empty();
        if let Err(overflow) = push(&mut state.out, Instant::now()) {
            return self.lose(state, overflow.into());
        }
        if idle {
            match state.flush(&self.stream) {
                Ok(Flushed::All) => return,
                Ok(Flushed::Blocked | Flushed::Enough) => {}
                Err(error) => return self.lose(state, Lost::Broken(Arc::new(error))),
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Sends what was made to be sent; what was too large is a bug where its maker has no way to say so.
    pub(crate) fn say(&self, frame: Result<Encoded, TooLarge>) {
        match frame {
            Ok(frame) => self.send(frame),
            Err(error) => tracing::error!(%error, "a frame was not sent"),
        }
    }

    /// Whether an answer of so many bytes may wait here.
    pub(crate) fn has_room_for_answer(&self, bytes: usize) -> bool {
        self.lock().out.has_room_for_answer(bytes)
    }

    /// Nobody waits for a query any longer: it is stopped before its end, or the other side, which has it or has heard of it, is told `cancel`. In
    /// one step, or the same query could be sent again between the two.
    pub(crate) fn cancel_query(&self, key: QueryKey, cancel: Encoded) {
        self.push(|out, now| if out.take_back_query(key)? { Ok(()) } else { out.push(cancel, now) });
    }

    /// The other side will not claim what was announced.
    pub(crate) fn declined(&self, key: QueryKey) {
        self.lock().out.declined(key);
    }

    /// The rest of a query that was refused before all of it had come is not sent.
    pub(crate) fn stop_query(&self, key: QueryKey) {
        if self.lock().out.stop_query(key) {
            self.wake.notify_one();
        }
    }

    /// The rest of an answer that nobody waits for any longer is not sent.
    pub(crate) fn take_back_answer(&self, key: QueryKey) {
        self.lock().out.take_back_answer(key);
        self.wake.notify_one();
    }

    /// Drains the queue; ends when the connection is lost.
    pub(crate) async fn drain(&self) -> Lost {
        loop {
            let flushed = {
                let mut state = self.lock();
                match &state.lost {
                    Some(lost) => return lost.clone(),
                    None => state.flush(&self.stream),
                }
            };
            match flushed {
                Ok(Flushed::All) => {
                    self.idle.notify_one();
                    self.wake.notified().await;
                }
                Ok(Flushed::Enough) => tokio::task::yield_now().await,
                Ok(Flushed::Blocked) => {
                    tokio::select! {
                        biased;
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

    /// Says goodbye after `stop`, while [`Self::drain`] goes on, and ends after `within`. A goodbye goes ahead of what is large, and the
    /// other side hangs up when it hears it: it is said when all is written. Were this side to hang up, the next word from the
    /// other would cost what is still on its way there.
    pub(crate) async fn leave(&self, stop: &CancellationToken, within: Duration) {
        stop.cancelled().await;
        let last_words = async {
            self.written().await;
            self.say(codec::goodbye(&Lost::Stopped.to_string()));
            std::future::pending::<()>().await;
        };
        let _ = timeout(within, last_words).await;
    }

    /// Ends once all that was said is written, while [`Self::drain`] goes on; or when the other side takes nothing any longer.
    async fn written(&self) {
        let mut before = None;
        loop {
            let written = {
                let mut state = self.lock();
                match state.flush(&self.stream) {
                    Ok(Flushed::Blocked | Flushed::Enough) if state.lost.is_none() => state.written,
                    Ok(_) | Err(_) => return,
                }
            };
            self.wake.notify_one();
            let idle = timeout(GETS_ON, self.idle.notified()).await;
            if idle.is_err() && before.replace(written) == Some(written) {
                return;
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
            | Lost::OtherStore
            | Lost::TooLarge { .. }
            | Lost::TooManyPeers { .. }
            | Lost::Silent { .. }
            | Lost::NoGreeting { .. }
            | Lost::Crowded { .. }
            | Lost::Unproven
            | Lost::Misnamed { .. }
            | Lost::Stopped => {
                self.say(codec::goodbye(&lost.to_string()));
                let written = async {
                    loop {
                        let flushed = self.lock().flush(&self.stream);
                        match flushed {
                            Ok(Flushed::All) | Err(_) => return,
                            Ok(Flushed::Enough) => tokio::task::yield_now().await,
                            Ok(Flushed::Blocked) => {
                                if self.stream.writable().await.is_err() {
                                    return;
                                }
                            }
                        }
                    }
                };
                let _ = timeout(LAST_WORDS, written).await;
            }
            Lost::Random(_)
            | Lost::Connect(_)
            | Lost::Tls(_)
            | Lost::Closed
            | Lost::Goodbye(_)
            | Lost::Broken(_)
            | Lost::Overflow { .. } => {}
        }
        self.end(lost.clone());
    }

    fn lose(&self, mut state: MutexGuard<'_, State>, lost: Lost) {
        state.lost.get_or_insert(lost);
        state.current = None;
        state.out = Out::default();
        drop(state);
        self.stream.shut();
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Overflow> for Lost {
    fn from(overflow: Overflow) -> Self {
        Self::Overflow { frames: overflow.frames, bytes: overflow.bytes }
    }
}

impl State {
    fn flush(&mut self, stream: &Stream) -> io::Result<Flushed> {
        let mut written = 0;
        loop {
            let mut unit = match self.current.take() {
                Some(unit) => unit,
                None if written >= AT_ONCE && !self.out.is_empty() => return Ok(Flushed::Enough),
                None => match self.out.next(Instant::now()) {
                    Some(unit) => unit,
                    None => return Ok(if stream.try_flush()? { Flushed::All } else { Flushed::Blocked }),
                },
            };
            while unit.left() > 0 {
                match stream.try_write(&unit.parts()) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => {
                        unit.wrote(count);
                        written += count;
                        self.written += count as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.current = Some(unit);
                        return Ok(Flushed::Blocked);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
