//! Who gives way when no more can wait.

use crate::common::{TASK, query};
use modelless_decision::route::{
    Action, Event, Limit, Limits, NodeInfo, NodeReport, Offer, Ready, Router, Table, TaskInfo, VariantInfo,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, Goals, Micros, ModelId, NodeId, PricePerHour, Priority, QueryKey, Refusal,
    SpaceId, Time, VariantId, VariantSet,
};

/// One node with one variant, up but without credit; two queries may wait.
fn full_house() -> Router {
    let point = BatchPoint { batch: 1, mean_us: 10.0, var_us2: 0.0, p99_us: 10.0, samples: 9 };
    let run = RunModel::from_points(&[point], Moments::ZERO).expect("a point");
    let variant = VariantInfo {
        id: VariantId(1),
        model: ModelId(1),
        ordinal: 0,
        space: SpaceId(1),
        accuracy: Accuracy::ONE,
        max_batch: 1,
    };
    let task =
        TaskInfo { id: TASK, default_space: SpaceId(1), defaults: Goals::default(), variants: vec![variant] };
    let offers = vec![Offer { task: TASK, ordinal: 0, ready: Ready::Resident, run, width: 1 }];
    let node = NodeInfo { id: NodeId(1), rtt: Moments::ZERO, price: PricePerHour(1), offers };
    let mut router = Router::new(Limits { waiting: 2, ..Limits::default() }, 1);
    router.handle(Time(1), Event::Table(Table { tasks: vec![task], nodes: vec![node] }));
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
