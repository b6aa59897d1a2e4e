//! What is to happen, in the order the machines' contract prescribes: time, rank, sequence.

use modelless_decision::Rank;
use modelless_types::Time;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Entry<E> {
    at: Time,
    rank: Rank,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Time, Rank, u64) {
        (self.at, self.rank, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key()) // the heap's greatest is the earliest
    }
}

/// Events of a world.
pub(crate) struct Heap<E> {
    entries: BinaryHeap<Entry<E>>,
    sequence: u64,
}

impl<E> Heap<E> {
    pub(crate) fn new() -> Self {
        Self { entries: BinaryHeap::new(), sequence: 0 }
    }

    pub(crate) fn push(&mut self, at: Time, rank: Rank, event: E) {
        self.entries.push(Entry { at, rank, sequence: self.sequence, event });
        self.sequence += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, E)> {
        self.entries.pop().map(|entry| (entry.at, entry.event))
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
