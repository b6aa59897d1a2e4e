//! Several engines behind one: a variant goes to the one its settings name.
//!
//! One that is not there takes no place and harms nothing: only loading a variant that needs it says so. Deaths of all
//! runners come out of one channel, put there by the engines themselves, so that they stay ahead of the batches they
//! end. Nothing is looked up for a batch but which engine has the variant.

use crate::process::EVENTS;
use crate::seam::{
    Availability, BatchError, Done, Engine, EngineError, EngineEvent, Freed, LoadSpec, Loaded,
};
use crate::slot::{BatchSlot, Vacancy};
use crate::{ProcessConfig, ProcessEngine};
use async_trait::async_trait;
use modelless_types::{Bytes, Engine as Kind, Processor, VariantId, VariantSettings};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// All engines of a node.
#[derive(Debug)]
pub struct EngineSet {
    /// By [`place`]; or why it is not there.
    engines: [Result<ProcessEngine, String>; PLACES],
    /// Where a variant is resident. A runner that dies leaves an entry behind; its engine knows better.
    seats: RwLock<BTreeMap<VariantId, u8>>,
    /// The same for what was loaded last of those that share an entry: the usual case takes no lock.
    near: [AtomicU64; NEAR],
    events: Mutex<Option<mpsc::Receiver<EngineEvent>>>,
}

impl EngineSet {
    /// Engines without runners. `find` says how to run one of a kind, or why that cannot be.
    pub fn new(find: impl Fn(Kind) -> Result<ProcessConfig, String>) -> Result<Self, EngineError> {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let start = |config: Result<ProcessConfig, String>| match config {
            Ok(config) => ProcessEngine::telling(config, sender.clone()).map(Ok),
            Err(why) => Ok(Err(why)),
        };
        let found = Kind::ALL.map(|kind| find(kind).map(|config| ProcessConfig { engine: kind, ..config }));
        // Models on GPUs are confined less, so they have runners of their own, and none is started ahead.
        let on_gpus = |kind| match &found[place(kind, Processor::Cpu)] {
            Ok(config) if config.gpu => Ok(ProcessConfig { spare: false, ..config.clone() }),
            Ok(_) => Err(NO_GPU.to_owned()),
            Err(why) => Err(why.clone()),
        };
        let on_gpus = [on_gpus(Kind::Onnx), on_gpus(Kind::Torch)].map(start);
        let usual = found.map(|config| start(config.map(|config| ProcessConfig { gpu: false, ..config })));
        let ([onnx, openvino, torch, remote], [onnx_gpu, torch_gpu]) = (usual, on_gpus);
        let engines = [onnx?, openvino?, torch?, remote?, onnx_gpu?, torch_gpu?];
        ProcessEngine::share_machine(&engines.iter().filter_map(|one| one.as_ref().ok()).collect::<Vec<_>>());
        Ok(Self {
            engines,
            seats: RwLock::default(),
            near: [const { AtomicU64::new(0) }; NEAR],
            events: Mutex::new(Some(receiver)),
        })
    }

    /// One of the engines, where it is there, as it runs models on the CPU.
    pub fn get(&self, kind: Kind) -> Option<&ProcessEngine> {
        self.engines[place(kind, Processor::Cpu)].as_ref().ok()
    }

    /// The engine that has a variant.
    fn of(&self, variant: VariantId) -> Option<(u8, &ProcessEngine)> {
        let near = self.near[entry(variant)].load(Ordering::Acquire);
        let place = if near >> 8 == tag(variant) {
            near.to_le_bytes()[0]
        } else {
            *self.seats.read().unwrap_or_else(PoisonError::into_inner).get(&variant)?
        };
        Some((place, self.engines[usize::from(place)].as_ref().ok()?))
    }

    async fn availability(&self, kind: Kind) -> (Kind, Availability) {
        let availability = match &self.engines[place(kind, Processor::Cpu)] {
            Ok(engine) => engine.check().await,
            Err(reason) => Availability::Unavailable { reason: reason.clone() },
        };
        (kind, availability)
    }
}

/// More than the variants that are resident on one node at a time, most likely.
const NEAR: usize = 256;

const fn entry(variant: VariantId) -> usize {
    variant.0 as usize % NEAR
}

/// Never 0, which is no variant.
fn tag(variant: VariantId) -> u64 {
    u64::from(variant.0) + 1
}

/// One for each kind, and those of them again that can run models on GPUs.
const PLACES: usize = Kind::ALL.len() + 2;

const NO_GPU: &str = "this node has no GPU that models may use: NVIDIA's driver tells of none under /proc/driver/nvidia, or the \
                      node's file says `gpus = []`";

const fn place(kind: Kind, processor: Processor) -> usize {
    match (kind, processor) {
        (Kind::Onnx, Processor::Cpu) => 0,
        // OpenVINO says itself that it has no GPU here, and a server's is its own matter.
        (Kind::Openvino, _) => 1,
        (Kind::Torch, Processor::Cpu) => 2,
        (Kind::Remote, _) => 3,
        (Kind::Onnx, Processor::Cuda(_) | Processor::Tensorrt(_)) => 4,
        (Kind::Torch, Processor::Cuda(_) | Processor::Tensorrt(_)) => 5,
    }
}

