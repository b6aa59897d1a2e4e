//! From one fp32 model with a labelled set to a frontier: how long it takes, and what eight bits cost by each way of finding
//! ranges.
//!
//! The command a user would type, on models of the demos with nothing but their fp32 file: three small ones, and one of real size,
//! of which smaller inputs are made too. What is measured of each variant is compared with a count that numpy and ONNX Runtime
//! make alone, on the tensors that the adapter gives to the model. Whether the members of each round's frontier differ is looked
//! at once more here, by the figures that were written down.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::{Server, TempDir, stats};
use serde_json::{Map, Value, json};

use super::{Check, Context, Measure, Outcome, accuracy_python, demo};
use crate::command::{output, program, target_dir};
use crate::say;
use crate::test::recipes;

pub(crate) const MEASURE: Measure = Measure {
    name: "generate",
    what: "from one fp32 image model with a labelled set (2,000 pictures of clothes, or 120 of ImageNet's classes) to a measured \
           frontier of variants that nobody supplied: wall time, and eight bits by each way of finding ranges",
    run: measure,
};

/// Of the large model, in every round.
const FRONTIER: usize = 4;
const LONGEST_S: f64 = 120.0;
/// Of the model of real size: fourteen variants of 5 to 30 ms are measured.
const LONGEST_LARGE_S: f64 = 600.0;
const LARGE: &str = "efficientnet-lite0";
const WAYS: [&str; 5] = ["fp32", "int8-dynamic", "int8-minmax", "int8-percentile", "int8-entropy"];
const PLOT: &str = "docs/img/generated.svg";
const EXAMPLE: &str = "examples/fashion";
/// Members of a frontier differ by more than this in something: half of what the platform takes for equal, as it reckons with
/// what lies between the sizes that were timed, and this looks at those alone.
const APART: f64 = 0.015;
const APART_BYTES: f64 = 0.5 * 1024.0 * 1024.0;

/// A model of which variants are made.
struct Case {
    model: &'static str,
    /// Beside the package.
    words: Vec<String>,
    rounds: usize,
    /// So many its frontier has at least.
    frontier: usize,
    longest_s: f64,
}

/// What all rounds of all models came to.
#[derive(Default)]
struct All {
    rows: Vec<Value>,
    results: Vec<String>,
    summary: Map<String, Value>,
    lacking: usize,
    alike: usize,
    /// Beyond what its model may take.
    late_s: f64,
    differing: u64,
    on_the_plot: usize,
}

fn measure(context: &Context) -> Result<Outcome> {
    // Fetched before, so that an index's network is no part of the figure.
    let tools = output(program(&context.root, context.binary()?).args(["variant", "tools", "--json"]))?;
    let tools: Value = serde_json::from_str(&tools)?;
    context.onnx_library()?;
    let small = |model| Case {
        model,
        words: Vec::new(),
        rounds: context.choose(3, 1),
        frontier: 1,
        longest_s: LONGEST_S,
    };
    let mut cases: Vec<Case> =
        context.choose(&["cnn_m", "cnn_l", "mlp_l"][..], &["mlp_l"]).iter().copied().map(small).collect();
    let large = if context.short { None } else { Some(Large::made(context)?) };
    if let Some(large) = &large {
        let words = ["--only", "int8", "--only", "size", "--size", "144,160,176", "--calibration-set"];
        let words = words.map(str::to_owned).into_iter().chain([large.photographs()?]);
        cases.push(Case {
            model: LARGE,
            words: words.collect(),
            rounds: 2,
            frontier: FRONTIER,
            longest_s: LONGEST_LARGE_S,
        });
    }
    let mut all = All { on_the_plot: usize::MAX, ..All::default() };
    let last = cases.len() - 1;
    for (number, case) in cases.iter().enumerate() {
        let of = large.as_ref().filter(|_| case.model == LARGE);
        all.add(context, (case, of), &tools, number == last)?;
    }
    let drawn = context.choose(FRONTIER, 1).saturating_sub(all.on_the_plot);
    let count = |number: usize| u32::try_from(number).map(f64::from);
    Ok(Outcome {
        seeds: Vec::new(),
        repetitions: Value::Array(all.rows),
        summary: Value::Object(all.summary),
        result: all.results.join(". "),
        checks: vec![
            Check {
                what: "variants that the large model's frontier lacks of four, in its worst round",
                value: count(all.lacking)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "variants that the plot's line lacks of four",
                value: count(drawn)?,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "members of a round's frontier that differ from another in nothing",
                value: count(all.alike)?,
                // Where times go up and down with the size, as on a busy machine, the performance model that the platform asks is
                // further from single figures than what this allows for.
                limit: context.choose(0.0, 2.0),
                unit: "",
            },
            Check {
                what: "wall time beyond 120 s, or 600 s of the large model",
                value: all.late_s,
                limit: 0.0,
                unit: "s",
            },
            Check {
                what: "right answers that others count differently",
                value: f64::from(u32::try_from(all.differing)?),
                limit: 0.0,
                unit: "",
            },
        ],
    })
}

