//! Certificates of an authority made here, for clusters and servers whose connections are encrypted.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};
use std::fs;
use std::path::{Path, PathBuf};

/// An authority, and the folder with what it signed.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Writes its certificate (`ca.pem`).
    pub fn new(folder: &Path) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        // Else its name is that of what it signs, which OpenSSL takes for signed by itself.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        fs::write(folder.join("ca.pem"), params.self_signed(&key)?.pem())?;
        Ok(Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a certificate for a name, which may be an address, with its key (`NAME.pem`, `NAME.key`).
    pub fn sign(&self, name: &str) -> Result<()> {
        self.write(name, &CertificateParams::new(vec![name.to_owned()])?)
    }

    /// The same of one that was good for a year, long ago.
    pub fn sign_expired(&self, name: &str) -> Result<()> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.write(name, &params)
    }

    fn write(&self, name: &str, params: &CertificateParams) -> Result<()> {
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.issuer)?;
        fs::write(self.folder.join(format!("{name}.pem")), signed.pem())?;
        fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem())?;
        Ok(())
    }
}

/// Writes an authority's certificate (`ca.pem`), and one with its key for each of these names (`NAME.pem`, `NAME.key`).
pub fn write(folder: &Path, names: &[&str]) -> Result<()> {
    let authority = Authority::new(folder)?;
    names.iter().try_for_each(|name| authority.sign(name))
}
