//! What leaves memory because somebody asked for that, and when.

use crate::common::{TASK, query};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, UNLOADED, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, ReplicaState, Time,
    VariantId,
};

const DEVICE: DeviceIx = DeviceIx(0);
const NOW: Time = Time(1_000_000);
const THIS: VariantId = VariantId(1);
const OTHER: VariantId = VariantId(2);

/// A worker with one variant, of which nothing is in memory.
fn worker() -> Worker {
    worker_of(&[(4, 0)])
}

/// With variants of so much memory and these ordinals, where ten fit.
fn worker_of(variants: &[(u64, u8)]) -> Worker {
    keeping(variants, None)
}

/// The same of a task that is kept for so long.
fn keeping(variants: &[(u64, u8)], keep: Option<Micros>) -> Worker {
    let device = DeviceConfig { lanes: 1, width: 1, memory: Bytes(10), price: PricePerHour(1_000_000) };
    let point = BatchPoint { batch: 1, mean_us: 100.0, var_us2: 0.0, p99_us: 100.0, samples: 1 };
    let variant = |&(memory, ordinal): &(u64, u8)| WorkerVariant {
        id: VariantId(1 + u32::from(ordinal)),
        model: ModelId(1 + u32::from(ordinal)),
        engine: Engine::Onnx,
        task: TASK,
        ordinal,
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a point"),
        memory: Bytes(memory),
        load_time: Micros::from_millis(10),
        threads: 1,
        batching: None,
        gpu: false,
        keep,
    };
    let mut worker = Worker::new(WorkerConfig { devices: vec![device], ..WorkerConfig::default() });
    tell(&mut worker, Event::Catalog(variants.iter().map(variant).collect()));
    worker
}

fn tell(worker: &mut Worker, event: Event) -> Vec<Action> {
    worker.handle(NOW, event);
    std::iter::from_fn(|| worker.poll_action()).collect()
}

fn ask(worker: &mut Worker, key: u64) -> Vec<Action> {
    let admits = [0].into_iter().collect();
    tell(worker, Event::Arrive(query(key, NOW, admits, Micros::from_secs(100))))
}

fn loaded(worker: &mut Worker) -> Vec<Action> {
    tell(worker, Event::Loaded { device: DEVICE, variant: THIS, memory: Bytes(4), took: Micros(10_000) })
}

fn unwanted(worker: &mut Worker) -> Vec<Action> {
    tell(worker, Event::Unwanted { variant: THIS })
}

fn state(worker: &Worker) -> ReplicaState {
    worker.replicas().iter().find(|replica| replica.variant == THIS).expect("it was loaded").state
}

fn unloads(actions: &[Action]) -> bool {
    actions.contains(&Action::Unload { device: DEVICE, variant: THIS })
}

fn loads(actions: &[Action]) -> bool {
    actions.contains(&Action::Load { device: DEVICE, variant: THIS })
}

fn wake(worker: &mut Worker) {
    assert!(loads(&tell(worker, Event::Wake { task: TASK, ordinal: 0 })));
}

#[test]
fn what_is_idle_leaves_at_once_however_new_it_is_and_comes_back_for_the_next_query() {
    let mut worker = worker();
    wake(&mut worker);
    loaded(&mut worker);
    let actions = unwanted(&mut worker);
    assert!(unloads(&actions), "{actions:?}");
    let is_why = |action: &&Action| matches!(action, Action::Transition { to: ReplicaState::Draining, cause, .. } if cause == UNLOADED);
    assert_eq!(actions.iter().filter(is_why).count(), 1, "{actions:?}");
    tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS });
    assert_eq!(state(&worker), ReplicaState::Inactive);
    assert!(loads(&ask(&mut worker, 1)));
}

#[test]
fn what_runs_finishes_first() {
    let mut worker = worker();
    ask(&mut worker, 1);
    loaded(&mut worker);
    tell(&mut worker, Event::Prepared { batch: BatchId(0), dropped: Vec::new() });
    let actions = unwanted(&mut worker);
    assert!(!unloads(&actions) && state(&worker) == ReplicaState::Draining, "{actions:?}");
    let actions = tell(&mut worker, Event::Done { batch: BatchId(0), outcome: Outcome::Ran });
    assert!(actions.iter().any(|action| matches!(action, Action::Deliver { .. })), "{actions:?}");
    assert!(unloads(&actions), "{actions:?}");
}

