//! Offline jobs.
//!
//! Whoever changes what a job's figures say holds its row first, so that of two who end its last two inputs one sees that it is the last.
//! Takers do not: they pass over rows that others hold and never wait, so nobody who holds a job's row waits for them for long.
//! Hundreds of inputs are one statement: a list in JSON, and all of their bytes in one argument (see `rows`).

mod rows;

use super::SqlStore;
use super::conn::{Columns, Db, Row, Tx, args, listed};
use crate::check;
use crate::error::{Error, Result};
use crate::jobs::rules::{self, LEFT};
use crate::jobs::{JOBS_KEPT, JOBS_OPEN_MAX, Job, JobInput, JobOutput, Jobs, NewJob};
use crate::records::UnixMicros;
use async_trait::async_trait;
use modelless_types::{AppId, JobId, JobState, TenantId};
use rows::{JobRow as _, jobs};
use std::collections::BTreeMap;

/// The states of jobs that have not ended.
const OPEN: [JobState; 2] = [JobState::Receiving, JobState::Running];

/// What the jobs of a tenant come to, but for one of them.
const BYTES: &str = "SELECT CAST(coalesce(sum(bytes + kept + CAST($3 AS BIGINT) * \
                     (CASE WHEN ended_us IS NULL THEN received ELSE done + failed END)), 0) AS BIGINT) \
                     FROM jobs WHERE tenant = $1 AND id <> $2";
/// Rows that are removed by one transaction: a job may have a million of them, and others write too.
const ROWS_AT_ONCE: u32 = 1_000;

#[async_trait]
impl Jobs for SqlStore {
    async fn add_job(&self, new: NewJob) -> Result<Job> {
        new.check()?;
        let name = &self.db.name;
        let mut tx = self.db.begin().await?;
        // Everybody else who makes one waits here, and then counts this one.
        let id = tx.next("jobs").await?;
        let task = tx.first("SELECT name FROM tasks WHERE id = $1", args![new.task.0]).await?;
        let task = task.ok_or_else(|| Error::not_found("task", new.task))?.read(name).text()?;
        let app = "SELECT id FROM apps WHERE id = $1 AND tenant = $2";
        let app = tx.first(app, args![new.app.0, new.tenant.0]).await?;
        app.ok_or_else(|| Error::not_found("application", new.app))?;
        let open = "SELECT count(*) FROM jobs WHERE tenant = $1 AND state IN ($2, $3)";
        let open = tx.first(open, args![new.tenant.0, OPEN[0].name(), OPEN[1].name()]).await?;
        let open: u64 = open.map_or(Ok(0), |row| row.read(name).num())?;
        if open >= JOBS_OPEN_MAX {
            return Err(Error::TooManyJobs { limit: JOBS_OPEN_MAX });
        }
        let job = new.numbered(JobId(id.unsigned_abs()), task);
        job.insert(&mut tx).await?;
        tx.commit().await?;
        Ok(job)
    }

    async fn add_job_inputs(&self, job: JobId, inputs: Vec<JobInput>, most: u64) -> Result<Job> {
        let mut inputs = rules::given(job, inputs)?;
        let mut tx = self.db.begin().await?;
        // Of a tenant's jobs one at a time receives, so that each sees what the others have.
        tx.next("job_inputs").await?;
        let mut job = locked(&self.db, &mut tx, job).await?;
        job.receives(&inputs)?;
        for known in rows::inputs(&mut tx, job.id, inputs.keys()).await? {
            if let Some(given) = inputs.remove(&known.at) {
                rules::same(job.id, &known, &given)?;
            }
        }
        let others =
            tx.first(BYTES, args![job.tenant.0, job.id.0.cast_signed(), rules::ROW.cast_signed()]).await?;
        let others: u64 = others.map_or(Ok(0), |row| row.read(&self.db.name).num())?;
        job.receive(&inputs, (others, most))?;
        rows::add_inputs(&mut tx, job.id, inputs).await?;
        job.save(&mut tx).await?;
        tx.commit().await?;
        Ok(job)
    }

