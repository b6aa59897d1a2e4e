//! What makes room for what, and when.

use crate::common::{TASK, query};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Batching, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, ReplicaState,
    Time, VariantId, VariantSet,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const DEVICE: DeviceIx = DeviceIx(0);
const FAR: Micros = Micros::from_secs(1_000);
const STAY: Micros = Micros::from_millis(100);
const LOAD: Micros = Micros::from_millis(10);
/// Longer than anything is remembered as being in demand.
const AGES: Micros = Micros::from_secs(30);
/// As long as what left unanswered is remembered.
const LATELY: Micros = Micros::from_secs(10);

fn variant(at: u8, memory: u64) -> WorkerVariant {
    let point = BatchPoint { batch: 1, mean_us: 100.0, var_us2: 0.0, p99_us: 100.0, samples: 1 };
    WorkerVariant {
        id: VariantId(u32::from(at)),
        model: ModelId(u32::from(at)),
        engine: Engine::Onnx,
        task: TASK,
        ordinal: at,
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a point"),
        memory: Bytes(memory),
        load_time: LOAD,
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    }
}

fn admits_id(admits: &VariantSet, id: u32) -> bool {
    u8::try_from(id).is_ok_and(|id| admits.contains(id))
}

/// A shell in which loads and batches take no time unless it is told to hold them.
struct World {
    worker: Worker,
    now: Time,
    budget: u64,
    /// How many there are: from 0.
    variants: u32,
    memory: BTreeMap<u32, (u64, Time)>,
    evictions: Vec<(u32, Time)>,
    loads: Vec<(u32, Time)>,
    /// What ran, and for how many queries at once.
    batches: Vec<(u32, usize)>,
    next: u64,
    /// What a batch takes; nothing where that is `None`.
    takes: Option<Micros>,
    /// Handed over, in order, and when each ends.
    running: VecDeque<(BatchId, Time)>,
    /// Queries that are not bound, with what may answer them.
    waiting: BTreeMap<u64, (Time, VariantSet)>,
    late: Vec<u64>,
    /// When one of a class last left unanswered while nothing in memory could answer it, if nothing that can came since.
    refused: BTreeMap<VariantSet, Time>,
    /// Batches that did not end, with what answers them.
    bound: BTreeMap<BatchId, u32>,
    pinned: BTreeSet<u32>,
    /// In memory, and taking nothing more.
    leaving: BTreeSet<u32>,
    /// For which variants what has queued work was evicted rightly: one of them must be the next to be loaded.
    owed: Option<(BTreeSet<u32>, String)>,
}

fn departs(action: &Action) -> bool {
    matches!(action, Action::Transition { to: ReplicaState::Draining, .. } | Action::Unload { .. })
}

