//! How long the first query takes of a task that sleeps: from asking to the answer, over what has to be done for it.
//!
//! The task falls asleep for real, by its own policy, and what its process held is seen to be free. Then one query comes over HTTP. Beside
//! each wake-up the same model is loaded by an engine alone, in a process that has not loaded it before, which is the least that has to be done; and the
//! same query is asked again once the model is there, which is the run. What is left is what waking adds: finding out that it has to be loaded, asking
//! for it, the line, and the way back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Connection, Request, Rng, Server, process, stats, wait};
use serde_json::{Map, Value, json};

use super::cold_start::firsts;
use super::models::{Model, cnn_m, made};
use super::{Check, Context, Measure, Outcome, demo};

pub(crate) const MEASURE: Measure = Measure {
    name: "wake",
    what: "from a query for a task that sleeps to its answer, over loading its model by an engine alone and the run",
    run: measure,
};

/// The shortest there is. It is no part of what is measured.
const KEEP: &str = "5s";
const PATIENCE: Duration = Duration::from_mins(2);
/// Queries that are asked once it is awake, for the run's time.
const RUNS: usize = 20;

/// One wake-up, in microseconds.
struct Woken {
    /// From sending the query to its answer.
    query: f64,
    /// The load, as the node's own history tells it.
    load: f64,
    /// The same model, loaded by an engine alone beside it.
    alone: f64,
    /// The query once the model is there.
    run: f64,
    /// What the task's processes held before it slept, and while it did.
    held: (u64, u64),
    /// What was told beforehand that it would take.
    told: f64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let mut models = vec![cnn_m(&context.root)];
    if !context.short {
        models.push(made(&context.root, "efficientnet_lite0")?);
        models.push(made(&context.root, "minilm_l6")?);
    }
    let rounds = context.choose(9, 1);
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    for model in &models {
        let woken = of(context, model, rounds)?;
        let ratios: Vec<f64> = woken.iter().map(|woken| woken.query / (woken.alone + woken.run)).collect();
        let median = |of: &dyn Fn(&Woken) -> f64| {
            stats::median(&woken.iter().map(of).collect::<Vec<_>>()).context("no rounds")
        };
        let (ratio, worst) = (
            stats::median(&ratios).context("no rounds")?,
            stats::percentile(&ratios, 100).context("no rounds")?,
        );
        let (query, load) = (median(&|w| w.query)?, median(&|w| w.load)?);
        let (alone, run, told) = (median(&|w| w.alone)?, median(&|w| w.run)?, median(&|w| w.told)?);
        let freed = woken.iter().map(|woken| woken.held.0.saturating_sub(woken.held.1)).min().unwrap_or(0);
        results.push(format!(
            "{}: {:.1} ms, {ratio:.2} times (worst {worst:.2}) an engine's load alone of {:.1} ms and a run of {:.1} ms; loaded in {:.1} ms \
             here, and {:.1} ms were told beforehand; {:.0} MB were free while it slept",
            model.name,
            query / 1e3,
            alone / 1e3,
            run / 1e3,
            load / 1e3,
            told / 1e3,
            super::idle_memory::mb(freed),
        ));
        let value = json!({
            "query_us": query, "load_us": load, "alone_us": alone, "run_us": run, "told_us": told, "over_median": ratio, "over_worst": worst,
            "freed_bytes": freed,
        });
        summary.insert(model.name.to_owned(), value);
        // A development build is slow beside an engine that is not one.
        checks.push(Check { what: what(model), value: ratio, limit: context.choose(1.5, 500.0), unit: "" });
        let row = |w: &Woken| {
            json!({"query_us": w.query, "load_us": w.load, "alone_us": w.alone, "run_us": w.run, "told_us": w.told,
                "held_bytes": w.held.0, "held_asleep_bytes": w.held.1})
        };
        rows.push(json!({"model": model.name, "rounds": woken.iter().map(row).collect::<Vec<_>>()}));
    }
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

fn what(model: &Model) -> &'static str {
    match model.name {
        "cnn_m" => "cnn_m over load and run, median",
        "efficientnet_lite0" => "efficientnet_lite0 over load and run, median",
        _ => "minilm_l6 over load and run, median",
    }
}

