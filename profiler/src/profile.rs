//! One variant, measured from loading to the last labelled item.

use crate::accuracy::{Nearest, Tally};
use crate::error::Error;
use crate::latency::{self, Effort, Failure, Item};
use crate::set::{LabelledSet, png};
use crate::stats::Summary;
use bytes::Bytes;
use modelless_adapter::{
    Adapter, AdapterSpec, Body, Decoded, Limits, Output, OutputParams, Scratch, Tokenizer,
};
use modelless_engine::{Engine, Io, LoadSpec, Loaded};
use modelless_types::tensor::strings;
use modelless_types::{
    Accuracy, AccuracyMeasure, BatchPoint, ModelId, Profile, Provenance, StageTime, Task, TensorSpec,
    VariantId, VariantSettings,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Inputs that decoding and preparing are timed with, and how often at most they are gone through.
const STAGE_SAMPLES: usize = 50;

/// Batches are timed with a text that is longer than so many of a hundred.
const LONG_OF_100: usize = 80;

/// What a string of a query might be, where no labelled set shows it.
const STAND_IN: &str = "What a query might say, if nobody knows better: a sentence of the usual length.";

/// How to measure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Batch sizes, as far as the variant takes them; its largest is always one of them.
    pub batches: Vec<u32>,
    /// Repetitions.
    effort: Effort,
    /// A batch that takes longer is given up.
    pub batch_limit_ms: u64,
    /// Items of a batch while accuracy is measured.
    pub accuracy_batch: u32,
}

impl Default for Config {
    fn default() -> Self {
        let batches = vec![1, 2, 4, 8, 16, 32];
        Self { batches, effort: Effort::default(), batch_limit_ms: 30_000, accuracy_batch: 32 }
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
    /// Loading.
    Loading,
    /// Timing batches of this size.
    Latency {
        /// Items.
        batch: u32,
    },
    /// Comparing answers with labels.
    Accuracy {
        /// Items compared.
        done: usize,
        /// Items in the set.
        of: usize,
    },
}

/// Is told how far it is, with the variant's name. Called often; must not block.
pub type Report<'a> = &'a mut (dyn FnMut(&str, Progress) + Send);

/// Measures variants, one after another, in runners of their own.
#[derive(Clone)]
pub struct Profiler {
    engine: Arc<dyn Engine>,
    config: Config,
    device_class: String,
    command: String,
    next: Arc<AtomicU32>,
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
        Self { engine, config, device_class, command, next }
    }

    /// How it measures.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What this machine is called.
    pub fn device_class(&self) -> &str {
        &self.device_class
    }

    /// Everything: latency, stages, memory, load time, accuracy.
    pub async fn profile(
        &self,
        subject: Subject<'_>,
        set: Option<&LabelledSet>,
        report: Report<'_>,
    ) -> Result<Profile, Error> {
        let bench = self.open(subject, &mut *report).await?;
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
        let bench = self.open(subject, &mut *report).await?;
        let result = bench.accuracy(set, report).await;
        bench.close(result).await
    }

    /// Loads a variant. What comes of it is to be closed.
    async fn open<'a>(&'a self, subject: Subject<'a>, report: Report<'_>) -> Result<Bench<'a>, Error> {
        let Subject { name, task, adapter: spec, settings, artefact, tokenizer, declared } = subject;
        let unfit = |source| Error::Adapter { model: name.to_owned(), source };
        let preparation = spec.preparation(task, tokenizer.as_ref()).map_err(unfit)?;
        report(name, Progress::Loading);
        let number = self.next.fetch_sub(1, Ordering::Relaxed);
        let (variant, model) = (VariantId(number), ModelId(number));
        let load = LoadSpec {
            variant,
            model,
            artefact,
            settings: settings.clone(),
            lanes: 1,
            memory_limit: None,
            shown: false,
            expect: Io::needed(settings.engine, spec.tensors(task), spec.longest()),
        };
        let loaded = self.engine.load(load).await;
        let loaded = loaded.map_err(|source| Error::Engine { variant: name.to_owned(), source })?;
        let adapter = match Adapter::prepared(spec, task, preparation, &loaded.inputs, &loaded.outputs) {
            Ok(adapter) => adapter,
            Err(source) => {
                // It cannot be in use, so only the reason above is worth telling.
                let _ = self.engine.unload(variant).await;
                return Err(unfit(source));
            }
        };
        let (max_batch, strings) = (settings.max_batch, settings.strings());
        Ok(Bench { profiler: self, name, variant, task, spec, adapter, max_batch, strings, loaded, declared })
    }
}

