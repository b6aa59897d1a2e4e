//! Queries that a gateway announces to several nodes, and who has them.

use crate::common::{TASK, alike, query};
use modelless_decision::explain::{Finding, recall};
use modelless_decision::route::{
    Action, Did, End, Event, Limit, Limits, NodeReport, Router, Said, Table, Verdict,
};
use modelless_decision::{Machine, Moments, Query};
use modelless_types::{AppId, Bytes, Goals, Micros, NodeId, Priority, QueryKey, Refusal, Time, VariantSet};

const BOUND: Micros = Micros::from_millis(50);
const NONE: [u64; 0] = [];
const LATE: Refusal = Refusal::TooLate { waited: Micros(7) };

fn report(wait: f64) -> NodeReport {
    let limit = Limit { queries: 4, bytes: Bytes::from_mib(1) };
    NodeReport { limit, wait: Moments { mean: wait, var: 0.0 }, ..NodeReport::default() }
}

struct World {
    router: Router,
    now: Time,
}

impl World {
    fn of(table: Table, announce: u16, waits: &[f64]) -> Self {
        let router = Router::new(Limits { announce, ..Limits::default() }, 7).remembering(50);
        let mut world = Self { router, now: Time(0) };
        world.feed(Event::Table(table));
        for (node, wait) in (1..).zip(waits) {
            world.feed(Event::Report { node: NodeId(node), report: report(*wait) });
        }
        world
    }

    /// Nodes that are alike, each with so much to do.
    fn busy(nodes: u32, announce: u16) -> Self {
        let waits: Vec<f64> = (0..nodes).map(|_| 3_000.0).collect();
        Self::of(alike(nodes, 1_000.0), announce, &waits)
    }

    fn feed(&mut self, event: Event) -> Vec<Action> {
        self.now = self.now + Micros(1);
        self.router.handle(self.now, event);
        std::iter::from_fn(|| self.router.poll_action()).collect()
    }

    fn asked(&self, key: u64) -> Query {
        let admits: VariantSet = [0].into_iter().collect();
        query(key, self.now, admits, BOUND)
    }

    fn asks(&mut self, key: u64) -> Vec<Action> {
        let query = self.asked(key);
        self.feed(Event::Arrive(query))
    }

    fn claims(&mut self, node: u32, keys: &[u64]) -> Vec<Action> {
        let queries = keys.iter().map(|key| QueryKey(*key)).collect();
        self.feed(Event::Claim { queries, node: NodeId(node), lanes: 1, report: report(3_000.0) })
    }

    fn declines(&mut self, node: u32, key: u64, why: Refusal) -> Vec<Action> {
        self.feed(Event::Declined { key: QueryKey(key), node: NodeId(node), report: report(3_000.0), why })
    }

    fn pass(&mut self, until: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(wake) = self.router.poll_timeout().filter(|wake| wake.at <= until) {
            self.now = self.now.max(wake.at);
            self.router.handle_timeout(self.now);
            actions.extend(std::iter::from_fn(|| self.router.poll_action()));
        }
        self.now = until;
        actions
    }
}

fn announced(actions: &[Action]) -> Vec<u32> {
    let to = |action: &Action| {
        let Action::Announce { node, .. } = action else { return None };
        Some(node.0)
    };
    let mut to: Vec<u32> = actions.iter().filter_map(to).collect();
    to.sort_unstable();
    to
}

fn sent(actions: &[Action]) -> Vec<(u64, u32)> {
    let to = |action: &Action| {
        let Action::Send { key, node, .. } = action else { return None };
        Some((key.0, node.0))
    };
    actions.iter().filter_map(to).collect()
}

fn withdrawn(actions: &[Action]) -> Vec<(u64, u32)> {
    let from = |action: &Action| {
        let Action::Withdraw { key, node } = action else { return None };
        Some((key.0, node.0))
    };
    actions.iter().filter_map(from).collect()
}

fn refused(actions: &[Action]) -> Vec<u64> {
    let refused = |action: &Action| {
        let Action::Refuse { key, .. } = action else { return None };
        Some(key.0)
    };
    actions.iter().filter_map(refused).collect()
}

/// Three of which the last so many are 2 ms away, twice as far as their runs take.
fn with_far(far: usize) -> World {
    let mut table = alike(3, 1_000.0);
    for node in table.nodes.iter_mut().rev().take(far) {
        node.rtt = Moments { mean: 2_000.0, var: 0.0 };
    }
    World::of(table, 16, &[3_000.0; 3])
}

