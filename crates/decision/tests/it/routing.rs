//! The router under any order of events.

use crate::common::{Logged, TASK, goals, nodes, task};
use modelless_decision::route::{Action, Event, Limit, Limits, Made, NodeReport, Router, Table};
use modelless_decision::{Machine, Moments, Query, admission};
use modelless_types::{
    Accuracy, AppId, Bytes, Goals, Micros, NodeId, Priority, QueryKey, Refusal, TenantId, Time,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

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
    at_node: BTreeMap<QueryKey, NodeId>,
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
                    let (query, floor) = self.open.get(&key).copied().expect("only what is open is sent");
                    prop_assert!(self.at_node.insert(key, node).is_none(), "{key} is at two nodes");
                    for ordinal in query.class.admits.iter() {
                        prop_assert!(self.accuracy[&ordinal] >= floor, "{key} may be answered below {floor}");
                    }
                }
                Action::Refuse { key, .. } => {
                    prop_assert!(self.open.remove(&key).is_some(), "{key} left twice");
                    self.at_node.remove(&key);
                    self.left += 1;
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

    fn nth(&self, at: usize) -> Option<(QueryKey, NodeId)> {
        self.at_node.iter().nth(at % self.at_node.len().max(1)).map(|(key, node)| (*key, *node))
    }

    fn report(credit: u32, wait: f64) -> NodeReport {
        let limit = Limit { queries: credit, bytes: Bytes(500) };
        NodeReport {
            limit,
            wait: Moments { mean: wait, var: wait },
            waits: Vec::new(),
            made: Made::default(),
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
                self.feed(Event::Finished { key, node: said_by, report: Self::report(credit, BACK_WAIT) })
            }
            Step::HandedBack(at, credit, drains) => {
                let Some((key, node)) = self.nth(at) else { return Ok(()) };
                self.at_node.remove(&key);
                let why = if drains { Refusal::Draining } else { Refusal::TooLate { waited: Micros(9) } };
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
            Step::Report(node, credit, wait) => {
                if wait < BACK_WAIT {
                    self.gets_on(NodeId(node));
                }
                self.feed(Event::Report { node: NodeId(node), report: Self::report(credit, wait) })
            }
            Step::NodeDown(node) => {
                let node = NodeId(node);
                self.at_node.retain(|_, at| *at != node);
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
                // What was known of one that left is forgotten.
                self.returned.values_mut().for_each(|(by, got_on)| *got_on |= !there(*by));
                self.feed(Event::Table(table))
            }
            Step::Wait(us) => self.sleep(self.now + Micros(us)),
        }
    }
}

fn limits() -> Limits {
    Limits { waiting: 12, waiting_bytes: Bytes(2_000), grace: Micros(5_000), classes: 4 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_query_leaves_exactly_once_and_none_is_sent_below_its_floor(
        tables in tables(),
        steps in proptest::collection::vec(step(), 1..120),
        seed in any::<u64>(),
    ) {
        let mut shell = Shell {
            router: Logged::new(Router::new(limits(), seed)),
            now: Time(0),
            open: BTreeMap::new(),
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
        shell.router.replays_in(Router::new(limits(), seed));
    }
}
