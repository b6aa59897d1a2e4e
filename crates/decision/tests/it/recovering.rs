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
    let point = BatchPoint { batch: 1, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 100 };
    WorkerVariant {
        id,
        model: ModelId(id.0),
        engine: Engine::Onnx,
        task,
        ordinal: 0,
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a point"),
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
    /// What was bound and has not ended.
    bound: BTreeMap<BatchId, VariantId>,
    ended: Vec<VariantId>,
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
            if let Action::Prepare { batch, variant, .. } = action {
                self.bound.insert(batch, variant);
                self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
            } else if let Action::Start { batch } = action {
                let takes = if self.bound[&batch] == SLOW { 20 } else { 2 };
                self.running.insert(batch, self.now + Micros::from_millis(takes));
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
        self.asked - self.of(QUICK) - self.ended.iter().filter(|known| **known == QUICK).count()
    }

    /// Of those batches that were bound and have not ended, how many are of a variant.
    fn of(&self, variant: VariantId) -> usize {
        self.bound.values().filter(|known| **known == variant).count()
    }

    /// Eight ask for the slow one, and before that is loaded twelve for the quick one. How many batches of the slow one were bound at most while
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
        assert!(world.bound.is_empty() && world.ended.len() == 21, "{:?}", world.bound);
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