#[test]
fn far_nodes_hear_of_it_where_most_would_be_answered_by_near_ones_and_else_nobody_does() {
    for (far, hear) in [(0, 3), (1, 3), (2, 0), (3, 0)] {
        assert_eq!(announced(&with_far(far).asks(1)).len(), hear, "{far} of three are far");
    }
}

#[test]
fn the_first_claim_has_it_and_all_others_are_told() {
    let mut world = World::busy(3, 16);
    assert_eq!(announced(&world.asks(1)), [1, 2, 3]);
    assert_eq!((world.router.waiting(), world.router.open()), (1, 1), "its input is kept here");
    let told = world.claims(2, &[1]);
    assert_eq!((sent(&told), withdrawn(&told)), (vec![(1, 2)], vec![(1, 1), (1, 3)]));
    assert_eq!((world.router.waiting(), world.router.open()), (0, 1));
    // One that claimed before it heard.
    let told = world.claims(3, &[1]);
    assert_eq!((sent(&told), withdrawn(&told)), (vec![], vec![(1, 3)]));
    assert_eq!(world.claims(2, &[1]), [], "it is on its way there");
    let end = End::Unknown;
    world.feed(Event::Finished { key: QueryKey(1), node: NodeId(2), report: report(0.0), end });
    assert_eq!(world.router.open(), 0);
}

#[test]
fn who_was_claimed_takes_no_credit() {
    let mut world = World::busy(2, 16);
    for key in 1..=10 {
        assert_eq!(announced(&world.asks(key)), [1, 2]);
    }
    let keys: Vec<u64> = (1..=10).collect();
    assert_eq!(sent(&world.claims(1, &keys)).len(), 10, "it has credit for four");
    let node = world.router.snapshot().node_ix(NodeId(1)).expect("a node");
    assert_eq!(world.router.load().outstanding(node), 0);
    world.feed(Event::Finished { key: QueryKey(1), node: NodeId(1), report: report(0.0), end: End::Unknown });
    assert_eq!(world.router.load().outstanding(node), 0);
}

#[test]
fn nothing_is_announced_that_one_node_had_better_have() {
    let goes_to_one = |world: &mut World, query: Query| {
        let told = world.feed(Event::Arrive(query));
        assert_eq!((announced(&told), sent(&told).len()), (vec![], 1), "{told:?}");
    };
    let mut off = World::busy(3, 0);
    let asked = off.asked(1);
    goes_to_one(&mut off, asked);
    let mut one = World::busy(1, 16);
    let asked = one.asked(1);
    goes_to_one(&mut one, asked);
    let mut idle = World::of(alike(3, 1_000.0), 16, &[3_000.0, 0.0, 3_000.0]);
    let told = idle.asks(1);
    assert_eq!((announced(&told), sent(&told)), (vec![], vec![(1, 2)]), "one begins at once");
    assert_eq!(announced(&idle.asks(2)), [1, 2, 3], "and has something to do now");
    let mut spare = World::busy(3, 16);
    let job = Query { priority: Priority::SPARE, ..spare.asked(1) };
    goes_to_one(&mut spare, job);
}

#[test]
fn no_more_nodes_hear_of_it_than_may_and_those_that_are_free_soonest() {
    let mut world = World::of(alike(4, 1_000.0), 2, &[9_000.0, 2_000.0, 8_000.0, 3_000.0]);
    assert_eq!(announced(&world.asks(1)), [2, 4]);
    let told = world.claims(1, &[1]);
    assert_eq!((sent(&told), withdrawn(&told)), (vec![], vec![(1, 1)]), "it was not told");
}

#[test]
fn each_hears_which_part_falls_to_it_and_how_quick_the_others_are() {
    let mut table = alike(2, 1_000.0);
    let slow = alike(1, 3_000.0).nodes[0].offers.clone();
    table.nodes[1].offers = slow;
    let mut world = World::of(table, 16, &[3_000.0, 3_000.0]);
    let told = world.asks(1);
    let part = |of: u32, told: &[Action]| {
        let mut parts = told.iter().filter_map(|action| {
            let Action::Announce { node, part_ppm, quickest, .. } = action else { return None };
            (node.0 == of).then_some((*part_ppm, *quickest))
        });
        parts.next().expect("it hears")
    };
    assert_eq!((part(1, &told), part(2, &told)), ((750_000, Micros(3_000)), (250_000, Micros(1_000))));
    // The slow one has three lanes, as it says when it claims.
    let queries = vec![QueryKey(1)];
    world.feed(Event::Claim { queries, node: NodeId(2), lanes: 3, report: report(3_000.0) });
    let told = world.asks(2);
    assert_eq!((part(1, &told).0, part(2, &told).0), (500_000, 500_000));
}

