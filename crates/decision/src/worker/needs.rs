//! Who depends on what is in memory, and how long the others can wait.

use super::batching::Rates;
use super::bind::admits;
use super::queue::Queue;
use super::residency::Residency;
use crate::query::Class;
use alloc::collections::BTreeSet;
use modelless_types::{DeviceIx, Micros, Time, VariantId};

/// What waits and what came lately, as evictions look at it.
#[derive(Clone, Copy)]
pub(super) struct Needs<'a> {
    pub(super) queue: &'a Queue,
    pub(super) rates: &'a Rates,
    pub(super) now: Time,
}

impl Needs<'_> {
    /// Replicas of a device with queued work: the cheapest of every class that waits here.
    pub(super) fn queued(&self, residency: &Residency, device: DeviceIx) -> BTreeSet<VariantId> {
        // What is only announced may be answered elsewhere: it keeps nothing in memory.
        let here = self.queue.own_classes().map(|(class, _)| class);
        here.filter_map(|class| cheapest(residency, device, class)).collect()
    }

    /// Those and the cheapest of every class that waits at gateways or came lately.
    pub(super) fn in_demand(&self, residency: &Residency, device: DeviceIx) -> BTreeSet<VariantId> {
        let at_gateways = self.queue.demand(self.now).map(|(class, _)| class);
        let others = at_gateways.chain(self.rates.lately(self.now));
        let others = others.filter_map(|class| cheapest(residency, device, class));
        others.chain(self.queued(residency, device)).collect()
    }

    /// From when on what has queued work makes room for a variant, which otherwise would come too late: its load, and one
    /// run, twice each, before the first deadline of those whom nothing in memory may answer. Where none of them waits, at
    /// once if some left unanswered lately and have had no turn since: that they came does not say that they were not
    /// answered. `None` if nobody needs it, or may be answered by something else.
    pub(super) fn last_moment(&self, residency: &Residency, wanted: VariantId) -> Option<Time> {
        let variant = residency.variant(wanted)?;
        let unserved = |class: &Class| {
            let served = |device| residency.serving(device).any(|other| admits(class, other));
            admits(class, variant) && !residency.device_ids().any(served)
        };
        let here = self.queue.merged(unserved).next().map(|waiting| waiting.query.expires);
        let at_gateways = self.queue.demand(self.now).filter(|(class, _)| unserved(class));
        let first = here.into_iter().chain(at_gateways.map(|(_, demand)| demand.first)).min();
        let takes = variant.run.estimate(1).mean.max(0.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time in microseconds")]
        let takes = Micros(variant.load_time.0.saturating_add(takes as u64).saturating_mul(2));
        match first {
            Some(first) => Some(Time(first.0.saturating_sub(takes.0))),
            None => self.rates.unmet(self.now).any(unserved).then_some(Time::ZERO),
        }
    }
}

fn cheapest(residency: &Residency, device: DeviceIx, class: &Class) -> Option<VariantId> {
    let serving = residency.serving(device).filter(|variant| admits(class, variant));
    let each = serving.map(|variant| (residency.batched(variant).mean, variant.id));
    each.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, id)| id)
}
