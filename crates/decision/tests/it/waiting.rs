//! Who of those that wait at the gateway is looked at when something changes, and how often.

use crate::common::{TASK, alike, query};
use modelless_decision::query::Class;
use modelless_decision::route::{
    Action, End, Event, Limit, Limits, NodeReport, Ready, Router, Table, VariantInfo,
};
use modelless_decision::{Machine, Moments, Query};
use modelless_types::{Bytes, Micros, NodeId, QueryKey, Refusal, Time, VariantId, VariantSet};

const LATENCY: Micros = Micros::from_millis(50);

fn report(queries: u32, wait: Moments) -> NodeReport {
    let limit = Limit { queries, bytes: Bytes::from_mib(1) };
    NodeReport { limit, wait, ..NodeReport::default() }
}

fn speaks(router: &mut Router, now: Time, node: u32, credit: u32, wait: Moments) -> Vec<Action> {
    router.handle(now, Event::Report { node: NodeId(node), report: report(credit, wait) });
    actions(router)
}

fn actions(router: &mut Router) -> Vec<Action> {
    std::iter::from_fn(|| router.poll_action()).collect()
}

fn sent(actions: &[Action]) -> Vec<(u64, u32)> {
    let sent = |action: &Action| match action {
        Action::Send { key, node, .. } => Some((key.0, node.0)),
        Action::Refuse { .. }
        | Action::MayReturn { .. }
        | Action::Cancel { .. }
        | Action::Wake { .. }
        | Action::Announce { .. }
        | Action::Withdraw { .. } => None,
    };
    actions.iter().filter_map(sent).collect()
}

fn asks(router: &mut Router, now: Time, query: Query) -> Vec<Action> {
    router.handle(now, Event::Arrive(query));
    actions(router)
}

fn admits(ordinals: impl IntoIterator<Item = u8>) -> VariantSet {
    ordinals.into_iter().collect()
}

#[test]
fn those_who_came_back_cost_nothing_while_nothing_is_free_for_them() {
    const BACK: u64 = 500;
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(alike(3, 1.0)));
    for (node, credit) in [(1, 600), (2, 0), (3, 0)] {
        speaks(&mut router, Time(2), node, credit, Moments::ZERO);
    }
    for key in 1..=BACK {
        asks(&mut router, Time(10), query(key, Time(10), admits([0]), LATENCY));
    }
    for key in 1..=BACK {
        let why = Refusal::TooLate { waited: Micros(7) };
        let report = report(600, Moments::ZERO);
        let back = Event::HandedBack { key: QueryKey(key), node: NodeId(1), report, why };
        router.handle(Time(1_000), back);
    }
    assert_eq!((actions(&mut router), router.waiting()), (vec![], 500));
    let before = router.looks();
    assert!(before <= BACK, "{before} looks while they came");
    for at in 0..100 {
        for (node, credit) in [(1, 600), (2, 0), (3, 0)] {
            assert_eq!(speaks(&mut router, Time(2_000 + at), node, credit, Moments::ZERO), []);
        }
    }
    assert_eq!(router.looks(), before, "the first has not got on, the others have nothing free");
    let told = speaks(&mut router, Time(3_000), 2, 3, Moments::ZERO);
    assert_eq!(sent(&told), [(1, 2), (2, 2), (3, 2)]);
    assert_eq!(router.looks(), before + 3, "one for each that goes");
    // The first has got on: it gets again what it gave back, and all of it.
    let report = report(600, Moments::ZERO);
    router.handle(
        Time(4_000),
        Event::Finished { key: QueryKey(0), node: NodeId(1), report, end: End::Unknown },
    );
    assert_eq!(sent(&actions(&mut router)).len(), 497);
    assert_eq!(router.looks(), before + 500);
}

/// One node, which has six variants in memory, and so may have many classes.
fn many_variants() -> Table {
    let mut table = alike(1, 1_000.0);
    let (one, offer) = (table.tasks[0].variants[0], table.nodes[0].offers[0].clone());
    for ordinal in 1..6 {
        let id = VariantId(1 + u32::from(ordinal));
        table.tasks[0].variants.push(VariantInfo { id, ordinal, ..one });
        let mut offer = offer.clone();
        offer.ordinal = ordinal;
        table.nodes[0].offers.push(offer);
    }
    table
}

