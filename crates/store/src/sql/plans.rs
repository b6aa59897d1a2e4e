//! Plans, each saved only on top of the one it was made from, and named secrets.

use super::conn::{Columns, Db, Row, args, corrupt};
use crate::error::Result;
use crate::records::{Plan, SavePlan, UnixMicros, hex};
use crate::{PLANS_KEPT, check};
use modelless_types::PlanId;

pub(crate) async fn save(db: &Db, parent: Option<PlanId>, json: String, at: UnixMicros) -> Result<SavePlan> {
    check::json("plan", &json)?;
    check::number("time", at.0)?;
    let mut tx = db.begin().await?;
    // Taking the number waits for every other scheduler in the middle of this; then the newest plan is certain.
    let id = tx.next("plans").await?;
    let current = match tx.first("SELECT max(id) FROM plans", Vec::new()).await? {
        Some(row) => row.read(&db.name).opt_int()?,
        None => None,
    };
    let current = current.map(|id| PlanId(id.unsigned_abs()));
    if current != parent {
        return Ok(SavePlan::Lost { current });
    }
    tx.exec(
        "INSERT INTO plans (id, parent, body, at_us) VALUES ($1, $2, $3, $4)",
        args![id, parent.map(|parent| parent.0.cast_signed()), json, at.0.cast_signed()],
    )
    .await?;
    tx.exec("DELETE FROM plans WHERE id <= $1", args![id - PLANS_KEPT.cast_signed()]).await?;
    tx.commit().await?;
    Ok(SavePlan::Saved(PlanId(id.unsigned_abs())))
}

pub(crate) async fn current(db: &Db) -> Result<Option<Plan>> {
    let rows =
        db.fetch("SELECT id, parent, body, at_us FROM plans ORDER BY id DESC LIMIT 1", Vec::new()).await?;
    first(db, &rows)
}

pub(crate) async fn latest(db: &Db, limit: u32) -> Result<Vec<Plan>> {
    let sql = "SELECT id, parent, body, at_us FROM plans ORDER BY id DESC LIMIT $1";
    db.fetch(sql, args![limit]).await?.iter().map(|row| plan(row.read(&db.name))).collect()
}

pub(crate) async fn get(db: &Db, id: PlanId) -> Result<Option<Plan>> {
    let Ok(id) = i64::try_from(id.0) else { return Ok(None) };
    let rows = db.fetch("SELECT id, parent, body, at_us FROM plans WHERE id = $1", args![id]).await?;
    first(db, &rows)
}

fn first(db: &Db, rows: &[Row]) -> Result<Option<Plan>> {
    rows.first().map(|row| plan(row.read(&db.name))).transpose()
}

fn plan(mut row: Columns<'_>) -> Result<Plan> {
    Ok(Plan {
        id: PlanId(row.num()?),
        parent: row.opt_int()?.map(|parent| PlanId(parent.unsigned_abs())),
        json: row.text()?,
        at: UnixMicros(row.num()?),
    })
}

pub(crate) async fn secret(db: &Db, name: &str, candidate: [u8; 32]) -> Result<[u8; 32]> {
    check::name("key", name)?;
    let mut tx = db.begin().await?;
    // Waits for whoever is inserting the same name, so that one of the two is seen by both.
    tx.exec(
        "INSERT INTO keys (name, secret) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
        args![name, hex(&candidate)],
    )
    .await?;
    let row = tx.first("SELECT secret FROM keys WHERE name = $1", args![name]).await?;
    tx.commit().await?;
    let text = match row {
        Some(row) => row.read(&db.name).text()?,
        None => return Err(corrupt(&db.name, "a key vanished while it was read")),
    };
    unhex(&text).ok_or_else(|| corrupt(&db.name, format!("the key {name:?} is not 32 bytes")))
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}
