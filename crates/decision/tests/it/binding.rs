//! The worker in situations small enough to foresee.

use crate::common::{TASK, query, worker_variant};
use modelless_decision::query::Query;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Failure, Foresight, Outcome, Reason, Worker, WorkerConfig,
    WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, CostPer1k, DeviceIx, Micros, ModelId, Prefer, PricePerHour, Priority,
    QueryKey, Time, VariantId, VariantSet,
};

const DEVICE: DeviceIx = DeviceIx(0);

/// Variant `at` is more accurate and slower than the one before it.
fn variant(at: u8, one_us: f64) -> WorkerVariant {
    let point =
        |batch: u32, mean_us: f64| BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 };
    let points = [point(1, one_us), point(4, 2.0 * one_us)];
    WorkerVariant {
        accuracy: Accuracy::from_ppm(800_000 + 50_000 * u32::from(at)).expect("below one"),
        max_batch: 4,
        ..worker_variant(at, RunModel::from_points(&points, Moments::ZERO).expect("two points"))
    }
}

/// Time for the slow one, and hardly more.
const ALONE: Micros = Micros(1_300);

struct World {
    worker: Worker,
    now: Time,
}

impl World {
    /// With a fast variant 0 and a slow variant 1, both in memory.
    fn new(memory: u64, resident: &[u8]) -> Self {
        Self::looking(Foresight::default(), memory, resident)
    }

    fn with_lanes(lanes: u16, foresight: Foresight, resident: &[u8]) -> Self {
        let mut world = Self::looking(foresight, 100, &[]);
        let device = DeviceConfig { lanes, width: 1, memory: Bytes(100), price: PricePerHour(1_000_000) };
        let config = WorkerConfig { devices: vec![device], queue: 100, foresight, ..WorkerConfig::default() };
        world.worker = Worker::new(config);
        world.feed(Event::Catalog(vec![variant(0, 100.0), variant(1, 1_000.0)]));
        for at in resident {
            world.feed(Event::Wake { task: TASK, ordinal: *at });
            world.load(*at);
        }
        world
    }

    fn looking(foresight: Foresight, memory: u64, resident: &[u8]) -> Self {
        let device =
            DeviceConfig { lanes: 1, width: 1, memory: Bytes(memory), price: PricePerHour(1_000_000) };
        let worker = Worker::new(WorkerConfig {
            devices: vec![device],
            queue: 100,
            queue_bytes: Bytes(100_000),
            back_off: Micros(500),
            give_up_after: 3,
            min_residence: Micros::ZERO,
            foresight,
            ..WorkerConfig::default()
        });
        let mut world = Self { worker, now: Time(0) };
        world.feed(Event::Catalog(vec![variant(0, 100.0), variant(1, 1_000.0)]));
        for at in resident {
            world.feed(Event::Wake { task: TASK, ordinal: *at });
            world.load(*at);
        }
        world
    }

    fn load(&mut self, at: u8) -> Vec<Action> {
        let variant = VariantId(u32::from(at));
        self.feed(Event::Loaded { device: DEVICE, variant, memory: Bytes(10), took: Micros(1_000) })
    }

    fn feed(&mut self, event: Event) -> Vec<Action> {
        self.now = self.now + Micros(1);
        self.worker.handle(self.now, event);
        std::iter::from_fn(|| self.worker.poll_action()).collect()
    }

    fn arrive(&mut self, key: u64, admits: &[u8], latency: Micros) -> Vec<Action> {
        let admits: VariantSet = admits.iter().copied().collect();
        let query = query(key, self.now, admits, latency);
        self.feed(Event::Arrive(query))
    }

    /// So many come, of each kind in turn, and go away at once: they only show how queries come.
    fn show(&mut self, many: u64, every: u64, admits: &[&[u8]]) {
        self.show_within(many, every, admits, ALONE);
    }

    fn show_within(&mut self, many: u64, every: u64, admits: &[&[u8]], within: Micros) {
        for (key, admits) in (1_000..1_000 + many).zip(admits.iter().cycle()) {
            let since = self.now;
            let actions = self.arrive(key, admits, within);
            self.feed(Event::Cancel { key: QueryKey(key) });
            if let Some((batch, ..)) = bound(&actions) {
                self.prepared(batch);
            }
            self.now = since + Micros(every);
        }
    }

    fn prepared(&mut self, batch: BatchId) -> Vec<Action> {
        self.feed(Event::Prepared { batch, dropped: Vec::new() })
    }

    fn died(&mut self, batch: BatchId) -> Vec<Action> {
        let outcome = Outcome::Failed { failure: Failure::Process, why: "killed".into() };
        self.feed(Event::Done { batch, outcome })
    }
}

/// What was bound: the batch, its variant and its members.
fn bound(actions: &[Action]) -> Option<(BatchId, u32, Vec<u64>)> {
    actions.iter().find_map(|action| match action {
        Action::Prepare { batch, variant, queries, .. } => {
            Some((*batch, variant.0, queries.iter().map(|key| key.0).collect()))
        }
        Action::Start { .. }
        | Action::Discard { .. }
        | Action::Revoke { .. }
        | Action::Suspect { .. }
        | Action::Deliver { .. }
        | Action::Quarantine { .. }
        | Action::Discharge { .. }
        | Action::QuarantineOver { .. }
        | Action::Refuse { .. }
        | Action::HandBack { .. }
        | Action::Recut { .. }
        | Action::Narrow { .. }
        | Action::Drifted { .. }
        | Action::Steadied { .. }
        | Action::Claim { .. }
        | Action::Decline { .. }
        | Action::Load { .. }
        | Action::Unload { .. }
        | Action::Transition { .. } => None,
    })
}

