//! Random worlds with random faults: whatever happens, what must hold holds. The world checks it itself; a broken
//! rule, a dead end or an endless loop is an error.

use modelless_simulator::fixtures::{FASHION, fashion_mnist};
use modelless_simulator::{Arrivals, Fault, NodeSpec, Scenario, Stream, run, table};
use modelless_types::{
    Accuracy, Bytes, CostPer1k, Engine, Fallback, Goals, Micros, ModelId, Prefer, SpaceId, VariantId,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;

const WORLDS: u32 = 128;
/// In so many of them queries are claimed at the least. About thirty are usual; that they are fewer than this by chance does not happen.
const CLAIMED: u32 = 10;
/// Runs of the ladder take between 8 us and 10 ms. So many times as long, they take long against a way, and nodes are busy.
const LONGER: f64 = 40.0;
/// What all nodes then have in memory.
const COMMON: [u32; 4] = [5, 8, 9, 12];
const ROOM: Bytes = Bytes::from_mib(48);

fn goals() -> impl Strategy<Value = Goals> {
    let pin = prop_oneof![6 => Just(None), 1 => (1_u32..=12).prop_map(|v| Some(VariantId(v)))];
    let model = prop_oneof![6 => Just(None), 1 => (1_u32..=6).prop_map(|m| Some(ModelId(m)))];
    let cost = prop_oneof![3 => Just(None), 1 => (1_u64..2_000_000).prop_map(|c| Some(CostPer1k(c)))];
    let prefer = prop_oneof![Just(None), Just(Some(Prefer::Cost)), Just(Some(Prefer::Latency))];
    let floor = prop_oneof![1 => Just(0), 3 => 800_000_u32..940_000];
    (floor, 500_u64..400_000, cost, prefer, any::<bool>(), pin, model).prop_map(
        |(floor, latency, max_cost, prefer, best_effort, variant, model)| Goals {
            accuracy: Accuracy::from_ppm(floor),
            latency: Some(Micros(latency)),
            max_cost,
            prefer,
            fallback: if best_effort { Fallback::BestEffort } else { Fallback::Reject },
            variant,
            model: if variant.is_some() { None } else { model },
            ..Goals::default()
        },
    )
}

fn stream() -> impl Strategy<Value = Stream> {
    let arrivals = prop_oneof![
        (50.0..1_500.0).prop_map(|rate| Arrivals::Poisson { rate }),
        (10.0..300.0, 500.0..6_000.0, 5_u64..60, 5_u64..40).prop_map(|(calm, burst, a, b)| {
            let (calm_for, burst_for) = (Micros::from_millis(a), Micros::from_millis(b));
            Arrivals::Bursty { calm, burst, calm_for, burst_for }
        }),
        (0_u64..200, 1_usize..80).prop_map(|(at, n)| Arrivals::At(vec![Micros::from_millis(at); n])),
    ];
    let poison = prop_oneof![4 => Just(0.0), 1 => Just(0.02)];
    (arrivals, goals(), 0.0..0.2, poison, 1_u64..200_000).prop_map(
        |(arrivals, goals, gives_up, poison, bytes)| Stream {
            bytes: Bytes(bytes),
            gives_up,
            poison,
            ..Stream::new("s", FASHION, arrivals, goals)
        },
    )
}

fn node() -> impl Strategy<Value = NodeSpec> {
    let pinned = proptest::collection::vec((1_u32..=12).prop_map(VariantId), 0..5);
    let rare = || prop_oneof![3 => Just(0.0), 1 => 0.0..0.2];
    (1_u16..=4, 4_u64..64, pinned, rare(), rare(), 2_u32..200).prop_map(
        |(lanes, mib, pinned, crash, load_failure, queue)| {
            let mut spec = NodeSpec::with(lanes, Bytes::from_mib(mib), pinned);
            spec.crash = crash / 10.0;
            spec.load_failure = load_failure;
            spec.worker.queue = queue;
            spec.worker.queue_bytes = Bytes(2_000_000);
            spec.worker.back_off = Micros::from_millis(20);
            spec
        },
    )
}

fn fault() -> impl Strategy<Value = Fault> {
    let at = || (0_u64..250).prop_map(Micros::from_millis);
    let back = || proptest::option::of((0_u64..400).prop_map(Micros::from_millis));
    prop_oneof![
        1 => (0_usize..3, at(), back()).prop_map(|(node, at, back)| Fault::NodeDown { node, at, back }),
        1 => (0_usize..2, at(), back()).prop_map(|(gateway, at, back)| Fault::GatewayDown { gateway, at, back }),
        1 => (0_usize..3, at(), 1_u32..=6).prop_map(|(node, at, m)| Fault::RunnerCrash {
            node,
            at,
            model: ModelId(m)
        }),
        1 => (0_usize..3, at(), at(), 0.2..20.0).prop_map(|(node, at, until, factor)| Fault::Slow {
            node,
            at,
            until,
            factor
        }),
        2 => (0_usize..3, at(), 0_u64..80).prop_map(|(node, at, ms)| Fault::Pause {
            node,
            at,
            until: at + Micros::from_millis(ms)
        }),
        1 => (0_usize..3, at()).prop_map(|(node, at)| Fault::Drain { node, at }),
        2 => (0_usize..3, at(), 0_u16..=5).prop_map(|(node, at, width)| Fault::Recut { node, at, width }),
        1 => (0_usize..3, at(), proptest::collection::vec((1_u32..=12).prop_map(VariantId), 0..4))
            .prop_map(|(node, at, variants)| Fault::Pin { node, at, variants }),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let nodes = proptest::collection::vec(node(), 1..4);
    let streams = proptest::collection::vec(stream(), 1..4);
    let faults = proptest::collection::vec(fault(), 0..7);
    let threads = proptest::collection::vec(1_u16..=3, 12);
    let announce = prop_oneof![1 => Just(0_u16), 2 => 2_u16..=4];
    // Nothing is announced where a run takes hardly longer than the way, a node is free, or only one has something in memory.
    let way = prop_oneof![(Just(false), 1_u64..3_000), (Just(true), 1_u64..60)];
    let world = (nodes, streams, faults, 1_u32..=2, way, any::<u16>(), threads, announce);
    world.prop_map(|(mut nodes, streams, faults, gateways, (is_busy, way), engines, threads, announce)| {
        if is_busy && nodes.len() == 1 {
            nodes.push(nodes[0].clone());
        }
        for node in nodes.iter_mut().filter(|_| is_busy) {
            node.pinned.extend(COMMON.map(VariantId));
            let memory = &mut node.worker.devices[0].memory;
            *memory = ROOM.max(*memory);
        }
        let mut task = fashion_mnist();
        for (at, variant) in task.variants.iter_mut().enumerate() {
            variant.threads = threads[at];
            variant.engine = if engines >> at & 1 == 1 { Engine::Openvino } else { Engine::Onnx };
            for point in variant.latency.iter_mut().filter(|_| is_busy) {
                point.mean_us *= LONGER;
                point.var_us2 *= LONGER * LONGER;
                point.p99_us *= LONGER;
            }
        }
        // The smallest model answers in a space of its own, so that spaces can be mixed up.
        for variant in &mut task.variants[..2] {
            variant.space = SpaceId(2);
        }
        let mut scenario = Scenario::new("random", vec![task], nodes, streams);
        scenario.gateways = gateways;
        scenario.link.one_way = Micros(way);
        scenario.link.jitter = Micros(way / 4);
        scenario.start = Micros::from_millis(30);
        scenario.duration = Micros::from_millis(250);
        scenario.limits.waiting = 200;
        scenario.limits.announce = announce;
        let there = |fault: &Fault| match fault {
            Fault::NodeDown { node, .. }
            | Fault::RunnerCrash { node, .. }
            | Fault::Slow { node, .. }
            | Fault::Pause { node, .. }
            | Fault::Drain { node, .. }
            | Fault::Recut { node, .. }
            | Fault::Pin { node, .. } => *node < scenario.nodes.len(),
            Fault::GatewayDown { gateway, .. } => *gateway < gateways as usize,
        };
        let faults = faults.into_iter().filter(there).collect();
        Scenario { faults, ..scenario }
    })
}

#[test]
fn no_floor_is_ever_broken_under_faults() {
    let config = ProptestConfig {
        cases: WORLDS,
        max_shrink_iters: 200,
        source_file: Some(file!()),
        test_name: Some(concat!(module_path!(), "::no_floor_is_ever_broken_under_faults")),
        ..ProptestConfig::default()
    };
    let claimed = Cell::new(0);
    let mut runner = TestRunner::new(config);
    let ran = runner.run(&(scenario(), any::<u64>()), |(scenario, seed)| {
        let outcome = match run(&scenario, seed) {
            Ok(outcome) => outcome,
            Err(err) => return Err(TestCaseError::fail(err.to_string())),
        };
        for stream in &outcome.streams {
            let left = stream.answered + stream.refusals() + stream.cancelled + stream.lost;
            prop_assert_eq!(left, stream.offered, "{}", table(&outcome));
        }
        claimed.set(claimed.get() + u32::from(outcome.claims > 0));
        Ok(())
    });
    ran.unwrap_or_else(|err| panic!("{err}\n{runner}"));
    let claimed = claimed.get();
    assert!(claimed >= CLAIMED, "queries were claimed in {claimed} of {WORLDS} worlds");
}
