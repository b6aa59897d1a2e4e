//! Batches that run far too long, and what their lanes do meanwhile.

use crate::common::{TASK, query, worker_variant};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Failure, LaneIx, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, QueryKey, Time, VariantId,
};

pub(crate) const DEVICE: DeviceIx = DeviceIx(0);
/// What each batch is expected to take.
const ONE: u64 = 1_000;
pub(crate) const LEAST: Micros = Micros::from_millis(50);
const FAR: Micros = Micros::from_secs(60);

pub(crate) fn variant(at: u8, one_us: f64) -> WorkerVariant {
    let point = |batch: u32| BatchPoint { batch, mean_us: one_us, var_us2: 0.0, p99_us: one_us, samples: 1 };
    WorkerVariant {
        accuracy: Accuracy::from_ppm(800_000).expect("below one"),
        ..worker_variant(at, RunModel::from_points(&[point(1)], Moments::ZERO).expect("a point"))
    }
}

pub(crate) struct World {
    pub(crate) worker: Worker,
    pub(crate) now: Time,
}

impl World {
    /// With models that have a variant each, all in memory.
    pub(crate) fn with(lanes: u16, suspect_after: Micros, variants: Vec<WorkerVariant>) -> Self {
        Self::of(&WorkerConfig { suspect_after, ..WorkerConfig::default() }, lanes, variants)
    }

    pub(crate) fn of(config: &WorkerConfig, lanes: u16, variants: Vec<WorkerVariant>) -> Self {
        let device = DeviceConfig { lanes, width: 1, memory: Bytes(1_000), price: PricePerHour(50_000) };
        let config = WorkerConfig { devices: vec![device], back_off: Micros(500), ..config.clone() };
        let mut world = Self { worker: Worker::new(config), now: Time(0) };
        let ordinals: Vec<u8> = variants.iter().map(|variant| variant.ordinal).collect();
        world.feed(Event::Catalog(variants));
        for ordinal in ordinals {
            world.feed(Event::Wake { task: TASK, ordinal });
            let variant = VariantId(u32::from(ordinal));
            world.feed(Event::Loaded { device: DEVICE, variant, memory: Bytes(10), took: Micros(1_000) });
        }
        world
    }

    fn new(lanes: u16) -> Self {
        Self::with(lanes, LEAST, (0..4).map(|at| variant(at, 1_000.0)).collect())
    }

    pub(crate) fn feed(&mut self, event: Event) -> Vec<Action> {
        self.now = self.now + Micros(1);
        self.worker.handle(self.now, event);
        std::iter::from_fn(|| self.worker.poll_action()).collect()
    }

    /// Lets time pass, with every wake that is asked for.
    pub(crate) fn pass(&mut self, time: Micros) -> Vec<Action> {
        let until = self.now + time;
        let mut actions = Vec::new();
        while let Some(wake) = self.worker.poll_timeout().filter(|wake| wake.at <= until) {
            self.now = self.now.max(wake.at);
            self.worker.handle_timeout(self.now);
            actions.extend(std::iter::from_fn(|| self.worker.poll_action()));
        }
        self.now = until;
        actions
    }

    /// A query for one variant.
    pub(crate) fn arrive(&mut self, key: u64, admits: u8) -> Vec<Action> {
        let query = query(key, self.now, [admits].into_iter().collect(), FAR);
        self.feed(Event::Arrive(query))
    }

    /// A query for one variant that runs at once.
    pub(crate) fn runs(&mut self, key: u64, admits: u8) -> BatchId {
        let (batch, ..) = bound(&self.arrive(key, admits)).expect("a lane is free");
        self.starts(batch);
        batch
    }

    pub(crate) fn starts(&mut self, batch: BatchId) {
        let actions = self.feed(Event::Prepared { batch, dropped: Vec::new() });
        assert!(actions.contains(&Action::Start { batch }), "{actions:?}");
    }

    pub(crate) fn done(&mut self, batch: BatchId) -> Vec<Action> {
        self.feed(Event::Done { batch, outcome: Outcome::Ran })
    }

    /// The process of a model hung, and was ended.
    fn hangs(&mut self, model: u32, batches: &[BatchId]) -> Vec<Action> {
        self.ends(model, Failure::Hung, batches)
    }

