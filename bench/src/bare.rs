//! A model run by nothing but a loop in this process: in batches of one size as fast as they go, or of what has come by then, at times drawn
//! beforehand.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use modelless_testkit::{Rng, process, stats};
use modelless_types::{DType, TensorSpec};
use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::{TensorElementType, TensorRef};
use serde_json::{Value, json};

use crate::open::Gaps;
use crate::timing::{nanos, percentiles};

/// The largest batch of an open load.
pub const LARGEST: usize = 32;
/// What a batch is taken to last is this percentile of so many runs, or of as many as go into such a time.
const SURE: usize = 90;
const TRIED: usize = 200;
const LEAST: usize = 8;
const TRYING: Duration = Duration::from_millis(300);

/// An input of the model, filled for the largest batch asked for so far.
#[derive(Debug)]
pub struct Input {
    spec: TensorSpec,
    values: Vec<u8>,
}

/// A process may have one only.
static LIBRARY: Mutex<Option<Environment>> = Mutex::new(None);

/// A model that is opened by nothing but the library; what it runs with is that of every figure here, one thread.
pub fn open_alone(library: &str, model: &str) -> Result<Session> {
    let failed = |error: ort::Error<_>| anyhow::anyhow!("{error}");
    let mut known = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let environment = match &mut *known {
        Some(environment) => environment,
        none @ None => none.insert(ort::init_from(library)?.build()?),
    };
    let builder = Session::builder(environment)?;
    let builder = builder.with_intra_threads(1).map_err(failed)?;
    builder
        .with_inter_threads(1)
        .map_err(failed)?
        .commit_from_file(model)
        .with_context(|| format!("loading {model}"))
}