impl World {
    fn new(budget: u64, memory: &[u64]) -> Self {
        let device =
            DeviceConfig { lanes: 1, width: 1, memory: Bytes(budget), price: PricePerHour(1_000_000) };
        let config = WorkerConfig { devices: vec![device], min_residence: STAY, ..WorkerConfig::default() };
        let mut world = Self {
            worker: Worker::new(config),
            now: Time(1_000_000),
            budget,
            variants: u32::try_from(memory.len()).expect("few"),
            memory: BTreeMap::new(),
            evictions: Vec::new(),
            loads: Vec::new(),
            batches: Vec::new(),
            next: 0,
            takes: None,
            running: VecDeque::new(),
            waiting: BTreeMap::new(),
            late: Vec::new(),
            refused: BTreeMap::new(),
            bound: BTreeMap::new(),
            pinned: BTreeSet::new(),
            leaving: BTreeSet::new(),
            owed: None,
        };
        let variants = memory.iter().zip(0_u8..).map(|(memory, at)| variant(at, *memory)).collect();
        world.feed(Event::Catalog(variants));
        world
    }

    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.perform();
    }

    fn perform(&mut self) {
        let mut actions: VecDeque<Action> = VecDeque::new();
        loop {
            actions.extend(std::iter::from_fn(|| self.worker.poll_action()));
            let Some(action) = actions.pop_front() else { return };
            match action {
                Action::Load { device, variant } => {
                    if let Some((rightly, evicted)) = self.owed.take() {
                        assert!(rightly.contains(&variant.0), "{evicted}, and {variant} is loaded");
                    }
                    self.refused.retain(|admits, _| !admits_id(admits, variant.0));
                    let memory =
                        self.worker.replicas().iter().find(|r| r.variant == variant).expect("known").memory;
                    assert!(self.memory.insert(variant.0, (memory.0, self.now)).is_none(), "loaded twice");
                    let used: u64 = self.memory.values().map(|(bytes, _)| bytes).sum();
                    assert!(used <= self.budget, "{used} of {}", self.budget);
                    self.loads.push((variant.0, self.now));
                    let loaded = Event::Loaded { device, variant, memory, took: LOAD };
                    self.worker.handle(self.now, loaded);
                }
                Action::Unload { device, variant } => {
                    let (_, since) = self.memory.remove(&variant.0).expect("only what is loaded is unloaded");
                    assert!(self.now - since >= STAY, "{variant} was there for {} only", self.now - since);
                    self.evictions.push((variant.0, self.now));
                    self.worker.handle(self.now, Event::Unloaded { device, variant });
                }
                Action::Prepare { batch, queries, variant, .. } => {
                    self.bound.insert(batch, variant.0);
                    self.batches.push((variant.0, queries.len()));
                    for query in queries {
                        self.waiting.remove(&query.0);
                    }
                    self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
                }
                Action::Start { batch } if self.takes.is_some() => {
                    let begins = self.running.back().map_or(self.now, |(_, end)| *end);
                    self.running.push_back((batch, begins + self.takes.unwrap_or_default()));
                }
                Action::Start { batch } => {
                    self.bound.remove(&batch);
                    self.worker.handle(self.now, Event::Done { batch, outcome: Outcome::Ran });
                }
                Action::Refuse { key, .. } => {
                    if let Some((_, admits)) = self.waiting.remove(&key.0)
                        && !self.serves(&admits)
                    {
                        self.refused.insert(admits, self.now);
                    }
                    self.late.push(key.0);
                }
                // Those who go together were chosen together, so all of them are looked at before the first is gone.
                Action::Transition { variant, to: ReplicaState::Draining, .. } => {
                    if !self.leaving.contains(&variant.0) {
                        let others = actions.iter().take_while(|action| departs(action));
                        let others = others.filter_map(|action| {
                            if let Action::Transition { variant, .. } = action {
                                Some(variant.0)
                            } else {
                                None
                            }
                        });
                        self.evicts(&std::iter::once(variant.0).chain(others).collect());
                    }
                }
                Action::Transition { variant, .. } => {
                    self.leaving.remove(&variant.0);
                }
                Action::Discard { batch } => {
                    self.bound.remove(&batch);
                }
                Action::Deliver { .. }
                | Action::Quarantine { .. }
                | Action::Discharge { .. }
                | Action::Revoke { .. }
                | Action::Suspect { .. }
                | Action::QuarantineOver { .. }
                | Action::HandBack { .. }
                | Action::Recut { .. }
                | Action::Narrow { .. }
                | Action::Drifted { .. }
                | Action::Steadied { .. }
                | Action::Claim { .. }
                | Action::Decline { .. } => {}
            }
        }
    }

    /// Whether something in memory that is not on its way out may answer.
    fn serves(&self, admits: &VariantSet) -> bool {
        self.memory.keys().any(|id| !self.leaving.contains(id) && admits_id(admits, *id))
    }

    /// The rule of what has queued work (ADR 0032), at the moment of an eviction.
    fn evicts(&mut self, victims: &BTreeSet<u32>) {
        let rightly = (0..self.variants).filter(|id| self.may_take_what_has_queued_work(*id)).collect();
        let waits: Vec<_> = self.waiting.values().copied().collect();
        let served: Vec<_> = waits.iter().filter(|(_, admits)| self.serves(admits)).collect();
        self.leaving.extend(victims);
        let stranded: Vec<_> = served.iter().filter(|(_, admits)| !self.serves(admits)).collect();
        let runs = victims.iter().any(|id| self.bound.values().any(|bound| bound == id));
        if runs || !stranded.is_empty() {
            let evicted = format!(
                "{victims:?} have queued work {stranded:?} or run ({runs}) at {:?}, and may go for {rightly:?}",
                self.now
            );
            self.owed = Some((rightly, evicted));
        }
    }

    fn may_take_what_has_queued_work(&self, wanted: u32) -> bool {
        let its = |admits: &VariantSet| admits_id(admits, wanted) && !self.serves(admits);
        // What a run takes is learnt, and is never thought to take longer than the longest that was seen or profiled.
        let run = self.takes.map_or(0, |takes| takes.0).max(100);
        let first = self.waiting.values().filter(|(_, admits)| its(admits)).map(|(due, _)| *due).min();
        let owed = || self.refused.iter().any(|(admits, at)| its(admits) && self.now - *at <= LATELY);
        let soon = |due: Time| due <= self.now + Micros(2 * (LOAD.0 + run));
        self.pinned.contains(&wanted) || first.map_or_else(owed, soon)
    }

    fn pin(&mut self, pins: BTreeSet<u32>) {
        // What was to be loaded next may not fit beside them.
        self.owed = None;
        let set = pins.iter().map(|id| (DEVICE, VariantId(*id))).collect();
        self.pinned = pins;
        self.feed(Event::Pin(set));
    }

    fn ask(&mut self, admits: &[u8]) {
        self.ask_within(admits, FAR);
    }

    fn ask_within(&mut self, admits: &[u8], latency: Micros) {
        self.next += 1;
        let admits: VariantSet = admits.iter().copied().collect();
        self.waiting.insert(self.next, (self.now + latency, admits));
        self.feed(Event::Arrive(query(self.next, self.now, admits, latency)));
    }

    fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        let mut rounds = 0;
        loop {
            let wake = self.worker.poll_timeout().filter(|wake| wake.at <= until);
            // Ends come before timers.
            if let Some((batch, end)) = self.running.front().copied().filter(|(_, end)| *end <= until)
                && wake.as_ref().is_none_or(|wake| end <= wake.at)
            {
                self.running.pop_front();
                self.now = end.max(self.now);
                self.bound.remove(&batch);
                self.feed(Event::Done { batch, outcome: Outcome::Ran });
                continue;
            }
            let Some(wake) = wake else { break };
            rounds += 1;
            assert!(rounds < 10_000, "its timers do not move on: {wake:?}");
            self.now = wake.at.max(self.now);
            self.worker.handle_timeout(self.now);
            self.perform();
        }
        self.now = until;
    }

    fn resident(&self) -> Vec<u32> {
        self.memory.keys().copied().collect()
    }
}

