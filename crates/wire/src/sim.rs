//! A network that is simulated, for tests: delays, partial writes, cuts and silence from a seed, in tokio's paused time.

use bytes::BufMut;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

/// What a direction of a connection holds, as a kernel's buffers do.
const ROOM: usize = 64 << 10;
/// What arrives at once on a slow way.
const PACKET: u64 = 1_400;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// splitmix64
#[derive(Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % bound.max(1)
    }
}

/// One place on a network of its own. Cheap to clone.
#[derive(Clone)]
pub struct Host(Arc<Net>);

struct Net {
    id: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    rng: Rng,
    listener: Option<mpsc::Sender<End>>,
    /// Both directions of each connection.
    pipes: Vec<[Weak<Pipe>; 2]>,
    silent: bool,
    /// The longest delay of a chunk, in microseconds.
    delay: u64,
    /// Bytes that pass in a second, in each direction of each connection.
    rate: Option<u64>,
}

impl Host {
    pub(crate) fn new(seed: u64, delay: Duration) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let inner =
            Inner { rng: Rng(seed), listener: None, pipes: Vec::new(), silent: false, delay, rate: None };
        Self(Arc::new(Net { id: NEXT.fetch_add(1, Ordering::Relaxed), inner: Mutex::new(inner) }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0.inner)
    }

    pub(crate) fn listen(&self) -> Listening {
        let (sender, receiver) = mpsc::channel(64);
        self.inner().listener = Some(sender);
        Listening(tokio::sync::Mutex::new(receiver))
    }

