//! Keys of applications: made, listed, rotated, ended; and tenants. A secret is told once, to whoever had it made.

use super::{Answer, App, FromApp, Named};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::suggest::{excerpt, noted};
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use modelless_store::{Doors, Key, NewKey, Owner, Quota, Rotation, SecretKey, Tenant, UnixMicros};
use modelless_types::{Scope, Scopes, TenantId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::SystemTime;

/// How long both keys are valid after a rotation, unless something else is asked for.
pub(crate) const OVERLAP_S: u64 = 24 * 3_600;
/// And so long at most.
pub(crate) const OVERLAP_MAX_S: u64 = 30 * 24 * 3_600;
/// No key lives longer by its expiry; without one it lives until it is revoked.
pub(crate) const EXPIRY_MAX_S: u64 = 10 * 366 * 24 * 3_600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    name: String,
    scopes: Vec<Scope>,
    /// Without it that of whoever asks.
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default = "usual_app")]
    app: String,
    #[serde(default)]
    expires_in_s: Option<u64>,
}

impl New {
    /// What is asked for, for whoever reads of it later.
    fn words(&self, caller: &Caller) -> String {
        let tenant = self.tenant.as_ref().unwrap_or(&caller.names.tenant);
        let scopes: Scopes = self.scopes.iter().copied().collect();
        let (name, tenant, app) = (noted(&self.name), noted(tenant), noted(&self.app));
        format!("key ({name}), tenant {tenant}, application {app}, scopes {scopes}")
    }
}

fn usual_app() -> String {
    "default".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotate {
    #[serde(default = "usual_overlap")]
    overlap_s: u64,
    #[serde(default)]
    expires_in_s: Option<u64>,
}

const fn usual_overlap() -> u64 {
    OVERLAP_S
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    /// Of this application; without it of the tenant with all of them.
    #[serde(default)]
    app: Option<String>,
    /// In place of the one that holds; what is left out is not bounded.
    #[serde(deserialize_with = "body::object")]
    quota: Quota,
}

impl Bound {
    /// What is asked for, for whoever reads of it later.
    fn words(&self) -> String {
        let app = self.app.as_ref().map(|app| format!("application {}, ", noted(app)));
        let quota = json!(self.quota);
        let bounds = quota.as_object().into_iter().flatten();
        let bounds: Vec<String> = bounds.map(|(name, most)| format!("{name} {most}")).collect();
        let bounds = if bounds.is_empty() { "no bounds".to_owned() } else { bounds.join(", ") };
        format!("{}{bounds}", app.unwrap_or_default())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTenant {
    name: String,
}

fn now() -> UnixMicros {
    UnixMicros::of(SystemTime::now())
}

fn after(now: UnixMicros, seconds: u64) -> UnixMicros {
    UnixMicros(now.0.saturating_add(seconds.saturating_mul(1_000_000)))
}

fn expiry(now: UnixMicros, seconds: Option<u64>) -> Result<Option<UnixMicros>, ApiError> {
    match seconds {
        Some(seconds) if !(1..=EXPIRY_MAX_S).contains(&seconds) => Err(ApiError::malformed(format!(
            "expires_in_s is {seconds}; it must be at least 1 and at most {EXPIRY_MAX_S}"
        ))),
        seconds => Ok(seconds.map(|seconds| after(now, seconds))),
    }
}

fn secret() -> Result<SecretKey, ApiError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| {
        tracing::error!(%error, "the system gave no random bytes");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the system gave no random bytes")
    })?;
    Ok(SecretKey::new(random))
}

/// Where nobody needs a key anybody could make the first one, and shut out everybody else.
fn only_locked(app: &App) -> Result<(), ApiError> {
    if app.core.gate.locked() {
        return Ok(());
    }
    let message = "there is no key yet, so nobody needs one here; the first is made by whoever can reach the store: \
                   modelless key create NAME --scopes query,register,admin with --data DIR or --database URL";
    Err(ApiError::new(StatusCode::CONFLICT, "no_keys_yet", message))
}

/// Its own tenant, or for the operator any.
pub(super) fn tenant<'a>(
    doors: &'a Doors,
    caller: &Caller,
    name: Option<&str>,
) -> Result<&'a Tenant, ApiError> {
    let found = doors.tenants.iter().find(|tenant| match name {
        Some(name) => tenant.name == name,
        None => tenant.id == caller.tenant,
    });
    found.filter(|tenant| mine(caller, tenant.id)).ok_or_else(|| {
        let name = name.unwrap_or_default();
        ApiError::not_found("unknown_tenant", format!("there is no tenant {}", excerpt(name)))
    })
}

