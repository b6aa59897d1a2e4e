//! What queries came to, as they end: for those who watch what the platform decides.

use super::{Answer, FromApp, Params, Shared, stream};
use crate::access::{Caller, Needs, Place};
use crate::core::Core;
use crate::decisions::{Decision, Listener};
use crate::show;
use axum::extract::State;
use http::{HeaderMap, Uri};
use modelless_types::{TaskId, TenantId};
use serde_json::json;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};

/// Decisions told in a second unless another number is asked for, and the most that can be: a reader is to be no burden.
pub(crate) const A_SECOND: u32 = 50;
pub(crate) const A_SECOND_MAX: u32 = 1_000;

/// How many of a tenant's may watch at once, so that they leave room for others, and for operators.
pub(crate) const OF_ONE_TENANT: u32 = 4;

pub(super) async fn watch(State(app): FromApp, caller: Caller, uri: Uri, headers: HeaderMap) -> Answer {
    let mut params = Params::of(&uri)?;
    let task = params.take("task");
    let a_second = params.take_number("per_second", 1, A_SECOND_MAX)?.unwrap_or(A_SECOND);
    params.finish(&["task", "per_second"])?;
    let view = app.core.view_of(&caller);
    let task = task.map(|name| view.task(&name).map(|task| task.task.id)).transpose()?;
    if !stream::wanted(&headers) {
        return Err(stream::not_wanted());
    }
    let tenant = (!caller.is_operator()).then_some(caller.tenant);
    let among = tenant.map(|_| caller.follow(OF_ONE_TENANT).ok_or_else(stream::too_many)).transpose()?;
    let place = stream::place(tenant.is_none())?;
    let listener = app.core.decisions.listen();
    let since = Instant::now();
    let told = Watched {
        app,
        listener,
        headers,
        tenant,
        task,
        a_second,
        left: a_second,
        since,
        skipped: 0,
        _among: among,
    };
    Ok(stream::answer(place, told))
}

struct Watched {
    app: Shared,
    listener: Listener,
    /// With the key, which may end before this does.
    headers: HeaderMap,
    /// Only its own; operators see all.
    tenant: Option<TenantId>,
    /// Only of this one.
    task: Option<TaskId>,
    a_second: u32,
    /// How many more in the second that began then.
    left: u32,
    since: Instant,
    /// Ended, and not told since the last that was.
    skipped: u64,
    _among: Option<Place>,
}

impl Watched {
    fn is_asked_for(&self, decision: &Decision) -> bool {
        self.tenant.is_none_or(|tenant| tenant == decision.caller.tenant)
            && self.task.is_none_or(|task| task == decision.asked.task)
    }
}

impl stream::Source for Watched {
    fn core(&self) -> &Core {
        &self.app.core
    }

    async fn next(&mut self) -> Option<String> {
        if self.app.core.gate.admit(&self.headers, Needs::ADMIN).is_err() {
            return None;
        }
        let until = Instant::now() + stream::LOOK;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            match timeout(rest, self.listener.hears.recv()).await {
                Err(_) => return Some(String::new()),
                Ok(Err(RecvError::Closed)) => return None,
                // Whose those were is not known, and how much others ask is no tenant's business.
                Ok(Err(RecvError::Lagged(lost))) => {
                    self.skipped += if self.tenant.is_none() { lost } else { 0 }
                }
                Ok(Ok(decision)) => {
                    if !self.is_asked_for(&decision) {
                        continue;
                    }
                    if self.since.elapsed() >= Duration::from_secs(1) {
                        (self.since, self.left) = (Instant::now(), self.a_second);
                    }
                    if self.left == 0 {
                        self.skipped += 1;
                        continue;
                    }
                    self.left -= 1;
                    let mut shown = show::decision(&self.app.core.view(), &decision);
                    shown["skipped"] = json!(std::mem::take(&mut self.skipped));
                    let mut text = String::new();
                    stream::frame(&mut text, None, &shown);
                    return Some(text);
                }
            }
        }
    }
}