#[async_trait]
impl Engine for EngineSet {
    /// Ready if any of them is.
    async fn check(&self) -> Availability {
        let mut reasons = Vec::new();
        for (kind, availability) in self.engines().await {
            match availability {
                ready @ Availability::Ready { .. } => return ready,
                Availability::Unavailable { reason } => reasons.push(format!("{kind}: {reason}")),
            }
        }
        Availability::Unavailable { reason: reasons.join("; ") }
    }

    async fn engines(&self) -> Vec<(Kind, Availability)> {
        // Each starts a process to see; none waits for another.
        let (onnx, openvino, torch, remote) = tokio::join!(
            self.availability(Kind::Onnx),
            self.availability(Kind::Openvino),
            self.availability(Kind::Torch),
            self.availability(Kind::Remote),
        );
        vec![onnx, openvino, torch, remote]
    }

    async fn version(&self, kind: Kind) -> Option<String> {
        self.availability(kind).await.1.into_version()
    }

    async fn load(&self, spec: LoadSpec) -> Result<Loaded, EngineError> {
        let VariantSettings { engine: kind, processor, .. } = spec.settings;
        let variant = spec.variant;
        let place = place(kind, processor);
        let engine = self.engines[place]
            .as_ref()
            .map_err(|why| EngineError::Unavailable(format!("{kind} is not available: {why}")))?;
        let loaded = engine.load(spec).await?;
        let place = u8::try_from(place).unwrap_or_default();
        let mut seats = self.seats.write().unwrap_or_else(PoisonError::into_inner);
        seats.insert(variant, place);
        self.near[entry(variant)].store(tag(variant) << 8 | u64::from(place), Ordering::Release);
        Ok(loaded)
    }

    async fn unload(&self, variant: VariantId) -> Result<Freed, EngineError> {
        let (_, engine) = self.of(variant).ok_or(EngineError::NotLoaded(variant))?;
        let unloaded = engine.unload(variant).await;
        if !matches!(unloaded, Err(EngineError::InUse(_) | EngineError::Busy(_))) {
            let mut seats = self.seats.write().unwrap_or_else(PoisonError::into_inner);
            seats.remove(&variant);
            let near = &self.near[entry(variant)];
            if near.load(Ordering::Acquire) >> 8 == tag(variant) {
                near.store(0, Ordering::Release);
            }
        }
        unloaded
    }

    fn slot(&self, variant: VariantId, lane: u16, batch: u32) -> Result<BatchSlot, EngineError> {
        let (place, engine) = self.of(variant).ok_or(EngineError::NotLoaded(variant))?;
        let mut slot = engine.slot(variant, lane, batch)?;
        slot.engine = place;
        Ok(slot)
    }

    fn submit(&self, slot: BatchSlot, limit: Duration, done: Done) {
        match self.engines.get(usize::from(slot.engine)) {
            Some(Ok(engine)) => engine.submit(slot, limit, done),
            Some(Err(_)) | None => done(Err(BatchError::NotStarted("its engine is not there".to_owned()))),
        }
    }

    fn help(&self, variant: VariantId, lane: u16, limit: Duration) {
        if let Some((_, engine)) = self.of(variant) {
            engine.help(variant, lane, limit);
        }
    }

    fn prime(&self, variant: VariantId, lane: u16) {
        if let Some((_, engine)) = self.of(variant) {
            engine.prime(variant, lane);
        }
    }

    fn vacancy(&self, variant: VariantId, lane: u16) -> Option<Vacancy> {
        self.of(variant)?.1.vacancy(variant, lane)
    }

    fn revoke(&self, variant: VariantId, lane: u16, ticket: u64) {
        if let Some((_, engine)) = self.of(variant) {
            engine.revoke(variant, lane, ticket);
        }
    }

    fn stand_back(&self, variant: VariantId, lane: u16, ticket: u64) {
        if let Some((_, engine)) = self.of(variant) {
            engine.stand_back(variant, lane, ticket);
        }
    }

    fn peak(&self, variant: VariantId) -> Option<Bytes> {
        self.of(variant)?.1.peak(variant)
    }

    fn held(&self) -> Vec<(Vec<VariantId>, Bytes)> {
        self.engines.iter().flatten().flat_map(Engine::held).collect()
    }

    fn processor_time(&self) -> Option<Duration> {
        let mut all = Duration::ZERO;
        for engine in self.engines.iter().flatten() {
            all += engine.processor_time()?;
        }
        Some(all)
    }

    fn events(&self) -> Option<mpsc::Receiver<EngineEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn shutdown(&self) {
        for engine in self.engines.iter().flatten() {
            engine.shutdown().await;
        }
    }
}
