//! A set of variants of one task, by their ordinals there.

use core::fmt;
use serde::{Deserialize, Serialize};

/// At most this many variants can be registered for one task in its life; registration refuses more.
pub const MAX_VARIANTS: usize = 256;

/// Variants of one task. Ordinals are handed out by the store once and stay with their variant, so a set means
/// the same to a gateway and to an executor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct VariantSet([u64; 4]);

impl VariantSet {
    /// No variant.
    pub const EMPTY: Self = Self([0; 4]);

    /// Adds a variant by its ordinal.
    pub fn insert(&mut self, ordinal: u8) {
        self.0[usize::from(ordinal >> 6)] |= 1 << (ordinal & 63);
    }

    /// Takes a variant out.
    pub fn remove(&mut self, ordinal: u8) {
        self.0[usize::from(ordinal >> 6)] &= !(1 << (ordinal & 63));
    }

    /// Whether the variant is in it.
    pub fn contains(&self, ordinal: u8) -> bool {
        self.0[usize::from(ordinal >> 6)] >> (ordinal & 63) & 1 == 1
    }

    /// Whether none is in it.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// How many are in it.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// As it crosses machines: bit `i` of word `j` is the variant `64 j + i`.
    pub const fn words(self) -> [u64; 4] {
        self.0
    }

    /// From those words.
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// Those in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Whether every variant of this one is in `other` as well.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.intersection(other) == *self
    }

    /// Ordinals in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|ordinal| self.contains(*ordinal))
    }
}

impl FromIterator<u8> for VariantSet {
    fn from_iter<I: IntoIterator<Item = u8>>(ordinals: I) -> Self {
        let mut set = Self::EMPTY;
        for ordinal in ordinals {
            set.insert(ordinal);
        }
        set
    }
}

impl fmt::Debug for VariantSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_exactly_what_was_put_in() {
        let mut set: VariantSet = [0, 63, 64, 255].into_iter().collect();
        assert_eq!(set.len(), 4);
        assert!(set.contains(64) && !set.contains(65));
        set.remove(64);
        assert!(set.iter().eq([0, 63, 255]));
        assert!(set.is_subset(&[0, 1, 63, 255].into_iter().collect()));
        assert!(!set.is_subset(&[0, 63].into_iter().collect()));
    }
}
