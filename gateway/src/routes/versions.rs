//! Which version of a model answers: promoted, and taken back.

use super::models::named;
use super::{Answer, FromApp, Named};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::show;
use crate::suggest::excerpt;
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use modelless_store::{Signed, UnixMicros, VersionChange};
use modelless_types::Model;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::SystemTime;

/// Which version is to answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promote {
    version: u32,
    /// Also where no node can run it yet, or where it answers in another output space.
    #[serde(default)]
    force: bool,
    /// Who does it, for people. Nothing proves it.
    #[serde(default)]
    by: Option<String>,
}

/// Which version is not to answer any longer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBack {
    /// What the caller takes for the default; where it is not, nothing is done.
    #[serde(default)]
    version: Option<u32>,
    #[serde(default)]
    by: Option<String>,
}

/// Who did something, now.
pub(super) fn signed(who: Option<String>) -> Signed {
    Signed { who: who.unwrap_or_default(), at: UnixMicros::of(SystemTime::now()) }
}

pub(super) async fn promote(
    State(app): FromApp,
    Named((task, name)): Named<(String, String)>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Promote = body::read_json(&app.core, &head.headers, body).await?;
    let view = app.core.view();
    let task = view.task(&task)?;
    let model = version(task, &name, wanted.version)?;
    if !wanted.force {
        can_answer(&view, task, &model)?;
    }
    let change = app.store.promote(model.id, signed(wanted.by)).await?;
    app.catalog_changed().await;
    Ok(told(&change))
}

pub(super) async fn roll_back(
    State(app): FromApp,
    Named((task, name)): Named<(String, String)>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: RollBack = body::read_json(&app.core, &head.headers, body).await?;
    let view = app.core.view();
    let task = view.task(&task)?;
    let model = if let Some(wanted) = wanted.version {
        version(task, &name, wanted)?
    } else {
        let default = named(task, &name)?.into_iter().find(|model| task.is_default(model.id));
        let none = || {
            let message = format!("model {} has no default version; promote one", excerpt(&name));
            ApiError::new(StatusCode::CONFLICT, "conflict", message)
        };
        Arc::clone(default.ok_or_else(none)?)
    };
    let change = app.store.roll_back(model.id, signed(wanted.by)).await?;
    app.catalog_changed().await;
    Ok(told(&change))
}

fn told(change: &VersionChange) -> Response {
    let body = json!({
        "name": change.name, "default": change.after, "before": change.before, "change": show::version_change(change),
    });
    json_response(StatusCode::OK, &body)
}

fn version(task: &TaskView, name: &str, wanted: u32) -> Result<Arc<Model>, ApiError> {
    let versions = named(task, name)?;
    if let Some(model) = versions.iter().find(|model| model.version == wanted) {
        return Ok(Arc::clone(model));
    }
    let known: Vec<String> = versions.iter().map(|model| model.version.to_string()).collect();
    let name = excerpt(name);
    let message = format!("model {name} has no version {wanted}; it has {}", known.join(", "));
    Err(ApiError::not_found("unknown_model", message))
}

/// Whether queries without a pin would be answered after it was promoted.
fn can_answer(view: &View, task: &TaskView, model: &Model) -> Result<(), ApiError> {
    let refuse = |why: String| {
        let message = format!("version {} of {} was not promoted: {why}", model.version, model.name);
        Err(ApiError::new(StatusCode::CONFLICT, "cannot_answer", message))
    };
    let mut own = task.variants.iter().filter(|variant| variant.model.id == model.id).peekable();
    if own.peek().is_none() {
        return refuse("it has no variants; force it to promote it all the same".to_owned());
    }
    let offered = |ordinal: u8| {
        let mut offers = view.nodes.iter().flat_map(|node| &node.info.offers);
        offers.any(|offer| offer.task == task.task.id && offer.ordinal == ordinal)
    };
    if !own.any(|variant| variant.accuracy.is_some() && offered(variant.variant.ordinal)) {
        return refuse(
            "no node can run any of its variants yet (`modelless model show` tells who measures them); wait, or force it"
                .to_owned(),
        );
    }
    let default = task.models.iter().find(|known| known.name == model.name && task.is_default(known.id));
    let usual = task.task.default_space;
    if model.space != usual && default.is_some_and(|default| default.space == usual) {
        return refuse(
            "it answers in another output space than queries without a pin are answered in, so nothing of this name would \
             answer those; force it if that is wanted"
                .to_owned(),
        );
    }
    Ok(())
}
