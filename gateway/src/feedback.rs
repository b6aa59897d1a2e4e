//! Verdicts on answers, on their way to the store.
//!
//! A query's name says who answered it and when, and with which label, signed: so any gateway of the cluster takes the verdict and
//! none has to remember anything. Verdicts that come together are stored in one transaction: whoever comes first writes for all
//! that wait, and those who come meanwhile wait for their turn.

use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use modelless_decision::feedback::{judge, posterior};
use modelless_store::{Feedback, LiveAccuracy, Store, UnixMicros, Verdict};
use modelless_types::{Accuracy, TenantId};
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Verdicts that may wait for the store. Where there are several tenants none gets more than half of these places.
const WAITING: usize = 4_096;
/// A store that takes longer is away.
const WITHIN: Duration = Duration::from_secs(5);

struct Given {
    tenant: TenantId,
    feedback: Feedback,
    told: oneshot::Sender<Verdict>,
}

/// Where verdicts wait.
#[derive(Default)]
pub(crate) struct Desk {
    waiting: Mutex<Vec<Given>>,
    /// Held by whoever writes.
    writing: tokio::sync::Mutex<()>,
}

impl Desk {
    /// Stores a verdict.
    pub(crate) async fn put(
        &self,
        core: &Core,
        store: &dyn Store,
        caller: &Caller,
        feedback: Feedback,
    ) -> Result<Verdict, ApiError> {
        let (told, mut stored) = oneshot::channel();
        self.wait((caller.tenant, caller.alone), feedback, told)?;
        let _turn = self.writing.lock().await;
        if let Ok(verdict) = stored.try_recv() {
            return Ok(verdict);
        }
        let batch = mem::take(&mut *self.waiting());
        if !batch.is_empty() {
            write(core, store, batch).await?;
        }
        // Without an answer whoever wrote it went away, or the store failed: given again, it counts once all the same.
        stored.try_recv().map_err(|_| away("the verdict may not be stored"))
    }

    /// Has a verdict wait, if there is a place for it.
    fn wait(
        &self,
        (tenant, alone): (TenantId, bool),
        feedback: Feedback,
        told: oneshot::Sender<Verdict>,
    ) -> Result<(), ApiError> {
        let mut waiting = self.waiting();
        let own = || waiting.iter().filter(|given| given.tenant == tenant).count();
        let of_tenant = WAITING / 2;
        let most = match waiting.len() {
            all if all >= WAITING => Some(WAITING),
            // Fewer altogether are not more of one tenant's.
            all if !alone && all >= of_tenant && own() >= of_tenant => Some(of_tenant),
            _ => None,
        };
        if let Some(most) = most {
            let message = format!("{most} verdicts wait for the store already; give it again later");
            return Err(ApiError::unavailable("feedback_full", message));
        }
        waiting.push(Given { tenant, feedback, told });
        Ok(())
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Given>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn away(why: &str) -> ApiError {
    ApiError::unavailable("store_away", format!("{why}; give it again"))
}

async fn write(core: &Core, store: &dyn Store, batch: Vec<Given>) -> Result<(), ApiError> {
    let now = UnixMicros::of(SystemTime::now());
    let expired = UnixMicros(
        now.0.saturating_sub(core.config.feedback_within().as_micros().try_into().unwrap_or(u64::MAX)),
    );
    let (given, told): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.feedback, one.told)).unzip();
    let stored = timeout(WITHIN, store.put_feedback(given, expired)).await;
    let verdicts = stored.map_err(|_| away(&format!("the store did not answer within {WITHIN:?}")))??;
    let mut changed: Vec<LiveAccuracy> = Vec::new();
    for verdict in &verdicts {
        changed.retain(|known| known.variant != verdict.live.variant);
        changed.push(verdict.live);
    }
    for (verdict, told) in verdicts.into_iter().zip(told) {
        // Who does not wait any longer need not be told.
        let _ = told.send(verdict);
    }
    let view = core.view();
    for live in changed {
        // What nobody measured is nothing to hold answers against.
        let Some(measured) = view.catalog.to_be_reached(live.variant) else { continue };
        let flagged = judge(measured, (live.correct, live.wrong), live.flagged);
        if flagged == live.flagged {
            continue;
        }
        let why = why(live, measured);
        match timeout(WITHIN, store.flag_accuracy(LiveAccuracy { flagged, ..live }, now, &why)).await {
            Ok(Ok(true)) => {
                tracing::warn!(variant = %live.variant, ?flagged, why, "what is said of a variant's live accuracy changed");
                core.look_at_catalog();
            }
            // Another gateway said so, or counting began anew.
            Ok(Ok(false)) => {}
            // The next verdict tries it again.
            Ok(Err(error)) => tracing::warn!(%error, "a variant's live accuracy could not be flagged"),
            Err(_) => {
                tracing::warn!("a variant's live accuracy could not be flagged: the store does not answer");
            }
        }
    }
    Ok(())
}

/// What a flag, or its end, is founded on.
fn why(live: LiveAccuracy, measured: Accuracy) -> String {
    let LiveAccuracy { correct, wrong, .. } = live;
    let known = posterior(correct, wrong);
    format!(
        "{correct} of {} right: {} to {}, where {} was measured",
        correct + wrong,
        known.low,
        known.high,
        measured
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::VariantId;

    #[test]
    fn one_of_several_tenants_has_no_more_than_half_of_the_places_to_wait_in() {
        let desk = Desk::default();
        let wait = |tenant, alone| {
            let feedback = Feedback {
                query: String::new(),
                variant: VariantId(1),
                answered: UnixMicros(1),
                correct: true,
            };
            desk.wait((TenantId(tenant), alone), feedback, oneshot::channel().0)
        };
        let until_refused = |tenant, alone| (0..=WAITING).find(|_| wait(tenant, alone).is_err()).unwrap();
        assert_eq!(until_refused(2, false), WAITING / 2);
        assert_eq!(wait(2, false).unwrap_err().reason, "feedback_full");
        assert_eq!(until_refused(3, false), WAITING / 2);
        desk.waiting().clear();
        assert_eq!(until_refused(1, true), WAITING);
    }
}
