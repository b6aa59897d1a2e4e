//! Entries that all gateways of a cluster share, in its Redis.
//!
//! A look-up has some milliseconds; a Redis that takes longer, or is down, is not asked for a second, and a query never fails by it.
//! Writing happens behind a bounded line. What one gateway has there is bounded in bytes, since Redis is also where the cluster
//! finds itself. Every entry is signed: who can write to the Redis cannot put words into a model's mouth.

use super::{Entry, Key};
use bytes::Bytes as Buffer;
use hmac::{Hmac, KeyInit as _, Mac as _};
use modelless_live::Live;
use modelless_types::{Micros, ModelId, SpaceId, Time, VariantId};
use sha2::Sha256;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What a look-up may take.
const WITHIN: Duration = Duration::from_millis(5);
/// How long it is not asked after it did not answer.
const REST: Micros = Micros::from_secs(1);
/// Entries that wait to be written; what comes beyond is not.
const WAITING: usize = 256;
/// The largest entry, and what one gateway has there at a time.
const LARGEST: usize = 64 << 10;
const MOST: u64 = 64 << 20;

const VERSION: u8 = 1;
const HEAD: usize = 1 + 8 + 3 * 4;
const TAG: usize = 16;

/// What others keep, too.
pub(crate) struct Shared {
    live: Arc<dyn Live>,
    secret: [u8; 32],
    /// It is not asked before that moment.
    rests_until: AtomicU64,
    to: mpsc::Sender<Write>,
    /// Taken in and not yet written, or left.
    open: AtomicU64,
    /// Until it runs.
    from: std::sync::Mutex<Option<mpsc::Receiver<Write>>>,
}

struct Write {
    key: Key,
    entry: Arc<Entry>,
    within: Micros,
    at: Time,
}

impl Shared {
    pub(super) fn new(live: Arc<dyn Live>, secret: [u8; 32]) -> Self {
        let (to, from) = mpsc::channel(WAITING);
        Self {
            live,
            secret,
            rests_until: AtomicU64::new(0),
            to,
            open: AtomicU64::new(0),
            from: std::sync::Mutex::new(Some(from)),
        }
    }

    pub(super) async fn get(&self, key: &Key, now: Time) -> Option<Entry> {
        if now.0 < self.rests_until.load(Ordering::Relaxed) {
            return None;
        }
        let name = name(key);
        let Ok(Ok(found)) = tokio::time::timeout(WITHIN, self.live.recall(&name)).await else {
            self.rests_until.store((now + REST).0, Ordering::Relaxed);
            return None;
        };
        self.read(key, &found?)
    }

