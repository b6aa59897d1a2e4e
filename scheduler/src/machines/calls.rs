//! Calls to providers, each beside the others and within a time: one that hangs keeps nobody else waiting.

use modelless_fleet::{Error, Fleet, Instance, Wanted};
use modelless_types::{MachineId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// A provider that takes longer gives no answer.
const WITHIN: Duration = Duration::from_secs(90);
/// At most so many calls at a time.
const OPEN: usize = 64;

/// What came of a call.
pub(super) enum Outcome {
    Listed { pool: String, at: Time, told: Result<Vec<Instance>, Error> },
    Started { machine: MachineId, told: Result<Instance, Error> },
    Stopped { machine: Option<MachineId>, instance: String, told: Result<(), Error> },
}

/// Calls that are open, and when pools were listed.
#[derive(Default)]
pub(super) struct Calls {
    open: JoinSet<Outcome>,
    listing: BTreeSet<String>,
    listed: BTreeMap<String, Instant>,
    /// Instances that nobody wrote down and that are being taken away.
    removing: BTreeSet<String>,
}

async fn within<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = || Error::Away(format!("nothing within {} s", WITHIN.as_secs()));
    timeout(WITHIN, asked).await.unwrap_or_else(|_| Err(late()))
}

impl Calls {
    /// Asks what a pool has, unless it was asked less than `every` ago.
    pub(super) fn list(&mut self, pool: &str, fleet: &Arc<dyn Fleet>, every: Duration, now: Time) {
        let recent = self.listed.get(pool).is_some_and(|at| at.elapsed() < every);
        if recent || !self.listing.insert(pool.to_owned()) {
            return;
        }
        self.listed.insert(pool.to_owned(), Instant::now());
        let (pool, fleet) = (pool.to_owned(), Arc::clone(fleet));
        self.open.spawn(async move { Outcome::Listed { pool, at: now, told: within(fleet.list()).await } });
    }

    /// Whether it was begun.
    pub(super) fn start(&mut self, machine: MachineId, fleet: &Arc<dyn Fleet>, wanted: Wanted) -> bool {
        if self.open.len() >= OPEN {
            return false;
        }
        let fleet = Arc::clone(fleet);
        self.open
            .spawn(async move { Outcome::Started { machine, told: within(fleet.start(&wanted)).await } });
        true
    }

    /// Whether it was begun. Without a machine, one that nobody wrote down.
    pub(super) fn stop(
        &mut self,
        machine: Option<MachineId>,
        fleet: &Arc<dyn Fleet>,
        instance: String,
    ) -> bool {
        if self.open.len() >= OPEN || (machine.is_none() && !self.removing.insert(instance.clone())) {
            return false;
        }
        let fleet = Arc::clone(fleet);
        self.open.spawn(async move {
            let told = within(fleet.stop(&instance)).await;
            Outcome::Stopped { machine, instance, told }
        });
        true
    }

    /// What came of the next call that ends; for ever where none is open.
    pub(super) async fn next(&mut self) -> Outcome {
        let outcome = loop {
            match self.open.join_next().await {
                Some(Ok(outcome)) => break outcome,
                Some(Err(error)) => tracing::error!(%error, "a call to a provider failed; this is a bug"),
                None => std::future::pending().await,
            }
        };
        match &outcome {
            Outcome::Listed { pool, .. } => drop(self.listing.remove(pool)),
            Outcome::Stopped { machine: None, instance, .. } => drop(self.removing.remove(instance)),
            Outcome::Started { .. } | Outcome::Stopped { .. } => {}
        }
        outcome
    }
}
