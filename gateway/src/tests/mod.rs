//! The gateway against a store in memory and a node that does as it is told.

mod access;
mod admin;
mod cache;
mod cache_holds;
mod deeds;
mod feedback;
mod grpc;
mod jobs;
mod limits;
mod lines;
mod moved;
mod oip;
mod openapi;
mod packed;
mod profiles;
mod queries;
mod quotas;
mod regions;
mod routes;
mod sockets;
mod spread;
mod statistics;
mod streams;
mod tls;
mod traces;
mod versions;
pub(crate) mod world;
