//! A JSON array, known to be well formed, into the bytes of a tensor.
//!
//! Read by hand rather than by `serde_json` for three reasons: a decimal is rounded to the nearest value of its type
//! (`serde_json` may miss it by one, and a single by way of a double is rounded twice); whole numbers and decimals are told apart as written; and nesting
//! is a counter, not recursion.

use super::{decimal, texts};
use crate::TensorFault;
use half::f16;
use modelless_types::{DType, TensorSpec};

/// No task has more axes.
pub(super) const MAX_DEPTH: usize = 16;

/// Appends the elements of `json` to `data`; strings no further than `limit`, which nothing else can exceed by much. On
/// an error `data` holds some of them.
pub(super) fn read(
    json: &str,
    spec: &TensorSpec,
    data: &mut Vec<u8>,
    limit: usize,
) -> Result<(), TensorFault> {
    match spec.dtype {
        DType::Bool => walk(json, spec, data, |text| {
            token(text, |t| match t {
                "true" | "1" => Some([1]),
                "false" | "0" => Some([0]),
                _ => None,
            })
        }),
        DType::Uint8 => walk(json, spec, data, |text| token(text, |t| t.parse().ok().map(u8::to_le_bytes))),
        DType::Int8 => walk(json, spec, data, |text| token(text, |t| t.parse().ok().map(i8::to_le_bytes))),
        DType::Int32 => walk(json, spec, data, |text| token(text, |t| t.parse().ok().map(i32::to_le_bytes))),
        DType::Int64 => walk(json, spec, data, |text| token(text, |t| t.parse().ok().map(i64::to_le_bytes))),
        DType::Fp16 => walk(json, spec, data, |text| {
            let (value, length) =
                decimal::double(text.as_bytes()).or_else(|| token(text, |t| t.parse().ok()))?;
            Some((f16::from_f64(value), length))
                .filter(|(v, _)| v.is_finite())
                .map(|(v, n)| (v.to_le_bytes(), n))
        }),
        DType::Fp32 => walk(json, spec, data, |text| {
            let (value, length) =
                decimal::single(text.as_bytes()).or_else(|| token(text, |t| t.parse().ok()))?;
            value.is_finite().then_some((value.to_le_bytes(), length))
        }),
        DType::Fp64 => walk(json, spec, data, |text| {
            let (value, length) =
                decimal::double(text.as_bytes()).or_else(|| token(text, |t| t.parse().ok()))?;
            value.is_finite().then_some((value.to_le_bytes(), length))
        }),
        DType::Bytes => texts::read(json, spec, data, limit),
    }
}

fn walk<const N: usize>(
    json: &str,
    spec: &TensorSpec,
    data: &mut Vec<u8>,
    element: impl Fn(&str) -> Option<([u8; N], usize)>,
) -> Result<(), TensorFault> {
    let expected = spec.elements().unwrap_or(usize::MAX);
    // What is not there cannot be reserved: an element has at least two characters, with its comma.
    data.reserve(expected.min(json.len() / 2 + 1).saturating_mul(N));
    let limit = (spec.shape.len() + 1).clamp(2, MAX_DEPTH);
    let text = json.as_bytes();
    let mut lengths: [Option<u64>; MAX_DEPTH] = [None; MAX_DEPTH]; // of a finished list, by level
    let mut counts = [0_u64; MAX_DEPTH]; // in the open list, by level
    let mut level = 0; // how many lists are open
    let mut leaves: Option<usize> = None; // on which level elements stand
    let mut got = 0; // elements so far
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b',' => at += 1,
            b'[' => {
                if level == limit {
                    return Err(TensorFault::TooDeep { limit });
                }
                if leaves.is_some_and(|leaves| level >= leaves) {
                    return Err(TensorFault::Ragged { index: got });
                }
                if let Some(outer) = level.checked_sub(1) {
                    counts[outer] += 1;
                }
                counts[level] = 0;
                level += 1;
                at += 1;
            }
            b']' => {
                level -= 1;
                if *lengths[level].get_or_insert(counts[level]) != counts[level] {
                    return Err(TensorFault::Ragged { index: got });
                }
                at += 1;
            }
            _ => {
                let before = got;
                // Elements stand beside each other, so the rest of the list is read without looking back.
                loop {
                    let rest = &json[at..];
                    let Some((bytes, length)) = element(rest) else {
                        let found = describe(rest);
                        return Err(TensorFault::Element { index: got, found, dtype: spec.dtype });
                    };
                    if got < expected {
                        data.extend_from_slice(&bytes);
                    }
                    got += 1;
                    at += length;
                    let (Some(b','), Some(next)) = (text.get(at), text.get(at + 1)) else { break };
                    at += 1 + usize::from(*next == b' ');
                    if !matches!(text.get(at), Some(b'0'..=b'9' | b'-')) {
                        break;
                    }
                }
                if *leaves.get_or_insert(level) != level {
                    return Err(TensorFault::Ragged { index: before });
                }
                if let Some(outer) = level.checked_sub(1) {
                    counts[outer] += (got - before) as u64;
                }
            }
        }
    }
    let axes = leaves.unwrap_or_else(|| lengths.iter().take_while(|length| length.is_some()).count());
    let shape: Vec<u64> = lengths[..axes].iter().map(|length| length.unwrap_or(0)).collect();
    if shape.iter().product::<u64>() != got as u64 {
        return Err(TensorFault::Ragged { index: got });
    }
    if got != expected {
        return Err(TensorFault::Count { got, expected, shape: spec.shape.clone() });
    }
    let flat = matches!(shape[..], [_] | [1, _]);
    if !flat && !same_shape(&shape, &spec.shape) {
        return Err(TensorFault::Shape { got: shape, expected: spec.shape.clone() });
    }
    Ok(())
}

