//! ONNX Runtime called in a loop in one process, in batches: the ceiling that served throughput is compared with.
//!
//! `ort-batch LIBRARY MODEL THREADS SEED [cold]`, then questions
//!
//! * `{"batch": N, "ms": TIME}`. One round is what any program must do: wrap the inputs, run, read the outputs. What each answer
//!   needs besides (its own input in the batch, its own words) is not in it;
//! * `{"first": true}`: how long this process's first session took, with the library mapped and its environment made. Started
//!   with `cold`, the kernel had forgotten the file;
//! * `{"create": N, "cold": BOOL}`: so many sessions, one after the other, from the file; with `cold` the kernel has forgotten it.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use modelless_bench::timing::{nanos, percentiles};
use modelless_testkit::{Rng, process, turns};
use modelless_types::{DType, TensorSpec};
use ort::session::{Session, SessionInputValue};
use ort::value::{TensorElementType, TensorRef};
use serde_json::{Value, json};

/// An input of the model, filled for the largest batch asked for so far.
struct Input {
    spec: TensorSpec,
    values: Vec<u8>,
}

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
    let mut inputs = session.inputs().iter().map(input).collect::<Result<Vec<_>>>()?;
    let mut rng = Rng::new(seed.parse()?);
    turns::serve(|question| {
        if question["first"].as_bool().unwrap_or(false) {
            return Ok(json!({"create_ns": first}));
        }
        if let Some(count) = question["create"].as_u64() {
            let cold = question["cold"].as_bool().unwrap_or(false);
            return created(&create, count, cold.then(|| Path::new(model)));
        }
        let batch = usize::try_from(question["batch"].as_u64().context("`batch`")?)?;
        let time = Duration::from_millis(question["ms"].as_u64().context("`ms`")?);
        rounds(&mut session, &mut inputs, batch, time, &mut rng)
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

fn input(outlet: &ort::value::Outlet) -> Result<Input> {
    let dtype = match outlet.dtype().tensor_type() {
        Some(TensorElementType::Float32) => DType::Fp32,
        Some(TensorElementType::Int64) => DType::Int64,
        other => bail!("the input {} is of type {other:?}", outlet.name()),
    };
    let shape = outlet.dtype().tensor_shape().context("an input is no tensor")?;
    // The first axis is the batch; all others must be fixed.
    let shape = shape[1..].iter().map(|&axis| Ok(u32::try_from(axis)?)).collect::<Result<Vec<_>>>();
    let shape =
        shape.with_context(|| format!("the input {} has an open axis besides the batch", outlet.name()))?;
    Ok(Input { spec: TensorSpec { name: outlet.name().to_owned(), dtype, shape }, values: Vec::new() })
}

fn rounds(
    session: &mut Session,
    inputs: &mut [Input],
    batch: usize,
    time: Duration,
    rng: &mut Rng,
) -> Result<Value> {
    for input in inputs.iter_mut() {
        let item = input.spec.item_bytes().context("a fixed size")?;
        while input.values.len() < item * batch {
            input.values.extend(modelless_bench::random(std::slice::from_ref(&input.spec), rng)?);
        }
    }
    let inputs: Vec<Typed> = inputs.iter().map(|input| typed(input, batch)).collect::<Result<_>>()?;
    let mut once = || -> Result<()> {
        let values = inputs.iter().map(Typed::value).collect::<Result<Vec<_>>>()?;
        let outputs = session.run(values.as_slice())?;
        let (_, values) = outputs[0].try_extract_tensor::<f32>()?;
        ensure!(values[0].is_finite(), "an output that is no number");
        Ok(())
    };
    for _ in 0..3 {
        once()?;
    }
    let (cpu, since) = (process::own_cpu_time(), Instant::now());
    let mut latencies = Vec::new();
    while since.elapsed() < time || latencies.len() < 3 {
        let started = Instant::now();
        once()?;
        latencies.push(nanos(started.elapsed()));
    }
    let wall = since.elapsed();
    let items = batch * latencies.len();
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let rate = items as f64 / wall.as_secs_f64();
    Ok(json!({
        "batch": batch, "items": items, "per_second": rate, "latency": percentiles(&latencies),
        "wall_ns": nanos(wall), "cpu_ns": nanos(process::own_cpu_time().saturating_sub(cpu)),
    }))
}

/// The values of an input in their own type, so that a round copies nothing.
enum Typed {
    Floats(Vec<i64>, Vec<f32>),
    Integers(Vec<i64>, Vec<i64>),
}

impl Typed {
    fn value(&self) -> Result<SessionInputValue<'_>> {
        Ok(match self {
            Self::Floats(shape, values) => {
                TensorRef::from_array_view((shape.clone(), values.as_slice()))?.into()
            }
            Self::Integers(shape, values) => {
                TensorRef::from_array_view((shape.clone(), values.as_slice()))?.into()
            }
        })
    }
}

fn typed(input: &Input, batch: usize) -> Result<Typed> {
    let bytes = &input.values[..input.spec.item_bytes().context("a fixed size")? * batch];
    let mut shape = vec![i64::try_from(batch)?];
    shape.extend(input.spec.shape.iter().map(|&axis| i64::from(axis)));
    Ok(match input.spec.dtype {
        DType::Fp32 => {
            let (values, _) = bytes.as_chunks();
            Typed::Floats(shape, values.iter().map(|&four| f32::from_le_bytes(four)).collect())
        }
        DType::Int64 => {
            let (values, _) = bytes.as_chunks();
            Typed::Integers(shape, values.iter().map(|&eight| i64::from_le_bytes(eight)).collect())
        }
        DType::Bool
        | DType::Uint8
        | DType::Int8
        | DType::Int32
        | DType::Fp16
        | DType::Fp64
        | DType::Bytes => bail!("inputs of {} are not made here", input.spec.dtype.name()),
    })
}
