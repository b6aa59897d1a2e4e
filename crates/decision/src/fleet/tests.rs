//! The rules, alone and in a world where everything fails.

use super::world::{Faults, SETTLES_S, World, pool};
use super::*;
use alloc::string::ToString as _;
use alloc::vec;
use modelless_types::MachineState as S;
use proptest::prelude::*;

fn at(s: u64) -> Time {
    Time::ZERO + Micros::from_secs(s)
}

fn machine(id: u64, state: S, since: u64) -> Machine {
    Machine {
        id: MachineId(id),
        pool: "a".to_string(),
        name: alloc::format!("a-{id}"),
        instance: Some(alloc::format!("i-{id}")),
        state,
        since: at(since),
        asked: at(since),
        joined: (state == S::Joined).then(|| at(since)),
        price: PricePerHour(100),
    }
}

fn listed(id: u64) -> Listed {
    Listed { name: alloc::format!("a-{id}"), instance: alloc::format!("i-{id}"), ending: false }
}

/// A pool `a` of these machines, all of which its provider has.
fn of(pool: Pool, machines: Vec<Machine>) -> Input {
    let all = machines.iter().map(|machine| listed(machine.id.0)).collect();
    let there = machines.iter().filter(|machine| machine.state == S::Joined);
    let node = Node { queries: 0, busy_lanes: 0, draining: false };
    Input {
        nodes: Some(there.map(|machine| (machine.name.clone(), node.clone())).collect()),
        listed: BTreeMap::from([("a".to_string(), List { at: at(999), all })]),
        pools: vec![pool],
        machines,
        ..Input::default()
    }
}

/// What becomes of machines, and what else is done, in short.
fn steps(now: u64, input: &Input) -> Vec<String> {
    let short = |step: Step| match step {
        Step::Ask { pool, .. } => alloc::format!("ask {pool}"),
        Step::Start { machine } => alloc::format!("start {}", machine.0),
        Step::Move { machine, to, .. } => alloc::format!("{} {}", machine.0, to.name()),
        Step::Stop { machine, .. } => alloc::format!("stop {}", machine.0),
        Step::Adopt { name, .. } => alloc::format!("adopt {name}"),
        Step::Remove { instance, .. } => alloc::format!("remove {instance}"),
    };
    decide(at(now), input).steps.into_iter().map(short).collect()
}

#[test]
fn a_minimum_is_asked_for_at_once_and_nothing_before_the_provider_has_told_what_there_is() {
    let mut input = of(pool("a", 2, 5, 100), Vec::new());
    assert_eq!(steps(1_000, &input), ["ask a", "ask a"]);
    input.listed.clear();
    let decision = decide(at(1_000), &input);
    assert_eq!((decision.steps.len(), decision.pools[0].blocked), (0, Some(Blocked::Unknown)));
}

#[test]
fn what_is_written_down_is_asked_for_with_its_name_until_its_provider_has_it() {
    let mut input = of(pool("a", 1, 5, 100), vec![machine(1, S::Asked, 990)]);
    assert_eq!(steps(1_000, &input), ["1 starting"], "its provider has it, though nobody wrote that down");
    input.listed.insert("a".into(), List { at: at(999), all: Vec::new() });
    assert_eq!(steps(1_000, &input), ["start 1"]);
    input.calls.insert(MachineId(1), Calls { open: true, ..Calls::default() });
    assert!(steps(1_000, &input).is_empty(), "the request is on its way");
    input.calls.insert(MachineId(1), Calls { failed: 3, last: at(998), ..Calls::default() });
    assert!(steps(1_001, &input).is_empty(), "three failed, so it rests for 4 s");
    assert_eq!(steps(1_002, &input), ["start 1"]);
    input.calls.clear();
    input.listed.insert("a".into(), List { at: at(1_060), all: Vec::new() });
    assert_eq!(steps(1_060, &input), ["1 failed", "ask a"], "nobody took it up within a minute");
    input.began = at(1_057);
    assert_eq!(steps(1_060, &input), ["start 1"], "who began 3 s ago knows of no request before that");
    input.began = at(1_060 - SETTLES_S);
    assert_eq!(steps(1_060, &input), ["1 failed", "ask a"], "and now the list would have it");
}

