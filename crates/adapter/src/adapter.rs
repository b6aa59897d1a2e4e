//! An adapter bound to a model's real tensors and to its task: all that is asked for per query.
//!
//! Whatever can be wrong between model, task and notation is found when binding, so the per-query calls only
//! compute. An `Adapter` never changes and can be shared between threads; each brings its own [`Scratch`].

use crate::output::{NamedTensor, Output, OutputParams};
use crate::picture::{BoundImage, Scratch};
use crate::tensor::BoundTensors;
use crate::{AdapterSpec, Decoded, OutputError, Preparation, PrepareError, SpecError, scores};
use modelless_types::tensor::strings;
use modelless_types::{DType, Task, TaskKind, TensorSpec};

/// A spec bound to a model and a task.
#[derive(Clone, Debug)]
pub struct Adapter {
    preparation: Preparation,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    bound: Bound,
}

#[derive(Clone, Debug)]
enum Bound {
    Image(BoundImage),
    Tensors(BoundTensors),
}

impl Adapter {
    /// Binds a spec; `inputs` and `outputs` are the model's tensors of one item, in the model's order.
    pub fn new(
        spec: &AdapterSpec,
        task: &Task,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<Self, SpecError> {
        spec.check()?;
        if spec.kind() != task.kind {
            return Err(SpecError::Kind {
                adapter: spec.kind().name(),
                task: task.name.clone(),
                kind: task.kind.name(),
            });
        }
        let bound = match spec {
            AdapterSpec::ImageClassification(image) => {
                Bound::Image(BoundImage::new(image, task, inputs, outputs)?)
            }
            AdapterSpec::Tensor(names) => Bound::Tensors(BoundTensors::new(names, task, inputs, outputs)?),
        };
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        Ok(Self { preparation: spec.preparation(task), inputs, outputs, bound })
    }

    /// How inputs have to be decoded for it.
    pub fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    /// What kind of task it is for.
    pub fn kind(&self) -> TaskKind {
        match self.bound {
            Bound::Image(_) => TaskKind::ImageClassification,
            Bound::Tensors(_) => TaskKind::Tensor,
        }
    }

    /// Writes one item into its row of the batch of the model's input number `input`. The whole row is written, but for
    /// what strings leave of their room.
    pub fn prepare(
        &self,
        decoded: &Decoded,
        input: usize,
        row: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), PrepareError> {
        match (&self.bound, decoded) {
            (Bound::Image(image), Decoded::Picture(picture))
                if picture.colour() == image.spec.channels.colour() =>
            {
                if input != 0 {
                    return Err(PrepareError::NoInput { index: input, inputs: 1 });
                }
                check_row(row, image.row_bytes)?;
                image.prepare(picture, row, scratch)
            }
            (Bound::Tensors(tensors), Decoded::Tensors(decoded)) => {
                let source = tensors.inputs.get(input).and_then(|index| decoded.get(*index));
                let no_input = PrepareError::NoInput { index: input, inputs: tensors.inputs.len() };
                let source = source.ok_or(no_input)?;
                let input = &self.inputs[input];
                if input.dtype == DType::Bytes {
                    let (got, room) = (source.len(), row.len());
                    let too_long = || PrepareError::TooLong { input: input.name.clone(), got, room };
                    row.get_mut(..got).ok_or_else(too_long)?.copy_from_slice(source);
                    return Ok(());
                }
                check_row(row, source.len())?;
                row.copy_from_slice(source);
                Ok(())
            }
            (Bound::Image(image), _) => Err(PrepareError::Preparation {
                found: decoded.name(),
                needs: image.spec.channels.colour().name(),
            }),
            (Bound::Tensors(_), _) => {
                Err(PrepareError::Preparation { found: decoded.name(), needs: "tensors" })
            }
        }
    }

    /// Makes an answer of one item's rows, one per output of the model in the model's order.
    pub fn finish(&self, rows: &[&[u8]], params: OutputParams) -> Result<Output, OutputError> {
        params.check()?;
        self.check_rows(rows)?;
        match &self.bound {
            Bound::Image(image) => {
                let top_k = params.top_k.unwrap_or(image.spec.top_k);
                let top_k = usize::try_from(top_k).unwrap_or(usize::MAX);
                let activation = params.function_to_apply.unwrap_or(image.spec.activation);
                let best = scores::best(&self.outputs[image.output], rows[image.output], activation, top_k)?;
                Ok(Output::Labels(best))
            }
            Bound::Tensors(tensors) => {
                let named = tensors.outputs.iter().map(|(index, task)| NamedTensor {
                    name: task.name.clone(),
                    dtype: task.dtype,
                    shape: task.shape.clone(),
                    data: self.used(*index, rows[*index]).to_vec(),
                });
                Ok(Output::Tensors(named.collect()))
            }
        }
    }

    /// Position of the class that one item's rows name, for measuring accuracy. For `tensor` tasks: the largest
    /// element of the only output.
    pub fn class(&self, rows: &[&[u8]]) -> Result<usize, OutputError> {
        self.check_rows(rows)?;
        let index = match &self.bound {
            Bound::Image(image) => image.output,
            Bound::Tensors(tensors) => match tensors.outputs.as_slice() {
                [(index, _)] => *index,
                [] | [_, _, ..] => return Err(OutputError::NoClasses),
            },
        };
        scores::argmax(&self.outputs[index], rows[index])
    }

    /// What an output takes of its row: strings seldom all of it, and nothing where they do not end in it.
    fn used<'a>(&self, output: usize, row: &'a [u8]) -> &'a [u8] {
        let spec = &self.outputs[output];
        if spec.dtype != DType::Bytes {
            return row;
        }
        spec.elements().and_then(|count| strings::take(row, count)).map_or(&[], |(used, _)| used)
    }

    fn check_rows(&self, rows: &[&[u8]]) -> Result<(), OutputError> {
        if rows.len() != self.outputs.len() {
            return Err(OutputError::Count { got: rows.len(), expected: self.outputs.len() });
        }
        for (index, (row, spec)) in rows.iter().zip(&self.outputs).enumerate() {
            let (strings, expected) = (spec.dtype == DType::Bytes, spec.least_bytes().unwrap_or(0));
            let fits = if strings { self.used(index, row).len() >= expected } else { row.len() == expected };
            if !fits {
                return Err(OutputError::RowLength { output: spec.name.clone(), got: row.len(), expected });
            }
        }
        Ok(())
    }
}

fn check_row(row: &[u8], expected: usize) -> Result<(), PrepareError> {
    if row.len() == expected { Ok(()) } else { Err(PrepareError::RowLength { got: row.len(), expected }) }
}
