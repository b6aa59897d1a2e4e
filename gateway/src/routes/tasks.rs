//! Tasks: what can be asked, and what stands behind each.

use super::{Answer, FromApp, Named};
use crate::access::{Caller, Detail};
use crate::errors::{ApiError, json_response};
use crate::goals::Given;
use crate::http::body;
use crate::show;
use crate::suggest::noted;
use axum::extract::{Request, State};
use http::StatusCode;
use modelless_store::{NewSpace, NewTask, SpaceKind, TaskChange};
use modelless_types::{
    AccuracyRule, Ahead, Batching, CacheFor, DType, DeclaredRule, KeepFor, Labels, LiveRule, TaskBatching,
    TaskKind, TensorSpec,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;

pub(super) async fn list(State(app): FromApp, caller: Caller) -> Answer {
    let view = app.core.view_of(&caller);
    let mut tasks: Vec<_> = view.tasks.values().collect();
    tasks.sort_by(|a, b| a.task.name.cmp(&b.task.name));
    let plan = app.plan(tasks.iter().copied()).await;
    let tasks: Vec<_> = tasks.into_iter().map(|task| show::task(&view, task, plan.as_deref())).collect();
    Ok(json_response(StatusCode::OK, &json!({"tasks": tasks})))
}

pub(super) async fn show(State(app): FromApp, caller: Caller, Named(name): Named<String>) -> Answer {
    let view = app.core.view_of(&caller);
    let task = view.task(&name)?;
    let mut shown = show::task_in_full(&view, task, app.plan([task]).await.as_deref());
    app.with_live(&view, shown["variants"].as_array_mut().into_iter().flatten().collect()).await;
    Ok(json_response(StatusCode::OK, &shown))
}

/// A task as it is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTaskBody {
    name: String,
    kind: TaskKind,
    #[serde(default)]
    metric: Option<String>,
    #[serde(default)]
    accuracy_rule: AccuracyRule,
    #[serde(default)]
    live_accuracy: LiveRule,
    #[serde(default)]
    declared_accuracy: DeclaredRule,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    inputs: Vec<TensorBody>,
    #[serde(default)]
    outputs: Vec<TensorBody>,
    #[serde(default)]
    space: Option<SpaceBody>,
    #[serde(default)]
    defaults: Option<Box<RawValue>>,
    #[serde(default)]
    batching: Option<Batching>,
    #[serde(default)]
    cache: CacheFor,
    #[serde(default)]
    keep: KeepFor,
    #[serde(default)]
    ahead: Ahead,
    #[serde(default)]
    description: String,
}

/// The output space of vectors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpaceBody {
    name: String,
    dimension: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorBody {
    name: String,
    datatype: DType,
    shape: Vec<u32>,
}

impl From<TensorBody> for TensorSpec {
    fn from(body: TensorBody) -> Self {
        Self { name: body.name, dtype: body.datatype, shape: body.shape }
    }
}

pub(super) async fn create(State(app): FromApp, caller: Caller, detail: Detail, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    let new: NewTaskBody = body::read_json(&app.core, &head, body).await?;
    detail.say(format!("task {}, {}", noted(&new.name), new.kind));
    let mut defaults = Given::default();
    if let Some(goals) = new.defaults.as_deref().filter(|goals| goals.get() != "null") {
        defaults.add_json(goals)?;
    }
    if defaults.model.is_some() || defaults.variant.is_some() {
        let message = "a task's defaults cannot pin a model or variant: it has none yet";
        return Err(ApiError::malformed(message));
    }
    if defaults.priority.is_some() || defaults.fallback.is_some() {
        let message = "a task's defaults cannot set `priority` or `fallback`: give them with each query";
        return Err(ApiError::bad_goal(message));
    }
    let space = new
        .space
        .map(|SpaceBody { name, dimension }| NewSpace { name, kind: SpaceKind::Embedding { dimension } });
    if space.is_some() && new.kind != TaskKind::FeatureExtraction {
        let message = "only a task for `feature-extraction` has a `space` of its own: others' follows from its labels or outputs";
        return Err(ApiError::malformed(message));
    }
    let task = app
        .store
        .create_task(NewTask {
            tenant: caller.tenant,
            name: new.name,
            kind: new.kind,
            metric: new.metric.unwrap_or_else(|| show::usual_metric(new.kind).to_owned()),
            accuracy_rule: new.accuracy_rule,
            live_accuracy: new.live_accuracy,
            declared_accuracy: new.declared_accuracy,
            labels: new.labels,
            inputs: new.inputs.into_iter().map(TensorSpec::from).collect(),
            outputs: new.outputs.into_iter().map(TensorSpec::from).collect(),
            space,
            defaults: defaults.resolved(None, None),
            batching: new.batching,
            cache: new.cache,
            keep: new.keep,
            ahead: new.ahead,
            description: new.description,
        })
        .await?;
    app.catalog_changed().await;
    let body = json!({"task": task.name, "id": task.id});
    Ok(json_response(StatusCode::CREATED, &body))
}

