//! Who gathered while a model was loaded takes turns with everybody else.
//!
//! While a model is loaded, or comes back after its process died, its queries gather, and when it is there all of them are due before most of what
//! other models are asked. By deadlines alone they would hold a lane until the last of them is answered, for hundreds of milliseconds
//! in which others wait who had no part in it. Where there is ample time for all that helps nobody to be in time, so there
//!
//! * a batch with any of them takes no longer than one query of the others may take, unless it is one alone, or small ones would take more than twice as much for each;
//! * when the next batch is bound whoever else is there goes first: not best effort, though, nor who is run again alone or has a price ceiling.
//!
//! Where time is short who leads is as ever; so it is where queries have several priorities, on a device that is asked for more than
//! it can do, and where a task's batches do not go by deadlines.

use super::ahead::LATELY;
use super::api::WorkerVariant;
use super::bind::{Draw, admits, slack};
use super::lanes::{Batch, Lane};
use super::machine::Worker;
use super::pressed::is_ordinary;
use super::queue::Waiting;
use super::spare::is_spare;
use crate::estimate::Moments;
use crate::query::Class;
use core::cell::OnceCell;
use modelless_types::{Batching, Micros, Time, VariantId};

/// There is ample time where all who wait, here or at gateways, could be answered one by one by the slowest that may in this part of what the first who is
/// hurried has left.
const AMPLE: f64 = 0.5;
/// A turn that was over so long ago says nothing any more: mostly whoever was there by then was answered since.
const LASTS: Micros = Micros::from_secs(1);
/// No batch is kept so small that each takes so many times as much as in a large one.
const WASTE: f64 = 2.0;

/// A turn on a lane that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// What ran for those who gathered.
    variant: VariantId,
    over: Time,
}

impl Lane {
    /// The last turn that somebody had here who gathered.
    pub(super) fn turn(&self, now: Time) -> Option<Turn> {
        let gathered =
            |batch: &&Batch| batch.members.iter().any(|member| member.waiting.loaded) && !is_spare(batch);
        let last = self.running.as_ref().filter(gathered);
        let turn = last.map(|batch| Turn { variant: batch.variant, over: now }).or(self.turn);
        turn.filter(|turn| now - turn.over <= LASTS)
    }
}

/// Who goes before those who had their turn.
pub(super) struct Others<'a> {
    variant: &'a WorkerVariant,
    over: Time,
}

impl Others<'_> {
    /// Of several models' queries that gathered none goes before the others so: what is neither's would wait for all of them.
    pub(super) fn has(&self, waiting: &Waiting) -> bool {
        let query = &waiting.query;
        let was_there = query.arrived <= self.over && !waiting.loaded;
        was_there && is_ordinary(waiting) && !admits(&query.class, self.variant)
    }
}

impl Worker {
    /// Whose turn it is on a lane, if others have just had theirs.
    pub(super) fn others_turn(
        &self,
        now: Time,
        lane: &Lane,
        serving: &[&WorkerVariant],
        ample: &OnceCell<bool>,
    ) -> Option<Others<'_>> {
        if !self.config.foresight.turns || !self.queue.any_gathered() {
            return None;
        }
        let Turn { variant, over } = lane.turn(now)?;
        let variant = self.residency.variant(variant)?;
        if self.queue.classes().all(|(class, _)| admits(class, variant)) {
            return None;
        }
        ample.get_or_init(|| self.has_ample_time(now, lane, serving)).then_some(Others { variant, over })
    }

    /// Whether all who wait here or at gateways could be answered one by one long before the first of them is due.
    fn has_ample_time(&self, now: Time, lane: &Lane, serving: &[&WorkerVariant]) -> bool {
        let by_deadline = |v: &&WorkerVariant| self.batching(v) == Batching::Deadline;
        let may = self.config.foresight.turns && serving.iter().all(by_deadline);
        if !may || self.queue.mixed() || self.is_pressed(now, lane.device) {
            return false;
        }
        let alone = |class: &Class| self.alone(serving, class);
        let mut waiting = self.queue.merged(|class| alone(class).is_some());
        let here = waiting.find(|w| !w.query.best_effort).map_or(f64::INFINITY, |first| slack(now, first));
        let at_gateways = self.queue.demand(now).filter(|(class, _)| alone(class).is_some());
        let there = at_gateways.map(|(_, demand)| Moments::exactly(demand.first - now).mean);
        let first = there.fold(here, f64::min);
        let here =
            self.queue.classes().map(|(class, count)| (class, u32::try_from(count).unwrap_or(u32::MAX)));
        let there = self.queue.demand(now).map(|(class, demand)| (class, demand.waiting));
        let each = here.chain(there).filter_map(|(class, count)| Some(alone(class)? * f64::from(count)));
        lane.until_free(now).mean + each.sum::<f64>() <= AMPLE * first
    }

    /// How long one of a class may take alone; `None` where nothing may answer it.
    fn alone(&self, serving: &[&WorkerVariant], class: &Class) -> Option<f64> {
        let may = serving.iter().filter(|v| admits(class, v));
        may.map(|v| self.residency.estimate(v, 1).mean).max_by(f64::total_cmp)
    }
}

impl Draw<'_> {
    /// The largest batch that the turn of those who gathered allows, of at most so many.
    pub(super) fn in_turn(&self, variant: &WorkerVariant, largest: usize) -> usize {
        let worker = self.worker;
        if largest < 2 || !worker.queue.any_gathered() || worker.apart(variant) {
            return largest;
        }
        let joins = |w: &&Waiting| admits(&w.query.class, variant) && self.allows(&w.query.class, variant);
        let gathered = self.head.loaded || self.others().filter(joins).take(largest).any(|w| w.loaded);
        let ample = || *self.ample.get_or_init(|| worker.has_ample_time(self.now, self.lane, self.serving));
        if !gathered || !ample() {
            return largest;
        }
        let lately = worker.rates.flows().filter(|(.., last)| self.now - *last <= LATELY);
        let others = lately.filter(|(class, ..)| !admits(class, variant));
        let each = others.filter_map(|(class, ..)| worker.alone(self.serving, class));
        let Some(longest) = each.max_by(f64::total_cmp) else { return largest };
        let takes = worker.residency.takes(variant);
        let time = |n: usize| takes(u32::try_from(n).unwrap_or(u32::MAX)).mean;
        let each = |n: usize| time(n) / u32::try_from(n).map_or(f64::INFINITY, f64::from);
        let most = (2..=largest).rev().find(|n| time(*n) <= longest).unwrap_or(1);
        (most..largest).find(|n| each(*n) <= WASTE * each(largest)).unwrap_or(largest)
    }
}
