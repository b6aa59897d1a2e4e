//! Runners that die, hang, or are not what they should be.

use super::*;
use modelless_engine::{BatchError, EngineEvent};
use std::process::Command;

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
    // A signal is on its way before it has arrived: no thread of a stopped process takes another batch.
    while name == "STOP" && !stopped(pid) {
        std::thread::yield_now();
    }
}

/// Whether every thread of a process is stopped.
fn stopped(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
        // One that only warmed its lane up ends by itself, perhaps while we look.
        let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else { return true };
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 'X', 'Z']))
    })
}

pub(crate) fn pid(engine: &ProcessEngine) -> u32 {
    engine.runners()[0].pid.unwrap()
}

/// A batch that is still running when the test acts on its runner.
fn endless(engine: &ProcessEngine, lane: u16, limit: Duration) -> oneshot::Receiver<BatchResult> {
    let mut slot = engine.slot(VariantId(1), lane, 1).unwrap();
    slot.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
    submit(engine, slot, limit)
}

#[tokio::test]
async fn a_killed_runner_fails_its_batches_and_the_next_load_works() {
    let engine = engine();
    let mut events = engine.events().unwrap();
    assert!(engine.events().is_none());
    load(&engine, 1, "slow.onnx").await;
    load(&engine, 2, "echo.onnx").await;
    let (running, behind) = (endless(&engine, 0, LIMIT), endless(&engine, 0, LIMIT));
    let full = engine.slot(VariantId(1), 0, 1).unwrap_err();
    assert_eq!(full, EngineError::NoSlot { variant: VariantId(1), lane: 0 });
    assert_eq!(engine.unload(VariantId(1)).await, Err(EngineError::InUse(VariantId(1))));
    let victim = engine.runners().into_iter().find(|runner| runner.model == ModelId(1)).unwrap();
    signal(victim.pid.unwrap(), "KILL");

    let Some(EngineEvent::RunnerDied { model, variants, cause, hung: false }) = events.recv().await else {
        panic!("no event")
    };
    assert_eq!((model, variants), (ModelId(1), vec![VariantId(1)]));
    assert!(cause.contains("signal 9"), "{cause}");
    assert!(matches!(running.await.unwrap(), Err(BatchError::Killed(why)) if why.contains("signal 9")));
    assert!(matches!(behind.await.unwrap(), Err(BatchError::NotStarted(_))));
    assert_eq!(engine.slot(VariantId(1), 0, 1).unwrap_err(), EngineError::NotLoaded(VariantId(1)));

    // The other model's runner never noticed, and the model comes back.
    let rows = bytes_f32([1.0; 4]);
    assert_eq!(run(&engine, 2, 1, &[&rows]).await.unwrap().output(0), rows);
    load(&engine, 1, "slow.onnx").await;
    assert_eq!(i64s(run(&engine, 1, 1, &[&bytes_i64([5])]).await.unwrap().output(0)), [5]);
}

#[tokio::test]
async fn a_stopped_runner_is_found_hung_within_the_limit() {
    let engine = engine();
    let mut events = engine.events().unwrap();
    engine.load(LoadSpec { lanes: 2, ..spec(1, "echo.onnx") }).await.unwrap();
    signal(pid(&engine), "STOP");
    let limit = Duration::from_millis(300);
    let start = tokio::time::Instant::now();
    let rows = bytes_f32([1.0; 4]);
    let send = |lane, limit| {
        let mut slot = engine.slot(VariantId(1), lane, 1).unwrap();
        slot.input_mut(0).copy_from_slice(&rows);
        submit(&engine, slot, limit)
    };
    let (over, bystander) = (send(0, limit), send(1, LIMIT));
    assert_eq!(over.await.unwrap().unwrap_err(), BatchError::Hung(limit));
    assert!(start.elapsed() >= limit && start.elapsed() < LIMIT / 4, "{:?}", start.elapsed());
    assert!(matches!(bystander.await.unwrap(), Err(BatchError::Crashed(_))));
    let Some(EngineEvent::RunnerDied { cause, .. }) = events.recv().await else { panic!("no event") };
    assert!(cause.contains("over its limit of 300 ms"), "{cause}");
}

#[tokio::test]
async fn a_batch_that_computes_without_end_is_hung_too_and_the_one_behind_it_is_not() {
    let engine = engine();
    load(&engine, 1, "slow.onnx").await;
    let limit = Duration::from_millis(200);
    let (over, behind) = (endless(&engine, 0, limit), endless(&engine, 0, limit));
    assert_eq!(over.await.unwrap().unwrap_err(), BatchError::Hung(limit));
    assert!(matches!(behind.await.unwrap(), Err(BatchError::NotStarted(_))));
}

