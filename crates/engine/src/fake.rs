//! An engine for tests: no process, no library, outputs that tell which input they came from, and every fault a
//! real one can have, on demand.
//!
//! It keeps the contract of the seam: batches of one (model, engine, lane) run one after another, two slots each, limits,
//! deaths with their event. Time passes by tokio's clock, so tests may pause it.

use crate::clock;
use crate::seam::{
    Availability, BatchError, BatchResult, Done, Engine, EngineError, EngineEvent, Freed, Io, LoadSpec,
    Loaded,
};
use crate::shm::Mapping;
use crate::slot::{BatchSlot, Gate, Layout, Outputs, Vacancy};
use async_trait::async_trait;
use modelless_types::{Bytes, DType, Engine as Kind, Micros, ModelId, TensorSpec, VariantId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as Turn, Notify, mpsc};
use tokio::task::JoinSet;

const MAX_ARENA: u64 = 1 << 30;
const EVENTS: usize = 64;

/// What a fake variant computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Computes {
    /// One FP32 output: the sum of the first input (FP32) of each item.
    Sum,
    /// One output like the first input, and equal to it.
    Echo,
    /// One output like the first input (FP32), and none of it is a number.
    NotANumber,
}

/// What goes wrong with a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The library refuses it.
    Model(String),
    /// The server that it is on does not answer.
    Unreachable(String),
    /// The runner dies on it.
    Crash(String),
    /// Somebody else kills the runner.
    Kill(String),
    /// It never ends.
    Hang,
    /// Outputs come in another shape.
    Shape(String),
    /// Item `i` gets the output of item `order[i]`: the wrong attribution that a test of attribution must find.
    Permute(Vec<u32>),
}

/// Looks at a batch (its number, counted from 0 for each variant, and its items) and says what goes wrong.
pub type Faults = Arc<dyn Fn(u64, u32) -> Option<Fault> + Send + Sync>;

/// Looks at the first input of an item and says what goes wrong with every batch that holds it.
pub type Poison = Arc<dyn Fn(&[u8]) -> Option<Fault> + Send + Sync>;

/// How a variant behaves.
#[derive(Clone)]
pub struct FakeModel {
    /// Inputs of one item.
    pub inputs: Vec<TensorSpec>,
    /// What it computes.
    pub computes: Computes,
    /// How long a batch of so many items runs.
    pub latency: Arc<dyn Fn(u32) -> Duration + Send + Sync>,
    /// How long loading takes.
    pub load_time: Duration,
    /// What it says it takes.
    pub memory: Bytes,
    /// What batches leave behind in its process besides.
    pub keeps: Bytes,
    /// Why it cannot be loaded, if it cannot.
    pub refuses: Option<String>,
    /// What goes wrong.
    pub faults: Faults,
    /// What goes wrong with particular inputs.
    pub poison: Poison,
}

impl Default for FakeModel {
    /// Four FP32 in, their sum out, at once.
    fn default() -> Self {
        Self {
            inputs: vec![TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![4] }],
            computes: Computes::Sum,
            latency: Arc::new(|_| Duration::ZERO),
            load_time: Duration::ZERO,
            memory: Bytes::from_mib(1),
            keeps: Bytes(0),
            refuses: None,
            faults: Arc::new(|_, _| None),
            poison: Arc::new(|_| None),
        }
    }
}

impl std::fmt::Debug for FakeModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeModel").field("computes", &self.computes).finish_non_exhaustive()
    }
}

impl FakeModel {
    fn outputs(&self) -> Vec<TensorSpec> {
        match self.computes {
            Computes::Sum => vec![TensorSpec { name: "sum".to_owned(), dtype: DType::Fp32, shape: vec![1] }],
            Computes::Echo | Computes::NotANumber => self.inputs.first().cloned().into_iter().collect(),
        }
    }
}

/// The fake.
#[derive(Debug)]
pub struct FakeEngine {
    inner: Arc<Inner>,
    events: Mutex<Option<mpsc::Receiver<EngineEvent>>>,
    /// Batches that run, where they do not run inline.
    tasks: Mutex<JoinSet<()>>,
    inline: bool,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    events: mpsc::Sender<EngineEvent>,
    closing: Notify,
}

