//! What live traffic says of what was measured: see [`crate::StaleProfile`] and [`crate::LiveAccuracy`].

use super::conn::{Columns, Db, Tx, args, corrupt};
use crate::check;
use crate::error::Result;
use crate::learnt::{FEEDBACK_KEPT, Feedback, Kept, LiveAccuracy, StaleProfile, Verdict};
use crate::records::UnixMicros;
use modelless_types::{Accuracy, ModelId, VariantId};

const LIVE: &str = "SELECT variant, correct, wrong, flagged_ppm, round FROM live_accuracies ORDER BY variant";

pub(crate) async fn mark(db: &Db, stale: StaleProfile) -> Result<bool> {
    check::stale(&stale)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let sql = "SELECT variant FROM profiles WHERE variant = $1 AND device_class = $2";
    if tx.first(sql, args![stale.variant.0, stale.device_class.as_str()]).await?.is_none() {
        return Ok(false);
    }
    tx.exec(
        "INSERT INTO stale_marks (variant, device_class, node, ratio_ppm, since_us) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (variant, device_class, node) DO UPDATE SET ratio_ppm = excluded.ratio_ppm",
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
    let sql = "DELETE FROM stale_marks WHERE variant = $1 AND device_class = $2 AND node = $3";
    if tx.exec(sql, args![variant.0, device_class, node]).await? == 0 {
        return Ok(false);
    }
    // While another node says so it is still to be measured.
    if !is_marked(&mut tx, variant, device_class).await? {
        super::measuring::done(&mut tx, variant, device_class).await?;
    }
    tx.commit().await?;
    Ok(true)
}

/// It has been measured again.
pub(crate) async fn measured(tx: &mut Tx, variant: VariantId, device_class: &str) -> Result<()> {
    let sql = "DELETE FROM stale_marks WHERE variant = $1 AND device_class = $2";
    tx.exec(sql, args![variant.0, device_class]).await.map(|_| ())
}

pub(crate) async fn is_marked(tx: &mut Tx, variant: VariantId, device_class: &str) -> Result<bool> {
    let sql = "SELECT variant FROM stale_marks WHERE variant = $1 AND device_class = $2";
    Ok(tx.first(sql, args![variant.0, device_class]).await?.is_some())
}

pub(crate) async fn marks(tx: &mut Tx, name: &str) -> Result<Vec<StaleProfile>> {
    let sql = "SELECT variant, device_class, node, ratio_ppm, since_us FROM stale_marks";
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
    all.sort_by(|a, b| a.place().cmp(&b.place()));
    Ok(all)
}

pub(crate) async fn put_feedback(db: &Db, given: Vec<Feedback>, expired: UnixMicros) -> Result<Vec<Verdict>> {
    given.iter().try_for_each(check::feedback)?;
    let mut tx = db.begin().await?;
    // Others that count wait until this is done.
    tx.next("feedback").await?;
    // More than come, so that what is too old goes, and no more than that, so that nobody waits for a whole day's.
    let most = i64::try_from(given.len()).unwrap_or(i64::MAX).saturating_mul(2).saturating_add(64);
    let sql = "DELETE FROM feedback WHERE query IN \
               (SELECT query FROM feedback WHERE answered_us < $1 ORDER BY answered_us LIMIT $2)";
    let gone = tx.exec(sql, args![expired.0.cast_signed(), most]).await?;
    let mut rows = kept(&db.name, &mut tx).await?.saturating_sub(gone);
    let mut verdicts = Vec::with_capacity(given.len());
    for one in given {
        let verdict = put_one(db, &mut tx, &one, rows >= FEEDBACK_KEPT).await?;
        rows += u64::from(verdict.kept == Kept::New);
        verdicts.push(verdict);
    }
    set_kept(&mut tx, rows).await?;
    tx.commit().await?;
    Ok(verdicts)
}

/// How many verdicts are kept, by a counter: counting them would take the longer the more there are. Whoever adds or takes
/// away some holds the number of `feedback`.
async fn kept(name: &str, tx: &mut Tx) -> Result<u64> {
    let row = tx.first("SELECT value FROM counters WHERE name = 'feedback_kept'", Vec::new()).await?;
    match row {
        Some(row) => row.read(name).num(),
        None => Err(corrupt(name, "the number of verdicts is missing")),
    }
}

async fn set_kept(tx: &mut Tx, rows: u64) -> Result<()> {
    let sql = "UPDATE counters SET value = $1 WHERE name = 'feedback_kept'";
    tx.exec(sql, args![rows.cast_signed()]).await.map(|_| ())
}

async fn put_one(db: &Db, tx: &mut Tx, given: &Feedback, full: bool) -> Result<Verdict> {
    let none = LiveAccuracy::none(given.variant);
    if tx.first("SELECT id FROM variants WHERE id = $1", args![given.variant.0]).await?.is_none() {
        return Ok(Verdict { kept: Kept::Gone, live: none });
    }
    let live = of(&db.name, tx, given.variant).await?.unwrap_or(none);
    let sql = "SELECT correct, round FROM feedback WHERE query = $1";
    let before = match tx.first(sql, args![given.query.as_str()]).await? {
        Some(row) => {
            let mut row = row.read(&db.name);
            Some((row.num::<u32>()? == 1, row.num()?))
        }
        None => None,
    };
    let Some((kept, live)) = live.with(before, given.correct, full) else {
        return Ok(Verdict { kept: if before.is_some() { Kept::Same } else { Kept::Full }, live });
    };
    let (correct, wrong) = (live.correct.cast_signed(), live.wrong.cast_signed());
    tx.exec(
        "INSERT INTO feedback (query, variant, answered_us, correct, round) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (query) DO UPDATE SET correct = excluded.correct",
        args![
            given.query.as_str(),
            given.variant.0,
            given.answered.0.cast_signed(),
            u32::from(given.correct),
            live.round.cast_signed(),
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

/// What verdicts on one variant come to.
pub(super) async fn of(name: &str, tx: &mut Tx, variant: VariantId) -> Result<Option<LiveAccuracy>> {
    let sql = "SELECT variant, correct, wrong, flagged_ppm, round FROM live_accuracies WHERE variant = $1";
    let row = tx.first(sql, args![variant.0]).await?;
    row.map(|row| read(&mut row.read(name))).transpose()
}

/// The model is removed.
pub(crate) async fn forget(tx: &mut Tx, model: ModelId) -> Result<()> {
    let name = tx.name();
    tx.next("feedback").await?;
    let sql = "DELETE FROM feedback WHERE variant IN (SELECT id FROM variants WHERE model = $1)";
    let gone = tx.exec(sql, args![model.0]).await?;
    let rows = kept(&name, tx).await?.saturating_sub(gone);
    set_kept(tx, rows).await?;
    for sql in [
        "DELETE FROM stale_marks WHERE variant IN (SELECT id FROM variants WHERE model = $1)",
        "DELETE FROM live_accuracies WHERE variant IN (SELECT id FROM variants WHERE model = $1)",
        "DELETE FROM flag_changes WHERE variant IN (SELECT id FROM variants WHERE model = $1)",
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
        flagged: accuracy(row)?,
        round: row.num()?,
    })
}

pub(super) fn accuracy(row: &mut Columns<'_>) -> Result<Option<Accuracy>> {
    Ok(row.opt_int()?.and_then(|ppm| Accuracy::from_ppm(u32::try_from(ppm).ok()?)))
}
