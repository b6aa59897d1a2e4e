//! The gateway against a store in memory and a node that does as it is told.

mod admin;
mod feedback;
mod moved;
mod oip;
mod profiles;
mod queries;
mod routes;
mod sockets;
mod versions;
pub(crate) mod world;
