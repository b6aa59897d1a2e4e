//! What follows a crash.

use crate::common::{query, worker_variant};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Failure, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, QueryKey, Refusal,
    ReplicaState, Time, VariantId, VariantSet,
};

const DEVICE: DeviceIx = DeviceIx(0);
const VARIANT: VariantId = VariantId(0);
const FAR: Micros = Micros::from_secs(100);

struct World {
    worker: Worker,
    now: Time,
}

/// Eight run together as fast as one.
fn variant() -> WorkerVariant {
    let point = |batch| BatchPoint { batch, mean_us: 100.0, var_us2: 0.0, p99_us: 100.0, samples: 1 };
    WorkerVariant {
        id: VARIANT,
        max_batch: 8,
        ..worker_variant(0, RunModel::from_points(&[point(1), point(8)], Moments::ZERO).expect("points"))
    }
}

impl World {
    /// One lane with one variant.
    fn new() -> Self {
        Self::with_memory(100)
    }

    fn with_memory(memory: u64) -> Self {
        Self::of(variant(), 1, memory)
    }

    fn of(variant: WorkerVariant, lanes: u16, memory: u64) -> Self {
        let device = DeviceConfig { lanes, width: 1, memory: Bytes(memory), price: PricePerHour(1_000_000) };
        let config = WorkerConfig { devices: vec![device], give_up_after: 3, ..WorkerConfig::default() };
        let mut world = Self { worker: Worker::new(config), now: Time(1_000_000) };
        world.feed(Event::Catalog(vec![variant]));
        world.feed(Event::Pin(vec![(DEVICE, VARIANT)]));
        world.load();
        world
    }

    fn load(&mut self) -> Vec<Action> {
        let (memory, took) = (Bytes(10), Micros(1_000));
        self.feed(Event::Loaded { device: DEVICE, variant: VARIANT, memory, took })
    }

    fn feed(&mut self, event: Event) -> Vec<Action> {
        self.now = self.now + Micros(1);
        self.worker.handle(self.now, event);
        let mut actions: Vec<Action> = std::iter::from_fn(|| self.worker.poll_action()).collect();
        if actions.contains(&Action::QuarantineOver { device: DEVICE }) {
            actions.extend(self.feed(Event::QuarantineEnded { device: DEVICE }));
        }
        actions
    }

    fn arrive(&mut self, key: u64, latency: Micros) -> Vec<Action> {
        let admits: VariantSet = [0].into_iter().collect();
        let query = query(key, self.now, admits, latency);
        self.feed(Event::Arrive(query))
    }

    fn pass(&mut self, time: Micros) -> Vec<Action> {
        let until = self.now + time;
        let mut actions = Vec::new();
        while let Some(wake) = self.worker.poll_timeout().filter(|wake| wake.at <= until) {
            self.now = wake.at.max(self.now);
            self.worker.handle_timeout(self.now);
            actions.extend(std::iter::from_fn(|| self.worker.poll_action()));
        }
        self.now = until;
        actions
    }

    /// Runs the batch that these actions bound into a crash. Gives what follows.
    fn crash(&mut self, bound: &[Action]) -> Vec<Action> {
        let batch = prepared(bound).expect("bound").0;
        self.feed(Event::Prepared { batch, dropped: Vec::new() });
        let mut actions = self.feed(Event::RunnerDied {
            model: ModelId(0),
            variants: None,
            why: "killed".into(),
            hung: false,
        });
        let outcome = Outcome::Failed { failure: Failure::Process, why: "killed".into() };
        actions.extend(self.feed(Event::Done { batch, outcome }));
        actions
    }

    fn judged(&mut self, key: u64, outcome: Outcome) -> Vec<Action> {
        self.feed(Event::Quarantined { key: QueryKey(key), outcome })
    }

    /// One that ends well.
    fn well(&mut self, key: u64) {
        let bound = self.arrive(key, FAR);
        let (batch, _) = prepared(&bound).expect("bound");
        self.feed(Event::Prepared { batch, dropped: Vec::new() });
        self.feed(Event::Done { batch, outcome: Outcome::Ran });
    }

