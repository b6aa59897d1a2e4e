//! Traces of queries for OpenTelemetry: made when a query has ended, of what its answer tells, and sent behind its back.
//!
//! Where no collector is named, a query pays for one look at an `Option`.

mod chosen;
mod config;
mod connect;
mod context;
mod export;
mod otlp;
mod spans;

pub use config::{Headers, TracesConfig};
pub(crate) use export::Exporter;
#[cfg(test)]
pub(crate) use otlp::shown;
pub(crate) use spans::{Ended, Spans};

use crate::core::Core;
use chosen::{Chosen, Kind};
use context::Context;
use http::HeaderMap;
use modelless_telemetry::TraceMetrics;
use modelless_types::Micros;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Queries whose spans wait to be sent.
const WAITING: usize = 2_048;

/// How a request came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    Query,
    Oip,
    Grpc,
    OpenAi,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Oip => "oip",
            Self::Grpc => "grpc",
            Self::OpenAi => "openai",
        }
    }
}

/// The trace that the queries of a request are part of.
#[derive(Debug)]
pub(crate) struct Trace {
    id: u128,
    /// The client's span.
    parent: Option<u64>,
    /// Whether the client keeps it; `None` where it does not trace.
    kept: Option<bool>,
    state: String,
    door: Door,
}

impl Trace {
    /// As collectors show it.
    pub(crate) fn id(&self) -> String {
        format!("{:032x}", self.id)
    }
}

/// Takes in what ended.
pub(crate) struct Traces {
    to: mpsc::Sender<Spans>,
    chosen: Chosen,
    next: AtomicU64,
    metrics: TraceMetrics,
}

impl Traces {
    /// With what sends them. `None` where nothing is to be traced.
    pub(crate) fn new(
        config: &TracesConfig,
        metrics: TraceMetrics,
        seed: u64,
    ) -> Result<Option<(Self, Exporter)>, String> {
        let Some(target) = config.target()? else { return Ok(None) };
        let (to, from) = mpsc::channel(WAITING);
        let exporter = Exporter::new(config, target, from, metrics.clone())?;
        let traces = Self { to, chosen: Chosen::new(config.per_second), next: AtomicU64::new(seed), metrics };
        Ok(Some((traces, exporter)))
    }

    /// Of a request.
    pub(crate) fn begin(&self, headers: &HeaderMap, door: Door) -> Trace {
        if let Some(Context { trace, parent, sampled, state }) = Context::of(headers) {
            return Trace { id: trace, parent: Some(parent), kept: Some(sampled), state, door };
        }
        let id = u128::from(self.id()) << 64 | u128::from(self.id());
        Trace { id, parent: None, kept: None, state: String::new(), door }
    }

    pub(crate) fn tell(&self, core: &Core, trace: &Trace, ended: &Ended<'_>) {
        let kind = match trace.kept {
            Some(false) => return,
            Some(true) => Kind::Joined,
            None if missed(ended) => Kind::Missed,
            None => Kind::Ordinary,
        };
        if !self.chosen.take(kind, ended.now) {
            return;
        }
        // Whoever reads them takes a while; a query does not wait for that.
        let Ok(place) = self.to.try_reserve() else { return self.metrics.dropped_full(1) };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        place.send(Spans {
            trace: trace.id,
            state: trace.state.clone(),
            zero: unix.saturating_sub(ended.now.0),
            all: spans::spans(core, &|| self.id(), trace, ended),
        });
    }

    /// Never zero, which would be none. Steps of a counter, well mixed (the finisher of SplitMix64).
    fn id(&self) -> u64 {
        let step = self.next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (step ^ (step >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).max(1)
    }
}

/// Whether it was refused, or answered later than it was to be.
fn missed(ended: &Ended<'_>) -> bool {
    match ended.result {
        Err(_) => true,
        Ok(answered) => ended.asked.latency.is_some_and(|latency: Micros| answered.total > latency),
    }
}
