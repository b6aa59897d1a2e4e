//! What a node has done since it started, for people and for metrics. Nothing is decided by it.

use modelless_types::{Micros, VariantId};
use modelless_wire::{LoadTimes, NodeLoad};
use std::collections::{BTreeMap, BTreeSet};

/// Counts. Bounded by what is registered: see [`Tally::keep`].
#[derive(Debug, Default)]
pub(crate) struct Tally {
    batches: u64,
    queries: u64,
    crashes: u64,
    restarts: u64,
    handed_back: u64,
    loaded: u64,
    load_time: Micros,
    evictions: u64,
    /// Lost with their runner and not back yet.
    lost: BTreeSet<VariantId>,
    loads: BTreeMap<VariantId, LoadTimes>,
}

impl Tally {
    /// A batch went to its runner.
    pub(crate) fn started(&mut self, queries: usize) {
        self.batches += 1;
        self.queries += u64::try_from(queries).unwrap_or(0);
    }

    /// A query was given back to its gateway, unstarted.
    pub(crate) fn gave_back(&mut self) {
        self.handed_back += 1;
    }

    /// A runner ended without having been asked to.
    pub(crate) fn crashed(&mut self, resident: &[VariantId]) {
        self.crashes += 1;
        self.lost.extend(resident);
    }

    pub(crate) fn loaded(&mut self, variant: VariantId, took: Micros, cold: bool) {
        self.restarts += u64::from(self.lost.remove(&variant));
        self.loaded += 1;
        self.load_time += took;
        let known = self.loads.entry(variant).or_default();
        known.count = known.count.saturating_add(1);
        *(if cold { &mut known.cold } else { &mut known.warm }) = Some(took);
    }

    /// A replica is taken out of memory to make room.
    pub(crate) fn evicted(&mut self) {
        self.evictions += 1;
    }

    /// Forgets what is registered no longer.
    pub(crate) fn keep(&mut self, registered: impl Fn(VariantId) -> bool) {
        self.loads.retain(|variant, _| registered(*variant));
        self.lost.retain(|variant| registered(*variant));
    }

    pub(crate) fn loads(&self, variant: VariantId) -> LoadTimes {
        self.loads.get(&variant).copied().unwrap_or_default()
    }

    /// The counts, beside what is at hand now.
    pub(crate) fn with(&self, now: NodeLoad) -> NodeLoad {
        NodeLoad {
            batches: self.batches,
            queries: self.queries,
            crashes: self.crashes,
            restarts: self.restarts,
            handed_back: self.handed_back,
            loads: self.loaded,
            load_time: self.load_time,
            evictions: self.evictions,
            ..now
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_comes_back_after_a_crash_is_a_restart_and_another_is_not() {
        let mut tally = Tally::default();
        let (a, b) = (VariantId(1), VariantId(2));
        tally.loaded(a, Micros(10), true);
        tally.crashed(&[a]);
        tally.loaded(b, Micros(20), false);
        tally.loaded(a, Micros(5), false);
        tally.loaded(a, Micros(6), false);
        let load = tally.with(NodeLoad { queued: 3, ..NodeLoad::default() });
        assert_eq!((load.crashes, load.restarts, load.queued), (1, 1, 3));
        assert_eq!((load.loads, load.load_time, load.evictions), (4, Micros(41), 0));
        assert_eq!(tally.loads(a), LoadTimes { count: 3, cold: Some(Micros(10)), warm: Some(Micros(6)) });
        tally.keep(|variant| variant == b);
        assert_eq!((tally.loads(a).count, tally.loads(b).count), (0, 1));
    }
}
