//! What queries came to, as they end: for those who watch what the platform decides.

use super::{Answer, FromApp, Params, Shared, stream};
use crate::core::Core;
use crate::decisions::Listener;
use crate::show;
use axum::extract::State;
use http::{HeaderMap, Uri};
use modelless_types::TaskId;
use serde_json::json;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};

/// Decisions told in a second unless another number is asked for, and the most that can be: a reader is to be no burden.
pub(crate) const A_SECOND: u32 = 50;
pub(crate) const A_SECOND_MAX: u32 = 1_000;

pub(super) async fn watch(State(app): FromApp, uri: Uri, headers: HeaderMap) -> Answer {
    let mut params = Params::of(&uri)?;
    let task = params.take("task");
    let a_second = params.take_number("per_second", 1, A_SECOND_MAX)?.unwrap_or(A_SECOND);
    params.finish(&["task", "per_second"])?;
    let task = task.map(|name| app.core.view().task(&name).map(|task| task.task.id)).transpose()?;
    if !stream::wanted(&headers) {
        return Err(stream::not_wanted());
    }
    let place = stream::place()?;
    let listener = app.core.decisions.listen();
    let told = Watched { app, listener, task, a_second, left: a_second, since: Instant::now(), skipped: 0 };
    Ok(stream::answer(place, told))
}

struct Watched {
    app: Shared,
    listener: Listener,
    /// Only of this one.
    task: Option<TaskId>,
    a_second: u32,
    /// How many more in the second that began then.
    left: u32,
    since: Instant,
    /// Ended, and not told since the last that was.
    skipped: u64,
}

impl stream::Source for Watched {
    fn core(&self) -> &Core {
        &self.app.core
    }

    async fn next(&mut self) -> Option<String> {
        let until = Instant::now() + stream::LOOK;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            match timeout(rest, self.listener.hears.recv()).await {
                Err(_) => return Some(String::new()),
                Ok(Err(RecvError::Closed)) => return None,
                Ok(Err(RecvError::Lagged(lost))) => self.skipped += lost,
                Ok(Ok(decision)) => {
                    if self.task.is_some_and(|task| task != decision.asked.task) {
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
