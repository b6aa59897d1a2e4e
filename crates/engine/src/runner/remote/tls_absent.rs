//! In place of TLS where this program was built without it: an address that needs it is refused, and nothing is ever encrypted.

use super::http::Server;
use std::io::{self, Read, Write};

#[derive(Clone, Copy, Debug)]
pub(super) enum Trust {}

impl Trust {
    pub(super) fn new(server: &Server, _: &[u8]) -> Result<Self, String> {
        Err(format!("{server} needs TLS with {}, which this program was built without", server.host()))
    }
}

#[derive(Debug)]
pub(super) enum Session {}

impl Session {
    pub(super) fn begin(trust: &Trust, _: &mut (impl Read + Write)) -> io::Result<Self> {
        match *trust {}
    }

    pub(super) fn read(&mut self, _: &mut (impl Read + Write), _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn write(&mut self, _: &mut impl Write, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn flush(&mut self, _: &mut impl Write) -> io::Result<()> {
        match *self {}
    }

    #[cfg(feature = "grpc")]
    pub(super) fn is_blocked(&self) -> bool {
        match *self {}
    }
}
