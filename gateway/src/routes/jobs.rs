//! Offline jobs: made, given their inputs, started, looked at, ended; and their outputs. Working on them is for [`crate::jobs`].

use super::{Answer, FromApp, Named, Params};
use crate::access::Caller;
use crate::core::Core;
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::jobs::JobGoals;
use crate::show;
use crate::suggest::excerpt;
use crate::view::TaskView;
use axum::extract::{Request, State};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{StatusCode, Uri};
use modelless_decision::reckon::{Reckoned, reckon};
use modelless_store::{JOB_INPUTS_AT_ONCE, JOB_INPUTS_MAX, Job, JobInput, NewJob, Store, UnixMicros};
use modelless_types::{CostPer1k, Goals, JobId, JobState, Scope};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::time::SystemTime;

/// Outputs that are shown at once unless another number is asked for.
pub(crate) const OUTPUTS: u32 = 500;
/// The most that can be asked for.
pub(crate) const OUTPUTS_MAX: u32 = 1_000;
/// No more than so much of answers at once.
const OUTPUT_BYTES: u64 = 8 << 20;
/// The longest name of a job, and of an input, in characters: four bytes each are kept.
pub(crate) const NAME_MAX: usize = 50;
pub(crate) const INPUT_NAME_MAX: usize = 250;
/// The farthest deadline.
pub(crate) const DEADLINE_MAX_S: u32 = 30 * 24 * 3_600;
/// Jobs that are listed.
const LISTED: u32 = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBody {
    task: String,
    inputs: u32,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    goals: Option<Box<RawValue>>,
    #[serde(default)]
    deadline_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputsBody {
    inputs: Vec<InputBody>,
}

/// Answers stand in it as they were made.
#[derive(Serialize)]
struct OutputsBody<'a> {
    outputs: Vec<show::Output<'a>>,
    next: Option<u32>,
    job: Value,
}

/// Either bytes of the task's native form, or what a query would have as its JSON body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputBody {
    at: u32,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, rename = "type")]
    media: Option<String>,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    json: Option<Box<RawValue>>,
}

fn now() -> UnixMicros {
    UnixMicros::of(SystemTime::now())
}

pub(super) async fn create(State(app): FromApp, caller: Caller, request: Request) -> Answer {
    let core = &*app.core;
    let (head, body) = request.into_parts();
    let mut params = Params::of(&head.uri)?;
    let dry_run = params.take_flag("dry_run")?;
    params.finish(&["dry_run"])?;
    if dry_run {
        // It is as much work here as a query, and makes nothing that there is room for only so often.
        caller.asks(core.driver.clock().now())?;
    }
    let new: NewBody = body::read_json(core, &head, body).await?;
    let view = core.view_of(&caller);
    let task = view.task(&new.task)?;
    if !(1..=JOB_INPUTS_MAX).contains(&new.inputs) {
        let message = format!("inputs is {}; a job has 1 to {JOB_INPUTS_MAX}", new.inputs);
        return Err(ApiError::malformed(message));
    }
    let within = new.deadline_s.filter(|seconds| !(1..=DEADLINE_MAX_S).contains(seconds));
    if let Some(seconds) = within {
        let message = format!("deadline_s is {seconds}; it may be 1 to {DEADLINE_MAX_S}");
        return Err(ApiError::malformed(message));
    }
    let name = new.name.unwrap_or_else(|| new.task.chars().take(NAME_MAX).collect());
    check_name("the job's name", &name, NAME_MAX)?;
    let given = new.goals.as_deref().filter(|goals| goals.get() != "null");
    let (goals, resolved) = JobGoals::new(task, given, &caller.policies)?;
    let reckoned = estimate(core, task, &resolved)?;
    if dry_run {
        let estimate = show::estimate(task, reckoned.as_ref(), new.inputs);
        return Ok(json_response(StatusCode::OK, &json!({"estimate": estimate})));
    }
    let goals = serde_json::to_string(&goals)
        .map_err(|error| ApiError::malformed(format!("the goals cannot be kept: {error}")))?;
    let made = now();
    let estimate = reckoned.map(|one| CostPer1k(one.cost.0.saturating_mul(new.inputs.into())));
    let deadline =
        new.deadline_s.map(|seconds| UnixMicros(made.0.saturating_add(u64::from(seconds) * 1_000_000)));
    let job = app
        .store
        .offline()
        .add_job(NewJob {
            name,
            tenant: caller.tenant,
            app: caller.app,
            task: task.task.id,
            goals,
            inputs: new.inputs,
            estimate,
            deadline,
            made,
        })
        .await?;
    Ok(json_response(StatusCode::CREATED, &show::job(&view.catalog, &job)))
}

