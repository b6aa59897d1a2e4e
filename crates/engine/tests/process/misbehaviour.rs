//! Models that take what they can get: memory, time, the attention of the server. Others are served meanwhile.

use super::failures::{pid, signal};
use super::*;
use modelless_engine::{BatchError, EngineEvent, Layer, Sandbox};
use modelless_types::{Bytes, Micros};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;

/// One that serves, and goes on serving whatever happens beside it.
async fn served(engine: &ProcessEngine) {
    let rows = bytes_f32([1.0; 4]);
    assert_eq!(run(engine, 9, 1, &[&rows]).await.unwrap().output(0), rows);
}

/// Where loading does something else.
fn misbehaving(how: &str, load_limit: Micros) -> ProcessEngine {
    engine_with(|config| {
        config.command = vec![runner(), "misbehave".to_owned(), how.to_owned()];
        config.load_limit = load_limit;
        config.memory_limit = Some(Bytes::from_mib(256));
    })
}

#[tokio::test]
async fn a_model_that_eats_memory_is_stopped_and_told_why_while_others_serve() {
    let engine = engine();
    let mut events = engine.events().unwrap();
    load(&engine, 9, "echo.onnx").await;
    let limit = Some(Bytes::from_mib(192));
    engine.load(LoadSpec { memory_limit: limit, ..spec(1, "eats.onnx") }).await.unwrap();
    assert_eq!(
        i64s(run(&engine, 1, 1, &[&bytes_i64([8])]).await.unwrap().output(0)),
        [8],
        "little is allowed"
    );

    let mut slot = engine.slot(VariantId(1), 0, 1).unwrap();
    slot.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
    let mut eating = submit(&engine, slot, LIMIT);
    let result = loop {
        tokio::select! {
            result = &mut eating => break result.unwrap(),
            () = served(&engine) => {}
        }
    };
    let Err(BatchError::Crashed(why)) = result else { panic!("{result:?}") };
    assert!(why.contains("of memory, more than the 192.0 MiB that it may"), "{why}");
    let Some(EngineEvent::RunnerDied { model, cause, .. }) = events.recv().await else { panic!("no event") };
    assert_eq!((model, cause), (ModelId(1), why));
    served(&engine).await;
}

#[tokio::test]
async fn a_model_that_asks_for_too_much_at_once_gets_none_and_lives() {
    let engine = engine_with(|config| config.memory_limit = Some(Bytes::from_mib(256)));
    load(&engine, 1, "gulps.onnx").await;
    let error = run(&engine, 1, 1, &[&bytes_i64([8 << 30])]).await.unwrap_err();
    let BatchError::Model(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("allocate memory"), "{why}");
    // Nor does the library keep for itself what it tried to get: whoever asks for little finds it.
    for bytes in [8, 1 << 20, 3 << 20, 8 << 20, 40 << 20, 8] {
        let answer = run(&engine, 1, 1, &[&bytes_i64([bytes])]).await;
        assert_eq!(answer.map(|outputs| i64s(outputs.output(0))), Ok(vec![bytes]));
    }
}

#[tokio::test]
async fn a_model_that_asks_for_far_more_than_it_was_measured_to_need_gets_none_by_its_own_limit() {
    let limited = |without: Vec<Layer>| {
        engine_with(|config| {
            config.memory_limit = Some(Bytes::from_mib(16 << 10));
            config.sandbox = Sandbox::without(without);
        })
    };
    let engine = limited(Vec::new());
    let mut events = engine.events().unwrap();
    let needs = |n| LoadSpec { memory_limit: Some(Bytes::from_mib(192)), ..spec(n, "gulps.onnx") };
    engine.load(needs(1)).await.unwrap();
    let error = run(&engine, 1, 1, &[&bytes_i64([2 << 30])]).await.unwrap_err();
    let BatchError::Model(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("allocate memory"), "{why}");
    assert_eq!(i64s(run(&engine, 1, 1, &[&bytes_i64([8])]).await.unwrap().output(0)), [8], "and lives");
    // With another variant in the runner it may have what both need, and no longer than that.
    engine.load(LoadSpec { model: ModelId(1), memory_limit: None, ..spec(2, "echo.onnx") }).await.unwrap();
    engine.unload(VariantId(2)).await.unwrap();
    let error = run(&engine, 1, 1, &[&bytes_i64([2 << 30])]).await.unwrap_err();
    assert!(matches!(&error, BatchError::Model(_)), "{error:?}");
    assert!(events.try_recv().is_err(), "nothing died");

    // Without the layer it gets it, until somebody looks.
    let engine = limited(vec![Layer::Limits]);
    engine.load(needs(1)).await.unwrap();
    let error = run(&engine, 1, 1, &[&bytes_i64([2 << 30])]).await.unwrap_err();
    let BatchError::Crashed(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("of memory, more than the 192.0 MiB that it may"), "{why}");
}

