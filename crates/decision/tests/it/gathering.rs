//! Whole batches go to one node each.

use crate::common::{TASK, alike, query};
use modelless_decision::explain::{Explanation, Finding, recall};
use modelless_decision::route::{Action, Did, Event, Limit, Limits, NodeReport, Router, Table, Verdict};
use modelless_decision::{Machine, Moments, Query, RunModel};
use modelless_types::{
    BatchPoint, Bytes, Goals, Micros, NodeId, Prefer, QueryKey, Refusal, Time, VariantSet,
};

const LATENCY: Micros = Micros::from_millis(50);

/// Equal nodes with one variant, of which a batch of eight takes so many microseconds, and one alone 1000.
fn table(nodes: u32, eight_us: f64) -> Table {
    let point =
        |batch: u32, mean_us: f64| BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 9 };
    let run = RunModel::from_points(&[point(1, 1_000.0), point(8, eight_us)], Moments::ZERO).expect("points");
    let mut table = alike(nodes, 1_000.0);
    table.tasks[0].variants[0].max_batch = 8;
    for node in &mut table.nodes {
        node.offers[0].run = run.clone();
    }
    table
}

/// Where one is sent, and among how many nodes its class is said to be divided.
fn sent(router: &mut Router) -> Option<(u32, u32)> {
    std::iter::from_fn(|| router.poll_action()).find_map(|action| match action {
        Action::Send { node, among, .. } => Some((node.0, among)),
        Action::Refuse { .. }
        | Action::MayReturn { .. }
        | Action::Cancel { .. }
        | Action::Wake { .. }
        | Action::Announce { .. }
        | Action::Withdraw { .. } => None,
    })
}

struct World {
    router: Router,
    now: Time,
    key: u64,
    /// What nodes are told.
    among: u32,
}

impl World {
    /// Nodes with as much to do as is said, in microseconds.
    fn new(whole_batches: bool, eight_us: f64, waits: &[f64]) -> Self {
        let limits = Limits { whole_batches, ..Limits::default() };
        let mut router = Router::new(limits, 1).remembering(100);
        let nodes = u32::try_from(waits.len()).expect("few");
        router.handle(Time(1), Event::Table(table(nodes, eight_us)));
        let gathers = whole_batches && eight_us < 4_000.0;
        let among = if gathers { nodes } else { u32::from(whole_batches) };
        let mut world = Self { router, now: Time(10), key: 0, among };
        for (node, wait) in (1..).zip(waits) {
            world.speaks(node, 100, *wait);
        }
        world
    }

    fn speaks(&mut self, node: u32, credit: u32, wait: f64) {
        let limit = Limit { queries: credit, bytes: Bytes::from_mib(1) };
        let wait = Moments { mean: wait, var: 0.0 };
        let report = NodeReport { limit, wait, ..NodeReport::default() };
        self.router.handle(self.now, Event::Report { node: NodeId(node), report });
    }

    /// One comes; where it goes.
    fn asks(&mut self) -> u32 {
        self.asks_for(Prefer::Accuracy)
    }

    fn asks_for(&mut self, prefer: Prefer) -> u32 {
        self.key += 1;
        let admits: VariantSet = [0].into_iter().collect();
        let query = Query { prefer, ..query(self.key, self.now, admits, LATENCY) };
        self.router.handle(self.now, Event::Arrive(query));
        self.now = self.now + Micros(10);
        let sent = std::iter::from_fn(|| self.router.poll_action()).find_map(|action| match action {
            Action::Send { node, among, .. } => Some((node.0, among)),
            Action::Refuse { .. }
            | Action::Announce { .. }
            | Action::Withdraw { .. }
            | Action::MayReturn { .. }
            | Action::Cancel { .. }
            | Action::Wake { .. } => None,
        });
        let (node, among) = sent.expect("it is sent");
        assert_eq!(among, self.among);
        node
    }

    fn ask(&mut self, many: usize) -> Vec<u32> {
        (0..many).map(|_| self.asks()).collect()
    }
}

#[test]
fn who_comes_follows_the_first_of_the_batch_until_it_is_full_and_the_next_one_goes_elsewhere() {
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0]);
    assert_eq!(world.ask(16), [[1; 8], [2; 8]].concat());
    // Each goes where it would be done first, where that is off: they are spread evenly.
    let mut world = World::new(false, 1_200.0, &[2_000.0, 2_100.0]);
    let spread = world.ask(16);
    assert_eq!(spread.iter().filter(|node| **node == 1).count(), 8);
    assert!(spread.windows(2).filter(|pair| pair[0] != pair[1]).count() > 8, "{spread:?}");
}

