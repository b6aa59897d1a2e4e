//! What the machines do together, in worlds small enough to foresee.

use modelless_simulator::batching::{MODELS, Row, Setup, compare};
use modelless_simulator::fixtures::{FASHION, fashion_mnist, fashion_variant};
use modelless_simulator::{
    Arrivals, Fault, NodeSpec, Outcome, Scenario, Step, Stream, StreamOutcome, run, table,
};
use modelless_types::{Accuracy, Bytes, Fallback, Goals, Micros, Prefer, Priority, VariantId};

const ROOM: Bytes = Bytes::from_mib(64);

fn ms(ms: u64) -> Micros {
    Micros::from_millis(ms)
}

fn all() -> Vec<VariantId> {
    fashion_mnist().variants.iter().map(|v| v.id).collect()
}

fn id(name: &str) -> VariantId {
    fashion_variant(name).expect("a variant of the ladder").id
}

fn floor(text: &str, latency: Micros) -> Goals {
    let accuracy = Some(Accuracy::parse_floor(text).expect("a floor"));
    Goals { accuracy, latency: Some(latency), ..Goals::default() }
}

fn only(name: &str, latency: Micros) -> Goals {
    Goals { variant: Some(id(name)), latency: Some(latency), ..Goals::default() }
}

fn poisson(name: &str, rate: f64, goals: Goals) -> Stream {
    Stream::new(name, FASHION, Arrivals::Poisson { rate }, goals)
}

fn one_node(name: &str, streams: Vec<Stream>) -> Scenario {
    Scenario::new(name, vec![fashion_mnist()], vec![NodeSpec::with(1, ROOM, all())], streams)
}

fn outcome(scenario: &Scenario) -> Outcome {
    run(scenario, 1).unwrap_or_else(|err| panic!("{}: {err}", scenario.name))
}

fn left(stream: &StreamOutcome) -> u64 {
    stream.answered + stream.refusals() + stream.cancelled + stream.lost
}

#[test]
fn under_a_burst_answers_get_cheaper_before_any_is_shed() {
    let goals = floor("0.85", ms(50));
    let calm = outcome(&one_node("calm", vec![poisson("calm", 1_000.0, goals)]));
    // The two most accurate can do 3,350 and 7,900 a second; this asks for 10,000.
    let steps = vec![Step { from: Micros(0), rate: 1_000.0 }, Step { from: ms(500), rate: 10_000.0 }];
    let burst = Stream::new("burst", FASHION, Arrivals::Steps(steps), goals);
    let burst = outcome(&one_node("burst", vec![burst]));
    assert!(calm.total.accuracy > 0.934, "{}", table(&calm));
    assert_eq!((calm.total.refusals(), burst.total.refusals()), (0, 0), "{}", table(&burst));
    assert!(burst.total.accuracy < calm.total.accuracy - 0.001, "{}", table(&burst));
    assert!(burst.total.violations < 0.01, "{}", table(&burst));
}

#[test]
fn late_binding_keeps_violations_below_a_static_most_accurate_choice() {
    // 5,000 a second is 1.5 times what cnn_l-fp32 can do at its largest batch.
    let load = |goals| one_node("overload", vec![poisson("all", 5_000.0, goals)]);
    let fixed = outcome(&load(only("cnn_l-fp32", ms(50))));
    let late = outcome(&load(floor("0.85", ms(50))));
    assert!(fixed.total.violations > 0.25, "{}", table(&fixed));
    assert!(late.total.violations < 0.01, "{}", table(&late));
    assert!(late.total.accuracy > 0.91, "{}", table(&late));
}

#[test]
fn a_floor_is_shed_rather_than_broken() {
    // Only the two largest reach 0.93, and together they cannot do this much.
    let outcome = outcome(&one_node("flood", vec![poisson("all", 12_000.0, floor("0.93", ms(20)))]));
    assert!(outcome.total.refusals() > 1_000, "{}", table(&outcome));
    assert!(outcome.total.accuracy >= 0.93, "{}", table(&outcome));
    let late = modelless_types::Micros(outcome.total.latency.p99.0);
    assert!(late < ms(25), "{}", table(&outcome));
}

#[test]
fn a_crash_of_one_input_costs_one_query() {
    let goals = only("cnn_m-fp32", Micros::from_secs(3));
    let mut poison = Stream::new("poison", FASHION, Arrivals::At(vec![ms(100)]), goals);
    poison.poison = 1.0;
    let outcome = outcome(&one_node("poison", vec![poisson("good", 4_000.0, goals), poison]));
    let [good, poison] = &outcome.streams[..] else { panic!("two streams") };
    assert_eq!(poison.refused.get("input_crashed"), Some(&1), "{}", table(&outcome));
    assert_eq!(good.answered, good.offered, "{}", table(&outcome));
    assert_eq!(outcome.crashes, 2, "in its batch and alone\n{}", table(&outcome));
}

