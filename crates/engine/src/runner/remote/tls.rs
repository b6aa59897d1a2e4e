//! TLS to a server: whom it is believed from, and what is encrypted on its way.
//!
//! `rustls` is used as the state machine that it is: a socket that waits until a moment at most does the waiting, or one that
//! never waits where HTTP/2 does. The certificates that are believed come along with each load (`crate::process::trust`): a
//! runner opens no file. Which versions and why two of them: `docs/adr/0139-tls-to-remote-servers.md`.

use super::http::{Scheme, Server, nonsense};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Who a server has to be, and from whom that is believed.
#[derive(Clone)]
pub(super) struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Trust").field(&self.name).finish()
    }
}

impl Trust {
    /// `roots`: certificates of the authorities that are believed, in PEM. What of them is no certificate is passed over, as
    /// long as one is: collections of a machine have old ones among them that nothing can read.
    pub(super) fn new(server: &Server, roots: &[u8]) -> Result<Self, String> {
        let host = server.host();
        let wrong = |_| format!("`url` names {host:?}, which no certificate can be for");
        let name = ServerName::try_from(host.to_owned()).map_err(wrong)?;
        let mut known = RootCertStore::empty();
        let (usable, others) =
            known.add_parsable_certificates(CertificateDer::pem_slice_iter(roots).flatten());
        if usable == 0 {
            return Err(format!(
                "of the certificates of authorities for {host} none can be used ({others} of them cannot be read): `ca` names a \
                 PEM file"
            ));
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(known), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|error| error.to_string())?;
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| error.to_string())?;
        let mut config = config.with_webpki_verifier(verifier).with_no_client_auth();
        config.alpn_protocols = vec![match server.scheme {
            Scheme::Http => b"http/1.1".to_vec(),
            Scheme::Grpc => b"h2".to_vec(),
        }];
        Ok(Self { config: Arc::new(config), name })
    }
}

/// What one connection has agreed upon.
#[derive(Debug)]
pub(super) struct Session(Box<ClientConnection>);

impl Session {
    /// Agrees with the server, once it has shown who it is. The socket waits.
    pub(super) fn begin(trust: &Trust, socket: &mut (impl Read + Write)) -> io::Result<Self> {
        let session = ClientConnection::new(Arc::clone(&trust.config), trust.name.clone());
        let mut session = Self(Box::new(session.map_err(|error| broken(&error))?));
        session.flush(socket)?;
        while session.0.is_handshaking() {
            if session.take_in(socket)? == 0 {
                return Err(nonsense("it hung up before it had shown who it is"));
            }
            session.flush(socket)?;
        }
        Ok(session)
    }

    /// What has come, decrypted; nothing at the end. Asks the socket until there is something.
    pub(super) fn read(&mut self, socket: &mut (impl Read + Write), into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Whoever cuts a connection could cut an answer short: only what the server says itself is an end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "it hung up in the middle of an answer",
                    ));
                }
                other => return other,
            }
            self.take_in(socket)?;
        }
    }

    /// Encrypts and writes as much as goes out; the rest goes first the next time.
    pub(super) fn write(&mut self, socket: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
        self.flush(socket)?;
        let count = self.0.writer().write(bytes)?;
        match self.flush(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(count),
        }
    }

    /// Writes all that was encrypted.
    pub(super) fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.0.wants_write() {
            match self.0.write_tls(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Something was encrypted that did not go out yet.
    #[cfg(feature = "grpc")]
    pub(super) fn is_blocked(&self) -> bool {
        self.0.wants_write()
    }

    /// Reads and decrypts once. How much came.
    fn take_in(&mut self, socket: &mut (impl Read + Write)) -> io::Result<usize> {
        let count = loop {
            match self.0.read_tls(socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if let Err(error) = self.0.process_new_packets() {
            // The server is told as well, if it can be.
            let _ = self.flush(socket);
            return Err(broken(&error));
        }
        Ok(count)
    }
}

fn broken(error: &Error) -> io::Error {
    nonsense(&words(error))
}

/// What is wrong, and what to do.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
fn words(error: &Error) -> String {
    let asks = "it wants a certificate of whoever calls, and this engine shows none; a proxy that has one, on this machine, will do";
    match error {
        Error::InvalidCertificate(why) => distrust(why),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "it does not speak TLS; is `url` to begin with http:// or grpc://?".to_owned()
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => asks.to_owned(),
        Error::AlertReceived(alert) => {
            format!("it broke TLS off ({alert:?}); TLS 1.2 and 1.3 are spoken here")
        }
        other => other.to_string(),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
fn distrust(why: &CertificateError) -> String {
    use CertificateError as Why;
    let what = match why {
        Why::Expired | Why::ExpiredContext { .. } => "has expired",
        Why::NotValidYet | Why::NotValidYetContext { .. } => "is not valid yet; perhaps a clock is wrong",
        Why::UnknownIssuer | Why::BadSignature => {
            "comes from no authority that is believed here; name its authority's with `ca` under [remotes] in the node's file"
        }
        Why::NotValidForNameContext { expected, presented } => {
            let names = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            return format!(
                "its certificate is for {names} and not for {}: `url` has to have a name of the certificate's",
                expected.to_str()
            );
        }
        other => return format!("its certificate is not accepted: {other:?}"),
    };
    format!("its certificate {what}")
}
