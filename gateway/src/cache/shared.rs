//! Entries that all gateways of a cluster share, in its Redis.
//!
//! A look-up has some milliseconds of the query's own time; a Redis that takes longer, or is down, is not asked for a second, and a
//! query never fails by it. Writing happens behind a bounded line. What one gateway has there is bounded in bytes, since Redis is also
//! where the cluster finds itself, and no tenant has more of that than it leaves to others. Every entry is signed: who can write to
//! the Redis cannot put words into a model's mouth.

use super::{Entry, Key};
use bytes::Bytes as Buffer;
use hmac::{Hmac, KeyInit as _, Mac as _};
use modelless_live::Live;
use modelless_telemetry::SharedCache;
use modelless_types::{Micros, ModelId, SpaceId, TenantId, Time, VariantId};
use sha2::Sha256;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What a look-up may take.
const WITHIN: Duration = Duration::from_millis(5);
/// A query that has less time does not look here: the look may take a quarter of it.
pub(super) const LEAST_BOUND: Micros = Micros::from_millis(20);
/// How long it is not asked after it did not answer.
const REST: Micros = Micros::from_secs(1);
/// Entries that wait to be written; what comes beyond is not.
const WAITING: usize = 256;
/// The largest entry, and what one gateway has there at a time.
const LARGEST: usize = 64 << 10;
const MOST: u64 = 64 << 20;

/// Raised when answers are told in another form.
const VERSION: u8 = 2;
const HEAD: usize = 1 + 8 + 3 * 4;
const TAG: usize = 16;

/// What others keep, too.
pub(crate) struct Shared {
    live: Arc<dyn Live>,
    secret: [u8; 32],
    /// It is not asked before that moment, and not written to before that one: one that is full can be read all the same.
    rests_until: AtomicU64,
    full_until: AtomicU64,
    metrics: SharedCache,
    to: mpsc::Sender<Write>,
    /// Taken in and not yet written, or left.
    open: AtomicU64,
    /// Until it runs.
    from: std::sync::Mutex<Option<mpsc::Receiver<Write>>>,
}

/// What is to be written.
pub(super) struct Write {
    pub(super) key: Key,
    pub(super) entry: Arc<Entry>,
    pub(super) within: Micros,
    pub(super) at: Time,
    pub(super) tenant: TenantId,
}

impl Shared {
    pub(super) fn new(live: Arc<dyn Live>, secret: [u8; 32], metrics: SharedCache) -> Self {
        let (to, from) = mpsc::channel(WAITING);
        Self {
            live,
            secret,
            rests_until: AtomicU64::new(0),
            full_until: AtomicU64::new(0),
            metrics,
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
            self.metrics.look_failed.inc();
            return None;
        };
        let entry = found.map(|found| self.read(key, &found));
        match &entry {
            Some(Some(_)) => self.metrics.found.inc(),
            Some(None) => self.metrics.look_failed.inc(),
            None => self.metrics.absent.inc(),
        };
        entry?
    }

