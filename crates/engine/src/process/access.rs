//! What a runner is handed to reach its server: the token that the server wants to see, and from whom it is believed who the server
//! is. Both are files of the node's, read with every load, so that new ones need no restart.

use super::ProcessConfig;
use crate::control::{MAX_BESIDE, Secret};
use crate::runner;
use crate::shm::Mapping;
use modelless_types::Engine as Kind;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where machines keep the certificates of all whom they believe.
pub const USUAL_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// How a certificate begins.
const BEGINS: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Files about a server that runners may reach.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerFiles {
    /// The token that it wants to see.
    pub token: Option<PathBuf>,
    /// Certificates of the authorities that its own may come from. `None`: those that this machine believes.
    pub ca: Option<PathBuf>,
}

/// What a runner is handed.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub(super) token: Option<Secret>,
    /// In PEM.
    pub(super) roots: Option<OwnedFd>,
}

/// For the server that an artefact is on. An artefact that is none says so when it is loaded.
pub(super) fn of(config: &ProcessConfig, artefact: &File) -> Result<Access, String> {
    if config.engine != Kind::Remote {
        return Ok(Access::default());
    }
    let Some((server, certified)) = runner::remote_certified(artefact) else { return Ok(Access::default()) };
    let files = config.servers.get(&server).cloned().unwrap_or_default();
    let token = files.token.as_deref().map(Secret::read).transpose()?;
    let roots = certified.then(|| roots(files.ca.as_deref(), &server)).transpose()?;
    Ok(Access { token, roots })
}

fn roots(ca: Option<&Path>, server: &str) -> Result<OwnedFd, String> {
    let usual = || USUAL_AUTHORITIES.iter().map(Path::new).find(|path| path.is_file());
    let path = ca.or_else(usual).ok_or_else(|| {
        format!(
            "this machine has no certificates of authorities in a usual place: name those of {server} with `ca` under [remotes] in \
             the node's file"
        )
    })?;
    let wrong = |why: String| format!("the certificates of authorities in {} {why}", path.display());
    let unread = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unread)?;
    file.take(MAX_BESIDE + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > MAX_BESIDE {
        return Err(wrong(format!("take more than {MAX_BESIDE} bytes")));
    }
    if !bytes.windows(BEGINS.len()).any(|part| part == BEGINS) {
        return Err(wrong("are none: it must be a PEM file".to_owned()));
    }
    let (memory, mapping) = Mapping::create("authorities", bytes.len()).map_err(unread)?;
    mapping.write(0, &bytes);
    Ok(memory)
}