/// What is to be otherwise in a task; what is left out stays.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default)]
    live_accuracy: Option<LiveRule>,
    #[serde(default)]
    declared_accuracy: Option<DeclaredRule>,
    #[serde(default)]
    cache: Option<CacheFor>,
    #[serde(default)]
    keep: Option<KeepFor>,
    #[serde(default)]
    ahead: Option<Ahead>,
    #[serde(default, deserialize_with = "told_batching")]
    batching: Option<TaskBatching>,
}

/// Null is refused: it could mean that all stays, as with the other rules, or what it means where a task is shown.
fn told_batching<'de, D: Deserializer<'de>>(told: D) -> Result<Option<TaskBatching>, D::Error> {
    let told = Option::<TaskBatching>::deserialize(told)?;
    let ambiguous =
        "`batching` is null: leave it out to keep what it is, or say `node` for as each node is set";
    told.map(Some).ok_or_else(|| D::Error::custom(ambiguous))
}

impl ChangeBody {
    /// What is asked for, for whoever reads of it later.
    fn words(&self) -> String {
        let live = self.live_accuracy.map(|rule| format!("live_accuracy {}", rule.name()));
        let declared = self.declared_accuracy.map(|rule| format!("declared_accuracy {}", rule.name()));
        let cache = self.cache.map(|cache| format!("cache {cache}"));
        let keep = self.keep.map(|keep| format!("keep {keep}"));
        let ahead = self.ahead.map(|ahead| format!("ahead {}", ahead.name()));
        let batching = self.batching.map(|batching| format!("batching {batching}"));
        let all = [live, declared, cache, keep, ahead, batching].into_iter().flatten();
        all.collect::<Vec<_>>().join(", ")
    }
}

pub(super) async fn change(
    State(app): FromApp,
    caller: Caller,
    detail: Detail,
    Named(name): Named<String>,
    request: Request,
) -> Answer {
    let (head, body) = request.into_parts();
    let wanted: ChangeBody = body::read_json(&app.core, &head, body).await?;
    detail.say(wanted.words());
    let id = app.core.view_of(&caller).task(&name)?.owned()?.task.id;
    let ChangeBody { live_accuracy, declared_accuracy, cache, keep, ahead, batching } = wanted;
    let change = TaskChange { live_accuracy, declared_accuracy, cache, keep, ahead, batching };
    let task = app.store.change_task(id, change).await?;
    tracing::info!(task = name, ?change, "a task is asked with these rules");
    app.catalog_changed().await;
    let now = json!({
        "task": name,
        "live_accuracy": task.live_accuracy.name(),
        "declared_accuracy": task.declared_accuracy.name(),
        "cache": task.cache,
        "keep": task.keep,
        "ahead": task.ahead,
        "batching": task.batching,
    });
    Ok(json_response(StatusCode::OK, &now))
}

pub(super) async fn remove(State(app): FromApp, caller: Caller, Named(name): Named<String>) -> Answer {
    let view = app.core.view_of(&caller);
    let task = view.task(&name)?.owned()?;
    app.store.remove_task(task.task.id).await?;
    app.catalog_changed().await;
    Ok(json_response(StatusCode::OK, &json!({"removed": name})))
}
