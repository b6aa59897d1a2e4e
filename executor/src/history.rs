//! Replica transitions, and profiles that are off, on their way to the store.
//!
//! The machine never waits for the store: transitions go through a bounded channel to one task that writes them in
//! order. If the store is away so long that the channel fills, the oldest gap is told in the log; serving goes on.

use modelless_store::{Error, NewTransition, StaleProfile, Store, UnixMicros};
use modelless_types::{DeviceIx, NodeId, ReplicaId, ReplicaState, VariantId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Transitions that may wait for the store.
const BACKLOG: usize = 4_096;
/// Tries before a transition is given up.
const TRIES: u32 = 5;

/// What the machine tells.
#[derive(Debug)]
enum Entry {
    Moved(Moved),
    /// A profile is off by so much, or not any longer.
    Drifted {
        variant: VariantId,
        ratio_ppm: Option<u64>,
        at: UnixMicros,
    },
}

/// A transition.
#[derive(Debug)]
struct Moved {
    device: DeviceIx,
    variant: VariantId,
    from: ReplicaState,
    to: ReplicaState,
    cause: String,
    at: UnixMicros,
}

impl Entry {
    fn variant(&self) -> VariantId {
        match self {
            Self::Moved(moved) => moved.variant,
            Self::Drifted { variant, .. } => *variant,
        }
    }
}

/// Takes transitions without waiting.
#[derive(Clone, Debug)]
pub(crate) struct History(mpsc::Sender<Entry>);

impl History {
    pub(crate) fn note(
        &self,
        device: DeviceIx,
        variant: VariantId,
        from: ReplicaState,
        to: ReplicaState,
        cause: String,
    ) {
        let at = UnixMicros::of(SystemTime::now());
        if self.0.try_send(Entry::Moved(Moved { device, variant, from, to, cause, at })).is_err() {
            tracing::warn!(%variant, %from, %to, "a transition was not recorded: the store is too far behind");
        }
    }

    pub(crate) fn note_drift(&self, variant: VariantId, ratio_ppm: Option<u64>) {
        let at = UnixMicros::of(SystemTime::now());
        if self.0.try_send(Entry::Drifted { variant, ratio_ppm, at }).is_err() {
            tracing::warn!(%variant, "a profile was not marked: the store is too far behind");
        }
    }
}

/// Writes them. Runs until every [`History`] is dropped and all is written.
pub(crate) struct Writer {
    store: Arc<dyn Store>,
    node: NodeId,
    who: String,
    device_class: String,
    /// The node's name.
    name: String,
    entries: mpsc::Receiver<Entry>,
    known: BTreeMap<(DeviceIx, VariantId), ReplicaId>,
}

pub(crate) fn channel(
    store: Arc<dyn Store>,
    node: NodeId,
    who: String,
    (name, device_class): (String, String),
) -> (History, Writer) {
    let (sender, entries) = mpsc::channel(BACKLOG);
    let known = BTreeMap::new();
    (History(sender), Writer { store, node, who, device_class, name, entries, known })
}

impl Writer {
    /// What an earlier life of this node left behind: nothing is in memory when a node starts.
    pub(crate) async fn settle(&mut self) -> Result<(), Error> {
        let at = UnixMicros::of(SystemTime::now());
        for replica in self.store.replicas(Some(self.node)).await? {
            self.known.insert((replica.device, replica.variant), replica.id);
            let mut from = replica.state;
            if !matches!(from, ReplicaState::Inactive | ReplicaState::Failed) {
                self.record(replica.id, from, ReplicaState::Failed, "its node ended without a word", at)
                    .await?;
                from = ReplicaState::Failed;
            }
            if from == ReplicaState::Failed {
                self.record(replica.id, from, ReplicaState::Inactive, "its node started anew", at).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn run(mut self) {
        while let Some(entry) = self.entries.recv().await {
            let mut wait = Duration::from_millis(50);
            for attempt in 1..=TRIES {
                let written = match &entry {
                    Entry::Moved(moved) => self.write(moved).await,
                    Entry::Drifted { variant, ratio_ppm, at } => self.mark(*variant, *ratio_ppm, *at).await,
                };
                match written {
                    Ok(()) => break,
                    Err(error) if attempt == TRIES => {
                        tracing::warn!(%error, variant = %entry.variant(), ?entry, "what happened was not recorded");
                    }
                    Err(_) => {
                        tokio::time::sleep(wait).await;
                        wait *= 4;
                    }
                }
            }
        }
    }

    async fn mark(&self, variant: VariantId, ratio_ppm: Option<u64>, at: UnixMicros) -> Result<(), Error> {
        let done = match ratio_ppm {
            Some(ratio_ppm) => {
                let (device_class, node) = (self.device_class.clone(), self.name.clone());
                let stale = StaleProfile { variant, device_class, node, ratio_ppm, since: at };
                let marked = self.store.mark_stale(stale).await?;
                // Of an estimate nobody expected more.
                if marked {
                    tracing::warn!(%variant, ratio_ppm, "a profile is off; it is to be measured again");
                }
                Ok(marked)
            }
            None => self.store.clear_stale(variant, &self.device_class, &self.name).await,
        };
        done.map(|_| ())
    }

    async fn write(&mut self, entry: &Moved) -> Result<(), Error> {
        let place = (entry.device, entry.variant);
        let id = match self.known.get(&place) {
            Some(id) => *id,
            None => self.store.add_replica(entry.variant, self.node, entry.device).await?.id,
        };
        self.known.insert(place, id);
        match self.record(id, entry.from, entry.to, &entry.cause, entry.at).await {
            // Told twice, or overtaken by a later one from another thread that has been recorded already.
            Err(Error::StateChanged { found, .. }) if found == entry.to => Ok(()),
            // A gap in the record: go on from what stands there.
            Err(Error::StateChanged { found, .. }) => {
                let cause = format!("{} (earlier transitions were not recorded)", entry.cause);
                self.record(id, found, entry.to, &cause, entry.at).await
            }
            other => other,
        }
    }

    async fn record(
        &self,
        replica: ReplicaId,
        from: ReplicaState,
        to: ReplicaState,
        cause: &str,
        at: UnixMicros,
    ) -> Result<(), Error> {
        let change = NewTransition { replica, from, to, cause: cause.into(), who: self.who.clone(), at };
        self.store.record_transition(change).await.map(|_| ())
    }
}
