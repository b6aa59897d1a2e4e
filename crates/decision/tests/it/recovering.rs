//! Who gathered while a model was loaded has one lane, and leaves the others to whoever else waits.

use crate::common::{TASK, query};
use modelless_decision::query::Class;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Foresight, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, TaskId, Time, VariantId,
    VariantSet,
};
use std::collections::BTreeMap;

const DEVICE: DeviceIx = DeviceIx(0);
const OTHER: TaskId = TaskId(8);
/// The one that is loaded, and takes long; and one that is there, and takes a tenth of it.
const SLOW: VariantId = VariantId(1);
const QUICK: VariantId = VariantId(2);
const BOUND: Micros = Micros::from_secs(2);

fn variant(id: VariantId, task: TaskId, mean_us: f64) -> WorkerVariant {
    let point =
        |batch: u32, mean_us: f64| BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 100 };
    // Eight take hardly less than one by one.
    let points = [point(1, mean_us), point(8, 7.0 * mean_us)];
    WorkerVariant {
        id,
        model: ModelId(id.0),
        engine: Engine::Onnx,
        task,
        ordinal: 0,
        accuracy: Accuracy::ONE,
        max_batch: 8,
        run: RunModel::from_points(&points, Moments::ZERO).expect("two points"),
        memory: Bytes(1),
        load_time: Micros::from_millis(300),
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    }
}

/// A node of two lanes.
struct World {
    worker: Worker,
    now: Time,
    keys: u64,
    /// How many asked for the quick one.
    asked: usize,
    /// What was bound and has not ended: of which variant, and how many queries.
    bound: BTreeMap<BatchId, (VariantId, usize)>,
    ended: Vec<(VariantId, usize)>,
    /// What runs, and until when.
    running: BTreeMap<BatchId, Time>,
    loading: Vec<VariantId>,
}

impl World {
    fn new(leaves_lanes: bool) -> Self {
        let device = DeviceConfig { lanes: 2, width: 1, memory: Bytes(100), price: PricePerHour(1_000_000) };
        let foresight = Foresight { leaves_lanes, ..Foresight::default() };
        let config = WorkerConfig { devices: vec![device], queue: 100, foresight, ..WorkerConfig::default() };
        let mut world = Self {
            worker: Worker::new(config),
            now: Time(1_000_000),
            keys: 0,
            asked: 0,
            bound: BTreeMap::new(),
            ended: Vec::new(),
            running: BTreeMap::new(),
            loading: Vec::new(),
        };
        world.feed(Event::Catalog(vec![variant(SLOW, TASK, 20_000.0), variant(QUICK, OTHER, 2_000.0)]));
        world
    }

    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.hear();
    }

    fn hear(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            if let Action::Prepare { batch, variant, queries, .. } = action {
                self.bound.insert(batch, (variant, queries.len()));
                self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
            } else if let Action::Start { batch } = action {
                let (variant, members) = self.bound[&batch];
                let each = if variant == SLOW { 20 } else { 2 };
                self.running.insert(batch, self.now + Micros::from_millis(each * members as u64));
            } else if let Action::Load { variant, .. } = action {
                self.loading.push(variant);
            } else if let Action::Refuse { refusal, .. } = action {
                panic!("all have time: {refusal}");
            }
        }
    }

    fn ask(&mut self, task: TaskId, within: Micros) {
        self.keys += 1;
        self.asked += usize::from(task == OTHER);
        let admits: VariantSet = [0_u8].into_iter().collect();
        let query = Query { class: Class { task, admits }, ..query(self.keys, self.now, admits, within) };
        self.feed(Event::Arrive(query));
    }

    /// What was asked for is in memory, 300 ms later.
    fn loaded(&mut self) {
        self.now = self.now + Micros::from_millis(300);
        for variant in std::mem::take(&mut self.loading) {
            let took = Micros::from_millis(300);
            self.feed(Event::Loaded { device: DEVICE, variant, memory: Bytes(1), took });
        }
    }

    /// The batch that is over first ends, or the worker wakes before that. None runs: false.
    fn goes_on(&mut self) -> bool {
        let first = self.running.iter().map(|(batch, until)| (*until, *batch)).min();
        let Some((until, batch)) = first else { return false };
        if let Some(wake) = self.worker.poll_timeout().filter(|wake| wake.at < until) {
            self.now = self.now.max(wake.at);
            self.worker.handle_timeout(self.now);
            self.hear();
            return true;
        }
        self.running.remove(&batch);
        self.ended.extend(self.bound.remove(&batch));
        self.now = self.now.max(until);
        self.feed(Event::Done { batch, outcome: Outcome::Ran });
        true
    }

    /// Of the quick one, how many wait.
    fn wait(&self) -> usize {
        let known = self.bound.values().chain(&self.ended).filter(|(variant, _)| *variant == QUICK);
        self.asked - known.map(|(_, members)| members).sum::<usize>()
    }

    /// How many queries were answered.
    fn answered(&self) -> usize {
        self.ended.iter().map(|(_, members)| members).sum()
    }

    /// On how many lanes a variant is bound.
    fn of(&self, variant: VariantId) -> usize {
        self.bound.values().filter(|(known, _)| *known == variant).count()
    }

    /// Eight ask for the slow one, and before that is loaded twelve for the quick one. On how many lanes the slow one was bound at most while
    /// any of the quick one still waited; in the end all are answered.
    fn most_bound(leaves_lanes: bool, within: Micros) -> usize {
        let mut world = Self::new(leaves_lanes);
        world.ask(OTHER, BOUND);
        world.loaded();
        while world.goes_on() {}
        for _ in 0..8 {
            world.ask(TASK, within);
        }
        world.now = world.now + Micros::from_millis(10);
        for _ in 0..12 {
            world.ask(OTHER, BOUND);
        }
        world.loaded();
        let mut most = world.of(SLOW);
        while world.goes_on() {
            if world.wait() > 0 {
                most = most.max(world.of(SLOW));
            }
        }
        assert!(world.bound.is_empty() && world.answered() == 21, "{:?}", world.bound);
        most
    }
}

#[test]
fn who_gathered_while_a_model_was_loaded_has_one_lane_while_others_wait() {
    assert_eq!(World::most_bound(true, BOUND), 1);
    assert!(World::most_bound(false, BOUND) > 1, "by deadline alone they have both");
}

#[test]
fn who_gathered_and_has_little_time_left_takes_what_lanes_there_are() {
    // 160 ms of work, and 240 are left.
    assert!(World::most_bound(true, Micros::from_millis(550)) > 1);
}

#[test]
fn where_nobody_else_waits_who_gathered_goes_one_by_one_on_other_lanes() {
    let alone = |leaves_lanes: bool| {
        let mut world = World::new(leaves_lanes);
        for _ in 0..16 {
            world.ask(TASK, BOUND);
        }
        world.loaded();
        let mut sizes: Vec<usize> = world.bound.values().map(|(_, members)| *members).collect();
        sizes.sort_unstable();
        while world.goes_on() {}
        assert_eq!(world.answered(), 16);
        sizes
    };
    let (with, without) = (alone(true), alone(false));
    assert!(with.len() >= 2 && with[0] == 1 && with[with.len() - 1] > 1, "{with:?}");
    assert!(without.len() >= 2 && without[0] > 1, "{without:?}");
}
