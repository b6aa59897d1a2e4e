//! Replica transitions, and profiles that are off, on their way to the store.
//!
//! The machine never waits for the store: transitions go through a bounded channel to one task that writes them in
//! order. If the store is away so long that the channel fills, the oldest gap is told in the log; serving goes on. What is said
//! of profiles is kept until it is written, the last word on each, however long the store is away.

use modelless_store::{Error, EventKind, NewEvent, NewTransition, StaleProfile, Store, UnixMicros};
use modelless_types::{DeviceIx, NodeId, ReplicaId, ReplicaState, VariantId};
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout};

/// Transitions that may wait for the store.
const BACKLOG: usize = 4_096;
/// Tries before a transition is given up.
const TRIES: u32 = 5;
/// Until what is said of profiles is tried again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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

/// Something that happened to the node.
#[derive(Debug)]
struct Said {
    what: &'static str,
    cause: String,
    at: UnixMicros,
}

/// To be written, in order.
#[derive(Debug)]
enum Entry {
    Moved(Moved),
    Said(Said),
}

/// What is to be said of a profile: that it is off by so much, or not any longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    ratio_ppm: Option<u64>,
    at: UnixMicros,
}

/// What is not written yet, by variant: the last word counts.
#[derive(Debug, Default)]
struct Marks {
    owed: Mutex<BTreeMap<VariantId, Mark>>,
    told: Notify,
}

impl Marks {
    fn owed(&self) -> MutexGuard<'_, BTreeMap<VariantId, Mark>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is written, unless something else was said meanwhile.
    fn written(&self, variant: VariantId, mark: Mark) {
        let mut owed = self.owed();
        if owed.get(&variant) == Some(&mark) {
            owed.remove(&variant);
        }
    }
}

/// Takes transitions without waiting.
#[derive(Clone, Debug)]
pub(crate) struct History(mpsc::Sender<Entry>, Arc<Marks>);

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

    /// Tells something of the node as an event.
    pub(crate) fn say(&self, what: &'static str, cause: String) {
        let at = UnixMicros::of(SystemTime::now());
        if self.0.try_send(Entry::Said(Said { what, cause, at })).is_err() {
            tracing::warn!(what, "what happened was not recorded: the store is too far behind");
        }
    }

    pub(crate) fn note_drift(&self, variant: VariantId, ratio_ppm: Option<u64>) {
        let at = UnixMicros::of(SystemTime::now());
        self.1.owed().insert(variant, Mark { ratio_ppm, at });
        self.1.told.notify_one();
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
    marks: Arc<Marks>,
    known: BTreeMap<(DeviceIx, VariantId), ReplicaId>,
    /// A store that takes longer is away.
    within: Duration,
}

pub(crate) fn channel(
    store: Arc<dyn Store>,
    node: NodeId,
    who: String,
    (name, device_class): (String, String),
    within: Duration,
) -> (History, Writer) {
    let (sender, entries) = mpsc::channel(BACKLOG);
    let (known, marks) = (BTreeMap::new(), Arc::<Marks>::default());
    let history = History(sender, Arc::clone(&marks));
    (history, Writer { store, node, who, device_class, name, entries, marks, known, within })
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
        let mut pause = FIRST_PAUSE;
        let mut again: Option<Instant> = None;
        loop {
            // Only while something is owed.
            let due = async {
                match again {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                entry = self.entries.recv() => match entry {
                    Some(Entry::Moved(entry)) => {
                        self.keep(&entry).await;
                        continue;
                    }
                    Some(Entry::Said(said)) => {
                        self.tell(said).await;
                        continue;
                    }
                    None => break,
                },
                () = self.marks.told.notified(), if again.is_none() => {}
                () = due => {}
            }
            again = match self.mark_all().await {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, again_in = ?pause, "profiles that are off are not marked yet");
                    let at = Instant::now() + pause;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Some(at)
                }
            };
        }
        if let Err(error) = self.mark_all().await {
            tracing::warn!(%error, "profiles that are off were not marked before the end");
        }
    }

    async fn keep(&mut self, entry: &Moved) {
        let mut wait = Duration::from_millis(50);
        for attempt in 1..=TRIES {
            match self.write(entry).await {
                Ok(()) => break,
                Err(Error::NotFound { what: "variant", .. }) => {
                    // It was removed, and what happened to it with it.
                    tracing::debug!(variant = %entry.variant, ?entry, "what happened to a removed variant is not kept");
                    break;
                }
                Err(error) if attempt == TRIES => {
                    tracing::warn!(%error, variant = %entry.variant, ?entry, "what happened was not recorded");
                }
                Err(_) => {
                    tokio::time::sleep(wait).await;
                    wait *= 4;
                }
            }
        }
    }

    /// People can do without it where the store is away.
    async fn tell(&self, said: Said) {
        let Said { what, cause, at } = said;
        let (node, who) = (Some(self.node), self.who.clone());
        let event = NewEvent {
            kind: EventKind::Node,
            node,
            variant: None,
            task: None,
            what: what.to_owned(),
            cause,
            who,
            at,
        };
        match timeout(self.within, self.store.note_event(event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, what, "what happened was not recorded"),
            Err(_) => tracing::warn!(what, "what happened was not recorded: the store did not answer"),
        }
    }

    /// Says what is owed. What could not be said stays owed.
    async fn mark_all(&self) -> Result<(), Error> {
        let owed = self.marks.owed().clone();
        for (variant, mark) in owed {
            let said = async {
                match mark.ratio_ppm {
                    Some(ratio_ppm) => {
                        let (device_class, node) = (self.device_class.clone(), self.name.clone());
                        let stale = StaleProfile { variant, device_class, node, ratio_ppm, since: mark.at };
                        let marked = self.store.mark_stale(stale).await?;
                        // Of an estimate nobody expected more.
                        if marked {
                            tracing::warn!(%variant, ratio_ppm, "a profile is off; it is to be measured again");
                        }
                        Ok(marked)
                    }
                    None => self.store.clear_stale(variant, &self.device_class, &self.name).await,
                }
            };
            // It says the same when it is said again, so one that was cut off loses nothing.
            let Ok(said) = timeout(self.within, said).await else {
                let why = format!("it did not answer within {:?}", self.within);
                return Err(Error::Unreachable { database: self.store.describe().to_owned(), why });
            };
            said?;
            self.marks.written(variant, mark);
        }
        Ok(())
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
