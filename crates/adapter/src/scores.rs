//! Numbers out of a model's output rows, and scores out of numbers.

use crate::OutputError;
use crate::output::Scored;
use crate::spec::Activation;
use half::f16;
use modelless_types::{DType, TensorSpec};

/// Calls `each` with every element of a row as a double; `false` where the type has no numbers or the row's length
/// is no multiple of an element's.
#[expect(
    clippy::cast_precision_loss,
    reason = "class scores as 64-bit integers beyond 2^53 are not told apart"
)]
pub(crate) fn for_each(dtype: DType, row: &[u8], each: impl FnMut(f64)) -> bool {
    fn go<const N: usize>(row: &[u8], value: impl Fn([u8; N]) -> f64, mut each: impl FnMut(f64)) -> bool {
        let (cells, rest) = row.as_chunks::<N>();
        for cell in cells {
            each(value(*cell));
        }
        rest.is_empty()
    }
    match dtype {
        DType::Bool | DType::Uint8 => go(row, |b| f64::from(u8::from_le_bytes(b)), each),
        DType::Int8 => go(row, |b| f64::from(i8::from_le_bytes(b)), each),
        DType::Int32 => go(row, |b| f64::from(i32::from_le_bytes(b)), each),
        DType::Int64 => go(row, |b| i64::from_le_bytes(b) as f64, each),
        DType::Fp16 => go(row, |b| f16::from_le_bytes(b).to_f64(), each),
        DType::Fp32 => go(row, |b| f64::from(f32::from_le_bytes(b)), each),
        DType::Fp64 => go(row, f64::from_le_bytes, each),
        DType::Bytes => false,
    }
}

/// Position of the largest element of one item's row; the first of equals. A row with something that is no finite
/// number has none, and is an error.
pub fn argmax(spec: &TensorSpec, row: &[u8]) -> Result<usize, OutputError> {
    let mut best: Option<(usize, f64)> = None;
    let mut odd = None;
    let mut index = 0;
    let whole = for_each(spec.dtype, row, |value| {
        if !value.is_finite() {
            odd.get_or_insert(index);
        }
        if best.is_none_or(|(_, most)| value > most) {
            best = Some((index, value));
        }
        index += 1;
    });
    match (odd, best) {
        (Some(index), _) => Err(OutputError::NotFinite { output: spec.name.clone(), index }),
        (None, Some((best, _))) if whole && Some(row.len()) == spec.item_bytes() => Ok(best),
        (None, _) => Err(OutputError::RowLength {
            output: spec.name.clone(),
            got: row.len(),
            expected: spec.item_bytes().unwrap_or(0),
        }),
    }
}

/// The `top_k` best labels, best first; of equal scores the larger output first, of equal outputs the first.
pub(crate) fn best(
    spec: &TensorSpec,
    row: &[u8],
    activation: Activation,
    top_k: usize,
) -> Result<Vec<Scored>, OutputError> {
    let most = argmax(spec, row)?;
    let mut raw = Vec::with_capacity(spec.elements().unwrap_or(0));
    for_each(spec.dtype, row, |value| raw.push(value));
    let most = raw[most];
    let sum: f64 = match activation {
        Activation::Softmax => raw.iter().map(|value| (value - most).exp()).sum(),
        Activation::Sigmoid | Activation::None => 1.0,
    };
    let score = |value: f64| match activation {
        Activation::Softmax => (value - most).exp() / sum,
        Activation::Sigmoid => 1.0 / (1.0 + (-value).exp()),
        Activation::None => value,
    };
    // Every activation rises with the output, so the order of outputs is the order of scores.
    let by_output = |a: &usize, b: &usize| raw[*b].total_cmp(&raw[*a]).then(a.cmp(b));
    let mut order: Vec<usize> = (0..raw.len()).collect();
    if top_k < order.len() {
        order.select_nth_unstable_by(top_k, by_output);
        order.truncate(top_k);
    }
    order.sort_unstable_by(by_output);
    order
        .into_iter()
        .map(|index| {
            #[expect(clippy::cast_possible_truncation, reason = "scores are told in single precision")]
            let score = score(raw[index]) as f32;
            let label = u32::try_from(index).ok().filter(|_| score.is_finite());
            label
                .map(|label| Scored { label, score })
                .ok_or_else(|| OutputError::NotFinite { output: spec.name.clone(), index })
        })
        .collect()
}
