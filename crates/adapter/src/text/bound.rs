//! The adapter of a model that reads texts: bound once, then one row after the other.

use super::pool::pool;
use super::spec::{EmbeddingSpec, LabelSpec, Pooling, TokenType, TokensSpec};
use super::{BUCKET, Tokens};
use crate::matching::{classes, find, names, words};
use crate::spec::Activation;
use crate::{OutputError, PrepareError, SpecError, Tokenizer};
use modelless_types::{DType, Task, TensorSpec};

#[derive(Clone, Debug)]
pub(crate) struct BoundText {
    tokens: TokensSpec,
    /// What each input of the model is for, in the model's order.
    roles: Vec<Role>,
    /// Position of the used output among the model's.
    pub(crate) output: usize,
    pub(crate) wanted: Wanted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Ids,
    Mask,
    Types,
}

/// What is made of the output.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Labels { activation: Activation, top_k: u32 },
    Vector { pooling: Pooling, normalise: bool, dimension: usize },
}

impl BoundText {
    pub(crate) fn labels(
        spec: &LabelSpec,
        task: &Task,
        tokenizer: &Tokenizer,
        (inputs, outputs): (&[TensorSpec], &[TensorSpec]),
    ) -> Result<Self, SpecError> {
        let output = find("output", spec.output.as_deref(), outputs)?;
        classes(task, &outputs[output])?;
        let wanted = Wanted::Labels { activation: spec.activation, top_k: spec.top_k };
        Self::new(&spec.tokens, tokenizer, inputs, output, wanted)
    }

    pub(crate) fn vector(
        spec: &EmbeddingSpec,
        tokenizer: &Tokenizer,
        (inputs, outputs): (&[TensorSpec], &[TensorSpec]),
    ) -> Result<Self, SpecError> {
        let index = find("output", spec.output.as_deref(), outputs)?;
        let output = &outputs[index];
        let (each, one) = (vec![spec.tokens.max, spec.dimension], vec![spec.dimension]);
        let (shape, what) = match spec.pooling {
            Pooling::None => (one, "one vector for each text, as `pooling` is `none`"),
            Pooling::Mean | Pooling::Cls | Pooling::Max => {
                (each, "one vector for each token; if the model has pooled already, say `pooling = \"none\"`")
            }
        };
        let numeric = matches!(output.dtype, DType::Fp16 | DType::Fp32 | DType::Fp64);
        if !numeric || output.shape != shape {
            return Err(SpecError::Tensor {
                side: "output",
                name: output.name.clone(),
                found: words(output),
                expected: format!("floats {shape:?}: {what}"),
            });
        }
        let dimension = usize::try_from(spec.dimension).unwrap_or(usize::MAX);
        let wanted = Wanted::Vector { pooling: spec.pooling, normalise: spec.normalise, dimension };
        Self::new(&spec.tokens, tokenizer, inputs, index, wanted)
    }

    fn new(
        tokens: &TokensSpec,
        tokenizer: &Tokenizer,
        inputs: &[TensorSpec],
        output: usize,
        wanted: Wanted,
    ) -> Result<Self, SpecError> {
        if tokenizer.special() >= usize::try_from(tokens.max).unwrap_or(usize::MAX) {
            return Err(SpecError::Setting {
                setting: "tokens.max",
                found: tokens.max.to_string(),
                expected: format!(
                    "more than the {} tokens that stand around every text",
                    tokenizer.special()
                ),
            });
        }
        let expected = tokens.tensors();
        let role = |input: &TensorSpec| {
            let at = expected.iter().position(|wanted| wanted.name == input.name);
            let wanted = at.and_then(|at| expected.get(at)).ok_or_else(|| SpecError::NoTensor {
                wanted: format!(
                    "the model's input `{}` is none of `ids`, `mask` and `types` in the adapter's `tokens`",
                    input.name
                ),
                present: names(inputs),
            })?;
            if wanted.dtype != input.dtype || wanted.shape != input.shape {
                return Err(SpecError::Tensor {
                    side: "input",
                    name: input.name.clone(),
                    found: words(input),
                    expected: format!("{}, as the adapter says", words(wanted)),
                });
            }
            Ok([Role::Ids, Role::Mask, Role::Types][at.unwrap_or(0)])
        };
        let roles = inputs.iter().map(role).collect::<Result<Vec<_>, _>>()?;
        for wanted in &expected {
            find("input", Some(&wanted.name), inputs)?;
        }
        Ok(Self { tokens: tokens.clone(), roles, output, wanted })
    }

