//! Offline jobs: one whose executor is killed while it runs, and what a job that runs does to queries beside it.
//!
//! The first is a real cluster with real models: two gateways, one executor, Postgres, Redis. Each of the job's inputs is another one;
//! at a quarter, a half and three quarters of them the executor gets SIGKILL and is started anew: nobody else could end the job.
//! Afterwards every input is asked as a query, and its output must say the same.
//!
//! The second is `up` with the demo: queries come at random times, in turns with a job on the same task running all the while and
//! without. Blocks follow each other in both orders. The generator, the gateway and the models share this machine's cores, so what a
//! job takes of them is in the figure as well.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use modelless_testkit::{Connection, Request, Rng, stats, wait};
use serde_json::{Value, json};

use super::{VARIANT, Way, World, count};
use crate::measure::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "jobs",
    what: "an offline job with its executor killed three times: right outputs, none twice; p99 of queries beside a job over that without",
    run: measure,
};

const DONE_WITHIN: Duration = Duration::from_mins(5);
/// How often a job may be given anew, each time with twice as many inputs, where it was over before the last kill.
const DOUBLINGS: usize = 4;
/// Inputs that are given at once.
const CHUNK: usize = 500;
/// Batches of other sizes are computed in another order, so the last digits differ.
const TOLERANCE: f64 = 1e-3;
/// So many jobs run beside queries, so that there is work all the while.
const JOBS: u64 = 1;
/// The bound of queries beside them.
const BOUND_MS: u32 = 50;

fn measure(context: &Context) -> Result<Outcome> {
    let killed = killed(context)?;
    let beside = beside(context)?;
    let Killed { inputs, done, failed, outputs, twice, wrong, kills, took, raw } = &killed;
    let (median, worst) = (beside.of(50)?, beside.of(100)?);
    let job_rate = stats::median(&beside.rates).context("no blocks")?;
    Ok(Outcome {
        seeds: vec![context.seed],
        summary: json!({
            "inputs": inputs, "done": done, "failed": failed, "outputs": outputs, "twice": twice, "wrong": wrong, "kills": kills,
            "took_ms": super::ms(*took), "p99_ratio_median": median, "p99_ratio_worst": worst,
            "job_inputs_a_second_beside": job_rate, "online_per_second": beside.per_second, "bound_ms": BOUND_MS,
            "missed_beside": beside.missed,
        }),
        result: format!(
            "{inputs} inputs with the executor killed {kills} times: {done} answered, {failed} failed, {outputs} outputs, {twice} twice, \
             {wrong} wrong, {:.0} s; p99 of {:.0} queries a second beside a job of {job_rate:.0} inputs a second over that without: \
             {median:.2} (worst pair {worst:.2}), {} of them lost or late",
            took.as_secs_f64(),
            beside.per_second,
            beside.missed,
        ),
        repetitions: json!({"killed": raw, "beside": beside.rows}),
        checks: vec![
            Check {
                what: "inputs without a right output",
                value: count(inputs - done)? + count(*wrong)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "outputs that stand twice, or for no input",
                value: count(*twice)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "executors killed, fewer than three",
                value: 3.0 - count(*kills)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "p99 of queries beside a job, over that without, median",
                value: median,
                limit: context.choose(1.15, 20.0),
                unit: "times",
            },
            Check {
                what: "time of ten inputs of the job beside them",
                value: 10.0 / job_rate,
                limit: 1.0,
                unit: "s",
            },
        ],
    })
}

/// A client of jobs.
struct Client {
    address: std::net::SocketAddr,
}

impl Client {
    fn call(&self, request: &Request) -> Result<Value> {
        let response = Connection::open(self.address)?.exchange(request)?;
        ensure!((200..300).contains(&response.status), "{response}");
        response.json()
    }

    /// A job of these inputs that has begun: its path.
    fn start(&self, inputs: &[String]) -> Result<String> {
        let path = self.give(inputs)?;
        self.call(&Request::post(&format!("{path}/start")))?;
        Ok(path)
    }

    /// One that has them and has not begun.
    fn give(&self, inputs: &[String]) -> Result<String> {
        let body = json!({"task": demo::TENSOR_TASK, "inputs": inputs.len(), "goals": {"variant": VARIANT}});
        let job = self.call(&Request::post("/v1/jobs").json(&body))?;
        let path = format!("/v1/jobs/{}", job["job"]);
        for (number, some) in inputs.chunks(CHUNK).enumerate() {
            let one = |(at, data): (usize, &String)| json!({"at": number * CHUNK + at, "data": data});
            let body = json!({"inputs": some.iter().enumerate().map(one).collect::<Vec<_>>()});
            self.call(&Request::post(&format!("{path}/inputs")).json(&body))?;
        }
        Ok(path)
    }

