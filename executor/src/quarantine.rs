//! Queries whose batch crashed, each run alone in an engine of their own: its runners share nothing with those that
//! serve. One runs at a time on this node, whatever its device.

use crate::batches::{Flight, Unwritten};
use crate::core::Handle;
use modelless_decision::Moments;
use modelless_decision::worker::{Event, Failure, Outcome};
use modelless_engine::{BatchError, BatchSlot, Engine, EngineError};
use modelless_types::{DeviceIx, QueryKey, VariantId};
use modelless_wire::Body;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Turn, oneshot};
use tokio_util::sync::CancellationToken;

/// The engine, what it holds, and answers that the machine has not asked for yet.
pub(crate) struct Quarantine {
    engine: Arc<dyn Engine>,
    /// Locked while somebody is in it.
    holds: Turn<Option<VariantId>>,
    answers: Mutex<HashMap<QueryKey, Body>>,
}

/// How a run ended, with the answer of one that ended well.
type Verdict = (Outcome, Option<Body>);

fn failed(failure: Failure, why: impl Into<String>) -> Verdict {
    (Outcome::Failed { failure, why: why.into() }, None)
}

impl Quarantine {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, holds: Turn::default(), answers: Mutex::default() }
    }

    fn answers(&self) -> std::sync::MutexGuard<'_, HashMap<QueryKey, Body>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Deaths are reported by the run that they end; here they are only taken out of the way.
    pub(crate) async fn mourn(engine: Arc<dyn Engine>, ended: CancellationToken) {
        let Some(mut events) = engine.events() else { return };
        while let Some(Some(event)) = ended.run_until_cancelled(events.recv()).await {
            tracing::debug!(?event, "in quarantine");
        }
    }
}

impl Handle {
    pub(crate) fn quarantine(&self, key: QueryKey, variant: VariantId, expected: Moments) {
        let me = self.clone();
        self.spawn(async move {
            let (mut verdict, killed) = me.run_alone(key, variant, expected).await;
            if killed {
                // Somebody else did that, who may have meant nobody: only a second time says anything of the input.
                verdict = me.run_alone(key, variant, expected).await.0;
            }
            let (outcome, answer) = verdict;
            let ward = &me.core().quarantine;
            if let Some(answer) = answer {
                ward.answers().insert(key, answer);
            }
            me.feed(Event::Quarantined { key, outcome });
            // Had it been wanted, it would have been taken by now.
            ward.answers().remove(&key);
        });
    }

    async fn run_alone(&self, key: QueryKey, variant: VariantId, expected: Moments) -> (Verdict, bool) {
        let mut holds = self.core().quarantine.holds.lock().await;
        let (flight, slot) = match self.admit(&mut holds, key, variant, expected).await {
            Ok(admitted) => admitted,
            Err(verdict) => {
                self.tell_alone(key, variant, None, &verdict.0);
                return (verdict, false);
            }
        };
        let ticket = slot.ticket();
        let (verdict, killed) = self.submit_alone(flight, slot, expected).await;
        self.tell_alone(key, variant, Some(ticket), &verdict.0);
        if matches!(
            verdict.0,
            Outcome::Failed { failure: Failure::Process | Failure::Hung | Failure::NotStarted, .. }
        ) {
            self.empty(&mut holds).await;
        }
        (verdict, killed)
    }

