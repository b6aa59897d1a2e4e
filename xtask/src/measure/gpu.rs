//! What one GPU does against one core beside it, in the runner that serves: the figures of `docs/engines.md`.
//!
//! Each variant is measured by the command that a user would type, with the library that this machine's `modelless` finds (see
//! "GPUs" there for what it takes). Where there is no GPU nothing is measured, and that is said; it is no failure, and nothing is
//! written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use super::models::made;
use super::{Check, Context, Measure, Outcome};
use crate::command::program;
use crate::say;

pub(crate) const MEASURE: Measure = Measure {
    name: "gpu",
    what: "one GPU against one core, in the runner that serves: time of one alone, best throughput, cold load; skipped \
           where there is no GPU",
    run: measure,
};

/// Where NVIDIA's driver tells of its GPUs, a folder each. A node finds them here, too.
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// Of `examples/fashion-gpu`.
const FASHION: [&str; 5] = ["cnn_l-cpu", "cnn_l-gpu", "cnn_m-cpu", "cnn_m-gpu", "cnn_m-torch-gpu"];
/// Of the package that is made here.
const LITE0: [&str; 2] = ["efficientnet_lite0-fp32", "efficientnet_lite0-gpu"];

fn measure(context: &Context) -> Result<Outcome> {
    let gpus = gpus(Path::new(GPUS));
    if gpus.is_empty() {
        let result = format!("no GPU here: NVIDIA's driver tells of none under {GPUS}; nothing was measured");
        return Ok(Outcome {
            seeds: Vec::new(),
            repetitions: Value::Null,
            summary: Value::Null,
            result,
            checks: Vec::new(),
        });
    }
    let folder = modelless_testkit::temp_dir("gpu")?;
    let mut wanted: Vec<(PathBuf, &str)> = Vec::new();
    if !context.short {
        let package = lite0(context, folder.path())?;
        wanted.extend(LITE0.map(|variant| (package.clone(), variant)));
    }
    let fashion = context.root.join("examples/fashion-gpu");
    wanted.extend(FASHION.map(|variant| (fashion.clone(), variant)));
    let (mut rows, mut results, mut summary, mut missing) = (Vec::new(), Vec::new(), Map::new(), Vec::new());
    for (package, variant) in wanted {
        let out = folder.path().join("profile.json");
        match profile(context, &package, variant, &out).and_then(|told| Ok((figures(&told)?, told))) {
            Ok((figures, told)) => {
                results.push(figures.line(variant));
                summary.insert(variant.to_owned(), figures.json());
                rows.push(told);
            }
            Err(error) => {
                say(format!("{variant}: {error:#}"));
                missing.push(variant);
            }
        }
    }
    if !missing.is_empty() {
        results.push(format!("missing here: {}", missing.join(", ")));
    }
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(rows),
        summary: Value::Object(summary),
        result: format!("{}: {}", gpus.join(" and "), results.join("; ")),
        checks: vec![Check {
            what: "variants that could not be measured",
            value: f64::from(u32::try_from(missing.len())?),
            // Which libraries are there is this machine's matter in the short form.
            limit: context.choose(0.0, 5.0),
            unit: "",
        }],
    })
}

/// The names of the GPUs that a driver tells of, in its order.
fn gpus(folder: &Path) -> Vec<String> {
    let mut places: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    places.sort_unstable();
    let name = |place: &PathBuf| {
        let told = fs::read_to_string(place.join("information")).unwrap_or_default();
        let name = told.lines().find_map(|line| line.strip_prefix("Model:")).unwrap_or("a GPU").trim();
        name.to_owned()
    };
    places.iter().map(name).collect()
}

/// The measured model with a second variant, on the GPU.
fn lite0(context: &Context, folder: &Path) -> Result<PathBuf> {
    let model = made(&context.root, "efficientnet_lite0")?;
    let package = folder.join("lite0");
    fs::create_dir_all(package.join("models"))?;
    fs::copy(model.package.join("task.toml"), package.join("task.toml")).context("copying task.toml")?;
    let manifest = format!("models/{}.toml", model.name);
    let file = Value::from(model.onnx.to_string_lossy());
    let relative = format!("\"../{}.onnx\"", model.name);
    let text = fs::read_to_string(model.package.join(&manifest))?;
    ensure!(text.contains(&relative), "{manifest} has no file = {relative} any more");
    let text = text.replace(&relative, &file.to_string());
    let more = format!(
        "\n[[variants]]\nname = \"{}\"\nprecision = \"fp32\"\nprocessor = \"cuda\"\nmax_batch = 64\nfile = {file}\n",
        LITE0[1]
    );
    fs::write(package.join(manifest), text + &more)?;
    Ok(package)
}

