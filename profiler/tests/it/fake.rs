use crate::{registrar, write, write_set};
use modelless_engine::fake::{Computes, FakeModel, Fault};
use modelless_engine::{Engine, FakeEngine};
use modelless_profiler::{
    Config, Error, NewRegistration, NewRegistrationVariant, Package, Profiler, Progress, Registrar, Report,
    Subject,
};
use modelless_store::{SetArtefact, Store as _};
use modelless_testkit::{TempDir, temp_dir};
use modelless_types::{
    DType, Engine as Kind, Profile, Provenance, TenantId, TensorSpec, VariantId, VariantSettings,
};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// What the first variant that is measured is known as to the engine.
pub(crate) const FIRST: VariantId = VariantId(u32::MAX);

pub(crate) const TASK: &str = r#"
name = "bright"
kind = "tensor"
inputs = [{ name = "x", dtype = "FP32", shape = [1] }]
outputs = [{ name = "x", dtype = "FP32", shape = [1] }]
labelled-set = { name = "four", path = "s-images-idx3-ubyte" }
"#;

pub(crate) const MODEL: &str = r#"
name = "echo"
adapter = { kind = "tensor" }
variants = [{ precision = "fp32", file = "echo.onnx", max_batch = 4 }]
"#;

/// A task whose only model gives back what it gets: one number, so always class 0.
pub(crate) fn package() -> (TempDir, Package) {
    let folder = temp_dir("package").unwrap();
    write_set(folder.path(), [0, 50, 100, 255], [0, 0, 0, 1]);
    write(folder.path(), "task.toml", TASK);
    write(folder.path(), "models/echo.toml", MODEL);
    write(folder.path(), "models/echo.onnx", "not looked at by a fake");
    let package = Package::read(folder.path()).unwrap();
    (folder, package)
}

pub(crate) fn echo() -> FakeModel {
    FakeModel {
        inputs: vec![TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![1] }],
        computes: Computes::Echo,
        latency: Arc::new(|batch| Duration::from_millis(2) + Duration::from_millis(1) * batch),
        load_time: Duration::from_millis(30),
        ..FakeModel::default()
    }
}

pub(crate) fn profiler(engine: &Arc<FakeEngine>) -> Profiler {
    let engine: Arc<dyn Engine> = Arc::<FakeEngine>::clone(engine);
    Profiler::new(engine, Config::default(), "cpu:fake:1", "a command")
}

#[tokio::test(start_paused = true)]
async fn what_was_measured_is_registered_once() {
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, echo());
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (_folder, package) = package();
    let mut seen = Vec::new();
    let mut report = |name: &str, progress| seen.push((name.to_owned(), progress));
    assert_eq!(registrar.package(&package, &mut report).await.unwrap(), 1);

    let catalog = registrar.store.catalog().await.unwrap();
    let variant = &catalog.variants[0];
    let profile = variant.profile_on("cpu:fake:1").unwrap();
    let points: Vec<_> = profile.latency.iter().map(|point| (point.batch, point.mean_us.round())).collect();
    assert_eq!(points, [(1, 3_000.0), (2, 4_000.0), (3, 5_000.0), (4, 6_000.0)]);
    assert!(!profile.detail.coarse && profile.detail.tail && profile.detail.largest.is_none());
    assert!(profile.detail.points.iter().all(|point| point.rounds >= 3 && point.outliers == 0));
    assert_eq!(profile.latency_provenance, Provenance::Measured);
    assert_eq!(profile.load_time.0, 30_000);
    let accuracy = &profile.accuracy;
    assert_eq!((accuracy.value.ppm(), accuracy.samples, accuracy.set.as_str()), (750_000, 4, "four"));
    assert!(accuracy.low < accuracy.value && accuracy.value < accuracy.high);
    assert_eq!((accuracy.device_class.as_str(), accuracy.command.as_str()), ("cpu:fake:1", "a command"));
    assert_eq!((variant.name.as_str(), catalog.models[0].version), ("echo-fp32", 1));

    assert_eq!(seen[0], ("echo-fp32".to_owned(), Progress::Loading));
    assert!(seen.iter().any(|(_, progress)| matches!(progress, Progress::Latency { batch: 4, .. })));
    assert_eq!(seen.last().unwrap().1, Progress::Accuracy { done: 4, of: 4 });

    assert_eq!(registrar.package(&package, &mut |_, _| ()).await.unwrap(), 0, "nothing is done twice");
    assert_eq!(
        engine.unload(FIRST).await.map_err(|error| error.to_string()).unwrap_err(),
        format!("{FIRST} is not loaded")
    );
}

