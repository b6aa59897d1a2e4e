//! Variants that are flagged as less accurate than measured, how they come back, and the record of both.
//!
//! Whoever changes what is said takes the next number of the `feedback` counter, so that verdicts which are counted at the
//! same moment are counted before or after. It is taken before any variant's row is locked: verdicts refer to those.

use super::conn::{Columns, Db, Tx, args};
use super::learnt;
use crate::check;
use crate::error::{Error, Result};
use crate::learnt::{FLAG_CHANGES_KEPT, FlagAction, FlagChange, LiveAccuracy, Note};
use crate::records::UnixMicros;
use crate::versions::Signed;
use modelless_types::{Accuracy, ModelId, VariantId};

pub(crate) async fn flag(db: &Db, live: LiveAccuracy, at: UnixMicros, reason: &str) -> Result<bool> {
    check::number("time", at.0)?;
    check::reason(reason)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    tx.next("feedback").await?;
    let Some(before) = learnt::of(&db.name, &mut tx, live.variant).await? else { return Ok(false) };
    if before.round != live.round || before.flagged == live.flagged {
        return Ok(false);
    }
    let ppm = live.flagged.map(|accuracy| i64::from(accuracy.ppm()));
    tx.exec("UPDATE live_accuracies SET flagged_ppm = $2 WHERE variant = $1", args![live.variant.0, ppm])
        .await?;
    let action = if live.flagged.is_some() { FlagAction::Flagged } else { FlagAction::Recovered };
    let note = Note { action, reason: reason.to_owned(), who: String::new(), at: Some(at) };
    self::note(&mut tx, note, before, live.flagged).await?;
    tx.commit().await?;
    Ok(true)
}

pub(crate) async fn clear(db: &Db, variant: VariantId, by: Signed, reason: &str) -> Result<FlagChange> {
    check::signed(&by)?;
    check::reason(reason)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let sql = "SELECT name FROM variants WHERE id = $1";
    let row = tx.first(sql, args![variant.0]).await?.ok_or_else(|| Error::not_found("variant", variant))?;
    let name = row.read(&db.name).text()?;
    tx.next("feedback").await?;
    let before = learnt::of(&db.name, &mut tx, variant).await?;
    let flagged = before.filter(|before| before.flagged.is_some());
    let before = flagged.ok_or(Error::NotFlagged { name })?;
    let note = Note { action: FlagAction::Cleared, reason: reason.to_owned(), who: by.who, at: Some(by.at) };
    let change = anew(&mut tx, before, note).await?;
    tx.commit().await?;
    change.ok_or_else(|| Error::not_found("flag of variant", variant))
}

/// Verdicts on a variant are counted anew, if there are any. The number of `feedback` is held.
pub(super) async fn begin_anew(name: &str, tx: &mut Tx, variant: VariantId, note: Note) -> Result<()> {
    if let Some(before) = learnt::of(name, tx, variant).await? {
        anew(tx, before, note).await?;
    }
    Ok(())
}

/// A model became the default version for the first time.
pub(super) async fn promoted(name: &str, tx: &mut Tx, model: ModelId, by: &Signed) -> Result<()> {
    tx.next("feedback").await?;
    let rows = tx.fetch("SELECT id FROM variants WHERE model = $1 ORDER BY id", args![model.0]).await?;
    for row in rows {
        let variant = VariantId(row.read(name).num()?);
        begin_anew(name, tx, variant, Note::promoted(by)).await?;
    }
    Ok(())
}

async fn anew(tx: &mut Tx, before: LiveAccuracy, note: Note) -> Result<Option<FlagChange>> {
    let Some(anew) = before.anew() else { return Ok(None) };
    tx.exec(
        "UPDATE live_accuracies SET correct = 0, wrong = 0, flagged_ppm = NULL, round = $2 WHERE variant = $1",
        args![anew.variant.0, anew.round.cast_signed()],
    )
    .await?;
    self::note(tx, note, before, None).await.map(Some)
}

async fn note(tx: &mut Tx, note: Note, before: LiveAccuracy, value: Option<Accuracy>) -> Result<FlagChange> {
    let seq = tx.next("flag_changes").await?;
    let change = note.into_change(seq.unsigned_abs(), before, value);
    tx.exec(
        "INSERT INTO flag_changes (seq, variant, action, reason, who, at_us, correct, wrong, value_ppm) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        args![
            seq,
            change.variant.0,
            change.action.name(),
            change.reason.as_str(),
            change.who.as_str(),
            change.at.map(|at| at.0.cast_signed()),
            change.correct.cast_signed(),
            change.wrong.cast_signed(),
            change.value.map(|value| i64::from(value.ppm())),
        ],
    )
    .await?;
    tx.exec("DELETE FROM flag_changes WHERE seq <= $1", args![seq - FLAG_CHANGES_KEPT.cast_signed()]).await?;
    Ok(change)
}

pub(crate) async fn changes(db: &Db, variant: VariantId, limit: u32) -> Result<Vec<FlagChange>> {
    let sql = "SELECT seq, variant, action, reason, who, at_us, correct, wrong, value_ppm FROM flag_changes \
               WHERE variant = $1 ORDER BY seq DESC LIMIT $2";
    let rows = db.fetch(sql, args![variant.0, limit]).await?;
    let read = |mut row: Columns<'_>| {
        Ok(FlagChange {
            seq: row.num()?,
            variant: VariantId(row.num()?),
            action: row.word(FlagAction::parse)?,
            reason: row.text()?,
            who: row.text()?,
            at: row.opt_int()?.map(|at| UnixMicros(at.unsigned_abs())),
            correct: row.num()?,
            wrong: row.num()?,
            value: learnt::accuracy(&mut row)?,
        })
    };
    rows.iter().map(|row| read(row.read(&db.name))).collect()
}