#[test]
fn what_is_still_being_loaded_leaves_when_it_is() {
    let mut worker = worker();
    wake(&mut worker);
    assert!(!unloads(&unwanted(&mut worker)), "its process would be asked for what it does not have");
    assert!(unloads(&loaded(&mut worker)));
}

#[test]
fn who_waits_for_it_has_it_loaded_again() {
    let mut worker = worker();
    ask(&mut worker, 1);
    loaded(&mut worker);
    tell(&mut worker, Event::Prepared { batch: BatchId(0), dropped: Vec::new() });
    // One more is prepared beside it, and the third waits unbound.
    ask(&mut worker, 2);
    tell(&mut worker, Event::Prepared { batch: BatchId(1), dropped: Vec::new() });
    ask(&mut worker, 3);
    unwanted(&mut worker);
    tell(&mut worker, Event::Done { batch: BatchId(0), outcome: Outcome::Ran });
    let actions = tell(&mut worker, Event::Done { batch: BatchId(1), outcome: Outcome::Ran });
    assert!(unloads(&actions), "what was bound to it was answered by it: {actions:?}");
    let actions = tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS });
    assert!(loads(&actions), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Refuse { .. })), "{actions:?}");
}

#[test]
fn what_was_only_asked_for_is_not_loaded_any_more() {
    let mut worker = worker();
    wake(&mut worker);
    loaded(&mut worker);
    unwanted(&mut worker);
    // It is asked for while it leaves, and then unwanted before it has left.
    tell(&mut worker, Event::Wake { task: TASK, ordinal: 0 });
    unwanted(&mut worker);
    assert!(!loads(&tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS })));
}

/// Feeds timers until then.
fn pass(worker: &mut Worker, until: Time) -> Vec<Action> {
    let mut all = Vec::new();
    while let Some(wake) = worker.poll_timeout().filter(|wake| wake.at <= until) {
        worker.handle_timeout(wake.at);
        all.extend(std::iter::from_fn(|| worker.poll_action()));
    }
    all
}

/// Pinned, loaded, and out of memory again.
fn unloaded_though_pinned() -> Worker {
    let mut worker = worker();
    assert!(loads(&tell(&mut worker, plan())));
    loaded(&mut worker);
    assert!(unloads(&unwanted(&mut worker)));
    let actions = tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS });
    assert!(!loads(&actions), "it would be back at once: {actions:?}");
    worker
}

fn plan() -> Event {
    Event::Pin(vec![(DEVICE, THIS)])
}

#[test]
fn what_the_plan_pins_leaves_too_and_is_back_after_a_minute() {
    let mut worker = unloaded_though_pinned();
    assert!(!loads(&pass(&mut worker, NOW + Micros::from_secs(59))));
    assert!(loads(&pass(&mut worker, NOW + Micros::from_secs(61))));
    loaded(&mut worker);
    assert_eq!(state(&worker), ReplicaState::Active);
}

#[test]
fn a_query_that_needs_it_and_a_plan_that_pins_it_anew_bring_it_back_sooner() {
    assert!(loads(&ask(&mut unloaded_though_pinned(), 1)));
    let mut worker = unloaded_though_pinned();
    assert!(!loads(&tell(&mut worker, plan())), "the same again, of a scheduler that came back");
    tell(&mut worker, Event::Pin(Vec::new()));
    assert!(loads(&tell(&mut worker, plan())));
}

#[test]
fn what_is_asked_for_while_it_leaves_is_loaded_when_it_has() {
    let mut worker = worker();
    wake(&mut worker);
    loaded(&mut worker);
    unwanted(&mut worker);
    assert!(!loads(&tell(&mut worker, Event::Wake { task: TASK, ordinal: 0 })));
    assert!(loads(&tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS })));
}

