//! What live traffic says of what was measured: see [`crate::StaleProfile`] and [`crate::LiveAccuracy`].

use super::conn::{Columns, Db, Tx, args};
use crate::check;
use crate::error::{Error, Result};
use crate::learnt::{FEEDBACK_KEPT, Feedback, Kept, LiveAccuracy, StaleProfile, Verdict};
use crate::records::UnixMicros;
use modelless_types::{Accuracy, ModelId, VariantId};

const LIVE: &str = "SELECT variant, correct, wrong, flagged_ppm FROM live_accuracies ORDER BY variant";

pub(crate) async fn mark(db: &Db, stale: StaleProfile) -> Result<bool> {
    check::stale(&stale)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    if super::measuring::measured(&mut tx, db, stale.variant, &stale.device_class).await?.is_none() {
        return Ok(false);
    }
    tx.exec(
        "INSERT INTO stale_profiles (variant, device_class, node, ratio_ppm, since_us) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (variant, device_class) DO UPDATE SET node = excluded.node, ratio_ppm = excluded.ratio_ppm",
        args![
            stale.variant.0,
            stale.device_class.as_str(),
            stale.node.as_str(),
            stale.ratio_ppm.cast_signed(),
            stale.since.0.cast_signed(),
        ],
    )
    .await?;
    tx.commit().await?;
    Ok(true)
}

pub(crate) async fn unmark(db: &Db, variant: VariantId, device_class: &str, node: &str) -> Result<bool> {
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let sql = "DELETE FROM stale_profiles WHERE variant = $1 AND device_class = $2 AND node = $3";
    if tx.exec(sql, args![variant.0, device_class, node]).await? == 0 {
        return Ok(false);
    }
    super::measuring::done(&mut tx, variant, device_class).await?;
    tx.commit().await?;
    Ok(true)
}

/// It has been measured again.
pub(crate) async fn measured(tx: &mut Tx, variant: VariantId, device_class: &str) -> Result<()> {
    let sql = "DELETE FROM stale_profiles WHERE variant = $1 AND device_class = $2";
    tx.exec(sql, args![variant.0, device_class]).await.map(|_| ())
}

pub(crate) async fn is_marked(tx: &mut Tx, variant: VariantId, device_class: &str) -> Result<bool> {
    let sql = "SELECT variant FROM stale_profiles WHERE variant = $1 AND device_class = $2";
    Ok(tx.first(sql, args![variant.0, device_class]).await?.is_some())
}

pub(crate) async fn marks(tx: &mut Tx, name: &str) -> Result<Vec<StaleProfile>> {
    let sql = "SELECT variant, device_class, node, ratio_ppm, since_us FROM stale_profiles";
    let mut all = Vec::new();
    for row in tx.fetch(sql, Vec::new()).await? {
        let mut row = row.read(name);
        all.push(StaleProfile {
            variant: VariantId(row.num()?),
            device_class: row.text()?,
            node: row.text()?,
            ratio_ppm: row.num()?,
            since: UnixMicros(row.num()?),
        });
    }
    // Databases differ in how they order texts.
    all.sort_by(|a, b| (a.variant, &a.device_class).cmp(&(b.variant, &b.device_class)));
    Ok(all)
}

pub(crate) async fn put_feedback(db: &Db, given: Vec<Feedback>, expired: UnixMicros) -> Result<Vec<Verdict>> {
    given.iter().try_for_each(check::feedback)?;
    let mut tx = db.begin().await?;
    // Others that count wait until this is done.
    tx.next("feedback").await?;
    tx.exec("DELETE FROM feedback WHERE answered_us < $1", args![expired.0.cast_signed()]).await?;
    let rows = tx.first("SELECT count(*) FROM feedback", Vec::new()).await?;
    let mut rows: u64 = rows.map_or(Ok(0), |row| row.read(&db.name).num())?;
    let mut verdicts = Vec::with_capacity(given.len());
    for one in given {
        let verdict = put_one(db, &mut tx, &one, rows >= FEEDBACK_KEPT).await?;
        rows += u64::from(verdict.kept == Kept::New);
        verdicts.push(verdict);
    }
    tx.commit().await?;
    Ok(verdicts)
}

