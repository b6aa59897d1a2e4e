//! Batches that run far longer than they should, and what their lanes do meanwhile.
//!
//! What hangs is only known to hang after a second or more: what ends a process had better be sure. That is long for
//! those who wait for its lane. So a batch that has run several times its 99th percentile is *suspected*: where somebody
//! waits whom another runner could answer, the lane goes on to them, and the suspect runs on beside, behind everything else,
//! until it ends or is taken for hung. What was handed over behind it stays with it. Nothing of its runner is bound to
//! that lane meanwhile, where it would stand behind it.
//!
//! So more batches run than there are lanes: on each device at most as many suspects as it has lanes, and one. What is on a
//! GPU or on another server is never suspected: it holds no core, and to run more there at once helps nobody.

use super::api::{Action, Failure, WorkerVariant};
use super::bind::admits;
use super::lanes::Lane;
use super::machine::Worker;
use crate::estimate::Moments;
use crate::query::Class;
use modelless_types::{DeviceIx, Engine, Micros, Time};

/// How many times the 99th percentile of its time a batch may run before it is suspected.
const FACTOR: u64 = 4;

/// What has run far too long and holds its lane all the same, since as many as may do run beside lanes already or nothing else
/// could run there: so long it is expected to hold it yet. About as long as until it is taken for hung; nobody who could go elsewhere waits for that.
const HELD_UP: Micros = Micros::from_secs(1);

impl Worker {
    /// Lanes, what was on them and is suspected, and what runs apart from them.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().chain(&self.suspects).chain(&self.ways)
    }

    pub(super) fn all_lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().chain(&mut self.suspects).chain(&mut self.ways)
    }

    pub(super) fn suspects_on(&self, device: DeviceIx) -> impl Iterator<Item = &Lane> {
        self.suspects.iter().filter(move |suspect| suspect.device == device)
    }

    /// Whether a batch of a variant would stand behind a suspect on a lane, or behind all that its way takes, or beside another one where
    /// memory ran out.
    pub(super) fn held_up(&self, lane: &Lane, variant: &WorkerVariant) -> bool {
        if self.way_is_full(lane, variant) || self.is_scarce_beside(lane, variant) {
            return true;
        }
        let mut here = self.suspects_on(lane.device).filter(|suspect| suspect.ix == lane.ix);
        here.any(|suspect| suspect.running.as_ref().is_some_and(|batch| batch.runner == variant.runner()))
    }

    /// Whether memory ran out in a variant's process, which is at work on another lane.
    fn is_scarce_beside(&self, lane: &Lane, variant: &WorkerVariant) -> bool {
        let runner = variant.runner();
        let is_of = |other: &Lane| {
            [&other.running, &other.next].into_iter().flatten().any(|batch| batch.runner == runner)
        };
        self.scarce.contains_key(&runner)
            && self
                .all_lanes()
                .any(|other| (other.device, other.ix) != (lane.device, lane.ix) && is_of(other))
    }

    /// Whether it would on all lanes of a device.
    pub(super) fn held_up_everywhere(&self, device: DeviceIx, variant: &WorkerVariant) -> bool {
        let mut lanes = self.lanes.iter().filter(|lane| lane.device == device);
        !self.suspects.is_empty() && !self.apart(variant) && lanes.all(|lane| self.held_up(lane, variant))
    }

    /// Lets lanes go on whose batch runs far too long.
    pub(super) fn suspect_overdue(&mut self, now: Time) {
        for at in 0..self.lanes.len() {
            let due = self.overdue(&self.lanes[at]).is_some_and(|at| at <= now);
            if !due || !self.may_suspect(now, &self.lanes[at]) {
                continue;
            }
            let lane = &mut self.lanes[at];
            let suspect = lane.part(now);
            let device = suspect.device;
            let Some(runner) = suspect.running.as_ref().map(|batch| batch.runner) else { continue };
            self.actions.extend(suspect.running.iter().map(|batch| Action::Suspect { batch: batch.id }));
            let behind = lane.unbind(|next| next.runner == runner);
            self.suspects.push(suspect);
            if let Some(batch) = behind {
                self.actions.extend(batch.discard());
                self.residency.released(now, device, batch.variant, &mut self.actions);
                self.rerun(now, device, &batch, Failure::NotStarted, "what ran before it did not end");
            }
        }
    }

    /// When to look at it again though nothing happens. Whether anybody waits for a lane is only asked when it matters.
    pub(super) fn watch_overdue(&mut self, now: Time) {
        let next = self.lanes.iter().filter_map(|lane| match self.overdue(lane)? {
            at if at > now => Some(at),
            // It is due, and somebody began to wait for it just now.
            _ => self.may_suspect(now, lane).then_some(now + Micros(1)),
        });
        self.suspect_at = next.min();
    }

    /// When what runs on a lane has run far too long.
    pub(super) fn overdue(&self, lane: &Lane) -> Option<Time> {
        let (_, engine, gpu) = lane.running.as_ref()?.runner;
        let never = gpu || engine == Engine::Remote || self.config.suspect_after == Micros::ZERO;
        let at = if never { None } else { lane.overdue(FACTOR, self.config.suspect_after) };
        at.map(|at| at.max(self.suspect_from))
    }

    /// How long a lane is held up yet by what runs far too long there and does not give it up for anybody.
    pub(super) fn held_up_for(&self, now: Time, lane: &Lane) -> Moments {
        let overdue = self.overdue(lane).is_some_and(|at| at <= now);
        let stays =
            overdue && (self.suspects_are_full(lane.device) || self.others_for(lane).next().is_none());
        Moments::exactly(if stays { HELD_UP } else { Micros::ZERO })
    }

    fn may_suspect(&self, now: Time, lane: &Lane) -> bool {
        !self.suspects_are_full(lane.device) && self.waited_for(now, lane)
    }

    fn suspects_are_full(&self, device: DeviceIx) -> bool {
        let lanes = self.lanes.iter().filter(|other| other.device == device).count();
        self.suspects_on(device).count() > lanes
    }

    /// What could run on a lane if it were given up, and would not stand behind what runs there.
    fn others_for(&self, lane: &Lane) -> impl Iterator<Item = &WorkerVariant> {
        let runner = lane.running.as_ref().map(|batch| batch.runner);
        let others = self.residency.serving(lane.device);
        others.filter(move |v| runner.is_some_and(|runner| v.runner() != runner) && !self.held_up(lane, v))
    }

    /// Whether somebody waits for a lane who need not stand behind what runs there.
    fn waited_for(&self, now: Time, lane: &Lane) -> bool {
        let Some(runner) = lane.running.as_ref().map(|batch| batch.runner) else { return false };
        let mut others = self.others_for(lane);
        // Who finds another lane free needs none.
        let lanes = || self.lanes.iter().filter(|other| other.device == lane.device && other.is_empty());
        let here = || self.queue.classes().map(|(class, _)| class);
        let at_gateways = || self.queue.demand(now).map(|(class, _)| class);
        let waits = |v: &WorkerVariant| {
            here().chain(at_gateways()).any(|class: &Class| admits(class, v))
                && !lanes().any(|free| !self.held_up(free, v))
        };
        let bound = |next: &super::lanes::Batch| next.started.is_none() && next.runner != runner;
        lane.next.as_ref().is_some_and(bound) || others.any(waits)
    }
}
