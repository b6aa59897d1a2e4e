//! Queries that go back to the gateway because their node has fallen behind, and where they go then.

use crate::common::{TASK, alike, query};
use crate::shedding::World;
use modelless_decision::route::{Action, End, Event, Limit, Limits, NodeReport, Ready, Router};
use modelless_decision::{Machine, Moments};
use modelless_types::{Bytes, Micros, NodeId, QueryKey, Refusal, Time, VariantSet};

const LATENCY: Micros = Micros::from_millis(50);
const LATE: Refusal = Refusal::TooLate { waited: Micros(7) };

#[test]
fn those_who_cannot_be_in_time_here_go_back_at_once_and_no_others() {
    let mut world = World::new();
    // One runs and one is bound behind it; then 10 ms each, with 45 ms from now.
    let keys: Vec<u64> = (0..6).map(|more| world.ask_here(5, Micros(45_000 + more), true)).collect();
    let began = world.now;
    assert_eq!(world.handed_back, [(keys[4], began), (keys[5], began)]);
    world.pass(Micros::from_secs(1));
    assert_eq!(world.answered, keys[..4]);
    assert_eq!((world.handed_back.len(), world.refused.len()), (2, 0));
}

#[test]
fn where_there_is_no_other_node_nothing_goes_back() {
    let mut world = World::new();
    let keys: Vec<u64> = (0..6).map(|more| world.ask(5, Micros(45_000 + more))).collect();
    world.pass(Micros::from_secs(1));
    assert_eq!(world.handed_back, []);
    assert_eq!((&world.answered[..], &world.refused[..]), (&keys[..4], &keys[4..]));
}

#[test]
fn who_waits_where_nobody_else_could_answer_goes_back_once_somebody_can() {
    let mut world = World::new();
    let keys: Vec<u64> = (0..6).map(|more| world.ask(5, Micros(45_000 + more))).collect();
    assert_eq!(world.handed_back, []);
    world.pass(Micros(1_000));
    for key in &keys {
        world.may_return(*key);
    }
    let began = world.now;
    assert_eq!(world.handed_back, [(keys[4], began), (keys[5], began)], "those who would be late");
    world.pass(Micros::from_secs(1));
    assert_eq!((&world.answered[..], world.refused.len()), (&keys[..4], 0));
}

#[test]
fn a_node_that_comes_later_is_told_to_those_that_kept_queries_for_lack_of_it() {
    let (mut router, told) = asked(2, 0);
    assert_eq!(sent(&told), Some((1, true)), "it is up, though without credit");
    router.handle(Time(20), Event::NodeDown { node: NodeId(2) });
    let admits: VariantSet = [0].into_iter().collect();
    router.handle(Time(30), Event::Arrive(query(2, Time(30), admits, LATENCY)));
    assert_eq!(sent(&actions(&mut router)), Some((1, false)), "the other is down");
    router.handle(Time(40), Event::Report { node: NodeId(2), report: report(4, 0.0) });
    let may = Action::MayReturn { key: QueryKey(2), node: NodeId(1) };
    assert_eq!(actions(&mut router), [may]);
    router.handle(Time(50), Event::Report { node: NodeId(2), report: report(4, 0.0) });
    assert_eq!(actions(&mut router), [], "once is enough");
}

#[test]
fn those_who_wait_behind_a_batch_that_is_held_up_go_back_while_there_is_time() {
    let mut world = World::new();
    world.slowness = 50;
    let asked = world.now;
    let keys: Vec<u64> = (0..4).map(|_| world.ask_here(5, Micros(100_000), true)).collect();
    assert_eq!(world.handed_back, []);
    world.pass(Micros(99_000));
    let mut back: Vec<u64> = world.handed_back.iter().map(|(key, _)| *key).collect();
    back.sort_unstable();
    assert_eq!(back, keys[2..], "two are bound and stay");
    let last = world.handed_back.iter().map(|(_, at)| *at).max().expect("two");
    assert!(last - asked < Micros(70_000), "after {:?}: too late for anybody else", last - asked);
}