async fn put_one(db: &Db, tx: &mut Tx, given: &Feedback, full: bool) -> Result<Verdict> {
    let none = LiveAccuracy { variant: given.variant, correct: 0, wrong: 0, flagged: None };
    if tx.first("SELECT id FROM variants WHERE id = $1", args![given.variant.0]).await?.is_none() {
        return Ok(Verdict { kept: Kept::Gone, live: none });
    }
    let sql = "SELECT variant, correct, wrong, flagged_ppm FROM live_accuracies WHERE variant = $1";
    let live = tx.first(sql, args![given.variant.0]).await?;
    let live = live.map_or(Ok(none), |row| read(&mut row.read(&db.name)))?;
    let sql = "SELECT correct FROM feedback WHERE query = $1";
    let before = tx.first(sql, args![given.query.as_str()]).await?;
    let before: Option<u32> = before.map(|row| row.read(&db.name).num()).transpose()?;
    let before = before.map(|correct| correct == 1);
    let Some((kept, live)) = live.with(before, given.correct, full) else {
        return Ok(Verdict { kept: if before.is_some() { Kept::Same } else { Kept::Full }, live });
    };
    let (correct, wrong) = (live.correct.cast_signed(), live.wrong.cast_signed());
    tx.exec(
        "INSERT INTO feedback (query, variant, answered_us, correct) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (query) DO UPDATE SET correct = excluded.correct",
        args![
            given.query.as_str(),
            given.variant.0,
            given.answered.0.cast_signed(),
            u32::from(given.correct)
        ],
    )
    .await?;
    tx.exec(
        "INSERT INTO live_accuracies (variant, correct, wrong) VALUES ($1, $2, $3) \
         ON CONFLICT (variant) DO UPDATE SET correct = excluded.correct, wrong = excluded.wrong",
        args![given.variant.0, correct, wrong],
    )
    .await?;
    Ok(Verdict { kept, live })
}

pub(crate) async fn all(db: &Db) -> Result<Vec<LiveAccuracy>> {
    let rows = db.fetch(LIVE, Vec::new()).await?;
    rows.iter().map(|row| read(&mut row.read(&db.name))).collect()
}

pub(crate) async fn within(tx: &mut Tx, name: &str) -> Result<Vec<LiveAccuracy>> {
    let rows = tx.fetch(LIVE, Vec::new()).await?;
    rows.iter().map(|row| read(&mut row.read(name))).collect()
}

pub(crate) async fn flag(db: &Db, variant: VariantId, flagged: Option<Accuracy>) -> Result<()> {
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let sql = "UPDATE live_accuracies SET flagged_ppm = $2 WHERE variant = $1";
    let ppm = flagged.map(|accuracy| i64::from(accuracy.ppm()));
    if tx.exec(sql, args![variant.0, ppm]).await? == 0 {
        return Err(Error::not_found("live accuracy of variant", variant));
    }
    tx.commit().await
}

/// The model is removed.
pub(crate) async fn forget(tx: &mut Tx, model: ModelId) -> Result<()> {
    for sql in [
        "DELETE FROM stale_profiles WHERE variant IN (SELECT id FROM variants WHERE model = $1)",
        "DELETE FROM feedback WHERE variant IN (SELECT id FROM variants WHERE model = $1)",
        "DELETE FROM live_accuracies WHERE variant IN (SELECT id FROM variants WHERE model = $1)",
    ] {
        tx.exec(sql, args![model.0]).await?;
    }
    Ok(())
}

fn read(row: &mut Columns<'_>) -> Result<LiveAccuracy> {
    Ok(LiveAccuracy {
        variant: VariantId(row.num()?),
        correct: row.num()?,
        wrong: row.num()?,
        flagged: row.opt_int()?.and_then(|ppm| Accuracy::from_ppm(u32::try_from(ppm).ok()?)),
    })
}
