//! What a model answers in a second through the executor, against the best batch size run in a loop in one process.
//!
//! Both sides have the machine in turns. The executor is linked into the program that loads it and keeps its queue full
//! within its credit; the engine runs in its own process, with one thread. The direct side runs batches of 1 to 64, and
//! the best of them is the ceiling. Beside it, without a bound, the same through a whole server over HTTP.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::turns::Side;
use modelless_testkit::{Server, stats};
use serde_json::{Value, json};

use super::models::{Model, cnn_m, made};
use super::{Check, Context, Measure, Outcome};

pub(crate) const MEASURE: Measure = Measure {
    name: "throughput",
    what: "peak throughput through the executor over the best batch size in one process, 1 thread, 1 lane",
    run: measure,
};

const BATCHES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

fn measure(context: &Context) -> Result<Outcome> {
    let mut models = vec![cnn_m(&context.root)];
    if !context.short {
        models.push(made(&context.root, "efficientnet_lite0")?);
        models.push(made(&context.root, "minilm_l6")?);
    }
    let (mut rows, mut results, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    let mut summary = serde_json::Map::new();
    for model in &models {
        let found = compare(context, model)?;
        let (median, worst) = spread(&found.shares)?;
        results.push(format!(
            "{}: {median:.2} of {:.0} a second (worst {worst:.2}; batches of {} in one process), over HTTP {:.0} a second",
            model.name, found.direct, found.best, found.http
        ));
        let limit = context.choose(0.1, 0.9);
        checks.push(Check { what: of(model), value: 1.0 - median, limit, unit: "of the ceiling" });
        summary.insert(
            model.name.to_owned(),
            json!({
                "share_median": median, "share_worst": worst, "best_batch": found.best,
                "direct_per_second_median": found.direct, "http_per_second_median": found.http,
            }),
        );
        rows.push(json!({"model": model.name, "rounds": found.raw}));
    }
    Ok(Outcome {
        seeds: vec![context.seed],
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

fn of(model: &Model) -> &'static str {
    match model.name {
        "cnn_m" => "lost by cnn_m",
        "efficientnet_lite0" => "lost by efficientnet_lite0",
        _ => "lost by minilm_l6",
    }
}

struct Found {
    /// Through the executor over in one process, a round each.
    shares: Vec<f64>,
    best: u64,
    direct: f64,
    http: f64,
    raw: Vec<Value>,
}

fn compare(context: &Context, model: &Model) -> Result<Found> {
    let (rounds, ms) = context.choose((5, 2_000), (1, 500));
    let mut direct = direct(context, model)?;
    let mut executor = executor(context, model, None)?;
    let (best, sweep) = best_batch(&mut direct, context.choose(3, 1), ms / 4)?;
    let mut raw = vec![json!({"sweep": sweep, "profile": executor.ask(&json!({"do": "profile"}))?})];
    let (mut shares, mut rates) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let closed = json!({"do": "closed", "warm_ms": ms / 4, "ms": ms});
        let alone = json!({"batch": best, "ms": ms});
        let (served, looped) = if round % 2 == 0 {
            let served = executor.ask(&closed)?;
            (served, direct.ask(&alone)?)
        } else {
            let looped = direct.ask(&alone)?;
            (executor.ask(&closed)?, looped)
        };
        rates.push(rate(&looped)?);
        shares.push(rate(&served)? / rate(&looped)?);
        raw.push(json!({"executor": served, "direct": looped}));
    }
    drop((executor, direct));
    let http = over_http(context, model, rounds, ms)?;
    let median = |values: &[f64]| stats::median(values).context("no rounds");
    let found = Found {
        shares,
        best,
        direct: median(&rates)?,
        http: median(&http.iter().map(rate).collect::<Result<Vec<_>>>()?)?,
        raw: [raw, http.into_iter().map(|http| json!({"http": http})).collect()].concat(),
    };
    Ok(found)
}

/// Median and worst.
fn spread(shares: &[f64]) -> Result<(f64, f64)> {
    let of = |percent| stats::percentile(shares, percent).context("no rounds");
    Ok((of(50)?, of(0)?))
}

pub(crate) fn rate(answer: &Value) -> Result<f64> {
    answer["per_second"].as_f64().context("no rate was told")
}

pub(crate) fn direct(context: &Context, model: &Model) -> Result<Side> {
    let program = context.bench_program("ort-batch")?;
    let (onnx, seed) = (model.onnx.to_string_lossy(), context.seed.to_string());
    Side::start(&program, &[context.onnx_library()?, &onnx, "1", &seed])
}

/// An executor that batches in this way; `None` as the task says, which is the default.
pub(crate) fn executor(context: &Context, model: &Model, batching: Option<&str>) -> Result<Side> {
    let spec = json!({
        "library": context.onnx_library()?, "packages": [model.package], "batching": batching, "seed": context.seed,
    });
    Side::start(&context.bench_program("executor-load")?, &[&spec.to_string()])
}

/// The batch size with the highest rate, by the median of a few rounds through all of them.
fn best_batch(direct: &mut Side, rounds: usize, ms: u64) -> Result<(u64, Vec<Value>)> {
    let mut sweep = Vec::new();
    for _ in 0..rounds {
        for batch in BATCHES {
            sweep.push(direct.ask(&json!({"batch": batch, "ms": ms}))?);
        }
    }
    let mut best = (0, 0.0);
    for batch in BATCHES {
        let of = sweep.iter().filter(|row| row["batch"] == batch);
        let rates = of.map(rate).collect::<Result<Vec<_>>>()?;
        let median = stats::median(&rates).context("no rounds")?;
        if median > best.1 {
            best = (batch, median);
        }
    }
    ensure!(best.0 > 0, "nothing ran");
    Ok((best.0, sweep))
}

/// The same model behind a whole server, every connection asking again at once.
fn over_http(context: &Context, model: &Model, rounds: usize, ms: u64) -> Result<Vec<Value>> {
    let server = Server::builder().binary(context.binary()?).arg("--lanes").arg("1").start()?;
    super::demo::register(&server, &model.package)?;
    let mut load = super::demo::load(context, &server, &[model.stream(60_000)])?;
    let closed = json!({"do": "closed", "stream": 0, "connections": 96, "warm_ms": ms / 4, "ms": ms});
    let rounds = (0..rounds).map(|_| load.ask(&closed));
    let rounds = rounds.collect::<Result<Vec<_>>>()?;
    drop(load);
    server.stop()?;
    Ok(rounds)
}