/// What an input is expected to cost, if anything is known to run it; a "no" where no job could ever be done.
fn estimate(core: &Core, task: &TaskView, goals: &Goals) -> Result<Option<Reckoned>, ApiError> {
    // Asked of a copy: looking takes longer than the router should wait.
    let snapshot = core.driver.look(|router, _| router.snapshot().clone());
    match reckon(&snapshot, task.task.id, goals) {
        Ok(one) => Ok(one),
        // Nodes may come.
        Err(modelless_types::Refusal::NothingRunnable { .. }) => Ok(None),
        Err(refusal) => Err(refusal.into()),
    }
}

fn check_name(what: &str, name: &str, most: usize) -> Result<(), ApiError> {
    let plain = !name.is_empty() && name.chars().count() <= most && !name.chars().any(char::is_control);
    if plain {
        return Ok(());
    }
    let message = format!("{what} must have 1 to {most} characters, none of them control characters");
    Err(ApiError::malformed(message))
}

/// A job of whoever asks: of their application, or for those who may administer the tenant any of that.
async fn theirs(store: &dyn Store, caller: &Caller, named: &str) -> Result<Job, ApiError> {
    let unknown = || {
        let message = format!("there is no job {} of yours; `GET /v1/jobs` lists them", excerpt(named));
        ApiError::not_found("unknown_job", message)
    };
    let plain = named.len() <= 18 && named.bytes().all(|b| b.is_ascii_digit());
    let id = named.parse().ok().filter(|_| plain).ok_or_else(unknown)?;
    let job = store.offline().job(JobId(id)).await?;
    job.filter(|job| may_see(caller, job)).ok_or_else(unknown)
}

fn may_see(caller: &Caller, job: &Job) -> bool {
    job.tenant == caller.tenant && (job.app == caller.app || sees_all(caller))
}

/// Of its tenant.
fn sees_all(caller: &Caller) -> bool {
    caller.scopes.has(Scope::Admin)
}

pub(super) async fn list(State(app): FromApp, caller: Caller) -> Answer {
    let view = app.core.view_of(&caller);
    // Others' are left out where they are read: the newest of all may be theirs.
    let of = (!sees_all(&caller)).then_some(caller.app);
    let jobs = app.store.offline().jobs(Some(caller.tenant), of, LISTED).await?;
    let shown = jobs.iter().map(|job| show::job(&view.catalog, job));
    Ok(json_response(StatusCode::OK, &json!({"jobs": shown.collect::<Vec<_>>()})))
}

pub(super) async fn show(State(app): FromApp, caller: Caller, Named(job): Named<String>) -> Answer {
    let job = theirs(&*app.store, &caller, &job).await?;
    Ok(json_response(StatusCode::OK, &show::job(&app.core.view_of(&caller).catalog, &job)))
}

pub(super) async fn give(
    State(app): FromApp,
    caller: Caller,
    Named(named): Named<String>,
    request: Request,
) -> Answer {
    let core = &*app.core;
    let job = theirs(&*app.store, &caller, &named).await?;
    let (head, body) = request.into_parts();
    let InputsBody { inputs } = body::read_json(core, &head, body).await?;
    if inputs.is_empty() || inputs.len() > JOB_INPUTS_AT_ONCE {
        let message = format!("there are {} inputs; give 1 to {JOB_INPUTS_AT_ONCE} at once", inputs.len());
        return Err(ApiError::malformed(message));
    }
    let inputs = inputs.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let job = app.store.offline().add_job_inputs(job.id, inputs, core.config.max_job_bytes).await?;
    Ok(json_response(StatusCode::OK, &show::job(&core.view_of(&caller).catalog, &job)))
}