#[test]
fn one_that_never_joins_dies_or_falls_silent_is_followed_by_another() {
    let starting = of(pool("a", 1, 2, 100), vec![machine(1, S::Starting, 900)]);
    assert!(steps(960, &starting).is_empty());
    assert_eq!(steps(961, &starting), ["1 stopping", "stop 1", "ask a"]);
    let mut dead = of(pool("a", 1, 2, 100), vec![machine(1, S::Joined, 900)]);
    dead.listed.insert("a".into(), List { at: at(999), all: Vec::new() });
    assert!(steps(1_000, &dead).is_empty(), "its node says that it is there, whatever a list lacks");
    dead.nodes = None;
    assert!(steps(1_000, &dead).is_empty(), "nobody knows whether it is");
    dead.nodes = Some(BTreeMap::new());
    assert_eq!(steps(1_000, &dead), ["1 failed", "ask a"]);
    let mut silent = of(pool("a", 1, 2, 100), vec![machine(1, S::Joined, 900)]);
    silent.nodes = Some(BTreeMap::new());
    silent.seen.insert(MachineId(1), at(969));
    assert!(steps(999, &silent).is_empty());
    assert_eq!(steps(1_000, &silent), ["1 stopping", "stop 1", "ask a"]);
    let mut young = silent.clone();
    young.machines[0].joined = Some(at(950));
    assert_eq!(steps(1_000, &young), ["1 failed", "ask a"], "it came and did not stay");
    silent.nodes = None;
    assert!(steps(2_000, &silent).is_empty(), "nobody knows while the live state is away");
}

#[test]
fn a_list_from_before_a_machine_was_there_tells_nothing_of_it() {
    let mut input = of(pool("a", 1, 2, 100), vec![machine(1, S::Starting, 999)]);
    input.listed.insert("a".into(), List { at: at(999 + SETTLES_S - 1), all: Vec::new() });
    assert!(steps(1_005, &input).is_empty());
    input.listed.insert("a".into(), List { at: at(999 + SETTLES_S), all: Vec::new() });
    assert_eq!(steps(1_005, &input), ["1 failed", "ask a"]);
}

#[test]
fn those_on_their_way_are_let_go_first_and_then_the_emptiest() {
    let joined = [1, 2, 3].map(|id| machine(id, S::Joined, 900));
    let mut input =
        of(pool("a", 1, 9, 100), joined.into_iter().chain([machine(4, S::Starting, 995)]).collect());
    let queries = [("a-1", 2), ("a-2", 0), ("a-3", 1)];
    let node = |queries| Node { queries, busy_lanes: 0, draining: false };
    input.nodes = Some(queries.map(|(name, queries)| (name.to_string(), node(queries))).into());
    for (most, expected) in [(4, vec![]), (3, vec!["4 stopping"]), (2, vec!["4 stopping", "2 draining"])] {
        input.wanted.insert("a".into(), (1, most));
        assert_eq!(steps(1_000, &input), expected);
    }
    input.wanted.insert("a".into(), (1, 1));
    assert_eq!(steps(1_000, &input), ["4 stopping", "2 draining", "3 draining"]);
}

#[test]
fn one_that_was_let_go_before_it_joined_has_not_failed_and_one_that_never_joined_has() {
    let stopping = |since, asked| Machine { asked: at(asked), ..machine(1, S::Stopping, since) };
    for (since, expected) in [(930, "1 gone"), (961, "1 failed")] {
        let mut input = of(pool("a", 0, 2, 100), vec![stopping(since, 900)]);
        input.listed.insert("a".into(), List { at: at(999), all: Vec::new() });
        assert_eq!(steps(1_000, &input), [expected]);
    }
}

#[test]
fn what_drains_is_taken_away_when_it_has_left_or_its_time_is_over() {
    let mut input = of(pool("a", 0, 9, 100), vec![machine(1, S::Draining, 990)]);
    input.seen.insert(MachineId(1), at(998));
    assert!(steps(1_000, &input).is_empty(), "it ends what it has");
    assert_eq!(steps(1_002, &input), ["1 stopping", "stop 1"], "its node has left");
    input.seen.insert(MachineId(1), at(1_021));
    assert_eq!(steps(1_021, &input), ["1 stopping", "stop 1"], "it takes too long");
    input.listed.insert("a".into(), List { at: at(1_021), all: Vec::new() });
    assert_eq!(steps(1_021, &input), ["1 gone"], "it ended by itself");
}