#[test]
fn a_cold_model_is_loaded_once_for_a_herd() {
    let herd = Arrivals::At(vec![ms(10); 60]);
    let herd = Stream::new("herd", FASHION, herd, only("cnn_l-int8", Micros::from_secs(2)));
    let cold = || NodeSpec::with(1, ROOM, Vec::new());
    let world = Scenario::new("herd", vec![fashion_mnist()], vec![cold(), cold(), cold()], vec![herd]);
    for gateways in [1, 2] {
        let outcome = outcome(&Scenario { gateways, ..world.clone() });
        assert_eq!(outcome.loads, 1, "{}", table(&outcome));
        assert_eq!(outcome.total.in_time(), 60, "{}", table(&outcome));
    }
}

#[test]
fn who_cannot_wait_for_a_load_is_told_and_the_next_one_is_served() {
    let times = Arrivals::At(vec![ms(10), ms(300)]);
    let stream = Stream::new("soon", FASHION, times, only("cnn_l-fp32", ms(20)));
    let node = NodeSpec::with(1, ROOM, Vec::new());
    let outcome = outcome(&Scenario::new("soon", vec![fashion_mnist()], vec![node], vec![stream]));
    assert_eq!(outcome.total.refused.get("loading"), Some(&1), "{}", table(&outcome));
    assert_eq!(outcome.total.in_time(), 1, "{}", table(&outcome));
}

#[test]
fn same_seed_same_outcome() {
    let mut world = one_node("seeds", vec![poisson("all", 2_000.0, floor("0.9", ms(20)))]);
    world.streams[0].gives_up = 0.1;
    world.nodes[0].crash = 0.01;
    world.faults = vec![Fault::Slow { node: 0, at: ms(100), until: ms(300), factor: 3.0 }];
    let first = run(&world, 9).expect("runs");
    assert_eq!(first, run(&world, 9).expect("runs"));
    assert_ne!(first, run(&world, 10).expect("runs"));
    assert!(table(&first).contains("seeds"));
}

#[test]
fn two_gateways_share_a_node_within_its_credit() {
    let mut world = one_node("shared", vec![poisson("all", 9_000.0, floor("0.93", ms(50)))]);
    world.gateways = 2;
    let outcome = outcome(&world);
    // One lane: at most 32 that run, 32 prepared and twice 32 to fill the next slot, since more is asked than it can do, are the node's; about
    // half of that is each gateway's, by what each asked for lately.
    assert!(outcome.outstanding_max <= 80, "{}", outcome.outstanding_max);
    assert!(outcome.outstanding_max > 16, "{}", outcome.outstanding_max);
    assert!(outcome.total.answered > 4_000, "{}", table(&outcome));
}

#[test]
fn evictions_keep_the_memory_budget() {
    // Room for one of the two largest at a time.
    let every = |offset: u64| Arrivals::At((0..8).map(|n| ms(offset + 200 * n)).collect());
    let goals = |name| only(name, Micros::from_secs(1));
    let streams = vec![
        Stream::new("large", FASHION, every(0), goals("cnn_l-fp32")),
        Stream::new("middle", FASHION, every(100), goals("cnn_m-fp32")),
    ];
    let node = NodeSpec::with(1, Bytes::from_mib(10), Vec::new());
    let world = Scenario::new("evictions", vec![fashion_mnist()], vec![node], streams);
    let outcome = outcome(&Scenario { duration: Micros::from_secs(3), ..world });
    assert!(outcome.unloads >= 3, "{}", table(&outcome));
    assert_eq!(outcome.total.in_time(), 16, "{}", table(&outcome));
}

#[test]
fn a_busy_model_makes_room_for_one_that_waits() {
    // The first has more than it can do and nothing is pinned; the second must not wait for ever.
    let streams = vec![
        poisson("busy", 6_000.0, only("cnn_l-fp32", ms(400))),
        Stream::new("other", FASHION, Arrivals::At(vec![ms(300)]), only("cnn_m-fp32", ms(700))),
    ];
    let node = NodeSpec::with(1, Bytes::from_mib(10), Vec::new());
    let outcome = outcome(&Scenario::new("room", vec![fashion_mnist()], vec![node], streams));
    assert_eq!(outcome.streams[1].in_time(), 1, "{}", table(&outcome));
    assert!(outcome.streams[0].in_time() > 2_000, "{}", table(&outcome));
}