fn reasons(actions: &[Action]) -> Vec<Reason> {
    let of = |action: &Action| {
        if let Action::Prepare { reasons, .. } = action { Some(reasons.clone()) } else { None }
    };
    actions.iter().find_map(of).unwrap_or_default()
}

#[test]
fn an_idle_device_gives_the_most_accurate_that_is_in_time() {
    let mut world = World::new(100, &[0, 1]);
    assert_eq!(bound(&world.arrive(1, &[0, 1], Micros(5_000))).map(|b| b.1), Some(1));
    let mut world = World::new(100, &[0, 1]);
    assert_eq!(bound(&world.arrive(1, &[0, 1], Micros(900))).map(|b| b.1), Some(0));
}

#[test]
fn what_waits_at_gateways_makes_answers_cheaper_until_its_first_deadline_is_past() {
    let mut world = World::new(100, &[0, 1]);
    let class = query(0, world.now, [0, 1].into_iter().collect(), Micros(0)).class;
    let first = Some(world.now + Micros(5_000));
    world.feed(Event::Demand { class, waiting: 90, first, among: 1 });
    let (batch, variant, _) = bound(&world.arrive(1, &[0, 1], Micros(5_000))).expect("bound");
    assert_eq!(variant, 0);
    world.prepared(batch);
    world.feed(Event::Done { batch, outcome: Outcome::Ran });
    // Nobody said that they were served elsewhere, but by now they cannot be waiting any more.
    world.now = world.now + Micros(6_000);
    assert_eq!(bound(&world.arrive(2, &[0, 1], Micros(5_000))).map(|b| b.1), Some(1));
}

#[test]
fn who_will_probably_come_counts_when_a_variant_is_chosen() {
    for (to_come, chosen) in [(true, 0), (false, 1)] {
        let foresight = Foresight { to_come, levels: false, ..Foresight::default() };
        let mut world = World::looking(foresight, 100, &[0, 1]);
        // 10,000 a second that have 250 us each, which go away at once: they only show how queries come.
        for key in 1_000..1_600 {
            let actions = world.arrive(key, &[0, 1], Micros(250));
            world.feed(Event::Cancel { key: QueryKey(key) });
            if let Some((batch, ..)) = bound(&actions) {
                world.prepared(batch);
            }
            world.now = world.now + Micros(97);
        }
        // Alone in line it has the time for the accurate one, which takes 1 ms. Meanwhile ten would come, and most be late.
        let (_, variant, _) = bound(&world.arrive(1, &[0, 1], Micros(1_300))).expect("bound");
        assert_eq!(variant, chosen, "{to_come}");
    }
}

#[test]
fn what_a_slow_batch_does_to_those_with_a_tight_bound_counts_however_long_others_may_wait() {
    for (tight, chosen) in [(250, 0), (20_000, 1)] {
        let mut world = World::looking(Foresight { levels: false, ..Foresight::default() }, 100, &[0, 1]);
        for key in 1_000..1_600 {
            let bound_of = Micros(if key % 2 == 0 { tight } else { 20_000 });
            let actions = world.arrive(key, &[0, 1], bound_of);
            world.feed(Event::Cancel { key: QueryKey(key) });
            if let Some((batch, ..)) = bound(&actions) {
                world.prepared(batch);
            }
            world.now = world.now + Micros(97);
        }
        let (_, variant, _) = bound(&world.arrive(1, &[0, 1], Micros(1_300))).expect("bound");
        assert_eq!(variant, chosen, "half of those to come have {tight} us");
    }
}

#[test]
fn those_who_are_missed_make_answers_cheaper_unless_nothing_could_have_been_in_time_for_them() {
    // A run of the quickest takes 100 us, so a bound of 250 us is missed by any chance.
    for (caution, bound_of, chosen) in [(true, 500, 0), (true, 250, 1), (false, 500, 1)] {
        let foresight = Foresight { caution, to_come: false, ..Foresight::default() };
        let mut world = World::looking(foresight, 100, &[0, 1]);
        let alone = Micros(1_300);
        let (batch, variant, _) = bound(&world.arrive(1, &[0, 1], alone)).expect("bound");
        assert_eq!(variant, 1, "there is time for the accurate one");
        world.prepared(batch);
        let started = world.now;
        for key in 2..=11 {
            let told = world.arrive(key, &[0, 1], Micros(bound_of));
            assert!(
                told.iter().any(|action| matches!(action, Action::Refuse { .. })),
                "the lane is busy: {told:?}"
            );
        }
        world.now = started + Micros(998);
        world.feed(Event::Done { batch, outcome: Outcome::Ran });
        let (_, variant, _) = bound(&world.arrive(12, &[0, 1], alone)).expect("bound");
        assert_eq!(variant, chosen, "{caution} {bound_of}");
        let told = world.worker.caution(world.now);
        let learnt = if caution && bound_of == 500 { 1.5..3.0 } else { 1.0..1.01 };
        assert!(learnt.contains(&told), "{told}");
    }
}

