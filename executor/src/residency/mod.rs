//! Loading and unloading, as the machine asks for it.
//!
//! Loading a file and making sure that it is the right one take about as long as each other when it is large, so they
//! go on side by side: the runner reads it from the first moment, and the variant counts as loaded once both are done
//! and both said yes. What was loaded from a wrong file is unloaded before anything can be bound to it.

mod held;
mod warm;

use crate::catalogue::Known;
use crate::core::{Fetch, Handle};
use modelless_adapter::Tokenizer;
use modelless_decision::worker::Event;
use modelless_engine::{EngineError, Freed, LoadSpec, Loaded};
use modelless_store::Opened;
use modelless_types::{Bytes, DeviceIx, Micros, Processor, ReplicaState, VariantId};
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A runner that is asked to unload while as much as it takes waits for it is asked again, for ten seconds.
const UNLOAD_TRIES: u32 = 200;
const UNLOAD_AGAIN: Duration = Duration::from_millis(50);

/// A variant in memory, and what it took to bring it there.
struct Brought {
    memory: Bytes,
    took: Micros,
    /// Its file was not in memory.
    cold: bool,
}

impl Handle {
    pub(crate) fn load(&self, device: DeviceIx, variant: VariantId) {
        let me = self.clone();
        self.spawn(async move {
            let event = match me.load_now(device, variant).await {
                Ok(Some(Brought { memory, took, cold })) => {
                    me.tally().loaded(variant, took, cold);
                    Event::Loaded { device, variant, memory, took }
                }
                Ok(None) => Event::Fetched { device, variant },
                Err(why) => {
                    tracing::warn!(%variant, why, "a variant would not load");
                    Event::LoadFailed { device, variant, why }
                }
            };
            me.feed(event);
        });
    }

    /// Nothing where its file had to be brought to this machine first: by now others may load, so it takes its turn again.
    async fn load_now(&self, device: DeviceIx, variant: VariantId) -> Result<Option<Brought>, String> {
        let since = Instant::now();
        let known = self.catalogue().variant(variant).ok_or("it is not registered any longer")?;
        let (artefact, cold) = match (self.open_here(&known).await?, self.core().fetch.get()) {
            (Err(modelless_store::Error::NotFound { .. }), Some(fetch)) => {
                self.feed(Event::Fetching { device, variant });
                self.fetch(fetch.as_ref(), &known).await?;
                return Ok(None);
            }
            (opened, _) => opened.map_err(|error| error.to_string())?,
        };
        let (loaded, verified) =
            tokio::join!(self.bring(variant, &known, &artefact), verify(Arc::clone(&artefact)));
        // A damaged file is the better reason where the engine could not make sense of it either.
        let fits = verified.and_then(|()| match &loaded {
            Ok(loaded) => known.check(&loaded.inputs, &loaded.outputs),
            Err(why) => Err(why.clone()),
        });
        let fits = match fits {
            Ok(()) => self.warm_up(variant, &known).await,
            Err(why) => Err(why),
        };
        match (fits, loaded) {
            (Ok(()), Ok(loaded)) => {
                let took = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                // What is shared with its runner is memory as well.
                let memory = known.loaded(&loaded) + loaded.slots;
                Ok(Some(Brought { memory, took: Micros(took), cold }))
            }
            (Err(why), Ok(_)) => {
                let unloaded = self.engine().unload(variant).await;
                if let Err(error) = unloaded
                    && !matches!(error, EngineError::NotLoaded(_))
                {
                    tracing::warn!(%variant, %error, "a variant that cannot be used would not unload");
                }
                Err(why)
            }
            (Err(why), Err(_)) | (Ok(()), Err(why)) => Err(why),
        }
    }

    /// What an engine is asked, for a file that was found whole first.
    pub(crate) async fn spec(
        &self,
        variant: VariantId,
        known: &Known,
        lanes: u16,
    ) -> Result<LoadSpec, String> {
        let (artefact, _) = self.open(known).await?;
        verify(Arc::clone(&artefact)).await?;
        spec(variant, known, &artefact, lanes, self.may_hold(variant, known, lanes))
    }

