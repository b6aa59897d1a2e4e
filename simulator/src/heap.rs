//! What is to happen, in the order the machines' contract prescribes: time, rank, sequence.

use modelless_decision::Rank;
use modelless_types::Time;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Small, since a heap moves its entries about; what happens lies apart.
#[derive(PartialEq, Eq)]
struct Entry {
    at: Time,
    rank: Rank,
    sequence: u64,
    slot: usize,
}

impl Entry {
    fn key(&self) -> (Time, Rank, u64) {
        (self.at, self.rank, self.sequence)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key()) // the heap's greatest is the earliest
    }
}

/// Events of a world.
pub(crate) struct Heap<E> {
    entries: BinaryHeap<Entry>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    sequence: u64,
}

impl<E> Heap<E> {
    pub(crate) fn new() -> Self {
        Self { entries: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), sequence: 0 }
    }

    pub(crate) fn push(&mut self, at: Time, rank: Rank, event: E) {
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(empty) => *empty = Some(event),
            None => self.events.push(Some(event)),
        }
        self.entries.push(Entry { at, rank, sequence: self.sequence, slot });
        self.sequence += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, E)> {
        let Entry { at, slot, .. } = self.entries.pop()?;
        self.free.push(slot);
        self.events[slot].take().map(|event| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_one_instant_completions_come_before_arrivals_before_timers() {
        let mut heap = Heap::new();
        heap.push(Time(5), Rank::Timer, "timer");
        heap.push(Time(5), Rank::Arrival, "first arrival");
        heap.push(Time(5), Rank::Arrival, "second arrival");
        heap.push(Time(5), Rank::Completion, "completion");
        heap.push(Time(4), Rank::Timer, "earlier");
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ["earlier", "completion", "first arrival", "second arrival", "timer"]);
    }
}
