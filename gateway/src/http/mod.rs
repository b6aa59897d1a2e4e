//! HTTP/1.1, and HTTP/2 where a TLS greeting agreed on it, with bounds of our own on everything a client can make long: heads, bodies, waiting, connections.

pub(crate) mod body;
mod connection;
pub(crate) mod encoding;
mod listen;
pub(crate) mod places;
pub(crate) mod refusals;
mod two;

pub(crate) use listen::serve;
