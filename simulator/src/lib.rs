//! A world in virtual time that drives the same machines as the live system: one [`Router`] per gateway and one
//! [`Worker`] per node, joined by links with delays, devices whose run times are drawn from profiles, and faults.
//!
//! It is the only noise-free test bed there is: the same scenario and seed give the same outcome on every machine.
//! It checks conservation itself (each query leaves exactly once, floors, one output space, batch sizes, memory,
//! credit, lanes), and a dead end, where queries are open and nothing will ever happen again, is an error. What it
//! does not do: decide anything, nor model the client's own hop, bytes on wires, or CPU contention between stages.
//!
//! [`Router`]: modelless_decision::route::Router
//! [`Worker`]: modelless_decision::worker::Worker
#![warn(missing_docs)]

pub mod ablation;
pub mod baseline;
pub mod batching;
pub mod chart;
mod check;
pub mod clairvoyant;
mod direct;
mod faults;
pub mod fixtures;
mod gateway;
pub mod goodput;
mod heap;
mod hire;
mod known;
mod lives;
mod memory;
mod meter;
mod node;
mod open;
pub mod optimum;
pub mod oracle;
mod outcome;
mod pause;
mod planning;
pub mod published;
mod quarantine;
mod record;
mod renting;
pub mod report;
mod rng;
pub mod scenario;
pub mod scoreboard;
mod series;
mod simplex;
mod spread;
pub mod starts;
mod told;
pub mod trace;
pub mod tuning;
mod workload;
mod world;

pub use check::Broken;
pub use outcome::{Outcome, Percentiles, StreamOutcome, table};
pub use rng::Rng;
pub use scenario::{
    Arrivals, Behaviour, Fault, Gap, Jitter, LinkSpec, NodeSpec, Planner, Rented, Scenario, Span, Step,
    Stream, TaskSpec, VariantSpec,
};
pub use series::{Bucket, Series};

/// Why a run gave no outcome.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    /// The scenario cannot be run.
    #[error("the scenario is not usable: {0}")]
    Scenario(String),
    /// The scenario names something that cannot be named.
    #[error("{text}")]
    UnknownKey {
        /// Where and what, as its reader told it.
        text: String,
        /// What was written.
        key: String,
        /// What could have been.
        known: Vec<String>,
    },
    /// Queries are open and nothing is left that could move them.
    #[error(
        "a dead end at {at_us} us: {open} queries are open and nothing will ever happen again; first {first}"
    )]
    DeadEnd {
        /// When.
        at_us: u64,
        /// How many.
        open: usize,
        /// One of them, and where it is.
        first: String,
    },
    /// The world keeps turning without time or queries moving on.
    #[error("no end at {at_us} us: {what}")]
    Endless {
        /// When.
        at_us: u64,
        /// What keeps happening.
        what: String,
    },
    /// Something that must never happen did.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Runs a scenario to its end, under a policy of others or, without, under ours, and tells it whole; `load` is only written down.
pub fn simulate(
    scenario: &Scenario,
    policy: Option<&baseline::Baseline>,
    seed: u64,
    load: f64,
) -> Result<report::Report, Error> {
    let fluid = oracle::fluid(scenario, seed)?;
    let outcome = policy.map_or_else(|| run(scenario, seed), |policy| policy.run(scenario, seed))?;
    let name = policy.map_or(scoreboard::OURS, |policy| policy.name);
    Ok(report::Report::new(name, load, scenario.duration, fluid, outcome))
}

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Outcome, Error> {
    scenario.check().map_err(Error::Scenario)?;
    world::World::new(scenario, seed).run()
}
