//! Whether what is simulated is what happens: a server answers real pictures with real models, and what came of it stands beside what
//! `modelless simulate --from-live --recording` says of the very same arrivals.
//!
//! Nothing of the simulator was fitted to this but what things took: the server measures its profiles as ever, the traffic is a recorded day of ServeGen's m-small
//! pressed into a minute, of four kinds of queries (a low or a high floor, a tight or a loose bound). How long things take beside all that decodes
//! and asks on the same machine is taken from the recording of *another* round of the same load, which drew other arrivals (in the short form, of one round, from its own); what its own recording would have led to stands beside it. Live figures are those of who asks, over
//! HTTP, pictures and all; a query counts from when it should have come. Beside them stand those of the gateway, from when a query is routed until its
//! answer is there: what lies between the two is the way over HTTP and the making of tensors, of which the simulator knows nothing.
//!
//! Each load has a server of its own, whose data is that of the one before, so that a recording has one load in it. What is simulated is so at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, TempDir, stats, wait};
use serde_json::{Value, json};

use super::batches::Batches;
use super::cluster::{count, ended_of, ms};
use super::ladder::{Kind, Ladder, kinds, variants};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "parity",
    what: "what is simulated of a recorded run beside what came of it live: real models and pictures, floors and bounds, three loads",
    run: measure,
};

const TRACE: &str = "simulator/data/traces/servegen_m-small_day2_top24.csv";
/// Windows of 600 s in a day.
const WINDOWS: f64 = 144.0;
/// Mean rates, as parts of what the lane does with the cheapest variants that keep the floors.
const LOADS: [f64; 3] = [0.3, 0.6, 0.9];
const ROUNDS: u64 = 3;
/// What is simulated is drawn: the mean of so many seeds.
const SEEDS: u64 = 3;
const CONNECTIONS: u32 = 48;
/// More a second than this is no matter of models that take their time: what is asked would be all that a recording can keep up with.
const MOST_PER_SECOND: f64 = 500.0;
/// Violations may be so many points apart, and mean latencies by such a part of what is live.
const POINTS: f64 = 2.0;
const APART: f64 = 15.0;

fn measure(context: &Context) -> Result<Outcome> {
    let ladder = Ladder::of(context)?;
    let folder = modelless_testkit::temp_dir("parity")?;
    let data = folder.path().join("data");
    let first = server(context, &data, None)?;
    demo::register_with(&first, &ladder.package, &["--budget", context.choose("none", "3s")])?;
    let asked = Asked::of(&first, ladder)?;
    first.stop()?;
    let loads = &LOADS[..context.choose(LOADS.len(), 1)];
    let mut ran = Vec::new();
    for round in 0..context.choose(ROUNDS, 1) {
        for load in loads {
            ran.push(one(context, &data, &asked, *load, context.seed + round)?);
        }
    }
    let last = server(context, &data, None)?;
    let rows: Vec<Row> = (0..ran.len())
        .map(|at| foretold(&last, &ran[at], &ran[(at + loads.len()) % ran.len()]))
        .collect::<Result<_>>()?;
    last.stop()?;
    let (mut told, mut checks, mut summary) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for load in loads {
        let of = |value: &dyn Fn(&Row) -> f64| -> Result<f64> {
            let here = rows.iter().filter(|row| row.ran.load.to_bits() == load.to_bits());
            stats::median(&here.map(value).collect::<Vec<f64>>()).context("no round")
        };
        let points = of(&|row| row.points())?;
        let (apart, gateway) =
            (of(&|row| row.apart(row.ran.live.mean_ms))?, of(&|row| row.apart(row.ran.gateway.mean_ms))?);
        told.push(format!(
            "{:.0} a second ({load:.1} of what the cheapest could do): {:.2} % violated live, {:.2} simulated; mean latency {:.1} ms ({:.1} at the \
             gateway), {:.1} simulated; accuracy {:.4}, {:.4} simulated",
            of(&|row| row.ran.per_second)?,
            of(&|row| row.ran.live.violations)?,
            of(&|row| row.simulated.violations)?,
            of(&|row| row.ran.live.mean_ms)?,
            of(&|row| row.ran.gateway.mean_ms)?,
            of(&|row| row.simulated.mean_ms)?,
            of(&|row| row.ran.live.accuracy.unwrap_or(f64::NAN))?,
            of(&|row| row.simulated.accuracy.unwrap_or(f64::NAN))?,
        ));
        summary.insert(
            format!("{load:.1}"),
            json!({
                "violations_apart_points_median": points, "latency_apart_percent_median": apart,
                "latency_apart_at_gateway_percent_median": gateway,
            }),
        );
        checks.push(Check {
            what: "violations, simulated from live",
            value: points,
            limit: context.choose(POINTS, 100.0),
            unit: "points",
        });
        checks.push(Check {
            what: "mean latency, simulated from live",
            value: apart,
            limit: context.choose(APART, 10_000.0),
            unit: "%",
        });
    }
    Ok(Outcome {
        seeds: (0..context.choose(ROUNDS, 1)).map(|round| context.seed + round).collect(),
        result: format!("{}, one lane, {}: {}", asked.task, asked.said(), told.join("; ")),
        summary: Value::Object(summary),
        repetitions: rows.iter().map(Row::json).collect(),
        checks,
    })
}