#[test]
fn a_node_that_stood_still_itself_does_not_give_back_what_it_can_still_answer() {
    let mut world = World::new();
    let keys: Vec<u64> = (0..4).map(|_| world.ask_here(5, Micros(110_000), true)).collect();
    world.pass(Micros(3_000));
    // Stopped for 60 ms, batches and timers alike; then somebody asks, which is the first it hears.
    world.stands_still(Micros(60_000));
    let last = world.ask_here(5, Micros(100_000), true);
    assert_eq!(world.handed_back, [], "what runs is not held up by anything of its own");
    world.pass(Micros::from_secs(1));
    assert_eq!((&world.answered[..4], world.answered[4]), (&keys[..], last));
}

#[test]
fn who_gives_way_to_a_more_important_query_may_go_elsewhere() {
    let mut world = World::new();
    world.ask(5, Micros::from_secs(1));
    world.ask_here(5, Micros(42_000), true);
    let least = world.ask_here(9, Micros(43_000), true);
    world.ask(1, Micros(44_000));
    world.ask(5, Micros(45_000));
    world.pass(Micros::from_secs(1));
    let back: Vec<u64> = world.handed_back.iter().map(|(key, _)| *key).collect();
    assert!(back.contains(&least) && world.refused.is_empty(), "{back:?} {:?}", world.refused);
}

fn report(queries: u32, wait_us: f64) -> NodeReport {
    let limit = Limit { queries, bytes: Bytes::from_mib(1) };
    NodeReport { limit, wait: Moments { mean: wait_us, var: 0.0 }, ..NodeReport::default() }
}

/// So many nodes, the first the most idle, a query of 1 ms at the first.
fn asked(nodes: u32, credit: u32) -> (Router, Vec<Action>) {
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(alike(nodes, 1_000.0)));
    for id in 1..=nodes {
        let report = report(if id == 1 { 4 } else { credit }, 5_000.0 * f64::from(id - 1));
        router.handle(Time(2), Event::Report { node: NodeId(id), report });
    }
    let admits: VariantSet = [0].into_iter().collect();
    router.handle(Time(10), Event::Arrive(query(1, Time(10), admits, LATENCY)));
    let told = actions(&mut router);
    (router, told)
}

fn actions(router: &mut Router) -> Vec<Action> {
    std::iter::from_fn(|| router.poll_action()).collect()
}

fn back(router: &mut Router, now: Time, node: u32, why: Refusal) -> Vec<Action> {
    let report = report(4, 0.0);
    router.handle(now, Event::HandedBack { key: QueryKey(1), node: NodeId(node), report, why });
    actions(router)
}

/// Where it was sent, and whether it may come back.
fn sent(actions: &[Action]) -> Option<(u32, bool)> {
    actions.iter().find_map(|action| match action {
        Action::Send { node, returnable, .. } => Some((node.0, *returnable)),
        Action::Refuse { .. }
        | Action::MayReturn { .. }
        | Action::Cancel { .. }
        | Action::Wake { .. }
        | Action::Announce { .. }
        | Action::Withdraw { .. } => None,
    })
}

#[test]
fn a_query_that_comes_back_goes_to_another_node_from_which_it_may_not_come_back() {
    let (mut router, told) = asked(3, 4);
    assert_eq!(sent(&told), Some((1, true)));
    assert_eq!(
        sent(&back(&mut router, Time(1_000), 1, LATE)),
        Some((2, false)),
        "although the first says that it is idle"
    );
    // It was not to come back: it hears the node's own reason, as of now.
    let told = back(&mut router, Time(2_000), 2, Refusal::QueueFull { limit: 3 });
    assert_eq!(told, [Action::Refuse { key: QueryKey(1), refusal: Refusal::QueueFull { limit: 3 } }]);
}

