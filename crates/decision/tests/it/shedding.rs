//! Overload in the worker: who gives way, and what is said of the replica.

use crate::common::{TASK, query};
use modelless_decision::replica::Host;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, Priority, ReplicaState,
    Time, VariantId,
};
use std::collections::{BTreeMap, VecDeque};

const DEVICE: DeviceIx = DeviceIx(0);
const EACH: u64 = 10_000;

pub(crate) struct World {
    pub(crate) worker: Worker,
    pub(crate) now: Time,
    pub(crate) refused: Vec<u64>,
    pub(crate) answered: Vec<u64>,
    /// Given back, and when.
    pub(crate) handed_back: Vec<(u64, Time)>,
    /// Handed over, in order; the first ends at `end`.
    started: VecDeque<BatchId>,
    sizes: BTreeMap<BatchId, u64>,
    end: Time,
    next: u64,
    pub(crate) slowness: u64,
    states: Vec<ReplicaState>,
    /// Whose batches were prepared, in order.
    pub(crate) prepared: Vec<Vec<u64>>,
    pub(crate) unloaded: Vec<VariantId>,
}

/// As the task's `ordinal`-th, so many microseconds a query.
pub(crate) fn variant(ordinal: u8, each: u64, max_batch: u32) -> WorkerVariant {
    let mean_us = Moments::exactly(Micros(each)).mean;
    let point = |batch: u32| {
        let mean_us = mean_us * f64::from(batch);
        BatchPoint { batch, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 }
    };
    let points: Vec<BatchPoint> = [1, max_batch.max(2)].map(point).into();
    WorkerVariant {
        id: VariantId(u32::from(ordinal)),
        model: ModelId(u32::from(ordinal)),
        engine: Engine::Onnx,
        task: TASK,
        ordinal,
        accuracy: Accuracy::ONE,
        max_batch,
        run: RunModel::from_points(&points, Moments::ZERO).expect("a point"),
        memory: Bytes(1),
        load_time: Micros(1_000),
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    }
}

impl World {
    /// One lane, 10 ms a query.
    pub(crate) fn new() -> Self {
        Self::with_devices(1)
    }

    /// The same with further devices, which have nothing in memory.
    pub(crate) fn with_devices(count: usize) -> Self {
        Self::made(count, 1)
    }

    /// So many devices; so many may share a batch, each of which takes as long as it would alone.
    pub(crate) fn made(count: usize, max_batch: u32) -> Self {
        let device = DeviceConfig { lanes: 1, width: 1, memory: Bytes(10), price: PricePerHour(1_000) };
        let worker = Worker::new(WorkerConfig { devices: vec![device; count], ..WorkerConfig::default() });
        let mut world = Self {
            worker,
            now: Time(10_000_000),
            refused: Vec::new(),
            answered: Vec::new(),
            handed_back: Vec::new(),
            started: VecDeque::new(),
            sizes: BTreeMap::new(),
            end: Time::ZERO,
            next: 0,
            slowness: 1,
            states: Vec::new(),
            prepared: Vec::new(),
            unloaded: Vec::new(),
        };
        world.serves(vec![variant(0, EACH, max_batch)]);
        world
    }

    /// These are in memory on the first device from now on, and no others.
    pub(crate) fn serves(&mut self, variants: Vec<WorkerVariant>) {
        let ids: Vec<VariantId> = variants.iter().map(|variant| variant.id).collect();
        self.feed(Event::Catalog(variants));
        self.feed(Event::Pin(ids.iter().map(|id| (DEVICE, *id)).collect()));
        let (memory, took) = (Bytes(1), Micros(1_000));
        for variant in ids {
            self.feed(Event::Loaded { device: DEVICE, variant, memory, took });
        }
        self.states.clear();
    }

