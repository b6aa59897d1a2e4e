//! How long the rows of a batch are, and which of them lie together.

use super::Member;
use crate::catalogue::Known;
use crate::core::Handle;
use modelless_adapter::Adapter;
use modelless_decision::parts;
use modelless_engine::{BatchSlot, Part};

/// Batches that were cut in this process: answers do not tell.
#[cfg(test)]
pub(crate) static CUT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl Handle {
    /// Makes the batch as long as its members are, where lengths differ: in parts of like length, the shortest first, if that
    /// is quicker than to fill all of them up. What comes of a row is its member's, wherever it lies.
    pub(super) fn shape(&self, known: &Known, members: &mut [Member], slot: &mut BatchSlot) {
        let Some(adapter) = known.adapter() else { return };
        let lengths: Vec<Option<u32>> = members.iter().map(|member| length(adapter, member)).collect();
        let Some(longest) = lengths.iter().flatten().max() else { return };
        let most = usize::from(self.config().parts);
        if most < 2 || members.len() < 2 || !slot.may_be_cut() {
            return slot.stretch(*longest);
        }
        let rank = rank(&lengths);
        members.sort_by_key(|member| length(adapter, member).unwrap_or(rank));
        let mut lengths: Vec<u32> = lengths.into_iter().map(|length| length.unwrap_or(rank)).collect();
        lengths.sort_unstable();
        let parts = of_like_length(&lengths, known.another_part, most);
        #[cfg(test)]
        CUT.fetch_add(u64::from(parts.len() > 1), std::sync::atomic::Ordering::Relaxed);
        slot.cut(&parts);
    }
}

/// Where one stands who fell out: his row, which is left as zeros, is as long as the shortest that is looked at.
fn rank(lengths: &[Option<u32>]) -> u32 {
    lengths.iter().flatten().copied().min().unwrap_or(1)
}

fn of_like_length(lengths: &[u32], another: f64, most: usize) -> Vec<Part> {
    let part = |part: parts::Part| Part { rows: part.items, length: part.length };
    parts::into_parts(lengths, another, most).into_iter().map(part).collect()
}

fn length(adapter: &Adapter, member: &Member) -> Option<u32> {
    adapter.length(member.input.as_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fell_out_lies_with_the_shortest_and_makes_no_part_of_his_own() {
        let lengths = [Some(24), None, Some(8), Some(8)];
        assert_eq!(rank(&lengths), 8);
        let mut all: Vec<u32> = lengths.iter().map(|length| length.unwrap_or(rank(&lengths))).collect();
        all.sort_unstable();
        let parts = [Part { rows: 3, length: 8 }, Part { rows: 1, length: 24 }];
        assert_eq!(of_like_length(&all, 0.0, 4), parts);
    }
}
