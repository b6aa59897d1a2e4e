//! Thousands of distinguishable inputs in flight at once: every answer must be its own question's.
//!
//! The model is the identity, so an answer that belongs to another query of the same batch cannot look right.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Rng, Server, onnx};
use serde_json::json;

use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "attribution",
    what: "distinct inputs at concurrency 64 through the identity model: every answer is its own",
    run: measure,
};

const TASK: &str = "identity";
const WIDTH: usize = 16;
const CONCURRENCY: usize = 64;

fn measure(context: &Context) -> Result<Outcome> {
    let queries = context.choose(5_000, 1_000);
    let server = Server::builder().binary(context.binary()?).start()?;
    register_identity(&server)?;

    let seed = context.seed;
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let parts = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..CONCURRENCY).map(|_| scope.spawn(|| ask(&server, &next, queries, seed))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .collect::<Result<Vec<Part>>>()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    server.stop()?;

    let answered: usize = parts.iter().map(|part| part.answered).sum();
    let swapped: usize = parts.iter().map(|part| part.swapped).sum();
    let largest = parts.iter().map(|part| part.largest_batch).max().unwrap_or(0);
    ensure!(answered == queries, "{answered} of {queries} queries were answered");
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: json!([{"queries": queries, "swapped": swapped, "largest_batch": largest, "seconds": seconds}]),
        summary: json!({"queries": queries, "swapped": swapped, "largest_batch": largest}),
        result: format!("{queries} queries, {swapped} answers of another's, batches up to {largest}"),
        checks: vec![
            Check {
                what: "answers of another's",
                value: f64::from(u32::try_from(swapped)?),
                limit: 0.0,
                unit: "",
            },
            // Without batches nothing could have been swapped, and nothing would have been shown.
            Check {
                what: "runs without any batch of two",
                value: f64::from(u8::from(largest < 2)),
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

#[derive(Default)]
struct Part {
    answered: usize,
    swapped: usize,
    largest_batch: usize,
}

/// One client: takes the next number, asks with numbers nobody else asks with, compares.
fn ask(server: &Server, next: &AtomicUsize, queries: usize, seed: u64) -> Result<Part> {
    let mut connection = server.connect()?;
    let mut part = Part::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= queries {
            return Ok(part);
        }
        let mut rng = Rng::new(seed ^ (number as u64) << 32);
        let body = demo::tensor_body(WIDTH, &mut rng);
        let asked: Vec<f32> = body
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect();
        let response = connection.exchange(&demo::tensor_request(TASK, body))?;
        let answer = demo::numbers(&response).with_context(|| format!("query {number}"))?;
        let batch = response.header("modelless-batch").and_then(|batch| batch.parse().ok()).unwrap_or(0);
        part.largest_batch = part.largest_batch.max(batch);
        part.answered += 1;
        part.swapped += usize::from(!is_own(&asked, &answer));
    }
}

/// Whether an answer is the question, number by number.
fn is_own(asked: &[f32], answer: &[f64]) -> bool {
    asked.len() == answer.len() && asked.iter().zip(answer).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6)
}

/// Writes the model and makes it a task of the running server, with the command line a user would use.
fn register_identity(server: &Server) -> Result<()> {
    let folder = modelless_testkit::temp_dir("identity")?;
    let file = folder.path().join("identity.onnx");
    std::fs::write(&file, onnx::identity(WIDTH as u64))?;
    let (file, url) = (file.to_string_lossy().into_owned(), server.url());
    let steps: [&[&str]; 2] = [
        &["task", "create", TASK, "--kind", "tensor", "--server", &url],
        &["model", "register", TASK, &file, "--task", TASK, "--server", &url],
    ];
    for step in steps {
        let output = server.command(step)?;
        ensure!(
            output.status.success(),
            "`modelless {}` failed: {}",
            step.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_query_is_seen() {
        let asked = [0.25, 0.5];
        assert!(is_own(&asked, &[0.25, 0.5]));
        assert!(!is_own(&asked, &[0.5, 0.25]));
        assert!(!is_own(&asked, &[0.25]));
    }
}
