//! TLS below the frames, for those who want it: certificates from files, sockets that encrypt, errors for people.
//!
//! A frame is written on the thread that sends it, so TLS is `rustls` as the state machine that it is, behind a lock and without
//! a runtime's wrapper around it: what is written is encrypted at once, and what the socket does not take of
//! that goes first the next time. Files are read again when they change. Who comes back is remembered, by both sides and in memory
//! only (`rustls`' own doing, for as long as its configuration is kept, so until files change). Only TLS 1.3, since both sides are ours (`docs/adr/0064-tls.md`).

pub mod files;
mod names;
mod reload;

pub use names::RoleNames;
pub use reload::Reloading;

use crate::codec::Role;
use crate::lost::Lost;
use crate::stream::Address;
use bytes::BufMut;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, ServerConfig,
    ServerConnection,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead as _, IoSlice, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long somebody who is refused has to read why.
const LINGER: Duration = Duration::from_millis(200);

/// Files with what a process shows of itself and whom it believes. PEM, as every tool writes it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsFiles {
    /// Its certificate, and those between it and the authority.
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
    /// Certificates of the authorities that are believed.
    pub ca: Option<PathBuf>,
    /// The name in the nodes' certificates, where they are reached under others.
    pub name: Option<String>,
    /// The names that a certificate must have for what its owner does, where certificates are asked for.
    pub roles: RoleNames,
}

/// How connections are taken in.
#[derive(Clone)]
pub struct TlsAccept {
    config: Arc<Reloading<ServerConfig>>,
    roles: RoleNames,
}

/// How connections are made.
#[derive(Clone)]
pub struct TlsConnect {
    config: Arc<Reloading<ClientConfig>>,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for TlsAccept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsAccept(...)")
    }
}

impl fmt::Debug for TlsConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnect(...)")
    }
}

impl TlsAccept {
    /// Whether one whose certificate has these names may come as what it says it is.
    pub(crate) fn allows(&self, role: Role, names: &[String]) -> Result<(), Lost> {
        self.roles.allow(role, names)
    }
}

impl TlsFiles {
    fn is_unset(&self) -> bool {
        let Self { cert, key, ca, name, roles: _ } = self;
        (cert, key, ca, name) == (&None, &None, &None, &None)
    }

    fn files(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key, &self.ca].into_iter().flatten().cloned().collect()
    }

    /// For a node. `None` if nothing is set; with `ca`, whoever connects must show a certificate as well, with a name for its role.
    pub fn accept(&self) -> Result<Option<TlsAccept>, String> {
        if self.is_unset() {
            return Ok(None);
        }
        let files = self.clone();
        let config = Reloading::new(self.files(), move || files.server())?;
        Ok(Some(TlsAccept { config, roles: self.roles.clone() }))
    }

    fn server(&self) -> Result<Arc<ServerConfig>, String> {
        let Some((chain, key)) = self.own()? else {
            return Err("`tls`: a node needs a certificate to show; set tls.cert and tls.key".into());
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| format!("`tls`: {error}"))?;
        let builder = match &self.ca {
            Some(ca) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    Arc::new(files::authorities("tls.ca", ca)?),
                    provider,
                );
                let verifier = verifier.build().map_err(|error| format!("`tls.ca`: {error}"))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| unusable(&error))?;
        Ok(Arc::new(config))
    }

    /// For whoever connects to nodes. `None` if nothing is set; with `cert`, it shows that.
    pub fn connect(&self) -> Result<Option<TlsConnect>, String> {
        if self.is_unset() {
            return Ok(None);
        }
        let name = self.name.clone().map(|name| {
            let wrong = format!("`tls.name`: `{name}` is no host name");
            ServerName::try_from(name).map_err(|_| wrong)
        });
        let name = name.transpose()?;
        let files = self.clone();
        Ok(Some(TlsConnect { config: Reloading::new(self.files(), move || files.client())?, name }))
    }

    fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let Some(ca) = &self.ca else {
            return Err("`tls`: whom the nodes' certificates are to come from is not set; set tls.ca".into());
        };
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(
            Arc::new(files::authorities("tls.ca", ca)?),
            Arc::clone(&provider),
        );
        let verifier = verifier.build().map_err(|error| format!("`tls.ca`: {error}"))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| format!("`tls`: {error}"))?
            .with_webpki_verifier(verifier);
        let config = match self.own()? {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| unusable(&error))?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    fn own(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, String> {
        let (cert, key) = match (&self.cert, &self.key) {
            (None, None) => return Ok(None),
            (Some(cert), Some(key)) => (cert, key),
            (Some(_), None) => {
                return Err("`tls.cert` is set and `tls.key` is not; they belong together".into());
            }
            (None, Some(_)) => {
                return Err("`tls.key` is set and `tls.cert` is not; they belong together".into());
            }
        };
        Ok(Some((files::certificates("tls.cert", cert)?, files::private_key("tls.key", key)?)))
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
fn unusable(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "`tls.key` is not the key of `tls.cert`".into(),
        other => format!("`tls.cert` and `tls.key` cannot be used: {}", words(other)),
    }
}

/// What went wrong, and what to do.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
fn words(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(why) => certificate_words(why),
        E::NoCertificatesPresented => {
            "the other side shows no certificate, which `tls.ca` here asks for; it needs tls.cert and tls.key"
                .into()
        }
        E::AlertReceived(AlertDescription::CertificateRequired) => {
            "the other side wants a certificate from this one; set tls.cert and tls.key".into()
        }
        E::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied),
        ) => format!("the other side does not accept this one's certificate ({alert:?})"),
        E::InvalidMessage(_) | E::InappropriateMessage { .. } => {
            "the other side does not speak TLS; either all processes of a cluster have `tls` set, or none"
                .into()
        }
        other => other.to_string(),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
