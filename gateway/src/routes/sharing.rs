//! Who besides its owner may use a model: nobody, some tenants, or everybody.

use super::models::named;
use super::{Answer, FromApp, Named};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::suggest::{excerpt, noted};
use axum::extract::{Request, State};
use http::StatusCode;
use modelless_store::{Doors, Visibility};
use modelless_types::TaskId;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Private,
    Shared,
    Public,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {
    visibility: Word,
    /// By name, where it is shared.
    #[serde(default)]
    tenants: Vec<String>,
}

impl Share {
    /// What is asked for, for whoever reads of it later.
    fn words(&self) -> String {
        let tenants: Vec<String> = self.tenants.iter().map(|tenant| noted(tenant)).collect();
        match self.visibility {
            Word::Private => "private".to_owned(),
            Word::Public => "public".to_owned(),
            Word::Shared => format!("shared with {}", tenants.join(", ")),
        }
    }
}

pub(super) async fn share(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named((task, name)): Named<(String, String)>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Share = body::read_json(&app.core, &head, body).await?;
    detail.say(wanted.words());
    let view = app.core.view_of(&caller);
    let task = view.task(&task)?.owned()?;
    named(task, &name)?;
    let access = app.store.access();
    let doors = access.doors().await?;
    if (wanted.visibility == Word::Shared) == wanted.tenants.is_empty() {
        let message = "`tenants` names those that a model is `shared` with; others take none";
        return Err(ApiError::malformed(message));
    }
    let with = match wanted.visibility {
        Word::Private => Visibility::Private,
        Word::Public => Visibility::Public,
        Word::Shared => {
            let id = |name: &String| {
                let known = doors.tenants.iter().find(|tenant| tenant.name == *name).map(|tenant| tenant.id);
                known.ok_or_else(|| {
                    ApiError::not_found("unknown_tenant", format!("there is no tenant {}", excerpt(name)))
                })
            };
            Visibility::Shared(wanted.tenants.iter().map(id).collect::<Result<_, _>>()?)
        }
    };
    access.share_model(task.task.id, &name, with).await?;
    tracing::info!(task = task.task.name, model = name, by = ?caller.key, "who may use a model was changed");
    app.catalog_changed().await;
    let mut shown = shown(&access.doors().await?, task.task.id, &name);
    shown["task"] = json!(task.task.name);
    shown["model"] = json!(name);
    Ok(json_response(StatusCode::OK, &shown))
}

/// Who may use the models of a name.
pub(super) fn shown(doors: &Doors, task: TaskId, name: &str) -> Value {
    let grants: Vec<_> =
        doors.grants.iter().filter(|grant| grant.task == task && grant.name == name).collect();
    if grants.is_empty() {
        return json!({"visibility": "private"});
    }
    if grants.iter().any(|grant| grant.to.is_none()) {
        return json!({"visibility": "public"});
    }
    let tenants =
        doors.tenants.iter().filter(|tenant| grants.iter().any(|grant| grant.to == Some(tenant.id)));
    json!({"visibility": "shared", "tenants": tenants.map(|tenant| &tenant.name).collect::<Vec<_>>()})
}