#[tokio::test(start_paused = true)]
async fn another_machine_measures_again_and_says_which_accuracy_is_whose() {
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, echo());
    let (mut registrar, _artefacts) = registrar(profiler(&engine));
    let (_folder, package) = package();
    registrar.package(&package, &mut |_, _| ()).await.unwrap();

    for (class, with_set, measured_on) in
        [("cpu:other:8", false, "cpu:fake:1"), ("cpu:third:8", true, "cpu:third:8")]
    {
        registrar.profiler =
            Profiler::new(Arc::<FakeEngine>::clone(&engine), Config::default(), class, "again");
        let catalog = registrar.store.catalog().await.unwrap();
        let (task, model, variant) = (&catalog.tasks[0], &catalog.models[0], &catalog.variants[0]);
        let set = if with_set { package.open_set(task).unwrap() } else { None };
        registrar.again((task, model, variant), (set.as_ref(), None), &mut |_, _| ()).await.unwrap();
        let catalog = registrar.store.catalog().await.unwrap();
        let profile = catalog.variants[0].profile_on(class).unwrap();
        assert_eq!(profile.accuracy.device_class, measured_on);
        assert_eq!(profile.accuracy.value.ppm(), 750_000);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_package_was_measured_with_is_kept_for_measuring_it_again() {
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, echo());
    let (mut registrar, _artefacts) = registrar(profiler(&engine));
    let (folder, package) = package();
    registrar.package(&package, &mut |_, _| ()).await.unwrap();
    drop((folder, package));
    let catalog = registrar.store.catalog().await.unwrap();
    let (task, model, variant) = (&catalog.tasks[0], &catalog.models[0], &catalog.variants[0]);
    let evidence = registrar.store.evidence(model.id).await.unwrap();
    let (set, declared) = registrar.evidence(task, &evidence).await.unwrap();
    assert_eq!(set.as_ref().map(|set| (set.name(), set.len())), Some(("four", 4)));
    registrar.profiler =
        Profiler::new(Arc::<FakeEngine>::clone(&engine), Config::default(), "cpu:fake:1", "again");
    registrar.again((task, model, variant), (set.as_ref(), declared), &mut |_, _| ()).await.unwrap();
    let accuracy = registrar.store.catalog().await.unwrap().variants[0].profiles[0].accuracy.clone();
    assert_eq!((accuracy.samples, accuracy.value.ppm(), &*accuracy.command), (4, 750_000, "again"));
}

#[tokio::test(start_paused = true)]
async fn what_is_stored_unmeasured_is_measured_later_with_the_set_it_came_with() {
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, echo());
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (_folder, package) = package();
    let task = registrar.task(&package.task).await.unwrap();
    let set = package.open_set(&task).unwrap().unwrap();
    let artefacts = &registrar.artefacts;
    let set = artefacts.put(&set.pack().unwrap()[..]).unwrap().sha256;
    let model = artefacts.put(&b"not looked at by a fake"[..]).unwrap().sha256;
    // What lies at a server cannot be looked into.
    let settings = |engine| VariantSettings { engine, ..package.models[0].variants[0].settings() };
    let new = |set: Option<&str>, artefact: &str| NewRegistration {
        name: "echo".to_owned(),
        version: 1,
        architecture: String::new(),
        licence: String::new(),
        owner: String::new(),
        promote: true,
        by: modelless_store::Signed { who: "Ada".to_owned(), ..modelless_store::Signed::default() },
        space: None,
        adapter: package.models[0].adapter.clone(),
        declared: None,
        set: set.map(|set| SetArtefact { name: "four".to_owned(), artefact: set.to_owned() }),
        variants: vec![NewRegistrationVariant {
            name: "echo-fp32".to_owned(),
            settings: settings(Kind::Remote),
            artefact: artefact.to_owned(),
        }],
    };
    let within = Some(Duration::from_secs(9));
    let store = async |new| {
        Registrar::unmeasured(&*registrar.store, artefacts, (&task, registrar.tenant), new, within).await
    };
    assert!(matches!(store(new(None, &model)).await, Err(Error::NoAccuracy(_))));
    assert!(store(new(Some(&set), &"ab".repeat(32))).await.is_err(), "its artefact is not here");
    for engine in [Kind::Onnx, Kind::Openvino] {
        let mut junk = new(Some(&set), &model);
        junk.variants[0].settings = settings(engine);
        let error = store(junk).await.unwrap_err();
        assert!(matches!(error, Error::Unfit { .. }), "{error}");
    }
    assert!(registrar.store.catalog().await.unwrap().models.is_empty());
    let registered = store(new(Some(&set), &model)).await.unwrap();
    assert!(registered.variants[0].profiles.is_empty());

    let evidence = registrar.store.evidence(registered.model.id).await.unwrap();
    assert_eq!(
        (evidence.within_ms, evidence.promote),
        (Some(9_000), None),
        "the first is the default at once"
    );
    let mut second = new(Some(&set), &model);
    (second.version, second.variants[0].name) = (2, "echo-two".to_owned());
    let second = store(second).await.unwrap().model;
    assert_eq!(
        (second.promoted, registrar.store.evidence(second.id).await.unwrap().promote),
        (0, Some("Ada".to_owned()))
    );
    let evidence = registrar.store.evidence(registered.model.id).await.unwrap();
    let (set, declared) = registrar.evidence(&task, &evidence).await.unwrap();
    let what = (&task, &registered.model, &registered.variants[0]);
    registrar.again(what, (set.as_ref(), declared), &mut |_, _| ()).await.unwrap();
    let catalog = registrar.store.catalog().await.unwrap();
    let accuracy = &catalog.variants[0].profile_on("cpu:fake:1").unwrap().accuracy;
    assert_eq!((accuracy.value.ppm(), accuracy.samples, accuracy.set.as_str()), (750_000, 4, "four"));
}

