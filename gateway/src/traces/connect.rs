//! A connection to a collector, by TLS where its address says so.

use crate::tls::Socket;
use modelless_wire::tls_files;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where machines keep the certificates of all whom they believe.
const USUAL: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How connections are made.
pub(super) struct Outgoing {
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Outgoing {
    pub(super) fn new(tls: bool, host: &str, ca: Option<&Path>) -> Result<Self, String> {
        if !tls {
            return Ok(Self { tls: None });
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("traces.endpoint: {host:?} is no name that a certificate could have"))?;
        let roots = match ca {
            Some(path) => tls_files::authorities("traces.ca", path)?,
            None => usual()?,
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: Some((TlsConnector::from(Arc::new(config)), name)) })
    }

    pub(super) async fn connect(&self, host: &str, port: u16) -> Result<Socket, String> {
        let failed = |error: io::Error| error.to_string();
        let socket = TcpStream::connect((host, port)).await.map_err(failed)?;
        Ok(match &self.tls {
            None => Socket::Plain(socket),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), socket).await.map_err(failed)?;
                Socket::Tls(Box::new(stream.into()))
            }
        })
    }
}

/// What the machine believes; what in it cannot be used is passed over, as everybody does.
fn usual() -> Result<RootCertStore, String> {
    let path = USUAL.into_iter().map(Path::new).find(|path| path.exists()).ok_or_else(|| {
        "this machine has no certificates of authorities; name a file of the collector's in traces.ca"
            .to_owned()
    })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(tls_files::certificates("traces.ca", path)?);
    Ok(roots)
}
