//! What a variant answers to a set, as numbers: for comparing two that should answer alike. Through the adapter and a runner, as
//! everything is measured.

use crate::bench::Bench;
use crate::error::Error;
use crate::profile::{Cold, Profiler, Progress, Report, Subject};
use crate::set::LabelledSet;
use modelless_adapter::{AdapterSpec, Output, OutputParams, Scratch};
use modelless_types::{DType, TensorSpec};
use std::time::Duration;
use tokio::time::Instant;

/// Items of a batch.
const BATCH: usize = 32;
/// What two answer is held in memory: so many numbers each at most. And so long one may take: files of a generator are not
/// trusted to be models that answer at all.
const NUMBERS: usize = 32 << 20;
const WITHIN: Duration = Duration::from_mins(10);

impl Profiler {
    /// A row of numbers for each item: the vector, or what the output that counts holds.
    pub async fn answers(
        &self,
        subject: Subject<'_>,
        set: &LabelledSet,
        report: Report<'_>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let largest = usize::try_from(subject.settings.max_batch).unwrap_or(BATCH);
        let bench = self.open(subject, Cold::No, &mut *report).await?;
        let result = bench.answers(set, largest.clamp(1, BATCH), report).await;
        bench.close(result).await
    }
}

impl Bench<'_> {
    async fn answers(
        &self,
        set: &LabelledSet,
        size: usize,
        report: Report<'_>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let unusable = |source| Error::Output { variant: self.source.name.to_owned(), source };
        let outputs = &self.loaded.outputs;
        let named = self.spec.output().and_then(|name| outputs.iter().position(|output| output.name == name));
        let counts = named.unwrap_or(0);
        let (mut scratch, mut answers) = (Scratch::default(), Vec::with_capacity(set.len()));
        let items: Vec<usize> = (0..set.len()).collect();
        let (start, mut numbers_held) = (Instant::now(), 0);
        for items in items.chunks(size) {
            if numbers_held > NUMBERS || start.elapsed() > WITHIN {
                let why = format!(
                    "its answers to {} of {} items are {numbers_held} numbers and took {} s; at most {NUMBERS} and {} s are \
                     waited for",
                    answers.len(),
                    set.len(),
                    start.elapsed().as_secs(),
                    WITHIN.as_secs()
                );
                return Err(Error::TooMuch { variant: self.source.name.to_owned(), why });
            }
            self.profiler.calm(self.source.name, &mut *report).await;
            report(self.source.name, Progress::Accuracy { done: answers.len(), of: set.len() });
            let (made, decoded) = self.answered(set, items, &mut scratch).await?;
            for (row, decoded) in (0..).zip(&decoded) {
                let rows: Vec<&[u8]> = (0..outputs.len()).map(|output| made.item(output, row)).collect();
                if let AdapterSpec::FeatureExtraction(_) = self.spec {
                    let made = self.adapter.finish(Some(decoded), &rows, OutputParams::default());
                    if let Output::Vector(vector) = made.map_err(unusable)? {
                        numbers_held += vector.len();
                        answers.push(vector);
                        continue;
                    }
                }
                let row = numbers(&outputs[counts], rows[counts]);
                numbers_held += row.len();
                answers.push(row);
            }
        }
        Ok(answers)
    }
}

/// Nothing of what is no row of numbers.
#[expect(clippy::cast_possible_truncation, reason = "they are compared, not kept")]
#[expect(clippy::cast_precision_loss, reason = "they are compared, not kept")]
fn numbers(spec: &TensorSpec, row: &[u8]) -> Vec<f32> {
    match spec.dtype {
        DType::Fp32 => row.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        DType::Fp64 => row.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
        DType::Int32 => row.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as f32).collect(),
        DType::Int64 => row.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as f32).collect(),
        DType::Uint8 | DType::Bool => row.iter().map(|byte| f32::from(*byte)).collect(),
        DType::Int8 | DType::Fp16 | DType::Bytes => Vec::new(),
    }
}
