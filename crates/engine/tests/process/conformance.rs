//! What a batch gives, and what cannot be loaded.

use super::*;
use modelless_engine::{Availability, BatchError, Io};
use modelless_types::{DType, TensorSpec};

#[tokio::test]
async fn says_which_library_there_is_or_why_none() {
    let ready = engine().check().await;
    assert!(matches!(&ready, Availability::Ready { version, .. } if version.starts_with("1.")), "{ready:?}");
    let missing = engine_with(|config| config.library = "/nowhere/libonnxruntime.so".into());
    let answer = missing.check().await;
    assert!(
        matches!(&answer, Availability::Unavailable { reason } if reason.contains("/nowhere")),
        "{answer:?}"
    );
    let error = missing.load(spec(1, "echo.onnx")).await.unwrap_err();
    assert!(matches!(error, EngineError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn every_element_type_passes_through_unharmed() {
    let engine = engine();
    let loaded = load(&engine, 1, "types.onnx").await;
    let named = |specs: &[TensorSpec]| specs.iter().map(|s| (s.name.clone(), s.dtype)).collect::<Vec<_>>();
    let kinds = [
        ("f32", DType::Fp32),
        ("f16", DType::Fp16),
        ("f64", DType::Fp64),
        ("i8", DType::Int8),
        ("u8", DType::Uint8),
        ("i32", DType::Int32),
        ("i64", DType::Int64),
        ("bool", DType::Bool),
    ];
    let expected: Vec<_> = kinds.iter().map(|(name, dtype)| (format!("in_{name}"), *dtype)).collect();
    assert_eq!(named(&loaded.inputs), expected);
    assert_eq!(loaded.outputs.len(), 10);
    assert!(loaded.inputs.iter().all(|spec| spec.shape == [3]));
    assert_eq!((loaded.fixed_batch, loaded.device.as_str()), (None, "cpu"));

    // Finite numbers of each type, different in every place.
    let rows = |dtype: DType| -> Vec<u8> {
        let places = 0..6_u8;
        match dtype {
            DType::Bool => places.map(|i| i % 2).collect(),
            DType::Fp16 => {
                places.flat_map(|i| half::f16::from_f32(f32::from(i) - 2.5).to_le_bytes()).collect()
            }
            DType::Fp32 => places.flat_map(|i| (f32::from(i) - 2.5).to_le_bytes()).collect(),
            DType::Fp64 => places.flat_map(|i| (f64::from(i) - 2.5).to_le_bytes()).collect(),
            DType::Int32 => places.flat_map(|i| (i32::from(i) - 3).to_le_bytes()).collect(),
            DType::Int64 => places.flat_map(|i| (i64::from(i) - 3).to_le_bytes()).collect(),
            DType::Int8 | DType::Uint8 | DType::Bytes => places.map(|i| i.wrapping_sub(3)).collect(),
        }
    };
    let inputs: Vec<_> = kinds.iter().map(|(_, dtype)| rows(*dtype)).collect();
    let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
    let outputs = run(&engine, 1, 2, &inputs).await.unwrap();
    for (ix, (name, _)) in kinds.iter().enumerate() {
        assert_eq!(outputs.output(ix), inputs[ix], "{name}");
    }
    assert_eq!(f32s(outputs.output(8)), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]);
    assert_eq!(outputs.output(9), [1, 0, 1, 0, 1, 0]);
}

#[tokio::test]
async fn all_demo_models_answer_and_agree_with_themselves_in_any_batch() {
    let engine = engine();
    let names = ["linear", "mlp_s", "mlp_l", "cnn_s", "cnn_m", "cnn_l"];
    let files = names.iter().flat_map(|name| [format!("{name}.onnx"), format!("{name}.int8.onnx")]);
    for (n, file) in (1..).zip(files) {
        let loaded = load(&engine, n, &format!("fashion/{file}")).await;
        let input = &loaded.inputs[0];
        assert_eq!((loaded.inputs.len(), input.elements()), (1, Some(784)), "{file}");
        assert_eq!(loaded.outputs[0].shape, [10], "{file}");
        let pixels = |item: u32| {
            (0..784_u32).map(move |i| f32::from(u8::try_from((i * (item + 3)) % 256).unwrap()) / 255.0)
        };
        let together = bytes_f32((0..8).flat_map(pixels));
        let all = run(&engine, n, 8, &[&together]).await.unwrap();
        let all = f32s(all.output(0));
        for item in 0..8 {
            let alone = run(&engine, n, 1, &[&bytes_f32(pixels(item))]).await.unwrap();
            for (a, b) in f32s(alone.output(0)).iter().zip(&all[item as usize * 10..]) {
                assert!((a - b).abs() < 1e-3, "{file}, item {item}: {a} alone, {b} in a batch");
            }
        }
        assert!(engine.unload(VariantId(n)).await.unwrap().process_ended);
    }
}

#[tokio::test]
async fn a_fixed_batch_is_found_and_smaller_ones_are_padded() {
    let engine = engine();
    let loaded = load(&engine, 1, "fixed.onnx").await;
    assert_eq!((loaded.fixed_batch, loaded.inputs[0].shape.as_slice()), (Some(4), &[3][..]));
    assert_eq!(loaded.outputs[0].shape, [0; 0]);
    for batch in [4, 1, 3] {
        let rows = bytes_f32((0..batch * 3).map(|i| f32::from(u8::try_from(i).unwrap())));
        let outputs = run(&engine, 1, batch, &[&rows]).await.unwrap();
        let expected: Vec<f32> =
            (0..batch).map(|i| f32::from(u8::try_from(i).unwrap()) * 9.0 + 3.0).collect();
        assert_eq!(f32s(outputs.output(0)), expected);
    }
    assert!(matches!(engine.slot(VariantId(1), 0, 5), Err(EngineError::OutOfRange { .. })));
}

#[tokio::test]
async fn a_bad_input_fails_its_batch_and_nothing_else() {
    let engine = engine();
    load(&engine, 1, "gather.onnx").await;
    let pid = engine.runners()[0].pid;
    let good = run(&engine, 1, 2, &[&bytes_i64([3, 9])]).await.unwrap();
    assert_eq!(f32s(good.output(0)), [6.0, 7.0, 18.0, 19.0]);
    drop(good);
    let bad = run(&engine, 1, 2, &[&bytes_i64([3, 10])]).await.unwrap_err();
    assert!(matches!(&bad, BatchError::Model(why) if why.contains("out of data bounds")), "{bad}");
    let good = run(&engine, 1, 1, &[&bytes_i64([0])]).await.unwrap();
    assert_eq!(f32s(good.output(0)), [0.0, 1.0]);
    assert_eq!(engine.runners()[0].pid, pid);
}

#[tokio::test]
async fn outputs_of_another_shape_are_an_error_not_an_answer() {
    let engine = engine();
    load(&engine, 1, "ragged.onnx").await;
    let outputs = run(&engine, 1, 2, &[&bytes_f32([0.0, 0.0])]).await.unwrap();
    assert_eq!(i64s(outputs.output(0)), [0, 1]);
    drop(outputs);
    // One of two is not zero: one row too few, and it could be anybody's.
    let wrong = run(&engine, 1, 2, &[&bytes_f32([0.0, 1.0])]).await.unwrap_err();
    assert_eq!(wrong, BatchError::Shape("`y` is INT64 [1, 1], but INT64 [2, 1] was declared".into()));
}

#[tokio::test]
async fn what_cannot_be_served_item_by_item_is_refused_with_the_reason() {
    let engine = engine();
    let why = refused(&engine, spec(1, "mixes.onnx")).await;
    assert!(why.contains("first axis of output `y`"), "{why}");
    let why = refused(&engine, spec(1, "open.onnx")).await;
    assert!(why.contains("axis 1 of `x` is open"), "{why}");
    let why = refused(&engine, spec(1, "make.py")).await;
    assert!(why.to_lowercase().contains("protobuf"), "{why}");
    let artefact = tempfile::tempfile().unwrap();
    let why = refused(&engine, LoadSpec { artefact, ..spec(1, "echo.onnx") }).await;
    assert!(why.contains("empty"), "{why}");
    assert!(engine.slot(VariantId(1), 0, 1).is_err());
}

#[tokio::test]
async fn an_open_axis_is_filled_from_what_is_expected() {
    let engine = engine();
    let x = |name: &str| TensorSpec { name: name.into(), dtype: DType::Fp32, shape: vec![5] };
    let io = Io { inputs: vec![x("x")], outputs: vec![x("y")] };
    let loaded = engine.load(LoadSpec { expect: Some(io.clone()), ..spec(1, "open.onnx") }).await.unwrap();
    assert_eq!(Io { inputs: loaded.inputs, outputs: loaded.outputs }, io);
    let rows = bytes_f32([1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(run(&engine, 1, 1, &[&rows]).await.unwrap().output(0), rows);
}

#[tokio::test]
async fn numbers_outside_of_the_limits_are_refused() {
    let engine = engine_with(|config| config.max_batch = 16);
    let settings = spec(1, "echo.onnx").settings;
    for (lanes, threads, max_batch) in [(0, 1, 8), (65, 1, 8), (1, 0, 8), (1, 1, 0), (1, 1, 17)] {
        let settings = VariantSettings { threads, max_batch, ..settings.clone() };
        let error = engine.load(LoadSpec { lanes, settings, ..spec(1, "echo.onnx") }).await.unwrap_err();
        assert!(matches!(error, EngineError::OutOfRange { .. }), "{error}");
    }
    let small = engine_with(|config| config.max_arena = modelless_types::Bytes(4096));
    assert!(refused(&small, spec(1, "echo.onnx")).await.contains("at most 4096"));
    load(&engine, 1, "echo.onnx").await;
    assert_eq!(engine.load(spec(1, "echo.onnx")).await, Err(EngineError::AlreadyLoaded(VariantId(1))));
    assert!(matches!(engine.slot(VariantId(1), 1, 1), Err(EngineError::OutOfRange { .. })));
    assert!(matches!(engine.slot(VariantId(1), 0, 9), Err(EngineError::OutOfRange { .. })));
    assert!(matches!(engine.slot(VariantId(2), 0, 1), Err(EngineError::NotLoaded(_))));
    assert_eq!(engine.unload(VariantId(2)).await, Err(EngineError::NotLoaded(VariantId(2))));
}

/// Thousands of distinguishable items over two lanes, slots in constant reuse: each gets its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_i_in_is_row_i_out_however_batches_overlap() {
    let engine = std::sync::Arc::new(engine());
    engine.load(LoadSpec { lanes: 2, ..spec(1, "echo.onnx") }).await.unwrap();
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..2_u16 {
        let engine = std::sync::Arc::clone(&engine);
        lanes.spawn(async move {
            let mut waiting: Option<(Vec<u8>, oneshot::Receiver<BatchResult>)> = None;
            for round in 0..400_u32 {
                let batch = 1 + round % 8;
                let mut slot = engine.slot(VariantId(1), lane, batch).unwrap();
                let rows: Vec<u8> = (0..batch * 4)
                    .flat_map(|i| f32::from_bits((u32::from(lane) << 20) | (round << 6) | i).to_le_bytes())
                    .collect();
                slot.input_mut(0).copy_from_slice(&rows);
                let next = submit(&engine, slot, LIMIT);
                if let Some((rows, receiver)) = waiting.replace((rows, next)) {
                    let outputs = receiver.await.unwrap().unwrap();
                    assert_eq!(outputs.output(0), rows, "lane {lane}, before round {round}");
                    assert_eq!(outputs.item(0, 0), &rows[..16]);
                }
            }
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.unwrap();
    }
}

#[tokio::test]
async fn lanes_run_one_variant_at_the_same_time() {
    let engine = engine();
    engine.load(LoadSpec { lanes: 2, ..spec(1, "slow.onnx") }).await.unwrap();
    // Lane 0 is at a long batch until it is killed at the end; lane 1 is not kept waiting.
    let mut long = engine.slot(VariantId(1), 0, 1).unwrap();
    long.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
    let mut long = submit(&engine, long, LIMIT);
    for _ in 0..3 {
        let mut short = engine.slot(VariantId(1), 1, 1).unwrap();
        short.input_mut(0).copy_from_slice(&7_i64.to_le_bytes());
        let outputs = submit(&engine, short, LIMIT).await.unwrap().unwrap();
        assert_eq!(i64s(outputs.output(0)), [7]);
    }
    assert!(long.try_recv().is_err(), "the long batch should still be running");
    engine.shutdown().await;
    assert!(matches!(long.await.unwrap(), Err(BatchError::Crashed(_))));
}
