//! Small worlds whose course can be worked out by hand: no scatter, no jitter, no delay.

use super::{Policy, drive, run};
use crate::{Arrivals, LinkSpec, NodeSpec, Outcome, Rented, Scenario, Stream, TaskSpec, VariantSpec};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, Engine, Goals, Micros, ModelId, SpaceId, StageTime, TaskId, VariantId,
};
use std::collections::BTreeMap;

pub(super) fn ms(ms: u64) -> Micros {
    Micros::from_millis(ms)
}

/// A world under construction.
#[derive(Clone)]
pub(super) struct World {
    variants: Vec<VariantSpec>,
    nodes: usize,
    /// Of them those that come and go, and what starting takes.
    rented: (usize, Micros),
    /// Streams that are pinned to a variant, and their times, instead of one for all.
    pinned: Vec<(String, Micros)>,
    lanes: u16,
    memory: Bytes,
    goals: Goals,
    at: Vec<Micros>,
    duration: Micros,
}

pub(super) fn variant(name: &str, id: u32, ppm: u32, batch_ms: &[(u32, u64)], load: Micros) -> VariantSpec {
    let point = |&(batch, time): &(u32, u64)| {
        let mean_us = modelless_decision::Moments::exactly(ms(time)).mean;
        BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 }
    };
    let latency: Vec<BatchPoint> = batch_ms.iter().map(point).collect();
    VariantSpec {
        name: name.into(),
        id: VariantId(id),
        model: ModelId(id),
        engine: Engine::Onnx,
        ordinal: u8::try_from(id).expect("few"),
        space: SpaceId(1),
        accuracy: Accuracy::from_ppm(ppm).expect("an accuracy"),
        max_batch: latency.last().expect("a point").batch,
        threads: 1,
        latency,
        decode: StageTime::default(),
        decoded: Vec::new(),
        prepare: StageTime::default(),
        memory: Bytes::from_mib(10),
        load_time: load,
        on: BTreeMap::new(),
    }
}

impl World {
    /// One lane; `good` (0.95) takes 20 ms for one or two, `quick` (0.8) 5 ms for one and 10 ms for eight; both fit.
    pub(super) fn ladder() -> Self {
        Self::of(vec![
            variant("good", 1, 950_000, &[(1, 20), (2, 20)], ms(100)),
            variant("quick", 2, 800_000, &[(1, 5), (8, 10)], ms(100)),
        ])
    }

    pub(super) fn of(variants: Vec<VariantSpec>) -> Self {
        let goals = Goals { latency: Some(ms(100)), ..Goals::default() };
        let (at, duration) = (Vec::new(), Micros::from_secs(1));
        let (rented, pinned, memory) = ((0, Micros::ZERO), Vec::new(), Bytes::from_mib(100));
        Self { variants, nodes: 1, rented, pinned, lanes: 1, memory, goals, at, duration }
    }

    pub(super) fn nodes(mut self, nodes: usize, lanes: u16) -> Self {
        (self.nodes, self.lanes) = (nodes, lanes);
        self
    }

    /// The last `many` nodes come and go, and take so long to start.
    pub(super) fn rented(mut self, many: usize, start_up: Micros) -> Self {
        self.rented = (many, start_up);
        self
    }

    /// Queries for these variants, at these milliseconds.
    pub(super) fn pinned(mut self, asks: &[(&str, u64)]) -> Self {
        self.pinned = asks.iter().map(|(name, at)| ((*name).to_owned(), ms(*at))).collect();
        self
    }

    pub(super) fn floor(mut self, floor: &str) -> Self {
        self.goals.accuracy = Accuracy::parse_floor(floor);
        self
    }

    pub(super) fn bound(mut self, bound: Micros) -> Self {
        self.goals.latency = Some(bound);
        self
    }

    /// Queries at these milliseconds.
    pub(super) fn asks(mut self, at: &[u64]) -> Self {
        self.at = at.iter().map(|at| ms(*at)).collect();
        self.duration = self.at.last().copied().unwrap_or_default().max(ms(900)) + ms(100);
        self
    }

    pub(super) fn build(self) -> Scenario {
        let all = ("all".to_owned(), self.at, None);
        let mut streams = vec![all];
        if !self.pinned.is_empty() {
            streams.clear();
        }
        for variant in &self.variants {
            let at = self.pinned.iter().filter(|(name, _)| *name == variant.name).map(|(_, at)| *at);
            let at: Vec<Micros> = at.collect();
            if !at.is_empty() {
                streams.push((variant.name.clone(), at, Some(variant.id)));
            }
        }
        let stream = |(name, at, variant): (String, Vec<Micros>, Option<VariantId>)| {
            Stream::new(&name, TaskId(1), Arrivals::At(at), Goals { variant, ..self.goals })
        };
        let streams: Vec<Stream> = streams.into_iter().map(stream).collect();
        let task = TaskSpec {
            id: TaskId(1),
            default_space: SpaceId(1),
            defaults: Goals::default(),
            batching: None,
            variants: self.variants,
        };
        let node = NodeSpec { load_scatter: 0.0, ..NodeSpec::with(self.lanes, self.memory, Vec::new()) };
        let (many, start_up) = self.rented;
        let rented = |at: usize| {
            (at + many >= self.nodes).then_some(Rented { at_start: false, start_up, scatter: 0.0 })
        };
        let nodes = (0..self.nodes).map(|at| NodeSpec { rented: rented(at), ..node.clone() }).collect();
        let link = LinkSpec { one_way: Micros::ZERO, jitter: Micros::ZERO };
        let scenario = Scenario::new("by hand", vec![task], nodes, streams);
        Scenario { link, duration: self.duration, ..scenario }
    }
}

/// What comes of it.
pub(super) fn outcome(world: &Scenario, policy: &mut dyn Policy) -> Outcome {
    run(world, policy, 1).unwrap_or_else(|error| panic!("{error}"))
}

/// The same, with the time that each node worked, in microseconds.
pub(super) fn worked(world: &Scenario, policy: &mut dyn Policy) -> (Outcome, Vec<u64>) {
    let cluster = drive(world, policy, 1).unwrap_or_else(|error| panic!("{error}"));
    let worked = (0..cluster.nodes()).map(|node| cluster.worked_us(node)).collect();
    (cluster.finish(), worked)
}
