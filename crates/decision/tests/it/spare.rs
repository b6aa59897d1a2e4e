//! What only spare time is spent on: inputs of offline jobs.

use crate::common::{TASK, alike, query};
use crate::shedding::{World, variant};
use modelless_decision::query::Class;
use modelless_decision::route::{
    Action as Routed, End, Event as ToRouter, Limit, Limits, NodeReport, Router,
};
use modelless_decision::worker::Event;
use modelless_decision::{Machine, Query};
use modelless_types::{Bytes, Micros, NodeId, Priority, QueryKey, Refusal, Time};

const LEVEL: u8 = Priority::SPARE.level();
const LONG: Micros = Micros::from_secs(100);

fn ask_many(world: &mut World, inputs: u32) {
    for _ in 0..inputs {
        world.ask(LEVEL, LONG);
    }
}

#[test]
fn what_waits_aside_is_done_while_nothing_else_is_and_each_once() {
    let mut world = World::new();
    let keys: Vec<u64> = (0..5).map(|_| world.ask(LEVEL, LONG)).collect();
    world.pass(Micros(35_000));
    assert_eq!(world.answered, keys[..3], "one after the other, 10 ms each");
    world.pass(Micros::from_secs(1));
    assert_eq!((world.answered, world.refused.len()), (keys, 0));
}

#[test]
fn a_query_goes_before_whatever_waits_aside_however_long_that_has_waited() {
    let mut world = World::new();
    let aside: Vec<u64> = (0..10).map(|_| world.ask(LEVEL, LONG)).collect();
    world.pass(Micros(15_000));
    // 100 ms leave time for what runs, and for one input alone whenever no query waits.
    let asked: Vec<u64> = (0..3).map(|_| world.ask(5, Micros(100_000))).collect();
    world.pass(Micros(36_000));
    assert_eq!(world.answered, [&aside[..2], &asked[..]].concat());
    world.pass(Micros::from_secs(1));
    assert_eq!((world.answered.len(), world.refused.len()), (13, 0));
}

#[test]
fn what_would_make_a_query_late_is_not_begun_until_none_is_expected() {
    let mut world = World::new();
    let aside = world.ask(LEVEL, Micros::from_secs(1_000));
    world.pass(Micros(20_000));
    assert_eq!(world.answered, [aside], "nobody was expected");
    // Behind 10 ms of an input no query with a bound of 20 ms that takes 10 ms would be surely in time.
    let mut answered = 1;
    for _ in 0..50 {
        world.ask(5, Micros(20_000));
        world.ask(LEVEL, LONG);
        world.pass(Micros(100_000));
        answered += 1;
        assert_eq!((world.answered.len(), world.refused.len()), (answered, 0), "queries, and nothing else");
    }
    world.pass(Micros(850_000));
    assert_eq!(world.answered.len(), answered, "one may still come");
    world.pass(Micros::from_secs(57));
    assert_eq!(world.answered.len(), answered, "what comes seldom is still to be in time");
    world.pass(Micros::from_secs(3));
    assert_eq!((world.answered.len(), world.refused.len()), (answered + 50, 0));
}

#[test]
fn one_job_that_would_make_queries_late_stands_in_no_other_jobs_way() {
    let mut world = World::made(1, 1);
    world.serves(vec![variant(0, 10_000, 1), variant(1, 1_000, 1)]);
    world.ask_of(1, 5, Micros(15_000), false);
    world.pass(Micros(100_000));
    let before = world.prepared.len();
    // By its deadline the first one is the next; behind it a query could be late.
    let slow = world.ask_of(0, LEVEL, Micros::from_secs(20), false);
    let quick = world.ask_of(1, LEVEL, LONG, false);
    world.pass(Micros(200_000));
    assert_eq!(world.prepared[before..], [vec![quick]], "not {slow}");
}

#[test]
fn what_is_in_memory_and_asked_for_stays_there_though_only_a_job_wants_something_else() {
    for (level, evicts) in [(5, true), (LEVEL, false)] {
        let mut world = World::made(1, 1);
        let whole = |ordinal| modelless_decision::worker::WorkerVariant {
            memory: Bytes(10),
            ..variant(ordinal, 10_000, 1)
        };
        world.serves(vec![whole(0)]);
        world.feed(Event::Pin(Vec::new()));
        world.feed(Event::Catalog(vec![whole(0), whole(1)]));
        for _ in 0..50 {
            world.ask(5, Micros(100_000));
            world.ask_of(1, level, Micros::from_secs(30), false);
            world.pass(Micros(100_000));
        }
        assert_eq!(!world.unloaded.is_empty(), evicts, "level {level}");
    }
}

