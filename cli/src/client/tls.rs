//! `https://` for commands: whom a server is believed from, what is shown to it, and one connector for both schemes.

use crate::exit::usage;
use clap::Args;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use modelless_engine::USUAL_AUTHORITIES;
use modelless_wire::tls_files;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

/// What commands believe and show.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    /// Certificates (PEM) of the authorities that an https:// server's may come from. Otherwise those that this machine believes.
    #[arg(long, value_name = "FILE", env = "MODELLESS_CA")]
    ca: Option<PathBuf>,
    /// A certificate to show to a server that wants one (PEM).
    #[arg(long, value_name = "FILE", env = "MODELLESS_CERT", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", env = "MODELLESS_CERT_KEY", requires = "cert")]
    cert_key: Option<PathBuf>,
}

/// Connects in the clear, or encrypted where the address says so.
#[derive(Clone)]
pub(super) struct Connector {
    http: HttpConnector,
    tls: Option<TlsConnector>,
}

/// What the client passes on.
type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    /// Files are read only where they are needed.
    pub(super) fn new(encrypted: bool, options: &TlsOptions) -> anyhow::Result<Self> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let tls = if encrypted { Some(TlsConnector::from(options.config().map_err(usage)?)) } else { None };
        Ok(Self { http, tls })
    }
}

impl TlsOptions {
    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(self.roots()?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_webpki_verifier(verifier.map_err(|error| format!("--ca: {error}"))?);
        let mut config = match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => {
                let chain = tls_files::certificates("--cert", cert)?;
                let key = tls_files::private_key("--cert-key", key)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| format!("--cert and --cert-key cannot be used: {error}"))?
            }
            (None, _) | (_, None) => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        if let Some(ca) = &self.ca {
            return tls_files::authorities("--ca", ca);
        }
        let usual = USUAL_AUTHORITIES.iter().map(Path::new).find(|path| path.is_file());
        let usual = usual.ok_or(
            "this machine has no certificates of authorities in a usual place; name a file of them with --ca",
        )?;
        // Collections of a machine have old ones among them that nothing can read.
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(tls_files::certificates("--ca", usual)?);
        Ok(roots)
    }
}

/// A connection of either kind.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, Failed>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let connecting = self.http.call(uri);
        let tls = self.tls.clone();
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            let Some(tls) = tls else { return Ok(TokioIo::new(Stream::Plain(stream))) };
            let name = ServerName::try_from(host)?;
            let stream = tls.connect(name, stream).await?;
            Ok(TokioIo::new(Stream::Tls(Box::new(stream))))
        })
    }
}

/// What went wrong with TLS, and what to do; nothing if that was not it. With TLS 1.3 a server says that it does not accept a certificate only when
/// something is asked.
pub(super) fn wrong_with_tls(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    use rustls::Error as E;
    let cause = error.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<E>()?;
    #[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
    let why = match cause {
        E::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate comes from nobody who is believed here; --ca FILE names whom to believe"
                .to_owned()
        }
        E::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("its certificate is for another name: {cause}"),
        E::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a certificate to be shown; give --cert FILE and --cert-key FILE".to_owned()
        }
        E::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::DecryptError,
        ) => "it does not accept the certificate of --cert".to_owned(),
        E::InvalidMessage(_) => "it does not speak TLS; perhaps its address begins with http://".to_owned(),
        other => other.to_string(),
    };
    Some(why)
}

/// The same call on whichever it is.
macro_rules! on_either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain($stream) => $call,
            Stream::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        on_either!(self, stream => Pin::new(stream).poll_write(cx, from))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