#[test]
fn who_waits_for_what_was_not_begun_is_not_forgotten() {
    let mut worker = worker_of(&[(4, 0), (8, 1)]);
    ask(&mut worker, 1);
    // The second does not fit beside the first, which is being loaded.
    let admits = [1].into_iter().collect();
    tell(&mut worker, Event::Arrive(query(2, NOW, admits, Micros::from_secs(100))));
    tell(&mut worker, Event::Unwanted { variant: OTHER });
    loaded(&mut worker);
    tell(&mut worker, Event::Prepared { batch: BatchId(0), dropped: Vec::new() });
    tell(&mut worker, Event::Done { batch: BatchId(0), outcome: Outcome::Ran });
    let actions = pass(&mut worker, NOW + Micros::from_secs(5));
    assert!(unloads(&actions), "the first makes room: {actions:?}");
    let actions = tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS });
    assert!(actions.contains(&Action::Load { device: DEVICE, variant: OTHER }), "{actions:?}");
}

#[test]
fn what_is_kept_out_leaves_its_room_to_others() {
    let mut worker = worker_of(&[(4, 0), (8, 1)]);
    let wake_other = Event::Wake { task: TASK, ordinal: 1 };
    tell(&mut worker, plan());
    loaded(&mut worker);
    let other = Action::Load { device: DEVICE, variant: OTHER };
    assert!(!tell(&mut worker, wake_other.clone()).contains(&other), "it does not fit beside what is pinned");
    unwanted(&mut worker);
    tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS });
    let actions = tell(&mut worker, wake_other);
    assert!(actions.contains(&other), "{actions:?}");
}

const KEPT: Micros = Micros::from_secs(30);

#[test]
fn what_nothing_ran_on_for_as_long_as_its_task_is_kept_leaves_and_says_why() {
    let mut worker = keeping(&[(4, 0)], Some(KEPT));
    wake(&mut worker);
    loaded(&mut worker);
    assert!(!unloads(&pass(&mut worker, NOW + Micros::from_secs(29))));
    let actions = pass(&mut worker, NOW + Micros::from_secs(31));
    assert!(unloads(&actions), "{actions:?}");
    let is_why = |action: &&Action| {
        matches!(action, Action::Transition { to: ReplicaState::Draining, cause, .. }
            if cause.contains("for 30 s") && cause.contains("kept for 30 s"))
    };
    assert_eq!(actions.iter().filter(is_why).count(), 1, "{actions:?}");
    tell(&mut worker, Event::Unloaded { device: DEVICE, variant: THIS });
    assert!(loads(&ask(&mut worker, 1)), "and the next query has it back");
}

#[test]
fn what_runs_is_kept_from_when_it_ended_and_what_the_plan_pins_always() {
    let mut worker = keeping(&[(4, 0)], Some(KEPT));
    ask(&mut worker, 1);
    loaded(&mut worker);
    tell(&mut worker, Event::Prepared { batch: BatchId(0), dropped: Vec::new() });
    let ended = NOW + Micros::from_secs(40);
    assert!(!unloads(&pass(&mut worker, ended)), "it is busy all that time");
    worker.handle(ended, Event::Done { batch: BatchId(0), outcome: Outcome::Ran });
    assert!(!unloads(&pass(&mut worker, ended + Micros::from_secs(29))));
    assert!(unloads(&pass(&mut worker, ended + Micros::from_secs(31))));

    let mut worker = keeping(&[(4, 0)], Some(KEPT));
    tell(&mut worker, plan());
    loaded(&mut worker);
    assert!(!unloads(&pass(&mut worker, NOW + Micros::from_secs(3_000))));
    let later = NOW + Micros::from_secs(3_001);
    worker.handle(later, Event::Pin(Vec::new()));
    let actions: Vec<Action> = std::iter::from_fn(|| worker.poll_action()).collect();
    assert!(unloads(&actions), "the plan lets go of what nobody needed for long: {actions:?}");
}

#[test]
fn what_is_kept_without_an_end_stays_though_nobody_pins_it() {
    let mut worker = worker();
    wake(&mut worker);
    loaded(&mut worker);
    assert!(!unloads(&pass(&mut worker, NOW + Micros::from_secs(100_000))));
}
