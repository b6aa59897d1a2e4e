//! A host that changes under a running server: processes that burn its cores begin, and end. How long it takes until what is
//! predicted is within 15 % of what is seen again.
//!
//! One variant is asked alone at a steady pace. What is seen is the mean time of its batches; what is predicted is the profile
//! times the correction that the node makes known. Both are compared as multiples of what they were before.

use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Request, Rng, Server};
use serde_json::{Value, json};

use super::models::{Model, made};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "drift",
    what: "seconds until predictions are within 15 % of what is seen again, after other processes begin to burn cores and after they end",
    run: measure,
};

/// Between two queries.
const PACE: Duration = Duration::from_millis(2);
/// Between two looks at what is predicted.
const LOOK: Duration = Duration::from_millis(100);
/// What counts as right.
const WITHIN: f64 = 0.15;
/// And for how long it has to stay so.
const STAYS: Duration = Duration::from_secs(2);

fn measure(context: &Context) -> Result<Outcome> {
    // Shorter than what has a profile marked as stale: measuring it again would be seen too.
    let (calm, burn) = context.choose((8, 14), (5, 10));
    // The demo's largest is there without a download, but takes so little time that much of what is seen of it is not its own.
    let (server, asked) = if context.short {
        let server = demo::start(context)?;
        let asked = Asked::picture(context, &server)?;
        (server, asked)
    } else {
        let model = made(&context.root, "efficientnet_lite0")?;
        let server = Server::builder().binary(context.binary()?).start()?;
        demo::register(&server, &model.package)?;
        let asked = Asked::of(&server, &model)?;
        (server, asked)
    };
    // One process beside it, which may find a core of its own, and as many as make a runner share wherever it is.
    let every_core = thread::available_parallelism()?.get() * 2;
    let mut found = Vec::new();
    for (burners, rounds) in context.choose([(1, 2), (every_core, 4)], [(1, 0), (every_core, 1)]) {
        let mut some = Vec::new();
        for _ in 0..rounds {
            some.push(round(&server, &asked, Duration::from_secs(calm), Duration::from_secs(burn), burners)?);
        }
        if !some.is_empty() {
            found.push(Found { burners, rounds: some });
        }
    }
    server.stop()?;
    let all = || found.iter().flat_map(|found| &found.rounds);
    let worst = |of: fn(&Round) -> f64| all().map(of).fold(0.0, f64::max);
    let (begun, ended) = (worst(|r| r.begun), worst(|r| r.ended));
    let said: Vec<String> = found.iter().map(|found| found.said(asked.name)).collect::<Result<_>>()?;
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: found
            .iter()
            .flat_map(|found| found.rounds.iter().map(|r| r.json(found.burners)))
            .collect(),
        summary: found.iter().map(Found::json).collect::<Result<Value>>()?,
        result: said.join("; "),
        checks: vec![
            Check {
                what: "at worst after they began",
                value: begun,
                limit: context.choose(8.0, 12.0),
                unit: "s",
            },
            Check {
                what: "at worst after they ended",
                value: ended,
                limit: context.choose(8.0, 12.0),
                unit: "s",
            },
        ],
    })
}

/// Rounds with so many burning processes.
struct Found {
    burners: usize,
    rounds: Vec<Round>,
}

impl Found {
    fn of(&self, of: fn(&Round) -> f64) -> Result<(f64, f64)> {
        let all: Vec<f64> = self.rounds.iter().map(of).collect();
        let median = modelless_testkit::stats::median(&all).context("no rounds")?;
        Ok((median, all.into_iter().fold(0.0, f64::max)))
    }

    fn said(&self, name: &str) -> Result<String> {
        let (slowed, _) = self.of(|round| round.slowed)?;
        let (begun, ended) = (self.of(|round| round.begun)?, self.of(|round| round.ended)?);
        Ok(format!(
            "{} burning: {name} takes {slowed:.2} times as long; predictions within 15 % after {:.1} s (at worst {:.1}), and {:.1} s \
             (at worst {:.1}) after the end",
            self.burners, begun.0, begun.1, ended.0, ended.1
        ))
    }

