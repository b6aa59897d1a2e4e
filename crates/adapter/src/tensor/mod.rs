//! Tensors as task inputs: JSON or raw bytes to the exact bytes a model reads.
//!
//! The rules:
//!
//! * **JSON**, as the value of `inputs`: an object with every input by name, or, for a task of one input, its
//!   array alone. An array is nested or flat, or `{"data": ..., "shape": [...], "datatype": "FP32"}` with the
//!   last two optional. A leading axis of 1 for the batch may be there or not.
//! * **Raw** (`application/octet-stream`): the inputs one after the other in the task's order, little-endian, row
//!   by row, nothing between.
//! * Nothing is guessed. Whole-number types take no `1.0`; what does not fit the type is refused, not wrapped or
//!   clamped; lists of one level must have one length; names must be exactly the task's. JSON has no NaN or
//!   infinity, and a number too large for its type is refused rather than made one. Raw bytes may hold any float.
//! * Decimals become the nearest value of the type (FP16 by way of FP64).
//!
//! * **Strings** (BYTES) are JSON strings, and in raw form each has a length of four bytes (little-endian) before it; raw
//!   they may be any bytes.
//!
//! Numbers and strings go from text straight into the bytes of the tensor; no tree of JSON values is built on the way.

mod bound;
mod decimal;
mod json;
mod numbers;
mod texts;

pub(crate) use bound::BoundTensors;
pub(crate) use json::from_json;

use crate::InputError;
use bytes::Bytes;
use modelless_types::tensor::strings;
use modelless_types::{DType, TensorSpec};
use std::ops::Range;

/// The tensors of one item, in the task's order, little-endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensors {
    data: Bytes,
    parts: Vec<Range<usize>>,
}

impl Tensors {
    /// How many tensors.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Bytes of one, by its position in the task's inputs.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.data.get(self.parts.get(index)?.clone())
    }

    /// From the bytes of all, which must have exactly the length that the inputs have together. Strings say theirs.
    fn new(data: Bytes, inputs: &[TensorSpec]) -> Option<Self> {
        let mut parts = Vec::with_capacity(inputs.len());
        let mut at = 0_usize;
        for input in inputs {
            let length = if input.dtype == DType::Bytes {
                strings::take(data.get(at..)?, input.elements()?)?.0.len()
            } else {
                input.item_bytes()?
            };
            let end = at.checked_add(length)?;
            parts.push(at..end);
            at = end;
        }
        (at == data.len()).then_some(Self { data, parts })
    }
}

/// Raw bytes. They are not copied.
pub(crate) fn from_raw(bytes: &Bytes, inputs: &[TensorSpec]) -> Result<Tensors, InputError> {
    let Some(tensors) = Tensors::new(bytes.clone(), inputs) else {
        let expected = inputs.iter().filter_map(TensorSpec::least_bytes).fold(0, usize::saturating_add);
        let strings = inputs.iter().any(|input| input.dtype == DType::Bytes);
        let layout = inputs.iter().map(|i| format!("`{}` {} {:?}", i.name, i.dtype.name(), i.shape));
        let layout = layout.collect::<Vec<_>>().join(", then ");
        return Err(InputError::RawLength { got: bytes.len(), expected, strings, layout });
    };
    for (index, input) in inputs.iter().enumerate() {
        let values = tensors.get(index).unwrap_or_default();
        if input.dtype == DType::Bool
            && let Some(element) = values.iter().position(|byte| *byte > 1)
        {
            let found = format!("the byte {}", values[element]);
            let fault = crate::TensorFault::Element { index: element, found, dtype: DType::Bool };
            return Err(InputError::Tensor { name: input.name.clone(), fault });
        }
    }
    Ok(tensors)
}
