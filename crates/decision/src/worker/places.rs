//! Where each query is kept, found by its key. The order of what is hashed says nothing and must reach no decision, so nothing here goes through it.

use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;
use modelless_types::QueryKey;

/// By key, one place each.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(HashMap<QueryKey, usize, BuildHasherDefault<KeyHasher>>);

impl Places {
    pub(super) fn insert(&mut self, key: QueryKey, place: usize) {
        self.0.insert(key, place);
    }

    pub(super) fn get(&self, key: QueryKey) -> Option<usize> {
        self.0.get(&key).copied()
    }

    pub(super) fn remove(&mut self, key: QueryKey) -> Option<usize> {
        self.0.remove(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Keys are numbers that this process gave to a connection, and below them those that a gateway of the same cluster gave to its queries. A gateway that chose
/// such as meet in one place would have looking for them take longer, as many as wait of them, and change no decision.
#[derive(Clone, Copy, Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio's digits spread what follows each other over all bits, of which the upper are looked at too.
        let spread = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use core::hash::BuildHasher;

    #[test]
    fn keys_that_follow_each_other_are_spread_over_all_bits_that_are_looked_at() {
        // Of one connection, of several, and multiples of a large power of two.
        let rows: [fn(u64) -> u64; 3] = [|n| n, |n| ((n % 8) << 40) | (n / 8), |n| n << 20];
        for (at, row) in rows.iter().enumerate() {
            let hash = |n: u64| BuildHasherDefault::<KeyHasher>::default().hash_one(QueryKey(row(n)));
            let low: BTreeSet<u64> = (0..4_096).map(|n| hash(n) & 8_191).collect();
            let high: BTreeSet<u64> = (0..4_096).map(|n| hash(n) >> 57).collect();
            assert!(low.len() > 2_000 && high.len() > 100, "row {at}: {} and {}", low.len(), high.len());
        }
    }
}
