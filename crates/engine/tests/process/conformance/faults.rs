//! Models that misbehave while they run. The engine stands, and so does every other model.

use super::*;
use crate::failures::{pid, signal};
use modelless_engine::{BatchError, EngineEvent};
use modelless_types::Bytes;

pub(crate) async fn a_model_that_throws_fails_its_batch_and_nothing_else(under: Under) {
    let bench = Bench::new(under);
    bench.load(1, "picky").await;
    let runner = bench.engine.runners()[0].pid;
    let ones = |items: u32| vec![1.0_f32; items as usize * 10];
    let good = bench.run(1, 2, &[&bytes_i64([10, 0])]).await.unwrap();
    assert_eq!(f32s(good.output(0)), ones(2));
    drop(good);
    let bad = bench.run(1, 2, &[&bytes_i64([3, 7])]).await.unwrap_err();
    assert!(matches!(&bad, BatchError::Model(why) if why.len() > 5), "{bad}");
    let good = bench.run(1, 1, &[&bytes_i64([10])]).await.unwrap();
    assert_eq!(f32s(good.output(0)), ones(1));
    assert_eq!(bench.engine.runners()[0].pid, runner);
}

pub(crate) async fn outputs_of_another_shape_are_an_error_not_an_answer(under: Under) {
    let bench = Bench::new(under);
    bench.load(1, "ragged").await;
    let outputs = bench.run(1, 2, &[&bytes_f32([0.0, 0.0])]).await.unwrap();
    assert_eq!(i64s(outputs.output(0)), [0, 1]);
    let name = outputs.specs().next().unwrap().name.clone();
    drop(outputs);
    // One of two is not zero: one row too few, and it could be anybody's.
    let wrong = bench.run(1, 2, &[&bytes_f32([0.0, 1.0])]).await.unwrap_err();
    let said = format!("`{name}` is INT64 [1, 1], but INT64 [2, 1] was declared");
    assert_eq!(wrong, BatchError::Shape(said));
    // None at all.
    let wrong = bench.run(1, 2, &[&bytes_f32([1.0, 1.0])]).await.unwrap_err();
    let said = format!("`{name}` is INT64 [0, 1], but INT64 [2, 1] was declared");
    assert_eq!(wrong, BatchError::Shape(said));
    // Rows of another length, as many as there are items or not.
    bench.load(2, "picky").await;
    let wrong = bench.run(2, 2, &[&bytes_i64([5, 0])]).await.unwrap_err();
    assert!(matches!(&wrong, BatchError::Shape(why) if why.contains("[4, 5]")), "{wrong}");
}

pub(crate) async fn a_model_that_hangs_is_ended_within_the_limit(under: Under) {
    let bench = Bench::new(under);
    let mut events = bench.engine.events().unwrap();
    bench.load(1, "slow").await;
    bench.load(2, "echo").await;
    let limit = Duration::from_millis(300);
    let mut slot = bench.engine.slot(VariantId(1), 0, 1).unwrap();
    slot.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
    let hung = submit(&bench.engine, slot, limit);
    assert_eq!(hung.await.unwrap().unwrap_err(), BatchError::Hung(limit));
    let Some(EngineEvent::RunnerDied { variants, .. }) = events.recv().await else { panic!("no event") };
    assert_eq!(variants, [VariantId(1)]);
    serves(&bench, 2).await;
    bench.load(1, "slow").await;
}

pub(crate) async fn a_model_that_takes_memory_without_end_is_stopped_at_the_limit(under: Under) {
    is_stopped_at_the_limit(under, "greedy").await;
}

pub(crate) async fn a_model_that_takes_more_and_more_memory_is_stopped_at_the_limit(under: Under) {
    is_stopped_at_the_limit(under, "grows").await;
}

/// Address space, for want of a better limit; the libraries themselves need some of it.
async fn is_stopped_at_the_limit(under: Under, model: &str) {
    let limit = Bytes::from_mib(if under.kind == Kind::Torch { 6_144 } else { 3_072 });
    let bench = Bench::with(under, |config| config.memory_limit = Some(limit));
    bench.load(1, model).await;
    bench.load(2, "echo").await;
    let fine = bench.run(1, 1, &[&bytes_i64([16])]).await.unwrap();
    assert_eq!(i64s(fine.output(0)), [16]);
    drop(fine);
    let greedy = bench.run(1, 1, &[&bytes_i64([8_192])]).await.unwrap_err();
    assert!(matches!(greedy, BatchError::Model(_) | BatchError::Crashed(_)), "{greedy}");
    serves(&bench, 2).await;
    if matches!(greedy, BatchError::Crashed(_)) {
        return;
    }
    // What it wanted is not held back from those who come after it.
    for mib in [16, 64, 16] {
        let fine = bench.run(1, 1, &[&bytes_i64([mib])]).await;
        assert_eq!(fine.map(|outputs| i64s(outputs.output(0))), Ok(vec![mib]));
    }
}

pub(crate) async fn a_model_that_aborts_its_process_takes_nothing_else_with_it(under: Under) {
    let bench = Bench::new(under);
    let mut events = bench.engine.events().unwrap();
    bench.load(2, "echo").await;
    let cause = if [Kind::Onnx, Kind::Torch].map(Under::from).contains(&under) {
        bench.load(1, "divides").await;
        let fine = bench.run(1, 1, &[&99_i32.to_le_bytes()]).await.unwrap();
        assert_eq!(fine.output(0), (-99_i32).to_le_bytes());
        drop(fine);
        let crashed = bench.run(1, 1, &[&i32::MIN.to_le_bytes()]).await.unwrap_err();
        let BatchError::Crashed(cause) = crashed else { panic!("{crashed}") };
        cause
    } else {
        // Of the others no operator is known to abort: the signal it would end with has to do.
        bench.load(1, "slow").await;
        let mut slot = bench.engine.slot(VariantId(1), 0, 1).unwrap();
        slot.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
        let running = submit(&bench.engine, slot, LIMIT);
        signal(pid(&bench.engine), "ABRT");
        let crashed = running.await.unwrap().unwrap_err();
        let BatchError::Crashed(cause) = crashed else { panic!("{crashed}") };
        cause
    };
    assert!(cause.contains("signal"), "{cause}");
    let Some(EngineEvent::RunnerDied { variants, .. }) = events.recv().await else { panic!("no event") };
    assert_eq!(variants, [VariantId(1)]);
    serves(&bench, 2).await;
}

/// Another model's runner never noticed.
async fn serves(bench: &Bench, n: u32) {
    let rows = bytes_f32([1.0, 2.0, 3.0, 4.0]);
    assert_eq!(bench.run(n, 1, &[&rows]).await.unwrap().output(0), rows);
}
