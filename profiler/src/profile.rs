//! Measuring variants: what is to be measured, how, and how far that is. The work itself is [`crate::bench`]'s.

use crate::bench::Bench;
use crate::error::Error;
use crate::latency::Effort;
use crate::minute::Host;
use crate::set::LabelledSet;
use modelless_adapter::{Adapter, AdapterSpec, Tokenizer};
use modelless_decision::search::Why;
use modelless_engine::{Engine, Io, LoadSpec, Loaded};
use modelless_types::{
    Accuracy, AccuracyMeasure, Bytes, Engine as Kind, Micros, ModelId, Profile, Task, VariantId,
    VariantSettings,
};
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// Smaller artefacts are read from a disk in less time than any load takes: whether they are in memory makes no difference.
const COLD_FROM: u64 = 1 << 20;
/// Loading once more, and from the disk, may take so much of a budget.
const COLD_SHARE: u32 = 5;

/// How to measure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Repetitions.
    pub(crate) effort: Effort,
    /// A batch that takes longer is given up.
    pub batch_limit_ms: u64,
    /// Items of a batch while accuracy is measured.
    pub accuracy_batch: u32,
    /// So long at most for one variant, and the best that is known then; `None`: as long as it takes.
    pub budget_ms: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self { effort: Effort::default(), batch_limit_ms: 30_000, accuracy_batch: 32, budget_ms: None }
    }
}

/// A variant to be measured.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// What it is for.
    pub task: &'a Task,
    /// Between the two.
    pub adapter: &'a AdapterSpec,
    /// How it is run.
    pub settings: &'a VariantSettings,
    /// Opened at its start; its digest is known to be right.
    pub artefact: File,
    /// The file that the adapter names, where it names one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// What is said about its accuracy, for when there is no labelled set.
    pub declared: Option<Accuracy>,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress {
    /// Loading, with nothing of the file in memory.
    LoadingCold,
    /// Loading.
    Loading,
    /// Timing batches of this size.
    Latency {
        /// Items.
        batch: u32,
        /// Which series of this size, from 1.
        series: u32,
        /// Why this size.
        why: Why,
    },
    /// Comparing answers with labels.
    Accuracy {
        /// Items compared.
        done: usize,
        /// Items in the set.
        of: usize,
    },
    /// Others have work to do; it goes on where it was afterwards.
    Paused,
}

/// Is told how far it is, with the variant's name. Called often; must not block.
pub type Report<'a> = &'a mut (dyn FnMut(&str, Progress) + Send);

/// Measures variants, one after another, in runners of their own.
#[derive(Clone)]
pub struct Profiler {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) config: Config,
    pub(crate) device_class: String,
    pub(crate) command: String,
    next: Arc<AtomicU32>,
    /// Of the libraries that were asked for theirs.
    versions: Arc<Mutex<BTreeMap<Kind, Option<String>>>>,
    busy: Option<watch::Receiver<bool>>,
    pub(crate) host: Host,
    /// The whole budget, of which `config` may have a share.
    whole_ms: Option<u64>,
    /// Microseconds that it has waited for what goes first, which no budget is spent on.
    paused: Arc<AtomicU64>,
}

impl Profiler {
    /// On this device class; `command` is what makes the figures again.
    pub fn new(
        engine: Arc<dyn Engine>,
        config: Config,
        device_class: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        let (device_class, command) = (device_class.into(), command.into());
        // From the far end, so that what is measured is never taken for what serves under a number of the store.
        let next = Arc::new(AtomicU32::new(u32::MAX));
        let (versions, host, whole_ms) = (Arc::default(), Host::of_this_machine(), config.budget_ms);
        let paused = Arc::default();
        Self { engine, config, device_class, command, next, versions, busy: None, host, whole_ms, paused }
    }

    /// How it measures.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What this machine is called.
    pub fn device_class(&self) -> &str {
        &self.device_class
    }

    /// The same beside something that goes first: while this says so it pauses, and what was being timed just then is
    /// timed again.
    #[must_use]
    pub fn beside(self, busy: watch::Receiver<bool>) -> Self {
        Self { busy: Some(busy), ..self }
    }

    /// The same on a machine that is watched in another way.
    #[must_use]
    pub fn on(self, host: Host) -> Self {
        Self { host, ..self }
    }

    /// The same, with so much time for one variant.
    #[must_use]
    pub fn within(&self, budget: Option<Duration>) -> Self {
        let budget_ms = budget.map(|budget| u64::try_from(budget.as_millis()).unwrap_or(u64::MAX));
        Self { config: Config { budget_ms, ..self.config.clone() }, whole_ms: budget_ms, ..self.clone() }
    }