/// What the model takes, with no values yet.
pub fn inputs(session: &Session) -> Result<Vec<Input>> {
    session.inputs().iter().map(input).collect()
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

/// Fills inputs for batches of up to so many.
pub fn fill(inputs: &mut [Input], batch: usize, rng: &mut Rng) -> Result<()> {
    for input in inputs {
        let item = input.spec.item_bytes().context("a fixed size")?;
        while input.values.len() < item * batch {
            input.values.extend(crate::random(std::slice::from_ref(&input.spec), rng)?);
        }
    }
    Ok(())
}

/// One round: wrap the inputs, run, read the outputs.
fn once(session: &mut Session, inputs: &[Typed]) -> Result<()> {
    let values = inputs.iter().map(Typed::value).collect::<Result<Vec<_>>>()?;
    let outputs = session.run(values.as_slice())?;
    let (_, values) = outputs[0].try_extract_tensor::<f32>()?;
    ensure!(values[0].is_finite(), "an output that is no number");
    Ok(())
}

/// Batches of one size, one after the other.
pub fn rounds(session: &mut Session, inputs: &[Input], batch: usize, time: Duration) -> Result<Value> {
    let inputs: Vec<Typed> = inputs.iter().map(|input| typed(input, batch)).collect::<Result<_>>()?;
    for _ in 0..3 {
        once(session, &inputs)?;
    }
    let (cpu, since) = (process::own_cpu_time(), Instant::now());
    let mut latencies = Vec::new();
    while since.elapsed() < time || latencies.len() < 3 {
        let started = Instant::now();
        once(session, &inputs)?;
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

/// What the model answers to some items, each given as the numbers of all its inputs one after the other and run alone: the numbers of its first
/// output. What a server answers is held against these, in which none of its code had a part.
pub fn answers(session: &mut Session, inputs: &[Input], items: &[Value]) -> Result<Value> {
    let mut answer = |item: &Value| -> Result<Vec<f64>> {
        let mut rest = item.as_array().context("an item is a list of numbers")?.as_slice();
        let mut body = Vec::new();
        for Input { spec, .. } in inputs {
            let many = spec.shape.iter().map(|axis| usize::try_from(*axis)).product::<Result<usize, _>>()?;
            let (numbers, others) = rest.split_at_checked(many).context("an item has too few numbers")?;
            rest = others;
            for number in numbers {
                body.extend(bytes(spec.dtype, number)?);
            }
        }
        ensure!(rest.is_empty(), "an item has {} numbers too many", rest.len());
        answer(session, inputs, &body)
    };
    let answers = items.iter().map(&mut answer).collect::<Result<Vec<_>>>()?;
    Ok(json!({"answers": answers}))
}

/// The same of one item, given as the bytes of its inputs one after the other.
pub fn answer(session: &mut Session, inputs: &[Input], body: &[u8]) -> Result<Vec<f64>> {
    let (mut rest, mut own) = (body, Vec::new());
    for Input { spec, .. } in inputs {
        let many = spec.item_bytes().context("a fixed size")?;
        let (values, others) = rest.split_at_checked(many).context("an item has too few bytes")?;
        rest = others;
        own.push(typed(&Input { spec: spec.clone(), values: values.to_vec() }, 1)?);
    }
    ensure!(rest.is_empty(), "an item has {} bytes too many", rest.len());
    let values = own.iter().map(Typed::value).collect::<Result<Vec<_>>>()?;
    let outputs = session.run(values.as_slice())?;
    let (_, values) = outputs[0].try_extract_tensor::<f32>()?;
    Ok(values.iter().map(|value| f64::from(*value)).collect())
}

/// A number as it stands in a tensor.
#[expect(clippy::cast_possible_truncation, reason = "it was of this type before it was written")]
fn bytes(dtype: DType, number: &Value) -> Result<Vec<u8>> {
    let number = number.as_f64().context("an item has something that is no number")?;
    match dtype {
        DType::Fp32 => Ok((number as f32).to_le_bytes().into()),
        DType::Int64 => Ok((number as i64).to_le_bytes().into()),
        DType::Bool
        | DType::Uint8
        | DType::Int8
        | DType::Int32
        | DType::Fp16
        | DType::Fp64
        | DType::Bytes => bail!("an input is of {} and neither of FP32 nor of INT64", dtype.name()),
    }
}

/// Queries that come at random, as an executor is asked in `open`, with nothing between them and the model: nobody sends them, this loop looks at the
/// clock for who has come. Who came first leads; he goes in the largest batch of those who are there in which he is in time, and is refused
/// where he would be late alone, both by what nine of ten such batches took just before. What is late of this is late by the machine alone.
///
/// `{"per_second", "cv", "ms", "bound_us", "seed"}`.
pub fn open(session: &mut Session, inputs: &[Input], question: &Value) -> Result<Value> {
    let number = |name: &str| question[name].as_f64().with_context(|| format!("`{name}` in {question}"));
    let seed = question["seed"].as_u64().context("`seed`")?;
    let bound = Duration::from_secs_f64(number("bound_us")? / 1e6);
    let gaps = Gaps::new(number("per_second")?, number("cv")?, seed);
    let coming: Vec<Duration> = gaps.until(Duration::from_secs_f64(number("ms")? / 1e3)).collect();
    let mut by_size: Vec<Vec<Typed>> = Vec::new();
    let mut takes = Vec::new();
    for batch in 1..=LARGEST {
        let typed: Vec<Typed> = inputs.iter().map(|input| typed(input, batch)).collect::<Result<_>>()?;
        let (mut took, since) = (Vec::new(), Instant::now());
        while took.len() < LEAST || (took.len() < TRIED && since.elapsed() < TRYING) {
            let started = Instant::now();
            once(session, &typed)?;
            took.push(nanos(started.elapsed()));
        }
        let lasts = Duration::from_nanos(stats::percentile(&took, SURE).context("no runs")?);
        if lasts > bound {
            break; // nobody is in time in this one or in a larger one
        }
        takes.push(lasts);
        by_size.push(typed);
    }
    let (mut next, mut refused, mut late, mut batches) = (0, 0_usize, 0_usize, 0_usize);
    let mut latencies = Vec::new();
    let start = Instant::now();
    while next < coming.len() {
        let now = start.elapsed();
        let there = coming[next..].partition_point(|due| *due <= now);
        if there == 0 {
            std::hint::spin_loop();
            continue;
        }
        let left = (coming[next] + bound).saturating_sub(now);
        let Some(size) = (1..=there.min(takes.len())).rev().find(|size| takes[size - 1] <= left) else {
            (next, refused) = (next + 1, refused + 1);
            continue;
        };
        once(session, &by_size[size - 1])?;
        let ended = start.elapsed();
        for came in &coming[next..next + size] {
            let took = ended.saturating_sub(*came);
            late += usize::from(took > bound);
            latencies.push(nanos(took));
        }
        next += size;
        batches += 1;
    }
    Ok(json!({
        "sent": coming.len(), "late": late, "refused": refused, "missed": late + refused, "batches": batches,
        "latency": percentiles(&latencies), "takes_us": takes.iter().map(Duration::as_micros).collect::<Vec<_>>(),
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
