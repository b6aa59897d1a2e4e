//! A task's output, and how it is written: as JSON, or tensors as they are.

use crate::OutputError;
use crate::spec::Activation;
use half::f16;
use modelless_types::DType;
use modelless_types::tensor::{packed, strings};
use serde::{Deserialize, Serialize};

/// What a query may ask of its output, by Hugging Face's names. Other parameters are not this crate's, so a caller
/// that knows them all refuses those that are in nobody's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputParams {
    /// How many labels; the adapter's own number where it is left out, all where it is larger than there are.
    pub top_k: Option<u32>,
    /// What makes scores of the outputs, instead of what the adapter says.
    pub function_to_apply: Option<Activation>,
    /// Whether a vector is scaled to the length 1, instead of what the adapter says.
    pub normalize: Option<bool>,
}

impl OutputParams {
    /// The names above.
    pub const NAMES: [&str; 3] = ["top_k", "function_to_apply", "normalize"];

    pub(crate) fn check(self) -> Result<(), OutputError> {
        match self.top_k {
            Some(0) => {
                Err(OutputError::Parameter { name: "top_k", found: "0".to_owned(), expected: "at least 1" })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// A label by its position in the task's labels, with its score.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scored {
    /// Position in the task's labels.
    pub label: u32,
    /// Between 0 and 1 after softmax or sigmoid; otherwise what the model says.
    pub score: f32,
}

/// An output tensor of one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedTensor {
    /// The task's name for it.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape, without a batch axis.
    pub shape: Vec<u32>,
    /// Its elements, little-endian, row by row; before each string its length in four bytes.
    pub data: Vec<u8>,
}

/// What a task answers.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Best first.
    Labels(Vec<Scored>),
    /// In the task's order.
    Tensors(Vec<NamedTensor>),
    /// Of one text.
    Vector(Vec<f32>),
}

impl Output {
    /// Appends the answer as nodes give it: tensors in the task's order as [`packed`] has them, since who asked may want their bytes, and
    /// anything else as JSON. On an error `out` is as it was.
    pub fn write(&self, labels: &[String], out: &mut Vec<u8>) -> Result<(), OutputError> {
        let Self::Tensors(tensors) = self else { return self.write_json(labels, out) };
        for NamedTensor { name: _, dtype: _, shape, data } in tensors {
            packed::push(shape, data, out);
        }
        Ok(())
    }

    /// Appends the answer as JSON: `[{"label", "score"}]` as Hugging Face writes it, `[...]` for a
    /// vector, or `{"outputs": {name: {"shape", "datatype", "data"}}}`. On an error `out` is as it was.
    pub fn write_json(&self, labels: &[String], out: &mut Vec<u8>) -> Result<(), OutputError> {
        let before = out.len();
        let written = match self {
            Self::Labels(scored) => write_labels(scored, labels, out),
            Self::Tensors(tensors) => write_tensors(tensors, out),
            Self::Vector(vector) => write_vector(vector, out),
        };
        if written.is_err() {
            out.truncate(before);
        }
        written
    }
}

fn write_labels(scored: &[Scored], labels: &[String], out: &mut Vec<u8>) -> Result<(), OutputError> {
    out.push(b'[');
    for (i, Scored { label, score }) in scored.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"{\"label\":" } else { b",{\"label\":" });
        match usize::try_from(*label).ok().and_then(|index| labels.get(index)) {
            Some(name) => json(name, out),
            None => json(&format!("LABEL_{label}"), out),
        }
        out.extend_from_slice(b",\"score\":");
        if !score.is_finite() {
            return Err(OutputError::NotFinite { output: "score".to_owned(), index: i });
        }
        json(score, out);
        out.push(b'}');
    }
    out.push(b']');
    Ok(())
}

fn write_vector(vector: &[f32], out: &mut Vec<u8>) -> Result<(), OutputError> {
    out.push(b'[');
    for (index, value) in vector.iter().enumerate() {
        if !value.is_finite() {
            return Err(OutputError::NotFinite { output: "vector".to_owned(), index });
        }
        if index > 0 {
            out.push(b',');
        }
        json(value, out);
    }
    out.push(b']');
    Ok(())
}

fn write_tensors(tensors: &[NamedTensor], out: &mut Vec<u8>) -> Result<(), OutputError> {
    out.extend_from_slice(b"{\"outputs\":{");
    for (i, tensor) in tensors.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        json(&tensor.name, out);
        out.extend_from_slice(b":{\"shape\":");
        json(&tensor.shape, out);
        out.extend_from_slice(b",\"datatype\":\"");
        out.extend_from_slice(tensor.dtype.name().as_bytes());
        out.extend_from_slice(b"\",\"data\":[");
        let output = || tensor.name.clone();
        let bad = write_elements(tensor, out).map(|index| {
            if tensor.dtype == DType::Bytes {
                OutputError::NotText { output: output(), index }
            } else {
                OutputError::NotFinite { output: output(), index }
            }
        });
        if let Some(error) = bad {
            return Err(error);
        }
        out.extend_from_slice(b"]}");
    }
    out.extend_from_slice(b"}}");
    Ok(())
}

/// The position of the first element that JSON cannot say, if there is one.
fn write_elements(tensor: &NamedTensor, out: &mut Vec<u8>) -> Option<usize> {
    fn all<const N: usize, T: Serialize>(
        data: &[u8],
        out: &mut Vec<u8>,
        value: impl Fn([u8; N]) -> Option<T>,
    ) -> Option<usize> {
        for (index, cell) in data.as_chunks::<N>().0.iter().enumerate() {
            let Some(value) = value(*cell) else { return Some(index) };
            if index > 0 {
                out.push(b',');
            }
            json(&value, out);
        }
        None
    }
    let data = tensor.data.as_slice();
    match tensor.dtype {
        DType::Bool => all(data, out, |[b]| Some(b != 0)),
        DType::Uint8 => all(data, out, |b| Some(u8::from_le_bytes(b))),
        DType::Int8 => all(data, out, |b| Some(i8::from_le_bytes(b))),
        DType::Int32 => all(data, out, |b| Some(i32::from_le_bytes(b))),
        DType::Int64 => all(data, out, |b| Some(i64::from_le_bytes(b))),
        DType::Fp16 => all(data, out, |b| Some(f16::from_le_bytes(b).to_f32()).filter(|v| v.is_finite())),
        DType::Fp32 => all(data, out, |b| Some(f32::from_le_bytes(b)).filter(|v| v.is_finite())),
        DType::Fp64 => all(data, out, |b| Some(f64::from_le_bytes(b)).filter(|v| v.is_finite())),
        DType::Bytes => {
            for (index, string) in strings::each(data).enumerate() {
                let Ok(text) = std::str::from_utf8(string) else { return Some(index) };
                if index > 0 {
                    out.push(b',');
                }
                json(text, out);
            }
            None
        }
    }
}

fn json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value)
        .expect("numbers and strings always become JSON in memory; this is a bug");
}
