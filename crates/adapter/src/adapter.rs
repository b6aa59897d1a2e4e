//! An adapter bound to a model's real tensors and to its task: all that is asked for per query.
//!
//! Whatever can be wrong between model, task and notation is found when binding, so the per-query calls only
//! compute. An `Adapter` never changes and can be shared between threads; each brings its own [`Scratch`].

use crate::output::{NamedTensor, Output, OutputParams};
use crate::picture::{BoundImage, Scratch};
use crate::spec::Activation;
use crate::tensor::BoundTensors;
use crate::text::{BoundText, Wanted};
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
    Text(BoundText),
    Tensors(BoundTensors),
}

impl Adapter {
    /// Binds a spec that needs no file; `inputs` and `outputs` are the model's tensors of one item, in the model's order.
    pub fn new(
        spec: &AdapterSpec,
        task: &Task,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<Self, SpecError> {
        Self::prepared(spec, task, spec.preparation(task, None)?, inputs, outputs)
    }

    /// The same with the preparation that was made of the spec.
    pub fn prepared(
        spec: &AdapterSpec,
        task: &Task,
        preparation: Preparation,
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
        let tensors = (inputs, outputs);
        let bound = match (spec, &preparation) {
            (AdapterSpec::ImageClassification(image), _) => {
                Bound::Image(BoundImage::new(image, task, inputs, outputs)?)
            }
            (AdapterSpec::TextClassification(labels), Preparation::Text { tokenizer }) => {
                Bound::Text(BoundText::labels(labels, task, tokenizer, tensors)?)
            }
            (AdapterSpec::FeatureExtraction(embedding), Preparation::Text { tokenizer }) => {
                Bound::Text(BoundText::vector(embedding, tokenizer, tensors)?)
            }
            (AdapterSpec::TextClassification(_) | AdapterSpec::FeatureExtraction(_), _) => {
                return Err(SpecError::Tokenizer { why: "it is missing".to_owned() });
            }
            (AdapterSpec::Tensor(names), _) => {
                Bound::Tensors(BoundTensors::new(names, task, inputs, outputs)?)
            }
        };
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        Ok(Self { preparation, inputs, outputs, bound })
    }

    /// How inputs have to be decoded for it.
    pub fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    /// What kind of task it is for.
    pub fn kind(&self) -> TaskKind {
        match &self.bound {
            Bound::Image(_) => TaskKind::ImageClassification,
            Bound::Text(text) => match text.wanted {
                Wanted::Labels { .. } => TaskKind::TextClassification,
                Wanted::Vector { .. } => TaskKind::FeatureExtraction,
            },
            Bound::Tensors(_) => TaskKind::Tensor,
        }
    }

    /// How long a batch with this item has to be at least, where batches may be shorter than the longest that the model
    /// takes.
    pub fn length(&self, decoded: &Decoded) -> Option<u32> {
        match (&self.bound, decoded) {
            (Bound::Text(text), Decoded::Tokens(tokens)) => Some(text.length(tokens)),
            (Bound::Text(_) | Bound::Image(_) | Bound::Tensors(_), _) => None,
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
            (Bound::Text(text), Decoded::Tokens(tokens)) => text.prepare(tokens, input, row),
            (Bound::Text(text), _) if input >= text.inputs() => {
                Err(PrepareError::NoInput { index: input, inputs: text.inputs() })
            }
            (Bound::Text(_), _) => Err(PrepareError::Preparation { found: decoded.name(), needs: "a text" }),
            (Bound::Image(image), _) => Err(PrepareError::Preparation {
                found: decoded.name(),
                needs: image.spec.channels.colour().name(),
            }),
            (Bound::Tensors(_), _) => {
                Err(PrepareError::Preparation { found: decoded.name(), needs: "tensors" })
            }
        }
    }

    /// Makes an answer of one item's rows, one per output of the model in the model's order. Of a text, the vectors of its
    /// tokens cannot be told from what fills a row without the text itself.
    pub fn finish(
        &self,
        decoded: Option<&Decoded>,
        rows: &[&[u8]],
        params: OutputParams,
    ) -> Result<Output, OutputError> {
        params.check()?;
        self.check_rows(rows)?;
        match &self.bound {
            Bound::Image(image) => {
                let usual = (image.spec.activation, image.spec.top_k);
                self.labels(image.output, rows, usual, params)
            }
            Bound::Text(text) => match text.wanted {
                Wanted::Labels { activation, top_k } => {
                    self.labels(text.output, rows, (activation, top_k), params)
                }
                Wanted::Vector { .. } => {
                    let tokens = match decoded {
                        Some(Decoded::Tokens(tokens)) => Some(tokens),
                        Some(Decoded::Picture(_) | Decoded::Tensors(_)) | None => None,
                    };
                    let (spec, row) = (&self.outputs[text.output], rows[text.output]);
                    text.pooled(spec, row, tokens, params.normalize).map(Output::Vector)
                }
            },
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

    fn labels(
        &self,
        output: usize,
        rows: &[&[u8]],
        (activation, top_k): (Activation, u32),
        params: OutputParams,
    ) -> Result<Output, OutputError> {
        let top_k = usize::try_from(params.top_k.unwrap_or(top_k)).unwrap_or(usize::MAX);
        let activation = params.function_to_apply.unwrap_or(activation);
        scores::best(&self.outputs[output], rows[output], activation, top_k).map(Output::Labels)
    }

    /// Position of the class that one item's rows name, for measuring accuracy. For `tensor` tasks: the largest
    /// element of the only output.
    pub fn class(&self, rows: &[&[u8]]) -> Result<usize, OutputError> {
        self.check_rows(rows)?;
        let index = match &self.bound {
            Bound::Image(image) => image.output,
            Bound::Text(text) => match text.wanted {
                Wanted::Labels { .. } => text.output,
                Wanted::Vector { .. } => return Err(OutputError::NoClasses),
            },
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
        // A row of tokens' vectors is as long as its batch was; what it lacks is noticed when it is read.
        let read_later = |index| match &self.bound {
            Bound::Text(text) => index != text.output || matches!(text.wanted, Wanted::Vector { .. }),
            Bound::Image(_) | Bound::Tensors(_) => false,
        };
        for (index, (row, spec)) in rows.iter().zip(&self.outputs).enumerate() {
            if read_later(index) {
                continue;
            }
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
