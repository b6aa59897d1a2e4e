//! Entries in a gateway's own memory: bounded in bytes, the ones that nobody asks for go first.
//!
//! Parts by the first byte of a key, each behind a lock of its own that is held for a look-up. Which entry goes is decided by a
//! hand that goes round: one that was asked for since the hand came by last stays once more, as long as the hand finds another soon.

use super::{Entry, Key};
use modelless_telemetry::TaskCache;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PARTS: usize = 16;
/// Of a part's bytes one entry may take so much: one of eight.
const SHARE: u64 = 8;
/// So many are let stay in one go, since queries of the same part wait meanwhile.
const SPARED: usize = 32;

struct Slot {
    entry: Arc<Entry>,
    asked: bool,
    /// Where it is counted.
    counted: TaskCache,
}

#[derive(Default)]
struct Part {
    slots: HashMap<Key, Slot>,
    /// In the order in which the hand comes by; each key of `slots` once.
    round: VecDeque<Key>,
    bytes: u64,
}

/// Entries by their key.
pub(crate) struct Local {
    parts: [Mutex<Part>; PARTS],
    /// Of one part.
    most: u64,
}

impl Local {
    pub(crate) fn new(most: u64) -> Self {
        let parts = std::array::from_fn(|_| Mutex::default());
        Self { parts, most: most / PARTS as u64 }
    }

    fn part(&self, key: &Key) -> MutexGuard<'_, Part> {
        self.parts[usize::from(key[0]) % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let mut part = self.part(key);
        let slot = part.slots.get_mut(key)?;
        slot.asked = true;
        Some(Arc::clone(&slot.entry))
    }

    /// Puts one in, where there is none or the one that is there is to go. Whether it did.
    pub(crate) fn put(
        &self,
        key: Key,
        entry: Arc<Entry>,
        counted: &TaskCache,
        replaces: impl FnOnce(&Entry) -> bool,
    ) -> bool {
        let bytes = entry.bytes();
        if !self.has_room(bytes) {
            return false;
        }
        let mut part = self.part(&key);
        match part.slots.get_mut(&key) {
            Some(slot) if !replaces(&slot.entry) => return false,
            Some(slot) => {
                let before = slot.entry.bytes();
                slot.counted.went(before);
                slot.entry = entry;
                part.bytes = part.bytes - before + bytes;
            }
            None => {
                part.slots.insert(key, Slot { entry, asked: false, counted: counted.clone() });
                part.round.push_back(key);
                part.bytes += bytes;
            }
        }
        counted.came(bytes);
        part.shrink(self.most, &key);
        true
    }

    /// Whether an entry of so many bytes may be kept at all.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.most / SHARE
    }

    /// Bytes and entries that are there.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (u64, u64) {
        let parts = self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner));
        parts.fold((0, 0), |(bytes, entries), part| (bytes + part.bytes, entries + part.slots.len() as u64))
    }
}

impl Part {
    fn shrink(&mut self, most: u64, newest: &Key) {
        let mut spared = 0;
        while self.bytes > most
            && let Some(key) = self.round.pop_front()
        {
            match self.slots.get_mut(&key) {
                // No entry has more than its share, so there is always another one.
                Some(_) if key == *newest => self.round.push_back(key),
                Some(slot) if slot.asked && spared < SPARED => {
                    slot.asked = false;
                    spared += 1;
                    self.round.push_back(key);
                }
                Some(_) | None => {
                    if let Some(Slot { entry, counted, .. }) = self.slots.remove(&key) {
                        self.bytes -= entry.bytes();
                        counted.went(entry.bytes());
                        counted.evicted();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes as Buffer;
    use modelless_telemetry::Metrics;
    use modelless_types::{ModelId, SpaceId, VariantId};

    fn entry(bytes: usize) -> Arc<Entry> {
        let body = Buffer::from(vec![0; bytes]);
        let (model, variant, space) = (ModelId(1), VariantId(1), SpaceId(1));
        Arc::new(Entry { body, model, variant, space, given_unix: 0 })
    }

    /// Keys of one part.
    fn key(number: u8) -> Key {
        let mut key = [0; 32];
        key[1] = number;
        key
    }

    #[test]
    fn what_nobody_asks_for_goes_first() {
        // Room for ten entries of 1,000 bytes in a part.
        let (local, metrics) = (Local::new(10_000 * PARTS as u64), Metrics::new());
        let task = metrics.task("t");
        let counted = task.cache();
        for number in 0..10 {
            assert!(local.put(key(number), entry(744), counted, |_| true));
        }
        assert_eq!(local.held(), (10_000, 10));
        assert!(local.get(&key(0)).is_some());
        for number in 10..15 {
            assert!(local.put(key(number), entry(744), counted, |_| true));
        }
        assert_eq!(local.held(), (10_000, 10));
        assert!(local.get(&key(0)).is_some(), "it was asked for");
        assert!(local.get(&key(1)).is_none() && local.get(&key(14)).is_some());
        let told = metrics.encode();
        for line in [
            r#"modelless_cache_entries{task="t"} 10"#,
            r#"modelless_cache_bytes{task="t"} 10000"#,
            r#"modelless_cache_evicted_total{task="t"} 5"#,
        ] {
            assert!(told.contains(line), "{line}\n{told}");
        }
    }

    #[test]
    fn where_all_are_asked_for_the_hand_does_not_go_all_round_and_the_newest_stays() {
        let (local, metrics) = (Local::new(200_000 * PARTS as u64), Metrics::new());
        let task = metrics.task("t");
        for number in 0..200 {
            assert!(local.put(key(number), entry(744), task.cache(), |_| true));
        }
        for number in 0..200 {
            assert!(local.get(&key(number)).is_some());
        }
        assert!(local.put(key(200), entry(744), task.cache(), |_| true));
        let gone: Vec<u8> = (0..201).filter(|number| local.get(&key(*number)).is_none()).collect();
        assert_eq!(gone, [u8::try_from(SPARED).unwrap()], "the first that was not spared");

        // Room for eight that were all asked for: the ninth takes the place of one of them.
        let local = Local::new(8_000 * PARTS as u64);
        for number in 0..8 {
            assert!(local.put(key(number), entry(744), task.cache(), |_| true));
            assert!(local.get(&key(number)).is_some());
        }
        assert!(local.put(key(8), entry(744), task.cache(), |_| true));
        assert!(local.get(&key(8)).is_some());
    }

    #[test]
    fn what_takes_the_place_of_another_is_counted_once() {
        let (local, counted) = (Local::new(10_000 * PARTS as u64), TaskCache::default());
        assert!(local.put(key(1), entry(100), &counted, |_| true));
        assert!(!local.put(key(1), entry(200), &counted, |_| false));
        assert_eq!(local.held(), (356, 1));
        assert!(local.put(key(1), entry(200), &counted, |before| before.body.len() == 100));
        assert_eq!(local.held(), (456, 1));
    }

    #[test]
    fn what_is_too_large_is_not_kept_and_no_room_is_none() {
        let (local, counted) = (Local::new(10_000 * PARTS as u64), TaskCache::default());
        assert!(!local.put(key(1), entry(1_000), &counted, |_| true));
        assert_eq!(local.held(), (0, 0));
        assert!(!Local::new(0).put(key(1), entry(0), &counted, |_| true));
    }
}
