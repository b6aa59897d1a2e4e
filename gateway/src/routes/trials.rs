//! Versions on trial: begun, looked at, stopped.

use super::versions::{can_answer, signed, version};
use super::{Answer, FromApp, Named, Params};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::show;
use crate::suggest::excerpt;
use crate::trials::counted;
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use modelless_decision::trial::{Counts, FloorsLost, keeps_floors};
use modelless_store::{NewTrial, Trial, TrialEnded};
use modelless_types::{Accuracy, Micros, Model, ModelId, Share, TrialState};
use serde::Deserialize;
use serde_json::{Value, json};

/// A trial that nobody says anything of lasts so long.
pub(crate) const FOR_MS: u64 = 3_600_000;
/// The shortest one, and the longest.
pub(crate) const FOR_MS_LEAST: u64 = 1_000;
pub(crate) const FOR_MS_MAX: u64 = 30 * 86_400_000;
/// The largest share: what it is compared with has to be asked as much.
pub(crate) const SHARE_MAX: f64 = 0.5;
/// Trials that are shown unless another number is asked for.
pub(crate) const SHOWN: u32 = 50;
/// The most that can be asked for.
pub(crate) const SHOWN_MAX: u32 = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Try {
    model: String,
    version: u32,
    share: f64,
    /// It is asked copies, whose answers nobody gets.
    #[serde(default)]
    shadow: bool,
    #[serde(default = "usual_time")]
    for_ms: u64,
    #[serde(default)]
    promote_when_good: bool,
    /// Also where no node was measured with it yet, or where it would not keep floors that are kept now.
    #[serde(default)]
    force: bool,
    /// Who does it, for people. Nothing proves it.
    #[serde(default)]
    by: Option<String>,
}

const fn usual_time() -> u64 {
    FOR_MS
}

pub(super) async fn begin(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(task): Named<String>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Try = body::read_json(&app.core, &head, body).await?;
    let share = share(wanted.share)?;
    let lasts = lasts(wanted.for_ms)?;
    let Try { promote_when_good, force, shadow, .. } = wanted;
    if shadow && promote_when_good {
        let message = "copies are answered when there is time, so they say nothing of lateness: promote_when_good needs a share";
        return Err(ApiError::malformed(message));
    }
    detail.say(format!(
        "{} version {}, {share}{} for {} s{}{}",
        wanted.model,
        wanted.version,
        if shadow { " as copies" } else { "" },
        wanted.for_ms / 1_000,
        if promote_when_good { ", to be promoted when good" } else { "" },
        if force { ", by force" } else { "" }
    ));
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
    let model = version(task, &wanted.model, wanted.version)?;
    let mut told = can_answer(&view, task, &model, ("tried", force))?;
    let default = compared(task, &model)?;
    same_space(task, &model, default)?;
    if promote_when_good && let Err(lost) = floors(&view, default.id, model.id) {
        if !force {
            return Err(floors_lost(&model, &lost));
        }
        told.push(format!("it would not be promoted as it is: {lost}"));
    }
    let by = signed(wanted.by);
    let new = NewTrial { candidate: model.id, share, shadow, lasts, promote_when_good, forced: force, by };
    let trial = app.store.on_trial().begin_trial(new).await?;
    app.catalog_changed().await;
    let shown = json!({"trial": show::trial(&view, &trial, &Counts::default()), "told": told});
    Ok(json_response(StatusCode::CREATED, &shown))
}

pub(super) async fn show(State(app): FromApp, caller: Caller, Named(task): Named<String>) -> Answer {
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
    let last = app.store.on_trial().trials(Some(task.task.id), 1).await?;
    let trial = last.first().ok_or_else(|| none(task, "had a version on trial yet"))?;
    let counts = match trial.state {
        TrialState::Running => counted(&app.core, trial.id),
        TrialState::Promoted | TrialState::RolledBack | TrialState::Stopped => figures(trial),
    };
    Ok(json_response(StatusCode::OK, &json!({"trial": show::trial(&view, trial, &counts)})))
}

pub(super) async fn stop(
    State(app): FromApp,
    caller: Caller,
    Named(task): Named<String>,
    uri: Uri,
) -> Answer {
    let mut params = Params::of(&uri)?;
    let by = signed(params.take("by"));
    params.finish(&["by"])?;
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
    // What was counted is kept; which trial runs is for the store to say, so that none that is not known here yet is overlooked.
    let running = task.trial.as_ref().map(|running| counted(&app.core, running.on.id));
    let figures =
        running.map(|counts| serde_json::to_string(&counts).expect("counts are plain data; this is a bug"));
    let ended = TrialEnded { cause: "stopped by hand".to_owned(), figures, by };
    let stopped = app.store.on_trial().stop_trial(task.task.id, ended).await?;
    let trial = stopped.ok_or_else(|| none(task, "has a version on trial"))?;
    app.catalog_changed().await;
    Ok(json_response(StatusCode::OK, &json!({"trial": show::trial(&view, &trial, &self::figures(&trial))})))
}

