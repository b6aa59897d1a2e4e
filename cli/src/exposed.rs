//! Addresses that others can reach: served only where keys keep them out, or where somebody says that nothing need.

use crate::exit::usage;
use modelless_store::Store;
use std::net::SocketAddr;

/// Whether these may be served. `way_out` is what says that everybody may, `store` how the store is named to `modelless key`.
pub(crate) async fn check(
    store: &dyn Store,
    addresses: impl IntoIterator<Item = SocketAddr>,
    (insecure, way_out): (bool, &str),
    place: &str,
) -> anyhow::Result<()> {
    let open: Vec<SocketAddr> = addresses.into_iter().filter(|address| !address.ip().is_loopback()).collect();
    let Some(first) = open.first() else { return Ok(()) };
    if store.access().doors().await?.locked {
        return Ok(());
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

    async fn checked(store: &MemStore, address: &str, insecure: bool) -> anyhow::Result<()> {
        check(store, [address.parse()?], (insecure, "--insecure"), "--data /x").await
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
        // Without a key that is valid nobody gets in, so it stays shut.
        store.access().revoke_key(key.id, UnixMicros(2)).await.unwrap();
        checked(&store, "0.0.0.0:8080", false).await.unwrap();
    }
}
