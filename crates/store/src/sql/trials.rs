//! Trials of new versions. Whoever begins or ends one takes the next number of the catalogue first, since those that run stand in it.

use super::access::shared;
use super::conn::{Columns, Db, Tx, args};
use super::versions;
use super::{SqlStore, events};
use crate::check;
use crate::error::Result;
use crate::records::UnixMicros;
use crate::trials::{EndTrial, NewTrial, TRIALS_AT_ONCE, TRIALS_KEPT, Trial, TrialEnded, Trials};
use crate::versions::Signed;
use async_trait::async_trait;
use modelless_types::{Micros, ModelId, Share, TaskId, TenantId, TrialId, TrialState};

/// A query for trials, as [`trial`] reads them.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, task, name, candidate, version, against, against_version, share_ppm, shadow, lasts_us, promote_when_good, forced, \
             began_by, began_us, state, cause, figures, ended_by, ended_us FROM trials ",
            $rest
        )
    };
}

fn trial(mut row: Columns<'_>) -> Result<Trial> {
    let (id, task, name) = (TrialId(row.num()?), TaskId(row.num()?), row.text()?);
    let (candidate, version) = (ModelId(row.num()?), row.num()?);
    let (against, against_version) = (ModelId(row.num()?), row.num()?);
    let share = Share::from_ppm(row.num()?);
    let share = share.ok_or_else(|| row.senseless(format!("the share of {id} is none")))?;
    let shadow = row.int()? != 0;
    let lasts = Micros(row.num()?);
    let (promote_when_good, forced) = (row.int()? != 0, row.int()? != 0);
    let began = Signed { who: row.text()?, at: UnixMicros(row.num()?) };
    let state = row.word(TrialState::parse)?;
    let (cause, figures, who, at) = (row.opt_text()?, row.opt_text()?, row.opt_text()?, row.opt_int()?);
    let ended = match (cause, who, at) {
        (Some(cause), Some(who), Some(at)) => {
            Some(TrialEnded { cause, figures, by: Signed { who, at: UnixMicros(at.unsigned_abs()) } })
        }
        _ => None,
    };
    Ok(Trial {
        id,
        task,
        name,
        candidate,
        version,
        against,
        against_version,
        share,
        shadow,
        lasts,
        promote_when_good,
        forced,
        began,
        state,
        ended,
    })
}

/// Those that run, for the catalogue.
pub(super) async fn running(tx: &mut Tx, name: &str) -> Result<Vec<Trial>> {
    let sql = select!("WHERE state = $1 ORDER BY id");
    let rows = tx.fetch(sql, args![TrialState::Running.name()]).await?;
    rows.iter().map(|row| trial(row.read(name))).collect()
}

async fn of_task(db: &Db, tx: &mut Tx, task: TaskId) -> Result<Option<Trial>> {
    let sql = select!("WHERE task = $1 AND state = $2");
    let row = tx.first(sql, args![task.0, TrialState::Running.name()]).await?;
    row.map(|row| trial(row.read(&db.name))).transpose()
}

/// Another version is the default now, or one of the two is gone: what runs with this name has nothing to compare any longer. The number of the
/// catalogue is held.
pub(super) async fn overtaken(
    db: &Db,
    tx: &mut Tx,
    (task, name): (TaskId, &str),
    concerns: impl FnOnce(&Trial) -> bool,
    ended: TrialEnded,
) -> Result<()> {
    let Some(running) = of_task(db, tx, task).await? else { return Ok(()) };
    if running.name == name && concerns(&running) {
        end(tx, running, TrialState::Stopped, ended).await?;
    }
    Ok(())
}

async fn end(tx: &mut Tx, trial: Trial, state: TrialState, ended: TrialEnded) -> Result<Trial> {
    let sql =
        "UPDATE trials SET state = $2, cause = $3, figures = $4, ended_by = $5, ended_us = $6 WHERE id = $1";
    let values = args![
        trial.id.0.cast_signed(),
        state.name(),
        ended.cause.as_str(),
        ended.figures.clone(),
        ended.by.who.as_str(),
        ended.by.at.0.cast_signed(),
    ];
    tx.exec(sql, values).await?;
    let trial = Trial { state, ended: Some(ended), ..trial };
    note(tx, &trial).await?;
    Ok(trial)
}