#[test]
fn so_many_may_be_here_that_each_variant_that_may_run_next_finds_a_full_batch() {
    let credit = |pool| {
        let mut world = World::looking(Foresight { pool, ..Foresight::default() }, 100, &[0, 1]);
        let far = Micros(1_000_000);
        let (batch, ..) = bound(&world.arrive(1, &[0], far)).expect("bound");
        let one_class = world.worker.report(world.now).limit.queries;
        world.prepared(batch);
        world.arrive(2, &[1], far);
        let bound = world.worker.load();
        (one_class, world.worker.report(world.now).limit.queries, bound.running + bound.queued)
    };
    // One is bound, and four go into a batch of either variant.
    let ((one, both, here), (_, less, _)) = (credit(4), credit(1));
    assert_eq!((one, here), (1 + 4, 2));
    assert_eq!(both - less, 4);
}

#[test]
fn a_batch_handed_over_behind_one_that_crashed_is_not_to_blame() {
    let mut world = World::new(100, &[1]);
    let far = Micros(1_000_000);
    let (first, _, _) = bound(&world.arrive(1, &[1], far)).expect("bound");
    world.prepared(first);
    let (second, _, members) = bound(&world.arrive(2, &[1], far)).expect("bound");
    assert_eq!(members, [2]);
    assert!(
        world.prepared(second).contains(&Action::Start { batch: second }),
        "one model: handed over at once"
    );
    world.arrive(3, &[1], far);
    world.feed(Event::RunnerDied { model: ModelId(1), variants: None, why: "killed".into(), hung: false });
    world.died(first);
    world.died(second);
    // It is back at once, and serves those who were not in the batch that ran.
    let (_, _, members) = bound(&world.load(1)).expect("bound");
    assert_eq!(members, [2, 3]);
}

/// Variants of one model on the CPU and on a GPU are in two processes: a batch of one does not stand behind the other's.
#[test]
fn a_batch_on_a_gpu_is_not_handed_over_behind_one_of_its_model_on_the_cpu() {
    for gpu in [false, true] {
        let mut world = World::new(100, &[]);
        let twin = WorkerVariant { model: ModelId(0), gpu, ..variant(1, 1_000.0) };
        world.feed(Event::Catalog(vec![variant(0, 100.0), twin]));
        for at in [0, 1] {
            world.feed(Event::Wake { task: TASK, ordinal: at });
            world.load(at);
        }
        let far = Micros(1_000_000);
        let (first, _, _) = bound(&world.arrive(1, &[0], far)).expect("bound");
        world.prepared(first);
        let (second, _, _) = bound(&world.arrive(2, &[1], far)).expect("bound");
        let started = world.prepared(second).contains(&Action::Start { batch: second });
        assert_eq!(started, !gpu, "in the same process: {}", !gpu);
    }
}

#[test]
fn what_was_just_loaded_serves_before_it_makes_room() {
    // Room for one. Both are asked for at once; each must serve its own before the other comes.
    let mut world = World::new(10, &[]);
    let far = Micros(1_000_000);
    world.arrive(1, &[0], far);
    world.arrive(2, &[1], far);
    let (batch, variant, members) = bound(&world.load(0)).expect("it serves at once");
    assert_eq!((variant, members), (0, vec![1]));
    world.prepared(batch);
    world.feed(Event::Done { batch, outcome: Outcome::Ran });
    // It is in demand, so the other waits for as long as its load takes.
    world.now = world.now + Micros(1_000);
    world.worker.handle_timeout(world.now);
    let actions: Vec<Action> = std::iter::from_fn(|| world.worker.poll_action()).collect();
    assert!(actions.contains(&Action::Unload { device: DEVICE, variant: VariantId(0) }), "{actions:?}");
    let actions = world.feed(Event::Unloaded { device: DEVICE, variant: VariantId(0) });
    assert!(actions.contains(&Action::Load { device: DEVICE, variant: VariantId(1) }), "{actions:?}");
    assert_eq!(bound(&world.load(1)).map(|b| b.2), Some(vec![2]));
}

#[test]
fn who_would_come_too_late_otherwise_may_send_a_busy_one_away() {
    let mut world = World::new(10, &[0]);
    let far = Micros(1_000_000);
    let (batch, _, _) = bound(&world.arrive(1, &[0], far)).expect("bound");
    world.prepared(batch);
    world.arrive(2, &[1], far);
    let leaving = |a: &Action| matches!(a, Action::Transition { variant: VariantId(0), .. });
    // As long as its load takes is not long enough: the first is busy, and more of its kind comes.
    world.now = world.now + Micros(1_000);
    let actions = world.arrive(3, &[0], far);
    let (second, ..) = bound(&actions).expect("it takes what comes");
    assert!(!actions.iter().any(leaving), "{actions:?}");
    world.prepared(second);
    // But now only twice its load and a run are left.
    world.now = world.now + Micros(far.0 - 1_000 - 2 * 1_100);
    let actions = world.arrive(4, &[0], far);
    assert!(actions.iter().any(leaving) && bound(&actions).is_none(), "it takes nothing new: {actions:?}");
    world.feed(Event::Done { batch, outcome: Outcome::Ran });
    let actions = world.feed(Event::Done { batch: second, outcome: Outcome::Ran });
    assert!(actions.contains(&Action::Unload { device: DEVICE, variant: VariantId(0) }), "{actions:?}");
}

