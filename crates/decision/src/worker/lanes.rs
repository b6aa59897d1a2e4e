//! Batches on their way: bound, prepared, on the device.
//!
//! Each lane runs one batch and has at most one more behind it. When both belong to the same runner, the second is
//! handed over as soon as it is prepared, so the device never waits for us; for another runner it starts when the first
//! has ended, since two runners on one core would slow each other down. A query that
//! is rerun after a crash shares a runner's time with nobody: what crashes then was its own doing.

use super::api::{Action, BatchId, LaneIx, Runner};
use super::queue::{Came, Waiting};
use super::reason::Reason;
use super::turns::Turn;
use crate::estimate::Moments;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Micros, QueryKey, Time, VariantId};

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) waiting: Waiting,
    /// The client went away, its input would not go in, or it was claimed in vain.
    pub(super) gone: bool,
    /// Why it is answered by what it is.
    pub(super) reason: Reason,
}

impl Member {
    /// It was claimed, and it is not known yet whether it comes.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.gone && self.waiting.came == Came::Announced
    }
}

#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) id: BatchId,
    pub(super) variant: VariantId,
    pub(super) runner: Runner,
    pub(super) members: Vec<Member>,
    pub(super) expected: Moments,
    /// The part of it that the batch runs.
    pub(super) running: Moments,
    pub(super) prepared: bool,
    /// What handing it over to an idle lane takes besides.
    pub(super) handover: Moments,
    /// It was bound behind another although nothing was surely in time.
    pub(super) chance: bool,
    /// Since when it waits to hear which of its members it gets; until then nothing is prepared.
    pub(super) claims: Option<Time>,
    /// Handed to the runner.
    pub(super) started: Option<Time>,
    /// Taken back, if the runner has not begun it yet.
    pub(super) revoked: bool,
}

impl Batch {
    fn all_gone(&self) -> bool {
        self.members.iter().all(|member| member.gone)
    }

    fn rerun(&self) -> bool {
        self.members.iter().any(|member| member.waiting.alone)
    }

    /// The 99th percentile of its time on the device.
    fn latest(&self) -> Micros {
        (self.expected + self.handover).p99()
    }

    /// The same of the time that it runs, which its inputs' being written is no part of.
    pub(super) fn runs_at_most(&self) -> Micros {
        (self.running + self.handover).p99()
    }

    /// Those who came on credit: who was claimed takes none.
    fn on_credit(&self) -> u32 {
        let sent = self.members.iter().filter(|member| member.waiting.came == Came::Sent);
        u32::try_from(sent.count()).unwrap_or(u32::MAX)
    }

    /// Has its members' inputs written into a slot, in their order.
    pub(super) fn prepare(&self, device: DeviceIx, lane: LaneIx) -> Action {
        Action::Prepare {
            batch: self.id,
            device,
            lane,
            variant: self.variant,
            queries: self.members.iter().map(|member| member.waiting.query.key).collect(),
            reasons: self.members.iter().map(|member| member.reason).collect(),
            expected: self.expected,
        }
    }

    /// Has its slot forgotten, if it has one yet.
    pub(super) fn discard(&self) -> Option<Action> {
        self.claims.is_none().then_some(Action::Discard { batch: self.id })
    }
}

/// Time that a batch was alone on its lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) took: Micros,
    /// The lane had nothing to do when it came, so that handing it over is part of it.
    pub(super) idle_before: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) device: DeviceIx,
    pub(super) ix: LaneIx,
    pub(super) running: Option<Batch>,
    pub(super) next: Option<Batch>,
    /// When the device last became free for what is running now.
    free_since: Time,
    /// How long of that this machine stood still itself, as far as it noticed.
    stood: Micros,
    /// Since when what runs has been suspected, and this is no place for anything else.
    suspected: Option<Time>,
    /// The last turn here of some who gathered: as it was when something was last bound, or ran to its end with nothing behind it.
    pub(super) turn: Option<Turn>,
}