    /// The process of a model is gone, and with it what it was given.
    fn ends(&mut self, model: u32, how: Failure, batches: &[BatchId]) -> Vec<Action> {
        let (variants, hung) = (Some(vec![VariantId(model)]), how == Failure::Hung);
        let why = || String::from("gone");
        let mut actions = self.feed(Event::RunnerDied { model: ModelId(model), variants, why: why(), hung });
        for batch in batches {
            let outcome = Outcome::Failed { failure: how, why: why() };
            actions.extend(self.feed(Event::Done { batch: *batch, outcome }));
        }
        actions
    }
}

/// What was bound: the batch, its lane, its variant.
pub(crate) fn bound(actions: &[Action]) -> Option<(BatchId, LaneIx, u32)> {
    actions.iter().find_map(|action| {
        let Action::Prepare { batch, lane, variant, .. } = action else { return None };
        Some((*batch, *lane, variant.0))
    })
}

fn suspected(actions: &[Action]) -> Vec<BatchId> {
    let suspect = |action: &Action| {
        let Action::Suspect { batch } = action else { return None };
        Some(*batch)
    };
    actions.iter().filter_map(suspect).collect()
}

#[test]
fn a_batch_that_runs_far_too_long_gives_its_lane_up_and_answers_when_it_comes_back() {
    let mut world = World::new(1);
    let slow = world.runs(1, 0);
    assert_eq!(bound(&world.pass(Micros(10 * ONE))), None);
    let waiting = world.arrive(2, 1);
    assert_eq!(suspected(&waiting), [], "not before it has run so long");
    let (other, lane, variant) = bound(&waiting).expect("it is prepared behind it");
    assert_eq!((lane, variant), (LaneIx(0), 1));
    let prepared = world.feed(Event::Prepared { batch: other, dropped: Vec::new() });
    assert!(!prepared.contains(&Action::Start { batch: other }), "one runner on a lane");
    let passed = world.pass(LEAST);
    assert_eq!(suspected(&passed), [slow]);
    assert!(passed.contains(&Action::Start { batch: other }), "{passed:?}");
    // Nothing more goes behind it, and what does not stand behind it is served.
    assert_eq!(bound(&world.arrive(3, 0)), None, "its runner has only that lane");
    let after = world.done(other);
    assert!(after.contains(&Action::Deliver { batch: other, queries: vec![QueryKey(2)] }), "{after:?}");
    assert_eq!(bound(&after), None);
    let back = world.done(slow);
    assert!(back.contains(&Action::Deliver { batch: slow, queries: vec![QueryKey(1)] }), "{back:?}");
    let (third, lane, variant) = bound(&back).expect("it serves again");
    assert_eq!((lane, variant), (LaneIx(0), 0));
    world.starts(third);
    world.done(third);
    assert_eq!(world.worker.open(), 0);
}

#[test]
fn what_is_suspected_and_then_hung_is_tried_alone_and_its_lane_was_never_waited_for_again() {
    let mut world = World::new(1);
    let slow = world.runs(1, 0);
    // Of the same runner: handed over behind it.
    let (behind, ..) = bound(&world.arrive(2, 0)).expect("prepared behind it");
    world.starts(behind);
    assert_eq!(bound(&world.arrive(3, 1)), None, "the slot is taken");
    let passed = world.pass(Micros(LEAST.0 + ONE));
    assert_eq!(suspected(&passed), [slow]);
    let (other, ..) = bound(&passed).expect("the lane goes on");
    world.starts(other);
    world.done(other);
    let hung = world.hangs(0, &[slow, behind]);
    let tried = |key| move |a: &Action| matches!(a, Action::Quarantine { key: k, .. } if *k == QueryKey(key));
    assert!(hung.iter().any(tried(1)), "{hung:?}");
    assert!(!hung.iter().any(tried(2)), "it never ran: {hung:?}");
    assert_eq!(world.worker.open(), 2);
    assert!(bound(&world.arrive(4, 1)).is_some(), "the lane is there once");
    assert_eq!(bound(&world.arrive(5, 2)), None, "and once only");
}

