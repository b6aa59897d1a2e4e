//! What was asked for that changes something: noted once it was answered, or its client went away, and written to the store beside everything else.
//!
//! So is what was refused for want of a right, as far as a flood of it leaves room.
//!
//! Nobody waits for it. What cannot be written in time is in the log, where each deed stands as well.

use super::{Caller, Needs};
use crate::errors::ApiError;
use axum::extract::FromRequestParts;
use http::Method;
use http::request::Parts;
use modelless_store::{Deed, Store, UnixMicros, without_keys};
use modelless_types::{Scope, Time};
use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Deeds that may wait for the store.
const BACKLOG: usize = 1_000;
/// Written in one go.
const AT_ONCE: usize = 100;
/// Longest text of what a handler says of what it does.
const DETAIL_MAX: usize = 600;
/// HTTP has no number for a client that went away before it was answered; others use this one.
const WENT_AWAY: u16 = 499;
const UNTOLD: &str = "its client went away before it was answered; it may have been done";
/// A store that takes longer is away.
const WITHIN: Duration = Duration::from_secs(5);

/// Somebody who was not let in.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) error: ApiError,
    /// Whose key it was, as far as it is known.
    pub(super) who: Caller,
    pub(super) needs: Needs,
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        denied.error
    }
}

/// What a handler says of what it does, beside the path. It is noted with the deed, whatever came of that; a key is masked as
/// everywhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detail(Arc<Mutex<String>>);

impl Detail {
    /// In place of what was said before: what was asked for first, then what was made of it.
    pub(crate) fn say(&self, what: impl Into<String>) {
        let mut what = what.into();
        what.truncate(what.floor_char_boundary(DETAIL_MAX));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// What was done: a path, which has no spaces, and what was said.
    pub(crate) fn with(&self, path: &str) -> String {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_empty() { path.to_owned() } else { format!("{path}: {said}") }
    }
}

/// Something that is being done. It is noted once, however it ends: also where its client goes away meanwhile, by which whatever does it is
/// dropped half-way, though nodes or the store may have been told already.
#[derive(Debug)]
pub(crate) struct Begun {
    deeds: Deeds,
    caller: Caller,
    action: String,
    path: String,
    detail: Detail,
    /// How it was answered.
    status: Option<u16>,
}

impl Begun {
    /// It was answered, and is noted.
    pub(crate) fn answered(mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let said = self.detail.with(&self.path);
        let target = match (self.status, said == self.path) {
            (Some(_), _) => said,
            (None, true) => format!("{said}: {UNTOLD}"),
            (None, false) => format!("{said}; {UNTOLD}"),
        };
        let (caller, action) = (&self.caller, std::mem::take(&mut self.action));
        self.deeds.noted(caller, caller.shown.clone(), action, target, self.status.unwrap_or(WENT_AWAY));
    }
}

/// Where nothing is noted, what is said goes nowhere.
impl<S: Sync> FromRequestParts<S> for Detail {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Where deeds are noted.
#[derive(Clone, Debug)]
pub(crate) struct Deeds(mpsc::Sender<Deed>);

impl Deeds {
    /// With what [`keep`] reads.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Deed>) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        (Self(sender), receiver)
    }

    /// Whether this is noted: whatever changes something besides asking.
    pub(crate) fn counts(needs: Needs, method: &Method) -> bool {
        let reads = method == Method::GET || method == Method::HEAD;
        !reads && needs.scope().is_some_and(|scope| scope != Scope::Query)
    }

    /// What a caller begins to do by this request.
    pub(crate) fn begin(&self, caller: &Caller, action: String, path: String, detail: Detail) -> Begun {
        Begun { deeds: self.clone(), caller: caller.clone(), action, path, detail, status: None }
    }

    /// Notes what was refused, if it is of a kind that is noted, and its tenant had not too many of them lately: then the next that is noted
    /// says how many there were.
    pub(crate) fn refuse(
        &self,
        denied: &Denied,
        now: Time,
        (action, target): (impl FnOnce() -> String, &str),
        status: u16,
    ) {
        if denied.needs.scope().is_none_or(|scope| scope == Scope::Query) {
            return; // queries, which are many
        }
        let Some(unsaid) = denied.who.refused(now) else { return };
        let who = if denied.who.key.is_none() { denied.error.reason } else { &denied.who.shown };
        let who = match unsaid {
            0 => who.to_owned(),
            unsaid => format!("{who}; {unsaid} more before that are not listed"),
        };
        self.noted(&denied.who, who, action(), target.to_owned(), status);
    }

    fn noted(&self, caller: &Caller, who: String, action: String, target: String, status: u16) {
        let target = match without_keys(&target) {
            Cow::Owned(masked) => masked,
            Cow::Borrowed(_) => target,
        };
        let at = UnixMicros::of(SystemTime::now());
        let (tenant, key) = (caller.tenant, caller.key);
        let came = match status {
            WENT_AWAY => "perhaps done",
            0..400 => "done",
            _ => "not done",
        };
        tracing::info!(%tenant, who, action, target, status, "{came}");
        let deed = Deed { at, tenant, key, who, action, target, status };
        if let Err(error) = self.0.try_send(deed) {
            tracing::warn!(%error, "a deed is not in the audit log: the store is too slow");
        }
    }
}

/// Writes what was noted until `stop`, and then what is left.
pub(crate) async fn keep(store: Arc<dyn Store>, mut noted: mpsc::Receiver<Deed>, stop: CancellationToken) {
    loop {
        let mut batch = Vec::new();
        let some = tokio::select! {
            some = noted.recv_many(&mut batch, AT_ONCE) => some,
            () = stop.cancelled() => {
                noted.close();
                noted.recv_many(&mut batch, AT_ONCE).await
            }
        };
        if some == 0 {
            return;
        }
        match timeout(WITHIN, store.audit().note(batch)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, deeds = some, "deeds are not in the audit log"),
            Err(_) => {
                tracing::warn!(deeds = some, "deeds are not in the audit log: the store does not answer");
            }
        }
    }
}