#[test]
fn an_event_looks_at_so_many_in_vain_and_the_next_one_goes_on_behind_them() {
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(many_variants()));
    // It has room; but how long one waits there is so uncertain that nobody would be in time.
    let uncertain = Moments { mean: 1_000.0, var: 1e10 };
    speaks(&mut router, Time(2), 1, 4, uncertain);
    let classes = 60;
    for class in 1..=classes {
        let bits = (0..6_u8).filter(|bit| class & (1 << bit) != 0);
        let latency = if class == classes { Micros::from_secs(20) } else { LATENCY + Micros(class) };
        let asked = Query {
            class: Class { task: TASK, admits: admits(bits) },
            ..query(class, Time(10), admits([0]), latency)
        };
        if class == classes {
            router.handle(Time(10), Event::Report { node: NodeId(1), report: report(0, uncertain) });
        }
        assert_eq!(asks(&mut router, Time(10), asked), []);
    }
    let mut events = 0;
    loop {
        events += 1;
        let before = router.looks();
        let told = speaks(&mut router, Time(10 + events), 1, 4, uncertain);
        assert!(router.looks() - before <= 17, "{} looks at once", router.looks() - before);
        if !told.is_empty() {
            assert_eq!(sent(&told), [(classes, 1)], "the only one that can wait so long");
            break;
        }
        assert!(events < 5, "those behind are never looked at");
    }
    assert_eq!(events, 4, "60 classes, 16 at a time");
}

fn cold(mut table: Table, node: usize, load: Micros) -> Table {
    table.nodes[node].offers[0].ready = Ready::Cold { load };
    table
}

#[test]
fn who_waits_for_a_node_that_drains_or_is_lost_has_another_one_load() {
    for drains in [true, false] {
        let mut router = Router::new(Limits::default(), 1);
        let table = cold(alike(2, 1_000.0), 1, Micros(20_000));
        router.handle(Time(1), Event::Table(table.clone()));
        speaks(&mut router, Time(2), 1, 0, Moments::ZERO);
        speaks(&mut router, Time(2), 2, 4, Moments::ZERO);
        assert_eq!(asks(&mut router, Time(10), query(1, Time(10), admits([0]), LATENCY)), []);
        if drains {
            let mut table = table;
            table.nodes[0].offers.clear();
            router.handle(Time(20), Event::Table(table));
        } else {
            router.handle(Time(20), Event::NodeDown { node: NodeId(1) });
        }
        let told = actions(&mut router);
        assert_eq!(told[0], Action::Wake { node: NodeId(2), task: TASK, ordinal: 0 });
        assert_eq!(sent(&told), [(1, 2)]);
    }
}

#[test]
fn a_node_that_is_lost_for_a_moment_loses_nobody_who_waits_for_it() {
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(alike(1, 1_000.0)));
    speaks(&mut router, Time(2), 1, 0, Moments::ZERO);
    assert_eq!(asks(&mut router, Time(10), query(1, Time(10), admits([0]), LATENCY)), []);
    router.handle(Time(20), Event::NodeDown { node: NodeId(1) });
    assert_eq!(actions(&mut router), []);
    assert_eq!(sent(&speaks(&mut router, Time(30), 1, 1, Moments::ZERO)), [(1, 1)]);
}

#[test]
fn who_comes_to_be_late_for_what_is_in_memory_has_nothing_loaded() {
    let mut table = alike(1, 1_000.0);
    let (one, mut cold) = (table.tasks[0].variants[0], table.nodes[0].offers[0].clone());
    table.tasks[0].variants.push(VariantInfo { id: VariantId(2), ordinal: 1, ..one });
    (cold.ordinal, cold.ready) = (1, Ready::Cold { load: Micros::from_secs(1) });
    table.nodes[0].offers.push(cold);
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(table));
    speaks(&mut router, Time(2), 1, 1, Moments::ZERO);
    // Half of what it takes is left of its time.
    let (came, now) = (Time(100_000), Time(149_500));
    let late = Refusal::TooLate { waited: now - came };
    let told = asks(&mut router, now, query(1, came, admits([0, 1]), LATENCY));
    assert_eq!(told, [Action::Refuse { key: QueryKey(1), refusal: late }]);
    // Where nothing in memory may answer, the load helps those who come after it.
    let told = asks(&mut router, now, query(2, came, admits([1]), LATENCY));
    assert!(told.iter().any(|action| matches!(action, Action::Wake { ordinal: 1, .. })), "{told:?}");
}

#[test]
fn a_node_hears_of_its_part_of_those_who_wait() {
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(alike(2, 1_000.0)));
    for node in [1, 2] {
        speaks(&mut router, Time(2), node, 0, Moments::ZERO);
    }
    for key in 1..=4 {
        assert_eq!(asks(&mut router, Time(10), query(key, Time(10), admits([0]), LATENCY)), []);
    }
    let told = speaks(&mut router, Time(20), 2, 1, Moments::ZERO);
    let part = |action: &Action| {
        let Action::Send { waiting, .. } = action else { return None };
        Some(*waiting)
    };
    let parts: Vec<u32> = told.iter().filter_map(part).collect();
    assert_eq!(parts, [2], "of three, between two nodes");
}
