//! Rows of offline jobs, written and read hundreds at a time.
//!
//! Of many rows with bytes each there is one list in JSON, and one argument with the bytes of all of them end to end; the list says
//! where in it each row's own are.

use crate::error::Result;
use crate::jobs::rules;
use crate::jobs::{Job, JobEnd, JobInput, JobOutput};
use crate::records::UnixMicros;
use crate::sql::conn::{Columns, Tx, args, corrupt, listed};
use async_trait::async_trait;
use modelless_types::{AppId, CostPer1k, JobId, JobState, Micros, TaskId, TenantId, VariantId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// So many bytes go with one statement, unless those of one row are more.
const BYTES_AT_ONCE: usize = 32 << 20;

/// Whole rows of `jobs`.
macro_rules! jobs {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, tenant, app, task, task_name, goals, state, why, inputs, received, done, failed, bytes, \
             kept, device_us, cost, estimate, deadline_us, made_us, started_us, ended_us FROM jobs ",
            $rest
        )
    };
}
pub(super) use jobs;

pub(super) fn job(mut row: Columns<'_>) -> Result<Job> {
    let time = |at: Option<i64>| at.map(|at| UnixMicros(at.unsigned_abs()));
    Ok(Job {
        id: JobId(row.num()?),
        name: row.text()?,
        tenant: TenantId(row.num()?),
        app: AppId(row.num()?),
        task: TaskId(row.num()?),
        task_name: row.text()?,
        goals: row.text()?,
        state: row.word(JobState::parse)?,
        why: row.opt_text()?,
        inputs: row.num()?,
        received: row.num()?,
        done: row.num()?,
        failed: row.num()?,
        bytes: row.num()?,
        kept: row.num()?,
        device: Micros(row.num()?),
        cost: CostPer1k(row.num()?),
        estimate: row.opt_int()?.map(|cost| CostPer1k(cost.unsigned_abs())),
        deadline: time(row.opt_int()?),
        made: UnixMicros(row.num()?),
        started: time(row.opt_int()?),
        ended: time(row.opt_int()?),
    })
}

#[async_trait]
pub(super) trait JobRow {
    async fn insert(&self, tx: &mut Tx) -> Result<()>;

    /// Writes what changes in a job.
    async fn save(&self, tx: &mut Tx) -> Result<()>;
}

#[async_trait]
impl JobRow for Job {
    async fn insert(&self, tx: &mut Tx) -> Result<()> {
        tx.exec(
            "INSERT INTO jobs (id, name, tenant, app, task, task_name, goals, state, inputs, received, done, failed, bytes, \
             kept, device_us, cost, estimate, deadline_us, made_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, 0, 0, 0, 0, 0, 0, $10, $11, $12)",
            args![
                self.id.0.cast_signed(),
                self.name.as_str(),
                self.tenant.0,
                self.app.0,
                self.task.0,
                self.task_name.as_str(),
                self.goals.as_str(),
                self.state.name(),
                self.inputs,
                self.estimate.map(|cost| cost.0.cast_signed()),
                self.deadline.map(|at| at.0.cast_signed()),
                self.made.0.cast_signed(),
            ],
        )
        .await?;
        Ok(())
    }

    async fn save(&self, tx: &mut Tx) -> Result<()> {
        tx.exec(
            "UPDATE jobs SET state = $2, why = $3, received = $4, done = $5, failed = $6, bytes = $7, device_us = $8, \
             cost = $9, started_us = $10, ended_us = $11, kept = $12 WHERE id = $1",
            args![
                self.id.0.cast_signed(),
                self.state.name(),
                self.why.clone(),
                self.received,
                self.done,
                self.failed,
                self.bytes.cast_signed(),
                self.device.0.cast_signed(),
                self.cost.0.cast_signed(),
                self.started.map(|at| at.0.cast_signed()),
                self.ended.map(|at| at.0.cast_signed()),
                self.kept.cast_signed(),
            ],
        )
        .await?;
        Ok(())
    }
}

/// A list of places.
pub(super) fn places<'p>(places: impl IntoIterator<Item = &'p u32>) -> String {
    Value::from(places.into_iter().map(|place| json!([place])).collect::<Vec<_>>()).to_string()
}

