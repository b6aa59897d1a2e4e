//! What live batches say of batch sizes: how each kind of size differs from what the variant as a whole was seen to do, and
//! how often a batch took longer than its predicted 99th percentile.
//!
//! One ratio for a variant learns quickly, since every batch counts, but a profile that is right for batches of 32 and wrong
//! for lone queries would have it follow the mixture. So sizes have factors of their own besides, relative to it: what makes
//! all of them slower moves the common ratio at once, and what is peculiar to a size moves its factor, slowly.

use serde::{Deserialize, Serialize};

/// Kinds of sizes: 1, 2, 3-4, 5-8, 9-16, 17-32, and all above.
const KINDS: usize = 7;
/// The common ratio stands for a size as if it had been seen so often.
const PRIOR: f64 = 20.0;
/// Observations after which older ones fade.
const MEMORY: f64 = 100.0;
/// A size differs from the others by no more than this.
const MOST: f64 = 4.0;
/// How much wider the deviation is taken to be after a batch that took longer than its 99th percentile, and a hundredth of it
/// narrower after one that did not: at rest where one in a hundred does.
const WIDER: f64 = 0.1;
/// And how far that goes.
const NARROWEST: f64 = 0.4;
const WIDEST: f64 = 3.0;
/// Below this nothing is left of what was seen.
const NOTHING: f64 = 0.01;

/// One kind of size.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    /// Its ratio over the variant's.
    factor: f64,
    /// Variance of what was seen around that, relative to the variant's ratio.
    spread: f64,
    /// Observations, the older ones for less. Zero: it goes by its neighbours.
    seen: f64,
}

/// How sizes differ from the variant as a whole, and how far its times are from those of a normal distribution.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sizes {
    kinds: [Kind; KINDS],
    tail: Tail,
}

impl Default for Sizes {
    fn default() -> Self {
        let kinds = [Kind { factor: 1.0, spread: 0.0, seen: 0.0 }; KINDS];
        Self { kinds, tail: Tail { wide: 1.0, above: false } }
    }
}

/// Times of batches have longer tails than a normal distribution, so mean and variance alone predict a 99th percentile that
/// several in a hundred exceed. What is taken for the deviation is widened until one does.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Tail {
    /// What the deviation is multiplied by.
    wide: f64,
    /// The last batch was above. A second one says that everything became slower, which is the ratio's to learn.
    above: bool,
}

impl Tail {
    fn observe(&mut self, above: bool) {
        let step = match (above, self.above) {
            (true, false) => WIDER,
            (true, true) => 0.0,
            (false, _) => -WIDER / 100.0,
        };
        *self = Self { wide: (self.wide + step).clamp(NARROWEST, WIDEST), above };
    }
}

/// Batches of one kind are corrected alike.
pub(crate) fn kind(batch: u32) -> usize {
    let doublings = u32::BITS - batch.saturating_sub(1).leading_zeros();
    usize::try_from(doublings).unwrap_or(KINDS).min(KINDS - 1)
}

impl Sizes {
    /// What the deviation is multiplied by, so that one batch in a hundred is above the 99th percentile.
    pub(crate) fn widening(&self) -> f64 {
        self.tail.wide
    }

    /// Whether a batch was above what had been predicted as that.
    pub(crate) fn judge(&mut self, above: bool) {
        self.tail.observe(above);
    }

    /// What the variant's ratio is multiplied by for this batch.
    pub(crate) fn factor(&self, batch: u32) -> f64 {
        self.kinds[kind(batch)].factor
    }

    /// What such batches say themselves of the variance of their ratio, where the variant's is this.
    pub(crate) fn spread(&self, batch: u32, ratio: f64) -> f64 {
        self.known(batch) * self.kinds[kind(batch)].spread * ratio * ratio
    }

    /// How much of what is known of such batches they said themselves: nothing is 0, all of it 1.
    pub(crate) fn known(&self, batch: u32) -> f64 {
        let Kind { seen, .. } = self.kinds[kind(batch)];
        seen / (seen + PRIOR)
    }

    /// Takes in what was seen of a batch relative to the variant's ratio. What sizes have in common is left to that: the factors'
    /// mean, each by how often it is seen, is always 1.
    pub(crate) fn observe(&mut self, batch: u32, relative: f64) {
        let at = kind(batch);
        for kind in &mut self.kinds {
            let seen = kind.seen * (1.0 - 1.0 / MEMORY);
            kind.seen = if seen < NOTHING { 0.0 } else { seen };
        }
        let own = &mut self.kinds[at];
        own.seen += 1.0;
        let weight = 1.0 / (own.seen + PRIOR);
        let error = relative - own.factor;
        own.factor = (own.factor + weight * error).clamp(1.0 / MOST, MOST);
        own.spread = (1.0 - weight) * (own.spread + weight * error * error);
        let (sum, seen) =
            self.kinds.iter().fold((0.0, 0.0), |(sum, seen), k| (sum + k.factor * k.seen, seen + k.seen));
        let mean = sum / seen;
        for kind in &mut self.kinds {
            kind.factor /= mean;
        }
        self.follow_neighbours();
    }

