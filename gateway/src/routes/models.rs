//! Models and variants: shown, registered, removed.

use super::{Answer, FromApp, Named, Params};
use crate::access::{Caller, Detail};
use crate::admin::{AdminError, BUDGET_MS_MAX, RegisterRequest};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::show;
use crate::suggest::{excerpt, noted, suggest};
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use http::{StatusCode, Uri};
use modelless_types::{Model, Variant};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// So many changes of versions are shown with a model.
const CHANGES: u32 = 50;
/// A model is shown without what the store has to say of its measuring where that takes longer.
const MEASURING_WITHIN: Duration = Duration::from_secs(2);

pub(super) async fn list(State(app): FromApp, caller: Caller, uri: Uri) -> Answer {
    let view = app.core.view_of(&caller);
    let shown =
        of_tasks(&view, &uri, |task| task.models.iter().map(|model| show::model(task, model)).collect())?;
    Ok(json_response(StatusCode::OK, &json!({"models": shown})))
}

pub(super) async fn variants(State(app): FromApp, caller: Caller, uri: Uri) -> Answer {
    let view = app.core.view_of(&caller);
    let shown = |task: &TaskView| show::variants(&view, task);
    let mut shown = of_tasks(&view, &uri, shown)?;
    app.with_live(&view, shown.iter_mut().collect()).await;
    Ok(json_response(StatusCode::OK, &json!({"variants": shown})))
}

/// One list over all tasks, or over the one that is asked for.
fn of_tasks(view: &View, uri: &Uri, show: impl Fn(&TaskView) -> Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut params = Params::of(uri)?;
    let only = params.take("task");
    params.finish(&["task"])?;
    let mut tasks: Vec<&TaskView> = match only {
        Some(name) => vec![view.task(&name)?],
        None => view.tasks.values().collect(),
    };
    tasks.sort_by(|a, b| a.task.name.cmp(&b.task.name));
    Ok(tasks.into_iter().flat_map(show).collect())
}

pub(super) async fn show(
    State(app): FromApp,
    caller: Caller,
    Named((task, name)): Named<(String, String)>,
) -> Answer {
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?;
    let versions: Vec<_> = named(task, &name)?;
    let mut shown: Vec<_> = versions.iter().map(|model| show::model_in_full(&view, task, model)).collect();
    let own = task.owned().is_ok();
    // Asked of the store, as this changes every second; without an answer nothing is said of it.
    if own && let Ok(Ok(known)) = tokio::time::timeout(MEASURING_WITHIN, app.store.measurings()).await {
        let variants = shown.iter_mut().filter_map(|model| model["variants"].as_array_mut()).flatten();
        for variant in variants {
            let own = known.iter().filter(|one| json!(one.variant) == variant["id"]);
            variant["measuring"] = own.map(show::measuring).collect();
        }
    }
    let variants = shown.iter_mut().filter_map(|model| model["variants"].as_array_mut()).flatten();
    app.with_live(&view, variants.collect()).await;
    // Likewise: who changed which version answers.
    let changes = app.store.version_changes(task.task.id, &name, CHANGES);
    let history: Option<Vec<Value>> = match tokio::time::timeout(MEASURING_WITHIN, changes).await {
        Ok(Ok(changes)) if own => Some(changes.iter().map(show::version_change).collect()),
        Ok(_) | Err(_) => None,
    };
    let doors = tokio::time::timeout(MEASURING_WITHIN, app.store.access().doors()).await;
    let doors = doors.ok().and_then(Result::ok).filter(|_| own);
    let sharing = doors.map(|doors| super::sharing::shown(&doors, task.task.id, &name));
    let body = json!({"versions": shown, "history": history, "sharing": sharing});
    Ok(json_response(StatusCode::OK, &body))
}

/// All versions of a name, newest first.
pub(super) fn named<'a>(task: &'a TaskView, name: &str) -> Result<Vec<&'a Arc<Model>>, ApiError> {
    let versions: Vec<_> = task.models.iter().filter(|model| model.name == name).collect();
    if versions.is_empty() {
        let near = suggest(name, task.models.iter().map(|model| model.name.as_str()));
        let message = format!("task {:?} has no model {}{near}", task.task.name, excerpt(name));
        return Err(ApiError::not_found("unknown_model", message));
    }
    Ok(versions)
}

