//! How surely pairs say something, by bets that no chance could win for long.
//!
//! Whoever bets a part of what he has on each pair, at odds that are fair if the version is as good as it is said to be, gains nothing on
//! average. That he ever has `n` times what he began with happens by chance in one of `n` trials at most, whenever one looks (Ville's
//! inequality). So looking every second needs no correction. How large a part is best depends on how much worse the version is; what he has is
//! therefore parted among several bettors. The order of pairs does not matter to what they have, only how many there were.

use super::Pairs;

/// Parts that are bet.
const PARTS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.95];
/// A version as good as the other is called worse in one of 100 trials at most. It is looked at in four ways, so each may err in one of 400.
const WORSE: f64 = 400.0;
/// A version that is worse by a margin is called good in one of 100 trials at most: all ways must say so.
const GOOD: f64 = 100.0;

/// Whether it does worse more often than the other: against that of pairs that differ either is the worse one as often.
pub(super) fn is_worse(pairs: Pairs) -> bool {
    won(pairs, |part| (1.0 + part, 1.0, 1.0 - part)) >= libm::log(WORSE)
}

/// Whether the other is at least as often the worse one: against that it is this one in half of the pairs or more.
pub(super) fn is_not_more_often(pairs: Pairs) -> bool {
    won(pairs, |part| (1.0 - part, 1.0, 1.0 + part)) >= libm::log(GOOD)
}

/// Whether it does worse in fewer than so many more of a hundred pairs than the other: against that it does in so many or more.
pub(super) fn is_no_worse(pairs: Pairs, more_percent: u32) -> bool {
    let margin = f64::from(more_percent) / 100.0;
    let odds = |part: f64| (1.0 - part * (1.0 - margin), 1.0 + part * margin, 1.0 + part * (1.0 + margin));
    won(pairs, odds) >= libm::log(GOOD)
}

/// The logarithm of what bettors have together, of one to begin with, where each is given these factors for a pair in which the version
/// did worse, the same, and better.
fn won(pairs: Pairs, odds: impl Fn(f64) -> (f64, f64, f64)) -> f64 {
    let [worse, even, better] = [pairs.worse, pairs.even, pairs.better].map(count);
    let each = PARTS.map(|part| {
        let (lost, same, won) = odds(part);
        worse * libm::log(lost) + even * libm::log(same) + better * libm::log(won)
    });
    let most = each.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: f64 = each.iter().map(|one| libm::exp(one - most)).sum();
    most + libm::log(shares / count(PARTS.len() as u64))
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 pairs one more makes no difference")]
fn count(pairs: u64) -> f64 {
    pairs as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(worse: u64, even: u64, better: u64) -> Pairs {
        Pairs { worse, even, better }
    }

    /// What bettors have after one more pair is on average no more than before, wherever what they bet against holds.
    #[test]
    fn bets_are_fair() {
        let after = |odds: &dyn Fn(f64) -> (f64, f64, f64), seen: Pairs, chances: [f64; 3]| {
            let before = won(seen, odds);
            let then = [
                pairs(seen.worse + 1, seen.even, seen.better),
                pairs(seen.worse, seen.even + 1, seen.better),
                pairs(seen.worse, seen.even, seen.better + 1),
            ];
            let mean: f64 =
                then.iter().zip(chances).map(|(pairs, chance)| chance * libm::exp(won(*pairs, odds))).sum();
            mean / libm::exp(before)
        };
        let worse = |part: f64| (1.0 + part, 1.0, 1.0 - part);
        let good = |part: f64| (1.0 - part * 0.95, 1.0 + part * 0.05, 1.0 + part * 1.05);
        for seen in [pairs(0, 0, 0), pairs(3, 10, 1), pairs(1, 100, 7)] {
            for even in [0.0, 0.5, 0.99] {
                let half = (1.0 - even) / 2.0;
                assert!((after(&worse, seen, [half, even, half]) - 1.0).abs() < 1e-9, "{seen:?}");
            }
            for rest in [0.0, 0.1, 0.4] {
                // Exactly five more of a hundred.
                assert!(
                    (after(&good, seen, [0.05 + rest, 0.95 - 2.0 * rest, rest]) - 1.0).abs() < 1e-9,
                    "{seen:?}"
                );
            }
        }
    }

    #[test]
    fn a_dozen_pairs_of_one_kind_say_enough_and_mixed_ones_do_not() {
        assert!(!is_worse(pairs(9, 0, 0)) && is_worse(pairs(12, 10_000, 0)));
        assert!(!is_worse(pairs(60, 0, 50)) && !is_worse(pairs(0, 0, 1_000)));
        assert!(is_worse(pairs(600, 0, 400)));
        assert!(!is_no_worse(pairs(0, 80, 0), 5) && is_no_worse(pairs(0, 200, 0), 5));
        assert!(!is_no_worse(pairs(10, 190, 0), 5));
        assert!(!is_not_more_often(pairs(5, 0, 5)) && is_not_more_often(pairs(10, 0, 60)));
    }
}