    pub(crate) fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.perform();
    }

    fn takes(&self, batch: BatchId) -> Micros {
        Micros(EACH * self.slowness * self.sizes[&batch])
    }

    fn perform(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            match action {
                Action::Prepare { batch, queries, .. } => {
                    self.sizes.insert(batch, queries.len() as u64);
                    self.prepared.push(queries.iter().map(|key| key.0).collect());
                    self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
                }
                Action::Start { batch } => {
                    if self.started.is_empty() {
                        self.end = self.now + self.takes(batch);
                    }
                    self.started.push_back(batch);
                }
                Action::Deliver { queries, .. } => self.answered.extend(queries.iter().map(|key| key.0)),
                Action::Refuse { key, .. } => self.refused.push(key.0),
                Action::HandBack { key, .. } => self.handed_back.push((key.0, self.now)),
                Action::Transition { to, .. } => self.states.push(to),
                Action::Unload { variant, .. } => self.unloaded.push(variant),
                Action::Discard { .. }
                | Action::Quarantine { .. }
                | Action::Discharge { .. }
                | Action::Revoke { .. }
                | Action::Suspect { .. }
                | Action::QuarantineOver { .. }
                | Action::Load { .. }
                | Action::Recut { .. }
                | Action::Narrow { .. }
                | Action::Drifted { .. }
                | Action::Steadied { .. }
                | Action::Claim { .. }
                | Action::Decline { .. } => {}
            }
        }
    }

    pub(crate) fn caution(&self) -> f64 {
        self.worker.caution(self.now)
    }

    /// Another node could answer a query after all.
    pub(crate) fn may_return(&mut self, key: u64) {
        self.feed(Event::MayReturn { key: modelless_types::QueryKey(key) });
    }

    pub(crate) fn ask(&mut self, level: u8, latency: Micros) -> u64 {
        self.ask_here(level, latency, false)
    }

    /// `returnable` says whether another node could answer it too.
    pub(crate) fn ask_here(&mut self, level: u8, latency: Micros, returnable: bool) -> u64 {
        self.ask_of(0, level, latency, returnable)
    }

    /// Only the variant with this ordinal may answer it.
    pub(crate) fn ask_of(&mut self, ordinal: u8, level: u8, latency: Micros, returnable: bool) -> u64 {
        self.next += 1;
        let mut query = query(self.next, self.now, [ordinal].into_iter().collect(), latency);
        query.priority = Priority::from_level(level).expect("a level");
        query.returnable = returnable;
        self.feed(Event::Arrive(query));
        self.next
    }

    /// Nothing happens here for a while, on the device neither.
    pub(crate) fn stands_still(&mut self, time: Micros) {
        self.now = self.now + time;
        self.end = self.end + time;
    }

    pub(crate) fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        loop {
            let end = Some(self.end).filter(|end| !self.started.is_empty() && *end <= until);
            let wake = self.worker.poll_timeout().map(|wake| wake.at).filter(|at| *at <= until);
            if let Some(end) = end.filter(|end| wake.is_none_or(|wake| *end <= wake)) {
                self.now = self.now.max(end);
                let batch = self.started.pop_front().expect("just looked");
                self.end = self.now + self.started.front().map_or(Micros(0), |next| self.takes(*next));
                self.feed(Event::Done { batch, outcome: Outcome::Ran });
            } else if let Some(wake) = wake {
                self.now = self.now.max(wake);
                self.worker.handle_timeout(self.now);
                self.perform();
            } else {
                break;
            }
        }
        self.now = until;
    }
}

#[test]
fn when_not_all_can_be_in_time_the_least_important_is_given_up_and_no_other() {
    let mut world = World::new();
    world.ask(5, Micros::from_secs(1));
    // Three of 10 ms each behind what runs: the last cannot be in time if all three go.
    let (first, least, last) =
        (world.ask(5, Micros(42_000)), world.ask(9, Micros(43_000)), world.ask(1, Micros(44_000)));
    world.ask(5, Micros(45_000));
    world.pass(Micros::from_secs(1));
    assert_eq!(world.refused, [least], "{:?}", world.answered);
    assert!(world.answered.contains(&first) && world.answered.contains(&last), "{:?}", world.answered);
    assert!(world.caution() < 1.001, "that was foreseen, and no reason to be more cautious");
}

#[test]
fn among_equals_nobody_is_given_up_before_it_is_late() {
    let mut world = World::new();
    world.ask(5, Micros::from_secs(1));
    let keys: Vec<u64> = (0..4).map(|more| world.ask(5, Micros(42_000 + more))).collect();
    world.pass(Micros(15_000));
    assert_eq!(world.refused, [0_u64; 0]);
    world.pass(Micros::from_secs(1));
    assert_eq!(world.refused, [keys[3]], "the last to come is the one that is late");
    assert!((1.05..1.15).contains(&world.caution()), "{}", world.caution());
}

