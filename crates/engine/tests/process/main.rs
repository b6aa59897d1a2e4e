//! The real engines on real models, in real runner processes. What an engine has to do stands once, in
//! [`conformance`], and every engine does it; the rest is the same whichever library a runner hosts.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
mod beside;
mod boxed;
mod conformance;
mod failures;
#[cfg(feature = "conformance-gpu")]
mod gpu;
mod isolation;
mod memory;
mod misbehaviour;
#[cfg(feature = "conformance-remote")]
mod remote;
mod set;
mod tls;
mod tokens;

use modelless_engine::{
    BatchResult, BatchSlot, Engine, EngineError, Library, LoadSpec, Loaded, ProcessConfig, ProcessEngine,
    ServerFiles, default_engines_dir,
};
use modelless_types::{Engine as Kind, ModelId, VariantId, VariantSettings};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::oneshot;

/// Far beyond what any batch here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(1);

pub fn engine() -> ProcessEngine {
    engine_with(|_| {})
}

pub fn engine_with(change: impl FnOnce(&mut ProcessConfig)) -> ProcessEngine {
    engine_of(Kind::Onnx, change)
}

/// How to run an engine that must be installed: no test is skipped because one is not.
pub fn config_of(kind: Kind) -> ProcessConfig {
    let found = if kind == Kind::Onnx {
        Library::locate(None, &default_engines_dir())
            .map(|library| ProcessConfig { library: library.path, ..ProcessConfig::default() })
            .map_err(|error| error.to_string())
    } else {
        ProcessConfig::installed(kind, &default_engines_dir())
    };
    let mut config = found.unwrap_or_else(|error| {
        panic!("{kind}: {error}\nThe tests need it: run them by `cargo xtask test`.")
    });
    if config.command.is_empty() {
        config.command = vec![runner(), kind.name().to_owned()];
    }
    config
}

pub fn engine_of(kind: Kind, change: impl FnOnce(&mut ProcessConfig)) -> ProcessEngine {
    let mut config = config_of(kind);
    change(&mut config);
    ProcessEngine::new(config).unwrap()
}

/// The program to run as a runner. Another one where the tests run again as another user.
pub fn runner() -> String {
    std::env::var("MODELLESS_TEST_RUNNER")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_modelless-test-runner").to_owned())
}

/// Where the small models lie.
pub fn models() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    std::env::var_os("MODELLESS_TEST_MODELS").map_or(here, PathBuf::from)
}

/// A small model of these tests, or (with a slash) one of the repository's.
pub fn model_file(name: &str) -> File {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = match name.split_once('/') {
        Some(("fashion", name)) => root.join("../../examples/fashion/models").join(name),
        _ => models().join(name),
    };
    File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Variant `n` of model `n`, one lane, batches of up to 8.
pub fn spec(n: u32, name: &str) -> LoadSpec {
    let settings = VariantSettings::new(Kind::Onnx, "fp32", 8);
    let (variant, model) = (VariantId(n), ModelId(n));
    LoadSpec {
        variant,
        model,
        artefact: model_file(name),
        settings,
        lanes: 1,
        memory_limit: None,
        shown: false,
        expect: None,
    }
}

pub async fn load(engine: &ProcessEngine, n: u32, name: &str) -> Loaded {
    engine.load(spec(n, name)).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub fn submit(engine: &ProcessEngine, slot: BatchSlot, limit: Duration) -> oneshot::Receiver<BatchResult> {
    let (sender, receiver) = oneshot::channel();
    engine.submit(slot, limit, Box::new(move |result| drop(sender.send(result))));
    receiver
}

/// Runs one batch on lane 0; each input is given as the bytes of all its rows.
pub async fn run(engine: &ProcessEngine, n: u32, batch: u32, inputs: &[&[u8]]) -> BatchResult {
    let mut slot = engine.slot(VariantId(n), 0, batch).unwrap();
    assert_eq!(slot.inputs().len(), inputs.len());
    for (ix, bytes) in inputs.iter().enumerate() {
        slot.input_mut(ix).copy_from_slice(bytes);
    }
    submit(engine, slot, LIMIT).await.unwrap()
}

pub async fn refused(engine: &ProcessEngine, spec: LoadSpec) -> String {
    match engine.load(spec).await {
        Err(EngineError::Refused { why, .. }) => why,
        other => panic!("expected a refusal, but got {other:?}"),
    }
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

pub fn i64s(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks::<8>().0.iter().map(|value| i64::from_le_bytes(*value)).collect()
}

pub fn bytes_f32(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

pub fn bytes_i64(values: impl IntoIterator<Item = i64>) -> Vec<u8> {
    values.into_iter().flat_map(i64::to_le_bytes).collect()
}