/// Rows, each with where its bytes begin (from 1) and how many they are before what else there is of it, and these bytes.
fn packed(rows: impl IntoIterator<Item = (Vec<Value>, Option<Vec<u8>>)>) -> Vec<(String, Vec<u8>)> {
    let mut packs: Vec<(Vec<Value>, Vec<u8>)> = Vec::new();
    for (mut row, body) in rows {
        let more = body.as_ref().map_or(0, Vec::len);
        if packs.last().is_none_or(|(_, bytes)| bytes.len() > 1 && bytes.len() + more > BYTES_AT_ONCE) {
            // A byte that is nobody's: of no bytes at all SQLite gives nothing, and not the none that was asked for.
            packs.push((Vec::new(), vec![0]));
        }
        let Some((rows, bytes)) = packs.last_mut() else { continue };
        let start = body.as_ref().map(|_| bytes.len() + 1);
        row.splice(0..0, [json!(start), json!(body.as_ref().map(Vec::len))]);
        bytes.extend(body.unwrap_or_default());
        rows.push(Value::from(row));
    }
    packs.into_iter().map(|(rows, bytes)| (Value::from(rows).to_string(), bytes)).collect()
}

pub(super) async fn add_inputs(tx: &mut Tx, job: JobId, inputs: BTreeMap<u32, JobInput>) -> Result<()> {
    let row = |input: JobInput| {
        let bytes = rules::size(&input.body);
        (vec![json!(input.at), json!(input.name), json!(input.media), json!(bytes)], Some(input.body))
    };
    for (list, bodies) in packed(inputs.into_values().map(row)) {
        let about = listed!(
            tx,
            "INSERT INTO job_inputs (job, place, name, media, bytes, holder, until_us) \
             SELECT CAST($1 AS BIGINT), CAST(item.value ->> 2 AS BIGINT), item.value ->> 3, item.value ->> 4, \
             CAST(item.value ->> 5 AS BIGINT), NULL, 0 FROM ",
            "$2",
            ""
        );
        tx.exec(about, args![job.0.cast_signed(), list.as_str()]).await?;
        let body = listed!(
            tx,
            "INSERT INTO job_bodies (job, place, body) SELECT CAST($1 AS BIGINT), CAST(item.value ->> 2 AS BIGINT), \
             substr($3, CAST(item.value ->> 0 AS INT), CAST(item.value ->> 1 AS INT)) FROM ",
            "$2",
            ""
        );
        tx.exec(body, args![job.0.cast_signed(), list, bodies]).await?;
    }
    Ok(())
}

/// Inputs that have not ended, in order, with their bodies.
pub(super) async fn inputs<'p>(
    tx: &mut Tx,
    job: JobId,
    wanted: impl IntoIterator<Item = &'p u32>,
) -> Result<Vec<JobInput>> {
    let sql = listed!(
        tx,
        "SELECT i.place, i.name, i.media, b.body FROM job_inputs AS i \
         LEFT JOIN job_bodies AS b ON b.job = i.job AND b.place = i.place \
         WHERE i.job = $1 AND i.place IN (SELECT CAST(item.value ->> 0 AS BIGINT) FROM ",
        "$2",
        ")"
    );
    let rows = tx.fetch(sql, args![job.0.cast_signed(), places(wanted)]).await?;
    let name = tx.name();
    let read = |mut row: Columns<'_>| {
        Ok(JobInput { at: row.num()?, name: row.text()?, media: row.opt_text()?, body: row.bytes()? })
    };
    let mut inputs: Vec<JobInput> = rows.iter().map(|row| read(row.read(&name))).collect::<Result<_>>()?;
    inputs.sort_unstable_by_key(|input| input.at);
    Ok(inputs)
}

/// Removes inputs that have not ended, and gives them without their bodies: place, name and size.
pub(super) async fn remove_inputs<'p>(
    tx: &mut Tx,
    job: JobId,
    wanted: impl IntoIterator<Item = &'p u32>,
) -> Result<Vec<(u32, String, u64)>> {
    let list = places(wanted);
    let about = listed!(
        tx,
        "DELETE FROM job_inputs WHERE job = $1 AND place IN (SELECT CAST(item.value ->> 0 AS BIGINT) FROM ",
        "$2",
        ") RETURNING place, name, bytes"
    );
    let rows = tx.fetch(about, args![job.0.cast_signed(), list.as_str()]).await?;
    // Inputs before their bodies: who takes one holds its row until the body is read.
    let bodies = listed!(
        tx,
        "DELETE FROM job_bodies WHERE job = $1 AND place IN (SELECT CAST(item.value ->> 0 AS BIGINT) FROM ",
        "$2",
        ")"
    );
    tx.exec(bodies, args![job.0.cast_signed(), list]).await?;
    let name = tx.name();
    let read = |mut row: Columns<'_>| Ok((row.num()?, row.text()?, row.num()?));
    rows.iter().map(|row| read(row.read(&name))).collect()
}

