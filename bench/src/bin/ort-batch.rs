//! ONNX Runtime called in a loop in one process, in batches: the ceiling that served throughput is compared with.
//!
//! `ort-batch LIBRARY MODEL THREADS SEED [cold]`, then questions
//!
//! * `{"batch": N, "ms": TIME}`. One round is what any program must do: wrap the inputs, run, read the outputs. What each answer
//!   needs besides (its own input in the batch, its own words) is not in it;
//! * `{"first": true}`: how long this process's first session took, with the library mapped and its environment made. Started
//!   with `cold`, the kernel had forgotten the file;
//! * `{"open": true, ...}`: batches of what has come by then, see [`modelless_bench::bare::open`];
//! * `{"answer": [[NUMBER, ...], ...]}`: what the model answers to each of these, alone, see [`modelless_bench::bare::answers`];
//! * `{"create": N, "cold": BOOL}`: so many sessions, one after the other, from the file; with `cold` the kernel has forgotten it.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use modelless_bench::bare;
use modelless_bench::timing::{nanos, percentiles};
use modelless_testkit::{Rng, turns};
use ort::session::Session;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (cold, args) = match args.split_last() {
        Some((last, others)) if last == "cold" => (true, others),
        _ => (false, args.as_slice()),
    };
    let [library, model, threads, seed] = args else {
        bail!("usage: ort-batch LIBRARY MODEL THREADS SEED [cold]");
    };
    let environment = ort::init_from(library)?.build()?;
    let threads = threads.parse()?;
    let create = || -> Result<Session> {
        let failed = |error: ort::Error<_>| anyhow::anyhow!("{error}");
        let builder = Session::builder(&environment)?.with_intra_threads(threads).map_err(failed)?;
        let mut builder = builder.with_inter_threads(1).map_err(failed)?;
        builder.commit_from_file(model).with_context(|| format!("loading {model}"))
    };
    if cold {
        modelless_bench::timing::forget(Path::new(model))?;
    }
    let started = Instant::now();
    let mut session = create()?;
    let first = nanos(started.elapsed());
    let mut inputs = bare::inputs(&session)?;
    let mut rng = Rng::new(seed.parse()?);
    turns::serve(|question| {
        if question["first"].as_bool().unwrap_or(false) {
            return Ok(json!({"create_ns": first}));
        }
        if let Some(count) = question["create"].as_u64() {
            let cold = question["cold"].as_bool().unwrap_or(false);
            return created(&create, count, cold.then(|| Path::new(model)));
        }
        if let Some(items) = question["answer"].as_array() {
            return bare::answers(&mut session, &inputs, items);
        }
        if question["open"].as_bool().unwrap_or(false) {
            bare::fill(&mut inputs, bare::LARGEST, &mut rng)?;
            return bare::open(&mut session, &inputs, question);
        }
        let batch = usize::try_from(question["batch"].as_u64().context("`batch`")?)?;
        let time = Duration::from_millis(question["ms"].as_u64().context("`ms`")?);
        bare::fill(&mut inputs, batch, &mut rng)?;
        bare::rounds(&mut session, &inputs, batch, time)
    })
}

fn created(create: &dyn Fn() -> Result<Session>, count: u64, forget: Option<&Path>) -> Result<Value> {
    let mut took = Vec::new();
    for _ in 0..count {
        forget.map(modelless_bench::timing::forget).transpose()?;
        let started = Instant::now();
        let session = create()?;
        took.push(nanos(started.elapsed()));
        drop(session);
    }
    Ok(json!({"create": percentiles(&took), "create_ns": took}))
}
