//! Tasks, models and variants.

use super::profile::profile;
use crate::view::{TaskView, VariantView, View};
use modelless_decision::feedback::posterior;
use modelless_decision::frontier::{Point, frontier, nanos};
use modelless_decision::plan::Plan;
use modelless_decision::route::{Offer, Ready};
use modelless_decision::{Coverage, Moments};
use modelless_store::{
    FlagChange, LiveAccuracy, Measuring, SpaceKind, StaleProfile, UnixMicros, VersionChange,
};
use modelless_types::{
    Accuracy, AccuracyMeasure, CostPer1k, Engine, Goals, Micros, Model, Prefer, Provenance, Task, TaskKind,
    TensorSpec, VariantId,
};
use serde_json::{Value, json};
use std::time::SystemTime;

/// The metric of a task that names none.
pub(crate) const fn usual_metric(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::ImageClassification | TaskKind::TextClassification => "top-1",
        TaskKind::FeatureExtraction => "nearest",
        TaskKind::Tensor => "accuracy",
    }
}

/// A task in short. Whether it sleeps stands in the plan, if that could be read.
pub(crate) fn task(view: &View, of: &TaskView, plan: Option<&Plan>) -> Value {
    let task = &of.task;
    // What is to be had without a pin.
    let serving = || of.variants.iter().filter(|view| of.is_default(view.model.id));
    let accuracies = || serving().filter_map(|variant| variant.accuracy);
    json!({
        "name": task.name,
        "kind": task.kind.name(),
        "metric": task.metric,
        "accuracy_rule": task.accuracy_rule.name(),
        "live_accuracy": task.live_accuracy.name(),
        "declared_accuracy": task.declared_accuracy.name(),
        "description": task.description,
        "defaults": goals(&task.defaults),
        "batching": task.batching,
        "cache": task.cache,
        "keep": task.keep,
        "ahead": task.ahead,
        "asleep": plan.map(|plan| plan.sleeps(task.id)),
        "space": space(view, task.default_space),
        "models": of.models.len(),
        "variants": of.variants.len(),
        "accuracy_from": accuracies().min().map(Accuracy::as_f64),
        "accuracy_to": accuracies().max().map(Accuracy::as_f64),
    })
}

/// A task with its labels, tensors and variants.
pub(crate) fn task_in_full(view: &View, of: &TaskView, plan: Option<&Plan>) -> Value {
    let Task { labels, inputs, outputs, .. } = &of.task;
    let mut shown = task(view, of, plan);
    if let Value::Object(shown) = &mut shown {
        shown.insert("labels".to_owned(), json!(labels));
        shown.insert("inputs".to_owned(), tensors(inputs));
        shown.insert("outputs".to_owned(), tensors(outputs));
        shown.insert("models".to_owned(), of.models.iter().map(|m| model(of, m)).collect());
        let rests = plan.and_then(|plan| plan.tasks.iter().find(|step| step.task == of.task.id));
        shown.insert("rest".to_owned(), json!(rests.map(|step| &step.why)));
        shown.insert("wake_ms".to_owned(), json!(wakes_in(view, of).map(Micros::as_millis_f64)));
        shown.insert("variants".to_owned(), variants(view, of).into());
    }
    shown
}

/// What the first query takes that has to wait for a load, 99 times in 100: of what answers without a pin, the quickest to come. `None`
/// where something is in memory already, or nothing can be loaded.
fn wakes_in(view: &View, of: &TaskView) -> Option<Micros> {
    let serving = of.variants.iter().filter(|view| of.is_default(view.model.id));
    let best: Vec<Best> = serving.filter_map(|variant| Best::of(view, of, variant)).collect();
    let there = best.iter().any(|best| !best.resident_on.is_empty());
    best.iter().filter_map(|best| best.wakes_in).min().filter(|_| !there)
}

fn tensors(specs: &[TensorSpec]) -> Value {
    let shown =
        |spec: &TensorSpec| json!({"name": spec.name, "datatype": spec.dtype.name(), "shape": spec.shape});
    specs.iter().map(shown).collect()
}

fn goals(goals: &Goals) -> Value {
    json!({
        "accuracy": goals.accuracy.map(Accuracy::as_f64),
        "latency_ms": goals.latency.unwrap_or(modelless_decision::admission::DEFAULT_LATENCY).as_millis_f64(),
        "max_cost": goals.max_cost.map(CostPer1k::as_usd),
        "prefer": goals.prefer.unwrap_or(Prefer::Accuracy),
    })
}

fn space(view: &View, id: modelless_types::SpaceId) -> Value {
    let space = view.catalog.spaces.iter().find(|space| space.id == id);
    let dimension = space.and_then(|space| match space.kind {
        SpaceKind::Embedding { dimension } => Some(dimension),
        SpaceKind::Labels { .. } | SpaceKind::Tensor { .. } => None,
    });
    json!({"id": id, "name": space.map(|space| space.name.as_str()), "dimension": dimension})
}