    /// A batch of three: one goes ahead and ends, so that they wait together.
    fn three(&mut self) -> Vec<Action> {
        let first = self.arrive(100, FAR);
        let (first, _) = prepared(&first).expect("bound");
        self.feed(Event::Prepared { batch: first, dropped: Vec::new() });
        let mut told = Vec::new();
        for key in 1..=3 {
            told.extend(self.arrive(key, FAR));
        }
        told.extend(self.feed(Event::Done { batch: first, outcome: Outcome::Ran }));
        told
    }

    fn state(&self) -> (ReplicaState, String) {
        let replica = &self.worker.replicas()[0];
        (replica.state, replica.cause.clone())
    }
}

fn prepared(actions: &[Action]) -> Option<(BatchId, Vec<u64>)> {
    actions.iter().find_map(|action| {
        let Action::Prepare { batch, queries, .. } = action else { return None };
        Some((*batch, queries.iter().map(|key| key.0).collect()))
    })
}

fn quarantined(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| {
        let Action::Quarantine { key, .. } = action else { return None };
        Some(key.0)
    })
}

fn loads(actions: &[Action]) -> bool {
    actions.contains(&Action::Load { device: DEVICE, variant: VARIANT })
}

fn died() -> Outcome {
    Outcome::Failed { failure: Failure::Process, why: "killed".into() }
}

#[test]
fn each_member_is_rerun_alone_once_and_only_the_poison_is_refused() {
    let mut world = World::new();
    let three = world.three();
    // The first of the three was bound alone, behind the one that ran; run them all into one crash or two.
    let (_, members) = prepared(&three).expect("bound");
    let actions = world.crash(&three);
    assert!(loads(&actions), "the ordinary replica restarts at once: {actions:?}");
    let mut next = quarantined(&actions);
    let mut order = Vec::new();
    while let Some(key) = next {
        order.push(key);
        let poison = key == members[0];
        let actions = world.judged(key, if poison { died() } else { Outcome::Ran });
        let refused = actions.iter().any(
            |a| matches!(a, Action::Refuse { key: k, refusal: Refusal::InputCrashed { .. } } if k.0 == key),
        );
        assert_eq!(refused, poison, "{actions:?}");
        assert_eq!(actions.contains(&Action::Discharge { key: QueryKey(key) }), !poison, "{actions:?}");
        next = quarantined(&actions);
    }
    order.sort_unstable();
    assert_eq!(order, members);
}

fn starved() -> Outcome {
    Outcome::Failed { failure: Failure::Memory, why: "bad_alloc".into() }
}

/// Two lanes with a variant of which nothing is bound behind another where a lane is free.
fn two_lanes() -> World {
    of_lanes(2)
}

fn of_lanes(lanes: u16) -> World {
    World::of(slow(), lanes, 100)
}

/// Whose batches take long and hold one.
fn slow() -> WorkerVariant {
    let point = |batch| BatchPoint { batch, mean_us: 1e6, var_us2: 0.0, p99_us: 1e6, samples: 1 };
    let run = RunModel::from_points(&[point(1)], Moments::ZERO).expect("points");
    WorkerVariant { run, max_batch: 1, ..variant() }
}

/// Runs a query alone in a batch that is handed over.
fn runs(world: &mut World, key: u64) -> BatchId {
    let bound = world.arrive(key, FAR);
    let (batch, members) = prepared(&bound).expect("bound");
    assert_eq!(members, [key]);
    let started = world.feed(Event::Prepared { batch, dropped: Vec::new() });
    assert!(started.contains(&Action::Start { batch }), "{started:?}");
    batch
}

fn refused_as_its_own(actions: &[Action], key: u64) -> bool {
    let own = |a: &Action| matches!(a, Action::Refuse { key: k, refusal: Refusal::ModelError { .. } } if k.0 == key);
    actions.iter().any(own)
}

