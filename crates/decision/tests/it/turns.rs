//! Who gathered while a model was loaded, and who else waits.

use crate::common::{TASK, query, worker_variant};
use modelless_decision::query::Query;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Foresight, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    BatchPoint, Batching, Bytes, DeviceIx, Micros, ModelId, PricePerHour, Priority, TaskId, Time, VariantId,
};

/// What is lost: 10 ms alone, 24 ms for four.
const LOST: u8 = 1;
/// What stays: 1 ms alone; and what takes longer than the lost alone, 25 ms.
const QUICK: u8 = 0;
const LONG: u8 = 2;
const FAR: Micros = Micros::from_secs(2);

struct World {
    worker: Worker,
    now: Time,
    /// Bound and not started, in order; what runs.
    next: Option<(BatchId, Vec<u64>)>,
    running: Option<BatchId>,
    /// Members of batches, in the order in which they ran.
    ran: Vec<Vec<u64>>,
    /// The task of the lost one.
    lost: TaskId,
}

fn variant(at: u8, alone_us: f64, four_us: f64) -> WorkerVariant {
    let point =
        |batch: u32, mean_us: f64| BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 };
    let points = [point(1, alone_us), point(4, four_us)];
    let run = RunModel::from_points(&points, Moments::ZERO).expect("two points");
    WorkerVariant { max_batch: 4, ..worker_variant(at, run) }
}

impl World {
    fn new(turns: bool) -> Self {
        let foresight = Foresight { turns, ..Foresight::default() };
        Self::with(&WorkerConfig { foresight, ..WorkerConfig::default() }, 24_000.0, TASK)
    }

    /// Where four of the lost one take so long.
    fn with(config: &WorkerConfig, four_us: f64, lost: TaskId) -> Self {
        let device = DeviceConfig { lanes: 1, width: 1, memory: Bytes(100), price: PricePerHour(1_000_000) };
        let worker = Worker::new(WorkerConfig { devices: vec![device], ..config.clone() });
        let (next, running, ran) = (None, None, Vec::new());
        let mut world = Self { worker, now: Time(0), next, running, ran, lost };
        world.feed(Event::Catalog(vec![
            variant(QUICK, 1_000.0, 2_000.0),
            WorkerVariant { task: lost, ..variant(LOST, 10_000.0, four_us) },
            variant(LONG, 25_000.0, 90_000.0),
        ]));
        for at in [QUICK, LOST, LONG] {
            world.feed(Event::Wake { task: world.task_of(at), ordinal: at });
            world.load(at);
        }
        world
    }

    fn task_of(&self, at: u8) -> TaskId {
        if at == LOST { self.lost } else { TASK }
    }

    fn load(&mut self, at: u8) {
        let variant = VariantId(u32::from(at));
        let (memory, took) = (Bytes(10), Micros(1_000));
        self.feed(Event::Loaded { device: DeviceIx(0), variant, memory, took });
    }

    /// Prepares what is bound and starts what may.
    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.go_on();
    }

    fn go_on(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            if let Action::Prepare { batch, queries, .. } = action {
                self.next = Some((batch, queries.iter().map(|key| key.0).collect()));
                self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
            } else if let Action::Start { batch } = action {
                let (next, members) = self.next.take().expect("prepared before it is started");
                assert_eq!(next, batch);
                // Of one process it is handed over before the other has ended.
                if self.running.is_none() {
                    self.running = Some(batch);
                } else {
                    self.next = Some((batch, Vec::new()));
                }
                self.ran.push(members);
            }
        }
    }

    fn arrive(&mut self, key: u64, of: u8, latency: Micros) {
        self.arrive_as(key, of, latency, |_| ());
    }

    fn arrive_as(&mut self, key: u64, of: u8, latency: Micros, change: fn(&mut Query)) {
        let mut query = query(key, self.now, [of].into_iter().collect(), latency);
        query.class.task = self.task_of(of);
        change(&mut query);
        self.feed(Event::Arrive(query));
    }

    /// The process of one dies.
    fn dies(&mut self, of: u8) {
        let model = ModelId(u32::from(of));
        self.feed(Event::RunnerDied { model, variants: None, why: "killed".into(), hung: false });
    }

    /// What runs has run for so long and ends.
    fn ends(&mut self, after: Micros) {
        let end = self.now + after;
        while let Some(at) = self.worker.poll_timeout().map(|wake| wake.at).filter(|at| *at < end) {
            self.now = self.now.max(at);
            self.worker.handle_timeout(self.now);
            self.go_on();
        }
        self.now = end;
        self.ends_now();
    }

    fn ends_now(&mut self) {
        let batch = self.running.take().expect("something runs");
        if let Some((next, _)) = self.next.take_if(|(_, members)| members.is_empty()) {
            self.running = Some(next);
        }
        self.feed(Event::Done { batch, outcome: Outcome::Ran });
    }

    /// What runs from now on, so many batches, each for 10 ms.
    fn then(&mut self, batches: usize) -> Vec<Vec<u64>> {
        let from = self.ran.len() - usize::from(self.running.is_some());
        while self.ran.len() < from + batches && self.running.is_some() {
            self.ends(Micros(10_000));
        }
        self.ran[from..].to_vec()
    }
}

