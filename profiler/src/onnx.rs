//! What an ONNX file says of itself, read without any inference library: so that what does not fit is told before
//! anything is sent or loaded.
//!
//! A small reader of protobuf for the few fields that matter (their numbers are those of `onnx.proto`). Weights are
//! skipped, not read. It believes nothing: whether the model runs is for the engine to find out.

use modelless_types::DType;
use std::collections::BTreeSet;

/// A tensor as a model declares it, batch axis included. `None` is an open axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declared {
    /// The name the model gives it.
    pub name: String,
    /// Element type; `None` where no engine here takes it.
    pub dtype: Option<DType>,
    /// Extents, the batch first; none at all where the model does not say how many there are.
    pub axes: Option<Vec<Option<u32>>>,
}

/// What is known of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnnxModel {
    /// What is to be given to it.
    pub inputs: Vec<Declared>,
    /// What it gives.
    pub outputs: Vec<Declared>,
    /// The version of the usual operators.
    pub opset: Option<u64>,
    /// What made it.
    pub producer: String,
    /// Its weights lie in files of their own, which would not come along.
    pub external: bool,
}

/// No model has more inputs, outputs or weights; a file that was made to take memory or time might.
const MOST: usize = 100_000;

impl OnnxModel {
    /// Reads a file's content; says what is wrong with it.
    pub fn read(file: &[u8]) -> Result<Self, String> {
        let mut model = Self {
            inputs: Vec::new(),
            outputs: Vec::new(),
            opset: None,
            producer: String::new(),
            external: false,
        };
        let (mut graph, mut weights) = (None, BTreeSet::new());
        for field in fields(file) {
            match field? {
                (2, Value::Bytes(name)) => model.producer = text(name)?,
                (7, Value::Bytes(found)) => graph = Some(found),
                (8, Value::Bytes(opset)) => {
                    let (domain, version) = opset_of(opset)?;
                    if domain.is_empty() || domain == "ai.onnx" {
                        model.opset = Some(version);
                    }
                }
                _ => {}
            }
        }
        for field in fields(graph.ok_or("it has no graph")?) {
            match field? {
                (5, Value::Bytes(tensor)) => {
                    let (name, external) = weight(tensor)?;
                    weights.insert(name);
                    model.external |= external;
                }
                (11, Value::Bytes(value)) => model.inputs.push(declared(value)?),
                (12, Value::Bytes(value)) => model.outputs.push(declared(value)?),
                _ => {}
            }
            if model.inputs.len().max(model.outputs.len()).max(weights.len()) > MOST {
                return Err(format!("it has more than {MOST} inputs, outputs or weights"));
            }
        }
        // Older exporters list the weights among the inputs.
        model.inputs.retain(|input| !weights.contains(&input.name));
        if model.inputs.is_empty() || model.outputs.is_empty() {
            return Err("it has no inputs or no outputs".to_owned());
        }
        Ok(model)
    }
}

/// How the weights' `data_location` says that they lie elsewhere.
const EXTERNAL: u64 = 1;

fn opset_of(message: &[u8]) -> Result<(String, u64), String> {
    let (mut domain, mut version) = (String::new(), 0);
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(name)) => domain = text(name)?,
            (2, Value::Number(number)) => version = number,
            _ => {}
        }
    }
    Ok((domain, version))
}

fn weight(message: &[u8]) -> Result<(String, bool), String> {
    let (mut name, mut external) = (String::new(), false);
    for field in fields(message) {
        match field? {
            (8, Value::Bytes(found)) => name = text(found)?,
            (14, Value::Number(place)) => external = place == EXTERNAL,
            _ => {}
        }
    }
    Ok((name, external))
}