#[tokio::test]
async fn memory_is_limited_while_a_model_is_loaded_too() {
    let engine = engine();
    let spec = LoadSpec { memory_limit: Some(Bytes::from_mib(1)), ..spec(1, "slow.onnx") };
    // It may be over before anybody looked; then it is found at the next look.
    let mut events = engine.events().unwrap();
    let cause = match engine.load(spec).await {
        Ok(_) => match events.recv().await {
            Some(EngineEvent::RunnerDied { cause, .. }) => cause,
            None => panic!("no event"),
        },
        Err(EngineError::Crashed { cause, .. }) => cause,
        Err(error) => panic!("{error:?}"),
    };
    assert!(cause.contains("more than the 1.0 MiB that it may"), "{cause}");
}

#[tokio::test]
async fn a_runner_that_ends_because_it_gets_no_memory_is_known_by_it() {
    let engine = misbehaving("starve", Micros::from_secs(60));
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    let EngineError::Crashed { cause, .. } = &error else { panic!("{error:?}") };
    assert!(cause.starts_with("it wanted more memory than the 256.0 MiB that it may hold; "), "{cause}");
}

#[tokio::test]
async fn a_model_that_aborts_its_runner_ends_its_own_load_only() {
    let engine = misbehaving("abort", Micros::from_secs(60));
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    assert!(matches!(&error, EngineError::Crashed { cause, .. } if cause.contains("signal 6")), "{error}");
    assert!(engine.runners().is_empty());
}

#[tokio::test]
async fn a_runner_that_hangs_while_it_loads_is_killed_and_said_to_have_hung() {
    let limit = Micros::from_millis(600);
    for how in ["hang", "print"] {
        let engine = misbehaving(how, limit);
        let start = Instant::now();
        let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
        assert!(matches!(error, EngineError::Stuck { model: ModelId(1), .. }), "{how}: {error}");
        assert!(start.elapsed() < LIMIT / 4, "{how}: {:?}", start.elapsed());
        assert!(engine.runners().is_empty(), "{how}");
    }
}

#[tokio::test]
async fn a_runner_that_prints_without_end_costs_its_keeper_hardly_any_time() {
    let engine = misbehaving("print", Micros::from_secs(3));
    let before = processor_time();
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    assert!(matches!(error, EngineError::Stuck { .. }), "{error}");
    let spent = processor_time().saturating_sub(before);
    assert!(spent < Duration::from_secs(1), "{spent:?} of three seconds");
}

/// Of this process, all threads.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = after.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[tokio::test]
async fn a_runner_that_says_what_it_was_not_asked_is_ended() {
    let engine = misbehaving("babble", Micros::from_secs(20));
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    let EngineError::Crashed { cause, .. } = &error else { panic!("{error:?}") };
    assert!(cause.contains("broke the control protocol"), "{cause}");
}

#[tokio::test]
async fn a_runner_that_starts_threads_without_end_is_ended() {
    let engine = misbehaving("threads", Micros::from_secs(60));
    let error = engine.load(spec(1, "echo.onnx")).await.unwrap_err();
    let EngineError::Crashed { cause, .. } = &error else { panic!("{error:?}") };
    assert!(cause.contains("threads, more than the 2048 that it may"), "{cause}");
}

/// The kernel's numbers for ways to schedule threads.
const USUAL: &str = "0";
const IN_BATCHES: &str = "3";

/// How nice a thread of a process is, by its name, and the kernel's number for how it is scheduled.
fn scheduled(pid: u32, name: &str) -> Option<(i32, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let stat = stats.find(|stat| stat.contains(&format!("({name})")))?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some((fields.get(16)?.parse().ok()?, (*fields.get(38)?).to_owned()))
}