/// Equal, with or without a leading 1 for the batch.
pub(super) fn same_shape(got: &[u64], expected: &[u32]) -> bool {
    let equal = |got: &[u64]| {
        got.len() == expected.len() && got.iter().zip(expected).all(|(g, e)| *g == u64::from(*e))
    };
    equal(got) || got.split_first().is_some_and(|(batch, rest)| *batch == 1 && equal(rest))
}

/// The element that `text` begins with, and its length.
fn token<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<(T, usize)> {
    let end = text.find([',', ']', ' ', '\n', '\r', '\t']).unwrap_or(text.len());
    Some((read(&text[..end])?, end))
}

fn describe(text: &str) -> String {
    match text.as_bytes().first() {
        Some(b'"') => "a string".to_owned(),
        Some(b'{') => "an object".to_owned(),
        _ => token(text, |t| Some(format!("`{}`", short(t.as_bytes()))))
            .map_or(String::new(), |(found, _)| found),
    }
}

/// What a client sent, cut to a length that is fit for an error.
pub(super) fn short(text: &[u8]) -> String {
    let (head, more) = if text.len() > 40 { (&text[..40], "...") } else { (text, "") };
    format!("{}{more}", String::from_utf8_lossy(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(json: &str, shape: &[u32]) -> Result<Vec<f32>, TensorFault> {
        let spec = TensorSpec { name: "x".to_owned(), dtype: DType::Fp32, shape: shape.to_vec() };
        let mut data = Vec::new();
        read(json, &spec, &mut data, usize::MAX)?;
        Ok(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    #[test]
    fn nesting_may_be_flat_exact_or_with_a_batch_of_one() {
        for json in [
            "[[1,2],[3,4]]",
            " [ [ [ 1 , 2 ] , [ 3 , 4 ] ] ] ",
            "[1,2,3,4]",
            "[[1,2,3,4]]",
            "[1.0,2e0,30e-1,4]",
        ] {
            assert_eq!(floats(json, &[2, 2]), Ok(vec![1.0, 2.0, 3.0, 4.0]), "{json}");
        }
        assert_eq!(floats("2.5", &[]), Ok(vec![2.5]));
        assert_eq!(floats("[2.5]", &[]), Ok(vec![2.5]));
    }

    #[test]
    fn ragged_and_misshapen_lists_are_told_apart() {
        for json in
            ["[[1,2],[3]]", "[[1,2],3,4]", "[1,[2,3],4]", "[[],[1,2,3,4]]", "[[1,2,3,4],[]]", "[[],1,2,3,4]"]
        {
            assert!(matches!(floats(json, &[2, 2]), Err(TensorFault::Ragged { .. })), "{json}");
        }
        assert_eq!(
            floats("[[1],[2],[3],[4]]", &[2, 2]),
            Err(TensorFault::Shape { got: vec![4, 1], expected: vec![2, 2] })
        );
        assert_eq!(
            floats("[[1,2],[3,4],[5,6]]", &[2, 2]),
            Err(TensorFault::Count { got: 6, expected: 4, shape: vec![2, 2] })
        );
        assert_eq!(floats("[]", &[2, 2]), Err(TensorFault::Count { got: 0, expected: 4, shape: vec![2, 2] }));
        assert_eq!(floats(&"[".repeat(9), &[2, 2]), Err(TensorFault::TooDeep { limit: 3 }));
    }

    #[test]
    fn decimals_are_rounded_once() {
        // Just above the middle between 1 and the next float, by less than a double can tell.
        let text = "[1.00000005960464477540000001]";
        assert_eq!(floats(text, &[1]), Ok(vec![1.000_000_1]));
    }
}
