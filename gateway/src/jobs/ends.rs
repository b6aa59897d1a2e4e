//! The ends of a job's inputs on their way to the store: written some at a time, again after a while where that failed, and never lost
//! for one of them that the store does not take.

use modelless_store::{Error, JOB_BODY_MAX, Job, JobEnd, JobOutput, Store};
use modelless_types::JobId;
use std::time::Duration;
use tokio::time::Instant;

/// They are written when there are so many, or after so long.
const WRITE: usize = 256;
const WRITE_AFTER: Duration = Duration::from_millis(200);
/// No more of one write's answers than this, but for one that is larger by itself.
const WRITE_BYTES: usize = 16 << 20;
/// So many that could not be written are enough: no more inputs are begun meanwhile.
const ENOUGH: usize = 4 * WRITE;
/// The same for the bytes of answers.
const ENOUGH_BYTES: usize = 4 * WRITE_BYTES;
/// After a write that failed none follows for so long.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Ends {
    waiting: Vec<JobOutput>,
    /// Of all that wait.
    bytes: usize,
    /// When those that wait are to be written, at the latest.
    at: Option<Instant>,
    /// The last write failed: not before that moment.
    failed: bool,
    /// The store did not take some of several: one at a time, to find which.
    one_by_one: bool,
}

impl Ends {
    pub(super) fn push(&mut self, now: Instant, mut output: JobOutput) {
        if let JobEnd::Answer { body, .. } = &output.end
            && body.len() > JOB_BODY_MAX
        {
            let message = format!(
                "its answer has {} bytes; at most {JOB_BODY_MAX} bytes of one answer are kept, so ask for less",
                body.len()
            );
            output.end = JobEnd::Failure { reason: "answer_too_large".to_owned(), message };
        }
        self.bytes += size(&output);
        self.waiting.push(output);
        self.at.get_or_insert(now + WRITE_AFTER);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether so many wait that no more inputs should be begun.
    pub(super) fn are_enough(&self) -> bool {
        self.waiting.len() >= ENOUGH || self.bytes >= ENOUGH_BYTES
    }

    /// When to write next.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Whether to write now; `idle` where there is nothing else to do.
    pub(super) fn are_due(&self, now: Instant, idle: bool) -> bool {
        let many = !self.failed && (idle || self.waiting.len() >= WRITE || self.bytes >= WRITE_BYTES);
        !self.waiting.is_empty() && (many || self.at.is_some_and(|at| at <= now))
    }

    /// Writes some of them. Gives the places of those that were, and the job as it is then.
    pub(super) async fn write(&mut self, store: &dyn Store, job: JobId) -> Option<(Vec<u32>, Job)> {
        let some = self.some();
        match store.offline().end_job_inputs(job, self.waiting[..some].to_vec()).await {
            Ok(job) => {
                (self.failed, self.one_by_one) = (false, self.one_by_one && some < self.waiting.len());
                let written: Vec<JobOutput> = self.waiting.drain(..some).collect();
                self.bytes -= written.iter().map(size).sum::<usize>();
                let written = written.into_iter().map(|output| output.at).collect();
                self.at = (!self.waiting.is_empty()).then(Instant::now);
                Some((written, job))
            }
            Err(Error::Invalid { .. }) if some > 1 => {
                self.one_by_one = true;
                self.at = Some(Instant::now());
                None
            }
            Err(error @ Error::Invalid { .. }) => {
                tracing::error!(%job, %error, "an output of a job cannot be kept; this is a bug");
                if let Some(output) = self.waiting.first_mut() {
                    let message = format!("its answer cannot be kept: {error}");
                    self.bytes -= size(output);
                    output.end = JobEnd::Failure { reason: "answer_not_kept".to_owned(), message };
                    self.bytes += size(output);
                }
                (self.failed, self.at) = (true, Some(Instant::now() + AGAIN));
                None
            }
            Err(error) => {
                tracing::warn!(%job, %error, "the ends of a job's inputs could not be written; it is tried again");
                (self.failed, self.at) = (true, Some(Instant::now() + AGAIN));
                None
            }
        }
    }

    /// How many go with one write.
    fn some(&self) -> usize {
        let most = if self.one_by_one { 1 } else { WRITE };
        let mut bytes = 0;
        let fits = self.waiting.iter().take(most).take_while(|output| {
            bytes += size(output);
            bytes <= WRITE_BYTES
        });
        fits.count().max(1).min(self.waiting.len())
    }
}

fn size(output: &JobOutput) -> usize {
    match &output.end {
        JobEnd::Answer { body, .. } => body.len(),
        JobEnd::Failure { message, .. } => message.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::{MemStore, UnixMicros};
    use modelless_types::{CostPer1k, Micros, VariantId};

    fn output(at: u32, bytes: usize) -> JobOutput {
        let (variant, variant_name) = (VariantId(1), "v".to_owned());
        let (device, cost) = (Micros(1), CostPer1k(1));
        let end = JobEnd::Answer { body: vec![b'1'; bytes], variant, variant_name, device, cost };
        JobOutput { at, name: at.to_string(), end, ended: UnixMicros(1) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_store_does_not_take_waits_for_it_and_keeps_others_from_beginning() {
        let (store, mut ends) = (MemStore::default(), Ends::default());
        for at in 0..4 * 256 {
            assert!(!ends.are_enough());
            ends.push(Instant::now(), output(at, 1));
        }
        assert!(ends.are_enough() && ends.are_due(Instant::now(), false));
        assert!(ends.write(&store, JobId(1)).await.is_none(), "there is no such job");
        assert!(!ends.are_due(Instant::now(), true), "not again at once, whoever asks");
        assert_eq!(ends.at(), Some(Instant::now() + AGAIN));
        tokio::time::advance(AGAIN).await;
        assert!(ends.are_due(Instant::now(), false) && ends.are_enough(), "none was lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_bounded_by_outputs_and_by_bytes() {
        let mut ends = Ends::default();
        for at in 0..300 {
            ends.push(Instant::now(), output(at, 1));
        }
        assert_eq!(ends.some(), WRITE);
        let mut ends = Ends::default();
        for at in 0..5 {
            ends.push(Instant::now(), output(at, WRITE_BYTES / 2));
        }
        assert_eq!(ends.some(), 2);
        let mut ends = Ends::default();
        ends.push(Instant::now(), output(0, WRITE_BYTES + 1));
        assert_eq!(ends.some(), 1, "however large");
        let mut ends = Ends::default();
        ends.push(Instant::now(), output(0, WRITE_BYTES - 1));
        assert!(!ends.are_due(Instant::now(), false));
        tokio::time::advance(WRITE_AFTER).await;
        assert!(ends.are_due(Instant::now(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn few_large_ones_are_enough_too() {
        let (store, mut ends) = (MemStore::default(), Ends::default());
        for at in 0..4 {
            assert!(!ends.are_enough());
            ends.push(Instant::now(), output(at, WRITE_BYTES));
            assert!(ends.are_due(Instant::now(), false), "a write's worth waits for no more");
        }
        assert!(ends.are_enough());
        assert!(ends.write(&store, JobId(1)).await.is_none(), "there is no such job");
        assert!(ends.are_enough(), "what was not written still counts");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_ends_its_input_and_no_other() {
        let mut ends = Ends::default();
        ends.push(Instant::now(), output(0, JOB_BODY_MAX + 1));
        ends.push(Instant::now(), output(1, JOB_BODY_MAX));
        let failed = |output: &JobOutput| matches!(&output.end, JobEnd::Failure { reason, .. } if reason == "answer_too_large");
        assert!(failed(&ends.waiting[0]) && !failed(&ends.waiting[1]));
    }
}
