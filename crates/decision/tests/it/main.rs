//! What must hold for any table, any goals and any order of events.

mod admitting;
mod batching;
mod binding;
mod common;
mod learning;
mod picking;
mod priority;
mod quarantine;
mod routing;
mod working;
