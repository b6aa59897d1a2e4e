use crate::{example, registrar};
use anyhow::Context;
use modelless_engine::{Engine, Library, ProcessConfig, ProcessEngine, default_engines_dir};
use modelless_profiler::{Config, Profiler};
use modelless_testkit::server::cargo_build;
use std::sync::Arc;

const CLASS: &str = "cpu:test:1";

/// ONNX Runtime in real runner processes. `cargo xtask test` installs the library.
fn engine() -> Arc<ProcessEngine> {
    let library = Library::locate(None, &default_engines_dir()).unwrap().path;
    let runner = cargo_build("modelless-test-runner").unwrap();
    let command = vec![runner.display().to_string()];
    Arc::new(ProcessEngine::new(ProcessConfig { library, command, ..ProcessConfig::default() }).unwrap())
}

/// The figures of docs and README say which accuracy these files have; here it is only that they are the same files
/// and go through the same adapter.
#[tokio::test(flavor = "multi_thread")]
async fn real_models_are_as_accurate_as_they_were_trained() -> anyhow::Result<()> {
    let engine = engine();
    let profiler = Profiler::new(Arc::<ProcessEngine>::clone(&engine), Config::default(), CLASS, "a test");
    let (registrar, _artefacts) = registrar(profiler);
    let mut demo = example("fashion");
    demo.models.retain(|model| ["linear", "cnn_s"].contains(&model.name.as_str()));
    assert_eq!(registrar.package(&demo, &mut |_, _| ()).await?, 2);
    assert_eq!(registrar.package(&example("fashion-tensor"), &mut |_, _| ()).await?, 1);

    let catalog = registrar.store.catalog().await?;
    let profile = |name: &str, task: &str| {
        let task = catalog.tasks.iter().find(|known| known.name == task).context("the task")?;
        let variants = catalog.models_of(task.id).flat_map(|model| catalog.variants_of(model.id));
        let variant = variants.into_iter().find(|variant| variant.name == name).context("the variant")?;
        variant.profile_on(CLASS).context("its profile")
    };
    for (name, task, least) in [
        ("linear-fp32", "fashion", 0.80),
        ("linear-int8", "fashion", 0.80),
        ("cnn_s-fp32", "fashion", 0.87),
        ("cnn_s-int8", "fashion", 0.87),
        ("cnn_m-fp32", "fashion-tensor", 0.89),
    ] {
        let profile = profile(name, task)?;
        let accuracy = profile.accuracy.value.as_f64();
        assert!((least..0.96).contains(&accuracy), "{name}: {accuracy}");
        assert_eq!(profile.accuracy.samples, 2_000);
        let sizes: Vec<u32> = profile.latency.iter().map(|point| point.batch).collect();
        assert!(sizes.starts_with(&[1, 2]) && sizes.ends_with(&[32]), "{sizes:?}");
        assert!(profile.detail.points.iter().all(|point| point.rounds >= 3), "{:?}", profile.detail);
        assert!(profile.detail.points.iter().any(|point| point.peak.is_some()), "{:?}", profile.detail);
        assert!(profile.latency.iter().all(|point| point.mean_us > 1.0 && point.samples >= 3), "{profile:?}");
        assert!(
            profile.memory.0 > 0 && profile.load_time.0 > 0 && profile.prepare.samples > 0,
            "{profile:?}"
        );
    }
    assert!(engine.runners().is_empty(), "runners were left: {:?}", engine.runners());
    engine.shutdown().await;
    Ok(())
}
