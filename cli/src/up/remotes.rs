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
}

/// By `HOST:PORT`, however the file names them. Paths are from the folder of the file. What is wrong is said in words that
/// follow the file's name.
pub(super) fn servers(
    entries: BTreeMap<String, RemoteEntry>,
    folder: &Path,
) -> Result<BTreeMap<String, RemoteServer>, String> {
    let mut servers = BTreeMap::new();
    for (name, RemoteEntry { price, token_file }) in entries {
        let wrong = |why: String| format!("remotes {name:?}: {why}");
        let url = if name.contains("://") { name.clone() } else { format!("http://{name}") };
        let server = modelless_engine::remote_authority_of(&url).map_err(wrong)?;
        let price = price.map(|price| {
            let text = price.text();
            let known = PricePerHour::parse_usd(&text);
            known.ok_or_else(|| {
                wrong(format!("price {text} is no price; expected dollars per hour such as 0.05"))
            })
        });
        let known =
            RemoteServer { price: price.transpose()?, token_file: token_file.map(|file| folder.join(file)) };
        if servers.insert(server.clone(), known).is_some() {
            return Err(wrong(format!("{server} is there twice")));
        }
    }
    Ok(servers)
}
