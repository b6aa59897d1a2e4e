//! Which node: compared with a choice written without regard for speed.

use crate::common::{TASK, prefer, query, table};
use modelless_decision::Moments;
use modelless_decision::query::Class;
use modelless_decision::route::{Limit, LoadView, NodeIx, NodeReport, Ready, Snapshot, Table, Verdict, pick};
use modelless_types::{Bytes, Micros, NodeId, Prefer, Refusal, Time, VariantSet};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

#[derive(Clone, Debug)]
struct NodeState {
    report: Option<NodeReport>,
    booked: u32,
    down: bool,
}

fn node_state(classes: Vec<Class>) -> impl Strategy<Value = NodeState> {
    let moments = || (0.0..100_000.0_f64, 0.0..1e9_f64).prop_map(|(mean, var)| Moments { mean, var });
    let report =
        (0_u32..4, moments(), proptest::option::of(moments())).prop_map(move |(queries, wait, own)| {
            let limit = Limit { queries, bytes: Bytes(250) };
            let waits = own.map(|own| (classes[0], own)).into_iter().collect();
            NodeReport { limit, wait, waits, ..NodeReport::default() }
        });
    (proptest::option::weighted(0.9, report), 0_u32..3, prop::bool::weighted(0.1))
        .prop_map(|(report, booked, down)| NodeState { report, booked, down })
}

fn views() -> impl Strategy<Value = (Table, VariantSet, Vec<NodeState>)> {
    table().prop_flat_map(|table| {
        let ordinals: Vec<u8> = table.tasks[0].variants.iter().map(|v| v.ordinal).collect();
        let set = proptest::sample::subsequence(ordinals.clone(), 1..=ordinals.len());
        set.prop_flat_map(move |set| {
            let admits: VariantSet = set.into_iter().collect();
            let states = proptest::collection::vec(node_state(vec![Class { task: TASK, admits }]), 5);
            (Just(table.clone()), Just(admits), states)
        })
    })
}

