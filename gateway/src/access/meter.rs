//! What a tenant or an application has used of its quota, at this gateway.
//!
//! A quota is one for all gateways, and each grants an equal share of it: so many gateways as the live state tells. Nothing is asked of
//! anybody while a query waits. Together they never grant more than the quota and one request for each gateway; whoever sends everything to one of
//! several gets that one's share only. When a gateway comes or goes, the others follow with the next heartbeat.

use super::bucket::Bucket;
use super::room::Room;
use crate::errors::ApiError;
use http::StatusCode;
use modelless_store::Quota;
use modelless_types::{Micros, Time};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Device time that may be used at once, of the share of an hour: a minute's worth.
const DEVICE_BURST_US: u64 = 60 * 1_000_000;
const SECOND_US: u64 = 1_000_000;
const HOUR_S: u64 = 3_600;
/// What changes something: so many of them a second, and so many at once.
const CHANGES_PER_S: u64 = 20;
const CHANGES_AT_ONCE: u64 = 200;
/// What is asked of the store without changing anything, by one application: so many times a second, and so many at once.
const READS_PER_S: u64 = 100;
const READS_AT_ONCE: u64 = 1_000;
/// Regions of shared memory that are registered: each has files opened and a table of the system's read.
const REGIONS_PER_S: u64 = 20;
const REGIONS_AT_ONCE: u64 = 200;
/// Refusals that are noted: one in so long, and so many at once.
const REFUSED_EVERY_US: u64 = 10 * SECOND_US;
const REFUSED_AT_ONCE: u64 = 60;
/// For so long after a body that was too large a tenant's others are read no faster than so, all together, but for the first part of each.
const OVERSIZED_US: u64 = 60 * SECOND_US;
const LARGE_BYTES_PER_S: u64 = 16 << 20;
/// Each further one meanwhile halves that, so many times at most: down to 1 MiB a second.
const HALVED_AT_MOST: u32 = 4;
/// Bodies of a tenant that take long to come, at one time.
const SLOW_BODIES: u32 = 100;
/// Nobody is told to come again later than in an hour.
const LATEST_S: u64 = 3_600;
/// Bodies of a tenant that are unpacked at a time: it never has more than half of the cores with that.
static UNPACKED_AT_ONCE: LazyLock<NonZeroUsize> = LazyLock::new(|| {
    let half = available_parallelism().map_or(0, |cores| cores.get() / 2);
    NonZeroUsize::new(half).unwrap_or(NonZeroUsize::MIN)
});

/// How many gateways share a quota.
pub(crate) type Sharing = Arc<AtomicU32>;

/// Of one owner.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Whose, for people.
    whose: String,
    pub(crate) quota: Quota,
    sharing: Sharing,
    requests: Bucket,
    device: Bucket,
    changes: Bucket,
    reads: Bucket,
    regions: Bucket,
    refusals: Bucket,
    /// Refusals that were not noted since the last one that was.
    unsaid: AtomicU64,
    open: AtomicU32,
    uploads: AtomicU32,
    follows: AtomicU32,
    /// Of its quota of artefacts.
    pub(super) room: Room,
    /// Bytes of bodies.
    pub(crate) held: AtomicU64,
    /// One of its bodies was too large: the others are read slowly until then.
    oversized: AtomicU64,
    halved: AtomicU32,
    large: Bucket,
    /// Bodies that take long to come.
    slow: AtomicU32,
    /// Turns at unpacking what came packed.
    unpacking: Arc<Semaphore>,
}

/// What a request asks: so many queries, of which so many are open at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queries {
    pub(crate) all: u64,
    pub(crate) open: u32,
}

impl Queries {
    pub(crate) const ONE: Self = Self { all: 1, open: 1 };

    /// Of so many rows, asked so many at a time.
    pub(crate) fn of(rows: usize, at_once: usize) -> Self {
        Self { all: rows as u64, open: u32::try_from(rows.min(at_once)).unwrap_or(u32::MAX) }
    }
}