/// A model in short.
pub(crate) fn model(of: &TaskView, model: &Model) -> Value {
    let variants = of.variants.iter().filter(|view| view.variant.model == model.id);
    json!({
        "task": of.task.name,
        "id": model.id,
        "name": model.name,
        "version": model.version,
        "architecture": model.architecture,
        "licence": model.licence,
        "owner": model.owner,
        "default": of.is_default(model.id),
        "variants": variants.map(|view| view.variant.name.as_str()).collect::<Vec<_>>(),
    })
}

/// A model with its adapter and its variants.
pub(crate) fn model_in_full(view: &View, of: &TaskView, which: &Model) -> Value {
    let mut shown = model(of, which);
    if let Value::Object(shown) = &mut shown {
        // It is JSON to whoever wrote it; shown as text if it is not.
        let adapter = serde_json::from_str(&which.adapter).unwrap_or_else(|_| json!(which.adapter));
        shown.insert("adapter".to_owned(), adapter);
        shown.insert("space".to_owned(), space(view, which.space));
        let all = variants(view, of).into_iter();
        let own = all.filter(|variant| variant["model_id"] == json!(which.id)).collect();
        shown.insert("variants".to_owned(), own);
    }
    shown
}

/// Every variant of a task with its profiles, and whether it is on the frontier.
pub(crate) fn variants(view: &View, of: &TaskView) -> Vec<Value> {
    let best: Vec<Option<Best>> = of.variants.iter().map(|variant| Best::of(view, of, variant)).collect();
    let points: Vec<(&VariantView, Point)> = of
        .variants
        .iter()
        .zip(&best)
        .filter_map(|(variant, best)| {
            let best = best.as_ref()?;
            let point = Point {
                accuracy: variant.accuracy?,
                latency: nanos(best.latency),
                cost: best.cost,
                work: best.work,
                memory: variant.variant.profiles.iter().map(|profile| profile.memory).min()?,
            };
            Some((variant, point))
        })
        .collect();
    // A candidate beats nobody that answers; where it would stand itself is shown all the same.
    let on_frontier = |id: VariantId| {
        let own = |view: &VariantView| view.variant.id == id;
        let beside = points.iter().filter(|(view, _)| own(view) || of.is_default(view.model.id));
        let (views, points): (Vec<&VariantView>, Vec<Point>) = beside.copied().unzip();
        let on = frontier(&points);
        views.into_iter().zip(on).find(|(view, _)| own(view)).map(|(_, on)| on)
    };
    let shown = |(variant, best): (&VariantView, &Option<Best>)| {
        let mut shown = self::variant(of, variant, best.as_ref(), on_frontier(variant.variant.id));
        shown["unavailable"] = json!(unavailable(view, variant.variant.settings.engine));
        let id = variant.variant.id;
        let marks = view.catalog.stale.iter().filter(|stale| stale.variant == id);
        shown["stale"] = marks.map(stale).collect();
        // Both tell how much was asked, which is for whoever it belongs to.
        let own = of.owned().is_ok();
        let live = view.catalog.live_accuracy(id).filter(|_| own);
        shown["live_accuracy"] =
            live.map_or(Value::Null, |live| live_accuracy(live, view.catalog.measured(id)));
        shown["coverage"] = if own { coverage(view, of, variant) } else { Value::Null };
        shown
    };
    of.variants.iter().zip(&best).map(shown).collect()
}

/// Why no node could run a variant, where all lack its engine.
pub(crate) fn unavailable(view: &View, engine: Engine) -> Option<String> {
    let mut reasons = view.nodes.iter().map(|node| node.without(engine).map(str::to_owned));
    let first = reasons.next()??;
    reasons.all(|reason| reason.is_some()).then(|| format!("the engine {engine} is not available: {first}"))
}

fn variant(of: &TaskView, view: &VariantView, best: Option<&Best>, on_frontier: Option<bool>) -> Value {
    let variant = &view.variant;
    json!({
        "task": of.task.name,
        "id": variant.id,
        "name": variant.name,
        "model": view.model.name,
        "model_id": view.model.id,
        "model_version": view.model.version,
        "default": of.is_default(view.model.id),
        "engine": variant.settings.engine.name(),
        "precision": variant.settings.precision,
        "threads": variant.settings.threads,
        "max_batch": variant.settings.max_batch,
        "optimisation": variant.settings.optimisation.name(),
        "processor": variant.settings.processor.to_string(),
        "artefact": {"sha256": variant.artefact, "bytes": variant.artefact_bytes.0},
        // What floors are compared with: the lowest over the device classes that may answer.
        "accuracy": view.accuracy.map(Accuracy::as_f64),
        "accuracy_provenance": view.floor.map(|floor| floor.from),
        // `false` for what was only declared, beside what was measured: it meets no floor.
        "counts_for_floors": view.floor.map(|floor| floor.counts),
        // The best node alone, idle, with the live correction: estimates, unlike the profiles below.
        "estimate": best.map(|best| json!({
            "latency_p99_ms": best.latency.as_millis_f64(),
            "cost_usd_per_1000": best.cost.as_usd(),
            "provenance": "estimated",
            "resident_on": best.resident_on,
            "wake_ms": best.wakes_in.map(Micros::as_millis_f64),
        })),
        // `null` where no node offers it, so that there is nothing to compare.
        "on_frontier": on_frontier,
        "profiles": variant.profiles.iter().map(profile).collect::<Vec<_>>(),
    })
}