#[test]
fn what_computes_elsewhere_costs_what_is_asked_for_there() {
    for (price, chosen) in [(None, 0), (Some(50_000), 1), (Some(200_000), 0)] {
        let mut world = World::new(100, &[0, 1]);
        let run = variant(1, 1_000.0).run.with_price(price.map(PricePerHour));
        world.feed(Event::Catalog(vec![variant(0, 100.0), WorkerVariant { run, ..variant(1, 1_000.0) }]));
        let query = Query {
            prefer: Prefer::Cost,
            ..query(1, world.now, [0, 1].into_iter().collect(), Micros(100_000))
        };
        let actions = world.feed(Event::Arrive(query));
        // The lane costs a million: ten times the time elsewhere is cheaper below a tenth of that.
        assert_eq!(bound(&actions).map(|(_, variant, _)| variant), Some(chosen), "{price:?}");
    }
}

#[test]
fn a_batch_behind_another_in_its_runner_is_taken_back_when_all_its_clients_have_gone() {
    let mut world = World::new(100, &[1]);
    let far = Micros(1_000_000);
    let (first, _, _) = bound(&world.arrive(1, &[1], far)).expect("bound");
    world.prepared(first);
    let (second, _, members) = bound(&world.arrive(2, &[1], far)).expect("bound");
    assert_eq!(members, [2]);
    world.prepared(second);
    let revoke = Action::Revoke { batch: second };
    // The first runs already: it is not stopped.
    assert_eq!(world.feed(Event::Cancel { key: QueryKey(1) }), []);
    assert_eq!(world.feed(Event::Cancel { key: QueryKey(2) }), std::slice::from_ref(&revoke));
    assert!(!world.feed(Event::Cancel { key: QueryKey(2) }).contains(&revoke), "once is enough");
    world.feed(Event::Done { batch: first, outcome: Outcome::Ran });
    let actions = world.feed(Event::Done { batch: second, outcome: Outcome::Revoked });
    assert_eq!(actions, [Action::Deliver { batch: second, queries: Vec::new() }]);
    assert_eq!(world.worker.open(), 0);
    assert!(bound(&world.arrive(3, &[1], far)).is_some(), "its replica goes on");
}

#[test]
fn who_was_taken_back_from_a_batch_that_runs_and_comes_again_is_answered_by_another() {
    let mut world = World::new(100, &[1]);
    let far = Micros(1_000_000);
    let (first, ..) = bound(&world.arrive(1, &[1], far)).expect("bound");
    world.prepared(first);
    // Its gateway took it to another node, which gave it back.
    assert_eq!(world.feed(Event::Cancel { key: QueryKey(1) }), []);
    let mut told = world.arrive(1, &[1], far);
    if bound(&told).is_none() {
        world.now = world.worker.poll_timeout().expect("it is bound soon").at;
        world.worker.handle_timeout(world.now);
        told.extend(std::iter::from_fn(|| world.worker.poll_action()));
    }
    let (second, _, members) = bound(&told).expect("bound behind the first");
    assert_eq!(members, [1]);
    world.prepared(second);
    let told = world.feed(Event::Done { batch: first, outcome: Outcome::Ran });
    assert!(told.contains(&Action::Deliver { batch: first, queries: Vec::new() }), "{told:?}");
    let told = world.feed(Event::Done { batch: second, outcome: Outcome::Ran });
    assert!(told.contains(&Action::Deliver { batch: second, queries: vec![QueryKey(1)] }), "{told:?}");
}

#[test]
fn a_batch_that_is_waited_for_by_one_is_not_taken_back() {
    let mut world = World::new(100, &[1]);
    let far = Micros(1_000_000);
    let (first, _, _) = bound(&world.arrive(1, &[1], far)).expect("bound");
    let (told, prepared) = (world.arrive(2, &[1], far), world.arrive(3, &[1], far));
    assert_eq!((bound(&told), bound(&prepared)), (None, None), "the slot is taken");
    let (second, _, members) = bound(&world.prepared(first)).expect("both together");
    assert_eq!(members, [2, 3]);
    world.prepared(second);
    assert_eq!(world.feed(Event::Cancel { key: QueryKey(2) }), []);
    assert_eq!(world.feed(Event::Cancel { key: QueryKey(3) }), [Action::Revoke { batch: second }]);
}

#[test]
fn what_a_device_cannot_afford_for_all_that_is_asked_answers_nobody_though_it_could_answer_one() {
    // In batches of four the accurate one takes 500 us each, so of what comes every 400 us it could answer four fifths; alone it
    // takes a quarter of the time between two that come every 4 ms.
    for (levels, every, chosen) in [(true, 400, 0), (false, 400, 1), (true, 4_000, 1)] {
        let foresight = Foresight { levels, ..never_at_ease() };
        let mut world = World::looking(foresight, 100, &[0, 1]);
        world.show(2_000, every, &[&[0, 1]]);
        // Alone in line it has time for either, and none to wait for others to join it.
        let told = world.arrive(1, &[0, 1], ALONE);
        let why = match chosen {
            0 => Reason::Affordable,
            _ => Reason::Preferred(Prefer::Accuracy),
        };
        assert_eq!(bound(&told).map(|b| b.1), Some(chosen), "{levels}, one every {every} us");
        assert_eq!(reasons(&told), [why]);
    }
}

/// A device that limits and reserves however little is asked, and foresees nobody.
fn never_at_ease() -> Foresight {
    Foresight { eases: false, to_come: false, caution: false, ..Foresight::default() }
}

