//! Who waited for a load does not take lane after lane at once.
//!
//! While something is loaded, for the first time or anew after its runner died, queries for it gather. They are due before whoever came after
//! them, so once it is there they would take all lanes, and meanwhile others would wait behind them whose runs take a fraction of theirs:
//! everybody would feel what befell one model. So while some of them run on one lane of a device, whoever else waits goes first on its
//! others; and where nobody does they go one by one there, so that who comes next waits for one run and not for a whole batch. It holds as long
//! as what has gathered would be done on that one lane within half of the time that its first has left.

use super::bind::slack;
use super::lanes::{Batch, Lane};
use super::machine::Worker;
use super::queue::Waiting;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use modelless_types::{TaskId, Time};

/// The part of the time the first has left within which all that has gathered would be done on one lane.
const PART: f64 = 0.5;

/// Whether it is of those who gathered: what answers them had to be loaded, or their runner died.
fn gathered(batch: &Batch) -> bool {
    batch.members.iter().any(|member| member.waiting.loaded || member.waiting.alone)
}

/// Classes that leave a lane to others, each with the time its first must have left for that, in microseconds.
pub(super) type Recovering = Vec<(Class, f64)>;

impl Worker {
    /// Those of whose task another lane of the same device has some who gathered. `rates` is the device time that each query of a class takes.
    pub(super) fn recovering(&self, lane: &Lane, rates: &BTreeMap<Class, Moments>) -> Recovering {
        if !self.config.foresight.leaves_lanes {
            return Vec::new();
        }
        let others = self.lanes.iter().filter(|other| other.device == lane.device && other.ix != lane.ix);
        let batches = others.flat_map(Lane::batches).filter(|batch| gathered(batch));
        let tasks = batches.filter_map(|batch| Some(batch.members.first()?.waiting.query.class.task));
        let tasks: Vec<TaskId> = tasks.collect();
        let of = rates.iter().filter(|(class, _)| tasks.contains(&class.task));
        let takes = |(class, each): (&Class, &Moments)| {
            let all = u32::try_from(self.queue.count_of(class)).unwrap_or(u32::MAX);
            (*class, each.mean * f64::from(all) / PART)
        };
        of.map(takes).collect()
    }
}

/// Whether one who waits leaves a lane to others, as some of his class have another.
pub(super) fn leaves_lane(now: Time, waiting: &Waiting, recovering: &Recovering) -> bool {
    let known = recovering.iter().find(|(class, _)| *class == waiting.query.class);
    known.is_some_and(|(_, needs)| *needs <= slack(now, waiting))
}
