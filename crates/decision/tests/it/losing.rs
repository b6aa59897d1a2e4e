//! Nodes that are lost, or keep what they were given and say nothing.

use crate::common::{alike, query};
use modelless_decision::route::{Action, Event, Limit, Limits, Made, NodeReport, Router};
use modelless_decision::{Machine, Moments};
use modelless_types::{Bytes, Micros, NodeId, QueryKey, Refusal, Time, VariantSet};

const LATENCY: Micros = Micros::from_millis(100);

fn actions(router: &mut Router) -> Vec<Action> {
    std::iter::from_fn(|| router.poll_action()).collect()
}

fn report(queries: u32, wait_us: f64) -> NodeReport {
    let limit = Limit { queries, bytes: Bytes::from_mib(1) };
    NodeReport { limit, wait: Moments { mean: wait_us, var: 0.0 }, ..NodeReport::default() }
}

/// Three nodes with the same variant, all of them up, with credit; the first one is the most idle, the last one the least.
fn three() -> Router {
    let mut router = Router::new(Limits::default(), 1);
    router.handle(Time(1), Event::Table(alike(3, 1_000.0)));
    for id in 1..=3_u32 {
        let report = report(4, 20_000.0 * f64::from(id - 1));
        router.handle(Time(2), Event::Report { node: NodeId(id), report });
    }
    router
}

fn arrive(router: &mut Router, key: u64, now: Time) -> Vec<Action> {
    arrive_with(router, key, now, LATENCY)
}

fn arrive_with(router: &mut Router, key: u64, now: Time, latency: Micros) -> Vec<Action> {
    let admits: VariantSet = [0].into_iter().collect();
    router.handle(now, Event::Arrive(query(key, now, admits, latency)));
    actions(router)
}

fn sent_to(actions: &[Action]) -> Vec<(u64, u32)> {
    let sent = actions.iter().filter_map(|action| match action {
        Action::Send { key, node, .. } => Some((key.0, node.0)),
        Action::Refuse { .. }
        | Action::MayReturn { .. }
        | Action::Cancel { .. }
        | Action::Wake { .. }
        | Action::Announce { .. }
        | Action::Withdraw { .. } => None,
    });
    sent.collect()
}

#[test]
fn a_query_that_loses_its_node_is_tried_once_elsewhere_and_then_refused_by_name() {
    let mut router = three();
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    router.handle(Time(20), Event::NodeDown { node: NodeId(1) });
    assert_eq!(sent_to(&actions(&mut router)), [(1, 2)]);
    router.handle(Time(30), Event::NodeDown { node: NodeId(2) });
    assert_eq!(actions(&mut router), [Action::Refuse { key: QueryKey(1), refusal: Refusal::NodeLost }]);
    // The next one's chances are its own.
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(40))), [(1, 3)]);
}

#[test]
fn a_node_that_keeps_a_query_past_its_time_and_says_nothing_gets_no_more_and_gives_up_what_it_has() {
    let mut router = three();
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    assert_eq!(sent_to(&arrive_with(&mut router, 2, Time(20), Micros::from_secs(1))), [(2, 1)]);
    let over = Time(10) + LATENCY + Limits::default().grace;
    for id in 2..=3_u32 {
        let report = report(4, 10_000.0 * f64::from(id));
        router.handle(Time(over.0 - 10), Event::Report { node: NodeId(id), report });
    }
    assert_eq!(router.poll_timeout().expect("a guard").at, over);
    router.handle_timeout(over);
    let told = actions(&mut router);
    assert!(
        matches!(&told[1], Action::Refuse { key: QueryKey(1), refusal: Refusal::TooLate { .. } }),
        "{told:?}"
    );
    assert_eq!(told[2], Action::Cancel { key: QueryKey(2), node: NodeId(1) });
    assert_eq!(sent_to(&told), [(2, 2)], "it has time left, and another node would take it");
    let later = over + Micros(10);
    assert_eq!(sent_to(&arrive(&mut router, 3, later)), [(3, 2)]);
    // It speaks: as good as any other.
    router.handle(later, Event::Report { node: NodeId(1), report: report(4, 0.0) });
    assert_eq!(sent_to(&arrive(&mut router, 4, later + Micros(10))), [(4, 1)]);
}

#[test]
fn a_node_that_speaks_while_it_keeps_a_query_too_long_is_not_in_doubt() {
    let mut router = three();
    for id in 2..=3 {
        router.handle(Time(5), Event::NodeDown { node: NodeId(id) });
    }
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    let expired = Time(10) + LATENCY;
    router.handle(expired + Micros(5), Event::Report { node: NodeId(1), report: report(4, 0.0) });
    let over = expired + Limits::default().grace;
    router.handle_timeout(over);
    assert_eq!(actions(&mut router).len(), 2, "the query is cancelled and refused");
    assert_eq!(sent_to(&arrive(&mut router, 2, over + Micros(10))), [(2, 1)]);
}