#[test]
fn a_quiet_device_limits_nobody_since_its_batches_may_still_grow() {
    // In batches of four the cheap one takes 50 us each: an eighth of the time between two, and more than half of it.
    for (eases, every, chosen) in [(true, 400, 1), (false, 400, 0), (true, 90, 0)] {
        let foresight = Foresight { eases, ..never_at_ease() };
        let mut world = World::looking(foresight, 100, &[0, 1]);
        world.show(800_000 / every, every, &[&[0, 1]]);
        let told = world.arrive(1, &[0, 1], ALONE);
        assert_eq!(bound(&told).map(|b| b.1), Some(chosen), "{eases}, one every {every} us");
    }
}

#[test]
fn a_device_whose_bounds_leave_no_time_for_full_batches_is_not_quiet() {
    // In batches of four the cheap one takes 50 us each, less than half of the 110 between two; but only one alone, of 100 us, takes less than half of a bound of
    // 300. The accurate one takes 140.
    for (within, chosen) in [(300, 0), (1_300, 1)] {
        let foresight = Foresight { reserve_permille: 0, eases: true, ..never_at_ease() };
        let mut world = World::looking(foresight, 100, &[]);
        world.feed(Event::Catalog(vec![variant(0, 100.0), variant(1, 140.0)]));
        for at in [0, 1] {
            world.feed(Event::Wake { task: TASK, ordinal: at });
            world.load(at);
        }
        world.show_within(8_000, 110, &[&[0, 1]], Micros(within));
        let told = world.arrive(1, &[0, 1], Micros(200));
        assert_eq!(bound(&told).map(|b| b.1), Some(chosen), "asked within {within} us");
    }
}

#[test]
fn a_quiet_device_answers_at_the_last_moment_what_a_busy_one_keeps_a_reserve_for() {
    // The accurate one leaves an eighth of the bound, less than the fifth that is kept else.
    for (eases, chosen) in [(true, 1), (false, 0)] {
        let foresight = Foresight { eases, ..never_at_ease() };
        let mut world = World::looking(foresight, 100, &[0, 1]);
        world.show(500, 4_000, &[&[0, 1]]);
        let told = world.arrive(1, &[0, 1], Micros(1_150));
        assert_eq!(bound(&told).map(|b| b.1), Some(chosen), "{eases}");
    }
}

#[test]
fn a_floor_holds_whatever_the_device_can_afford() {
    let mut world = World::new(100, &[0, 1]);
    world.show(2_000, 400, &[&[0, 1], &[1]]);
    let mut chosen = |key: u64, admits: &[u8]| {
        let (batch, variant, _) = bound(&world.arrive(key, admits, ALONE)).expect("the lane is free");
        world.feed(Event::Cancel { key: QueryKey(key) });
        world.prepared(batch);
        variant
    };
    assert_eq!((chosen(1, &[1]), chosen(2, &[0, 1])), (1, 0));
}

#[test]
fn a_batch_beyond_the_one_that_pays_is_not_taken_to_be_done_in_its_time() {
    // Four of the accurate one take 1.2 ms and eight 4.8; eight of the other 1.5.
    let shaped = |at: u8, points: &[(u32, f64)]| {
        let point = |(batch, mean_us): &(u32, f64)| BatchPoint {
            batch: *batch,
            mean_us: *mean_us,
            var_us2: 0.0,
            p99_us: *mean_us,
            samples: 1,
        };
        let points: Vec<BatchPoint> = points.iter().map(point).collect();
        let run = RunModel::from_points(&points, Moments::ZERO).expect("points");
        WorkerVariant { max_batch: 8, run, ..variant(at, 1.0) }
    };
    let foresight = Foresight { levels: false, to_come: false, reserve_permille: 0, ..Foresight::default() };
    let mut world = World::looking(foresight, 100, &[]);
    let accurate = shaped(1, &[(1, 1_000.0), (4, 1_200.0), (8, 4_800.0)]);
    world.feed(Event::Catalog(vec![shaped(0, &[(1, 500.0), (8, 1_500.0)]), accurate]));
    for at in [0, 1] {
        world.feed(Event::Wake { task: TASK, ordinal: at });
        world.load(at);
    }
    // One runs and one is prepared while they come.
    let far = Micros(100_000);
    let (running, ..) = bound(&world.arrive(1, &[0], far)).expect("bound");
    world.prepared(running);
    let (next, ..) = bound(&world.arrive(2, &[0], far)).expect("bound");
    world.prepared(next);
    let ends = world.now + Micros(300);
    // From then on the other one takes half a millisecond, and they have 3.9 ms.
    let due = ends + Micros(3_900);
    for key in 3..=18 {
        let left = due - world.now;
        assert_eq!(bound(&world.arrive(key, &[0, 1], left)), None);
    }
    world.now = ends;
    let told = world.feed(Event::Done { batch: running, outcome: Outcome::Ran });
    let chosen = bound(&told).map(|b| b.1);
    assert_eq!(chosen, Some(0), "twice eight are in time, and four, eight and four are not: {told:?}");
}

#[test]
fn lanes_side_by_side_afford_what_one_cannot() {
    // Every 400 us the accurate one takes 1.25 lanes in batches of four, and every 300 us 1.7: no single batch takes long for a bound of 20 ms, and a device may be
    // given somewhat more than it can do.
    for (lanes, every, chosen) in [(1, 300, 0), (1, 400, 1), (2, 400, 1)] {
        let foresight = never_at_ease();
        let mut world = World::with_lanes(lanes, foresight, &[0, 1]);
        world.show_within(2_000, every, &[&[0, 1]], Micros(20_000));
        // The first may wait for others to share its batch.
        let mut come = (1..=8).filter_map(|key| {
            world.now = world.now + Micros(every);
            bound(&world.arrive(key, &[0, 1], Micros(20_000))).map(|b| b.1)
        });
        assert_eq!(come.next(), Some(chosen), "{lanes} {every}");
    }
}