impl Lane {
    pub(super) fn new(device: DeviceIx, ix: LaneIx) -> Self {
        let (free_since, stood) = (Time::ZERO, Micros::ZERO);
        Self { device, ix, running: None, next: None, free_since, stood, suspected: None, turn: None }
    }

    /// What is left of the batch on the device.
    pub(super) fn remaining(&self, now: Time) -> Moments {
        match &self.running {
            Some(batch) => (batch.expected + batch.handover).less(now - self.free_since),
            None => Moments::ZERO,
        }
    }

    /// How long until a batch bound here now could start.
    pub(super) fn until_free(&self, now: Time) -> Moments {
        self.remaining(now) + self.next.as_ref().map_or(Moments::ZERO, |batch| batch.expected)
    }

    /// The same for one who could also go elsewhere: what has run past its 99th percentile is held up by something, and is
    /// expected to take as long again as it is late.
    pub(super) fn until_free_if_held_up(&self, now: Time) -> Moments {
        let ran = (now - self.free_since).saturating_sub(self.stood);
        let over = self.running.as_ref().map(|batch| ran.saturating_sub(batch.latest()));
        self.until_free(now) + Moments::exactly(over.unwrap_or(Micros::ZERO))
    }

    /// This machine stood still for so long: most likely what runs did as well, and is not held up by anything of its own.
    pub(super) fn stood_still(&mut self, time: Micros) {
        self.stood += time;
    }

    /// How long until what runs has run longer than it should.
    pub(super) fn due(&self, now: Time) -> Option<Micros> {
        self.running.as_ref().map(|batch| batch.latest().saturating_sub(now - self.free_since))
    }

    /// When what runs has taken so many times the 99th percentile of its time, and at least so long.
    pub(super) fn overdue(&self, times: u64, least: Micros) -> Option<Time> {
        let latest = self.running.as_ref()?.latest();
        Some(self.free_since + self.stood + Micros(latest.0.saturating_mul(times)).max(least))
    }

    /// Takes out what runs, with what was handed over behind it, as a lane of its own that takes nothing more.
    pub(super) fn part(&mut self, now: Time) -> Self {
        let free = Self::new(self.device, self.ix);
        let next = self.next.take_if(|next| next.started.is_none());
        Self { suspected: Some(now), ..core::mem::replace(self, Self { next, ..free }) }
    }

    /// Whether what is on it belongs to a runner.
    pub(super) fn runs(&self, runner: Runner) -> bool {
        self.running.iter().chain(&self.next).any(|batch| batch.runner == runner)
    }

    /// Since when a batch runs, and in which process.
    pub(super) fn runs_since(&self, id: BatchId) -> Option<(Runner, Time)> {
        let running = self.running.as_ref().filter(|batch| batch.id == id);
        running.map(|batch| (batch.runner, self.free_since))
    }

    /// Whether one more batch of the runner of what is on it could be handed over behind that.
    pub(super) fn may_follow(&self) -> bool {
        self.next.is_none() && !self.running.as_ref().is_some_and(Batch::rerun)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_none() && self.next.is_none()
    }