    /// The same, with an equal share of what is left of the budget that began at `since`, where `left` variants are.
    #[must_use]
    pub fn share(&self, since: Instant, left: usize) -> Self {
        self.part(since, (1, left))
    }

    /// The same for `own` of the variants that are left.
    #[must_use]
    pub fn part(&self, since: Instant, (own, left): (usize, usize)) -> Self {
        let budget = self.config.budget_ms.map(Duration::from_millis);
        let [own, left] = [own, left.max(own).max(1)].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let part = budget.map(|budget| budget.saturating_sub(since.elapsed()).saturating_mul(own) / left);
        Self { whole_ms: self.whole_ms, ..self.within(part) }
    }

    /// How it measures, as somebody asked for it: with the whole budget, whatever is left of it by now.
    pub(crate) fn asked(&self) -> Config {
        Config { budget_ms: self.whole_ms, ..self.config.clone() }
    }

    /// Everything: latency, stages, memory, load time, accuracy.
    pub async fn profile(
        &self,
        subject: Subject<'_>,
        set: Option<&LabelledSet>,
        report: Report<'_>,
    ) -> Result<Profile, Error> {
        let mut bench = self.open(subject, Cold::Too, &mut *report).await?;
        let result = bench.profile(set, report).await;
        bench.close(result).await
    }

    /// The accuracy alone, for large sets.
    pub async fn accuracy(
        &self,
        subject: Subject<'_>,
        set: &LabelledSet,
        report: Report<'_>,
    ) -> Result<AccuracyMeasure, Error> {
        let bench = self.open(subject, Cold::No, &mut *report).await?;
        let result = bench.accuracy(set, report).await;
        bench.close(result).await
    }

    /// Loads a variant. What comes of it is to be closed.
    pub(crate) async fn open<'a>(
        &'a self,
        subject: Subject<'a>,
        cold: Cold,
        report: Report<'_>,
    ) -> Result<Bench<'a>, Error> {
        let until = self.config.budget_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        let paused = self.paused();
        let Subject { name, task, adapter: spec, settings, artefact, tokenizer, declared } = subject;
        let unfit = |source| Error::Adapter { model: name.to_owned(), source };
        let preparation = spec.preparation(task, tokenizer.as_ref()).map_err(unfit)?;
        let number = self.next.fetch_sub(1, Ordering::Relaxed);
        let source = Source {
            name,
            variant: VariantId(number),
            settings,
            artefact,
            expect: Io::needed(settings.engine, spec.tensors(task), spec.longest()),
        };
        self.calm(name, &mut *report).await;
        let load_cold = match cold {
            Cold::Too => self.load_cold(&source, &mut *report).await?,
            Cold::No => None,
        };
        report(name, Progress::Loading);
        let loaded = self.load(&source).await?;
        let adapter = match Adapter::prepared(spec, task, preparation, &loaded.inputs, &loaded.outputs) {
            Ok(adapter) => adapter,
            Err(error) => {
                // It cannot be in use, so only the reason above is worth telling.
                let _ = self.engine.unload(source.variant).await;
                return Err(unfit(error));
            }
        };
        Ok(Bench { profiler: self, source, task, spec, adapter, loaded, load_cold, declared, until, paused })
    }

    /// Loads it once with nothing of its file in memory, and lets it go. `None` where that makes no difference, the file
    /// cannot be put out of memory (something else has it in use, or the file system is memory), or the budget is small.
    async fn load_cold(&self, source: &Source<'_>, report: Report<'_>) -> Result<Option<Micros>, Error> {
        if !source.artefact.metadata().is_ok_and(|about| about.len() >= COLD_FROM) {
            return Ok(None);
        }
        let start = Instant::now();
        report(source.name, Progress::LoadingCold);
        if self.config.budget_ms.is_some() {
            // What one load takes, to know whether there is time for another.
            let warm = self.load(source).await?;
            self.unload(source).await?;
            let budget = Duration::from_millis(self.config.budget_ms.unwrap_or(u64::MAX));
            if Duration::from_micros(warm.load_time.0) * 2 + start.elapsed() > budget / COLD_SHARE {
                return Ok(None);
            }
        }
        let file = source.artefact.try_clone();
        let put_out = tokio::task::spawn_blocking(move || file.is_ok_and(|file| put_out(&file)));
        if !put_out.await.unwrap_or(false) {
            return Ok(None);
        }
        let loaded = self.load(source).await?;
        self.unload(source).await?;
        Ok(Some(loaded.load_time))
    }

    pub(crate) async fn load(&self, source: &Source<'_>) -> Result<Loaded, Error> {
        let Source { name, variant, settings, artefact, expect } = source;
        let kept = artefact.try_clone();
        let artefact = kept.map_err(|source| Error::Read { path: (*name).into(), source })?;
        let load = LoadSpec {
            variant: *variant,
            model: ModelId(variant.0),
            artefact,
            settings: (*settings).clone(),
            lanes: 1,
            memory_limit: None,
            shown: false,
            expect: expect.clone(),
        };
        let loaded = self.engine.load(load).await;
        loaded.map_err(|why| Error::Engine { variant: (*name).to_owned(), why })
    }

    pub(crate) async fn unload(&self, source: &Source<'_>) -> Result<(), Error> {
        let unloaded = self.engine.unload(source.variant).await;
        unloaded.map(drop).map_err(|why| Error::Engine { variant: source.name.to_owned(), why })
    }

    /// Until nothing else has work to do.
    pub(crate) async fn calm(&self, name: &str, report: Report<'_>) {
        let Some(mut busy) = self.busy.clone() else { return };
        if *busy.borrow() {
            report(name, Progress::Paused);
        }
        let since = Instant::now();
        // Whoever said so is gone: then nothing goes first any more.
        let _ = busy.wait_for(|busy| !*busy).await;
        let waited = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.paused.fetch_add(waited, Ordering::Relaxed);
    }

    /// For how long it has waited so, since it was made.
    pub(crate) fn paused(&self) -> Duration {
        Duration::from_micros(self.paused.load(Ordering::Relaxed))
    }

    /// Version of the library that runs variants of a kind, asked for once.
    pub(crate) async fn engine_version(&self, kind: Kind) -> Option<String> {
        let mut versions = self.versions.lock().await;
        if let Some(known) = versions.get(&kind) {
            return known.clone();
        }
        let version = self.engine.version(kind).await;
        versions.insert(kind, version.clone());
        version
    }

    /// Tells whether something else had work to do since this was asked for.
    pub(crate) fn disturbance(&self) -> impl Fn() -> bool + Sync + use<> {
        let mut busy = self.busy.clone();
        if let Some(busy) = &mut busy {
            busy.mark_unchanged();
        }
        move || busy.as_ref().is_some_and(|busy| busy.has_changed().unwrap_or(false) || *busy.borrow())
    }
}

