//! Who is due first goes first at a node, and its gateway knows: those who are due later there keep nobody waiting who would be late behind them.

use crate::common::{TASK, alike, query, worker_variant};
use modelless_decision::explain::{Candidate, Finding, recall};
use modelless_decision::route::{Action, Event, Later, Limit, Limits, NodeReport, Router, STEPS, Step};
use modelless_decision::worker::{DeviceConfig, Event as WorkerEvent, Worker, WorkerConfig, WorkerVariant};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    BatchPoint, Bytes, DeviceIx, Goals, Micros, NodeId, PricePerHour, Priority, QueryKey, Time, VariantId,
    VariantSet,
};

const NOW: Time = Time(1_000_000);

fn only() -> VariantSet {
    [0].into_iter().collect()
}

fn asks(key: u64, ms: u64) -> Query {
    query(key, NOW, only(), Micros::from_millis(ms))
}

/// Nodes that answer one in 5 ms, each of which has so much to do, so much of it for those who are due after 100 ms.
fn router(nodes: &[(u64, u64)]) -> Router {
    let mut router = Router::new(Limits::default(), 1).remembering(10);
    router.handle(Time(1), Event::Table(alike(u32::try_from(nodes.len()).expect("few"), 5_000.0)));
    for (node, (wait, later)) in (1..).zip(nodes) {
        let limit = Limit { queries: 100, bytes: Bytes::from_mib(1) };
        let wait = Moments::exactly(Micros::from_millis(*wait));
        let step = |due, takes| Step { due: Micros::from_millis(due), takes: Micros::from_millis(takes) };
        let later = Later::new([step(0, *later), step(100, *later), step(300, 0)]);
        let report = NodeReport { limit, wait, later, ..NodeReport::default() };
        router.handle(NOW, Event::Report { node: NodeId(node), report });
    }
    router
}

fn sent(router: &mut Router, query: Query) -> Option<u32> {
    router.handle(NOW, Event::Arrive(query));
    std::iter::from_fn(|| router.poll_action()).find_map(|action| match action {
        Action::Send { node, .. } => Some(node.0),
        Action::Refuse { .. }
        | Action::MayReturn { .. }
        | Action::Cancel { .. }
        | Action::Wake { .. }
        | Action::Announce { .. }
        | Action::Withdraw { .. } => None,
    })
}

#[test]
fn a_tight_query_goes_to_a_node_that_is_busy_with_those_who_have_time() {
    assert_eq!(sent(&mut router(&[(90, 80)]), asks(1, 50)), Some(1), "10 ms are before it");
    assert_eq!(sent(&mut router(&[(90, 0)]), asks(1, 50)), None, "90 ms are before it");
    assert_eq!(sent(&mut router(&[(90, 40)]), asks(1, 50)), None, "50 ms are before it");
}

#[test]
fn whoever_has_time_behind_all_goes_where_least_is_to_be_done() {
    // Due first it could begin at once at the first; there it would hold up 80 ms of others.
    assert_eq!(sent(&mut router(&[(80, 80), (20, 0)]), asks(1, 50)), Some(2));
    assert_eq!(sent(&mut router(&[(80, 80), (60, 0)]), asks(1, 50)), Some(1), "it has no time at the second");
}

#[test]
fn it_is_explained_as_it_was_routed() {
    let mut router = router(&[(90, 80)]);
    assert_eq!(sent(&mut router, asks(1, 50)), Some(1));
    let seen = router.seen(QueryKey(1)).0.pop().expect("kept");
    let goals = Goals { latency: Some(Micros::from_millis(50)), ..Goals::default() };
    let (_, told) = recall(&seen, TASK, &goals);
    let candidate = told.candidates.first().expect("one");
    assert_eq!(candidate.finding, Finding::Chosen, "{candidate:?}");
    assert_eq!(candidate.wait, Some(Micros::from_millis(10)), "{candidate:?}");
    // Where one has time behind all, that is what all are judged by.
    let goals = Goals { latency: Some(Micros::from_millis(50)), ..Goals::default() };
    let told = self::router(&[(80, 80), (20, 0)]).explain(TASK, &goals, NOW);
    let of = |node: u32| {
        let of = |candidate: &&Candidate| candidate.node == Some(NodeId(node));
        let candidate = told.candidates.iter().find(of).expect("both");
        (candidate.finding.clone(), candidate.wait)
    };
    assert_eq!(of(2), (Finding::Chosen, Some(Micros::from_millis(20))));
    assert_eq!(of(1), (Finding::QueueTooLong, Some(Micros::from_millis(80))));
}

#[test]
fn a_new_table_leaves_it_known() {
    let mut router = router(&[(90, 80)]);
    router.handle(NOW, Event::Table(alike(1, 5_000.0)));
    assert_eq!(sent(&mut router, asks(1, 50)), Some(1));
}

