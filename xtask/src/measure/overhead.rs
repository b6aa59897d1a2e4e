//! One query end to end against ONNX Runtime called in a loop, in turns on one machine.
//!
//! The blocks alternate (server, loop, loop, server, ...), so that a slow minute of the host falls on both. Both
//! sides are programs of `bench/` and tell their own CPU time.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::blocks::{Block, Loop};
use modelless_testkit::{Rng, Server, stats};
use serde_json::{Value, json};

use super::given_again::{self, GivenAgain};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "overhead",
    what: "one tensor query to cnn_m over HTTP at concurrency 1, against ONNX Runtime in a loop, 1 thread; and answers given again",
    run: measure,
};

const VARIANT: &str = "cnn_m-fp32";
const MODEL: &str = "examples/fashion/models/cnn_m.onnx";

fn measure(context: &Context) -> Result<Outcome> {
    let (blocks, rounds) = context.choose((10, 500), (2, 60));
    let server = demo::start(context)?;
    let target = format!("/v1/tasks/{}?variant={VARIANT}", demo::TENSOR_TASK);
    answered_by_the_variant(&server)?;

    let seed = context.seed.to_string();
    let model = context.root.join(MODEL);
    let mut ort = Loop::start(
        &context.bench_program("ort-loop")?,
        &[context.onnx_library()?, &model.to_string_lossy(), "1", &seed],
    )?;
    let mut http = Loop::start(
        &context.bench_program("http-loop")?,
        &[&server.address().to_string(), &target, &demo::TENSOR_FLOATS.to_string(), &seed],
    )?;

    let mut repetitions = Vec::new();
    let mut summary = serde_json::Map::new();
    let mut results = Vec::new();
    let mut checks = Vec::new();
    let limit = context.choose(300.0, 5_000.0);
    for (name, gap, what) in [
        ("back_to_back", Duration::ZERO, "added median, back to back"),
        ("gap_5ms", Duration::from_millis(5), "added median, 5 ms gaps"),
    ] {
        // Not counted: caches, connection and the replica's own load.
        http.block(rounds / 5, gap)?;
        ort.block(rounds / 5, gap)?;
        let (mut served, mut looped) = (Vec::new(), Vec::new());
        for block in 0..blocks {
            if block % 2 == 0 {
                served.push(http.block(rounds, gap)?);
                looped.push(ort.block(rounds, gap)?);
            } else {
                looped.push(ort.block(rounds, gap)?);
                served.push(http.block(rounds, gap)?);
            }
        }
        for (served, looped) in served.iter().zip(&looped) {
            repetitions.push(json!({"mode": name, "server": raw(served), "loop": raw(looped)}));
        }
        let side = Side::of(&served, &looped)?;
        results.push(format!(
            "{name}: +{:.0} us (worst block +{:.0}; server {:.0}, loop {:.0})",
            side.added, side.worst_added, side.server, side.looped
        ));
        checks.push(Check { what, value: side.added, limit, unit: "us" });
        summary.insert(name.to_owned(), side.json(&served));
    }
    let GivenAgain { repetitions: also, summary: again, result, checks: more } =
        given_again::measure(context, &server)?;
    repetitions.extend(also);
    summary.insert("given_again".to_owned(), again);
    results.push(result);
    checks.extend(more);
    server.stop()?;
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(repetitions),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

fn answered_by_the_variant(server: &Server) -> Result<()> {
    let body = demo::tensor_body(demo::TENSOR_FLOATS, &mut Rng::new(1));
    let request = demo::tensor_request(&format!("{}?variant={VARIANT}", demo::TENSOR_TASK), body);
    let response = server.send(&request)?;
    demo::numbers(&response)?;
    let by = response.header("modelless-variant").context("the answer names no modelless-variant")?;
    ensure!(by == VARIANT, "answered by {by}, not by the pinned {VARIANT}");
    Ok(())
}

/// Medians in microseconds.
struct Side {
    server: f64,
    looped: f64,
    added: f64,
    worst_added: f64,
}

impl Side {
    fn of(served: &[Block], looped: &[Block]) -> Result<Self> {
        let all =
            |blocks: &[Block]| blocks.iter().flat_map(|block| block.latency_ns.clone()).collect::<Vec<_>>();
        let median = |values: &[u64]| stats::median(values).map(us).context("no rounds");
        let (server, looped_median) = (median(&all(served))?, median(&all(looped))?);
        let added = served
            .iter()
            .zip(looped)
            .map(|(served, looped)| Ok(median(&served.latency_ns)? - median(&looped.latency_ns)?))
            .collect::<Result<Vec<f64>>>()?;
        let worst_added = stats::percentile(&added, 100).context("no blocks")?;
        Ok(Self { server, looped: looped_median, added: server - looped_median, worst_added })
    }

    fn json(&self, served: &[Block]) -> Value {
        let all: Vec<u64> = served.iter().flat_map(|block| block.latency_ns.clone()).collect();
        let cpu: u64 = served.iter().map(|block| block.cpu_ns).sum();
        let wall: u64 = served.iter().map(|block| block.wall_ns).sum();
        json!({
            "server_median_us": self.server,
            "server_p99_us": stats::percentile(&all, 99).map(us),
            "loop_median_us": self.looped,
            "added_median_us": self.added,
            "added_median_of_worst_block_us": self.worst_added,
            "client_cpu_share_of_wall": us(cpu) / us(wall).max(1.0),
        })
    }
}

fn raw(block: &Block) -> Value {
    json!({
        "median_us": stats::median(&block.latency_ns).map(us),
        "wall_ns": block.wall_ns,
        "cpu_ns": block.cpu_ns,
        "latency_ns": block.latency_ns,
    })
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^52 ns")]
fn us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_the_difference_of_the_medians() {
        let block = |values: [u64; 3]| Block { latency_ns: values.to_vec(), wall_ns: 1, cpu_ns: 1 };
        let served = [block([300_000, 310_000, 900_000]), block([400_000, 410_000, 420_000])];
        let looped = [block([100_000, 100_000, 100_000]), block([100_000, 110_000, 120_000])];
        let side = Side::of(&served, &looped).unwrap();
        assert_eq!((side.server, side.looped, side.added, side.worst_added), (400.0, 100.0, 300.0, 300.0));
    }
}
