//! The same weights on every engine: answers within a stated tolerance, latencies that differ.
//!
//! For each model one task with a variant for each engine, and the same inputs go to each: the demo's 2,000 pictures as tensors, or random
//! ones. An engine that is not installed is told as missing and fails the measure.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Rng, Server, stats};
use serde_json::{Map, Value, json};

use super::models::{Model, cnn_m, in_torch, made};
use super::{Check, Context, Measure, Outcome, demo};
use crate::command::program;
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "same-weights",
    what: "cnn_m, EfficientNet-Lite0 and MiniLM-L6 on onnx, openvino and torch: largest difference of an answer, agreement of labels, \
           time on the device",
    run: measure,
};

const ENGINES: [&str; 3] = ["onnx", "openvino", "torch"];
const SAMPLE: &str = "examples/fashion/sample/sample-2000-images-idx3-ubyte.gz";
/// Labels that may differ where two classes are all but equal.
const DISAGREE_PERCENT: f64 = 0.5;

/// A model and what it is asked.
struct Asked {
    model: Model,
    inputs: Vec<Vec<u8>>,
    /// How far its numbers may be from ONNX Runtime's on OpenVINO and on libtorch. All compute in fp32; logits are up to some tens, and numbers of a vector
    /// of length 1 some hundredths.
    tolerances: [f64; 2],
    /// What its checks are called: how far, and how many labels, of each of the two.
    words: [(&'static str, &'static str); 2],
}

fn asked(context: &Context) -> Result<Vec<Asked>> {
    let mut all = vec![Asked {
        model: cnn_m(&context.root),
        inputs: pictures(context, context.choose(2_000, 100))?,
        tolerances: [1e-3, 1e-4],
        words: [
            ("cnn_m, openvino from onnx", "cnn_m, labels of openvino that differ"),
            ("cnn_m, torch from onnx", "cnn_m, labels of torch that differ"),
        ],
    }];
    if !context.short {
        let mut rng = Rng::new(context.seed);
        let mut random = |model: &Model, many: usize| (0..many).map(|_| model.body(&mut rng)).collect();
        let (efficientnet, minilm) =
            (made(&context.root, "efficientnet_lite0")?, made(&context.root, "minilm_l6")?);
        all.push(Asked {
            inputs: random(&efficientnet, 300),
            model: efficientnet,
            tolerances: [1e-3, 1e-3],
            words: [
                (
                    "efficientnet_lite0, openvino from onnx",
                    "efficientnet_lite0, labels of openvino that differ",
                ),
                ("efficientnet_lite0, torch from onnx", "efficientnet_lite0, labels of torch that differ"),
            ],
        });
        all.push(Asked {
            inputs: random(&minilm, 500),
            model: minilm,
            tolerances: [1e-4, 1e-5],
            words: [
                ("minilm_l6, openvino from onnx", "minilm_l6, largest numbers of openvino that are others"),
                ("minilm_l6, torch from onnx", "minilm_l6, largest numbers of torch that are others"),
            ],
        });
    }
    Ok(all)
}

fn measure(context: &Context) -> Result<Outcome> {
    let server = Server::builder().binary(context.binary()?).start()?;
    let (mut rows, mut results, mut checks, mut summary) = (Vec::new(), Vec::new(), Vec::new(), Map::new());
    let mut missing = Vec::new();
    for asked in asked(context)? {
        let Asked { model, inputs, tolerances, words } = &asked;
        let mut reference: Option<Vec<Vec<f64>>> = None;
        let mut of_model = Map::new();
        for (number, engine) in ENGINES.into_iter().enumerate() {
            // Its own package each, so that one that cannot be had takes no other with it.
            if let Err(error) = register(context, &server, engine, model) {
                say(format!("{} on {engine}: {error:#}", model.name));
                missing.push(format!("{engine} ({})", model.name));
                of_model.insert(engine.into(), json!({"missing": format!("{error:#}")}));
                continue;
            }
            let (answers, runs) = ask_all(&server, engine, model, inputs)?;
            let median = stats::median(&runs).context("nothing was asked")?;
            let mut told = json!({"run_ms_median": median, "run_ms_p99": stats::percentile(&runs, 99)});
            if let Some((reference, other)) = reference.as_ref().zip(number.checked_sub(1)) {
                let (largest, differ) = difference(reference, &answers);
                results.push(format!(
                    "{} on {engine}: at most {largest:.2e} from onnx, {differ:.2} % of labels differ, {median:.3} ms",
                    model.name
                ));
                told["largest_difference"] = json!(largest);
                told["labels_that_differ_percent"] = json!(differ);
                let (far, labels) = words[other];
                checks.push(Check { what: far, value: largest, limit: tolerances[other], unit: "" });
                checks.push(Check { what: labels, value: differ, limit: DISAGREE_PERCENT, unit: "%" });
            } else {
                results.push(format!("{} on {engine}: {median:.3} ms", model.name));
                ensure!(number == 0, "without {} there is nothing to compare with", ENGINES[0]);
                reference = Some(answers);
            }
            rows.push(json!({"model": model.name, "engine": engine, "run_ms": runs}));
            of_model.insert(engine.into(), told);
        }
        summary.insert(model.name.into(), Value::Object(of_model));
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
        seeds: vec![context.seed],
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: results.join("; "),
        checks,
    })
}

/// What its task is called here.
fn task_of(model: &Model) -> String {
    format!("{}-on-all", model.task)
}

fn register(context: &Context, server: &Server, engine: &str, model: &Model) -> Result<()> {
    let folder = modelless_testkit::temp_dir("same-weights")?;
    let file: PathBuf = if engine == "torch" { in_torch(&context.root, model)? } else { model.onnx.clone() };
    ensure!(file.is_file(), "{} is not there", file.file_name().unwrap_or_default().to_string_lossy());
    let models = folder.path().join("models");
    std::fs::create_dir(&models)?;
    let task = std::fs::read_to_string(model.package.join("task.toml"))?;
    let named = format!("name = \"{}\"", model.task);
    ensure!(task.contains(&named), "the task of {} has another name", model.name);
    let own = format!("name = \"{}\"", task_of(model));
    // What it is judged by is elsewhere, and nobody asks for it here.
    let (task, _) = task.split_once("[labelled-set]").unwrap_or((&task, ""));
    std::fs::write(folder.path().join("task.toml"), task.replace(&named, &own))?;
    std::fs::write(models.join("model.toml"), manifest(engine, &file))?;
    demo::register(server, folder.path())
}

fn manifest(engine: &str, file: &Path) -> String {
    let file = Value::from(file.to_string_lossy());
    format!(
        "name = \"{engine}\"\naccuracy = 0.75\n\n[adapter]\nkind = \"tensor\"\n\n\
         [[variants]]\nname = \"{engine}\"\nengine = \"{engine}\"\nprecision = \"fp32\"\nfile = {file}\n"
    )
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
fn ask_all(
    server: &Server,
    engine: &str,
    model: &Model,
    inputs: &[Vec<u8>],
) -> Result<(Vec<Vec<f64>>, Vec<f64>)> {
    let mut connection = server.connect()?;
    let target = format!("{}?variant={engine}&latency_ms=60000", task_of(model));
    let (mut answers, mut runs) = (Vec::new(), Vec::new());
    for input in inputs {
        let response = connection.exchange(&demo::tensor_request(&target, input.clone()))?;
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
