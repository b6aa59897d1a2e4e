//! What live batches teach, and that a bad minute is forgotten.

use modelless_decision::estimate::Correction;
use modelless_decision::query::Class;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, TaskId, Time, VariantId,
    VariantSet,
};

use crate::common::{TASK, query};

const PROFILED: u64 = 200;

fn worker() -> Worker {
    let device =
        DeviceConfig { lanes: 1, width: 1, memory: Bytes::from_mib(100), price: PricePerHour(50_000) };
    let mut worker = Worker::new(WorkerConfig {
        devices: vec![device],
        queue: 100,
        queue_bytes: Bytes::from_mib(10),
        back_off: Micros::from_millis(100),
        give_up_after: 5,
        ..WorkerConfig::default()
    });
    let point = BatchPoint { batch: 1, mean_us: 200.0, var_us2: 25.0, p99_us: 220.0, samples: 100 };
    let variant = WorkerVariant {
        id: VariantId(1),
        model: ModelId(1),
        engine: Engine::Onnx,
        task: TaskId(TASK.0),
        ordinal: 0,
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a point"),
        memory: Bytes::from_mib(1),
        load_time: Micros(1_000),
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    };
    worker.handle(Time(1), Event::Catalog(vec![variant]));
    worker.handle(Time(2), Event::Pin(vec![(DeviceIx(0), VariantId(1))]));
    let (device, variant, memory, took) = (DeviceIx(0), VariantId(1), Bytes::from_mib(1), Micros(1_000));
    worker.handle(Time(1_000), Event::Loaded { device, variant, memory, took });
    while worker.poll_action().is_some() {}
    worker
}

fn admits() -> VariantSet {
    [0].into_iter().collect()
}

/// Answers one query in so long.
fn run(worker: &mut Worker, now: &mut Time, key: u64, took: u64) {
    let query: Query = query(key, *now, admits(), Micros::from_secs(10));
    assert_eq!(query.class, Class { task: TASK, admits: admits() });
    worker.handle(*now, Event::Arrive(query));
    let batch = prepared(worker);
    worker.handle(*now, Event::Prepared { batch, dropped: Vec::new() });
    *now = *now + Micros(took);
    worker.handle(*now, Event::Done { batch, outcome: Outcome::Ran });
    while worker.poll_action().is_some() {}
}

fn prepared(worker: &mut Worker) -> BatchId {
    loop {
        if let Action::Prepare { batch, .. } = worker.poll_action().expect("a batch is bound") {
            return batch;
        }
    }
}

fn ratio(worker: &Worker, now: Time) -> f64 {
    worker.offers(now)[0].run.correction.ratio
}

/// Serves the machine's timers for a while, as its shell would.
fn idle(worker: &mut Worker, now: &mut Time, time: Micros) {
    let until = *now + time;
    while let Some(wake) = worker.poll_timeout().filter(|wake| wake.at <= until) {
        *now = wake.at.max(*now);
        worker.handle_timeout(*now);
    }
    *now = until;
}

#[test]
fn one_slow_batch_does_not_overturn_what_was_measured() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    run(&mut worker, &mut now, 1, 20 * PROFILED);
    assert!(ratio(&worker, now) < 2.0, "{}", ratio(&worker, now));
}

#[test]
fn lasting_slowness_is_believed_and_forgotten_when_nothing_confirms_it() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    for key in 0..100 {
        run(&mut worker, &mut now, key, 5 * PROFILED);
    }
    assert!(ratio(&worker, now) > 4.0, "{}", ratio(&worker, now));
    idle(&mut worker, &mut now, Micros::from_secs(5));
    assert!(ratio(&worker, now) < 2.0, "{}", ratio(&worker, now));
    idle(&mut worker, &mut now, Micros::from_secs(60));
    assert_eq!(worker.offers(now)[0].run.correction, Correction::NONE);
    assert_eq!(worker.poll_timeout(), None, "nothing is left to fade");
}

#[test]
fn what_is_seen_all_the_time_does_not_fade() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    for key in 0..200 {
        run(&mut worker, &mut now, key, 3 * PROFILED);
        idle(&mut worker, &mut now, Micros::from_millis(100));
    }
    assert!((2.7..3.1).contains(&ratio(&worker, now)), "{}", ratio(&worker, now));
}

