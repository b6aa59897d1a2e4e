//! Plans: the current one, and those before it.

use super::{Answer, FromApp, Named, Params, Shared};
use crate::errors::{ApiError, json_response};
use crate::show;
use axum::extract::State;
use http::{StatusCode, Uri};
use modelless_decision::plan::{Plan, changes};
use modelless_store::Plan as Saved;
use modelless_types::PlanId;
use serde_json::{Value, json};

/// Plans shown unless another number is asked for, and the most that can be.
pub(crate) const PLANS: u32 = 20;
pub(crate) const PLANS_MAX: u32 = 200;

pub(super) fn parsed(saved: &Saved) -> Result<Plan, ApiError> {
    serde_json::from_str(&saved.json).map_err(|error| {
        let message = format!("{} in the store cannot be read: {error}; it is of another version", saved.id);
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })
}

async fn parent_of(app: &Shared, saved: &Saved) -> Result<Option<Plan>, ApiError> {
    let Some(parent) = saved.parent else { return Ok(Some(Plan::default())) };
    // Old ones are forgotten.
    let Some(parent) = app.store.plan(parent).await? else { return Ok(None) };
    parsed(&parent).map(Some)
}

pub(super) async fn history(State(app): FromApp, uri: Uri) -> Answer {
    let mut params = Params::of(&uri)?;
    let limit = params.take_number("limit", 1, PLANS_MAX)?.unwrap_or(PLANS);
    params.finish(&["limit"])?;
    // One more: what the last of them changed shows only beside its parent.
    let saved = app.store.plans(limit + 1).await?;
    let plans = saved.iter().map(parsed).collect::<Result<Vec<Plan>, _>>()?;
    let view = app.core.view();
    let shown = saved.iter().enumerate().take(limit as usize).map(|(at, known)| {
        let parent = match known.parent {
            None => Some(&Plan::default()).cloned(),
            Some(_) => plans.get(at + 1).cloned(),
        };
        let changed = parent.map(|parent| changes(&parent, &plans[at]));
        show::plan_in_short(&view, known, &plans[at], changed.as_deref())
    });
    Ok(json_response(StatusCode::OK, &json!({"plans": shown.collect::<Vec<_>>()})))
}

pub(super) async fn show(State(app): FromApp, Named(which): Named<String>) -> Answer {
    let saved = match which.as_str() {
        "current" => app.store.current_plan().await?,
        number => match number.parse() {
            Ok(id) => app.store.plan(PlanId(id)).await?,
            Err(_) => None,
        },
    };
    let Some(saved) = saved else {
        let which = crate::suggest::excerpt(&which);
        let message =
            format!("there is no plan {which}; `current` is the newest, and old ones are forgotten");
        return Err(ApiError::not_found("unknown_plan", message));
    };
    let plan = parsed(&saved)?;
    let parent = parent_of(&app, &saved).await?;
    let view = app.core.view();
    let changed = parent.map(|parent| changes(&parent, &plan));
    let mut shown = show::plan_in_short(&view, &saved, &plan, changed.as_deref());
    shown["steps"] =
        plan.report.iter().map(|step| show::step(&view, &plan, step)).collect::<Vec<Value>>().into();
    Ok(json_response(StatusCode::OK, &shown))
}
