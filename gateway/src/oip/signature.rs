//! The tensors that a task shows. A `tensor` task has its own; others have one input of BYTES for what they take, so that no client
//! need know any model's shapes.

use modelless_types::{DType, Task, TaskKind, TensorSpec};

/// The scores of all labels, in the task's order.
pub(crate) const SCORES: &str = "scores";
/// The best label.
pub(crate) const LABEL: &str = "label";
/// A text's vector.
pub(crate) const EMBEDDING: &str = "embedding";

/// A tensor of one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Without the batch axis; -1 where it is not known beforehand.
    pub(crate) dims: Vec<i64>,
}

/// What goes in and what comes out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Signature {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
}

impl Signature {
    /// `dimension` is that of the task's default space, if it has vectors.
    pub(crate) fn of(task: &Task, dimension: Option<u32>) -> Self {
        let port = |name: &str, dtype, dim: i64| Port { name: name.to_owned(), dtype, dims: vec![dim] };
        let labels = || {
            let count = i64::try_from(task.labels.len()).unwrap_or(-1);
            vec![port(SCORES, DType::Fp32, count), port(LABEL, DType::Bytes, 1)]
        };
        match task.kind {
            TaskKind::ImageClassification => {
                Self { inputs: vec![port("image", DType::Bytes, 1)], outputs: labels() }
            }
            TaskKind::TextClassification => {
                Self { inputs: vec![port("text", DType::Bytes, 1)], outputs: labels() }
            }
            TaskKind::FeatureExtraction => Self {
                inputs: vec![port("text", DType::Bytes, 1)],
                outputs: vec![port(EMBEDDING, DType::Fp32, dimension.map_or(-1, i64::from))],
            },
            TaskKind::Tensor => Self {
                inputs: task.inputs.iter().map(Port::from).collect(),
                outputs: task.outputs.iter().map(Port::from).collect(),
            },
        }
    }
}

impl From<&TensorSpec> for Port {
    fn from(spec: &TensorSpec) -> Self {
        let dims = spec.shape.iter().copied().map(i64::from).collect();
        Self { name: spec.name.clone(), dtype: spec.dtype, dims }
    }
}

impl Port {
    /// Elements of one item, where that is known.
    pub(crate) fn elements(&self) -> Option<usize> {
        self.dims.iter().try_fold(1_usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?))
    }

    /// Its shape with the batch in front.
    pub(crate) fn shape(&self) -> Vec<i64> {
        std::iter::once(-1).chain(self.dims.iter().copied()).collect()
    }
}