fn server(context: &Context, data: &Path, record: Option<&Path>) -> Result<Server> {
    let mut server = Server::builder().binary(context.binary()?).data(data).arg("--lanes").arg("1");
    if let Some(folder) = record {
        server = server.arg("--record").arg(folder);
    }
    server.ready_within(Duration::from_mins(2)).start()
}

/// What is asked.
struct Asked {
    task: &'static str,
    pictures: Vec<std::path::PathBuf>,
    kinds: Vec<Kind>,
    accuracy: BTreeMap<String, f64>,
    /// What the lane does with the cheapest variants.
    most_per_second: f64,
}

impl Asked {
    fn of(server: &Server, ladder: Ladder) -> Result<Self> {
        let get = |what: &str| server.get_json(&format!("/v1/{what}?task={}", ladder.task));
        let all = variants(&get("profiles")?, &get("variants")?)?;
        let (_, kinds) = kinds(&all)?;
        let singles: f64 = kinds.iter().map(|kind| kind.cheapest.single_ms).sum();
        let most_per_second = (count(kinds.len())? * 1e3 / singles).min(MOST_PER_SECOND);
        let accuracy = all.into_iter().map(|variant| (variant.name, variant.accuracy)).collect();
        Ok(Self { task: ladder.task, pictures: ladder.pictures, kinds, accuracy, most_per_second })
    }

    fn streams(&self) -> Vec<Value> {
        let of = |kind: &Kind| {
            json!({
                "target": format!("/v1/tasks/{}?accuracy={:.4}&latency_ms={}", self.task, kind.floor, ms(kind.bound)),
                "files": self.pictures, "content_type": "image/png", "by": "modelless-variant",
            })
        };
        self.kinds.iter().map(of).collect()
    }

    fn said(&self) -> String {
        let kind = |kind: &Kind| format!("{:.4} within {} ms", kind.floor, kind.bound.as_millis());
        self.kinds.iter().map(kind).collect::<Vec<_>>().join(", ")
    }
}

/// What came of a load, by whoever tells.
struct Came {
    /// Per cent.
    violations: f64,
    /// From a query to its answer.
    mean_ms: f64,
    /// Of answers in time; a gateway's recording does not tell it.
    accuracy: Option<f64>,
    told: Value,
}

/// A load of a round, live.
struct Ran {
    load: f64,
    per_second: f64,
    seed: u64,
    live: Came,
    gateway: Came,
    batches: Batches,
    recording: TempDir,
}

