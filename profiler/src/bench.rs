//! One variant in a runner, measured from its first batch to the last labelled item.

use crate::accuracy::{Nearest, Tally};
use crate::error::Error;
use crate::latency::{self, Failure, How, Item};
use crate::minute::Watched;
use crate::points::{self, All};
use crate::profile::{Profiler, Progress, Report, Source, memory};
use crate::register::blocking;
use crate::set::{LabelledSet, png};
use crate::stats::Summary;
use bytes::Bytes;
use modelless_adapter::{Adapter, AdapterSpec, Body, Decoded, Limits, Output, OutputParams, Scratch};
use modelless_decision::search::{self, Bounds};
use modelless_engine::{Loaded, Outputs};
use modelless_types::tensor::strings;
use modelless_types::{
    Accuracy, AccuracyMeasure, Detail, Largest, Micros, Profile, Provenance, StageTime, Task, TensorSpec,
};
use std::time::Duration;
use tokio::time::Instant;

/// Inputs that decoding and preparing are timed with, and how often at most they are gone through.
const STAGE_SAMPLES: usize = 50;
/// Batches are timed with a text that is longer than so many of a hundred.
const LONG_OF_100: usize = 80;
/// What a string of a query might be, where no labelled set shows it.
const STAND_IN: &str = "What a query might say, if nobody knows better: a sentence of the usual length.";
/// Of a budget: times take so many parts of a hundred before accuracy has its turn, and all of it ends by the second, so that
/// what takes a little longer than expected and unloading fit in.
const TIMES_UNTIL: u32 = 50;
const ALL_UNTIL: u32 = 92;
/// One series takes at most this part of what is left of a budget.
const SERIES_SHARE: u32 = 8;

/// A loaded variant with what is needed to use it.
pub(crate) struct Bench<'a> {
    pub(crate) profiler: &'a Profiler,
    pub(crate) source: Source<'a>,
    pub(crate) task: &'a Task,
    pub(crate) spec: &'a AdapterSpec,
    pub(crate) adapter: Adapter,
    pub(crate) loaded: Loaded,
    pub(crate) load_cold: Option<Micros>,
    pub(crate) declared: Option<Accuracy>,
    /// When its budget is over.
    pub(crate) until: Option<Instant>,
    /// For how long its profiler had waited for others when it began: what it waits since is added to all times.
    pub(crate) paused: Duration,
}

/// Some inputs, raw and decoded.
struct Sample(Vec<(Bytes, Decoded)>);

/// What was timed so far.
#[derive(Default)]
struct Times {
    all: All,
    ended: Option<(u32, String)>,
    watched: Watched,
}

