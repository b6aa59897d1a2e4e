//! Which node gets a query: a pure [`pick()`] over an immutable [`Snapshot`] and a [`LoadView`], and one small owned
//! machine, the [`Router`], for queries that wait because no node that could serve them has credit.
//!
//! A query is bound to a node only within that node's small credit. What exceeds it waits here, where it can still
//! go anywhere.

mod candidates;
mod gathering;
mod later;
mod load;
mod pick;
mod router;
mod share;
mod sharing;
mod snapshot;

pub use candidates::{Candidates, Cold, Option_, RowNode};
pub use gathering::Gathering;
pub use later::{Later, STEPS, Step};
pub use load::{Limit, LoadView, Made, NodeReport};
pub use pick::{Choice, Verdict, pick, pick_elsewhere};
pub(crate) use pick::{at_once, has_time_behind_all, mix};
pub use router::{ANNOUNCE, Action, Did, End, Event, Limits, Router, Seen};
pub use share::{Asker, IDLE_AFTER, SHARE_BEAT, share};
pub use sharing::{Said, Standing};
pub(crate) use snapshot::Best;
pub use snapshot::{NodeInfo, NodeIx, Offer, Ready, Snapshot, Table, TaskInfo, VariantInfo};
