//! The worker under any order of events that a shell which keeps the contract could give it.

use crate::common::{Logged, TASK, prefer, query, run_model};
use modelless_decision::worker::{
    Action, BatchId, DeviceConfig, Event, Failure, Foresight, LaneIx, Outcome, Worker, WorkerConfig,
    WorkerVariant,
};
use modelless_decision::{Machine, Query};
use modelless_types::{
    Accuracy, Batching, Bytes, CostPer1k, DeviceIx, Engine, Micros, ModelId, Prefer, PricePerHour, Priority,
    QueryKey, Refusal, Time, VariantId, VariantSet,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const LARGEST: u32 = 8;

#[derive(Clone, Debug)]
enum Step {
    Arrive {
        admits: u8,
        latency: u64,
        cost: Option<u64>,
        prefer: Prefer,
        best_effort: bool,
        bytes: u64,
    },
    /// To be had by whoever claims it first.
    Announce {
        admits: u8,
        latency: u64,
        cost: Option<u64>,
        best_effort: bool,
        part_ppm: u32,
    },
    /// The n-th of those that it asked for comes, or is had by another.
    Answer(usize, bool),
    /// The n-th of those that were announced is had by another.
    Withdraw(usize),
    Cancel(usize),
    Demand {
        admits: u8,
        waiting: u32,
        first: u64,
    },
    /// The n-th batch in preparation stands; perhaps one of its inputs would not go in.
    Prepared(usize, bool),
    /// The first batch of the n-th busy lane ends: well, or with an error of its model.
    Done(usize, bool),
    Loaded(usize, bool, u64),
    Unloaded(usize),
    /// The n-th quarantine runner has run its query: well, or in one of the ways a run can fail.
    Judged(usize, Option<Failure>),
    /// The process of a model for an engine dies; its death is told before the end of its batches, or after.
    RunnerDied(u32, Engine, bool),
    NotStarted(usize),
    Pin(u8),
    Wake(u8),
    Recut(u16),
    Catalog(u8),
    Drain,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = proptest::option::weighted(0.2, 0_u64..300_000);
    let arrive = (1_u8..16, 1_u64..400_000, cost, prefer(), prop::bool::weighted(0.2), 1_u64..600);
    let arrive = arrive.prop_map(|(admits, latency, cost, prefer, best_effort, bytes)| Step::Arrive {
        admits,
        latency,
        cost,
        prefer,
        best_effort,
        bytes,
    });
    let at = any::<usize>;
    let cost = proptest::option::weighted(0.2, 0_u64..300_000);
    let announce = (1_u8..16, 1_u64..400_000, cost, prop::bool::weighted(0.2), 1_u32..1_000_000);
    let announce = announce.prop_map(|(admits, latency, cost, best_effort, part_ppm)| Step::Announce {
        admits,
        latency,
        cost,
        best_effort,
        part_ppm,
    });
    prop_oneof![
        20 => arrive,
        10 => announce,
        10 => (at(), prop::bool::weighted(0.7)).prop_map(|(n, comes)| Step::Answer(n, comes)),
        2 => at().prop_map(Step::Withdraw),
        2 => at().prop_map(Step::Cancel),
        2 => (1_u8..16, 0_u32..20, 0_u64..100_000)
            .prop_map(|(admits, waiting, first)| Step::Demand { admits, waiting, first }),
        14 => (at(), prop::bool::weighted(0.1)).prop_map(|(n, drop)| Step::Prepared(n, drop)),
        12 => (at(), prop::bool::weighted(0.1)).prop_map(|(n, bad)| Step::Done(n, bad)),
        8 => (at(), prop::bool::weighted(0.1), 0_u64..3).prop_map(|(n, bad, more)| Step::Loaded(n, bad, more)),
        4 => at().prop_map(Step::Unloaded),
        6 => (at(), verdict()).prop_map(|(n, verdict)| Step::Judged(n, verdict)),
        2 => (1_u32..=3, engine(), any::<bool>())
            .prop_map(|(model, engine, late)| Step::RunnerDied(model, engine, late)),
        1 => at().prop_map(Step::NotStarted),
        1 => (0_u8..16).prop_map(Step::Pin),
        1 => (0_u8..5).prop_map(Step::Wake),
        1 => (0_u16..5).prop_map(Step::Recut),
        1 => (0_u8..16).prop_map(Step::Catalog),
        10 => (0_u64..60_000).prop_map(Step::Wait),
    ]
}

fn engine() -> impl Strategy<Value = Engine> {
    prop_oneof![3 => Just(Engine::Onnx), 1 => Just(Engine::Openvino), 2 => Just(Engine::Remote)]
}

fn verdict() -> impl Strategy<Value = Option<Failure>> {
    let failed = vec![
        Failure::Model,
        Failure::Memory,
        Failure::Process,
        Failure::Hung,
        Failure::Unreachable,
        Failure::NotStarted,
    ];
    proptest::option::weighted(0.3, proptest::sample::select(failed))
}

fn batching() -> impl Strategy<Value = Batching> {
    let fixed = (1_u32..=LARGEST + 2, 0_u64..80_000);
    prop_oneof![
        3 => Just(Batching::Deadline),
        1 => Just(Batching::Aimd),
        1 => fixed.prop_map(|(size, wait)| Batching::Fixed { size, wait: Micros(wait) }),
        1 => Just(Batching::Off),
    ]
}

/// Four variants of up to three models, each of at most eleven of the sixteen units of memory that a device has.
fn catalog() -> impl Strategy<Value = Vec<WorkerVariant>> {
    let variant = ((1_u32..=3, engine()), run_model(), 1_u64..12, 0_u64..100_000, 1_u32..=LARGEST, 1_u16..=3);
    let task = proptest::option::of(batching());
    (proptest::collection::vec(variant, 4), task).prop_map(|(variants, batching)| {
        let variants = variants.into_iter().zip(0_u8..);
        let variant = |(((model, engine), run, memory, load, max_batch, threads), at): (
            (_, _, u64, u64, u32, u16),
            u8,
        )| {
            WorkerVariant {
                id: VariantId(u32::from(at)),
                model: ModelId(model),
                engine,
                task: TASK,
                ordinal: at,
                accuracy: Accuracy::from_ppm(600_000 + 100_000 * u32::from(at)).expect("below one"),
                max_batch,
                run,
                memory: Bytes(memory),
                load_time: Micros(load),
                threads,
                batching,
                gpu: false,
                keep: None,
            }
        };
        variants.map(variant).collect()
    })
}

fn config(lanes: u16, devices: usize, batching: Batching) -> WorkerConfig {
    let device = DeviceConfig { lanes, width: 1, memory: Bytes(16), price: PricePerHour(50_000) };
    WorkerConfig {
        devices: vec![device; devices],
        queue: 40,
        queue_bytes: Bytes(8_000),
        back_off: Micros(10_000),
        give_up_after: 3,
        batching,
        min_residence: Micros(5_000),
        hand_back: true,
        foresight: Foresight::default(),
        suspect_after: Micros(2_000),
        servers_apart: true,
        overdue_loads: 2,
        narrow: true,
    }
}

fn set(bits: u8) -> VariantSet {
    (0..4).filter(|at| bits >> at & 1 == 1).collect()
}

struct Batch {
    lane: (DeviceIx, LaneIx),
    variant: VariantId,
    members: Vec<QueryKey>,
    prepared: bool,
    started: bool,
    revoked: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Held {
    Loading,
    Loaded,
    Unloading,
}

/// A process on a lane.
type Place = ((DeviceIx, LaneIx), (ModelId, Engine));

struct Shell {
    worker: Logged<Worker>,
    now: Time,
    all: Vec<WorkerVariant>,
    batching: Batching,
    lanes_at_first: u16,
    /// Width and number of lanes, where they were cut anew.
    cuts: BTreeMap<DeviceIx, (u16, u16)>,
    queries: BTreeMap<QueryKey, Query>,
    /// What was only announced; which of it was asked for.
    heard: BTreeMap<QueryKey, Query>,
    asked: BTreeSet<QueryKey>,
    batches: BTreeMap<BatchId, Batch>,
    /// Handed to each process of a lane, in order.
    lanes: BTreeMap<Place, Vec<BatchId>>,
    /// Those of them whose first was suspected.
    suspects: BTreeSet<Place>,
    /// Batches whose process has died, which the worker is still to hear.
    dying: BTreeSet<BatchId>,
    memory: BTreeMap<(DeviceIx, VariantId), (Held, Bytes)>,
    /// Who is in each device's quarantine runner, and which of them hold anything.
    quarantine: BTreeMap<DeviceIx, (QueryKey, VariantId)>,
    held_there: BTreeMap<DeviceIx, VariantId>,
    /// Those that were told to end.
    ending: BTreeSet<DeviceIx>,
    /// Who was there: nobody is twice.
    suspected: BTreeSet<QueryKey>,
    next: u64,
    announced: u64,
    left: u64,
    /// Loads may turn out larger than profiled, which no machine can foresee.
    surprised: bool,
    draining: bool,
}

type Checked = Result<(), TestCaseError>;

impl Shell {
    fn variant(&self, id: VariantId) -> &WorkerVariant {
        &self.all[id.0 as usize]
    }

    /// Variants of one model for one engine share a process.
    fn runner(&self, id: VariantId) -> (ModelId, Engine) {
        (self.variant(id).model, self.variant(id).engine)
    }

    fn leave(&mut self, key: QueryKey) -> Checked {
        prop_assert!(self.queries.remove(&key).is_some(), "{key} left twice");
        self.left += 1;
        Ok(())
    }

    fn feed(&mut self, event: Event) -> Checked {
        let actions = self.worker.handle(self.now, event);
        self.perform(actions)
    }

    fn perform(&mut self, actions: Vec<Action>) -> Checked {
        for action in actions {
            match action {
                Action::Prepare { batch, device, lane, variant, queries, reasons, expected } => {
                    prop_assert_eq!(queries.len(), reasons.len());
                    self.bound((device, lane), variant, &queries, expected.mean())?;
                    let lane = (device, lane);
                    let batch_ = Batch {
                        lane,
                        variant,
                        members: queries,
                        prepared: false,
                        started: false,
                        revoked: false,
                    };
                    self.batches.insert(batch, batch_);
                }
                Action::Claim { queries, lanes } => {
                    prop_assert!(!queries.is_empty() && lanes >= 1);
                    for key in queries {
                        prop_assert!(self.heard.contains_key(&key), "{key} is not to be had");
                        prop_assert!(self.asked.insert(key), "{key} is asked for twice");
                    }
                }
                Action::Start { batch } => {
                    let b = self.batches.get_mut(&batch).expect("a batch that is bound");
                    prop_assert!(b.prepared && !b.started);
                    b.started = true;
                    let (lane, variant) = (b.lane, b.variant);
                    let own = self.runner(variant);
                    prop_assert!(!self.suspects.contains(&(lane, own)), "behind a suspect");
                    let handed = self.lanes.entry((lane, own)).or_default();
                    handed.push(batch);
                    prop_assert!(handed.len() <= 2);
                    let there = self.lanes.iter().filter(|(at, handed)| at.0 == lane && !handed.is_empty());
                    let apart = |(_, engine): (ModelId, Engine)| engine == Engine::Remote;
                    let mut others =
                        there.filter(|(at, _)| at.1 != own && !apart(at.1) && !self.suspects.contains(at));
                    prop_assert!(apart(own) || others.next().is_none(), "two runners on one lane");
                }
                Action::Suspect { batch } => {
                    let b = self.batches.get(&batch).expect("a batch that is bound");
                    let at = (b.lane, self.runner(b.variant));
                    if self.dying.contains(&batch) {
                        continue; // it took long to die, and its end is not told yet
                    }
                    prop_assert_eq!(self.lanes[&at].first(), Some(&batch), "it does not run");
                    prop_assert!(self.suspects.insert(at), "once is enough");
                    let suspects = self.suspects.iter().filter(|other| other.0.0 == at.0.0).count();
                    let lanes = self.cuts.get(&at.0.0).map_or(self.lanes_at_first, |(_, lanes)| *lanes);
                    prop_assert!(suspects <= usize::from(lanes) + 1, "{suspects} suspects, {lanes} lanes");
                }
                Action::Revoke { batch } => {
                    let b = self.batches.get_mut(&batch).expect("a batch that is bound");
                    prop_assert!(b.started && !b.revoked, "only what was handed over is taken back, once");
                    let (lane, variant) = (b.lane, b.variant);
                    b.revoked = true;
                    let handed = &self.lanes[&(lane, self.runner(variant))];
                    prop_assert_eq!(handed.get(1), Some(&batch), "it has begun");
                    let b = &self.batches[&batch];
                    prop_assert!(
                        !b.members.iter().any(|key| self.queries.contains_key(key)),
                        "it is waited for"
                    );
                }
                Action::Discard { batch } => {
                    let b = self.batches.remove(&batch).expect("a batch that is bound");
                    prop_assert!(!b.started);
                }
                Action::Deliver { batch, queries } => {
                    let b = self.batches.remove(&batch).expect("a batch that ended");
                    prop_assert!(b.started || queries.is_empty());
                    for key in queries {
                        prop_assert!(b.members.contains(&key));
                        self.leave(key)?;
                    }
                }
                Action::Quarantine { key, variant, device, .. } => {
                    let ordinal = self.variant(variant).ordinal;
                    let query = self.queries.get(&key);
                    prop_assert!(
                        query.is_some_and(|q| q.class.admits.contains(ordinal)),
                        "{key} below its floor"
                    );
                    prop_assert!(self.suspected.insert(key), "{key} is rerun twice");
                    let before = self.quarantine.insert(device, (key, variant));
                    prop_assert!(before.is_none(), "two in one quarantine runner: {before:?} and {key}");
                    prop_assert!(!self.batches.values().any(|b| b.members.contains(&key)));
                    prop_assert!(!self.ending.contains(&device), "it is ending");
                    self.held_there.insert(device, variant);
                    self.within_budget(device)?;
                }
                Action::QuarantineOver { device } => {
                    prop_assert!(!self.quarantine.contains_key(&device), "it is not over");
                    prop_assert!(self.held_there.contains_key(&device), "there was none");
                    prop_assert!(self.ending.insert(device), "it is ending already");
                }
                Action::Discharge { key } | Action::Refuse { key, .. } => self.leave(key)?,
                Action::Decline { key, .. } => {
                    prop_assert!(self.heard.remove(&key).is_some(), "{key} was not announced");
                    self.asked.remove(&key);
                }
                Action::HandBack { key, why } => {
                    let behind = self.queries.get(&key).is_some_and(|q| q.returnable)
                        && !self.suspected.contains(&key);
                    prop_assert!(self.draining || behind, "{key} must not go back");
                    prop_assert!(self.draining || why != Refusal::Draining);
                    prop_assert!(
                        !self.batches.values().any(|b| b.started && b.members.contains(&key)),
                        "{key} has begun"
                    );
                    self.leave(key)?;
                }
                Action::Recut { device, width, lanes } => {
                    let there = self.batches.values().filter(|b| b.lane.0 == device);
                    let apart = |b: &Batch| b.started && self.runner(b.variant).1 == Engine::Remote;
                    prop_assert!(there.into_iter().all(apart), "its lanes are not empty");
                    prop_assert!(width * lanes <= self.lanes_at_first, "more than there are");
                    self.cuts.insert(device, (width, lanes));
                }
                Action::Load { device, variant } => {
                    let memory = self.variant(variant).memory;
                    let before = self.memory.insert((device, variant), (Held::Loading, memory));
                    prop_assert!(before.is_none(), "{variant} was {before:?}");
                    let here = || self.memory.iter().filter(|((d, _), _)| *d == device);
                    prop_assert!(here().filter(|(_, (held, _))| *held == Held::Loading).count() == 1);
                    self.within_budget(device)?;
                }
                Action::Unload { device, variant } => {
                    let runs = self.batches.values().any(|b| b.lane.0 == device && b.variant == variant);
                    prop_assert!(!runs, "{variant} is unloaded while it runs");
                    if let Some(held) = self.memory.get_mut(&(device, variant)) {
                        prop_assert_eq!(held.0, Held::Loaded);
                        held.0 = Held::Unloading;
                    }
                }
                Action::Transition { .. }
                | Action::Drifted { .. }
                | Action::Steadied { .. }
                | Action::Narrow { .. } => {}
            }
        }
        prop_assert_eq!(self.worker.machine.open(), self.queries.len());
        prop_assert!(self.worker.machine.announced_here() + self.asked.len() <= self.heard.len());
        Ok(())
    }

    /// Replicas and what is in quarantine fit into the device together.
    fn within_budget(&self, device: DeviceIx) -> Checked {
        let replicas = self.memory.iter().filter(|((d, _), _)| *d == device).map(|(_, (_, bytes))| bytes.0);
        let ward = self.held_there.get(&device).map_or(0, |id| self.variant(*id).memory.0);
        let used = replicas.sum::<u64>() + ward;
        prop_assert!(used <= 16 || self.surprised, "{used} of 16, {ward} of it in quarantine");
        Ok(())
    }

    /// What must hold of a batch when it is bound.
    fn bound(
        &self,
        lane: (DeviceIx, LaneIx),
        variant: VariantId,
        members: &[QueryKey],
        expected: Micros,
    ) -> Checked {
        let v = self.variant(variant);
        let size = u32::try_from(members.len()).expect("small");
        prop_assert!((1..=v.max_batch).contains(&size), "{size} of {}", v.max_batch);
        let there = self.batches.values().filter(|b| b.lane == lane);
        let there = there.filter(|b| !self.suspects.contains(&(lane, self.runner(b.variant))));
        // What a server computes leaves the lane once it is prepared; one that is tried again waits there until the other has ended.
        let (apart, there): (Vec<_>, Vec<_>) =
            there.partition(|b| b.prepared && self.runner(b.variant).1 == Engine::Remote);
        prop_assert!(there.len() < 2, "two are bound there");
        let own = apart.iter().filter(|b| self.runner(b.variant) == self.runner(variant)).count();
        prop_assert!(own < 2, "two are on its way to the server");
        prop_assert!(!self.suspects.contains(&(lane, self.runner(variant))), "behind a suspect");
        let (width, lanes) = self.cuts.get(&lane.0).copied().unwrap_or((1, self.lanes_at_first));
        prop_assert!(lane.1.0 < lanes, "{:?} of {lanes}", lane.1);
        prop_assert!(v.threads.min(self.lanes_at_first) <= width, "{} threads on {width}", v.threads);
        let held = self.memory.get(&(lane.0, variant)).map(|(held, _)| *held);
        prop_assert_eq!(held, Some(Held::Loaded), "{} is not in memory", variant);
        // A server's own price counts instead of the lane's.
        let price = v.run.price.unwrap_or(PricePerHour(50_000));
        let cost = CostPer1k::of_batch(expected, price, size);
        let mut deadlines = Vec::new();
        for key in members {
            let query = self.queries.get(key);
            prop_assert!(query.is_some(), "{key} is not here");
            let query = query.expect("just checked");
            prop_assert!(query.class.admits.contains(v.ordinal), "{key} is answered below its floor");
            prop_assert!(!self.batches.values().any(|b| b.members.contains(key)), "{key} is bound twice");
            let affordable = query.best_effort || query.max_cost.is_none_or(|ceiling| cost <= ceiling);
            prop_assert!(affordable, "{key} pays {cost:?} for {:?}", query.max_cost);
            deadlines.push((query.deadline, *key));
        }
        match v.batching.unwrap_or(self.batching) {
            Batching::Off => prop_assert_eq!(size, 1),
            Batching::Fixed { size: most, .. } => prop_assert!(size <= most, "{} of {}", size, most),
            Batching::Deadline | Batching::Aimd => {}
        }
        // The first leads; behind it they stand by deadline.
        prop_assert!(deadlines[1..].is_sorted(), "{deadlines:?}");
        Ok(())
    }

    fn sleep(&mut self, until: Time) -> Checked {
        let mut rounds = 0;
        while let Some(wake) = self.worker.machine.poll_timeout().filter(|wake| wake.at <= until) {
            rounds += 1;
            prop_assert!(rounds < 2_000, "its timers do not move on: {wake:?}");
            self.now = self.now.max(wake.at);
            let actions = self.worker.timeout(self.now);
            self.perform(actions)?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    fn prepared(&mut self, at: usize, drop: bool) -> Checked {
        let unprepared: Vec<BatchId> =
            self.batches.iter().filter(|(_, b)| !b.prepared).map(|(id, _)| *id).collect();
        let Some(&batch) = unprepared.get(at % unprepared.len().max(1)) else { return Ok(()) };
        let b = self.batches.get_mut(&batch).expect("listed");
        b.prepared = true;
        let first = b.members.iter().find(|key| self.queries.contains_key(key)).copied();
        let dropped: Vec<QueryKey> = first.into_iter().filter(|_| drop).collect();
        for key in &dropped {
            self.leave(*key)?; // the shell answers it: its input is bad
        }
        self.feed(Event::Prepared { batch, dropped })
    }

    /// One that was asked for comes and is this node's from now on, or is another's.
    fn answered(&mut self, at: usize, comes: bool) -> Checked {
        let key = self.asked.iter().nth(at % self.asked.len().max(1)).copied();
        let Some(key) = key else { return Ok(()) };
        self.asked.remove(&key);
        let query = self.heard.remove(&key).expect("what is asked for was announced");
        if comes {
            self.queries.insert(key, query);
            self.next += 1;
            return self.feed(Event::Arrive(query));
        }
        self.feed(Event::Cancel { key })
    }

    fn done(&mut self, at: usize, bad: bool) -> Checked {
        let busy: Vec<_> = self.lanes.iter().filter(|(_, l)| !l.is_empty()).map(|(at, _)| *at).collect();
        let Some(lane) = busy.get(at % busy.len().max(1)) else { return Ok(()) };
        let batch = self.lanes.get_mut(lane).expect("listed").remove(0);
        self.forget_suspects();
        let why = String::from("shape");
        // The runner may have begun it all the same.
        let outcome = if self.batches[&batch].revoked && at.is_multiple_of(2) {
            Outcome::Revoked
        } else if bad {
            let failure = [Failure::Unreachable, Failure::Model, Failure::Memory][at % 3];
            Outcome::Failed { failure, why }
        } else {
            Outcome::Ran
        };
        self.feed(Event::Done { batch, outcome })
    }

    /// Those of whom nothing is left.
    fn forget_suspects(&mut self) {
        self.suspects.retain(|at| !self.lanes[at].is_empty());
    }

    fn loaded(&mut self, at: usize, bad: bool, more: u64) -> Checked {
        let loading = self.memory.iter().filter(|(_, (held, _))| *held == Held::Loading);
        let loading: Vec<_> = loading.map(|(at, _)| *at).collect();
        let Some(&(device, variant)) = loading.get(at % loading.len().max(1)) else { return Ok(()) };
        if bad {
            self.memory.remove(&(device, variant));
            return self.feed(Event::LoadFailed { device, variant, why: "no file".into() });
        }
        let memory = Bytes(self.variant(variant).memory.0 + more);
        self.surprised |= more > 0;
        self.memory.insert((device, variant), (Held::Loaded, memory));
        self.feed(Event::Loaded { device, variant, memory, took: Micros(20_000) })
    }

    fn judged(&mut self, at: usize, verdict: Option<Failure>) -> Checked {
        let inside = self.quarantine.iter().nth(at % self.quarantine.len().max(1));
        let Some((&device, &(key, _))) = inside else { return Ok(()) };
        self.quarantine.remove(&device);
        if matches!(verdict, Some(Failure::Process | Failure::Hung | Failure::NotStarted)) {
            self.held_there.remove(&device);
        }
        let failed = |failure| Outcome::Failed { failure, why: "judged".into() };
        self.feed(Event::Quarantined { key, outcome: verdict.map_or(Outcome::Ran, failed) })
    }

    fn unloaded(&mut self, at: usize) -> Checked {
        if let Some(device) = self.ending.pop_first() {
            self.held_there.remove(&device);
            return self.feed(Event::QuarantineEnded { device });
        }
        let leaving = self.memory.iter().filter(|(_, (held, _))| *held == Held::Unloading);
        let leaving: Vec<_> = leaving.map(|(at, _)| *at).collect();
        let Some(&(device, variant)) = leaving.get(at % leaving.len().max(1)) else { return Ok(()) };
        self.memory.remove(&(device, variant));
        self.feed(Event::Unloaded { device, variant })
    }

    /// A process died. The end of the batches it had is told last, or first where its death is told `late`.
    fn died(&mut self, (model, engine): (ModelId, Engine), late: bool) -> Checked {
        let shared = self.all.iter().filter(|v| v.model == model && v.engine == engine);
        let inside: Vec<VariantId> = shared.map(|v| v.id).collect();
        let mut failed = Vec::new();
        let hung = self.now.0.is_multiple_of(3);
        for handed in self.lanes.values_mut() {
            let dead = |id: &BatchId| inside.contains(&self.batches[id].variant);
            failed.extend(handed.iter().copied().filter(dead));
            handed.retain(|id| !dead(id));
        }
        self.forget_suspects();
        self.dying.extend(&failed);
        if late {
            self.failed(&failed, hung)?;
        }
        let gone: Vec<_> = self.memory.extract_if(.., |(_, v), _| inside.contains(v)).collect();
        let resident = gone.iter().filter(|(_, (held, _))| *held != Held::Loading);
        let variants = Some(resident.map(|((_, variant), _)| *variant).collect());
        self.feed(Event::RunnerDied { model, variants, why: "killed".into(), hung })?;
        for ((device, variant), (held, _)) in gone {
            match held {
                Held::Loading => self.feed(Event::LoadFailed { device, variant, why: "killed".into() })?,
                Held::Unloading => self.feed(Event::Unloaded { device, variant })?,
                Held::Loaded => {}
            }
        }
        if late { Ok(()) } else { self.failed(&failed, hung) }
    }

    fn failed(&mut self, batches: &[BatchId], hung: bool) -> Checked {
        let failure = if hung { Failure::Hung } else { Failure::Process };
        batches.iter().try_for_each(|batch| {
            let outcome = Outcome::Failed { failure, why: "killed".into() };
            self.dying.remove(batch);
            self.feed(Event::Done { batch: *batch, outcome })
        })
    }

    fn step(&mut self, step: &Step) -> Checked {
        self.now = self.now + Micros(1);
        match *step {
            Step::Arrive { admits, latency, cost, prefer, best_effort, bytes } => {
                let q = query(self.next, self.now, set(admits), Micros(latency));
                let q = Query {
                    max_cost: cost.map(CostPer1k),
                    prefer,
                    best_effort,
                    expires: if best_effort { q.deadline + Micros(100_000) } else { q.deadline },
                    bytes: Bytes(bytes),
                    returnable: bytes.is_multiple_of(3),
                    priority: if bytes % 4 == 1 { Priority::SPARE } else { Priority::default() },
                    ..q
                };
                self.next += 1;
                self.queries.insert(q.key, q);
                self.feed(Event::Arrive(q))
            }
            Step::Announce { admits, latency, cost, best_effort, part_ppm } => {
                // Numbers of their own, since not all of them are answered here.
                self.announced += 1;
                let q = query(1_000_000 + self.announced, self.now, set(admits), Micros(latency));
                let q = Query {
                    max_cost: cost.map(CostPer1k),
                    best_effort,
                    expires: if best_effort { q.deadline + Micros(100_000) } else { q.deadline },
                    ..q
                };
                self.heard.insert(q.key, q);
                self.feed(Event::Announce { query: q, part_ppm, quickest: Micros(latency % 3_000) })
            }
            Step::Answer(at, comes) => self.answered(at, comes),
            Step::Withdraw(at) => {
                let key = self.heard.keys().nth(at % self.heard.len().max(1)).copied();
                let Some(key) = key else { return Ok(()) };
                self.heard.remove(&key);
                self.asked.remove(&key);
                self.feed(Event::Cancel { key })
            }
            Step::Cancel(at) => {
                let key = self.queries.keys().nth(at % self.queries.len().max(1)).copied();
                let Some(key) = key else { return Ok(()) };
                self.leave(key)?;
                self.feed(Event::Cancel { key })
            }
            Step::Demand { admits, waiting, first } => {
                let class = query(0, self.now, set(admits), Micros(0)).class;
                self.feed(Event::Demand { class, waiting, first: Some(self.now + Micros(first)), among: 1 })
            }
            Step::Prepared(at, drop) => self.prepared(at, drop),
            Step::Done(at, bad) => self.done(at, bad),
            Step::Loaded(at, bad, more) => self.loaded(at, bad, more),
            Step::Unloaded(at) => self.unloaded(at),
            Step::Judged(at, verdict) => self.judged(at, verdict),
            Step::RunnerDied(model, engine, late) => self.died((ModelId(model), engine), late),
            Step::NotStarted(at) => {
                let bound: Vec<_> =
                    self.batches.iter().filter(|(_, b)| !b.started).map(|(id, b)| (*id, b.variant)).collect();
                let Some(&(batch, variant)) = bound.get(at % bound.len().max(1)) else { return Ok(()) };
                // Its process is gone before it could be handed over; that will be told as well.
                let outcome = Outcome::Failed { failure: Failure::NotStarted, why: "no process".into() };
                let device = self.batches[&batch].lane.0;
                self.memory.remove(&(device, variant));
                self.feed(Event::Done { batch, outcome })?;
                self.died(self.runner(variant), false)
            }
            Step::Pin(bits) => {
                let pins = set(bits).iter().map(|o| (DeviceIx(0), VariantId(u32::from(o)))).collect();
                self.feed(Event::Pin(pins))
            }
            Step::Recut(width) => self.feed(Event::Recut { device: DeviceIx(0), width }),
            Step::Wake(ordinal) => self.feed(Event::Wake { task: TASK, ordinal }),
            Step::Catalog(bits) => {
                let all = self.all.iter().filter(|v| set(bits).contains(v.ordinal));
                let variants: Vec<WorkerVariant> = all.cloned().collect();
                self.feed(Event::Catalog(variants))
            }
            Step::Drain => {
                self.draining = true;
                self.feed(Event::Drain)
            }
            Step::Wait(us) => self.sleep(self.now + Micros(us)),
        }
    }

    /// Everything that was begun ends well; then nobody may be left.
    fn finish(&mut self) -> Checked {
        for _ in 0..2_000 {
            let busy = !self.batches.is_empty()
                || !self.held_there.is_empty()
                || self.memory.values().any(|(held, _)| *held != Held::Loaded);
            if !busy && self.queries.is_empty() && self.heard.is_empty() {
                return Ok(());
            }
            self.now = self.now + Micros(1);
            self.answered(0, false)?;
            self.prepared(0, false)?;
            self.done(0, false)?;
            self.loaded(0, false, 0)?;
            self.unloaded(0)?;
            self.judged(0, None)?;
            self.sleep(self.now + Micros(1_000))?;
        }
        prop_assert!(
            false,
            "{} queries are forgotten: {:?}",
            self.queries.len(),
            self.queries.values().next()
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn every_query_leaves_exactly_once_whatever_happens(
        catalog in catalog(),
        lanes in 1_u16..=4,
        devices in 1_usize..=2,
        batching in batching(),
        steps in proptest::collection::vec(step(), 1..200),
        drain in any::<bool>(),
    ) {
        let config = config(lanes, devices, batching);
        let mut shell = Shell {
            worker: Logged::new(Worker::new(config.clone())),
            now: Time(0),
            all: catalog,
            batching,
            lanes_at_first: lanes,
            cuts: BTreeMap::new(),
            queries: BTreeMap::new(),
            heard: BTreeMap::new(),
            asked: BTreeSet::new(),
            batches: BTreeMap::new(),
            lanes: BTreeMap::new(),
            suspects: BTreeSet::new(),
            dying: BTreeSet::new(),
            memory: BTreeMap::new(),
            quarantine: BTreeMap::new(),
            held_there: BTreeMap::new(),
            ending: BTreeSet::new(),
            suspected: BTreeSet::new(),
            next: 0,
            announced: 0,
            left: 0,
            surprised: false,
            draining: false,
        };
        shell.step(&Step::Catalog(15))?;
        for step in steps {
            shell.step(&step)?;
        }
        if drain {
            shell.step(&Step::Drain)?;
        }
        shell.finish()?;
        prop_assert_eq!(shell.left, shell.next);
        prop_assert_eq!(shell.worker.machine.drained(), drain);
        shell.worker.replays_in(Worker::new(config));
    }
}
