//! What a batch gives.

use super::*;
use modelless_engine::{BatchError, BatchSlot, Io, LoadSpec, Outputs, Part};
use modelless_types::Optimisation;
use modelless_types::tensor::strings;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) async fn every_element_type_passes_through_unharmed(under: Under) {
    let bench = Bench::new(under);
    let loaded = bench.load(1, "types").await;
    let named = |specs: &[TensorSpec]| specs.iter().map(|s| (s.name.clone(), s.dtype)).collect::<Vec<_>>();
    let expected: Vec<_> = TYPES.iter().map(|(name, dtype)| (format!("in_{name}"), *dtype)).collect();
    assert_eq!(named(&loaded.inputs), expected);
    assert_eq!(loaded.outputs.len(), 10);
    assert!(loaded.inputs.iter().all(|spec| spec.shape == [3]));
    let device = match under.kind {
        Kind::Remote => format!("remote:{}", peer().split_once("://").unwrap().1),
        Kind::Onnx | Kind::Openvino | Kind::Torch => under.processor.to_string(),
    };
    assert_eq!((loaded.fixed_batch, loaded.device), (None, device));

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
    let inputs: Vec<_> = TYPES.iter().map(|(_, dtype)| rows(*dtype)).collect();
    let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
    let outputs = bench.run(1, 2, &inputs).await.unwrap();
    for (ix, (name, _)) in TYPES.iter().enumerate() {
        assert_eq!(outputs.output(ix), inputs[ix], "{name}");
    }
    assert_eq!(f32s(outputs.output(8)), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]);
    assert_eq!(outputs.output(9), [1, 0, 1, 0, 1, 0]);
}

/// Each part is as long as its own items are, where an engine tells that the model's length is open.
pub(crate) async fn a_batch_in_parts_gives_every_item_what_is_its_own(under: Under) {
    let bench = Bench::new(under);
    let x = |name: &str| TensorSpec { name: name.into(), dtype: DType::Fp32, shape: vec![5] };
    let io = Io { inputs: vec![x("x")], outputs: vec![x("y")], longest: Some(5) };
    let loaded = bench.engine.load(LoadSpec { expect: Some(io), ..bench.spec(1, "open") }).await.unwrap();
    for lengths in [&[2, 2, 5][..], &[1, 3, 3, 3, 4, 5], &[4]] {
        let mut slot = bench.engine.slot(VariantId(1), 0, u32::try_from(lengths.len()).unwrap()).unwrap();
        let parts = lengths.chunk_by(|a, b| a == b);
        let part = |part: &[u32]| Part { rows: u32::try_from(part.len()).unwrap(), length: part[0] };
        slot.cut(&parts.map(part).collect::<Vec<_>>());
        let mut wanted = Vec::new();
        for (item, length) in (0_u8..).zip(lengths) {
            let row = slot.item_mut(0, item.into());
            let elements = if loaded.stretches { *length } else { 5 };
            assert_eq!(row.len(), 4 * elements as usize);
            row.copy_from_slice(&bytes_f32((0..elements).map(|_| f32::from(item) + 0.5)));
            wanted.push(row.to_vec());
        }
        let outputs = submit(&bench.engine, slot, LIMIT).await.unwrap().unwrap();
        for (item, wanted) in (0..).zip(&wanted) {
            assert_eq!(outputs.item(0, item), wanted, "item {item} of {lengths:?}");
        }
    }
    // What a server elsewhere says of open axes is its own matter.
    if under.kind != Kind::Remote {
        assert_eq!(loaded.stretches, under.kind != Kind::Torch);
    }
}

/// Writes each item's strings into its room.
fn write(slot: &mut BatchSlot, items: &[&[&[u8]]]) {
    for (item, texts) in (0..).zip(items) {
        let mut packed = Vec::new();
        for text in *texts {
            strings::push(text, &mut packed).unwrap();
        }
        slot.item_mut(0, item)[..packed.len()].copy_from_slice(&packed);
    }
}

