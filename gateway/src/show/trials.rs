//! A version on trial: what was agreed on, how it stands, and what was counted.

use crate::view::View;
use modelless_decision::trial::{ArmCounts, Counts, What, compare};
use modelless_store::Trial;
use modelless_types::Micros;
use serde_json::{Map, Value, json};

pub(crate) fn trial(view: &View, trial: &Trial, counts: &Counts) -> Value {
    let task = view.catalog.tasks.iter().find(|task| task.id == trial.task);
    let compared: Map<String, Value> =
        What::ALL.into_iter().map(|what| (what.name().to_owned(), json!(counts.pairs(what)))).collect();
    let ended = trial.ended.as_ref();
    json!({
        "id": trial.id.to_string(),
        "task": task.map(|task| task.name.as_str()),
        "model": trial.name,
        "version": trial.version,
        "against": trial.against_version,
        "share": trial.share.as_f64(),
        "shadow": trial.shadow,
        "for_ms": trial.lasts.0 / 1_000,
        "promote_when_good": trial.promote_when_good,
        "forced": trial.forced,
        "state": trial.state.name(),
        "began_unix_us": trial.began.at,
        "began_by": trial.began.who,
        "ended_unix_us": ended.map(|ended| ended.by.at),
        "ended_by": ended.map(|ended| ended.by.who.as_str()),
        "cause": ended.map(|ended| ended.cause.as_str()),
        "candidate": arm(&counts.candidate),
        "other": arm(&counts.other),
        "compared": compared,
        "agreed": counts.agreed,
        "differed": counts.differed,
        "verdict": compare(counts),
    })
}

fn arm(of: &ArmCounts) -> Value {
    let quantile = |permille| of.latencies.quantile(permille).map(Micros::as_millis_f64);
    json!({
        "answered": of.answered, "late": of.late, "failed": of.failed, "unanswered": of.unanswered,
        "right": of.right, "wrong": of.wrong,
        "median_ms": quantile(500), "p99_ms": quantile(990),
    })
}