/// What stands for a process: all of a model for one engine.
type Runner = (ModelId, Kind);

#[derive(Debug, Default)]
struct State {
    models: BTreeMap<VariantId, FakeModel>,
    seats: BTreeMap<VariantId, Seat>,
    lanes: BTreeMap<(Runner, u16), Arc<Lane>>,
    /// Batches of each variant that were told to stand back.
    stood_back: BTreeMap<VariantId, u32>,
    loads: u64,
    version: u32,
    closed: bool,
}

#[derive(Debug)]
struct Seat {
    runner: Runner,
    load: u64,
    lanes: u16,
    layout: Arc<Layout>,
    arenas: Vec<Arc<Mapping>>,
    in_flight: u32,
    batches: u64,
}

#[derive(Debug, Default)]
struct Lane {
    gate: Arc<Gate>,
    /// Fair, so batches take turns in the order in which they came.
    turn: Arc<Turn<()>>,
}

impl FakeEngine {
    /// Batches run in tasks of the current tokio runtime and take their time.
    pub fn new() -> Self {
        Self::build(false)
    }

    /// Batches run inside `submit`, take no time, and call back before it returns.
    pub fn inline() -> Self {
        Self::build(true)
    }

    fn build(inline: bool) -> Self {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let inner = Arc::new(Inner { state: Mutex::default(), events: sender, closing: Notify::new() });
        Self { inner, events: Mutex::new(Some(receiver)), tasks: Mutex::default(), inline }
    }

    /// Says how a variant behaves; [`FakeModel::default`] where nothing was said. Counts from the next load (its
    /// tensors) or batch (the rest) on.
    pub fn behave(&self, variant: VariantId, model: FakeModel) {
        self.inner.lock().models.insert(variant, model);
    }

    /// How many batches of a variant were told to stand back behind everything else.
    pub fn stood_back(&self, variant: VariantId) -> u32 {
        self.inner.lock().stood_back.get(&variant).copied().unwrap_or_default()
    }

    /// From now on it is of another version.
    pub fn upgrade(&self) {
        self.inner.lock().version += 1;
    }

    /// Kills the runner of a model, as a crash between batches would.
    pub fn kill(&self, model: ModelId, cause: &str) {
        let state = self.inner.lock();
        let runners: BTreeSet<Runner> = state.seats.values().map(|seat| seat.runner).collect();
        drop(state);
        for runner in runners.into_iter().filter(|(of, _)| *of == model) {
            self.inner.die(runner, cause, false);
        }
    }
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runner of a model is gone, with all that was resident in it.
    fn die(&self, runner: Runner, cause: &str, hung: bool) {
        let variants: Vec<VariantId> = {
            let mut state = self.lock();
            let gone =
                state.seats.iter().filter(|(_, seat)| seat.runner == runner).map(|(id, _)| *id).collect();
            state.seats.retain(|_, seat| seat.runner != runner);
            state.lanes.retain(|(owner, _), _| *owner != runner);
            gone
        };
        if !variants.is_empty() {
            let model = runner.0;
            let died = EngineEvent::RunnerDied { model, variants, cause: cause.to_owned(), hung };
            if self.events.try_send(died).is_err() {
                tracing::error!("nobody reads the events of the fake engine");
            }
        }
    }

    /// What becomes of a batch whose turn it is; `run_us` is what it took.
    fn run(&self, mut slot: BatchSlot, run_us: u64, fault: Option<Fault>, limit: Duration) -> BatchResult {
        let (variant, load) = (slot.variant, slot.load);
        let (runner, FakeModel { computes, poison, .. }) = {
            let mut state = self.lock();
            let fake = state.models.get(&variant).cloned().unwrap_or_default();
            match state.seats.get_mut(&variant).filter(|seat| seat.load == load) {
                Some(seat) => {
                    seat.in_flight -= 1;
                    (seat.runner, fake)
                }
                None => return Err(BatchError::NotStarted("the runner is gone".to_owned())),
            }
        };
        let fault = fault.or_else(|| (0..slot.batch).find_map(|item| poison(slot.item_mut(0, item))));
        match fault {
            Some(Fault::Model(why)) => Err(BatchError::Model(why)),
            Some(Fault::Unreachable(why)) => Err(BatchError::Unreachable(why)),
            Some(Fault::Shape(why)) => Err(BatchError::Shape(why)),
            Some(Fault::Crash(why)) => {
                self.die(runner, &why, false);
                Err(BatchError::Crashed(why))
            }
            Some(Fault::Kill(why)) => {
                self.die(runner, &why, false);
                Err(BatchError::Killed(why))
            }
            Some(Fault::Hang) => {
                self.die(runner, "a batch ran over its limit", true);
                Err(BatchError::Hung(limit))
            }
            Some(Fault::Permute(order)) => Ok(compute(slot, computes, &order, run_us)),
            None => {
                let order: Vec<u32> = (0..slot.batch).collect();
                Ok(compute(slot, computes, &order, run_us))
            }
        }
    }
}

