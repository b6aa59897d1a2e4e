//! Which version of a model answers: promoted, and taken back.

use super::models::named;
use super::{Answer, FromApp, Named};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::show;
use crate::suggest::excerpt;
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use modelless_store::{Signed, UnixMicros, VersionChange};
use modelless_types::{Model, Provenance, Variant};
use modelless_wire::NodeStatus;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Which version is to answer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Promote {
    version: u32,
    /// Also where no node was measured with it yet, or where it answers in another output space.
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
    /// Also where the version before it cannot answer.
    #[serde(default)]
    force: bool,
    #[serde(default)]
    by: Option<String>,
}

/// Who did something, now.
pub(super) fn signed(who: Option<String>) -> Signed {
    Signed { who: who.unwrap_or_default(), at: UnixMicros::of(SystemTime::now()) }
}

pub(super) async fn promote(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named((task, name)): Named<(String, String)>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Promote = body::read_json(&app.core, &head, body).await?;
    detail.say(format!("version {}{}", wanted.version, if wanted.force { ", by force" } else { "" }));
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
    let model = version(task, &name, wanted.version)?;
    let unknown = can_answer(&view, task, &model, ("promoted", wanted.force))?;
    let change = app.store.promote(model.id, signed(wanted.by)).await?;
    app.catalog_changed().await;
    Ok(told(&change, &unknown))
}

pub(super) async fn roll_back(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named((task, name)): Named<(String, String)>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: RollBack = body::read_json(&app.core, &head, body).await?;
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
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
    detail.say(format!("version {}{}", model.version, if wanted.force { ", by force" } else { "" }));
    // What would answer then; where there is none, the store says so.
    let unknown = match before(task, &model) {
        Some(before) => can_answer(&view, task, &before, ("gone back to", wanted.force))?,
        None => Vec::new(),
    };
    let change = app.store.roll_back(model.id, signed(wanted.by)).await?;
    app.catalog_changed().await;
    Ok(told(&change, &unknown))
}

/// The default before this one: what going back leads to.
fn before(task: &TaskView, model: &Model) -> Option<Arc<Model>> {
    let earlier = |known: &&Arc<Model>| {
        known.name == model.name
            && (1..model.promoted).contains(&known.promoted)
            && known.tenant == model.tenant
    };
    task.models.iter().filter(earlier).max_by_key(|known| known.promoted).cloned()
}

fn told(change: &VersionChange, unknown: &[String]) -> Response {
    let body = json!({
        "name": change.name, "default": change.after, "before": change.before, "change": show::version_change(change),
        "unknown": unknown,
    });
    json_response(StatusCode::OK, &body)
}

pub(super) fn version(task: &TaskView, name: &str, wanted: u32) -> Result<Arc<Model>, ApiError> {
    let versions = named(task, name)?;
    if let Some(model) = versions.iter().find(|model| model.version == wanted) {
        return Ok(Arc::clone(model));
    }
    let known: Vec<String> = versions.iter().map(|model| model.version.to_string()).collect();
    let name = excerpt(name);
    let message = format!("model {name} has no version {wanted}; it has {}", known.join(", "));
    Err(ApiError::not_found("unknown_model", message))
}

/// Whether queries without a pin would be answered by this version, as far as that was measured, and what is not known of it.
/// By force that is all that is asked.
pub(super) fn can_answer(
    view: &View,
    task: &TaskView,
    model: &Model,
    (what, force): (&str, bool),
) -> Result<Vec<String>, ApiError> {
    let refuse = |why: String| {
        let message = format!("version {} of {} was not {what}: {why}", model.version, model.name);
        Err(ApiError::new(StatusCode::CONFLICT, "cannot_answer", message))
    };
    let own: Vec<_> = task.variants.iter().filter(|variant| variant.model.id == model.id).collect();
    if own.is_empty() && !force {
        return refuse("it has no variants; force it all the same if that is wanted".to_owned());
    }
    let (mut known, mut unknown) = (false, Vec::new());
    for variant in own {
        let ordinal = variant.variant.ordinal;
        let offered = |node: &NodeStatus| {
            node.info.offers.iter().any(|offer| offer.task == task.task.id && offer.ordinal == ordinal)
        };
        let classes: BTreeSet<&str> =
            view.nodes.iter().filter(|node| offered(node)).map(|node| node.device_class.as_str()).collect();
        if classes.is_empty() || variant.accuracy.is_none() {
            unknown.push(format!("{}: no node offers it yet", variant.variant.name));
        }
        for class in classes.into_iter().filter(|_| variant.accuracy.is_some()) {
            let guessed = guessed(&variant.variant, class);
            known |= guessed.is_empty();
            unknown.extend(guessed.iter().map(|what| format!("{} on {class}: {what}", variant.variant.name)));
        }
    }
    if !known && !force {
        let told = unknown.join("; ");
        return refuse(format!(
            "no node was measured with any of its variants yet ({told}; `modelless model show` tells who measures them); wait, \
             or force it"
        ));
    }
    let default = task.models.iter().find(|known| known.name == model.name && task.is_default(known.id));
    let usual = task.task.default_space;
    if !force && model.space != usual && default.is_some_and(|default| default.space == usual) {
        return refuse(
            "it answers in another output space than queries without a pin are answered in, so nothing of this name would \
             answer those; force it if that is wanted"
                .to_owned(),
        );
    }
    Ok(unknown)
}

/// Which figures of a variant on a device class nobody measured. What its owner declared of its accuracy is all that
/// there is without a labelled set, so that is taken.
fn guessed(variant: &Variant, class: &str) -> Vec<String> {
    let Some(profile) = variant.profiles.iter().find(|profile| profile.device_class == class) else {
        return vec!["it was not measured".to_owned()];
    };
    let seen = |provenance| matches!(provenance, Provenance::Measured | Provenance::Live);
    let mut found = Vec::new();
    if !seen(profile.latency_provenance) {
        found.push(format!("its times are {}, not measured", profile.latency_provenance));
    }
    if profile.accuracy.provenance == Provenance::Estimated {
        found.push("its accuracy is estimated, not measured".to_owned());
    }
    found
}
