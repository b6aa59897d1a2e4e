//! Fewer lanes side by side while something slows them down. Whether, and how many, [`crate::narrow`] decides; here stands what it is
//! shown, and what follows for the lanes.
//!
//! A lane that is to close takes nothing more: what is bound and not handed over goes back to the queue, what runs ends, then the
//! lane is gone, and all that counts lanes (load, credit, waiting times) counts those that are left. Opening is at once. With
//! several devices nothing is done: what the machine's cores do says nothing of one of them.

use super::api::{Action, BatchId, Failure, LaneIx, WorkerVariant};
use super::lanes::{Batch, Lane};
use super::machine::Worker;
use crate::estimate::Moments;
use crate::narrow::{Narrowed, Narrowing, Scene};
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Engine, Micros, ReplicaState, Time, VariantId};

/// Between two looks while something is interfered or narrowed.
const LOOK: Micros = Micros::from_millis(500);
/// What was done in so many looks counts as asked, where that is more than what comes.
const WINDOW: usize = 4;
const DEVICE: DeviceIx = DeviceIx(0);

/// What is remembered of lanes side by side.
#[derive(Debug, Default)]
pub(super) struct Company {
    pub(super) narrowing: Narrowing,
    /// Since when something that computes here has been interfered.
    interfered: Option<Time>,
    looked: Time,
    /// Lanes that are busy, since when, and how many there were times how long, in microseconds, until then.
    busy: u64,
    since: Time,
    busy_us: u64,
    /// What batches that ended since the last look take by their profiles, in microseconds, and the lane-time that was spent until then.
    work_us: f64,
    looked_us: u64,
    /// The same of the looks before, each with how long it was.
    done: [Done; WINDOW],
    /// Lane-time spent when the batch began that runs on a lane.
    began: Vec<(BatchId, u64)>,
}

/// What lanes did between two looks, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    work: f64,
    busy: f64,
    time: f64,
}

impl Company {
    /// Lanes that were kept busy lately: at the speed of the profiles, and as fast as batches are. What comes in bursts is told too low
    /// by how long ago the last one came.
    fn done(&mut self, now: Time) -> (f64, f64) {
        let until = self.until(now);
        let busy = Moments::exactly(Micros(until.saturating_sub(self.looked_us))).mean;
        self.done.rotate_right(1);
        self.done[0] = Done {
            work: core::mem::take(&mut self.work_us),
            busy,
            time: Moments::exactly(now - self.looked).mean,
        };
        self.looked_us = until;
        let sum = |of: fn(&Done) -> f64| self.done.iter().map(of).sum::<f64>();
        let time = sum(|done| done.time).max(1.0);
        (sum(|done| done.work) / time, sum(|done| done.busy) / time)
    }

    /// Lane-time spent until now.
    fn until(&self, now: Time) -> u64 {
        self.busy_us.saturating_add(self.busy.saturating_mul((now - self.since).0))
    }

    /// These are on lanes from now on.
    fn count(&mut self, now: Time, running: impl Iterator<Item = BatchId> + Clone) {
        let known = |id: BatchId| self.began.iter().any(|(known, _)| *known == id);
        if running.clone().count() == self.began.len() && running.clone().all(known) {
            return; // as usual, for most of what happens starts and ends nothing
        }
        let until = self.until(now);
        (self.busy_us, self.since) = (until, now);
        let running: Vec<BatchId> = running.collect();
        self.began.retain(|(id, _)| running.contains(id));
        for id in &running {
            if self.began.iter().all(|(known, _)| known != id) {
                self.began.push((*id, until));
            }
        }
        self.busy = u64::try_from(running.len()).unwrap_or(u64::MAX);
    }

    /// How many other lanes were busy, on average, while a batch ran that took so long.
    fn beside(&self, now: Time, batch: BatchId, took: Micros) -> Option<f64> {
        let (_, began) = self.began.iter().find(|(id, _)| *id == batch)?;
        let all = Moments::exactly(Micros(self.until(now) - began)).mean;
        Some((all / Moments::exactly(took).mean.max(1.0) - 1.0).max(0.0))
    }
}

/// Whether it takes cores of this machine while it runs.
fn computes_here(variant: &WorkerVariant) -> bool {
    !variant.gpu && variant.engine != Engine::Remote
}

impl Worker {
    /// Whether there is anything to narrow.
    fn may_narrow(&self) -> bool {
        let cut = self.residency.cut(DEVICE);
        self.config.narrow && self.config.devices.len() == 1 && cut.lanes(cut.width) > 1
    }

    /// Lanes of a device that are open, where there are so many of a width.
    pub(super) fn open_of(&self, all: u16, width: u16) -> u16 {
        if self.config.devices.len() == 1 { self.company.narrowing.open(all, width) } else { all }
    }