fn compute(mut slot: BatchSlot, computes: Computes, order: &[u32], run_us: u64) -> Outputs {
    for (item, from) in (0..slot.batch).zip(order.iter().copied()) {
        let input = slot.item_mut(0, from.min(slot.batch - 1)).to_vec();
        let output = match computes {
            Computes::Echo => input,
            Computes::NotANumber => f32::NAN.to_le_bytes().repeat(input.len() / 4),
            Computes::Sum => {
                let (values, _) = input.as_chunks::<4>();
                values.iter().map(|value| f32::from_le_bytes(*value)).sum::<f32>().to_le_bytes().to_vec()
            }
        };
        let span = slot.span(&slot.layout.outputs[0], item..item + 1);
        slot.bytes_mut(span).copy_from_slice(&output);
    }
    Outputs::new(slot, run_us)
}

#[async_trait]
impl Engine for FakeEngine {
    async fn check(&self) -> Availability {
        Availability::Ready { version: self.inner.lock().version.to_string(), library: "fake".to_owned() }
    }

    async fn version(&self, _: Kind) -> Option<String> {
        self.check().await.into_version()
    }

    async fn load(&self, spec: LoadSpec) -> Result<Loaded, EngineError> {
        let LoadSpec { variant, model, settings, lanes, expect, .. } = spec;
        let fake = self.inner.lock().models.get(&variant).cloned().unwrap_or_default();
        let closing = self.inner.closing.notified();
        if !self.inline && !self.inner.lock().closed {
            // One that hangs ends with its process.
            tokio::select! {
                () = tokio::time::sleep(fake.load_time) => {}
                () = closing => {}
            }
        }
        let refused = |why: String| EngineError::Refused { variant, why };
        if let Some(why) = &fake.refuses {
            return Err(refused(why.clone()));
        }
        let io = Io { inputs: fake.inputs.clone(), outputs: fake.outputs(), longest: None };
        if expect.is_some_and(|expected| Io { longest: None, ..expected } != io) {
            return Err(refused("its tensors are not the expected ones".to_owned()));
        }
        if lanes == 0 {
            return Err(EngineError::range("the number of lanes", lanes, "at least 1"));
        }
        let layout = Layout::new(&io.inputs, &io.outputs, settings.max_batch, settings.strings(), MAX_ARENA);
        let layout = layout.map_err(refused)?;
        let arenas = (0..lanes).map(|_| Mapping::private(layout.arena_bytes()).map(Arc::new));
        let arenas = arenas.collect::<Result<_, _>>().map_err(EngineError::system("map memory"))?;
        let runner = (model, settings.engine);
        let mut state = self.inner.lock();
        if state.closed {
            return Err(EngineError::Busy("it is shutting down"));
        }
        if state.seats.contains_key(&variant) {
            return Err(EngineError::AlreadyLoaded(variant));
        }
        for lane in 0..lanes {
            state.lanes.entry((runner, lane)).or_default();
        }
        state.loads += 1;
        let slots = Bytes(layout.arena_bytes() as u64 * u64::from(lanes));
        let (load, layout) = (state.loads, Arc::new(layout));
        let seat = Seat { runner, load, lanes, layout, arenas, in_flight: 0, batches: 0 };
        state.seats.insert(variant, seat);
        Ok(Loaded {
            inputs: io.inputs,
            outputs: io.outputs,
            fixed_batch: None,
            stretches: false,
            memory: fake.memory,
            slots,
            load_time: Micros(clock::micros(fake.load_time)),
            device: "cpu".to_owned(),
        })
    }