/// Whether to measure a load from the disk as well.
pub(crate) enum Cold {
    Too,
    No,
}

/// What is loaded, as often as need be.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) variant: VariantId,
    pub(crate) settings: &'a VariantSettings,
    artefact: File,
    expect: Option<Io>,
}

/// Asks the system to forget what it has of a file. Whether it did: nothing of the beginning, the middle and the end is
/// there any longer.
fn put_out(file: &File) -> bool {
    let Ok(about) = file.metadata() else { return false };
    // Only what is on the disk can be forgotten.
    if file.sync_data().is_err() || rustix::fs::fadvise(file, 0, None, Advice::DontNeed).is_err() {
        return false;
    }
    [0, about.len() / 2, about.len().saturating_sub(1)].into_iter().all(|at| {
        let mut byte = [0];
        let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        matches!(read, Err(rustix::io::Errno::AGAIN))
    })
}

/// The memory of one replica: weights, one run, and its slots.
pub(crate) fn memory(loaded: &Loaded) -> Bytes {
    loaded.memory + loaded.slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_budget_is_shared_by_what_is_left() {
        let engine = Arc::new(modelless_engine::FakeEngine::new());
        let profiler = Profiler::new(engine, Config::default(), "cpu:a:1", "");
        assert_eq!(profiler.share(Instant::now(), 3).config.budget_ms, None);
        let profiler = profiler.within(Some(Duration::from_secs(30)));
        let share = profiler.share(Instant::now(), 3).config.budget_ms.unwrap();
        assert!((9_900..=10_000).contains(&share), "{share}");
        let late = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
        assert_eq!(profiler.share(late, 2).config.budget_ms, Some(0));
        let part = profiler.part(Instant::now(), (4, 12));
        assert!((9_900..=10_000).contains(&part.config.budget_ms.unwrap()), "{:?}", part.config);
        assert_eq!(part.share(Instant::now(), 4).asked().budget_ms, Some(30_000), "who asked gave so much");
        assert_eq!(profiler.part(Instant::now(), (3, 0)).asked(), profiler.config);
    }

    #[test]
    fn a_file_that_is_in_memory_is_not_taken_for_one_that_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        // Whether it can be put out depends on the file system; that it is back after a read does not.
        let was_put_out = put_out(&file);
        let mut all = vec![0; 1 << 20];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut all, 0).unwrap();
        let mut byte = [0];
        let read = rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT);
        assert!(!was_put_out || read == Ok(1), "{read:?}");
    }
}
