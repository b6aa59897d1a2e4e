//! What waits here unbound: by class, earliest deadline first.

use super::places::Places;
use crate::query::{Class, Query};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Ordering;
use modelless_types::{Bytes, Priority, QueryKey, Time};

/// Where a query stands in its class: whether it is beyond a reserved share, its deadline, then order of coming.
type Place = (bool, Time, QueryKey);

/// What is within a reserved share stands before all others: behind whoever is due sooner it would come to the brink with them, and be as
/// late as they are.
fn place(query: &Query) -> Place {
    (query.priority != Priority::RESERVED, query.deadline, query.key)
}

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
    /// How it came to be here.
    pub(super) came: Came,
}

impl Waiting {
    /// As it comes: nothing has happened to it yet.
    pub(super) fn new(query: Query, came: Came) -> Self {
        Self { query, alone: false, missed: false, loaded: false, came }
    }
}

/// How a query came to be here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// It was sent here, and is nowhere else.
    Sent,
    /// It was only announced: other nodes may claim it as well.
    Announced,
    /// It was announced, and is nowhere else since this node claimed it.
    Claimed,
}

/// How much waits at gateways for a class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) waiting: u32,
    pub(super) first: Time,
}

/// At most this many classes' demand is remembered.
const DEMAND_CLASSES: usize = 1_024;

/// A query that waits: its place in its class, and where it is kept.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    slot: usize,
}

/// Most come with the latest deadline of their class and leave with the first, so classes are rows that are cheap at both ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// The queries themselves; free slots are in `free`.
    slots: Vec<Option<Waiting>>,
    free: Vec<usize>,
    queries: Places,
    classes: BTreeMap<Class, VecDeque<Entry>>,
    /// By the time they stop waiting.
    expiry: VecDeque<(Time, QueryKey)>,
    demand: BTreeMap<Class, Demand>,
    bytes: Bytes,
    /// How many of them other nodes could answer too.
    returnable: u32,
    /// How many of them waited for something to be loaded.
    gathered: usize,
    /// Of each class, how many were only announced; and how many in all.
    announced: BTreeMap<Class, usize>,
    announced_here: usize,
    /// How many wait at each priority level.
    levels: [u32; Priority::SPARE.level() as usize + 1],
}

/// Takes one out of a sorted row. Mostly it is the first: batches are drawn from there.
fn take_out<T>(row: &mut VecDeque<T>, is: impl Fn(&T) -> Ordering) {
    if row.front().is_some_and(|first| is(first).is_eq()) {
        row.pop_front();
    } else {
        row.remove(row.partition_point(|one| is(one).is_lt()));
    }
}

impl Queue {
    pub(super) fn push(&mut self, waiting: Waiting) {
        let query = waiting.query;
        self.remove(query.key); // nobody waits twice
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(waiting);
        let place = place(&query);
        let row = self.classes.entry(query.class).or_default();
        let at = row.partition_point(|entry| entry.place < place);
        row.insert(at, Entry { place, slot });
        let ends = (query.expires, query.key);
        self.expiry.insert(self.expiry.partition_point(|place| *place < ends), ends);
        if waiting.came == Came::Announced {
            *self.announced.entry(query.class).or_default() += 1;
            self.announced_here += 1;
        } else {
            self.bytes = self.bytes + query.bytes;
        }
        self.levels[usize::from(query.priority.level())] += 1;
        self.returnable += u32::from(query.returnable);
        self.gathered += usize::from(waiting.loaded);
        self.queries.insert(query.key, slot);
    }

    pub(super) fn remove(&mut self, key: QueryKey) -> Option<Waiting> {
        let slot = self.queries.remove(key)?;
        let waiting = self.slots[slot].take()?;
        self.free.push(slot);
        let query = waiting.query;
        if let Some(row) = self.classes.get_mut(&query.class) {
            let place = place(&query);
            take_out(row, |entry| entry.place.cmp(&place));
            if row.is_empty() {
                self.classes.remove(&query.class);
            }
        }
        let ends = (query.expires, key);
        take_out(&mut self.expiry, |place| place.cmp(&ends));
        if waiting.came == Came::Announced {
            self.announced_here -= 1;
            if let Some(count) = self.announced.get_mut(&query.class) {
                *count -= 1;
                if *count == 0 {
                    self.announced.remove(&query.class);
                }
            }
        } else {
            self.bytes = Bytes(self.bytes.0.saturating_sub(query.bytes.0));
        }
        self.levels[usize::from(query.priority.level())] -= 1;
        self.returnable -= u32::from(query.returnable);
        self.gathered -= usize::from(waiting.loaded);
        Some(waiting)
    }

    /// Another node could answer a query that waits here. One that is bound is past that.
    pub(super) fn may_return(&mut self, key: QueryKey) {
        if let Some(waiting) = self.queries.get(key).and_then(|slot| self.slots[slot].as_mut()) {
            self.returnable += u32::from(!waiting.query.returnable);
            waiting.query.returnable = true;
        }
    }

    /// What is to answer a query that waits here has to be loaded.
    pub(super) fn gathers(&mut self, key: QueryKey) {
        if let Some(waiting) = self.queries.get(key).and_then(|slot| self.slots[slot].as_mut()) {
            self.gathered += usize::from(!waiting.loaded);
            waiting.loaded = true;
        }
    }