fn declared(message: &[u8]) -> Result<Declared, String> {
    let mut found = Declared { name: String::new(), dtype: None, axes: None };
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(name)) => found.name = text(name)?,
            (2, Value::Bytes(kind)) => {
                for field in fields(kind) {
                    if let (1, Value::Bytes(tensor)) = field? {
                        (found.dtype, found.axes) = tensor_type(tensor)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

type TensorType = (Option<DType>, Option<Vec<Option<u32>>>);

fn tensor_type(message: &[u8]) -> Result<TensorType, String> {
    let (mut dtype, mut axes) = (None, None);
    for field in fields(message) {
        match field? {
            (1, Value::Number(code)) => dtype = dtype_of(code),
            (2, Value::Bytes(shape)) => {
                let mut all = Vec::new();
                for field in fields(shape) {
                    if let (1, Value::Bytes(axis)) = field? {
                        all.push(extent(axis)?);
                    }
                }
                axes = Some(all);
            }
            _ => {}
        }
    }
    Ok((dtype, axes))
}

fn extent(message: &[u8]) -> Result<Option<u32>, String> {
    let mut extent = None;
    for field in fields(message) {
        // Some exporters write 0 or -1 for an axis of any extent.
        if let (1, Value::Number(number)) = field? {
            extent = u32::try_from(number).ok().filter(|number| *number > 0);
        }
    }
    Ok(extent)
}

const fn dtype_of(code: u64) -> Option<DType> {
    match code {
        1 => Some(DType::Fp32),
        2 => Some(DType::Uint8),
        3 => Some(DType::Int8),
        6 => Some(DType::Int32),
        7 => Some(DType::Int64),
        8 => Some(DType::Bytes),
        9 => Some(DType::Bool),
        10 => Some(DType::Fp16),
        11 => Some(DType::Fp64),
        _ => None,
    }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes, which nothing here needs.
    Fixed,
}

/// The fields of a message, in their order; ends with the first that makes no sense.
fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u64, Value<'_>), String>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or_else(|| "it is no ONNX file, or damaged".to_owned()))
    })
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Number(varint(rest)?),
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            let (bytes, after) = rest.split_at_checked(length)?;
            *rest = after;
            Value::Bytes(bytes)
        }
        kind @ (1 | 5) => {
            *rest = rest.get(if kind == 1 { 8 } else { 4 }..)?;
            Value::Fixed
        }
        _ => return None,
    };
    (tag >> 3 != 0).then_some((tag >> 3, value))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn text(bytes: &[u8]) -> Result<String, String> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a name in it is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(path: &str) -> OnnxModel {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        OnnxModel::read(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn tells_what_a_model_takes_and_gives() {
        let cnn = read("examples/fashion/models/cnn_m.onnx");
        assert_eq!(cnn.inputs.len(), 1);
        assert_eq!(cnn.inputs[0].dtype, Some(DType::Fp32));
        assert_eq!(cnn.inputs[0].axes, Some(vec![None, Some(1), Some(28), Some(28)]));
        assert_eq!(cnn.outputs[0].axes, Some(vec![None, Some(10)]));
        assert!(cnn.opset.is_some() && !cnn.external);
        let text = read("crates/adapter/tests/golden/text/tiny.onnx");
        let names: Vec<_> =
            text.inputs.iter().chain(&text.outputs).map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["input_ids", "attention_mask", "last_hidden_state", "logits"]);
        assert_eq!(text.inputs[0].axes, Some(vec![None, None]));
        assert_eq!(
            (text.outputs[0].axes.as_deref(), text.opset),
            (Some(&[None, None, Some(8)][..]), Some(13))
        );
    }

    #[test]
    fn what_is_cut_short_or_no_model_is_an_error_and_never_a_panic() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/adapter/tests/golden/text/tiny.onnx");
        let whole = std::fs::read(path).unwrap();
        for end in 0..whole.len() {
            // Some ends fall between fields: then it reads, with less in it.
            let _ = OnnxModel::read(&whole[..end]);
        }
        for (at, bit) in (0..whole.len()).zip((0..8).cycle()) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let _ = OnnxModel::read(&damaged);
        }
        for file in
            [&b""[..], b"PK\x03\x04", b"\x80\x04\x95", b"{}", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert!(OnnxModel::read(file).is_err(), "{file:?}");
        }
    }
}