/// One runs that was asked for lately, and the lost one was asked for six times while it was not there.
fn gathered(world: World, latency: Micros, of: u8) -> World {
    let mut world = world;
    world.arrive(1, of, FAR);
    world.dies(LOST);
    for key in 11..=16 {
        world.arrive(key, LOST, latency);
    }
    world
}

#[test]
fn a_turn_of_theirs_takes_no_longer_than_one_of_the_others() {
    // 25 ms are enough for four, which take 24; 1 ms is not for two.
    for (turns, of, first) in
        [(true, LONG, vec![11, 12, 13, 14]), (true, QUICK, vec![11]), (false, QUICK, vec![11, 12, 13, 14])]
    {
        let mut world = gathered(World::new(turns), FAR, of);
        world.load(LOST);
        assert_eq!(world.then(2), [vec![1], first], "{turns} {of}");
    }
}

#[test]
fn a_turn_is_never_so_short_that_each_takes_more_than_twice_as_much() {
    // Of four each takes 3 ms; of two 5.3, of one 10.
    let mut world = gathered(World::with(&WorkerConfig::default(), 12_000.0, TASK), FAR, QUICK);
    world.load(LOST);
    assert_eq!(world.then(2), [vec![1], vec![11, 12]]);
}

#[test]
fn after_each_turn_whoever_else_is_there_goes_first() {
    for turns in [true, false] {
        let mut world = gathered(World::new(turns), FAR, QUICK);
        world.load(LOST);
        world.arrive(21, QUICK, FAR);
        world.arrive(31, LONG, FAR);
        // The lost one's were due before them.
        let ran = world.then(4);
        if turns {
            assert_eq!(ran, [vec![1], vec![11], vec![21], vec![31]]);
        } else {
            assert_eq!(ran, [vec![1], vec![11, 12, 13, 14], vec![15, 16], vec![21]]);
        }
    }
}

/// What follows a batch is bound shortly before that should end.
#[test]
fn a_turn_that_is_over_before_anything_was_bound_behind_it_was_one() {
    let mut world = gathered(World::new(true), FAR, QUICK);
    world.load(LOST);
    world.ends(Micros(1_000));
    world.arrive(21, QUICK, FAR);
    assert_eq!((world.next.clone(), world.ran.len()), (None, 2), "11 runs, and it is early");
    world.ends_now();
    assert_eq!(world.ran, [vec![1], vec![11], vec![21]]);
}

#[test]
fn who_comes_after_a_turn_waits_for_the_next_one() {
    let mut world = gathered(World::new(true), FAR, QUICK);
    world.load(LOST);
    world.ends(Micros(1_000));
    world.arrive(21, QUICK, FAR);
    world.ends(Micros(10_000));
    assert_eq!(world.ran, [vec![1], vec![11], vec![21]]);
    world.arrive(22, QUICK, FAR);
    assert_eq!(world.then(3), [vec![21], vec![12], vec![22]]);
}

#[test]
fn of_two_that_were_lost_neither_goes_before_what_was_there_all_the_time() {
    let mut world = World::new(true);
    world.arrive(1, QUICK, FAR);
    for lost in [LOST, LONG] {
        world.dies(lost);
    }
    for key in [11, 12, 13] {
        world.arrive(key, LOST, FAR);
        world.arrive(key + 20, LONG, FAR);
    }
    for lost in [LOST, LONG] {
        world.load(lost);
    }
    world.arrive(21, QUICK, FAR);
    world.ends(Micros(1_000));
    let ran = world.then(2);
    assert_eq!((ran[0].first(), &ran[1][..]), (Some(&11), &[21][..]));
}