    /// Whether any of those who wait did so for something to be loaded.
    pub(super) fn any_gathered(&self) -> bool {
        self.gathered > 0
    }

    pub(super) fn get(&self, key: QueryKey) -> Option<&Waiting> {
        self.queries.get(key).and_then(|slot| self.slots[slot].as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.queries.len()
    }

    /// Of those, how many were only announced.
    pub(super) fn announced(&self) -> usize {
        self.announced_here
    }

    /// The same of a class.
    pub(super) fn announced_of(&self, class: &Class) -> usize {
        self.announced.get(class).copied().unwrap_or(0)
    }

    /// How many of a class wait.
    pub(super) fn count_of(&self, class: &Class) -> usize {
        self.classes.get(class).map_or(0, VecDeque::len)
    }

    /// Those who wait here and nowhere else.
    pub(super) fn own(&self) -> usize {
        self.queries.len() - self.announced_here
    }

    /// Classes of those, and how many they are.
    pub(super) fn own_classes(&self) -> impl Iterator<Item = (&Class, usize)> {
        let own = self.classes().map(|(class, all)| (class, all - self.announced_of(class)));
        own.filter(|(_, own)| *own > 0)
    }

    /// Whether any of those who wait could be answered by another node.
    pub(super) fn any_returnable(&self) -> bool {
        self.returnable > 0
    }

    /// Everybody who waits, in no order that means anything.
    pub(super) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.slots.iter().flatten()
    }

    /// Whether queries of more than one priority level wait.
    pub(super) fn mixed(&self) -> bool {
        self.levels.iter().filter(|waiting| **waiting > 0).count() > 1
    }

    /// Whether among those of lower levels there are several.
    pub(super) fn mixed_beside_reserved(&self) -> bool {
        let reserved = usize::from(Priority::RESERVED.level()) + 1;
        self.levels[reserved..].iter().filter(|waiting| **waiting > 0).count() > 1
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    pub(super) fn keys_of(&self, class: &Class) -> Vec<QueryKey> {
        self.classes.get(class).map(|row| row.iter().map(|entry| entry.place.2).collect()).unwrap_or_default()
    }

    /// By number.
    pub(super) fn keys(&self) -> Vec<QueryKey> {
        let mut keys: Vec<QueryKey> = self.all().map(|waiting| waiting.query.key).collect();
        keys.sort_unstable();
        keys
    }

    /// Classes with someone waiting.
    pub(super) fn classes(&self) -> impl Iterator<Item = (&Class, usize)> {
        self.classes.iter().map(|(class, row)| (class, row.len()))
    }

    /// Those of a class in about equal groups, at most so many: the first of each, and how many they are.
    pub(super) fn in_groups(&self, class: &Class, groups: usize) -> impl Iterator<Item = (&Waiting, usize)> {
        let row = self.classes.get(class);
        let len = row.map_or(0, VecDeque::len);
        let each = len.div_ceil(groups).max(1);
        let group = move |at: usize| Some((self.slots[row?.get(at)?.slot].as_ref()?, each.min(len - at)));
        (0..len).step_by(each).filter_map(group)
    }

    /// Waiting queries of all classes that `wanted` names, earliest deadline first.
    pub(super) fn merged(&self, wanted: impl Fn(&Class) -> bool) -> impl Iterator<Item = &Waiting> {
        self.first(&wanted, usize::MAX)
    }

    /// When the last of a part of all who wait is due, in the order in which they stop waiting.
    pub(super) fn due_at(&self, part: usize, of: usize) -> Option<Time> {
        let last = self.expiry.len().checked_sub(1)?;
        let (_, key) = self.expiry.get(last * part / of)?;
        self.get(*key).map(|waiting| waiting.query.deadline)
    }

    /// How many of a class are due after a moment. What is reserved goes before all.
    pub(super) fn due_after(&self, class: &Class, due: Time) -> usize {
        let until = (true, due, QueryKey(u64::MAX));
        self.classes.get(class).map_or(0, |row| row.len() - row.partition_point(|entry| entry.place <= until))
    }

    /// The same of the first so many of each class.
    pub(super) fn first<'q>(
        &'q self,
        wanted: &dyn Fn(&Class) -> bool,
        most: usize,
    ) -> impl Iterator<Item = &'q Waiting> + use<'q> {
        let wanted = self.classes.iter().filter(|(class, _)| wanted(class));
        let row = |(_, row): (&Class, &'q VecDeque<Entry>)| {
            let mut rest = row.iter().take(most);
            rest.next().map(|first| (*first, rest))
        };
        let mut heads: Vec<_> = wanted.filter_map(row).collect();
        core::iter::from_fn(move || {
            let mut first = 0;
            for at in 1..heads.len() {
                if heads[at].0.place < heads[first].0.place {
                    first = at;
                }
            }
            let (entry, rest) = heads.get_mut(first)?;
            let slot = entry.slot;
            match rest.next() {
                Some(next) => *entry = *next,
                None => drop(heads.swap_remove(first)),
            }
            self.slots[slot].as_ref()
        })
    }

    /// The next query that stops waiting.
    pub(super) fn first_expiry(&self) -> Option<(Time, QueryKey)> {
        self.expiry.front().copied()
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
