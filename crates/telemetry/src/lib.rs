//! What a running process says of itself: its log and its metrics.
//!
//! [`log`] sets up the log once, at the start of the process. [`Metrics`] is the one registry; whoever counts asks it
//! for a handle beforehand ([`TaskMetrics`], [`VariantMetrics`]), so that counting a query is a few atomic additions
//! and formats no label. Nothing here decides or measures anything.
#![warn(missing_docs)]

pub mod log;
mod metrics;
mod triton;

pub use metrics::{
    CONTENT_TYPE, CoverageGauge, Metrics, NodeGauges, ReplicaGauge, TaskMetrics, VariantMetrics,
};
pub use triton::{Served, Took, Totals};