    /// What is on the device or bound to follow.
    pub(super) fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.running.iter().chain(self.next.iter())
    }

    /// Queries that are on the device or bound to follow and came on credit.
    pub(super) fn on_credit(&self) -> u32 {
        self.batches().map(Batch::on_credit).sum()
    }

    fn batches_mut(&mut self) -> impl Iterator<Item = &mut Batch> {
        self.running.iter_mut().chain(self.next.iter_mut())
    }

    pub(super) fn holds(&self, id: BatchId) -> bool {
        self.running.iter().chain(self.next.iter()).any(|batch| batch.id == id)
    }

    /// Whether a query is in a batch here, and not gone: who was taken back may be announced or sent again.
    pub(super) fn has(&self, key: QueryKey) -> bool {
        let mut members = self.batches().flat_map(|batch| &batch.members);
        members.any(|member| !member.gone && member.waiting.query.key == key)
    }

    /// Inputs stand in the slot.
    pub(super) fn prepared(&mut self, id: BatchId, dropped: &[QueryKey]) {
        for batch in self.batches_mut().filter(|batch| batch.id == id) {
            batch.prepared = true;
            for member in &mut batch.members {
                member.gone |= dropped.contains(&member.waiting.query.key);
            }
        }
    }

    /// Marks a query as gone wherever it is here.
    pub(super) fn cancel(&mut self, key: QueryKey) -> bool {
        let mut found = false;
        for member in self.batches_mut().flat_map(|batch| batch.members.iter_mut()) {
            if !member.gone && member.waiting.query.key == key {
                member.gone = true;
                found = true;
            }
        }
        found
    }

    /// Hands over what can be. Gives back a batch that was thrown away because nobody waits for it.
    pub(super) fn start_what_can(&mut self, now: Time, actions: &mut VecDeque<Action>) -> Option<Batch> {
        let next = self.next.as_mut()?;
        if next.started.is_some() && !next.revoked && next.all_gone() {
            next.revoked = true;
            actions.push_back(Action::Revoke { batch: next.id });
        }
        if !next.prepared || next.started.is_some() {
            return None;
        }
        if next.all_gone() {
            let batch = self.next.take();
            actions.extend(batch.iter().map(|batch| Action::Discard { batch: batch.id }));
            return batch;
        }
        match &self.running {
            None => {
                next.started = Some(now);
                self.free_since = now;
                self.stood = Micros::ZERO;
                actions.push_back(Action::Start { batch: next.id });
                self.running = self.next.take();
            }
            Some(running) if running.runner == next.runner && !running.rerun() && !next.rerun() => {
                next.started = Some(now);
                actions.push_back(Action::Start { batch: next.id });
            }
            Some(_) => {}
        }
        None
    }

    /// Members of the batch that follows who are still waited for.
    fn following(&self) -> impl Iterator<Item = &Member> {
        self.next.iter().flat_map(|batch| batch.members.iter()).filter(|member| !member.gone)
    }

    /// When the next of those that do not run yet stops waiting.
    pub(super) fn next_expiry(&self) -> Option<Time> {
        self.following().map(|member| member.waiting.query.expires).min()
    }

    /// Gives up those that do not run yet and whose time is up.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Waiting> {
        let next = self.next.iter_mut().flat_map(|batch| batch.members.iter_mut());
        let over = next.filter(|member| !member.gone && member.waiting.query.expires <= now);
        let give_up = |member: &mut Member| {
            member.gone = true;
            member.waiting
        };
        over.map(give_up).collect()
    }

    /// Takes out the batch that is not handed over yet if its replica is gone.
    pub(super) fn unbind(&mut self, gone: impl Fn(&Batch) -> bool) -> Option<Batch> {
        self.next.take_if(|next| next.started.is_none() && gone(next))
    }

    /// A batch ended: gives it back with its time on the device. What was handed over behind it runs now, unless
    /// their common runner `died`: then its own end will be told, and `None` as its time says that it never ran.
    pub(super) fn ended(&mut self, now: Time, id: BatchId, died: bool) -> Option<(Batch, Option<Spent>)> {
        if self.running.as_ref().is_some_and(|batch| batch.id == id) {
            if self.next.is_none() {
                self.turn = self.turn(now);
            }
            let batch = self.running.take()?;
            let idle_before = batch.started == Some(self.free_since);
            // From when it was suspected it stood back behind the others, which says nothing of what it takes by itself.
            let until = self.suspected.take().unwrap_or(now);
            let took = Spent { took: until - self.free_since, idle_before };
            if !died && self.next.as_ref().is_some_and(|next| next.started.is_some()) {
                self.running = self.next.take();
                self.free_since = now;
                self.stood = Micros::ZERO;
            }
            return Some((batch, Some(took)));
        }
        // The second can end first: its runner died, or it could not be handed over at all.
        let next_ended = self.next.as_ref().is_some_and(|next| next.id == id);
        let batch = if next_ended { self.next.take() } else { None }?;
        Some((batch, None))
    }
}