    fn json(&self) -> Result<Value> {
        let (begun, ended) = (self.of(|round| round.begun)?, self.of(|round| round.ended)?);
        Ok(json!({
            "burners": self.burners, "slowed": self.of(|round| round.slowed)?.0, "within": WITHIN,
            "seconds_after_begin": begun.0, "seconds_after_begin_at_worst": begun.1,
            "seconds_after_end": ended.0, "seconds_after_end_at_worst": ended.1,
        }))
    }
}

/// What is asked, again and again.
struct Asked {
    request: Request,
    name: &'static str,
    variant: Value,
}

/// The number of a task's variant.
fn numbered(server: &Server, task: &str, name: &str) -> Result<Value> {
    let page = server.get_json(&format!("/v1/variants?task={task}"))?;
    let all = page["variants"].as_array().context("variants")?;
    Ok(all.iter().find(|variant| variant["name"] == name).context("its variant")?["id"].clone())
}

impl Asked {
    fn of(server: &Server, model: &Model) -> Result<Self> {
        let axes = |input: &Value| input["shape"].as_array().cloned().unwrap_or_default();
        let floats = |input: &Value| axes(input).iter().filter_map(Value::as_u64).product::<u64>();
        let floats: u64 = model.inputs().as_array().context("inputs")?.iter().map(floats).sum();
        let body = demo::tensor_body(usize::try_from(floats)?, &mut Rng::new(1));
        let target = format!("{}?variant={}&latency_ms=10000", model.task, model.variant);
        let variant = numbered(server, model.task, model.variant)?;
        Ok(Self { request: demo::tensor_request(&target, body), name: model.variant, variant })
    }

    fn picture(context: &Context, server: &Server) -> Result<Self> {
        let (task, name) = (demo::PICTURE_TASK, "cnn_l-fp32");
        let body = std::fs::read(context.root.join("examples/fashion/pictures/shirt.png"))?;
        let request = Request::post(&format!("/v1/tasks/{task}?variant={name}&latency_ms=10000"));
        let request = request.header("content-type", "image/png").body(body);
        Ok(Self { request, name, variant: numbered(server, task, name)? })
    }
}

/// When, since the start, and a figure.
type Seen = Vec<(Duration, f64)>;

struct Round {
    begun: f64,
    ended: f64,
    slowed: f64,
    runs: Seen,
    predicted: Seen,
    at: [Duration; 3],
}

impl Round {
    fn json(&self, burners: usize) -> Value {
        let points = |seen: &Seen| -> Value {
            seen.iter().map(|(at, value)| json!([at.as_millis(), (value * 1e4).round() / 1e4])).collect()
        };
        json!({
            "burners": burners, "seconds_after_begin": self.begun, "seconds_after_end": self.ended, "slowed": self.slowed,
            "began_ms": self.at[0].as_millis(), "ended_ms": self.at[1].as_millis(),
            // A mean of each tenth of a second: single queries would make the file large.
            "run_ms": points(&tenths(&self.runs)), "slowdown": points(&self.predicted),
        })
    }
}

/// Processes that compute for ever, ended with this.
struct Burners(Vec<Child>);