#[test]
fn several_share_a_batch_that_is_short_against_what_comes() {
    let mut world = World::made(1, 8);
    ask_many(&mut world, 16);
    // The first began when it was alone.
    world.pass(Micros(85_000));
    assert_eq!(world.prepared[0].len(), 1);
    assert!(
        world.prepared[1].len() == 5,
        "50 ms of 10 ms each while nobody is expected: {:?}",
        world.prepared
    );
    world.pass(Micros::from_secs(10));
    let before = world.prepared.len();
    world.ask(5, Micros(500_000));
    world.pass(Micros(30_000));
    ask_many(&mut world, 8);
    world.pass(Micros(100_000));
    let since: Vec<usize> = world.prepared[before + 1..].iter().map(Vec::len).collect();
    // No longer than the query took by itself, 10 ms, and then five times as long nothing.
    assert!(since == [1] || since == [1, 1], "{since:?}");
    world.pass(Micros::from_secs(2));
    let before = world.prepared.len();
    ask_many(&mut world, 8);
    world.pass(Micros(100_000));
    let since: Vec<usize> = world.prepared[before..].iter().map(Vec::len).collect();
    assert_eq!(since, [1, 5, 2], "nobody is expected any more");
}

#[test]
fn it_waits_while_others_wait_at_gateways_and_no_longer_than_that_says_anything() {
    let mut world = World::new();
    let class = Class { task: TASK, admits: [0].into_iter().collect() };
    let first = Some(world.now + Micros(50_000));
    world.feed(Event::Demand { class, waiting: 3, first, among: 1 });
    let aside = world.ask(LEVEL, LONG);
    world.pass(Micros(40_000));
    assert_eq!(world.answered, [0_u64; 0]);
    world.pass(Micros(40_000));
    assert_eq!(world.answered, [aside], "without a word from anybody");
}

#[test]
fn nothing_that_is_told_or_learnt_of_queries_sees_it() {
    let mut world = World::new();
    let report = |world: &World| {
        let report = world.worker.report(world.now);
        (report.limit, report.wait, report.waits)
    };
    world.ask(LEVEL, LONG);
    world.pass(Micros(5_000));
    let before = report(&world);
    ask_many(&mut world, 100);
    assert_eq!(report(&world), before, "only what runs already keeps a query waiting");
    assert_eq!(world.worker.open(), 101);
}

#[test]
fn it_can_be_cancelled_runs_out_of_time_and_goes_back_from_a_node_that_drains() {
    let mut world = World::new();
    let running = world.ask(LEVEL, LONG);
    let (cancelled, late, last) =
        (world.ask(LEVEL, LONG), world.ask(LEVEL, Micros(8_000)), world.ask(LEVEL, LONG));
    world.feed(Event::Cancel { key: QueryKey(cancelled) });
    world.pass(Micros(9_000));
    assert_eq!(world.refused, [late]);
    world.feed(Event::Drain);
    assert_eq!(world.handed_back, [(last, world.now)]);
    assert!(!world.worker.drained());
    world.pass(Micros::from_secs(1));
    assert_eq!(world.answered, [running]);
    assert!(world.worker.drained());
}

/// A router with nodes that have credit for one query each.
fn router(nodes: u32) -> Router {
    let mut router = Router::new(Limits::default(), 7);
    router.handle(Time(1), ToRouter::Table(alike(nodes, 10_000.0)));
    for node in 1..=nodes {
        let limit = Limit { queries: 1, bytes: Bytes(1 << 20) };
        let report = NodeReport { limit, ..NodeReport::default() };
        router.handle(Time(1), ToRouter::Report { node: NodeId(node), report });
    }
    router
}

fn ask(router: &mut Router, key: u64, priority: Priority) -> Vec<Routed> {
    let query = query(key, Time(2), [0].into_iter().collect(), LONG);
    router.handle(Time(2), ToRouter::Arrive(Query { priority, ..query }));
    std::iter::from_fn(|| router.poll_action()).collect()
}

#[test]
fn a_gateway_spreads_it_over_nodes_and_none_of_it_takes_a_querys_credit_or_time() {
    let mut router = router(2);
    let mut at = [0_u32; 2];
    for key in 0..100 {
        let [Routed::Send { node, .. }] = ask(&mut router, key, Priority::SPARE)[..] else { panic!("sent") };
        at[node.0 as usize - 1] += 1;
    }
    assert_eq!(at, [50, 50]);
    for key in 100..102 {
        let [Routed::Send { expected, .. }] = ask(&mut router, key, Priority::default())[..] else {
            panic!("sent")
        };
        assert!(expected < Micros(20_000), "no backlog: {expected:?}");
    }
    assert_eq!(ask(&mut router, 102, Priority::default()), [], "the third waits for credit");
    assert_eq!(router.waiting(), 1);
}

#[test]
fn what_no_node_takes_of_it_is_refused_and_does_not_wait_at_the_gateway() {
    let mut router = router(1);
    let sent = (0..1_000)
        .take_while(|key| matches!(ask(&mut router, *key, Priority::SPARE)[..], [Routed::Send { .. }]));
    assert_eq!(sent.count(), 256);
    let refused = ask(&mut router, 2_000, Priority::SPARE);
    assert!(
        matches!(refused[..], [Routed::Refuse { refusal: Refusal::QueueFull { .. }, .. }]),
        "{refused:?}"
    );
    assert_eq!(router.waiting(), 0);
    let report = NodeReport { limit: Limit { queries: 1, bytes: Bytes(1 << 20) }, ..NodeReport::default() };
    router
        .handle(Time(3), ToRouter::Finished { key: QueryKey(0), node: NodeId(1), report, end: End::Unknown });
    assert!(matches!(ask(&mut router, 3_000, Priority::SPARE)[..], [Routed::Send { .. }]));
}
