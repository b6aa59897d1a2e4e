//! What must hold for any table, any goals and any order of events.

mod admitting;
mod apart;
mod batching;
mod behind;
mod binding;
mod common;
mod cutting;
mod evicting;
mod gathering;
mod learning;
mod lending;
mod loading;
mod losing;
mod narrowing;
mod picking;
mod priority;
mod quarantine;
mod routing;
mod searching;
mod sharing;
mod shedding;
mod spare;
mod suspecting;
mod unloading;
mod waiting;
mod working;
