//! The line of loads: one at a time, unless one takes far too long; and what is told of those who stand in it.

use crate::common::{TASK, query};
use modelless_decision::route::Ready;
use modelless_decision::worker::{
    Action, DeviceConfig, Event, ReplicaView, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, Refusal, ReplicaState,
    Time, VariantId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const DEVICE: DeviceIx = DeviceIx(0);
const MOST: u16 = 2;
/// Load times of the variants, in milliseconds: short, long, and so long that the ceiling counts.
const LOADS_MS: [u64; 6] = [5, 40, 300, 2_000, 20_000, 60];

fn load_time(id: u32) -> Micros {
    Micros::from_millis(LOADS_MS[id as usize])
}

fn overdue_after(id: u32) -> Micros {
    Micros(4 * load_time(id).0).clamp(Micros::from_secs(1), Micros::from_secs(30))
}

/// The last one is of the same model as the first.
fn model(id: u32) -> ModelId {
    ModelId(id % 5)
}

fn variant(id: u32) -> WorkerVariant {
    let point = BatchPoint { batch: 1, mean_us: 100.0, var_us2: 0.0, p99_us: 100.0, samples: 1 };
    WorkerVariant {
        id: VariantId(id),
        model: model(id),
        engine: Engine::Onnx,
        task: TASK,
        ordinal: u8::try_from(id).expect("few"),
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a point"),
        memory: Bytes(1),
        load_time: load_time(id),
        threads: 1,
        batching: None,
        gpu: false,
        keep: None,
    }
}

/// A shell whose loads end when it is told so.
struct World {
    worker: Worker,
    now: Time,
    keys: u64,
    /// At work, since when.
    running: BTreeMap<u32, Time>,
    /// Every load that was asked for and has not ended, in order.
    begun: Vec<u32>,
    fetching: BTreeSet<u32>,
    fetched: BTreeSet<u32>,
    /// Wanted and not begun, in order.
    wanted: Vec<u32>,
    loaded: BTreeSet<u32>,
    told: Option<Micros>,
}

impl World {
    fn new(overdue_loads: u16) -> Self {
        let device = DeviceConfig { lanes: 1, width: 1, memory: Bytes(100), price: PricePerHour(1_000_000) };
        let config = WorkerConfig { devices: vec![device], overdue_loads, ..WorkerConfig::default() };
        let mut world = Self {
            worker: Worker::new(config),
            now: Time(1_000_000),
            keys: 0,
            running: BTreeMap::new(),
            begun: Vec::new(),
            fetching: BTreeSet::new(),
            fetched: BTreeSet::new(),
            wanted: Vec::new(),
            loaded: BTreeSet::new(),
            told: None,
        };
        world.feed(Event::Catalog((0..6).map(variant).collect()));
        world
    }

    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.perform();
    }

    fn is_overdue(&self, id: u32) -> bool {
        self.running.get(&id).is_some_and(|since| self.now - *since >= overdue_after(id))
    }

    fn perform(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            if let Action::Load { variant, .. } = action {
                let id = variant.0;
                if !self.fetched.remove(&id) {
                    self.wanted.retain(|wanted| *wanted != id);
                    self.begun.push(id);
                }
                let others: Vec<u32> = self.running.keys().copied().collect();
                assert!(others.len() <= usize::from(MOST), "{id} beside {others:?}");
                for other in others {
                    assert!(self.is_overdue(other), "{id} beside {other}, which is in time");
                    assert!(model(id) != model(other), "{id} would only wait behind {other}");
                }
                assert!(self.running.insert(id, self.now).is_none(), "{id} twice");
            } else if let Action::Refuse { refusal: Refusal::Loading { ready_in, .. }, .. } = action {
                self.told = Some(ready_in);
            }
        }
    }

    /// Somebody asks for it who cannot wait; what was told.
    fn ask(&mut self, id: u32) -> Option<Micros> {
        let rests = |r: &ReplicaView| r.variant == VariantId(id) && r.state == ReplicaState::Failed;
        let known = self.loaded.contains(&id) || self.begun.contains(&id) || self.wanted.contains(&id);
        if !known && !self.worker.replicas().iter().any(rests) {
            self.wanted.push(id);
        }
        self.keys += 1;
        let admits = [u8::try_from(id).expect("few")].into_iter().collect();
        self.told = None;
        self.feed(Event::Arrive(query(self.keys, self.now, admits, Micros(1))));
        self.told
    }

    fn ends(&mut self, id: u32, well: bool) {
        if self.running.remove(&id).is_none() {
            return;
        }
        self.begun.retain(|begun| *begun != id);
        let (device, variant) = (DEVICE, VariantId(id));
        if well {
            self.loaded.insert(id);
            self.feed(Event::Loaded { device, variant, memory: Bytes(1), took: load_time(id) });
        } else {
            self.feed(Event::LoadFailed { device, variant, why: "made to".into() });
        }
    }

    fn fetches(&mut self, id: u32) {
        if self.running.remove(&id).is_some() {
            self.fetching.insert(id);
            self.feed(Event::Fetching { device: DEVICE, variant: VariantId(id) });
        }
    }

    fn fetched(&mut self, id: u32) {
        if self.fetching.remove(&id) {
            self.fetched.insert(id);
            self.feed(Event::Fetched { device: DEVICE, variant: VariantId(id) });
        }
    }

    fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        let mut rounds = 0;
        while let Some(wake) = self.worker.poll_timeout().filter(|wake| wake.at <= until) {
            rounds += 1;
            assert!(rounds < 10_000, "its timers do not move on: {wake:?}");
            self.now = wake.at.max(self.now);
            self.worker.handle_timeout(self.now);
            self.perform();
        }
        self.now = until;
    }

    /// What stands before a variant, and its own load.
    fn least(&self, id: u32) -> Micros {
        let left = |id: &u32| load_time(*id).0.saturating_sub((self.now - self.running[id]).0);
        if self.running.contains_key(&id) {
            return Micros(left(&id));
        }
        let holds = self.running.keys().filter(|id| !self.is_overdue(**id)).map(left).sum::<u64>();
        let fetched = self.begun.iter().filter(|other| self.fetched.contains(other));
        let before: u64 = if self.fetched.contains(&id) || self.fetching.contains(&id) {
            fetched.take_while(|other| **other != id).map(|other| load_time(*other).0).sum()
        } else {
            let wanted = self.wanted.iter().take_while(|other| **other != id);
            fetched.chain(wanted).map(|other| load_time(*other).0).sum()
        };
        Micros(holds + before + load_time(id).0)
    }

    fn check_told(&self) {
        for offer in self.worker.offers(self.now) {
            let told = match offer.ready {
                Ready::Resident => continue,
                Ready::Loading { at } => at - self.now,
                Ready::Cold { load } => load,
            };
            let least = self.least(u32::from(offer.ordinal));
            assert!(told >= least, "{} told of {}, and {least} stand before it", told, offer.ordinal);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u32),
    Pass(Micros),
    Ends(u32, bool),
    Fetches(u32),
    Fetched(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0_u32..6;
    prop_oneof![
        3 => id().prop_map(Step::Ask),
        3 => (1_u64..3_000_000).prop_map(|us| Step::Pass(Micros(us))),
        2 => (id(), prop::bool::weighted(0.8)).prop_map(|(id, well)| Step::Ends(id, well)),
        1 => id().prop_map(Step::Fetches),
        1 => id().prop_map(Step::Fetched),
    ]
}

proptest! {
    #[test]
    fn never_more_than_the_bound_load_and_nobody_is_told_less_than_what_stands_before(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut world = World::new(MOST);
        for step in steps {
            match step {
                Step::Ask(id) => {
                    if let Some(told) = world.ask(id) {
                        // What was asked for may have begun with it.
                        prop_assert!(told >= world.least(id), "{told} and not {}", world.least(id));
                    }
                }
                Step::Pass(time) => world.pass(time),
                Step::Ends(id, well) => world.ends(id, well),
                Step::Fetches(id) => world.fetches(id),
                Step::Fetched(id) => world.fetched(id),
            }
            world.check_told();
        }
    }

    #[test]
    fn what_hangs_in_loading_keeps_no_other_model_from_it(
        order in Just(vec![0_u32, 1, 2, 3, 4, 5]).prop_shuffle(),
        hang in prop::collection::btree_set(0_u32..6, 0..=usize::from(MOST)),
        fetched in prop::collection::btree_set(0_u32..6, 0..4),
    ) {
        let mut world = World::new(MOST);
        for id in order {
            world.ask(id);
        }
        // Whatever does not hang takes as long as it was measured to. In bounded time all of it is there.
        for _ in 0..200 {
            for id in fetched.iter().filter(|id| !hang.contains(id)) {
                let first = world.running.get(id).is_some_and(|since| *since == world.now);
                if first && !world.loaded.contains(id) && world.now < Time(2_000_000) {
                    world.fetches(*id);
                }
                world.fetched(*id);
            }
            let done = |(id, since): (&u32, &Time)| {
                (!hang.contains(id) && world.now - *since >= load_time(*id)).then_some(*id)
            };
            let done: Vec<u32> = world.running.iter().filter_map(done).collect();
            for id in done {
                world.ends(id, true);
            }
            world.pass(Micros::from_millis(500));
        }
        let stuck = |id: &u32| hang.contains(id) || hang.iter().any(|hung| model(*hung) == model(*id));
        let missing: Vec<u32> = (0..6).filter(|id| !stuck(id) && !world.loaded.contains(id)).collect();
        prop_assert!(missing.is_empty(), "{missing:?} beside {hang:?}");
    }
}

#[test]
fn a_load_gives_its_place_up_when_it_is_overdue_to_the_moment() {
    let mut world = World::new(MOST);
    world.ask(0);
    world.ask(2);
    let since = world.now;
    world.pass(Micros(overdue_after(0).0 - 1));
    assert!(!world.running.contains_key(&2));
    world.pass(Micros::from_secs(1));
    assert_eq!(world.running.get(&2), Some(&(since + overdue_after(0))), "a timer and not the next event");
}

#[test]
fn when_too_many_are_overdue_one_has_to_end_first() {
    let mut world = World::new(MOST);
    for id in [0, 1, 2, 3] {
        world.ask(id);
    }
    world.pass(Micros::from_secs(60));
    assert_eq!(world.running.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    world.ends(1, false);
    assert!(world.running.contains_key(&3));
}

#[test]
fn where_none_may_be_overdue_all_wait_for_the_first() {
    let mut world = World::new(0);
    world.ask(0);
    world.ask(1);
    world.pass(Micros::from_secs(600));
    assert_eq!(world.running.keys().copied().collect::<Vec<_>>(), [0]);
    world.ends(0, true);
    assert!(world.running.contains_key(&1));
}

#[test]
fn what_is_brought_to_the_machine_holds_no_place_and_goes_on_before_what_came_later() {
    let mut world = World::new(MOST);
    for id in [3, 1, 2] {
        world.ask(id);
    }
    world.fetches(3);
    assert!(world.running.contains_key(&1), "at once");
    world.fetched(3);
    assert!(!world.running.contains_key(&3), "another has its place");
    world.ends(1, true);
    assert_eq!(world.running.keys().copied().collect::<Vec<_>>(), [3]);
    world.ends(3, true);
    assert!(world.running.contains_key(&2));
}

#[test]
fn who_asks_for_the_third_in_line_is_told_of_the_two_before_it() {
    let mut world = World::new(MOST);
    world.ask(2);
    world.ask(3);
    let told = world.ask(1).expect("it cannot wait");
    assert_eq!(told, load_time(2) + load_time(3) + load_time(1));
    world.pass(Micros::from_millis(100));
    assert_eq!(world.ask(1).expect("it cannot wait"), Micros(told.0 - 100_000));
}

/// One whose first load took so long, and that left memory again.
fn after_a_load_of(took: Micros) -> World {
    let mut world = World::new(MOST);
    world.ask(1);
    let (device, variant) = (DEVICE, VariantId(1));
    world.feed(Event::Loaded { device, variant, memory: Bytes(1), took });
    world.feed(Event::Unwanted { variant });
    world.feed(Event::Unloaded { device, variant });
    world.running.clear();
    world.begun.clear();
    world
}

#[test]
fn what_loads_took_outlives_a_change_of_the_catalogue_unless_it_was_measured_again() {
    let slow = Micros(5 * load_time(1).0);
    let mut world = after_a_load_of(slow);
    world.feed(Event::Catalog((0..6).map(variant).collect()));
    assert_eq!(world.ask(1), Some(slow));

    let mut world = after_a_load_of(slow);
    let slower = BatchPoint { batch: 1, mean_us: 150.0, var_us2: 0.0, p99_us: 150.0, samples: 1 };
    let run = RunModel::from_points(&[slower], Moments::ZERO).expect("a point");
    world.feed(Event::Catalog(vec![WorkerVariant { run, ..variant(1) }]));
    assert_eq!(world.ask(1), Some(load_time(1)));
}

#[test]
fn what_was_never_loaded_is_promised_by_the_newest_profile_and_its_first_load_corrects_that() {
    let mut world = World::new(MOST);
    let cold = Micros(20 * load_time(1).0);
    world.feed(Event::Catalog(vec![WorkerVariant { load_time: cold, ..variant(1) }]));
    assert_eq!(world.ask(1), Some(cold));

    let quick = Micros(load_time(1).0 / 2);
    let mut world = after_a_load_of(quick);
    assert_eq!(world.ask(1), Some(quick), "the first says more than a profile");
}