fn certificate_words(why: &CertificateError) -> String {
    match why {
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is not for `{}` but for {}; it needs that name, or set tls.name to one that it has",
            expected.to_str(),
            if presented.is_empty() { "nobody".to_owned() } else { presented.join(", ") }
        ),
        CertificateError::NotValidForName => "its certificate is for another name".into(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; perhaps a clock is wrong".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate does not come from whom `tls.ca` names".into()
        }
        other => format!("its certificate is not accepted: {other:?}"),
    }
}

fn broken(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words(error))
}

/// A TCP connection that is encrypted.
pub(crate) struct TlsStream {
    socket: TcpStream,
    session: Mutex<Connection>,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TlsStream {
    pub(crate) async fn accept(socket: TcpStream, tls: &TlsAccept) -> io::Result<Self> {
        let session = ServerConnection::new(tls.config.get()).map_err(|error| broken(&error))?;
        let stream = Self::new(socket, session.into());
        let greeted = stream.greet().await;
        if greeted.is_err() {
            stream.linger().await;
        }
        greeted.map(|()| stream)
    }

    pub(crate) async fn connect(socket: TcpStream, address: &Address, tls: &TlsConnect) -> io::Result<Self> {
        let name = tls.name.clone().map_or_else(|| host(address), Ok)?;
        let session = ClientConnection::new(tls.config.get(), name).map_err(|error| broken(&error))?;
        let stream = Self::new(socket, session.into());
        stream.greet().await.map(|()| stream)
    }

    fn new(socket: TcpStream, session: Connection) -> Self {
        Self { socket, session: Mutex::new(session) }
    }

    async fn greet(&self) -> io::Result<()> {
        loop {
            if !self.try_flush()? {
                self.socket.writable().await?;
            } else if !self.lock().is_handshaking() {
                return Ok(());
            } else if !self.take_in()? {
                self.socket.readable().await?;
            }
        }
    }

    /// After a refusal: a socket that is closed while something is unread takes back its last words.
    async fn linger(&self) {
        let mut unread = [0; 1_024];
        let read = async {
            while self.socket.readable().await.is_ok() {
                match self.socket.try_read(&mut unread) {
                    Ok(1..) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(0) | Err(_) => return,
                }
            }
        };
        let _ = timeout(LINGER, read).await;
    }

    /// Encrypts and writes; what was encrypted before goes first.
    pub(crate) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.lock();
        if !flush(&mut session, &self.socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = session.writer().write_vectored(parts)?;
        flush(&mut session, &self.socket)?;
        Ok(count)
    }

    /// Whether all that was encrypted is written.
    pub(crate) fn try_flush(&self) -> io::Result<bool> {
        flush(&mut self.lock(), &self.socket)
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    pub(crate) async fn read(&self, into: &mut impl BufMut) -> io::Result<usize> {
        loop {
            {
                let mut session = self.lock();
                let mut reader = session.reader();
                match reader.fill_buf() {
                    Ok(plain) => {
                        let count = plain.len().min(into.chunk_mut().len());
                        into.put_slice(&plain[..count]);
                        reader.consume(count);
                        return Ok(count);
                    }
                    // An end without a word is what a process that was killed leaves.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            if !self.take_in()? {
                self.socket.readable().await?;
            }
        }
    }

    /// Reads and decrypts what has come; false if nothing has.
    fn take_in(&self) -> io::Result<bool> {
        let mut session = self.lock();
        match session.read_tls(&mut Raw(&self.socket)) {
            // The end; what is still to be read of it says which one.
            Ok(0) if session.is_handshaking() => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                let processed = session.process_new_packets();
                // Also what it has to say of an error.
                let flushed = flush(&mut session, &self.socket);
                processed.map_err(|error| broken(&error))?;
                flushed.map(|_| true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The host names in the certificate that the other side showed, if it showed one.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        let session = self.lock();
        session.peer_certificates()?.first().map(names::names_of)
    }

    /// Whether both sides remembered each other, and no certificate had to be shown.
    #[cfg(test)]
    pub(crate) fn is_resumed(&self) -> bool {
        self.lock().handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn flush(session: &mut Connection, socket: &TcpStream) -> io::Result<bool> {
    while session.wants_write() {
        match session.write_tls(&mut Raw(socket)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Who must be there: the host that is connected to.
fn host(address: &Address) -> io::Result<ServerName<'static>> {
    let text = address.to_string();
    let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let wrong = format!("`{host}` is no name that a certificate can have; set tls.name");
    ServerName::try_from(host).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, wrong))
}

/// A socket as `rustls` wants it.
struct Raw<'a>(&'a TcpStream);

impl Read for Raw<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
