//! Thousands of distinguishable inputs in flight at once: every answer must be its own question's.
//!
//! The model is the identity, so an answer that belongs to another query of the same batch cannot look right. The
//! control turns the answers of each batch by one and wants every one of them noticed: a checker that finds nothing
//! there would find nothing anywhere. It works on what was recorded here; that a permutation inside the server
//! reaches the client is shown by the executor's test `a_permutation_of_outputs_would_be_noticed`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::http::Connection;
use modelless_testkit::{Request, Rng, Server, onnx};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "attribution",
    what: "distinct inputs, thousands in flight, through the identity model: every answer is its own",
    run: measure,
};

const TASK: &str = "identity";
const WIDTH: usize = 16;
/// One question at a time on each; below what the router lets wait.
const CONNECTIONS: usize = 3_500;
const BLOCKS: usize = 10;
/// Nobody is refused for being late: this measures attribution, not speed.
const LATENCY_MS: u32 = 60_000;

fn measure(context: &Context) -> Result<Outcome> {
    let waves = context.choose(5, 1);
    let server = Server::builder().binary(context.binary()?).start()?;
    register_identity(&server)?;
    let mut connections = open(&server).context("opening the connections; `ulimit -n` may be too low")?;

    let (mut rows, mut total) = (Vec::new(), Block::default());
    for number in 0..BLOCKS {
        let block = run_block(&mut connections, waves, context.seed.wrapping_add(number as u64))?;
        ensure!(block.answered == CONNECTIONS * waves, "{} of a block were answered", block.answered);
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
            "peak_outstanding": total.outstanding,
            "control": {
                "permuted": permuted, "noticed": noticed,
                "inside_the_server": "executor test a_permutation_of_outputs_would_be_noticed",
            },
        }),
        result: format!(
            "{answered} queries, {} outstanding at the peak, {swapped} answers of another's, batches \
             up to {largest_batch}; control: {noticed} of {permuted} answers permuted within their batch noticed",
            total.outstanding
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
                value: flag(total.outstanding < 2_000),
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

/// Opens them no faster than they are taken: what the kernel's queue has no room for would be tried again seconds
/// later, and by then the first ones would have been idle for too long.
fn open(server: &Server) -> Result<Vec<Connection>> {
    let mut connections = Vec::new();
    for number in 1..=CONNECTIONS {
        let mut connection = server.connect()?;
        if number % 100 == 0 {
            connection.exchange(&Request::get("/v2/health/live"))?;
        }
        connections.push(connection);
    }
    Ok(connections)
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
    /// Sent and not answered when the last of a wave was sent; the most of all waves.
    outstanding: usize,
    permuted: usize,
    noticed: usize,
    seconds: f64,
}

impl Block {
    fn add(&mut self, block: &Self) {
        self.outstanding = self.outstanding.max(block.outstanding);
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
            "peak_outstanding": self.outstanding, "permuted": self.permuted, "noticed": self.noticed,
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

/// So many waves: a question on every connection, written as fast as can be, then all answers.
fn run_block(connections: &mut [Connection], waves: usize, seed: u64) -> Result<Block> {
    let mut rng = Rng::new(seed);
    let mut block = Block::default();
    for _ in 0..waves {
        let bodies: Vec<Vec<u8>> = connections.iter().map(|_| demo::tensor_body(WIDTH, &mut rng)).collect();
        let path = format!("{TASK}?latency_ms={LATENCY_MS}");
        let request = |body: &Vec<u8>| demo::tensor_request(&path, body.clone()).to_bytes();
        let requests: Vec<Vec<u8>> = bodies.iter().map(request).collect();
        let started = Instant::now();
        for (connection, request) in connections.iter_mut().zip(&requests) {
            connection.send_raw(request)?;
        }
        // Looking takes a moment in which more are answered: what is counted is the least that there were.
        let mut outstanding = 0;
        for connection in connections.iter().rev() {
            outstanding += usize::from(!connection.has_answer()?);
        }
        let receive = |(connection, body): (&mut Connection, &Vec<u8>)| receive(connection, body);
        let pairs = connections.iter_mut().zip(&bodies).map(receive).collect::<Result<Vec<Pair>>>()?;
        block.seconds += started.elapsed().as_secs_f64();

        let (permuted, noticed) = control(&pairs);
        block.answered += pairs.len();
        block.swapped += pairs.iter().filter(|pair| !is_own(&pair.asked, &pair.answer)).count();
        block.largest_batch = pairs.iter().map(|pair| pair.batch).max().unwrap_or(0).max(block.largest_batch);
        block.outstanding = block.outstanding.max(outstanding);
        block.permuted += permuted;
        block.noticed += noticed;
    }
    Ok(block)
}

fn receive(connection: &mut Connection, body: &[u8]) -> Result<Pair> {
    let asked =
        body.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
    let response =
        connection.receive(false)?.context("the server closed the connection without an answer")?;
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
    let models = folder.path().join("models");
    std::fs::create_dir(&models)?;
    std::fs::write(folder.path().join("task.toml"), task)?;
    std::fs::write(models.join("identity.toml"), model)?;
    std::fs::write(models.join("identity.onnx"), onnx::identity(WIDTH as u64))?;

    demo::register(server, folder.path())?;
    // What was registered is taken up a moment later.
    let body = demo::tensor_body(WIDTH, &mut Rng::new(1));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let response = server.send(&demo::tensor_request(TASK, body.clone()))?;
        if response.status == 200 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the registered task does not answer: {response}");
        std::thread::sleep(Duration::from_millis(50));
    }
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
