//! Queries that are announced to a node, and what it claims of them.

use crate::common::{TASK, query, worker_variant};
use crate::suspecting::{LEAST, World, bound, variant};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    BatchPoint, Bytes, CostPer1k, DeviceIx, Micros, PricePerHour, QueryKey, Refusal, Time, VariantId,
};

const BOUND: Micros = Micros::from_millis(50);
const NONE: [u64; 0] = [];
/// What a batch takes, however many are in it.
const RUN: f64 = 10_000.0;
/// As long as nothing is known of it, a claim is taken to take this.
const CLAIM: Micros = Micros(500);

/// Answers up to eight at a time in the time of one.
fn wide(at: u8) -> WorkerVariant {
    let point = |batch: u32| BatchPoint { batch, mean_us: RUN, var_us2: 0.0, p99_us: RUN, samples: 1 };
    let run = RunModel::from_points(&[point(1), point(8)], Moments::ZERO).expect("two points");
    WorkerVariant { max_batch: 8, ..worker_variant(at, run) }
}

fn world() -> World {
    World::with(1, LEAST, vec![wide(0)])
}

impl World {
    fn asked(&self, key: u64) -> Query {
        query(key, self.now, [0].into_iter().collect(), BOUND)
    }

    fn announce(&mut self, key: u64) -> Vec<Action> {
        let query = self.asked(key);
        self.feed(Event::Announce { query, part_ppm: 500_000, quickest: Micros(10_000) })
    }

    fn comes(&mut self, key: u64) -> Vec<Action> {
        let query = self.asked(key);
        self.feed(Event::Arrive(query))
    }

    /// A query that is this node's from the beginning runs, and so many are announced meanwhile; then it is nearly over.
    fn busy_while_announced(&mut self, keys: core::ops::Range<u64>) -> (BatchId, Vec<Action>) {
        let (batch, ..) = bound(&self.comes(100)).expect("a lane is free");
        self.starts(batch);
        let told: Vec<Action> = keys.flat_map(|key| self.announce(key)).collect();
        assert_eq!(told, [], "it is far too early");
        (batch, self.pass(Micros(9_000)))
    }
}

fn claimed(actions: &[Action]) -> Vec<u64> {
    let claims = actions.iter().filter_map(|action| {
        let Action::Claim { queries, .. } = action else { return None };
        Some(queries.iter().map(|key| key.0))
    });
    claims.flatten().collect()
}

fn prepared(actions: &[Action]) -> Vec<u64> {
    let prepare = |action: &Action| {
        let Action::Prepare { queries, reasons, .. } = action else { return None };
        assert_eq!(queries.len(), reasons.len());
        Some(queries.iter().map(|key| key.0).collect())
    };
    actions.iter().find_map(prepare).unwrap_or_default()
}

fn declined(actions: &[Action]) -> Vec<u64> {
    let back = |action: &Action| {
        let Action::Decline { key, .. } = action else { return None };
        Some(key.0)
    };
    actions.iter().filter_map(back).collect()
}

#[test]
fn nothing_is_prepared_before_all_are_heard_of_and_then_those_who_came() {
    let mut world = world();
    let told = world.announce(1);
    assert_eq!((claimed(&told), prepared(&told)), (vec![1], vec![]), "the lane is free");
    for key in 2..=3 {
        assert_eq!(claimed(&world.announce(key)), NONE, "a batch waits there already");
    }
    assert_eq!(world.worker.open(), 0, "none of them is this node's yet");
    let told = world.comes(1);
    assert_eq!(prepared(&told), [1]);
    assert_eq!(world.worker.open(), 1);
    let (batch, ..) = bound(&told).expect("it is prepared");
    world.starts(batch);
    let mut told = world.pass(Micros(9_000));
    assert_eq!(claimed(&told), [2, 3]);
    world.feed(Event::Cancel { key: QueryKey(2) });
    told = world.comes(3);
    assert_eq!(prepared(&told), [3], "another node was first");
    let done = world.done(batch);
    assert!(done.contains(&Action::Deliver { batch, queries: vec![QueryKey(1)] }), "{done:?}");
}

