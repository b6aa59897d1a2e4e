//! Loading: quickly, by a spare that is started ahead, and without getting in the way of what is served.

use super::conformance::spec_of;
use super::*;
use modelless_engine::Io;
use modelless_engine::SpareInfo;
use modelless_types::{Bytes, Micros};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tokio::time::Instant;

fn alone() -> ProcessEngine {
    engine_with(|config| config.spare = false)
}

/// Waits for a spare that is ready.
async fn spare(engine: &ProcessEngine) -> SpareInfo {
    loop {
        match engine.spare() {
            Some(spare) if spare.ready => return spare,
            Some(_) | None => a_moment().await,
        }
    }
}

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_load_takes_the_spare_and_another_one_is_started() {
    let engine = engine();
    assert_eq!(engine.spare(), None, "nobody wants anything of it yet");
    engine.check().await;
    let first = spare(&engine).await;
    assert!(first.memory > Bytes::from_mib(1) && engine.runners().is_empty(), "{first:?}");
    load(&engine, 1, "echo.onnx").await;
    let runners = engine.runners();
    assert_eq!((runners[0].pid, runners[0].from_spare), (first.pid, true));
    let second = spare(&engine).await;
    assert_ne!(second.pid, first.pid);
    // Two at once: one of them starts its own.
    let (one, two) = tokio::join!(engine.load(spec(2, "echo.onnx")), engine.load(spec(3, "echo.onnx")));
    one.unwrap();
    two.unwrap();
    let runners = engine.runners();
    assert_eq!(runners.iter().filter(|runner| runner.from_spare).count(), 2, "{runners:?}");
    let rows = bytes_f32([1.0; 4]);
    for n in 1..=3 {
        assert_eq!(run(&engine, n, 1, &[&rows]).await.unwrap().output(0), rows);
    }
    let third = spare(&engine).await.pid.unwrap();
    engine.shutdown().await;
    assert!(!lives(third) && engine.spare().is_none());
}

/// What nobody loaded anything on takes no memory; its first load has the next one find a spare.
async fn the_first_load_has_a_spare_started(kind: Kind) {
    let engine = engine_of(kind, |_| {});
    let availability = engine.check().await;
    assert!(matches!(availability, modelless_engine::Availability::Ready { .. }), "{availability:?}");
    // What the first look would have begun the second one finds.
    engine.check().await;
    let begun = modelless_testkit::process::children(std::process::id()).unwrap();
    assert_eq!((begun, engine.spare()), (Vec::new(), None), "nothing was loaded on it");
    engine.load(spec_of(kind, 1, "echo")).await.unwrap();
    assert!(!engine.runners()[0].from_spare, "there was none yet");
    let first = spare(&engine).await;
    engine.load(spec_of(kind, 2, "echo")).await.unwrap();
    let runners = engine.runners();
    let second = runners.iter().find(|runner| runner.model == ModelId(2)).unwrap();
    assert_eq!((second.pid, second.from_spare), (first.pid, true));
    let rows = bytes_f32([1.0; 4]);
    for n in 1..=2 {
        assert_eq!(run(&engine, n, 1, &[&rows]).await.unwrap().output(0), rows);
    }
    let third = spare(&engine).await.pid.unwrap();
    engine.shutdown().await;
    assert!(!lives(third) && engine.spare().is_none());
}

#[tokio::test]
async fn openvino_keeps_a_spare_once_something_was_loaded_on_it() {
    the_first_load_has_a_spare_started(Kind::Openvino).await;
}

#[cfg(feature = "conformance-torch")]
#[tokio::test]
async fn libtorch_keeps_a_spare_once_something_was_loaded_on_it() {
    the_first_load_has_a_spare_started(Kind::Torch).await;
}

#[tokio::test]
async fn a_spare_that_ends_is_replaced_and_no_death_of_a_model() {
    let engine = engine();
    let mut events = engine.events().unwrap();
    engine.check().await;
    let mut last = spare(&engine).await;
    for ended in 1..=3 {
        let start = Instant::now();
        assert!(
            Command::new("kill").args(["-KILL", &last.pid.unwrap().to_string()]).status().unwrap().success()
        );
        last = loop {
            match engine.spare() {
                Some(next) if next.ready && next.pid != last.pid => break next,
                Some(_) | None => a_moment().await,
            }
        };
        assert_eq!(last.lost, ended);
        assert!(start.elapsed() >= Duration::from_millis(50 << ended), "a pause that doubles");
    }
    assert!(events.try_recv().is_err());
    load(&engine, 1, "echo.onnx").await;
    assert_eq!(spare(&engine).await.lost, 0);
}