/// Queries that are open, in one owner's count.
#[derive(Debug)]
pub(crate) struct Open {
    meter: Arc<Meter>,
    queries: u32,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.meter.open.fetch_sub(self.queries, Ordering::Relaxed);
    }
}

/// A body that takes long to come.
#[derive(Debug)]
pub(crate) struct SlowBody<'a>(&'a Meter);

impl Drop for SlowBody<'_> {
    fn drop(&mut self) {
        self.0.slow.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One of a tenant's places for what goes on for a while, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: Arc<Meter>,
    taken: fn(&Meter) -> &AtomicU32,
}

impl Place {
    /// For an upload that is being written.
    pub(super) fn upload(of: &Arc<Meter>, most: u32) -> Option<Self> {
        Self::take(of, |meter| &meter.uploads, most)
    }

    /// For an answer that tells what happens.
    pub(super) fn follow(of: &Arc<Meter>, most: u32) -> Option<Self> {
        Self::take(of, |meter| &meter.follows, most)
    }

    fn take(of: &Arc<Meter>, taken: fn(&Meter) -> &AtomicU32, most: u32) -> Option<Self> {
        let more = |open: u32| (open < most).then_some(open + 1);
        taken(of).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { of: Arc::clone(of), taken })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        (self.taken)(&self.of).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meter {
    pub(crate) fn new(whose: String, quota: Quota, sharing: Sharing) -> Self {
        Self {
            whose,
            quota,
            sharing,
            requests: Bucket::default(),
            device: Bucket::default(),
            changes: Bucket::default(),
            reads: Bucket::default(),
            regions: Bucket::default(),
            refusals: Bucket::default(),
            unsaid: AtomicU64::new(0),
            open: AtomicU32::new(0),
            uploads: AtomicU32::new(0),
            follows: AtomicU32::new(0),
            room: Room::default(),
            held: AtomicU64::new(0),
            oversized: AtomicU64::new(0),
            halved: AtomicU32::new(0),
            large: Bucket::default(),
            slow: AtomicU32::new(0),
            unpacking: Arc::new(Semaphore::new(UNPACKED_AT_ONCE.get())),
        }
    }

    fn gateways(&self) -> u32 {
        self.sharing.load(Ordering::Relaxed).max(1)
    }

    /// Lets in all queries of a request, or says which bound they would break: none is run then.
    pub(crate) fn begin(self: &Arc<Self>, now: Time, queries: Queries) -> Result<Open, ApiError> {
        let open = self.enter(queries.open)?;
        self.has_device_time(now)?;
        self.ask(now, queries.all)?;
        Ok(open)
    }

    /// Counts so many queries, or what is as much work as they are.
    pub(crate) fn ask(&self, now: Time, queries: u64) -> Result<(), ApiError> {
        let Some((rate, cost, burst)) = self.requests_rate() else { return Ok(()) };
        let at_once = self.quota.burst.map_or(rate, u64::from);
        let bound = format!("{rate} queries a second, {at_once} at once");
        let all = cost.saturating_mul(queries);
        if all > burst {
            return Err(self.too_many(queries, &bound));
        }
        self.requests.take(now.0, all, burst).map_err(|wait| self.over(&bound, wait))
    }

    /// Takes back what was counted of a request that was refused all the same.
    pub(crate) fn take_back(&self, queries: u64) {
        if let Some((_, cost, _)) = self.requests_rate() {
            self.requests.put_back(cost.saturating_mul(queries));
        }
    }

    /// Queries a second, and of those of this gateway what one takes and how much may be out.
    fn requests_rate(&self) -> Option<(u64, u64, u64)> {
        let rate = self.quota.requests_per_s.map(|rate| u64::from(rate).max(1))?;
        let cost = (SECOND_US * u64::from(self.gateways())).div_ceil(rate);
        let burst = self.quota.burst.map_or(rate, u64::from);
        Some((rate, cost, (SECOND_US * burst / rate).max(cost)))
    }

    /// Refuses where the time of devices is used up.
    pub(crate) fn has_device_time(&self, now: Time) -> Result<(), ApiError> {
        let Some(device) = self.quota.device_s_per_h else { return Ok(()) };
        let taken = self.device.take(now.0, 0, DEVICE_BURST_US);
        taken.map_err(|wait| self.over(&format!("{device} seconds of devices' time an hour"), wait))
    }

    /// Lets a change through, unless there are too many. Each gateway counts its own.
    pub(crate) fn change(&self, now: Time) -> Result<(), ApiError> {
        let (cost, burst) = (SECOND_US / CHANGES_PER_S, SECOND_US * CHANGES_AT_ONCE / CHANGES_PER_S);
        self.changes.take(now.0, cost, burst).map_err(|wait| {
            self.over(&format!("{CHANGES_PER_S} changes a second, {CHANGES_AT_ONCE} at once"), wait)
        })
    }

    /// Lets a look into the store through, unless there are too many. They are apart from changes, so that who looks all the time keeps nobody from
    /// changing something.
    pub(crate) fn read(&self, now: Time) -> Result<(), ApiError> {
        let (cost, burst) = (SECOND_US / READS_PER_S, SECOND_US * READS_AT_ONCE / READS_PER_S);
        self.reads.take(now.0, cost, burst).map_err(|wait| {
            self.over(&format!("{READS_PER_S} looks into the store a second, {READS_AT_ONCE} at once"), wait)
        })
    }

    /// Lets a registration of shared memory through, unless there are too many. They are apart from changes, so that who may only ask
    /// keeps nobody from changing something.
    pub(crate) fn region(&self, now: Time) -> Result<(), ApiError> {
        let (cost, burst) = (SECOND_US / REGIONS_PER_S, SECOND_US * REGIONS_AT_ONCE / REGIONS_PER_S);
        self.regions.take(now.0, cost, burst).map_err(|wait| {
            self.over(
                &format!("{REGIONS_PER_S} regions registered in a second, {REGIONS_AT_ONCE} at once"),
                wait,
            )
        })
    }

    /// Something was refused for want of a right: whether that is to be noted, and how many were not since the last one that was.
    pub(crate) fn refused(&self, now: Time) -> Option<u64> {
        if self.refusals.take(now.0, REFUSED_EVERY_US, REFUSED_EVERY_US * REFUSED_AT_ONCE).is_err() {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.unsaid.swap(0, Ordering::Relaxed))
    }

    /// How many may be open at this gateway.
    pub(crate) fn places(&self) -> Option<u32> {
        self.quota.concurrency.map(|most| most.div_ceil(self.gateways()).max(1))
    }

    fn enter(self: &Arc<Self>, queries: u32) -> Result<Open, ApiError> {
        let share = self.quota.concurrency.map(|most| most.div_ceil(self.gateways()));
        let bound = || format!("{} open queries", self.quota.concurrency.unwrap_or(0));
        let entered = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            let after = open.saturating_add(queries);
            share.is_none_or(|share| after <= share).then_some(after)
        });
        entered.map(|_| Open { meter: Arc::clone(self), queries }).map_err(|_| self.over(&bound(), SECOND_US))
    }

    /// Counts a query that goes on though nobody waits for it, where open ones are bounded. The place that it had goes with whoever asked.
    pub(crate) fn goes_on(self: &Arc<Self>) -> Option<Open> {
        self.quota.concurrency?;
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Open { meter: Arc::clone(self), queries: 1 })
    }

    /// One of its bodies was too large.
    pub(crate) fn oversized(&self, now: Time) {
        let before = self.oversized.swap(now.0 + OVERSIZED_US, Ordering::Relaxed);
        let halved = if now.0 >= before { 0 } else { self.halved.load(Ordering::Relaxed) + 1 };
        self.halved.store(halved.min(HALVED_AT_MOST), Ordering::Relaxed);
    }

    /// How long to wait before so many bytes more of a large body are read.
    pub(crate) fn pace(&self, now: Time, bytes: u64) -> Micros {
        if now.0 >= self.oversized.load(Ordering::Relaxed) {
            return Micros::ZERO;
        }
        let per_s = LARGE_BYTES_PER_S >> self.halved.load(Ordering::Relaxed);
        Micros(self.large.reserve(now.0, bytes.saturating_mul(SECOND_US) / per_s))
    }

    /// A place for a body that takes long to come.
    pub(crate) fn slow_body(&self) -> Option<SlowBody<'_>> {
        let more = |slow: u32| (slow < SLOW_BODIES).then_some(slow + 1);
        let began = self.slow.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        began.ok().map(|_| SlowBody(self))
    }

    /// A turn at unpacking a body, when it comes.
    pub(crate) async fn turn_to_unpack(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unpacking).acquire_owned().await.ok() // it is closed by nobody
    }

    /// Charges what an answer took of a device.
    pub(crate) fn used(&self, now: Time, device: Micros) {
        let Some(per_hour) = self.quota.device_s_per_h.map(u64::from) else { return };
        let gateways = u64::from(self.gateways());
        // What fills up again in an hour is `per_hour` seconds.
        let cost = device.0.saturating_mul(HOUR_S * gateways) / per_hour.max(1);
        self.device.charge(now.0, cost);
    }

    fn over(&self, bound: &str, wait: u64) -> ApiError {
        let message = format!("the quota of {} is used up: {bound}{}", self.whose, self.shared());
        let retry = wait.div_ceil(SECOND_US).clamp(1, LATEST_S);
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message);
        ApiError { retry_after_s: Some(retry), ..error }
    }

    /// However long they wait, so many of one request never go in: there is no use in trying again.
    fn too_many(&self, queries: u64, bound: &str) -> ApiError {
        let message = format!(
            "the request has {queries} queries at once, and the quota of {} is {bound}{}; send fewer in one request",
            self.whose,
            self.shared()
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    fn shared(&self) -> String {
        let gateways = self.gateways();
        if gateways > 1 { format!(", shared by {gateways} gateways") } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(quota: Quota, gateways: u32) -> Arc<Meter> {
        Arc::new(Meter::new("tenant a".to_owned(), quota, Arc::new(AtomicU32::new(gateways))))
    }

    /// How many of so many queries are let in at these moments.
    fn admitted(meter: &Arc<Meter>, moments: impl Iterator<Item = u64>) -> usize {
        moments.filter(|at| meter.begin(Time(*at), Queries::ONE).is_ok()).count()
    }

    #[test]
    fn what_is_admitted_is_the_burst_and_then_the_rate() {
        let quota = Quota { requests_per_s: Some(100), burst: Some(20), ..Quota::default() };
        let meter = meter(quota, 1);
        assert_eq!(admitted(&meter, std::iter::repeat_n(1_000_000, 50)), 20);
        let refused = meter.begin(Time(1_000_000), Queries::ONE).unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.reason, refused.retry_after_s),
            (429, "over_quota", Some(1))
        );
        // For ten seconds ten times as many as are allowed.
        let ten_seconds = (1..=10_000).map(|ms| 1_000_000 + ms * 1_000);
        assert_eq!(admitted(&meter, ten_seconds), 1_000);
    }

    #[test]
    fn several_gateways_together_grant_the_quota_and_one_each_at_most() {
        for gateways in [2, 3, 7] {
            let quota = Quota { requests_per_s: Some(10), burst: Some(5), ..Quota::default() };
            let all: Vec<Arc<Meter>> = (0..gateways).map(|_| meter(quota.clone(), gateways)).collect();
            let second = |at: u64| (0..1_000).map(move |ms| at + ms * 1_000);
            let granted: usize =
                all.iter().map(|one| admitted(one, (0..20).flat_map(|s| second(s * 1_000_000)))).sum();
            let most = 10 * 20 + 5 + usize::try_from(gateways).unwrap();
            assert!((10 * 20 - 20..=most).contains(&granted), "{gateways} gateways granted {granted}");
        }
    }

    #[test]
    fn a_query_that_has_ended_makes_room_for_another() {
        let meter = meter(Quota { concurrency: Some(2), ..Quota::default() }, 1);
        let first = meter.begin(Time(1), Queries::ONE).unwrap();
        let _second = meter.begin(Time(1), Queries::ONE).unwrap();
        assert_eq!(meter.begin(Time(1), Queries::ONE).unwrap_err().reason, "over_quota");
        drop(first);
        assert!(meter.begin(Time(1), Queries::ONE).is_ok());
    }

    #[test]
    fn a_request_of_many_queries_is_let_in_whole_or_not_at_all() {
        let quota =
            Quota { requests_per_s: Some(10), burst: Some(20), concurrency: Some(8), ..Quota::default() };
        let meter = meter(quota, 1);
        let at = Time(1_000_000);
        let open = meter.begin(at, Queries::of(12, 6)).unwrap();
        let refused = meter.begin(at, Queries::of(3, 6)).unwrap_err();
        assert_eq!((refused.reason, refused.retry_after_s), ("over_quota", Some(1)), "nine would be open");
        drop(open);
        let refused = meter.begin(at, Queries::of(9, 6)).unwrap_err();
        assert_eq!((refused.reason, refused.retry_after_s), ("over_quota", Some(1)), "21 would be asked");
        assert!(meter.begin(at, Queries::of(8, 6)).is_ok(), "what was refused took nothing");
        let refused = meter.begin(Time(100_000_000), Queries::of(21, 1)).unwrap_err();
        assert_eq!((refused.reason, refused.retry_after_s), ("too_large", None), "it never goes in");
        assert!(refused.message.contains("send fewer"), "{}", refused.message);
    }

    #[test]
    fn what_was_counted_of_a_request_that_others_refused_is_taken_back() {
        let quota = Quota { requests_per_s: Some(1), burst: Some(4), ..Quota::default() };
        let meter = meter(quota, 1);
        let at = Time(1_000_000);
        meter.ask(at, 4).unwrap();
        assert!(meter.ask(at, 1).is_err());
        meter.take_back(4);
        assert!(meter.ask(at, 4).is_ok());
    }

    #[test]
    fn a_query_that_goes_on_keeps_its_place_where_places_are_bounded() {
        let meter = meter(Quota { concurrency: Some(1), ..Quota::default() }, 1);
        let open = meter.begin(Time(1), Queries::ONE).unwrap();
        let goes_on = meter.goes_on();
        drop(open);
        assert!(meter.begin(Time(1), Queries::ONE).is_err());
        drop(goes_on);
        assert!(meter.begin(Time(1), Queries::ONE).is_ok());
        assert!(self::meter(Quota::default(), 1).goes_on().is_none());
    }

    #[test]
    fn looks_into_the_store_are_let_through_until_there_are_too_many() {
        let meter = meter(Quota::default(), 1);
        let looked = |at: u64| (0..5_000).filter(|_| meter.read(Time(at)).is_ok()).count();
        assert_eq!(looked(1_000_000), 1_000);
        let refused = meter.read(Time(1_000_000)).unwrap_err();
        assert_eq!((refused.reason, refused.retry_after_s), ("over_quota", Some(1)));
        assert_eq!(looked(2_000_000), 100);
    }

    #[test]
    fn device_time_is_charged_when_it_was_used_and_comes_back_with_time() {
        // A second of every ten.
        let meter = meter(Quota { device_s_per_h: Some(360), ..Quota::default() }, 1);
        let at = 5_000_000;
        assert!(meter.begin(Time(at), Queries::ONE).is_ok());
        meter.used(Time(at), Micros(7_000_000)); // 70 s until that is back, of which 60 may be out
        let refused = meter.begin(Time(at), Queries::ONE).unwrap_err();
        assert_eq!(refused.retry_after_s, Some(10));
        assert!(meter.begin(Time(at + 9_000_000), Queries::ONE).is_err());
        assert!(meter.begin(Time(at + 10_000_000), Queries::ONE).is_ok());
    }

    #[test]
    fn changes_are_let_through_until_there_are_too_many_whatever_the_quota() {
        let meter = meter(Quota::default(), 1);
        let changed = |at: u64| (0..1_000).filter(|_| meter.change(Time(at)).is_ok()).count();
        assert_eq!(changed(1_000_000), 200);
        let refused = meter.change(Time(1_000_000)).unwrap_err();
        assert_eq!((refused.reason, refused.retry_after_s), ("over_quota", Some(1)));
        assert_eq!(changed(2_000_000), 20);
    }

    #[test]
    fn a_flood_of_refusals_is_noted_in_part_and_its_rest_counted() {
        let meter = meter(Quota::default(), 1);
        let noted =
            |at: u64, all: usize| (0..all).filter_map(|_| meter.refused(Time(at))).collect::<Vec<_>>();
        assert_eq!(noted(1_000_000, 10_000), [0; 60]);
        assert!(noted(10_999_999, 50).is_empty(), "not before ten seconds are over");
        assert_eq!(noted(11_000_000, 50), [9_940 + 50]);
        assert_eq!(noted(21_000_000, 1), [49]);
    }

    #[test]
    fn a_tenant_has_a_part_of_the_places_for_uploads() {
        let meter = meter(Quota::default(), 1);
        let first = Place::upload(&meter, 2).unwrap();
        let _second = Place::upload(&meter, 2).unwrap();
        assert!(Place::upload(&meter, 2).is_none());
        drop(first);
        assert!(Place::upload(&meter, 2).is_some());
    }

    #[test]
    fn without_a_quota_nothing_is_refused() {
        let meter = meter(Quota::default(), 3);
        meter.used(Time(1), Micros(u64::MAX));
        assert_eq!(admitted(&meter, std::iter::repeat_n(1, 10_000)), 10_000);
    }

    #[test]
    fn after_a_body_that_was_too_large_large_ones_are_read_slowly_for_a_while() {
        let meter = meter(Quota::default(), 1);
        assert_eq!(meter.pace(Time(1), 1 << 30), Micros::ZERO);
        meter.oversized(Time(1));
        assert_eq!(meter.pace(Time(2), LARGE_BYTES_PER_S / 2), Micros(500_000));
        assert_eq!(meter.pace(Time(2), LARGE_BYTES_PER_S / 2), Micros(1_000_000), "all of them together");
        assert_eq!(meter.pace(Time(2_000_002), LARGE_BYTES_PER_S / 2), Micros(500_000));
        assert_eq!(meter.pace(Time(1 + OVERSIZED_US), 1 << 30), Micros::ZERO, "it is over");
    }

    #[test]
    fn each_further_body_that_is_too_large_halves_the_pace_down_to_one_mebibyte_a_second() {
        let meter = meter(Quota::default(), 1);
        let mut now = Time(1);
        let paces = [16, 8, 4, 2, 1, 1].map(|_| {
            meter.oversized(now);
            now = now + Micros(1_000_000); // so that nothing is owed from before
            meter.pace(now, 1 << 20)
        });
        assert_eq!(paces, [16, 8, 4, 2, 1, 1].map(|per_s| Micros(SECOND_US / per_s)));
        let later = Time(now.0 + OVERSIZED_US);
        meter.oversized(later);
        assert_eq!(
            meter.pace(later, 1 << 20),
            Micros(SECOND_US / 16),
            "after a minute without it begins anew"
        );
    }

    #[tokio::test]
    async fn of_one_tenant_a_few_bodies_are_unpacked_at_a_time_and_the_next_when_one_is_done() {
        let meter = Meter::new("x".to_owned(), Quota::default(), Sharing::default());
        let mut turns = Vec::new();
        for _ in 0..UNPACKED_AT_ONCE.get() {
            turns.push(meter.turn_to_unpack().await.unwrap());
        }
        let mut next = std::pin::pin!(meter.turn_to_unpack());
        assert!(futures_util::poll!(&mut next).is_pending());
        turns.pop();
        assert!(next.await.is_some());
    }

    #[test]
    fn only_some_bodies_may_come_slowly_at_one_time() {
        let meter = meter(Quota::default(), 1);
        let mut slow: Vec<_> = (0..SLOW_BODIES).map(|_| meter.slow_body().unwrap()).collect();
        assert!(meter.slow_body().is_none());
        slow.pop();
        assert!(meter.slow_body().is_some());
    }
}