    async fn start_job(&self, job: JobId, now: UnixMicros) -> Result<Job> {
        check::number("time", now.0)?;
        let mut tx = self.db.begin().await?;
        let mut job = locked(&self.db, &mut tx, job).await?;
        if job.start(now)? {
            job.save(&mut tx).await?;
            tx.commit().await?;
        }
        Ok(job)
    }

    async fn end_job(&self, job: JobId, end: JobState, why: &str, now: UnixMicros) -> Result<Job> {
        rules::an_end(end, now)?;
        let mut tx = self.db.begin().await?;
        let mut job = locked(&self.db, &mut tx, job).await?;
        if !job.end(end, why, now) {
            return Ok(job);
        }
        job.save(&mut tx).await?;
        tx.commit().await?;
        // It has ended. What cannot be forgotten now is when jobs are pruned.
        if let Err(error) = forget_inputs(&self.db, job.id).await {
            tracing::warn!(job = %job.id, %error, "the inputs of a job that ended could not all be removed; it is tried again");
        }
        Ok(job)
    }

    async fn job_bytes(&self, tenant: TenantId) -> Result<u64> {
        let rows = self.db.fetch(BYTES, args![tenant.0, -1_i64, rules::ROW.cast_signed()]).await?;
        rows.first().map_or(Ok(0), |row| row.read(&self.db.name).num())
    }

    async fn remove_job(&self, job: JobId) -> Result<()> {
        let mut tx = self.db.begin().await?;
        let job = locked(&self.db, &mut tx, job).await?;
        job.remove()?;
        drop(tx);
        remove_one(&self.db, job.id).await
    }

    async fn job(&self, job: JobId) -> Result<Option<Job>> {
        let rows = self.db.fetch(jobs!("WHERE id = $1"), args![job.0.cast_signed()]).await?;
        rows.first().map(|row| rows::job(row.read(&self.db.name))).transpose()
    }

    async fn jobs(&self, tenant: Option<TenantId>, app: Option<AppId>, limit: u32) -> Result<Vec<Job>> {
        let rows = match (tenant, app) {
            (None, None) => self.db.fetch(jobs!("ORDER BY id DESC LIMIT $1"), args![limit]).await?,
            (Some(tenant), None) => {
                let sql = jobs!("WHERE tenant = $1 ORDER BY id DESC LIMIT $2");
                self.db.fetch(sql, args![tenant.0, limit]).await?
            }
            (None, Some(app)) => {
                let sql = jobs!("WHERE app = $1 ORDER BY id DESC LIMIT $2");
                self.db.fetch(sql, args![app.0, limit]).await?
            }
            (Some(tenant), Some(app)) => {
                let sql = jobs!("WHERE tenant = $1 AND app = $2 ORDER BY id DESC LIMIT $3");
                self.db.fetch(sql, args![tenant.0, app.0, limit]).await?
            }
        };
        rows.iter().map(|row| rows::job(row.read(&self.db.name))).collect()
    }

    async fn running_jobs(&self, limit: u32) -> Result<Vec<Job>> {
        let sql = jobs!("WHERE state = $1 ORDER BY deadline_us NULLS LAST, id LIMIT $2");
        let rows = self.db.fetch(sql, args![JobState::Running.name(), limit]).await?;
        rows.iter().map(|row| rows::job(row.read(&self.db.name))).collect()
    }