#[test]
fn a_node_that_dies_costs_time_but_no_query() {
    let node = || NodeSpec::with(1, ROOM, all());
    let streams = vec![poisson("all", 1_500.0, floor("0.9", ms(200)))];
    let mut world = Scenario::new("lost node", vec![fashion_mnist()], vec![node(), node()], streams);
    world.faults = vec![Fault::NodeDown { node: 0, at: ms(200), back: Some(ms(600)) }];
    let outcome = outcome(&world);
    assert_eq!(left(&outcome.total), outcome.total.offered);
    assert!(outcome.total.violations < 0.001, "{}", table(&outcome));
}

#[test]
fn lanes_that_are_cut_anew_among_crashes_and_evictions_lose_no_query() {
    let mut task = fashion_mnist();
    let models: Vec<_> = task.variants.iter().map(|v| v.model).collect();
    for variant in &mut task.variants {
        variant.threads = if variant.ordinal.is_multiple_of(2) { 1 } else { 2 };
    }
    let streams = vec![
        poisson("any", 800.0, floor("0.8", ms(200))),
        poisson("wide", 100.0, only("cnn_l-int8", ms(400))),
        poisson("other", 100.0, only("mlp_l-fp32", ms(400))),
    ];
    // Room for two or three of them, so that they come and go.
    let mut node = NodeSpec::with(2, Bytes::from_mib(14), Vec::new());
    node.worker.min_residence = ms(20);
    let mut world = Scenario::new("cuts", vec![task], vec![node], streams);
    let cut = |at: u64| Fault::Recut { node: 0, at: ms(40 * at), width: 1 + u16::from(at.is_multiple_of(2)) };
    let crash = |at: u64| {
        let model = models[usize::try_from(at).expect("few") % models.len()];
        Fault::RunnerCrash { node: 0, at: ms(40 * at + 1), model }
    };
    world.faults = (1..24).flat_map(|at| [cut(at), crash(at)]).collect();
    let outcome = outcome(&world);
    assert_eq!(left(&outcome.total), outcome.total.offered, "{}", table(&outcome));
    assert!(outcome.recuts > 10 && outcome.crashes > 3 && outcome.unloads > 3, "{}", table(&outcome));
    assert!(outcome.total.answered * 10 > outcome.total.offered * 8, "{}", table(&outcome));
}

#[test]
fn a_drained_node_hands_back_and_the_other_takes_over() {
    let node = || NodeSpec::with(1, ROOM, all());
    let streams = vec![poisson("all", 5_000.0, floor("0.93", ms(300)))];
    let mut world = Scenario::new("drain", vec![fashion_mnist()], vec![node(), node()], streams);
    world.faults = vec![Fault::Drain { node: 1, at: ms(400) }];
    let outcome = outcome(&world);
    assert!(outcome.handed_back > 0, "{}", table(&outcome));
    assert_eq!(outcome.total.in_time(), outcome.total.offered, "{}", table(&outcome));
}

#[test]
fn a_lost_gateway_takes_only_its_own_clients() {
    let mut world = one_node("lost gateway", vec![poisson("all", 3_000.0, floor("0.9", ms(100)))]);
    world.gateways = 2;
    world.faults = vec![Fault::GatewayDown { gateway: 1, at: ms(300), back: Some(ms(500)) }];
    let outcome = outcome(&world);
    let total = &outcome.total;
    assert!(total.lost < 100, "{}", table(&outcome));
    assert_eq!(total.in_time() + total.lost + total.refusals(), total.offered, "{}", table(&outcome));
    assert!(total.refusals() < 20, "{}", table(&outcome));
}

#[test]
fn a_slow_device_is_noticed_and_answers_get_cheaper_instead_of_late() {
    let mut world = one_node("slow", vec![poisson("all", 1_500.0, floor("0.85", ms(30)))]);
    let usual = outcome(&world);
    world.faults = vec![Fault::Slow { node: 0, at: ms(0), until: Micros::from_secs(2), factor: 6.0 }];
    let slow = outcome(&world);
    assert!(usual.total.accuracy > slow.total.accuracy, "{}", table(&slow));
    // Between 3 and 7 %, as the seed falls; without corrections most are late.
    assert!(slow.total.violations < 0.08, "{}", table(&slow));
}

