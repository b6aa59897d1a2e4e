//! What is written down of a run while it runs: counts by stream, and how things were over time.

use crate::outcome::{StreamOutcome, Tally, ratio};
use crate::scenario::Scenario;
use crate::series::{Bucket, Series};
use modelless_types::{Accuracy, Micros, Time, VariantId};
use std::collections::BTreeMap;

/// Into so many parts a run is cut.
const PARTS: u64 = 120;
/// None is shorter.
const SHORTEST: Micros = Micros::from_millis(10);

/// A run's books.
pub(crate) struct Record {
    tallies: Vec<Tally>,
    names: Vec<String>,
    start: Time,
    variants: BTreeMap<VariantId, usize>,
    series: Series,
}

/// Which query: of which stream, and when it came.
pub(crate) type Whose = (usize, Time);

impl Record {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let every = Micros((scenario.duration.0 / PARTS).max(SHORTEST.0));
        let (mut ids, mut variants) = (BTreeMap::new(), Vec::new());
        for (_, v) in scenario.variants() {
            ids.insert(v.id, variants.len());
            variants.push(v.name.clone());
        }
        let bucket = Bucket {
            answers: vec![0; variants.len()],
            resident: vec![0; variants.len()],
            ..Bucket::default()
        };
        let parts = usize::try_from(scenario.duration.0.div_ceil(every.0)).unwrap_or(1).max(1);
        Self {
            tallies: vec![Tally::default(); scenario.streams.len()],
            names: scenario.streams.iter().map(|s| s.name.clone()).collect(),
            start: Time::ZERO + scenario.start,
            variants: ids,
            series: Series { every, variants, buckets: vec![bucket; parts] },
        }
    }

    /// Between two looks at what is resident.
    pub(crate) fn every(&self) -> Micros {
        self.series.every
    }

    fn bucket(&mut self, at: Time) -> &mut Bucket {
        let since = at - self.start;
        let last = self.series.buckets.len() - 1;
        let ix = usize::try_from(since.0 / self.series.every.0).unwrap_or(last).min(last);
        &mut self.series.buckets[ix]
    }

    pub(crate) fn offered(&mut self, stream: usize, now: Time) {
        self.tallies[stream].counts.offered += 1;
        self.bucket(now).offered += 1;
    }

    pub(crate) fn answered(
        &mut self,
        (stream, arrived): Whose,
        now: Time,
        in_time: bool,
        accuracy: Accuracy,
        (id, name): (VariantId, &str),
    ) {
        self.tallies[stream].answered(now - arrived, in_time, accuracy, name);
        let variant = self.variants.get(&id).copied();
        let bucket = self.bucket(arrived);
        if in_time {
            bucket.in_time += 1;
            bucket.accuracy_ppm += u64::from(accuracy.ppm());
        } else {
            bucket.late += 1;
        }
        if let Some(variant) = variant {
            bucket.answers[variant] += 1;
        }
    }

    pub(crate) fn refused(&mut self, (stream, arrived): Whose, name: &str) {
        self.tallies[stream].refused(name);
        self.bucket(arrived).refused += 1;
    }

    pub(crate) fn cancelled(&mut self, (stream, _): Whose) {
        self.tallies[stream].counts.cancelled += 1;
    }

    pub(crate) fn lost(&mut self, (stream, arrived): Whose) {
        self.tallies[stream].counts.lost += 1;
        self.bucket(arrived).refused += 1;
    }

    /// How things are now: what is in memory, how many machines are up, which part of their lanes is busy.
    pub(crate) fn look(
        &mut self,
        now: Time,
        resident: impl Iterator<Item = VariantId>,
        machines: u32,
        (busy, lanes): (u64, u64),
    ) {
        if now < self.start {
            return;
        }
        let places: Vec<usize> = resident.filter_map(|id| self.variants.get(&id).copied()).collect();
        let bucket = self.bucket(now);
        bucket.resident.fill(0);
        for place in places {
            bucket.resident[place] += 1;
        }
        bucket.machines = machines;
        bucket.busy = ratio(busy, lanes);
    }

    /// Everything, each stream, and how it was over time.
    pub(crate) fn finish(self) -> (StreamOutcome, Vec<StreamOutcome>, Series) {
        let total = Tally::sum(&self.tallies).finish("all");
        let streams = self.tallies.into_iter().zip(&self.names).map(|(t, name)| t.finish(name));
        (total, streams.collect(), self.series)
    }
}
