//! Who gives way when no more can wait.

use crate::common::{alike, query};
use modelless_decision::Machine;
use modelless_decision::route::{Action, Event, Limit, Limits, NodeReport, Router};
use modelless_types::{Bytes, Micros, NodeId, Priority, QueryKey, Refusal, Time, VariantSet};

/// One node with one variant, up but without credit; two queries may wait.
fn full_house() -> Router {
    let mut router = Router::new(Limits { waiting: 2, ..Limits::default() }, 1);
    router.handle(Time(1), Event::Table(alike(1, 10.0)));
    router.handle(Time(2), Event::Report { node: NodeId(1), report: NodeReport::default() });
    router
}

fn arrive(router: &mut Router, key: u64, level: u8) -> Vec<Action> {
    let admits: VariantSet = [0].into_iter().collect();
    let mut query = query(key, Time(10), admits, Micros::from_secs(1));
    query.priority = Priority::new(level).expect("a level");
    router.handle(Time(10 + key), Event::Arrive(query));
    std::iter::from_fn(|| router.poll_action()).collect()
}

fn refused(key: u64) -> Vec<Action> {
    vec![Action::Refuse { key: QueryKey(key), refusal: Refusal::QueueFull { limit: 2 } }]
}

#[test]
fn the_least_important_gives_way_to_a_more_important_one_and_to_nobody_else() {
    let mut router = full_house();
    assert_eq!(arrive(&mut router, 1, 5), []);
    assert_eq!(arrive(&mut router, 2, 7), []);
    assert_eq!(arrive(&mut router, 3, 7), refused(3), "an equal does not displace");
    assert_eq!(arrive(&mut router, 4, 1), refused(2));
    assert_eq!(arrive(&mut router, 5, 9), refused(5), "a lesser does not displace");
    assert_eq!(arrive(&mut router, 6, 0), refused(6), "0 stands for the default level, which 5 is");
    assert_eq!(router.waiting(), 2);
    let limit = Limit { queries: 9, bytes: Bytes::from_mib(1) };
    router.handle(
        Time(100),
        Event::Report { node: NodeId(1), report: NodeReport { limit, ..NodeReport::default() } },
    );
    let sent: Vec<QueryKey> = std::iter::from_fn(|| router.poll_action())
        .filter_map(|action| if let Action::Send { key, .. } = action { Some(key) } else { None })
        .collect();
    assert_eq!(sent, [QueryKey(1), QueryKey(4)]);
}
