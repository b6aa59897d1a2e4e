//! Lanes of one core, lanes of several, and the change from one to the other.

use crate::common::{TASK, query};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{
    Accuracy, BatchPoint, Bytes, DeviceIx, Engine, Micros, ModelId, PricePerHour, QueryKey, Time, VariantId,
    VariantSet,
};
use std::collections::BTreeMap;

const DEVICE: DeviceIx = DeviceIx(0);
/// Of one core: 10 ms a query.
const NARROW: u8 = 0;
/// Of four cores: 3 ms a query.
const WIDE: u8 = 1;
const FAR: Micros = Micros::from_secs(10);

struct World {
    worker: Worker,
    now: Time,
    next: u64,
    refused: Vec<u64>,
    answered: Vec<(u64, VariantId)>,
    /// When each batch ends.
    ends: BTreeMap<(Time, BatchId), Vec<QueryKey>>,
    members: BTreeMap<BatchId, (VariantId, Vec<QueryKey>)>,
    cuts: Vec<(u16, u16)>,
}

fn variant(at: u8, threads: u16, ms: u64) -> WorkerVariant {
    let mean_us = Moments::exactly(Micros::from_millis(ms)).mean;
    let point = BatchPoint { batch: 1, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 };
    WorkerVariant {
        id: VariantId(u32::from(at)),
        model: ModelId(u32::from(at)),
        engine: Engine::Onnx,
        task: TASK,
        ordinal: at,
        accuracy: Accuracy::ONE,
        max_batch: 1,
        run: RunModel::from_points(&[point], Moments::ZERO).expect("a point"),
        memory: Bytes(1),
        load_time: Micros(1_000),
        threads,
        batching: None,
        gpu: false,
        keep: None,
    }
}

impl World {
    /// Four cores in lanes of one.
    fn new() -> Self {
        let device = DeviceConfig { lanes: 4, width: 1, memory: Bytes(10), price: PricePerHour(1_000) };
        let worker = Worker::new(WorkerConfig { devices: vec![device], ..WorkerConfig::default() });
        let mut world = Self {
            worker,
            now: Time(10_000_000),
            next: 0,
            refused: Vec::new(),
            answered: Vec::new(),
            ends: BTreeMap::new(),
            members: BTreeMap::new(),
            cuts: Vec::new(),
        };
        world.feed(Event::Catalog(vec![variant(NARROW, 1, 10), variant(WIDE, 4, 3)]));
        world.feed(Event::Pin([NARROW, WIDE].map(|at| (DEVICE, VariantId(u32::from(at)))).to_vec()));
        world
    }

    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.perform();
    }

    /// Loads take no time, batches what they are expected to.
    fn perform(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            match action {
                Action::Load { device, variant } => {
                    let (memory, took) = (Bytes(1), Micros(1_000));
                    self.worker.handle(self.now, Event::Loaded { device, variant, memory, took });
                }
                Action::Prepare { batch, lane, variant, queries, .. } => {
                    let (lanes, _) = self.worker.lanes_of(DEVICE);
                    assert!(lane.0 < lanes, "{lane:?} of {lanes}");
                    self.members.insert(batch, (variant, queries));
                    self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
                }
                Action::Start { batch } => {
                    let (variant, members) = self.members[&batch].clone();
                    let ms = if variant.0 == u32::from(WIDE) { 3 } else { 10 };
                    self.ends.insert((self.now + Micros::from_millis(ms), batch), members);
                }
                Action::Deliver { batch, queries } => {
                    let variant = self.members[&batch].0;
                    self.answered.extend(queries.iter().map(|key| (key.0, variant)));
                }
                Action::Refuse { key, .. } => self.refused.push(key.0),
                Action::Recut { width, lanes, .. } => {
                    assert!(self.ends.is_empty(), "something runs: {:?}", self.ends);
                    self.cuts.push((lanes, width));
                }
                Action::Discard { .. }
                | Action::Quarantine { .. }
                | Action::Discharge { .. }
                | Action::Revoke { .. }
                | Action::Suspect { .. }
                | Action::QuarantineOver { .. }
                | Action::HandBack { .. }
                | Action::Unload { .. }
                | Action::Narrow { .. }
                | Action::Drifted { .. }
                | Action::Steadied { .. }
                | Action::Claim { .. }
                | Action::Decline { .. }
                | Action::Transition { .. } => {}
            }
        }
    }

    fn ask(&mut self, admits: &[u8], latency: Micros) -> u64 {
        self.next += 1;
        let admits: VariantSet = admits.iter().copied().collect();
        self.feed(Event::Arrive(query(self.next, self.now, admits, latency)));
        self.next
    }

    fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        loop {
            let end = self.ends.keys().next().copied().filter(|(at, _)| *at <= until);
            let wake = self.worker.poll_timeout().filter(|wake| wake.at <= until);
            match (end, wake) {
                (Some((at, batch)), wake) if wake.is_none_or(|wake| at <= wake.at) => {
                    self.now = self.now.max(at);
                    self.ends.remove(&(at, batch));
                    self.feed(Event::Done { batch, outcome: Outcome::Ran });
                }
                (_, Some(wake)) => {
                    self.now = self.now.max(wake.at);
                    self.worker.handle_timeout(self.now);
                    self.perform();
                }
                (_, None) => break,
            }
        }
        self.now = until;
    }
}

