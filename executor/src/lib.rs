//! The part that touches hardware: decodes, batches, runs, loads and evicts, as `decision::worker` decides.
//!
//! A query comes in by a plain call ([`Handle`] is a [`modelless_wire::NodeLink`]) on the thread that read it; if it is
//! small it is decoded, bound, written into shared memory and handed to its runner right there. Its answer is made
//! on the thread that the engine wakes and leaves by a plain call as well. What takes long (decoding or resizing large
//! inputs, loading, the store) goes to tasks that are tracked and bounded by credit. This crate decides nothing:
//! every choice is an action of the machine, and everything that happens is an event to it.
#![warn(missing_docs)]

mod batches;
mod catalogue;
mod config;
mod core;
mod demanded;
mod history;
mod intake;
mod log;
pub mod node;
mod quarantine;
mod residency;
mod service;
mod telling;
mod way_back;

pub use config::{Config, LEAST_MEMORY, LONGEST_NAME, MOST_CORES, MOST_PARTS, RemoteServer, is_name};
pub use core::{Fetch, Handle};
pub use service::{Deps, Error, Service, build};

#[cfg(test)]
mod tests;
