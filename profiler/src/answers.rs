//! What a variant answers to a set, as numbers: for comparing two that should answer alike. Through the adapter and a runner, as
//! everything is measured.

use crate::bench::Bench;
use crate::error::Error;
use crate::profile::{Cold, Profiler, Progress, Report, Subject};
use crate::set::LabelledSet;
use modelless_adapter::{AdapterSpec, Output, OutputParams, Scratch};
use modelless_types::{DType, TensorSpec};

/// Items of a batch.
const BATCH: usize = 32;

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
        for items in items.chunks(size) {
            self.profiler.calm(self.source.name, &mut *report).await;
            report(self.source.name, Progress::Accuracy { done: answers.len(), of: set.len() });
            let (made, decoded) = self.answered(set, items, &mut scratch).await?;
            for (row, decoded) in (0..).zip(&decoded) {
                let rows: Vec<&[u8]> = (0..outputs.len()).map(|output| made.item(output, row)).collect();
                if let AdapterSpec::FeatureExtraction(_) = self.spec {
                    let made = self.adapter.finish(Some(decoded), &rows, OutputParams::default());
                    if let Output::Vector(vector) = made.map_err(unusable)? {
                        answers.push(vector);
                        continue;
                    }
                }
                answers.push(numbers(&outputs[counts], rows[counts]));
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
