//! Who measures what, and with what: see [`crate::Measuring`].

use super::conn::{Db, Tx, args};
use crate::check;
use crate::error::{Error, Result};
use crate::records::{Evidence, Measuring, UnixMicros};
use modelless_types::{ModelId, Profile, VariantId};

pub(crate) async fn keep_evidence(tx: &mut Tx, model: ModelId, evidence: &Evidence) -> Result<()> {
    let body =
        serde_json::to_string(evidence).map_err(|error| Error::invalid("evidence", error.to_string()))?;
    tx.exec("INSERT INTO evidence (model, body) VALUES ($1, $2)", args![model.0, body]).await.map(|_| ())
}

const EVIDENCE: &str = "SELECT body FROM evidence WHERE model = $1";

pub(crate) async fn evidence(db: &Db, model: ModelId) -> Result<Evidence> {
    let rows = db.fetch(EVIDENCE, args![model.0]).await?;
    rows.first().map_or_else(|| Ok(Evidence::default()), |row| row.read(&db.name).json())
}

/// The same within a transaction.
pub(super) async fn evidence_in(db: &Db, tx: &mut Tx, model: ModelId) -> Result<Evidence> {
    let row = tx.first(EVIDENCE, args![model.0]).await?;
    row.map_or_else(|| Ok(Evidence::default()), |row| row.read(&db.name).json())
}

/// In place of what there is.
pub(super) async fn change_evidence(tx: &mut Tx, model: ModelId, evidence: &Evidence) -> Result<()> {
    tx.exec("DELETE FROM evidence WHERE model = $1", args![model.0]).await?;
    keep_evidence(tx, model, evidence).await
}

/// Whoever claims a variant, measured it, or removes it stands in line with the others: else a claim that found no
/// profile could be written after the profile was, and nobody would ever end it. SQLite has one writer anyway.
pub(crate) async fn lock(tx: &mut Tx, variant: VariantId) -> Result<()> {
    let sql = if tx.is_sqlite() {
        "SELECT id FROM variants WHERE id = $1"
    } else {
        "SELECT id FROM variants WHERE id = $1 FOR UPDATE"
    };
    let there = tx.first(sql, args![variant.0]).await?;
    there.map(|_| ()).ok_or_else(|| Error::not_found("variant", variant))
}

/// The same for all variants of a model.
pub(crate) async fn lock_all(tx: &mut Tx, model: ModelId) -> Result<()> {
    let sql = if tx.is_sqlite() {
        "SELECT id FROM variants WHERE model = $1 ORDER BY id"
    } else {
        "SELECT id FROM variants WHERE model = $1 ORDER BY id FOR UPDATE"
    };
    tx.fetch(sql, args![model.0]).await.map(|_| ())
}

/// The profile that is there, an estimate or not.
pub(crate) async fn known(
    tx: &mut Tx,
    db: &Db,
    variant: VariantId,
    device_class: &str,
) -> Result<Option<Profile>> {
    let sql = "SELECT body FROM profiles WHERE variant = $1 AND device_class = $2";
    let row = tx.first(sql, args![variant.0, device_class]).await?;
    row.map(|row| row.read(&db.name).json()).transpose()
}

pub(crate) async fn claim(db: &Db, wanted: Measuring, now: UnixMicros) -> Result<Option<Measuring>> {
    check::measuring(&wanted, now)?;
    let mut tx = db.begin().await?;
    let place = || args![wanted.variant.0, wanted.device_class.as_str()];
    lock(&mut tx, wanted.variant).await?;
    // An estimate is there until somebody measures, a coarse one until somebody has more time, and one of an unsteady minute
    // until there is a better one.
    let known = known(&mut tx, db, wanted.variant, &wanted.device_class).await?;
    if known.is_some_and(|known| !known.is_estimated() && !known.is_provisional())
        && !super::learnt::is_marked(&mut tx, wanted.variant, &wanted.device_class).await?
    {
        return Ok(None);
    }
    tx.exec(
        "INSERT INTO measurings (variant, device_class, node, until_us, progress, failed, attempts) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) \
         ON CONFLICT (variant, device_class) DO UPDATE SET node = excluded.node, until_us = excluded.until_us, \
         progress = excluded.progress, failed = excluded.failed, attempts = excluded.attempts \
         WHERE measurings.until_us <= $8 OR measurings.node = excluded.node",
        args![
            wanted.variant.0,
            wanted.device_class.as_str(),
            wanted.node.as_str(),
            wanted.until.0.cast_signed(),
            wanted.progress.as_str(),
            wanted.failed.clone(),
            wanted.attempts,
            now.0.cast_signed(),
        ],
    )
    .await?;
    let sql = "SELECT variant, device_class, node, until_us, progress, failed, attempts FROM measurings \
               WHERE variant = $1 AND device_class = $2";
    let stands = tx.first(sql, place()).await?;
    let stands = stands.map(|row| read(row.read(&db.name))).transpose()?;
    tx.commit().await?;
    Ok(stands)
}

pub(crate) async fn all(db: &Db) -> Result<Vec<Measuring>> {
    let sql = "SELECT variant, device_class, node, until_us, progress, failed, attempts FROM measurings \
               ORDER BY variant";
    let rows = db.fetch(sql, Vec::new()).await?;
    let mut all: Vec<_> = rows.iter().map(|row| read(row.read(&db.name))).collect::<Result<_>>()?;
    // Databases differ in how they order texts.
    all.sort_by(|a, b| (a.variant, &a.device_class).cmp(&(b.variant, &b.device_class)));
    Ok(all)
}

/// It has been measured: nobody need do it.
pub(crate) async fn done(tx: &mut Tx, variant: VariantId, device_class: &str) -> Result<()> {
    let sql = "DELETE FROM measurings WHERE variant = $1 AND device_class = $2";
    tx.exec(sql, args![variant.0, device_class]).await.map(|_| ())
}

/// The model is removed.
pub(crate) async fn forget(tx: &mut Tx, model: ModelId) -> Result<()> {
    let sql = "DELETE FROM measurings WHERE variant IN (SELECT id FROM variants WHERE model = $1)";
    tx.exec(sql, args![model.0]).await?;
    tx.exec("DELETE FROM evidence WHERE model = $1", args![model.0]).await.map(|_| ())
}

fn read(mut row: super::conn::Columns<'_>) -> Result<Measuring> {
    Ok(Measuring {
        variant: VariantId(row.num()?),
        device_class: row.text()?,
        node: row.text()?,
        until: UnixMicros(row.num()?),
        progress: row.text()?,
        failed: row.opt_text()?,
        attempts: row.num()?,
    })
}