fn wish(prefer: Prefer, accuracy: u32, cost: u64) -> u64 {
    match prefer {
        Prefer::Accuracy => u64::from(1_000_000 - accuracy),
        Prefer::Cost => cost,
        Prefer::Latency => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_pick_is_the_exhaustive_choice(
        (table, admits, states) in views(),
        prefer in prefer(),
        latency in 0_u64..300_000,
        best_effort in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (reported, now) = (Time(1_000), Time(3_000));
        let mut snapshot = Snapshot::new(table.clone());
        let mut q = query(1, now, admits, Micros(latency));
        q.prefer = prefer;
        q.best_effort = best_effort;
        let class = snapshot.intern(q.class);
        let mut load = LoadView::new(snapshot.node_count());
        load.add_class(class);
        for (ix, state) in (0..).map(NodeIx).zip(&states[..snapshot.node_count()]) {
            if let Some(report) = &state.report {
                load.report(reported, ix, report, true, |c| (*c == q.class).then_some(class));
            }
            for _ in 0..state.booked {
                load.book(ix, Bytes(100), Moments { mean: 5_000.0, var: 100.0 });
            }
            if state.down {
                load.down(ix);
            }
        }
        let verdict = pick(&snapshot, &load, class, &q, now, seed);

        // The oracle: every resident option of every node, nothing left out early.
        let p99 = |m: Moments| m.mean + 2.326_347_9 * m.var.sqrt();
        let slack = if best_effort { f64::INFINITY } else { Moments::exactly(Micros(latency)).mean };
        let mut best: Option<(u64, f64)> = None;
        let mut could_idle = false;
        for (node, state) in table.nodes.iter().zip(&states) {
            let Some(report) = state.report.as_ref().filter(|_| !state.down) else { continue };
            let wait = report.waits.first().map_or(report.wait, |(_, own)| *own);
            let left = (wait.mean - 2_000.0).max(0.0);
            let var = if wait.mean > 2_000.0 { wait.var } else { 0.0 };
            let booked = f64::from(state.booked);
            let wait = Moments { mean: left + booked * 5_000.0, var: var + booked * 100.0 };
            let credit = state.booked < report.limit.queries && (100 * (state.booked + 1) <= 250 || state.booked == 0);
            for offer in node.offers.iter().filter(|o| o.ready == Ready::Resident && admits.contains(o.ordinal)) {
                let service = node.rtt + offer.run.service();
                could_idle |= p99(service) <= slack;
                let total = wait + service;
                if credit && p99(total) <= slack {
                    let v = table.tasks[0].variant(offer.ordinal).expect("a variant");
                    let w = wish(prefer, v.accuracy.ppm(), offer.run.cost(1, node.price).0);
                    let mine = (w, p99(total));
                    if best.is_none_or(|known| mine.0 < known.0 || (mine.0 == known.0 && mine.1 < known.1)) {
                        best = Some(mine);
                    }
                }
            }
        }
        match (&verdict, best) {
            (Verdict::Send(choice), Some((w, completion))) => {
                let node = &table.nodes[choice.node.0 as usize];
                let offer = node.offers.iter().find(|o| o.ordinal == choice.ordinal).expect("an offer");
                let v = table.tasks[0].variant(choice.ordinal).expect("a variant");
                prop_assert!(admits.contains(choice.ordinal));
                prop_assert_eq!(wish(prefer, v.accuracy.ppm(), offer.run.cost(1, node.price).0), w);
                let got = p99(choice.completion);
                prop_assert!((got - completion).abs() <= 1e-6 * completion.max(1.0), "{got} for {completion}");
            }
            (Verdict::Wait { until }, None) => {
                prop_assert!(could_idle, "it waits for nothing");
                prop_assert!(*until >= now);
            }
            (Verdict::Load { node, ordinal, in_time, bound, .. }, None) => {
                prop_assert!(!could_idle);
                // The bound that is told would do, by the very call that refused this one.
                let again = modelless_decision::Query { arrived: now, deadline: now + *bound, expires: now + *bound, ..q };
                let verdict = pick(&snapshot, &load, class, &again, now, seed);
                let refused = matches!(verdict, Verdict::Refuse(_) | Verdict::Load { in_time: false, .. });
                prop_assert!(*in_time || !refused, "{bound} is refused: {verdict:?}");
                prop_assert!(admits.contains(*ordinal));
                let offers = &table.nodes[node.0 as usize].offers;
                prop_assert!(offers.iter().any(|o| o.ordinal == *ordinal && o.ready != Ready::Resident));
            }
            (Verdict::Refuse(refusal), None) => {
                prop_assert!(!could_idle, "{refusal:?}");
                let named = matches!(
                    refusal,
                    Refusal::NothingRunnable { .. } | Refusal::NodeLost | Refusal::TooLate { .. }
                );
                prop_assert!(named, "{refusal:?}");
                // What only a load can serve is never too late for good, while something that could be loaded is quick enough.
                let bound = Moments::exactly(q.deadline - q.arrived).mean;
                let up = table.nodes.iter().zip(&states).filter(|(_, state)| state.report.is_some() && !state.down);
                let offers: Vec<_> = up
                    .flat_map(|(node, _)| node.offers.iter().map(move |offer| (node, offer)))
                    .filter(|(_, offer)| admits.contains(offer.ordinal))
                    .collect();
                let resident = offers.iter().any(|(_, offer)| offer.ready == Ready::Resident);
                let able = offers.iter().any(|(node, offer)| p99(node.rtt + offer.run.service()) <= bound);
                prop_assert!(resident || !able, "{refusal:?}");
            }
            (verdict, best) => prop_assert!(false, "{verdict:?} for {best:?}"),
        }
    }
}

#[test]
fn gateways_with_other_seeds_spread_over_equal_nodes() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let run = crate::common::run_model().new_tree(&mut runner).expect("a model").current();
    let task = crate::common::task().new_tree(&mut runner).expect("a task").current();
    let ordinal = task.variants[0].ordinal;
    let offer =
        modelless_decision::route::Offer { task: TASK, ordinal, ready: Ready::Resident, run, width: 1 };
    let node = |id| modelless_decision::route::NodeInfo {
        id: NodeId(id),
        rtt: Moments::ZERO,
        price: modelless_types::PricePerHour(1),
        offers: vec![offer.clone()],
    };
    let mut snapshot = Snapshot::new(Table { tasks: vec![task], nodes: (1..=8).map(node).collect() });
    let q = query(1, Time(0), [ordinal].into_iter().collect(), Micros::from_secs(9));
    let class = snapshot.intern(q.class);
    let mut load = LoadView::new(8);
    let report = NodeReport { limit: Limit { queries: 4, bytes: Bytes(1_000) }, ..NodeReport::default() };
    (0..8).for_each(|ix| load.report(Time(0), NodeIx(ix), &report, true, |_| None));
    let mut picked: Vec<u32> = (0..200)
        .map(|seed| match pick(&snapshot, &load, class, &q, Time(0), seed) {
            Verdict::Send(choice) => choice.node.0,
            no @ (Verdict::Wait { .. } | Verdict::Load { .. } | Verdict::Refuse(_)) => panic!("{no:?}"),
        })
        .collect();
    picked.sort_unstable();
    picked.dedup();
    assert_eq!(picked.len(), 8, "each gets some");
}
