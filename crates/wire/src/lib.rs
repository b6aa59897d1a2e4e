//! What gateways and nodes say to each other, and the seam they say it through.
//!
//! A gateway speaks through [`NodeLink`], a node through [`GatewayLink`]. In one process both are plain calls: a
//! query is handed over on the thread that read it and its answer on the thread that the engine woke, with no queue
//! in between (credits bound what is outstanding). Neither call may block or take longer than said below; whoever implements one
//! releases its own locks before it calls the other. Deadlines cross as time remaining, never as a moment, since
//! two machines share no clock.
//!
//! Between machines the same two traits stand in front of kept connections (TCP, or Unix sockets on one host):
//! [`serve_node`] on the node's side, [`keep`] on the gateway's, which also finds a node again that was lost. The
//! format is in [`limits`] and `docs/adr/0045-wire.md`.
#![warn(missing_docs)]

mod back_off;
mod codec;
mod config;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gateway;
mod head;
mod key;
mod link;
mod lost;
mod node;
mod out;
mod outcome;
mod peer;
mod peers;
mod reader;
mod received;
mod rtt;
mod scale;
mod seam;
mod shelf;
#[cfg(test)]
mod sim;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod tls;

pub use config::{Config, limits};
pub use gateway::{Dial, Joined, keep};
pub use key::{KEY_BYTES, Key};
pub use lost::{Lost, Nonsense};
pub use modelless_decision::worker::Reason;
pub use node::{Fetcher, NodeServer, Source, serve_node};
pub use received::Received;
pub use seam::{
    Announcement, Answer, Body, Connection, Demand, FromNode, GatewayLink, Input, InputFault, NodeLink,
    QueryFrame, ToNode,
};
pub use shelf::{Piece, Shelf};
pub use status::{EngineStatus, Gpu, Hardware, LoadTimes, NodeLoad, NodeStatus, PriceOrigin, ReplicaStatus};
pub use stream::{Address, Listener};
pub use tls::{Reloading, RoleNames, TlsAccept, TlsConnect, TlsFiles, files as tls_files};