#[test]
fn a_batch_of_which_nobody_comes_is_forgotten_and_its_lane_binds_anew() {
    let mut world = world();
    assert_eq!(claimed(&world.announce(1)), [1]);
    world.announce(2);
    let told = world.feed(Event::Cancel { key: QueryKey(1) });
    assert_eq!((claimed(&told), prepared(&told)), (vec![2], vec![]));
    assert!(
        !told.iter().any(|action| matches!(action, Action::Discard { .. })),
        "it never had a slot: {told:?}"
    );
    assert_eq!(world.feed(Event::Cancel { key: QueryKey(2) }), []);
    assert_eq!((world.worker.open(), world.worker.announced_here()), (0, 0));
}

#[test]
fn who_was_taken_back_from_a_batch_and_is_announced_again_is_claimed_again() {
    let mut world = world();
    let (_, told) = world.busy_while_announced(1..3);
    assert_eq!(claimed(&told), [1, 2]);
    world.feed(Event::Cancel { key: QueryKey(1) });
    // The batch still waits to hear of the other one.
    world.announce(1);
    assert_eq!(world.worker.announced_here(), 1, "it is news");
    assert_eq!(prepared(&world.comes(2)), [2]);
    world.feed(Event::Cancel { key: QueryKey(1) });
    assert_eq!(world.worker.announced_here(), 0);
}

#[test]
fn who_was_taken_back_on_one_lane_and_is_claimed_on_another_can_be_taken_back_there() {
    let mut world = World::with(2, LEAST, vec![wide(0)]);
    for key in [100, 101] {
        let (batch, ..) = bound(&world.comes(key)).expect("a lane is free");
        world.starts(batch);
    }
    (1..=2).for_each(|key| assert_eq!(world.announce(key), []));
    assert_eq!(claimed(&world.pass(Micros(9_000))), [1, 2], "by the first lane");
    world.feed(Event::Cancel { key: QueryKey(1) });
    assert_eq!(claimed(&world.announce(1)), [1], "by the second");
    assert_eq!(claimed(&world.announce(3)), NONE, "a batch waits on either");
    assert_eq!(
        claimed(&world.feed(Event::Cancel { key: QueryKey(1) })),
        [3],
        "the second has nobody any more"
    );
}

#[test]
fn what_was_announced_and_then_sent_is_this_nodes_and_given_up_once() {
    let config = WorkerConfig { suspect_after: LEAST, queue: 1, ..WorkerConfig::default() };
    let mut world = World::of(&config, 1, vec![wide(0)]);
    let (batch, ..) = bound(&world.comes(100)).expect("a lane is free");
    world.starts(batch);
    assert_eq!(world.announce(1), []);
    assert_eq!(world.comes(2), [], "it waits, and no more may");
    let told = world.comes(1);
    assert!(matches!(told[..], [Action::Refuse { key: QueryKey(1), .. }]), "{told:?}");
    let told = world.pass(BOUND);
    assert_eq!((declined(&told), claimed(&told)), (vec![], vec![]), "{told:?}");
}

#[test]
fn claims_go_out_so_early_that_a_busy_lane_need_not_wait_for_them() {
    let mut world = world();
    let began = world.now;
    let (_, told) = world.busy_while_announced(1..9);
    assert_eq!(claimed(&told), (1..=8).collect::<Vec<_>>());
    // Were they here already, the batch would be bound this much later.
    let mut alone = self::world();
    let (batch, ..) = bound(&alone.comes(100)).expect("a lane is free");
    alone.starts(batch);
    (1..=8).for_each(|key| assert_eq!(prepared(&alone.comes(key)), NONE));
    let own = alone.worker.poll_timeout().expect("it will be bound").at;
    let mut again = self::world();
    let (batch, ..) = bound(&again.comes(100)).expect("a lane is free");
    again.starts(batch);
    (1..=8).for_each(|key| assert_eq!(claimed(&again.announce(key)), NONE));
    let claims = again.worker.poll_timeout().expect("they will be claimed").at;
    assert_eq!(own - claims, CLAIM, "since {began:?}");
}

