//! The same weights on every engine: answers within a stated tolerance, latencies that differ.
//!
//! One task, one model, a variant for each engine; the 2,000 pictures of the demo's sample as tensors go to each. An engine
//! that is not installed is told as missing and fails the measure.

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, stats};
use serde_json::{Map, Value, json};

use super::{Check, Context, Measure, Outcome, demo};
use crate::command::program;
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "same-weights",
    what: "cnn_m on onnx, openvino and torch: largest difference of an answer, agreement of labels, time on the device",
    run: measure,
};

/// Engine, file, and how far its logits may be from ONNX Runtime's. All compute in fp32.
const ENGINES: [(&str, &str, f64); 3] = [
    ("onnx", "examples/fashion/models/cnn_m.onnx", 0.0),
    ("openvino", "examples/fashion/models/cnn_m.onnx", 1e-3),
    ("torch", "examples/fashion/models/cnn_m.pt", 1e-4),
];
const SAMPLE: &str = "examples/fashion/sample/sample-2000-images-idx3-ubyte.gz";
const TASK: &str = "same-weights";
/// Labels that may differ where two classes are all but equal.
const DISAGREE_PERCENT: f64 = 0.5;

fn measure(context: &Context) -> Result<Outcome> {
    let pictures = pictures(context, context.choose(2_000, 100))?;
    let server = Server::builder().binary(context.binary()?).start()?;
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    let mut reference: Option<Vec<Vec<f64>>> = None;
    let mut missing = Vec::new();
    for (engine, file, tolerance) in ENGINES {
        // Its own package each, so that one that cannot be had takes no other with it.
        if let Err(error) = register(context, &server, engine, file) {
            say(format!("{engine}: {error:#}"));
            missing.push(engine);
            summary.insert(engine.into(), json!({"missing": format!("{error:#}")}));
            continue;
        }
        let (answers, runs) = ask_all(&server, engine, &pictures)?;
        let median = stats::median(&runs).context("nothing was asked")?;
        let mut told = json!({"run_ms_median": median, "run_ms_p99": stats::percentile(&runs, 99)});
        if let Some(reference) = &reference {
            let (largest, differ) = difference(reference, &answers);
            results.push(format!(
                "{engine}: at most {largest:.2e} from onnx, {differ:.2} % of labels differ, {median:.3} ms"
            ));
            told["largest_difference"] = json!(largest);
            told["labels_that_differ_percent"] = json!(differ);
            let (far, labels) = words(engine);
            checks.push(Check { what: far, value: largest, limit: tolerance, unit: "" });
            checks.push(Check { what: labels, value: differ, limit: DISAGREE_PERCENT, unit: "%" });
        } else {
            results.push(format!("{engine}: {median:.3} ms"));
            ensure!(engine == ENGINES[0].0, "without {} there is nothing to compare with", ENGINES[0].0);
            reference = Some(answers);
        }
        rows.push(json!({"engine": engine, "run_ms": runs}));
        summary.insert(engine.into(), told);
    }
    server.stop()?;
    if !missing.is_empty() {
        results.push(format!("missing here: {}", missing.join(", ")));
    }
    // CI's quick form runs where only the default engine is.
    let allowed = context.choose(0.0, 2.0);
    checks.push(Check {
        what: "engines missing",
        value: f64::from(u8::try_from(missing.len())?),
        limit: allowed,
        unit: "",
    });
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

fn words(engine: &str) -> (&'static str, &'static str) {
    match engine {
        "openvino" => ("openvino from onnx", "labels of openvino that differ"),
        _ => ("torch from onnx", "labels of torch that differ"),
    }
}

fn register(context: &Context, server: &Server, engine: &str, file: &str) -> Result<()> {
    let folder = modelless_testkit::temp_dir("same-weights")?;
    let file = context.root.join(file);
    ensure!(file.is_file(), "{} is not there", file.file_name().unwrap_or_default().to_string_lossy());
    let models = folder.path().join("models");
    std::fs::create_dir(&models)?;
    let task = std::fs::read_to_string(context.root.join("bench/models/fashion_many/task.toml"))?;
    std::fs::write(folder.path().join("task.toml"), task.replace("fashion-many", TASK))?;
    let file = Value::from(file.to_string_lossy());
    let model = format!(
        "name = \"{engine}\"\naccuracy = 0.9155\n\n[adapter]\nkind = \"tensor\"\n\n\
         [[variants]]\nname = \"{engine}\"\nengine = \"{engine}\"\nprecision = \"fp32\"\nfile = {file}\n"
    );
    std::fs::write(models.join("model.toml"), model)?;
    demo::register(server, folder.path())
}

/// The first pictures of the sample as raw tensors.
fn pictures(context: &Context, count: usize) -> Result<Vec<Vec<u8>>> {
    const HEAD: usize = 16;
    let unpacked = program(&context.root, "gzip").args(["-dc", SAMPLE]).output().context("running gzip")?;
    ensure!(unpacked.status.success(), "gzip could not unpack {SAMPLE}");
    let pixels = unpacked.stdout.get(HEAD..).context("the sample has no head")?;
    let float = |pixel: &u8| (f32::from(*pixel) / 255.0).to_le_bytes();
    let pictures = pixels.chunks_exact(demo::TENSOR_FLOATS).take(count);
    Ok(pictures.map(|picture| picture.iter().flat_map(float).collect()).collect())
}

/// Every answer, and the time on the device in milliseconds.
fn ask_all(server: &Server, engine: &str, pictures: &[Vec<u8>]) -> Result<(Vec<Vec<f64>>, Vec<f64>)> {
    let mut connection = server.connect()?;
    let target = format!("{TASK}?variant={engine}&latency_ms=60000");
    let (mut answers, mut runs) = (Vec::new(), Vec::new());
    for picture in pictures {
        let response = connection.exchange(&demo::tensor_request(&target, picture.clone()))?;
        answers.push(demo::numbers(&response)?);
        runs.push(response.header("modelless-run-ms").context("no modelless-run-ms")?.parse()?);
    }
    Ok((answers, runs))
}

/// The largest difference of a number, and how many labels differ in a hundred.
fn difference(reference: &[Vec<f64>], answers: &[Vec<f64>]) -> (f64, f64) {
    let label = |answer: &[f64]| (0..answer.len()).max_by(|a, b| answer[*a].total_cmp(&answer[*b]));
    let (mut largest, mut differ) = (0.0_f64, 0_u32);
    for (a, b) in reference.iter().zip(answers) {
        let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        largest = if a.len() == b.len() { largest.max(apart) } else { f64::NAN };
        differ += u32::from(label(a) != label(b));
    }
    (
        largest,
        f64::from(differ) * 100.0 / f64::from(u32::try_from(reference.len().max(1)).unwrap_or(u32::MAX)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_how_far_answers_are_apart() {
        let (largest, differ) =
            difference(&[vec![1.0, 2.0], vec![3.0, 0.0]], &[vec![2.5, 2.0], vec![3.0, 0.0]]);
        assert!((largest - 1.5).abs() < 1e-9 && (differ - 50.0).abs() < 1e-9);
    }
}