    pub(crate) fn inputs(&self) -> usize {
        self.roles.len()
    }

    /// How many of a text's tokens the model gets.
    pub(crate) fn count(&self, tokens: &Tokens) -> usize {
        tokens.count().min(self.most())
    }

    /// How long a batch with this text has to be at least, rounded up so that there are not too many lengths.
    pub(crate) fn length(&self, tokens: &Tokens) -> u32 {
        let count = u32::try_from(self.count(tokens)).unwrap_or(u32::MAX);
        count.next_multiple_of(BUCKET).min(self.tokens.max)
    }

    fn most(&self) -> usize {
        usize::try_from(self.tokens.max).unwrap_or(usize::MAX)
    }

    pub(crate) fn prepare(&self, tokens: &Tokens, input: usize, row: &mut [u8]) -> Result<(), PrepareError> {
        let no_input = PrepareError::NoInput { index: input, inputs: self.roles.len() };
        let role = *self.roles.get(input).ok_or(no_input)?;
        let (count, all) = (self.count(tokens), tokens.count());
        if all > count && !self.tokens.truncate {
            return Err(PrepareError::TooManyTokens { got: all, most: self.most() });
        }
        let wanted = tokens.cut(count).map(|id| match role {
            Role::Ids => id,
            Role::Mask => 1,
            Role::Types => 0,
        });
        let fill = if role == Role::Ids { self.tokens.pad } else { 0 };
        let mut wanted = wanted.chain(std::iter::repeat(fill));
        let mut next = || wanted.next().unwrap_or(fill);
        let written = match self.tokens.dtype {
            TokenType::Int64 => write(row, count, self.most(), || i64::from(next()).to_le_bytes()),
            TokenType::Int32 => {
                // Numbers of tokens are positions in a vocabulary, far below 2^31.
                write(row, count, self.most(), || next().to_le_bytes())
            }
        };
        written.ok_or(PrepareError::RowLength {
            got: row.len(),
            expected: count * self.tokens.dtype.dtype().size().unwrap_or(1),
        })
    }

    /// The vector of a text, out of its row.
    pub(crate) fn pooled(
        &self,
        spec: &TensorSpec,
        row: &[u8],
        tokens: Option<&Tokens>,
        normalise: Option<bool>,
    ) -> Result<Vec<f32>, OutputError> {
        let Wanted::Vector { pooling, normalise: usual, dimension } = self.wanted else {
            return Err(OutputError::NoVector);
        };
        let count = match (pooling, tokens) {
            (Pooling::None | Pooling::Cls, _) => 1,
            (Pooling::Mean | Pooling::Max, Some(tokens)) => self.count(tokens),
            (Pooling::Mean | Pooling::Max, None) => return Err(OutputError::NoVector),
        };
        pool(spec, row, (pooling, dimension, count), normalise.unwrap_or(usual))
    }
}

/// Writes the whole row, which has room for at least `least` numbers and for at most `most`.
fn write<const N: usize>(
    row: &mut [u8],
    least: usize,
    most: usize,
    mut next: impl FnMut() -> [u8; N],
) -> Option<()> {
    let (cells, rest) = row.as_chunks_mut::<N>();
    if !rest.is_empty() || cells.len() < least || cells.len() > most {
        return None;
    }
    for cell in cells {
        *cell = next();
    }
    Some(())
}
