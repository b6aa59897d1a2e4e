//! A machine that is slowed slows all variants: what seldom-asked ones are expected to take, while only others run.

use crate::common::{TASK, query};
use modelless_decision::estimate::Correction;
use modelless_decision::worker::{Action, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, TaskId, Time, VariantId,
};

const ALONE: u64 = 2_000;

fn variant(id: u8, engine: Engine) -> WorkerVariant {
    let point = |batch: u32| {
        let mean_us = 2_000.0 * f64::from(batch);
        BatchPoint { batch, mean_us, var_us2: 400.0, p99_us: mean_us * 1.05, samples: 100 }
    };
    WorkerVariant {
        id: VariantId(id.into()),
        model: ModelId(id.into()),
        engine,
        task: TaskId(TASK.0),
        ordinal: id,
        accuracy: Accuracy::ONE,
        max_batch: 4,
        run: RunModel::from_points(&[point(1), point(4)], Moments::ZERO).expect("points"),
        memory: Bytes::from_mib(1),
        load_time: Micros(1_000),
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    }
}

struct World {
    worker: Worker,
    now: Time,
    key: u64,
}

impl World {
    fn new(variants: Vec<WorkerVariant>) -> Self {
        let device =
            DeviceConfig { lanes: 1, width: 1, memory: Bytes::from_mib(100), price: PricePerHour(50_000) };
        let config = WorkerConfig {
            devices: vec![device],
            queue: 100,
            queue_bytes: Bytes::from_mib(10),
            back_off: Micros::from_millis(100),
            give_up_after: 5,
            ..WorkerConfig::default()
        };
        let mut worker = Worker::new(config);
        let ids: Vec<VariantId> = variants.iter().map(|variant| variant.id).collect();
        worker.handle(Time(1), Event::Catalog(variants));
        worker.handle(Time(2), Event::Pin(ids.iter().map(|id| (DeviceIx(0), *id)).collect()));
        for (at, id) in (1..).zip(ids) {
            let (device, memory, took) = (DeviceIx(0), Bytes::from_mib(1), Micros(1_000));
            worker.handle(Time(1_000 * at), Event::Loaded { device, variant: id, memory, took });
        }
        while worker.poll_action().is_some() {}
        Self { worker, now: Time(100_000), key: 0 }
    }

    /// One query of a variant, which takes so many hundredths of what was measured; then a while in which nothing is asked.
    fn run(&mut self, ordinal: u8, percent: u64) {
        self.key += 1;
        let admits = [ordinal].into_iter().collect();
        let query = query(self.key, self.now, admits, Micros::from_secs(10));
        self.worker.handle(self.now, Event::Arrive(query));
        let batch = loop {
            if let Action::Prepare { batch, .. } = self.worker.poll_action().expect("a batch is bound") {
                break batch;
            }
        };
        self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
        self.now = self.now + Micros(ALONE * percent / 100);
        self.worker.handle(self.now, Event::Done { batch, outcome: Outcome::Ran });
        while self.worker.poll_action().is_some() {}
        self.idle(Micros::from_millis(30));
    }

    fn idle(&mut self, time: Micros) {
        let until = self.now + time;
        while let Some(wake) = self.worker.poll_timeout().filter(|wake| wake.at <= until) {
            self.now = wake.at.max(self.now);
            self.worker.handle_timeout(self.now);
            while self.worker.poll_action().is_some() {}
        }
        self.now = until;
    }

    /// How much longer than was measured it is expected to take, as gateways hear it.
    fn expected(&self, ordinal: u8) -> f64 {
        let offers = self.worker.offers(self.now);
        let offer = offers.iter().find(|offer| offer.ordinal == ordinal).expect("it is offered");
        offer.run.estimate(1).mean / 2_000.0
    }
}

#[test]
fn a_seldom_asked_variant_is_expected_to_be_slow_although_only_others_ran_on_the_slowed_machine() {
    let mut world =
        World::new(vec![variant(0, Engine::Onnx), variant(1, Engine::Onnx), variant(2, Engine::Onnx)]);
    for _ in 0..20 {
        world.run(0, 100);
        world.run(1, 100);
    }
    assert!((0.97..1.03).contains(&world.expected(2)), "{}", world.expected(2));
    for _ in 0..60 {
        world.run(0, 160);
        world.run(1, 160);
    }
    let expected = world.expected(2);
    assert!((1.6 / 1.15..1.6 * 1.15).contains(&expected), "within 15 %: {expected}");
    // A batch of four, of which none ever ran.
    let offers = world.worker.offers(world.now);
    let four = offers[2].run.estimate(4).mean / 8_000.0;
    assert!((four - expected).abs() < 1e-9, "{four}");
    // What is shown as seen of it is what was seen of it: nothing.
    assert_eq!(world.worker.correction(VariantId(2)), Correction::NONE);
    assert!(!world.worker.has_drifted(VariantId(2)));
}

#[test]
fn own_batches_outweigh_the_others_and_all_is_forgotten_when_nothing_confirms_it() {
    let mut world = World::new(vec![variant(0, Engine::Onnx), variant(1, Engine::Onnx)]);
    for _ in 0..60 {
        world.run(0, 180);
    }
    let lent = world.expected(1);
    assert!(lent > 1.5, "{lent}");
    // It is not slowed at all, and after some batches it is believed.
    for _ in 0..100 {
        world.run(1, 100);
        world.run(0, 180);
    }
    assert!((0.95..1.08).contains(&world.expected(1)), "{}", world.expected(1));
    assert!((1.7..1.9).contains(&world.expected(0)), "{}", world.expected(0));
    world.idle(Micros::from_secs(60));
    for ordinal in [0, 1] {
        assert!((world.expected(ordinal) - 1.0).abs() < 1e-9, "{ordinal}: {}", world.expected(ordinal));
    }
    assert_eq!(world.worker.poll_timeout(), None, "nothing is left to fade");
}

#[test]
fn another_server_has_nothing_in_common_with_this_machine() {
    let mut world = World::new(vec![variant(0, Engine::Onnx), variant(1, Engine::Remote)]);
    for _ in 0..60 {
        world.run(0, 200);
    }
    assert!((world.expected(1) - 1.0).abs() < 1e-9, "{}", world.expected(1));
}