#[test]
fn who_found_no_memory_beside_another_of_its_process_is_tried_in_one_of_its_own() {
    let mut world = two_lanes();
    let batches = [runs(&mut world, 1), runs(&mut world, 2)];
    let first = world.feed(Event::Done { batch: batches[0], outcome: starved() });
    assert_eq!(quarantined(&first), Some(1), "{first:?}");
    // The other one is alone now, but was not when it lacked memory.
    let second = world.feed(Event::Done { batch: batches[1], outcome: starved() });
    assert!(!refused_as_its_own(&second, 2), "{second:?}");
    let answered = world.judged(1, Outcome::Ran);
    assert!(answered.contains(&Action::Discharge { key: QueryKey(1) }), "{answered:?}");
    assert_eq!(quarantined(&answered), Some(2), "{answered:?}");
    assert!(refused_as_its_own(&world.judged(2, starved()), 2));
    assert_eq!(world.state().0, ReplicaState::Active);
}

#[test]
fn who_found_no_memory_by_itself_is_told_so_at_once() {
    let mut world = two_lanes();
    for key in [1, 3] {
        let batch = runs(&mut world, key);
        let told = world.feed(Event::Done { batch, outcome: starved() });
        // That another one lacked it before says nothing: somebody was answered since.
        assert!(refused_as_its_own(&told, key), "{told:?}");
        let well = runs(&mut world, key + 1);
        world.feed(Event::Done { batch: well, outcome: Outcome::Ran });
    }
}

#[test]
fn who_finds_no_memory_after_another_may_lack_what_that_one_left_and_is_tried_in_a_process_of_its_own() {
    let mut world = of_lanes(1);
    let hog = runs(&mut world, 1);
    assert!(refused_as_its_own(&world.feed(Event::Done { batch: hog, outcome: starved() }), 1));
    let harmless = runs(&mut world, 2);
    let tried = world.feed(Event::Done { batch: harmless, outcome: starved() });
    assert_eq!(quarantined(&tried), Some(2), "{tried:?}");
    let answered = world.judged(2, Outcome::Ran);
    assert!(answered.contains(&Action::Discharge { key: QueryKey(2) }), "{answered:?}");
}

#[test]
fn of_those_who_found_no_memory_only_so_many_wait_to_be_tried_apart() {
    let mut world = of_lanes(70);
    let batches: Vec<BatchId> = (0..70).map(|key| runs(&mut world, key)).collect();
    let mut told = 0;
    for (batch, key) in batches.into_iter().zip(0..69) {
        let actions = world.feed(Event::Done { batch, outcome: starved() });
        told += usize::from(refused_as_its_own(&actions, key));
    }
    assert_eq!(told, 69 - 64, "64 of 69 wait");
}

#[test]
fn where_memory_ran_out_one_batch_at_a_time_is_run_until_somebody_else_was_answered() {
    let mut world = two_lanes();
    let [starving, beside] = [runs(&mut world, 1), runs(&mut world, 2)];
    assert_eq!(quarantined(&world.feed(Event::Done { batch: starving, outcome: starved() })), Some(1));
    assert_eq!(prepared(&world.arrive(3, FAR)), None, "it would run beside what may have taken it");
    // That one had begun before, and says nothing of those who begin now.
    let ended = world.feed(Event::Done { batch: beside, outcome: Outcome::Ran });
    let (third, members) = prepared(&ended).expect("bound");
    assert_eq!(members, [3]);
    world.feed(Event::Prepared { batch: third, dropped: Vec::new() });
    assert_eq!(prepared(&world.arrive(4, FAR)), None, "the third may take it all again");
    let answered = world.feed(Event::Done { batch: third, outcome: Outcome::Ran });
    let (fourth, members) = prepared(&answered).expect("bound");
    assert_eq!(members, [4]);
    world.feed(Event::Prepared { batch: fourth, dropped: Vec::new() });
    runs(&mut world, 5);
}

#[test]
fn the_replica_that_restarted_serves_others_while_suspects_are_in_quarantine() {
    let mut world = World::new();
    let one = world.arrive(1, FAR);
    let actions = world.crash(&one);
    assert_eq!(quarantined(&actions), Some(1));
    world.arrive(2, FAR);
    assert_eq!(prepared(&world.load()).map(|b| b.1), Some(vec![2]));
}

