//! What is asked of a server, whichever way it is spoken to.

use super::http::Server;
use super::tensors::Answered;
use super::tls::Trust;
use crate::control::Secret;
use crate::runner::Declared;
use modelless_types::TensorSpec;
use std::borrow::Cow;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What a reply to the executor has room for, and more than people read.
const MAX_SAID: usize = 300;

/// A model on a server, over one connection.
pub(super) trait Peer: Send {
    /// Whether it can be asked; if not, what the server says.
    fn ready(&mut self) -> Result<(), String>;

    /// What its tensors look like.
    fn describe(&mut self) -> Result<Described, String>;

    /// Whether batches of these can be sent; if not, why.
    fn takes(&mut self, inputs: &[Declared]) -> Result<(), String> {
        let _ = inputs;
        Ok(())
    }

    /// Whether the server was not there to answer since this was asked last.
    fn lost(&self) -> bool;

    /// The same model over a connection of its own.
    fn another(&self) -> Box<dyn Peer>;

    /// One batch. The outputs in the order of `names`.
    fn infer(
        &mut self,
        inputs: &[(&TensorSpec, Cow<'_, [u8]>)],
        rows: u32,
        names: &[String],
    ) -> Result<Vec<Answered>, String>;
}

/// What a server says of its model: tensors with the batch first, or why it says nothing of them that could be used. An
/// artefact that says it itself does not need it.
pub(super) struct Described {
    pub(super) inputs: Result<Vec<Declared>, String>,
    pub(super) outputs: Result<Vec<Declared>, String>,
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) server: Server,
    /// Found before the process was confined: no name can be looked up since.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) limit: Duration,
    pub(super) token: Option<Secret>,
    /// Who it has to be, where all is encrypted.
    pub(super) trust: Option<Trust>,
    /// The server did not answer, or somebody before it did.
    pub(super) lost: Cell<bool>,
}

impl Access {
    /// In the clear, and without a token.
    #[cfg(test)]
    pub(super) fn test(server: Server, addresses: Vec<SocketAddr>, limit: Duration) -> Self {
        Self { server, addresses, limit, token: None, trust: None, lost: Cell::default() }
    }

    /// Why nothing came back.
    pub(super) fn unreachable(&self, error: &io::Error) -> String {
        self.lost.set(true);
        let server = &self.server;
        if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
            format!("the server {server} did not answer within {} ms", self.limit.as_millis())
        } else {
            format!("the server {server} cannot be reached: {error}")
        }
    }

    /// What a server says without what it must not give away: some repeat what they were sent.
    pub(super) fn hidden(&self, text: &str) -> String {
        match &self.token {
            Some(token) => token.hidden_in(text),
            None => text.to_owned(),
        }
    }

    /// What to do where a server does not know who asks.
    pub(super) fn hint(&self) -> &'static str {
        match &self.token {
            Some(_) => " (the node's token file for this server may be out of date)",
            None => " (give the node a token file for this server: see docs/engines.md)",
        }
    }
}

/// Cut between characters.
pub(super) fn short(text: &str) -> &str {
    text[..text.floor_char_boundary(MAX_SAID)].trim()
}
