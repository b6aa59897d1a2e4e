//! Where a query that just came, or that lost what would have answered it, is to be answered: something resident, or a
//! load that is worth waiting for.

use super::api::WorkerVariant;
use super::lanes::Lane;
use super::machine::Worker;
use super::queue::{Came, Waiting};
use super::residency::Unavailable;
use crate::estimate::Moments;
use crate::query::{Class, Query};
use crate::waking;
use alloc::vec::Vec;
use core::cmp::Ordering;
use modelless_types::{DeviceIx, Micros, Prefer, QueryKey, Refusal, Time, VariantId};

/// How long nothing was learnt of a variant before one query is let through to learn whether it is still as slow.
const TRY_EVERY: Micros = Micros::from_millis(10);

impl Worker {
    /// Sees to it that something can answer the query: resident in time, or loaded in time. A "no" still starts the
    /// quickest load, for those who come after. Gives whether it is resident.
    pub(super) fn place(&mut self, now: Time, waiting: &Waiting) -> Result<bool, Refusal> {
        let query = &waiting.query;
        let slack =
            if query.best_effort { f64::INFINITY } else { Moments::exactly(query.expires - now).mean };
        let mut soonest: Option<(Micros, DeviceIx, VariantId)> = None;
        let mut best: Option<(DeviceIx, VariantId, bool)> = None;
        let mut why_not: Option<Unavailable> = None;
        let mut probable = false;
        for device in self.residency.device_ids() {
            for ordinal in query.class.admits.iter() {
                let Some(id) = self.residency.find(query.class.task, ordinal) else { continue };
                let ready_in = match self.residency.ready_in(now, device, id) {
                    Ok(ready_in) => ready_in,
                    Err(why) => {
                        why_not = Some(why);
                        continue;
                    }
                };
                let Some(variant) = self.residency.variant(id) else { continue };
                probable |= ready_in == Micros::ZERO
                    && self.in_time_alone(now, device, variant, Moments::ZERO, slack);
                if (Moments::exactly(ready_in) + self.residency.estimate(variant, 1)).within(slack) {
                    let resident = ready_in == Micros::ZERO;
                    if best.is_none_or(|known| self.better(query, (device, id, resident), known)) {
                        best = Some((device, id, resident));
                    }
                }
                if soonest.is_none_or(|(known, _, _)| ready_in < known) {
                    soonest = Some((ready_in, device, id));
                }
            }
        }
        match (best, soonest) {
            (Some((_, _, true)), _) => Ok(true),
            (Some((device, id, false)), _) => {
                self.want_for(now, query, device, id);
                Ok(false)
            }
            // Not for certain, but more likely than not: whether it is will be known when its turn comes.
            (None, Some((Micros::ZERO, _, _))) if probable => Ok(true),
            (None, Some((Micros::ZERO, _, _))) => Err(Refusal::TooLate { waited: now - query.arrived }),
            (None, Some((ready_in, device, id))) => {
                self.want_for(now, query, device, id);
                let run = self.residency.variant(id).map(|variant| self.residency.estimate(variant, 1));
                let bound = waking::bound(ready_in, run.unwrap_or(Moments::ZERO));
                Err(Refusal::Loading { ready_in, bound })
            }
            (None, None) => Err(match why_not {
                Some(Unavailable::Failed(why)) => Refusal::VariantFailed { why },
                Some(Unavailable::TooBig { needs, budget }) => Refusal::OutOfMemory { needs, budget },
                Some(Unavailable::Unknown) | None => {
                    Refusal::NothingRunnable { why: "this node does not know what could answer".into() }
                }
            }),
        }
    }

    fn want_for(&mut self, now: Time, query: &Query, device: DeviceIx, variant: VariantId) {
        let spare = query.priority.is_spare();
        self.residency.want_for(now, device, variant, spare);
        if !spare {
            self.ask_wider(now, device, variant);
        }
    }

    /// Whether a query that goes alone, as soon as what runs has ended, is in time more likely than not. If only what was
    /// learnt lately says no, one is let through on an idle lane now and then: whoever refuses everybody learns nothing.
    pub(super) fn in_time_alone(
        &self,
        now: Time,
        device: DeviceIx,
        variant: &WorkerVariant,
        start: Moments,
        slack: f64,
    ) -> bool {
        let alone = self.residency.estimate(variant, 1).mean;
        if start.mean + alone <= slack {
            return true;
        }
        let lane = |lane: &&Lane| lane.device == device && lane.running.is_none() && lane.next.is_none();
        let tried = self.seen.get(&variant.id).is_some_and(|at| now - *at < TRY_EVERY);
        !tried && variant.run.uncorrected(1).mean <= slack && self.lanes.iter().any(|l| lane(&l))
    }

    /// Resident beats loading; then what the query prefers.
    fn better(&self, query: &Query, a: (DeviceIx, VariantId, bool), b: (DeviceIx, VariantId, bool)) -> bool {
        let (Some(va), Some(vb)) = (self.residency.variant(a.1), self.residency.variant(b.1)) else {
            return false;
        };
        let alone = |v| self.residency.estimate(v, 1).p99_f64();
        let quicker = || alone(va).total_cmp(&alone(vb));
        let wish = match query.prefer {
            Prefer::Accuracy => vb.accuracy.cmp(&va.accuracy),
            Prefer::Cost => va.run.cost(1, self.price(a.0)).cmp(&vb.run.cost(1, self.price(b.0))),
            Prefer::Latency => Ordering::Equal,
        };
        b.2.cmp(&a.2).then(wish).then_with(quicker) == Ordering::Less
    }

    /// Whether a load could still bring an answer to a query in time.
    pub(super) fn could_wait_for_load(&self, now: Time, query: &Query) -> bool {
        let slack = Moments::exactly(query.expires - now).mean;
        self.residency.device_ids().any(|device| {
            query.class.admits.iter().any(|ordinal| {
                let id = self.residency.find(query.class.task, ordinal);
                let variant = id.and_then(|id| self.residency.variant(id));
                variant.is_some_and(|v| match self.residency.ready_in(now, device, v.id) {
                    Ok(Micros::ZERO) | Err(_) => false,
                    Ok(ready_in) => (Moments::exactly(ready_in) + v.run.estimate(1)).within(slack),
                })
            })
        })
    }

    pub(super) fn place_stranded(&mut self, now: Time) {
        let classes = self.queue.classes().map(|(class, _)| *class);
        let unserved: Vec<Class> = classes.filter(|class| !self.servable(class)).collect();
        let stranded: Vec<QueryKey> = unserved.iter().flat_map(|class| self.queue.keys_of(class)).collect();
        for key in stranded {
            let Some(waiting) = self.queue.get(key).copied() else { continue };
            if waiting.came == Came::Announced {
                // Nothing is loaded for what another node has in memory.
                self.queue.remove(key);
                let why = "what could answer it is not in memory any more".into();
                self.declines(key, Refusal::NothingRunnable { why });
                continue;
            }
            match self.place(now, &waiting) {
                Ok(true) => {}
                Ok(false) => self.queue.gathers(key),
                Err(refusal) => {
                    self.queue.remove(key);
                    self.give_up(now, &waiting, refusal);
                }
            }
        }
        self.place_aside(now);
    }
}