#[test]
fn nobody_follows_a_batch_that_has_begun() {
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0]);
    assert_eq!(world.ask(2), [1, 1]);
    world.now = world.now + Micros(2_000);
    world.speaks(1, 100, 3_000.0);
    world.speaks(2, 100, 1_000.0);
    assert_eq!(world.ask(2), [2, 2]);
}

#[test]
fn nobody_follows_while_some_node_could_begin_at_once_or_where_batches_gain_nothing() {
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0, 2_200.0]);
    assert_eq!(world.ask(2), [1, 1]);
    world.speaks(3, 100, 0.0);
    assert_eq!(world.asks(), 3);
    // Eight take as long as eight alone.
    let mut world = World::new(true, 8_000.0, &[2_000.0, 2_100.0]);
    assert_eq!(world.ask(2), [1, 2]);
}

#[test]
fn nobody_follows_to_a_node_without_credit_or_into_a_batch_of_those_who_prefer_something_else() {
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0]);
    assert_eq!(world.ask(2), [1, 1]);
    world.speaks(1, 2, 2_000.0);
    assert_eq!(world.asks(), 2);
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0]);
    assert_eq!(world.asks(), 1);
    assert_eq!(world.asks_for(Prefer::Cost), 2, "it goes where it would be done first");
}

#[test]
fn asked_afterwards_it_says_where_a_query_went_though_another_node_would_have_been_free_sooner() {
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0]);
    assert_eq!(world.ask(3), [1, 1, 1]);
    let (seen, _) = world.router.seen(QueryKey(3));
    assert_eq!(seen.len(), 1);
    assert!(matches!(seen[0].did, Did::Sent { joined: Some(_), .. }), "{:?}", seen[0].did);
    let (snapshot, told) = recall(&seen[0], TASK, &Goals::default());
    let Some(Verdict::Send(choice)) = told.verdict else { panic!("{told:?}") };
    assert_eq!(snapshot.node(choice.node).map(|node| node.id), Some(NodeId(1)));
    let chosen = |told: &Explanation| {
        let chosen = told.candidates.iter().filter(|candidate| candidate.finding == Finding::Chosen);
        chosen.map(|candidate| candidate.node).collect::<Vec<_>>()
    };
    assert_eq!(chosen(&told), [Some(NodeId(1))]);
    // And asked beforehand.
    let told = world.router.explain(TASK, &Goals { latency: Some(LATENCY), ..Goals::default() }, world.now);
    assert_eq!(chosen(&told), [Some(NodeId(1))]);
}

#[test]
fn nobody_follows_who_would_be_late_with_all_who_go_already() {
    // Eight take 3.2 ms, and there is time for 2.0 of waiting and 2.6 of a batch: for six.
    let mut world = World::new(true, 3_200.0, &[2_000.0, 2_100.0]);
    let admits: VariantSet = [0].into_iter().collect();
    let mut asks = |key| {
        let query = query(key, world.now, admits, Micros(4_600));
        world.router.handle(world.now, Event::Arrive(query));
        sent(&mut world.router).expect("it is sent").0
    };
    let nodes: Vec<u32> = (1..=7).map(&mut asks).collect();
    assert_eq!(nodes, [1, 1, 1, 1, 1, 1, 2]);
}

#[test]
fn nobody_follows_into_what_came_back_and_nobody_those_whom_their_node_has_no_time_for() {
    let mut world = World::new(true, 1_200.0, &[2_000.0, 2_100.0, 2_200.0]);
    assert_eq!(world.ask(2), [1, 1]);
    let limit = Limit { queries: 100, bytes: Bytes::from_mib(1) };
    let wait = Moments { mean: 2_000.0, var: 0.0 };
    let report = NodeReport { limit, wait, ..NodeReport::default() };
    let why = Refusal::TooLate { waited: Micros(10) };
    let back = Event::HandedBack { key: QueryKey(2), node: NodeId(1), report, why };
    world.router.handle(world.now, back);
    assert_eq!(sent(&mut world.router).map(|(node, _)| node), Some(2), "elsewhere, by itself");
    let next = world.asks();
    assert_ne!(next, 1);
    assert_eq!(world.asks(), next, "a batch of its own");
}
