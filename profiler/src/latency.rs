//! How long a batch takes, from handing it over to having its outputs.
//!
//! Timed as a lane of the executor experiences it: the call to submit, the runner waking, the run, and the call
//! back on the engine's thread. Filling the slot is not in it (that is `prepare`), nor is the wake of whoever waits.
//! Every other run comes after a pause, as on a lane that had nothing to do: caches and sleeping cores make such a
//! run up to twice as slow, and deadlines hold for lonely queries too. The variance tells of both kinds.

use crate::stats::Summary;
use modelless_engine::{BatchError, BatchSlot, Engine, EngineError, Outputs};
use modelless_types::{BatchPoint, VariantId};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long to go on with one batch size in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Effort {
    /// Times that all batch sizes are gone through. Of each the calmest round counts.
    pub(crate) rounds: u32,
    /// Runs before counting starts.
    pub(crate) warm_up: u32,
    /// Enough is measured after this long, once there are `least` repetitions.
    pub(crate) enough_ms: u64,
    /// And at the latest after this long, with three.
    pub(crate) at_most_ms: u64,
    /// Fewest repetitions, unless each takes very long.
    pub(crate) least: u32,
    /// Most repetitions.
    pub(crate) most: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { rounds: 3, warm_up: 3, enough_ms: 20, at_most_ms: 700, least: 8, most: 70 }
    }
}

impl Effort {
    fn done(&self, samples: usize, spent: Duration) -> bool {
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        samples >= self.most
            || (samples >= self.least && spent >= Duration::from_millis(self.enough_ms))
            || (samples >= self.least.min(3) && spent >= Duration::from_millis(self.at_most_ms))
    }
}

/// Long enough for a core to go to sleep.
const PAUSE: Duration = Duration::from_millis(1);

/// What stopped a measurement.
#[derive(Debug)]
pub(crate) enum Failure {
    Engine(EngineError),
    Batch(BatchError),
}

/// Runs a batch alone on lane 0: the outputs, and the time it took.
pub(crate) async fn run(
    engine: &dyn Engine,
    slot: BatchSlot,
    limit: Duration,
) -> Result<(Outputs, Duration), Failure> {
    let (sender, done) = oneshot::channel();
    let start = Instant::now();
    // If nobody waits any longer there is nobody to tell.
    engine.submit(slot, limit, Box::new(move |result| drop(sender.send((result, start.elapsed())))));
    let (result, took) = done.await.map_err(|_| {
        Failure::Batch(BatchError::NotStarted("the engine went away without answering".to_owned()))
    })?;
    result.map(|outputs| (outputs, took)).map_err(Failure::Batch)
}

/// What every item of a batch is: its bytes, one row for each input, and how long it is where lengths differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) rows: &'a [Vec<u8>],
    pub(crate) length: Option<u32>,
}

/// Times batches of one size for one round, in microseconds.
pub(crate) async fn round(
    engine: &dyn Engine,
    variant: VariantId,
    batch: u32,
    Item { rows, length }: Item<'_>,
    (effort, limit): (Effort, Duration),
) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::new();
    let mut since = Instant::now();
    let mut runs = 0_u32;
    loop {
        let mut slot = engine.slot(variant, 0, batch).map_err(Failure::Engine)?;
        if let Some(length) = length {
            slot.stretch(length);
        }
        for (input, row) in rows.iter().enumerate() {
            for item in 0..batch {
                slot.item_mut(input, item).copy_from_slice(row);
            }
        }
        if runs % 2 == 1 {
            tokio::time::sleep(PAUSE).await;
        }
        let (outputs, took) = run(engine, slot, limit).await?;
        drop(outputs);
        runs += 1;
        if runs <= effort.warm_up {
            since = Instant::now();
            continue;
        }
        times.push(took.as_secs_f64() * 1e6);
        if effort.done(times.len(), since.elapsed()) {
            return Ok(times);
        }
    }
}

/// One point out of its rounds. Whatever else the machine does for a while slows a whole round down, so the calmest
/// one is the model's own time; `p99` is that of all rounds together. What others do to it live traffic shows later.
pub(crate) fn point(batch: u32, rounds: Vec<Vec<f64>>) -> Option<BatchPoint> {
    let p99_us = Summary::of(rounds.concat())?.p99_us;
    let calmest =
        rounds.into_iter().filter_map(Summary::of).min_by(|a, b| a.mean_us.total_cmp(&b.mean_us))?;
    Some(BatchPoint { p99_us, ..calmest.point(batch) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_runs_are_repeated_often_and_slow_ones_not_forever() {
        let effort = Effort::default();
        let ms = Duration::from_millis;
        for (samples, spent, done) in [
            (69, ms(19), false),
            (70, ms(1), true),
            (7, ms(100), false),
            (8, ms(100), true),
            (3, ms(800), true),
        ] {
            assert_eq!(effort.done(samples, spent), done, "{samples} in {spent:?}");
        }
    }

    #[test]
    fn a_while_of_trouble_does_not_count() {
        let calm = vec![100.0, 101.0, 99.0];
        let busy = vec![180.0, 400.0, 220.0];
        let point = point(4, vec![busy, calm.clone()]).unwrap();
        assert_eq!(Some((point.mean_us, point.samples)), Summary::of(calm).map(|s| (s.mean_us, s.samples)));
        assert!(point.p99_us > 300.0 && point.var_us2 < 2.0, "{point:?}");
        assert_eq!(super::point(4, Vec::new()), None);
    }
}