#[test]
fn what_was_loaded_moments_ago_is_not_evicted_and_what_waits_is_loaded_right_afterwards() {
    let mut world = World::new(10, &[10, 10]);
    world.ask(&[0]);
    let since = world.now;
    world.pass(Micros::from_millis(1));
    world.ask(&[1]);
    world.pass(STAY);
    assert_eq!(world.evictions, [(0, since + STAY)], "to the moment: a timer and not the next event");
    assert_eq!(world.resident(), [1]);
}

#[test]
fn what_turns_out_too_large_makes_room_at_once_whatever_is_in_demand() {
    let mut world = World::new(10, &[5, 5]);
    world.ask(&[0]);
    world.pass(STAY);
    world.ask(&[1]);
    assert_eq!(world.resident(), [0, 1]);
    // Measured again, larger than profiled: both were asked for a moment ago, and one must go all the same.
    let (device, variant, took) = (DEVICE, VariantId(1), LOAD);
    world.feed(Event::Loaded { device, variant, memory: Bytes(6), took });
    assert_eq!(world.resident(), [1]);
}

#[test]
fn what_processes_hold_beside_what_is_counted_follows_only_where_all_hold_too_much() {
    let mut world = World::new(20, &[5, 5, 5]);
    (0..3).for_each(|at| world.ask(&[at]));
    world.pass(AGES);
    let ids = |ids: &[u32]| ids.iter().map(|id| VariantId(*id)).collect::<Vec<_>>();
    // Two variants in one process, one in another, and one that nobody knows.
    let held =
        |shared, alone| [(ids(&[0, 1]), Bytes(shared)), (ids(&[2]), Bytes(alone)), (ids(&[9]), Bytes(1))];
    let outgrown = |world: &World, held: &[(Vec<VariantId>, Bytes)]| world.worker.outgrown(held, Bytes(20));
    assert_eq!(outgrown(&world, &held(14, 5)), [], "20 are allowed");
    let weighed = |id, memory| {
        let (variant, memory) = (VariantId(id), Bytes(memory));
        Event::Weighed { device: DEVICE, variant, memory }
    };
    assert_eq!(
        outgrown(&world, &held(17, 4)),
        [weighed(0, 12)],
        "the first of a process, for all that is in it"
    );
    assert_eq!(outgrown(&world, &held(10, 16)), [weighed(2, 16)]);
    assert_eq!(world.resident(), [0, 1, 2]);
    world.feed(weighed(2, 16));
    assert!(world.resident().len() < 3, "there is no room for all of them then");
}

