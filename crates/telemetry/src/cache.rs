//! Answers that were given again, and what they take.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfOutcome {
    task: String,
    outcome: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Families {
    looked: Family<OfOutcome, Counter>,
    entries: Gauge,
    bytes: Gauge,
    evicted: Counter,
    /// As told last: the counter only rises.
    evicted_before: Arc<AtomicU64>,
}

impl Families {
    pub(crate) fn register(&self, r: &mut Registry) {
        let help = "Queries of tasks whose answers may be given again, by whether one was";
        r.register("cache", help, self.looked.clone());
        r.register("cache_entries", "Answers that are kept here", self.entries.clone());
        let help = "What answers that are kept here take";
        r.register_with_unit("cache", help, Unit::Bytes, self.bytes.clone());
        r.register("cache_evicted", "Answers that went to make room for others", self.evicted.clone());
    }

    /// Whether a query was answered from what is kept: found, and not.
    pub(crate) fn of(&self, task: &str) -> [Counter; 2] {
        let outcome =
            |outcome| self.looked.get_or_create_owned(&OfOutcome { task: task.to_owned(), outcome });
        [outcome("hit"), outcome("miss")]
    }

    pub(crate) fn handle(&self) -> CacheMetrics {
        CacheMetrics {
            entries: self.entries.clone(),
            bytes: self.bytes.clone(),
            evicted: self.evicted.clone(),
            evicted_before: Arc::clone(&self.evicted_before),
        }
    }
}

/// Tells what is kept.
#[derive(Clone, Debug)]
pub struct CacheMetrics {
    entries: Gauge,
    bytes: Gauge,
    evicted: Counter,
    evicted_before: Arc<AtomicU64>,
}

impl CacheMetrics {
    /// How it is now; `evicted` since the start.
    pub fn set(&self, bytes: u64, entries: u64, evicted: u64) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.bytes.set(signed(bytes));
        self.entries.set(signed(entries));
        let before = self.evicted_before.fetch_max(evicted, Ordering::AcqRel);
        self.evicted.inc_by(evicted.saturating_sub(before));
    }
}