#[test]
fn a_crash_pinned_on_an_input_does_not_count_and_others_open_the_circuit() {
    let mut world = World::new();
    let mut key = 0;
    let mut crash = |world: &mut World, poison: bool| {
        if poison {
            world.well(1_000 + key);
        }
        key += 1;
        world.pass(Micros::from_millis(1));
        let bound = world.arrive(key, FAR);
        let mut actions = world.crash(&bound);
        assert_eq!(quarantined(&actions), Some(key), "{actions:?}");
        actions.extend(world.judged(key, if poison { died() } else { Outcome::Ran }));
        actions
    };
    for _ in 0..10 {
        assert!(loads(&crash(&mut world, true)), "a poisoned batch is not the model's fault");
        world.load();
    }
    // Nobody in the batch was to blame: that is the model. At once, then after a rest, then not at all.
    assert!(loads(&crash(&mut world, false)));
    world.load();
    let actions = crash(&mut world, false);
    assert!(!loads(&actions), "{actions:?}");
    assert!(loads(&world.pass(Micros::from_millis(100))));
    world.load();
    crash(&mut world, false);
    assert_eq!(world.state(), (ReplicaState::Failed, "killed".into()), "with its cause");
    let refused = world.arrive(50, FAR);
    let open = |a: &Action| matches!(a, Action::Refuse { refusal: Refusal::VariantFailed { .. }, .. });
    assert!(refused.iter().any(open), "the circuit is open: {refused:?}");
    // Half-open: it is loaded again, and one query at a time tries it.
    assert!(loads(&world.pass(Micros::from_secs(2))));
    world.load();
    let probe = world.arrive(51, FAR);
    assert_eq!(prepared(&probe).map(|b| b.1), Some(vec![51]));
    assert_eq!(prepared(&world.arrive(52, FAR)), None, "one at a time");
    assert_eq!(prepared(&world.arrive(53, FAR)), None);
    let (batch, _) = prepared(&probe).expect("bound");
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    let after = world.feed(Event::Done { batch, outcome: Outcome::Ran });
    assert_eq!(prepared(&after).map(|b| b.1), Some(vec![52, 53]), "closed again");
}

fn open(action: &Action) -> bool {
    matches!(action, Action::Refuse { refusal: Refusal::VariantFailed { .. }, .. })
}

#[test]
fn a_model_that_crashes_on_every_input_rests_longer_each_time_and_then_opens_the_circuit() {
    let mut world = World::new();
    let mut loaded = Vec::new();
    for key in 1..=3 {
        let bound = world.arrive(key, FAR);
        let mut actions = world.crash(&bound);
        assert_eq!(quarantined(&actions), Some(key), "each is tried alone: {actions:?}");
        actions.extend(world.judged(key, died()));
        let blamed = |a: &Action| matches!(a, Action::Refuse { refusal: Refusal::InputCrashed { .. }, .. });
        assert!(actions.iter().any(blamed), "{actions:?}");
        loaded.push(loads(&actions));
        if key < 3 {
            loaded.push(loads(&world.pass(Micros::from_millis(100))));
            world.load();
        }
    }
    // At once, after a rest, not at all.
    assert_eq!(loaded, [true, false, false, true, false]);
    assert!(world.arrive(4, FAR).iter().any(open), "the circuit is open");
    // One at a time tries it, and its crash needs no second one.
    for (key, rest) in [(5, 200), (6, 400), (7, 800)] {
        assert!(!loads(&world.pass(Micros::from_millis(rest - 10))), "it rests");
        assert!(loads(&world.pass(Micros::from_millis(10))));
        world.load();
        let bound = world.arrive(key, FAR);
        let actions = world.crash(&bound);
        assert_eq!(quarantined(&actions), None, "{actions:?}");
        assert!(actions.iter().any(open), "{actions:?}");
    }
    // Mended, it is trusted again.
    world.pass(Micros::from_millis(1_600));
    world.load();
    world.well(8);
    let bound = world.arrive(9, FAR);
    let actions = world.crash(&bound);
    assert_eq!((quarantined(&actions), loads(&actions)), (Some(9), true), "{actions:?}");
}

