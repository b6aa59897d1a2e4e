//! Addresses that others can reach: served only where keys keep them out and TLS keeps those keys, or where somebody says that nothing
//! need.

use crate::exit::usage;
use clap::Args;
use modelless_gateway::{Config, TlsFiles};
use modelless_store::Store;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What is shown to clients.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    /// Certificate (PEM) to show to clients: HTTP and gRPC are then served by TLS only. Read again when it changes.
    #[arg(long = "tls-cert", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key.
    #[arg(long = "tls-key", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Certificates of authorities: clients then have to show a certificate of one of these.
    #[arg(long = "tls-client-ca", value_name = "FILE")]
    client_ca: Option<PathBuf>,
}

impl TlsOptions {
    /// As the gateway takes it, checked as far as the files can be.
    pub(crate) fn files(&self) -> anyhow::Result<TlsFiles> {
        let Self { cert, key, client_ca } = self.clone();
        let files = TlsFiles { cert, key, client_ca };
        files.check().map_err(usage)?;
        Ok(files)
    }

    /// As settings of a gateway's own process.
    pub(crate) fn settings(&self) -> Vec<String> {
        let named = [("cert", &self.cert), ("key", &self.key), ("client_ca", &self.client_ca)];
        let set = |(name, path): (&str, &Option<PathBuf>)| {
            path.as_ref().map(|path| format!("gateway.tls.{name}={}", path.display()))
        };
        named.into_iter().filter_map(set).collect()
    }
}

/// Whether a gateway may serve where it is to. `way_out` is what says that it may in any case, `store` how the store is named to
/// `modelless key`.
pub(crate) async fn check(
    store: &dyn Store,
    gateway: &Config,
    (insecure, way_out): (bool, &str),
    place: &str,
) -> anyhow::Result<()> {
    let addresses = [Some(gateway.http), gateway.grpc].into_iter().flatten();
    let open: Vec<SocketAddr> = addresses.filter(|address| !address.ip().is_loopback()).collect();
    let Some(first) = open.first() else { return Ok(()) };
    if store.access().doors().await?.locked {
        if gateway.tls.is_set() {
            return Ok(());
        }
        if insecure {
            for address in open {
                eprintln!(
                    "WARNING: {address} can be reached by others and is not encrypted: whoever is on the way reads keys, inputs and \
                     answers. --tls-cert and --tls-key encrypt it"
                );
            }
            return Ok(());
        }
        return Err(usage(format!(
            "{first} can be reached by others, and what crosses would not be encrypted: whoever is on the way reads keys. Give a \
             certificate with --tls-cert FILE and --tls-key FILE, or serve on a loopback address such as 127.0.0.1:{} behind a proxy that \
             ends TLS, or say {way_out} if nobody else is on the way",
            first.port()
        )));
    }
    if insecure {
        for address in open {
            eprintln!(
                "WARNING: {address} can be reached by others and there is no key: everybody there may use and change \
                 everything, also make models run that they brought. `modelless key create` makes the first key"
            );
        }
        return Ok(());
    }
    Err(usage(format!(
        "{first} can be reached by others, and there is no key yet to keep them out. Make the first one with\n  \
         modelless key create admin --scopes query,register,admin {place}\n\
         or serve on a loopback address such as 127.0.0.1:{}, or say {way_out} if everybody there may use and change everything",
        first.port()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;
    use modelless_store::{MemStore, NewKey, SecretKey, UnixMicros};
    use modelless_types::{AppId, Scopes};

    async fn served(store: &MemStore, address: &str, tls: bool, insecure: bool) -> anyhow::Result<()> {
        let tls = TlsFiles { cert: tls.then(|| "a.pem".into()), ..TlsFiles::default() };
        let gateway = Config { http: address.parse()?, tls, ..Config::default() };
        check(store, &gateway, (insecure, "--insecure"), "--data /x").await
    }

    async fn checked(store: &MemStore, address: &str, insecure: bool) -> anyhow::Result<()> {
        served(store, address, true, insecure).await
    }

    #[tokio::test]
    async fn what_others_can_reach_needs_keys_or_somebody_who_says_so() {
        let store = MemStore::new();
        for address in ["127.0.0.1:80", "[::1]:80"] {
            checked(&store, address, false).await.unwrap();
        }
        for address in ["0.0.0.0:8080", "192.168.1.1:1", "[::]:80"] {
            let error = checked(&store, address, false).await.unwrap_err();
            let said = error.to_string();
            assert!(
                error.is::<Usage>() && said.contains("--insecure") && said.contains("--data /x"),
                "{said}"
            );
            checked(&store, address, true).await.unwrap();
        }
        let secret = SecretKey::new([1; 32]).kept();
        let key = NewKey {
            app: AppId::DEFAULT,
            name: "first".to_owned(),
            secret,
            scopes: Scopes::ALL,
            at: UnixMicros(1),
            expires: None,
        };
        let key = store.access().create_key(key).await.unwrap();
        checked(&store, "0.0.0.0:8080", false).await.unwrap();
        let error = served(&store, "0.0.0.0:8080", false, false).await.unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("--tls-cert"), "{error}");
        served(&store, "0.0.0.0:8080", false, true).await.unwrap();
        served(&store, "127.0.0.1:8080", false, false).await.unwrap();
        // Without a key that is valid nobody gets in, so it stays shut.
        store.access().revoke_key(key.id, UnixMicros(2)).await.unwrap();
        checked(&store, "0.0.0.0:8080", false).await.unwrap();
    }
}