    async fn take_job_inputs(
        &self,
        job: JobId,
        holder: &str,
        (now, until): (UnixMicros, UnixMicros),
        (most, bytes): (u32, u64),
    ) -> Result<Vec<JobInput>> {
        check::name("holder", holder)?;
        check::number("time", until.0.max(now.0))?;
        let name = &self.db.name;
        let id = job.0.cast_signed();
        let mut tx = self.db.begin().await?;
        in_order(&mut tx).await?;
        let state = tx.first("SELECT state FROM jobs WHERE id = $1", args![id]).await?;
        let state = state.ok_or_else(|| Error::not_found("job", job))?.read(name).word(JobState::parse)?;
        if state != JobState::Running {
            return Ok(Vec::new());
        }
        let waiting = if tx.is_sqlite() {
            "SELECT place, bytes FROM job_inputs WHERE job = $1 AND until_us <= $2 ORDER BY place LIMIT $3"
        } else {
            "SELECT place, bytes FROM job_inputs WHERE job = $1 AND until_us <= $2 ORDER BY place LIMIT $3 \
             FOR UPDATE SKIP LOCKED"
        };
        let found = tx.fetch(waiting, args![id, now.0.cast_signed(), rules::most(most)]).await?;
        let read = |mut row: Columns<'_>| Ok((row.num()?, row.num()?));
        let found: Vec<(u32, u64)> = found.iter().map(|row| read(row.read(name))).collect::<Result<_>>()?;
        let fits = rules::within(found.iter().map(|(_, bytes)| *bytes), bytes);
        let taken: Vec<u32> = found[..fits].iter().map(|(place, _)| *place).collect();
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let sql = listed!(
            tx,
            "UPDATE job_inputs SET holder = $2, until_us = $3 WHERE job = $1 AND place IN \
             (SELECT CAST(item.value ->> 0 AS BIGINT) FROM ",
            "$4",
            ")"
        );
        tx.exec(sql, args![id, holder, until.0.cast_signed(), rows::places(&taken)]).await?;
        let inputs = rows::inputs(&mut tx, job, &taken).await?;
        tx.commit().await?;
        Ok(inputs)
    }

    async fn keep_job_inputs(
        &self,
        job: JobId,
        holder: &str,
        until: UnixMicros,
        inputs: Vec<u32>,
    ) -> Result<()> {
        check::name("holder", holder)?;
        check::number("time", until.0)?;
        rules::at_once(inputs.len())?;
        let mut tx = self.db.begin().await?;
        locked(&self.db, &mut tx, job).await?;
        let sql = listed!(
            tx,
            "UPDATE job_inputs SET until_us = $3 WHERE job = $1 AND holder = $2 AND place IN \
             (SELECT CAST(item.value ->> 0 AS BIGINT) FROM ",
            "$4",
            ")"
        );
        tx.exec(sql, args![job.0.cast_signed(), holder, until.0.cast_signed(), rows::places(&inputs)])
            .await?;
        tx.commit().await
    }

    async fn give_back_job_inputs(&self, job: JobId, holder: &str, inputs: Vec<u32>) -> Result<()> {
        check::name("holder", holder)?;
        rules::at_once(inputs.len())?;
        let mut tx = self.db.begin().await?;
        locked(&self.db, &mut tx, job).await?;
        let sql = listed!(
            tx,
            "UPDATE job_inputs SET holder = NULL, until_us = 0 WHERE job = $1 AND holder = $2 AND place IN \
             (SELECT CAST(item.value ->> 0 AS BIGINT) FROM ",
            "$3",
            ")"
        );
        tx.exec(sql, args![job.0.cast_signed(), holder, rows::places(&inputs)]).await?;
        tx.commit().await
    }

    async fn end_job_inputs(&self, job: JobId, ended: Vec<JobOutput>) -> Result<Job> {
        let mut ended = rules::ends(ended)?;
        let mut tx = self.db.begin().await?;
        let mut job = locked(&self.db, &mut tx, job).await?;
        if !job.answers()? {
            return Ok(job);
        }
        let mut outputs = BTreeMap::new();
        // Those that were removed here, and only those, end here.
        for (place, name, bytes) in rows::remove_inputs(&mut tx, job.id, ended.keys()).await? {
            let Some(output) = ended.remove(&place) else { continue };
            outputs.insert(place, (JobOutput { name, ..output }, bytes));
        }
        if outputs.is_empty() {
            return Ok(job);
        }
        for (output, bytes) in outputs.values() {
            job.count(output, *bytes);
        }
        rows::add_outputs(&mut tx, job.id, outputs.into_values().map(|(output, _)| output)).await?;
        job.save(&mut tx).await?;
        tx.commit().await?;
        Ok(job)
    }