/// Two models for the same task on one lane; the second only for who admits it alone, or both.
fn beside_another() -> World {
    let mut world = World::new();
    let other = WorkerVariant { id: VariantId(1), model: ModelId(1), ordinal: 1, ..variant() };
    world.feed(Event::Catalog(vec![variant(), other]));
    world.feed(Event::Pin(vec![(DEVICE, VariantId(1))]));
    let (memory, took) = (Bytes(10), Micros(1_000));
    world.feed(Event::Loaded { device: DEVICE, variant: VariantId(1), memory, took });
    world
}

fn hung() -> Outcome {
    Outcome::Failed { failure: Failure::Hung, why: "it hung".into() }
}

#[test]
fn what_hung_is_tried_in_quarantine_and_keeps_no_lane_from_others_until_it_ran_well() {
    let mut world = beside_another();
    let (batch, _) = prepared(&world.arrive(1, FAR)).expect("bound");
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    let variants = Some(vec![VARIANT]);
    world.feed(Event::RunnerDied { model: ModelId(0), variants, why: "it hung".into(), hung: true });
    let mut actions = world.feed(Event::Done { batch, outcome: hung() });
    assert_eq!((quarantined(&actions), loads(&actions)), (Some(1), false), "{actions:?}");
    world.judged(1, hung());
    // Whatever comes for it is tried alone, and each failure is followed by a longer rest.
    for (key, rest) in [(2, 0), (3, 200)] {
        assert_eq!(quarantined(&world.arrive(key, FAR)), None, "it rests");
        actions = world.pass(Micros::from_millis(100 + rest));
        assert_eq!((quarantined(&actions), prepared(&actions), loads(&actions)), (Some(key), None, false));
        // The other is served meanwhile.
        let query = query(10 + key, world.now, [1].into_iter().collect(), FAR);
        let (batch, _) = prepared(&world.feed(Event::Arrive(query))).expect("the lane is free");
        world.feed(Event::Prepared { batch, dropped: Vec::new() });
        world.feed(Event::Done { batch, outcome: Outcome::Ran });
        if key == 2 {
            world.judged(key, hung());
        }
    }
    world.judged(3, Outcome::Ran);
    world.arrive(4, FAR);
    assert!(loads(&world.pass(Micros(1))), "it is back");
    assert_eq!(prepared(&world.load()).map(|b| b.1), Some(vec![4]), "on its lane");
}

#[test]
fn what_always_hangs_is_given_up_like_what_always_crashes() {
    let mut world = World::new();
    let (batch, _) = prepared(&world.arrive(1, FAR)).expect("bound");
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    world.feed(Event::RunnerDied { model: ModelId(0), variants: None, why: "it hung".into(), hung: true });
    world.feed(Event::Done { batch, outcome: hung() });
    world.judged(1, hung());
    for key in 2..=3 {
        world.arrive(key, FAR);
        assert_eq!(quarantined(&world.pass(Micros::from_secs(1))), Some(key));
        world.arrive(20 + key, FAR);
        let actions = world.judged(key, hung());
        assert_eq!(
            actions.iter().any(open),
            key == 3,
            "who waits for it hears that it is given up: {actions:?}"
        );
        world.feed(Event::Cancel { key: QueryKey(20 + key) });
    }
    assert!(world.arrive(4, FAR).iter().any(open));
    // After its rest it is tried again.
    world.pass(Micros::from_secs(1));
    assert_eq!(quarantined(&world.arrive(5, FAR)), Some(5));
}

#[test]
fn a_crash_is_pinned_on_its_input_also_where_the_first_to_run_well_comes_after_it() {
    let mut world = World::new();
    let first = world.arrive(1, FAR);
    world.crash(&first);
    world.judged(1, died());
    // While it loads, so that they share a batch.
    world.arrive(2, Micros::from_secs(50));
    world.arrive(3, FAR);
    let both = world.load();
    assert_eq!(prepared(&both).map(|b| b.1), Some(vec![2, 3]));
    let actions = world.crash(&both);
    assert_eq!(
        (quarantined(&actions), loads(&actions)),
        (Some(2), false),
        "the second in a row: {actions:?}"
    );
    assert_eq!(quarantined(&world.judged(2, died())), Some(3));
    world.judged(3, Outcome::Ran);
    assert!(loads(&world.pass(Micros(1))), "neither counts any longer");
}

