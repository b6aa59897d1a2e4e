//! Policies: what holds for the queries of a tenant or an application beside what they say themselves.

use super::keys::{mine, tenant};
use super::{Answer, FromApp};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::goals::Given;
use crate::http::body;
use crate::suggest::{excerpt, noted, suggest};
use crate::view::{View, metered};
use axum::extract::{Request, State};
use http::StatusCode;
use modelless_store::{Doors, Owner, Policy, PolicyBounds, PolicyGoals, PolicyOf, PolicyShare, Tenant};
use modelless_types::{Accuracy, AppId, CostPer1k, Micros, Share};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Without it that of whoever asks.
    #[serde(default)]
    tenant: Option<String>,
    /// Of this application; without it of the tenant with all of them.
    #[serde(default)]
    app: Option<String>,
    /// For this task; without it for all.
    #[serde(default)]
    task: Option<String>,
    /// Where a query gives none.
    #[serde(default)]
    goals: Option<Box<RawValue>>,
    /// Whatever it gives.
    #[serde(default)]
    bounds: Option<Box<RawValue>>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    variant: Option<String>,
    /// So much of devices' time beside other applications, where not all can be answered in time.
    #[serde(default)]
    weight: Option<u32>,
    /// So much of it whatever others ask, 0 to 1.
    #[serde(default)]
    reserve: Option<f64>,
}

impl Wanted {
    fn policy(&self) -> Result<Policy, ApiError> {
        let Given { accuracy, latency, max_cost, prefer, .. } =
            given(self.goals.as_deref(), "goals", &["accuracy", "latency_ms", "max_cost", "prefer"])?;
        let goals = PolicyGoals { accuracy, latency, max_cost, prefer };
        let Given { accuracy, max_cost, .. } =
            given(self.bounds.as_deref(), "bounds", &["accuracy", "max_cost"])?;
        let bounds = PolicyBounds { accuracy, max_cost };
        let share = PolicyShare { weight: self.weight, reserve: self.reserve.map(reserved).transpose()? };
        Ok(Policy { goals, bounds, model: self.model.clone(), variant: self.variant.clone(), share })
    }

    /// What is asked for, for whoever reads of it later.
    fn words(&self, caller: &Caller, policy: &Policy) -> String {
        let tenant = noted(self.tenant.as_ref().unwrap_or(&caller.names.tenant));
        let app = self.app.as_ref().map(|app| format!(", application {}", noted(app))).unwrap_or_default();
        let task = self.task.as_ref().map(|task| format!(", task {}", noted(task))).unwrap_or_default();
        let said = if policy.is_empty() { "no policy".to_owned() } else { shown_policy(policy).to_string() };
        format!("tenant {tenant}{app}{task}: {said}")
    }
}

fn reserved(part: f64) -> Result<Share, ApiError> {
    // Its shortest decimal form is what was written.
    let share = Accuracy::floor_from_f64(part).and_then(|part| Share::from_ppm(part.ppm()));
    share.ok_or_else(|| {
        let message = format!("reserve is {part}; expected a part of all, from 0.01 to 1");
        ApiError::malformed(message)
    })
}

/// Of all goals those that make sense here.
fn given(text: Option<&RawValue>, what: &str, taken: &[&str]) -> Result<Given, ApiError> {
    let mut given = Given::default();
    // `null` is as good as left out.
    let Some(text) = text.filter(|text| text.get() != "null") else { return Ok(given) };
    given.add_json(text)?;
    let Given { accuracy: _, latency, max_cost: _, prefer, priority, fallback, model, variant } = &given;
    let said = [
        ("latency_ms", latency.is_some()),
        ("prefer", prefer.is_some()),
        ("priority", priority.is_some()),
        ("fallback", fallback.is_some()),
        ("model", model.is_some()),
        ("variant", variant.is_some()),
    ];
    match said.iter().find(|(name, said)| *said && !taken.contains(name)) {
        Some((name, _)) => {
            let message =
                format!("{name} stands among the {what} of a policy; expected {}", taken.join(", "));
            Err(ApiError::bad_goal(message))
        }
        None => Ok(given),
    }
}

