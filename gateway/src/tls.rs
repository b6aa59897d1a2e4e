//! TLS towards clients: what is shown to them, and greetings that are bounded in time and number.
//!
//! A greeting runs in its connection's own task, so whoever is slow with it keeps nobody from being accepted; it holds a place among
//! the connections, and one among the greetings. Files are read again when they change, as between gateways and nodes.

use crate::config::Config;
use crate::errors::Error;
use crate::http::places::{Place, Places};
use modelless_wire::{Reloading, tls_files};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Protocols as they are called in a greeting.
pub(crate) const H2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";
/// Of the connections that a port, or an address, may have, so many may be greeting: one of four.
const GREETING: usize = 4;

/// Files with what is shown to clients, and who they have to be. PEM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Authorities of which clients have to show a certificate; without it they need none.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Whether clients are spoken to by TLS.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    /// What is wrong with it, in words; the files are read.
    pub fn check(&self) -> Result<(), String> {
        if self.is_set() { self.read(&[]).map(|_| ()) } else { Ok(()) }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "an open list; the others say what they are")]
    fn read(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, String> {
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Err(
                "TLS needs a certificate and its key; give tls.cert and tls.key (--tls-cert, --tls-key) \
                        together"
                    .to_owned(),
            );
        };
        let (chain, key) =
            (tls_files::certificates("tls.cert", cert)?, tls_files::private_key("tls.key", key)?);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(tls_files::authorities("tls.client_ca", ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder
                    .with_client_cert_verifier(verifier.map_err(|error| format!("`tls.client_ca`: {error}"))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => "`tls.key` is not the key of `tls.cert`".to_owned(),
            other => format!("`tls.cert` and `tls.key` cannot be used: {other}"),
        })?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// TLS on one port.
#[derive(Debug)]
pub(crate) struct Tls {
    config: Arc<Reloading<ServerConfig>>,
    room: Arc<Semaphore>,
    places: Arc<Places>,
    within: Duration,
}

/// A greeting that may begin.
pub(crate) struct Greeting {
    config: Arc<ServerConfig>,
    within: Duration,
    _place: (OwnedSemaphorePermit, Place),
}

impl Tls {
    /// `None` if none is wanted.
    pub(crate) fn new(config: &Config, protocols: &'static [&'static [u8]]) -> Result<Option<Self>, Error> {
        let files = config.tls.clone();
        if !files.is_set() {
            return Ok(None);
        }
        let watched = [&files.cert, &files.key, &files.client_ca].into_iter().flatten().cloned().collect();
        let made = Reloading::new(watched, move || files.read(protocols)).map_err(Error::Config)?;
        let (all, of_address) = (config.max_connections, config.max_connections_per_address);
        Ok(Some(Self {
            config: made,
            room: Arc::new(Semaphore::new(all.div_ceil(GREETING).min(Semaphore::MAX_PERMITS))),
            places: Places::new(of_address.div_ceil(GREETING)),
            within: config.header_timeout(),
        }))
    }

    /// `None` if as many are greeting as may: all of them, or from this address.
    pub(crate) fn begin(&self, from: IpAddr) -> Option<Greeting> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let place = self.places.take(from)?;
        Some(Greeting { config: self.config.get(), within: self.within, _place: (room, place) })
    }
}

impl Greeting {
    /// Greets. Whoever does not get through it, or not in time, is not worth more than a word in the log: anybody can knock.
    pub(crate) async fn finish(self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let greeted = TlsAcceptor::from(self.config).accept(stream);
        match tokio::time::timeout(self.within, greeted).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client did not get through the TLS greeting");
                None
            }
            Err(_) => {
                tracing::debug!("a client was too slow with the TLS greeting");
                None
            }
        }
    }
}

/// Whether both sides have agreed on HTTP/2.
pub(crate) fn speaks_h2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(H2)
}

/// A connection, encrypted or not.
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl Socket {
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// The same call on whichever it is.
macro_rules! on_either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Socket::Plain($stream) => $call,
            Socket::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        on_either!(self, stream => Pin::new(stream).poll_write(cx, from))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_either!(self, stream => Pin::new(stream).poll_write_vectored(cx, from))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
