//! How busy the worker is, for people and for metrics. Routing reads [`super::Worker::report`], not this.

use super::lanes::Lane;
use super::machine::Worker;
use super::spare::is_spare;
use crate::estimate::Correction;
use modelless_types::VariantId;

/// What a worker has at hand at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerLoad {
    /// Lanes on which a batch runs that somebody waits for: spare time is free time.
    pub lanes_busy: u16,
    /// Queries in batches that were handed to a runner.
    pub running: u32,
    /// Queries that wait, unbound or in a batch that is being prepared.
    pub queued: u32,
}

impl Worker {
    /// What is at hand.
    pub fn load(&self) -> WorkerLoad {
        let batches = || self.all_lanes().flat_map(|lane| lane.running.iter().chain(lane.next.iter()));
        let alive = |started: bool| {
            let batches = batches().filter(|batch| batch.started.is_some() == started);
            batches
                .map(|batch| batch.members.iter().filter(|m| !m.gone && !m.is_asked_for()).count())
                .sum::<usize>()
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let busy = |lane: &&Lane| lane.running.as_ref().is_some_and(|batch| !is_spare(batch));
        let busy = self.lanes.iter().filter(busy).count();
        WorkerLoad {
            lanes_busy: u16::try_from(busy).unwrap_or(u16::MAX),
            running: count(alive(true)),
            queued: count(alive(false) + self.queue.own()),
        }
    }

    /// What live traffic says of a variant's profile.
    pub fn correction(&self, variant: VariantId) -> Correction {
        self.residency.variant(variant).map_or(Correction::NONE, |known| known.run.correction)
    }
}