#[test]
fn it_is_refused_once_when_all_have_given_it_up_and_at_its_last_moment() {
    let mut world = World::busy(2, 16);
    world.asks(1);
    assert_eq!(world.declines(1, 1, LATE), []);
    assert_eq!(world.declines(1, 1, LATE), [], "it has said so");
    assert_eq!(refused(&world.declines(2, 1, LATE)), [1]);
    assert_eq!(world.claims(2, &[1]), [Action::Withdraw { key: QueryKey(1), node: NodeId(2) }]);
    world.asks(2);
    let due = world.now + BOUND;
    assert_eq!(world.pass(Time(due.0 - 1_010)), [], "a run takes a millisecond");
    for node in [1, 2] {
        world.feed(Event::Report { node: NodeId(node), report: report(3_000.0) });
    }
    let told = world.pass(due);
    assert_eq!((refused(&told), withdrawn(&told)), (vec![2], vec![(2, 1), (2, 2)]));
    assert_eq!((world.router.open(), world.router.waiting()), (0, 0));
}

#[test]
fn one_that_all_gave_up_for_another_reason_than_its_time_goes_the_way_of_others() {
    let mut world = World::busy(2, 16);
    world.asks(1);
    world.declines(1, 1, Refusal::Draining);
    let told = world.declines(2, 1, Refusal::QueueFull { limit: 1 });
    assert_eq!((refused(&told), announced(&told), sent(&told).len()), (vec![], vec![], 1), "{told:?}");
}

#[test]
fn who_gave_it_up_last_does_not_decide_alone_why() {
    let mut world = World::busy(2, 16);
    world.asks(1);
    world.declines(1, 1, Refusal::QueueFull { limit: 1 });
    let told = world.declines(2, 1, LATE);
    assert_eq!((refused(&told), sent(&told)), (vec![], vec![(1, 1)]), "the other one has time: {told:?}");
    // One that is lost, or has left the table, has not said that it is too late either.
    let mut world = World::busy(2, 16);
    world.asks(1);
    world.declines(1, 1, LATE);
    let told = world.feed(Event::NodeDown { node: NodeId(2) });
    assert_eq!(refused(&told), NONE, "{told:?}");
    let mut world = World::busy(3, 16);
    world.asks(1);
    world.declines(1, 1, LATE);
    let mut table = alike(3, 1_000.0);
    table.nodes.remove(2);
    world.feed(Event::Table(table));
    assert_eq!(refused(&world.declines(2, 1, LATE)), NONE);
}

#[test]
fn one_that_all_who_heard_of_it_gave_up_as_too_late_goes_to_another_node_that_is_not() {
    let mut world = World::of(alike(3, 1_000.0), 2, &[3_000.0, 3_000.0, 9_000.0]);
    assert_eq!(announced(&world.asks(1)), [1, 2]);
    world.declines(1, 1, LATE);
    let told = world.declines(2, 1, LATE);
    assert_eq!((refused(&told), sent(&told)), (vec![], vec![(1, 3)]), "{told:?}");
    // Nor to it where it would be too late there as well.
    let mut world = World::of(alike(3, 1_000.0), 2, &[3_000.0, 3_000.0, 49_500.0]);
    assert_eq!(announced(&world.asks(1)), [1, 2]);
    world.declines(1, 1, LATE);
    assert_eq!(refused(&world.declines(2, 1, LATE)), [1]);
}

/// A query is announced to two, and neither claims it though one becomes free: at its last moment it is sent there.
fn at_its_last_moment() -> (World, Vec<Action>) {
    let mut world = World::busy(2, 16);
    world.asks(1);
    let due = world.now + BOUND;
    world.pass(Time(due.0 - 1_500));
    world.feed(Event::Report { node: NodeId(1), report: report(0.0) });
    world.feed(Event::Report { node: NodeId(2), report: report(9_000.0) });
    let told = world.pass(Time(due.0 - 900));
    (world, told)
}