#[test]
fn a_suspect_that_is_killed_leaves_every_lane_to_the_others_at_once_however_often_it_happens() {
    for lanes in 1..=2_u16 {
        let mut world = World::new(lanes);
        let loads = Action::Load { device: DEVICE, variant: VariantId(0) };
        // More often than there may be suspects at once: none of them may go on counting.
        for round in 0..u64::from(lanes) + 3 {
            let mut key = 100 * round;
            let mut next = || {
                key += 1;
                key
            };
            // Its runner stands still with a batch on every lane, and one handed over behind the first.
            let held: Vec<BatchId> = (0..lanes).map(|_| world.runs(next(), 0)).collect();
            let (behind, ..) = bound(&world.arrive(next(), 0)).expect("prepared behind it");
            world.starts(behind);
            world.pass(LEAST);
            let mut waiting = world.arrive(next(), 1);
            waiting.extend(world.pass(Micros(2 * ONE)));
            let given_up = suspected(&waiting);
            assert!(!given_up.is_empty(), "lanes {lanes}, round {round}: {waiting:?}");
            let (other, ..) = bound(&waiting).expect("a lane goes on");
            world.starts(other);
            world.done(other);

            let dead: Vec<BatchId> = held.iter().copied().chain([behind]).collect();
            let ended = world.ends(0, Failure::Process, &dead);
            assert_eq!(ended.iter().filter(|action| **action == loads).count(), 1, "{ended:?}");
            // While it loads, and while what it ran is tried alone, the others have every lane: one batch that runs, and one behind it.
            let (mut running, mut on) = (Vec::new(), Vec::new());
            for _ in 0..2 * lanes {
                let (batch, lane, _) = bound(&world.arrive(next(), 1)).expect("there is room");
                world.starts(batch);
                running.push(batch);
                on.push(lane.0);
            }
            on.sort_unstable();
            let each_twice: Vec<u16> = (0..lanes).flat_map(|lane| [lane, lane]).collect();
            assert_eq!(on, each_twice, "lanes {lanes}, round {round}");
            assert_eq!(bound(&world.arrive(next(), 2)), None, "no more than that");
            let last: Vec<BatchId> =
                running.into_iter().filter_map(|batch| Some(bound(&world.done(batch))?.0)).collect();
            let [last] = last[..] else { panic!("who waits for a lane gets one: {last:?}") };
            world.starts(last);
            world.done(last);

            let memory = Bytes(10);
            // What was handed over behind the first never ran, and runs now.
            let (variant, took) = (VariantId(0), Micros(1_000));
            let back = world.feed(Event::Loaded { device: DEVICE, variant, memory, took });
            let (again, ..) = bound(&back).expect("it serves again");
            world.starts(again);
            world.done(again);
            let mut tried = ended;
            while let Some(key) = tried.iter().find_map(tried_alone) {
                tried = world.feed(Event::Quarantined { key, outcome: Outcome::Ran });
            }
            if tried.contains(&Action::QuarantineOver { device: DEVICE }) {
                world.feed(Event::QuarantineEnded { device: DEVICE });
            }
            assert_eq!(world.worker.open(), 0, "lanes {lanes}, round {round}");
        }
    }
}

fn tried_alone(action: &Action) -> Option<QueryKey> {
    let Action::Quarantine { key, .. } = action else { return None };
    Some(*key)
}

#[test]
fn a_second_suspect_on_the_same_lane_gives_it_up_as_well_and_then_no_further_one_does() {
    let mut world = World::new(1);
    let mut running = Vec::new();
    for model in 0..4_u8 {
        let key = u64::from(model);
        let mut actions = world.arrive(key, model);
        let (batch, ..) = bound(&actions).expect("the lane takes it");
        actions.extend(world.feed(Event::Prepared { batch, dropped: Vec::new() }));
        actions.extend(world.pass(Micros(LEAST.0 + 2 * ONE)));
        // One lane and two suspects: three run at most, whatever waits.
        let before: Vec<BatchId> = running.last().copied().into_iter().filter(|_| model <= 2).collect();
        assert_eq!(suspected(&actions), before, "model {model}");
        assert_eq!(actions.contains(&Action::Start { batch }), model <= 2, "model {model}");
        running.push(batch);
    }
    // One of them comes back: the next may be suspected.
    let back = world.done(running[1]);
    assert_eq!(suspected(&back), [running[2]]);
    assert!(back.contains(&Action::Start { batch: running[3] }), "{back:?}");
}

#[test]
fn a_runner_with_a_suspect_goes_on_on_its_other_lanes() {
    let mut world = World::with(2, LEAST, vec![variant(0, 10_000.0), variant(1, 10_000.0)]);
    let (slow, beside) = (world.runs(1, 0), world.runs(2, 0));
    assert_eq!(world.pass(LEAST), [], "nobody waits");
    let waiting = world.arrive(4, 1);
    let (_, lane, _) = bound(&waiting).expect("one of them is free by now");
    assert_eq!((suspected(&waiting), lane), (vec![slow], LaneIx(0)), "one lane is enough for one");
    world.done(beside);
    let (_, lane, variant) = bound(&world.arrive(5, 0)).expect("its runner has another lane");
    assert_eq!((lane, variant), (LaneIx(1), 0));
}