/// And simulated.
struct Row<'a> {
    ran: &'a Ran,
    /// By what things took in another round.
    simulated: Came,
    /// By what they took in its own.
    by_its_own: Came,
}

impl Row<'_> {
    fn points(&self) -> f64 {
        (self.simulated.violations - self.ran.live.violations).abs()
    }

    /// Per cent of what was seen.
    fn apart(&self, seen_ms: f64) -> f64 {
        100.0 * (self.simulated.mean_ms / seen_ms - 1.0).abs()
    }

    fn json(&self) -> Value {
        let came = |came: &Came| {
            json!({
                "violations_percent": came.violations, "mean_ms": came.mean_ms, "accuracy": came.accuracy, "told": came.told,
            })
        };
        let Ran { load, per_second, seed, live, gateway, batches, recording: _ } = self.ran;
        json!({
            "load": load, "per_second": per_second, "seed": seed, "live": came(live), "at_the_gateway": came(gateway),
            "simulated": came(&self.simulated), "simulated_by_its_own_times": came(&self.by_its_own), "batches": batches.json(),
        })
    }
}

fn foretold<'a>(server: &Server, ran: &'a Ran, other: &Ran) -> Result<Row<'a>> {
    let by = |times: &Ran| simulated(server, ran.recording.path(), times.recording.path(), ran.seed);
    Ok(Row { ran, simulated: by(other)?, by_its_own: by(ran)? })
}

fn one(context: &Context, data: &Path, asked: &Asked, load: f64, seed: u64) -> Result<Ran> {
    let lasts = context.choose(Duration::from_mins(1), Duration::from_secs(4));
    let recording = modelless_testkit::temp_dir("recording")?;
    let server = server(context, data, Some(recording.path()))?;
    settles(&server)?;
    let per_second = asked.most_per_second * load;
    let longest = asked.kinds.iter().map(|kind| kind.bound).max().unwrap_or_default();
    let mut side = demo::load(context, &server, &asked.streams())?;
    let raw = side.ask(&json!({
        "do": "day", "servegen": context.root.join(TRACE), "window_s": lasts.as_secs_f64() / WINDOWS, "per_second": per_second,
        "ms": ms(lasts), "seed": seed, "connections": CONNECTIONS, "patience_ms": ms(longest) + 1_500,
    }))?;
    let (live, sent) = live(&raw, asked)?;
    let log = recording.path().join("router.jsonl");
    // It is written beside what is answered.
    wait::until(Duration::from_secs(20), || {
        let came = fs::read_to_string(&log)?.matches("\"Arrive\"").count();
        Ok(if came >= sent { Ok(()) } else { Err(format!("{came} of {sent} queries are recorded")) })
    })?;
    let gateway = recorded(&fs::read_to_string(&log)?)?;
    let batches = Batches::recorded(&fs::read_to_string(recording.path().join("worker.jsonl"))?)?;
    server.stop()?;
    Ok(Ran { load, per_second, seed, live, gateway, batches, recording })
}

/// Waits until what is planned is in memory.
fn settles(server: &Server) -> Result<()> {
    wait::until(Duration::from_mins(1), || {
        let answer = server.get_json("/v1/replicas")?;
        let replicas = answer["replicas"].as_array().context("replicas")?;
        let of = |state: &str| replicas.iter().filter(|one| one["state"] == state).count();
        Ok(if of("active") > 0 && of("loading") == 0 { Ok(()) } else { Err(answer.to_string()) })
    })
}

