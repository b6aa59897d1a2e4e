//! ONNX Runtime called in a loop in one process: the floor that a served query is compared with.
//!
//! `ort-loop LIBRARY MODEL THREADS SEED`, then blocks as in `modelless_testkit::blocks`. One round is what any
//! program must do for one answer: wrap the input, run, read the output.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

use anyhow::{Context, Result, ensure};
use modelless_testkit::{Rng, blocks};
use ort::session::Session;
use ort::value::TensorRef;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [library, model, threads, seed] = args.as_slice() else {
        anyhow::bail!("usage: ort-loop LIBRARY MODEL THREADS SEED");
    };
    let environment = ort::init_from(library)?.build()?;
    let builder = Session::builder(&environment)?;
    let builder = builder.with_intra_threads(threads.parse()?).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut builder = builder.with_inter_threads(1).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut session = builder.commit_from_file(model).with_context(|| format!("loading {model}"))?;

    ensure!(session.inputs().len() == 1, "the model must have one input");
    let shape = session.inputs()[0].dtype().tensor_shape().context("the input must be a tensor")?.clone();
    // An unknown dimension is the batch, which is one here.
    let shape: Vec<i64> = shape.iter().map(|&size| size.max(1)).collect();
    let len = usize::try_from(shape.iter().product::<i64>())?;
    let mut rng = Rng::new(seed.parse()?);
    let input: Vec<f32> = (0..len).map(|_| rng.unit_f32()).collect();

    blocks::serve(|| {
        let tensor = TensorRef::from_array_view((shape.clone(), input.as_slice()))?;
        let outputs = session.run(ort::inputs![tensor])?;
        let (_, values) = outputs[0].try_extract_tensor::<f32>()?;
        ensure!(values.iter().all(|value| value.is_finite()), "an output that is no number");
        Ok(())
    })
}