pub(super) async fn list(State(app): FromApp, caller: Caller, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let task = params.take("task");
    let limit = params.take_number("limit", 1, SHOWN_MAX)?.unwrap_or(SHOWN);
    params.finish(&["task", "limit"])?;
    let view = app.core.view_of(&caller);
    let only = task.map(|name| view.task(&name)?.owned().map(|task| task.task.id)).transpose()?;
    let own =
        |trial: &&Trial| view.tasks.values().any(|task| task.task.id == trial.task && task.owned().is_ok());
    let all = app.store.on_trial().trials(only, if only.is_some() { limit } else { u32::MAX }).await?;
    let shown = all.iter().filter(own).take(usize::try_from(limit).unwrap_or(usize::MAX));
    let counts = |trial: &Trial| match trial.state {
        TrialState::Running => counted(&app.core, trial.id),
        TrialState::Promoted | TrialState::RolledBack | TrialState::Stopped => figures(trial),
    };
    let shown: Vec<Value> = shown.map(|trial| show::trial(&view, trial, &counts(trial))).collect();
    Ok(json_response(StatusCode::OK, &json!({"trials": shown})))
}

/// What was counted when it ended.
fn figures(trial: &Trial) -> Counts {
    let figures = trial.ended.as_ref().and_then(|ended| ended.figures.as_deref());
    // Of another version, nothing can be said.
    figures.and_then(|figures| serde_json::from_str(figures).ok()).unwrap_or_default()
}

fn none(task: &TaskView, what: &str) -> ApiError {
    let message = format!("no model of task {:?} {what}", task.task.name);
    ApiError::not_found("no_trial", message)
}

fn share(given: f64) -> Result<Share, ApiError> {
    let share = Accuracy::floor_from_f64(given).filter(|_| given <= SHARE_MAX);
    share.and_then(|share| Share::from_ppm(share.ppm())).ok_or_else(|| {
        ApiError::malformed(format!(
            "share is {given}; expected more than 0 and at most {SHARE_MAX}, such as 0.05: what it is compared with is asked as well"
        ))
    })
}

fn lasts(for_ms: u64) -> Result<Micros, ApiError> {
    if (FOR_MS_LEAST..=FOR_MS_MAX).contains(&for_ms) {
        return Ok(Micros::from_millis(for_ms));
    }
    Err(ApiError::malformed(format!(
        "for_ms is {for_ms}; expected from {FOR_MS_LEAST} to {FOR_MS_MAX}, which are 30 days"
    )))
}

/// The default version of its name, which it is compared with.
fn compared<'a>(task: &'a TaskView, model: &Model) -> Result<&'a Model, ApiError> {
    let default = task.models.iter().find(|known| known.name == model.name && task.is_default(known.id));
    let why = match default {
        Some(default) if default.id != model.id => return Ok(default),
        Some(_) => "it is the default one, and answers all that is not pinned",
        None => {
            "no version of this name is the default one, so there is nothing to compare it with; promote one"
        }
    };
    let message = format!("version {} of {} was not tried: {why}", model.version, model.name);
    Err(ApiError::new(StatusCode::CONFLICT, "nothing_to_compare", message))
}

/// Queries are drawn after their space was settled.
fn same_space(task: &TaskView, model: &Model, default: &Model) -> Result<(), ApiError> {
    if model.space == default.space && model.space == task.task.default_space {
        return Ok(());
    }
    let message = format!(
        "version {} of {} was not tried: it answers in another output space than queries without a pin, and answers of two spaces \
         cannot be compared",
        model.version,
        excerpt(&model.name)
    );
    Err(ApiError::new(StatusCode::CONFLICT, "other_space", message))
}

fn floors(view: &View, default: ModelId, candidate: ModelId) -> Result<(), FloorsLost> {
    keeps_floors(view.catalog.floors_kept(default), view.catalog.floors_kept(candidate))
}

fn floors_lost(model: &Model, lost: &FloorsLost) -> ApiError {
    let message = format!(
        "version {} of {} was not tried: it is not to become the default, since {lost}; try it without promoting it, or force it and \
         have it measured better meanwhile",
        model.version, model.name
    );
    ApiError::new(StatusCode::CONFLICT, "floors_lost", message)
}