    /// The most private memory of a runner on a variant's account: what it was measured to take, and half as much
    /// again; where it was not measured what is left, and what a process takes besides. An engine never allows more
    /// than it was told for any runner.
    pub(crate) fn may_hold(&self, variant: VariantId, known: &Known, lanes: u16) -> Bytes {
        let left = || {
            let (used, replicas) =
                self.core().driver.look(|worker, _| (worker.memory_used(), worker.replicas()));
            let own = replicas.iter().find(|replica| replica.variant == variant);
            let others = used.0.saturating_sub(own.map_or(0, |own| own.memory.0));
            Bytes(self.config().memory.0.saturating_sub(others)) + PROCESS
        };
        known.peak.map_or_else(left, |peak| measured_limit(peak, lanes))
    }

    /// Opens the file, has the disk begin to read it, and tells whether it has to.
    async fn open(&self, known: &Known) -> Result<(Arc<Opened>, bool), String> {
        match (self.open_here(known).await?, self.core().fetch.get()) {
            (Err(modelless_store::Error::NotFound { .. }), Some(fetch)) => {
                self.fetch(fetch.as_ref(), known).await
            }
            (opened, _) => opened.map_err(|error| error.to_string()),
        }
    }

    /// Brings the file here, and opens it to be sure that it is.
    async fn fetch(&self, from: &dyn Fetch, known: &Known) -> Result<(Arc<Opened>, bool), String> {
        from.fetch(&known.artefact, Some(known.artefact_bytes)).await?;
        self.open_here(known).await?.map_err(|error| error.to_string())
    }

    /// A tokenizer by its digest, fetched where it is not here.
    pub(crate) async fn tokenizer(&self, digest: &str) -> Result<Arc<Tokenizer>, String> {
        match (self.read_tokenizer(digest).await?, self.core().fetch.get()) {
            (Err(modelless_store::Error::NotFound { .. }), Some(fetch)) => fetch.fetch(digest, None).await?,
            (read, _) => return read.map_err(|error| error.to_string())?,
        }
        self.read_tokenizer(digest).await?.map_err(|error| error.to_string())?
    }

    async fn read_tokenizer(&self, digest: &str) -> Result<ReadHere, String> {
        let (artefacts, digest) = (self.artefacts(), digest.to_owned());
        let reading = tokio::task::spawn_blocking(move || {
            let mut file = Vec::new();
            if let Err(error) = artefacts.open(&digest)?.read_to_end(&mut file) {
                return Ok(Err(error.to_string()));
            }
            Ok::<_, modelless_store::Error>(Tokenizer::read(&file).map_err(|error| error.to_string()))
        });
        reading.await.map_err(|error| error.to_string())
    }

    async fn open_here(&self, known: &Known) -> Result<OpenedHere, String> {
        let (artefacts, digest) = (self.artefacts(), known.artefact.clone());
        let opening = tokio::task::spawn_blocking(move || {
            let opened = artefacts.open_ahead(&digest)?;
            let cold = opened.is_cached() == Some(false);
            if cold {
                opened.read_ahead();
            }
            Ok::<_, modelless_store::Error>((Arc::new(opened), cold))
        });
        opening.await.map_err(|error| error.to_string())
    }

    async fn bring(&self, variant: VariantId, known: &Known, artefact: &Opened) -> Result<Loaded, String> {
        let lanes = self.config().lanes_for(known.settings.threads);
        let limit = self.may_hold(variant, known, lanes);
        let spec = || spec(variant, known, artefact, lanes, limit);
        let loaded = match self.engine().load(spec()?).await {
            // It was lost to the machine without being lost to the engine: begin again.
            Err(EngineError::AlreadyLoaded(_)) => {
                self.engine().unload(variant).await.map_err(|error| error.to_string())?;
                self.engine().load(spec()?).await
            }
            other => other,
        };
        loaded.map_err(|error| error.to_string())
    }