#[test]
fn one_whose_provider_takes_it_away_is_followed_by_another_before_it_is_gone() {
    let mut input = of(pool("a", 1, 2, 100), vec![machine(1, S::Joined, 900)]);
    input.listed.get_mut("a").unwrap().all[0].ending = true;
    assert_eq!(steps(1_000, &input), ["1 draining", "ask a"]);
}

#[test]
fn an_orphan_is_adopted_where_it_is_wanted_and_taken_away_elsewhere() {
    let mut input = of(pool("a", 1, 2, 100), vec![machine(1, S::Joined, 900)]);
    input.listed.get_mut("a").unwrap().all.push(listed(7));
    input.wanted.insert("a".into(), (2, 2));
    assert_eq!(steps(1_000, &input), ["adopt a-7"], "and none is asked for in its place");
    input.wanted.insert("a".into(), (1, 1));
    assert_eq!(steps(1_000, &input), ["remove i-7"]);
    input.wanted.insert("a".into(), (2, 2));
    input.ended.insert("a-7".into());
    assert_eq!(steps(1_000, &input), ["remove i-7"], "and none is asked for before it is gone");
    input.ended.clear();
    input.listed.get_mut("a").unwrap().all.extend([listed(8), listed(9)]);
    assert_eq!(steps(1_000, &input), ["remove i-7", "remove i-8", "adopt a-9"]);
}

#[test]
fn the_budget_stops_what_the_maximum_would_allow_and_a_smaller_one_lets_go() {
    let mut input = of(pool("a", 0, 9, 100), vec![machine(1, S::Joined, 900), machine(2, S::Joined, 901)]);
    input.wanted.insert("a".into(), (5, 5));
    input.budget = Some(PricePerHour(399));
    let decision = decide(at(1_000), &input);
    assert_eq!(decision.steps.len(), 1);
    let would = PricePerHour(400);
    assert_eq!(decision.pools[0].blocked, Some(Blocked::Budget { would, budget: PricePerHour(399) }));
    input.budget = Some(PricePerHour(100));
    assert_eq!(steps(1_000, &input), ["2 draining"]);
}

#[test]
fn minimums_come_before_what_is_wanted_beyond_them() {
    let mut input = of(pool("a", 0, 9, 100), Vec::new());
    input.pools.push(pool("b", 1, 9, 100));
    input.listed.insert("b".into(), List::default());
    input.wanted.insert("a".into(), (5, 5));
    input.budget = Some(PricePerHour(200));
    assert_eq!(steps(1_000, &input), ["ask b", "ask a"]);
}

#[test]
fn after_failures_one_is_tried_at_a_time_and_not_before_the_rest_is_over() {
    let mut input = of(pool("a", 3, 9, 100), Vec::new());
    input.failures.insert("a".into(), Failures { in_a_row: 2, last: at(995), never_joined: 0 });
    assert!(steps(1_004, &input).is_empty());
    assert_eq!(steps(1_005, &input), ["ask a"]);
}

#[test]
fn only_the_designed_transitions_exist() {
    let edges = S::ALL.iter().flat_map(|from| S::ALL.iter().filter(|to| from.may_become(**to)));
    assert_eq!(edges.count(), 13);
    assert!(
        S::ALL.iter().filter(|state| state.ended()).all(|end| S::ALL.iter().all(|to| !end.may_become(*to)))
    );
}

fn faults() -> impl Strategy<Value = Faults> {
    let (some, rare) = (0..400_u64, 0..30_u64);
    (some.clone(), some.clone(), rare.clone(), some, rare.clone(), rare).prop_map(
        |(capacity, lost, away, never, dies, killed)| Faults {
            capacity,
            lost,
            away,
            never,
            dies,
            killed,
            lacks: 0,
            forgotten: dies / 10,
        },
    )
}

const BUDGET: u64 = 1_000;

/// Two pools, of which at most 6 and 4 machines may be there, and 1,000 micro-dollars an hour for 100 and 150 each.
fn world(seed: u64) -> World {
    World::new(seed, vec![pool("a", 1, 6, 100), pool("b", 0, 4, 150)], Some(BUDGET))
}

