//! Which version of a name answers where nothing is pinned, who changed that, and what was measured for models that are
//! not stored yet.

use super::conn::{Columns, Db, Tx, args};
use super::{flags, measuring, trials};
use crate::error::{Error, Result};
use crate::records::{Evidence, UnixMicros};
use crate::trials::ended;
use crate::versions::{self, Signed, VersionAction, VersionChange, Wish, WishKept};
use crate::{MEASURED_KEPT, VERSION_CHANGES_KEPT, check};
use modelless_types::{ModelId, Profile, TaskId, TenantId};

/// A version of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    pub(super) id: u32,
    pub(super) version: u32,
}

/// A model and the versions beside it.
pub(super) struct Named {
    pub(super) task: TaskId,
    pub(super) tenant: TenantId,
    pub(super) name: String,
    pub(super) version: u32,
    /// Those that were promoted, the default first.
    pub(super) promoted: Vec<Version>,
}

impl Named {
    pub(super) fn default(&self) -> Option<u32> {
        self.promoted.first().map(|first| first.version)
    }

    pub(super) fn is_default(&self, model: ModelId) -> bool {
        self.promoted.first().is_some_and(|first| first.id == model.0)
    }

    /// The default before this one.
    pub(super) fn next(&self) -> Option<u32> {
        self.promoted.get(1).map(|next| next.version)
    }

    pub(super) fn in_words(&self) -> String {
        format!("{} version {}", self.name, self.version)
    }
}

pub(super) async fn named(db: &Db, tx: &mut Tx, model: ModelId) -> Result<Named> {
    let row =
        tx.first("SELECT task, tenant, name, version FROM models WHERE id = $1", args![model.0]).await?;
    let row = row.ok_or_else(|| Error::not_found("model", model))?;
    let mut row = row.read(&db.name);
    let (task, tenant): (u32, u32) = (row.num()?, row.num()?);
    let (name, version) = (row.text()?, row.num()?);
    let promoted = promoted(db, tx, (task, tenant, &name)).await?;
    Ok(Named { task: TaskId(task), tenant: TenantId(tenant), name, version, promoted })
}

/// The versions of a name that were promoted, the default first.
pub(super) async fn promoted(
    db: &Db,
    tx: &mut Tx,
    (task, tenant, name): (u32, u32, &str),
) -> Result<Vec<Version>> {
    let sql = "SELECT id, version FROM models WHERE task = $1 AND tenant = $2 AND name = $3 AND promoted > 0 \
               ORDER BY promoted DESC";
    let rows = tx.fetch(sql, args![task, tenant, name]).await?;
    let version = |mut row: Columns<'_>| Ok(Version { id: row.num()?, version: row.num()? });
    rows.iter().map(|row| version(row.read(&db.name))).collect()
}

pub(crate) async fn promote(db: &Db, model: ModelId, by: Signed) -> Result<VersionChange> {
    check::signed(&by)?;
    let mut tx = db.begin().await?;
    let now = tx.next("catalog").await?;
    let of = named(db, &mut tx, model).await?;
    if of.is_default(model) {
        let change =
            Change { of: (of.task, &of.name, of.version), before: of.default(), after: Some(of.version) };
        return Ok(change.into_record(0, VersionAction::Promoted, by)); // nothing is written
    }
    let noted = promoted_now(db, &mut tx, now, (model, &of), by).await?;
    tx.commit().await?;
    Ok(noted)
}

/// With what follows from it: trials end, and nobody wishes it any longer.
async fn promoted_now(
    db: &Db,
    tx: &mut Tx,
    now: i64,
    (model, of): (ModelId, &Named),
    by: Signed,
) -> Result<VersionChange> {
    let end = ended(format!("version {} is the default now", of.version), &by);
    let noted = promote_within(db, tx, now, (model, of), by).await?;
    trials::overtaken(db, tx, (of.task, &of.name), |_| true, end).await?;
    let evidence = measuring::evidence_in(db, tx, model).await?;
    if evidence.promote.is_some() {
        measuring::change_evidence(tx, model, &Evidence { promote: None, ..evidence }).await?;
    }
    Ok(noted)
}

pub(crate) async fn wish(db: &Db, model: ModelId, wish: Wish) -> Result<Option<VersionChange>> {
    let mut tx = db.begin().await?;
    // In line with all who say what is the default; and so that nodes look for it.
    let now = tx.next("catalog").await?;
    let of = named(db, &mut tx, model).await?;
    let mut evidence = measuring::evidence_in(db, &mut tx, model).await?;
    let kept = wish.upon(&mut evidence)?;
    if matches!(kept, WishKept::Nobody) {
        return Ok(None);
    }
    measuring::change_evidence(&mut tx, model, &evidence).await?;
    let noted = match kept {
        WishKept::Granted(by) if !of.is_default(model) => {
            Some(promoted_now(db, &mut tx, now, (model, &of), by).await?)
        }
        WishKept::Granted(_) | WishKept::Changed | WishKept::Nobody => None,
    };
    tx.commit().await?;
    Ok(noted)
}

/// Within a transaction that has taken the number of the catalogue, of a version that is not the default.
pub(super) async fn promote_within(
    db: &Db,
    tx: &mut Tx,
    now: i64,
    (model, of): (ModelId, &Named),
    by: Signed,
) -> Result<VersionChange> {
    let change =
        Change { of: (of.task, &of.name, of.version), before: of.default(), after: Some(of.version) };
    tx.exec("UPDATE models SET promoted = $2 WHERE id = $1", args![model.0, now]).await?;
    if !was_default(db, tx, (model, of)).await? {
        flags::promoted(&db.name, tx, model, &by).await?;
    }
    note(tx, change, VersionAction::Promoted, by).await
}