/// Whether another may begin of a version of this tenant.
async fn room(db: &Db, tx: &mut Tx, tenant: TenantId) -> Result<()> {
    let sql = "SELECT count(*), CAST(coalesce(sum(CASE WHEN models.tenant = $2 THEN 1 ELSE 0 END), 0) AS BIGINT), \
               (SELECT count(*) FROM tenants) FROM trials JOIN models ON models.id = trials.candidate WHERE trials.state = $1";
    let row = tx.first(sql, args![TrialState::Running.name(), tenant.0]).await?;
    shared(&db.name, row)?.room("trial", TRIALS_AT_ONCE)
}

async fn note(tx: &mut Tx, trial: &Trial) -> Result<()> {
    let event = check::event(trial.event())?;
    let seq = tx.next("events").await?;
    events::write(tx, seq, &event).await
}

#[async_trait]
impl Trials for SqlStore {
    async fn begin_trial(&self, new: NewTrial) -> Result<Trial> {
        new.check()?;
        let db = &self.db;
        let mut tx = db.begin().await?;
        tx.next("catalog").await?;
        let of = versions::named(db, &mut tx, new.candidate).await?;
        if let Some(running) = of_task(db, &mut tx, of.task).await? {
            return Err(running.in_the_way());
        }
        room(db, &mut tx, of.tenant).await?;
        let id = tx.next("trials").await?;
        let default = of.promoted.first().map(|first| (ModelId(first.id), first.version));
        let trial = new.begun(TrialId(id.unsigned_abs()), (of.task, of.name, of.version), default)?;
        let sql = "INSERT INTO trials (id, task, name, candidate, version, against, against_version, share_ppm, shadow, lasts_us, \
                   promote_when_good, forced, began_by, began_us, state) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
        let values = args![
            id,
            trial.task.0,
            trial.name.as_str(),
            trial.candidate.0,
            trial.version,
            trial.against.0,
            trial.against_version,
            trial.share.ppm(),
            u32::from(trial.shadow),
            trial.lasts.0.cast_signed(),
            u32::from(trial.promote_when_good),
            u32::from(trial.forced),
            trial.began.who.as_str(),
            trial.began.at.0.cast_signed(),
            trial.state.name(),
        ];
        tx.exec(sql, values).await?;
        let forgotten = id - TRIALS_KEPT.cast_signed();
        let sql = "DELETE FROM trials WHERE id <= $1 AND state <> $2";
        tx.exec(sql, args![forgotten, TrialState::Running.name()]).await?;
        note(&mut tx, &trial).await?;
        tx.commit().await?;
        Ok(trial)
    }

    async fn end_trial(&self, wanted: EndTrial) -> Result<Option<Trial>> {
        let EndTrial { trial: id, state, catalog, ended } = wanted.checked()?;
        let db = &self.db;
        let mut tx = db.begin().await?;
        let now = tx.next("catalog").await?;
        let sql = select!("WHERE id = $1 AND state = $2");
        let row = tx.first(sql, args![id.0.cast_signed(), TrialState::Running.name()]).await?;
        let Some(row) = row else { return Ok(None) };
        let running = trial(row.read(&db.name))?;
        if state == TrialState::Promoted {
            let of = versions::named(db, &mut tx, running.candidate).await?;
            if !of.is_default(running.against) || catalog.checked_add(1) != Some(now.unsigned_abs()) {
                return Ok(None);
            }
            versions::promote_within(db, &mut tx, now, (running.candidate, &of), ended.by.clone()).await?;
        }
        let trial = end(&mut tx, running, state, ended).await?;
        tx.commit().await?;
        Ok(Some(trial))
    }

    async fn stop_trial(&self, task: TaskId, ended: TrialEnded) -> Result<Option<Trial>> {
        let ended = ended.checked()?;
        let db = &self.db;
        let mut tx = db.begin().await?;
        tx.next("catalog").await?;
        let Some(running) = of_task(db, &mut tx, task).await? else { return Ok(None) };
        let trial = end(&mut tx, running, TrialState::Stopped, ended).await?;
        tx.commit().await?;
        Ok(Some(trial))
    }

    async fn trials(&self, task: Option<TaskId>, limit: u32) -> Result<Vec<Trial>> {
        let rows = if let Some(task) = task {
            let sql = select!("WHERE task = $1 ORDER BY id DESC LIMIT $2");
            self.db.fetch(sql, args![task.0, limit]).await?
        } else {
            let sql = select!("ORDER BY id DESC LIMIT $1");
            self.db.fetch(sql, args![limit]).await?
        };
        rows.iter().map(|row| trial(row.read(&self.db.name))).collect()
    }
}