    /// Has the variant in the quarantine runner and the query's input in its slot.
    async fn admit(
        &self,
        holds: &mut Option<VariantId>,
        key: QueryKey,
        variant: VariantId,
        expected: Moments,
    ) -> Result<(Flight, BatchSlot), Verdict> {
        let ward = &self.core().quarantine;
        let Some(known) = self.catalogue().variant(variant) else {
            return Err(failed(Failure::NotStarted, "its variant is not registered any longer"));
        };
        if *holds != Some(variant) {
            self.empty(holds).await;
            let spec = match self.spec(variant, &known, 1).await {
                Ok(spec) => spec,
                Err(why) => return Err(failed(Failure::NotStarted, why)),
            };
            let loaded = match ward.engine.load(spec).await {
                Ok(loaded) => loaded,
                Err(error) => return Err(failed(Failure::NotStarted, error.to_string())),
            };
            *holds = Some(variant);
            if let Err(why) = known.check(&loaded.inputs, &loaded.outputs) {
                self.empty(holds).await;
                return Err(failed(Failure::NotStarted, why));
            }
        }
        let slot = match ward.engine.slot(variant, 0, 1) {
            Ok(slot) => slot,
            Err(error) => {
                self.empty(holds).await;
                return Err(failed(Failure::NotStarted, error.to_string()));
            }
        };
        let flight = self.alone(key, variant, known, expected);
        let me = self.clone();
        // Writing a picture takes its time, which the runtime's threads do not have.
        let written = tokio::task::spawn_blocking(move || me.write_alone(flight, slot)).await;
        match written {
            Ok(Ok(written)) => Ok(written),
            Ok(Err(why)) => Err(failed(Failure::Model, why)),
            Err(error) => Err(failed(Failure::NotStarted, error.to_string())),
        }
    }

    fn write_alone(&self, mut flight: Flight, mut slot: BatchSlot) -> Result<(Flight, BatchSlot), String> {
        match self.write_first(&mut flight, &mut slot) {
            Ok(()) => Ok((flight, slot)),
            Err(Unwritten::Gone) => Err("nobody waits for it any longer".into()),
            Err(Unwritten::TooLarge(why) | Unwritten::Failed(why)) => Err(why),
        }
    }

    /// Runs it; and whether somebody else killed the runner meanwhile.
    async fn submit_alone(&self, mut flight: Flight, slot: BatchSlot, expected: Moments) -> (Verdict, bool) {
        let (told, mut hears) = oneshot::channel();
        let me = self.clone();
        flight.starts(self.now());
        let (alone, ticket) = (flight.variant(), slot.ticket());
        let limit = self.config().hung_limit(expected.p99(), flight.engine());
        let done = Box::new(move |result: Result<_, BatchError>| {
            let killed = matches!(result, Err(BatchError::Killed(_)));
            let verdict = match result {
                Ok(outputs) => (Outcome::Ran, me.answers(&flight, &outputs).pop().map(|(_, answer)| answer)),
                Err(error) => failed(crate::batches::failure(&error), error.to_string()),
            };
            // Whoever waits is gone only when the node is.
            let _ = told.send((verdict, killed));
        });
        let engine = &self.core().quarantine.engine;
        engine.submit(slot, limit, done);
        let after = self.config().stands_back_after(expected.p99());
        let heard = if let Ok(heard) = tokio::time::timeout(after, &mut hears).await {
            heard
        } else {
            engine.stand_back(alone, 0, ticket);
            hears.await
        };
        heard.unwrap_or_else(|_| (failed(Failure::NotStarted, "the engine ended"), false))
    }

    /// Ends what the quarantine runner holds.
    async fn empty(&self, holds: &mut Option<VariantId>) {
        let Some(variant) = holds.take() else { return };
        match self.core().quarantine.engine.unload(variant).await {
            Ok(_) | Err(EngineError::NotLoaded(_)) => {} // it died with its runner
            Err(error) => tracing::warn!(%variant, %error, "a quarantine runner would not end"),
        }
    }

    /// Nobody needs it any longer.
    pub(crate) fn end_quarantine(&self, device: DeviceIx) {
        let me = self.clone();
        tracing::debug!(?device, "quarantine is over");
        self.spawn(async move {
            let mut holds = me.core().quarantine.holds.lock().await;
            me.empty(&mut holds).await;
            drop(holds);
            me.feed(Event::QuarantineEnded { device });
        });
    }

    /// The machine wants one that ran alone to be answered.
    pub(crate) fn discharge(&self, key: QueryKey) {
        let answer = self.core().quarantine.answers().remove(&key);
        if let Some(answer) = answer
            && self.queries().remove(&key).is_some()
        {
            self.say([answer]);
        }
    }
}