/// What stands in the room of an item.
fn read(outputs: &Outputs, item: u32, count: usize) -> Vec<Vec<u8>> {
    let (packed, _) = strings::take(outputs.item(0, item), count).unwrap();
    strings::each(packed).map(<[u8]>::to_vec).collect()
}

pub(crate) async fn strings_pass_through_unharmed_each_in_its_own_row(under: Under) {
    if !super::loading::takes_strings(under.kind) {
        return; // its refusal is another test's
    }
    let bench = Bench::new(under);
    let loaded = bench.load(1, "strings").await;
    assert_eq!((loaded.inputs[0].dtype, &loaded.inputs[0].shape[..]), (DType::Bytes, &[2][..]));
    let long = vec![b'a'; 60_000];
    // The server of the tests takes what came by HTTP for text, whichever form it had.
    let only_text = under.kind == Kind::Remote && peer().starts_with("http:");
    let odd: &[u8] = if only_text { b"ff 0 fe" } else { b"\xff\0\xfe" };
    // Text of any script, nothing, and bytes that are no text; then fewer and shorter ones where they lay.
    let first: [&[&[u8]]; 3] = [&["Grüße, 世界".as_bytes(), b""], &[odd, b"x"], &[&long, b"end"]];
    let second: [&[&[u8]]; 2] = [&[b"", b"b"], &[b"c", b""]];
    for items in [&first[..], &second[..], &first[..2]] {
        let mut slot = bench.engine.slot(VariantId(1), 0, u32::try_from(items.len()).unwrap()).unwrap();
        write(&mut slot, items);
        let outputs = submit(&bench.engine, slot, LIMIT).await.unwrap().unwrap();
        for (item, texts) in (0..).zip(items) {
            assert_eq!(read(&outputs, item, 2), *texts, "item {item}");
        }
    }
    let mut slot = bench.engine.slot(VariantId(1), 0, 1).unwrap();
    slot.item_mut(0, 0)[..4].fill(0xff);
    let error = submit(&bench.engine, slot, LIMIT).await.unwrap().unwrap_err();
    assert!(matches!(&error, BatchError::Model(why) if why.contains("strings of `x`")), "{error}");
}

