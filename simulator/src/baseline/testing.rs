//! Small worlds whose course can be worked out by hand: no scatter, no jitter, no delay.

use super::{Policy, run};
use crate::{Arrivals, LinkSpec, NodeSpec, Outcome, Scenario, Stream, TaskSpec, VariantSpec};
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
        Self { variants, nodes: 1, lanes: 1, memory: Bytes::from_mib(100), goals, at, duration }
    }

    pub(super) fn floor(mut self, floor: &str) -> Self {
        self.goals.accuracy = Accuracy::parse_floor(floor);
        self
    }

    /// Queries at these milliseconds.
    pub(super) fn asks(mut self, at: &[u64]) -> Self {
        self.at = at.iter().map(|at| ms(*at)).collect();
        self.duration = self.at.last().copied().unwrap_or_default().max(ms(900)) + ms(100);
        self
    }

    pub(super) fn build(self) -> Scenario {
        let task = TaskSpec {
            id: TaskId(1),
            default_space: SpaceId(1),
            defaults: Goals::default(),
            batching: None,
            variants: self.variants,
        };
        let node = NodeSpec { load_scatter: 0.0, ..NodeSpec::with(self.lanes, self.memory, Vec::new()) };
        let stream = Stream::new("all", TaskId(1), Arrivals::At(self.at), self.goals);
        let link = LinkSpec { one_way: Micros::ZERO, jitter: Micros::ZERO };
        let scenario = Scenario::new("by hand", vec![task], vec![node; self.nodes], vec![stream]);
        Scenario { link, duration: self.duration, ..scenario }
    }
}

/// What comes of it.
pub(super) fn outcome(world: &Scenario, policy: &mut dyn Policy) -> Outcome {
    run(world, policy, 1).unwrap_or_else(|error| panic!("{error}"))
}