#[tokio::test(start_paused = true)]
async fn what_would_not_be_stored_is_not_measured() {
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, echo());
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (folder, first) = package();
    registrar.package(&first, &mut |_, _| ()).await.unwrap();
    // Another model whose variant is called as one that is there.
    write(folder.path(), "models/echo.toml", &MODEL.replace("name = \"echo\"", "name = \"other\""));
    let mut second = Package::read(folder.path()).unwrap();
    second.models[0].variants[0].name = "echo-fp32".to_owned();
    let mut reports = 0;
    let error = registrar.package(&second, &mut |_, _| reports += 1).await.unwrap_err().to_string();
    assert!(error.contains("echo-fp32") && error.contains("exists"), "{error}");
    assert_eq!(reports, 0, "it was measured all the same");
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_fails_leaves_nothing_behind() {
    let broken = |fault: Fault| FakeModel { faults: Arc::new(move |_, _| Some(fault.clone())), ..echo() };
    let cases = [
        (FakeModel { refuses: Some("no such operator".to_owned()), ..echo() }, "no such operator"),
        (broken(Fault::Crash("out of memory".to_owned())), "out of memory"),
        (FakeModel { computes: Computes::Sum, ..echo() }, "does not fit"),
        // Slower than a batch may be.
        (FakeModel { latency: Arc::new(|_| Duration::from_secs(40)), ..echo() }, "longer than 30000 ms"),
    ];
    for (model, said) in cases {
        let engine = Arc::new(FakeEngine::new());
        engine.behave(FIRST, model);
        let (registrar, _artefacts) = registrar(profiler(&engine));
        let (_folder, package) = package();
        let error = registrar.package(&package, &mut |_, _| ()).await.unwrap_err().to_string();
        assert!(error.contains("echo-fp32") && error.contains(said), "{error}");
        assert!(registrar.store.catalog().await.unwrap().models.is_empty());
        assert!(engine.unload(FIRST).await.is_err(), "it stayed loaded after: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_labelled_set_an_accuracy_must_be_declared() {
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, echo());
    engine.behave(VariantId(FIRST.0 - 1), echo());
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (folder, _) = package();
    write(folder.path(), "task.toml", &TASK.replace("labelled-set", "#"));
    let package = Package::read(folder.path()).unwrap();
    let error = registrar.package(&package, &mut |_, _| ()).await.unwrap_err();
    assert!(matches!(error, Error::NoAccuracy(_)), "{error}");

    write(folder.path(), "models/echo.toml", &MODEL.replace("adapter", "accuracy = 0.9\nadapter"));
    let package = Package::read(folder.path()).unwrap();
    registrar.package(&package, &mut |_, _| ()).await.unwrap();
    let catalog = registrar.store.catalog().await.unwrap();
    let accuracy = &catalog.variants[0].profiles[0].accuracy;
    assert_eq!(
        (accuracy.provenance, accuracy.value.ppm(), accuracy.samples),
        (Provenance::Declared, 900_000, 0)
    );
}

/// What comes of measuring one variant, without a store.
pub(crate) async fn measured(profiler: &Profiler, report: Report<'_>) -> Result<Profile, Error> {
    let (_folder, package) = package();
    let task = modelless_store::MemStore::default();
    let task = task.create_task(package.task.new_task(TenantId::DEFAULT).unwrap()).await.unwrap();
    let set = package.open_set(&task).unwrap();
    let settings = VariantSettings { max_batch: 32, ..package.models[0].variants[0].settings() };
    let subject = Subject {
        name: "echo-fp32",
        task: &task,
        adapter: &package.models[0].adapter,
        settings: &settings,
        artefact: fs::File::open(&package.models[0].variants[0].file).unwrap(),
        tokenizer: None,
        declared: None,
    };
    profiler.profile(subject, set.as_ref(), report).await
}

#[tokio::test(start_paused = true)]
async fn where_memory_ends_the_profile_does() {
    for fault in [Fault::Crash("out of memory".to_owned()), Fault::Model("bad_alloc".to_owned()), Fault::Hang]
    {
        let engine = Arc::new(FakeEngine::new());
        let breaks = fault.clone();
        let faults = Arc::new(move |_, items: u32| (items > 5).then(|| breaks.clone()));
        engine.behave(FIRST, FakeModel { faults, ..echo() });
        let profile = measured(&profiler(&engine), &mut |_, _| ()).await.unwrap();
        let largest = profile.detail.largest.clone().unwrap();
        assert!(
            (4..=5).contains(&largest.batch) && largest.why.contains("batch of"),
            "{fault:?}: {largest:?}"
        );
        assert_eq!(profile.largest_batch(32), largest.batch);
        assert_eq!(profile.latency.last().unwrap().batch, largest.batch);
        assert!(engine.unload(FIRST).await.is_err(), "it stayed loaded");
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_gives_the_best_there_is_by_then_and_calls_it_coarse() {
    let slow = || FakeModel { latency: Arc::new(|batch| Duration::from_millis(40) * batch), ..echo() };
    for (seconds, coarse) in [(2, true), (5, true), (600, false)] {
        let engine = Arc::new(FakeEngine::new());
        engine.behave(FIRST, slow());
        let profiler = profiler(&engine).within(Some(Duration::from_secs(seconds)));
        let start = tokio::time::Instant::now();
        let profile = measured(&profiler, &mut |_, _| ()).await.unwrap();
        assert!(start.elapsed() <= Duration::from_secs(seconds), "{:?} of {seconds} s", start.elapsed());
        assert_eq!(profile.detail.coarse, coarse, "{seconds} s: {profile:?}");
        let first = profile.latency[0];
        assert!(first.batch == 1 && (first.mean_us - 40_000.0).abs() < 2_000.0, "{first:?}");
        assert_eq!(profile.accuracy.samples, 4, "one batch holds them all");
    }
}

#[tokio::test(start_paused = true)]
async fn accuracy_is_counted_in_batches_that_were_seen_to_end_in_time() {
    // Two inputs take nearly as long as a run may, and four, which is all of the set, would take longer.
    let engine = Arc::new(FakeEngine::new());
    let latency = |batch| Duration::from_secs(12) * batch;
    engine.behave(FIRST, FakeModel { latency: Arc::new(latency), ..echo() });
    let profile = measured(&profiler(&engine), &mut |_, _| ()).await.unwrap();
    assert_eq!((profile.accuracy.samples, profile.latency.last().unwrap().batch), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn what_a_part_of_the_set_showed_counts_for_less_until_all_of_it_is_compared() {
    let engine = Arc::new(FakeEngine::new());
    let latency = |batch| Duration::from_millis(900) * batch;
    engine.behave(FIRST, FakeModel { latency: Arc::new(latency), ..echo() });
    let with = |budget| {
        let mut config = Config::default();
        config.accuracy_batch = 1;
        Profiler::new(Arc::<FakeEngine>::clone(&engine), config, "cpu:fake:1", "a command").within(budget)
    };
    let (mut registrar, _artefacts) = registrar(with(Some(Duration::from_secs(2))));
    let (_folder, package) = package();
    registrar.package(&package, &mut |_, _| ()).await.unwrap();
    let catalog = registrar.store.catalog().await.unwrap();
    let (task, model, variant) = (&catalog.tasks[0], &catalog.models[0], &catalog.variants[0]);
    let profile = &variant.profiles[0];
    assert!(profile.is_coarse() && profile.accuracy.samples < 4, "{profile:?}");
    assert_eq!(catalog.floor_accuracy(task, variant.id, profile), profile.accuracy.low);
    assert!(profile.accuracy.low < profile.accuracy.value);

    registrar.profiler = with(None);
    // Without the set nobody compared more of it.
    registrar.again((task, model, variant), (None, None), &mut |_, _| ()).await.unwrap();
    let floor = async || {
        let catalog = registrar.store.catalog().await.unwrap();
        let profile = catalog.variants[0].profiles[0].clone();
        (profile.is_coarse(), catalog.floor_accuracy(&catalog.tasks[0], catalog.variants[0].id, &profile))
    };
    assert_eq!(floor().await, (false, profile.accuracy.low));
    registrar.profiler = with(None);
    let set = package.open_set(task).unwrap();
    registrar.again((task, model, variant), (set.as_ref(), None), &mut |_, _| ()).await.unwrap();
    assert_eq!(floor().await, (false, modelless_types::Accuracy::from_ppm(750_000).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_slower_than_its_budget_is_known_by_one_run_and_one_that_never_ends_is_named() {
    let takes = |seconds| FakeModel { latency: Arc::new(move |_| Duration::from_secs(seconds)), ..echo() };
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, takes(5));
    let profile = measured(&profiler(&engine).within(Some(Duration::from_secs(2))), &mut |_, _| ()).await;
    let profile = profile.unwrap();
    assert!(profile.is_coarse() && profile.latency[0].batch == 1, "{profile:?}");
    assert!((profile.latency[0].mean_us - 5_000_000.0).abs() < 1_000.0, "{profile:?}");
    assert!(engine.unload(FIRST).await.is_err(), "it stayed loaded");

    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, takes(3_600));
    let error = measured(&profiler(&engine).within(Some(Duration::from_secs(2))), &mut |_, _| ()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("longer than 30000 ms"), "{error}");
    assert!(engine.unload(FIRST).await.is_err(), "it stayed loaded");
}

#[tokio::test(start_paused = true)]
async fn it_pauses_while_others_have_work_and_then_goes_on_where_it_was() {
    let (busy, watched) = tokio::sync::watch::channel(false);
    let engine = Arc::new(FakeEngine::new());
    let runs = Arc::new(AtomicU32::new(0));
    let (counted, sender) = (Arc::clone(&runs), Arc::new(busy));
    // The tenth batch is disturbed; whoever disturbs it is done a minute later.
    let (disturbing, tasks) = (Arc::clone(&sender), TaskTracker::new());
    let later = tasks.clone();
    let latency = Arc::new(move |_: u32| {
        if counted.fetch_add(1, Ordering::Relaxed) == 10 {
            disturbing.send_replace(true);
            let done = Arc::clone(&disturbing);
            later.spawn(async move {
                tokio::time::sleep(Duration::from_mins(1)).await;
                done.send_replace(false);
            });
        }
        Duration::from_millis(3)
    });
    engine.behave(FIRST, FakeModel { latency, ..echo() });
    let start = tokio::time::Instant::now();
    let mut paused = Vec::new();
    let mut loaded = 0;
    let mut report = |_: &str, progress| {
        if progress == Progress::Paused {
            paused.push(start.elapsed().as_secs());
        }
        loaded += i32::from(progress == Progress::Loading);
    };
    // Less than it waits, and more than measuring takes.
    let within = profiler(&engine).within(Some(Duration::from_secs(20)));
    let profile = measured(&within.beside(watched), &mut report).await.unwrap();
    assert!(start.elapsed() >= Duration::from_mins(1), "it did not wait");
    assert!(!profile.detail.coarse, "what it waited was taken off its budget: {profile:?}");
    assert_eq!((paused.as_slice(), loaded), (&[0][..], 1), "it was not begun anew");
    assert!(profile.latency.iter().all(|point| (point.mean_us - 3_000.0).abs() < 1.0), "{profile:?}");
    assert!(
        profile.detail.points.iter().all(|point| point.outliers == 0),
        "what was disturbed does not count"
    );
    drop(sender);
}

#[tokio::test]
async fn a_missing_artefact_is_named() {
    let engine = Arc::new(FakeEngine::new());
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (folder, package) = package();
    fs::remove_file(folder.path().join("models/echo.onnx")).unwrap();
    let error = registrar.package(&package, &mut |_, _| ()).await.unwrap_err().to_string();
    assert!(error.contains("echo.onnx"), "{error}");
}

/// Registering runs in tasks of a server.
#[test]
fn measuring_can_move_between_threads() {
    fn check<T: Send>(_: T) {}
    let engine = Arc::new(FakeEngine::new());
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (_folder, package) = package();
    check(registrar.package(&package, &mut |_, _| ()));
}

#[tokio::test(start_paused = true)]
async fn a_set_with_other_labels_and_a_declared_accuracy_that_is_far_off_are_told_with_the_profile() {
    let warned = async |labels: [u8; 4], accuracy: &str| {
        let (folder, _) = package();
        write_set(folder.path(), [0, 50, 100, 255], labels);
        let model = MODEL.replace("name = \"echo\"", &format!("name = \"echo\"\n{accuracy}"));
        write(folder.path(), "models/echo.toml", &model);
        let package = Package::read(folder.path()).unwrap();
        let engine = Arc::new(FakeEngine::new());
        engine.behave(FIRST, echo());
        let (registrar, _artefacts) = registrar(profiler(&engine));
        registrar.package(&package, &mut |_, _| ()).await.unwrap();
        registrar.store.catalog().await.unwrap().variants[0].profiles[0].detail.doubts.clone()
    };
    // Of four items nothing is shown, whatever the model answers.
    let few = warned([0, 0, 0, 1], "accuracy = 0.8").await;
    assert!(matches!(few.as_slice(), [why] if why.contains("is the set large enough")), "{few:?}");
    let mixed_up = warned([1, 1, 1, 0], "").await;
    assert!(matches!(mixed_up.as_slice(), [why] if why.contains("most frequent label")), "{mixed_up:?}");
    let far = warned([0, 0, 0, 1], "accuracy = 0.1").await;
    assert!(matches!(far.as_slice(), [_, why] if why.contains("declared as 0.1")), "{far:?}");
}

/// A picture of one pixel in, three numbers out, with nothing but a word for its accuracy.
#[tokio::test(start_paused = true)]
async fn without_a_labelled_set_a_model_whose_answers_are_no_numbers_is_refused_all_the_same() {
    let pixel = vec![TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: vec![3, 1, 1] }];
    let registered = async |computes: Computes| {
        let folder = temp_dir("unlabelled").unwrap();
        write(
            folder.path(),
            "task.toml",
            "name = \"colours\"\nkind = \"image-classification\"\nlabels = [\"red\", \"green\", \"blue\"]",
        );
        let model = "name = \"echo\"\naccuracy = 0.8\n\
            adapter = { kind = \"image-classification\", width = 1, height = 1, channels = \"rgb\" }\n\
            variants = [{ precision = \"fp32\", file = \"echo.onnx\", max_batch = 4 }]";
        write(folder.path(), "models/echo.toml", model);
        write(folder.path(), "models/echo.onnx", "not looked at by a fake");
        let engine = Arc::new(FakeEngine::new());
        engine.behave(FIRST, FakeModel { inputs: pixel.clone(), computes, ..echo() });
        let (registrar, _artefacts) = registrar(profiler(&engine));
        let package = Package::read(folder.path()).unwrap();
        let ended = registrar.package(&package, &mut |_, _| ()).await;
        (ended.map_err(|error| error.to_string()), registrar.store.catalog().await.unwrap().models.len())
    };
    assert_eq!(registered(Computes::Echo).await, (Ok(1), 1));
    let (ended, there) = registered(Computes::NotANumber).await;
    let why = ended.unwrap_err();
    assert!(why.contains("echo-fp32") && why.contains("no usable output"), "{why}");
    assert_eq!(there, 0, "nothing is half registered");
}

#[tokio::test(start_paused = true)]
async fn of_tensors_without_a_set_it_is_told_that_an_answer_to_zeros_is_no_number() {
    let (folder, _) = package();
    write(folder.path(), "task.toml", &TASK.replace("labelled-set", "# labelled-set"));
    write(folder.path(), "models/echo.toml", &MODEL.replace("adapter =", "accuracy = 0.8\nadapter ="));
    let package = Package::read(folder.path()).unwrap();
    let engine = Arc::new(FakeEngine::new());
    engine.behave(FIRST, FakeModel { computes: Computes::NotANumber, ..echo() });
    let (registrar, _artefacts) = registrar(profiler(&engine));
    registrar.package(&package, &mut |_, _| ()).await.unwrap();
    let told = registrar.store.catalog().await.unwrap().variants[0].profiles[0].detail.doubts.clone();
    assert!(matches!(told.as_slice(), [why] if why.contains("zeros")), "{told:?}");
}