fn of(context: &Context, model: &Model, rounds: usize) -> Result<Vec<Woken>> {
    let server = Server::builder().binary(context.binary()?).start()?;
    demo::register(&server, &model.package)?;
    let query = request(model, context.seed);
    let change = Request::new("PATCH", &format!("/v1/tasks/{}", model.task)).json(&json!({"keep": KEEP}));
    let changed = server.send(&change)?;
    ensure!(changed.status == 200, "{changed}");
    let mut all = Vec::new();
    // The first is not counted: it finds everything new.
    for round in 0..=rounds {
        let mut connection = Connection::open(server.address())?;
        // Awake, and used, so that there is something to give back.
        answered(&mut connection, &query)?;
        let awake = held(&server)?;
        let task = asleep(&server, model)?;
        let asleep = held(&server)?;
        ensure!(asleep < awake, "{asleep} of {awake} bytes are held while the task sleeps");
        let told = task["wake_ms"].as_f64().context("what waking would take is not told")? * 1e3;
        let woken = answered(&mut connection, &query)?;
        let load = loaded_in(&server, model)?;
        let runs = (0..RUNS).map(|_| answered(&mut connection, &query)).collect::<Result<Vec<f64>>>()?;
        let run = stats::median(&runs).context("no runs")?;
        let alone =
            stats::median(&firsts(context, model, context.choose(5, 1), false)?).context("no loads")?;
        if round > 0 {
            all.push(Woken { query: woken, load, alone, run, held: (awake, asleep), told });
        }
    }
    server.stop()?;
    Ok(all)
}

/// The same input in every round: what is measured is not how inputs differ.
fn request(model: &Model, seed: u64) -> Vec<u8> {
    let target = format!("/v1/tasks/{}?variant={}&latency_ms=60000", model.task, model.variant);
    let request = Request::post(&target).header("content-type", "application/octet-stream");
    request.body(model.body(&mut Rng::new(seed))).to_bytes()
}

/// How long a query takes that must be answered, in microseconds.
fn answered(connection: &mut Connection, query: &[u8]) -> Result<f64> {
    let begun = Instant::now();
    let answer = connection.exchange_bytes(query, false)?;
    let took = begun.elapsed().as_secs_f64() * 1e6;
    ensure!(answer.status == 200, "nothing may be refused: {answer}");
    Ok(took)
}

/// What the server's runners hold together.
fn held(server: &Server) -> Result<u64> {
    // One may end between the two looks.
    Ok(server.runners()?.iter().filter_map(|runner| process::resident_bytes(runner.pid()).ok()).sum())
}

/// Until the task sleeps and nothing of it is in memory; the task then.
fn asleep(server: &Server, model: &Model) -> Result<Value> {
    wait::until(PATIENCE, || {
        let task = server.get_json(&format!("/v1/tasks/{}", model.task))?;
        let replicas = server.get_json("/v1/replicas")?;
        let all = replicas["replicas"].as_array().into_iter().flatten();
        let out =
            all.filter(|replica| replica["task"] == model.task).all(|replica| replica["state"] == "inactive");
        let asleep = task["asleep"] == true && out && task["wake_ms"].is_number();
        Ok(if asleep { Ok(task) } else { Err(replicas.to_string()) })
    })
    .context("it never fell asleep")
}

/// How long the last load took, by the node's own history.
fn loaded_in(server: &Server, model: &Model) -> Result<f64> {
    let replicas = server.get_json("/v1/replicas")?;
    let all = replicas["replicas"].as_array().into_iter().flatten();
    let found = all.filter(|replica| replica["variant"] == model.variant).find_map(|replica| {
        replica["loads"]["warm_ms"].as_f64().or_else(|| replica["loads"]["cold_ms"].as_f64())
    });
    Ok(found.with_context(|| format!("no load is told of: {replicas}"))? * 1e3)
}