#[test]
fn of_a_large_batch_no_more_are_run_alone_than_show_that_the_model_is_broken() {
    let mut world = World::new();
    let queries = (1..=8).map(|key| world.query(key)).collect();
    let bound = world.together(queries);
    let mut actions = world.crash(&bound);
    let mut tried = 0;
    while let Some(key) = quarantined(&actions) {
        tried += 1;
        actions = world.judged(key, died());
    }
    assert_eq!(tried, 3);
    assert_eq!(actions.iter().filter(|a| open(a)).count(), 5, "{actions:?}");
}

#[test]
fn who_waits_for_quarantine_is_bound_by_its_deadline_and_a_client_that_leaves_is_not_run() {
    let mut world = World::new();
    let first = world.arrive(100, FAR);
    let (first, _) = prepared(&first).expect("bound");
    world.feed(Event::Prepared { batch: first, dropped: Vec::new() });
    let bound = world.arrive(1, FAR);
    let (batch, _) = prepared(&bound).expect("bound");
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    world.arrive(2, Micros(5_000));
    world.arrive(3, FAR);
    world.arrive(4, FAR);
    world.feed(Event::Done { batch: first, outcome: Outcome::Ran });
    let third = world.feed(Event::Done { batch, outcome: Outcome::Ran });
    let third = if prepared(&third).is_some() { third } else { world.pass(Micros(1)) };
    let batch = prepared(&third).map_or(BatchId(batch.0 + 1), |b| b.0);
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    world.feed(Event::RunnerDied { model: ModelId(0), variants: None, why: "killed".into(), hung: false });
    let actions = world.feed(Event::Done { batch, outcome: died() });
    assert_eq!(quarantined(&actions), Some(2), "the most urgent first: {actions:?}");
    let late = world.pass(Micros(6_000));
    let refused =
        |a: &Action| matches!(a, Action::Refuse { key: QueryKey(2), refusal: Refusal::TooLate { .. } });
    assert!(late.iter().any(refused), "{late:?}");
    world.feed(Event::Cancel { key: QueryKey(3) });
    let actions = world.judged(2, Outcome::Ran);
    assert_eq!(quarantined(&actions), Some(4), "neither answered twice nor run for nobody: {actions:?}");
    assert!(!actions.contains(&Action::Discharge { key: QueryKey(2) }));
    let actions = world.judged(4, Outcome::Ran);
    assert!(actions.contains(&Action::QuarantineOver { device: DEVICE }), "{actions:?}");
}

/// Variants of one model for two engines, both in memory.
fn two_engines() -> World {
    let mut world = World::new();
    let twin = WorkerVariant { id: VariantId(1), ordinal: 1, engine: Engine::Openvino, ..variant() };
    world.feed(Event::Catalog(vec![variant(), twin]));
    world.feed(Event::Pin(vec![(DEVICE, VARIANT), (DEVICE, VariantId(1))]));
    let (memory, took) = (Bytes(10), Micros(1_000));
    world.feed(Event::Loaded { device: DEVICE, variant: VariantId(1), memory, took });
    world
}

fn loaded_again(actions: &[Action]) -> Vec<u32> {
    let load =
        |action: &Action| if let Action::Load { variant, .. } = action { Some(variant.0) } else { None };
    actions.iter().filter_map(load).collect()
}

#[test]
fn only_what_was_in_the_dead_runner_is_loaded_again() {
    let mut world = two_engines();
    let variants = Some(vec![VariantId(1)]);
    let actions =
        world.feed(Event::RunnerDied { model: ModelId(0), variants, why: "killed".into(), hung: false });
    assert_eq!(loaded_again(&actions), [1]);
    assert_eq!(world.state().0, ReplicaState::Active);
    assert!(prepared(&world.arrive(1, FAR)).is_some(), "the other engine's goes on");
}

