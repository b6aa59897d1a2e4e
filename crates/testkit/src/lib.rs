//! What tests and measurements share: a real `modelless up`, a real Postgres and Redis, a client that can send anything.
//!
//! Blocking on purpose: a test reads top to bottom, and a load generator without a runtime of its own is easier
//! to account for. Nothing of modelless is linked in: the tested program is the shipped binary, reached as a
//! user reaches it, so no test can pass by knowing something a user does not.
#![allow(
    clippy::disallowed_methods,
    reason = "this crate watches real processes in real time; there is no clock to pause and no runtime to block"
)]

pub mod blocks;
#[cfg(feature = "certificates")]
pub mod certificates;
pub mod clients;
pub mod cluster;
pub mod corpus;
pub mod cost;
#[cfg(feature = "certificates")]
pub mod front;
pub mod http;
pub mod hypervisor;
pub mod kubernetes;
pub mod lines;
pub mod malformed;
pub mod moto;
pub mod onnx;
pub mod openapi;
pub mod packages;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod redis;
pub mod rng;
pub mod server;
pub mod stats;
pub mod turns;
pub mod wait;

pub use http::{Connection, Request, Response};
pub use hypervisor::Hypervisor;
pub use moto::Moto;
pub use postgres::Postgres;
pub use prometheus::Prometheus;
pub use proxy::Proxy;
pub use redis::Redis;
pub use rng::Rng;
pub use server::Server;
pub use tempfile::TempDir;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A loopback port nobody listens on at this moment. Prefer port 0 where the program under test can take it:
/// between this answer and its use somebody else may come first.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.local_addr()?.port())
}

/// A fresh folder that goes away with the value.
pub fn temp_dir(prefix: &str) -> anyhow::Result<TempDir> {
    Ok(tempfile::Builder::new().prefix(&format!("modelless-{prefix}-")).tempdir()?)
}
