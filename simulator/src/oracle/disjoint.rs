//! Of stretches of time that overlap, those that do not and tell the most.

/// From when until when, and what it tells.
pub(super) type Stretch = (u64, u64, f64);

/// The most that stretches tell together of which no two overlap.
pub(super) fn most(mut stretches: Vec<Stretch>) -> f64 {
    stretches.sort_by_key(|(_, to, _)| *to);
    // What the first so many tell at best.
    let mut best = vec![0.0_f64];
    for (at, (from, _, tells)) in stretches.iter().enumerate() {
        let before = stretches[..at].partition_point(|(_, to, _)| to <= from);
        best.push(best[at].max(best[before] + tells));
    }
    best.last().copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_do_not_overlap_count_together() {
        for (expected, stretches) in [
            (0.0, &[][..]),
            (2.0, &[(0, 10, 1.0), (5, 15, 1.5), (10, 20, 1.0)]),
            (2.5, &[(10, 20, 1.0), (5, 15, 2.5), (0, 10, 1.0)]),
            (4.0, &[(0, 100, 3.0), (0, 10, 1.0), (20, 30, 1.0), (40, 50, 2.0)]),
        ] {
            assert!((most(stretches.to_vec()) - expected).abs() < 1e-12, "{stretches:?}");
        }
    }
}