/// An input as it came. Whether it is one of the task's is found out when its turn comes: one that is none must not keep the others of
/// a folder from being answered.
fn read(input: InputBody) -> Result<JobInput, ApiError> {
    let InputBody { at, name, media, data, json } = input;
    let of = |error: ApiError| ApiError { message: format!("input {at}: {}", error.message), ..error };
    let name = name.unwrap_or_else(|| at.to_string());
    check_name("an input's name", &name, INPUT_NAME_MAX).map_err(of)?;
    let (media, body) = match (data, json) {
        (Some(data), None) => {
            let body = STANDARD
                .decode(data.as_bytes())
                .map_err(|error| of(ApiError::malformed(format!("`data` is not base64: {error}"))))?;
            (media, body)
        }
        (None, Some(json)) => (Some("application/json".to_owned()), json.get().as_bytes().to_vec()),
        (Some(_), Some(_)) | (None, None) => {
            let message =
                "give either `data` (base64 of a query's body) or `json` (the JSON body of a query)";
            return Err(of(ApiError::malformed(message)));
        }
    };
    Ok(JobInput { at, name, media, body })
}

pub(super) async fn missing(
    State(app): FromApp,
    caller: Caller,
    Named(named): Named<String>,
    uri: Uri,
) -> Answer {
    let mut params = Params::of(&uri)?;
    let limit = params.take_number("limit", 1, 100_000)?.unwrap_or(1_000);
    params.finish(&["limit"])?;
    let job = theirs(&*app.store, &caller, &named).await?;
    let missing = match job.state {
        JobState::Receiving => app.store.offline().missing_job_inputs(job.id, limit).await?,
        JobState::Running | JobState::Done | JobState::Cancelled | JobState::Failed => Vec::new(),
    };
    let job = show::job(&app.core.view_of(&caller).catalog, &job);
    Ok(json_response(StatusCode::OK, &json!({"missing": missing, "job": job})))
}

pub(super) async fn start(State(app): FromApp, caller: Caller, Named(named): Named<String>) -> Answer {
    let job = theirs(&*app.store, &caller, &named).await?;
    let job = app.store.offline().start_job(job.id, now()).await?;
    app.core.jobs.changed();
    Ok(json_response(StatusCode::OK, &show::job(&app.core.view_of(&caller).catalog, &job)))
}

pub(super) async fn cancel(State(app): FromApp, caller: Caller, Named(named): Named<String>) -> Answer {
    let job = theirs(&*app.store, &caller, &named).await?;
    let why = "somebody cancelled it";
    let job = app.store.offline().end_job(job.id, JobState::Cancelled, why, now()).await?;
    app.core.jobs.changed();
    Ok(json_response(StatusCode::OK, &show::job(&app.core.view_of(&caller).catalog, &job)))
}

pub(super) async fn outputs(
    State(app): FromApp,
    caller: Caller,
    Named(named): Named<String>,
    uri: Uri,
) -> Answer {
    let mut params = Params::of(&uri)?;
    let from = params.take_number("from", 0, JOB_INPUTS_MAX)?.unwrap_or(0);
    let limit = params.take_number("limit", 1, OUTPUTS_MAX)?.unwrap_or(OUTPUTS);
    params.finish(&["from", "limit"])?;
    let job = theirs(&*app.store, &caller, &named).await?;
    let outputs = app.store.offline().job_outputs(job.id, from, (limit, OUTPUT_BYTES)).await?;
    let next = outputs.last().map(|last| last.at + 1).filter(|next| *next < job.inputs);
    let outputs = outputs.iter().map(show::output).collect::<Result<Vec<_>, _>>()?;
    let job = show::job(&app.core.view_of(&caller).catalog, &job);
    Ok(json_response(StatusCode::OK, &OutputsBody { outputs, next, job }))
}

pub(super) async fn remove(State(app): FromApp, caller: Caller, Named(named): Named<String>) -> Answer {
    let job = theirs(&*app.store, &caller, &named).await?;
    app.store.offline().remove_job(job.id).await?;
    Ok(json_response(StatusCode::OK, &json!({"removed": job.id})))
}
