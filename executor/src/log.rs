//! What the log says of queries that did not go well, each called as its client knows it.
//!
//! A node has names of its own for queries. Their gateway knows what they are called outside ([`GatewayLink::number_of`]) and is
//! asked only where a line is written: a query that goes well costs nothing here, and one that is refused a look at a flag.
//! `batch` is the engine's number of a batch, which its own lines have too.

use crate::batches::Flight;
use crate::core::Handle;
use modelless_decision::worker::{BatchId, Failure, Outcome, Reason};
use modelless_engine::BatchError;
use modelless_types::{Micros, ModelId, QueryKey, Refusal, VariantId};
use modelless_wire::GatewayLink;
use std::fmt;
use tracing::Level;

/// What these lines are called in a filter.
const QUERIES: &str = "modelless_executor::queries";
/// So many queries are named in a line; `count` says how many there are.
const NAMED: usize = 16;

/// A batch, as lines tell of it.
pub(crate) struct About {
    pub(crate) model: ModelId,
    pub(crate) variant: VariantId,
    /// The engine's number of it, once it was handed over.
    pub(crate) ticket: Option<u64>,
    pub(crate) queries: Vec<QueryKey>,
}

/// Queries by the names that their clients know; one whose gateway is gone by the node's own.
pub(crate) struct Named<'a> {
    gateway: Option<&'a dyn GatewayLink>,
    queries: &'a [QueryKey],
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, key) in self.queries.iter().take(NAMED).enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            match self.gateway.and_then(|gateway| gateway.number_of(*key)) {
                Some(number) => number.fmt(f)?,
                None => key.fmt(f)?,
            }
        }
        Ok(())
    }
}

/// Those of a batch that is not made yet.
pub(crate) fn keys(members: &[(QueryKey, Reason)]) -> Vec<QueryKey> {
    members.iter().map(|(key, _)| *key).collect()
}

fn is_wanted() -> bool {
    tracing::enabled!(target: QUERIES, Level::DEBUG)
}

impl Handle {
    pub(crate) fn named<'a>(&'a self, queries: &'a [QueryKey]) -> Named<'a> {
        Named { gateway: self.gateway(), queries }
    }

    pub(crate) fn about(&self, batch: BatchId) -> Option<About> {
        self.batches().get(&batch).map(Flight::about)
    }

    pub(crate) fn tell_refused(&self, key: QueryKey, refusal: &Refusal) {
        let reason = refusal.name();
        tracing::debug!(target: QUERIES, query = %self.named(&[key]), reason, why = %refusal, "refused");
    }

    pub(crate) fn tell_bad_input(&self, key: QueryKey, why: &str) {
        tracing::debug!(target: QUERIES, query = %self.named(&[key]), reason = "bad_input", why, "refused");
    }

    pub(crate) fn tell_handed_back(&self, key: QueryKey, why: &Refusal) {
        let reason = why.name();
        tracing::debug!(target: QUERIES, query = %self.named(&[key]), reason, why = %why, "handed back");
    }

    pub(crate) fn tell_cancelled(&self, key: QueryKey) {
        tracing::debug!(target: QUERIES, query = %self.named(&[key]), "cancelled: nobody waits for it any longer");
    }

    /// A query of a batch that otherwise goes on: its input could not be written, or no answer be made of its output.
    pub(crate) fn tell_failed(&self, key: QueryKey, variant: VariantId, why: &str) {
        tracing::debug!(target: QUERIES, query = %self.named(&[key]), %variant, why, "a query failed");
    }

    /// A batch that was not handed to the engine.
    pub(crate) fn tell_not_started(&self, queries: &[QueryKey], why: &str) {
        let count = queries.len();
        tracing::warn!(target: QUERIES, queries = %self.named(queries), count, why, "a batch could not be started");
    }

    /// A batch that the machine wants no longer, which may be to bind its queries anew.
    pub(crate) fn tell_given_up(&self, batch: BatchId) {
        if is_wanted()
            && let Some(About { model, variant, queries, .. }) = self.about(batch)
        {
            let count = queries.len();
            let queries = self.named(&queries);
            tracing::debug!(target: QUERIES, %model, %variant, %queries, count, "a batch was given up before it began");
        }
    }

    pub(crate) fn tell_suspected(&self, about: &About, expected: Micros) {
        let About { model, variant, ticket, queries } = about;
        let (count, queries, expected_us) = (queries.len(), self.named(queries), expected.0);
        tracing::info!(
            target: QUERIES, %model, %variant, %queries, count, batch = ticket, expected_us,
            "a batch runs far longer than it should; its lane goes on"
        );
    }

    /// A batch that ended without outputs.
    pub(crate) fn tell_ended(&self, batch: BatchId, error: &BatchError) {
        // These never ran, or their runner is well.
        let is_quiet = matches!(
            error,
            BatchError::NotStarted(_) | BatchError::Revoked | BatchError::Model(_) | BatchError::Shape(_)
        );
        if is_quiet && !is_wanted() {
            return;
        }
        let Some(About { model, variant, ticket, queries }) = self.about(batch) else { return };
        let (count, queries) = (queries.len(), self.named(&queries));
        match error {
            BatchError::NotStarted(_) | BatchError::Revoked => {
                tracing::debug!(
                    target: QUERIES, %model, %variant, %queries, count, batch = ticket, why = %error, "a batch did not begin"
                );
            }
            BatchError::Crashed(_) | BatchError::Killed(_) | BatchError::Hung(_) => {
                tracing::warn!(
                    target: QUERIES, %model, %variant, %queries, count, batch = ticket, why = %error, "a batch ended with its runner"
                );
            }
            // What an input brings about, anybody who may ask may bring about all the time; each query is told why.
            BatchError::Model(_) | BatchError::Shape(_) => {
                tracing::debug!(
                    target: QUERIES, %model, %variant, %queries, count, batch = ticket, why = %error, "a batch failed"
                );
            }
            BatchError::Unreachable(_) => {
                tracing::warn!(
                    target: QUERIES, %model, %variant, %queries, count, batch = ticket, why = %error, "a batch failed"
                );
            }
        }
    }

    /// How a query ended that was run again by itself.
    pub(crate) fn tell_alone(
        &self,
        key: QueryKey,
        variant: VariantId,
        ticket: Option<u64>,
        outcome: &Outcome,
    ) {
        let queries = [key];
        let query = self.named(&queries);
        match outcome {
            Outcome::Ran | Outcome::Revoked => {
                tracing::debug!(target: QUERIES, %query, %variant, batch = ticket, "a query was run again, alone");
            }
            Outcome::Failed { failure: Failure::Model, why } => {
                tracing::debug!(target: QUERIES, %query, %variant, batch = ticket, why, "a query failed when it was run again, alone");
            }
            Outcome::Failed { failure: _, why } => {
                tracing::warn!(target: QUERIES, %query, %variant, batch = ticket, why, "a query failed when it was run again, alone");
            }
        }
    }

    /// A runner died, with what was handed over to it.
    pub(crate) fn tell_died(&self, model: ModelId, variants: &[VariantId], cause: &str) {
        let was_there = |about: &About| about.ticket.is_some() && variants.contains(&about.variant);
        let there = self.batches().values().map(Flight::about).filter(was_there).collect::<Vec<_>>();
        let queries: Vec<QueryKey> = there.into_iter().flat_map(|about| about.queries).collect();
        let (count, queries, resident) = (queries.len(), self.named(&queries), variants.len());
        tracing::warn!(target: QUERIES, %model, resident, %queries, count, cause, "a runner died");
    }
}
