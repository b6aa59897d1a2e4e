//! Every route there is, in one table: the server and the OpenAPI document are both made from it, so neither can
//! know a route that the other does not.

mod artefacts;
mod audit;
mod decisions;
mod dry_run;
mod events;
mod explain;
mod feedback;
mod flags;
mod fleet;
mod forecast;
mod health;
mod jobs;
mod keys;
mod known_plan;
mod machines;
mod media;
mod models;
mod nowhere;
mod oip;
mod openai;
mod params;
mod plans;
mod policies;
mod profiles;
mod query;
mod recall;
mod regions;
mod room;
mod settings;
mod sharing;
mod stream;
mod tasks;
mod trials;
mod versions;

pub(crate) use audit::{SHOWN as AUDIT_SHOWN, SHOWN_MAX as AUDIT_SHOWN_MAX};
pub(crate) use jobs::{DEADLINE_MAX_S, INPUT_NAME_MAX, NAME_MAX as JOB_NAME_MAX, OUTPUTS, OUTPUTS_MAX};
pub(crate) use keys::{EXPIRY_MAX_S, OVERLAP_MAX_S, OVERLAP_S};
pub(crate) use known_plan::KnownPlan;
pub(crate) use media::{Inputs as MediaInputs, LIST_MAX, form as media_form, inputs as media_inputs};
pub(crate) use nowhere::refused;
use nowhere::{unknown_path, wrong_method};
pub(crate) use oip::of_version;
use params::{Named, Params};
pub(crate) use query::{listed, opened};
pub(crate) use regions::add as add_region;
pub(crate) use stream::{GOES_ON, MEDIA as EVENT_STREAM};
pub(crate) use trials::{
    FOR_MS as TRIAL_FOR_MS, FOR_MS_LEAST as TRIAL_FOR_MS_LEAST, FOR_MS_MAX as TRIAL_FOR_MS_MAX,
    SHARE_MAX as TRIAL_SHARE_MAX, SHOWN as TRIALS_SHOWN, SHOWN_MAX as TRIALS_SHOWN_MAX,
};

use crate::access::{Deeds, Guarded, Needs};
use crate::admin::Admin;
use crate::core::Core;
use crate::errors::ApiError;
use crate::feedback::Desk;
use crate::openapi::{self, Doc};
use crate::show;
use crate::view::{TaskView, View};
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use bytes::Bytes as Buffer;
use http::Method;
use modelless_decision::plan::Plan;
use modelless_store::{Artefacts, Store};
use modelless_types::KeepFor;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What handlers share.
pub(crate) struct App {
    pub(crate) core: Arc<Core>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) artefacts: Option<Artefacts>,
    pub(crate) admin: Option<Arc<dyn Admin>>,
    pub(crate) openapi: Buffer,
    pub(crate) feedback: Desk,
    pub(crate) deeds: Deeds,
    /// Uploads that may be written side by side.
    pub(crate) uploads: Arc<Semaphore>,
    pub(crate) rest: KnownPlan,
}

/// A store that answers takes milliseconds; a change is told as done all the same when it does not.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

impl App {
    /// Waits until the next request sees what was just written to the store.
    async fn catalog_changed(&self) {
        let version = self.store.catalog_version().await;
        let asked = self.core.look_at_catalog();
        let Ok(version) = version else { return };
        let mut shown = self.core.shown.subscribe();
        let seen = shown.wait_for(|shown| shown.version >= version && shown.asked >= asked);
        if timeout(SHOWN_WITHIN, seen).await.is_err() {
            tracing::warn!("a change of the catalogue is not shown yet: the store answers slowly");
        }
    }
}

impl App {
    /// Has shown variants tell what feedback comes to now: in the catalogue it stands as of the last change of something else.
    /// Without an answer of the store it stays that.
    async fn with_live(&self, view: &View, variants: Vec<&mut Value>) {
        let Ok(Ok(known)) = timeout(SHOWN_WITHIN, self.store.live_accuracies()).await else {
            return;
        };
        for variant in variants {
            if let Some(live) = known.iter().find(|live| json!(live.variant) == variant["id"]) {
                variant["live_accuracy"] = show::live_accuracy(live, view.catalog.measured(live.variant));
            }
        }
    }
}