#[test]
fn who_is_late_because_the_machine_stood_still_or_may_go_elsewhere_makes_nobody_cautious() {
    let late = |stands: Micros, returnable: bool| {
        let mut world = World::new();
        (0..4).for_each(|more| {
            world.ask_here(5, Micros(42_000 + more), returnable);
        });
        world.stands_still(stands);
        world.pass(Micros::from_millis(500));
        (world.refused.len(), world.handed_back.len(), world.caution() > 1.05)
    };
    assert_eq!(late(Micros::ZERO, false), (0, 0, false));
    // Three behind the one that runs, and a bound for one.
    assert_eq!(late(Micros::from_millis(12), false), (2, 0, true), "so little is the noise of every day");
    assert_eq!(late(Micros::from_millis(300), false), (3, 0, false));
    let (refused, back, cautious) = late(Micros::from_millis(12), true);
    assert_eq!((refused, back > 0, cautious), (0, true, false));
}

#[test]
fn a_cautious_node_with_little_to_do_is_not_overloaded() {
    let mut world = World::new();
    (0..200).for_each(|_| {
        world.ask(5, Micros::from_millis(100));
    });
    world.pass(Micros::from_secs(20));
    assert!(world.caution() > 2.5, "{}", world.caution());
    assert_eq!(world.states.last(), Some(&ReplicaState::Active));
    let before = world.states.len();
    // Four tenths of what it can do, and more than it could if everything took so long.
    for _ in 0..200 {
        world.ask(5, Micros::from_millis(60));
        world.pass(Micros::from_millis(25));
    }
    assert!(world.caution() > 2.0, "{}", world.caution());
    assert_eq!(&world.states[before..], [], "nobody waits");
}

#[test]
fn a_replica_whose_queue_cannot_drain_is_overloaded_until_it_can() {
    let mut world = World::new();
    for _ in 0..100 {
        world.ask(5, Micros(200_000));
    }
    world.pass(Micros(100_000));
    assert_eq!(world.states, [ReplicaState::Overloaded]);
    world.pass(Micros::from_secs(2));
    assert_eq!(world.states, [ReplicaState::Overloaded, ReplicaState::Active], "told once each");
}

#[test]
fn a_replica_that_is_slower_than_its_profile_is_interfered_until_it_is_not() {
    let mut world = World::new();
    world.slowness = 4;
    for _ in 0..40 {
        world.ask(5, Micros::from_secs(1));
        world.pass(Micros::from_millis(100));
    }
    assert_eq!(world.states, [ReplicaState::Interfered]);
    world.slowness = 1;
    // Until what is learnt is near the profile again, and was for a while.
    for _ in 0..150 {
        world.ask(5, Micros::from_secs(1));
        world.pass(Micros::from_millis(100));
    }
    assert_eq!(world.states, [ReplicaState::Interfered, ReplicaState::Active]);
}

#[test]
fn a_replica_that_is_slow_for_a_moment_again_and_again_does_not_go_to_and_fro() {
    let mut world = World::new();
    for round in 0..40 {
        world.slowness = if round % 2 == 0 { 3 } else { 1 };
        for _ in 0..20 {
            world.ask(5, Micros::from_secs(1));
            world.pass(Micros::from_millis(100));
        }
    }
    assert!(world.states.len() <= 2, "{:?}", world.states);
}

#[test]
fn what_a_machine_does_stands_for_a_replica_that_is_spared_and_ends_its_trouble_when_it_is_over() {
    let host = |busy_milli| {
        Event::Host(Host { cores: 1, busy_milli, steal_permille: 0, runnable: 1, own_milli: None })
    };
    let mut world = World::new();
    world.slowness = 4;
    for _ in 0..40 {
        world.ask(5, Micros::from_secs(1));
        world.pass(Micros::from_millis(100));
    }
    assert_eq!(world.states, [ReplicaState::Interfered]);
    for _ in 0..30 {
        world.feed(host(1_000));
        world.pass(Micros::from_secs(1));
    }
    assert_eq!(world.states, [ReplicaState::Interfered], "nothing of it is run and the core is still busy");
    let slow = world.worker.correction(VariantId(0)).ratio;
    assert!(slow > 1.5, "what was seen of it stands as well: {slow}");
    for _ in 0..20 {
        world.feed(host(20));
        world.pass(Micros::from_secs(1));
    }
    assert_eq!(world.states, [ReplicaState::Interfered, ReplicaState::Active]);
}