    fn ended(&self, path: &str) -> Result<(u64, String)> {
        let job = self.call(&Request::get(path))?;
        let number = |name: &str| job[name].as_u64().with_context(|| format!("no {name} in {job}"));
        Ok((number("done")? + number("failed")?, job["state"].as_str().unwrap_or_default().to_owned()))
    }
}

fn tensors(many: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    (0..many).map(|_| demo::tensor_body(demo::TENSOR_FLOATS, &mut rng)).collect()
}

struct Killed {
    inputs: u32,
    done: u32,
    failed: u32,
    outputs: usize,
    twice: usize,
    wrong: usize,
    kills: usize,
    took: Duration,
    raw: Value,
}

fn killed(context: &Context) -> Result<Killed> {
    let mut world = World::start(context, &[("one", &[])], Way::Plain)?;
    let client = Client { address: world.gateways[0] };
    let fewest = context.choose(10_000_u32, 1_200);
    for inputs in (0..=DOUBLINGS).map(|times| fewest << times) {
        if let Some(killed) = killed_thrice(context, &mut world, &client, inputs)? {
            return Ok(killed);
        }
        eprintln!("a job of {inputs} inputs was over before the executor was killed thrice");
    }
    bail!(
        "no job lasted until the executor was killed thrice, {DOUBLINGS} times with twice as many inputs as before"
    )
}

/// Nothing if the job ended before the last kill, which a quick machine does with a short one.
fn killed_thrice(
    context: &Context,
    world: &mut World,
    client: &Client,
    inputs: u32,
) -> Result<Option<Killed>> {
    let bodies = tensors(usize::try_from(inputs)?, context.seed);
    let encoded: Vec<String> = bodies.iter().map(|body| STANDARD.encode(body)).collect();
    let began = Instant::now();
    let path = client.start(&encoded)?;
    let mut kills = Vec::new();
    for part in 1..=3 {
        let after = u64::from(inputs) * part / 4;
        wait::until(DONE_WITHIN, || {
            let (ended, _) = client.ended(&path)?;
            Ok(if ended >= after { Ok(()) } else { Err(format!("{ended} of {after} inputs ended")) })
        })?;
        world.cluster.kill("one")?;
        let (ended, state) = client.ended(&path)?;
        let over = state != "running";
        kills.push(json!({"ended": ended, "state": state, "after_ms": super::ms(began.elapsed())}));
        world.cluster.start_again("one")?;
        if over {
            client.call(&Request::new("DELETE", &path))?;
            return Ok(None);
        }
    }
    wait::until(DONE_WITHIN, || {
        let (ended, state) = client.ended(&path)?;
        Ok(if state == "running" { Err(format!("{ended} of {inputs} inputs ended")) } else { Ok(()) })
    })
    .with_context(|| world.cluster.output())?;
    let took = began.elapsed();
    let job = client.call(&Request::get(&path))?;
    let (mut seen, mut outputs, mut twice, mut wrong) = (vec![false; bodies.len()], 0, 0, 0);
    let mut from = Some(0);
    world.loaded()?;
    while let Some(place) = from {
        let page = client.call(&Request::get(&format!("{path}/outputs?from={place}")))?;
        for output in page["outputs"].as_array().context("outputs")? {
            outputs += 1;
            let at = usize::try_from(output["at"].as_u64().context("a place")?)?;
            match seen.get_mut(at) {
                Some(seen) if !*seen => *seen = true,
                Some(_) | None => twice += 1,
            }
            wrong += usize::from(!is_right(client, &bodies[at], output)?);
        }
        from = page["next"].as_u64();
    }
    let number = |name: &str| -> Result<u32> { Ok(u32::try_from(job[name].as_u64().context("a number")?)?) };
    Ok(Some(Killed {
        inputs,
        done: number("done")?,
        failed: number("failed")?,
        outputs,
        twice,
        wrong,
        kills: kills.len(),
        took,
        raw: json!({"job": job, "kills": kills}),
    }))
}

/// Whether an output says what a query with its input is told.
fn is_right(client: &Client, body: &[u8], output: &Value) -> Result<bool> {
    if output["answer"].is_null() {
        return Ok(false);
    }
    let task = format!("{}?variant={VARIANT}", demo::TENSOR_TASK);
    let asked = client.call(&demo::tensor_request(&task, body.to_vec()))?;
    let (said, asked) = (numbers(&output["answer"])?, numbers(&asked)?);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1.0);
    Ok(said.len() == asked.len() && said.iter().zip(&asked).all(near))
}

