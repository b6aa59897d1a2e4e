//! How long a batch takes, from handing it over to having its outputs.
//!
//! Timed as a lane of the executor experiences it: the call to submit, the runner waking, the run, and the call
//! back on the engine's thread. Filling the slot is not in it (that is `prepare`), nor is the wake of whoever waits.

use crate::stats::Summary;
use modelless_engine::{BatchError, BatchSlot, Engine, EngineError, Outputs};
use modelless_types::{BatchPoint, VariantId};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long to go on with one batch size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Effort {
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
        Self { warm_up: 3, enough_ms: 60, at_most_ms: 2_000, least: 10, most: 200 }
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

/// Times batches of one size. `rows` are the bytes of one item, one for each input.
pub(crate) async fn point(
    engine: &dyn Engine,
    variant: VariantId,
    batch: u32,
    rows: &[Vec<u8>],
    (effort, limit): (Effort, Duration),
) -> Result<BatchPoint, Failure> {
    let mut times = Vec::new();
    let mut since = Instant::now();
    let mut round = 0;
    loop {
        let mut slot = engine.slot(variant, 0, batch).map_err(Failure::Engine)?;
        for (input, row) in rows.iter().enumerate() {
            for item in 0..batch {
                slot.item_mut(input, item).copy_from_slice(row);
            }
        }
        let (outputs, took) = run(engine, slot, limit).await?;
        drop(outputs);
        round += 1;
        if round <= effort.warm_up {
            since = Instant::now();
            continue;
        }
        times.push(took.as_secs_f64() * 1e6);
        if effort.done(times.len(), since.elapsed()) {
            break;
        }
    }
    let summary = Summary::of(times).expect("at least one repetition was timed; this is a bug");
    Ok(summary.point(batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_runs_are_repeated_often_and_slow_ones_not_forever() {
        let effort = Effort::default();
        let ms = Duration::from_millis;
        for (samples, spent, done) in [
            (199, ms(59), false),
            (200, ms(1), true),
            (9, ms(100), false),
            (10, ms(100), true),
            (3, ms(2_500), true),
        ] {
            assert_eq!(effort.done(samples, spent), done, "{samples} in {spent:?}");
        }
    }
}
