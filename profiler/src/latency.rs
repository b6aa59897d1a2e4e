//! How long a batch takes, from handing it over to having its outputs.
//!
//! Timed as a lane of the executor experiences it: the call to submit, the runner waking, the run, and the call
//! back on the engine's thread. Filling the slot is not in it (that is `prepare`), nor is the wake of whoever waits.
//! Every other run comes after a pause, as on a lane that had nothing to do: caches and sleeping cores make such a
//! run up to twice as slow, and deadlines hold for lonely queries too. The variance tells of both kinds.

use modelless_engine::{BatchError, BatchSlot, Engine, EngineError, Outputs};
use modelless_types::VariantId;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long to go on with one batch size in one series.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Effort {
    /// Runs before counting starts, the first time; later one is enough.
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
        Self { warm_up: 3, enough_ms: 20, at_most_ms: 700, least: 8, most: 70 }
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

impl Failure {
    /// Whether a smaller batch might do: there was no memory for this one, or it took too long. Also whether the process
    /// is gone with it.
    pub(crate) fn is_size(&self) -> Option<bool> {
        match self {
            Self::Batch(BatchError::Crashed(_) | BatchError::Killed(_) | BatchError::Hung(_)) => Some(true),
            Self::Batch(BatchError::Model(_)) | Self::Engine(EngineError::System { .. }) => Some(false),
            Self::Batch(
                BatchError::Shape(_)
                | BatchError::Unreachable(_)
                | BatchError::Revoked
                | BatchError::NotStarted(_),
            )
            | Self::Engine(_) => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Engine(error) => error.fmt(f),
            Self::Batch(error) => error.fmt(f),
        }
    }
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

/// How to measure one series.
pub(crate) struct How<'a> {
    pub(crate) effort: Effort,
    /// A batch that takes longer is given up.
    pub(crate) limit: Duration,
    /// Whether to stop at once.
    pub(crate) disturbed: &'a (dyn Fn() -> bool + Sync),
}

/// Times batches of one size for one series, in microseconds. `None` if it was disturbed: then nothing of it counts.
pub(crate) async fn series(
    engine: &dyn Engine,
    variant: VariantId,
    batch: u32,
    Item { rows, length }: Item<'_>,
    How { effort, limit, disturbed }: How<'_>,
) -> Result<Option<Vec<f64>>, Failure> {
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
        if disturbed() {
            return Ok(None);
        }
        let (outputs, took) = run(engine, slot, limit).await?;
        drop(outputs);
        if disturbed() {
            return Ok(None);
        }
        runs += 1;
        if runs <= effort.warm_up {
            since = Instant::now();
            continue;
        }
        times.push(took.as_secs_f64() * 1e6);
        if effort.done(times.len(), since.elapsed()) {
            return Ok(Some(times));
        }
    }
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
}
