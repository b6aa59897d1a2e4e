//! Batches that are computed on another server: they hold no core here, and so no lane.
//!
//! Such a batch is chosen and prepared like every other, when a lane's prepared slot is free, so that what a server does and what
//! a core does is one choice. As soon as it is prepared it is handed over, whatever runs on the lane, and goes on *apart* from it: the slot
//! is free for the next one. Each process that speaks to a server has one way for each lane, on which one batch runs and one more is
//! handed over behind it; nothing is bound to a way that has both. So what waits for a server keeps nobody from a core, and what holds
//! the cores keeps nobody from a server.

use super::api::WorkerVariant;
use super::lanes::{Batch, Lane};
use super::machine::Worker;
use super::queue::Waiting;
use crate::estimate::Moments;
use alloc::vec::Vec;
use modelless_types::{DeviceIx, Engine, Time};

impl Worker {
    /// Whether batches of a variant run apart from lanes.
    pub(super) fn apart(&self, variant: &WorkerVariant) -> bool {
        self.config.servers_apart && variant.engine == Engine::Remote
    }

    /// The way beside a lane that is to a variant's server, if anything is on it.
    pub(super) fn way(&self, lane: &Lane, variant: &WorkerVariant) -> Option<&Lane> {
        self.ways
            .iter()
            .find(|way| (way.device, way.ix) == (lane.device, lane.ix) && way.runs(variant.runner()))
    }

    /// Whether the way of a variant beside a lane takes nothing more for now.
    pub(super) fn way_is_full(&self, lane: &Lane, variant: &WorkerVariant) -> bool {
        self.apart(variant) && self.way(lane, variant).is_some_and(|way| !way.may_follow())
    }

    /// How long until a batch of a variant, bound to a lane now, could run.
    pub(super) fn start_of(&self, now: Time, lane: &Lane, variant: &WorkerVariant) -> Moments {
        if !self.apart(variant) {
            return self.start(now, lane);
        }
        self.way(lane, variant).map_or_else(|| self.handover.moments(), |way| way.remaining(now))
    }

    /// What runs before a batch of a variant that is bound to a lane.
    pub(super) fn before<'a>(&'a self, lane: &'a Lane, variant: &WorkerVariant) -> Option<&'a Lane> {
        let before = if self.apart(variant) { self.way(lane, variant) } else { Some(lane) };
        before.filter(|before| before.running.is_some())
    }

    /// Whether a server may answer a query in time, though its ways are full now.
    pub(super) fn in_time_apart(&self, now: Time, device: DeviceIx, waiting: &Waiting, slack: f64) -> bool {
        let class = &waiting.query.class;
        let servers =
            self.residency.serving(device).filter(|v| self.apart(v) && super::bind::admits(class, v));
        let soonest = |v: &WorkerVariant| {
            let lanes = self.lanes.iter().filter(|lane| lane.device == device);
            let free = lanes.map(|lane| self.way(lane, v).map_or(Moments::ZERO, |way| way.until_free(now)));
            free.min_by(|a, b| a.mean.total_cmp(&b.mean)).unwrap_or(Moments::ZERO)
        };
        let mut ends = servers.map(|v| soonest(v).mean + v.run.estimate(1).mean);
        ends.any(|ends| ends <= slack)
    }

    /// Sends a batch that is prepared on its way, if it is one for a server.
    pub(super) fn send_apart(&mut self, now: Time, at: usize) {
        let lane = &mut self.lanes[at];
        let (device, ix) = (lane.device, lane.ix);
        let to_server = |next: &Batch| next.prepared && next.runner.1 == Engine::Remote;
        if !self.config.servers_apart || !lane.next.as_ref().is_some_and(to_server) {
            return;
        }
        let Some(batch) = lane.next.take() else { return };
        let mine = |way: &&mut Lane| (way.device, way.ix) == (device, ix) && way.runs(batch.runner);
        match self.ways.iter_mut().find(mine) {
            Some(way) if way.next.is_none() => way.next = Some(batch),
            // Nothing is bound to a way that is full, so this is only for whoever changes that.
            Some(_) => self.lanes[at].next = Some(batch),
            None => {
                let mut way = Lane::new(device, ix);
                way.next = Some(batch);
                self.ways.push(way);
            }
        }
        self.go_on_apart(now);
    }

    /// Hands over what can be on every way, and forgets ways with nothing on them.
    pub(super) fn go_on_apart(&mut self, now: Time) {
        let mut dropped: Vec<(DeviceIx, Batch)> = Vec::new();
        for way in &mut self.ways {
            let gone = way.start_what_can(now, &mut self.actions);
            dropped.extend(gone.map(|batch| (way.device, batch)));
        }
        for (device, batch) in dropped {
            self.residency.released(now, device, batch.variant, &mut self.actions);
        }
        self.ways.retain(|way| !way.is_empty());
    }
}
