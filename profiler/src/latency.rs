//! How long a batch takes, from handing it over to having its outputs.
//!
//! Timed as a lane of the executor experiences it: the call to submit, the runner waking, the run, and the call
//! back on the engine's thread. Filling the slot is not in it (that is `prepare`), nor is the wake of whoever waits.
//! Every other run comes after a pause, as on a lane that had nothing to do: caches and sleeping cores make such a
//! run up to twice as slow, and deadlines hold for lonely queries too. While each of the others runs, the inputs of the next
//! batch are decoded and written into the lane's other slot, as they are where queries come without a break: that takes
//! memory's bandwidth and a core. Mean and variance tell of both kinds.

use bytes::Bytes;
use modelless_adapter::{Adapter, Body, Limits, Scratch};
use modelless_engine::{BatchError, BatchResult, BatchSlot, Engine, EngineError, Outputs};
use modelless_types::VariantId;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long to go on with one batch size in one series.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Effort {
    /// Runs before counting starts, the first time; later one is enough.
    pub(crate) warm_up: u32,
    /// Enough is measured after this long, once there are `least` repetitions.
    pub(crate) enough_ms: u64,
    /// And at the latest after this long, with three.
    pub(crate) at_most_ms: u64,
    /// Fewest repetitions, unless each takes very long.
    pub(crate) least: u32,
    /// Most repetitions.
    pub(crate) most: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { warm_up: 3, enough_ms: 20, at_most_ms: 700, least: 8, most: 70 }
    }
}

impl Effort {
    fn done(&self, samples: usize, spent: Duration) -> bool {
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        samples >= self.most
            || (samples >= self.least && spent >= Duration::from_millis(self.enough_ms))
            || (samples >= self.least.min(3) && spent >= Duration::from_millis(self.at_most_ms))
    }
}

/// Long enough for a core to go to sleep.
const PAUSE: Duration = Duration::from_millis(1);

/// What stopped a measurement.
#[derive(Debug)]
pub(crate) enum Failure {
    Engine(EngineError),
    Batch(BatchError),
}

impl Failure {
    /// Whether a smaller batch might do: there was no memory for this one, or it took too long. Also whether the process
    /// is gone with it.
    pub(crate) fn is_size(&self) -> Option<bool> {
        match self {
            Self::Batch(BatchError::Crashed(_) | BatchError::Killed(_) | BatchError::Hung(_)) => Some(true),
            Self::Batch(BatchError::Model(_)) | Self::Engine(EngineError::System { .. }) => Some(false),
            Self::Batch(
                BatchError::Shape(_)
                | BatchError::Unreachable(_)
                | BatchError::Revoked
                | BatchError::NotStarted(_),
            )
            | Self::Engine(_) => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Engine(error) => error.fmt(f),
            Self::Batch(error) => error.fmt(f),
        }
    }
}

/// A batch that runs.
struct Running(oneshot::Receiver<(BatchResult, Duration)>);

impl Running {
    fn start(engine: &dyn Engine, slot: BatchSlot, limit: Duration) -> Self {
        let (sender, done) = oneshot::channel();
        let start = Instant::now();
        // If nobody waits any longer there is nobody to tell.
        engine.submit(slot, limit, Box::new(move |result| drop(sender.send((result, start.elapsed())))));
        Self(done)
    }

    fn has_ended(&self) -> bool {
        !self.0.is_empty()
    }

    async fn end(self) -> Result<(Outputs, Duration), Failure> {
        let (result, took) = self.0.await.map_err(|_| {
            Failure::Batch(BatchError::NotStarted("the engine went away without answering".to_owned()))
        })?;
        result.map(|outputs| (outputs, took)).map_err(Failure::Batch)
    }
}

/// Runs a batch alone on lane 0: the outputs, and the time it took.
pub(crate) async fn run(
    engine: &dyn Engine,
    slot: BatchSlot,
    limit: Duration,
) -> Result<(Outputs, Duration), Failure> {
    Running::start(engine, slot, limit).end().await
}

/// What every item of a batch is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    /// As a query brings it, and how a slot is filled with it.
    pub(crate) raw: &'a Bytes,
    pub(crate) adapter: &'a Adapter,
    /// What comes of that: one row for each input, and how long it is where lengths differ.
    pub(crate) rows: &'a [Vec<u8>],
    pub(crate) length: Option<u32>,
}

impl Item<'_> {
    /// A slot of lane 0 for a batch of it.
    fn slot(&self, engine: &dyn Engine, variant: VariantId, batch: u32) -> Result<BatchSlot, Failure> {
        let mut slot = engine.slot(variant, 0, batch).map_err(Failure::Engine)?;
        if let Some(length) = self.length {
            slot.stretch(length);
        }
        Ok(slot)
    }

    fn copy(&self, slot: &mut BatchSlot, row: u32) {
        for (input, bytes) in self.rows.iter().enumerate() {
            slot.item_mut(input, row).copy_from_slice(bytes);
        }
    }

    /// Fills one row as serving does. Whether that could be done: it could when its rows were made.
    fn write(&self, slot: &mut BatchSlot, row: u32, scratch: &mut Scratch) -> bool {
        let decoded = self.adapter.preparation().decode(Body::Raw(self.raw), &Limits::default());
        decoded.is_ok_and(|decoded| {
            (0..self.rows.len()).all(|input| {
                self.adapter.prepare(&decoded, input, slot.item_mut(input, row), scratch).is_ok()
            })
        })
    }
}