    async fn job_outputs(&self, job: JobId, from: u32, (most, bytes): (u32, u64)) -> Result<Vec<JobOutput>> {
        let name = &self.db.name;
        let mut tx = self.db.snapshot().await?;
        seen(&self.db, &mut tx, job).await?;
        let sql =
            "SELECT place, bytes FROM job_outputs WHERE job = $1 AND place >= $2 ORDER BY place LIMIT $3";
        let found = tx.fetch(sql, args![job.0.cast_signed(), from, rules::most(most)]).await?;
        let read = |mut row: Columns<'_>| Ok((row.num()?, row.num()?));
        let found: Vec<(u32, u64)> = found.iter().map(|row| read(row.read(name))).collect::<Result<_>>()?;
        let fits = rules::within(found.iter().map(|(_, bytes)| *bytes), bytes);
        let Some((last, _)) = found[..fits].last() else { return Ok(Vec::new()) };
        rows::outputs(&mut tx, job, (from, *last)).await
    }

    async fn missing_job_inputs(&self, job: JobId, limit: u32) -> Result<Vec<u32>> {
        let name = &self.db.name;
        let mut tx = self.db.snapshot().await?;
        let job = seen(&self.db, &mut tx, job).await?;
        if job.state != JobState::Receiving || job.received == job.inputs {
            return Ok(Vec::new());
        }
        let limit = rules::most(limit);
        let id = job.id.0.cast_signed();
        let first = tx.first("SELECT min(place) FROM job_inputs WHERE job = $1", args![id]).await?;
        let first = first.map_or(Ok(None), |row| row.read(name).opt_int())?;
        // After each place that came, up to the next one that did.
        let sql = "SELECT place, following FROM \
                   (SELECT place, lead(place) OVER (ORDER BY place) AS following FROM job_inputs WHERE job = $1) AS pairs \
                   WHERE following IS NULL OR following > place + 1 ORDER BY place LIMIT $2";
        let gaps = tx.fetch(sql, args![id, limit]).await?;
        let end =
            |place: Option<i64>| place.and_then(|place| u32::try_from(place).ok()).unwrap_or(job.inputs);
        let read = |mut row: Columns<'_>| Ok((row.num::<u32>()? + 1, end(row.opt_int()?)));
        let gaps: Vec<(u32, u32)> = gaps.iter().map(|row| read(row.read(name))).collect::<Result<_>>()?;
        let missing = std::iter::once((0, end(first))).chain(gaps).flat_map(|(from, to)| from..to);
        Ok(missing.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect())
    }

