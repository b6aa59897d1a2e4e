//! The first runs of a variant that was just loaded, before anybody's query is one of them.
//!
//! The runner has run it once by then, but the memory that it shares with us was not touched and the threads between
//! us have not met: the first query would pay for that, up to twice what its profile says. Where a run takes long that
//! is lost in it, and a run would only make loading longer, so only quick ones are warmed up.

use crate::catalogue::Known;
use crate::core::Handle;
use modelless_engine::{BatchError, BatchResult};
use modelless_types::{Micros, ReplicaState, VariantId};
use tokio::sync::oneshot;

/// A lane has two slots; each is used once.
const ROUNDS: usize = 2;

/// Tokens of a sentence.
const WARM_LENGTH: u32 = 16;

impl Handle {
    /// Runs empty inputs on every lane. An error only where the variant would do the same to a query: it ended its
    /// process, or hung.
    pub(super) async fn warm_up(&self, variant: VariantId, known: &Known) -> Result<(), String> {
        let most = self.config().warm_up;
        if known.expected > most || most == Micros::ZERO || self.shares_lanes(variant, known) {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            let started: Vec<_> = (0..self.config().lanes_for(known.settings.threads))
                .filter_map(|lane| self.warm_lane(variant, lane, known))
                .collect();
            for ended in started {
                // Whatever else it says of an empty input, it may say otherwise of a real one.
                if let Ok(Err(
                    error @ (BatchError::Crashed(_) | BatchError::Killed(_) | BatchError::Hung(_)),
                )) = ended.await
                {
                    return Err(format!("it failed on an empty input right after it was loaded: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Another variant of the model is in use: the slots are theirs together, and its queries come first. It has also
    /// warmed up most of what there is.
    fn shares_lanes(&self, variant: VariantId, known: &Known) -> bool {
        let catalogue = self.catalogue();
        let replicas = self.core().driver.look(|worker, _| worker.replicas());
        let uses = |state: ReplicaState| state.serves() || state == ReplicaState::Draining;
        let of_model = |id| catalogue.variant(id).is_none_or(|other| other.model == known.model);
        replicas.iter().any(|other| other.variant != variant && uses(other.state) && of_model(other.variant))
    }

    fn warm_lane(
        &self,
        variant: VariantId,
        lane: u16,
        known: &Known,
    ) -> Option<oneshot::Receiver<BatchResult>> {
        let mut slot = self.engine().slot(variant, lane, 1).ok()?;
        // Of a length that is common, where lengths differ.
        slot.stretch(WARM_LENGTH);
        let inputs = slot.inputs().len();
        for input in 0..inputs {
            slot.item_mut(input, 0).fill(0);
        }
        let limit = self.config().hung_limit(known.expected, known.settings.engine);
        let (sender, ended) = oneshot::channel();
        // Nobody listens any more where the load was given up.
        let done = Box::new(move |result| drop(sender.send(result)));
        self.engine().submit(slot, limit, done);
        Some(ended)
    }
}