impl All {
    /// Every round of a model.
    fn add(
        &mut self,
        context: &Context,
        (case, large): (&Case, Option<&Large>),
        tools: &Value,
        draw: bool,
    ) -> Result<()> {
        let model = case.model;
        let (mut walls, mut frontiers, mut last) = (Vec::new(), Vec::new(), None);
        for repetition in 0..case.rounds {
            let folder = modelless_testkit::temp_dir("generate")?;
            match large {
                Some(large) => large.package(folder.path())?,
                None => package(context, model, folder.path())?,
            }
            let out = folder.path().join("out");
            let words: Vec<&str> = case.words.iter().map(String::as_str).collect();
            let begin = Instant::now();
            let report = generate(context, folder.path(), (&out, &words))?;
            let wall = begin.elapsed().as_secs_f64();
            let frontier = frontier(&report)?;
            let names: Vec<&str> = frontier.iter().filter_map(|one| one["variant"].as_str()).collect();
            say(format!(
                "{model}, round {repetition}: {} on the frontier ({}), {wall:.1} s",
                names.len(),
                names.join(", ")
            ));
            self.alike +=
                frontier.iter().filter(|one| frontier.iter().any(|other| is_alike(other, one))).count();
            self.lacking = self.lacking.max(case.frontier.saturating_sub(names.len()));
            self.late_s = self.late_s.max(wall - case.longest_s).max(0.0);
            walls.push(wall);
            self.rows
                .push(json!({"model": model, "repetition": repetition, "wall_s": wall, "frontier": names,
                "variants": short(&report)}));
            frontiers.push(names.into_iter().map(str::to_owned).collect::<Vec<_>>());
            last = Some((folder, out, report));
        }
        let (folder, out, report) = last.context("nothing was generated")?;
        let wall = stats::median(&walls).context("nothing was timed")?;
        let variants = report["variants"].as_array().context("no variants")?;
        let differ = differing_answers(context, model, (&out, folder.path()), (tools, variants))?.variants;
        self.differing += differ;
        let table = table(model, variants, &WAYS);
        table.iter().for_each(say);
        let fewest = frontiers.iter().map(Vec::len).min().unwrap_or(0);
        self.results.push(format!(
            "{model}: at least {fewest} of {} variants on the frontier in every round ({}) after {wall:.1} s; {}",
            variants.len(),
            frontiers.last().map(|names| names.join(", ")).unwrap_or_default(),
            table.join("; ")
        ));
        if draw {
            self.on_the_plot = plot(context, &out, report["task"].as_str().context("no task")?)?;
        }
        self.summary.insert(
            model.to_owned(),
            json!({"wall_s_median": wall, "frontiers": frontiers, "answers_that_differ": differ, "table": table,
                "on_the_plot": draw.then_some(self.on_the_plot)}),
        );
        Ok(())
    }
}

/// Those that nothing dominates.
fn frontier(report: &Value) -> Result<Vec<&Value>> {
    let all = report["variants"].as_array().context("no variants")?;
    Ok(all.iter().filter(|one| one["dominated_by"].is_null() && one["left_out"].is_null()).collect())
}

/// Whether another one is as good in everything: accuracy, time alone, time of an item in the best batch, memory.
fn is_alike(other: &Value, one: &Value) -> bool {
    let accuracy = |of: &Value| of["profile"]["accuracy"]["value"].as_f64().unwrap_or(0.0);
    let memory = |of: &Value| of["profile"]["memory"].as_f64().unwrap_or(0.0);
    let each = |of: &Value| -> Vec<f64> {
        let points = of["profile"]["latency"].as_array().into_iter().flatten();
        points.filter_map(|point| Some(point["mean_us"].as_f64()? / point["batch"].as_f64()?)).collect()
    };
    let (own, others) = (each(one), each(other));
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let alone = |times: &[f64]| times.first().copied().unwrap_or(f64::INFINITY);
    !std::ptr::eq(other, one)
        && accuracy(other) >= accuracy(one)
        && alone(&others) <= alone(&own) * (1.0 + APART)
        && least(&others) <= least(&own) * (1.0 + APART)
        && memory(other) <= memory(one) + (memory(one) * 0.005).max(APART_BYTES)
}

