//! What was asked for that changes something: noted after it was answered, and written to the store beside everything else.
//!
//! Nobody waits for it. What cannot be written in time is in the log, where each deed stands as well.

use super::{Caller, Needs};
use http::Method;
use modelless_store::{Deed, Store, UnixMicros};
use modelless_types::Scope;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Deeds that may wait for the store.
const BACKLOG: usize = 1_000;
/// Written in one go.
const AT_ONCE: usize = 100;
/// A store that takes longer is away.
const WITHIN: Duration = Duration::from_secs(5);

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

    pub(crate) fn note(&self, caller: &Caller, action: String, target: String, status: u16) {
        let at = UnixMicros::of(SystemTime::now());
        let (tenant, key, who) = (caller.tenant, caller.key, caller.shown.clone());
        tracing::info!(%tenant, who, action, target, status, "done");
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