/// The numbers of the first output of an answer.
fn numbers(answer: &Value) -> Result<Vec<f64>> {
    let first = answer["outputs"].as_object().and_then(|outputs| outputs.values().next());
    let Some(data) = first.and_then(|output| output["data"].as_array()) else {
        bail!("no numbers in {answer}")
    };
    let flat = data.iter().flat_map(|item| item.as_array().cloned().unwrap_or_else(|| vec![item.clone()]));
    Ok(flat.filter_map(|item| item.as_f64()).collect())
}

struct Beside {
    ratios: Vec<f64>,
    rates: Vec<f64>,
    missed: u64,
    per_second: f64,
    rows: Value,
}

impl Beside {
    fn of(&self, percent: usize) -> Result<f64> {
        stats::percentile(&self.ratios, percent).context("no blocks")
    }
}

fn beside(context: &Context) -> Result<Beside> {
    let (pairs, ms, per_second) = context.choose((12_u64, 5_000, 200.0), (1, 3_000, 30.0));
    let server = demo::start(context)?;
    let target = format!("/v1/tasks/{}?variant={VARIANT}&latency_ms={BOUND_MS}", demo::TENSOR_TASK);
    let stream =
        json!({"target": target, "inputs": [{"name": "input", "dtype": "FP32", "shape": [1, 28, 28]}]});
    let mut load = demo::load(context, &server, &[stream])?;
    load.ask(&json!({"do": "learn"}))?;
    let client = Client { address: server.address() };
    let inputs: Vec<String> = tensors(context.choose(60_000, 20_000), context.seed)
        .iter()
        .map(|body| STANDARD.encode(body))
        .collect();
    let question =
        |seed: u64, ms: u64| json!({"do": "paced", "per_second": [per_second], "ms": ms, "seed": seed});
    load.ask(&question(context.seed, ms / 4))?;
    let (mut ratios, mut rates, mut missed, mut rows) = (Vec::new(), Vec::new(), 0, Vec::new());
    for pair in 0..pairs {
        let seed = context.seed + pair;
        let mut block = |job: bool| -> Result<(Value, f64)> {
            if !job {
                return Ok((load.ask(&question(seed, ms))?, 0.0));
            }
            // All of them are there before the block begins: giving them is no part of working on them.
            let paths = (0..JOBS).map(|_| client.give(&inputs)).collect::<Result<Vec<_>>>()?;
            for path in &paths {
                client.call(&Request::post(&format!("{path}/start")))?;
            }
            let ended = || paths.iter().map(|path| Ok(client.ended(path)?.0)).sum::<Result<u64>>();
            let (before, began) = (ended()?, Instant::now());
            let seen = load.ask(&question(seed, ms))?;
            let after = ended()?;
            let rate = count(after - before)? / began.elapsed().as_secs_f64();
            let all = JOBS * u64::try_from(inputs.len())?;
            ensure!(after < all, "the jobs were over before the block was, after {after} inputs");
            for path in &paths {
                client.call(&Request::post(&format!("{path}/cancel")))?;
                client.call(&Request::new("DELETE", path))?;
            }
            Ok((seen, rate))
        };
        let (alone, (with, rate)) = if pair % 2 == 0 {
            let alone = block(false)?.0;
            (alone, block(true)?)
        } else {
            let with = block(true)?;
            (block(false)?.0, with)
        };
        let p99 = |seen: &Value| seen["streams"][0]["latency"]["p99_us"].as_f64().context("no p99");
        let lost = |seen: &Value| {
            let stream = &seen["streams"][0];
            let sent = stream["sent"].as_u64().unwrap_or(0);
            sent.saturating_sub(stream["answered"].as_u64().unwrap_or(0))
        };
        let (of_alone, of_with) = (p99(&alone)?, p99(&with)?);
        ratios.push(of_with / of_alone);
        rates.push(rate);
        missed += lost(&with);
        rows.push(json!({
            "p99_us_alone": of_alone, "p99_us_beside": of_with, "job_inputs_a_second": rate,
            "alone": demo::bare(alone), "beside": demo::bare(with),
        }));
    }
    drop(load);
    server.stop()?;
    Ok(Beside { ratios, rates, missed, per_second, rows: Value::Array(rows) })
}