#[test]
fn a_death_recorded_before_there_were_several_engines_takes_all_of_its_model() {
    let mut world = two_engines();
    let recorded = r#"{"RunnerDied":{"model":0,"why":"killed"}}"#;
    let event: Event = serde_json::from_str(recorded).expect("it is still read");
    // A device loads one thing at a time.
    assert_eq!(loaded_again(&world.feed(event)), [0]);
    assert_eq!(loaded_again(&world.load()), [1]);
    let mut recorded = serde_json::to_value(variant()).expect("a variant");
    recorded.as_object_mut().expect("an object").remove("engine");
    assert_eq!(serde_json::from_value::<WorkerVariant>(recorded).expect("still read"), variant());
}

impl World {
    /// Binds these into one batch: they wait behind two others, which end well.
    fn together(&mut self, queries: Vec<Query>) -> Vec<Action> {
        let running = self.arrive(100, FAR);
        let (running, _) = prepared(&running).expect("bound");
        self.feed(Event::Prepared { batch: running, dropped: Vec::new() });
        let next = self.arrive(101, FAR);
        let (next, _) = prepared(&next).expect("bound behind it");
        let mut told = Vec::new();
        for query in queries {
            told.extend(self.feed(Event::Arrive(query)));
        }
        self.feed(Event::Prepared { batch: next, dropped: Vec::new() });
        told.extend(self.feed(Event::Done { batch: running, outcome: Outcome::Ran }));
        told.extend(self.feed(Event::Done { batch: next, outcome: Outcome::Ran }));
        told
    }

    fn query(&self, key: u64) -> Query {
        query(key, self.now, [0].into_iter().collect(), FAR)
    }

    fn three_together(&mut self) -> Vec<Action> {
        self.together((1..=3).map(|key| self.query(key)).collect())
    }
}

#[test]
fn where_a_model_fits_once_it_is_back_when_quarantine_is_over() {
    let mut world = World::with_memory(15);
    let bound = world.three_together();
    let actions = world.crash(&bound);
    assert!(!loads(&actions), "its room is quarantine's: {actions:?}");
    assert_eq!(quarantined(&actions), Some(1));
    assert_eq!(world.worker.memory_used(), Bytes(10));
    assert_eq!(quarantined(&world.judged(1, Outcome::Ran)), Some(2));
    assert_eq!(quarantined(&world.judged(2, Outcome::Ran)), Some(3));
    let actions = world.judged(3, Outcome::Ran);
    let over = actions.iter().position(|a| *a == Action::QuarantineOver { device: DEVICE });
    let back = actions.iter().position(|a| *a == Action::Load { device: DEVICE, variant: VARIANT });
    assert!(over.is_some() && over < back, "{actions:?}");
}

#[test]
fn where_it_fits_twice_it_is_back_at_once_and_both_count() {
    let mut world = World::with_memory(20);
    let bound = world.three_together();
    let actions = world.crash(&bound);
    assert_eq!((loaded_again(&actions), quarantined(&actions)), (vec![0], Some(1)));
    assert_eq!(world.worker.memory_used(), Bytes(20));
}

#[test]
fn quarantine_sends_idle_ones_away_like_any_load_and_never_what_is_pinned() {
    for pinned in [false, true] {
        let mut world = World::with_memory(20);
        let twin = WorkerVariant { id: VariantId(1), model: ModelId(1), ordinal: 1, ..variant() };
        world.feed(Event::Catalog(vec![variant(), twin]));
        let pins = [(DEVICE, VARIANT), (DEVICE, VariantId(1))];
        world.feed(Event::Pin(pins[..].to_vec()));
        let (memory, took) = (Bytes(10), Micros(1_000));
        world.feed(Event::Loaded { device: DEVICE, variant: VariantId(1), memory, took });
        if !pinned {
            world.feed(Event::Pin(Vec::new()));
        }
        world.pass(Micros::from_secs(20));
        let bound = world.three_together();
        let batch = prepared(&bound).expect("bound").0;
        world.feed(Event::Prepared { batch, dropped: Vec::new() });
        // Its death is not known yet, so that nothing is free.
        let outcome = Outcome::Failed { failure: Failure::Process, why: "killed".into() };
        let mut actions = world.feed(Event::Done { batch, outcome });
        if pinned {
            let refused = actions.iter().filter(|action| {
                matches!(action, Action::Refuse { refusal: Refusal::VariantFailed { why }, .. }
                    if why.contains("beside what the plan pins"))
            });
            assert_eq!(refused.count(), 3, "{actions:?}");
        } else {
            assert!(
                actions.contains(&Action::Unload { device: DEVICE, variant: VariantId(1) }),
                "{actions:?}"
            );
            assert_eq!(quarantined(&actions), None, "not before it has left");
            actions = world.feed(Event::Unloaded { device: DEVICE, variant: VariantId(1) });
            assert_eq!(quarantined(&actions), Some(1));
        }
    }
}