/// What is predicted of one alone in 99 of 100 cases.
#[test]
fn a_mark_from_before_a_restart_is_neither_forgotten_nor_given_twice_and_is_taken_back() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    assert!(!worker.has_drifted(VariantId(1)));
    worker.handle(now, Event::Marked(vec![VariantId(1), VariantId(99)]));
    assert!(worker.has_drifted(VariantId(1)) && !worker.has_drifted(VariantId(99)));
    let mut said = Vec::new();
    let mut serve = |worker: &mut Worker, now: &mut Time, keys: core::ops::Range<u64>, took: u64| {
        for key in keys {
            worker.handle(*now, Event::Arrive(query(key, *now, admits(), Micros::from_secs(10))));
            let batch = prepared(worker);
            worker.handle(*now, Event::Prepared { batch, dropped: Vec::new() });
            *now = *now + Micros(took);
            worker.handle(*now, Event::Done { batch, outcome: Outcome::Ran });
            while let Some(action) = worker.poll_action() {
                if matches!(action, Action::Drifted { .. } | Action::Steadied { .. }) {
                    said.push(action);
                }
            }
            idle(worker, now, Micros::from_millis(100));
        }
        said.clone()
    };
    assert_eq!(serve(&mut worker, &mut now, 0..400, 3 * PROFILED), [], "it said so before");
    let steadied = Action::Steadied { variant: VariantId(1) };
    assert_eq!(serve(&mut worker, &mut now, 400..1_000, PROFILED), [steadied]);
    assert!(!worker.has_drifted(VariantId(1)));
}

fn p99(worker: &Worker, now: Time) -> Micros {
    worker.offers(now)[0].run.estimate(1).p99()
}

#[test]
fn what_happens_less_than_once_in_a_hundred_times_does_not_set_the_99th_percentile() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    for key in 0..1_000 {
        let took = if key % 150 == 149 { 40 * PROFILED } else { PROFILED };
        run(&mut worker, &mut now, key, took);
        assert!(p99(&worker, now) < Micros(2 * PROFILED), "{key}: {}", p99(&worker, now));
    }
    assert!(p99(&worker, now) < Micros(PROFILED * 3 / 2), "{}", p99(&worker, now));
}

#[test]
fn handing_over_to_an_idle_lane_is_not_taken_for_slowness_of_the_model() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    for key in 0..200 {
        run(&mut worker, &mut now, key, PROFILED + 40);
    }
    assert!(ratio(&worker, now) < 1.08, "{}", ratio(&worker, now));
}

/// A query with five times what one takes; whether it is let in.
fn let_in(worker: &mut Worker, now: Time, key: u64) -> bool {
    worker.handle(now, Event::Arrive(query(key, now, admits(), Micros(5 * PROFILED))));
    let actions: Vec<Action> = std::iter::from_fn(|| worker.poll_action()).collect();
    let refused = actions.iter().any(|action| matches!(action, Action::Refuse { .. }));
    let bound = actions.iter().any(|action| matches!(action, Action::Prepare { .. }));
    assert!(refused != bound, "{actions:?}");
    bound
}

#[test]
fn a_few_stalls_have_nobody_refused_who_finds_the_lane_idle() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    for key in 0..100 {
        let took = if key >= 95 { 40 * PROFILED } else { PROFILED };
        run(&mut worker, &mut now, key, took);
    }
    assert!(let_in(&mut worker, now, 100));
}

#[test]
fn what_has_become_too_slow_is_tried_again_now_and_then() {
    let (mut worker, mut now) = (worker(), Time(10_000));
    for key in 0..100 {
        run(&mut worker, &mut now, key, 10 * PROFILED);
    }
    assert!(!let_in(&mut worker, now, 100), "it takes twice what there is");
    now = now + Micros::from_millis(10);
    assert!(let_in(&mut worker, now, 101), "nothing was learnt for a while");
    assert!(now < Time(10_000) + Micros::from_secs(1), "well before anything fades");
}
