//! What a fuzzer feeds this crate with, and what must hold whatever it feeds. Compiled by `cargo fuzz` and for this crate's own
//! tests, which feed it what the fuzzer has kept (`fuzz/corpus`); never into what runs.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a property that does not hold is to stop the fuzzer"
)]

use crate::spec::Colour;
use crate::{Adapter, AdapterSpec, Body, Decoded, Limits, Picture, Preparation, Scratch, Tokenizer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use half::f16;
use modelless_types::tensor::strings;
use modelless_types::{
    AccuracyRule, DType, DeclaredRule, Goals, LiveRule, SpaceId, Task, TaskId, TaskKind, TenantId, TensorSpec,
};
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

/// Small, so that a fuzzer gets to each of them.
pub const LIMITS: Limits = Limits {
    max_bytes: 1 << 20,
    max_text_bytes: 4 << 10,
    max_pixels: 200_000,
    max_side: 2_000,
    max_decoder_bytes: 4 << 20,
    max_scans: 20,
};

fn decode(preparation: &Preparation, body: Body<'_>) -> Option<Decoded> {
    preparation.decode(body, &LIMITS).ok()
}

/// A picture behind four bytes that say what model it is for.
///
/// It is as large as it says, grey is what its colours are in grey, base64 of it is the same picture, and every byte of a model's
/// input is written, whatever stood there before.
pub fn image(data: &[u8]) {
    let Some((choice, file)) = data.split_first_chunk::<4>() else { return };
    let file = Bytes::copy_from_slice(file);
    let [grey, rgb] = [Colour::Grey, Colour::Rgb].map(|colour| {
        let preparation = Preparation::Picture { colour };
        let decoded = decode(&preparation, Body::Raw(&file))?;
        let quoted = format!("\"{}\"", STANDARD.encode(&file));
        assert_eq!(decode(&preparation, Body::Json(quoted.as_bytes())).as_ref(), Some(&decoded));
        let Decoded::Picture(picture) = decoded else { panic!("a picture became something else") };
        let pixels = u64::from(picture.width()) * u64::from(picture.height());
        assert!(pixels <= LIMITS.max_pixels && picture.width().max(picture.height()) <= LIMITS.max_side);
        assert_eq!(picture.pixels().len() as u64, pixels * colour.channels() as u64);
        Some(picture)
    });
    if let (Some(grey), Some(rgb)) = (&grey, &rgb) {
        assert_eq!((grey.width(), grey.height()), (rgb.width(), rgb.height()));
        for (grey, [r, g, b]) in grey.pixels().iter().zip(rgb.pixels().as_chunks::<3>().0) {
            let sum = u32::from(*r) * 19_595 + u32::from(*g) * 38_470 + u32::from(*b) * 7_471;
            assert_eq!(u32::from(*grey), (sum + 0x8000) >> 16);
        }
    }
    if let Some((adapter, bytes)) = model(*choice) {
        for picture in [grey, rgb].into_iter().flatten() {
            fits(&adapter, bytes, picture);
        }
    }
}

/// A model's input of some size, layout and type, if there can be one like that, and its bytes.
fn model([how, what, width, height]: [u8; 4]) -> Option<(Adapter, usize)> {
    let one = |of: &[&str], by: u8| of[usize::from(by) % of.len()].to_owned();
    let spec = json!({
        "kind": "image-classification",
        "width": 1 + u32::from(width) % 64,
        "height": 1 + u32::from(height) % 64,
        "channels": one(&["grey", "rgb", "bgr"], what),
        "layout": one(&["nchw", "nhwc"], what / 3),
        "dtype": one(&["fp32", "fp16", "uint8"], what / 6),
        "resize": {
            "mode": one(&["stretch", "shorter-side", "letterbox"], how),
            "filter": one(&["bilinear", "bicubic", "lanczos", "area"], how / 3),
        },
    });
    let spec = AdapterSpec::parse(&spec.to_string()).ok()?;
    let AdapterSpec::ImageClassification(image) = &spec else { panic!("a picture's model was asked for") };
    let elements = u32::try_from(image.channels.count()).unwrap() * image.width * image.height;
    let input = TensorSpec { name: "x".to_owned(), dtype: image.dtype.dtype(), shape: vec![elements] };
    let output = TensorSpec { name: "y".to_owned(), dtype: DType::Fp32, shape: vec![1] };
    let bytes = input.item_bytes().unwrap();
    Some((Adapter::new(&spec, &task(TaskKind::ImageClassification), &[input], &[output]).ok()?, bytes))
}

fn fits(adapter: &Adapter, bytes: usize, picture: Picture) {
    let decoded = Decoded::Picture(picture);
    let mut scratch = Scratch::default();
    let written = [0x00, 0xff].map(|before| {
        let mut row = vec![before; bytes];
        adapter.prepare(&decoded, 0, &mut row, &mut scratch).ok().map(|()| row)
    });
    let [first, second] = written;
    assert_eq!(first, second, "part of a row was left as it was");
    assert!(adapter.prepare(&decoded, 0, &mut vec![0; bytes + 1], &mut scratch).is_err());
}

/// A text for a tokenizer: raw bytes and the same as JSON become the same tokens.
pub fn text(data: &[u8]) {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
        Tokenizer::read(include_bytes!("../tests/golden/text/tokenizer.json")).expect("a good tokenizer")
    });
    let preparation = Preparation::Text { tokenizer: Arc::clone(&TOKENIZER) };
    let raw = decode(&preparation, Body::Raw(&Bytes::copy_from_slice(data)));
    if let Ok(text) = std::str::from_utf8(data) {
        let quoted = Value::from(text).to_string();
        assert_eq!(decode(&preparation, Body::Json(quoted.as_bytes())), raw);
    } else {
        assert_eq!(raw, None, "what is no UTF-8 was taken for a text");
    }
    decode(&preparation, Body::Json(data));
}

