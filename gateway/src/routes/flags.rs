//! Variants that are flagged as less accurate than measured: what was said of them, and taking it back.

use super::versions::signed;
use super::{Answer, FromApp, Named};
use crate::access::Caller;
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::show;
use crate::suggest::{excerpt, suggest};
use crate::view::{TaskView, VariantView};
use axum::extract::{Request, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

/// Of a variant's history so much is shown.
const SHOWN: u32 = 100;

/// Why a flag is to go.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unflag {
    reason: String,
    /// Who does it, for people. Nothing proves it.
    #[serde(default)]
    by: Option<String>,
}

pub(super) async fn show(
    State(app): FromApp,
    caller: Caller,
    Named((task, variant)): Named<(String, String)>,
) -> Answer {
    let view = app.core.view_of(&caller);
    let variant = named(view.task(&task)?.owned()?, &variant)?.variant.id;
    let changes = app.store.flag_changes(variant, SHOWN).await?;
    let changes: Vec<_> = changes.iter().map(show::flag_change).collect();
    Ok(json_response(StatusCode::OK, &json!({"history": changes})))
}

pub(super) async fn clear(
    State(app): FromApp,
    caller: Caller,
    Named((task, variant)): Named<(String, String)>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Unflag = body::read_json(&app.core, &head, body).await?;
    let view = app.core.view_of(&caller);
    let known = &named(view.task(&task)?.owned()?, &variant)?.variant;
    let change = app.store.clear_flag(known.id, signed(wanted.by), &wanted.reason).await?;
    let (who, reason) = (&change.who, &change.reason);
    tracing::warn!(task, variant, who, reason, "a variant's flag was taken back by hand");
    app.catalog_changed().await;
    let told = json!({"task": task, "variant": variant, "change": show::flag_change(&change)});
    Ok(json_response(StatusCode::OK, &told))
}

fn named<'a>(task: &'a TaskView, name: &str) -> Result<&'a VariantView, ApiError> {
    task.variants.iter().find(|view| view.variant.name == name).ok_or_else(|| {
        let near = suggest(name, task.variants.iter().map(|view| view.variant.name.as_str()));
        let message = format!("task {:?} has no variant {}{near}", task.task.name, excerpt(name));
        ApiError::not_found("unknown_variant", message)
    })
}
