//! What the router's decisions need that the router itself never holds: payloads, and where the answer goes.
//!
//! An entry leaves exactly once, by whoever takes it out first: the answer, a refusal, or the client's going away.
//! Bounded by a count, besides the bound on connections.
//!
//! What goes on at a node after its client went away, or was told that it is too late, keeps its place among the open queries of whoever asked,
//! where those are bounded: until the node says how it ended, or should have.

use crate::access::Open as Place;
use modelless_decision::Query;
use modelless_types::{Micros, NodeId, QueryKey, Refusal, TenantId, Time};
use modelless_wire::{Answer, Connection, Input, InputFault};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

/// So many nodes that a query was taken from are remembered for its trace; more are hardly ever.
const BEFORE_MOST: usize = 8;
/// What goes on at a node, nobody knows how long as it is overdue, keeps its places for so long at least.
const OVERDUE: Micros = Micros::from_secs(1);

/// How a query ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Box<Answer>),
    Refused(Refusal),
    BadInput(InputFault, String),
}

/// The last time a query was given to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) node: NodeId,
    /// One node may have been reached over another one since, where it was not sent.
    pub(crate) over: Connection,
    /// From `at` to the answer, 99th percentile.
    pub(crate) expected: Micros,
}

/// What became of a node's word on a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// It is over, now or since before.
    Ended,
    /// It is over by the answer of a node that it had been taken from: whoever has it now works for nobody.
    Overtook,
    /// It goes on: the query had been taken from that node.
    Stale,
}

/// Who ended a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// A node that had it.
    Node,
    /// The router, which had it.
    Router,
    /// The router, past its time, while its node had it and may go on with it.
    Overdue,
}

/// What the waiting request is told.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    pub(crate) by: By,
    /// When the router took it in.
    pub(crate) placed: Time,
    pub(crate) way: Way,
}

/// Where a query went, as far as it came.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Way {
    /// The last time.
    pub(crate) sent: Option<Sent>,
    /// Before that; empty as a rule, which costs nothing.
    pub(crate) before: Vec<Sent>,
}

#[derive(Debug)]
struct Entry {
    query: Query,
    input: Input,
    placed: Time,
    way: Way,
    /// Its node has kept it past its time.
    overdue: bool,
    reply: oneshot::Sender<Reply>,
}

impl Entry {
    /// Tells whoever asked; gives whether anybody still waited.
    fn end(self, by: By, outcome: Outcome) -> bool {
        let Self { placed, way, reply, query: _, input: _, overdue: _ } = self;
        reply.send(Reply { outcome, by, placed, way }).is_ok()
    }
}

/// The places of a query that goes on though nobody waits for it, of its application and its tenant.
pub(crate) type Places = [Option<Place>; 2];

/// Nobody waits for it, and it goes on.
#[derive(Debug)]
struct GoesOn {
    until: Time,
    _places: Places,
}

/// Open queries, and how many each tenant has of them.
#[derive(Debug, Default)]
struct Open {
    entries: HashMap<QueryKey, Entry>,
    of: HashMap<TenantId, usize>,
    /// No more than may be open.
    go_on: HashMap<QueryKey, GoesOn>,
    /// When the first of those is to end.
    first: Option<Time>,
}

impl Open {
    fn insert(&mut self, entry: Entry) {
        *self.of.entry(entry.query.tenant).or_default() += 1;
        self.entries.insert(entry.query.key, entry);
    }

    fn remove(&mut self, key: QueryKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        if let Some(count) = self.of.get_mut(&entry.query.tenant) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&entry.query.tenant);
            }
        }
        Some(entry)
    }

    /// A query keeps its places until then; no more than `most` do.
    fn goes_on(&mut self, now: Time, key: QueryKey, one: GoesOn, most: usize) {
        if self.go_on.len() >= most {
            self.ended_by(now);
        }
        if self.go_on.len() < most {
            self.first = Some(self.first.map_or(one.until, |first| first.min(one.until)));
            self.go_on.insert(key, one);
        }
    }

    fn ended_by(&mut self, now: Time) -> bool {
        if self.first.is_none_or(|first| first > now) {
            return false;
        }
        let before = self.go_on.len();
        self.go_on.retain(|_, one| one.until > now);
        self.first = self.go_on.values().map(|one| one.until).min();
        self.go_on.len() < before
    }
}

