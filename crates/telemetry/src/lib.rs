//! What a running process says of itself: its log and its metrics.
//!
//! [`log`] sets up the log once, at the start of the process. [`Metrics`] is the one registry; whoever counts asks it
//! for a handle beforehand ([`TaskMetrics`], [`VariantMetrics`], [`AppMetrics`], [`NodeMetrics`]), so that counting an answered query
//! is some atomic additions: it formats no label, takes no lock and allocates nothing. Every label has a bound on its values. Nothing here decides or
//! measures anything.
#![warn(missing_docs)]

mod applications;
mod bounded;
mod cache;
mod goals;
mod histogram;
pub mod log;
mod metrics;
mod nodes;
mod rented;
mod traces;
mod triton;

#[cfg(test)]
mod documented;

pub use applications::{AppMetrics, ShareGauge};
pub use bounded::OTHERS;
pub use cache::{SharedCache, TaskCache};
pub use goals::{GoalMetrics, Got, Wanted};
pub use metrics::{CONTENT_TYPE, Metrics, Ran, TaskMetrics, Told, VariantMetrics};
pub use nodes::{CoverageGauge, NodeGauges, NodeMetrics, ReplicaGauge};
pub use rented::{MachineGauge, TrialGauge};
pub use traces::TraceMetrics;
pub use triton::{OfSize, Served, Took, Totals};