/// Who goes next, and who is refused, where both classes were asked so often lately and these wait: key, what may answer it, and its bound.
fn goes_next(full_batches: bool, every: u64, waiting: &[(u64, &[u8], u64)]) -> (Vec<u64>, Vec<u64>) {
    goes_next_of(full_batches, every, waiting, |_| ())
}

/// The same where the first of them is otherwise.
fn goes_next_of(
    full_batches: bool,
    every: u64,
    waiting: &[(u64, &[u8], u64)],
    change: fn(&mut Query),
) -> (Vec<u64>, Vec<u64>) {
    let foresight = Foresight { full_batches, to_come: false, caution: false, ..Foresight::default() };
    goes_next_in(World::looking(foresight, 100, &[0, 1]), (every, ALONE), waiting, change)
}

/// The same in another world, with a bound that leaves a dear one no time to wait for others.
fn goes_next_in(
    mut world: World,
    (every, alone): (u64, Micros),
    waiting: &[(u64, &[u8], u64)],
    change: fn(&mut Query),
) -> (Vec<u64>, Vec<u64>) {
    world.show_within(2_000, every, &[&[0, 1], &[1]], Micros(20_000));
    // One that has no time to wait for others runs while they come.
    let (running, ..) = bound(&world.arrive(1, &[1], alone)).expect("bound");
    world.prepared(running);
    // Behind it is a whole batch of the dear.
    let next = (2..=5).find_map(|key| bound(&world.arrive(key, &[1], Micros(100_000)))).expect("bound");
    world.prepared(next.0);
    for (at, (key, admits, latency)) in waiting.iter().enumerate() {
        let mut query = query(*key, world.now, admits.iter().copied().collect(), Micros(*latency));
        if at == 0 {
            change(&mut query);
        }
        assert_eq!(bound(&world.feed(Event::Arrive(query))), None, "there is no room");
    }
    world.now = world.now + Micros(900);
    let mut told = world.feed(Event::Done { batch: running, outcome: Outcome::Ran });
    // What there is plenty of is bound at once, what is whole a while before its turn comes, what may yet grow at the last moment.
    for wait in [1_000, 850] {
        if bound(&told).is_some() {
            break;
        }
        world.now = world.now + Micros(wait);
        world.worker.handle_timeout(world.now);
        told.extend(std::iter::from_fn(|| world.worker.poll_action()));
    }
    let late = |action: &Action| if let Action::Refuse { key, .. } = action { Some(key.0) } else { None };
    let late = told.iter().filter_map(late).collect();
    (bound(&told).map_or_else(Vec::new, |(.., members)| members), late)
}

/// The dear takes 500 us each in batches of four and comes every 800 us, or every 8 ms; the cheap 50.
const PRESSED: u64 = 200;
const EASY: u64 = 4_000;

#[test]
fn on_a_pressed_device_whole_batches_go_first_and_the_cheapest_of_them() {
    let dear: [(u64, &[u8], u64); 4] =
        [(11, &[1], 9_000), (12, &[1], 9_000), (13, &[1], 9_000), (14, &[1], 9_000)];
    let cheap: [(u64, &[u8], u64); 4] =
        [(21, &[0, 1], 15_000), (22, &[0, 1], 15_000), (23, &[0, 1], 15_000), (24, &[0, 1], 15_000)];
    let both = [dear, cheap].concat();
    for (full_batches, every, first) in [(true, PRESSED, 21), (false, PRESSED, 11), (true, EASY, 11)] {
        let (members, late) = goes_next(full_batches, every, &both);
        assert_eq!((members.first(), late), (Some(&first), vec![]), "{full_batches} {every}");
    }
    // Three of four are no whole batch: who is due first goes first.
    let (members, _) = goes_next(true, PRESSED, &both[..6]);
    assert_eq!(members.first(), Some(&11));
    let (members, _) = goes_next(true, PRESSED, &[&both[1..4], &both[4..7]].concat());
    assert_eq!(members.first(), Some(&12));
}

#[test]
fn on_a_pressed_device_what_is_cheap_and_has_no_time_for_more_to_come_goes_before_what_is_dear_and_whole() {
    // The lane is free 2.1 ms after they came; whole batches of the dear take 1.2 ms, two of the cheap 133 us.
    for (due, first) in [(2_500, 21), (3_500, 11)] {
        let waiting: [(u64, &[u8], u64); 6] = [
            (11, &[1], 9_000),
            (12, &[1], 9_000),
            (13, &[1], 9_000),
            (14, &[1], 9_000),
            (21, &[0, 1], due),
            (22, &[0, 1], due),
        ];
        let mut world =
            World::looking(Foresight { to_come: false, caution: false, ..Foresight::default() }, 100, &[]);
        world.feed(Event::Catalog(vec![variant(0, 100.0), variant(1, 600.0)]));
        for at in [0, 1] {
            world.feed(Event::Wake { task: TASK, ordinal: at });
            world.load(at);
        }
        let (members, _) = goes_next_in(world, (100, Micros(780)), &waiting, |_| ());
        assert_eq!(members.first(), Some(&first), "due after {due} us");
    }
}