impl App {
    /// The plan that holds, for who wants to know which of these tasks sleep. Without an answer of the store, or one that can be read,
    /// it is not told what that plan says. None of them sleeps where all are always kept.
    async fn plan(&self, tasks: impl IntoIterator<Item = &TaskView>) -> Option<Arc<Plan>> {
        if tasks.into_iter().all(|task| task.task.keep == KeepFor::ALWAYS) {
            return Some(Arc::default());
        }
        self.rest.read(&*self.store).await
    }
}

pub(crate) type Shared = Arc<App>;

/// One method of one path.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// Of whoever asks.
    pub(crate) needs: Needs,
    /// Whether it asks the store each time, and is not counted as a change.
    pub(crate) looks: bool,
    serve: fn() -> MethodRouter<Shared>,
    pub(crate) doc: fn() -> Doc,
}

const fn route(
    method: Method,
    path: &'static str,
    needs: Needs,
    serve: fn() -> MethodRouter<Shared>,
    doc: fn() -> Doc,
) -> Route {
    Route { method, path, needs, looks: false, serve, doc }
}

/// One that asks the store.
const fn looking(
    method: Method,
    path: &'static str,
    needs: Needs,
    serve: fn() -> MethodRouter<Shared>,
    doc: fn() -> Doc,
) -> Route {
    let mut looking = route(method, path, needs, serve, doc);
    looking.looks = true;
    looking
}

