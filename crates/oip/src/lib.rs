//! What the Open Inference Protocol looks like on the wire, for both ends: the gateway, which speaks it as a server, and a runner,
//! which asks other servers with it.
//!
//! Elements of tensors as JSON and as bytes ([`elements`]), the messages of the gRPC form with Triton's extensions ([`messages`]),
//! and elements by type as those messages carry them ([`contents`]). No sockets and no meaning: who may ask what, and what is
//! answered, is for those who use it.
#![warn(missing_docs)]

#[cfg(feature = "grpc")]
pub mod contents;
pub mod elements;
#[cfg(feature = "grpc")]
pub mod messages;