/// The demo's ImageNet, of which one model is taken in fp32.
struct Large {
    made: PathBuf,
    /// Of the list that is calibrated with.
    folder: TempDir,
}

impl Large {
    fn made(context: &Context) -> Result<Self> {
        let target = target_dir(&context.root)?;
        let python = recipes(&context.root, &target)?;
        let made = accuracy_python::imagenet(context, &python, &target)?;
        Ok(Self { made, folder: modelless_testkit::temp_dir("photographs")? })
    }

    /// Photographs that came with the demo, and which are not in its labelled set: too few to measure with, but enough to calibrate,
    /// so that all of the set measures. Their names end in their class.
    fn photographs(&self) -> Result<String> {
        let mut lines = Vec::new();
        for entry in fs::read_dir(self.made.with_file_name("imagenet").join("foolbox/data"))? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let class = name.strip_prefix("imagenet_").and_then(|rest| rest.split_once('_'));
            lines.extend(class.map(|(_, class)| format!("{},{class}", path.display())));
        }
        ensure!(lines.len() == 20, "the demo's photographs are {} by now", lines.len());
        lines.sort();
        let list = self.folder.path().join("photographs.csv");
        fs::write(&list, lines.join("\n"))?;
        Ok(list.to_string_lossy().into_owned())
    }

    /// The model as its author might have it: one file.
    fn package(&self, folder: &Path) -> Result<()> {
        for place in ["models", "set"] {
            fs::create_dir(folder.join(place))?;
        }
        for entry in fs::read_dir(self.made.join("set"))? {
            let entry = entry?;
            fs::copy(entry.path(), folder.join("set").join(entry.file_name()))?;
        }
        for file in ["task.toml".to_owned(), format!("models/{LARGE}.onnx")] {
            fs::copy(self.made.join(&file), folder.join(&file)).with_context(|| format!("copying {file}"))?;
        }
        let manifest = fs::read_to_string(self.made.join(format!("models/{LARGE}.toml")))?;
        alone(&manifest, LARGE, folder)
    }
}

/// Writes a manifest with nothing but the file in fp32.
fn alone(manifest: &str, model: &str, folder: &Path) -> Result<()> {
    let (head, _) = manifest.split_once("[[variants]]").context("a manifest without variants")?;
    let alone = format!("{head}[[variants]]\nprecision = \"fp32\"\nfile = \"{model}.onnx\"\n");
    Ok(fs::write(folder.join(format!("models/{model}.toml")), alone)?)
}

/// The model as its author might have it: one file.
fn package(context: &Context, model: &str, folder: &Path) -> Result<()> {
    let example = context.root.join(EXAMPLE);
    for place in ["models", "sample"] {
        fs::create_dir(folder.join(place))?;
    }
    for name in [
        "sample/sample-2000-images-idx3-ubyte.gz".to_owned(),
        "sample/sample-2000-labels-idx1-ubyte.gz".to_owned(),
        format!("models/{model}.onnx"),
    ] {
        fs::copy(example.join(&name), folder.join(&name)).with_context(|| format!("copying {name}"))?;
    }
    let task = fs::read_to_string(example.join("task.toml"))?;
    let task: Vec<&str> = task.lines().filter(|line| !line.starts_with("also")).collect();
    fs::write(folder.join("task.toml"), task.join("\n"))?;
    let manifest = fs::read_to_string(example.join(format!("models/{model}.toml")))?;
    alone(&manifest, model, folder)
}

