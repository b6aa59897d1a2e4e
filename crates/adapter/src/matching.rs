//! Finding tensors by name, and saying what was found.

use crate::SpecError;
use modelless_types::{DType, Task, TensorSpec};

pub(crate) fn find(
    side: &'static str,
    name: Option<&str>,
    tensors: &[TensorSpec],
) -> Result<usize, SpecError> {
    let index = match name {
        Some(name) => tensors.iter().position(|tensor| tensor.name == name),
        None => (tensors.len() == 1).then_some(0),
    };
    index.ok_or_else(|| SpecError::NoTensor {
        wanted: match name {
            Some(name) => format!("the adapter names the {side} `{name}`"),
            None => format!("the adapter does not say which {side} is meant"),
        },
        present: names(tensors),
    })
}

/// Rows of a batch need a fixed size, or, of strings, a known number of them.
pub(crate) fn fixed(side: &'static str, tensors: &[TensorSpec]) -> Result<(), SpecError> {
    match tensors.iter().find(|tensor| tensor.least_bytes().is_none()) {
        None => Ok(()),
        Some(tensor) => Err(SpecError::Tensor {
            side,
            name: tensor.name.clone(),
            found: words(tensor),
            expected: "a type and shape with a fixed size".to_owned(),
        }),
    }
}

/// An output must have one number for each label of a task.
pub(crate) fn classes(task: &Task, output: &TensorSpec) -> Result<(), SpecError> {
    let classes = task.labels.len();
    let numeric = matches!(output.dtype, DType::Fp16 | DType::Fp32 | DType::Fp64);
    // Axes of 1 around the classes, as some exporters leave them, change nothing.
    let one_axis = output.shape.iter().filter(|axis| **axis != 1).count() <= 1;
    if classes > 0 && numeric && one_axis && output.elements() == Some(classes) {
        return Ok(());
    }
    Err(SpecError::Tensor {
        side: "output",
        name: output.name.clone(),
        found: words(output),
        expected: format!("floats, one for each of the {classes} labels of the task `{}`", task.name),
    })
}

pub(crate) fn names(tensors: &[TensorSpec]) -> Vec<String> {
    tensors.iter().map(|tensor| tensor.name.clone()).collect()
}

pub(crate) fn words(tensor: &TensorSpec) -> String {
    format!("{} {:?}", tensor.dtype.name(), tensor.shape)
}