/// Whether this process may undo what it does to others' priority.
fn may_undo() -> bool {
    const SYS_NICE: u64 = 1 << 23;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(held.trim(), 16).unwrap() & SYS_NICE != 0
}

#[tokio::test]
async fn what_runs_far_too_long_stands_back_until_it_ends_and_other_lanes_of_its_runner_do_not() {
    let engine = engine();
    engine.load(LoadSpec { lanes: 2, ..spec(1, "slow.onnx") }).await.unwrap();
    let pid = engine.runners()[0].pid.unwrap();
    // A thread names itself when it first runs, which may be later than that it is there.
    while ["lane-0", "lane-1"].iter().any(|lane| scheduled(pid, lane).is_none()) {
        super::beside::a_moment().await;
    }
    // These tests may be run in a way of somebody's choice, which is left alone.
    let before = scheduled(pid, "lane-0").expect("a lane");
    let stood_back = match &before {
        // A smaller share, but one: it must end however busy the machine is.
        (nice, usual) if usual == USUAL && may_undo() => ((nice + 10).min(19), IN_BATCHES.to_owned()),
        (nice, usual) if usual == USUAL => (*nice, IN_BATCHES.to_owned()),
        as_chosen => as_chosen.clone(),
    };
    let mut rounds = 100_000_i64;
    loop {
        let mut slot = engine.slot(VariantId(1), 0, 1).unwrap();
        slot.input_mut(0).copy_from_slice(&rounds.to_le_bytes());
        let ticket = slot.ticket();
        let mut running = submit(&engine, slot, LIMIT);
        engine.stand_back(VariantId(1), 0, ticket);
        let seen = (scheduled(pid, "lane-0"), scheduled(pid, "lane-1"));
        let ended = running.try_recv().is_ok();
        if !ended {
            running.await.unwrap().unwrap();
        }
        assert_eq!(scheduled(pid, "lane-0").as_ref(), Some(&before), "it came forward again");
        // It has to run for longer than it takes to look.
        if !ended {
            assert_eq!(seen, (Some(stood_back), Some(before.clone())));
            break;
        }
        rounds *= 4;
    }
    // Of a batch that ended long ago nothing is known any more.
    let slot = engine.slot(VariantId(1), 0, 1).unwrap();
    engine.stand_back(VariantId(1), 0, slot.ticket());
    assert_eq!(scheduled(pid, "lane-0"), Some(before));
}

/// Work that takes all cores, until it is dropped.
struct Busy(Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>);

impl Busy {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let spins = (0..3 * cores).map(|_| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || while !over.load(Ordering::Relaxed) {})
        });
        Self(Arc::clone(&over), spins.collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|spin| drop(spin.join()));
    }
}

#[tokio::test]
async fn a_runner_that_stands_back_and_is_killed_is_gone_as_soon_as_any_however_busy_the_machine_is() {
    const TRIES: usize = 5;
    let engine = engine();
    let (mut usual, mut stood_back) = (Vec::new(), Vec::new());
    for stands_back in [true, false].repeat(TRIES) {
        load(&engine, 1, "slow.onnx").await;
        let mut slot = engine.slot(VariantId(1), 0, 1).unwrap();
        slot.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
        let ticket = slot.ticket();
        let running = submit(&engine, slot, LIMIT);
        let busy = Busy::start();
        // It is one of those that want a core, and has had its turn: as one of them, and then behind them.
        tokio::time::sleep(Duration::from_millis(100)).await;
        if stands_back {
            engine.stand_back(VariantId(1), 0, ticket);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let killed = Instant::now();
        signal(pid(&engine), "KILL");
        let ended = running.await.unwrap();
        let took = killed.elapsed();
        assert!(matches!(ended, Err(BatchError::Killed(_))), "{ended:?}");
        drop(busy);
        if stands_back { &mut stood_back } else { &mut usual }.push(took);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[TRIES / 2]
    };
    // Found between two looks, of which there are forty a second, and ended as any other.
    let most = median(&mut usual) + Duration::from_millis(75);
    assert!(median(&mut stood_back) < most, "{stood_back:?} where it stood back, {usual:?} where not");
}