pub(super) async fn register(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: RegisterRequest = body::read_json(&app.core, &head, body).await?;
    let (task, name) = (noted(&wanted.task), noted(&wanted.name));
    detail.say(format!("task {task}, model {name}, version {}", wanted.version));
    app.core.view_of(&caller).task(&wanted.task)?.owned()?;
    if wanted.variants.is_empty() {
        return Err(ApiError::malformed("`variants` is empty; a model needs at least one way to be run"));
    }
    if wanted.declared_accuracy.is_some_and(|value| !(0.0..=1.0).contains(&value)) {
        return Err(ApiError::malformed("`declared_accuracy` must be a number from 0 to 1"));
    }
    if wanted.budget_ms.is_some_and(|budget| !(1..=BUDGET_MS_MAX).contains(&budget)) {
        let message = format!(
            "`budget_ms` must be a number from 1 to {BUDGET_MS_MAX} (a day), or null for as long as it takes"
        );
        return Err(ApiError::malformed(message));
    }
    let set = wanted.set.iter().map(|set| set.artefact_sha256.as_str());
    let named = wanted.variants.iter().map(|variant| variant.artefact_sha256.as_str()).chain(set);
    super::artefacts::check_own(&app, &caller, named).await?;
    let Some(admin) = &app.admin else {
        let message = "this gateway cannot register models; ask one that runs beside an executor";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_served_here", message));
    };
    let registered = admin.register(caller.tenant, wanted).await.map_err(|error| match error {
        AdminError::Invalid(why) => ApiError::malformed(why),
        AdminError::Store(error) => error.into(),
        AdminError::Unavailable(why) => ApiError::unavailable("cannot_measure", why),
    })?;
    app.catalog_changed().await;
    let variants: Vec<_> = registered
        .variants
        .iter()
        .map(|variant| {
            let measured = is_measured(variant);
            let warnings: Vec<&String> =
                variant.profiles.iter().flat_map(|known| &known.detail.doubts).collect();
            json!({
                "id": variant.id, "name": variant.name, "ordinal": variant.ordinal, "measured": measured,
                "warnings": warnings,
            })
        })
        .collect();
    // What nodes have yet to measure is accepted, and shown with the model from now on.
    let all = registered.variants.iter().all(is_measured);
    let status = if all { StatusCode::CREATED } else { StatusCode::ACCEPTED };
    let model = &registered.model;
    let body = json!({
        "id": model.id, "name": model.name, "version": model.version, "owner": model.owner,
        "default": model.promoted > 0, "variants": variants,
    });
    Ok(json_response(status, &body))
}

/// What is being registered just now, and how far that is.
pub(super) async fn registrations(State(app): FromApp, caller: Caller) -> Answer {
    let under_way = app.admin.as_ref().map(|admin| admin.under_way(caller.tenant)).unwrap_or_default();
    Ok(json_response(StatusCode::OK, &json!({"registrations": under_way})))
}

fn is_measured(variant: &Variant) -> bool {
    variant.profiles.iter().any(|profile| !profile.is_estimated())
}

pub(super) async fn remove(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named((task, name)): Named<(String, String)>,
    uri: Uri,
) -> Answer {
    let mut params = Params::of(&uri)?;
    let force = params.take_flag("force")?;
    let version = params.take_number("version", 0, u32::MAX)?;
    let by = params.take("by");
    params.finish(&["force", "version", "by"])?;
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
    let forced = if force { ", by force" } else { "" };
    if let Some(version) = version {
        detail.say(format!("version {version}{forced}"));
    }
    let mut versions = named(task, &name)?;
    if let Some(version) = version {
        versions.retain(|model| model.version == version);
        if versions.is_empty() {
            let message = format!("model {name:?} has no version {version}");
            return Err(ApiError::not_found("unknown_model", message));
        }
    } else if versions.len() > 1 {
        let known: Vec<String> = versions.iter().map(|model| model.version.to_string()).collect();
        let message =
            format!("model {name:?} has the versions {}; say which with ?version=", known.join(", "));
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
    }
    let mut removed = Vec::new();
    for model in versions {
        detail.say(format!("version {}{forced}", model.version));
        app.store.remove_model(model.id, force, super::versions::signed(by.clone())).await?;
        removed.push(json!({"name": model.name, "version": model.version}));
    }
    app.catalog_changed().await;
    Ok(json_response(StatusCode::OK, &json!({"removed": removed})))
}