    /// Sizes that were not seen go by the nearest that were: halfway between two, like the only one otherwise.
    fn follow_neighbours(&mut self) {
        for at in 0..KINDS {
            if self.kinds[at].seen > 0.0 {
                continue;
            }
            let seen = |kind: &&Kind| kind.seen > 0.0;
            let below = self.kinds[..at].iter().rev().find(seen).map(|kind| kind.factor);
            let above = self.kinds[at + 1..].iter().find(seen).map(|kind| kind.factor);
            self.kinds[at].factor = match (below, above) {
                (Some(below), Some(above)) => f64::midpoint(below, above),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => 1.0,
            };
            self.kinds[at].spread = 0.0;
        }
    }

    /// Nothing was seen for a while. What is left is `share` of it, and nothing once all are nearly alike again.
    pub(crate) fn fade(&mut self, share: f64) {
        self.tail = Tail { wide: 1.0 + (self.tail.wide - 1.0) * share, above: false };
        let alike = |kind: &Kind| (kind.factor - 1.0).abs() * share <= NOTHING;
        if self.kinds.iter().all(alike) && (self.tail.wide - 1.0).abs() <= NOTHING {
            *self = Self::default();
            return;
        }
        for kind in &mut self.kinds {
            kind.factor = 1.0 + (kind.factor - 1.0) * share;
            kind.spread *= share;
            kind.seen *= share;
        }
    }
}

/// How many live batches took longer than what had been predicted as their 99th percentile. One in a hundred should.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Coverage {
    /// Batches that ran to their end.
    pub batches: u64,
    /// Of these, those above it.
    pub above: u64,
}

impl Coverage {
    pub(crate) fn count(&mut self, above: bool) {
        self.batches += 1;
        self.above += u64::from(above);
    }

    /// Nothing ran yet.
    pub fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// Two of them together, such as those of two nodes.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { batches: self.batches + other.batches, above: self.above + other.above }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_apart_by_doublings() {
        let kinds: std::vec::Vec<usize> =
            [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 1_024, u32::MAX].into_iter().map(kind).collect();
        assert_eq!(kinds, [0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6]);
    }

    #[test]
    fn what_only_one_size_shows_is_the_variants() {
        let mut sizes = Sizes::default();
        for _ in 0..1_000 {
            sizes.observe(1, 3.0);
        }
        assert!((0..7).all(|at| (sizes.factor(1 << at) - 1.0).abs() < 1e-9), "{sizes:?}");
    }

    #[test]
    fn the_deviation_is_widened_until_one_in_a_hundred_is_above() {
        // Above whenever it is less than 2 wide, and never otherwise; once in a while above all the same.
        let mut sizes = Sizes::default();
        let (mut above, mut last) = (0, 0.0);
        for batch in 0..20_000 {
            let is_above = sizes.widening() < 2.0 && batch % 20 == 0;
            above += u32::from(is_above && batch >= 2_000);
            sizes.judge(is_above);
            last = sizes.widening();
        }
        assert!((1.8..2.2).contains(&last) && (100..260).contains(&above), "{last} {above}");
        // Slower from one moment on is nothing to widen for.
        for _ in 0..100 {
            sizes.judge(true);
        }
        assert!(sizes.widening() < last + 0.2);
        for _ in 0..10_000 {
            sizes.judge(false);
        }
        assert!((sizes.widening() - NARROWEST).abs() < 1e-9);
    }

    #[test]
    fn a_size_that_was_never_seen_goes_by_its_neighbours() {
        let mut sizes = Sizes::default();
        for _ in 0..500 {
            sizes.observe(1, 1.5);
            sizes.observe(16, 0.5);
        }
        assert!((sizes.factor(4) - f64::midpoint(sizes.factor(1), sizes.factor(16))).abs() < 1e-9);
        assert!((sizes.factor(64) - sizes.factor(16)).abs() < 1e-9 && sizes.factor(1) > sizes.factor(16));
        for _ in 0..30 {
            sizes.fade(0.7);
        }
        assert_eq!(sizes, Sizes::default());
    }
}
