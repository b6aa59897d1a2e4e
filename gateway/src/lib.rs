//! Where queries come in: HTTP in front, the router of `decision` behind.
//!
//! It reads goals and inputs, has each query admitted and routed, hands it to a node, and writes the answer with the
//! decision that led to it. It decides nothing: which node, whether to wait, and every "no" come from
//! `decision::route` and `decision::admission`, driven by `drive::Driver`. It never looks into an input, and never
//! asks the store while a query is answered: catalogue and nodes are read beforehand into one view, which is replaced
//! whole.
//!
//! [`Service`] is built from a [`Config`] and [`Deps`], bound, and run until drained; [`Handle`] is what others hold.
#![warn(missing_docs)]

mod access;
mod account;
mod admin;
mod ask;
mod cache;
mod config;
mod core;
mod decisions;
mod demand;
mod door;
mod errors;
mod feedback;
mod files;
mod gauges;
mod goals;
mod grpc;
mod handover;
mod http;
mod ids;
mod jobs;
mod known;
mod machinery;
mod many;
mod members;
mod met;
mod native;
mod oip;
mod openapi;
mod outlook;
mod past;
mod pending;
mod profiles;
mod regions;
mod routes;
mod service;
mod shadow;
mod show;
mod size;
mod suggest;
mod table;
mod tls;
mod told;
mod traces;
mod trials;
mod update;
mod view;
mod whole;

#[cfg(test)]
mod tests;

pub use admin::{Admin, AdminError, RegisterRequest, RegisterVariant, SetRef, UnderWay};
pub use config::Config;
pub use demand::{AskedTold, ClassDemand, DemandTold};
pub use errors::Error;
pub use ids::{BadQueryId, QueryId, QueryIds};
#[cfg(any(test, fuzzing))]
pub use oip::fuzzing;
pub use profiles::{PROFILES, PROFILES_VERSION, ProfileEntry, ProfileFile, Through};
pub use service::{Addresses, Deps, Handle, Service};
pub use tls::TlsFiles;
pub use traces::{Headers as TraceHeaders, TracesConfig};
