//! What announcing queries to several nodes gains, and where it changes nothing.

use modelless_simulator::fixtures::{FASHION, fashion_mnist};
use modelless_simulator::{
    Arrivals, Behaviour, Fault, LinkSpec, NodeSpec, Outcome, Scenario, Stream, TaskSpec, run, table,
};
use modelless_types::{Accuracy, BatchPoint, Bytes, Goals, Micros};

/// Runs of the ladder take so many times as long here: long against a way of 50 us.
const LONGER: f64 = 20.0;
/// A slow machine takes so many times as long again.
const SLOW: f64 = 2.0;

fn ms(ms: u64) -> Micros {
    Micros::from_millis(ms)
}

fn floor(ppm: u32, latency: Micros) -> Goals {
    Goals { accuracy: Accuracy::from_ppm(ppm), latency: Some(latency), ..Goals::default() }
}

fn ladder() -> TaskSpec {
    let mut task = fashion_mnist();
    let times = |point: &BatchPoint, by: f64| BatchPoint {
        mean_us: point.mean_us * by,
        var_us2: point.var_us2 * by * by,
        p99_us: point.p99_us * by,
        ..*point
    };
    for variant in &mut task.variants {
        let on = |by: f64| Behaviour {
            latency: variant.latency.iter().map(|point| times(point, LONGER * by)).collect(),
            max_batch: variant.max_batch,
            memory: variant.memory,
            load_time: variant.load_time,
            profiled: None,
        };
        variant.on = [("quick", 1.0), ("slow", SLOW)].map(|(class, by)| (class.into(), on(by))).into();
    }
    task
}

/// Machines that are not alike, each given by its class and its lanes.
fn world(machines: &[(&str, u16)], streams: Vec<Stream>, announce: u16) -> Scenario {
    let task = ladder();
    let all: Vec<_> = task.variants.iter().map(|variant| variant.id).collect();
    let node = |(class, lanes): &(&str, u16)| NodeSpec {
        class: String::from(*class),
        ..NodeSpec::with(*lanes, Bytes::from_mib(64), all.clone())
    };
    let nodes = machines.iter().map(node).collect();
    let mut world = Scenario::new("announcing", vec![task], nodes, streams);
    world.limits.announce = announce;
    world.duration = Micros::from_secs(2);
    world
}

const UNEQUAL: [(&str, u16); 4] = [("quick", 1), ("quick", 2), ("slow", 1), ("slow", 2)];

/// About as much as they can do, in bunches, asked of more strictly and less.
fn bunches() -> Vec<Stream> {
    let bursty = |calm, burst| Arrivals::Bursty { calm, burst, calm_for: ms(300), burst_for: ms(200) };
    vec![
        Stream::new("strict", FASHION, bursty(500.0, 2_200.0), floor(930_000, ms(300))),
        Stream::new("soon", FASHION, bursty(600.0, 3_000.0), floor(900_000, ms(120))),
    ]
}

fn outcome(scenario: &Scenario, seed: u64) -> Outcome {
    run(scenario, seed).unwrap_or_else(|err| panic!("{seed}: {err}"))
}

fn missed(outcome: &Outcome) -> u64 {
    outcome.total.offered - outcome.total.in_time()
}

#[test]
fn unequal_nodes_that_are_busy_miss_fewer_of_what_is_announced_to_all_of_them() {
    for gateways in [1, 2] {
        let of = |announce| {
            let world = Scenario { gateways, ..world(&UNEQUAL, bunches(), announce) };
            (1..=3).map(|seed| outcome(&world, seed)).collect::<Vec<Outcome>>()
        };
        let (without, with) = (of(0), of(16));
        let all = |of: &[Outcome]| of.iter().map(missed).sum::<u64>();
        let accuracy = |of: &[Outcome]| of.iter().map(|one| one.total.accuracy).sum::<f64>() / 3.0;
        assert!(without.iter().all(|one| one.claims == 0) && with.iter().all(|one| one.claims > 1_000));
        let tables = || format!("{}\n{}", table(&without[0]), table(&with[0]));
        assert!(all(&with) * 2 < all(&without), "{} {}\n{}", all(&with), all(&without), tables());
        assert!(accuracy(&with) > accuracy(&without) - 0.005, "{}", tables());
    }
}

#[test]
fn whoever_is_announced_is_answered_no_worse_than_he_asks_and_by_one_node_once() {
    let outcome = outcome(&world(&UNEQUAL, bunches(), 16), 1);
    assert!(outcome.claims > 1_000, "{}", table(&outcome));
    for (stream, floor) in outcome.streams.iter().zip([0.93, 0.90]) {
        assert!(stream.in_time() > 0 && stream.accuracy >= floor, "{}", table(&outcome));
    }
    // Nothing crashes and nobody goes away, so whoever ran was answered.
    let ran: u64 = outcome.batches.iter().map(|(size, count)| u64::from(*size) * count).sum();
    assert_eq!((ran, outcome.echoes), (outcome.total.answered, 0), "{}", table(&outcome));
}

#[test]
fn what_takes_hardly_longer_than_to_ask_for_it_is_not_announced() {
    let away = |one_way: Micros, announce: u16| {
        let near = world(&UNEQUAL, bunches(), announce);
        outcome(&Scenario { link: LinkSpec { one_way, ..near.link }, ..near }, 1)
    };
    assert!(away(Micros(50), 16).claims > 0);
    assert_eq!(away(ms(20), 16), away(ms(20), 0));
}

#[test]
fn where_nodes_are_free_announcing_changes_nothing() {
    let calm = Arrivals::Poisson { rate: 5.0 };
    let calm = Stream::new("calm", FASHION, calm, floor(930_000, ms(300)));
    let free = |announce| outcome(&world(&UNEQUAL, vec![calm.clone()], announce), 1);
    assert_eq!(free(16), free(0));
}

#[test]
fn a_node_that_stops_after_it_has_claimed_costs_nobody_an_answer_that_another_can_give() {
    let calm = vec![Stream::new("calm", FASHION, Arrivals::Poisson { rate: 500.0 }, floor(930_000, ms(600)))];
    let mut world = world(&UNEQUAL, calm, 16);
    world.faults =
        (1..4).map(|at| Fault::NodeDown { node: 1, at: ms(500 * at), back: Some(ms(300)) }).collect();
    let outcome = outcome(&world, 1);
    assert!(outcome.claims > 0, "{}", table(&outcome));
    assert_eq!((outcome.total.refusals(), outcome.total.lost), (0, 0), "{}", table(&outcome));
}
