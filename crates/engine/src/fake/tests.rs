use super::*;
use modelless_types::{Engine as Kind, VariantSettings};
use std::sync::mpsc::{Receiver, sync_channel};

const VARIANT: VariantId = VariantId(1);
const LIMIT: Duration = Duration::from_secs(1);

async fn load(engine: &FakeEngine, model: FakeModel) -> Loaded {
    engine.behave(VARIANT, model);
    let settings = VariantSettings::new(Kind::Onnx, "fp32", 8);
    let artefact = tempfile::tempfile().unwrap();
    let spec = LoadSpec {
        variant: VARIANT,
        model: ModelId(1),
        artefact,
        settings,
        lanes: 1,
        memory_limit: None,
        shown: false,
        expect: None,
    };
    engine.load(spec).await.unwrap()
}

/// Submits a batch whose item `i` sums to `first + i`.
fn submit(engine: &FakeEngine, batch: u32, first: u8) -> Receiver<BatchResult> {
    let mut slot = engine.slot(VARIANT, 0, batch).unwrap();
    for item in 0..batch {
        let value = f32::from(first) + f32::from(u8::try_from(item).unwrap());
        slot.item_mut(0, item).fill(0);
        slot.item_mut(0, item)[..4].copy_from_slice(&value.to_le_bytes());
    }
    let (sender, receiver) = sync_channel(1);
    engine.submit(slot, LIMIT, Box::new(move |result| sender.send(result).unwrap()));
    receiver
}

fn sums(result: BatchResult) -> Vec<f32> {
    let outputs = result.unwrap();
    outputs.output(0).as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

#[tokio::test]
async fn row_i_in_is_row_i_out() {
    let engine = FakeEngine::inline();
    load(&engine, FakeModel::default()).await;
    assert_eq!(sums(submit(&engine, 3, 10).recv().unwrap()), [10.0, 11.0, 12.0]);
}

#[tokio::test]
async fn an_injected_permutation_shows() {
    let engine = FakeEngine::inline();
    let faults: Faults = Arc::new(|_, _| Some(Fault::Permute(vec![2, 0, 1])));
    load(&engine, FakeModel { faults, ..FakeModel::default() }).await;
    assert_eq!(sums(submit(&engine, 3, 10).recv().unwrap()), [12.0, 10.0, 11.0]);
}

#[tokio::test(start_paused = true)]
async fn batches_of_a_lane_take_turns_and_their_time() {
    let engine = FakeEngine::new();
    let latency = Arc::new(|batch| Duration::from_millis(10) * batch);
    load(&engine, FakeModel { latency, ..FakeModel::default() }).await;
    let start = tokio::time::Instant::now();
    let (first, second) = (submit(&engine, 2, 0), submit(&engine, 3, 100));
    assert!(engine.slot(VARIANT, 0, 1).is_err());
    engine.idle().await;
    assert_eq!(start.elapsed().as_millis() / 10, 5);
    assert_eq!(sums(first.recv().unwrap()), [0.0, 1.0]);
    assert_eq!(sums(second.recv().unwrap()), [100.0, 101.0, 102.0]);
}

#[tokio::test(start_paused = true)]
async fn a_crash_takes_the_runner_and_what_waits_behind_it() {
    let engine = FakeEngine::new();
    let faults: Faults = Arc::new(|number, _| (number == 0).then(|| Fault::Crash("poison".into())));
    load(&engine, FakeModel { faults, ..FakeModel::default() }).await;
    let mut events = engine.events().unwrap();
    let (first, second) = (submit(&engine, 1, 0), submit(&engine, 1, 1));
    let died = events.recv().await.unwrap();
    let expected = EngineEvent::RunnerDied {
        model: ModelId(1),
        variants: vec![VARIANT],
        cause: "poison".into(),
        hung: false,
    };
    assert_eq!(died, expected);
    engine.idle().await;
    assert_eq!(first.recv().unwrap().unwrap_err(), BatchError::Crashed("poison".into()));
    assert!(matches!(second.recv().unwrap(), Err(BatchError::NotStarted(_))));
    assert_eq!(engine.slot(VARIANT, 0, 1).unwrap_err(), EngineError::NotLoaded(VARIANT));
    load(&engine, FakeModel::default()).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_over_its_limit_is_hung() {
    let engine = FakeEngine::new();
    let latency = Arc::new(|_| Duration::from_hours(1));
    load(&engine, FakeModel { latency, ..FakeModel::default() }).await;
    let receiver = submit(&engine, 1, 0);
    engine.idle().await;
    assert_eq!(receiver.recv().unwrap().unwrap_err(), BatchError::Hung(LIMIT));
}

impl FakeEngine {
    /// Waits until all batches are done.
    async fn idle(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        while tasks.join_next().await.is_some() {}
    }
}