#[test]
fn at_its_last_moment_it_goes_to_a_node_that_is_free_by_what_is_known() {
    let (world, told) = at_its_last_moment();
    assert_eq!((refused(&told), withdrawn(&told), sent(&told)), (vec![], vec![(1, 1), (1, 2)], vec![(1, 1)]));
    let is_withdrawn = |action: &Action| matches!(action, Action::Withdraw { .. });
    let last = told.iter().rposition(is_withdrawn);
    let first = told.iter().position(|action| matches!(action, Action::Send { .. }));
    assert!(last < first, "nobody gets it before he hears that it is not to be had: {told:?}");
    assert_eq!(world.router.waiting(), 0);
}

#[test]
fn what_a_node_gave_up_before_it_was_sent_there_stays_there() {
    let (mut world, _) = at_its_last_moment();
    for why in [LATE, Refusal::Draining] {
        assert_eq!(world.declines(1, 1, why), [], "that was said of its being announced");
    }
    assert_eq!(world.router.open(), 1, "it runs there");
}

#[test]
fn who_goes_away_is_withdrawn_and_nobody_has_it_after_that() {
    let mut world = World::busy(2, 16);
    world.asks(1);
    let told = world.feed(Event::Cancel { key: QueryKey(1) });
    assert_eq!(withdrawn(&told), [(1, 1), (1, 2)]);
    let told = world.claims(1, &[1]);
    assert_eq!((sent(&told), withdrawn(&told)), (vec![], vec![(1, 1)]));
    assert_eq!((world.router.open(), world.router.waiting()), (0, 0));
}

#[test]
fn a_node_that_is_lost_hears_no_more_and_what_it_had_claimed_is_tried_once_more() {
    let mut world = World::busy(3, 16);
    world.asks(1);
    world.asks(2);
    world.claims(1, &[1]);
    let told = world.feed(Event::NodeDown { node: NodeId(1) });
    assert_eq!(announced(&told), [2, 3], "the one that it had is announced to the others");
    let told = world.claims(1, &[2]);
    assert_eq!((sent(&told), withdrawn(&told)), (vec![], vec![(2, 1)]), "what it says late changes nothing");
    assert_eq!(sent(&world.claims(2, &[1, 2])), [(1, 2), (2, 2)]);
    let told = world.feed(Event::NodeDown { node: NodeId(2) });
    assert_eq!(refused(&told), [1], "it has lost a second node");
    assert_eq!(announced(&told), [1, 3], "the first has spoken again");
    let told = world.feed(Event::NodeDown { node: NodeId(1) });
    assert_eq!((announced(&told), sent(&told)), (vec![], vec![]), "the third still hears of it");
    assert_eq!(sent(&world.claims(3, &[2])), [(2, 3)]);
    assert_eq!(sent(&world.asks(3)), [(3, 3)], "with one node left there is nothing to announce");
}

#[test]
fn nodes_that_leave_the_table_hear_no_more() {
    let mut world = World::busy(3, 16);
    world.asks(1);
    let mut table = alike(3, 1_000.0);
    table.nodes.remove(0);
    world.feed(Event::Table(table));
    assert_eq!(sent(&world.claims(1, &[1])), []);
    let told = world.claims(3, &[1]);
    assert_eq!((sent(&told), withdrawn(&told)), (vec![(1, 3)], vec![(1, 2)]));
}

#[test]
fn what_the_gateway_has_no_room_for_gives_way_by_priority_as_among_those_who_wait() {
    let mut world = World::busy(2, 16);
    world.router = Router::new(Limits { announce: 16, waiting: 2, ..Limits::default() }, 1);
    world.feed(Event::Table(alike(2, 1_000.0)));
    for node in [1, 2] {
        world.feed(Event::Report { node: NodeId(node), report: report(3_000.0) });
    }
    world.asks(1);
    world.asks(2);
    assert_eq!(refused(&world.asks(3)), [3], "nobody is less important");
    let urgent = Query { priority: Priority::new(1).expect("a level"), ..world.asked(4) };
    let told = world.feed(Event::Arrive(urgent));
    assert_eq!((refused(&told), withdrawn(&told)), (vec![2], vec![(2, 1), (2, 2)]));
    assert_eq!(announced(&told), [1, 2]);
}