pub(crate) const ROUTES: &[Route] = &[
    route(Method::GET, "/v1/tasks", Needs::QUERY, || get(tasks::list), openapi::tasks::list),
    route(Method::POST, "/v1/tasks", Needs::REGISTER, || post(tasks::create), openapi::tasks::create),
    looking(Method::GET, "/v1/tasks/{task}", Needs::QUERY, || get(tasks::show), openapi::tasks::show),
    route(Method::POST, "/v1/tasks/{task}", Needs::QUERY, || post(query::answer), openapi::query::answer),
    route(
        Method::PATCH,
        "/v1/tasks/{task}",
        Needs::REGISTER,
        || patch(tasks::change),
        openapi::tasks::change,
    ),
    route(
        Method::DELETE,
        "/v1/tasks/{task}",
        Needs::REGISTER,
        || delete(tasks::remove),
        openapi::tasks::remove,
    ),
    route(
        Method::GET,
        "/v1/tasks/{task}/explain",
        Needs::QUERY,
        || get(explain::explain),
        openapi::query::explain_get,
    ),
    route(
        Method::POST,
        "/v1/tasks/{task}/explain",
        Needs::QUERY,
        || post(explain::explain),
        openapi::query::explain_post,
    ),
    looking(
        Method::GET,
        "/v1/tasks/{task}/forecast",
        Needs::ADMIN,
        || get(forecast::show),
        openapi::tasks::forecast,
    ),
    looking(Method::GET, "/v1/tasks/{task}/trial", Needs::QUERY, || get(trials::show), openapi::trials::show),
    route(
        Method::POST,
        "/v1/tasks/{task}/trial",
        Needs::REGISTER,
        || post(trials::begin),
        openapi::trials::begin,
    ),
    route(
        Method::DELETE,
        "/v1/tasks/{task}/trial",
        Needs::REGISTER,
        || delete(trials::stop),
        openapi::trials::stop,
    ),
    looking(Method::GET, "/v1/trials", Needs::QUERY, || get(trials::list), openapi::trials::list),
    route(
        Method::GET,
        "/v1/queries/{query}/explain",
        Needs::QUERY,
        || get(recall::explain),
        openapi::query::recall,
    ),
    route(
        Method::POST,
        "/v1/queries/{query}/feedback",
        Needs::QUERY,
        || post(feedback::give),
        openapi::query::feedback,
    ),
    route(Method::GET, "/v1/models", Needs::QUERY, || get(models::list), openapi::models::list),
    route(Method::POST, "/v1/models", Needs::REGISTER, || post(models::register), openapi::models::register),
    route(
        Method::GET,
        "/v1/registrations",
        Needs::REGISTER,
        || get(models::registrations),
        openapi::models::registrations,
    ),
    looking(
        Method::GET,
        "/v1/models/{task}/{model}",
        Needs::QUERY,
        || get(models::show),
        openapi::models::show,
    ),
    route(
        Method::DELETE,
        "/v1/models/{task}/{model}",
        Needs::REGISTER,
        || delete(models::remove),
        openapi::models::remove,
    ),
    route(
        Method::PATCH,
        "/v1/models/{task}/{model}",
        Needs::REGISTER,
        || patch(sharing::share),
        openapi::models::share,
    ),
    route(
        Method::POST,
        "/v1/models/{task}/{model}/promote",
        Needs::REGISTER,
        || post(versions::promote),
        openapi::models::promote,
    ),
    route(
        Method::POST,
        "/v1/models/{task}/{model}/rollback",
        Needs::REGISTER,
        || post(versions::roll_back),
        openapi::models::roll_back,
    ),
    route(Method::PUT, "/v1/artefacts", Needs::REGISTER, || put(artefacts::upload), openapi::models::upload),
    looking(
        Method::GET,
        "/v1/artefacts/{sha256}",
        Needs::REGISTER,
        || get(artefacts::there),
        openapi::models::artefact,
    ),
    looking(Method::GET, "/v1/variants", Needs::QUERY, || get(models::variants), openapi::models::variants),
    looking(
        Method::GET,
        "/v1/variants/{task}/{variant}/flags",
        Needs::QUERY,
        || get(flags::show),
        openapi::models::flags,
    ),
    route(
        Method::POST,
        "/v1/variants/{task}/{variant}/unflag",
        Needs::REGISTER,
        || post(flags::clear),
        openapi::models::unflag,
    ),
    route(Method::GET, "/v1/profiles", Needs::QUERY, || get(profiles::export), openapi::profiles::export),
    route(
        Method::POST,
        "/v1/profiles",
        Needs::REGISTER,
        || post(profiles::import),
        openapi::profiles::import,
    ),
    looking(Method::GET, "/v1/jobs", Needs::QUERY, || get(jobs::list), openapi::jobs::list),
    looking(Method::POST, "/v1/jobs", Needs::QUERY, || post(jobs::create), openapi::jobs::create),
    looking(Method::GET, "/v1/jobs/{job}", Needs::QUERY, || get(jobs::show), openapi::jobs::show),
    // Whoever looked too often may still end what runs.
    route(Method::DELETE, "/v1/jobs/{job}", Needs::QUERY, || delete(jobs::remove), openapi::jobs::remove),
    looking(Method::POST, "/v1/jobs/{job}/inputs", Needs::QUERY, || post(jobs::give), openapi::jobs::give),
    looking(
        Method::GET,
        "/v1/jobs/{job}/missing",
        Needs::QUERY,
        || get(jobs::missing),
        openapi::jobs::missing,
    ),
    looking(Method::POST, "/v1/jobs/{job}/start", Needs::QUERY, || post(jobs::start), openapi::jobs::start),
    route(Method::POST, "/v1/jobs/{job}/cancel", Needs::QUERY, || post(jobs::cancel), openapi::jobs::cancel),
    looking(
        Method::GET,
        "/v1/jobs/{job}/outputs",
        Needs::QUERY,
        || get(jobs::outputs),
        openapi::jobs::outputs,
    ),
    looking(Method::GET, "/v1/keys", Needs::ADMIN, || get(keys::list), openapi::keys::list),
    route(Method::POST, "/v1/keys", Needs::ADMIN, || post(keys::create), openapi::keys::create),
    route(Method::POST, "/v1/keys/{key}/rotate", Needs::ADMIN, || post(keys::rotate), openapi::keys::rotate),
    route(Method::DELETE, "/v1/keys/{key}", Needs::ADMIN, || delete(keys::revoke), openapi::keys::revoke),
    looking(Method::GET, "/v1/audit", Needs::ADMIN, || get(audit::list), openapi::keys::audit),
    looking(Method::GET, "/v1/policies", Needs::ADMIN, || get(policies::list), openapi::keys::policies),
    route(Method::PUT, "/v1/policies", Needs::ADMIN, || put(policies::set), openapi::keys::set_policy),
    looking(Method::GET, "/v1/tenants", Needs::Operator, || get(keys::tenants), openapi::keys::tenants),
    route(
        Method::POST,
        "/v1/tenants",
        Needs::Operator,
        || post(keys::create_tenant),
        openapi::keys::create_tenant,
    ),
    route(
        Method::PATCH,
        "/v1/tenants/{tenant}",
        Needs::Operator,
        || patch(keys::bound_tenant),
        openapi::keys::bound_tenant,
    ),
    looking(Method::GET, "/v1/nodes", Needs::Operator, || get(fleet::nodes), openapi::fleet::nodes),
    route(Method::GET, "/v1/members", Needs::Operator, || get(fleet::members), openapi::fleet::members),
    looking(Method::GET, "/v1/pools", Needs::Operator, || get(machines::pools), openapi::fleet::pools),
    looking(
        Method::GET,
        "/v1/machines",
        Needs::Operator,
        || get(machines::machines),
        openapi::fleet::machines,
    ),
    looking(Method::GET, "/v1/replicas", Needs::Operator, || get(fleet::replicas), openapi::fleet::replicas),
    looking(
        Method::GET,
        "/v1/replicas/{node}/{variant}",
        Needs::Operator,
        || get(fleet::replica),
        openapi::plans::replica,
    ),
    looking(Method::GET, "/v1/events", Needs::Operator, || get(events::list), openapi::plans::events),
    route(Method::GET, "/v1/decisions", Needs::ADMIN, || get(decisions::watch), openapi::plans::decisions),
    looking(Method::GET, "/v1/plans", Needs::Operator, || get(plans::history), openapi::plans::history),
    looking(Method::GET, "/v1/plans/next", Needs::Operator, || get(dry_run::get), openapi::plans::dry_run),
    looking(
        Method::POST,
        "/v1/plans/next",
        Needs::Operator,
        || post(dry_run::post),
        openapi::plans::dry_run_with,
    ),
    looking(Method::GET, "/v1/plans/{plan}", Needs::Operator, || get(plans::show), openapi::plans::show),
    route(Method::GET, "/v2", Needs::QUERY, || get(oip::server), openapi::oip::server),
    route(Method::GET, "/v2/models", Needs::QUERY, || get(oip::models), openapi::oip::models),
    route(
        Method::GET,
        "/v2/models/stats",
        Needs::QUERY,
        || get(oip::all_statistics),
        openapi::oip::all_statistics,
    ),
    route(Method::GET, "/v2/models/{task}", Needs::QUERY, || get(oip::metadata), openapi::oip::metadata),
    route(Method::GET, "/v2/models/{task}/ready", Needs::QUERY, || get(oip::ready), openapi::oip::ready),
    route(Method::GET, "/v2/models/{task}/config", Needs::QUERY, || get(oip::config), openapi::oip::config),
    route(
        Method::GET,
        "/v2/models/{task}/stats",
        Needs::QUERY,
        || get(oip::statistics),
        openapi::oip::statistics,
    ),
    route(Method::POST, "/v2/models/{task}/infer", Needs::QUERY, || post(oip::answer), openapi::oip::infer),
    route(
        Method::GET,
        "/v2/models/{task}/versions/{version}",
        Needs::QUERY,
        || get(oip::metadata),
        openapi::oip::metadata_of_version,
    ),
    route(
        Method::GET,
        "/v2/models/{task}/versions/{version}/ready",
        Needs::QUERY,
        || get(oip::ready),
        openapi::oip::ready_of_version,
    ),
    route(
        Method::GET,
        "/v2/models/{task}/versions/{version}/config",
        Needs::QUERY,
        || get(oip::config),
        openapi::oip::config_of_version,
    ),
    route(
        Method::GET,
        "/v2/models/{task}/versions/{version}/stats",
        Needs::QUERY,
        || get(oip::statistics),
        openapi::oip::statistics_of_version,
    ),
    route(
        Method::POST,
        "/v2/models/{task}/versions/{version}/infer",
        Needs::QUERY,
        || post(oip::answer),
        openapi::oip::infer_of_version,
    ),
    route(
        Method::GET,
        "/v2/models/{task}/trace/setting",
        Needs::QUERY,
        || get(settings::show),
        openapi::oip::trace_of_task,
    ),
    route(
        Method::POST,
        "/v2/models/{task}/trace/setting",
        Needs::QUERY,
        || post(settings::change),
        openapi::oip::set_trace_of_task,
    ),
    route(Method::GET, "/v2/trace/setting", Needs::QUERY, || get(settings::show), openapi::oip::trace),
    route(
        Method::POST,
        "/v2/trace/setting",
        Needs::QUERY,
        || post(settings::change),
        openapi::oip::set_trace,
    ),
    route(Method::GET, "/v2/logging", Needs::QUERY, || get(settings::show), openapi::oip::log),
    route(Method::POST, "/v2/logging", Needs::QUERY, || post(settings::change), openapi::oip::set_log),
    route(Method::POST, "/v2/repository/index", Needs::QUERY, || post(oip::index), openapi::oip::index),
    route(
        Method::POST,
        "/v2/repository/models/{task}/load",
        Needs::ADMIN,
        || post(oip::load),
        openapi::oip::load,
    ),
    route(
        Method::POST,
        "/v2/repository/models/{task}/unload",
        Needs::ADMIN,
        || post(oip::unload),
        openapi::oip::unload,
    ),
    route(
        Method::GET,
        "/v2/systemsharedmemory/status",
        Needs::QUERY,
        || get(regions::status),
        openapi::regions::status,
    ),
    route(
        Method::GET,
        "/v2/systemsharedmemory/region/{region}/status",
        Needs::QUERY,
        || get(regions::status),
        openapi::regions::status_of_one,
    ),
    route(
        Method::POST,
        "/v2/systemsharedmemory/region/{region}/register",
        Needs::QUERY,
        || post(regions::register),
        openapi::regions::register,
    ),
    route(
        Method::POST,
        "/v2/systemsharedmemory/unregister",
        Needs::QUERY,
        || post(regions::unregister),
        openapi::regions::unregister_all,
    ),
    route(
        Method::POST,
        "/v2/systemsharedmemory/region/{region}/unregister",
        Needs::QUERY,
        || post(regions::unregister),
        openapi::regions::unregister,
    ),
    route(
        Method::GET,
        "/v2/cudasharedmemory/status",
        Needs::QUERY,
        || get(regions::none),
        openapi::regions::none_of_gpus,
    ),
    route(
        Method::GET,
        "/v2/cudasharedmemory/region/{region}/status",
        Needs::QUERY,
        || get(regions::none),
        openapi::regions::no_such_of_gpus,
    ),
    route(
        Method::POST,
        "/v2/cudasharedmemory/region/{region}/register",
        Needs::QUERY,
        || post(regions::no_gpus),
        openapi::regions::no_register_of_gpus,
    ),
    route(
        Method::POST,
        "/v2/cudasharedmemory/unregister",
        Needs::QUERY,
        || post(regions::nothing),
        openapi::regions::no_unregister_of_gpus,
    ),
    route(
        Method::POST,
        "/v2/cudasharedmemory/region/{region}/unregister",
        Needs::QUERY,
        || post(regions::nothing),
        openapi::regions::no_unregister_of_one_of_gpus,
    ),
    route(Method::GET, "/openai/v1/models", Needs::QUERY, || get(openai::models), openapi::openai::models),
    route(
        Method::GET,
        "/openai/v1/models/{task}",
        Needs::QUERY,
        || get(openai::show),
        openapi::openai::model,
    ),
    route(
        Method::POST,
        "/openai/v1/embeddings",
        Needs::QUERY,
        || post(openai::embeddings),
        openapi::openai::embeddings,
    ),
    route(Method::GET, "/v2/health/live", Needs::Nothing, || get(health::live), openapi::fleet::live),
    route(Method::GET, "/v2/health/ready", Needs::Nothing, || get(health::ready), openapi::fleet::ready),
    route(Method::GET, "/metrics", Needs::Operator, || get(health::metrics), openapi::fleet::metrics),
    route(Method::GET, "/openapi.json", Needs::Nothing, || get(health::openapi), openapi::fleet::openapi),
];

pub(crate) fn router(app: Shared) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let Route { needs, path, looks, .. } = *route;
        let guarded = Guarded { app: Arc::clone(&app), needs, path, looks };
        router = router.route(route.path, (route.serve)().route_layer(guarded));
    }
    router.fallback(unknown_path).method_not_allowed_fallback(wrong_method).with_state(app)
}

pub(crate) use decisions::{A_SECOND, A_SECOND_MAX};
pub(crate) use events::{EVENTS, EVENTS_MAX, WAIT_MS_MAX};
pub(crate) use fleet::{TRANSITIONS, TRANSITIONS_MAX};
pub(crate) use machines::{SHOWN, SHOWN_MAX};
pub(crate) use plans::{PLANS, PLANS_MAX};

type Answer = Result<Response, ApiError>;
type FromApp = State<Shared>;