/// How long a query goes on that nobody waits for any longer. Before its time is over a node lets go of what it had not begun and says nothing;
/// what it has still after that it has begun.
fn goes_on_until(now: Time, sent: &Sent, expires: Time) -> Time {
    let expected = sent.at + sent.expected;
    let overdue = now + sent.expected.max(OVERDUE);
    let until = if expected > now { expected } else { overdue };
    if now < expires { until.min(expires) } else { until }
}

/// All open queries.
#[derive(Debug)]
pub(crate) struct Pending {
    open: Mutex<Open>,
    limit: usize,
    /// Of one tenant, once there are several.
    of_tenant: usize,
    idle: Notify,
}

impl Pending {
    /// So many at once. Of these `waiting` may wait for a node, and where there are several tenants none gets more than half of the places there
    /// either: a request of many rows, or a connection with many calls, has many queries open.
    pub(crate) fn new(limit: usize, waiting: u32) -> Self {
        let of_tenant = (limit.min(usize::try_from(waiting).unwrap_or(usize::MAX)) / 2).max(1);
        Self { open: Mutex::default(), limit, of_tenant, idle: Notify::new() }
    }

    /// Whose it is, if somebody waits for it.
    pub(crate) fn tenant_of(&self, key: QueryKey) -> Option<TenantId> {
        self.lock().entries.get(&key).map(|entry| entry.query.tenant)
    }

    /// Takes a query in; gives the bound if there are that many already. `alone` is whether there is no other tenant.
    pub(crate) fn insert(
        &self,
        (placed, alone): (Time, bool),
        query: Query,
        input: Input,
        reply: oneshot::Sender<Reply>,
    ) -> Result<(), u32> {
        let mut open = self.lock();
        // What spare time is spent on takes no places from queries.
        let limit = if query.priority.is_spare() { (self.limit / 4).max(1) } else { self.limit };
        let own = open.of.get(&query.tenant).copied().unwrap_or_default();
        let of_tenant = if alone { limit } else { limit.min(self.of_tenant) };
        for (count, most) in [(open.entries.len(), limit), (own, of_tenant)] {
            if count >= most {
                return Err(u32::try_from(most).unwrap_or(u32::MAX));
            }
        }
        open.insert(Entry { query, input, placed, way: Way::default(), overdue: false, reply });
        Ok(())
    }

    /// The query, if somebody waits for it.
    pub(crate) fn query(&self, key: QueryKey) -> Option<Query> {
        self.lock().entries.get(&key).map(|entry| entry.query)
    }

    /// It goes to a node: what to send, unless nobody waits any longer. The payload stays, in case it comes back.
    pub(crate) fn send(&self, key: QueryKey, sent: Sent) -> Option<(Query, Input)> {
        let mut open = self.lock();
        let entry = open.entries.get_mut(&key)?;
        entry.overdue = false;
        let Way { sent: last, before } = &mut entry.way;
        let earlier = last.replace(sent);
        if before.len() < BEFORE_MOST {
            before.extend(earlier);
        }
        Some((entry.query, entry.input.clone()))
    }

    /// A node is to forget it, and it is still open: the node has kept it past its time, and goes on with what it has begun.
    pub(crate) fn overdue(&self, key: QueryKey, at: NodeId) {
        if let Some(entry) = self.lock().entries.get_mut(&key) {
            entry.overdue = entry.way.sent.is_some_and(|sent| sent.node == at);
        }
    }

    /// It ended here. Whether anybody still waited for it.
    pub(crate) fn finish(&self, key: QueryKey, outcome: Outcome) -> bool {
        let Some(entry) = self.take(key) else { return false };
        let by = if entry.overdue { By::Overdue } else { By::Router };
        entry.end(by, outcome)
    }

    /// A node says how it ended. An answer counts whoever gives it; a no counts only from the node that has it now, over the connection
    /// that it went over.
    pub(crate) fn told(&self, key: QueryKey, by: NodeId, over: Connection, outcome: Outcome) -> Told {
        let entry = {
            let mut open = self.lock();
            let Some(entry) = open.entries.get(&key) else {
                open.go_on.remove(&key);
                return Told::Ended;
            };
            let elsewhere = entry.way.sent.is_none_or(|sent| sent.node != by || sent.over != over);
            if elsewhere && !matches!(outcome, Outcome::Answered(_)) {
                return Told::Stale;
            }
            let taken = open.remove(key).map(|entry| (entry, elsewhere));
            if open.entries.is_empty() {
                self.idle.notify_waiters();
            }
            taken
        };
        let Some((entry, elsewhere)) = entry else { return Told::Ended };
        // Whoever asked may be gone.
        let _ = entry.end(By::Node, outcome);
        if elsewhere { Told::Overtook } else { Told::Ended }
    }