#[test]
fn what_is_announced_waits_here_like_all_others_until_it_is_claimed() {
    let mut world = World::busy(2, 16);
    (1..=3).for_each(|key| assert_eq!(announced(&world.asks(key)), [1, 2]));
    let class = world.asked(1).class;
    assert_eq!(world.router.waiting_by_class(), [(class, 3)], "once each, however many nodes hear of it");
    world.claims(2, &[1]);
    assert_eq!(world.router.waiting_by_class(), [(class, 2)]);
    let mut table = alike(2, 1_000.0);
    table.nodes.remove(0);
    world.feed(Event::Table(table));
    assert_eq!(world.router.waiting_by_class(), [(class, 2)]);
    world.feed(Event::Cancel { key: QueryKey(2) });
    world.feed(Event::Cancel { key: QueryKey(3) });
    assert_eq!(world.router.waiting_by_class(), []);
}

#[test]
fn whoever_has_most_announced_for_its_weight_gives_way_to_another_application() {
    let limits = Limits { announce: 16, waiting: 3, ..Limits::default() };
    let full = |shares_first: bool| {
        let mut world = World::busy(2, 16);
        world.router = Router::new(limits, 1);
        let said = |app| Said { task: Some(TASK), app: AppId(app), weight: Some(1), reserve: None };
        let shares = Event::Shares(vec![said(1), said(2)]);
        world.feed(Event::Table(alike(2, 1_000.0)));
        for node in [1, 2] {
            world.feed(Event::Report { node: NodeId(node), report: report(3_000.0) });
        }
        if shares_first {
            world.feed(shares.clone());
        }
        for key in 1..=3 {
            let query = Query { app: AppId(1), ..world.asked(key) };
            assert_eq!(announced(&world.feed(Event::Arrive(query))), [1, 2]);
        }
        if !shares_first {
            world.feed(shares);
        }
        world
    };
    for shares_first in [true, false] {
        let mut world = full(shares_first);
        let query = Query { app: AppId(2), ..world.asked(4) };
        let told = world.feed(Event::Arrive(query));
        assert_eq!((refused(&told), withdrawn(&told)), (vec![3], vec![(3, 1), (3, 2)]), "{told:?}");
        assert_eq!(announced(&told), [1, 2]);
        // Whoever has left counts no more.
        let mut world = full(shares_first);
        world.claims(1, &[1, 2, 3]);
        for (key, app) in [(4, 2), (5, 2), (6, 2)] {
            let query = Query { app: AppId(app), ..world.asked(key) };
            world.feed(Event::Arrive(query));
        }
        let query = Query { app: AppId(1), ..world.asked(7) };
        assert_eq!(refused(&world.feed(Event::Arrive(query))), [6]);
    }
}

#[test]
fn where_applications_share_what_is_too_little_nothing_is_announced() {
    let mut world = World::busy(2, 16);
    let said = |app| Said { task: Some(TASK), app: AppId(app), weight: Some(1), reserve: None };
    world.feed(Event::Shares(vec![said(1), said(2)]));
    assert_eq!(announced(&world.asks(1)), [1, 2], "as long as there is enough for all");
    world.declines(1, 1, LATE);
    assert_eq!(refused(&world.declines(2, 1, LATE)), [1]);
    let told = world.asks(2);
    assert!(announced(&told).is_empty(), "whose turn it is, is decided here: {told:?}");
}

#[test]
fn it_is_told_afterwards_that_it_was_announced_and_who_claimed_it() {
    let mut world = World::busy(2, 16);
    world.asks(1);
    world.claims(2, &[1]);
    let (seen, _) = world.router.seen(QueryKey(1));
    let [told, had] = &seen[..] else { panic!("{seen:?}") };
    assert!(matches!(told.did, Did::Announced { nodes: 2, .. }), "{told:?}");
    assert!(matches!(had.did, Did::Claimed { node: NodeId(2), .. }), "{had:?}");
    let goals = Goals { latency: Some(BOUND), ..Goals::default() };
    let (_, explained) = recall(told, TASK, &goals);
    assert!(explained.candidates.iter().all(|one| one.finding == Finding::Announced), "{explained:?}");
    let (snapshot, explained) = recall(had, TASK, &goals);
    let Some(Verdict::Send(choice)) = explained.verdict else { panic!("{explained:?}") };
    assert_eq!(snapshot.node(choice.node).map(|node| node.id), Some(NodeId(2)));
    let chosen: Vec<_> = explained.candidates.iter().filter(|one| one.finding == Finding::Chosen).collect();
    assert_eq!(chosen.iter().map(|one| one.node).collect::<Vec<_>>(), [Some(NodeId(2))]);
}
