//! Brings a database to the version this program knows, or says why not.
//!
//! Our own few lines rather than the driver's migrator: that one does not lock on SQLite, commits step by step,
//! and cannot tell somebody else's database from an empty one.

use super::conn::{Db, Tx, args};
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// Every step, oldest first. A released one never changes.
const STEPS: [(i64, &str, &str); 17] = [
    (1, "foundation", include_str!("../../../../migrations/0001_foundation.sql")),
    (2, "batching", include_str!("../../../../migrations/0002_batching.sql")),
    (3, "accuracy_rule", include_str!("../../../../migrations/0003_accuracy_rule.sql")),
    (4, "measuring", include_str!("../../../../migrations/0004_measuring.sql")),
    (5, "node_holders", include_str!("../../../../migrations/0005_node_holders.sql")),
    (6, "versions", include_str!("../../../../migrations/0006_versions.sql")),
    (7, "live", include_str!("../../../../migrations/0007_live.sql")),
    (9, "way_back", include_str!("../../../../migrations/0009_way_back.sql")),
    (10, "access", include_str!("../../../../migrations/0010_access.sql")),
    (11, "events", include_str!("../../../../migrations/0011_events.sql")),
    (12, "machines", include_str!("../../../../migrations/0012_machines.sql")),
    (13, "cache", include_str!("../../../../migrations/0013_cache.sql")),
    (14, "jobs", include_str!("../../../../migrations/0014_jobs.sql")),
    (15, "sleep", include_str!("../../../../migrations/0015_sleep.sql")),
    (16, "trials", include_str!("../../../../migrations/0016_trials.sql")),
    (17, "policies", include_str!("../../../../migrations/0017_policies.sql")),
    (18, "ahead", include_str!("../../../../migrations/0018_ahead.sql")),
];

/// The newest version known here.
pub(crate) const KNOWN: i64 = STEPS[STEPS.len() - 1].0;

/// Any number nobody else is likely to take an advisory lock on: "modeless" in ASCII.
const POSTGRES_LOCK: i64 = 0x6d6f_6465_6c65_7373;

/// Runs the missing steps, all or none.
pub(crate) async fn migrate(db: &Db) -> Result<()> {
    let mut tx = db.begin().await?;
    if !tx.is_sqlite() {
        tx.fetch("SELECT 1 FROM (SELECT pg_advisory_xact_lock($1)) AS locked", args![POSTGRES_LOCK]).await?;
    }
    let found = version(&mut tx).await?;
    let done = if found == 0 { BTreeSet::new() } else { applied(&mut tx).await? };
    if STEPS.iter().all(|(version, ..)| done.contains(version)) {
        return Ok(());
    }
    if found == 0 {
        tx.script("CREATE TABLE modelless_schema (version BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL)")
            .await?;
    }
    for (version, name, text) in STEPS.into_iter().filter(|(version, ..)| !done.contains(version)) {
        tx.script(text).await?;
        tx.exec("INSERT INTO modelless_schema (version, name) VALUES ($1, $2)", args![version, name]).await?;
    }
    tracing::info!(database = %db.name, from = found, to = KNOWN, "database brought up to date");
    tx.commit().await
}

/// The steps that were run. Two that were made side by side may have come in either order.
async fn applied(tx: &mut Tx) -> Result<BTreeSet<i64>> {
    let name = tx.name();
    let rows = tx.fetch("SELECT version FROM modelless_schema", Vec::new()).await?;
    rows.iter().map(|row| row.read(&name).int()).collect()
}

/// The version of a database of ours, 0 for an empty one, an error for one that must not be touched.
pub(crate) async fn version(tx: &mut Tx) -> Result<i64> {
    let name = tx.name();
    let tables = tx
        .fetch(
            if tx.is_sqlite() {
                "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
            } else {
                "SELECT table_name::text FROM information_schema.tables \
                 WHERE table_schema = current_schema() ORDER BY table_name"
            },
            Vec::new(),
        )
        .await?;
    let tables: Vec<String> = tables.iter().map(|row| row.read(&name).text()).collect::<Result<_>>()?;
    let Some(first) = tables.first() else {
        return Ok(0);
    };
    let not_ours = |why: String| Error::NotOurs { database: name.to_string(), why };
    if !tables.iter().any(|table| table == "modelless_schema") {
        return Err(not_ours(format!("it has other tables, such as {first:?}")));
    }
    let found = tx.first("SELECT max(version) FROM modelless_schema", Vec::new()).await?;
    let found = match found {
        Some(row) => row.read(&name).opt_int()?,
        None => None,
    };
    match found {
        Some(found) if found > KNOWN => {
            Err(Error::NewerDatabase { database: name.to_string(), found, known: KNOWN })
        }
        Some(found) if found > 0 => Ok(found),
        _ => Err(not_ours("its table of versions is empty".to_owned())),
    }
}
