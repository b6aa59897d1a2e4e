//! What was asked of tasks in slots of five minutes, kept for as long as the same time of other days is compared by it.
//!
//! Several schedulers see the same gateways and write the same slot, each more than once. So what is greatest stands, of each figure by
//! itself: saying it again changes nothing, and nothing is added twice. A slot that nobody saw is not there; in one that
//! somebody saw, a task without a bin was asked nothing.

use crate::check;
use crate::error::{Error, Result};
use async_trait::async_trait;
use modelless_types::{Bin, Slot, TaskId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Slots that are kept, the newest: sixteen days where there is no hole. By number and not by age, so a clock that was wrong once
/// takes nothing away.
pub const SLOTS_KEPT: u32 = 16 * Slot::A_DAY;
/// Tasks that a slot tells of, those that were asked most.
pub const BINS_A_SLOT: usize = 512;
/// Ranges of slots that are read at a time.
pub const RANGES_AT_ONCE: usize = 64;

/// What was asked in a slot, as far as somebody saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotSeen {
    /// Which.
    pub slot: Slot,
    /// For how long all that was asked was seen, in seconds.
    pub seen_s: u16,
    /// What was asked of each task that was asked for.
    pub bins: BTreeMap<TaskId, Bin>,
}

impl SlotSeen {
    pub(crate) fn checked(self) -> Result<Self> {
        if u64::from(self.seen_s) * 1_000_000 > Slot::LONG.0 {
            let (seen, long) = (self.seen_s, Slot::LONG.0 / 1_000_000);
            return Err(Error::invalid(
                "slot",
                format!("{seen} s of it were seen; expected {long} s at most, as long as it is"),
            ));
        }
        if self.bins.len() > BINS_A_SLOT {
            let many = self.bins.len();
            return Err(Error::invalid(
                "slot",
                format!("it tells of {many} tasks; expected {BINS_A_SLOT} at most"),
            ));
        }
        for Bin { peak_per_1000_s, queries } in self.bins.values() {
            check::number("rate", *peak_per_1000_s)?;
            check::number("count of queries", *queries)?;
        }
        Ok(self)
    }
}

pub(crate) fn ranges(all: &[Range<Slot>]) -> Result<()> {
    if all.len() > RANGES_AT_ONCE {
        let many = all.len();
        return Err(Error::invalid(
            "slots",
            format!("{many} ranges are read at a time; expected {RANGES_AT_ONCE} at most"),
        ));
    }
    Ok(())
}

/// What was asked earlier. Part of a [`crate::Store`].
#[async_trait]
pub trait Bins: Send + Sync {
    /// Takes in what somebody saw of a slot: of each figure the greatest that was told of it stands. Beyond [`BINS_A_SLOT`] tasks those that
    /// were asked least go, beyond [`SLOTS_KEPT`] slots the oldest.
    async fn put_slot(&self, seen: SlotSeen) -> Result<()>;

    /// What was seen in these slots, in their order; of one task, or of all. What nobody saw is left out. At most
    /// [`RANGES_AT_ONCE`] ranges, which do not overlap.
    async fn slots(&self, ranges: &[Range<Slot>], task: Option<TaskId>) -> Result<Vec<SlotSeen>>;
}