#[test]
fn what_waits_for_quarantine_is_bounded_in_bytes() {
    let mut world = World::new();
    let large = Bytes(WorkerConfig::default().queue_bytes.0 / 2);
    let of = |world: &World, key, bytes| Query { bytes, ..world.query(key) };
    let told = world.together(vec![of(&world, 1, large), of(&world, 2, large)]);
    assert_eq!(quarantined(&world.crash(&told)), Some(1));
    world.load();
    let told = world.feed(Event::Arrive(of(&world, 3, large + Bytes(1))));
    let actions = world.crash(&told);
    let full = |action: &&Action| matches!(action, Action::Refuse { refusal: Refusal::BytesFull { .. }, .. });
    assert_eq!(actions.iter().filter(full).count(), 1, "{actions:?}");
}

fn unreachable(world: &mut World, bound: &[Action]) -> Vec<Action> {
    let (batch, _) = prepared(bound).expect("bound");
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    let why = "the server cannot be reached".into();
    world.feed(Event::Done { batch, outcome: Outcome::Failed { failure: Failure::Unreachable, why } })
}

#[test]
fn who_met_a_server_that_is_down_is_answered_by_what_else_may_and_the_variant_rests_and_is_given_up() {
    let mut world = World::new();
    let local = WorkerVariant {
        id: VariantId(1),
        model: ModelId(1),
        ordinal: 1,
        accuracy: Accuracy::ZERO,
        ..variant()
    };
    world.feed(Event::Catalog(vec![variant(), local]));
    world.feed(Event::Pin(vec![(DEVICE, VARIANT), (DEVICE, VariantId(1))]));
    let (memory, took) = (Bytes(10), Micros(1_000));
    world.feed(Event::Loaded { device: DEVICE, variant: VariantId(1), memory, took });
    let variant_of = |actions: &[Action]| {
        actions
            .iter()
            .find_map(|a| if let Action::Prepare { variant, .. } = a { Some(*variant) } else { None })
    };
    let both: VariantSet = [0, 1].into_iter().collect();
    let asked = world.feed(Event::Arrive(query(1, world.now, both, FAR)));
    assert_eq!(variant_of(&asked), Some(VARIANT), "the better one");
    let after = unreachable(&mut world, &asked);
    assert_eq!(variant_of(&after), Some(VariantId(1)), "{after:?}");
    assert!(after.contains(&Action::Unload { device: DEVICE, variant: VARIANT }), "{after:?}");
    let (batch, _) = prepared(&after).expect("bound");
    world.feed(Event::Prepared { batch, dropped: Vec::new() });
    world.feed(Event::Done { batch, outcome: Outcome::Ran });
    world.feed(Event::Unloaded { device: DEVICE, variant: VARIANT });
    assert_eq!(world.state(), (ReplicaState::Failed, "the server cannot be reached".into()));
    // Each load asks the server; three failures in a row are enough here.
    for rest in [100, 200] {
        assert!(!loads(&world.pass(Micros::from_millis(rest - 1))), "it rests");
        assert!(loads(&world.pass(Micros::from_millis(1))));
        world.feed(Event::LoadFailed { device: DEVICE, variant: VARIANT, why: "still down".into() });
    }
    assert!(world.arrive(2, FAR).iter().any(open), "who admits nothing else hears it at once");
    // It is back.
    assert!(loads(&world.pass(Micros::from_millis(400))));
    world.load();
    world.well(3);
    assert!(prepared(&world.arrive(4, FAR)).is_some());
}