#[tokio::test]
async fn a_load_succeeds_whatever_happens_to_the_spare_at_that_moment() {
    let engine = engine();
    for n in 1..=8 {
        engine.check().await;
        let pid = spare(&engine).await.pid.unwrap().to_string();
        let killer = std::thread::spawn(move || Command::new("kill").args(["-KILL", &pid]).status());
        // Killed as a spare it costs nothing; killed as a runner that loads it is a runner that died.
        match engine.load(spec(n, "echo.onnx")).await {
            Ok(_) | Err(EngineError::Crashed { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        killer.join().unwrap().unwrap();
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn without_the_setting_there_is_no_spare() {
    let engine = alone();
    engine.check().await;
    load(&engine, 1, "echo.onnx").await;
    assert_eq!((engine.spare(), engine.runners()[0].from_spare), (None, false));
}

/// Between two looks. Looking without a pause would take the core from what is looked at, which gives way.
pub(super) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// How the threads of a process are scheduled: the names of those that give way to this one's, and of all.
pub(super) fn threads(pid: u32) -> (BTreeSet<String>, Vec<String>) {
    let normal = scheduled(&std::fs::read_to_string("/proc/self/stat").unwrap());
    let mut gave_way = BTreeSet::new();
    let mut all = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten() {
        let Ok(stat) = std::fs::read_to_string(thread.unwrap().path().join("stat")) else { continue };
        let name = stat.split_once('(').unwrap().1.rsplit_once(") ").unwrap().0.to_owned();
        if scheduled(&stat) != normal {
            gave_way.insert(name.clone());
        }
        all.push(name);
    }
    (gave_way, all)
}

/// Niceness and policy of a thread.
fn scheduled(stat: &str) -> (i32, u32) {
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[16].parse().unwrap(), fields[38].parse().unwrap())
}

/// The first runner is a real one; all others hang where they should load.
fn hangs_after_the_first(
    change: impl FnOnce(&mut modelless_engine::ProcessConfig),
) -> (ProcessEngine, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first").display().to_string();
    let script =
        "if mkdir $0 2>/dev/null; then exec $1 \"${@:2}\"; else exec $1 misbehave hang \"${@:2}\"; fi";
    let engine = engine_with(|config| {
        config.command = vec!["/bin/bash".into(), "-c".into(), script.into(), first, runner()];
        config.spare = false;
        change(config);
    });
    (engine, folder)
}

#[tokio::test]
async fn a_load_beside_a_model_that_is_served_gives_way_for_so_long_and_no_longer() {
    let (patience, limit) = (Duration::from_millis(700), Duration::from_millis(1_400));
    let (engine, _folder) = hangs_after_the_first(|config| {
        config.load_patience = Micros::from_millis(700);
        config.load_limit = Micros::from_millis(1_400);
    });
    load(&engine, 1, "echo.onnx").await;
    let rows = bytes_f32([1.0; 4]);
    run(&engine, 1, 1, &[&rows]).await.unwrap();
    let start = Instant::now();
    let loading = engine.load(spec(2, "echo.onnx"));
    tokio::pin!(loading);
    // Processes of the load, and whether one of their threads gave way.
    let mut seen = std::collections::BTreeMap::new();
    let result = loop {
        tokio::select! {
            result = &mut loading => break result,
            () = a_moment() => {}
        }
        // What is not used is not waited for so long.
        assert_eq!(run(&engine, 1, 1, &[&rows]).await.unwrap().output(0), rows);
        let loader = engine.runners().into_iter().find(|runner| runner.model == ModelId(2));
        if let Some(pid) = loader.and_then(|runner| runner.pid) {
            *seen.entry(pid).or_insert(false) |= !threads(pid).0.is_empty();
        }
    };
    assert_eq!(result.unwrap_err(), EngineError::Stuck { model: ModelId(2), limit });
    assert!(start.elapsed() >= patience + limit, "{:?}", start.elapsed());
    assert_eq!(seen.len(), 2, "a second runner after the first: {seen:?}");
    assert_eq!(seen.values().filter(|gave_way| **gave_way).count(), 1, "{seen:?}");
    assert_eq!(run(&engine, 1, 1, &[&rows]).await.unwrap().output(0), rows);
}

#[tokio::test]
async fn a_load_beside_a_model_that_nobody_uses_gives_way_a_little_and_is_waited_for() {
    let limit = Micros::from_millis(900);
    let (engine, _folder) = hangs_after_the_first(|config| {
        config.load_patience = Micros::from_millis(300);
        config.load_limit = limit;
    });
    load(&engine, 1, "echo.onnx").await;
    let loading = engine.load(spec(2, "echo.onnx"));
    tokio::pin!(loading);
    let mut gave_way = std::collections::BTreeMap::new();
    let result = loop {
        tokio::select! {
            result = &mut loading => break result,
            () = a_moment() => {}
        }
        let loader = engine.runners().into_iter().find(|runner| runner.model == ModelId(2));
        if let Some(pid) = loader.and_then(|runner| runner.pid) {
            *gave_way.entry(pid).or_insert(false) |= !threads(pid).0.is_empty();
        }
    };
    let limit = Duration::from_micros(limit.0);
    assert_eq!(result.unwrap_err(), EngineError::Stuck { model: ModelId(2), limit });
    assert_eq!(gave_way.into_values().collect::<Vec<_>>(), [true], "one, which was not begun again");
}

#[tokio::test]
async fn a_load_that_disturbs_nobody_gives_way_to_nobody() {
    let engine = misbehaving_alone(Micros::from_millis(700));
    let loading = engine.load(spec(1, "echo.onnx"));
    tokio::pin!(loading);
    let error = loop {
        tokio::select! {
            result = &mut loading => break result.unwrap_err(),
            () = a_moment() => {}
        }
        if let Some(pid) = engine.runners().first().and_then(|runner| runner.pid) {
            assert_eq!(threads(pid).0, BTreeSet::new());
        }
    };
    assert!(matches!(error, EngineError::Stuck { .. }), "{error}");
}

fn misbehaving_alone(limit: Micros) -> ProcessEngine {
    engine_with(|config| {
        config.command = vec![runner(), "misbehave".into(), "hang".into()];
        config.load_limit = limit;
        config.spare = false;
    })
}

#[tokio::test]
async fn threads_that_run_batches_give_way_to_nobody_however_they_were_loaded() {
    let engine = engine();
    load(&engine, 9, "echo.onnx").await;
    spare(&engine).await;
    // Into a runner of its own, from the spare; then a second variant into it.
    for (n, model) in [(1, 1), (2, 1)] {
        let mut spec = LoadSpec { model: ModelId(model), lanes: 2, ..spec(n, "fashion/cnn_l.onnx") };
        spec.settings.threads = 3;
        engine.load(spec).await.unwrap();
    }
    let runner = engine.runners().into_iter().find(|runner| runner.model == ModelId(1)).unwrap();
    assert!(runner.from_spare);
    let (gave_way, all) = threads(runner.pid.unwrap());
    assert_eq!(gave_way, BTreeSet::new());
    // Two variants on two lanes, each with two threads besides the lane's own.
    assert_eq!(all.iter().filter(|name| *name == "pool").count(), 8, "{all:?}");
    let pixels = bytes_f32([0.5; 784]);
    for n in [1, 2] {
        run(&engine, n, 1, &[&pixels]).await.unwrap();
    }
}

/// Real loads of real models, beside something that is served: the thread that loads is seen giving way, and when it
/// is done none of those that are left does. Into a runner of its own, and beside another variant in one.
pub(super) async fn loads_give_way_and_batches_do_not(kind: Kind, model: &str) {
    let engine = engine_of(kind, |_| {});
    let spec =
        |n, of| LoadSpec { model: ModelId(of), lanes: 2, ..super::conformance::spec_of(kind, n, model) };
    engine.load(spec(1, 1)).await.unwrap();
    for of in [2, 1] {
        let seen = async {
            for _ in 0..200 {
                let loading = engine.load(spec(2, of));
                tokio::pin!(loading);
                let mut gave_way = BTreeSet::new();
                let loaded = loop {
                    tokio::select! {
                        result = &mut loading => break result,
                        () = tokio::time::sleep(Duration::from_millis(1)) => {}
                    }
                    for runner in engine.runners().into_iter().filter(|runner| runner.model == ModelId(of)) {
                        gave_way.append(&mut threads(runner.pid.unwrap_or(0)).0);
                    }
                };
                loaded.unwrap();
                let runner = engine.runners().into_iter().find(|runner| runner.model == ModelId(of)).unwrap();
                let inputs = engine.slot(VariantId(2), 1, 3).unwrap();
                submit(&engine, inputs, LIMIT).await.unwrap().unwrap();
                // The loader's own thread may take a moment to be gone.
                while !threads(runner.pid.unwrap()).0.is_empty() {
                    a_moment().await;
                }
                engine.unload(VariantId(2)).await.unwrap();
                if !gave_way.is_empty() {
                    return true;
                }
            }
            false
        };
        let seen = tokio::time::timeout(LIMIT, seen).await;
        assert_eq!(seen, Ok(true), "{kind}: no load was seen giving way, or what it started went on with it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_of_onnx_runtime_give_way_and_its_batches_do_not() {
    loads_give_way_and_batches_do_not(Kind::Onnx, "fashion/cnn_m").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_of_openvino_give_way_and_its_batches_do_not() {
    loads_give_way_and_batches_do_not(Kind::Openvino, "fashion/cnn_m").await;
}

#[cfg(feature = "conformance-torch")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_of_torch_give_way_and_its_batches_do_not() {
    loads_give_way_and_batches_do_not(Kind::Torch, "fashion/cnn_m").await;
}

#[tokio::test]
async fn what_an_earlier_load_showed_need_not_be_found_out_again() {
    let engine = engine();
    let first = load(&engine, 1, "fashion/cnn_l.onnx").await;
    let pixels = bytes_f32([0.5; 784]);
    let answer = run(&engine, 1, 1, &[&pixels]).await.unwrap().output(0).to_vec();
    engine.unload(VariantId(1)).await.unwrap();
    let shown = Io { inputs: first.inputs.clone(), outputs: first.outputs.clone(), longest: None };
    let spec = LoadSpec { expect: Some(shown), shown: true, ..spec(1, "fashion/cnn_l.onnx") };
    let again = engine.load(spec).await.unwrap();
    assert_eq!((&again.inputs, &again.outputs), (&first.inputs, &first.outputs));
    // Its first run may be under way: both come out right.
    for _ in 0..3 {
        assert_eq!(run(&engine, 1, 1, &[&pixels]).await.unwrap().output(0), answer);
    }
}
