//! Who gives way when not all can be in time: the least important.
//!
//! Deadlines alone would let whoever is due first go first, and whoever is then late fall, however important. So when
//! somebody waiting would be late though everything were answered at its quickest, the least important among those who
//! go before is refused, if it is less important; then it is asked again.
//!
//! Among equals it is whoever is due first, if that lets more of the others be in time: see `ahead`.

use super::lanes::Lane;
use super::machine::Worker;
use super::queue::Waiting;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::BTreeMap;
use modelless_types::{QueryKey, Time};

impl Worker {
    /// The query to give up so that a more important one can be in time. With several devices, where each could take
    /// from the same queue, nobody is given up: what one device cannot do another may.
    pub(super) fn sheds(&self, now: Time, lane: &Lane, rates: &BTreeMap<Class, Moments>) -> Option<QueryKey> {
        if !self.queue.mixed() || self.config.devices.len() > 1 {
            return None;
        }
        let lanes = self.lanes.iter().filter(|l| l.device == lane.device);
        let count = f64::from(u32::try_from(lanes.count()).unwrap_or(u32::MAX).max(1));
        let mut at = self.soonest(now, lane.device);
        let mut least: Option<&Waiting> = None;
        let level = |w: &Waiting| w.query.priority.level();
        for waiting in self.queue.merged(|class| rates.contains_key(class)) {
            let Some(each) = rates.get(&waiting.query.class) else { continue };
            at += each.times(self.part_here(waiting) / count);
            if least.is_none_or(|known| level(waiting) >= level(known)) {
                least = Some(waiting);
            }
            let slack = Moments::exactly(waiting.query.expires - now).mean;
            if !waiting.query.best_effort && at.mean > slack {
                let least = least.filter(|least| level(least) > level(waiting))?;
                return Some(least.query.key);
            }
        }
        None
    }
}