#[test]
fn one_large_model_may_take_the_whole_device_if_only_it_is_wanted() {
    let mut world = World::new(12, &[3, 3, 3, 12]);
    for at in 0..3 {
        world.ask(&[at]);
    }
    assert_eq!(world.resident(), [0, 1, 2]);
    world.pass(AGES);
    world.ask(&[3]);
    assert_eq!(world.resident(), [3]);
}

#[test]
fn nothing_is_sent_away_for_what_would_not_fit_all_the_same() {
    let mut world = World::new(12, &[3, 9, 12]);
    world.pin(BTreeSet::from([1]));
    world.ask(&[0]);
    world.pass(AGES);
    world.ask(&[2]);
    world.pass(AGES);
    assert_eq!((world.resident(), world.evictions), (vec![0, 1], vec![]));
}

#[test]
fn the_least_worth_goes_first_and_no_more_than_must() {
    let mut world = World::new(9, &[3, 3, 3, 3]);
    for at in [0, 1, 2, 0, 2, 0, 2] {
        world.ask(&[at]);
    }
    world.pass(AGES);
    world.ask(&[3]);
    assert_eq!(world.resident(), [0, 2, 3], "used least of three alike");
}

#[test]
fn what_answers_many_at_once_is_worth_more_than_what_runs_more_often_for_one() {
    let mut world = World::new(6, &[3, 3, 3]);
    let together = |size| Some(Batching::Fixed { size, wait: AGES });
    let batching = [together(1), together(8), None];
    let variants = (0..3_u8).zip(batching);
    let variants = variants.map(|(at, batching)| WorkerVariant { max_batch: 8, batching, ..variant(at, 3) });
    world.feed(Event::Catalog(variants.collect()));
    (0..4).for_each(|_| world.ask(&[0]));
    (0..16).for_each(|_| world.ask(&[1]));
    assert_eq!(world.batches, [(0, 1), (0, 1), (0, 1), (0, 1), (1, 8), (1, 8)]);
    world.pass(AGES);
    world.ask(&[2]);
    assert_eq!(world.resident(), [1, 2], "16 queries are more than four");
}