#[test]
fn a_gateway_that_says_nothing_is_not_waited_for_and_what_comes_later_is_answered_all_the_same() {
    let mut world = world();
    assert_eq!(claimed(&world.announce(1)), [1]);
    let told = world.announce(2);
    assert_eq!(claimed(&told), NONE);
    // After four times what a claim takes, and 5 ms.
    let told = world.pass(Micros(6_900));
    assert_eq!(claimed(&told), NONE);
    let told = world.pass(Micros(200));
    assert_eq!(claimed(&told), [2], "the lane binds anew");
    assert_eq!(prepared(&world.comes(2)), [2]);
    let told = world.comes(1);
    assert_eq!(prepared(&told), NONE, "the lane has a batch");
    assert_eq!(world.worker.open(), 2, "it is this node's now");
}

#[test]
fn claims_that_take_longer_than_is_waited_for_are_waited_for_longer_the_next_time() {
    let mut world = world();
    let mut ran_out = |first: u64| {
        assert_eq!(claimed(&world.announce(first)), [first]);
        world.announce(first + 1);
        let told = world.pass(Micros(9_900));
        for key in [first, first + 1] {
            world.feed(Event::Cancel { key: QueryKey(key) });
        }
        !claimed(&told).is_empty()
    };
    assert!(ran_out(1), "after 7 ms the lane binds anew");
    assert!(!ran_out(3));
}

#[test]
fn what_is_only_announced_takes_no_credit_and_who_was_claimed_takes_none_either() {
    let mut world = world();
    let credit = |world: &World| world.worker.report(world.now).limit.queries;
    world.comes(100);
    let before = credit(&world);
    (1..=20).for_each(|key| assert_eq!(world.announce(key), []));
    assert_eq!(credit(&world), before);
    assert_eq!(world.worker.announced_here(), 20);
    let mut idle = self::world();
    let nothing = credit(&idle);
    idle.announce(1);
    idle.comes(1);
    assert_eq!((idle.worker.open(), credit(&idle)), (1, nothing));
}

#[test]
fn whom_it_gives_up_it_only_names_and_learns_nothing_of() {
    let mut world = world();
    world.busy_while_announced(0..0);
    let late =
        Query { expires: world.now + Micros(3_000), deadline: world.now + Micros(3_000), ..world.asked(1) };
    let told = world.feed(Event::Announce { query: late, part_ppm: 500_000, quickest: Micros(10_000) });
    assert_eq!(declined(&told), [1], "it takes ten milliseconds");
    let short = Micros(10_500);
    let late = Query { expires: world.now + short, deadline: world.now + short, ..world.asked(2) };
    let mut told = world.feed(Event::Announce { query: late, part_ppm: 500_000, quickest: Micros(10_000) });
    told.extend(world.pass(Micros(20_000)));
    assert_eq!(declined(&told), [2]);
    assert!(
        !told.iter().any(|action| matches!(action, Action::Refuse { .. })),
        "others may answer it: {told:?}"
    );
    assert!((world.worker.caution(world.now) - 1.0).abs() < 1e-9);
}

#[test]
fn nothing_is_loaded_for_what_is_announced() {
    let mut world = World::with(1, LEAST, vec![wide(0)]);
    world.feed(Event::Catalog(vec![wide(0), wide(1)]));
    let query =
        Query { class: query(1, world.now, [1].into_iter().collect(), BOUND).class, ..world.asked(1) };
    let told = world.feed(Event::Announce { query, part_ppm: 500_000, quickest: Micros(10_000) });
    assert_eq!(declined(&told), [1]);
    assert!(!told.iter().any(|action| matches!(action, Action::Load { .. })), "{told:?}");
    let told = world.feed(Event::Arrive(Query {
        key: QueryKey(2),
        expires: world.now + Micros::from_secs(1),
        ..query
    }));
    assert!(
        told.iter().any(|action| matches!(action, Action::Load { .. })),
        "sent, it is loaded for: {told:?}"
    );
}

#[test]
fn a_node_that_drains_gives_up_what_is_announced_and_takes_what_it_has_asked_for() {
    let mut world = world();
    assert_eq!(claimed(&world.announce(1)), [1]);
    world.announce(2);
    let told = world.feed(Event::Drain);
    assert_eq!(declined(&told), [2]);
    let told = world.announce(3);
    assert!(told.contains(&Action::Decline { key: QueryKey(3), why: Refusal::Draining }), "{told:?}");
    assert_eq!(prepared(&world.comes(1)), [1], "its gateway has given it away");
    assert!(!world.worker.drained());
}

