//! Certificates of an authority made here, for clusters whose connections are encrypted.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::Path;

/// Writes an authority's certificate (`ca.pem`), and one with its key for each of these names (`NAME.pem`, `NAME.key`).
pub fn write(folder: &Path, names: &[&str]) -> Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    fs::write(folder.join("ca.pem"), params.self_signed(&key)?.pem())?;
    let authority = Issuer::new(params, key);
    for name in names {
        let key = KeyPair::generate()?;
        let signed = CertificateParams::new(vec![(*name).to_owned()])?.signed_by(&key, &authority)?;
        fs::write(folder.join(format!("{name}.pem")), signed.pem())?;
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}