#[test]
fn the_last_cheap_variant_of_a_class_in_demand_stays_until_somebody_has_waited_as_long_as_a_load_takes() {
    let mut world = World::new(6, &[3, 3, 3]);
    world.ask(&[0]);
    world.ask(&[1]);
    world.pass(AGES);
    world.ask(&[0]);
    // 0 was used more recently but 1 is nobody's: it goes, and at once.
    world.ask(&[2]);
    assert_eq!(world.resident(), [0, 2]);
    // Now both are in demand: whoever comes waits for as long as its load takes, and for the least residence.
    world.pass(STAY);
    let asked = world.now;
    world.ask(&[0]);
    world.ask(&[2]);
    world.ask(&[1]);
    assert_eq!(world.resident(), [0, 2]);
    world.pass(LOAD);
    assert_eq!(world.evictions.last().map(|(_, at)| *at), Some(asked + LOAD));
}

#[test]
fn what_gateways_wait_for_counts_as_demand() {
    let mut world = World::new(6, &[3, 3, 3]);
    for at in [0, 1, 0, 1, 0, 1, 1] {
        world.ask(&[at]);
    }
    world.pass(AGES);
    let class = query(0, world.now, [0].into_iter().collect(), FAR).class;
    world.feed(Event::Demand { class, waiting: 3, first: Some(world.now + FAR), among: 1 });
    world.ask(&[2]);
    assert_eq!(world.resident(), [0, 2], "0 was used less, but three wait for it");
}

#[test]
fn a_small_one_that_fits_does_not_wait_for_a_large_one_that_does_not_yet() {
    let mut world = World::new(10, &[6, 9, 2]);
    world.ask(&[0]);
    world.ask(&[1]);
    world.ask(&[2]);
    assert_eq!(world.resident(), [0, 2]);
}

#[test]
fn two_that_do_not_fit_together_take_longer_and_longer_turns() {
    let mut world = World::new(10, &[10, 10]);
    for _ in 0..6_000 {
        world.ask(&[0]);
        world.ask(&[1]);
        world.pass(Micros::from_millis(1));
    }
    // Six seconds in turns of a tenth would be sixty loads.
    assert!(world.loads.len() < 22, "{} loads", world.loads.len());
    assert!(world.loads.len() > 10, "each gets its turn: {} loads", world.loads.len());
}

#[test]
fn what_has_queued_work_stays_until_others_would_come_too_late_and_then_they_do_not() {
    let mut world = World::new(10, &[10, 10]);
    world.takes = Some(Micros(100));
    let second = Micros::from_secs(1);
    world.ask_within(&[0], second);
    world.pass(STAY);
    let asked = world.now;
    world.ask_within(&[1], second);
    // Twice as much as can be done of the one, without end: it always has queued work.
    while world.evictions.is_empty() && world.now < asked + second {
        world.ask_within(&[0], second);
        world.ask_within(&[0], second);
        world.pass(Micros(100));
    }
    let (gone, at) = world.evictions[0];
    let late = Time((asked + second).0 - 2 * (LOAD.0 + 100));
    assert_eq!(gone, 0);
    assert!(at >= late && at <= late + Micros(1_000), "{at:?} and not {late:?}");
    world.pass(Micros::from_millis(50));
    assert!(!world.waiting.contains_key(&2) && !world.late.contains(&2), "it was answered in time");
}

#[test]
fn what_nobody_waits_for_any_longer_goes_though_it_was_in_demand_lately() {
    let mut world = World::new(10, &[10, 10]);
    world.takes = Some(Micros(100));
    world.ask_within(&[0], FAR);
    world.pass(STAY);
    world.ask_within(&[1], FAR);
    world.pass(LOAD);
    assert_eq!(world.evictions.len(), 1, "after one load time, long before a deadline");
}

