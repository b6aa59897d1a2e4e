//! What waits here unbound: by class, earliest deadline first.

use crate::query::{Class, Query};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use modelless_types::{Bytes, Priority, QueryKey, Time};

/// Where a query stands in its class: deadline, then order of coming.
type Place = (Time, QueryKey);

/// A query with what has happened to it here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) query: Query,
    /// Its batch crashed: it is rerun alone, so that one poison input costs one query.
    pub(super) alone: bool,
    /// It was in a batch whose server did not answer.
    pub(super) missed: bool,
    /// What answers it had to be loaded.
    pub(super) loaded: bool,
}

/// How much waits at gateways for a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) waiting: u32,
    pub(super) first: Time,
}

/// At most this many classes' demand is remembered.
const DEMAND_CLASSES: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    queries: BTreeMap<QueryKey, Waiting>,
    classes: BTreeMap<Class, BTreeSet<Place>>,
    /// By the time they stop waiting.
    expiry: BTreeSet<Place>,
    demand: BTreeMap<Class, Demand>,
    bytes: Bytes,
    /// How many of them other nodes could answer too.
    returnable: u32,
    /// How many wait at each priority level.
    levels: [u32; Priority::LOWEST as usize + 1],
}

impl Queue {
    pub(super) fn push(&mut self, waiting: Waiting) {
        let query = waiting.query;
        self.classes.entry(query.class).or_default().insert((query.deadline, query.key));
        self.expiry.insert((query.expires, query.key));
        self.bytes = self.bytes + query.bytes;
        self.levels[usize::from(query.priority.level())] += 1;
        self.returnable += u32::from(query.returnable);
        self.queries.insert(query.key, waiting);
    }

    pub(super) fn remove(&mut self, key: QueryKey) -> Option<Waiting> {
        let waiting = self.queries.remove(&key)?;
        let query = waiting.query;
        if let Some(places) = self.classes.get_mut(&query.class) {
            places.remove(&(query.deadline, key));
            if places.is_empty() {
                self.classes.remove(&query.class);
            }
        }
        self.expiry.remove(&(query.expires, key));
        self.bytes = Bytes(self.bytes.0.saturating_sub(query.bytes.0));
        self.levels[usize::from(query.priority.level())] -= 1;
        self.returnable -= u32::from(query.returnable);
        Some(waiting)
    }

    /// Another node could answer a query that waits here. One that is bound is past that.
    pub(super) fn may_return(&mut self, key: QueryKey) {
        if let Some(waiting) = self.queries.get_mut(&key) {
            self.returnable += u32::from(!waiting.query.returnable);
            waiting.query.returnable = true;
        }
    }

    pub(super) fn get(&self, key: QueryKey) -> Option<&Waiting> {
        self.queries.get(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.queries.len()
    }

    /// Whether any of those who wait could be answered by another node.
    pub(super) fn any_returnable(&self) -> bool {
        self.returnable > 0
    }

    /// Everybody who waits, in no order that matters.
    pub(super) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.queries.values()
    }

    /// Whether queries of more than one priority level wait.
    pub(super) fn mixed(&self) -> bool {
        self.levels.iter().filter(|waiting| **waiting > 0).count() > 1
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    pub(super) fn keys_of(&self, class: &Class) -> Vec<QueryKey> {
        self.classes.get(class).map(|places| places.iter().map(|(_, key)| *key).collect()).unwrap_or_default()
    }

    pub(super) fn keys(&self) -> Vec<QueryKey> {
        self.queries.keys().copied().collect()
    }

    /// Classes with someone waiting.
    pub(super) fn classes(&self) -> impl Iterator<Item = (&Class, usize)> {
        self.classes.iter().map(|(class, places)| (class, places.len()))
    }

    /// Waiting queries of all classes that `wanted` names, earliest deadline first.
    pub(super) fn merged(&self, wanted: impl Fn(&Class) -> bool) -> impl Iterator<Item = &Waiting> {
        let mut heads: Vec<_> = self
            .classes
            .iter()
            .filter(|(class, _)| wanted(class))
            .map(|(_, places)| places.iter().peekable())
            .collect();
        core::iter::from_fn(move || {
            let next = heads
                .iter_mut()
                .enumerate()
                .filter_map(|(at, places)| places.peek().map(|place| (**place, at)))
                .min()?;
            heads[next.1].next();
            self.queries.get(&next.0.1)
        })
    }

    /// The next query that stops waiting.
    pub(super) fn first_expiry(&self) -> Option<(Time, QueryKey)> {
        self.expiry.first().copied()
    }

    pub(super) fn set_demand(&mut self, class: Class, waiting: u32, first: Option<Time>) {
        match first {
            Some(first) if waiting > 0 => {
                if self.demand.contains_key(&class) || self.demand.len() < DEMAND_CLASSES {
                    self.demand.insert(class, Demand { waiting, first });
                }
            }
            Some(_) | None => {
                self.demand.remove(&class);
            }
        }
    }

    /// What waits at gateways, as far as it still can: past its first deadline a figure says nothing any more.
    pub(super) fn demand(&self, now: Time) -> impl Iterator<Item = (&Class, &Demand)> {
        self.demand.iter().filter(move |(_, demand)| demand.first > now)
    }
}
