//! What a node's file says of servers that variants of the engine `remote` are on.

use super::node::Price;
use modelless_executor::RemoteServer;
use modelless_types::PricePerHour;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One of them.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RemoteEntry {
    price: Option<Price>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
}

/// By `HOST:PORT`, however the file names them. Paths are from the folder of the file. What is wrong is said in words that
/// follow the file's name.
pub(super) fn servers(
    entries: BTreeMap<String, RemoteEntry>,
    folder: &Path,
) -> Result<BTreeMap<String, RemoteServer>, String> {
    let mut known = BTreeMap::new();
    for (name, RemoteEntry { price, token_file, ca }) in entries {
        let price = price.map(|price| {
            let text = price.text();
            let known = PricePerHour::parse_usd(&text);
            known.ok_or_else(|| {
                format!("remotes {name:?}: price {text} is no price; expected dollars per hour such as 0.05")
            })
        });
        let file = |file: Option<PathBuf>| file.map(|file| folder.join(file));
        let of = RemoteServer { price: price.transpose()?, token_file: file(token_file), ca: file(ca) };
        known.insert(name, of);
    }
    by_authority(known).map_err(|why| format!("remotes {why}"))
}

/// The same servers by `HOST:PORT`, which is how they are looked for.
pub(crate) fn by_authority(
    known: BTreeMap<String, RemoteServer>,
) -> Result<BTreeMap<String, RemoteServer>, String> {
    let mut servers = BTreeMap::new();
    for (name, known) in known {
        let wrong = |why: String| format!("{name:?}: {why}");
        let url = if name.contains("://") { name.clone() } else { format!("http://{name}") };
        let server = modelless_engine::remote_authority_of(&url).map_err(wrong)?;
        if servers.insert(server.clone(), known).is_some() {
            return Err(wrong(format!("{server} is there twice")));
        }
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_by_host_and_port_however_they_are_written() {
        let of = |names: &[&str]| {
            by_authority(names.iter().map(|name| ((*name).to_owned(), RemoteServer::default())).collect())
        };
        let found =
            of(&["10.0.0.7:8001", "http://models.example", "https://t.example", "grpcs://g.example:9"]);
        assert_eq!(
            found.unwrap().keys().collect::<Vec<_>>(),
            ["10.0.0.7:8001", "g.example:9", "models.example:80", "t.example:443"]
        );
        assert!(of(&["http://h", "h:80"]).unwrap_err().contains("twice"));
        assert!(of(&["ftp://h"]).unwrap_err().contains("https://"));
    }
}