/// The command that a user would type.
pub(super) fn generate(context: &Context, package: &Path, (out, words): (&Path, &[&str])) -> Result<Value> {
    let mut command = program(&context.root, context.binary()?);
    command.args(["variant", "generate"]).arg(package).arg("--out").arg(out).arg("--json").args(words);
    let done = command.output().context("running modelless")?;
    ensure!(
        done.status.success(),
        "`variant generate` failed: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    serde_json::from_slice(&done.stdout).context("what `variant generate --json` prints")
}

/// Numbers of a report, without what is the same each time.
pub(super) fn short(report: &Value) -> Vec<Value> {
    let all = report["variants"].as_array().into_iter().flatten();
    let one = |one: &Value| {
        let latency = one["profile"]["latency"].as_array().into_iter().flatten();
        let latency: Map<String, Value> =
            latency.map(|point| (point["batch"].to_string(), point["mean_us"].clone())).collect();
        json!({
            "variant": one["variant"], "accuracy": one["profile"]["accuracy"]["value"], "mean_us": latency,
            "memory": one["profile"]["memory"], "bytes": one["bytes"], "check": one["made"]["check"],
            "made_s": one["made"]["seconds"], "dominated_by": one["dominated_by"],
        })
    };
    all.map(one).collect()
}

/// A line for each of these ways.
pub(super) fn table(model: &str, variants: &[Value], ways: &[&str]) -> Vec<String> {
    let line = |way: &&str| {
        let name = format!("{model}-{way}");
        let one = variants.iter().find(|one| one["variant"] == name.as_str())?;
        let profile = &one["profile"];
        let latency = profile["latency"].as_array()?;
        let us = |point: Option<&Value>| point?["mean_us"].as_f64();
        Some(format!(
            "{way} {:.2} %, {:.3} ms at 1, {:.3} ms at {}, {:.1} MiB, {:.0} KiB",
            profile["accuracy"]["value"].as_f64()? / 1e4, // of a million
            us(latency.first())? / 1e3,
            us(latency.last())? / 1e3,
            latency.last()?["batch"],
            profile["memory"].as_f64()? / f64::from(1 << 20),
            one["bytes"].as_f64()? / 1024.0
        ))
    };
    ways.iter().filter_map(line).collect()
}

/// What others count differently.
#[derive(Default)]
pub(super) struct Differing {
    /// Variants.
    pub(super) variants: u64,
    /// Right answers of one variant, at most.
    pub(super) most: f64,
}

/// What others count differently, over all variants with the model's own input.
pub(super) fn differing_answers(
    context: &Context,
    model: &str,
    (out, folder): (&Path, &Path),
    (tools, variants): (&Value, &[Value]),
) -> Result<Differing> {
    let dump = folder.join("dump");
    let mut command = program(&context.root, context.binary()?);
    command.args(["variant", "dump"]).arg(out).args(["--model", model, "--out"]).arg(&dump);
    output(&mut command)?;
    let own: Vec<&Value> = variants.iter().filter(|one| one["model"] == model).collect();
    let name = |one: &Value| one["variant"].as_str().map(str::to_owned).context("a variant without a name");
    let files = own.iter().map(|one| Ok(out.join(format!("models/{}.onnx", name(one)?))));
    let files: Vec<PathBuf> = files.collect::<Result<_>>()?;
    let text = |name: &str| tools[name].as_str().with_context(|| format!("`variant tools` names no {name}"));
    let mut python = program(&context.root, text("python")?);
    python.env("PYTHONPATH", text("libraries")?).arg("tests/python/count_right.py").arg(&dump).args(files);
    let counted = output(&mut python)?;
    let mut differing = Differing::default();
    for (one, line) in own.iter().zip(counted.lines()) {
        let about = &one["profile"]["accuracy"];
        let (value, samples) = (about["value"].as_f64(), about["samples"].as_f64());
        let ours =
            value.zip(samples).map(|(ppm, samples)| (ppm * samples / 1e6).round()).context("no accuracy")?;
        let theirs: f64 = line.parse().context("a count")?;
        if (ours - theirs).abs() > 0.0 {
            say(format!("{}: {ours} right answers, others count {theirs}", name(one)?));
            differing.variants += 1;
            differing.most = differing.most.max((ours - theirs).abs());
        }
    }
    Ok(differing)
}

/// The frontier as a server shows it, once the package is registered there. How many are on its line.
fn plot(context: &Context, out: &Path, task: &str) -> Result<usize> {
    let server = Server::builder().binary(context.binary()?).start()?;
    demo::register(&server, out)?;
    let drawn = out.join("plot.svg");
    let path = drawn.to_string_lossy();
    let shown = server.command(&["task", "show", task, "--plot", &path, "--server", &server.url()])?;
    ensure!(
        shown.status.success(),
        "`task show --plot` failed: {}",
        String::from_utf8_lossy(&shown.stderr).trim()
    );
    if !context.short {
        let to = context.root.join(PLOT);
        fs::create_dir_all(to.parent().context("it lies in a folder")?)?;
        fs::copy(&drawn, &to).with_context(|| format!("writing {PLOT}"))?;
    }
    let picture = fs::read_to_string(&drawn)?;
    let (_, line) = picture.split_once("<polyline class=\"frontier\" points=\"").context("no line")?;
    let corners = line.split('"').next().unwrap_or_default().split_whitespace().count();
    server.stop()?;
    Ok(corners)
}
