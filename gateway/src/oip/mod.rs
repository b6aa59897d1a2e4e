//! The Open Inference Protocol, with Triton's extensions: a task is a model, a variant's number is a version, goals are parameters.
//!
//! Here is what both of its forms share: what a task shows of itself ([`signature`], [`about`], [`statistics`]), a request without its encoding
//! ([`request`]), its rows as queries ([`rows`]), asking them ([`infer`]) and making tensors of the answers ([`answers`]).
//! [`json`] is the encoding over HTTP, [`shown`] of what a task shows; the handlers stand in `routes::oip`.

pub(crate) mod about;
mod answers;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub(crate) mod infer;
pub(crate) mod json;
pub(crate) mod request;
pub(crate) mod residency;
mod rows;
pub(crate) mod settings;
pub(crate) mod shown;
mod signature;
pub(crate) mod statistics;

pub(crate) use answers::{OUTPUT_MAX, Output};
pub(crate) use signature::{Port, Signature};

/// Rows that one request may have.
pub(crate) const ROWS_MAX: usize = 65_536;
/// Rows of one request that are open at one time: enough to fill the batches of several nodes, and no more of what waits than others
/// have room beside.
pub(crate) const ROWS_OPEN: usize = 256;
/// Tensors that one request may have.
pub(crate) const TENSORS_MAX: usize = 64;