#[test]
fn a_query_that_nobody_else_can_answer_in_time_hears_so_by_name() {
    let (mut router, _) = asked(2, 4);
    // Two more are said to wait 60 ms at the other, far more than is left.
    router.handle(Time(20), Event::Report { node: NodeId(2), report: report(4, 60_000.0) });
    let told = back(&mut router, Time(1_010), 1, LATE);
    let refusal = Refusal::TooLate { waited: Micros(1_000) };
    assert_eq!(told, [Action::Refuse { key: QueryKey(1), refusal }]);
}

#[test]
fn a_query_waits_for_the_credit_of_another_node_and_goes_there() {
    let (mut router, told) = asked(2, 0);
    assert_eq!(sent(&told), Some((1, true)));
    // The first says it is idle, but it was just given this one back.
    assert_eq!(back(&mut router, Time(1_000), 1, LATE), []);
    assert_eq!(router.waiting(), 1);
    router.handle(Time(1_500), Event::Report { node: NodeId(2), report: report(1, 0.0) });
    assert_eq!(sent(&actions(&mut router)), Some((2, false)));
}

/// Something else is answered by a node.
fn answers(router: &mut Router, now: Time, node: u32) -> Vec<Action> {
    let report = report(4, 0.0);
    router.handle(now, Event::Finished { key: QueryKey(77), node: NodeId(node), report, end: End::Unknown });
    actions(router)
}

#[test]
fn who_waits_for_another_node_goes_back_where_it_came_from_once_that_one_has_got_on() {
    let (mut router, _) = asked(2, 0);
    assert_eq!(back(&mut router, Time(1_000), 1, LATE), []);
    router.handle(Time(1_100), Event::Report { node: NodeId(1), report: report(4, 0.0) });
    assert_eq!(actions(&mut router), [], "it speaks, which says nothing: it has ended nothing");
    assert_eq!(sent(&answers(&mut router, Time(1_200), 1)), Some((1, false)), "it works again");
}

#[test]
fn where_the_other_node_has_gone_a_query_waits_for_the_one_that_gave_it_back() {
    for before in [true, false] {
        let (mut router, _) = asked(2, 0);
        if before {
            router.handle(Time(900), Event::NodeDown { node: NodeId(2) });
        }
        assert_eq!(back(&mut router, Time(1_000), 1, LATE), [], "nobody else: it stays in line");
        router.handle(Time(1_100), Event::NodeDown { node: NodeId(2) });
        router.handle(Time(1_200), Event::Report { node: NodeId(1), report: report(4, 0.0) });
        assert_eq!(actions(&mut router), []);
        assert_eq!(sent(&answers(&mut router, Time(1_300), 1)), Some((1, false)));
    }
}

/// The first has it in memory, the second would have to load it for so long. The second had it, too, when the query was sent.
fn given_back_where_the_other_is_cold(load: Micros, credit: u32) -> (Router, Vec<Action>) {
    let (mut router, told) = asked(2, credit);
    assert_eq!(sent(&told), Some((1, true)));
    let mut table = alike(2, 1_000.0);
    table.nodes[1].offers[0].ready = Ready::Cold { load };
    router.handle(Time(900), Event::Table(table));
    assert_eq!(actions(&mut router), []);
    let told = back(&mut router, Time(1_000), 1, LATE);
    (router, told)
}