async fn was_default(db: &Db, tx: &mut Tx, (model, of): (ModelId, &Named)) -> Result<bool> {
    if of.promoted.iter().any(|known| known.id == model.0) {
        return Ok(true);
    }
    let sql = "SELECT action, default_after FROM version_changes \
               WHERE task = $1 AND name = $2 AND version = $3 ORDER BY seq DESC";
    let rows = tx.fetch(sql, args![of.task.0, of.name.as_str(), of.version]).await?;
    let done = |mut row: Columns<'_>| Ok((row.word(VersionAction::parse)?, version(row.opt_int()?)));
    let done: Vec<_> = rows.iter().map(|row| done(row.read(&db.name))).collect::<Result<_>>()?;
    Ok(versions::was_default(of.version, done))
}

fn version(found: Option<i64>) -> Option<u32> {
    found.and_then(|version| u32::try_from(version).ok())
}

pub(crate) async fn roll_back(db: &Db, model: ModelId, by: Signed) -> Result<VersionChange> {
    check::signed(&by)?;
    let mut tx = db.begin().await?;
    tx.next("catalog").await?;
    let of = named(db, &mut tx, model).await?;
    if !of.is_default(model) {
        let default = of.default();
        return Err(Error::not_default(of.name, of.version, default));
    }
    if of.next().is_none() {
        return Err(Error::NothingBefore { name: of.name, version: of.version });
    }
    let why = format!("version {} was taken back and is not the default any more", of.version);
    trials::overtaken(db, &mut tx, (of.task, &of.name), |_| true, ended(why, &by)).await?;
    tx.exec("UPDATE models SET promoted = 0 WHERE id = $1", args![model.0]).await?;
    let change = Change { of: (of.task, &of.name, of.version), before: Some(of.version), after: of.next() };
    let noted = note(&mut tx, change, VersionAction::RolledBack, by).await?;
    tx.commit().await?;
    Ok(noted)
}

/// What is to be noted.
pub(super) struct Change<'a> {
    /// Task, name, version.
    pub(super) of: (TaskId, &'a str, u32),
    pub(super) before: Option<u32>,
    pub(super) after: Option<u32>,
}

impl Change<'_> {
    fn into_record(self, seq: u64, action: VersionAction, by: Signed) -> VersionChange {
        let (task, name, version) = self.of;
        VersionChange {
            seq,
            task,
            name: name.to_owned(),
            version,
            action,
            before: self.before,
            after: self.after,
            by,
        }
    }
}

/// Adds to the history.
pub(super) async fn note(
    tx: &mut Tx,
    change: Change<'_>,
    action: VersionAction,
    by: Signed,
) -> Result<VersionChange> {
    let seq = tx.next("version_changes").await?;
    let (task, name, version) = change.of;
    tx.exec(
        "INSERT INTO version_changes (seq, task, name, version, action, default_before, default_after, who, at_us) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        args![
            seq,
            task.0,
            name,
            version,
            action.name(),
            change.before.map(i64::from),
            change.after.map(i64::from),
            by.who.as_str(),
            by.at.0.cast_signed(),
        ],
    )
    .await?;
    let oldest = seq - VERSION_CHANGES_KEPT.cast_signed();
    tx.exec("DELETE FROM version_changes WHERE seq <= $1", args![oldest]).await?;
    Ok(change.into_record(seq.unsigned_abs(), action, by))
}

pub(crate) async fn changes(db: &Db, task: TaskId, name: &str, limit: u32) -> Result<Vec<VersionChange>> {
    let sql = "SELECT seq, task, name, version, action, default_before, default_after, who, at_us \
               FROM version_changes WHERE task = $1 AND name = $2 ORDER BY seq DESC LIMIT $3";
    let rows = db.fetch(sql, args![task.0, name, limit]).await?;
    let read = |mut row: Columns<'_>| {
        Ok(VersionChange {
            seq: row.num()?,
            task: TaskId(row.num()?),
            name: row.text()?,
            version: row.num()?,
            action: row.word(VersionAction::parse)?,
            before: version(row.opt_int()?),
            after: version(row.opt_int()?),
            by: Signed { who: row.text()?, at: UnixMicros(row.num()?) },
        })
    };
    rows.iter().map(|row| read(row.read(&db.name))).collect()
}

pub(crate) async fn keep_measured(db: &Db, key: &str, profile: &Profile, at: UnixMicros) -> Result<()> {
    check::measured(key, profile, at)?;
    let body =
        serde_json::to_string(profile).map_err(|error| Error::invalid("profile", error.to_string()))?;
    let mut tx = db.begin().await?;
    let seq = tx.next("measured").await?;
    tx.exec(
        "INSERT INTO measured (key, seq, body, at_us) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (key) DO UPDATE SET seq = excluded.seq, body = excluded.body, at_us = excluded.at_us",
        args![key, seq, body, at.0.cast_signed()],
    )
    .await?;
    tx.exec("DELETE FROM measured WHERE seq <= $1", args![seq - MEASURED_KEPT.cast_signed()]).await?;
    tx.commit().await
}

pub(crate) async fn measured(db: &Db, key: &str, since: UnixMicros) -> Result<Option<Profile>> {
    check::number("time", since.0)?;
    let sql = "SELECT body FROM measured WHERE key = $1 AND at_us >= $2";
    let rows = db.fetch(sql, args![key, since.0.cast_signed()]).await?;
    rows.first().map(|row| row.read(&db.name).json()).transpose()
}