    /// Whether it was given to this node again, over another connection than this one.
    pub(crate) fn is_again(&self, key: QueryKey, at: NodeId, over: Connection) -> bool {
        let sent = self.lock().entries.get(&key).and_then(|entry| entry.way.sent);
        sent.is_some_and(|sent| sent.node == at && sent.over != over)
    }

    /// Nobody waits for it any longer. Where it went, if it was still open; what goes on at a node takes `places` until it has ended there, or
    /// should have.
    pub(crate) fn abandon(
        &self,
        now: Time,
        key: QueryKey,
        places: impl FnOnce() -> Option<Places>,
    ) -> Option<Way> {
        let mut open = self.lock();
        let entry = open.remove(key)?;
        if let Some(sent) = entry.way.sent
            && let Some(places) = places()
        {
            let until = goes_on_until(now, &sent, entry.query.expires);
            open.goes_on(now, key, GoesOn { until, _places: places }, self.limit);
        }
        if open.entries.is_empty() {
            self.idle.notify_waiters();
        }
        Some(entry.way)
    }

    /// It was refused past its time, and goes on at its node: it takes `places` until the node says that it has ended there, or should have.
    pub(crate) fn goes_on(
        &self,
        now: Time,
        key: QueryKey,
        sent: &Sent,
        places: impl FnOnce() -> Option<Places>,
    ) {
        if let Some(places) = places() {
            let until = goes_on_until(now, sent, now);
            self.lock().goes_on(now, key, GoesOn { until, _places: places }, self.limit);
        }
    }

    #[cfg(test)]
    pub(crate) fn going_on(&self) -> usize {
        self.lock().go_on.len()
    }

    /// Gives back the places of what should have ended by now. Whether there was any.
    pub(crate) fn ended_by(&self, now: Time) -> bool {
        self.lock().ended_by(now)
    }

    /// Refuses all of them; gives back which they were.
    pub(crate) fn refuse_all(&self, refusal: &Refusal) -> Vec<QueryKey> {
        let mut keys: Vec<QueryKey> = self.lock().entries.keys().copied().collect();
        keys.sort_unstable();
        keys.retain(|key| self.finish(*key, Outcome::Refused(refusal.clone())));
        keys
    }

    fn take(&self, key: QueryKey) -> Option<Entry> {
        let mut open = self.lock();
        let entry = open.remove(key);
        if open.entries.is_empty() {
            self.idle.notify_waiters();
        }
        entry
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// How many were given to a node last, whether it gave them back since or not.
    pub(crate) fn at(&self, node: NodeId) -> usize {
        self.lock()
            .entries
            .values()
            .filter(|entry| entry.way.sent.is_some_and(|sent| sent.node == node))
            .count()
    }

    /// Waits until there is none.
    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            idle.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("nothing that holds this lock can panic; this is a bug")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_over_when_it_was_expected_to_be_and_what_is_overdue_a_second_later() {
        let at = Time(1_000_000);
        let sent = |expected| Sent { at, node: NodeId(1), over: Connection::default(), expected };
        let (soon, now) = (at + Micros::from_millis(5), at + Micros::from_millis(100));
        let expires = at + Micros::from_secs(30);
        let brief = sent(Micros::from_millis(10));
        assert_eq!(goes_on_until(soon, &brief, expires), at + Micros::from_millis(10));
        assert_eq!(goes_on_until(now, &brief, expires), now + OVERDUE);
        let soon_over = now + Micros(1);
        assert_eq!(goes_on_until(now, &brief, soon_over), soon_over, "what was not begun by then never is");
        assert_eq!(goes_on_until(now, &brief, now), now + OVERDUE, "what is there still was begun");
        let (long, late) = (sent(Micros::from_secs(3)), at + Micros::from_secs(4));
        assert_eq!(goes_on_until(late, &long, expires), late + Micros::from_secs(3));
    }
}