fn declared(value: Accuracy, device_class: &str) -> AccuracyMeasure {
    AccuracyMeasure {
        value,
        low: value,
        high: value,
        samples: 0,
        set: String::new(),
        provenance: Provenance::Declared,
        device_class: device_class.to_owned(),
        command: String::new(),
    }
}

/// A loaded variant with what is needed to use it.
struct Bench<'a> {
    profiler: &'a Profiler,
    name: &'a str,
    variant: VariantId,
    task: &'a Task,
    spec: &'a AdapterSpec,
    adapter: Adapter,
    max_batch: u32,
    /// The room for one item's strings.
    strings: modelless_types::Bytes,
    loaded: Loaded,
    declared: Option<Accuracy>,
}

/// Some inputs, raw and decoded.
struct Sample(Vec<(Bytes, Decoded)>);

impl Bench<'_> {
    async fn profile(&self, set: Option<&LabelledSet>, report: Report<'_>) -> Result<Profile, Error> {
        let sample = self.sample(set)?;
        let decode = self.decode_time(set, &sample)?;
        let prepare = self.prepare_time(&sample)?;
        let latency = self.latency(&sample, &mut *report).await?;
        let device_class = &self.profiler.device_class;
        let accuracy = match (set, self.declared) {
            (Some(set), _) => self.accuracy(set, report).await?,
            (None, Some(value)) => declared(value, device_class),
            (None, None) => return Err(Error::NoAccuracy(self.name.to_owned())),
        };
        Ok(Profile {
            device_class: device_class.clone(),
            latency,
            latency_provenance: Provenance::Measured,
            decode,
            prepare,
            memory: self.loaded.memory + self.loaded.slots,
            // Last of all, when the largest batches have run.
            peak: self.profiler.engine.peak(self.variant),
            load_time: self.loaded.load_time,
            accuracy,
            also: Vec::new(),
        })
    }

    /// Unloads it, whatever came of measuring it.
    async fn close<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        let unloaded = self.profiler.engine.unload(self.variant).await;
        let value = result?;
        unloaded.map_err(|source| Error::Engine { variant: self.name.to_owned(), source })?;
        Ok(value)
    }

    /// The first items of the set, or a stand-in of a plausible size.
    fn sample(&self, set: Option<&LabelledSet>) -> Result<Sample, Error> {
        let raw: Vec<Bytes> = match set {
            Some(set) => {
                (0..set.len().min(STAGE_SAMPLES)).map(|item| set.input(item)).collect::<Result<_, _>>()?
            }
            None => vec![self.stand_in(); STAGE_SAMPLES],
        };
        let decoded = raw.into_iter().enumerate().map(|(item, raw)| {
            let decoded = self.decode(set, item, &raw)?;
            Ok((raw, decoded))
        });
        decoded.collect::<Result<_, _>>().map(Sample)
    }

    fn decode(&self, set: Option<&LabelledSet>, item: usize, raw: &Bytes) -> Result<Decoded, Error> {
        let set = || set.map_or("a stand-in", LabelledSet::name).to_owned();
        self.adapter.preparation().decode(Body::Raw(raw), &Limits::default()).map_err(|source| Error::Item {
            item,
            set: set(),
            source,
        })
    }

    /// What a query might bring, where no labelled set shows it.
    fn stand_in(&self) -> Bytes {
        match self.spec {
            AdapterSpec::ImageClassification(image) => {
                // Twice the size, so that resizing is part of what is timed; no even colour, which compresses to nothing.
                let (width, height) = (2 * image.width.min(2_048), 2 * image.height.min(2_048));
                let value = |x: u32, y: u32| x.wrapping_mul(7) ^ y.wrapping_mul(13);
                let pixels = (0..height).flat_map(|y| (0..width).map(move |x| value(x, y)));
                let pixels: Vec<u8> =
                    pixels.flat_map(|v| [v, v / 2, v / 3].map(|v| v.to_le_bytes()[0])).collect();
                png(&pixels, width, height, image::ExtendedColorType::Rgb8)
            }
            AdapterSpec::TextClassification(_) | AdapterSpec::FeatureExtraction(_) => {
                Bytes::from_static(STAND_IN.as_bytes())
            }
            AdapterSpec::Tensor(_) => {
                let mut bytes = Vec::new();
                for input in &self.task.inputs {
                    match input.item_bytes() {
                        Some(item) => bytes.resize(bytes.len() + item, 0),
                        None => self.stand_in_text(input, &mut bytes),
                    }
                }
                bytes.into()
            }
        }
    }

    /// Strings of a sentence's length, or as long as fit.
    fn stand_in_text(&self, input: &TensorSpec, into: &mut Vec<u8>) {
        let count = input.elements().unwrap_or(0).max(1);
        let room = usize::try_from(self.strings.0).unwrap_or(usize::MAX) / count;
        let text = &STAND_IN[..STAND_IN.len().min(room.saturating_sub(strings::LENGTH))];
        for _ in 0..count {
            strings::push(text.as_bytes(), into).expect("a sentence is short; this is a bug");
        }
    }

    fn decode_time(&self, set: Option<&LabelledSet>, sample: &Sample) -> Result<StageTime, Error> {
        let mut times = Vec::with_capacity(sample.0.len());
        for (item, (raw, _)) in sample.0.iter().enumerate() {
            let start = Instant::now();
            let decoded = self.decode(set, item, raw)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            drop(decoded);
        }
        Ok(Summary::of(times).map(Summary::stage).unwrap_or_default())
    }

    fn prepare_time(&self, sample: &Sample) -> Result<StageTime, Error> {
        let mut times = Vec::with_capacity(sample.0.len());
        let mut scratch = Scratch::default();
        let mut rows = self.rows();
        for (_, decoded) in &sample.0 {
            self.cut(&mut rows, self.adapter.length(decoded));
            let start = Instant::now();
            self.prepare(decoded, &mut rows, &mut scratch)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Summary::of(times).map(Summary::stage).unwrap_or_default())
    }

    fn rows(&self) -> Vec<Vec<u8>> {
        self.loaded.inputs.iter().map(|input| vec![0; input.room(self.strings).unwrap_or(0)]).collect()
    }

    /// Rows of a batch that is so long, where batches may be shorter than the longest.
    fn cut(&self, rows: &mut [Vec<u8>], length: Option<u32>) {
        let Some(length) = length.filter(|_| self.loaded.stretches) else { return };
        for (input, row) in self.loaded.inputs.iter().zip(rows) {
            let longest = input.shape.first().copied().unwrap_or(1).max(1);
            let bytes = input.item_bytes().unwrap_or(0) / longest as usize * length as usize;
            row.resize(bytes, 0);
        }
    }

    fn prepare(&self, decoded: &Decoded, rows: &mut [Vec<u8>], scratch: &mut Scratch) -> Result<(), Error> {
        for (input, row) in rows.iter_mut().enumerate() {
            self.adapter
                .prepare(decoded, input, row, scratch)
                .map_err(|source| Error::Prepare { variant: self.name.to_owned(), source })?;
        }
        Ok(())
    }

    async fn latency(&self, sample: &Sample, report: Report<'_>) -> Result<Vec<BatchPoint>, Error> {
        let mut rows = self.rows();
        // Where lengths differ, a long one of them: a batch is as long as the longest in it.
        let mut sample: Vec<_> = sample.0.iter().map(|(_, decoded)| decoded).collect();
        sample.sort_by_key(|decoded| self.adapter.length(decoded));
        let long = sample.len().saturating_sub(1) * LONG_OF_100 / 100;
        let first = if self.loaded.stretches { long } else { 0 };
        let mut length = None;
        if let Some(decoded) = sample.get(first) {
            length = self.adapter.length(decoded).filter(|_| self.loaded.stretches);
            self.cut(&mut rows, length);
            self.prepare(decoded, &mut rows, &mut Scratch::default())?;
        }
        let config = &self.profiler.config;
        let limits = (config.effort, self.limit());
        let item = Item { rows: &rows, length };
        let sizes = sizes(&config.batches, self.max_batch, self.loaded.fixed_batch);
        let mut times = vec![Vec::new(); sizes.len()];
        for _ in 0..config.effort.rounds.max(1) {
            for (batch, times) in sizes.iter().copied().zip(&mut times) {
                report(self.name, Progress::Latency { batch });
                let round = latency::round(&*self.profiler.engine, self.variant, batch, item, limits).await;
                times.push(round.map_err(|failure| self.failed(batch, failure))?);
            }
        }
        let point =
            |(batch, times)| latency::point(batch, times).expect("every round has times; this is a bug");
        Ok(sizes.into_iter().zip(times).map(point).collect())
    }

    async fn accuracy(&self, set: &LabelledSet, report: Report<'_>) -> Result<AccuracyMeasure, Error> {
        let engine = &*self.profiler.engine;
        let size = self.profiler.config.accuracy_batch.clamp(1, self.max_batch);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut scratch = Scratch::default();
        let (mut tally, mut nearest) = (Tally::default(), Nearest::default());
        for start in (0..set.len()).step_by(size) {
            report(self.name, Progress::Accuracy { done: start, of: set.len() });
            let items = start..set.len().min(start + size);
            let batch = u32::try_from(items.len()).unwrap_or(u32::MAX);
            let slot = engine.slot(self.variant, 0, batch);
            let mut slot = slot.map_err(|error| self.failed(batch, Failure::Engine(error)))?;
            let decoded = items.clone().map(|item| self.decode(Some(set), item, &set.input(item)?));
            let decoded = decoded.collect::<Result<Vec<_>, _>>()?;
            if let Some(longest) = decoded.iter().filter_map(|decoded| self.adapter.length(decoded)).max() {
                slot.stretch(longest);
            }
            for (row, decoded) in (0..batch).zip(&decoded) {
                for input in 0..self.loaded.inputs.len() {
                    self.adapter
                        .prepare(decoded, input, slot.item_mut(input, row), &mut scratch)
                        .map_err(|source| Error::Prepare { variant: self.name.to_owned(), source })?;
                }
            }
            let ran = latency::run(engine, slot, self.limit()).await;
            let (outputs, _) = ran.map_err(|failure| self.failed(batch, failure))?;
            for ((row, decoded), item) in (0..batch).zip(&decoded).zip(items) {
                let rows: Vec<&[u8]> =
                    (0..self.loaded.outputs.len()).map(|output| outputs.item(output, row)).collect();
                let unusable = |source| Error::Output { variant: self.name.to_owned(), source };
                if self.spec.dimension().is_some() {
                    let made = self.adapter.finish(Some(decoded), &rows, OutputParams::default());
                    if let Output::Vector(vector) = made.map_err(unusable)? {
                        nearest.add(vector, set.class(item));
                    }
                    continue;
                }
                let class = self.adapter.class(&rows).map_err(unusable)?;
                tally.count(class == set.class(item));
            }
        }
        if self.spec.dimension().is_some() {
            let compared = tokio::task::spawn_blocking(move || nearest.tally()).await;
            tally = compared.map_err(|error| Error::Cancelled(error.to_string()))?;
        }
        report(self.name, Progress::Accuracy { done: set.len(), of: set.len() });
        let Profiler { device_class, command, .. } = self.profiler;
        Ok(tally.measure(set.name(), device_class, command).expect("a set is never empty; this is a bug"))
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.profiler.config.batch_limit_ms)
    }

    fn failed(&self, batch: u32, failure: Failure) -> Error {
        let variant = self.name.to_owned();
        match failure {
            Failure::Engine(source) => Error::Engine { variant, source },
            Failure::Batch(source) => Error::Batch { variant, batch, source },
        }
    }
}

/// The batch sizes to time, rising. What only runs full costs the same at every size.
fn sizes(wanted: &[u32], max_batch: u32, fixed: Option<u32>) -> Vec<u32> {
    let largest = fixed.map_or(max_batch, |fixed| fixed.min(max_batch)).max(1);
    let mut sizes: Vec<u32> = match fixed {
        Some(_) => vec![1],
        None => wanted.iter().copied().filter(|size| (1..largest).contains(size)).collect(),
    };
    sizes.push(largest);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_what_the_variant_takes() {
        let wanted = Config::default().batches;
        assert_eq!(sizes(&wanted, 32, None), [1, 2, 4, 8, 16, 32]);
        assert_eq!(sizes(&wanted, 6, None), [1, 2, 4, 6]);
        assert_eq!(sizes(&wanted, 64, None), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(sizes(&wanted, 32, Some(8)), [1, 8]);
        assert_eq!(sizes(&wanted, 1, Some(1)), [1]);
        assert_eq!(sizes(&[], 4, None), [4]);
    }
}