/// As whoever asks sees it; and how many were asked.
fn live(raw: &Value, asked: &Asked) -> Result<(Came, usize)> {
    let streams = raw["streams"].as_array().context("streams")?;
    ensure!(streams.len() == asked.kinds.len(), "a stream for each kind");
    let (mut took, mut good, mut sent, mut why) = (Vec::new(), Vec::new(), 0, BTreeMap::<String, u32>::new());
    for (stream, kind) in streams.iter().zip(&asked.kinds) {
        for ended in ended_of(stream)? {
            sent += 1;
            let name = match &ended.how {
                Ok(name) => name,
                Err(failed) => {
                    *why.entry(failed.clone()).or_default() += 1;
                    continue;
                }
            };
            let accuracy = *asked
                .accuracy
                .get(name)
                .with_context(|| format!("{name} answered, which nobody registered"))?;
            ensure!(accuracy >= kind.floor, "{name} answered below {:.4}", kind.floor);
            let ms = Duration::from_micros(ended.took_us).as_secs_f64() * 1e3;
            took.push(ms);
            if ms <= kind.bound.as_secs_f64() * 1e3 {
                good.push(accuracy);
            }
        }
    }
    let violations = 100.0 * (1.0 - count(good.len())? / count(sent)?);
    let told =
        json!({"sent": sent, "answered": took.len(), "failed": why, "p99_ms": stats::percentile(&took, 99)});
    Ok((Came { violations, mean_ms: mean(&took)?, accuracy: Some(mean(&good)?), told }, sent))
}

fn mean(values: &[f64]) -> Result<f64> {
    Ok(values.iter().sum::<f64>() / count(values.len().max(1))?)
}

/// As the gateway sees it, of its recording: from a query's arrival until its node's answer is there.
fn recorded(text: &str) -> Result<Came> {
    let mut open: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let (mut took, mut late, mut came) = (Vec::new(), 0, 0);
    for (number, line) in text.lines().enumerate() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let event = &line["event"];
        if let Some(query) = event.get("Arrive") {
            let number_of =
                |name: &str| query[name].as_u64().with_context(|| format!("line {number}: no {name}"));
            came += 1;
            open.insert(number_of("key")?, (number_of("arrived")?, number_of("deadline")?));
        } else if let Some(finished) = event.get("Finished") {
            let (key, at) =
                (finished["key"].as_u64().context("a key")?, line["now"].as_u64().context("`now`")?);
            if finished["end"].get("Answered").is_some()
                && let Some((arrived, deadline)) = open.remove(&key)
            {
                took.push(Duration::from_micros(at.saturating_sub(arrived)).as_secs_f64() * 1e3);
                late += u32::from(at > deadline);
            }
        }
    }
    ensure!(!took.is_empty(), "nothing was answered");
    let violations = 100.0 * (1.0 - (count(took.len())? - f64::from(late)) / count(came)?);
    Ok(Came {
        violations,
        mean_ms: mean(&took)?,
        accuracy: None,
        told: json!({"came": came, "answered": took.len(), "late": late}),
    })
}

/// What the command line says of it.
fn simulated(server: &Server, recording: &Path, times: &Path, seed: u64) -> Result<Came> {
    let (folder, times, url) = (recording.to_string_lossy(), times.to_string_lossy(), server.url());
    let (mut violations, mut mean_ms, mut accuracy, mut told) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for seed in seed..seed + SEEDS {
        let seed = seed.to_string();
        let said = [
            "simulate",
            "--from-live",
            &url,
            "--recording",
            &folder,
            "--times-of",
            &times,
            "--json",
            "--seed",
            &seed,
        ];
        let output = server.command(&said)?;
        ensure!(
            output.status.success(),
            "`modelless simulate` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let report: Value = serde_json::from_slice(&output.stdout).context("a report")?;
        let total = &report["outcome"]["total"];
        let number = |value: &Value| value.as_f64().with_context(|| format!("a number in {total}"));
        violations.push(100.0 * number(&total["violations"])?);
        mean_ms.push(number(&total["mean_latency"])? / 1e3);
        accuracy.push(number(&total["accuracy"])?);
        told.push(json!({"refused": total["refused"], "late": total["late"], "variants": total["variants"]}));
    }
    Ok(Came {
        violations: mean(&violations)?,
        mean_ms: mean(&mean_ms)?,
        accuracy: Some(mean(&accuracy)?),
        told: Value::Array(told),
    })
}