#[test]
fn a_recut_drops_nobody_lets_what_runs_end_and_opens_new_lanes_when_the_old_are_empty() {
    let mut world = World::new();
    for _ in 0..12 {
        world.ask(&[NARROW], FAR);
    }
    world.pass(Micros::from_millis(9)); // four run, four are handed over behind them, four wait
    world.feed(Event::Recut { device: DEVICE, width: 2 });
    world.pass(Micros::from_millis(5));
    assert_eq!(world.cuts, [], "the second four still run");
    world.pass(Micros::from_millis(10));
    assert_eq!(world.cuts, [(2, 2)]);
    world.pass(Micros::from_millis(100));
    assert_eq!((world.answered.len(), world.refused.len()), (12, 0));
    world.feed(Event::Recut { device: DEVICE, width: 1 });
    assert_eq!(world.cuts, [(2, 2), (4, 1)], "at once when nothing runs");
}

#[test]
fn what_has_more_threads_than_a_lane_has_cores_is_not_run_there() {
    let mut world = World::new();
    for _ in 0..20 {
        world.ask(&[NARROW, WIDE], FAR);
    }
    world.pass(FAR);
    assert!(world.answered.iter().all(|(_, variant)| variant.0 == u32::from(NARROW)), "{:?}", world.answered);
    assert_eq!(world.cuts, [], "nobody needs it");
    world.feed(Event::Recut { device: DEVICE, width: 4 });
    let key = world.ask(&[WIDE], FAR);
    let narrow = world.ask(&[NARROW], FAR);
    world.pass(FAR);
    assert_eq!(world.answered[20..], [(key, VariantId(1)), (narrow, VariantId(0))], "fewer threads may");
}

#[test]
fn a_goal_that_only_wider_lanes_can_meet_gets_them_and_they_are_given_up_when_nobody_needs_them() {
    let mut world = World::new();
    for _ in 0..10 {
        let key = world.ask(&[NARROW, WIDE], Micros::from_millis(6));
        world.pass(Micros::from_millis(500));
        assert_eq!(world.answered.last(), Some(&(key, VariantId(u32::from(WIDE)))));
    }
    assert_eq!(world.cuts, [(1, 4)], "once, and kept while it is needed");
    for _ in 0..20 {
        world.ask(&[NARROW], FAR);
        world.pass(Micros::from_millis(500));
    }
    assert_eq!(world.cuts, [(1, 4), (4, 1)]);
    assert_eq!(world.refused, [0_u64; 0]);
}

#[test]
fn what_hangs_while_lanes_are_to_be_wider_keeps_nobody_else_from_them() {
    let mut world = World::new();
    world.ask(&[NARROW], FAR);
    let hung = world.ends.pop_first().expect("it runs");
    world.ask(&[WIDE], Micros::from_millis(20));
    let others: Vec<u64> = (0..8).map(|_| world.ask(&[NARROW], FAR)).collect();
    world.pass(Micros::from_millis(20));
    assert_eq!(world.answered, [], "nothing runs while lanes are cut");
    world.pass(Micros::from_millis(500));
    let answered: Vec<u64> = world.answered.iter().map(|(key, _)| *key).collect();
    assert_eq!((answered, &world.cuts), (others, &Vec::new()));
    // Nor are they cut for the next one who would need it, as long as it hangs.
    world.pass(Micros::from_secs(3));
    world.ask(&[WIDE], Micros::from_millis(20));
    let next = world.ask(&[NARROW], FAR);
    world.pass(Micros::from_millis(11));
    assert_eq!(world.answered.last().map(|(key, _)| *key), Some(next), "the idle cores run it at once");
    // When it has ended after all, whoever needs wider lanes gets them.
    world.ends.insert((world.now, hung.0.1), hung.1);
    world.pass(FAR);
    world.ask(&[NARROW, WIDE], Micros::from_millis(6));
    world.pass(FAR);
    assert_eq!(world.cuts.first(), Some(&(1, 4)));
}

#[test]
fn wide_lanes_are_not_taken_from_those_who_need_the_throughput() {
    let mut world = World::new();
    // 300 a second of 10 ms each: three of the four cores are busy, and one wide lane could not do it.
    let flood = |world: &mut World, n: u64| {
        for _ in 0..n {
            world.ask(&[NARROW], FAR);
            world.pass(Micros(3_333));
        }
    };
    flood(&mut world, 300);
    world.ask(&[NARROW, WIDE], Micros::from_millis(6));
    flood(&mut world, 300);
    assert_eq!(world.cuts, []);
    // The other way about: wide lanes are given up when the flood comes.
    world.pass(FAR);
    world.ask(&[NARROW, WIDE], Micros::from_millis(6));
    assert_eq!(world.cuts, [(1, 4)]);
    flood(&mut world, 900);
    assert_eq!(world.cuts, [(1, 4), (4, 1)]);
    world.pass(FAR);
    assert!(world.refused.len() <= 1, "{:?}", world.refused);
}

#[test]
fn a_wide_lane_is_offered_at_the_price_of_its_cores() {
    let mut world = World::new();
    let core = PricePerHour(1_000);
    let prices = |world: &World| -> Vec<u64> {
        world.worker.offers(world.now).iter().map(|offer| offer.price(core).0).collect()
    };
    assert_eq!(prices(&world), [1_000, 4_000]);
    world.feed(Event::Recut { device: DEVICE, width: 4 });
    assert_eq!(prices(&world), [4_000, 4_000], "the narrow one keeps the other cores from everybody");
}