/// Takes a millisecond for each, one at a time.
fn variant() -> WorkerVariant {
    let point = BatchPoint { batch: 1, mean_us: 1_000.0, var_us2: 0.0, p99_us: 1_000.0, samples: 9 };
    worker_variant(0, RunModel::from_points(&[point], Moments::ZERO).expect("a point"))
}

/// A worker whose devices are all busy, where so many more wait with such bounds.
fn busy(devices: u16, bounds_ms: &[u64]) -> Worker {
    let device = DeviceConfig { lanes: 1, width: 1, memory: Bytes(100), price: PricePerHour(1) };
    let devices_of = vec![device; devices.into()];
    let mut worker = Worker::new(WorkerConfig { devices: devices_of, queue: 100, ..WorkerConfig::default() });
    let mut feed = |event| {
        worker.handle(NOW, event);
        while worker.poll_action().is_some() {}
    };
    feed(WorkerEvent::Catalog(vec![variant()]));
    feed(WorkerEvent::Wake { task: TASK, ordinal: 0 });
    let (memory, took) = (Bytes(10), Micros(1_000));
    feed(WorkerEvent::Loaded { device: DeviceIx(0), variant: VariantId(0), memory, took });
    // Who is prepared to run is none of those who wait.
    for (key, ms) in [10_000].iter().chain(bounds_ms).enumerate() {
        feed(WorkerEvent::Arrive(asks(u64::try_from(key).expect("few"), *ms)));
    }
    worker
}

#[test]
fn a_node_tells_how_much_is_due_after_when() {
    let report = busy(1, &[40, 40, 40, 200, 200, 200, 200, 200]).report(NOW);
    let takes = |due: u64| {
        let at = |step: &Step| step.due <= Micros::from_millis(due);
        report.later.steps().filter(at).last().map(|step| step.takes)
    };
    assert_eq!(takes(0), Some(Micros::from_millis(8)), "all of them: {:?}", report.later);
    assert_eq!(takes(100), Some(Micros::from_millis(5)), "{:?}", report.later);
    assert_eq!(takes(200), Some(Micros::ZERO), "{:?}", report.later);
    assert!(report.later.steps().count() <= STEPS);
    let told: Vec<Step> = report.later.steps().collect();
    let in_order = told.windows(2).all(|pair| pair[0].due < pair[1].due);
    assert!(in_order, "{:?}", report.later);
    assert!(report.wait.mean >= 8_000.0, "and it is part of what it says of its wait");
}

#[test]
fn whoever_may_be_late_or_is_stands_where_he_is_due() {
    let waiting = |worker: &mut Worker, key: u64, due: u64, expires: u64| {
        let query = asks(key, due);
        let expires = NOW + Micros::from_millis(expires);
        worker.handle(NOW, WorkerEvent::Arrive(Query { expires, best_effort: true, ..query }));
        while worker.poll_action().is_some() {}
    };
    // Ten are due within 50 ms, and wait for half a minute longer.
    let mut worker = busy(1, &[]);
    (10..20).for_each(|key| waiting(&mut worker, key, 50, 30_050));
    let report = worker.report(NOW);
    let after = |due: u64| {
        let at = |step: &Step| step.due <= Micros::from_millis(due);
        report.later.steps().filter(at).last().map(|step| step.takes)
    };
    assert_eq!(after(0), Some(Micros::from_millis(10)));
    assert_eq!(after(50), Some(Micros::ZERO), "nobody is due later: {:?}", report.later);
    // Two whose time is over are before whoever comes, and one is not.
    let mut worker = busy(1, &[]);
    for (key, due) in [(10, 20), (11, 40), (12, 900)] {
        waiting(&mut worker, key, due, 30_000);
    }
    let report = worker.report(NOW + Micros::from_millis(100));
    let told: Vec<Step> = report.later.steps().collect();
    let step = |due, takes| Step { due: Micros::from_millis(due), takes: Micros::from_millis(takes) };
    assert_eq!(told, [step(0, 1), step(800, 0)], "of three one is due after now");
}

#[test]
fn whoever_has_something_reserved_is_before_all_however_late_he_is_due() {
    let told = |priority: Priority| {
        let mut worker = busy(1, &[40, 40]);
        for key in 10..14 {
            worker.handle(NOW, WorkerEvent::Arrive(Query { priority, ..asks(key, 500) }));
            while worker.poll_action().is_some() {}
        }
        worker.report(NOW).later.steps().next().map(|step| step.takes)
    };
    assert_eq!(told(Priority::default()), Some(Micros::from_millis(6)));
    assert_eq!(told(Priority::RESERVED), Some(Micros::from_millis(2)), "the two others");
}

#[test]
fn it_says_nothing_of_one_who_waits_nor_of_several_devices() {
    assert!(busy(1, &[40]).report(NOW).later.is_untold());
    assert!(busy(2, &[40, 200, 200, 200]).report(NOW).later.is_untold());
}