#[test]
fn a_class_whose_queries_cannot_wait_for_a_load_gets_its_turn_all_the_same() {
    let mut world = World::new(10, &[10, 10]);
    world.takes = Some(Micros(100));
    world.ask_within(&[0], FAR);
    world.pass(STAY);
    for _ in 0..1_000 {
        world.ask_within(&[0], FAR);
        world.ask_within(&[0], FAR);
        world.ask_within(&[1], Micros(500));
        world.pass(Micros(100));
        if !world.evictions.is_empty() {
            return;
        }
    }
    panic!("1 was refused for ever, for 0 always has queued work");
}

/// Of two that do not fit together the second was answered, and left a moment ago for the first.
fn after_its_turn() -> World {
    let mut world = World::new(10, &[10, 10]);
    world.takes = Some(Micros(100));
    world.ask_within(&[1], FAR);
    world.pass(STAY);
    world.ask_within(&[0], FAR);
    world.pass(LOAD);
    assert_eq!(world.resident(), [0]);
    world
}

/// For three least residences the first has queued work.
fn keep_the_first_busy(world: &mut World) {
    for _ in 0..1_500 {
        for _ in 0..3 {
            world.ask_within(&[0], FAR);
        }
        world.pass(Micros(200));
    }
}

#[test]
fn that_a_class_was_answered_before_its_variant_left_is_no_reason_to_evict_what_has_queued_work() {
    let mut world = after_its_turn();
    // Wanted, though nobody waits for it or was refused.
    world.pin(BTreeSet::from([1]));
    world.pin(BTreeSet::new());
    keep_the_first_busy(&mut world);
    assert_eq!(world.resident(), [0]);
}

#[test]
fn what_a_gateway_calls_for_gets_its_turn_for_those_whom_it_refused() {
    let mut world = after_its_turn();
    world.refused.insert([1].into_iter().collect(), world.now);
    world.feed(Event::Wake { task: TASK, ordinal: 1 });
    keep_the_first_busy(&mut world);
    assert_eq!(world.evictions.last().map(|(gone, _)| *gone), Some(0));
}

proptest! {
    #[test]
    fn what_has_queued_work_is_evicted_only_for_those_who_would_come_too_late(
        memory in proptest::collection::vec(1_u64..=10, 2..=5),
        asks in proptest::collection::vec((1_u8..32, 0_u64..3_000, 20_u64..2_000), 1..200),
        takes in 50_u64..20_000,
    ) {
        // The rule is checked in `World::evicts`, and in `World::perform` when something is loaded.
        let mut world = World::new(10, &memory);
        world.takes = Some(Micros(takes));
        let count = u8::try_from(memory.len()).expect("few");
        for (bits, wait, latency) in asks {
            let admits: Vec<u8> = (0..count).filter(|at| bits >> at & 1 == 1).collect();
            if !admits.is_empty() {
                world.ask_within(&admits, Micros::from_millis(latency));
            }
            world.pass(Micros(wait));
        }
        world.pass(Micros::from_secs(60));
        prop_assert_eq!(world.worker.open(), 0);
    }

    #[test]
    fn whatever_is_asked_for_the_budget_holds_nothing_leaves_early_and_all_are_served(
        memory in proptest::collection::vec(1_u64..=10, 2..=6),
        asks in proptest::collection::vec((0_u8..64, 0_u64..200_000), 1..80),
    ) {
        // The checks are in `World::perform`.
        let mut world = World::new(10, &memory);
        let count = u8::try_from(memory.len()).expect("few");
        for (bits, wait) in asks {
            let admits: Vec<u8> = (0..count).filter(|at| bits >> at & 1 == 1).collect();
            if admits.is_empty() {
                let pins = (0..u32::from(count)).filter(|at| bits >> at & 1 == 1);
                world.pin(pins.collect());
            } else {
                world.ask(&admits);
            }
            world.pass(Micros(wait));
        }
        world.pass(Micros::from_secs(60));
        prop_assert_eq!(world.worker.open(), 0);
    }
}
