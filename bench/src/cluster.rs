//! What takes part in a cluster of real processes.

use anyhow::Result;
use modelless_store::{Store, identity};
use std::fs::File;
use std::io::Read as _;

/// What whoever serves this store is told by, in greetings and in Redis.
pub async fn identity_of(store: &dyn Store) -> Result<String> {
    let mut candidate = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut candidate)?;
    Ok(identity(store, candidate).await?)
}
