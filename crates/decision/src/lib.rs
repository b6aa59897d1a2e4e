//! Every decision of modelless, and nothing else.
//!
//! `no_std`: there is no clock, no I/O, no hash map with a random order and no randomness but a passed seed, so
//! the same input gives the same decision in the gateway, the executor, the simulator and a replayed log.
//!
//! | part | shape | runs in | answers |
//! |---|---|---|---|
//! | [`route`] | [`route::pick`] and the machine [`route::Router`] | gateway | which node; wait; refuse |
//! | [`worker`] | the machine [`worker::Worker`] | executor | which variant and batch; loads and evictions |
//! | [`rows`], [`pace`] | plain state | gateway | how many queries of one request, and inputs of jobs, are open at a time |
//! | [`plan`] | a pure function | scheduler | which replicas where |
//! | [`forecast`] | a pure function | scheduler | what will be asked, by what was on earlier days |
//! | [`narrow`] | plain state | executor | how many batches run side by side while something slows them down |
//! | [`trial`] | pure functions | gateway, scheduler | which queries a new version answers on trial; whether it does worse |
//! | [`hire`], [`fleet`] | pure functions | scheduler, simulator | how many machines; what to do about it |
//! | [`baseline`] | pure functions | scheduler, simulator | the same by rules of others, to compare with |
//! | [`search`], [`steady`], [`transfer`] | pure functions | profiler, executor | what to measure next; whether to go by it; what to assume until then |
//!
//! All of them ask [`estimate`] how long things take: there is one performance model.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod admission;
pub mod baseline;
pub mod common;
pub mod demand;
pub mod estimate;
pub mod explain;
pub mod feedback;
pub mod fit;
pub mod fleet;
pub mod forecast;
pub mod frontier;
pub mod hire;
pub mod machine;
mod moments;
pub mod narrow;
pub mod pace;
pub mod parts;
pub mod plan;
pub mod query;
pub mod reckon;
pub mod replica;
pub mod route;
pub mod rows;
pub mod search;
pub mod simplex;
mod sizes;
pub mod steady;
pub mod transfer;
pub mod trial;
pub mod waking;
mod words;
pub mod worker;

pub use estimate::{Correction, Moments, RunModel};
pub use machine::{Machine, Rank, Ranked, Wake};
pub use query::Query;
pub use sizes::Coverage;