#[tokio::test]
async fn waiting_behind_another_batch_does_not_count_towards_the_limit() {
    let engine = engine();
    load(&engine, 1, "slow.onnx").await;
    // How many rounds take about 400 ms here?
    let mut rounds = 1_000_i64;
    let took = loop {
        let outputs = run(&engine, 1, 1, &[&bytes_i64([rounds])]).await.unwrap();
        if outputs.run_us > 400_000 {
            break Duration::from_micros(outputs.run_us);
        }
        rounds *= 2;
    };
    let send = || {
        let mut slot = engine.slot(VariantId(1), 0, 1).unwrap();
        slot.input_mut(0).copy_from_slice(&rounds.to_le_bytes());
        submit(&engine, slot, took * 8)
    };
    let (first, second) = (send(), send());
    assert!(first.await.unwrap().is_ok());
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_runner_that_says_something_before_it_dies_is_quoted() {
    let script = "echo no more disk >&2; exit 3";
    let engine = engine_with(|config| {
        config.command = ["/bin/sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    });
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err().to_string();
    assert!(error.contains("code 3") && error.contains("no more disk"), "{error}");
    assert!(engine.runners().is_empty());
}

#[tokio::test]
async fn a_runner_that_never_speaks_is_given_up() {
    let engine = engine_with(|config| {
        config.command = ["/bin/sh", "-c", "exec sleep 600", "sh"].map(str::to_owned).to_vec();
        config.load_limit = modelless_types::Micros::from_millis(200);
    });
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    assert!(matches!(&error, EngineError::Unavailable(why) if why.contains("did not start")), "{error}");
    let engine = engine_with(|config| config.command = vec!["/nowhere/runner".to_owned()]);
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    assert!(matches!(error, EngineError::System { what: "start a runner process", .. }), "{error}");
}

#[tokio::test]
async fn a_runner_stopped_while_loading_is_given_up() {
    let engine = engine_with(|config| config.load_limit = modelless_types::Micros::from_millis(1_500));
    load(&engine, 1, "echo.onnx").await;
    signal(pid(&engine), "STOP");
    let second = LoadSpec { model: ModelId(1), ..spec(2, "echo.onnx") };
    let error = engine.load(second).await.unwrap_err();
    assert!(matches!(error, EngineError::Stuck { model: ModelId(1), .. }), "{error}");
    assert_eq!(engine.slot(VariantId(1), 0, 1).unwrap_err(), EngineError::NotLoaded(VariantId(1)));
}

#[tokio::test]
async fn a_slot_of_a_dead_runner_is_not_started_on_its_successor() {
    let engine = engine();
    let mut events = engine.events().unwrap();
    load(&engine, 1, "echo.onnx").await;
    let slot = engine.slot(VariantId(1), 0, 1).unwrap();
    signal(pid(&engine), "KILL");
    events.recv().await.unwrap();
    load(&engine, 1, "echo.onnx").await;
    let result = submit(&engine, slot, LIMIT).await.unwrap();
    assert!(matches!(result, Err(BatchError::NotStarted(_))), "{result:?}");
}

#[tokio::test]
async fn a_callback_that_panics_harms_no_other_batch() {
    let engine = engine();
    load(&engine, 1, "echo.onnx").await;
    let rows = bytes_f32([2.0; 4]);
    let mut slot = engine.slot(VariantId(1), 0, 1).unwrap();
    slot.input_mut(0).copy_from_slice(&rows);
    engine.submit(slot, LIMIT, Box::new(|_| panic!("on purpose")));
    assert_eq!(run(&engine, 1, 1, &[&rows]).await.unwrap().output(0), rows);
}

#[tokio::test]
async fn a_batch_that_stands_behind_another_can_be_taken_back_and_never_runs() {
    let engine = engine();
    load(&engine, 1, "slow.onnx").await;
    // How many rounds take long enough to do something meanwhile?
    let mut rounds = 1_000_i64;
    while run(&engine, 1, 1, &[&bytes_i64([rounds])]).await.unwrap().run_us < 200_000 {
        rounds *= 2;
    }
    let prepared = |rounds: i64| {
        let mut slot = engine.slot(VariantId(1), 0, 1).unwrap();
        slot.input_mut(0).copy_from_slice(&rounds.to_le_bytes());
        slot
    };
    let first = submit(&engine, prepared(rounds), LIMIT);
    // It would never end.
    let second = prepared(i64::MAX);
    let ticket = second.ticket();
    let second = submit(&engine, second, LIMIT);
    engine.revoke(VariantId(1), 0, ticket);
    assert_eq!(i64s(first.await.unwrap().unwrap().output(0)), [rounds]);
    assert_eq!(second.await.unwrap().unwrap_err(), BatchError::Revoked);
    // Its place is another's now; what is said of it late means nothing.
    engine.revoke(VariantId(1), 0, ticket);
    let next = submit(&engine, prepared(5), LIMIT);
    engine.revoke(VariantId(1), 0, ticket);
    assert_eq!(i64s(next.await.unwrap().unwrap().output(0)), [5]);
}
