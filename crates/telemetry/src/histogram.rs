//! Histograms without a lock: a query counts itself in one of the parts and adds to the sum, and does nothing else.
//!
//! Values are whole numbers in a unit that is small enough (microseconds, bytes, millionths); what is shown is in the base unit.
//! Whoever reads while others count may see a sum that is one observation ahead of the parts, as with any counters.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the parts end, and how many of the small unit make one of the base unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    ends: &'static [u64],
    per: f64,
}

/// Times from a quarter of a millisecond to eight seconds, each twice the last; in microseconds.
pub(crate) const TIMES: Scale = Scale { ends: &doubled::<16>(250), per: 1e6 };
/// From 10 us to a third of a second, each twice the last.
pub(crate) const SHORT_TIMES: Scale = Scale { ends: &doubled::<16>(10), per: 1e6 };
/// Queries in a batch.
pub(crate) const ITEMS: Scale = Scale { ends: &doubled::<9>(1), per: 1.0 };
/// From a kibibyte to 32 MiB, each twice the last.
pub(crate) const BYTES: Scale = Scale { ends: &doubled::<16>(1 << 10), per: 1.0 };
/// One figure over another, in millionths: close around one, where it matters.
pub(crate) const RATIO: Scale = Scale {
    ends: &[
        100_000, 250_000, 500_000, 700_000, 800_000, 900_000, 1_000_000, 1_100_000, 1_250_000, 1_500_000,
        2_000_000, 4_000_000,
    ],
    per: 1e6,
};
/// Parts of one, in millionths: how far above a floor.
pub(crate) const MARGIN: Scale =
    Scale { ends: &[0, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000], per: 1e6 };

const fn doubled<const N: usize>(first: u64) -> [u64; N] {
    let mut all = [first; N];
    let mut at = 1;
    while at < N {
        all[at] = all[at - 1] * 2;
        at += 1;
    }
    all
}

/// Cheap to clone; all clones count the same.
#[derive(Clone)]
pub(crate) struct Histogram(Arc<Parts>);

struct Parts {
    scale: Scale,
    /// One more than there are ends: what is beyond the last.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(scale: Scale) -> Self {
        let counts = (0..=scale.ends.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Parts { scale, counts, sum: AtomicU64::new(0) }))
    }

    /// In the small unit.
    pub(crate) fn observe(&self, value: u64) {
        let Parts { scale, counts, sum } = &*self.0;
        let at = scale.ends.partition_point(|end| *end < value);
        if let Some(count) = counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        sum.fetch_add(value, Ordering::Relaxed);
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Histogram").field(&self.0.scale).finish()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "beyond 2^53 of a small unit its last digits matter to nobody"
)]
fn shown(value: u64, per: f64) -> f64 {
    value as f64 / per
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let Parts { scale, counts, sum } = &*self.0;
        let ends = scale.ends.iter().map(|end| shown(*end, scale.per)).chain([f64::INFINITY]);
        let parts: Vec<(f64, u64)> =
            ends.zip(counts.iter()).map(|(end, count)| (end, count.load(Ordering::Relaxed))).collect();
        let count = parts.iter().map(|(_, count)| count).sum();
        let sum = shown(sum.load(Ordering::Relaxed), scale.per);
        encoder.encode_histogram::<NoLabelSet>(sum, count, &parts, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    fn text(scale: Scale, values: &[u64]) -> String {
        let (histogram, mut registry) = (Histogram::new(scale), Registry::default());
        for value in values {
            histogram.observe(*value);
        }
        registry.register("x", "Help", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn what_is_just_at_an_end_is_below_it_and_what_is_beyond_the_last_is_counted_too() {
        let text = text(TIMES, &[250, 251, 8_192_000, 8_192_001]);
        for line in [
            r#"x_bucket{le="0.00025"} 1"#,
            r#"x_bucket{le="0.0005"} 2"#,
            r#"x_bucket{le="8.192"} 3"#,
            r#"x_bucket{le="+Inf"} 4"#,
            "x_count 4",
            "x_sum 16.384502",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
    }

    #[test]
    fn ends_are_as_people_write_them() {
        for (scale, end) in [(ITEMS, "256.0"), (BYTES, "33554432.0"), (RATIO, "1.25"), (MARGIN, "0.002")] {
            let text = text(scale, &[]);
            assert!(text.contains(&format!("le=\"{end}\"")), "{text}");
        }
    }

    #[test]
    fn many_count_at_once_and_nothing_is_lost() {
        let histogram = Histogram::new(ITEMS);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|at| histogram.observe(at % 300)));
            }
        });
        let all: u64 = histogram.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        assert_eq!(all, 40_000);
    }
}
