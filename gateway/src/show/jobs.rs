//! Offline jobs and their outputs.

use crate::errors::ApiError;
use crate::jobs::JobGoals;
use crate::view::TaskView;
use modelless_decision::reckon::Reckoned;
use modelless_store::{Catalog, Job, JobEnd, JobOutput, UnixMicros};
use modelless_types::CostPer1k;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::time::SystemTime;

/// In dollars: what is kept is a thousand times that.
fn usd(cost: CostPer1k) -> f64 {
    cost.as_usd() / 1_000.0
}

pub(crate) fn job(catalog: &Catalog, job: &Job) -> Value {
    let now = || UnixMicros::of(SystemTime::now());
    let tenant =
        catalog.tenants.iter().find(|tenant| tenant.id == job.tenant).map(|tenant| tenant.name.as_str());
    let app = catalog.apps.iter().find(|app| app.id == job.app).map(|app| app.name.as_str());
    let goals: Option<JobGoals> = serde_json::from_str(&job.goals).ok();
    let goals: Option<Value> = goals.and_then(|goals| serde_json::from_str(goals.given.get()).ok());
    let over = job.ended.unwrap_or_else(now);
    let late = job.deadline.is_some_and(|deadline| over > deadline);
    json!({
        "job": job.id,
        "name": job.name,
        "task": job.task_name,
        "goals": goals,
        "state": job.state.name(),
        "why": job.why,
        "inputs": job.inputs,
        "received": job.received,
        "done": job.done,
        "failed": job.failed,
        "waiting_bytes": job.bytes,
        "kept_bytes": job.kept,
        "estimate_usd": job.estimate.map(usd),
        "cost_usd": usd(job.cost),
        "device_s": job.device.as_millis_f64() / 1e3,
        "late": late,
        "made_unix_us": job.made,
        "started_unix_us": job.started,
        "ended_unix_us": job.ended,
        "deadline_unix_us": job.deadline,
        "tenant": tenant,
        "application": app,
    })
}

/// What so many inputs are expected to cost.
pub(crate) fn estimate(task: &TaskView, one: Option<&Reckoned>, inputs: u32) -> Value {
    let each = one.map(|one| CostPer1k(one.cost.0.saturating_mul(inputs.into())));
    let device = one.map(|one| one.device.as_millis_f64() / 1e3 * f64::from(inputs));
    let variant = one.and_then(|one| task.variant(one.variant)).map(|view| view.variant.name.as_str());
    json!({"usd": each.map(usd), "device_s": device, "variant": variant})
}

/// An output, with its answer as it was made: nobody reads it here.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Output<'a> {
    Answered {
        at: u32,
        name: &'a str,
        answer: &'a RawValue,
        variant: &'a str,
        device_ms: f64,
        cost_usd_per_1k: f64,
        ended_unix_us: u64,
    },
    Failed {
        at: u32,
        name: &'a str,
        reason: &'a str,
        message: &'a str,
        ended_unix_us: u64,
    },
}

pub(crate) fn output(output: &JobOutput) -> Result<Output<'_>, ApiError> {
    let JobOutput { at, name, end, ended } = output;
    let (at, ended_unix_us) = (*at, ended.0);
    match end {
        JobEnd::Answer { body, variant: _, variant_name, device, cost } => {
            let answer: &RawValue = serde_json::from_slice(body).map_err(|error| {
                tracing::error!(at, %error, "an answer of a job is not JSON; this is a bug");
                ApiError::new(
                    http::StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    format!("the answer to input {at} cannot be read"),
                )
            })?;
            Ok(Output::Answered {
                at,
                name,
                answer,
                variant: variant_name,
                device_ms: device.as_millis_f64(),
                cost_usd_per_1k: cost.as_usd(),
                ended_unix_us,
            })
        }
        JobEnd::Failure { reason, message } => {
            Ok(Output::Failed { at, name, reason, message, ended_unix_us })
        }
    }
}
