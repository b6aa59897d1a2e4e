//! What was asked earlier, in memory.

use super::MemStore;
use crate::bins::{self, BINS_A_SLOT, Bins, SLOTS_KEPT, SlotSeen};
use crate::error::Result;
use async_trait::async_trait;
use modelless_types::{Bin, Slot, TaskId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) type Kept = BTreeMap<Slot, (u16, BTreeMap<TaskId, Bin>)>;

#[async_trait]
impl Bins for MemStore {
    async fn put_slot(&self, seen: SlotSeen) -> Result<()> {
        let SlotSeen { slot, seen_s, bins } = seen.checked()?;
        self.write(|state| {
            let (known_s, known) = state.asked.entry(slot).or_default();
            *known_s = seen_s.max(*known_s);
            for (task, bin) in bins {
                let known = known.entry(task).or_default();
                *known = known.most(bin);
            }
            let mut order: Vec<(TaskId, u64)> =
                known.iter().map(|(task, bin)| (*task, bin.queries)).collect();
            order.sort_by_key(|(task, queries)| (Reverse(*queries), *task));
            for (task, _) in order.into_iter().skip(BINS_A_SLOT) {
                known.remove(&task);
            }
            while state.asked.len() > SLOTS_KEPT as usize {
                state.asked.pop_first();
            }
            Ok(())
        })
    }

    async fn slots(&self, ranges: &[Range<Slot>], task: Option<TaskId>) -> Result<Vec<SlotSeen>> {
        bins::ranges(ranges)?;
        self.read(|state| {
            let within = |range: &Range<Slot>| {
                let found = state.asked.iter().filter(|(slot, _)| range.contains(*slot));
                found.collect::<Vec<_>>()
            };
            let mut all: Vec<_> = ranges.iter().flat_map(within).collect();
            all.sort_by_key(|(slot, _)| **slot);
            let seen = |(slot, (seen_s, bins)): (&Slot, &(u16, BTreeMap<TaskId, Bin>))| {
                let wanted = bins.iter().filter(|(of, _)| task.is_none_or(|task| task == **of));
                SlotSeen { slot: *slot, seen_s: *seen_s, bins: wanted.map(|(of, bin)| (*of, *bin)).collect() }
            };
            all.into_iter().map(seen).collect()
        })
    }
}
