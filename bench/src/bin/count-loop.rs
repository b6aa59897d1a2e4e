//! What a gateway counts of an answered query, over and over, with the very handles that it has.
//!
//! `count-loop`, then blocks as in `modelless_testkit::blocks`. A round is [`QUERIES`] queries, each with other figures, so that no part
//! of a histogram stays in one place.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use anyhow::{Context as _, Result};
use modelless_telemetry::{Got, Metrics, Ran, Took, Wanted};
use modelless_testkit::{Rng, blocks};
use modelless_types::{Accuracy, Bytes, CostPer1k, Micros};
use std::hint::black_box;

/// Of one round. `xtask measure front-overhead` knows the number.
const QUERIES: u32 = 1_000;

fn main() -> Result<()> {
    let metrics = Metrics::new();
    let task = metrics.task("fashion-tensor");
    let variant = metrics.variant("fashion-tensor", "cnn_m-fp32");
    let served = metrics.served("fashion-tensor", 1);
    let application = metrics.application("default", "");
    let node = metrics.node("local");
    let accuracy = Accuracy::measured(9_000, 10_000).context("an accuracy")?;
    let mut rng = Rng::new(1);
    let times: Vec<Micros> = (0..QUERIES).map(|_| Micros(100 + rng.next_u64() % 20_000)).collect();
    blocks::serve(|| {
        for (at, time) in times.iter().enumerate() {
            let (total, run) = (black_box(*time), Micros(time.0 / 2));
            let batch = u32::try_from(at % 32)? + 1;
            let wanted = Wanted {
                latency: Some(Micros(10_000)),
                accuracy: Some(accuracy),
                max_cost: Some(CostPer1k(1_000_000)),
            };
            let in_time = total <= Micros(10_000);
            task.admitted(Bytes(3_136));
            task.answered(total, in_time);
            node.answered(total);
            task.goals().answered(&wanted, &Got { total, accuracy: Some(accuracy), cost: CostPer1k(1_500) });
            variant.answered(&Ran { queue: run, run, predicted: run, batch, cost: CostPer1k(1_500) });
            let took = Took { queue: run, input: run, infer: run, output: run, batch };
            served.ran(&took);
            served.answered(total, Some(&took));
            application.answered(total, in_time, (run, CostPer1k(1_500)));
        }
        Ok(())
    })
}
