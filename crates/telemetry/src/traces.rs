//! What became of traces on their way to a collector.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct OfOutcome {
    outcome: &'static str,
}

/// Counts queries whose spans were sent, or not.
#[derive(Clone, Debug)]
pub struct TraceMetrics {
    sent: Counter,
    full: Counter,
    unreachable: Counter,
    refused: Counter,
}

impl TraceMetrics {
    pub(crate) fn new(of: &Family<OfOutcome, Counter>) -> Self {
        let outcome = |outcome| of.get_or_create_owned(&OfOutcome { outcome });
        Self {
            sent: outcome("sent"),
            full: outcome("dropped_full"),
            unreachable: outcome("dropped_unreachable"),
            refused: outcome("dropped_refused"),
        }
    }

    /// The collector took them.
    pub fn sent(&self, queries: usize) {
        self.sent.inc_by(queries as u64);
    }

    /// More of them came than were sent meanwhile.
    pub fn dropped_full(&self, queries: usize) {
        self.full.inc_by(queries as u64);
    }

    /// The collector did not answer, or asked for patience too often.
    pub fn dropped_unreachable(&self, queries: usize) {
        self.unreachable.inc_by(queries as u64);
    }

    /// The collector does not want them.
    pub fn dropped_refused(&self, queries: usize) {
        self.refused.inc_by(queries as u64);
    }
}

pub(crate) fn register(registry: &mut Registry, of: &Family<OfOutcome, Counter>) {
    registry.register("traces", "Traced queries, by what became of their spans", of.clone());
}