    /// Has it written, if there is room.
    pub(super) fn put(&self, key: Key, entry: Arc<Entry>, within: Micros, at: Time) {
        if entry.body.len() <= LARGEST {
            // What finds no room is found in this gateway alone.
            self.open.fetch_add(1, Ordering::AcqRel);
            if self.to.try_send(Write { key, entry, within, at }).is_err() {
                self.open.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// How many are to be written yet.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Writes until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let from = self.from.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(mut from) = from else { return };
        let mut there = There::default();
        loop {
            let write = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                write = from.recv() => write,
            };
            let Some(write) = write else { return };
            self.write(&write, &mut there).await;
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    async fn write(&self, write: &Write, there: &mut There) {
        let Write { key, entry, within, at } = write;
        if at.0 < self.rests_until.load(Ordering::Relaxed) || !there.takes(entry.bytes(), *within, *at) {
            return;
        }
        let time = Duration::from_micros(within.0);
        if self.live.remember(&name(key), &self.written(key, entry), time).await.is_err() {
            self.rests_until.store((*at + REST).0, Ordering::Relaxed);
        }
    }

    fn tag(&self, key: &Key, signed: &[u8]) -> [u8; TAG] {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(&self.secret).expect("HMAC takes keys of any length; this is a bug");
        mac.update(b"entry");
        mac.update(key);
        mac.update(signed);
        let mut tag = [0; TAG];
        tag.copy_from_slice(&mac.finalize().into_bytes()[..TAG]);
        tag
    }

    fn written(&self, key: &Key, entry: &Entry) -> Vec<u8> {
        let mut text = Vec::with_capacity(HEAD + entry.body.len() + TAG);
        text.push(VERSION);
        text.extend_from_slice(&entry.given_unix.to_le_bytes());
        for number in [entry.model.0, entry.variant.0, entry.space.0] {
            text.extend_from_slice(&number.to_le_bytes());
        }
        text.extend_from_slice(&entry.body);
        let tag = self.tag(key, &text);
        text.extend_from_slice(&tag);
        text
    }

    /// `None` if it is not what a gateway of this cluster wrote there.
    fn read(&self, key: &Key, text: &[u8]) -> Option<Entry> {
        let (signed, tag) = text.split_at_checked(text.len().checked_sub(TAG)?)?;
        if self.tag(key, signed) != tag {
            return None;
        }
        let (head, body) = signed.split_at_checked(HEAD)?;
        let (version, head) = head.split_first()?;
        let (given, numbers) = head.split_at_checked(8)?;
        let number = |at: usize| {
            let four = numbers.get(at * 4..at * 4 + 4)?;
            four.try_into().ok().map(u32::from_le_bytes)
        };
        if *version != VERSION || body.len() > LARGEST {
            return None;
        }
        Some(Entry {
            given_unix: u64::from_le_bytes(given.try_into().ok()?),
            model: ModelId(number(0)?),
            variant: VariantId(number(1)?),
            space: SpaceId(number(2)?),
            body: Buffer::copy_from_slice(body),
        })
    }
}

fn name(key: &Key) -> String {
    use std::fmt::Write as _;
    key.iter().fold(String::with_capacity(64), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// What this gateway has there, until it expires.
#[derive(Default)]
struct There {
    until: VecDeque<(Time, u64)>,
    bytes: u64,
}

impl There {
    fn takes(&mut self, bytes: u64, within: Micros, now: Time) -> bool {
        // Tasks keep theirs for different times; one that is over behind one that is not is counted until that is.
        while let Some((_, gone)) = self.until.pop_front_if(|(until, _)| *until <= now) {
            self.bytes -= gone;
        }
        if self.bytes + bytes > MOST {
            return false;
        }
        self.until.push_back((now + within, bytes));
        self.bytes += bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_live::MemLive;

    fn shared() -> Shared {
        Shared::new(Arc::new(MemLive::default()), [7; 32])
    }

    fn entry() -> Entry {
        let body = Buffer::from_static(b"[{\"label\":\"cat\"}]");
        Entry { body, model: ModelId(1), variant: VariantId(2), space: SpaceId(3), given_unix: 4 }
    }

    #[test]
    fn what_is_written_is_read_back_and_what_was_changed_is_not() {
        let (shared, key) = (shared(), [1; 32]);
        let text = shared.written(&key, &entry());
        assert_eq!(shared.read(&key, &text), Some(entry()));
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 1;
            assert_eq!(shared.read(&key, &other), None, "byte {at}");
            assert_eq!(shared.read(&key, &text[..at]), None, "cut at {at}");
        }
        assert_eq!(shared.read(&[2; 32], &text), None, "another query's");
    }

    #[test]
    fn so_much_is_there_and_no_more() {
        let mut there = There::default();
        let (minute, second) = (Micros::from_secs(60), Micros::from_secs(1));
        assert!(there.takes(MOST, minute, Time(0)));
        assert!(!there.takes(1, minute, Time(0) + second));
        assert!(there.takes(MOST, minute, Time(0) + minute));
    }

    #[tokio::test]
    async fn what_one_writes_another_finds_until_it_is_over() {
        let live: Arc<dyn Live> = Arc::new(MemLive::default());
        let (one, other) = (Shared::new(Arc::clone(&live), [7; 32]), Shared::new(live, [7; 32]));
        let stop = CancellationToken::new();
        let key = [9; 32];
        one.put(key, Arc::new(entry()), Micros::from_secs(60), Time(1));
        let found = async {
            loop {
                if let Some(found) = other.get(&key, Time(2)).await {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = one.run(stop.clone()) => panic!("nobody stopped it"),
            found = found => assert_eq!(found, entry()),
        }
        assert_eq!(other.get(&[8; 32], Time(2)).await, None);
    }

    /// One that never answers.
    struct Silent;

    #[async_trait::async_trait]
    impl Live for Silent {
        async fn announce(
            &self,
            _: &modelless_live::Member,
            _: Duration,
        ) -> Result<Option<u64>, modelless_live::Error> {
            std::future::pending().await
        }
        async fn withdraw(
            &self,
            _: modelless_live::Role,
            _: &str,
            _: u64,
        ) -> Result<(), modelless_live::Error> {
            std::future::pending().await
        }
        async fn members(&self) -> Result<Vec<modelless_live::Member>, modelless_live::Error> {
            std::future::pending().await
        }
        async fn publish(&self, _: modelless_live::Notice) -> Result<(), modelless_live::Error> {
            std::future::pending().await
        }
        async fn remember(&self, _: &str, _: &[u8], _: Duration) -> Result<(), modelless_live::Error> {
            std::future::pending().await
        }
        async fn recall(&self, _: &str) -> Result<Option<Vec<u8>>, modelless_live::Error> {
            std::future::pending().await
        }
        fn notices(&self) -> tokio::sync::broadcast::Receiver<modelless_live::Notice> {
            tokio::sync::broadcast::Sender::new(1).subscribe()
        }
        async fn run(&self, _: CancellationToken) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_redis_that_is_silent_costs_some_milliseconds_and_then_nothing_for_a_second() {
        let shared = Shared::new(Arc::new(Silent), [7; 32]);
        let took = async |at: Time| {
            let began = tokio::time::Instant::now();
            assert_eq!(shared.get(&[1; 32], at).await, None);
            began.elapsed()
        };
        let start = Time(10_000_000);
        let first = took(start).await;
        assert!(first >= WITHIN && first < WITHIN * 2, "{first:?}");
        assert_eq!(took(start + Micros(1)).await, Duration::ZERO);
        assert!(took(start + REST).await >= WITHIN, "it is tried again");
    }
}
