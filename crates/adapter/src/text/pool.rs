//! One vector out of the vectors of a text's tokens.

use super::spec::Pooling;
use crate::{OutputError, scores};
use modelless_types::TensorSpec;

/// `row` has as many vectors as the batch was long; only the first `count` are this text's.
pub(crate) fn pool(
    spec: &TensorSpec,
    row: &[u8],
    (pooling, dimension, count): (Pooling, usize, usize),
    normalise: bool,
) -> Result<Vec<f32>, OutputError> {
    let (mut sums, mut at, mut bad) = (vec![0.0_f64; dimension], 0, None);
    let used = match pooling {
        Pooling::Cls | Pooling::None => 1,
        Pooling::Mean | Pooling::Max => count.max(1),
    };
    if pooling == Pooling::Max {
        sums.fill(f64::NEG_INFINITY);
    }
    let size = spec.dtype.size().unwrap_or(1);
    let row = row.get(..used * dimension * size).ok_or_else(|| OutputError::RowLength {
        output: spec.name.clone(),
        got: row.len(),
        expected: used * dimension * size,
    })?;
    scores::for_each(spec.dtype, row, |value| {
        if !value.is_finite() {
            bad.get_or_insert(at);
        }
        let sum = &mut sums[at % dimension];
        *sum = if pooling == Pooling::Max { sum.max(value) } else { *sum + value };
        at += 1;
    });
    if let Some(index) = bad {
        return Err(OutputError::NotFinite { output: spec.name.clone(), index });
    }
    #[expect(clippy::cast_precision_loss, reason = "a few thousand tokens at most")]
    let mut factor = if pooling == Pooling::Mean { 1.0 / used as f64 } else { 1.0 };
    if normalise {
        let length = sums.iter().map(|value| (value * factor).powi(2)).sum::<f64>().sqrt();
        // Nothing has no direction; it stays nothing.
        if length > 0.0 {
            factor /= length;
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "vectors are told in single precision")]
    let vector = sums.into_iter().map(|value| (value * factor) as f32).collect();
    Ok(vector)
}