/// How to measure one series.
pub(crate) struct How<'a> {
    pub(crate) effort: Effort,
    /// A batch that takes longer is given up.
    pub(crate) limit: Duration,
    /// Whether to stop at once.
    pub(crate) disturbed: &'a (dyn Fn() -> bool + Sync),
}

/// Times batches of one size for one series, in microseconds. `None` if it was disturbed: then nothing of it counts.
pub(crate) async fn series(
    engine: &dyn Engine,
    variant: VariantId,
    batch: u32,
    item: Item<'_>,
    How { effort, limit, disturbed }: How<'_>,
) -> Result<Option<Vec<f64>>, Failure> {
    let mut times = Vec::new();
    let mut since = Instant::now();
    let mut runs = 0_u32;
    let mut scratch = Scratch::default();
    let mut ready = None;
    loop {
        let slot = if let Some(slot) = ready.take() {
            slot
        } else {
            let mut slot = item.slot(engine, variant, batch)?;
            (0..batch).for_each(|row| item.copy(&mut slot, row));
            slot
        };
        let alone = runs % 2 == 1;
        if alone {
            tokio::time::sleep(PAUSE).await;
        }
        if disturbed() {
            return Ok(None);
        }
        let running = Running::start(engine, slot, limit);
        if !alone {
            let mut slot = item.slot(engine, variant, batch)?;
            for row in 0..batch {
                // What takes longer than the batch must not be waited for: its time is not what is measured.
                if running.has_ended() || !item.write(&mut slot, row, &mut scratch) {
                    item.copy(&mut slot, row);
                }
            }
            ready = Some(slot);
        }
        let (outputs, took) = running.end().await?;
        drop(outputs);
        if disturbed() {
            return Ok(None);
        }
        runs += 1;
        if runs <= effort.warm_up {
            since = Instant::now();
            continue;
        }
        times.push(took.as_secs_f64() * 1e6);
        if effort.done(times.len(), since.elapsed()) {
            return Ok(Some(times));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::TaskManifest;
    use modelless_adapter::AdapterSpec;
    use modelless_engine::fake::{Computes, FakeModel};
    use modelless_engine::{FakeEngine, LoadSpec};
    use modelless_store::{MemStore, Store as _};
    use modelless_types::{DType, Engine as Kind, ModelId, TenantId, TensorSpec, VariantSettings};
    use std::sync::{Arc, Mutex, PoisonError};

    const VARIANT: VariantId = VariantId(1);

    /// What the items of every batch of a series were, where rows say one thing and a query another.
    async fn inputs_seen(latency: Duration) -> Vec<Vec<f32>> {
        let x = TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![1] };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let engine = FakeEngine::new();
        let note = Arc::clone(&seen);
        let poison = move |row: &[u8]| {
            let value = row.try_into().map(f32::from_le_bytes).unwrap();
            note.lock().unwrap_or_else(PoisonError::into_inner).push(value);
            None
        };
        let model = FakeModel {
            inputs: vec![x.clone()],
            computes: Computes::Echo,
            latency: Arc::new(move |_| latency),
            poison: Arc::new(poison),
            ..FakeModel::default()
        };
        engine.behave(VARIANT, model);
        let load = LoadSpec {
            variant: VARIANT,
            model: ModelId(1),
            artefact: tempfile::tempfile().unwrap(),
            settings: VariantSettings::new(Kind::Onnx, "fp32", 2),
            lanes: 1,
            memory_limit: None,
            shown: false,
            expect: None,
        };
        engine.load(load).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("task.toml");
        let tensor = "[{ name = \"x\", dtype = \"FP32\", shape = [1] }]";
        let text = format!("name = \"t\"\nkind = \"tensor\"\ninputs = {tensor}\noutputs = {tensor}");
        std::fs::write(&path, text).unwrap();
        let task = TaskManifest::read(&path).unwrap();
        let task = MemStore::default().create_task(task.new_task(TenantId::DEFAULT).unwrap()).await.unwrap();
        let spec = AdapterSpec::parse(r#"{"kind": "tensor"}"#).unwrap();
        let tensors = std::slice::from_ref(&x);
        let adapter = Adapter::new(&spec, &task, tensors, tensors).unwrap();
        let raw = Bytes::copy_from_slice(&7.0_f32.to_le_bytes());
        let rows = [1.0_f32.to_le_bytes().to_vec()];
        let item = Item { raw: &raw, adapter: &adapter, rows: &rows, length: None };
        let effort = Effort { warm_up: 0, enough_ms: 0, at_most_ms: 1_000, least: 4, most: 4 };
        let how = How { effort, limit: Duration::from_secs(1), disturbed: &|| false };
        let times = series(&engine, VARIANT, 2, item, how).await.unwrap().unwrap();
        assert_eq!(times.len(), 4);
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.chunks(2).map(<[f32]>::to_vec).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn every_other_batch_runs_while_the_next_is_written_as_serving_does() {
        // The first and third are there from the start, and each writes the one after it.
        let written = [7.0, 7.0];
        assert_eq!(inputs_seen(Duration::from_millis(2)).await, [[1.0, 1.0], written, [1.0, 1.0], written]);
    }

    #[test]
    fn fast_runs_are_repeated_often_and_slow_ones_not_forever() {
        let effort = Effort::default();
        let ms = Duration::from_millis;
        for (samples, spent, done) in [
            (69, ms(19), false),
            (70, ms(1), true),
            (7, ms(100), false),
            (8, ms(100), true),
            (3, ms(800), true),
        ] {
            assert_eq!(effort.done(samples, spent), done, "{samples} in {spent:?}");
        }
    }
}