/// Tensors as JSON or as bytes behind one byte that says which tensors are wanted.
///
/// What is taken has exactly the size that was wanted, and is the same when it is sent again the other way.
pub fn tensor(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    let inputs: Arc<[TensorSpec]> = wanted(choice / 2).into();
    let preparation = Preparation::Tensors { inputs: Arc::clone(&inputs) };
    let bytes = Bytes::copy_from_slice(body);
    let body = if choice % 2 == 0 { Body::Json(body) } else { Body::Raw(&bytes) };
    let Some(Decoded::Tensors(taken)) = decode(&preparation, body) else { return };
    assert_eq!(taken.count(), inputs.len());
    let parts: Vec<&[u8]> = (0..inputs.len()).map(|at| taken.get(at).unwrap()).collect();
    for (input, part) in inputs.iter().zip(&parts) {
        match input.item_bytes() {
            Some(bytes) => assert_eq!(part.len(), bytes),
            None => assert_eq!(strings::each(part).count(), input.elements().unwrap()),
        }
    }
    let all = Bytes::from(parts.concat());
    assert_eq!(decode(&preparation, Body::Raw(&all)), Some(Decoded::Tensors(taken.clone())));
    let named = inputs
        .iter()
        .zip(&parts)
        .map(|(input, part)| Some((input.name.clone(), as_json(input.dtype, part)?)));
    // Raw bytes may be what JSON cannot say.
    let Some(named) = named.collect::<Option<serde_json::Map<_, _>>>() else { return };
    let again = Value::Object(named).to_string();
    assert_eq!(decode(&preparation, Body::Json(again.as_bytes())), Some(Decoded::Tensors(taken)), "{again}");
}

fn wanted(choice: u8) -> Vec<TensorSpec> {
    const TYPES: [DType; 9] = [
        DType::Fp32,
        DType::Fp16,
        DType::Fp64,
        DType::Int64,
        DType::Int32,
        DType::Int8,
        DType::Uint8,
        DType::Bool,
        DType::Bytes,
    ];
    let dtype = TYPES[usize::from(choice) % TYPES.len()];
    let tensor =
        |name: &str, dtype, shape: &[u32]| TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() };
    match usize::from(choice) / TYPES.len() % 4 {
        0 => vec![tensor("x", dtype, &[3])],
        1 => vec![tensor("x", dtype, &[2, 2])],
        2 => vec![tensor("x", dtype, &[1, 3]), tensor("y", DType::Bytes, &[1])],
        _ => vec![tensor("x", dtype, &[])],
    }
}

fn as_json(dtype: DType, bytes: &[u8]) -> Option<Value> {
    fn all<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> Option<Value>) -> Option<Value> {
        bytes.as_chunks::<N>().0.iter().map(|cell| one(*cell)).collect::<Option<Vec<_>>>().map(Value::from)
    }
    // `Value` says null for what is not finite.
    let finite = |value: Value| (!value.is_null()).then_some(value);
    match dtype {
        DType::Bool => all(bytes, |[byte]| Some((byte == 1).into())),
        DType::Uint8 => all(bytes, |cell| Some(u8::from_le_bytes(cell).into())),
        DType::Int8 => all(bytes, |cell| Some(i8::from_le_bytes(cell).into())),
        DType::Int32 => all(bytes, |cell| Some(i32::from_le_bytes(cell).into())),
        DType::Int64 => all(bytes, |cell| Some(i64::from_le_bytes(cell).into())),
        DType::Fp16 => all(bytes, |cell| finite(f16::from_le_bytes(cell).to_f64().into())),
        DType::Fp32 => all(bytes, |cell| finite(f64::from(f32::from_le_bytes(cell)).into())),
        DType::Fp64 => all(bytes, |cell| finite(f64::from_le_bytes(cell).into())),
        DType::Bytes => {
            let texts = strings::each(bytes).map(|text| Some(Value::from(std::str::from_utf8(text).ok()?)));
            texts.collect::<Option<Vec<_>>>().map(Value::from)
        }
    }
}

fn task(kind: TaskKind) -> Task {
    Task {
        id: TaskId(1),
        name: "fuzzed".to_owned(),
        tenant: TenantId::DEFAULT,
        kind,
        metric: "top-1".to_owned(),
        accuracy_rule: AccuracyRule::default(),
        live_accuracy: LiveRule::default(),
        declared_accuracy: DeclaredRule::default(),
        labels: vec!["a".to_owned()],
        inputs: Vec::new(),
        outputs: Vec::new(),
        default_space: SpaceId(1),
        defaults: Goals::default(),
        batching: None,
        cache: modelless_types::CacheFor::OFF,
        keep: modelless_types::KeepFor::ALWAYS,
        ahead: modelless_types::Ahead::default(),
        description: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use modelless_testkit::corpus::replay;

    #[test]
    fn nothing_the_fuzzer_kept_breaks_pictures() {
        replay("image", super::image);
    }

    #[test]
    fn nothing_the_fuzzer_kept_breaks_texts() {
        replay("text", super::text);
    }

    #[test]
    fn nothing_the_fuzzer_kept_breaks_tensors() {
        replay("tensor", super::tensor);
    }
}
