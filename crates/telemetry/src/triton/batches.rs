//! What batches took, by their size: exactly, for as many sizes as there is room for.

use super::Took;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Sizes that are told apart, of one variant: those that came first. Most variants never have more.
pub(super) const SIZES_MOST: usize = 64;

/// What batches of one size took until now, all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfSize {
    /// Queries in each.
    pub size: u32,
    /// How many there were.
    pub batches: u64,
    /// Decoding and preparing, in nanoseconds.
    pub input_ns: u64,
    /// On the device.
    pub infer_ns: u64,
    /// Making answers.
    pub output_ns: u64,
}

/// Sums over the queries of all batches of one size, in microseconds. Each query tells of its whole batch.
#[derive(Debug, Default)]
struct Place {
    /// None yet where it is zero.
    size: AtomicU32,
    queries: AtomicU64,
    input: AtomicU64,
    infer: AtomicU64,
    output: AtomicU64,
}

impl Place {
    /// Whether this size has this place, which it takes if nobody has.
    fn is_of(&self, size: u32) -> bool {
        let taken = match self.size.load(Ordering::Relaxed) {
            0 => match self.size.compare_exchange(0, size, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => size,
                Err(other) => other,
            },
            taken => taken,
        };
        taken == size
    }

    fn told(&self) -> Option<OfSize> {
        let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let size = self.size.load(Ordering::Relaxed);
        let each = u64::from(size.max(1));
        let batches = (of(&self.queries) + each / 2) / each;
        let ns = |sum| of(sum).saturating_mul(1_000) / each;
        let (input_ns, infer_ns, output_ns) = (ns(&self.input), ns(&self.infer), ns(&self.output));
        (batches > 0).then_some(OfSize { size, batches, input_ns, infer_ns, output_ns })
    }
}

#[derive(Debug)]
pub(super) struct Batches([Place; SIZES_MOST]);

impl Default for Batches {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Place::default()))
    }
}

impl Batches {
    /// A query in a batch. Where the size has no place it is not counted here.
    pub(super) fn count(&self, took: &Took) {
        let size = took.batch.max(1);
        let first = usize::try_from(size).unwrap_or(usize::MAX) % SIZES_MOST;
        let (before, from) = self.0.split_at(first);
        let Some(place) = from.iter().chain(before).find(|place| place.is_of(size)) else { return };
        for (sum, time) in
            [(&place.input, took.input), (&place.infer, took.infer), (&place.output, took.output)]
        {
            sum.fetch_add(time.0, Ordering::Relaxed);
        }
        place.queries.fetch_add(1, Ordering::Relaxed);
    }

    /// Until now, the smallest first.
    pub(super) fn told(&self) -> Vec<OfSize> {
        let mut all: Vec<OfSize> = self.0.iter().filter_map(Place::told).collect();
        all.sort_unstable_by_key(|of| of.size);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::Micros;

    fn in_batch_of(batch: u32) -> Took {
        Took { queue: Micros(9), input: Micros(30), infer: Micros(70), output: Micros(10), batch }
    }

    #[test]
    fn queries_share_the_time_of_their_batch() {
        let batches = Batches::default();
        for _ in 0..3 * 7 {
            batches.count(&in_batch_of(7));
        }
        batches.count(&in_batch_of(1));
        let of = |size, batches, one: [u64; 3]| {
            let [input_ns, infer_ns, output_ns] = one.map(|us| us * batches * 1_000);
            OfSize { size, batches, input_ns, infer_ns, output_ns }
        };
        assert_eq!(batches.told(), [of(1, 1, [30, 70, 10]), of(7, 3, [30, 70, 10])]);
    }

    #[test]
    fn every_size_that_is_told_is_exact_and_there_is_a_bound_on_them() {
        let batches = Batches::default();
        // All of these would have the same place, were it not taken.
        let sizes: Vec<u32> = (1..).map(|number| number * 64).take(SIZES_MOST).collect();
        for size in sizes.iter().chain(&[1, 65, 4_097]) {
            for _ in 0..*size {
                batches.count(&in_batch_of(*size));
            }
        }
        let told = batches.told();
        assert_eq!(told.iter().map(|of| of.size).collect::<Vec<_>>(), sizes, "who comes later has none");
        assert!(told.iter().all(|of| (of.batches, of.infer_ns) == (1, 70_000)), "{told:?}");
    }

    #[test]
    fn a_size_has_one_place_whoever_comes_first() {
        let batches = Batches::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..1_000 {
                        batches.count(&in_batch_of(1 + round % 40));
                    }
                });
            }
        });
        let told = batches.told();
        let queries: u64 = told.iter().map(|of| of.batches * u64::from(of.size)).sum();
        assert!(told.windows(2).all(|two| two[0].size < two[1].size), "{told:?}");
        assert_eq!((told.len(), queries.abs_diff(4_000) < 40 * 20), (40, true), "{told:?}");
    }
}