fn within_limits(world: &World) {
    let (a, b) = (world.really("a"), world.really("b"));
    assert!(a <= 6 && b <= 4, "{a} {b} at {}", world.now);
    assert!(a * 100 + b * 150 <= usize::try_from(BUDGET).unwrap(), "{a} {b} at {}", world.now);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_fails_there_are_never_too_many_and_in_the_end_there_are_as_many_as_wanted(
        seed in any::<u64>(),
        faults in faults(),
        wants in proptest::collection::vec((0..9_u32, 0..3_u32, 0..6_u32), 1..6),
        end in (1..5_u32, 0..3_u32),
    ) {
        let mut world = world(seed);
        world.faults = faults;
        for (a, slack, b) in wants {
            world.want("a", a, a + slack);
            world.want("b", b, b + slack);
            for _ in 0..120 {
                world.second();
                within_limits(&world);
            }
        }
        // Nothing fails any longer. The longest rest after failures is ten minutes.
        world.faults = Faults::default();
        world.want("a", end.0, end.0);
        world.want("b", end.1, end.1);
        for _ in 0..1_200 {
            world.second();
            within_limits(&world);
        }
        let there = (world.joined("a"), world.joined("b"));
        prop_assert_eq!(there, (end.0 as usize, end.1 as usize), "{:?}", world.states());
        prop_assert_eq!((world.really("a"), world.really("b")), there);
        let (asked, let_go) = (world.asked, world.let_go);
        for _ in 0..300 {
            world.second();
        }
        prop_assert_eq!((world.asked, world.let_go), (asked, let_go), "nothing moves any more");
    }

    #[test]
    fn without_failures_each_machine_is_asked_for_once_and_let_go_once(seed in any::<u64>()) {
        let mut world = world(seed);
        world.want("a", 5, 5);
        (0..60).for_each(|_| world.second());
        prop_assert_eq!((world.joined("a"), world.asked, world.let_go), (5, 5, 0));
        world.want("a", 2, 5);
        (0..60).for_each(|_| world.second());
        prop_assert_eq!((world.joined("a"), world.let_go), (5, 0), "what is between least and most stays");
        world.want("a", 2, 2);
        (0..60).for_each(|_| world.second());
        prop_assert_eq!((world.joined("a"), world.asked, world.let_go), (2, 5, 3));
    }

    #[test]
    fn who_serves_is_not_given_up_because_a_list_lacks_him(seed in any::<u64>(), lacks in prop_oneof![Just(1_000_u64), 1..1_000_u64]) {
        let mut world = world(seed);
        world.want("a", 5, 5);
        (0..60).for_each(|_| world.second());
        world.faults.lacks = lacks;
        (0..300).for_each(|_| world.second());
        prop_assert_eq!((world.joined("a"), world.asked, world.let_go), (5, 5, 0), "{:?}", world.states());
        prop_assert!(world.states().iter().all(|state| *state == S::Joined));
    }

    #[test]
    fn a_minimum_is_short_no_longer_than_a_machine_takes_to_be_replaced(seed in any::<u64>()) {
        let mut world = world(seed);
        (0..60).for_each(|_| world.second());
        world.faults.dies = 10;
        let (mut short, mut idle) = (0, 0);
        for _ in 0..1_200 {
            world.second();
            // A machine that dies young rests 5 s; a list is believed 5 s after the start; it takes up to 22 s to join.
            short = if world.joined("a") == 0 { short + 1 } else { 0 };
            let asked = world.states().contains(&S::Asked) || world.states().contains(&S::Starting);
            let resting = world.input.failures["a"].until().is_some_and(|until| until > at(world.now));
            idle = if short < 15 || asked || resting { 0 } else { idle + 1 };
            prop_assert!(idle < 2, "nobody does anything about it at {}: {:?}", world.now, world.states());
        }
    }

    #[test]
    fn strays_are_adopted_up_to_what_is_wanted_and_taken_away_beyond(seed in any::<u64>(), strays in 1..5_usize) {
        let mut world = world(seed);
        world.want("a", 3, 3);
        (0..strays).for_each(|_| world.stray("a"));
        (0..90).for_each(|_| world.second());
        prop_assert_eq!(world.joined("a"), 3);
        prop_assert_eq!(world.really("a"), 3);
        prop_assert_eq!(world.asked, 3_u64.saturating_sub(strays as u64));
    }
}
