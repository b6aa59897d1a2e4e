//! `/v1/tasks/{task}/forecast`: what earlier days tell of a task, from which days, and what follows. The scheduler's own calls
//! (`decision::forecast`, `planning`) tell it, from what the store has.

use super::{Answer, FromApp, Named};
use crate::access::Caller;
use crate::errors::json_response;
use axum::extract::State;
use http::StatusCode;
use modelless_decision::forecast::{Peak, lead};
use modelless_planning::{history, loads};
use modelless_store::{SlotSeen, UnixMicros};
use modelless_types::{Slot, Time};
use serde_json::{Value, json};
use std::time::SystemTime;

/// So many days are compared.
const DAYS: u32 = 14;

fn slot(of: Slot) -> Value {
    json!({"at_unix_us": of.starts().0, "time": of.to_string()})
}

fn peak(of: &Peak) -> Value {
    let mut shown = slot(of.slot);
    shown["per_s"] = json!(of.per_s());
    shown["queries"] = json!(of.queries);
    shown["like"] = json!(of.like);
    shown["on"] = json!(of.on);
    shown["of"] = json!(of.of);
    shown["why"] = json!(of.words());
    shown
}

pub(super) async fn show(State(app): FromApp, caller: Caller, Named(name): Named<String>) -> Answer {
    let view = app.core.view_of(&caller);
    let task = &view.task(&name)?.owned()?.task;
    let now = Time(UnixMicros::of(SystemTime::now()).0);
    let here = Slot::of(now);
    let first = here.days_before(DAYS).unwrap_or_default();
    let seen: Vec<SlotSeen> = app.store.history().slots(&[first..Slot(here.0 + 1)], Some(task.id)).await?;
    let history = history(&seen);
    // A day from now on, and what holds what was begun before.
    let forecast = history.forecast(Slot(here.0.saturating_sub(1))..Slot(here.0 + Slot::A_DAY));
    let takes = loads(&view.catalog, task.id);
    let ahead = forecast.ahead(task.id, now, takes);
    let expected = forecast.of(task.id).iter().filter(|peak| peak.slot >= here);
    let long_s = Slot::LONG.0 / 1_000_000;
    let known_s: u64 = seen.iter().map(|seen| u64::from(seen.seen_s).min(long_s)).sum();
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "task": name,
            "ahead": task.ahead,
            "keep": task.keep,
            "as_of_unix_us": now.0,
            "loads_ms": takes.as_millis_f64(),
            "begun_before_ms": lead(takes).as_millis_f64(),
            "soon": ahead.soon.as_ref().map(peak),
            "held": ahead.held.as_ref().map(peak),
            "slot_s": long_s,
            "expected": expected.map(peak).collect::<Vec<_>>(),
            "known": {
                "since_unix_us": seen.first().map(|seen| seen.slot.starts().0),
                "seconds": known_s,
                "slots": seen.iter().filter(|seen| !seen.bins.is_empty()).count(),
            },
        }),
    ))
}