pub(super) fn mine(caller: &Caller, tenant: TenantId) -> bool {
    caller.is_operator() || caller.tenant == tenant
}

/// A key by its number or by what is shown of it.
fn named<'a>(doors: &'a Doors, caller: &Caller, name: &str) -> Result<&'a Key, ApiError> {
    let own = |key: &&Key| {
        let app = doors.apps.iter().find(|app| app.id == key.app);
        app.is_some_and(|app| mine(caller, app.tenant))
    };
    let its = |key: &&Key| key.id.0.to_string() == name || key.secret.prefix == name;
    let mut found = doors.keys.iter().filter(own).filter(its);
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => Err(ApiError::malformed("several keys begin so; name it by its number")),
        (None, _) => Err(ApiError::not_found("unknown_key", format!("there is no key {}", excerpt(name)))),
    }
}

fn shown(doors: &Doors, key: &Key) -> Value {
    let app = doors.apps.iter().find(|app| app.id == key.app);
    let tenant = app.and_then(|app| doors.tenants.iter().find(|tenant| tenant.id == app.tenant));
    let state = match (key.revoked, key.valid(now())) {
        (Some(_), _) => "revoked",
        (None, true) => "valid",
        (None, false) => "expired",
    };
    json!({
        "id": key.id, "prefix": key.secret.prefix, "name": key.name, "state": state,
        "tenant": tenant.map(|tenant| &tenant.name), "app": app.map(|app| &app.name),
        "scopes": key.scopes.iter().collect::<Vec<_>>(),
        "created_unix_us": key.created, "expires_unix_us": key.expires, "revoked_unix_us": key.revoked,
        "successor": key.successor,
    })
}

/// A key for whoever reads what was done with it.
fn words(doors: &Doors, key: &Key) -> String {
    let app = doors.apps.iter().find(|app| app.id == key.app);
    let tenant = app.and_then(|app| doors.tenants.iter().find(|tenant| tenant.id == app.tenant));
    let (tenant, app) = (tenant.map_or("", |tenant| &tenant.name), app.map_or("", |app| &app.name));
    let Key { id, secret, name, scopes, .. } = key;
    format!("key {}, {} ({name}), tenant {tenant}, application {app}, scopes {scopes}", id.0, secret.prefix)
}