#[test]
fn a_pressed_device_chooses_what_takes_least_in_batches_of_who_waited_for_his_whole_bound() {
    // Every 2 ms eight of either class come. Of the two that are cheap the more accurate takes 60 us each in batches of four and of eight, the other 110 and 55.
    let shaped = |at: u8, points: [(u32, f64); 3]| {
        let point =
            |(batch, mean_us)| BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 };
        let run = RunModel::from_points(&points.map(point), Moments::ZERO).expect("points");
        WorkerVariant { max_batch: 8, run, ..variant(at, 1.0) }
    };
    let dear = |four_us: f64| shaped(2, [(1, 500.0), (4, four_us), (8, 2.0 * four_us)]);
    for (dear_us, chosen) in [(950.0, 0), (600.0, 1)] {
        let foresight = Foresight { to_come: false, caution: false, eases: false, ..Foresight::default() };
        let mut world = World::looking(foresight, 100, &[]);
        let small = shaped(1, [(1, 100.0), (4, 240.0), (8, 480.0)]);
        let large = shaped(0, [(1, 400.0), (4, 440.0), (8, 440.0)]);
        world.feed(Event::Catalog(vec![large, small, dear(dear_us)]));
        for at in [0, 1, 2] {
            world.feed(Event::Wake { task: TASK, ordinal: at });
            world.load(at);
        }
        world.show_within(8_000, 125, &[&[0, 1], &[2]], Micros(2_000));
        let mut come =
            (1..=8).filter_map(|key| bound(&world.arrive(key, &[0, 1], Micros(2_000))).map(|b| b.1));
        assert_eq!(come.next(), Some(chosen), "{dear_us}");
    }
}

#[test]
fn on_a_pressed_device_who_has_no_time_for_the_batch_that_is_there_gives_way_to_it() {
    // What is prepared ends 3 ms after they came; 4 take 2 ms, alone one takes 1.
    let waiting: [(u64, &[u8], u64); 5] =
        [(11, &[1], 4_600), (12, &[1], 9_000), (13, &[1], 9_000), (14, &[1], 9_000), (15, &[1], 9_000)];
    assert_eq!(goes_next(true, PRESSED, &waiting), (vec![12, 13, 14, 15], vec![11]));
    let (members, late) = goes_next(true, EASY, &waiting);
    assert_eq!((members.first(), late), (Some(&11), vec![]), "there is time for all");
}

/// A dear one of which batches of three take a little more for each than batches of four, and a cheap one like it in a tenth of the time.
fn of_nearly_even_batches(alone_us: f64, sd_us: f64) -> World {
    let shaped = |at: u8, times: f64| {
        let point = |(batch, us): (u32, f64)| BatchPoint {
            batch,
            mean_us: us * times,
            var_us2: sd_us * sd_us * times * times,
            p99_us: us * times,
            samples: 1,
        };
        let run = RunModel::from_points(&[(1, alone_us), (4, 2_000.0)].map(point), Moments::ZERO);
        WorkerVariant { run: run.expect("points"), ..variant(at, 1.0) }
    };
    let foresight = Foresight { to_come: false, caution: false, ..Foresight::default() };
    let mut world = World::looking(foresight, 100, &[]);
    world.feed(Event::Catalog(vec![shaped(0, 0.1), shaped(1, 1.0)]));
    for at in [0, 1] {
        world.feed(Event::Wake { task: TASK, ordinal: at });
        world.load(at);
    }
    world
}

#[test]
fn on_a_pressed_device_only_who_has_his_place_taken_gives_way_to_a_batch_that_is_hardly_larger() {
    let next = |waiting: &[(u64, &[u8], u64)]| {
        goes_next_in(of_nearly_even_batches(900.0, 0.0), (PRESSED, Micros(1_000)), waiting, |_| ())
    };
    // The lane is free 2.9 ms after they came. Of the dear more comes than can be done.
    let dear: [(u64, &[u8], u64); 5] =
        [(11, &[1], 4_700), (12, &[1], 9_000), (13, &[1], 9_000), (14, &[1], 9_000), (15, &[1], 9_000)];
    assert_eq!(next(&dear), (vec![12, 13, 14, 15], vec![11]), "three would be in time");
    let cheap: [(u64, &[u8], u64); 5] = [
        (21, &[0, 1], 3_080),
        (22, &[0, 1], 9_000),
        (23, &[0, 1], 9_000),
        (24, &[0, 1], 9_000),
        (25, &[0, 1], 9_000),
    ];
    assert_eq!(next(&cheap), (vec![21, 22, 23], vec![]));
}

#[test]
fn on_a_pressed_device_nobody_gives_way_where_no_whole_batch_waits_to_take_his_place() {
    // Two take 4 % more for each than three. The lane is free 3 ms after they came.
    let waiting: [(u64, &[u8], u64); 5] =
        [(11, &[1], 4_300), (12, &[1], 9_000), (13, &[1], 9_000), (14, &[1], 9_000), (15, &[1], 9_000)];
    let next = |many: usize| {
        let world = of_nearly_even_batches(600.0, 0.0);
        goes_next_in(world, (PRESSED, Micros(1_000)), &waiting[..many], |_| ())
    };
    assert_eq!(next(3), (vec![11, 12], vec![]));
    assert_eq!(next(5), (vec![12, 13, 14, 15], vec![11]));
}