    /// Has it written, if there is room.
    pub(super) fn put(&self, write: Write) {
        if write.entry.body.len() <= LARGEST {
            // What finds no room is found in this gateway alone.
            self.open.fetch_add(1, Ordering::AcqRel);
            if self.to.try_send(write).is_err() {
                self.open.fetch_sub(1, Ordering::AcqRel);
                self.metrics.no_room.inc();
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
        let Write { key, entry, within, at, tenant } = write;
        if at.0 < self.full_until.load(Ordering::Relaxed) {
            return;
        }
        if !there.takes(entry.bytes(), *tenant, *within, *at) {
            self.metrics.no_room.inc();
            return;
        }
        let time = Duration::from_micros(within.0);
        if self.live.remember(&name(key), &self.written(key, entry), time).await.is_err() {
            self.full_until.store((*at + REST).0, Ordering::Relaxed);
            self.metrics.write_failed.inc();
        } else {
            self.metrics.written.inc();
        }
    }

    fn signer(&self, key: &Key, signed: &[u8]) -> Hmac<Sha256> {
        let mut mac: Hmac<Sha256> =
            Hmac::new_from_slice(&self.secret).expect("HMAC takes keys of any length; this is a bug");
        mac.update(b"entry");
        mac.update(key);
        mac.update(signed);
        mac
    }

    fn written(&self, key: &Key, entry: &Entry) -> Vec<u8> {
        let mut text = Vec::with_capacity(HEAD + entry.body.len() + TAG);
        text.push(VERSION);
        text.extend_from_slice(&entry.given_unix.to_le_bytes());
        for number in [entry.model.0, entry.variant.0, entry.space.0] {
            text.extend_from_slice(&number.to_le_bytes());
        }
        text.extend_from_slice(&entry.body);
        let tag = self.signer(key, &text).finalize().into_bytes();
        text.extend_from_slice(&tag[..TAG]);
        text
    }

    /// `None` if it is not what a gateway of this cluster wrote there.
    fn read(&self, key: &Key, text: &[u8]) -> Option<Entry> {
        let (signed, tag) = text.split_at_checked(text.len().checked_sub(TAG)?)?;
        // In constant time, so that a signature cannot be found byte by byte.
        self.signer(key, signed).verify_truncated_left(tag).ok()?;
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
    /// What ends first is on top: tasks keep theirs for different times.
    until: BinaryHeap<Reverse<(Time, u64, TenantId)>>,
    bytes: u64,
    of: BTreeMap<TenantId, u64>,
}

impl There {
    /// Whether there is room, and more than the tenant has by then is left for the others: alone it has half of all.
    fn takes(&mut self, bytes: u64, tenant: TenantId, within: Micros, now: Time) -> bool {
        while let Some(&Reverse((until, gone, of))) = self.until.peek()
            && until <= now
        {
            self.until.pop();
            self.bytes -= gone;
            if let Some(has) = self.of.get_mut(&of) {
                *has -= gone;
                if *has == 0 {
                    self.of.remove(&of);
                }
            }
        }
        let has = self.of.get(&tenant).copied().unwrap_or_default() + bytes;
        if MOST.checked_sub(self.bytes + bytes).is_none_or(|left| has > left) {
            return false;
        }
        self.until.push(Reverse((now + within, bytes, tenant)));
        self.bytes += bytes;
        self.of.insert(tenant, has);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_live::MemLive;

    fn over(live: Arc<dyn Live>) -> Shared {
        Shared::new(live, [7; 32], modelless_telemetry::Metrics::new().shared_cache())
    }

    fn shared() -> Shared {
        over(Arc::new(MemLive::default()))
    }

    fn write(key: Key, at: Time) -> Write {
        let (entry, within, tenant) = (Arc::new(entry()), Micros::from_secs(60), TenantId(1));
        Write { key, entry, within, at, tenant }
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
    fn so_much_is_there_and_no_tenant_has_more_than_it_leaves() {
        let mut there = There::default();
        let (minute, second) = (Micros::from_secs(60), Micros::from_secs(1));
        let (one, two, three) = (TenantId(1), TenantId(2), TenantId(3));
        let start = Time(0);
        assert!(!there.takes(MOST / 2 + 1, one, minute, start));
        assert!(there.takes(MOST / 2, one, minute, start));
        assert!(!there.takes(1, one, minute, start), "the rest is for others");
        assert!(!there.takes(MOST / 4 + 1, two, minute, start));
        assert!(there.takes(MOST / 4, two, minute, start));
        assert!(there.takes(MOST / 8, three, minute, start + second));
        assert!(!there.takes(MOST, three, minute, start + second), "never more than all");
        // The first two are over.
        assert!(there.takes(MOST / 4, one, minute, start + minute));
        assert_eq!((there.bytes, there.of.len()), (MOST / 4 + MOST / 8, 2));
    }

    #[test]
    fn what_is_kept_for_long_does_not_hold_the_place_of_what_is_over() {
        let mut there = There::default();
        let (day, second) = (Micros::from_secs(86_400), Micros::from_secs(1));
        assert!(there.takes(1, TenantId(1), day, Time(0)));
        for at in 0..10 {
            assert!(there.takes(MOST / 4, TenantId(2), second, Time(0) + Micros::from_secs(at)), "{at}");
        }
        assert_eq!((there.bytes, there.until.len()), (MOST / 4 + 1, 2));
    }

    #[tokio::test]
    async fn what_one_writes_another_finds_until_it_is_over() {
        let live: Arc<dyn Live> = Arc::new(MemLive::default());
        let (one, other) = (over(Arc::clone(&live)), over(live));
        let stop = CancellationToken::new();
        let key = [9; 32];
        one.put(write(key, Time(1)));
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

    /// One that never answers, or one that is full: it can be read, and takes nothing.
    enum Broken {
        Silent,
        Full,
    }

    #[async_trait::async_trait]
    impl Live for Broken {
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
            match self {
                Self::Silent => std::future::pending().await,
                Self::Full => Err(modelless_live::Error::Refused { why: "OOM command not allowed".into() }),
            }
        }
        async fn recall(&self, name: &str) -> Result<Option<Vec<u8>>, modelless_live::Error> {
            match self {
                Self::Silent => std::future::pending().await,
                Self::Full => {
                    let key = [5; 32];
                    assert_eq!(name, super::name(&key));
                    Ok(Some(shared().written(&key, &entry())))
                }
            }
        }
        fn notices(&self) -> tokio::sync::broadcast::Receiver<modelless_live::Notice> {
            tokio::sync::broadcast::Sender::new(1).subscribe()
        }
        async fn run(&self, _: CancellationToken) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_redis_that_is_silent_costs_some_milliseconds_and_then_nothing_for_a_second() {
        let shared = over(Arc::new(Broken::Silent));
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

    #[tokio::test]
    async fn a_redis_that_takes_nothing_is_read_on() {
        let (shared, mut there) = (over(Arc::new(Broken::Full)), There::default());
        let start = Time(10_000_000);
        shared.write(&write([1; 32], start), &mut there).await;
        assert_eq!((shared.metrics.write_failed.get(), there.bytes), (1, entry().bytes()));
        shared.write(&write([1; 32], start + Micros(1)), &mut there).await;
        assert_eq!(shared.metrics.write_failed.get(), 1, "it is left alone for a while");
        assert_eq!(shared.get(&[5; 32], start + Micros(2)).await, Some(entry()));
        shared.write(&write([1; 32], start + REST), &mut there).await;
        assert_eq!(shared.metrics.write_failed.get(), 2);
    }
}