pub(super) async fn add_outputs(
    tx: &mut Tx,
    job: JobId,
    outputs: impl IntoIterator<Item = JobOutput>,
) -> Result<()> {
    let row = |output: JobOutput| {
        let bytes = output.bytes();
        let JobOutput { at, name, end, ended } = output;
        let (mut row, none) = (vec![json!(at), json!(name), json!(ended.0), json!(bytes)], Value::Null);
        let body = match end {
            JobEnd::Answer { body, variant, variant_name, device, cost } => {
                row.extend([json!(variant.0), json!(variant_name), json!(device.0), json!(cost.0)]);
                Some(body)
            }
            JobEnd::Failure { reason, message } => {
                row.extend([none.clone(), none.clone(), none.clone(), none, json!(reason), json!(message)]);
                None
            }
        };
        (row, body)
    };
    for (list, answers) in packed(outputs.into_iter().map(row)) {
        let sql = listed!(
            tx,
            "INSERT INTO job_outputs (job, place, name, ended_us, bytes, variant, variant_name, device_us, cost, reason, \
             message, answer) \
             SELECT CAST($1 AS BIGINT), CAST(item.value ->> 2 AS BIGINT), item.value ->> 3, CAST(item.value ->> 4 AS BIGINT), \
             CAST(item.value ->> 5 AS BIGINT), CAST(item.value ->> 6 AS BIGINT), item.value ->> 7, \
             CAST(item.value ->> 8 AS BIGINT), CAST(item.value ->> 9 AS BIGINT), item.value ->> 10, item.value ->> 11, \
             substr($3, CAST(item.value ->> 0 AS INT), CAST(item.value ->> 1 AS INT)) FROM ",
            "$2",
            ""
        );
        tx.exec(sql, args![job.0.cast_signed(), list, answers]).await?;
    }
    Ok(())
}

/// Those from one place to another.
pub(super) async fn outputs(tx: &mut Tx, job: JobId, (from, to): (u32, u32)) -> Result<Vec<JobOutput>> {
    let sql = "SELECT place, name, ended_us, variant, variant_name, device_us, cost, reason, message, answer \
               FROM job_outputs WHERE job = $1 AND place >= $2 AND place <= $3 ORDER BY place";
    let rows = tx.fetch(sql, args![job.0.cast_signed(), from, to]).await?;
    let name = tx.name();
    rows.iter().map(|row| output(&name, row.read(&name))).collect()
}

fn output(database: &str, mut row: Columns<'_>) -> Result<JobOutput> {
    let (at, name, ended) = (row.num()?, row.text()?, UnixMicros(row.num()?));
    let (variant, variant_name) = (row.opt_int()?, row.opt_text()?);
    let (device, cost) = (row.opt_int()?, row.opt_int()?);
    let (reason, message, answer) = (row.opt_text()?, row.opt_text()?, row.opt_bytes()?);
    let end = match (answer, variant, variant_name, device, cost, reason, message) {
        (Some(body), Some(variant), Some(variant_name), Some(device), Some(cost), None, None) => {
            let variant = u32::try_from(variant).map_err(|_| corrupt(database, "no such variant"))?;
            JobEnd::Answer {
                body,
                variant: VariantId(variant),
                variant_name,
                device: Micros(device.unsigned_abs()),
                cost: CostPer1k(cost.unsigned_abs()),
            }
        }
        (None, None, None, None, None, Some(reason), Some(message)) => JobEnd::Failure { reason, message },
        _ => {
            return Err(corrupt(
                database,
                format!("output {at} of a job is neither an answer nor a failure"),
            ));
        }
    };
    Ok(JobOutput { at, name, end, ended })
}