#[test]
fn who_is_not_like_others_gives_nobody_way_because_there_is_plenty() {
    // In time with four, but not for certain.
    let waiting: [(u64, &[u8], u64); 5] =
        [(11, &[1], 5_150), (12, &[1], 9_000), (13, &[1], 9_000), (14, &[1], 9_000), (15, &[1], 9_000)];
    let next = |change: fn(&mut Query)| {
        let world = of_nearly_even_batches(900.0, 100.0);
        goes_next_in(world, (PRESSED, Micros(1_300)), &waiting, change)
    };
    assert_eq!(next(|query| query.priority = Priority::RESERVED), (vec![11, 12, 13, 14], vec![]));
    assert_eq!(next(|_| ()).1, [11]);
}

#[test]
fn on_a_pressed_device_of_what_there_is_plenty_only_who_is_in_time_for_certain_goes() {
    // Four end 4.9 ms after they came, and with what runs before them some 140 us more or less.
    for (due, goes) in [(5_150, 12), (5_400, 11)] {
        let waiting: [(u64, &[u8], u64); 5] =
            [(11, &[1], due), (12, &[1], 9_000), (13, &[1], 9_000), (14, &[1], 9_000), (15, &[1], 9_000)];
        let world = of_nearly_even_batches(900.0, 100.0);
        let (members, _) = goes_next_in(world, (PRESSED, Micros(1_300)), &waiting, |_| ());
        assert_eq!(members, (goes..goes + 4).collect::<Vec<u64>>(), "due after {due} us");
    }
}

#[test]
fn on_a_pressed_device_a_full_batch_of_what_there_is_plenty_of_is_bound_earlier() {
    for (admits, many, at_once) in [(&[1][..], 4, true), (&[1], 3, false), (&[0, 1], 4, false)] {
        let mut world = of_nearly_even_batches(900.0, 0.0);
        world.show_within(2_000, PRESSED, &[&[0, 1], &[1]], Micros(20_000));
        let (running, ..) = bound(&world.arrive(1, &[1], Micros(1_000))).expect("bound");
        world.prepared(running);
        let next = (2..=5).find_map(|key| bound(&world.arrive(key, &[1], Micros(100_000)))).expect("bound");
        world.prepared(next.0);
        for key in 11..11 + many {
            world.arrive(key, admits, Micros(9_000));
        }
        world.now = world.now + Micros(900);
        // What runs now takes 2 ms.
        let told = world.feed(Event::Done { batch: running, outcome: Outcome::Ran });
        assert_eq!(bound(&told).is_some(), at_once, "{admits:?}, {many}");
    }
}

#[test]
fn on_a_pressed_device_who_is_not_like_others_keeps_his_place() {
    let dear: (u64, &[u8], u64) = (11, &[1], 9_000);
    let cheap: [(u64, &[u8], u64); 4] =
        [(21, &[0, 1], 15_000), (22, &[0, 1], 15_000), (23, &[0, 1], 15_000), (24, &[0, 1], 15_000)];
    let both = [&[dear][..], &cheap].concat();
    let first = |change| goes_next_of(true, PRESSED, &both, change).0.first().copied();
    assert_eq!(first(|_| ()), Some(21));
    assert_eq!(first(|query| query.priority = Priority::RESERVED), Some(11));
    assert_eq!(first(|query| query.max_cost = Some(CostPer1k(u64::MAX))), Some(11));
    assert_eq!(first(|query| query.best_effort = true), Some(11));
    // Queries of several levels go as ever.
    assert_eq!(first(|query| query.priority = Priority::new(1).expect("a level")), Some(11));
}

#[test]
fn a_device_is_not_pressed_if_whole_batches_of_what_comes_to_several_nodes_would_keep_it_less_busy() {
    // Alone the dear takes 1 ms of every 900 us. Of what comes to four nodes three come in 650 us, which take 1.7 ms of four times that.
    let credit = |among: u32| {
        let mut world = World::new(100, &[0, 1]);
        for admits in [&[0, 1][..], &[1]] {
            let class = query(0, world.now, admits.iter().copied().collect(), ALONE).class;
            world.feed(Event::Demand { class, waiting: 0, first: None, among });
        }
        world.show(2_000, 450, &[&[0, 1], &[1]]);
        world.worker.report(world.now).limit.queries
    };
    let (alone, of_four) = (credit(1), credit(4));
    assert_eq!(credit(0), alone, "nobody says: taken to come here alone");
    assert_eq!(alone, of_four + 8, "one batch of each more to choose from");
}

#[test]
fn which_part_of_a_class_falls_to_a_node_counts_only_for_a_while_after_it_was_announced() {
    let credit = |announced: Option<u64>| {
        let mut world = World::new(100, &[0, 1]);
        for (key, admits) in (1..).zip([&[0, 1][..], &[1]]) {
            let query = query(key, world.now, admits.iter().copied().collect(), ALONE);
            world.feed(Event::Demand { class: query.class, waiting: 0, first: None, among: 4 });
            if announced.is_some() {
                world.feed(Event::Announce { query, part_ppm: 1_000_000, quickest: Micros(1_000) });
                world.feed(Event::Cancel { key: query.key });
            }
        }
        world.now = world.now + Micros::from_secs(announced.unwrap_or(0));
        world.show(2_000, 450, &[&[0, 1], &[1]]);
        world.worker.report(world.now).limit.queries
    };
    let of_four = credit(None);
    assert_eq!(credit(Some(1)), of_four + 8, "all that is announced falls to it, and that is too much");
    assert_eq!(credit(Some(20)), of_four, "gateways send what comes, in batches to four nodes in turn");
}