#[test]
fn a_node_in_doubt_is_tried_again_after_a_while_even_if_it_says_nothing() {
    let mut router = three();
    for id in 2..=3 {
        router.handle(Time(5), Event::NodeDown { node: NodeId(id) });
    }
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    let over = Time(10) + LATENCY + Limits::default().grace;
    router.handle_timeout(over);
    actions(&mut router);
    assert_eq!(sent_to(&arrive(&mut router, 2, over + Micros(10))), [], "it waits here");
    assert_eq!(router.waiting(), 1);
    let again = over + Micros::from_secs(1);
    assert_eq!(sent_to(&arrive(&mut router, 3, again)).first(), Some(&(3, 1)));
}

/// A report by a node whose machine had handled so many inputs, made at such a time of its own.
fn made(inputs: u64, at: u64, limit: u32) -> NodeReport {
    NodeReport { made: Made { inputs, at: Time(at) }, ..report(limit, 0.0) }
}

#[test]
fn a_node_whose_heartbeat_lives_while_its_work_does_not_is_found_and_stays_found() {
    let mut router = three();
    let say =
        |router: &mut Router, now, report| router.handle(now, Event::Report { node: NodeId(1), report });
    say(&mut router, Time(3), made(7, 500, 4));
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    let expired = Time(10) + LATENCY;
    let over = expired + Limits::default().grace;
    for id in 2..=3_u32 {
        let report = report(4, 10_000.0 * f64::from(id));
        router.handle(Time(over.0 - 10), Event::Report { node: NodeId(id), report });
    }
    // What it said before its work stopped comes again and again, now with other shares of the credit; then reports that are
    // new, but made by somebody who only looks.
    say(&mut router, expired + Micros(1), made(7, 500, 3));
    say(&mut router, expired + Micros(2), made(7, 900, 3));
    router.handle_timeout(over);
    actions(&mut router);
    for again in 0..3 {
        let now = over + Micros(10 + again);
        say(&mut router, now, made(7, 1_000 + again, 4));
        assert_eq!(sent_to(&arrive(&mut router, 2 + again, now)), [(2 + again, 2)]);
    }
    // It has done something: as good as any other.
    let now = over + Micros(20);
    say(&mut router, now, made(8, 2_000, 4));
    assert_eq!(sent_to(&arrive(&mut router, 9, now)), [(9, 1)]);
}

#[test]
fn a_node_that_looks_dead_again_and_again_is_tried_less_and_less_often() {
    let mut router = three();
    for id in 2..=3 {
        router.handle(Time(5), Event::NodeDown { node: NodeId(id) });
    }
    let (mut now, mut tried) = (Time(10), Vec::new());
    for key in 1..400 {
        let sent = arrive(&mut router, key, now);
        if !sent_to(&sent).is_empty() {
            tried.push(now);
        }
        now = now + LATENCY;
        while let Some(wake) = router.poll_timeout().filter(|wake| wake.at <= now) {
            router.handle_timeout(wake.at);
            actions(&mut router);
        }
    }
    let gaps: Vec<Micros> =
        tried.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > LATENCY).collect();
    assert!(gaps.len() > 3 && gaps.is_sorted(), "{gaps:?}");
    assert!(gaps[gaps.len() - 1] > Micros::from_secs(4), "{gaps:?}");
}

#[test]
fn a_copy_of_an_old_report_does_not_undo_what_is_known_since() {
    let mut router = three();
    let old = NodeReport { made: Made { inputs: 7, at: Time(500) }, ..report(2, 0.0) };
    router.handle(Time(3), Event::Report { node: NodeId(1), report: old.clone() });
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    // The copy takes the credit that is left, and nothing else.
    let copy = NodeReport { limit: Limit { queries: 1, ..old.limit }, ..old };
    router.handle(Time(20), Event::Report { node: NodeId(1), report: copy });
    assert_eq!(sent_to(&arrive(&mut router, 2, Time(30))), [(2, 2)]);
}

#[test]
fn the_credit_of_a_report_that_was_overtaken_is_not_believed() {
    let mut router = three();
    let made =
        |inputs, credit| NodeReport { made: Made { inputs, at: Time(100 * inputs) }, ..report(credit, 0.0) };
    router.handle(Time(3), Event::Report { node: NodeId(1), report: made(7, 1) });
    router.handle(Time(4), Event::Report { node: NodeId(1), report: made(6, 9) });
    assert_eq!(sent_to(&arrive(&mut router, 1, Time(10))), [(1, 1)]);
    assert_eq!(sent_to(&arrive(&mut router, 2, Time(11))), [(2, 2)], "the node has no more credit");
}