/// What was done to a version, by whom and when.
pub(crate) fn version_change(change: &VersionChange) -> Value {
    json!({
        "version": change.version,
        "action": change.action.name(),
        "default_before": change.before,
        "default_after": change.after,
        "who": change.by.who,
        "at_unix_us": change.by.at.0,
    })
}

/// A profile that is off, until it is measured again.
fn stale(of: &StaleProfile) -> Value {
    json!({
        "device_class": of.device_class,
        "node": of.node,
        "slowdown": ratio(of.ratio_ppm, 1_000_000),
        "since_unix_us": of.since.0,
        "provenance": Provenance::Live,
    })
}

/// What verdicts on a variant's answers come to, beside what was measured of it.
pub(crate) fn live_accuracy(of: &LiveAccuracy, measured: Option<&AccuracyMeasure>) -> Value {
    let live = posterior(of.correct, of.wrong);
    json!({
        "value": live.mean.as_f64(),
        "interval": [live.low.as_f64(), live.high.as_f64()],
        "correct": of.correct,
        "wrong": of.wrong,
        "provenance": Provenance::Live,
        "measured": measured.map(|measured| measured.value.as_f64()),
        "flagged": of.flagged.is_some(),
        "flagged_value": of.flagged.map(Accuracy::as_f64),
    })
}

/// What was done to what is said of a variant's live accuracy.
pub(crate) fn flag_change(change: &FlagChange) -> Value {
    json!({
        "action": change.action.name(),
        "reason": change.reason,
        "who": change.who,
        "at_unix_us": change.at.map(|at| at.0),
        "correct": change.correct,
        "wrong": change.wrong,
        "value": change.value.map(Accuracy::as_f64),
    })
}

/// How many batches of all nodes took longer than was predicted of 99 in 100.
fn coverage(view: &View, of: &TaskView, variant: &VariantView) -> Value {
    let offers = view.nodes.iter().flat_map(|node| &node.info.offers);
    let its = offers.filter(|o| o.task == of.task.id && o.ordinal == variant.variant.ordinal);
    let all = its.fold(Coverage::default(), |sum, offer| sum.plus(offer.run.coverage));
    if all.is_empty() {
        return Value::Null;
    }
    json!({
        "batches": all.batches,
        "above_p99": all.above,
        "share": ratio(all.above, all.batches),
        "provenance": Provenance::Live,
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn ratio(part: u64, of: u64) -> f64 {
    part as f64 / of as f64
}

/// Who measures a variant, or why that failed.
pub(crate) fn measuring(of: &Measuring) -> Value {
    let now = UnixMicros::of(SystemTime::now());
    let over = of.until <= now;
    let state = match (&of.failed, over) {
        (Some(_), _) => "failed",
        (None, false) => "running",
        (None, true) => "waiting",
    };
    let again = of.failed.as_ref().map(|_| of.until.0.saturating_sub(now.0) / 1_000);
    json!({
        "device_class": of.device_class,
        "node": of.node,
        "state": state,
        "progress": of.progress,
        "why": of.failed,
        "attempts": of.attempts,
        "again_in_ms": again,
    })
}

/// The best any node could do for a variant, were it idle.
struct Best {
    latency: Micros,
    cost: CostPer1k,
    work: u64,
    resident_on: Vec<String>,
    /// From asking for a load to the answer, where it is not in memory.
    wakes_in: Option<Micros>,
}

impl Best {
    fn of(view: &View, task: &TaskView, variant: &VariantView) -> Option<Self> {
        let mut best: Option<Self> = None;
        for node in &view.nodes {
            let mine =
                |offer: &&Offer| offer.task == task.task.id && offer.ordinal == variant.variant.ordinal;
            for offer in node.info.offers.iter().filter(mine) {
                let latency = (node.info.rtt + offer.run.service()).p99();
                let largest = variant.variant.settings.max_batch.min(offer.run.largest_measured()).max(1);
                let price = offer.price(node.info.price);
                let cost = offer.run.cost(1, price).min(offer.run.cost(largest, price));
                let work = offer.run.work(variant.variant.settings.max_batch);
                let first = || Self { latency, cost, work, resident_on: Vec::new(), wakes_in: None };
                let known = best.get_or_insert_with(first);
                known.work = known.work.min(work);
                known.latency = known.latency.min(latency);
                known.cost = known.cost.min(cost);
                match offer.ready {
                    Ready::Resident => known.resident_on.push(node.name.clone()),
                    // Soon, and how soon is known only on the node's own clock.
                    Ready::Loading { at: _ } => {}
                    Ready::Cold { load } => {
                        let all = (node.info.rtt + Moments::exactly(load) + offer.run.service()).p99();
                        known.wakes_in = known.wakes_in.into_iter().chain([all]).min();
                    }
                }
            }
        }
        best
    }
}
