//! Batches that another server computes, and the lanes that they do not hold.

use crate::common::query;
use crate::suspecting::{DEVICE, LEAST, World, bound, variant};
use modelless_decision::worker::{Action, BatchId, Event, Foresight, LaneIx, WorkerConfig, WorkerVariant};
use modelless_types::{Accuracy, Engine, Micros, QueryKey};

/// How long a server takes, and a core.
const THERE: f64 = 5_000.0;
const HERE: f64 = 20_000.0;

/// 0 and 1 are on a server, of two models; 2 is here.
fn world(lanes: u16) -> World {
    let there = |at| WorkerVariant { engine: Engine::Remote, ..variant(at, THERE) };
    World::with(lanes, LEAST, vec![there(0), there(1), variant(2, HERE)])
}

fn delivered(actions: &[Action], batch: BatchId, key: u64) -> bool {
    actions.contains(&Action::Deliver { batch, queries: vec![QueryKey(key)] })
}

impl World {
    /// One runs on the server, and one more is handed over behind it.
    fn fills_the_way(&mut self) -> (BatchId, BatchId) {
        let first = self.runs(1, 0);
        let mut actions = self.arrive(2, 0);
        assert_eq!(bound(&actions), None, "more may come to share its batch until it is nearly its turn");
        actions.extend(self.pass(Micros(4_000)));
        let (second, ..) = bound(&actions).expect("behind the first");
        self.starts(second);
        (first, second)
    }
}

#[test]
fn what_a_server_computes_holds_no_lane() {
    let mut world = world(1);
    let there = world.runs(1, 0);
    let here = world.runs(2, 2);
    let other = world.runs(3, 1);
    assert!(delivered(&world.done(there), there, 1));
    assert!(delivered(&world.done(other), other, 3));
    assert!(delivered(&world.done(here), here, 2));
    assert_eq!(world.worker.open(), 0);
}

#[test]
fn a_server_does_not_wait_for_what_runs_here() {
    let mut world = world(1);
    world.runs(1, 2);
    // Asserts that it is handed over as soon as it is prepared.
    let there = world.runs(2, 0);
    assert!(delivered(&world.done(there), there, 2));
    assert_eq!(bound(&world.arrive(3, 2)), None, "the core has something to do");
}

#[test]
fn one_more_is_handed_over_behind_what_a_server_computes_and_no_third() {
    let mut world = world(1);
    let (first, second) = world.fills_the_way();
    assert_eq!(bound(&world.arrive(3, 0)), None, "its way is full");
    let here = world.runs(4, 2);
    let other = world.runs(5, 1);
    let mut actions = world.done(first);
    assert!(delivered(&actions, first, 1));
    actions.extend(world.pass(Micros(4_500)));
    let (third, lane, variant) = bound(&actions).expect("its way takes it now");
    assert_eq!((lane, variant), (LaneIx(0), 0));
    world.starts(third);
    for (batch, key) in [(second, 2), (third, 3), (here, 4), (other, 5)] {
        assert!(delivered(&world.done(batch), batch, key));
    }
}

#[test]
fn whom_only_a_server_answers_in_time_waits_for_its_way_and_is_not_refused() {
    let mut world = world(1);
    let (first, second) = world.fills_the_way();
    // A core would take too long, and the server has about six milliseconds to go before it could begin.
    let admits = [0, 2].into_iter().collect();
    let asked = query(3, world.now, admits, Micros(15_000));
    let mut actions = world.feed(Event::Arrive(asked));
    actions.extend(world.done(first));
    actions.extend(world.pass(Micros(4_500)));
    actions.extend(world.done(second));
    let refused = actions.iter().any(|action| matches!(action, Action::Refuse { .. }));
    assert!(!refused, "{actions:?}");
    assert_eq!(bound(&actions).map(|(.., variant)| variant), Some(0));
}

#[test]
fn lanes_are_cut_anew_whatever_a_server_computes() {
    let mut world = world(2);
    let there = world.runs(1, 0);
    let cut = world.feed(Event::Recut { device: DEVICE, width: 2 });
    assert!(cut.contains(&Action::Recut { device: DEVICE, width: 2, lanes: 1 }), "{cut:?}");
    assert!(delivered(&world.done(there), there, 1));
}

#[test]
fn in_recordings_from_before_a_server_holds_its_lane() {
    let mut told = serde_json::to_value(WorkerConfig::default()).expect("writes");
    told.as_object_mut().and_then(|fields| fields.remove("servers_apart")).expect("it is told");
    let config: WorkerConfig = serde_json::from_value(told).expect("reads");
    assert!(!config.servers_apart);
    let there = || WorkerVariant { engine: Engine::Remote, ..variant(0, THERE) };
    let mut world = World::of(&config, 1, vec![there(), variant(1, HERE)]);
    world.runs(1, 0);
    assert_eq!(bound(&world.arrive(2, 1)), None, "until it is nearly over");
}

#[test]
fn what_lanes_can_afford_says_nothing_of_servers() {
    // The most accurate is on a server.
    let accuracy = Accuracy::from_ppm(990_000).expect("below one");
    let there = WorkerVariant { engine: Engine::Remote, accuracy, ..variant(2, THERE) };
    let foresight = Foresight { to_come: false, caution: false, ..Foresight::default() };
    let config = WorkerConfig { foresight, ..WorkerConfig::default() };
    let mut world = World::of(&config, 1, vec![variant(0, 1_000.0), variant(1, HERE), there]);
    let admits = || [0, 1, 2].into_iter().collect();
    // Far more than the lane could answer come, and are refused at once: they only show how queries come.
    for key in 1_000..3_000 {
        let asked = query(key, world.now, admits(), Micros(1));
        world.feed(Event::Arrive(asked));
        world.now = world.now + Micros(400);
    }
    let asked = query(1, world.now, admits(), Micros(100_000));
    let told = world.feed(Event::Arrive(asked));
    assert_eq!(bound(&told).map(|(.., variant)| variant), Some(2));
}