impl Burners {
    fn start(count: usize) -> Result<Self> {
        let mut burners = Self(Vec::new());
        for _ in 0..count {
            let burn = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
            burners.0.push(burn.context("starting a process that burns a core")?);
        }
        Ok(burners)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn round(server: &Server, asked: &Asked, calm: Duration, burn: Duration, burners: usize) -> Result<Round> {
    let (stop, runs) = (AtomicBool::new(false), Mutex::new(Seen::new()));
    let started = Instant::now();
    let (predicted, at) = thread::scope(|scope| {
        let asking = scope.spawn(|| ask(server, asked, started, &stop, &runs));
        let watched = (|| {
            let mut predicted = Seen::new();
            let mut watch = |until: Duration| -> Result<()> {
                while started.elapsed() < until && !asking.is_finished() {
                    predicted.push((started.elapsed(), slowdown(server, asked)?));
                    thread::sleep(LOOK);
                }
                Ok(())
            };
            watch(calm)?;
            let burning = Burners::start(burners)?;
            let began = started.elapsed();
            watch(began + burn)?;
            drop(burning);
            let ended = started.elapsed();
            watch(ended + calm)?;
            Ok::<_, anyhow::Error>((predicted, [began, ended, started.elapsed()]))
        })();
        stop.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| anyhow::anyhow!("asking panicked"))??;
        watched
    })?;
    let runs = runs.into_inner().context("whoever asked panicked")?;
    let [began, ended, end] = at;
    // The second half of each part, when it has settled.
    let settled =
        |seen: &Seen, from: Duration, to: Duration| mean(seen, from + to.saturating_sub(from) / 2, to);
    let before = (settled(&runs, Duration::ZERO, began)?, settled(&predicted, Duration::ZERO, began)?);
    let slowed = settled(&runs, began, ended)? / before.0;
    let after = settled(&runs, ended, end)? / before.0;
    let right = |from, to, wanted: f64| back_within(&predicted, before.1, from, to, wanted);
    Ok(Round {
        begun: right(began, ended, slowed),
        ended: right(ended, end, after),
        slowed,
        runs,
        predicted,
        at,
    })
}

fn ask(
    server: &Server,
    asked: &Asked,
    started: Instant,
    stop: &AtomicBool,
    runs: &Mutex<Seen>,
) -> Result<()> {
    let mut connection = server.connect()?;
    while !stop.load(Ordering::Relaxed) {
        let response = connection.exchange(&asked.request)?;
        ensure!(response.status == 200, "{response}");
        let run = response.header("modelless-run-ms").context("how long it ran")?.parse()?;
        runs.lock().map_err(|_| anyhow::anyhow!("the other thread panicked"))?.push((started.elapsed(), run));
        thread::sleep(PACE);
    }
    Ok(())
}

/// How much slower than its profile the node says that the variant is.
fn slowdown(server: &Server, asked: &Asked) -> Result<f64> {
    let nodes = server.get_json("/v1/replicas")?;
    let all = nodes["replicas"].as_array().context("replicas")?;
    let replica = all.iter().find(|replica| replica["variant_id"] == asked.variant);
    Ok(replica.and_then(|replica| replica["slowdown"]["ratio"].as_f64()).unwrap_or(1.0))
}

fn mean(seen: &Seen, from: Duration, to: Duration) -> Result<f64> {
    let inside: Vec<f64> = seen.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, v)| *v).collect();
    ensure!(!inside.is_empty(), "nothing was seen between {from:?} and {to:?}");
    let count = u32::try_from(inside.len()).map_or(f64::MAX, f64::from);
    Ok(inside.iter().sum::<f64>() / count)
}

fn tenths(seen: &Seen) -> Seen {
    let mut all = Seen::new();
    for chunk in seen.chunks(10) {
        let count = u32::try_from(chunk.len()).map_or(f64::MAX, f64::from);
        let sum: f64 = chunk.iter().map(|(_, value)| value).sum();
        all.push((chunk[0].0, sum / count));
    }
    all
}

/// Seconds from `from` until what is predicted is within [`WITHIN`] of what is `wanted` and stays so for [`STAYS`]; all of the
/// time, if it never does.
fn back_within(predicted: &Seen, before: f64, from: Duration, to: Duration, wanted: f64) -> f64 {
    let right = |value: f64| (value / before / wanted - 1.0).abs() <= WITHIN;
    let mut since = None;
    for (at, value) in predicted.iter().filter(|(at, _)| (from..to).contains(at)) {
        if right(*value) {
            let since = *since.get_or_insert(*at);
            if at.saturating_sub(since) >= STAYS {
                return since.saturating_sub(from).as_secs_f64();
            }
        } else {
            since = None;
        }
    }
    to.saturating_sub(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_for_a_moment_only_does_not_count() {
        let seconds = Duration::from_secs_f64;
        let seen: Seen = [(0.0, 1.0), (1.0, 2.0), (1.5, 1.2), (2.0, 1.9), (3.0, 2.1), (4.0, 2.0), (5.0, 2.0)]
            .map(|(at, value)| (seconds(at), value))
            .to_vec();
        assert!((back_within(&seen, 1.0, seconds(0.5), seconds(6.0), 2.0) - 1.5).abs() < 1e-9);
        assert!((back_within(&seen, 1.0, seconds(0.5), seconds(6.0), 5.0) - 5.5).abs() < 1e-9);
        assert!((mean(&seen, seconds(3.0), seconds(6.0)).unwrap() - 6.1 / 3.0).abs() < 1e-9);
        assert!(mean(&seen, seconds(7.0), seconds(8.0)).is_err());
    }
}
