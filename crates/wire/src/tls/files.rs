//! Certificates and keys in PEM files, read for whoever speaks TLS: `setting` is what the file is called there, for people.

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

/// All certificates of a file; at least one.
pub fn certificates(setting: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unread = |error: pem::Error| unread(setting, path, &error, "certificate");
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(unread)?.collect();
    let all = all.map_err(unread)?;
    if all.is_empty() {
        return Err(unread(pem::Error::NoItemsFound));
    }
    Ok(all)
}

/// The first private key of a file.
pub fn private_key(setting: &str, path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unread(setting, path, &error, "private key"))
}

/// The authorities of a file, each of which must be usable.
pub fn authorities(setting: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, path)? {
        let added = roots.add(certificate);
        added.map_err(|error| {
            format!("`{setting}`: {}: it holds what is no authority: {error}", path.display())
        })?;
    }
    Ok(roots)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open list; what is not named here says it itself")]
fn unread(setting: &str, path: &Path, error: &pem::Error, what: &str) -> String {
    let path = path.display();
    match error {
        pem::Error::NoItemsFound => format!("`{setting}`: {path} holds no {what} in PEM"),
        pem::Error::Io(error) => format!("`{setting}`: cannot read {path}: {error}"),
        other => format!("`{setting}`: {path} is no PEM file: {other}"),
    }
}