/// What `profile run` writes of one variant.
fn profile(context: &Context, package: &Path, variant: &str, out: &Path) -> Result<Value> {
    let mut command = program(&context.root, context.binary()?);
    command.args(["profile", "run"]).arg(package).args(["--variant", variant, "--out"]).arg(out);
    if context.short {
        command.args(["--budget", "10s"]);
    }
    let done = command.output().context("running modelless")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "`profile run` failed: {}", said.trim());
    let written: Value =
        serde_json::from_slice(&fs::read(out)?).context("what `profile run --out` writes")?;
    let all = written["profiles"].as_array().context("it names no profiles")?;
    let own = all.iter().find(|one| one["variant"] == variant).context("it does not name the variant")?;
    Ok(own.clone())
}

/// What is told of a variant.
#[derive(PartialEq, Debug)]
struct Figures {
    alone_ms: f64,
    alone_p99_ms: f64,
    /// Items a second at the batch that makes the most of them.
    best_per_second: f64,
    best_batch: f64,
    /// With the file on the disk only.
    cold_load_ms: f64,
}

fn figures(told: &Value) -> Result<Figures> {
    let profile = &told["profile"];
    let points = profile["latency"].as_array().context("no latency was measured")?;
    let number = |of: &Value, name: &str| of[name].as_f64().with_context(|| format!("no {name}"));
    let first = points.first().context("no batch was measured")?;
    let mut best = (0.0, 0.0);
    for point in points {
        let per_second = number(point, "batch")? / number(point, "mean_us")? * 1e6;
        if per_second > best.0 {
            best = (per_second, number(point, "batch")?);
        }
    }
    Ok(Figures {
        alone_ms: number(first, "mean_us")? / 1e3,
        alone_p99_ms: number(first, "p99_us")? / 1e3,
        best_per_second: best.0,
        best_batch: best.1,
        cold_load_ms: number(&profile["detail"], "load_cold")? / 1e3,
    })
}

impl Figures {
    fn line(&self, variant: &str) -> String {
        let Self { alone_ms, alone_p99_ms, best_per_second, best_batch, cold_load_ms } = self;
        format!(
            "{variant} {alone_ms:.2} ms alone (p99 {alone_p99_ms:.2}), {best_per_second:.0} a second at {best_batch:.0}, \
             loaded in {cold_load_ms:.0} ms"
        )
    }

    fn json(&self) -> Value {
        json!({
            "alone_ms": self.alone_ms, "alone_p99_ms": self.alone_p99_ms, "best_per_second": self.best_per_second,
            "best_batch": self.best_batch, "cold_load_ms": self.cold_load_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was measured on an H100 gives the table that stands in the documents.
    #[test]
    fn profiles_give_the_lines_of_the_documents() {
        let root = crate::root().unwrap();
        let raw = fs::read(root.join("bench/results/gpu/2026-11-22-fashion.json")).unwrap();
        let raw: Value = serde_json::from_slice(&raw).unwrap();
        let of = |variant: &str| {
            let mut all = raw["profiles"]["profiles"].as_array().unwrap().iter();
            let told = all.find(|one| one["variant"] == variant).unwrap();
            figures(told).unwrap().line(variant)
        };
        assert_eq!(
            of("cnn_l-gpu"),
            "cnn_l-gpu 0.62 ms alone (p99 1.08), 210714 a second at 256, loaded in 824 ms"
        );
        assert_eq!(
            of("cnn_m-cpu"),
            "cnn_m-cpu 0.29 ms alone (p99 0.48), 10846 a second at 32, loaded in 43 ms"
        );
        assert!(figures(&json!({"profile": {"latency": []}})).is_err());
    }

    #[test]
    fn a_gpu_is_there_if_the_driver_tells_of_it() {
        let driver = modelless_testkit::temp_dir("driver").unwrap();
        assert_eq!(gpus(driver.path()), [""; 0]);
        assert_eq!(gpus(&driver.path().join("none")), [""; 0]);
        let place = driver.path().join("0000:19:00.0");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("information"), "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n").unwrap();
        assert_eq!(gpus(driver.path()), ["NVIDIA H100 80GB HBM3"]);
    }
}
