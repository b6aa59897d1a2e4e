//! How long the rows of a batch are, and which of them lie together.

use super::Member;
use crate::catalogue::Known;
use crate::core::Handle;
use modelless_adapter::Adapter;
use modelless_decision::parts;
use modelless_engine::{BatchSlot, Part};

impl Handle {
    /// Makes the batch as long as its members are, where lengths differ: in parts of like length, the shortest first, if that
    /// is quicker than to fill all of them up. What comes of a row is its member's, wherever it lies.
    pub(super) fn shape(&self, known: &Known, members: &mut [Member], slot: &mut BatchSlot) {
        let Some(adapter) = known.adapter() else { return };
        let length = |member: &Member| length(adapter, member);
        let Some(longest) = members.iter().filter_map(length).max() else { return };
        let most = usize::from(self.config().parts);
        if most < 2 || members.len() < 2 || !slot.may_be_cut() {
            return slot.stretch(longest);
        }
        // Who fell out has a row as well, of the least length.
        members.sort_by_key(|member| length(member).unwrap_or(1));
        let lengths: Vec<u32> = members.iter().map(|member| length(member).unwrap_or(1)).collect();
        slot.cut(&of_like_length(&lengths, known.beginning, most));
    }
}

fn of_like_length(lengths: &[u32], beginning: f64, most: usize) -> Vec<Part> {
    let part = |part: parts::Part| Part { rows: part.items, length: part.length };
    parts::into_parts(lengths, beginning, most).into_iter().map(part).collect()
}

fn length(adapter: &Adapter, member: &Member) -> Option<u32> {
    adapter.length(member.input.as_ref()?)
}