    pub(crate) async fn connect(&self) -> io::Result<End> {
        let delay = self.draw_delay();
        sleep(delay).await;
        while self.inner().silent {
            sleep(Duration::from_millis(10)).await;
        }
        let (there, here) = (Pipe::new(self), Pipe::new(self));
        let ours = End { write: Arc::clone(&there), read: Arc::clone(&here) };
        let theirs = End { write: here, read: there };
        let mut inner = self.inner();
        inner.pipes.retain(|both| both.iter().any(|pipe| pipe.strong_count() > 0));
        inner.pipes.push([&ours.write, &ours.read].map(Arc::downgrade));
        match inner.listener.as_ref().map(|listener| listener.try_send(theirs)) {
            Some(Ok(())) => Ok(ours),
            Some(Err(_)) | None => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// So many bytes pass in a second from now on.
    pub(crate) fn throttle(&self, rate: u64) {
        self.inner().rate = Some(rate);
    }

    /// Every connection breaks.
    pub(crate) fn cut(&self) {
        let pipes: Vec<_> = self.inner().pipes.drain(..).collect();
        for pipe in pipes.into_iter().flatten().filter_map(|pipe| pipe.upgrade()) {
            pipe.change(|state| state.broken = true);
        }
    }

    /// One end of every connection sees it break; the other is told nothing, and what it writes goes nowhere.
    pub(crate) fn half_open(&self) {
        let pipes: Vec<_> = self.inner().pipes.drain(..).collect();
        for both in pipes {
            let told = usize::try_from(self.inner().rng.below(2)).unwrap_or(0);
            for (at, pipe) in both.iter().enumerate() {
                let Some(pipe) = pipe.upgrade() else { continue };
                pipe.change(|state| {
                    state.dead = true;
                    state.broken |= at == told;
                });
            }
        }
    }

    /// Nothing arrives any longer, or again; nobody is told.
    pub(crate) fn silence(&self, silent: bool) {
        self.inner().silent = silent;
        let pipes: Vec<_> = self.inner().pipes.iter().flatten().filter_map(Weak::upgrade).collect();
        for pipe in pipes {
            pipe.change(|_| {});
        }
    }

    fn draw_delay(&self) -> Duration {
        let mut inner = self.inner();
        let most = inner.delay + 1;
        Duration::from_micros(inner.rng.below(most))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sim:{}", self.0.id)
    }
}

impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}
impl Eq for Host {}
impl PartialOrd for Host {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Host {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.id.cmp(&other.0.id)
    }
}

#[derive(Debug)]
pub(crate) struct Listening(tokio::sync::Mutex<mpsc::Receiver<End>>);

impl Listening {
    pub(crate) async fn accept(&self) -> End {
        match self.0.lock().await.recv().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    write: Arc<Pipe>,
    read: Arc<Pipe>,
}

/// One direction.
struct Pipe {
    host: Host,
    state: Mutex<PipeState>,
    readable: Notify,
    writable: Notify,
}

#[derive(Default)]
struct PipeState {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    held: usize,
    last: Option<Instant>,
    /// No more is written; what is under way still arrives.
    closed: bool,
    broken: bool,
    /// What is written vanishes, and unless it is broken nobody is told of its end.
    dead: bool,
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Pipe {
    fn new(host: &Host) -> Arc<Self> {
        Arc::new(Self {
            host: host.clone(),
            state: Mutex::default(),
            readable: Notify::new(),
            writable: Notify::new(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut PipeState)) {
        change(&mut lock(&self.state));
        self.readable.notify_one();
        self.writable.notify_one();
    }
}

impl End {
    pub(crate) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let delay = self.write.host.draw_delay();
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let (most, rate) = {
            // A third of all writes take only a part.
            let mut inner = self.write.host.inner();
            let whole = if inner.rate.is_some() { (whole as u64).min(PACKET) } else { whole as u64 };
            let most = if inner.rng.below(3) == 0 { 1 + inner.rng.below(whole) } else { whole };
            (most, inner.rate)
        };
        let mut state = lock(&self.write.state);
        if state.dead && !state.closed {
            return Ok(whole);
        }
        if state.broken || state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = whole.min(ROOM - state.held).min(usize::try_from(most).unwrap_or(usize::MAX));
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut at = (Instant::now() + delay).max(state.last.unwrap_or_else(Instant::now));
        if let Some(rate) = rate {
            at += Duration::from_micros(count as u64 * 1_000_000 / rate);
        }
        state.last = Some(at);
        state.held += count;
        let mut chunk = Vec::with_capacity(count);
        for part in parts {
            chunk.extend_from_slice(&part[..part.len().min(count - chunk.len())]);
        }
        state.chunks.push_back((at, chunk));
        drop(state);
        self.write.readable.notify_one();
        Ok(count)
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        loop {
            {
                let state = lock(&self.write.state);
                if state.dead || state.broken || state.closed || state.held < ROOM {
                    return Ok(());
                }
            }
            self.write.writable.notified().await;
        }
    }

    pub(crate) async fn readable(&self) {
        loop {
            let silent = self.read.host.inner().silent;
            let next = {
                let state = lock(&self.read.state);
                let next = state.chunks.front().map(|(at, _)| *at);
                let ended = state.broken || (state.closed && !state.dead && next.is_none());
                let next = next.filter(|_| !silent && !state.dead);
                if ended || next.is_some_and(|at| at <= Instant::now()) {
                    return;
                }
                next
            };
            match next {
                Some(at) => tokio::select! {
                    biased;
                    () = sleep_until(at) => {}
                    () = self.read.readable.notified() => {}
                },
                None => self.read.readable.notified().await,
            }
        }
    }

    pub(crate) fn try_read(&self, into: &mut impl BufMut) -> io::Result<usize> {
        let mut state = lock(&self.read.state);
        if state.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let room = into.chunk_mut().len();
        let Some((_, chunk)) = state.chunks.front_mut() else {
            return if state.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        };
        let count = chunk.len().min(room);
        into.put_slice(&chunk[..count]);
        chunk.drain(..count);
        if chunk.is_empty() {
            state.chunks.pop_front();
        }
        state.held -= count;
        drop(state);
        self.read.writable.notify_one();
        Ok(count)
    }

    pub(crate) fn shut(&self) {
        self.write.change(|state| state.closed = true);
        self.read.change(|state| state.broken = true);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shut();
    }
}