impl Bench<'_> {
    pub(crate) async fn profile(
        &mut self,
        set: Option<&LabelledSet>,
        report: Report<'_>,
    ) -> Result<Profile, Error> {
        let start = Instant::now();
        let part = |percent: u32| self.until.map(|until| start + (until - start) * percent / 100);
        let (times_until, all_until) = (part(TIMES_UNTIL), part(ALL_UNTIL));
        let sample = self.sample(set)?;
        let decode = self.decode_time(set, &sample)?;
        let prepare = self.prepare_time(&sample)?;
        let device_class = self.profiler.device_class.clone();
        let mut times = Times::default();
        let doubts = match set {
            Some(_) => Vec::new(),
            None => self.unlabelled(&sample).await?,
        };
        let first = if set.is_some() { times_until } else { all_until };
        self.time(&sample, &mut times, first, &mut *report).await?;
        let accuracy = match (set, self.declared) {
            (Some(set), _) => self.accuracy_until(set, (all_until, &times), &mut *report).await?,
            (None, Some(value)) => declared(value, &device_class),
            (None, None) => return Err(Error::NoAccuracy(self.source.name.to_owned())),
        };
        // What accuracy did not need.
        if set.is_some() && self.until.is_some() {
            self.time(&sample, &mut times, all_until, report).await?;
        }
        let partly = set.is_some_and(|set| accuracy.samples < set.len() as u64);
        let coarse = partly || !search::is_complete(&points::seen(&times.all), &self.bounds(&times, None));
        let (latency, details) = points::points(&times.all);
        let largest = latency.last().map_or(1, |point| point.batch);
        Ok(Profile {
            device_class,
            latency,
            latency_provenance: Provenance::Measured,
            decode,
            prepare,
            memory: memory(&self.loaded),
            // Last of all, when the largest batches have run.
            peak: self.profiler.engine.peak(self.source.variant),
            load_time: self.loaded.load_time,
            accuracy,
            also: Vec::new(),
            detail: Detail {
                coarse,
                part_of_set: partly,
                doubts,
                tail: true,
                load_cold: self.load_cold,
                largest: times.ended.map(|(_, why)| Largest { batch: largest, why }),
                length: self.adapter.length(&self.usual(&sample).1).filter(|_| self.loaded.stretches),
                points: details,
                unsteady: times.watched.judge(&self.profiler.host, &times.all),
            },
        })
    }

    /// Unloads it, whatever came of measuring it.
    pub(crate) async fn close<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        let unloaded = self.profiler.unload(&self.source).await;
        let value = result?;
        unloaded?;
        Ok(value)
    }

    /// Where no labelled item is ever compared, one answer is looked at all the same: a model that gives no usable one to a
    /// plausible picture or text would fail every query. Of tensors nobody knows what is plausible: of those it is only told.
    async fn unlabelled(&self, sample: &Sample) -> Result<Vec<String>, Error> {
        let decoded = &self.usual(sample).1;
        let outputs = self.outputs_of(&[decoded], &mut Scratch::default()).await?;
        let rows: Vec<&[u8]> = (0..self.loaded.outputs.len()).map(|output| outputs.item(output, 0)).collect();
        let unusable = |source| Error::Output { variant: self.source.name.to_owned(), source };
        let made = self.adapter.finish(Some(decoded), &rows, OutputParams::default()).map_err(unusable)?;
        match made.write_json(&self.task.labels, &mut Vec::new()) {
            Ok(()) => Ok(Vec::new()),
            Err(error) if matches!(self.spec, AdapterSpec::Tensor(_)) => Ok(vec![format!(
                "what it answers to zeros cannot be told as JSON: {error}; no labelled set shows what it answers otherwise"
            )]),
            Err(error) => Err(unusable(error)),
        }
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
        let room = usize::try_from(self.source.settings.strings().0).unwrap_or(usize::MAX) / count;
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
        let strings = self.source.settings.strings();
        self.loaded.inputs.iter().map(|input| vec![0; input.room(strings).unwrap_or(0)]).collect()
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
                .map_err(|source| Error::Prepare { variant: self.source.name.to_owned(), source })?;
        }
        Ok(())
    }

    fn bounds(&self, times: &Times, until: Option<Instant>) -> Bounds {
        let left = |until: Instant| self.left(until).as_secs_f64() * 1e6;
        Bounds {
            max_batch: self.source.settings.max_batch,
            fixed: self.loaded.fixed_batch,
            ended: times.ended.as_ref().map(|(batch, _)| *batch),
            left_us: until.map(left),
        }
    }

    /// Times batch sizes as the search wants them, until it wants no more or the time is over. At least one is timed.
    async fn time(
        &mut self,
        sample: &Sample,
        times: &mut Times,
        until: Option<Instant>,
        report: Report<'_>,
    ) -> Result<(), Error> {
        let (raw, decoded) = self.usual(sample);
        let (rows, length) = self.item(decoded)?;
        let item = Item { raw, adapter: &self.adapter, rows: &rows, length };
        loop {
            let mut bounds = self.bounds(times, until);
            if times.all.is_empty() {
                bounds.left_us = None;
            }
            let Some((batch, why)) = search::next(&points::seen(&times.all), &bounds) else {
                times.watched.look_now(&self.profiler.host, &self.profiler.disturbance());
                return Ok(());
            };
            let known = times.all.get(&batch).map_or(0, |timed| timed.series.len());
            let series = u32::try_from(known + 1).unwrap_or(u32::MAX);
            self.profiler.calm(self.source.name, &mut *report).await;
            report(self.source.name, Progress::Latency { batch, series, why });
            let disturbed = self.profiler.disturbance();
            times.watched.look(&self.profiler.host, &disturbed);
            let mut effort = self.profiler.config.effort;
            if known > 0 {
                effort.warm_up = 1;
            }
            if let Some(until) = until {
                let share = self.left(until) / SERIES_SHARE;
                let share = u64::try_from(share.as_millis()).unwrap_or(u64::MAX);
                effort.at_most_ms = effort.at_most_ms.min(share);
                effort.warm_up = 1;
            }
            let how = How { effort, limit: self.limit(), disturbed: &disturbed };
            let engine = &*self.profiler.engine;
            match latency::series(engine, self.source.variant, batch, item, how).await {
                Ok(Some(took)) => {
                    let largest = times.all.keys().next_back().is_none_or(|largest| *largest < batch);
                    let timed = times.all.entry(batch).or_default();
                    timed.series.push(took);
                    if largest {
                        timed.peak = engine.peak(self.source.variant);
                    }
                }
                Ok(None) => {}
                Err(failure) => match failure.is_size().filter(|_| batch > 1) {
                    Some(gone) => {
                        times.ended = Some((batch, format!("a batch of {batch}: {failure}")));
                        times.all.retain(|known, _| *known < batch);
                        if gone {
                            report(self.source.name, Progress::Loading);
                            self.profiler.load(&self.source).await?;
                        }
                    }
                    None => return Err(self.failed(batch, failure)),
                },
            }
        }
    }

    /// What batches are filled with: where lengths differ, a long one of the sample, as a batch is as long as the longest
    /// in it.
    fn usual<'a>(&self, sample: &'a Sample) -> &'a (Bytes, Decoded) {
        let mut sample: Vec<_> = sample.0.iter().collect();
        sample.sort_by_key(|(_, decoded)| self.adapter.length(decoded));
        let long = sample.len().saturating_sub(1) * LONG_OF_100 / 100;
        sample.get(if self.loaded.stretches { long } else { 0 }).expect("a set is never empty; this is a bug")
    }

    /// Its rows, and how long it is where lengths differ.
    fn item(&self, decoded: &Decoded) -> Result<(Vec<Vec<u8>>, Option<u32>), Error> {
        let mut rows = self.rows();
        let length = self.adapter.length(decoded).filter(|_| self.loaded.stretches);
        self.cut(&mut rows, length);
        self.prepare(decoded, &mut rows, &mut Scratch::default())?;
        Ok((rows, length))
    }

    pub(crate) async fn accuracy(
        &self,
        set: &LabelledSet,
        report: Report<'_>,
    ) -> Result<AccuracyMeasure, Error> {
        self.accuracy_until(set, (self.until, &Times::default()), report).await
    }

    /// The accuracy on as much of the set as there is time for, and on one batch at least.
    async fn accuracy_until(
        &self,
        set: &LabelledSet,
        (until, times): (Option<Instant>, &Times),
        report: Report<'_>,
    ) -> Result<AccuracyMeasure, Error> {
        // No batch that was not seen to end in time: one that takes too long or too much memory would cost the whole profile.
        let most = times.all.last_key_value().map_or(self.source.settings.max_batch, |(largest, _)| *largest);
        let most = most.min(self.source.settings.max_batch).max(1);
        let size = self.profiler.config.accuracy_batch.clamp(1, most) as usize;
        let mut scratch = Scratch::default();
        let (mut tally, mut nearest) = (Tally::default(), Nearest::default());
        let order = order(set.len(), until.is_some());
        let mut compared = 0;
        for items in order.chunks(size) {
            if compared > 0 && until.is_some_and(|until| self.left(until).is_zero()) {
                break;
            }
            self.profiler.calm(self.source.name, &mut *report).await;
            report(self.source.name, Progress::Accuracy { done: compared, of: set.len() });
            let vectors = self.compare(set, items, &mut scratch, &mut tally).await?;
            if !vectors.is_empty() {
                // Each is compared with all before it, which is much work once they are many.
                nearest = blocking(move || {
                    for (vector, class) in vectors {
                        nearest.add(vector, class);
                    }
                    Ok(nearest)
                })
                .await?;
            }
            compared += items.len();
        }
        if self.spec.dimension().is_some() {
            tally = nearest.tally();
        }
        report(self.source.name, Progress::Accuracy { done: compared, of: set.len() });
        let Profiler { device_class, command, .. } = self.profiler;
        let name = if compared < set.len() {
            format!("{}: {compared} of its {}", set.name(), set.len())
        } else {
            set.name().to_owned()
        };
        Ok(tally.measure(&name, device_class, command).expect("a set is never empty; this is a bug"))
    }

    /// What comes of one batch of a set's items, and the items.
    pub(crate) async fn answered(
        &self,
        set: &LabelledSet,
        items: &[usize],
        scratch: &mut Scratch,
    ) -> Result<(Outputs, Vec<Decoded>), Error> {
        let decoded = items.iter().map(|item| self.decode(Some(set), *item, &set.input(*item)?));
        let decoded = decoded.collect::<Result<Vec<_>, _>>()?;
        let outputs = self.outputs_of(&decoded.iter().collect::<Vec<_>>(), scratch).await?;
        Ok((outputs, decoded))
    }

    /// What comes of one batch.
    async fn outputs_of(&self, decoded: &[&Decoded], scratch: &mut Scratch) -> Result<Outputs, Error> {
        let engine = &*self.profiler.engine;
        let batch = u32::try_from(decoded.len()).unwrap_or(u32::MAX);
        let slot = engine.slot(self.source.variant, 0, batch);
        let mut slot = slot.map_err(|error| self.failed(batch, Failure::Engine(error)))?;
        if let Some(longest) = decoded.iter().filter_map(|decoded| self.adapter.length(decoded)).max() {
            slot.stretch(longest);
        }
        for (row, decoded) in (0..batch).zip(decoded) {
            for input in 0..self.loaded.inputs.len() {
                self.adapter
                    .prepare(decoded, input, slot.item_mut(input, row), scratch)
                    .map_err(|source| Error::Prepare { variant: self.source.name.to_owned(), source })?;
            }
        }
        let ran = latency::run(engine, slot, self.limit()).await;
        Ok(ran.map_err(|failure| self.failed(batch, failure))?.0)
    }

    /// One batch of labelled items: counts right answers, and gives the vectors of those that have one.
    async fn compare(
        &self,
        set: &LabelledSet,
        items: &[usize],
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) -> Result<Vec<(Vec<f32>, usize)>, Error> {
        let (outputs, decoded) = self.answered(set, items, scratch).await?;
        let batch = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let mut vectors = Vec::new();
        for ((row, decoded), item) in (0..batch).zip(&decoded).zip(items) {
            let rows: Vec<&[u8]> =
                (0..self.loaded.outputs.len()).map(|output| outputs.item(output, row)).collect();
            let unusable = |source| Error::Output { variant: self.source.name.to_owned(), source };
            if self.spec.dimension().is_some() {
                let made = self.adapter.finish(Some(decoded), &rows, OutputParams::default());
                if let Output::Vector(vector) = made.map_err(unusable)? {
                    vectors.push((vector, set.class(*item)));
                }
                continue;
            }
            let class = self.adapter.class(&rows).map_err(unusable)?;
            tally.count(class == set.class(*item));
        }
        Ok(vectors)
    }

    /// How long it is until a moment, which pauses put off.
    fn left(&self, until: Instant) -> Duration {
        let paused = self.profiler.paused().saturating_sub(self.paused);
        (until + paused).saturating_duration_since(Instant::now())
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.profiler.config.batch_limit_ms)
    }

    fn failed(&self, batch: u32, failure: Failure) -> Error {
        let variant = self.source.name.to_owned();
        match failure {
            Failure::Engine(why) => Error::Engine { variant, why },
            Failure::Batch(source) => Error::Batch { variant, batch, source },
        }
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

/// In which order to go through a set. Where time may end early, from all over it: sets are often sorted by label.
fn order(items: usize, scattered: bool) -> Vec<usize> {
    if !scattered {
        return (0..items).collect();
    }
    // A step near the golden section of the whole, without a common divisor, comes to every item once.
    let divisor = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (items * 618 / 1_000).max(1);
    let step = (golden..=items).find(|step| divisor(*step, items) == 1).unwrap_or(1);
    (0..items).map(|at| at * step % items).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_set_comes_from_all_over_it_and_the_whole_has_every_item_once() {
        for items in [1, 2, 3, 10, 997, 2_000] {
            let mut all = order(items, true);
            all.sort_unstable();
            assert_eq!(all, (0..items).collect::<Vec<_>>());
        }
        // Ten classes in order, two hundred items each: a hundred items hold about ten of each.
        let part = order(2_000, true);
        let mut of_class = [0; 10];
        for item in &part[..100] {
            of_class[item / 200] += 1;
        }
        assert!(of_class.iter().all(|count| (7..=13).contains(count)), "{of_class:?}");
        assert_eq!(order(3, false), [0, 1, 2]);
    }
}