/// An answer with a secret in it is kept by nobody on its way.
fn told_once(status: StatusCode, body: &Value) -> Response {
    let mut response = json_response(status, body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) async fn list(State(app): FromApp, caller: Caller) -> Answer {
    let doors = app.store.access().doors().await?;
    let own = |key: &&Key| doors.apps.iter().any(|app| app.id == key.app && mine(&caller, app.tenant));
    let keys: Vec<Value> = doors.keys.iter().filter(own).map(|key| shown(&doors, key)).collect();
    Ok(json_response(StatusCode::OK, &json!({"keys": keys, "needed": doors.locked})))
}

pub(super) async fn create(State(app): FromApp, caller: Caller, detail: Detail, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let new: New = body::read_json(&app.core, &head, body).await?;
    detail.say(new.words(&caller));
    only_locked(&app)?;
    let at = now();
    let expires = expiry(at, new.expires_in_s)?;
    let doors = app.store.access().doors().await?;
    let tenant = tenant(&doors, &caller, new.tenant.as_deref())?;
    let of = app.store.access().app(tenant.id, &new.app).await?;
    let made = secret()?;
    let key = NewKey {
        app: of.id,
        name: new.name,
        secret: made.kept(),
        scopes: new.scopes.into_iter().collect(),
        at,
        expires,
    };
    let key = app.store.access().create_key(key).await?;
    tracing::info!(key = key.secret.prefix, by = ?caller.key, "a key was made");
    app.catalog_changed().await;
    let doors = app.store.access().doors().await?;
    detail.say(words(&doors, &key));
    let mut body = shown(&doors, &key);
    body["secret"] = json!(made.expose());
    Ok(told_once(StatusCode::CREATED, &body))
}

pub(super) async fn rotate(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(name): Named<String>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Rotate = body::read_json(&app.core, &head, body).await?;
    if wanted.overlap_s > OVERLAP_MAX_S {
        let given = wanted.overlap_s;
        return Err(ApiError::malformed(format!("overlap_s is {given}; it must be at most {OVERLAP_MAX_S}")));
    }
    let at = now();
    let expires = expiry(at, wanted.expires_in_s)?;
    let doors = app.store.access().doors().await?;
    let key = named(&doors, &caller, &name)?;
    detail.say(words(&doors, key));
    let (key, made) = (key.id, secret()?);
    let both_until = after(at, wanted.overlap_s);
    let rotation = Rotation { key, secret: made.kept(), at, both_until, expires };
    let (old, new) = app.store.access().rotate_key(rotation).await?;
    tracing::info!(old = old.secret.prefix, new = new.secret.prefix, by = ?caller.key, "a key was rotated");
    app.catalog_changed().await;
    let (id, prefix, overlap) = (new.id.0, &new.secret.prefix, wanted.overlap_s);
    detail.say(format!("{}; key {id}, {prefix}, in its place, both for {overlap} s", words(&doors, &old)));
    let body = json!({"old": shown(&doors, &old), "new": shown(&doors, &new), "secret": made.expose()});
    Ok(told_once(StatusCode::OK, &body))
}

pub(super) async fn revoke(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(name): Named<String>,
) -> Answer {
    let doors = app.store.access().doors().await?;
    let key = named(&doors, &caller, &name)?;
    detail.say(words(&doors, key));
    let key = app.store.access().revoke_key(key.id, now()).await?;
    tracing::info!(key = key.secret.prefix, by = ?caller.key, "a key was revoked");
    app.catalog_changed().await;
    Ok(json_response(StatusCode::OK, &shown(&doors, &key)))
}

pub(super) async fn tenants(State(app): FromApp) -> Answer {
    let doors = app.store.access().doors().await?;
    let tenants: Vec<Value> = doors.tenants.iter().map(|tenant| shown_tenant(&doors, tenant)).collect();
    Ok(json_response(StatusCode::OK, &json!({"tenants": tenants})))
}

fn shown_tenant(doors: &Doors, tenant: &Tenant) -> Value {
    let quota = |owner: Owner| doors.quotas.get(&owner).cloned().unwrap_or_default();
    let apps = doors.apps.iter().filter(|app| app.tenant == tenant.id);
    let apps = apps.map(|app| json!({"id": app.id, "name": app.name, "quota": quota(Owner::App(app.id))}));
    json!({
        "id": tenant.id, "name": tenant.name, "quota": quota(Owner::Tenant(tenant.id)),
        "apps": apps.collect::<Vec<_>>(),
    })
}

/// Says what a tenant, or one of its applications, may use.
pub(super) async fn bound_tenant(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(name): Named<String>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Bound = body::read_json(&app.core, &head, body).await?;
    detail.say(wanted.words());
    let access = app.store.access();
    let doors = access.doors().await?;
    let tenant = tenant(&doors, &caller, Some(&name))?;
    let owner = match wanted.app {
        Some(name) => Owner::App(access.app(tenant.id, &name).await?.id),
        None => Owner::Tenant(tenant.id),
    };
    access.set_quota(owner, wanted.quota).await?;
    tracing::info!(tenant = tenant.name, ?owner, by = ?caller.key, "a quota was set");
    app.catalog_changed().await;
    let doors = access.doors().await?;
    Ok(json_response(StatusCode::OK, &shown_tenant(&doors, tenant)))
}

pub(super) async fn create_tenant(State(app): FromApp, detail: Detail, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let new: NewTenant = body::read_json(&app.core, &head, body).await?;
    detail.say(format!("tenant {}", noted(&new.name)));
    let tenant = app.store.access().create_tenant(&new.name).await?;
    app.catalog_changed().await;
    Ok(json_response(StatusCode::CREATED, &json!({"id": tenant.id, "name": tenant.name})))
}