    async fn prune_jobs(&self, before: UnixMicros, now: UnixMicros) -> Result<u64> {
        check::number("time", before.0.max(now.0))?;
        let (name, earlier) = (&self.db.name, before.0.cast_signed());
        // Only lists: whether it still holds is seen when each job's row is held.
        let sql = "SELECT id FROM (SELECT id, ended_us, state, made_us, row_number() OVER \
                   (PARTITION BY tenant, ended_us IS NULL ORDER BY ended_us DESC, id DESC) AS nth FROM jobs) AS all_jobs \
                   WHERE ended_us < $1 OR (ended_us IS NOT NULL AND nth > $2) OR (state = $3 AND made_us < $1) ORDER BY id";
        let old = args![earlier, JOBS_KEPT.cast_signed(), JobState::Receiving.name()];
        let old = self.db.fetch(sql, old).await?;
        let left = "SELECT id FROM jobs WHERE ended_us IS NOT NULL AND EXISTS \
                    (SELECT 1 FROM job_inputs WHERE job_inputs.job = jobs.id) ORDER BY id";
        let left = self.db.fetch(left, args![]).await?;
        let read = |rows: &[Row]| -> Result<Vec<JobId>> {
            rows.iter().map(|row| Ok(JobId(row.read(name).num()?))).collect()
        };
        let (old, left) = (read(&old)?, read(&left)?);
        let (mut pruned, mut failed) = (0, None);
        for job in left {
            failed = forget_inputs(&self.db, job).await.err().or(failed);
        }
        for job in old {
            match self.prune(job, now).await {
                Ok(true) => pruned += 1,
                Ok(false) | Err(Error::NotFound { .. }) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(pruned), Err)
    }
}

impl SqlStore {
    /// One that is old. Whether anything became of it.
    async fn prune(&self, job: JobId, now: UnixMicros) -> Result<bool> {
        let mut tx = self.db.begin().await?;
        let mut job = locked(&self.db, &mut tx, job).await?;
        if job.state.ended() {
            drop(tx);
            remove_one(&self.db, job.id).await?;
            return Ok(true);
        }
        if job.state != JobState::Receiving || !job.end(JobState::Cancelled, LEFT, now) {
            return Ok(false);
        }
        job.save(&mut tx).await?;
        tx.commit().await?;
        forget_inputs(&self.db, job.id).await?;
        Ok(true)
    }
}

/// A job whose row nobody else changes before this transaction ends.
async fn locked(db: &Db, tx: &mut Tx, job: JobId) -> Result<Job> {
    let sql = if tx.is_sqlite() { jobs!("WHERE id = $1") } else { jobs!("WHERE id = $1 FOR UPDATE") };
    let row = tx.first(sql, args![job.0.cast_signed()]).await?;
    rows::job(row.ok_or_else(|| Error::not_found("job", job))?.read(&db.name))
}

/// Of a table that grew quickly Postgres does not know yet how many rows a job has, and would rather sort all of them than read the
/// first few in the order of their key.
async fn in_order(tx: &mut Tx) -> Result<()> {
    if tx.is_sqlite() { Ok(()) } else { tx.script("SET LOCAL enable_sort = off").await }
}

/// A job as it is in a snapshot, whose rows are then read in order.
async fn seen(db: &Db, tx: &mut Tx, job: JobId) -> Result<Job> {
    in_order(tx).await?;
    let row = tx.first(jobs!("WHERE id = $1"), args![job.0.cast_signed()]).await?;
    rows::job(row.ok_or_else(|| Error::not_found("job", job))?.read(&db.name))
}

/// Of a job that has ended: some, and again, until none is left.
async fn forget_inputs(db: &Db, job: JobId) -> Result<()> {
    loop {
        let mut tx = db.begin().await?;
        in_order(&mut tx).await?;
        // One at a time of those who do this. Inputs before their bodies: who takes one holds its row until the body is read.
        locked(db, &mut tx, job).await?;
        let first = "SELECT place FROM job_inputs WHERE job = $1 ORDER BY place LIMIT 1 OFFSET $2";
        let end = tx.first(first, args![job.0.cast_signed(), ROWS_AT_ONCE]).await?;
        let end: Option<i64> = end.map(|row| row.read(&db.name).num()).transpose()?;
        for sql in [
            "DELETE FROM job_inputs WHERE job = $1 AND place < $2",
            "DELETE FROM job_bodies WHERE job = $1 AND place < $2",
        ] {
            tx.exec(sql, args![job.0.cast_signed(), end.unwrap_or(i64::MAX)]).await?;
        }
        tx.commit().await?;
        if end.is_none() {
            return Ok(());
        }
    }
}

/// One that has ended, with its outputs: some, and again, and itself with the last of them.
async fn remove_one(db: &Db, job: JobId) -> Result<()> {
    forget_inputs(db, job).await?;
    loop {
        let mut tx = db.begin().await?;
        in_order(&mut tx).await?;
        match locked(db, &mut tx, job).await {
            Err(Error::NotFound { .. }) => return Ok(()), // somebody else did
            known => known?,
        };
        let first = "SELECT place FROM job_outputs WHERE job = $1 ORDER BY place LIMIT 1 OFFSET $2";
        let end = tx.first(first, args![job.0.cast_signed(), ROWS_AT_ONCE]).await?;
        let end: Option<i64> = end.map(|row| row.read(&db.name).num()).transpose()?;
        let outputs = "DELETE FROM job_outputs WHERE job = $1 AND place < $2";
        tx.exec(outputs, args![job.0.cast_signed(), end.unwrap_or(i64::MAX)]).await?;
        if end.is_none() {
            tx.exec("DELETE FROM jobs WHERE id = $1", args![job.0.cast_signed()]).await?;
        }
        tx.commit().await?;
        if end.is_none() {
            return Ok(());
        }
    }
}
