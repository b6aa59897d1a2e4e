//! Fewer lanes side by side while something slows them down: what the worker does of what `narrow` decides.

use crate::common::{query, worker_variant};
use modelless_decision::replica::Host;
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, LaneIx, Outcome, Worker, WorkerConfig, WorkerVariant,
};
use modelless_decision::{Machine, Moments, RunModel};
use modelless_types::{BatchPoint, Bytes, DeviceIx, Micros, PricePerHour, Time, VariantId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const DEVICE: DeviceIx = DeviceIx(0);
const EACH: Micros = Micros::from_millis(10);
const SECOND: Micros = Micros::from_secs(1);

/// As many lanes as cores, a variant of one thread that takes 10 ms, and somebody else who may take cores.
struct World {
    worker: Worker,
    now: Time,
    next: u64,
    lanes: u16,
    /// Cores that somebody else takes.
    hogs: u16,
    /// So many times as long it takes where there are fewer cores than batches and hogs.
    slowness: f64,
    running: BTreeMap<(Time, BatchId), LaneIx>,
    /// Where each batch is to run, and what was handed over behind another.
    on: BTreeMap<BatchId, LaneIx>,
    behind: BTreeMap<LaneIx, BatchId>,
    /// Core time of batches since the machine told last, and when that was.
    ran: Micros,
    told: Time,
    ended: BTreeSet<u64>,
    /// When lanes were closed or opened, and how many are open since.
    changes: Vec<(Time, u16, String)>,
    /// The most batches at once since then, once what ran has ended.
    most: usize,
}

fn variant() -> WorkerVariant {
    let mean_us = Moments::exactly(EACH).mean;
    let point = BatchPoint { batch: 1, mean_us, var_us2: 0.0, p99_us: mean_us, samples: 1 };
    WorkerVariant {
        memory: Bytes(1),
        ..worker_variant(0, RunModel::from_points(&[point], Moments::ZERO).expect("a point"))
    }
}

impl World {
    fn new(lanes: u16, narrow: bool) -> Self {
        let device = DeviceConfig { lanes, width: 1, memory: Bytes(10), price: PricePerHour(1_000) };
        let config = WorkerConfig { devices: vec![device], narrow, ..WorkerConfig::default() };
        let mut world = Self {
            worker: Worker::new(config),
            now: Time(10_000_000),
            next: 0,
            lanes,
            hogs: 0,
            slowness: 3.0,
            running: BTreeMap::new(),
            on: BTreeMap::new(),
            behind: BTreeMap::new(),
            ran: Micros::ZERO,
            told: Time(10_000_000),
            ended: BTreeSet::new(),
            changes: Vec::new(),
            most: 0,
        };
        world.feed(Event::Catalog(vec![variant()]));
        world.feed(Event::Pin(vec![(DEVICE, VariantId(0))]));
        world
    }

    fn feed(&mut self, event: Event) {
        self.worker.handle(self.now, event);
        self.perform();
    }

    fn end(&mut self, key: u64) {
        assert!(self.ended.insert(key), "{key} ended twice");
    }

    fn begin(&mut self, batch: BatchId, lane: LaneIx) {
        let there = self.running.len() + 1 + usize::from(self.hogs);
        let crowded = self.hogs > 0 && there > usize::from(self.lanes) && !self.running.is_empty();
        let times = if crowded { self.slowness } else { 1.0 };
        let takes = Moments { mean: Moments::exactly(EACH).mean * times, var: 0.0 }.mean();
        self.running.insert((self.now + takes, batch), lane);
        self.most = self.most.max(self.running.len());
    }

    fn perform(&mut self) {
        while let Some(action) = self.worker.poll_action() {
            match action {
                Action::Load { device, variant } => {
                    let (memory, took) = (Bytes(1), Micros(1_000));
                    self.worker.handle(self.now, Event::Loaded { device, variant, memory, took });
                }
                Action::Prepare { batch, lane, .. } => {
                    self.on.insert(batch, lane);
                    assert!(lane.0 < self.lanes, "{lane:?} of {}", self.lanes);
                    self.worker.handle(self.now, Event::Prepared { batch, dropped: Vec::new() });
                }
                Action::Start { batch } => {
                    let lane = self.on[&batch];
                    if self.running.values().any(|busy| *busy == lane) {
                        self.behind.insert(lane, batch);
                    } else {
                        self.begin(batch, lane);
                    }
                }
                Action::Deliver { queries, .. } => queries.iter().for_each(|key| self.end(key.0)),
                Action::Refuse { key, .. } | Action::HandBack { key, .. } => self.end(key.0),
                Action::Narrow { device, lanes, of, cause } => {
                    assert_eq!((device, of), (DEVICE, self.lanes));
                    assert!((1..=of).contains(&lanes) && !cause.is_empty(), "{lanes} of {of}: {cause}");
                    self.changes.push((self.now, lanes, cause));
                }
                Action::Discard { .. }
                | Action::Quarantine { .. }
                | Action::Discharge { .. }
                | Action::Revoke { .. }
                | Action::Suspect { .. }
                | Action::QuarantineOver { .. }
                | Action::Recut { .. }
                | Action::Unload { .. }
                | Action::Drifted { .. }
                | Action::Steadied { .. }
                | Action::Claim { .. }
                | Action::Decline { .. }
                | Action::Transition { .. } => {}
            }
        }
    }

    fn ask(&mut self, latency: Micros) {
        self.next += 1;
        self.feed(Event::Arrive(query(self.next, self.now, [0].into_iter().collect(), latency)));
    }

    /// The machine tells every second what it does.
    fn tell(&mut self) {
        let over = (self.now - self.told).0.max(1);
        self.told = self.now;
        let own = u32::try_from(self.ran.0 * 1_000 / over).expect("few cores");
        self.ran = Micros::ZERO;
        let busy_milli = (own + 1_000 * u32::from(self.hogs)).min(1_000 * u32::from(self.lanes));
        let own_milli = Some(own.min(busy_milli));
        let host = Host { cores: self.lanes, busy_milli, steal_permille: 0, runnable: 1, own_milli };
        self.feed(Event::Host(host));
    }

    fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        loop {
            let end = self.running.keys().next().copied().filter(|(end, _)| *end <= until);
            let wake = self.worker.poll_timeout().map(|wake| wake.at).filter(|at| *at <= until);
            if let Some((end, batch)) = end.filter(|(end, _)| wake.is_none_or(|wake| *end <= wake)) {
                self.now = self.now.max(end);
                let lane = self.running.remove(&(end, batch)).expect("it runs");
                self.ran += EACH;
                if let Some(next) = self.behind.remove(&lane) {
                    self.begin(next, lane);
                }
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

    /// Every second so many times two queries at once, for so many seconds.
    fn serve(&mut self, seconds: u64, pairs: u64) {
        for _ in 0..seconds {
            for _ in 0..pairs {
                self.ask(Micros::from_millis(100));
                self.ask(Micros::from_millis(100));
                self.pass(Micros(SECOND.0 / pairs));
            }
            self.tell();
        }
    }

    fn open(&self) -> u16 {
        self.worker.narrowed().map_or(self.lanes, |narrowed| narrowed.lanes)
    }
}

#[test]
fn one_lane_serves_while_somebody_takes_the_other_core_and_both_when_it_is_over() {
    let mut world = World::new(2, true);
    world.serve(10, 10);
    assert_eq!(world.changes, [], "nothing is interfered");
    world.hogs = 1;
    world.serve(10, 10);
    let (_, lanes, cause) = world.changes.first().expect("narrowed").clone();
    assert!(lanes == 1 && cause.contains("others leave 1.0 cores for 2 lanes"), "{cause}");
    world.most = 0;
    world.serve(30, 10);
    assert_eq!((world.changes.len(), world.open()), (1, 1), "{:?}", world.changes);
    assert_eq!((world.most, world.worker.lanes_of(DEVICE)), (1, (2, 1)));
    world.hogs = 0;
    world.serve(10, 10);
    assert_eq!((world.changes.len(), world.open()), (2, 2), "{:?}", world.changes);
    assert_eq!(world.ended.len(), 1_200, "every query ends");
    world.most = 0;
    world.serve(1, 10);
    assert_eq!(world.most, 2);
}

#[test]
fn what_needs_both_lanes_has_them_and_a_switch_leaves_all_as_it_was() {
    let mut world = World::new(2, true);
    world.hogs = 1;
    // 96 times 10 ms.
    world.serve(20, 48);
    assert_eq!(world.changes, []);
    let mut world = World::new(2, false);
    world.hogs = 1;
    world.serve(20, 10);
    assert_eq!(world.changes, []);
}

#[test]
fn lanes_come_back_at_once_when_more_is_asked_than_those_that_are_left_can_do() {
    let mut world = World::new(2, true);
    world.hogs = 1;
    world.serve(15, 10);
    assert_eq!(world.open(), 1);
    world.serve(4, 60);
    assert_eq!(world.open(), 2, "{:?}", world.changes);
    assert!(world.changes[1].2.contains("is asked of 1 of 2 lanes"), "{:?}", world.changes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whoever_comes_and_goes_every_query_ends_once_and_lanes_change_once_in_two_seconds_at_most(
        lanes in 1_u16..5,
        steps in proptest::collection::vec((0_u16..4, 1.0_f64..5.0, 1_u64..40, 1_u64..9), 1..12),
    ) {
        let mut world = World::new(lanes, true);
        for (hogs, slowness, pairs, seconds) in steps {
            (world.hogs, world.slowness) = (hogs.min(lanes), slowness);
            world.serve(seconds, pairs);
            prop_assert!((1..=lanes).contains(&world.open()));
        }
        for pair in world.changes.windows(2) {
            prop_assert!(pair[1].0 - pair[0].0 >= Micros::from_secs(2), "{:?}", world.changes);
        }
        world.hogs = 0;
        // Half a minute, doubled four times at most.
        world.serve(500, 1);
        prop_assert_eq!(world.open(), lanes, "{:?}", world.changes);
        let asked = usize::try_from(world.next).expect("few");
        prop_assert_eq!(world.ended.len() + world.worker.open(), asked);
    }
}