    /// A batch ended that was alone on its lane for so long.
    pub(super) fn note_company(&mut self, now: Time, batch: &Batch, took: Micros) {
        let Some(known) = self.residency.variant(batch.variant).filter(|known| computes_here(known)) else {
            return;
        };
        if !self.may_narrow() {
            return;
        }
        let size = u32::try_from(batch.members.len()).unwrap_or(u32::MAX);
        let profiled = known.run.uncorrected(size).mean;
        self.company.work_us += profiled;
        let Some(others) = self.company.beside(now, batch.id, took).filter(|_| profiled > 0.0) else {
            return;
        };
        let cut = self.residency.cut(DEVICE);
        let open = self.open_of(cut.lanes(cut.width), cut.width);
        self.company.narrowing.saw(now, Moments::exactly(took).mean / profiled, others, open);
    }

    /// Who is on lanes from now on, for those who end later.
    pub(super) fn note_running(&mut self, now: Time) {
        if self.may_narrow() {
            let running = self.lanes.iter().filter_map(|lane| Some(lane.running.as_ref()?.id));
            self.company.count(now, running);
        }
    }

    /// Looks whether fewer lanes should run side by side, or more again.
    pub(super) fn reconsider_narrowing(&mut self, now: Time) {
        if !self.may_narrow() || now - self.company.looked < LOOK {
            return;
        }
        let (done, busy) = self.company.done(now);
        self.company.looked = now;
        let here = |variant: VariantId| self.residency.variant(variant).is_some_and(computes_here);
        let interfered = self
            .residency
            .replicas()
            .any(|(_, variant, replica)| replica.state == ReplicaState::Interfered && here(variant));
        if !interfered {
            self.company.interfered = None;
        } else if self.company.interfered.is_none() {
            self.company.interfered = Some(now);
            self.company.narrowing.begins();
        }
        let cut = self.residency.cut(DEVICE);
        if cut.next.is_some() || !(interfered || self.company.narrowing.is_narrowed()) {
            return;
        }
        let (asked, takes) = self.asked_in_lanes(now, DEVICE);
        let scene = Scene {
            all: cut.lanes(cut.width),
            width: cut.width,
            interfered: self.company.interfered.map(|since| now - since),
            asked: asked.max(done),
            takes: takes.max(busy),
            left_milli: self.host.left_milli(now),
        };
        let Some(change) = self.company.narrowing.judge(now, &scene) else { return };
        let (lanes, of, cause) = (change.lanes, scene.all, change.cause);
        self.actions.push_back(Action::Narrow { device: DEVICE, lanes, of, cause });
        self.residency.changes += 1;
        self.unbind_from(now, usize::from(lanes));
    }

    /// When to look again though nothing happens.
    pub(super) fn next_narrowing(&self) -> Option<Time> {
        let watched = self.company.interfered.is_some() || self.company.narrowing.is_narrowed();
        (watched && self.may_narrow()).then(|| self.company.looked + LOOK)
    }

    /// What was bound to lanes that close, and not handed over, goes back to the queue.
    fn unbind_from(&mut self, now: Time, open: usize) {
        for at in open..self.lanes.len() {
            let Some(batch) = self.lanes[at].unbind(|_| true) else { continue };
            self.actions.extend(batch.discard());
            self.residency.released(now, DEVICE, batch.variant, &mut self.actions);
            self.rerun(now, DEVICE, &batch, Failure::NotStarted, "its lane was closed before it ran");
        }
    }

    /// Takes away lanes that are to close and are empty, and opens those that are missing.
    pub(super) fn settle_lanes(&mut self) {
        let cut = self.residency.cut(DEVICE);
        if self.config.devices.len() != 1 || cut.next.is_some() {
            return;
        }
        let open = usize::from(self.open_of(cut.lanes(cut.width), cut.width));
        // Whichever is free goes first, so that as soon as may be no more run than should.
        while self.lanes.len() > open
            && let Some(at) = self.lanes.iter().rposition(Lane::is_empty)
        {
            self.lanes.remove(at);
        }
        let mut numbers = 0..cut.lanes(cut.width);
        while self.lanes.len() < open
            && let Some(ix) =
                numbers.by_ref().map(LaneIx).find(|ix| self.lanes.iter().all(|lane| lane.ix != *ix))
        {
            self.lanes.push(Lane::new(DEVICE, ix));
            self.lanes.sort_unstable_by_key(|lane| lane.ix);
        }
    }

    /// Whether a lane takes nothing more since it is to close.
    pub(super) fn closes(&self, at: usize) -> bool {
        let cut = self.residency.cut(DEVICE);
        self.config.devices.len() == 1 && at >= usize::from(self.open_of(cut.lanes(cut.width), cut.width))
    }

    /// Fewer lanes than there are, and why.
    pub fn narrowed(&self) -> Option<Narrowed> {
        let cut = self.residency.cut(DEVICE);
        self.company.narrowing.told(cut.lanes(cut.width), cut.width)
    }
}
