//! Who is connected to a node, or about to be, and what each of them has there.

use crate::config::limits;
use crate::link::Link;
use crate::lost::Nonsense;
use modelless_decision::query::Class;
use modelless_decision::route::Asker;
use modelless_types::{QueryKey, QueryNumber, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bits of a key that are the gateway's; those above are the connection's. At 10,000 queries a second a gateway has
/// names for three years.
pub(crate) const KEY_BITS: u32 = 40;
/// What is left for connections.
pub(crate) const CONNECTIONS: u32 = 1 << (u64::BITS - KEY_BITS);
/// A gateway that has asked for nothing for so long leaves its share of the credit to the others.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(1);

/// A gateway (or a scheduler) that is connected.
pub(crate) struct Peer {
    pub(crate) number: u32,
    /// For people.
    pub(crate) name: String,
    pub(crate) queries: bool,
    /// Where the numbers begin by which others know its queries, if it said so.
    pub(crate) numbers_from: Option<QueryNumber>,
    /// Between heartbeats of its connection.
    pub(crate) heartbeat: Duration,
    pub(crate) link: Arc<Link>,
    pub(crate) state: Mutex<PeerState>,
    /// Number of the newest report that it was told.
    pub(crate) told: AtomicU64,
    pub(crate) telling: Mutex<()>,
}

#[derive(Default)]
pub(crate) struct PeerState {
    /// It takes part of the credit: it is a gateway, and has not gone.
    asks: bool,
    pub(crate) open: BTreeSet<u64>,
    /// What it announced here and has neither sent nor taken back.
    announced: BTreeSet<u64>,
    pub(crate) demand: BTreeMap<Class, Waiting>,
    asker: Asker,
    /// Queries of all classes that wait there and count.
    waiting: u64,
    /// What it was found to weigh last; 0 if it asks for nothing.
    pub(crate) weighs: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) queries: u32,
    pub(crate) first: Option<Instant>,
    told: Instant,
    /// Part of what the gateway weighs: queries that were said to wait a while ago may have gone to other nodes since.
    counts: bool,
}

pub(crate) fn qualified(number: u32, key: QueryKey) -> QueryKey {
    QueryKey(u64::from(number) << KEY_BITS | key.0)
}

/// The connection, and the key there.
pub(crate) fn unqualified(key: QueryKey) -> (u32, QueryKey) {
    let number = u32::try_from(key.0 >> KEY_BITS).unwrap_or(u32::MAX);
    (number, QueryKey(key.0 & ((1 << KEY_BITS) - 1)))
}

impl Peer {
    pub(crate) fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerState {
    /// Of one that has said nothing yet; whether it takes part of the credit.
    pub(crate) fn new(asks: bool) -> Self {
        Self { asks, ..Self::default() }
    }

    /// Whether a query is the first in a while; `None` if there is one of its name. It is announced no longer.
    pub(crate) fn opens(&mut self, key: QueryKey, now: Time) -> Result<Option<bool>, Nonsense> {
        if self.open.len() >= limits::OPEN || key.0 >> KEY_BITS != 0 {
            return Err(Nonsense::TooMany { what: "queries", limit: limits::OPEN });
        }
        self.announced.remove(&key.0);
        if !self.open.insert(key.0) {
            return Ok(None);
        }
        Ok(Some(self.asker.sent(now)))
    }

    /// Whether that a query is announced is news: of one that was sent already it is told late, by another thread of its gateway.
    pub(crate) fn announces(&mut self, key: QueryKey) -> Result<bool, Nonsense> {
        if self.announced.len() >= limits::OPEN || key.0 >> KEY_BITS != 0 {
            return Err(Nonsense::TooMany { what: "queries announced", limit: limits::OPEN });
        }
        Ok(!self.open.contains(&key.0) && self.announced.insert(key.0))
    }

    /// A query is announced here no longer. Whether it was.
    pub(crate) fn withdrawn(&mut self, key: QueryKey) -> bool {
        self.announced.remove(&key.0)
    }

    /// Of these, those that are still announced here.
    pub(crate) fn still_announced(&self, mut queries: Vec<QueryKey>) -> Vec<QueryKey> {
        queries.retain(|key| self.announced.contains(&key.0));
        queries
    }

    /// Its weight among the gateways that share the credit, if it has queries here or had some lately, or some wait there.
    pub(crate) fn weight(&self, now: Time) -> Option<u64> {
        let weight = self.asker.weight(now, !self.open.is_empty(), self.waiting);
        weight.filter(|_| self.asks)
    }

    /// So many queries of a class wait there, the first of them until then.
    pub(crate) fn waits(
        &mut self,
        class: Class,
        queries: u32,
        first: Option<Instant>,
    ) -> Result<(), Nonsense> {
        self.waits_no_more(&class);
        if queries == 0 {
            return Ok(());
        }
        self.waiting += u64::from(queries);
        self.demand.insert(class, Waiting { queries, first, told: Instant::now(), counts: true });
        if self.demand.len() > limits::DEMAND_CLASSES {
            let what = "classes that wait";
            return Err(Nonsense::TooMany { what, limit: limits::DEMAND_CLASSES });
        }
        Ok(())
    }

    fn waits_no_more(&mut self, class: &Class) {
        if let Some(waiting) = self.demand.remove(class).filter(|waiting| waiting.counts) {
            self.waiting -= u64::from(waiting.queries);
        }
    }

    /// [`modelless_decision::route::SHARE_BEAT`] is over.
    pub(crate) fn beat(&mut self) {
        self.asker.beat();
        for waiting in self.demand.values_mut() {
            if waiting.counts && waiting.told.elapsed() >= IDLE_AFTER {
                waiting.counts = false;
                self.waiting -= u64::from(waiting.queries);
            }
        }
    }

    /// It has gone: it takes part in nothing any longer. What it had here or had announced, and what waited there.
    pub(crate) fn leaves(&mut self) -> (BTreeSet<u64>, BTreeMap<Class, Waiting>) {
        let mut left = std::mem::take(self);
        self.weighs = left.weighs;
        left.open.append(&mut left.announced);
        (left.open, left.demand)
    }

    /// Classes of which it said that queries wait that are due by now; they are forgotten.
    pub(crate) fn old_demand(&mut self, now: Instant) -> Vec<Class> {
        let is_old = |waiting: &Waiting| waiting.first.unwrap_or(waiting.told + IDLE_AFTER) <= now;
        let old: Vec<Class> =
            self.demand.iter().filter(|(_, waiting)| is_old(waiting)).map(|(class, _)| *class).collect();
        for class in &old {
            self.waits_no_more(class);
        }
        old
    }
}

/// Connections that have not greeted yet, or not proven the key, the oldest first. However many come and say nothing, one that
/// greets at once has the time to.
#[derive(Default)]
pub(crate) struct Strangers(VecDeque<(u32, CancellationToken)>);

impl Strangers {
    /// One more. What it gets ends when it must go.
    pub(crate) fn comes(&mut self, number: u32) -> CancellationToken {
        if self.0.len() >= limits::STRANGERS
            && let Some((_, oldest)) = self.0.pop_front()
        {
            oldest.cancel();
        }
        let goes = CancellationToken::new();
        self.0.push_back((number, goes.clone()));
        goes
    }

    pub(crate) fn goes(&mut self, number: u32) {
        self.0.retain(|(other, _)| *other != number);
    }
}
