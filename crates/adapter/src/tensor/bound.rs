//! The adapter of a model that takes tensors: which of the model's are which of the task's.

use crate::SpecError;
use crate::matching::{find, fixed, names, words};
use crate::spec::TensorsSpec;
use modelless_types::{Task, TensorSpec};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(crate) struct BoundTensors {
    /// For each input of the model, its position among the task's.
    pub(crate) inputs: Vec<usize>,
    /// For each output of the task, in its order: position among the model's, and the task's own words for it.
    pub(crate) outputs: Vec<(usize, TensorSpec)>,
}

impl BoundTensors {
    pub(crate) fn new(
        spec: &TensorsSpec,
        task: &Task,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<Self, SpecError> {
        for (side, list) in [("inputs", &task.inputs), ("outputs", &task.outputs)] {
            if list.is_empty() || list.iter().any(|tensor| tensor.least_bytes().is_none()) {
                let why = format!("a `tensor` task needs {side}, each of a type and shape with a fixed size");
                return Err(SpecError::Task { task: task.name.clone(), why });
            }
        }
        known("inputs", &spec.inputs, &task.inputs)?;
        known("outputs", &spec.outputs, &task.outputs)?;
        fixed("output", outputs)?;
        let task_inputs = matched("input", &spec.inputs, &task.inputs, inputs)?;
        let task_outputs = matched("output", &spec.outputs, &task.outputs, outputs)?;
        let source = |index: usize, input: &TensorSpec| {
            let by_task = task_inputs.iter().position(|of_model| *of_model == index);
            by_task.ok_or_else(|| SpecError::NoTensor {
                wanted: format!("the model's input `{}` is no input of the task `{}`", input.name, task.name),
                present: names(inputs),
            })
        };
        Ok(Self {
            inputs: inputs.iter().enumerate().map(|(i, input)| source(i, input)).collect::<Result<_, _>>()?,
            outputs: task_outputs.into_iter().zip(task.outputs.iter().cloned()).collect(),
        })
    }
}

/// Renames have to be of tensors that the task has.
fn known(
    setting: &'static str,
    renames: &BTreeMap<String, String>,
    of_task: &[TensorSpec],
) -> Result<(), SpecError> {
    match renames.keys().find(|name| of_task.iter().all(|tensor| tensor.name != **name)) {
        None => Ok(()),
        Some(name) => Err(SpecError::Setting {
            setting,
            found: format!("a new name for `{name}`"),
            expected: format!("only names that the task has: {}", names(of_task).join(", ")),
        }),
    }
}

/// For each tensor of the task, the position of the model's that it is.
fn matched(
    side: &'static str,
    renames: &BTreeMap<String, String>,
    of_task: &[TensorSpec],
    of_model: &[TensorSpec],
) -> Result<Vec<usize>, SpecError> {
    let mut taken = vec![false; of_model.len()];
    let one = |wanted: &TensorSpec| {
        let name = renames.get(&wanted.name).unwrap_or(&wanted.name);
        let index = find(side, Some(name), of_model)?;
        let found = &of_model[index];
        if std::mem::replace(&mut taken[index], true) {
            return Err(SpecError::NoTensor {
                wanted: format!("the model's {side} `{name}` would stand for two tensors of the task"),
                present: names(of_model),
            });
        }
        if found.dtype != wanted.dtype || found.shape != wanted.shape {
            return Err(SpecError::Tensor {
                side,
                name: found.name.clone(),
                found: words(found),
                expected: format!("{}, as the task says of `{}`", words(wanted), wanted.name),
            });
        }
        Ok(index)
    };
    of_task.iter().map(one).collect()
}