#[test]
fn a_device_that_stays_slow_has_its_profiles_marked_once_and_one_that_is_slow_now_and_then_never() {
    let world = |faults: Vec<(u64, u64)>| {
        let mut world = one_node("drift", vec![poisson("all", 60.0, only("cnn_l-fp32", ms(500)))]);
        world.duration = Micros::from_secs(120);
        let slow = |(from, to)| Fault::Slow {
            node: 0,
            at: Micros::from_secs(from),
            until: Micros::from_secs(to),
            factor: 2.5,
        };
        world.faults = faults.into_iter().map(slow).collect();
        let outcome = outcome(&world);
        (outcome.drifted, outcome.steadied)
    };
    assert_eq!(world(vec![(5, 20)]), (0, 0));
    assert_eq!(world(vec![(5, 60)]), (1, 1));
    assert_eq!(world(vec![(5, 120)]), (1, 0));
    assert_eq!(world((0..6).map(|at| (20 * at, 20 * at + 10)).collect()), (0, 0));
}

#[test]
fn best_effort_waits_for_a_load_that_no_deadline_would() {
    let goals = Goals { fallback: Fallback::BestEffort, ..only("cnn_l-fp32", ms(1)) };
    let stream = Stream::new("patient", FASHION, Arrivals::At(vec![ms(10); 20]), goals);
    let node = NodeSpec::with(1, ROOM, Vec::new());
    let outcome = outcome(&Scenario::new("patient", vec![fashion_mnist()], vec![node], vec![stream]));
    assert_eq!((outcome.total.answered, outcome.loads), (20, 1), "{}", table(&outcome));
}

#[test]
fn who_prefers_cost_pays_less_than_who_prefers_accuracy() {
    let run_with = |prefer| {
        let goals = Goals { prefer: Some(prefer), ..floor("0.85", ms(50)) };
        outcome(&one_node("prefer", vec![poisson("all", 500.0, goals)]))
    };
    let (cheap, accurate) = (run_with(Prefer::Cost), run_with(Prefer::Accuracy));
    assert!(cheap.device_usd < 0.2 * accurate.device_usd, "{} {}", table(&cheap), table(&accurate));
    assert!(cheap.total.accuracy < accurate.total.accuracy);
    assert_eq!(Priority::default(), Goals::default().priority);
}

#[test]
fn batching_by_deadline_is_hardly_ever_late_and_misses_no_more_than_other_ways() {
    let setup = Setup { queries: 800, seeds: vec![1], lanes: 2, ..Setup::default() };
    let rows = compare(&setup).expect("runs");
    let row = |model: &str, arrivals: &str, mode: &str| {
        let wanted =
            |r: &&Row| r.model == model && r.arrivals == arrivals && r.batching.to_string().starts_with(mode);
        rows.iter().find(wanted).expect("a row").clone()
    };
    for model in MODELS {
        let deadline = row(model.name, "poisson", "deadline");
        assert!(deadline.late <= 0.005, "{deadline:?}");
        for mode in ["aimd", "fixed"] {
            let other = row(model.name, "poisson", mode);
            assert!(deadline.missed < other.missed, "{deadline:?} {other:?}");
            assert!(deadline.late < other.late, "{deadline:?} {other:?}");
        }
    }
}

#[test]
fn a_node_that_falls_behind_hands_back_what_another_can_still_answer_in_time() {
    let world = |hand_back, credits| {
        let mut node = NodeSpec::with(1, ROOM, vec![id("cnn_l-fp32")]);
        node.worker.hand_back = hand_back;
        let streams = vec![poisson("all", 3_000.0, only("cnn_l-fp32", ms(25)))];
        let mut world = Scenario::new("behind", vec![fashion_mnist()], vec![node.clone(), node], streams);
        world.credits = credits;
        let slow = |at| Fault::Slow { node: 0, at: ms(at), until: ms(at + 60), factor: 40.0 };
        world.faults = (0..9).map(|at| slow(100 * at)).collect();
        outcome(&world)
    };
    for credits in [true, false] {
        let (with, without) = (world(true, credits), world(false, credits));
        assert!(with.handed_back > 0 && without.handed_back == 0, "{}", table(&with));
        assert!(with.total.in_time() >= without.total.in_time(), "{}\n{}", table(&with), table(&without));
    }
}

#[test]
fn with_one_node_announcing_changes_nothing() {
    let mut world = one_node("one", vec![poisson("all", 9_000.0, floor("0.85", ms(20)))]);
    let without = outcome(&world);
    world.limits.announce = 16;
    assert_eq!(outcome(&world), without);
}