    async fn unload(&self, variant: VariantId) -> Result<Freed, EngineError> {
        let mut state = self.inner.lock();
        let seat = state.seats.get(&variant).ok_or(EngineError::NotLoaded(variant))?;
        if seat.in_flight > 0 {
            return Err(EngineError::InUse(variant));
        }
        let runner = seat.runner;
        state.seats.remove(&variant);
        let process_ended = !state.seats.values().any(|seat| seat.runner == runner);
        let memory = state.models.get(&variant).map_or(FakeModel::default().memory, |fake| fake.memory);
        Ok(Freed { memory, process_ended, left: Bytes(0) })
    }

    fn slot(&self, variant: VariantId, lane: u16, batch: u32) -> Result<BatchSlot, EngineError> {
        let state = self.inner.lock();
        let seat = state.seats.get(&variant).ok_or(EngineError::NotLoaded(variant))?;
        let on = state.lanes.get(&(seat.runner, lane)).filter(|_| lane < seat.lanes);
        let on = on.ok_or_else(|| EngineError::range("the lane", lane, format!("below {}", seat.lanes)))?;
        let arena = &seat.arenas[usize::from(lane)];
        BatchSlot::new((variant, seat.load), lane, batch, &seat.layout, arena, &on.gate)
    }

    fn vacancy(&self, variant: VariantId, lane: u16) -> Option<Vacancy> {
        let state = self.inner.lock();
        let runner = state.seats.get(&variant)?.runner;
        state.lanes.get(&(runner, lane)).map(|on| Vacancy(Arc::clone(&on.gate)))
    }

    fn submit(&self, slot: BatchSlot, limit: Duration, done: Done) {
        let (variant, load, lane, batch) = (slot.variant, slot.load, slot.lane, slot.batch);
        let ready = {
            let mut state = self.inner.lock();
            let fake = state.models.get(&variant).cloned().unwrap_or_default();
            let seat = state.seats.get_mut(&variant).filter(|seat| seat.load == load);
            seat.map(|seat| {
                seat.in_flight += 1;
                seat.batches += 1;
                (seat.runner, seat.batches - 1, fake)
            })
            .and_then(|(runner, number, fake)| {
                Some((Arc::clone(&state.lanes.get(&(runner, lane))?.turn), number, fake))
            })
        };
        let Some((turn, number, fake)) = ready else {
            return done(Err(BatchError::NotStarted("the variant was unloaded".to_owned())));
        };
        let fault = (fake.faults)(number, batch);
        let latency = (fake.latency)(batch);
        let run_us = clock::micros(latency);
        if self.inline {
            return done(self.inner.run(slot, run_us, fault, limit));
        }
        let inner = Arc::clone(&self.inner);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let turn = turn.lock_owned().await;
            let fault = if latency >= limit { Some(Fault::Hang) } else { fault };
            let time = if fault == Some(Fault::Hang) { limit } else { latency };
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            let result = inner.run(slot, run_us, fault, limit);
            drop(turn);
            done(result);
        });
    }

    fn stand_back(&self, variant: VariantId, _: u16, _: u64) {
        *self.inner.lock().stood_back.entry(variant).or_default() += 1;
    }

    fn events(&self) -> Option<mpsc::Receiver<EngineEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn held(&self) -> Vec<(Vec<VariantId>, Bytes)> {
        let state = self.inner.lock();
        let mut all: BTreeMap<Runner, (Vec<VariantId>, Bytes)> = BTreeMap::new();
        for (variant, seat) in &state.seats {
            let model = state.models.get(variant).cloned().unwrap_or_default();
            let (inside, held) = all.entry(seat.runner).or_default();
            inside.push(*variant);
            *held = *held + model.memory + if seat.batches > 0 { model.keeps } else { Bytes(0) };
        }
        all.into_values().collect()
    }

    async fn shutdown(&self) {
        {
            let mut state = self.inner.lock();
            state.closed = true;
            state.seats.clear();
        }
        self.inner.closing.notify_waiters();
        // What runs ends by itself: it finds its seat gone.
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
