//! `POST /v1/queries/{query}/feedback`: whether an answer was right.

use super::{Answer, FromApp, Named};
use crate::access::Caller;
use crate::errors::{ApiError, json_response};
use crate::http::body;
use crate::ids::{BadQueryId, QueryId};
use crate::show;
use crate::suggest::{excerpt, suggest};
use crate::trials::{Running, counts_verdict};
use crate::view::{TaskView, View};
use axum::extract::{Request, State};
use http::StatusCode;
use modelless_store::{Feedback, Kept, UnixMicros};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Clocks of gateways may differ by so much.
const AHEAD: Duration = Duration::from_mins(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    verdict: Option<Word>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Correct,
    Wrong,
}

pub(super) async fn give(
    State(app): FromApp,
    caller: Caller,
    Named(query): Named<String>,
    request: Request,
) -> Answer {
    let core = &*app.core;
    let (head, body) = request.into_parts();
    let given: Given = body::read_json(core, &head, body)
        .await
        .map_err(|error| caller.unread(core.driver.clock().now(), error))?;
    let id = core.ids.verify(&query).map_err(|bad| match bad {
        BadQueryId::Malformed => ApiError::malformed(bad.to_string()),
        BadQueryId::Forged => ApiError::not_found("unknown_query", bad.to_string()),
    })?;
    let now = UnixMicros::of(SystemTime::now()).0;
    let age = Duration::from_micros(now.saturating_sub(id.at_unix_us));
    let ahead = Duration::from_micros(id.at_unix_us.saturating_sub(now));
    let within = core.config.feedback_within();
    if age > within || ahead > AHEAD {
        let message = format!(
            "this query was answered {} s ago; feedback is taken for {} s after the answer",
            age.as_secs(),
            within.as_secs()
        );
        return Err(ApiError::new(StatusCode::GONE, "query_expired", message));
    }
    let view = core.view_of(&caller);
    let task = of(&view, &id)?;
    // Verdicts can take a variant out of floors, so those of others than its owner do not count.
    task.owned()?;
    let correct = verdict(task, &id, given)?;
    let feedback = Feedback { query, variant: id.variant, answered: UnixMicros(id.at_unix_us), correct };
    let stored = app.feedback.put(core, &*app.store, &caller, feedback).await?;
    match stored.kept {
        Kept::New | Kept::Same | Kept::Changed => {}
        Kept::Gone => return Err(gone()),
        Kept::Full => {
            let message = "as many verdicts are kept as there is room for; older ones go with time, so give it again later";
            return Err(ApiError::unavailable("feedback_full", message));
        }
    }
    if stored.kept == Kept::New {
        task.metrics.feedback(correct);
        let counts = |running: &&Arc<Running>| counts_verdict(running, UnixMicros(id.at_unix_us));
        if let (Some(running), Some(arm)) = (task.trial.as_ref().filter(counts), id.arm) {
            running.verdict(arm, correct);
        }
    }
    let variant = task.variant(id.variant).map(|view| view.variant.name.as_str());
    let shown = json!({
        "stored": stored_as(stored.kept),
        "task": task.task.name,
        "variant": variant,
        "verdict": if correct { "correct" } else { "wrong" },
        "live_accuracy": show::live_accuracy(&stored.live, view.catalog.measured(id.variant)),
    });
    Ok(json_response(StatusCode::OK, &shown))
}

const fn stored_as(kept: Kept) -> &'static str {
    match kept {
        Kept::Same => "said before",
        Kept::Changed => "changed",
        Kept::New | Kept::Gone | Kept::Full => "new",
    }
}

fn gone() -> ApiError {
    ApiError::new(StatusCode::GONE, "variant_gone", "the variant that answered this query was removed since")
}

/// The task of the variant that answered.
fn of<'a>(view: &'a View, id: &QueryId) -> Result<&'a TaskView, ApiError> {
    view.tasks.values().find(|task| task.variant(id.variant).is_some()).ok_or_else(gone)
}

fn verdict(task: &TaskView, id: &QueryId, given: Given) -> Result<bool, ApiError> {
    let bad = |reason, message: String| ApiError::new(StatusCode::BAD_REQUEST, reason, message);
    let labels = &task.task.labels;
    match given {
        Given { label: None, verdict: Some(verdict) } => Ok(verdict == Word::Correct),
        Given { label: Some(label), verdict: None } => {
            if labels.is_empty() {
                let message = format!(
                    "task {:?} answers with no labels; say {{\"verdict\": \"correct\"}} or {{\"verdict\": \"wrong\"}}",
                    task.task.name
                );
                return Err(bad("no_labels", message));
            }
            if !labels.contains(&label) {
                let near = suggest(&label, labels.iter().map(String::as_str));
                let message = format!("task {:?} has no label {}{near}", task.task.name, excerpt(&label));
                return Err(bad("unknown_label", message));
            }
            let Some(answered) = id.label.and_then(|at| labels.get(usize::from(at))) else {
                let message = "it is not known which label this query was answered with; say \
                               {\"verdict\": \"correct\"} or {\"verdict\": \"wrong\"}";
                return Err(bad("no_label", message.to_owned()));
            };
            Ok(*answered == label)
        }
        Given { label: None, verdict: None } | Given { label: Some(_), verdict: Some(_) } => {
            let message = "give either the right label, {\"label\": \"...\"}, or a verdict, {\"verdict\": \"correct\"} or \
                           {\"verdict\": \"wrong\"}";
            Err(ApiError::malformed(message))
        }
    }
}
