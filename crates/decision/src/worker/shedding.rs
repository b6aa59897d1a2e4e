//! Who gives way when not all can be in time: the least important.
//!
//! Deadlines alone would let whoever is due first go first, and whoever is then late fall, however important. So when
//! somebody waiting would be late though everything were answered at its quickest, the least important among those who
//! go before is refused, if it is less important; then it is asked again.
//!
//! Among equals it is whoever is due first, if that lets more of the others be in time: with little time left it would
//! go in a small batch, and small batches waste the device just when it is short. So under overload batches stay full
//! of those who still make it, and nobody is given up otherwise.

use super::api::WorkerVariant;
use super::bind::{admits, slack};
use super::lanes::Lane;
use super::machine::Worker;
use super::queue::Waiting;
use crate::estimate::Moments;
use crate::query::Class;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use modelless_types::{Batching, QueryKey, Time};

/// So many batches are looked ahead, as far as so many queries wait.
const AHEAD: usize = 4;

impl Worker {
    /// Whether more of those who wait for a variant are in time if the head, who is due first, is given up.
    pub(super) fn gives_way(&self, now: Time, lane: &Lane, variant: &WorkerVariant, head: &Waiting) -> bool {
        let all = self.batching(variant) == Batching::Deadline && !self.queue.mixed();
        if !all || head.alone || head.query.best_effort {
            return false;
        }
        let largest = self.largest(lane.device, variant);
        let waiting = self.queue.merged(|class| admits(class, variant)).filter(|w| !w.alone);
        let slacks: Vec<f64> = waiting.take(largest.saturating_mul(AHEAD)).map(|w| slack(now, w)).collect();
        let start = self.start(now, lane);
        let with = self.in_time(lane, variant, start, &slacks);
        if with == slacks.len() {
            return false;
        }
        let without = (1..slacks.len().min(largest + 1))
            .map(|from| self.in_time(lane, variant, start, &slacks[from..]));
        without.into_iter().any(|without| without > with)
    }

    /// How many are in time if each batch takes as many as it can, and whoever cannot be in time is passed over.
    fn in_time(&self, lane: &Lane, variant: &WorkerVariant, mut at: Moments, mut slacks: &[f64]) -> usize {
        let largest = self.largest(lane.device, variant);
        let mut served = 0;
        while let Some(&first) = slacks.first() {
            let batch = |n: usize| at + variant.run.estimate(u32::try_from(n).unwrap_or(u32::MAX));
            let fits = (2..=slacks.len().min(largest)).rev().find(|n| batch(*n).mostly_within(first));
            let fits = fits.or_else(|| (batch(1).mean <= first).then_some(1)).unwrap_or(0);
            let taken = if fits > 1 { self.enough(lane.device, variant, fits, false) } else { fits };
            if taken > 0 {
                at = batch(taken);
            }
            served += taken;
            slacks = &slacks[taken.max(1)..];
        }
        served
    }

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
            at += each.times(1.0 / count);
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