pub(crate) async fn strings_longer_than_their_room_are_an_error_and_not_cut(under: Under) {
    if !super::loading::takes_strings(under.kind) {
        return; // its refusal is another test's
    }
    let bench = Bench::new(under);
    let mut spec = bench.spec(1, "twice");
    spec.settings.string_bytes = Some(modelless_types::Bytes(16));
    bench.engine.load(spec).await.unwrap();
    for (text, fits) in [("sixty4", true), ("seventy", false), ("six", true)] {
        let mut slot = bench.engine.slot(VariantId(1), 0, 1).unwrap();
        assert_eq!(slot.item_mut(0, 0).len(), 16);
        write(&mut slot, &[&[text.as_bytes()]]);
        match submit(&bench.engine, slot, LIMIT).await.unwrap() {
            Ok(outputs) if fits => assert_eq!(read(&outputs, 0, 1), [text.repeat(2).as_bytes()]),
            Err(BatchError::Shape(why)) if !fits => {
                assert!(why.contains("18 bytes") && why.contains("`string_bytes`"), "{why}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

pub(crate) async fn a_trained_model_agrees_with_itself_in_any_batch(under: Under) {
    let bench = Bench::new(under);
    let names = ["linear", "mlp_s", "mlp_l", "cnn_s", "cnn_m", "cnn_l"];
    let all = names.iter().flat_map(|name| [(*name).to_owned(), format!("{name}.int8")]);
    let names: Vec<String> = if matches!(under.kind, Kind::Torch | Kind::Remote) {
        vec!["cnn_s".to_owned(), "cnn_m".to_owned()]
    } else {
        all.collect()
    };
    for (n, name) in (1..).zip(names) {
        let loaded = bench.load(n, &format!("fashion/{name}")).await;
        let input = &loaded.inputs[0];
        assert_eq!((loaded.inputs.len(), input.elements()), (1, Some(784)), "{name}");
        assert_eq!(loaded.outputs[0].shape, [10], "{name}");
        let together = bytes_f32((0..8).flat_map(pixels));
        let all = bench.run(n, 8, &[&together]).await.unwrap();
        let all = f32s(all.output(0));
        // A quantised network steps: what is summed in another order may fall one step further.
        let tolerance = if name.ends_with("int8") { 0.3 } else { 1e-3 };
        for item in 0..8 {
            let alone = bench.run(n, 1, &[&bytes_f32(pixels(item))]).await.unwrap();
            for (a, b) in f32s(alone.output(0)).iter().zip(&all[item as usize * 10..]) {
                assert!((a - b).abs() < tolerance, "{name}, item {item}: {a} alone, {b} in a batch");
            }
        }
        assert!(bench.engine.unload(VariantId(n)).await.unwrap().process_ended);
    }
}

/// Some picture, another for each item.
pub(crate) fn pixels(item: u32) -> impl Iterator<Item = f32> {
    (0..784_u32).map(move |i| f32::from(u8::try_from((i * (item + 3)) % 256).unwrap_or(0)) / 255.0)
}

/// Thousands of distinguishable items over two lanes, slots in constant reuse: each gets its own answer.
pub(crate) async fn row_i_in_is_row_i_out_however_batches_overlap(under: Under) {
    let bench = Bench::new(under);
    bench.engine.load(LoadSpec { lanes: 2, ..bench.spec(1, "echo") }).await.unwrap();
    let engine = Arc::new(bench.engine);
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..2_u16 {
        let engine = Arc::clone(&engine);
        lanes.spawn(async move {
            let mut waiting: Option<(Vec<u8>, oneshot::Receiver<BatchResult>)> = None;
            for round in 0..400_u32 {
                let batch = 1 + round % 8;
                let mut slot = engine.slot(VariantId(1), lane, batch).unwrap();
                // Whole numbers, which every engine keeps as they are.
                let number = |i: u32| (u32::from(lane) << 18) | (round << 6) | i;
                #[expect(clippy::cast_precision_loss, reason = "below 2^24")]
                let rows = bytes_f32((0..batch * 4).map(|i| number(i) as f32));
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

/// Lanes may share a model's weights, and what a library keeps for a shape that it has seen: answers must not show it.
/// Batches of every size, each other than its neighbours', at once on several lanes, against what one lane alone says.
pub(crate) async fn lanes_at_once_answer_as_one_alone(under: Under) {
    const LANES: u16 = 4;
    let bench = Bench::new(under);
    bench.engine.load(LoadSpec { lanes: LANES, ..bench.spec(1, "fashion/cnn_s") }).await.unwrap();
    let inputs = |first: u32, batch: u32| bytes_f32((first..first + batch).flat_map(pixels));
    let mut alone = BTreeMap::new();
    for (first, batch) in (0..4).flat_map(|first| (1..=8).map(move |batch| (first, batch))) {
        let outputs = bench.run(1, batch, &[&inputs(first, batch)]).await.unwrap();
        alone.insert((first, batch), f32s(outputs.output(0)));
    }
    let (engine, alone) = (Arc::new(bench.engine), Arc::new(alone));
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..LANES {
        let (engine, alone) = (Arc::clone(&engine), Arc::clone(&alone));
        lanes.spawn(async move {
            for round in 0..120 {
                let (first, batch) = ((round + u32::from(lane)) % 4, 1 + (round * 3 + u32::from(lane)) % 8);
                let mut slot = engine.slot(VariantId(1), lane, batch).unwrap();
                slot.input_mut(0).copy_from_slice(&inputs(first, batch));
                let outputs = submit(&engine, slot, LIMIT).await.unwrap().unwrap();
                // To the last bit, where it is computed by the same code in the same order.
                let (answer, expected) = (f32s(outputs.output(0)), &alone[&(first, batch)]);
                let furthest = answer.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let allowed = if under == Under::from(Kind::Onnx) { 0.0 } else { 1e-4 };
                assert!(furthest <= allowed, "{furthest} on lane {lane}, round {round}");
            }
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.unwrap();
    }
}

pub(crate) async fn lanes_run_one_variant_at_the_same_time(under: Under) {
    let bench = Bench::new(under);
    let engine = &bench.engine;
    engine.load(LoadSpec { lanes: 2, ..bench.spec(1, "slow") }).await.unwrap();
    // Lane 0 is at a long batch until it is killed at the end; lane 1 is not kept waiting.
    let mut long = engine.slot(VariantId(1), 0, 1).unwrap();
    long.input_mut(0).copy_from_slice(&i64::MAX.to_le_bytes());
    let mut long = submit(engine, long, LIMIT);
    for _ in 0..3 {
        let mut short = engine.slot(VariantId(1), 1, 1).unwrap();
        short.input_mut(0).copy_from_slice(&7_i64.to_le_bytes());
        let outputs = submit(engine, short, LIMIT).await.unwrap().unwrap();
        assert_eq!(i64s(outputs.output(0)), [7]);
    }
    assert!(long.try_recv().is_err(), "the long batch should still be running");
    engine.shutdown().await;
    assert!(matches!(long.await.unwrap(), Err(BatchError::Crashed(_))));
}

pub(crate) async fn an_empty_batch_and_one_too_large_are_refused(under: Under) {
    let bench = Bench::with(under, |config| config.max_batch = 16);
    bench.load(1, "echo").await;
    for batch in [0, 9, u32::MAX] {
        let refused = bench.engine.slot(VariantId(1), 0, batch);
        assert!(matches!(refused, Err(EngineError::OutOfRange { .. })), "{batch}");
    }
    let settings = bench.spec(1, "echo").settings;
    for (lanes, threads, max_batch) in [(0, 1, 8), (65, 1, 8), (1, 0, 8), (1, 1, 0), (1, 1, 17)] {
        let settings = VariantSettings { threads, max_batch, ..settings.clone() };
        let error =
            bench.engine.load(LoadSpec { lanes, settings, ..bench.spec(2, "echo") }).await.unwrap_err();
        assert!(matches!(error, EngineError::OutOfRange { .. }), "{error}");
    }
    assert_eq!(bench.engine.load(bench.spec(1, "echo")).await, Err(EngineError::AlreadyLoaded(VariantId(1))));
    assert!(matches!(bench.engine.slot(VariantId(1), 1, 1), Err(EngineError::OutOfRange { .. })));
    assert!(matches!(bench.engine.slot(VariantId(2), 0, 1), Err(EngineError::NotLoaded(_))));
    assert_eq!(bench.engine.unload(VariantId(2)).await, Err(EngineError::NotLoaded(VariantId(2))));
    let small = Bench::with(under, |config| config.max_arena = modelless_types::Bytes(4096));
    assert!(small.refused(small.spec(1, "echo")).await.contains("at most 4096"));
}

pub(crate) async fn threads_and_optimisation_change_no_answer(under: Under) {
    let bench = Bench::new(under);
    let mut answers: Vec<Vec<f32>> = Vec::new();
    let choices =
        [(1, Optimisation::All), (2, Optimisation::All), (1, Optimisation::Basic), (1, Optimisation::Off)];
    for (n, (threads, optimisation)) in (1..).zip(choices) {
        let spec = bench.spec(n, "fashion/cnn_s");
        let settings = VariantSettings { threads, optimisation, ..spec.settings.clone() };
        bench.engine.load(LoadSpec { settings, ..spec }).await.unwrap();
        let outputs = bench.run(n, 2, &[&bytes_f32((0..2).flat_map(pixels))]).await.unwrap();
        answers.push(f32s(outputs.output(0)));
    }
    for other in &answers[1..] {
        assert!(
            answers[0].iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-3),
            "{:?} {other:?}",
            answers[0]
        );
    }
}