    pub(crate) fn unload(&self, device: DeviceIx, variant: VariantId) {
        let me = self.clone();
        self.spawn(async move {
            match me.unload_when_it_takes_it(variant).await {
                Ok(freed) => {
                    tracing::debug!(%variant, memory = %freed.memory, left = %freed.left, "unloaded");
                    me.weigh(device, variant, freed.left);
                }
                Err(EngineError::NotLoaded(_)) => {}
                Err(error) => tracing::warn!(%variant, %error, "a variant would not unload"),
            }
            me.feed(Event::Unloaded { device, variant });
        });
    }

    /// A runner with too many requests waiting takes no more for a moment. Told as unloaded all the same, the variant would stay in memory
    /// beside whatever is loaded into its room.
    async fn unload_when_it_takes_it(&self, variant: VariantId) -> Result<Freed, EngineError> {
        let mut tries = UNLOAD_TRIES;
        loop {
            match self.engine().unload(variant).await {
                Err(EngineError::Busy(_) | EngineError::InUse(_)) if tries > 0 && !self.draining() => {
                    tries -= 1;
                    tokio::time::sleep(UNLOAD_AGAIN).await;
                }
                other => return other,
            }
        }
    }
}

impl Handle {
    /// What a runner still holds when one of its variants has left counts for those that are left in it: its process, which
    /// was the first one's, and what did not come back.
    fn weigh(&self, device: DeviceIx, gone: VariantId, left: Bytes) {
        let Some(known) = self.catalogue().variant(gone) else { return };
        let replicas = self.core().driver.look(|worker, _| worker.replicas());
        let same_runner = |variant: VariantId| {
            let other = self.catalogue().variant(variant);
            other.is_some_and(|other| {
                let runner = |known: &Known| {
                    let settings = &known.settings;
                    (known.model, settings.engine, settings.processor == Processor::Cpu)
                };
                runner(&other) == runner(&known)
            })
        };
        let there = |state: ReplicaState| state.serves() || state == ReplicaState::Draining;
        let stayed: Vec<_> = replicas
            .into_iter()
            .filter(|r| r.device == device && r.variant != gone && there(r.state) && same_runner(r.variant))
            .collect();
        let counted: u64 = stayed.iter().map(|replica| replica.memory.0).sum();
        if let Some(first) = stayed.first().filter(|_| left.0 > counted) {
            let memory = first.memory + Bytes(left.0 - counted);
            self.feed(Event::Weighed { device, variant: first.variant, memory });
        }
    }
}

/// A tokenizer, or why its file is none.
type ReadHere = Result<Result<Arc<Tokenizer>, String>, modelless_store::Error>;

/// The file and whether the disk has to read it.
type OpenedHere = Result<(Arc<Opened>, bool), modelless_store::Error>;

/// A process has more to do in a life than while it was measured: what it keeps of one batch may not fit the next.
const HEADROOM: Bytes = Bytes::from_mib(64);

/// What a process with its library may hold before it has loaded anything, which no budget counts.
pub(crate) const PROCESS: Bytes = Bytes::from_mib(256);

/// Each lane takes as much as the one that was measured, the library perhaps less: it is not known which part that is.
pub(crate) fn measured_limit(peak: Bytes, lanes: u16) -> Bytes {
    let lanes = peak.0.saturating_mul(u64::from(lanes));
    Bytes(lanes.saturating_add(lanes / 2).saturating_add(HEADROOM.0))
}

fn spec(
    variant: VariantId,
    known: &Known,
    artefact: &Opened,
    lanes: u16,
    limit: Bytes,
) -> Result<LoadSpec, String> {
    Ok(LoadSpec {
        variant,
        model: known.model,
        artefact: artefact.share().map_err(|error| error.to_string())?,
        settings: known.settings.clone(),
        lanes,
        memory_limit: Some(limit),
        expect: known.tensors(),
        shown: known.was_loaded(),
    })
}

/// Makes sure that a file is what it should be, on a thread that may wait for the disk.
async fn verify(artefact: Arc<Opened>) -> Result<(), String> {
    if artefact.is_verified() {
        return Ok(());
    }
    let verifying = tokio::task::spawn_blocking(move || artefact.verify());
    verifying.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
