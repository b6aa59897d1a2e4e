//! What can be loaded, and what cannot.

use super::*;
use modelless_engine::Availability;

pub(crate) async fn says_which_library_there_is_or_why_none(under: Under) {
    let ready = engine_of(under.kind, |_| {}).check().await;
    let versions = ["1.", "2", "Open Inference Protocol"];
    let known = |version: &str| versions.iter().any(|start| version.starts_with(start));
    assert!(matches!(&ready, Availability::Ready { version, .. } if known(version)), "{ready:?}");
    if matches!(under.kind, Kind::Torch | Kind::Remote) {
        return; // its library is linked into its runner, or there is none
    }
    let missing = Bench::with(under, |config| config.library = "/nowhere/library.so".into());
    let answer = missing.engine.check().await;
    assert!(
        matches!(&answer, Availability::Unavailable { reason } if reason.contains("/nowhere")),
        "{answer:?}"
    );
    let error = missing.engine.load(missing.spec(1, "echo")).await.unwrap_err();
    assert!(matches!(error, EngineError::Unavailable(_)), "{error}");
}

pub(crate) async fn what_cannot_be_served_item_by_item_is_refused_with_the_reason(under: Under) {
    let bench = Bench::new(under);
    let why = bench.refused(bench.spec(1, "mixes")).await;
    assert!(why.contains("first axis of output"), "{why}");
    let nothing_known = LoadSpec { expect: None, ..bench.spec(1, "open") };
    let why = bench.refused(nothing_known).await;
    assert!(why.contains("axis 1 of `x` is open") || why.contains("must be said"), "{why}");
    let why = bench.refused(LoadSpec { artefact: model_file("make.py"), ..bench.spec(1, "echo") }).await;
    assert!(!why.is_empty());
    let artefact = tempfile::tempfile().unwrap();
    let why = bench.refused(LoadSpec { artefact, ..bench.spec(1, "echo") }).await;
    assert!(why.contains("empty"), "{why}");
    assert!(bench.engine.slot(VariantId(1), 0, 1).is_err());
}

pub(crate) async fn an_open_axis_is_filled_from_what_is_expected(under: Under) {
    let bench = Bench::new(under);
    let x = |name: &str| TensorSpec { name: name.into(), dtype: DType::Fp32, shape: vec![5] };
    let io = Io { inputs: vec![x("x")], outputs: vec![x("y")], longest: None };
    let open = LoadSpec { expect: Some(io.clone()), ..bench.spec(1, "open") };
    let loaded = bench.engine.load(open).await.unwrap();
    assert_eq!(Io { inputs: loaded.inputs, outputs: loaded.outputs, longest: None }, io);
    let rows = bytes_f32([1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(bench.run(1, 1, &[&rows]).await.unwrap().output(0), rows);
    let other =
        Io { inputs: vec![x("x")], outputs: vec![TensorSpec { shape: vec![6], ..x("y") }], longest: None };
    let why = bench.refused(LoadSpec { expect: Some(other), ..bench.spec(2, "open") }).await;
    assert!(why.contains("6 was expected"), "{why}");
}

pub(crate) async fn a_bound_on_a_gpus_memory_is_kept_to_or_refused(under: Under) {
    let bench = Bench::new(under);
    let mut spec = bench.spec(1, "echo");
    spec.settings.gpu_memory = Some(modelless_types::Bytes::from_mib(512));
    if under.kind == Kind::Onnx {
        bench.engine.load(spec).await.unwrap();
        return;
    }
    let why = bench.refused(spec).await;
    assert!(why.contains("`gpu_memory` is ONNX Runtime's alone") && why.contains("leave it out"), "{why}");
    assert!(bench.engine.runners().is_empty(), "no process was started for it");
}

/// Whether an engine has tensors of strings.
pub(crate) fn takes_strings(kind: Kind) -> bool {
    matches!(kind, Kind::Onnx | Kind::Remote)
}

pub(crate) async fn strings_that_an_engine_does_not_take_are_refused_when_the_model_is_loaded(under: Under) {
    let bench = Bench::new(under);
    if takes_strings(under.kind) {
        // Four bytes of length for each of two.
        let mut spec = bench.spec(1, "strings");
        spec.settings.string_bytes = Some(modelless_types::Bytes(7));
        let why = bench.refused(spec).await;
        assert!(why.contains("`x` has strings of shape [2]") && why.contains("`string_bytes`"), "{why}");
        return;
    }
    let spec = if under.kind == Kind::Torch {
        // TorchScript has strings, but no tensors of them; what is left is to expect one.
        let x = TensorSpec { name: "x".into(), dtype: DType::Bytes, shape: vec![4] };
        LoadSpec { expect: Some(Io { inputs: vec![x], ..Io::default() }), ..bench.spec(1, "echo") }
    } else {
        bench.spec(1, "strings")
    };
    let why = bench.refused(spec).await;
    assert!(why.contains("BYTES") && why.contains("not supported"), "{why}");
}

pub(crate) async fn a_fixed_batch_is_found_and_smaller_ones_are_padded(under: Under) {
    let bench = Bench::new(under);
    let loaded = bench.load(1, "fixed").await;
    // TorchScript declares no batch; a model that takes only one is an error when it runs.
    let fixed = (under.kind != Kind::Torch).then_some(4);
    assert_eq!((loaded.fixed_batch, loaded.inputs[0].shape.as_slice()), (fixed, &[3][..]));
    assert_eq!(loaded.outputs[0].shape, [0; 0]);
    for batch in [4, 1, 3] {
        let rows = bytes_f32((0..batch * 3).map(|i| f32::from(u8::try_from(i).unwrap())));
        let outputs = bench.run(1, batch, &[&rows]).await.unwrap();
        let expected: Vec<f32> =
            (0..batch).map(|i| f32::from(u8::try_from(i).unwrap()) * 9.0 + 3.0).collect();
        assert_eq!(f32s(outputs.output(0)), expected);
    }
    let largest = fixed.unwrap_or(8);
    assert!(matches!(bench.engine.slot(VariantId(1), 0, largest + 1), Err(EngineError::OutOfRange { .. })));
}