/// The first batch of the lost one, and what follows it, where someone else waits as well.
fn short_of_time(world: World, latency: Micros, first: impl Fn(&mut World)) -> Vec<Vec<u64>> {
    let mut world = gathered(world, latency, QUICK);
    first(&mut world);
    world.load(LOST);
    world.arrive(21, QUICK, FAR);
    world.then(3).split_off(1)
}

#[test]
fn where_time_is_short_or_some_matter_more_the_first_who_is_due_leads() {
    let nothing = |_: &mut World| ();
    let ample = Micros::from_millis(170);
    assert_eq!(short_of_time(World::new(true), ample, nothing), [vec![11], vec![21]]);
    let four = [11, 12, 13, 14];
    // Six of 10 ms are not done in half of 110.
    assert_eq!(short_of_time(World::new(true), Micros::from_millis(110), nothing)[0], four);
    // Who has all the time there is says nothing of those behind him.
    let unhurried = |world: &mut World| {
        world.arrive_as(17, LOST, Micros(50_000), |query| query.best_effort = true);
    };
    assert_eq!(short_of_time(World::new(true), Micros::from_millis(110), unhurried)[0].len(), 4);
    // Those who wait at gateways are to be answered, too.
    let demand = |world: &mut World| {
        let class = query(0, world.now, [QUICK].into_iter().collect(), FAR).class;
        let first = Some(world.now + ample);
        world.feed(Event::Demand { class, waiting: 50, first, among: 1 });
    };
    assert_eq!(short_of_time(World::new(true), ample, demand)[0], four);
    // One of them matters more; another, of the process that runs, is handed over already.
    let urgent = |world: &mut World| {
        world.arrive(17, QUICK, FAR);
        world.arrive_as(18, QUICK, FAR, |query| query.priority = Priority::new(3).expect("a level"));
    };
    assert_eq!(short_of_time(World::new(true), FAR, urgent)[0], four);
}

#[test]
fn batches_that_do_not_go_by_deadlines_take_no_turns() {
    let batching = Batching::Off;
    let world = World::with(&WorkerConfig { batching, ..WorkerConfig::default() }, 24_000.0, TASK);
    assert_eq!(short_of_time(world, FAR, |_| ()), [vec![11], vec![12]]);
}

/// They come quicker than single runs could answer them, so a free lane would gain by waiting for more.
#[test]
fn a_free_lane_does_not_wait_for_more_than_a_turn_takes() {
    let mut world = World::new(true);
    world.arrive(1, QUICK, FAR);
    world.ends(Micros(1_000));
    world.dies(LOST);
    for key in 11..=30 {
        world.arrive(key, LOST, FAR);
        world.now = world.now + Micros(5_000);
    }
    world.load(LOST);
    assert_eq!(world.ran, [vec![1], vec![11]]);
}

/// Those who were bound to follow what runs, and those who waited behind them.
#[test]
fn who_waited_when_the_process_died_has_gathered_as_well() {
    let mut world = World::new(true);
    world.arrive(1, QUICK, FAR);
    for key in 11..=16 {
        world.arrive(key, LOST, FAR);
    }
    world.dies(LOST);
    world.load(LOST);
    world.arrive(21, QUICK, FAR);
    assert_eq!(world.then(4), [vec![1], vec![11], vec![21], vec![12]]);
}

/// What comes quickly is bound at the last moment, and what comes slowly a millisecond before that.
#[test]
fn whoever_has_a_turn_keeps_it_though_others_are_bound_sooner() {
    let mut world = World::with(&WorkerConfig::default(), 24_000.0, TaskId(TASK.0 + 1));
    for key in 1..=16 {
        world.arrive(key, QUICK, FAR);
        world.ends(Micros(1_000));
        world.now = world.now + Micros(500);
    }
    world.dies(LOST);
    for key in 21..=26 {
        world.arrive(key, LOST, FAR);
    }
    world.load(LOST);
    world.arrive(31, QUICK, FAR);
    world.ends(Micros(10_000));
    assert_eq!(world.ran[16..], [vec![21], vec![31]]);
}
