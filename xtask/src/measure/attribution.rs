//! Thousands of distinguishable inputs in flight at once: every answer must be its own question's.
//!
//! The model is the identity, so an answer that belongs to another query of the same batch cannot look right. The
//! control turns the answers of each batch by one and wants every one of them noticed: a checker that finds nothing
//! there would find nothing anywhere. It works on what was recorded here; that a permutation inside the server
//! reaches the client is shown by the executor's test `a_permutation_of_outputs_would_be_noticed`.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use modelless_testkit::http::Connection;
use modelless_testkit::{Rng, Server, onnx};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "attribution",
    what: "distinct inputs, 2,500 in flight, through the identity model: every answer is its own",
    run: measure,
};

const TASK: &str = "identity";
const WIDTH: usize = 16;
/// One question at a time on each; below what the router lets wait.
const CONNECTIONS: usize = 2_500;
const BLOCKS: usize = 10;
/// Nobody is refused for being late: this measures attribution, not speed.
const LATENCY_MS: u32 = 60_000;
/// A client does little; thousands of default stacks would be gigabytes.
const STACK: usize = 256 << 10;

fn measure(context: &Context) -> Result<Outcome> {
    let each = context.choose(8, 1);
    let server = Server::builder().binary(context.binary()?).start()?;
    register_identity(&server)?;
    let opened = (0..CONNECTIONS).map(|_| server.connect()).collect::<Result<Vec<_>>>();
    let mut connections = opened.context("opening the connections; `ulimit -n` may be too low")?;

    let (mut rows, mut total) = (Vec::new(), Block::default());
    for number in 0..BLOCKS {
        let block = run_block(&mut connections, each, context.seed.wrapping_add(number as u64))?;
        ensure!(block.answered == CONNECTIONS * each, "{} of a block were answered", block.answered);
        rows.push(block.to_json(number));
        total.add(&block);
    }
    drop(connections);
    server.stop()?;

    let Block { answered, swapped, largest_batch, permuted, noticed, .. } = total;
    Ok(Outcome {
        seeds: (0..BLOCKS as u64).map(|number| context.seed.wrapping_add(number)).collect(),
        repetitions: Value::Array(rows),
        summary: json!({
            "queries": answered, "swapped": swapped, "largest_batch": largest_batch,
            "least_peak_outstanding_of_a_block": total.peak,
            "control": {
                "permuted": permuted, "noticed": noticed,
                "inside_the_server": "executor test a_permutation_of_outputs_would_be_noticed",
            },
        }),
        result: format!(
            "{answered} queries, at least {} outstanding at each block's peak, {swapped} answers of another's, batches \
             up to {largest_batch}; control: {noticed} of {permuted} answers permuted within their batch noticed",
            total.peak
        ),
        checks: vec![
            Check { what: "answers of another's", value: count(swapped)?, limit: 0.0, unit: "" },
            // Without batches nothing could have been swapped, and nothing would have been shown.
            Check { what: "runs without permuted batches", value: flag(permuted == 0), limit: 0.0, unit: "" },
            Check {
                what: "permuted and not noticed",
                value: count(permuted - noticed)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "runs below 2,000 in flight",
                value: flag(total.peak < 2_000),
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn count(of: usize) -> Result<f64> {
    Ok(f64::from(u32::try_from(of)?))
}

/// What a block, or all of them, came to.
#[derive(Default)]
struct Block {
    answered: usize,
    swapped: usize,
    largest_batch: usize,
    /// Sent and not yet received, at most; over several blocks, the least of these.
    peak: usize,
    permuted: usize,
    noticed: usize,
    seconds: f64,
}

impl Block {
    fn add(&mut self, block: &Self) {
        self.peak = if self.answered == 0 { block.peak } else { self.peak.min(block.peak) };
        self.answered += block.answered;
        self.swapped += block.swapped;
        self.largest_batch = self.largest_batch.max(block.largest_batch);
        self.permuted += block.permuted;
        self.noticed += block.noticed;
        self.seconds += block.seconds;
    }

    fn to_json(&self, number: usize) -> Value {
        json!({
            "block": number, "queries": self.answered, "swapped": self.swapped, "largest_batch": self.largest_batch,
            "peak_outstanding": self.peak, "permuted": self.permuted, "noticed": self.noticed,
            "seconds": self.seconds,
        })
    }
}

/// A question with what came back for it.
struct Pair {
    asked: Vec<f32>,
    answer: Vec<f64>,
    /// Queries in its batch, as the answer says.
    batch: usize,
    /// How long the batch ran: with its size, this tells batches apart.
    ran: String,
}

/// Every connection asks `each` questions, one after the other, all beginning at once.
fn run_block(connections: &mut [Connection], each: usize, seed: u64) -> Result<Block> {
    let (outstanding, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begin = Barrier::new(connections.len() + 1);
    let (pairs, seconds) = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (number, connection) in connections.iter_mut().enumerate() {
            let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9) ^ (number as u64) << 32);
            let (begin, outstanding, peak) = (&begin, &outstanding, &peak);
            let work = move || {
                begin.wait();
                let ask_one = |_| ask(connection, &mut rng, outstanding, peak);
                (0..each).map(ask_one).collect::<Result<Vec<Pair>>>()
            };
            let builder = std::thread::Builder::new().name(format!("client {number}")).stack_size(STACK);
            // One that is missing would leave the others waiting for ever, so that is no error to pass on.
            workers.push(builder.spawn_scoped(scope, work).expect("thousands of threads can be started"));
        }
        begin.wait();
        let started = Instant::now();
        let mut pairs = Vec::new();
        for worker in workers {
            pairs.extend(worker.join().map_err(|_| anyhow!("a client panicked"))??);
        }
        Ok::<_, anyhow::Error>((pairs, started.elapsed().as_secs_f64()))
    })?;
    let (permuted, noticed) = control(&pairs);
    Ok(Block {
        answered: pairs.len(),
        swapped: pairs.iter().filter(|pair| !is_own(&pair.asked, &pair.answer)).count(),
        largest_batch: pairs.iter().map(|pair| pair.batch).max().unwrap_or(0),
        peak: peak.into_inner(),
        permuted,
        noticed,
        seconds,
    })
}

/// Asks with numbers that nobody else asks with.
fn ask(
    connection: &mut Connection,
    rng: &mut Rng,
    outstanding: &AtomicUsize,
    peak: &AtomicUsize,
) -> Result<Pair> {
    let body = demo::tensor_body(WIDTH, rng);
    let asked =
        body.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
    let request = demo::tensor_request(&format!("{TASK}?latency_ms={LATENCY_MS}"), body);
    connection.send_raw(&request.to_bytes())?;
    peak.fetch_max(outstanding.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    let response =
        connection.receive(false)?.context("the server closed the connection without an answer")?;
    outstanding.fetch_sub(1, Ordering::Relaxed);
    let header = |name| response.header(name).with_context(|| format!("no {name} in {response}"));
    let answer = demo::numbers(&response)?;
    let batch = header("modelless-batch")?.parse().context("modelless-batch is no number")?;
    Ok(Pair { asked, answer, batch, ran: header("modelless-run-ms")?.to_owned() })
}

/// Turns the answers of every batch of two or more by one; gives how many were turned and how many of these the
/// check takes for another's.
fn control(pairs: &[Pair]) -> (usize, usize) {
    let mut batches: BTreeMap<(usize, &str), Vec<&Pair>> = BTreeMap::new();
    for pair in pairs.iter().filter(|pair| pair.batch > 1) {
        batches.entry((pair.batch, &pair.ran)).or_default().push(pair);
    }
    let (mut permuted, mut noticed) = (0, 0);
    // Two batches of the same size and time fall together: then it is no one batch, and is left out.
    for ((_, _), batch) in batches.iter().filter(|((size, _), batch)| batch.len() == *size) {
        let turned = batch.iter().cycle().skip(1);
        permuted += batch.len();
        noticed += batch.iter().zip(turned).filter(|(own, other)| !is_own(&own.asked, &other.answer)).count();
    }
    (permuted, noticed)
}

/// Whether an answer is the question, number by number.
fn is_own(asked: &[f32], answer: &[f64]) -> bool {
    asked.len() == answer.len() && asked.iter().zip(answer).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6)
}

/// Writes the model and makes it a task of the running server, with the command line a user would use.
fn register_identity(server: &Server) -> Result<()> {
    let folder = modelless_testkit::temp_dir("identity")?;
    let tensor = |name| format!("{{ name = \"{name}\", dtype = \"FP32\", shape = [{WIDTH}] }}");
    let task = format!(
        "name = \"{TASK}\"\nkind = \"tensor\"\ninputs = [{}]\noutputs = [{}]\n",
        tensor("x"),
        tensor("y")
    );
    let model = format!(
        "name = \"{TASK}\"\naccuracy = 1.0\n\n[adapter]\nkind = \"tensor\"\n\n\
         [[variants]]\nprecision = \"fp32\"\nfile = \"identity.onnx\"\n"
    );
    let (task_file, model_file) = (folder.path().join("task.toml"), folder.path().join("identity.toml"));
    std::fs::write(&task_file, task)?;
    std::fs::write(&model_file, model)?;
    std::fs::write(folder.path().join("identity.onnx"), onnx::identity(WIDTH as u64))?;

    let (task_file, model_file) = (task_file.to_string_lossy(), model_file.to_string_lossy());
    let url = server.url();
    let steps: [&[&str]; 2] = [
        &["task", "create", &task_file, "--server", &url],
        &["model", "register", &model_file, "--task", TASK, "--server", &url],
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

    #[test]
    fn the_control_turns_whole_batches_only() {
        let pair = |number: f32, batch, ran: &str| Pair {
            asked: vec![number],
            answer: vec![f64::from(number)],
            batch,
            ran: ran.to_owned(),
        };
        let pairs =
            [pair(0.0, 1, "9"), pair(1.0, 2, "7"), pair(2.0, 2, "7"), pair(3.0, 2, "8"), pair(4.0, 3, "7")];
        assert_eq!(control(&pairs), (2, 2));
        // What cannot be told apart is permuted and not noticed.
        assert_eq!(control(&[pair(1.0, 2, "7"), pair(1.0, 2, "7")]), (2, 0));
    }
}
