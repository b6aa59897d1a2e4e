//! Percentiles, defined once so that every figure means the same.

/// The nearest-rank percentile: the smallest value that at least `percent` per cent of all values do not exceed.
/// `percentile(values, 50)` is the median, and every answer is a value that was really seen.
pub fn percentile<T: Copy + PartialOrd>(values: &[T], percent: usize) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

pub fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    percentile(values, 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_percentile_is_a_value_that_was_seen() {
        let values = [40, 10, 30, 20];
        assert_eq!(median(&values), Some(20));
        assert_eq!(percentile(&values, 75), Some(30));
        assert_eq!(percentile(&values, 99), Some(40));
        assert_eq!(percentile(&values, 0), Some(10));
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(median::<u32>(&[]), None);
    }
}
