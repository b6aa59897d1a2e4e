//! The router under any order of events.

use crate::common::{Logged, TASK, alike, goals, nodes, query, task};
use modelless_decision::explain::{Finding, recall};
use modelless_decision::route::{
    Action, Did, End, Event, Later, Limit, Limits, NodeReport, Router, Step as Due, Table, Verdict,
};
use modelless_decision::{Machine, Moments, Query, admission};
use modelless_types::{
    Accuracy, AppId, Bytes, Goals, Micros, NodeId, Priority, QueryKey, Refusal, TenantId, Time,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How long a node says that one would wait there, whenever it says what became of a query.
const BACK_WAIT: f64 = 1_000.0;

#[derive(Clone, Debug)]
enum Step {
    Arrive(Goals, u64),
    /// The n-th of the queries that are at nodes; said by its own node, or by another as an echo of the past.
    Finished(usize, Option<u32>, u32),
    /// Given back by the n-th: because it drains, or has fallen behind.
    HandedBack(usize, u32, bool),
    Report(u32, u32, f64),
    /// The n-th of the queries that are announced is claimed by the n-th of those that hear of it, or by any node.
    Claim(usize, Option<u32>),
    /// The same, given up: because it drains, or has no time.
    Decline(usize, bool),
    NodeDown(u32),
    Cancel(usize),
    Table(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 1_u32..=6;
    let credit = || 0_u32..6;
    prop_oneof![
        6 => (goals(), 1_u64..400).prop_map(|(goals, bytes)| Step::Arrive(goals, bytes)),
        3 => (any::<usize>(), proptest::option::weighted(0.2, node()), credit())
            .prop_map(|(at, echo, credit)| Step::Finished(at, echo, credit)),
        3 => (any::<usize>(), credit(), any::<bool>())
            .prop_map(|(at, credit, drains)| Step::HandedBack(at, credit, drains)),
        4 => (node(), credit(), 0.0..100_000.0).prop_map(|(node, credit, wait)| Step::Report(node, credit, wait)),
        3 => (any::<usize>(), proptest::option::weighted(0.3, node())).prop_map(|(at, by)| Step::Claim(at, by)),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(at, drains)| Step::Decline(at, drains)),
        1 => node().prop_map(Step::NodeDown),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (0_usize..3).prop_map(Step::Table),
        3 => (0_u64..100_000).prop_map(Step::Wait),
    ]
}

/// Tables of one task: all of it first, then others with some variants, nodes and offers changed.
fn tables() -> impl Strategy<Value = Vec<Table>> {
    task().prop_flat_map(|task| {
        let fewer = proptest::sample::subsequence(task.variants.clone(), 1..=task.variants.len());
        let fewer = fewer.prop_flat_map({
            let task = task.clone();
            move |variants| nodes(modelless_decision::route::TaskInfo { variants, ..task.clone() })
        });
        (nodes(task.clone()), nodes(task), fewer).prop_map(|(a, b, c)| vec![a, b, c])
    })
}

struct Shell {
    router: Logged<Router>,
    now: Time,
    open: BTreeMap<QueryKey, (Query, Accuracy)>,
    goals: BTreeMap<QueryKey, Goals>,
    at_node: BTreeMap<QueryKey, NodeId>,
    /// Which nodes may claim a query.
    announced: BTreeMap<QueryKey, BTreeSet<NodeId>>,
    /// To at most so many.
    most: usize,
    /// Queries that were withdrawn from nodes that might have claimed them.
    withdrawn: BTreeSet<QueryKey>,
    /// Those that a node has given back because it had fallen behind, and whether it may have got on since.
    returned: BTreeMap<QueryKey, (NodeId, bool)>,
    /// How many the table has.
    nodes: usize,
    accuracy: BTreeMap<u8, Accuracy>,
    next: u64,
    left: u64,
}

impl Shell {
    fn perform(&mut self, actions: Vec<Action>) -> Result<(), TestCaseError> {
        for action in actions {
            match action {
                Action::Send { key, node, returnable, .. } => {
                    let from = self.returned.get(&key);
                    prop_assert!(!returnable || from.is_none(), "{key} may go back again");
                    prop_assert!(from != Some(&(node, false)), "{key} is where it came from");
                    prop_assert!(!returnable || self.nodes > 1, "there is no other node");
                    self.recalls(key, node)?;
                    let (query, floor) = self.open.get(&key).copied().expect("only what is open is sent");
                    prop_assert!(self.at_node.insert(key, node).is_none(), "{key} is at two nodes");
                    let others = self.announced.remove(&key).unwrap_or_default();
                    prop_assert!(
                        others.iter().all(|other| *other == node),
                        "{others:?} may claim {key} as well"
                    );
                    for ordinal in query.class.admits.iter() {
                        prop_assert!(self.accuracy[&ordinal] >= floor, "{key} may be answered below {floor}");
                    }
                }
                Action::Refuse { key, .. } => {
                    prop_assert!(self.open.remove(&key).is_some(), "{key} left twice");
                    self.at_node.remove(&key);
                    self.left += 1;
                }
                Action::Announce { key, node, part_ppm, .. } => {
                    prop_assert!(!self.at_node.contains_key(&key), "{key} is at a node");
                    let (query, floor) = self.open.get(&key).expect("only what is open is announced");
                    prop_assert!(query.class.admits.iter().all(|ordinal| self.accuracy[&ordinal] >= *floor));
                    prop_assert!(part_ppm <= 1_000_000);
                    prop_assert!(!self.returned.contains_key(&key) && !query.priority.is_spare());
                    let told = self.announced.entry(key).or_default();
                    prop_assert!(told.insert(node), "{node} hears twice of {key}");
                    prop_assert!(told.len() <= self.most, "{} hear of {key}", told.len());
                }
                Action::Withdraw { key, node } => {
                    prop_assert!(self.at_node.get(&key) != Some(&node), "{key} is at {node}");
                    if self.announced.get_mut(&key).is_some_and(|told| told.remove(&node)) {
                        self.withdrawn.insert(key);
                    }
                }
                Action::MayReturn { key, node } => {
                    prop_assert_eq!(self.at_node.get(&key), Some(&node), "it is elsewhere");
                    prop_assert!(!self.returned.contains_key(&key), "{} may go back again", key);
                    prop_assert!(self.nodes > 1, "there is no other node");
                }
                Action::Cancel { .. } | Action::Wake { .. } => {}
            }
        }
        prop_assert_eq!(self.router.machine.open(), self.open.len());
        let waiting = self.open.len() - self.at_node.len();
        prop_assert_eq!(self.router.machine.waiting() as usize, waiting);
        self.announced.retain(|_, told| !told.is_empty());
        for key in self.announced.keys() {
            let may = self.open.contains_key(key) && !self.at_node.contains_key(key);
            prop_assert!(may, "{key} is announced and not to be had");
        }
        Ok(())
    }

    /// What was seen is kept, and the calls that decided give the same again.
    fn recalls(&self, key: QueryKey, to: NodeId) -> Result<(), TestCaseError> {
        let (seen, _) = self.router.machine.seen(key);
        let seen = seen.last().expect("200 decisions are kept");
        let (Did::Sent { node, .. } | Did::Claimed { node, .. }) = seen.did else {
            return Err(TestCaseError::fail(format!("it was sent, and {:?} is told", seen.did)));
        };
        prop_assert_eq!(node, to);
        let (snapshot, told) = recall(seen, TASK, &self.goals[&key]);
        // Where one may not get it, or the rest of the time decides, more than one choice is looked at.
        if self.returned.contains_key(&key) || seen.query.is_some_and(|query| query.priority.is_spare()) {
            return Ok(());
        }
        if let Some(verdict) = told.verdict {
            let (Verdict::Send(modelless_decision::route::Choice { node, .. }) | Verdict::Load { node, .. }) =
                verdict
            else {
                return Err(TestCaseError::fail(format!("it was sent, and {verdict:?} is told")));
            };
            prop_assert_eq!(snapshot.node(node).map(|node| node.id), Some(to));
            let chosen = told.candidates.iter().filter(|one| one.finding == Finding::Chosen).count();
            prop_assert!(chosen <= 1, "{:?}", told.candidates);
        }
        Ok(())
    }

    fn feed(&mut self, event: Event) -> Result<(), TestCaseError> {
        let actions = self.router.handle(self.now, event);
        self.perform(actions)
    }

    fn sleep(&mut self, until: Time) -> Result<(), TestCaseError> {
        let mut rounds = 0;
        while let Some(wake) = self.router.machine.poll_timeout().filter(|wake| wake.at <= until) {
            rounds += 1;
            prop_assert!(rounds < 10_000, "its timers do not move on: {wake:?}");
            self.now = self.now.max(wake.at);
            let actions = self.router.timeout(self.now);
            self.gone_from_nodes(&actions);
            self.perform(actions)?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    /// A query that is sent again, or refused, has left the node it was at.
    fn gone_from_nodes(&mut self, actions: &[Action]) {
        for action in actions {
            if let Action::Cancel { key, .. } = action {
                self.at_node.remove(key);
            }
        }
    }

    fn gets_on(&mut self, node: NodeId) {
        self.returned.values_mut().filter(|(by, _)| *by == node).for_each(|(_, got_on)| *got_on = true);
    }

    fn nth_announced(&self, at: usize) -> Option<(QueryKey, NodeId)> {
        let (key, told) = self.announced.iter().nth(at % self.announced.len().max(1))?;
        told.iter().nth(at % told.len().max(1)).map(|node| (*key, *node))
    }

    fn nth(&self, at: usize) -> Option<(QueryKey, NodeId)> {
        self.at_node.iter().nth(at % self.at_node.len().max(1)).map(|(key, node)| (*key, *node))
    }

    fn report(credit: u32, wait: f64) -> NodeReport {
        let limit = Limit { queries: credit, bytes: Bytes(500) };
        NodeReport {
            limit,
            wait: Moments { mean: wait, var: wait },
            // Most of it is due in a while, some of it at once.
            later: Later::new([
                Due { due: Micros(0), takes: Moments { mean: wait * 0.9, var: 0.0 }.mean() },
                Due { due: Micros(40_000), takes: Moments { mean: wait * 0.2, var: 0.0 }.mean() },
            ]),
            ..NodeReport::default()
        }
    }

    fn step(&mut self, step: &Step, tables: &[Table]) -> Result<(), TestCaseError> {
        self.now = self.now + Micros(1);
        match *step {
            Step::Arrive(goals, bytes) => {
                let Ok(admitted) = admission::admit(self.router.machine.snapshot(), TASK, &goals) else {
                    return Ok(());
                };
                let deadline = self.now + admitted.latency;
                let query = Query {
                    key: QueryKey(self.next),
                    tenant: TenantId::DEFAULT,
                    app: AppId::DEFAULT,
                    class: admitted.class,
                    arrived: self.now,
                    deadline,
                    expires: if admitted.best_effort { deadline + Micros(50_000) } else { deadline },
                    max_cost: admitted.max_cost,
                    prefer: admitted.prefer,
                    priority: if bytes % 4 == 1 { Priority::SPARE } else { goals.priority },
                    best_effort: admitted.best_effort,
                    bytes: Bytes(bytes),
                    returnable: false,
                };
                self.next += 1;
                let defaults = self.router.machine.snapshot().task(TASK).map(|t| t.defaults);
                let floor = goals.accuracy.or(defaults.and_then(|d| d.accuracy)).unwrap_or(Accuracy::ZERO);
                self.open.insert(query.key, (query, floor));
                self.goals.insert(query.key, goals);
                self.feed(Event::Arrive(query))
            }
            Step::Finished(at, echo, credit) => {
                let Some((key, node)) = self.nth(at) else { return Ok(()) };
                let said_by = echo.map_or(node, NodeId);
                if said_by == node {
                    self.at_node.remove(&key);
                    self.open.remove(&key);
                    self.left += 1;
                }
                self.gets_on(said_by);
                self.feed(Event::Finished {
                    key,
                    node: said_by,
                    report: Self::report(credit, BACK_WAIT),
                    end: End::Unknown,
                })
            }
            Step::HandedBack(at, credit, drains) => {
                let Some((key, node)) = self.nth(at) else { return Ok(()) };
                let why = if drains { Refusal::Draining } else { Refusal::TooLate { waited: Micros(9) } };
                if self.withdrawn.contains(&key) {
                    // It gave it up when it was announced, and has it now.
                    let report = Self::report(credit, BACK_WAIT);
                    self.gets_on(node);
                    self.feed(Event::Declined { key, node, report, why: why.clone() })?;
                    prop_assert_eq!(self.at_node.get(&key), Some(&node));
                }
                self.at_node.remove(&key);
                let again = !drains && self.returned.contains_key(&key);
                if !drains {
                    self.returned.entry(key).or_insert((node, false));
                }
                let report = Self::report(credit, BACK_WAIT);
                self.feed(Event::HandedBack { key, node, report, why })?;
                if again {
                    prop_assert!(
                        !self.open.contains_key(&key),
                        "{key} went back twice and is still passed on"
                    );
                }
                Ok(())
            }
            Step::Claim(at, by) => {
                let Some((key, first)) = self.nth_announced(at) else { return Ok(()) };
                let node = by.map_or(first, NodeId);
                let may = self.announced[&key].contains(&node);
                let report = Self::report(2, BACK_WAIT);
                self.feed(Event::Claim { queries: vec![key], node, lanes: 2, report })?;
                prop_assert_eq!(self.at_node.get(&key), may.then_some(&node));
                Ok(())
            }
            Step::Decline(at, drains) => {
                let Some((key, node)) = self.nth_announced(at) else { return Ok(()) };
                self.announced.get_mut(&key).expect("listed").remove(&node);
                let why = if drains { Refusal::Draining } else { Refusal::TooLate { waited: Micros(9) } };
                let last = self.announced[&key].is_empty();
                self.feed(Event::Declined { key, node, report: Self::report(2, BACK_WAIT), why })?;
                prop_assert!(!last || !self.announced.contains_key(&key), "all have given {key} up");
                Ok(())
            }
            Step::Report(node, credit, wait) => {
                if wait < BACK_WAIT {
                    self.gets_on(NodeId(node));
                }
                self.feed(Event::Report { node: NodeId(node), report: Self::report(credit, wait) })
            }
            Step::NodeDown(node) => {
                let node = NodeId(node);
                self.at_node.retain(|_, at| *at != node);
                self.announced.values_mut().for_each(|told| {
                    told.remove(&node);
                });
                self.feed(Event::NodeDown { node })
            }
            Step::Cancel(at) => {
                let Some(key) = self.open.keys().nth(at % self.open.len().max(1)).copied() else {
                    return Ok(());
                };
                self.open.remove(&key);
                self.at_node.remove(&key);
                self.left += 1;
                self.feed(Event::Cancel { key })
            }
            Step::Table(at) => {
                let table = tables[at].clone();
                self.nodes = table.nodes.len();
                // Those whose node is no longer in it are the router's to place again.
                let there = |node: NodeId| table.nodes.iter().any(|n| n.id == node);
                self.at_node.retain(|_, node| there(*node));
                self.announced.values_mut().for_each(|told| told.retain(|node| there(*node)));
                // What was known of one that left is forgotten.
                self.returned.values_mut().for_each(|(by, got_on)| *got_on |= !there(*by));
                self.feed(Event::Table(table))
            }
            Step::Wait(us) => self.sleep(self.now + Micros(us)),
        }
    }
}

fn limits(announce: u16) -> Limits {
    let (waiting_bytes, grace) = (Bytes(2_000), Micros(5_000));
    Limits { waiting: 12, waiting_bytes, grace, classes: 4, whole_batches: true, announce }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_query_leaves_exactly_once_and_none_is_sent_below_its_floor(
        tables in tables(),
        steps in proptest::collection::vec(step(), 1..120),
        seed in any::<u64>(),
        announce in prop_oneof![Just(0_u16), 2_u16..=5],
    ) {
        let mut shell = Shell {
            router: Logged::new(Router::new(limits(announce), seed).remembering(200)),
            announced: BTreeMap::new(),
            most: usize::from(announce),
            withdrawn: BTreeSet::new(),
            now: Time(0),
            open: BTreeMap::new(),
            goals: BTreeMap::new(),
            at_node: BTreeMap::new(),
            returned: BTreeMap::new(),
            nodes: 0,
            accuracy: tables[0].tasks[0].variants.iter().map(|v| (v.ordinal, v.accuracy)).collect(),
            next: 0,
            left: 0,
        };
        shell.step(&Step::Table(0), &tables)?;
        for step in steps {
            shell.step(&step, &tables)?;
        }
        // Nobody speaks any more: everything left must leave by itself, at the latest by its guard.
        shell.sleep(Time(30_000_000))?;
        prop_assert_eq!(shell.open.len(), 0, "queries are forgotten: {:?}", shell.open.keys());
        prop_assert_eq!(shell.left, shell.next);
        prop_assert_eq!(shell.router.machine.open(), 0);
        prop_assert!(shell.router.machine.poll_timeout().is_none());
        shell.router.replays_in(Router::new(limits(announce), seed));
    }
}

/// A router that knows a table of nodes that are alike and have credit for one query each.
fn knowing(nodes: u32, remembers: usize) -> Router {
    let mut router = Router::new(Limits::default(), 7).remembering(remembers);
    router.handle(Time(1), Event::Table(alike(nodes, 1_000.0)));
    for node in 1..=nodes {
        let report = Shell::report(1, 0.0);
        router.handle(Time(2), Event::Report { node: NodeId(node), report });
    }
    router
}

fn arrives(router: &mut Router, key: u64) {
    let admits = [0].into_iter().collect();
    router.handle(Time(key), Event::Arrive(query(key, Time(key), admits, Micros(100_000))));
}

#[test]
fn so_many_decisions_are_kept_and_the_oldest_gives_way() {
    let mut router = knowing(9, 3);
    (10..15).for_each(|key| arrives(&mut router, key));
    let kept: Vec<usize> = (10..15).map(|key| router.seen(QueryKey(key)).0.len()).collect();
    assert_eq!(kept, [0, 0, 1, 1, 1]);
    assert_eq!(router.seen(QueryKey(10)), (Vec::new(), Some(Time(12))), "and since when is told");
    let mut none = knowing(9, 0);
    arrives(&mut none, 10);
    assert_eq!(none.seen(QueryKey(10)), (Vec::new(), None), "nothing unless it is asked for");
}

#[test]
fn of_many_nodes_those_that_could_answer_are_kept_with_the_chosen_one() {
    let mut router = knowing(200, 8);
    (10..18).for_each(|key| arrives(&mut router, key));
    for key in 10..18 {
        let (seen, _) = router.seen(QueryKey(key));
        assert_eq!(seen[0].left_out, 200 - 64);
        let (_, told) = recall(&seen[0], TASK, &Goals::default());
        assert_eq!(told.candidates.len(), 64, "of the others nothing is known any more");
        let chosen: Vec<_> = told.candidates.iter().filter(|one| one.finding == Finding::Chosen).collect();
        let Did::Sent { node, .. } = seen[0].did else { panic!("{:?}", seen[0].did) };
        // Nodes alike are told apart by a coin, which falls as it fell among all of them: the chosen one won it.
        assert_eq!(chosen.iter().map(|one| one.node).collect::<Vec<_>>(), [Some(node)]);
    }
}

#[test]
fn a_query_that_waits_is_kept_with_each_decision_on_it_and_one_turned_away_too() {
    let mut router = knowing(1, 8);
    arrives(&mut router, 10);
    arrives(&mut router, 11);
    router.handle(
        Time(900),
        Event::Finished {
            key: QueryKey(10),
            node: NodeId(1),
            report: Shell::report(1, 0.0),
            end: End::Unknown,
        },
    );
    let (seen, _) = router.seen(QueryKey(11));
    assert!(matches!(seen[0].did, Did::Waits { .. }) && matches!(seen[1].did, Did::Sent { .. }), "{seen:?}");
    assert_eq!(seen[1].at, Time(900));
    let (_, told) = recall(&seen[0], TASK, &Goals::default());
    assert_eq!(told.candidates[0].finding, Finding::NoCredit);
    let (_, told) = recall(&seen[1], TASK, &Goals::default());
    assert_eq!(told.candidates[0].finding, Finding::Chosen);

    let goals = Goals { latency: Some(Micros(10)), ..Goals::default() };
    let refusal = admission::admit(router.snapshot(), TASK, &goals).unwrap_err();
    router.turned_away(Time(950), QueryKey(12), &refusal);
    let (seen, _) = router.seen(QueryKey(12));
    assert_eq!(seen[0].did, Did::Refused("latency_unreachable"));
    let (_, told) = recall(&seen[0], TASK, &goals);
    assert_eq!((told.admitted, told.candidates[0].finding.clone()), (Err(refusal), Finding::TooSlow));
}

#[test]
fn what_was_seen_of_a_table_stays_when_the_next_one_says_otherwise() {
    let mut router = knowing(1, 8);
    arrives(&mut router, 10);
    router.handle(Time(20), Event::Table(alike(1, 50_000.0)));
    let latency = |router: &Router| {
        let (seen, _) = router.seen(QueryKey(10));
        recall(&seen[0], TASK, &Goals::default()).1.candidates[0].latency
    };
    assert_eq!(latency(&router), Some(Micros(1_000)), "by the profile of then");
    let now = router.explain(TASK, &Goals::default(), Time(30));
    assert!(now.candidates[0].latency >= Some(Micros(50_000)), "and this is what holds now: {now:?}");
}

#[test]
fn of_large_tables_only_as_many_are_kept_as_there_is_room_for() {
    // Each of these has 30,000 offers, so three of them and no fourth are kept.
    let mut router = Router::new(Limits::default(), 7).remembering(100);
    let mut table = alike(1, 1_000.0);
    let offer = table.nodes[0].offers[0].clone();
    table.nodes[0].offers = vec![offer; 30_000];
    for key in 10..15 {
        router.handle(Time(key), Event::Table(table.clone()));
        router.handle(Time(key), Event::Report { node: NodeId(1), report: Shell::report(9, 0.0) });
        arrives(&mut router, key);
    }
    let kept: Vec<usize> = (10..15).map(|key| router.seen(QueryKey(key)).0.len()).collect();
    assert_eq!(kept, [0, 0, 1, 1, 1]);
}