#[test]
fn nothing_is_suspected_for_those_who_would_stand_behind_it_or_where_it_holds_no_core() {
    let steady = || variant(1, 1_000.0);
    let remote = WorkerVariant { engine: Engine::Remote, ..variant(0, 1_000.0) };
    let gpu = WorkerVariant { gpu: true, ..variant(0, 1_000.0) };
    let cases = [
        ("of its own runner", LEAST, variant(0, 1_000.0), 0),
        ("on another server", LEAST, remote, 1),
        ("on a GPU", LEAST, gpu, 1),
        ("never", Micros::ZERO, variant(0, 1_000.0), 1),
        ("it takes long", LEAST, variant(0, 1_000_000.0), 1),
    ];
    for (why, after, first, waits) in cases {
        let mut world = World::with(1, after, vec![first, steady()]);
        world.runs(1, 0);
        world.arrive(2, waits);
        assert_eq!(suspected(&world.pass(Micros::from_secs(1))), [], "{why}");
    }
    let mut world = World::with(1, LEAST, vec![variant(0, 1_000_000.0), steady()]);
    world.runs(1, 0);
    world.arrive(2, 1);
    assert_eq!(
        suspected(&world.pass(Micros::from_secs(5))).len(),
        1,
        "until it has taken four times as long"
    );
}

#[test]
fn a_machine_that_did_not_run_itself_suspects_nothing_for_that() {
    let mut world = World::new(1);
    let first = world.runs(1, 0);
    world.arrive(2, 1);
    // Everything stood still for a second, and the end is told right after.
    world.now = world.now + Micros::from_secs(1);
    world.worker.handle_timeout(world.now);
    let actions: Vec<Action> = std::iter::from_fn(|| world.worker.poll_action()).collect();
    assert_eq!(suspected(&actions), []);
    assert_eq!(suspected(&world.done(first)), []);
}

#[test]
fn what_a_suspect_takes_after_it_was_suspected_is_not_held_against_it() {
    let mut world = World::new(1);
    let slow = world.runs(1, 0);
    world.arrive(2, 1);
    world.pass(Micros(LEAST.0 + ONE));
    let mut at_once = World::new(1);
    let same = at_once.runs(1, 0);
    at_once.now = at_once.now + LEAST;
    at_once.done(same);
    world.now = world.now + Micros::from_secs(30);
    world.done(slow);
    let told = |world: &World| world.worker.correction(VariantId(0)).ratio;
    assert!((told(&world) / told(&at_once) - 1.0).abs() < 0.05, "{} {}", told(&world), told(&at_once));
}

#[test]
fn who_waits_behind_one_more_than_may_be_suspected_goes_elsewhere_as_soon_as_that_is_seen() {
    let returned = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::HandBack { key, .. } if *key == QueryKey(9)))
    };
    for lanes_held in [2_u8, 3] {
        let mut world = World::new(1);
        // Each stands still; of the first two the lane is given up, for whoever comes next.
        for model in 0..lanes_held {
            let mut actions = world.arrive(u64::from(model), model);
            actions.extend(world.pass(Micros(LEAST.0 + 2 * ONE)));
            let (batch, ..) = bound(&actions).expect("the lane takes it");
            actions.extend(world.feed(Event::Prepared { batch, dropped: Vec::new() }));
            if !actions.contains(&Action::Start { batch }) {
                assert!(world.pass(LEAST).contains(&Action::Start { batch }), "model {model}");
            }
        }
        // The lane's one place behind is taken as well.
        world.arrive(8, 3);
        let mut query = query(9, world.now, [3].into_iter().collect(), Micros::from_millis(400));
        query.returnable = true;
        let mut actions = world.feed(Event::Arrive(query));
        actions.extend(world.pass(LEAST + Micros(20 * ONE)));
        assert_eq!(returned(&actions), lanes_held == 3, "held {lanes_held}: {actions:?}");
    }
}

#[test]
fn a_lane_that_is_given_up_for_whoever_comes_is_not_told_as_held_up_and_one_that_nothing_else_can_use_is() {
    let second = Micros::from_secs(1);
    for (models, held) in [(2, false), (1, true)] {
        let mut world = World::with(1, LEAST, (0..models).map(|at| variant(at, 1_000.0)).collect());
        world.runs(1, 0);
        assert!(world.worker.report(world.now).wait.mean() < second, "it has just begun");
        world.pass(LEAST + Micros(2 * ONE));
        let wait = world.worker.report(world.now).wait.mean();
        assert_eq!(wait >= second, held, "{models} models: {wait}");
    }
}