#[test]
fn a_slow_node_leaves_to_a_quicker_one_what_that_would_end_sooner() {
    let slow = || World::with(1, LEAST, vec![variant(0, 20_000.0)]);
    let announce = |world: &mut World, key: u64, quickest: u64| {
        let query = world.asked(key);
        // The others do nineteen of twenty.
        world.feed(Event::Announce { query, part_ppm: 50_000, quickest: Micros(quickest) })
    };
    let mut world = slow();
    assert_eq!(claimed(&announce(&mut world, 1, 20_000)), [1], "nobody is quicker");
    let mut world = slow();
    assert_eq!(claimed(&announce(&mut world, 1, 1_000)), NONE, "the quicker one ends it sooner");
    let came = world.now;
    // Once it has hardly more time than a run here takes, nobody is waited for any longer.
    let told = world.pass(BOUND);
    assert_eq!(claimed(&told), [1]);
    assert!(world.now > came);
    // With as many waiting as would keep the quicker one busy for longer than a run takes here, it helps.
    let mut world = slow();
    let first = (1..=40).find(|key| !claimed(&announce(&mut world, *key, 1_000)).is_empty());
    assert_eq!(first, Some(18), "twenty-nineteenths of a millisecond each, and two runs");
}

#[test]
fn what_a_batch_costs_is_asked_again_when_fewer_come() {
    let price = PricePerHour(50_000);
    let mut world = world();
    let each = |members: u32| CostPer1k::of_batch(Micros(10_000), price, members);
    let announce = |world: &mut World, key: u64, max_cost: Option<CostPer1k>| {
        let query = Query { max_cost, ..world.asked(key) };
        world.feed(Event::Announce { query, part_ppm: 500_000, quickest: Micros(10_000) })
    };
    let (batch, ..) = bound(&world.comes(100)).expect("a lane is free");
    world.starts(batch);
    announce(&mut world, 1, None);
    announce(&mut world, 2, Some(each(2)));
    assert_eq!(claimed(&world.pass(Micros(9_000))), [1, 2]);
    let second = Query { max_cost: Some(each(2)), ..world.asked(2) };
    world.feed(Event::Arrive(second));
    let told = world.feed(Event::Cancel { key: QueryKey(1) });
    assert_eq!(prepared(&told), NONE, "alone it costs twice as much");
    assert_eq!(world.worker.open(), 2, "it waits for another to share a batch with");
}

#[test]
fn whom_a_batch_that_failed_had_claimed_is_this_nodes_to_run_again() {
    let mut world = world();
    world.announce(1);
    let (batch, ..) = bound(&world.comes(1)).expect("it came");
    world.starts(batch);
    let why = String::from("shape");
    let failure = modelless_decision::worker::Failure::Unreachable;
    let told = world.feed(Event::Done { batch, outcome: Outcome::Failed { failure, why } });
    assert_eq!(claimed(&told), NONE, "it is not to be had by others");
    assert_eq!(world.worker.open(), 1);
}

#[test]
fn a_worker_of_two_lanes_says_so_when_it_claims() {
    let device = DeviceConfig { lanes: 2, width: 1, memory: Bytes(1_000), price: PricePerHour(1) };
    let mut worker = Worker::new(WorkerConfig { devices: vec![device], ..WorkerConfig::default() });
    worker.handle(Time(1), Event::Catalog(vec![wide(0)]));
    worker.handle(Time(2), Event::Wake { task: TASK, ordinal: 0 });
    let (device, variant) = (DeviceIx(0), VariantId(0));
    worker.handle(Time(3), Event::Loaded { device, variant, memory: Bytes(10), took: Micros(1) });
    let asked = query(1, Time(4), [0].into_iter().collect(), BOUND);
    worker.handle(Time(4), Event::Announce { query: asked, part_ppm: 500_000, quickest: Micros(10_000) });
    let told: Vec<Action> = std::iter::from_fn(|| worker.poll_action()).collect();
    assert!(told.contains(&Action::Claim { queries: vec![QueryKey(1)], lanes: 2 }), "{told:?}");
}