#[test]
fn what_the_only_node_that_has_the_model_gives_back_goes_to_one_that_can_load_it_in_time() {
    let (_, told) = given_back_where_the_other_is_cold(Micros(40_000), 4);
    let wake = Action::Wake { node: NodeId(2), task: TASK, ordinal: 0 };
    assert_eq!((&told[0], sent(&told)), (&wake, Some((2, false))));
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn what_no_other_node_can_load_in_time_waits_for_the_one_that_gave_it_back() {
    let (mut router, told) = given_back_where_the_other_is_cold(Micros(60_000), 4);
    assert_eq!((told, router.waiting()), (vec![], 1), "to refuse it would be to refuse what can be answered");
    assert_eq!(sent(&answers(&mut router, Time(1_300), 1)), Some((1, false)), "it has got on");
    let (mut router, _) = given_back_where_the_other_is_cold(Micros(60_000), 4);
    let wake = router.poll_timeout().expect("until the first, idle, would be too late").at;
    assert_eq!(wake, Time(10) + LATENCY.saturating_sub(Micros(1_000)));
    router.handle_timeout(wake);
    let refused = |action: &Action| matches!(action, Action::Refuse { key: QueryKey(1), .. });
    let told = actions(&mut router);
    assert!(told.iter().any(refused), "by name: {told:?}");
    assert_eq!((router.open(), router.poll_timeout()), (0, None));
}

#[test]
fn one_that_waits_in_vain_for_room_at_a_node_that_would_load_may_still_go_back_where_it_came_from() {
    let (mut router, told) = given_back_where_the_other_is_cold(Micros(40_000), 0);
    assert!(matches!(told[..], [Action::Wake { node: NodeId(2), .. }]), "{told:?}");
    // Now it would be too late there.
    let wake = router.poll_timeout().expect("the last moment for the load").at;
    assert_eq!(wake, Time(10) + LATENCY.saturating_sub(Micros(40_000)));
    router.handle_timeout(wake);
    assert_eq!((actions(&mut router), router.waiting()), (vec![], 1));
    assert_eq!(sent(&answers(&mut router, wake + Micros(100), 1)), Some((1, false)));
}

#[test]
fn one_that_waits_for_a_node_which_does_not_get_on_is_refused_while_it_still_helps() {
    let (mut router, _) = asked(2, 0);
    router.handle(Time(900), Event::NodeDown { node: NodeId(2) });
    assert_eq!(back(&mut router, Time(1_000), 1, LATE), []);
    let wake = router.poll_timeout().expect("it waits until it would be too late").at;
    assert!(wake < Time(10) + LATENCY, "{wake:?}");
    router.handle_timeout(wake);
    let refusal = Refusal::TooLate { waited: wake - Time(10) };
    assert_eq!(actions(&mut router), [Action::Refuse { key: QueryKey(1), refusal }]);
    assert_eq!((router.open(), router.poll_timeout()), (0, None));
}

#[test]
fn one_that_came_back_holds_up_nobody_of_its_class() {
    let (mut router, _) = asked(2, 0);
    assert_eq!(back(&mut router, Time(1_000), 1, LATE), []);
    // The first has no credit; whoever comes now waits behind the one that came back.
    router.handle(Time(1_010), Event::Report { node: NodeId(1), report: report(0, 0.0) });
    let admits: VariantSet = [0].into_iter().collect();
    router.handle(Time(1_020), Event::Arrive(query(2, Time(1_020), admits, LATENCY)));
    assert_eq!(actions(&mut router), []);
    router.handle(Time(1_030), Event::Report { node: NodeId(1), report: report(4, 0.0) });
    let told = actions(&mut router);
    let goes = |action: &Action| matches!(action, Action::Send { key: QueryKey(2), node: NodeId(1), .. });
    assert!(told.len() == 1 && goes(&told[0]), "{told:?}");
}

#[test]
fn with_one_node_no_query_may_come_back() {
    let (_, told) = asked(1, 4);
    assert_eq!(sent(&told), Some((1, false)));
    let (mut router, _) = asked(2, 4);
    router.handle(Time(20), Event::NodeDown { node: NodeId(2) });
    let admits: VariantSet = [0].into_iter().collect();
    router.handle(Time(30), Event::Arrive(query(2, Time(30), admits, LATENCY)));
    assert_eq!(sent(&actions(&mut router)), Some((1, false)), "the other is down");
}

#[test]
fn what_a_draining_node_gives_back_is_as_if_it_had_just_come() {
    let (mut router, _) = asked(3, 4);
    assert_eq!(sent(&back(&mut router, Time(1_000), 1, Refusal::Draining)).map(|(_, may)| may), Some(true));
}