fn shown_policy(policy: &Policy) -> Value {
    let Policy { goals, bounds, model, variant, share } = policy;
    let mut shown = json!({});
    let mut say = |part: &str, name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown[part][name] = value;
        }
    };
    say("goals", "accuracy", goals.accuracy.map(|floor| json!(Accuracy::as_f64(floor))));
    say("goals", "latency_ms", goals.latency.map(|bound| json!(Micros::as_millis_f64(bound))));
    say("goals", "max_cost", goals.max_cost.map(|most| json!(CostPer1k::as_usd(most))));
    say("goals", "prefer", goals.prefer.map(|prefer| json!(prefer)));
    say("bounds", "accuracy", bounds.accuracy.map(|floor| json!(Accuracy::as_f64(floor))));
    say("bounds", "max_cost", bounds.max_cost.map(|most| json!(CostPer1k::as_usd(most))));
    for (name, value) in [("model", model), ("variant", variant)] {
        if let Some(value) = value {
            shown[name] = json!(value);
        }
    }
    if let Some(weight) = share.weight {
        shown["weight"] = json!(weight);
    }
    if let Some(reserve) = share.reserve {
        shown["reserve"] = json!(reserve.as_f64());
    }
    shown
}

fn shown(view: &View, doors: &Doors, of: PolicyOf, policy: &Policy) -> Value {
    let app = match of.owner {
        Owner::App(id) => doors.apps.iter().find(|app| app.id == id),
        Owner::Tenant(_) => None,
    };
    let tenant = match of.owner {
        Owner::Tenant(id) => Some(id),
        Owner::App(_) => app.map(|app| app.tenant),
    };
    let tenant = doors.tenants.iter().find(|known| Some(known.id) == tenant);
    let task = of.task.and_then(|id| view.catalog.tasks.iter().find(|task| task.id == id));
    let mut shown = shown_policy(policy);
    shown["tenant"] = json!(tenant.map(|tenant| &tenant.name));
    shown["app"] = json!(app.map(|app| &app.name));
    shown["task"] = json!(task.map(|task| metered(&view.catalog, task)));
    shown
}

/// One that is there: a policy for a name that nobody uses would hold for nobody.
fn app_of(doors: &Doors, tenant: &Tenant, name: &str) -> Result<AppId, ApiError> {
    let its = || doors.apps.iter().filter(|app| app.tenant == tenant.id);
    its().find(|app| app.name == name).map(|app| app.id).ok_or_else(|| {
        let near = suggest(name, its().map(|app| app.name.as_str()));
        let message = format!("tenant {} has no application {}{near}", tenant.name, excerpt(name));
        ApiError::not_found("unknown_app", message)
    })
}

pub(super) async fn list(State(app): FromApp, caller: Caller) -> Answer {
    let doors = app.store.access().doors().await?;
    let view = app.core.view();
    let own = |of: &PolicyOf| match of.owner {
        Owner::Tenant(id) => mine(&caller, id),
        Owner::App(id) => doors.apps.iter().any(|app| app.id == id && mine(&caller, app.tenant)),
    };
    let policies = doors.policies.iter().filter(|(of, _)| own(of));
    let policies: Vec<Value> = policies.map(|(of, policy)| shown(&view, &doors, *of, policy)).collect();
    Ok(json_response(StatusCode::OK, &json!({"policies": policies})))
}

/// Says what holds from now on, in place of what was said before.
pub(super) async fn set(State(app): FromApp, caller: Caller, detail: Detail, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: Wanted = body::read_json(&app.core, &head, body).await?;
    let mut policy = wanted.policy()?;
    detail.say(wanted.words(&caller, &policy));
    let access = app.store.access();
    let doors = access.doors().await?;
    let tenant = tenant(&doors, &caller, wanted.tenant.as_deref())?;
    if wanted.app.is_none() && !caller.is_operator() {
        let message =
            "what holds for all of a tenant is said by the operator; name an application of yours with `app`";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "missing_scope", message));
    }
    let view = app.core.view_for(tenant.id);
    let task = wanted.task.as_deref().map(|name| view.task(name)).transpose()?;
    if let Some(task) = task {
        // A pin that names nothing would refuse every query.
        let pin = Given { model: policy.model.clone(), variant: policy.variant.clone(), ..Given::default() };
        task.resolve(&pin)?;
    }
    let owner = match &wanted.app {
        Some(name) => Owner::App(app_of(&doors, tenant, name)?),
        None => Owner::Tenant(tenant.id),
    };
    let of = PolicyOf { owner, task: task.map(|task| task.task.id) };
    let share = doors.policies.get(&of).map(|known| known.share).unwrap_or_default();
    if !caller.is_operator() {
        // What one application gets others do not, those of other tenants among them.
        if policy.share != PolicyShare::default() && policy.share != share {
            let message = "weights and reserved shares are said by the operator: what one application gets others do not";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "missing_scope", message));
        }
        policy.share = share;
    }
    access.set_policy(of, policy.clone()).await?;
    tracing::info!(tenant = tenant.name, ?of, by = ?caller.key, "a policy was set");
    app.catalog_changed().await;
    let doors = access.doors().await?;
    Ok(json_response(StatusCode::OK, &shown(&app.core.view(), &doors, of, &policy)))
}
